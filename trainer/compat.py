"""The verbs of `mindspore.Model` and `RecModel` under their own names, so that a script changes only its import."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from mindspore import nn

from . import checks
from .hooks import Every
from .hooks import train_network as cell_with_optimizer

if TYPE_CHECKING:
    from .hooks import History
    from .trainer import Trainer

Method = TypeVar("Method", bound=Callable[..., Any])


def train(
    trainer: Trainer,
    epoch: int,
    train_dataset: Any,
    callbacks: Any = None,
    dataset_sink_mode: bool = False,
    sink_size: int = -1,
    initial_epoch: int = 0,
) -> History:
    """Train from epoch `initial_epoch` up to `epoch`; the same as `fit` otherwise."""
    return trainer.fit(
        epoch,
        train_dataset,
        callbacks=callbacks,
        dataset_sink_mode=dataset_sink_mode,
        sink_size=sink_size,
        initial_epoch=initial_epoch,
    )


def evaluate(
    trainer: Trainer, valid_dataset: Any, callbacks: Any = None, dataset_sink_mode: bool = True
) -> dict[str, float]:
    """The same as `Trainer.evaluate`."""
    return trainer.evaluate(valid_dataset, callbacks, dataset_sink_mode)


def build(
    trainer: Trainer,
    train_dataset: Any = None,
    valid_dataset: Any = None,
    sink_size: int = -1,
    epoch: int = 1,
    sink_mode: bool = True,
) -> None:
    """Compile the training program ahead of time as `compile` does; evaluation is compiled when first used."""
    if train_dataset is not None:
        trainer.compile(train_dataset, dataset_sink_mode=sink_mode, sink_size=sink_size)


def train_network(trainer: Trainer) -> nn.Cell:
    """A cell that holds the parameters of network and optimizer, as `mindspore.save_checkpoint` takes one."""
    return cell_with_optimizer(trainer)


def predict_network(trainer: Trainer) -> nn.Cell:
    """The network."""
    return trainer.network


def also_as_model(fit: Method) -> Method:
    """Let `Trainer.fit` take the arguments of `mindspore.Model.fit` as well: the number of epochs comes first there."""

    @functools.wraps(fit)
    def fit_either(self: Trainer, *args: Any, **kwargs: Any) -> Any:
        if (isinstance(args[0], int) and len(args) + len(kwargs) > 1) if args else "epoch" in kwargs:
            initial_epoch, args, kwargs = _as_fit_takes_them(*args, **kwargs)
            if initial_epoch:
                self.state.progress.epoch = max(self.state.progress.epoch, initial_epoch)
        return fit(self, *args, **kwargs)

    return cast(Method, fit_either)


def _as_fit_takes_them(
    epoch: int,
    train_dataset: Any,
    valid_dataset: Any = None,
    valid_frequency: int = 1,
    callbacks: Any = None,
    dataset_sink_mode: bool = False,
    valid_dataset_sink_mode: bool = False,
    sink_size: int = -1,
    initial_epoch: int = 0,
    **others: Any,
) -> tuple[int, tuple[Any, ...], dict[str, Any]]:
    """Return `initial_epoch` and the arguments of `Trainer.fit` for those of `mindspore.Model.fit`.

    Raises:
        ConfigurationError: epochs that are none, or a list of epochs to validate after.
    """
    checks.whole("valid_frequency", valid_frequency, also=" (epochs between validations)")
    checks.whole("initial_epoch", initial_epoch, 0, most=max(epoch, 1) - 1)
    every = None if valid_frequency == 1 else Every(epochs=valid_frequency)
    options = {
        "valid_dataset": valid_dataset,
        "valid_every": every,
        "callbacks": callbacks,
        "dataset_sink_mode": dataset_sink_mode,
        "sink_size": sink_size,
    }
    return initial_epoch, (train_dataset, epoch - initial_epoch), {**options, **others}


def renamed(old: str, new: str) -> Callable[[Method], Method]:
    """Let a method take its argument `new` by the keyword `old` as well."""

    def decorate(method: Method) -> Method:
        @functools.wraps(method)
        def take_either(self: Any, *args: Any, **kwargs: Any) -> Any:
            if old in kwargs:
                kwargs[new] = kwargs.pop(old)
            return method(self, *args, **kwargs)

        return cast(Method, take_either)

    return decorate
