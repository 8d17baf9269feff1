"""A second version scored on the rows that the served version answers."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import ConfigurationError, DataError
from ..metrics.binary import BinaryMetrics
from ..metrics.classes import Accuracy, LogLoss
from ..metrics.registry import clear_metrics, get_metrics, group_of, numbers, read_metrics, update_metrics
from ..metrics.regression import Mae, Rmse
from .served_model import ServedModel

_BY_ACTIVATION = {
    "sigmoid": lambda: {"": BinaryMetrics("identity")},
    "identity": lambda: {"": BinaryMetrics("identity")},
    "softmax": lambda: {"accuracy": Accuracy(), "log_loss": LogLoss()},
}


class ShadowScoring:
    """Compares a second version of a published model with the served version.

    Use it on the thread of the served model: graphs of two models must not run concurrently.

        scoring = ShadowScoring(folder)                       # the newest version against the pinned one
        answer = scoring.served.predict(rows, output="probability")
        scoring.score(rows, clicks, served=answer)
        scoring.report()

    Args:
        root: folder that `Publish` writes to.
        version: the second version: "shadow" for the one that `Versions.shadow` names, by default the newest; "newest";
            or a number.
        metrics: as `Trainer(metrics=...)` takes them; default: those of the loss: AUC, log loss, normalized entropy and
            calibration of a binary label, accuracy and log loss of classes, else mean absolute and squared errors.
        served: the first version; default: a `ServedModel` of `root`, which follows what is pinned.
        follow: whether both follow what is published and pinned; else `refresh` does.

    Attributes:
        served: the first version.
        shadow: the second version.
        rows: rows scored since `restart`.
        labelled: rows among them that had labels.

    Raises:
        ConfigurationError: a metric is not known.
        CheckpointNotFoundError, CheckpointDamagedError: as of `ServedModel`.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        version: int | str = "shadow",
        metrics: Any = None,
        *,
        served: ServedModel | int | None = None,
        follow: bool = True,
    ) -> None:
        chosen = get_metrics(metrics)
        self._owned = contextlib.ExitStack()
        if not isinstance(served, ServedModel):
            first = "served" if served is None else served
            served = self._owned.enter_context(ServedModel(root, version=first, follow=follow))
        self.served = served
        self.shadow = self._owned.enter_context(ServedModel(root, version=version, follow=follow))
        if not chosen:
            activation = self.shadow.graph.activation or ""
            chosen = _BY_ACTIVATION.get(activation, lambda: {"mae": Mae(), "rmse": Rmse()})()
        self._metrics = {"served": chosen, "shadow": copy.deepcopy(chosen)}
        self.restart()

    def restart(self) -> None:
        """Forget all rows."""
        self.rows = self.labelled = 0
        self._versions: dict[str, dict[int, None]] = {"served": {}, "shadow": {}}
        self._difference, self._largest = 0.0, 0.0
        for metrics in self._metrics.values():
            clear_metrics(metrics)

    def refresh(self) -> None:
        """Apply the pinned and published versions; raises as `ServedModel.refresh` does."""
        for model in (self.served, self.shadow):
            model.refresh()

    def score(self, batch: Any, labels: Any = None, *, served: Any = None) -> None:
        """Compare the second version's answers with the first's and with labels.

        Args:
            batch: rows, as `ServedModel.predict` takes them.
            labels: one a row, [n]; None where they are not known.
            served: what the first version answered, [n, ...], in the unit of the label; None asks it.

        Raises:
            DataError: rows that the model does not take, or another number of labels or answers than of rows.
        """
        answers = {"served": self.answer(self.served, batch) if served is None else np.asarray(served)}
        answers["shadow"] = self.answer(self.shadow, batch)
        if answers["served"].shape != answers["shadow"].shape:
            raise DataError(
                f"served= has the shape {answers['served'].shape}; the second version answers {answers['shadow'].shape}"
            )
        count = len(answers["shadow"])
        if labels is not None:
            labels = np.asarray(labels)
            if len(labels) != count:
                raise DataError(f"received {len(labels)} labels for {count} rows")
            for name, metrics in self._metrics.items():
                update_metrics(metrics, (answers[name], labels), None, count, _groups(metrics, batch))
            self.labelled += count
        differences = np.abs(answers["served"].astype(np.float64) - answers["shadow"])
        self._difference += float(differences.reshape(count, -1).mean(1).sum())
        self._largest = max(self._largest, float(differences.max(initial=0.0)))
        self.rows += count
        for name, model in (("served", self.served), ("shadow", self.shadow)):
            self._versions[name][model.version] = None

    @staticmethod
    def answer(model: ServedModel, batch: Any) -> np.ndarray:
        """Return a version's first output in label units, [n, ...]."""
        output = "network" if model.graph.activation is None else "probability"
        answer = model.predict(batch, output=output)
        return answer[0] if isinstance(answer, tuple) else answer

    def report(self) -> dict[str, Any]:
        """Return what the rows since `restart` say, as plain JSON.

        Returns:
            "rows", "labelled"; "served" and "shadow", each with its "versions" and, by name, its metrics; "difference"
            with the "mean" and "largest" absolute difference of the answers. Metrics are null where no label is known.
        """
        report: dict[str, Any] = {"rows": self.rows, "labelled": self.labelled}
        for name, metrics in self._metrics.items():
            values = numbers(read_metrics(metrics)) if self.labelled else {}
            plain = {key: float(value) if np.isfinite(value) else None for key, value in values.items()}
            report[name] = {"versions": list(self._versions[name]), **plain}
        mean = self._difference / self.rows if self.rows else None
        return {**report, "difference": {"mean": mean, "largest": self._largest if self.rows else None}}

    def close(self) -> None:
        """Stop following."""
        self._owned.close()

    def __enter__(self) -> ShadowScoring:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _groups(metrics: Mapping[str, Any], batch: Any) -> dict[str, np.ndarray]:
    columns = {}
    for name in filter(None, map(group_of, metrics.values())):
        try:
            columns[name] = np.asarray(batch[name])
        except (KeyError, TypeError, IndexError):
            raise ConfigurationError(f"a metric reads the column {name!r}, which the rows do not have") from None
    return columns
