"""A MindSpore pipeline that only wraps arrays, against the arrays themselves, and against `Model.train` on it."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.clock import timed
from benchmarks.measure import OURS, Group, Ratio
from benchmarks.nets import dense_weights, mindspore_mlp

FEATURES, BATCH, BATCHES = 16, 1024, 32
PIPELINE, SHUFFLED, ARRAYS = "fit, NumpySlicesDataset", "fit, NumpySlicesDataset, shuffled", "fit, arrays"
MODEL = "Model.train, NumpySlicesDataset"


def groups(quick: bool) -> list[Group]:
    """Return what this case measures."""
    names = dict.fromkeys((PIPELINE, SHUFFLED, ARRAYS, MODEL), OURS)
    ratios = (Ratio(PIPELINE, ARRAYS), Ratio(SHUFFLED, ARRAYS), Ratio(PIPELINE, MODEL))
    options = {"batches": 4 if quick else BATCHES}
    title = "NumpySlicesDataset(...).batch(1024), [64, 32] MLP"
    return [Group("pipeline", title, "pipeline", names, options, ratios, windows=3)]


def make(name: str, options: dict[str, Any]) -> Any:
    """Return a contender."""
    return Pipeline(name, **options)


class Pipeline:
    """A network and rows in memory."""

    def __init__(self, name: str, batches: int) -> None:
        import mindspore as ms
        import mindspore.dataset as ds
        from mindspore import nn

        from trainer import Trainer

        ms.set_context(mode=ms.GRAPH_MODE)
        rng = np.random.default_rng(5)
        x = rng.standard_normal((batches * BATCH, FEATURES), dtype=np.float32)
        columns = x, (x[:, 0] > 0).astype(np.float32)
        network = mindspore_mlp(dense_weights((FEATURES, 64, 32, 1)))
        parts = network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params(), 1e-3)
        shuffle = name == SHUFFLED
        wrapped = ds.NumpySlicesDataset(columns, ["x", "label"], shuffle=shuffle).batch(BATCH, drop_remainder=True)
        self.steps = batches
        if name == MODEL:
            model = ms.train.Model(*parts)
            self.train = lambda: model.train(1, wrapped, dataset_sink_mode=False)
        elif name == ARRAYS:
            trainer = Trainer(*parts)
            self.train = lambda: trainer.fit(columns, callbacks=[], batch_size=BATCH, shuffle=False)
        else:
            trainer = Trainer(*parts)
            self.train = lambda: trainer.fit(wrapped, callbacks=[])
        self.train()

    def window(self) -> dict[str, float]:
        """Train on all rows."""
        return timed(self.train, self.steps)
