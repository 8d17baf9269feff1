"""`Model` and `RecModel`: drop-in replacements for MindSpore's classes.

    from trainer import Model            # instead of: from mindspore import Model
    from trainer import RecModel         # instead of: from mindspore_rec import RecModel

Both are Trainers with two changes: `fit` takes MindSpore's arguments in MindSpore's order, and `predict` takes and
returns Tensors. docs/migrating.md lists the remaining differences from MindSpore.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from callbacks import History

from ..metrics.predictions import Meaning
from ..metrics.registry import task_metrics
from ..metrics.regression import Mae
from ..trainer import Trainer
from . import verbs


class MindSporeMae(Mae):
    """MindSpore's mean absolute error, which sums the errors over a row's outputs."""

    name = None  # type: ignore[assignment]

    def set_meaning(self, meaning: Meaning) -> None:
        """Ignore the loss, because MindSpore compares labels with the raw outputs."""

    def value(self) -> float:
        """Return the sum of the outputs' mean errors; NaN without rows."""
        return float(np.sum(self.mean("absolute")))


class Model(Trainer):
    """A `Trainer` with the `fit` and `predict` of `mindspore.Model`."""

    default_device = "auto"  # MindSpore's context selects the device, as for `mindspore.Model`

    def fit(self, *args: Any, **kwargs: Any) -> History:
        """Train like `mindspore.Model.fit`, or like `Trainer.fit` if the data comes first."""
        if (isinstance(args[0], int) and len(args) + len(kwargs) > 1) if args else "epoch" in kwargs:
            return verbs.fit(self, *args, **kwargs)
        return super().fit(*args, **kwargs)

    def predict(  # type: ignore[override]  # has the arguments of mindspore.Model
        self, *predict_data: Any, backend: str | None = None, config: Any = None
    ) -> Any:
        """Apply the network to Tensors, as `mindspore.Model.predict` does."""
        return verbs.predict(self, *predict_data, backend=backend, config=config)

    @staticmethod
    def make_metrics(metrics: Any, tasks: Sequence[str]) -> dict[str, Any]:
        """Return the metrics by name; "mae" is computed as in MindSpore."""
        ours = task_metrics(metrics, tasks)
        return {name: MindSporeMae() if type(metric) is Mae else metric for name, metric in ours.items()}


class RecModel(Model):
    """`Model` under the name of MindSpore Rec's class."""
