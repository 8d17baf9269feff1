"""The part of `Trainer` that handles snapshots and that callbacks use."""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from callbacks import History
from callbacks.summary import table_html

from ..checkpoint import set_pointer
from ..checkpoint.capture import part_states
from ..checkpoint.content import Content
from ..data.position import Position
from ..errors import CheckpointError
from ..metrics.binary import score_table
from ..metrics.calibration_map import CalibrationMap
from ..metrics.registry import metrics_of_task
from ..mindspore_internals.cell_structure import children_of, parameters_of
from ..state import Phase, StopReason
from ..storage.fetch import local_snapshot
from . import loop
from .monitors import produced_metrics
from .trained_network import TrainedNetwork

if TYPE_CHECKING:
    from .run import Run


class TrainerBase(TrainedNetwork):
    """A network with callbacks, a run and snapshots; `Trainer` adds the methods."""

    history: History | None = None
    run: Run | None = None

    def stop(self, reason: str = "", kind: str = "user") -> None:
        """Stop the run on all processes after the current step; the first reason wins."""
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
        """The pipeline being trained on; None outside a run and for other kinds of data."""
        return None if self.run is None else self.run.feed.source.dataset

    @property
    def metric_directions(self) -> dict[str, bool | None]:
        """Name -> whether higher is better, for the metrics that callbacks may monitor."""
        valid_sets, online = ((), None) if self.run is None else (self.run.valid_sets, self.run.online)
        return produced_metrics(self.metrics, self.tasks, valid_sets or ("",), online)

    def read_counters(self) -> dict[str, int]:
        """Return the counters of skipped updates, read from the device.

        Keys are "skipped", "fatal", "consecutive" and "longest_run". A skipped update is fatal, unless
        scaled gradients overflowed while the loss was finite.
        """
        counters = self.builder.read_counters()
        self.state.skipped_steps = counters["skipped"]
        return counters

    def read_scores(self) -> dict[str, dict[str, Any]]:
        """Return calibration and distribution of binary scores by task.

        During a stream, the scores cover all its rows, with less weight for older windows. Otherwise they cover this
        process's rows of the latest evaluation. `trainer.metrics.binary.score_table` describes the values. Tasks
        without a binary target are left out. A network with one task has the task name "".
        """
        if self.run is not None and self.run.online is not None:
            return {} if self.run.online.scoring is None else self.run.online.scoring.score_tables()
        tasks = ("",) if self.tasks is None else self.tasks.tasks
        tables = {task: score_table(metrics_of_task(self.metrics, task, tasks).values()) for task in tasks}
        return {task: table for task, table in tables.items() if table is not None}

    def fitted_calibration(self) -> CalibrationMap | None:
        """Return the calibration from all rows scored so far; None if not configured.

        Raises:
            DataError: there are too few rows.
        """
        return None if self.calibrator is None else self.calibrator.fitted()

    def report_drift(self, drift: dict[str, Any]) -> None:
        """Publish a drift detector's report and call `on_drift`."""
        loop.report_drift(self, drift)

    def report_snapshot(self, path: Path) -> None:
        """Publish the path of a durable snapshot and call `on_save_checkpoint`."""
        loop.report_saved(self, path)

    def snapshot_content(self) -> Content:
        """Return the content of a snapshot taken now."""
        return Content(
            self.network,
            self.loss_fn,
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
            CheckpointError: the snapshot cannot be written, or `load` restored tables and no data has been read since.
        """
        self._check_tables_restored("save")
        self._build_step()
        with self.group.inside("save"):
            return self.saver.save(Path(root), background=background)

    def load(
        self, path: str | Path, strict: bool = True, weights_only: bool = False, *, averaged: bool = False
    ) -> None:
        """Restore a snapshot, or the weights of a .ckpt file.

        Args:
            path: a snapshot, a folder of snapshots, a run folder (or the URL of a mirrored one), or a .ckpt file.
            strict: raise an error if the snapshot's parameters differ from the network's; False loads the parameters
                that match.
            weights_only: restore the parameters of the network, and of the loss if the snapshot has them, and nothing
                else.
            averaged: with `weights_only`, prefer the averages of `EMA` or `SWA`, if the snapshot has them.

        Raises:
            CheckpointError: there is no intact snapshot to load.
            CheckpointMismatchError: the snapshot belongs to another network.
        """
        self._build_step()
        with self.group.inside("load"):
            path = local_snapshot(path, self.group) or path
            snapshot = self.saver.load(path, strict=strict, weights_only=weights_only, averaged=averaged)
        if self.state.phase is Phase.IDLE and (weights_only or snapshot is None):
            self._forget_snapshot()
        if self.builder.average is not None and (weights_only or snapshot is None):
            self.builder.average.restart()  # the averages belong to the weights before loading
        if self.calibrator is not None and (snapshot is None or not part_states(snapshot, "calibration")):
            self.calibrator.restart()  # it belongs to the weights before loading, too
        if snapshot is not None and not weights_only:
            averages = part_states(snapshot, "averages")
            if self.state.phase is Phase.IDLE:  # a training goes on with averages of its own
                self.loaded_averages = averages[-1] if averages and strict else None
            loop.report_restored(self, snapshot.path)

    def init_from(
        self, path: str | Path, parameter_map: Mapping[str, str | None] | None = None, *, strict: bool = True
    ) -> None:
        """Start from the weights, tables and feature statistics of another training.

        Counters, optimizer state and data position are not loaded, so the optimizer and the data may differ. For
        example, `online_train` can continue from a model that `fit` trained.

        Args:
            path: a snapshot, a folder of snapshots, a run folder (or the URL of a mirrored one), a .ckpt file or a
                published model (the source).
            parameter_map: maps the name of a parameter or table of this network, or a prefix of names that ends with a
                dot, to the name or prefix in the source. None as the value keeps the parameter unchanged. Names that
                are not mapped must be the same in the source.
            strict: True requires all parameters and tables of this network, with the same shapes, in the source. False
                loads those that match and logs a warning. Further parameters of the source are ignored.

        Raises:
            ConfigurationError: `parameter_map` is not such a mapping.
            CheckpointError: there is no intact source at `path`; or `load` restored tables, and no data has been read
                since.
            CheckpointMismatchError: the source does not match the network, which is unchanged.
        """
        from .initial_state import init_from

        self._check_tables_restored("init_from")
        path = local_snapshot(path, self.group) or path
        init_from(self.snapshot_content(), self.features, path, parameter_map, strict=strict)
        if Path(path).suffix == ".ckpt":
            self.warn_of_no_rows(Path(path))
        self._forget_snapshot()
        if self.calibrator is not None:
            self.calibrator.restart()
        if self.builder.average is not None:
            self.builder.average.restart()

    def _build_step(self) -> None:
        """Build the training step, whose counters are part of snapshots, if there is none."""
        if self.builder.step is None and self.optimizer is not None:
            self.builder.train_step(self.step_options)

    def _check_tables_restored(self, verb: str) -> None:
        if self._loaded_tables:
            raise CheckpointError(
                f"{verb}: the sparse tables of the loaded snapshot are restored with the first data, which shows the "
                "columns that feed them; call fit, evaluate or predict first"
            )

    def _forget_snapshot(self) -> None:
        """Forget the latest snapshot, which `rollback` and `EMA` would go back to."""
        self.saver.newest = self.state.snapshot = self.loaded_averages = None

    def rollback(self) -> None:
        """Restore weights, optimizer and step state from the latest snapshot of this run."""
        with self.builder.preserve_step_numbers():
            self.saver.rollback()

    def set_pointer(self, root: str | Path, pointer: str, name: str) -> None:
        """Write a snapshot's name to the file "last" or "best" in `root`, on rank 0."""
        if self.group.is_main:
            set_pointer(Path(root), pointer, name)

    def commit(self, position: Mapping[str, Any] | None) -> None:
        """Report to the data source that a durable snapshot covers `position`."""
        if self.run is not None and position:
            self.run.feed.source.commit(Position.from_json(position))

    def _repr_html_(self) -> str:
        """Return tables of the network's layers and of the settings, for notebooks."""
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
