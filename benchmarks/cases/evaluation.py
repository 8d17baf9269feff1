"""(e) Evaluation with AUC over 10^6 rows: `Trainer.evaluate` against `Model.eval` with MindSpore's ROC and auc.

MindSpore's metric keeps the last batch alone, so `Model.eval` is given the one way to a right answer that it has: a
metric that collects every score and computes ROC and AUC at the end. Both must come to the same AUC.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.clock import timed
from benchmarks.measure import OURS, Group, Ratio
from benchmarks.nets import dense_weights, mindspore_mlp

FEATURES = 16
BATCH = 4096
EVALUATE, MODEL = "evaluate", "Model.eval"


def groups(quick: bool) -> list[Group]:
    """Return what this case measures."""
    rows = BATCH * (8 if quick else 245)
    names = dict.fromkeys((EVALUATE, MODEL), OURS)
    title = f"AUC over {rows:,} rows, batch 4,096"
    return [
        Group(
            "evaluation",
            title,
            "evaluation",
            names,
            {"rows": rows},
            (Ratio(EVALUATE, MODEL, 0.6),),
            (tuple(names),),
            "ms",
        )
    ]


def make(name: str, options: dict[str, Any]) -> Any:
    """Return a contender."""
    return {EVALUATE: Ours, MODEL: Model}[name](options["rows"])


class Base:
    """Network, loss and ready batches."""

    def __init__(self, rows: int) -> None:
        import mindspore as ms
        from mindspore import nn

        ms.set_context(mode=ms.GRAPH_MODE)
        rng = np.random.default_rng(2)
        x = rng.standard_normal((rows, FEATURES), dtype=np.float32)
        label = (x[:, 0] + rng.standard_normal(rows) > 0).astype(np.float32)
        self.batches = [(x[at : at + BATCH], label[at : at + BATCH]) for at in range(0, rows, BATCH)]
        self.network = mindspore_mlp(dense_weights((FEATURES, 64, 32, 1)))
        self.loss_fn = nn.BCEWithLogitsLoss()
        self.build()

    def losses(self) -> list[float]:
        """Return the AUC, which must be the same for both."""
        return [self.evaluate()]

    def window(self) -> dict[str, float]:
        """Evaluate all rows."""
        return timed(self.evaluate, 1)


class Ours(Base):
    """`Trainer.evaluate` with the metric "auc"."""

    def build(self) -> None:
        from trainer import Trainer

        self.trainer = Trainer(self.network, self.loss_fn, metrics=["auc"])

    def evaluate(self) -> float:
        return self.trainer.evaluate(lambda: self.batches)["auc"]


class Model(Base):
    """`Model.eval` with `train.ROC` and `train.auc`, over all scores."""

    def build(self) -> None:
        import mindspore as ms
        import mindspore.dataset as ds

        class Auc(ms.train.Metric):
            def __init__(self) -> None:
                super().__init__()
                self.clear()

            def clear(self) -> None:
                self._scores, self._labels = [], []

            def update(self, *inputs) -> None:
                self._scores.append(inputs[0].asnumpy())
                self._labels.append(inputs[1].asnumpy())

            def eval(self) -> float:
                roc = ms.train.ROC(pos_label=1)
                roc.clear()
                roc.update(np.concatenate(self._scores), np.concatenate(self._labels).astype(np.int32))
                false_positives, true_positives, _ = roc.eval()
                return float(ms.train.auc(false_positives, true_positives))

        self.model = ms.train.Model(self.network, self.loss_fn, metrics={"auc": Auc()})
        self.dataset = ds.GeneratorDataset(self.batches, ["x", "label"], shuffle=False)

    def evaluate(self) -> float:
        return self.model.eval(self.dataset, dataset_sink_mode=False)["auc"]
