"""Methods of `mindspore.Model` and `RecModel`, implemented with `Trainer`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mindspore import Tensor, nn
from mindspore.train import Callback as MindSporeCallback

from callbacks.lambda_callback import LambdaCallback
from callbacks.mindspore_adapter import TrainNetwork

from .. import checks
from ..cadence import Every
from ..errors import ConfigurationError
from ..run import training
from ..run.inference import evaluate
from ..run.inference import predict as trainer_predict
from ..run.trainer_base import TrainerBase
from . import keywords

if TYPE_CHECKING:
    from callbacks import History

logger = logging.getLogger(__name__)


class MindSporeVerbs(TrainerBase):
    """Methods and attributes of `mindspore.Model` that `Trainer` itself lacks."""

    def train(
        self,
        epoch: int,
        train_dataset: Any,
        callbacks: Any = None,
        dataset_sink_mode: bool = False,
        sink_size: int = -1,
        initial_epoch: int = 0,
    ) -> History:
        """Train up to `epoch` without validation, as `mindspore.Model.train` does."""
        return fit(self, epoch, train_dataset, None, 1, callbacks, dataset_sink_mode, False, sink_size, initial_epoch)

    def eval(self, valid_dataset: Any, callbacks: Any = None, dataset_sink_mode: bool = False) -> dict[str, Any]:
        """Evaluate as `mindspore.Model.eval` does; return the metrics in their order.

        Raises:
            ConfigurationError: the trainer has no metrics.
            TypeError: `dataset_sink_mode` is not a bool.
        """
        checks.boolean("dataset_sink_mode", dataset_sink_mode)
        if not self.metrics:
            raise ConfigurationError("eval: needs metrics, and the trainer has none; evaluate() returns the loss")
        values: dict[str, Any] = {}
        reader = LambdaCallback(on_eval_end=lambda trainer: values.update(trainer.state.evaluation.values))
        given = callbacks if isinstance(callbacks, Iterable) else [] if callbacks is None else [callbacks]
        evaluate(self, valid_dataset, [*given, reader], None, None)
        return values

    def build(
        self,
        train_dataset: Any = None,
        valid_dataset: Any = None,
        sink_size: int = -1,
        epoch: int = 1,
        sink_mode: bool = True,
    ) -> None:
        """Compile the training program; the evaluation program is compiled on first use."""
        if train_dataset is not None:
            training.compile_program(self, train_dataset, None, checks.steps_per_call(sink_mode, sink_size), None)

    def infer_train_layout(self, *data: Any, **options: Any) -> None:
        """Refuse the call, because layouts belong to MindSpore's automatic parallelism.

        Raises:
            ConfigurationError: always.
        """
        raise ConfigurationError(
            "infer_train_layout and infer_predict_layout are for MindSpore's automatic parallelism "
            "(semi_auto_parallel, auto_parallel); this trainer runs replicas: see trainer launch"
        )

    infer_predict_layout = infer_train_layout

    @property
    def train_network(self) -> nn.Cell:
        """The cell of network, loss and optimizer; without an optimizer, the network."""
        trainer: Any = self
        return self.network if self.optimizer is None else self._cached_cell("train", lambda: TrainNetwork(trainer))

    @property
    def eval_network(self) -> nn.Cell | None:
        """The user's evaluation cell, else a cell of network and loss, or None."""
        cell = self.own_eval_network
        if cell is not None or not self.metrics or self.loss_fn is None:
            return cell
        cast = self.precision.level in ("O2", "O3", "auto")
        return self._cached_cell("eval", lambda: nn.WithEvalCell(self.network, self.loss_fn, cast))

    @eval_network.setter
    def eval_network(self, cell: nn.Cell | None) -> None:
        self.use_eval_network(cell)

    @property
    def predict_network(self) -> nn.Cell:
        """The network."""
        return self.network

    def _cached_cell(self, name: str, create: Callable[[], nn.Cell]) -> nn.Cell:
        cells = vars(self).setdefault("_cells_of_mindspore", {})
        if name not in cells:
            cells[name] = create()
        return cells[name]


def predict(trainer: TrainerBase, *predict_data: Any, backend: str | None = None, config: Any = None) -> Any:
    """Apply the network to Tensors, as `mindspore.Model.predict` does.

    The backend "lite" runs the network itself, as MindSpore does without MindSpore Lite. `config` is ignored.

    Raises:
        ConfigurationError: `backend` is neither None nor "lite".
    """
    if checks.choice("backend", backend, ("lite",), optional=True):
        logger.warning("predict: MindSpore Lite is not used; the network itself is applied")
    if all(isinstance(item, Tensor) for item in predict_data):
        return _to_tensors(trainer_predict(trainer, ([predict_data],), None, False))
    was_training = trainer.network.training
    trainer.network.set_train(False)
    try:
        return trainer.network(*predict_data)
    finally:
        trainer.network.set_train(was_training)


def _to_tensors(outputs: Any) -> Any:
    if isinstance(outputs, dict):
        return {name: _to_tensors(output) for name, output in outputs.items()}
    return tuple(map(_to_tensors, outputs)) if isinstance(outputs, tuple) else Tensor(outputs)


@keywords.translated("batch_size", "shuffle", "sharded", "max_steps", "max_time", "resume")
def fit(
    trainer: TrainerBase,
    epoch: int,
    train_dataset: Any,
    valid_dataset: Any = None,
    valid_frequency: int | Sequence[int] = 1,
    callbacks: Any = None,
    dataset_sink_mode: bool = False,
    valid_dataset_sink_mode: bool = False,
    sink_size: int = -1,
    initial_epoch: int = 0,
    **options: Any,
) -> History:
    """Train and validate up to `epoch`, as `mindspore.Model.fit` does.

    With a MindSpore callback, each step is a separate call for any sink size, as in MindSpore on CPU. Evaluation takes
    one batch at a time. `options` are the other keywords of `Trainer.fit`.

    Raises:
        ConfigurationError: a number of epochs is invalid.
        TypeError: a sink mode is not a bool.
    """
    checks.boolean("dataset_sink_mode", dataset_sink_mode)
    checks.boolean("valid_dataset_sink_mode", valid_dataset_sink_mode)
    if not checks.is_whole(initial_epoch) or not 0 <= initial_epoch < max(epoch, 1):
        checks.refuse("initial_epoch", f"a whole number from 0 below epoch={epoch}", initial_epoch)
    for frequency in valid_frequency if isinstance(valid_frequency, Sequence) else (valid_frequency,):
        checks.whole("valid_frequency", frequency, also=" (epochs), or a list of epochs")
    return training.fit(
        trainer,
        train_dataset,
        epoch - initial_epoch,
        valid_dataset,
        None if valid_frequency == 1 else _ValidationEpochs(valid_frequency, initial_epoch),
        [] if callbacks is None else callbacks,
        checks.steps_per_call(dataset_sink_mode and not _has_mindspore_callback(callbacks), sink_size),
        first_epoch=initial_epoch,
        max_seconds=checks.seconds("max_time", options.pop("max_time", None)),
        **options,
    )


def _has_mindspore_callback(callbacks: Any) -> bool:
    callback_list = callbacks if isinstance(callbacks, list | tuple) else [callbacks]
    return any(isinstance(callback, MindSporeCallback) for callback in callback_list)


class _ValidationEpochs(Every):
    """`valid_frequency` as a cadence: every n epochs of a call, or listed epochs."""

    def __init__(self, epochs: int | Sequence[int], initial_epoch: int) -> None:
        super().__init__(epochs=1)
        self._due_epochs, self._initial_epoch, self._epoch_offset = epochs, initial_epoch, 0

    def start(self, progress: Any) -> None:
        """Number the epochs of this call from `initial_epoch`."""
        super().start(progress)
        self._epoch_offset = progress.epoch - self._initial_epoch

    def due(self, progress: Any) -> bool:
        """Return whether an epoch that needs validation has just ended."""
        if not super().due(progress):
            return False
        epoch = progress.epoch - self._epoch_offset
        return epoch % self._due_epochs == 0 if isinstance(self._due_epochs, int) else epoch in self._due_epochs

    def state_dict(self) -> dict[str, Any]:
        """Return the state of `Every` and the offset of the call's epochs."""
        return {**super().state_dict(), "base": self._epoch_offset}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        super().load_state_dict(state)
        self._epoch_offset = state.get("base", 0)
