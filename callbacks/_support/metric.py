"""`Watched`: the metric a callback follows, where its value is found and which direction is better."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from .argument_errors import ConfigurationError, nearest
from .arguments import choice, number, refuse

if TYPE_CHECKING:
    from trainer.trainer import Trainer

MODES = ("auto", "min", "max")
_LOWER = (
    *("loss", "error", "err", "mae", "mse", "rmse", "distance", "perplexity", "entropy", "lag", "staleness"),
    *("mape", "smape", "mase", "msle", "rmsle", "nmse", "nrmse"),
)
_HIGHER = (
    *("acc", "accuracy", "auc", "gauc", "roc", "precision", "recall", "f1", "map", "dcg", "ndcg", "mrr", "hit", "hr"),
    *("dice", "iou", "miou", "bleu", "r2", "topk", "top", "similarity", "sensitivity", "specificity"),
    *("auroc", "auprc", "prauc"),
)
_PREFIXES = ("val_", "window_", "decayed_", "lifetime_")
_STREAM = ("lag", "staleness", "rows_per_second", "queue_depth")
# Names of metrics, without a prefix, that are more than one word of those above
_NAMES = (
    *("log_loss", "normalized_entropy", "calibration", "confusion_matrix", "confusion_matrix_metric", "bleu_score"),
    *("cosine_similarity", "occlusion_sensitivity", "hausdorff_distance", "mean_surface_distance"),
    *("root_mean_square_distance", "top_1_accuracy", "top_5_accuracy", "bias", "hit_rate"),
)


def direction(owner: str, monitor: str, mode: str) -> str:
    """Return "min" or "max" for `mode`; "auto" reads it from the words of the metric's name.

    Raises:
        ConfigurationError: `mode` is unknown, or it is "auto" and the name does not tell: because it is a known one
            misspelt, which is then named, or because it is the user's own.
    """
    if choice(f"{owner}(mode=...)", mode, MODES) != "auto":
        return mode
    words = re.split(r"[^a-z0-9]+", monitor.lower())
    if any(word in _LOWER or word.endswith("loss") for word in words):
        return "min"
    if any(word in _HIGHER for word in words):
        return "max"
    meant = misspelt(monitor)
    if meant is not None:
        raise ConfigurationError(
            f"{owner}(monitor={monitor!r}): no known metric has that name; did you mean {meant!r}? "
            "For a metric of your own give mode='min' or mode='max'"
        )
    raise ConfigurationError(
        f"{owner}(mode='auto') cannot tell whether more or less of {monitor!r} is better; give mode='min' or mode='max'"
    )


def misspelt(monitor: str) -> str | None:
    """Return the known name that `monitor` looks like; None when it is a known one itself or looks like none."""
    name = monitor.lower()
    head, underscore, base = name.partition("_")
    prefix = _similar(head + underscore, _PREFIXES)
    if prefix is None:
        prefix, base = "", name
    meant = _similar(base, (*_LOWER, *_HIGHER, *_STREAM, *_NAMES))
    if meant is None:
        return None
    if meant not in _STREAM:
        meant = (prefix or ("" if meant == "loss" else "val_")) + meant
    return meant if meant != name else None


def _similar(word: str, known: tuple[str, ...]) -> str | None:
    """Return which of `known` is `word`, has its letters in another order or few others (similarity 0.75), or None."""
    found = [name for name in known if sorted(name) == sorted(word)]
    return found[0] if found else nearest(word, known, similarity=0.75)


def is_window_name(name: str) -> bool:
    """Return whether `name` is that of a value of a closed window in full: "decayed_auc", "lag", but not "auc"."""
    return name in _STREAM or name.startswith(("window_", "decayed_", "lifetime_"))


def window_value(window: Mapping[str, float] | None, name: str) -> float | None:
    """Return the metric `name` of a closed window, or None; "auc" also finds "window_auc"."""
    for key in (name, f"window_{name}"):
        if window and key in window:
            return float(window[key])
    return None


class Watched:
    """A metric by name, with its direction and the least change that counts.

    Names: "loss" and, of several tasks, "<task>_loss" (means of the training epoch), "val_*" (validation), all others
    online windows ("window_auc", "lifetime_auc", "lag", "window_<task>_loss").

    Args:
        owner: class name of the callback, for messages.
        name: name of the metric.
        mode: "min", "max" or "auto" (from the name).
        min_delta: least improvement that counts, in the metric's unit.
    """

    def __init__(self, owner: str, name: str, mode: str = "auto", min_delta: float = 0.0) -> None:
        if not isinstance(name, str) or not name:
            refuse(f"{owner}(monitor=...)", "the name of a metric such as 'val_loss'", name)
        self.name = name
        self.mode = direction(owner, name, mode)
        self.min_delta = number(f"{owner}(min_delta=...)", min_delta, least=0.0)

    def hook(self, trainer: Trainer) -> str:
        """Return the hook in which a new value of this metric can be read."""
        if self.name == "loss" or self._of_task(trainer):
            return "on_train_epoch_end"
        return "on_eval_end" if self.name.startswith("val_") else "on_window_end"

    def _of_task(self, trainer: Trainer) -> bool:
        return trainer.state.phase == "fit" and self.name in trainer.state.task_losses

    def read(self, trainer: Trainer) -> float | None:
        """Return the newest value, or None when there is none; call it in `hook` for a fresh one."""
        state = trainer.state
        if self._of_task(trainer):
            return float(state.task_losses[self.name])
        if self.hook(trainer) == "on_window_end":
            return window_value(state.window, self.name)
        value = state.train_loss if self.name == "loss" else state.metrics.get(self.name)
        return None if value is None else float(value)

    def better(self, value: float, best: float | None) -> bool:
        """Return whether `value` improves on `best` by more than `min_delta`; NaN never does, None always yields."""
        if math.isnan(value):
            return False
        if best is None:
            return True
        return value < best - self.min_delta if self.mode == "min" else value > best + self.min_delta
