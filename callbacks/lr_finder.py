"""`LRFinder`: the learning rate range test."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trainer.checks import number, whole
from trainer.errors import ConfigurationError

from .callback import Callback, Trainer
from .watched import require_settable_rate

if TYPE_CHECKING:
    import numpy as np
    from mindspore import Parameter


SMOOTHING = 0.9
DIVERGENCE_RATIO = 4.0
IGNORED_POINTS = 3  # points ignored at each end of the curve


class LRFinder(Callback):
    """Suggests a learning rate by training with an increasing rate.

    The rate increases exponentially (Smith 2017, section 3.3). The run ends after `steps` calls, or when the smoothed
    loss reaches four times its minimum. Then weights and optimizer state are restored. The trainer's counters are not
    restored, so create a new Trainer for the actual training. A call that trains several steps counts only once, so use
    `fit(..., sink_size=1)`.

    Args:
        min_lr, max_lr: first and last learning rate.
        steps: number of calls from `min_lr` to `max_lr`.

    Attributes:
        rates, losses: learning rate and smoothed loss of each call.
        suggestion: the rate at which the smoothed loss falls fastest as a function of the logarithm of the rate; None
            before the end of the run, or if the loss never falls.

    Raises:
        ConfigurationError: an argument is invalid; at `setup`, the optimizer's learning rate cannot be set, or the
            network has sparse tables.
    """

    def __init__(self, min_lr: float = 1e-7, max_lr: float = 1.0, steps: int = 100) -> None:
        self.min_lr = number("LRFinder(min_lr=...)", min_lr, above=0)
        self.max_lr = number("LRFinder(max_lr=...)", max_lr, above=self.min_lr)
        self.steps = whole("LRFinder(steps=...)", steps, 10)
        self.rates: list[float] = []
        self.losses: list[float] = []
        self.suggestion: float | None = None
        self._initial: list[tuple[Parameter, np.ndarray]] = []

    def setup(self, trainer: Trainer) -> None:
        if trainer.tables is not None and trainer.tables.tables.tables:  # dense tables are parameters
            raise ConfigurationError(
                "LRFinder cannot restore rows of sparse tables; run it with dense tables (mode='dense')"
            )
        require_settable_rate("LRFinder", trainer)

    def on_train_begin(self, trainer: Trainer) -> None:
        from mindspore import nn

        cells = [trainer.network, trainer.optimizer]
        parameters = {id(p): p for cell in cells if cell is not None for p in nn.Cell.get_parameters(cell)}
        self._initial = [(p, p.asnumpy().copy()) for p in parameters.values()]
        self._initial_rates = trainer.learning_rates
        self.rates, self.losses, self.suggestion = [], [], None
        self._mean = 0.0
        trainer.learning_rate = self.min_lr

    def on_train_step_end(self, trainer: Trainer) -> None:
        done, rate = len(self.rates) + 1, trainer.learning_rate
        assert rate is not None  # `setup` has checked it
        self.rates.append(rate)
        self._mean = SMOOTHING * self._mean + (1 - SMOOTHING) * trainer.state.outputs.loss
        self.losses.append(self._mean / (1 - SMOOTHING**done))
        if done >= self.steps:
            trainer.stop("LRFinder has tried all learning rates", kind="callback")
            return
        loss, limit = self.losses[-1], DIVERGENCE_RATIO * min(self.losses)
        if not math.isfinite(loss) or (done > IGNORED_POINTS and loss > limit):
            trainer.stop(f"LRFinder: the loss diverges at a learning rate of {rate:.3g}", kind="callback")
        else:
            trainer.learning_rate = self.min_lr * (self.max_lr / self.min_lr) ** (done / (self.steps - 1))

    def on_train_end(self, trainer: Trainer) -> None:
        import numpy as np

        used = slice(IGNORED_POINTS, -IGNORED_POINTS)
        if len(self.losses) > 2 * IGNORED_POINTS + 1:
            slopes = np.gradient(np.array(self.losses), np.log(self.rates))[used]
            best = int(np.nanargmin(slopes)) if np.isfinite(slopes).any() else 0
            self.suggestion = self.rates[IGNORED_POINTS + best] if slopes[best] < 0 else None
        self._restore(trainer)

    def teardown(self, trainer: Trainer) -> None:
        """Restore weights and optimizer state after an exception too."""
        self._restore(trainer)

    def _restore(self, trainer: Trainer) -> None:
        from mindspore import Tensor, ops

        initial, self._initial = self._initial, []
        for parameter, value in initial:
            ops.assign(parameter, Tensor(value, parameter.dtype))
        if initial:
            trainer.learning_rates = self._initial_rates
