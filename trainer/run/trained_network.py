"""The constructor of `Trainer`: network, loss, optimizer, programs and tables."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from mindspore import nn

from callbacks import CallbackList

from .. import checks
from ..checkpoint.saver import Saver
from ..compat import keywords
from ..distributed.exchange import make_exchange
from ..distributed.group import join
from ..embedding.layers.embedding_cells import embedding_cells
from ..errors import CheckpointMismatchError
from ..graph import network_checks, precision
from ..graph.averaging import AverageRule, WeightAverage
from ..graph.boost import make_boost
from ..graph.builder import StepBuilder
from ..graph.dropout import replace_dropout
from ..graph.multi_task import MultiTaskLoss
from ..graph.optimizers import constant_rates, get_learning_rate, make_optimizer, set_learning_rate
from ..graph.program import StepOptions
from ..graph.roles import loss_columns
from ..metrics.registry import check_weighted, task_activations, task_metrics
from ..mindspore_internals.cell_structure import parameters_of
from ..mindspore_internals.device import choose
from ..mindspore_internals.pipelines import current_seed
from ..state import State
from .calibrating import make_calibrator
from .tally import RowWeights

if TYPE_CHECKING:
    from ..data.table_feed import TableFeed
    from ..embedding.layers.embedding import Embedding
    from ..features.features import Features
    from ..metrics.calibrator import Calibrator

logger = logging.getLogger(__name__)


class TrainedNetwork:
    """A network with its loss, optimizer, programs and sparse tables.

    `trainer.Trainer` documents the arguments.
    """

    default_device: str | None = None  # device of a Trainer without `device`
    make_metrics = staticmethod(task_metrics)
    tables: TableFeed | None = None
    sink_mode: str = "not decided yet"
    _table_totals: dict[str, dict[str, int]] = MappingProxyType({})  # type: ignore[assignment]
    loaded_averages: Mapping[str, Any] | None = None  # state of those in the loaded snapshot, until the next training
    _loaded_tables: Sequence[dict[str, Any]] = ()  # loaded states, applied once the first data is read

    @keywords.translated()
    def __init__(
        self,
        network: nn.Cell,
        loss_fn: nn.Cell | None = None,
        optimizer: Any = None,
        metrics: Any = None,
        eval_network: nn.Cell | None = None,
        eval_indexes: Sequence[int] | None = None,
        amp_level: str = "O0",
        boost_level: str = "O0",
        *,
        amp_dtype: Any = "float16",
        loss_scale: Any = None,
        keep_batchnorm_fp32: bool | None = None,
        boost_config: Any = None,
        gradient_accumulation_steps: int = 1,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        seed: int | None = None,
        run_dir: str | Path | None = None,
        amp_white_list: Sequence[type[nn.Cell]] | None = None,
        amp_black_list: Sequence[type[nn.Cell]] | None = None,
        exact_resume: bool = False,
        compile: bool = True,
        features: Features | None = None,
        prediction_activation: Any = None,
        device: str | None = None,
        weighted_metrics: bool = True,
        deterministic: bool = False,
        calibration: Calibrator | Mapping[str, Any] | str | None = None,
    ) -> None:
        self.device = choose(device if device is not None else self.default_device)  # must precede the first operator
        self.group = join()  # early, since msrun also runs the script in a scheduler process, which never returns here
        optimizer = make_optimizer(optimizer, network)
        network_checks.check_network(network, loss_fn, optimizer, eval_network)
        self.network, self.loss_fn, self.optimizer = network, loss_fn, optimizer
        self.tasks = loss_fn if isinstance(loss_fn, MultiTaskLoss) else None
        task_names = () if self.tasks is None else self.tasks.tasks
        self.metrics = self.make_metrics(metrics, task_names)
        self.prediction_activations = task_activations(prediction_activation, task_names)
        self.eval_indexes = network_checks.check_eval_indexes(eval_network, eval_indexes, self.metrics.values())
        self.accumulate = checks.whole("gradient_accumulation_steps", gradient_accumulation_steps)
        columns = loss_columns(network, loss_fn, features)
        denominator = network_checks.check_denominator(
            network, loss_fn, optimizer, self.accumulate, self.group.size, columns.weighted_loss
        )
        checks.boolean("weighted_metrics", weighted_metrics)
        has_weighted_metrics = columns.weight is not None and weighted_metrics
        if has_weighted_metrics and columns.weight is not None:
            check_weighted(self.metrics, columns.weight)
        self.has_own_seed = checks.whole("seed", seed, 0, maximum=2**32 - 1, optional=True) is not None
        self.seed = (current_seed() if seed is None else seed) or 0
        self.compiled = network_checks.check_compile(network, compile)
        self.run_dir = None if run_dir is None else Path(run_dir)
        self.precision = precision.resolve(amp_level, amp_dtype, keep_batchnorm_fp32, amp_white_list, amp_black_list)
        if optimizer is None:
            network_checks.check_custom_step(
                network,
                amp_level=self.precision.level,
                gradient_accumulation_steps=self.accumulate,
                clip_norm=clip_norm,
                clip_value=clip_value,
                loss_scale=loss_scale,
            )
        self.scaler = precision.make_scaler(loss_scale, self.precision)
        self.reports_overflow = self.scaler is not None and precision.reports_overflow(loss_scale)
        if exact_resume:
            replace_dropout(network, self.seed)
        for_one_core = network_checks.check_deterministic(network, deterministic, self.compiled, self.precision.lowers)
        self.boost = make_boost(boost_level, boost_config, network, optimizer, self.seed)
        precision.convert(network, self.precision)
        self.step_options = StepOptions(
            scaler=self.scaler,
            accumulate=self.accumulate,
            clip_norm=checks.number("clip_norm", clip_norm, above=0, optional=True),
            clip_value=checks.number("clip_value", clip_value, above=0, optional=True),
            transform=self.boost.transform(),
            exchange=make_exchange(self.group, self.boost.combine, self.tasks, denominator),
        )
        self.builder = StepBuilder(
            network,
            loss_fn,
            optimizer,
            cast=self.precision.lowers,
            eval_network=eval_network,
            options=self.step_options,
            boost=self.boost,
            steps_done=lambda: self.state.progress.global_step,
            compiled=self.compiled,
            loss_columns=columns,
            for_one_core=for_one_core,
        )
        has_denominator = self.builder.forward.returns_denominator
        self.row_weights = RowWeights(columns.weight, has_denominator, has_weighted_metrics)
        self.label_count, self.features = self.builder.label_count, features
        self.state = State()
        self.callbacks = CallbackList()
        self.saver = Saver(self.group, self)
        self.calibrator = make_calibrator(calibration, self)
        parts = {"boost": self.boost.freezing, "features": features, "calibration": self.calibrator}
        self.parts: dict[str, Any] = {name: part for name, part in parts.items() if part is not None}

    @property
    def order_seed(self) -> int:
        """Seed of the row order for a call that starts now."""
        return self.seed if self.has_own_seed else current_seed() or 0

    @property
    def boost_parts(self) -> tuple[str, ...]:
        """Names of the active techniques of the boost level."""
        return self.boost.parts

    @property
    def learning_rate(self) -> float | None:
        """Learning rate of the next update; it can be assigned if it is constant."""
        return get_learning_rate(self.optimizer)

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        set_learning_rate(self.optimizer, value)

    @property
    def learning_rates(self) -> list[float]:
        """Learning rate of every parameter group; empty if one follows a schedule."""
        return constant_rates(self.optimizer)

    @learning_rates.setter
    def learning_rates(self, values: Sequence[float]) -> None:
        set_learning_rate(self.optimizer, values)

    @property
    def loss_scale(self) -> float | None:
        """Current loss scale, copied from the device, or None."""
        value = getattr(self.scaler, "scale_value", None)
        return None if value is None else float(value.asnumpy())

    @property
    def own_eval_network(self) -> nn.Cell | None:
        """The evaluation cell that the user gave, or None."""
        return self.builder.inference.eval_network

    def use_eval_network(self, cell: nn.Cell | None) -> None:
        """Evaluate with `cell`, or build an evaluation cell if None.

        `eval_indexes` stay as they are if `cell` replaces another evaluation cell of the user.
        """
        network_checks.check_network(self.network, self.loss_fn, self.optimizer, cell)
        kept = self.eval_indexes if cell is not None and self.own_eval_network is not None else None
        self.eval_indexes = network_checks.check_eval_indexes(cell, kept)
        self.builder.inference.use_eval_network(cell)

    def use_tables(self, tables: TableFeed) -> None:
        """Use `tables` to train and read the network's sparse tables from now on.

        Raises:
            CheckpointMismatchError, CheckpointDamagedError: the loaded snapshot has different or damaged tables.
        """
        if self._loaded_tables:
            tables.check_states(self._loaded_tables)
            tables.load_states(self._loaded_tables)
            self._loaded_tables = ()
        for cell in embedding_cells(self.network):
            cell.host.awaits_rows = False
        self.tables = self.parts["tables"] = tables
        self.builder.tables = tables.tables
        self.boost = self.builder.boost = self.boost.without_freezing("embedding tables train in whole steps")

    def check_has_tables(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Check that the network has sparse tables if a snapshot has, and the reverse.

        A snapshot of the time before the first data has none; it fits as long as nothing is trained.

        Raises:
            CheckpointMismatchError: one of them has no sparse tables.
        """
        jsons = (state["json"] for state in states if isinstance(state["json"], Mapping))
        names = sorted({name for json in jsons for name in json})
        sparse = sorted({cell.spec.name for cell in self._sparse_cells})
        if names and not sparse:
            raise CheckpointMismatchError(
                f"the snapshot has the sparse tables {names}, the network has none; strict=False loads the parameters"
            )
        if sparse and not names and self.state.progress.global_step:
            raise CheckpointMismatchError(
                f"the snapshot was saved before the first data and has no rows of the sparse tables {sparse}, which "
                "have been trained since; load it into a new Trainer; strict=False loads the parameters alone"
            )

    def warn_of_no_rows(self, path: Path) -> None:
        """Warn that the rows of sparse tables are not in a file of weights."""
        if sparse := sorted({cell.spec.name for cell in self._sparse_cells}):
            logger.warning("%s has no rows of the sparse tables %s; they stay as they are", path, ", ".join(sparse))

    @property
    def _sparse_cells(self) -> list[Embedding]:
        return [cell for cell in embedding_cells(self.network) if not cell.is_dense]

    def load_tables(self, states: list[dict[str, Any]]) -> None:
        """Restore the sparse tables now, or when the first data is read."""
        if self.tables is None:
            self._loaded_tables = states if self._sparse_cells else ()
            for cell in self._sparse_cells:
                cell.host.awaits_rows = bool(states)
        else:
            self.tables.load_states(states)

    def read_tables(self) -> dict[str, dict[str, int]]:
        """Return rows, bytes and counters of the sparse tables, by name.

        With several processes, these are the sums over all processes, as of the end of the last epoch, window or
        training.
        """
        return self._table_totals if self.group.size > 1 else self._local_tables()

    def _local_tables(self) -> dict[str, dict[str, int]]:
        tables = {} if self.tables is None else self.tables.tables.tables
        return {name: {"rows": len(table), "bytes": table.nbytes, **table.counters} for name, table in tables.items()}

    def sum_table_counters(self) -> None:
        """Update the sums over all processes for `read_tables`; a collective call."""
        if self.tables is None or self.group.size == 1:
            return
        own = self._local_tables()
        totals = self.group.total(np.array([list(figures.values()) for figures in own.values()], np.int64)).tolist()
        self._table_totals = {
            name: dict(zip(figures, sums, strict=True))
            for (name, figures), sums in zip(own.items(), totals, strict=True)
        }

    def read_bad_steps(self) -> list[int]:
        """Return `global_step` after each of the latest skipped steps, at most 16."""
        return self.builder.read_bad_steps(self.state.progress.global_step)

    def averaged_weights(self) -> contextlib.AbstractContextManager[None]:
        """Use the averaged weights of `EMA` or `SWA`, if any, inside the context."""
        average = self._average()
        return contextlib.nullcontext() if average is None else average.applied()

    def use_averaged_weights(self) -> None:
        """Replace the weights by the averages of `EMA` or `SWA`."""
        average = self._average()
        if average is not None:
            average.replace_weights()

    def _average(self) -> WeightAverage | None:
        """Return the averages of the training, or else those of the loaded snapshot."""
        if self.builder.average is not None or self.loaded_averages is None:
            return self.builder.average
        arrays = self.loaded_averages["arrays"]
        cells = [cell for cell in (self.network, self.loss_fn) if isinstance(cell, nn.Cell)]
        parameters = {p.name: p for cell in cells for p in parameters_of(cell) if p.name in arrays}
        average = WeightAverage(list(parameters.values()), AverageRule())
        average.load_state_dict({"json": {"updates": 0}, "arrays": arrays})
        return average
