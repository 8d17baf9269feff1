"""Each interaction gives what its equation says, computed by NumPy."""

import numpy as np
import pytest
from mindspore import Tensor

from trainer.models import InBatchSoftmax
from trainer.models.activations import Dice
from trainer.models.autoint import InteractingLayer
from trainer.models.bst import TransformerBlock
from trainer.models.dcn import CrossNetwork
from trainer.models.din import ActivationUnit
from trainer.models.dlrm import DotInteraction
from trainer.models.esmm import product_logit
from trainer.models.layers import LayerNorm, PairwiseProducts
from trainer.models.masknet import MaskBlock
from trainer.models.mmoe import mix_experts
from trainer.models.ple import ExtractionLayer


def draw(*shape):
    return np.random.normal(size=shape).astype(np.float32)


def run(cell, *arrays):
    return cell(*(Tensor(array) for array in arrays)).asnumpy()


def perturbed(cell):
    """Give every parameter a random value, so that zeros and ones of the first ones hide nothing."""
    for parameter in cell.get_parameters():
        parameter.set_data(Tensor(draw(*parameter.shape)))
    return cell


def dense(cell, x):
    bias = cell.bias.asnumpy() if cell.has_bias else 0
    return x @ cell.weight.asnumpy().T + bias


def perceptron(cell, x):
    for layer in cell.layers:
        x = dense(layer, x) if hasattr(layer, "weight") else np.maximum(x, 0)
    return x


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def normalized(cell, x):
    centered = x - x.mean(-1, keepdims=True)
    return centered / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * cell.gamma.asnumpy() + cell.beta.asnumpy()


def close(got, wanted):
    np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=2e-4)


def test_products_of_all_pairs():
    x = draw(4, 3, 2)
    wanted = sum((x[:, i] * x[:, j]).sum(1) for i in range(3) for j in range(i))
    close(run(PairwiseProducts(), x), wanted)
    pairs = np.stack([(x[:, i] * x[:, j]).sum(1) for i in range(3) for j in range(i)], 1)
    close(run(DotInteraction(3), x), pairs)


def test_layer_normalization():
    cell, x = perturbed(LayerNorm(5)), 3 + 2 * draw(4, 5)
    close(run(cell, x), normalized(cell, x))


@pytest.mark.parametrize("rank", [None, 2])
def test_cross_layers(rank):
    cell, first = perturbed(CrossNetwork(4, 2, rank)), draw(3, 4)
    x = first
    for cross in cell.crosses:
        x = first * (dense(cross, x) if rank is None else dense(cross[1], dense(cross[0], x))) + x
    close(run(cell, first), x)


def test_an_interacting_layer():
    cell, x = perturbed(InteractingLayer(3, 2, 4)), draw(2, 5, 3)
    heads = []
    for head in (slice(0, 4), slice(4, 8)):
        query, key, value = (dense(part, x)[..., head] for part in (cell.query, cell.key, cell.value))
        heads.append(softmax(query @ key.swapaxes(1, 2)) @ value)
    close(run(cell, x), np.maximum(np.concatenate(heads, 2) + dense(cell.residual, x), 0))


def test_a_mask_block():
    cell, v, x = perturbed(MaskBlock(6, 4, 3, 2.0)), draw(5, 6), draw(5, 4)
    assert cell.mask[0].weight.shape == (8, 6)
    mask = dense(cell.mask[2], np.maximum(dense(cell.mask[0], v), 0))
    close(run(cell, v, x), np.maximum(normalized(cell.norm, dense(cell.dense, mask * x)), 0))


MASK = np.array([[True, True, True], [True, False, False], [False, False, False]])


def dice(cell, x, counted):
    rows = x[counted.reshape(-1) > 0]
    p = 1 / (1 + np.exp(-(x - rows.mean(0)) / np.sqrt(rows.var(0) + 1e-8)))
    return p * x + (1 - p) * cell.alpha.asnumpy() * x


@pytest.mark.parametrize("activation", ["dice", "relu", "leaky_relu"])
def test_an_activation_unit_passes_over_padding(activation):
    cell, candidate, history = perturbed(ActivationUnit(2, [4], activation)), draw(3, 2), draw(3, 3, 2)
    candidates = np.repeat(candidate[:, None], 3, 1)
    pairs = np.concatenate([history, candidates, history - candidates, history * candidates], 2).reshape(9, 8)
    x = dense(cell.weight.layers[0], pairs)
    counted = MASK.reshape(1, 9).astype(np.float32)
    if activation == "dice":
        x = dice(cell.weight.activations[0], x, counted)
    else:
        x = np.where(x > 0, x, (0.01 if activation == "leaky_relu" else 0) * x)
    weights = dense(cell.weight.last, x).reshape(3, 3) * MASK
    cell.set_train(True)
    close(run(cell, candidate, history, MASK), np.einsum("nl,nld->nd", weights, history))


@pytest.mark.long
def test_dice_moves_its_averages_in_training_and_uses_them_afterwards():
    cell, x = Dice(3), 2 + draw(50, 3)
    counted = np.r_[np.ones(40), np.zeros(10)].astype(np.float32)[None]
    cell.alpha.set_data(Tensor(draw(3)))
    cell.set_train(True)
    for _ in range(120):
        got = run(cell, x, counted)
    close(got, dice(cell, x, counted))
    cell.set_train(False)
    close(run(cell, x[:7], counted[:, :7]), got[:7])


def test_a_transformer_block_passes_over_padding():
    cell, x, mask = perturbed(TransformerBlock(4, 2)), draw(2, 3, 4), MASK[:2]
    got = run(cell, x, mask)
    for row in range(2):
        items = x[row, mask[row]]
        heads = []
        for head in (slice(0, 2), slice(2, 4)):
            query, key, value = (dense(part, items)[:, head] for part in (cell.query, cell.key, cell.value))
            heads.append(softmax(query @ key.T / np.sqrt(2)) @ value)
        middle = normalized(cell.norm, items + dense(cell.output, np.concatenate(heads, 1)))
        inner = dense(cell.expand, middle)
        inner = np.where(inner > 0, inner, 0.01 * inner)
        close(got[row, mask[row]], normalized(cell.last_norm, middle + dense(cell.contract, inner)))


def test_a_mixture_of_experts():
    experts, weights = draw(4, 3, 2), draw(4, 3)
    close(mix_experts(Tensor(experts), Tensor(weights)).asnumpy(), np.einsum("ne,new->nw", softmax(weights), experts))


def test_an_extraction_layer_sees_its_own_and_the_shared_experts():
    cell, inputs = perturbed(ExtractionLayer([3, 3, 3], 2, [4])), [draw(5, 3) for _ in range(3)]
    outputs = [perceptron(expert, inputs[index // 2]) for index, expert in enumerate(cell.experts)]
    seen = ([0, 1, 4, 5], [2, 3, 4, 5], range(6))
    got = cell(tuple(Tensor(x) for x in inputs))
    for index, numbers in enumerate(seen):
        weights = softmax(dense(cell.gates[index], inputs[index]))
        close(got[index].asnumpy(), sum(weights[:, [i]] * outputs[n] for i, n in enumerate(numbers)))


def test_the_logit_of_a_product_of_two_probabilities():
    a, b = np.array([0, 2, -3, 30, -40, 20], np.float32), np.array([0, -1, 4, 30, -40, -5], np.float32)
    p = 1 / (1 + np.exp(-a.astype(float))) / (1 + np.exp(-b.astype(float)))
    close(product_logit(Tensor(a), Tensor(b)).asnumpy(), np.log(p) - np.log1p(-p))


@pytest.mark.parametrize("correction", ["batch", None])
def test_a_softmax_over_the_items_of_the_batch(correction):
    vectors, item = draw(4, 6), np.array([7, 3, 7, 5])
    log_q = np.log(np.array([2, 1, 2, 1]) / 4) if correction else 0
    close(run(InBatchSoftmax(0.5, correction), vectors, item), softmax_loss(vectors, item, 0.5, log_q))


def softmax_loss(vectors, item, temperature, log_q):
    """Equation 4 of Yi et al., row by row; a row's own item in another row is no negative."""
    width = vectors.shape[1] // 2
    logits = vectors[:, :width] @ vectors[:, width:].T / temperature - log_q
    losses = []
    for row in range(len(item)):
        others = [n for n in range(len(item)) if n == row or item[n] != item[row]]
        losses.append(-np.log(softmax(logits[row, others])[others.index(row)]))
    return np.mean(losses)


def test_the_running_estimate_of_how_often_items_are_sampled():
    loss, rate = InBatchSoftmax(0.5, "running", buckets=97, rate=0.1), 0.1
    interval, last = {}, {}
    for step in range(1, 12):
        # items that fall into one bucket share its estimate
        vectors, item = draw(5, 6), np.random.default_rng(step).choice([3, 4, 5, 100, 2**62 + 9], 5)
        item[1] = item[0]
        before = dict(interval)
        for bucket in set(((item & 0x7FFFFFFF) % 97).tolist()):
            passed = step - last.get(bucket, 0)
            interval[bucket] = (1 - rate) * interval[bucket] + rate * passed if bucket in last else passed
        loss.set_train(True)
        log_q = -np.log(np.maximum([interval[bucket] for bucket in (item & 0x7FFFFFFF) % 97], 1))
        close(run(loss, vectors, item), softmax_loss(vectors, item, 0.5, log_q))
        last |= dict.fromkeys(((item & 0x7FFFFFFF) % 97).tolist(), step)
        assert not before or before != interval
    loss.set_train(False)
    first, again = run(loss, vectors, item), run(loss, vectors, item)
    assert first == again, "evaluation changed the estimate"
