"""The loss of every step of a training, as a callback sees it: proof that contenders do the same work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def of_trainer(train: Callable[[Any], Any]) -> list[float]:
    """Return the losses of a training by `Trainer`; `train` takes the callback."""
    from callbacks import Callback

    found: list[float] = []

    class Losses(Callback):
        def on_train_step_end(self, trainer):
            found.extend(map(float, trainer.state.outputs.losses))

    train(Losses())
    return found


def of_model(train: Callable[[Any], Any]) -> list[float]:
    """Return the losses of a training by `mindspore.Model`; `train` takes the callback."""
    import mindspore as ms

    found: list[float] = []

    class Losses(ms.train.Callback):
        def on_train_step_end(self, run_context):
            found.append(float(run_context.original_args().net_outputs.asnumpy()))

    train(Losses())
    return found
