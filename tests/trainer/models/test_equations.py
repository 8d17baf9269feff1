"""Each model is its paper's equation of vectors and numbers, by NumPy; test_interactions tests the parts."""

import numpy as np
import pytest
from mindspore import Tensor, nn

from tests.trainer.models.test_interactions import close, dense, draw, perceptron, perturbed, run, softmax
from trainer import models
from trainer.features import Categorical, Features, ListFeature, Numeric
from trainer.models import MODELS

FIELDS, NUMBERS, DIM, ROWS = 3, 2, 4, 5
HISTORIES, TASKS = ("din", "bst"), ("mmoe", "ple", "esmm")


class Given(nn.Cell):
    """Stands for the embedding: vectors and numbers are the inputs."""

    def construct(self, fields, numbers, *sequences):
        if len(sequences) > 2:
            return fields, numbers, (sequences[:2], sequences[2:])
        return fields, numbers, (sequences,) if sequences else ()


def make(name, lists=("c0",), **options):
    """Return a model with random parameters, whose inputs are vectors and numbers, and histories of some tables."""
    parts = [Categorical(f"c{i}", dtype="int64") for i in range(FIELDS)] + [Numeric(f"n{i}") for i in range(NUMBERS)]
    if name in HISTORIES:
        history = {"dtype": "int64", "pooling": None, "max_length": 3, "sequence": "history"}
        parts += [ListFeature(f"of_{table}", table=table, **history) for table in lists]
    features = Features(parts, label=["a", "b"] if name in TASKS else "a")
    model = getattr(models, MODELS[name])(features, **options)
    if hasattr(model, "linear") or hasattr(model, "wide"):
        (model.linear if hasattr(model, "linear") else model.wide).weights = Given()
    if hasattr(model, "embedding"):
        model.embedding = Given()
    return perturbed(model)


def linear(cell, fields, numbers):
    return fields.sum((1, 2)) + dense(cell.numbers, numbers)[:, 0]


def pairs(fields):
    return sum((fields[:, i] * fields[:, j]).sum(1) for i in range(FIELDS) for j in range(i))


def flat(fields, numbers):
    return np.concatenate([fields.reshape(len(fields), -1), numbers], 1)


def equation(name, model, fields, numbers):
    """Return the outputs of a model by its equation."""
    x = flat(fields, numbers)
    if name in ("lr", "fm"):
        return linear(model.linear, fields, numbers) + (pairs(fields) if name == "fm" else 0)
    if name == "wide_deep":
        return linear(model.wide, fields, numbers) + perceptron(model.deep, x)[:, 0]
    if name == "deepfm":
        return linear(model.linear, fields, numbers) + pairs(fields) + perceptron(model.deep, x)[:, 0]
    if name == "dcn_v2":
        crossed = run(model.cross, x)
        inputs = (
            np.concatenate([crossed, perceptron(model.deep, x)], 1)
            if model.is_parallel
            else perceptron(model.deep, crossed)
        )
        return dense(model.top, inputs)[:, 0]
    if name == "autoint":
        attended = run(model.attention[1], run(model.attention[0], fields)).reshape(ROWS, -1)
        return dense(model.logit, attended)[:, 0] + perceptron(model.deep, x)[:, 0]
    if name == "masknet":
        inputs = flat(run(model.norm, fields), numbers)
        return perceptron(model.top, np.concatenate([run(block, x, inputs) for block in model.blocks], 1))[:, 0]
    assert name == "dlrm"
    vectors = np.concatenate([perceptron(model.bottom, numbers)[:, None], fields], 1)
    products = [(vectors[:, i] * vectors[:, j]).sum(1) for i in range(FIELDS + 1) for j in range(i)]
    return perceptron(model.top, np.concatenate([vectors[:, 0], np.stack(products, 1)], 1))[:, 0]


SMALL = {"dim": DIM, "hidden": [4]}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *(("lr", {}), ("fm", {"dim": DIM}), ("wide_deep", SMALL), ("deepfm", SMALL)),
        *(("dcn_v2", {**SMALL, "cross_layers": 2, "structure": structure}) for structure in ("stacked", "parallel")),
        *(("autoint", {**SMALL, "head_dim": 3}), ("masknet", {**SMALL, "block_width": 3})),
        ("dlrm", {"dim": DIM, "bottom": [3], "top": [3]}),
    ],
)
def test_a_logit_is_that_of_the_equation(name, options):
    model, fields, numbers = make(name, **options), draw(ROWS, FIELDS, DIM), draw(ROWS, NUMBERS)
    if name == "lr":
        fields = fields[:, :, :1]
    close(run(model, fields, numbers), equation(name, model, fields, numbers))


def outputs(model, *arrays):
    return [output.asnumpy() for output in model(*map(Tensor, arrays))]


EXPERTS = {"dim": DIM, "experts": 2, "expert_hidden": [3], "tower_hidden": [3]}


def test_the_experts_of_mmoe_are_shared_by_its_tasks():
    model, fields, numbers = make("mmoe", **EXPERTS), draw(ROWS, FIELDS, DIM), draw(ROWS, NUMBERS)
    x = flat(fields, numbers)
    experts = np.stack([perceptron(expert, x) for expert in model.experts], 1)
    for output, gate, tower in zip(outputs(model, fields, numbers), model.gates, model.towers, strict=True):
        mixture = np.einsum("ne,new->nw", softmax(dense(gate, x)), experts)
        close(output, perceptron(tower, mixture)[:, 0])


def test_the_last_layer_of_ple_feeds_the_towers():
    model, fields, numbers = make("ple", **EXPERTS), draw(ROWS, FIELDS, DIM), draw(ROWS, NUMBERS)
    inputs = (Tensor(flat(fields, numbers)),) * 3
    for layer in model.layers:
        inputs = layer(inputs)
    for output, tower, x in zip(outputs(model, fields, numbers), model.towers, inputs, strict=False):
        close(output, perceptron(tower, x.asnumpy())[:, 0])


def test_esmm_multiplies_the_two_rates():
    model, fields, numbers = make("esmm", **SMALL), draw(ROWS, FIELDS, DIM), draw(ROWS, NUMBERS)
    x = flat(fields, numbers)
    click, conversion = (1 / (1 + np.exp(-perceptron(tower, x)[:, 0])) for tower in (model.click, model.conversion))
    found = [1 / (1 + np.exp(-output)) for output in outputs(model, fields, numbers)]
    close(found[0], click)
    close(found[1], click * conversion)


def test_two_towers_divide_vectors_and_numbers_and_have_length_one():
    model = make("two_tower", **SMALL, item=["c1", "n0"], width=3)
    fields, numbers = draw(ROWS, FIELDS, DIM), draw(ROWS, NUMBERS)
    user = perceptron(model.user, np.concatenate([fields[:, 0], fields[:, 2], numbers[:, 1:]], 1))
    item = perceptron(model.item, np.concatenate([fields[:, 1], numbers[:, :1]], 1))
    both = [vectors / np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in (user, item)]
    close(run(model, fields, numbers), np.concatenate(both, 1))


MASK = np.array([[True, True, True], [True, False, False], [False, False, False], [True, True, False], [True] * 3])


def histories(count):
    """Return columns of a sequence, zeros where padded, and what a model takes of them."""
    columns = [draw(ROWS, 3, DIM) * MASK[:, :, None] for _ in range(count)]
    return columns, [array for column in columns for array in (column, MASK)]


LISTS = pytest.mark.parametrize(("lists", "candidates"), [(("c0",), [0]), (("c2", "c0"), [2, 0])], ids=["one", "two"])


@LISTS
def test_din_adds_its_interest_to_the_features(lists, candidates):
    model = make("din", lists, **SMALL, attention_hidden=[3], activation="relu")
    fields, numbers = draw(ROWS, FIELDS, DIM), draw(ROWS, NUMBERS)
    columns, sequences = histories(len(lists))
    candidate = np.concatenate([fields[:, index] for index in candidates], 1)
    interest = run(model.attention, candidate, np.concatenate(columns, 2), MASK)
    assert interest.shape == (ROWS, len(lists) * DIM)
    x = np.concatenate([flat(fields, numbers), interest], 1)
    hidden = np.maximum(dense(model.top.layers[0], x), 0)
    close(run(model, fields, numbers, *sequences), dense(model.top.last, hidden)[:, 0])


@LISTS
def test_bst_counts_positions_back_from_the_candidate(lists, candidates):
    model = make("bst", lists, **SMALL, positions=3)
    fields, numbers = draw(ROWS, FIELDS, DIM), draw(ROWS, NUMBERS)
    columns, sequences = histories(len(lists))
    history, candidate = np.concatenate(columns, 2), np.concatenate([fields[:, index] for index in candidates], 1)
    positions, means, last = model.positions.asnumpy(), [], []
    for row, mask in enumerate(MASK):
        items = np.concatenate([history[row, mask], candidate[row : row + 1]])
        distance = np.minimum(np.arange(len(items))[::-1], 2)  # three positions are learned
        out = run(model.blocks[0], (items + positions[distance])[None], np.ones((1, len(items)), bool))[0]
        means.append(out[:-1].mean(0) if mask.any() else np.zeros(len(lists) * DIM))
        last.append(out[-1])
    x = np.concatenate([flat(fields, numbers), means, last], 1)
    for layer in model.top.layers:
        x = dense(layer, x) if hasattr(layer, "weight") else np.where(x > 0, x, 0.01 * x)
    close(run(model, fields, numbers, *sequences), x[:, 0])
