"""The summary card of a run: its main metric, beside the plain models' values."""

from __future__ import annotations

from collections.abc import Iterator

from ..checks import four_digits
from .run_data import RunData

_ACRONYMS = {"auc", "gauc", "mae", "mse", "rmse", "r2", "ndcg", "lr"}
_SOURCE_WORDS = {
    "test": "test rows",
    "val": "validation",
    "train": "training",
    "epoch": "training, mean of an epoch",
    "window": "window",
    "window/decayed": "windows, older ones weighted less",
    "window/lifetime": "all rows so far",
}
_SIZES = ("B", "kB", "MB", "GB", "TB")
_SERIES_PREFIXES = {  # prefix of a result -> prefix of its series, in order of preference
    "test_": "test/",
    "val_": "val/",
    "lifetime_": "window/lifetime_",
    "window_": "window/",
    "train_": "train/",
}


def in_words(name: str) -> str:
    """Return the name of a metric or series in words: "log_loss" becomes "Log loss"."""
    source, _, metric = name.rpartition("/")
    for horizon in ("decayed_", "lifetime_"):
        if source == "window" and metric.startswith(horizon):
            source, metric = f"window/{horizon[:-1]}", metric.removeprefix(horizon)
    words = " ".join(word.upper() if word in _ACRONYMS else word for word in metric.split("_"))
    words = words[:1].upper() + words[1:]
    return words if source not in _SOURCE_WORDS or metric == "learning_rate" else f"{words}, {_SOURCE_WORDS[source]}"


def legend_label(name: str) -> str:
    """Return which rows a series was measured on: "val/auc" is "validation"."""
    return in_words(name).partition(", ")[2] or in_words(name)


def size(count: float) -> str:
    """Return a number of bytes as text with a unit."""
    power = 0
    while count >= 1000 and power < len(_SIZES) - 1:
        count, power = count / 1000, power + 1
    return f"{count:.3g} {_SIZES[power]}"


def numbers(run: RunData) -> Iterator[tuple[str, str]]:
    """Yield (label, value) of the main metric: last, best, and of each plain model."""
    chosen = _main_metric(run)
    if chosen is None:
        return
    source, metric = chosen
    yield in_words(f"{_SERIES_PREFIXES[source]}{metric}"), four_digits(run.results[source + metric])
    best = run.best.get(f"val_{metric}")
    if best is not None and source != "train_":
        yield f"{in_words(metric)}, best of validation, step {best['step']:,}", four_digits(best["value"])
    for name, values in run.baseline.get("plain", {}).items():
        if metric in values:
            yield f"{in_words(metric)}, {name}", four_digits(values[metric])


def warning(run: RunData) -> str:
    """Return a warning if validation became worse after its best value, else "".

    Metrics whose best snapshot was kept are checked first, then the main metric.
    """
    chosen = _main_metric(run)
    kept = [name.removeprefix("val_") for name, best in run.best.items() if best.get("snapshot")]
    kept.sort(key=lambda name: name == "loss")  # the loss last, because log_loss may be the same metric
    first = chosen[1] if chosen else "loss"
    for metric in sorted(dict.fromkeys((first, *kept, "loss")), key=lambda name: name not in kept):
        best, series = run.best.get(f"val_{metric}"), run.record.series.get(f"val/{metric}")
        if best is None or series is None or not series.values or series.values[-1] is None:
            continue
        if series.steps[-1] > best["step"] and series.values[-1] != best["value"]:
            snapshot = f" {best['snapshot']} has the best weights." if best.get("snapshot") else ""
            at_best, last = four_digits(best["value"]), four_digits(series.values[-1])
            return (
                f"Validation became worse after step {best['step']:,}: {in_words(metric)} {at_best} there, "
                f"{last} at step {series.steps[-1]:,}.{snapshot}"
            )
    return ""


def _main_metric(run: RunData) -> tuple[str, str] | None:
    """Return (prefix, name) of the main metric; a loss only if there is nothing else."""
    values = {name: value for name, value in run.results.items() if isinstance(value, float) and "/" not in name}
    for source in _SERIES_PREFIXES:
        found = [name.removeprefix(source) for name in values if name.startswith(source)]
        if found:
            return source, min(found, key=lambda name: name.endswith("loss"))
    return None
