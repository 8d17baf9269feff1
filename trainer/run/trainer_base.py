"""A Trainer without its verbs: snapshots, and what callbacks use of it."""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from callbacks import History
from callbacks.summary import table_html

from ..checkpoint import set_pointer
from ..checkpoint.content import Content
from ..data.position import Position
from ..errors import CheckpointError
from ..metrics.binary import score_table
from ..metrics.calibration_map import CalibrationMap
from ..metrics.registry import of_task
from ..mindspore_internals.cell_structure import children_of, parameters_of
from ..state import StopReason
from ..storage.fetch import fetched_snapshot
from . import loop
from .monitors import produced_metrics
from .trained_network import TrainedNetwork

if TYPE_CHECKING:
    from .run import Run


class TrainerBase(TrainedNetwork):
    """A trained network with callbacks, a run and snapshots, without the verbs."""

    history: History | None = None
    run: Run | None = None

    def stop(self, reason: str = "", kind: str = "user") -> None:
        """Stop the run after the current step; the first reason wins, for all processes."""
        self.state.ask_to_stop(StopReason(kind, reason), alone=self.group.size == 1)

    @property
    def position(self) -> dict[str, Any] | None:
        """Position in the data right after the last row trained on; None outside a run."""
        return None if self.run is None else self.run.cursor.position.to_json()

    @property
    def base(self) -> dict[str, int]:
        """The "epoch" and "step" from which the current run counts; zeros outside a run."""
        return {"epoch": 0, "step": 0} if self.run is None else self.run.cursor.base

    @property
    def train_dataset(self) -> Any:
        """The pipeline being trained on; None outside a run and for other data."""
        return None if self.run is None else self.run.feed.source.dataset

    @property
    def metric_directions(self) -> dict[str, bool | None]:
        """Metrics that a callback may monitor now: name -> whether higher is better."""
        valid_sets, online = ((), None) if self.run is None else (self.run.valid_sets, self.run.online)
        return produced_metrics(self.metrics, self.tasks, valid_sets or ("",), online)

    def read_counters(self) -> dict[str, int]:
        """Return the updates skipped: "skipped", "fatal", "consecutive", "longest_run".

        All skipped updates are fatal except overflows of scaled gradients with a finite loss. Copies four numbers to
        the host.
        """
        counters = self.builder.read_counters()
        self.state.skipped_steps = counters["skipped"]
        return counters

    def read_scores(self) -> dict[str, dict[str, Any]]:
        """Return calibration and distribution of binary scores by task.

        They cover the decayed past of the current stream, else this process's rows of the latest evaluation. The values
        are those of `trainer.metrics.binary.score_table`; a target that is not binary has none. The only task is "".
        """
        if self.run is not None and self.run.online is not None:
            return {} if self.run.online.scoring is None else self.run.online.scoring.score_tables()
        tasks = ("",) if self.tasks is None else self.tasks.tasks
        tables = {task: score_table(of_task(self.metrics, task, tasks).values()) for task in tasks}
        return {task: table for task, table in tables.items() if table is not None}

    def fitted_calibration(self) -> CalibrationMap | None:
        """Return the calibration from all rows scored so far; None if not configured.

        DataError: these rows are too few.
        """
        return None if self.calibrator is None else self.calibrator.fitted()

    def report_drift(self, drift: dict[str, Any]) -> None:
        """Publish a drift detector's report and call `on_drift`."""
        loop.drifted(self, drift)

    def report_snapshot(self, path: Path) -> None:
        """Publish the path of a durable snapshot and call `on_save_checkpoint`."""
        loop.saved(self, path)

    def snapshot_content(self) -> Content:
        """Return the content of a snapshot taken now."""
        return Content(
            self.network,
            self.optimizer,
            self.builder.step,
            self.scaler,
            self.builder.accumulation,
            self.state,
            self.callbacks,
            self.parts,
            self.tables,
            None if self.run is None else self.run.cursor,
        )

    def save(self, root: str | Path, background: bool = False) -> Path:
        """Write a snapshot to ``root/step_<global_step>``; return its path.

        Raises:
            CheckpointError: it cannot be written, or `load` restored tables and no data has been read since.
        """
        if self._loaded_tables:
            raise CheckpointError(
                "save: the sparse tables of the loaded snapshot are restored with the first data, which shows the "
                "columns that feed them; call fit, evaluate or predict first"
            )
        with self.group.inside("save"):
            return self.saver.save(Path(root), background=background)

    def load(
        self, path: str | Path, strict: bool = True, weights_only: bool = False, *, averaged: bool = False
    ) -> None:
        """Restore a snapshot, or the weights of a .ckpt file.

        Args:
            path: a snapshot, a folder of snapshots, a run folder (or the URL of a mirrored one), or a .ckpt file.
            strict: refuse a snapshot whose parameters differ from the network's; otherwise load those that fit.
            weights_only: restore the network's parameters and nothing else.
            averaged: with `weights_only`, prefer the averages of `EMA` or `SWA`, if the snapshot has them.

        Raises:
            CheckpointError: nothing sound to load. CheckpointMismatchError: it belongs to another network.
        """
        if self.builder.step is None and self.optimizer is not None:  # the snapshot holds its counters
            self.builder.train_step(self.step_options)
        with self.group.inside("load"):
            path = fetched_snapshot(path, self.group) or path
            snapshot = self.saver.load(path, strict=strict, weights_only=weights_only, averaged=averaged)
        if snapshot is not None and not weights_only:
            loop.restored(self, snapshot.path)

    def init_from(
        self, path: str | Path, parameter_map: Mapping[str, str | None] | None = None, *, strict: bool = True
    ) -> None:
        """Start from the weights, tables and feature statistics of another training.

        Counters, optimizer state and data position start fresh, so the optimizer, the data and the verb may differ:
        `online_train` can continue from what `fit` learned.

        Args:
            path: a snapshot, a folder of snapshots, a run folder (or the URL of a mirrored one), a .ckpt file or a
                published model.
            parameter_map: name of a parameter or table here, or its beginning up to a dot, -> name there; None instead
                leaves it as it is. Names that are not mapped are the same there.
            strict: whether all of this network's parameters and tables must be there, of the same shape; otherwise
                those that fit are loaded, with a warning. Others there are ignored.

        Raises:
            ConfigurationError: `parameter_map` is not such a mapping.
            CheckpointError: nothing sound to read. CheckpointMismatchError: it does not fit; nothing has changed.
        """
        from .initial_state import init_from

        path = fetched_snapshot(path, self.group) or path
        init_from(self.snapshot_content(), self.features, path, parameter_map, strict=strict)

    def rollback(self) -> None:
        """Reset weights, optimizer and step state to the latest snapshot of this run."""
        with self.builder.numbering_kept():
            self.saver.rollback()

    def set_pointer(self, root: str | Path, pointer: str, name: str) -> None:
        """Point the file "last" or "best" of `root` at a snapshot; only rank 0 writes it."""
        if self.group.is_main:
            set_pointer(Path(root), pointer, name)

    def commit(self, position: Mapping[str, Any] | None) -> None:
        """Report to the data source that a durable snapshot covers `position`."""
        if self.run is not None and position:
            self.run.feed.source.commit(Position.from_json(position))

    def _repr_html_(self) -> str:
        """Return the network's layers with their parameters, and the settings."""
        network, total = self.network, _count(self.network)
        tables = [f"{name}: {table['rows']:,} rows" for name, table in self.read_tables().items()]
        rows = [[name, type(cell).__name__, _count(cell)] for name, cell in children_of(network).items()]
        rows = rows or [["", type(network).__name__, total]]
        settings = {
            "parameters": total,
            "loss": type(self.loss_fn).__name__ if self.loss_fn is not None else "the network's own",
            "optimizer": type(self.optimizer).__name__ if self.optimizer is not None else "the network's own",
            "learning rate": self.learning_rate,
            "precision": self.precision.level,
            "sink": self.sink_mode,
            "sparse tables": ", ".join(tables) or "none",
            "metrics": ", ".join(self.metrics) or "none",
            "steps done": f"{self.state.progress.global_step:,}",
            "epochs done": f"{self.state.progress.epoch:,} (a further fit counts on from here)",
        }
        layers = table_html(("layer", "kind", "parameters"), rows)
        values = table_html(("setting", "value"), [list(item) for item in settings.items()])
        return f"<div><b>Trainer</b> of {html.escape(type(network).__name__)}{layers}{values}</div>"


def _count(cell: object) -> str:
    return f"{sum(parameter.size for parameter in parameters_of(cell)):,}"
