"""The report of a run on MovieLens-100K: results, baselines, files, loss curve."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from examples.baselines import baselines
from examples.movielens import LABEL, MovieLens
from trainer.errors import ConfigurationError

if TYPE_CHECKING:
    from callbacks import History
    from trainer.trainer import Trainer

SCORES = ("auc", "log_loss")


class MovieLensReport:
    """Prints AUC and log loss next to two baselines, and draws the loss curve.

    Args:
        name: name of the trained network in the table.
        folder: folder of the data, as in `MovieLens`.
        curve: file name of the picture in the run folder.
    """

    def __init__(
        self,
        name: str = "Wide & Deep",
        folder: str | os.PathLike[str] | None = None,
        curve: str = "loss_curve.png",
    ) -> None:
        self.name = name
        self.folder = folder
        self.curve = curve

    def __call__(self, trainer: Trainer, run_dir: str | os.PathLike[str]) -> dict[str, dict[str, float]]:
        """Print the report of a finished run.

        Returns:
            {"Wide & Deep": {"auc": ..., "log_loss": ...}, "linear": ..., "item mean": ...}.

        Raises:
            ConfigurationError: the run did not measure "auc" and "log_loss" on test data, or a package of the extra
                "examples" is missing.
        """
        results = json.loads((Path(run_dir) / "metrics.json").read_text())["results"]
        missing = [name for name in SCORES if f"test_{name}" not in results]
        if missing:
            raise ConfigurationError(f"MovieLensReport needs data.test and metrics: {list(SCORES)}; missing: {missing}")
        train, test = MovieLens("train", folder=self.folder), MovieLens("test", folder=self.folder)
        rows = {self.name: {name: results[f"test_{name}"] for name in SCORES}}
        rows |= dict(reversed(baselines(train.columns, test.columns).items()))
        unseen = float((test.columns["user"] == 0).mean())
        print(f"\nMovieLens-100K: the newest {len(test.columns[LABEL]):,} ratings, {unseen:.0%} of them by new users")
        print(_table(rows))
        places = {
            "checkpoint": trainer.state.snapshot,
            "TensorBoard log": next((found.folder for found in trainer.callbacks if _is_tensorboard(found)), None),
            "loss curve": draw_loss(trainer.history, Path(run_dir) / self.curve),
        }
        for what, place in places.items():
            print(f"{what:16} {_shown(place) if place is not None else 'none: no callback of the run writes one'}")
        return rows


def _shown(place: str | os.PathLike[str]) -> str:
    """Return the path, relative to the current folder if it is inside."""
    path = Path(place).absolute()
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _is_tensorboard(callback: Any) -> bool:
    from callbacks import TensorBoard

    return isinstance(callback, TensorBoard)


def _table(rows: dict[str, dict[str, float]]) -> str:
    lines = [f"{'':16} {'AUC':>8} {'log loss':>9}"]
    lines += [f"{name:16} {scores['auc']:8.4f} {scores['log_loss']:9.4f}" for name, scores in rows.items()]
    return "\n".join(lines)


def draw_loss(history: History, path: Path) -> Path:
    """Draw the loss per step, per epoch and per validation as a PNG; return `path`.

    Raises:
        ConfigurationError: matplotlib is missing.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigurationError(
            "the loss curve needs matplotlib: pip install 'mindspore-trainer[examples]'"
        ) from error
    # Create figure and canvas directly, because pyplot would choose a window system and keep global state.
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(xlabel="optimizer step", ylabel="loss")
    series: Iterable[tuple[str, list[int], list[float], dict[str, Any]]] = (
        ("single steps", history.curve.steps, history.curve.values, {"color": "0.75", "linewidth": 1}),
        ("training, mean of an epoch", *_series(history, "loss"), {"color": "tab:blue", "marker": "o"}),
        ("held out", *_series(history, "val_loss"), {"color": "tab:orange", "marker": "s"}),
    )
    for label, steps, values, style in series:
        if steps:
            axes.plot(steps, values, label=label, **style)
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return path


def _series(history: History, name: str) -> tuple[list[int], list[float]]:
    return history.steps.get(name, []), history.history.get(name, [])
