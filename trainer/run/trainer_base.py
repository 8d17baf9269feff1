"""The attributes of a Trainer that outlive a call, and what callbacks use of it."""

from __future__ import annotations

import contextlib
import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from mindspore import nn

from callbacks import CallbackList, History
from callbacks.summary import table_html

from ..checkpoint import set_pointer
from ..checkpoint.content import Content
from ..checkpoint.saver import Saver
from ..data.position import Position
from ..distributed.group import Group
from ..embedding.layers.embedding_cells import embedding_cells
from ..errors import CheckpointError
from ..graph import network_checks
from ..graph.boost import Boost
from ..graph.builder import StepBuilder
from ..graph.multi_task import MultiTaskLoss
from ..graph.optimizers import get_learning_rate, set_learning_rate
from ..graph.precision import Precision
from ..graph.program import StepOptions
from ..metrics.binary import score_table
from ..metrics.calibration_map import CalibrationMap
from ..metrics.calibrator import Calibrator
from ..metrics.predictions import Activation
from ..metrics.registry import of_task
from ..mindspore_internals.cell_structure import children_of, parameters_of
from ..mindspore_internals.pipelines import current_seed
from ..state import State, StopReason
from ..storage.fetch import fetched_snapshot
from . import loop
from .monitors import produced_metrics
from .tally import RowWeights

if TYPE_CHECKING:
    from ..data.table_feed import TableFeed
    from ..features.features import Features
    from .run import Run


class TrainedNetwork:
    """A network with its loss, optimizer, programs and sparse tables."""

    network: nn.Cell
    loss_fn: Any
    optimizer: nn.Cell | None
    tasks: MultiTaskLoss | None
    metrics: dict[str, Any]
    prediction_activations: dict[str, Activation]
    eval_indexes: tuple[int, int, int] | None
    features: Features | None
    calibrator: Calibrator | None  # of `Trainer(calibration=...)`
    label_count: int
    group: Group
    state: State
    seed: int
    has_own_seed: bool  # whether it was given, rather than MindSpore's
    accumulate: int
    compiled: bool
    precision: Precision
    scaler: Any
    step_options: StepOptions
    boost: Boost
    builder: StepBuilder
    row_weights: RowWeights
    tables: TableFeed | None = None
    _tables_of_all: dict[str, dict[str, int]] = MappingProxyType({})  # type: ignore[assignment]
    parts: dict[str, Any]
    sink_mode: str = "not decided yet"
    _loaded_tables: Sequence[dict[str, Any]] = ()  # restored before the first data

    @property
    def order_seed(self) -> int:
        """Seed of the order of rows in a call that begins now."""
        return self.seed if self.has_own_seed else current_seed() or 0

    @property
    def boost_parts(self) -> tuple[str, ...]:
        """Names of the active parts of the boost level."""
        return self.boost.parts

    @property
    def learning_rate(self) -> float | None:
        """Learning rate of the next update; can be set if it is constant."""
        return get_learning_rate(self.optimizer)

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        set_learning_rate(self.optimizer, value)

    @property
    def loss_scale(self) -> float | None:
        """Current loss scale, copied from the device; None without a scaler that has one."""
        value = getattr(self.scaler, "scale_value", None)
        return None if value is None else float(value.asnumpy())

    @property
    def own_eval_network(self) -> nn.Cell | None:
        """The evaluation cell that the user gave, or None."""
        return self.builder.inference.eval_network

    def use_eval_network(self, cell: nn.Cell | None) -> None:
        """Evaluate with `cell`, keeping `eval_indexes`; None builds one."""
        network_checks.check_network(self.network, self.loss_fn, self.optimizer, cell)
        kept = self.eval_indexes if cell is not None and self.own_eval_network is not None else None
        self.eval_indexes = network_checks.check_eval_indexes(cell, kept)
        self.builder.inference.use_eval_network(cell)

    def use_tables(self, tables: TableFeed) -> None:
        """Use `tables` to train and read the network's sparse tables from now on.

        Raises:
            CheckpointMismatchError, CheckpointDamagedError: `load` restored a snapshot of different or unusable tables.
        """
        if self._loaded_tables:
            tables.check_states(self._loaded_tables)
            tables.load_states(self._loaded_tables)
            self._loaded_tables = ()
        self.tables = self.parts["tables"] = tables
        self.builder.tables = tables.tables
        self.boost = self.builder.boost = self.boost.without_freezing("embedding tables train in whole steps")

    def load_tables(self, states: list[dict[str, Any]]) -> None:
        """Restore the sparse tables, now or with the first data."""
        if self.tables is None:
            self._loaded_tables = states if embedding_cells(self.network) else ()
        else:
            self.tables.load_states(states)

    def read_tables(self) -> dict[str, dict[str, int]]:
        """Return rows, bytes and counters of the sparse tables, by name.

        With several processes, those of all at the last end of an epoch, a window or a training.
        """
        return self._tables_of_all if self.group.size > 1 else self._own_tables()

    def _own_tables(self) -> dict[str, dict[str, int]]:
        tables = {} if self.tables is None else self.tables.tables.tables
        return {name: {"rows": len(table), "bytes": table.nbytes, **table.counters} for name, table in tables.items()}

    def add_up_tables(self) -> None:
        """Add up what `read_tables` returns over all processes; a collective call."""
        if self.tables is None or self.group.size == 1:
            return
        own = self._own_tables()
        totals = self.group.total(np.array([list(figures.values()) for figures in own.values()], np.int64)).tolist()
        self._tables_of_all = {
            name: dict(zip(figures, sums, strict=True))
            for (name, figures), sums in zip(own.items(), totals, strict=True)
        }

    def read_bad_steps(self) -> list[int]:
        """Return the latest skipped steps, at most 16, as `global_step` after them."""
        return self.builder.read_bad_steps(self.state.progress.global_step)

    def averaged_weights(self) -> contextlib.AbstractContextManager[None]:
        """Use the averaged weights of `EMA` or `SWA`, if any, inside the context."""
        return contextlib.nullcontext() if self.builder.average is None else self.builder.average.applied()

    def use_averaged_weights(self) -> None:
        """Replace the weights by the averages of `EMA` or `SWA`."""
        if self.builder.average is not None:
            self.builder.average.replace_weights()


class TrainerBase(TrainedNetwork):
    """A trained network with callbacks, a run and snapshots, without the verbs."""

    run_dir: Path | None
    callbacks: CallbackList
    history: History | None = None
    run: Run | None = None
    saver: Saver

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
        """Return the calibration by all rows scored so far; None without `calibration`.

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
