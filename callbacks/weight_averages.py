"""`EMA` and `SWA`: averaged weights, for evaluation and publishing."""

from __future__ import annotations

import contextlib

from trainer.checks import number, whole

from .callback import Callback, Trainer


class WeightAveraging(Callback):
    """Base of `EMA` and `SWA`.

    Validation and publishing use the averages, training continues with the weights.

    The averages are updated inside the training program, after every optimizer update, even if a call trains many
    steps. They are float32, one value for each weight and each moving statistic of normalisation; rows of sparse tables
    are not averaged. Snapshots hold them, so that a resumed run has the same ones. After training,
    ``with trainer.averaged_weights():`` puts them in place for `evaluate`, `predict` or an export. In another process
    call ``trainer.load(path, weights_only=True, averaged=True)``; commands such as `trainer evaluate` do so.

    Args:
        replace_at_end: leave the averages in the network when the run has ended, after its last snapshot. A training
            that continues from there starts with them.

    Raises:
        ConfigurationError: an argument is invalid; before training, the network is a whole training step, layers are
            frozen by boost, or another callback also averages.
    """

    order = -1000  # restores the weights before another callback saves them

    def __init__(self, replace_at_end: bool = False) -> None:
        self.replace_at_end = bool(replace_at_end)
        self._applied = contextlib.ExitStack()
        self._ended = False

    def setup(self, trainer: Trainer) -> None:
        self._ended = False

    def on_eval_begin(self, trainer: Trainer) -> None:
        if trainer.state.phase in ("fit", "online"):
            self._applied.enter_context(trainer.averaged_weights())

    def on_eval_end(self, trainer: Trainer) -> None:
        self._applied.close()

    # A validation that was interrupted has no `on_eval_end`.
    on_train_step_begin = on_checkpoint = on_eval_end

    def on_train_end(self, trainer: Trainer) -> None:
        self._applied.close()
        self._ended = True

    def teardown(self, trainer: Trainer) -> None:
        """Put the weights back; with `replace_at_end` the averages instead."""
        self._applied.close()
        if self.replace_at_end and self._ended:
            trainer.use_averaged_weights()


class EMA(WeightAveraging):
    """Keeps an exponential moving average of the weights.

    After every optimizer update, avg = d avg + (1 - d) w. After n updates d is min(decay, n / (9 + n)), so that in a
    short run the initial weights do not dominate the average.

    Args:
        decay: above 0 and below 1. An average looks back over about 1 / (1 - decay) steps.
        start: optimizer updates before averaging begins; until then the average equals the weights.
        replace_at_end: see `WeightAveraging`.

    Raises:
        ConfigurationError: see `WeightAveraging`.
    """

    def __init__(self, decay: float = 0.999, start: int = 0, replace_at_end: bool = False) -> None:
        super().__init__(replace_at_end)
        self.decay = number("EMA(decay=...)", decay, above=0, below=1)
        self.start = whole("EMA(start=...)", start, 0)
        self.weight_average = {"decay": self.decay, "start": self.start}


class SWA(WeightAveraging):
    """Keeps the mean of the weights at every n-th step (Izmailov et al. 2018).

    Moving statistics of normalisation are averaged with the weights. It works best with a learning rate that stays
    high: constant, or cyclical with one cycle per `every` steps.

    Args:
        start: optimizer updates before the first weights are averaged; until then the average equals the weights.
        every: optimizer updates between weights that are averaged, for example the updates of an epoch.
        replace_at_end: see `WeightAveraging`.

    Raises:
        ConfigurationError: see `WeightAveraging`.
    """

    def __init__(self, start: int, every: int = 1, replace_at_end: bool = False) -> None:
        super().__init__(replace_at_end)
        self.start = whole("SWA(start=...)", start, 0)
        self.every = whole("SWA(every=...)", every)
        self.weight_average = {"start": self.start, "every": self.every}
