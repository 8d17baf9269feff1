"""`adapt`: lets any `mindspore.train.Callback` work in this trainer unchanged.

The adapter calls a callback as MindSpore's own loop does:

- A callback is entered as a context manager before its first hook and left at teardown.
- Hooks are called by their newer names (`on_train_begin`, ...); MindSpore's base class forwards them to the older names
  (`begin`, `step_end`, ...). Epoch hooks always enclose step hooks. In a stream, or after a resume in the middle of an
  epoch, the trainer does not begin an epoch; the adapter then begins one at the first step and ends it with the run.
- A program call of K steps triggers one `on_train_step_begin` and one `on_train_step_end`, as with MindSpore's data
  sink. `on_train_step_end` receives the results of the last step.
- During the validation of a `fit`, only `on_eval_*` hooks that the callback's class defines are called, because the
  older names are training hooks. As in MindSpore, its own callbacks are skipped here, except `TimeMonitor`.
- Epochs and steps are counted from the start of the call, as in `mindspore.Model`, and continue after a resume.
- `request_stop()` ends the run after the current step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor, nn
from mindspore import dtype as mstype
from mindspore.train import BackupAndRestore, ModelCheckpoint, OnRequestExit, RunContext, TimeMonitor
from mindspore.train import Callback as MindSporeCallback
from mindspore.train.callback import __all__ as _mindspore_callbacks

from trainer.errors import ConfigurationError

from .callback import Callback, Trainer

logger = logging.getLogger(__name__)

# Batches per epoch for data without a size. MindSpore's callbacks divide by this number, so it cannot be 0 or None.
UNKNOWN_SIZE = 2**31 - 1

# Callback parameters that are absent in a call of `evaluate`.
_TRAINING_PARAMS = ("cur_epoch_num", "epoch_num", "initial_step", "train_dataset", "train_dataset_element")


class CallbackParams(dict):
    """The dict of `RunContext.original_args()`; keys are also attributes."""

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "_factories", {})

    def set_lazy(self, key: str, compute: Callable[[], Any]) -> None:
        """Compute the value of `key` with `compute` when it is first read, and cache it."""
        self.pop(key, None)
        self._factories[key] = compute

    def __missing__(self, key: str) -> Any:
        if key not in self._factories:
            raise KeyError(key)
        self[key] = self._factories[key]()
        return self[key]

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or key in self._factories

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of `key`, or `default`."""
        try:
            return self[key]
        except KeyError:
            return default

    def __getattr__(self, key: str) -> Any:
        if key.startswith("_"):  # `copy` looks up such names before the instance has attributes
            raise AttributeError(key)
        try:
            return self[key]
        except KeyError:
            raise AttributeError(key) from None

    def __setattr__(self, key: str, value: Any) -> None:
        self[key] = value


class _GraphAccess:
    """Lets callbacks read the graph of the training program."""

    def get_func_graph_proto(self) -> Any:
        """Return the graph of the training program; None outside graph mode."""
        graph_mode = mindspore.get_context("mode") == mindspore.GRAPH_MODE
        program = self.__dict__["_trainer"].builder.training_program if graph_mode else None
        return None if program is None else nn.Cell.get_func_graph_proto(program)


class TrainNetwork(_GraphAccess, nn.TrainOneStepCell):
    """A training cell like that of `mindspore.Model`; callbacks may save or export it."""

    def __init__(self, trainer: Trainer) -> None:
        network, loss_fn = trainer.network, trainer.loss_fn
        super().__init__(network if loss_fn is None else nn.WithLossCell(network, loss_fn), trainer.optimizer)
        self.__dict__["_trainer"] = trainer


class _UserTrainNetwork(_GraphAccess, nn.Cell):
    """Wraps the user's training cell and forwards to its attributes."""

    def __init__(self, trainer: Trainer) -> None:
        super().__init__(auto_prefix=False)
        self.training_cell = trainer.network
        self.__dict__["_trainer"] = trainer

    def construct(self, *inputs: Any) -> Any:
        """Train one step."""
        return self.training_cell(*inputs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("training_cell"), name)


class _LossScaleManager:
    """Gives the loss scale the interface of MindSpore's loss scale managers."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def get_loss_scale(self) -> float | None:
        """Return the current loss scale."""
        return self._trainer.loss_scale


def monitored_name(monitor: str) -> str:
    """Return this trainer's name for a metric that a MindSpore callback monitors."""
    return {"loss": "loss", "eval_loss": "val_loss"}.get(monitor, f"val_{monitor}")


class AdaptedCallback(Callback):
    """Calls a `mindspore.train.Callback` as `mindspore.train.Model` does."""

    def __init__(self, callback: MindSporeCallback) -> None:
        self.callback = callback
        monitor = getattr(callback, "monitor", None)
        self.monitor = monitored_name(monitor) if isinstance(monitor, str) else None
        self._params = CallbackParams()
        self.run_context = RunContext(self._params)
        self._entered: MindSporeCallback | None = None
        # All adapted callbacks of a run share the parameters of the first one.
        self._first, self._is_last = self, True
        self._in_epoch = False
        if not (self._defines("on_train_step_begin") or self._defines("on_train_step_end")):
            # Without step hooks, a step only has to begin the epoch.
            self.on_train_step_begin = self._first_step_begin  # type: ignore[method-assign]
            self.on_train_step_end = Callback.on_train_step_end.__get__(self)  # type: ignore[method-assign]

    def _defines(self, hook: str, *, alias: bool = True) -> bool:
        old_name = hook.removeprefix("on_train_").removeprefix("on_eval_")
        names = (hook, old_name) if alias else (hook,)
        kind = type(self.callback)
        return any(
            name in vars(self.callback) or getattr(kind, name) is not getattr(MindSporeCallback, name) for name in names
        )

    def _enter(self) -> None:
        if self._entered is None:
            target = self.callback.__enter__()
            self._entered = target if isinstance(target, MindSporeCallback) else self.callback

    def teardown(self, trainer: Trainer) -> None:
        """Leave the callback's context with the exception that ended the run, if any."""
        if self._entered is not None:
            self._entered = None
            error = trainer.state.exception
            kind = None if error is None else type(error)
            self.callback.__exit__(kind, error, getattr(error, "__traceback__", None))

    def _call(self, hook: str, trainer: Trainer) -> None:
        getattr(self._entered, hook)(self.run_context)
        if self.run_context.get_stop_requested() and trainer.state.stop_reason is None:
            trainer.stop(f"{type(self.callback).__name__} requested a stop in {hook}", kind="callback")

    def _epoch_and_step(self, trainer: Trainer) -> tuple[int, int]:
        """Return the epoch number (from 1) and the steps done, counted within the call."""
        progress, base = trainer.state.progress, trainer.base
        return progress.epoch - base["epoch"] + trainer.state.first_epoch + 1, progress.global_step - base["step"]

    def _share_params(self, trainer: Trainer) -> None:
        """Fill the parameters in the first adapted callback; the others share them."""
        peers = [callback for callback in trainer.callbacks if isinstance(callback, AdaptedCallback)] or [self]
        self._first, self._is_last = peers[0], peers[-1] is self
        if self._first is self:
            self._fill_params(trainer)
        self.run_context = self._first.run_context
        self._params = self.run_context.original_args()

    def _fill_params(self, trainer: Trainer) -> None:
        params, state = self._params, trainer.state
        params.clear()
        # A new context, because the old one would still request a stop.
        self.run_context = RunContext(params)
        limit = None if state.limits is None else state.limits.epochs
        params.update(
            mode="train",
            network=trainer.network,
            optimizer=trainer.optimizer,
            loss_fn=trainer.loss_fn,
            epoch_num=1 if limit is None else limit - trainer.base["epoch"],
            cur_step_num=self._epoch_and_step(trainer)[1],
            batch_num=state.steps_per_epoch or UNKNOWN_SIZE,
            dataset_sink_mode=False,
            train_dataset=trainer.train_dataset,
            parallel_mode="stand_alone" if trainer.group.size == 1 else "data_parallel",
            device_number=trainer.group.size,
            list_callback=[c.callback for c in trainer.callbacks if isinstance(c, AdaptedCallback)],
            last_save_ckpt_step=None,
            latest_ckpt_file=None,
            train_dataset_element=None,
            initial_step=None,
        )
        # The key has MindSpore's spelling.
        params["loss_scale_mananger"] = None if trainer.loss_scale is None else _LossScaleManager(trainer)
        is_user_cell = trainer.optimizer is None
        params.set_lazy("train_network", lambda: _UserTrainNetwork(trainer) if is_user_cell else trainer.train_network)
        params.set_lazy("eval_network", trainer.builder.inference.evaluate_cell)

    def _set_outputs(self, trainer: Trainer) -> None:
        outputs = trainer.state.outputs
        self._params["cur_step_num"] = self._epoch_and_step(trainer)[1]
        self._params.set_lazy("net_outputs", lambda: _net_outputs(trainer, outputs))
        self._params.set_lazy("train_dataset_element", lambda: _last_batch(outputs.chunk))

    def _check_tables(self, trainer: Trainer) -> None:
        """Raise or warn if a callback leaves out the rows of sparse tables."""
        sparse = {} if trainer.tables is None else trainer.tables.tables.tables
        kind, names = type(self.callback).__name__, ", ".join(sparse)
        if sparse and getattr(self.callback, "restore_best_weights", False):
            raise ConfigurationError(
                f"{kind}(restore_best_weights=True) would not restore the rows of sparse tables ({names}), only the "
                "parameters; use callbacks.ModelCheckpoint(folder, monitor=..., restore_best=True), which restores both"
            )
        if sparse and isinstance(self.callback, ModelCheckpoint | BackupAndRestore | OnRequestExit):
            logger.warning(
                "%s saves the parameters, not the rows of sparse tables (%s); callbacks.ModelCheckpoint saves both",
                kind,
                names,
            )

    def on_train_begin(self, trainer: Trainer) -> None:
        self._check_tables(trainer)
        self._share_params(trainer)
        self._in_epoch = False
        self._enter()
        self._call("on_train_begin", trainer)

    def on_train_epoch_begin(self, trainer: Trainer) -> None:
        self._params["cur_epoch_num"] = self._epoch_and_step(trainer)[0]
        if trainer.state.steps_per_epoch is not None:  # known after the first epoch, even for data without a size
            self._params["batch_num"] = trainer.state.steps_per_epoch
        self._in_epoch = True
        self._first_step = trainer.state.progress.global_step - trainer.state.progress.step_in_epoch
        self._call("on_train_epoch_begin", trainer)

    def _first_step_begin(self, trainer: Trainer) -> None:
        if not self._in_epoch:
            self.on_train_epoch_begin(trainer)

    def on_train_step_begin(self, trainer: Trainer) -> None:
        self._first_step_begin(trainer)
        self._params["cur_step_num"] = self._epoch_and_step(trainer)[1] + 1
        chunk = trainer.state.chunk
        self._params.set_lazy("train_dataset_element", lambda: _last_batch(chunk))
        self._call("on_train_step_begin", trainer)

    def on_train_step_end(self, trainer: Trainer) -> None:
        self._set_outputs(trainer)
        self._call("on_train_step_end", trainer)

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        """End an epoch; its validation results are removed after this hook."""
        self._in_epoch = False
        if trainer.state.outputs is not None:
            self._set_outputs(trainer)
        steps = trainer.state.progress.global_step - self._first_step
        self._params["batch_num"] = trainer.state.steps_per_epoch or max(1, steps)
        self._call("on_train_epoch_end", trainer)
        if self._is_last:
            self._params.pop("metrics", None)
            self._params.pop("eval_results", None)

    def on_train_end(self, trainer: Trainer) -> None:
        """End the open epoch, if any, and the run."""
        if self._in_epoch:
            self.on_train_epoch_end(trainer)
        self._call("on_train_end", trainer)

    def _call_eval(self, hook: str, trainer: Trainer) -> None:
        is_overridden = self._defines(hook, alias=False) and type(self.callback).__name__ not in _mindspore_callbacks
        if trainer.state.phase == "evaluate" or isinstance(self.callback, TimeMonitor) or is_overridden:
            self._call(hook, trainer)

    def on_eval_begin(self, trainer: Trainer) -> None:
        if trainer.state.phase == "evaluate":
            self._share_params(trainer)
            for key in _TRAINING_PARAMS:
                self._params.pop(key, None)
            self._enter()
        keys = ("mode", "cur_step_num", "batch_num", "net_outputs")
        if self._first is self:
            self._train_values = {key: dict.get(self._params, key) for key in keys if key in dict.keys(self._params)}
        evaluation = trainer.state.evaluation
        self._params.update(
            mode="eval",
            cur_step_num=0,
            batch_num=evaluation.num_batches or UNKNOWN_SIZE,
            valid_dataset=evaluation.dataset,
        )
        self._call_eval("on_eval_begin", trainer)
        self._call_eval("on_eval_epoch_begin", trainer)

    def on_eval_step_begin(self, trainer: Trainer) -> None:
        self._params["cur_step_num"] += self._first is self
        chunk = trainer.state.evaluation.chunk
        self._params.set_lazy("eval_dataset_element", lambda: _last_batch(chunk))
        self._call_eval("on_eval_step_begin", trainer)

    def on_eval_step_end(self, trainer: Trainer) -> None:
        self._params["net_outputs"] = trainer.state.evaluation.outputs
        self._call_eval("on_eval_step_end", trainer)

    def on_eval_end(self, trainer: Trainer) -> None:
        if self._params["batch_num"] == UNKNOWN_SIZE:
            self._params["batch_num"] = max(1, self._params["cur_step_num"])
        self._call_eval("on_eval_epoch_end", trainer)
        prefix = "" if trainer.state.phase == "evaluate" else "val_"
        metrics = {
            name: _reported_value(value, trainer.state.metrics.get(prefix + name))
            for name, value in trainer.state.evaluation.values.items()
        }
        self._params["metrics"] = metrics
        if prefix:
            loss = trainer.state.metrics.get("val_loss")
            self._params["eval_results"] = {**metrics, **({} if loss is None else {"eval_loss": loss})}
        self._call_eval("on_eval_end", trainer)
        if self._is_last:
            self._params.pop("net_outputs", None)
            self._params.update(self._first._train_values)

    def state_dict(self) -> dict[str, Any]:
        """Return the callback's `state_dict()`; MindSpore's own callbacks have none."""
        save = getattr(self.callback, "state_dict", None)
        return save() if callable(save) else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Pass the state to the callback's own `load_state_dict` if it has one."""
        load = getattr(self.callback, "load_state_dict", None)
        if callable(load):
            load(state)


def _reported_value(value: Any, number: float | None) -> Any:
    """Return `number`, or a metric's own `value` if it is an array, mapping or tuple."""
    return value if number is None or np.ndim(value) or isinstance(value, Mapping | tuple) else number


def _net_outputs(trainer: Trainer, outputs: Any) -> Any:
    """Return the outputs that the training cell of `mindspore.Model` would return."""
    if outputs.returned is not None and trainer.optimizer is None:
        return outputs.returned
    loss = Tensor(outputs.loss, mstype.float32)
    if outputs.returned is not None and outputs.returned.size > 1:
        return loss, outputs.returned
    if not trainer.reports_overflow:
        return loss
    overflow = trainer.read_counters()["consecutive"] > 0
    return loss, Tensor(overflow, mstype.bool_), Tensor(trainer.loss_scale, mstype.float32)


def _last_batch(chunk: Any) -> tuple[Tensor, ...]:
    return tuple(Tensor(array[chunk.num_batches - 1] if chunk.stacked else array) for array in chunk.arrays)


def adapt(callback: Any) -> Callback:
    """Return a `Callback` unchanged, or an adapter of a `mindspore.train.Callback`.

    The adapter's class has the name of the callback's class, so that snapshots and error reports show this name.

    Raises:
        ConfigurationError: `callback` is neither of them.
    """
    if isinstance(callback, Callback):
        return callback
    if isinstance(callback, MindSporeCallback):
        return type(type(callback).__name__, (AdaptedCallback,), {"__doc__": AdaptedCallback.__doc__})(callback)
    hint = "; give an instance, not the class" if isinstance(callback, type) else ""
    raise ConfigurationError(
        f"a callback is an instance of callbacks.Callback or mindspore.train.Callback; received {callback!r}{hint}"
    )
