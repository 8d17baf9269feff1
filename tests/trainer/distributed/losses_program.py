"""What losses divide by, and which data verbs are given; run on every rank by test_losses.py, and by it alone.

python losses_program.py FOLDER
"""

import sys

import numpy as np
from mindspore import Tensor, nn, ops

from tests.trainer import role_cases
from tests.trainer.distributed import jobs
from tests.trainer.role_cases import PARTS
from trainer import MultiTaskLoss, Trainer
from trainer.errors import TrainerError

ROWS = 48  # of a step, over all processes
RNG = np.random.default_rng(1)
X = RNG.normal(size=(ROWS, 3)).astype(np.float32)
CLICKED = (RNG.random((ROWS, 1)) > 0.3).astype(np.float32)
CLASSES = RNG.integers(0, 3, ROWS).astype(np.int32)
IGNORED = np.where(np.arange(ROWS) < 20, -100, CLASSES).astype(np.int32)  # most of them on rank 0
MISSING = np.where(np.arange(ROWS)[:, None] < 30, CLICKED, np.nan).astype(np.float32)
WEIGHTS = Tensor(np.array([0.2, 1.0, 3.0], np.float32))


class Own(nn.Cell):
    def construct(self, prediction, label):
        return ops.sum((prediction - label) ** 2 * (label + 1)) / ops.sum(label + 1)

    def denominator(self, label):
        return ops.sum(label + 1)


def squares(prediction, label):
    return ops.mean((prediction - label) ** 2)


def two_tasks():
    """A masked mean beside a sum: what each divides by differs."""
    losses = {"a": nn.BCEWithLogitsLoss(reduction="none"), "b": nn.MSELoss("sum")}
    return MultiTaskLoss(losses, {"b": 0.01}, ignore_nan=["a"])


class Heads(nn.Cell):
    """Outputs by name, one of them a tuple."""

    def __init__(self):
        super().__init__()
        self.one = nn.Dense(3, 1, weight_init=Tensor(X[:1]), bias_init="zeros")

    def construct(self, x):
        return {"one": self.one(x), "several": (x[:, 0], ops.exp(x))}


CASES = {  # loss, labels, outputs of the network
    "mean": (nn.BCEWithLogitsLoss, {"y": CLICKED}, 1),
    "sum": (lambda: nn.BCEWithLogitsLoss(reduction="sum"), {"y": CLICKED}, 1),
    "ignored": (nn.CrossEntropyLoss, {"y": IGNORED}, 3),
    "ignored by name": (lambda: nn.CrossEntropyLoss(ignore_index=1), {"y": CLASSES}, 3),
    "class weights": (lambda: nn.CrossEntropyLoss(WEIGHTS), {"y": IGNORED}, 3),
    "own": (Own, {"y": CLICKED}, 1),
    "tasks": (two_tasks, {"a": MISSING, "b": X[:, :1]}, 2),
}


WEIGHED = [(case, 2) for case in role_cases.CASES if case.used and PARTS[1] in case.verbs]  # and their micro-batches
WEIGHED += [(case, 1) for case, _ in WEIGHED if case.loss.startswith("BCE")]


def trainer_of(loss, outputs=1, **options):
    network = nn.Dense(3, outputs, weight_init="zeros", bias_init="zeros")
    return Trainer(network, loss, nn.SGD(network.trainable_params(), 0.1), **options)


def error_of(verb, *arguments, **options):
    try:
        return f"no error, {verb(*arguments, **options)}"
    except TrainerError as error:
        return f"{type(error).__name__}: {error}"


def train_weighed(group, found):
    """Train with a declared weight, which is 0 in all rows of some parts."""
    for case, parts in WEIGHED:
        trainer = role_cases.make_trainer(case, gradient_accumulation_steps=parts, metrics=None)
        rows = role_cases.ROWS // group.size // parts
        data = role_cases.rows_of(case)
        history = trainer.fit(data, 2, batch_size=rows, shuffle=False, callbacks=[]).history
        found[f"{case.loss}/{parts}/weights"] = trainer.network.dense.weight.asnumpy().copy()
        found[f"{case.loss}/{parts}/losses"] = np.array([v for k, v in sorted(history.items()) if "loss" in k])


def train(group, found):
    for name, (loss, labels, outputs) in CASES.items():
        for parts in (1,) if name == "tasks" else (1, 2):
            trainer = trainer_of(loss(), outputs, gradient_accumulation_steps=parts)
            rows = ROWS // group.size // parts
            history = trainer.fit({"x": X, **labels}, 3, batch_size=rows, shuffle=False, callbacks=[]).history
            found[f"{name}/{parts}/weights"] = trainer.network.weight.asnumpy().copy()
            found[f"{name}/{parts}/losses"] = np.array([v for k, v in sorted(history.items()) if k.endswith("loss")])


def judge(group, found):
    """Evaluate and predict the same data, and rows of each process's own."""
    rank, size = group.rank, group.size
    trainer = trainer_of(nn.BCEWithLogitsLoss(), metrics={"auc", "loss"})
    trainer.network.weight.set_data(Tensor(np.array([[1.0, 0.5, -1.0]], np.float32)))
    own = slice(rank, None, size)
    whole, part = {"x": X, "y": CLICKED}, {"x": X[own], "y": CLICKED[own]}
    found["whole"] = np.array(sorted(trainer.evaluate(whole, batch_size=5).items()))
    predicted = trainer.predict({"x": X}, batch_size=5)
    named = Trainer(Heads()).predict({"x": X}, batch_size=5)
    first, second = named["several"]
    found |= {"named/one": named["one"], "named/first": first, "named/second": second}
    if size == 1:
        return
    found["parts"] = np.array(sorted(trainer.evaluate(part, batch_size=5, sharded=True).items()))
    cut = slice(0, 20) if rank == 0 else slice(20, None)
    mine = trainer.predict({"x": X[cut]}, batch_size=5, sharded=True)
    found["own predictions"] = np.array(np.array_equal(mine, predicted[cut]))
    parts = trainer.predict({"x": X[cut]}, batch_size=5, sharded=True, stream=True)
    found["own batches"] = np.array([len(part) for part in parts])
    found["refused/evaluate"] = np.array(error_of(trainer.evaluate, part, batch_size=5))
    found["refused/predict"] = np.array(error_of(trainer.predict, {"x": X[own]}, batch_size=5))
    found["refused/fit"] = np.array(
        error_of(trainer.fit, whole, valid_dataset=part, batch_size=8, callbacks=[], shuffle=False)
    )
    found["refused/one sided"] = np.array(error_of(trainer.evaluate, part, batch_size=5, sharded=rank == 0))
    history = trainer.fit(whole, valid_dataset=part, valid_sharded=True, batch_size=8, callbacks=[]).history
    found["validated"] = np.array(sorted(history))
    found["refused/unknown"] = np.array(error_of(trainer_of, squares))


def part_ways(group, found):
    """Call different verbs; nothing can be called after that."""
    trainer = trainer_of(nn.BCEWithLogitsLoss())
    whole = {"x": X, "y": CLICKED}
    verb = trainer.evaluate if group.rank == 0 else trainer.fit
    found["apart"] = np.array(error_of(verb, whole, callbacks=[], batch_size=8))


def main(folder):
    group = jobs.member()
    found = {}
    train(group, found)
    train_weighed(group, found)
    judge(group, found)
    if group.size > 1:
        part_ways(group, found)
    np.savez(f"{folder}/found_{group.size}_{group.rank}.npz", **found)


if __name__ == "__main__":
    main(sys.argv[1])
