"""`EMA` and `SWA`: averaged weights, for evaluation and publishing."""

from __future__ import annotations

import contextlib

from trainer.checks import number, whole

from .callback import Callback, Trainer


class WeightAveraging(Callback):
    """Base of `EMA` and `SWA`.

    Validation and publishing use the averages; training continues with the weights.

    The averages are updated inside the training program after every optimizer update, even if a call trains many steps.
    They are float32 values for each weight and each moving statistic of normalisation; rows of sparse tables are not
    averaged. Snapshots include them, so a resumed run continues with the same averages. After training, use
    ``with trainer.averaged_weights():`` to `evaluate`, `predict` or export with them. In another process, call
    ``trainer.load(path, weights_only=True, averaged=True)``; commands such as `trainer evaluate` do this.

    Args:
        replace_at_end: whether to leave the averages in the network at the end of the run, after its last snapshot. A
            further training of the same trainer then starts from the averages.

    Raises:
        ConfigurationError: an argument is invalid; before training, the network is a whole training step, layers are
            frozen by boost, or another callback also averages.
    """

    order = -1000  # runs first, so that the weights are restored before another callback saves them

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

    # If a validation is interrupted or fails, `on_eval_end` is not called, so the next hook restores the weights.
    on_train_step_begin = on_train_epoch_end = on_checkpoint = on_exception = on_eval_end

    def on_train_end(self, trainer: Trainer) -> None:
        self._applied.close()
        self._ended = True

    def teardown(self, trainer: Trainer) -> None:
        """Restore the weights, or with `replace_at_end` leave the averages."""
        self._applied.close()
        if self.replace_at_end and self._ended:
            trainer.use_averaged_weights()


class EMA(WeightAveraging):
    """Keeps an exponential moving average of the weights.

    After each optimizer update, avg = d * avg + (1 - d) * w, where d = min(decay, n / (9 + n)) after n updates. The
    smaller d at the start keeps the initial weights from dominating the average of a short run.

    Args:
        decay: decay factor, above 0 and below 1. The average covers about the last 1 / (1 - decay) steps.
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

    Moving statistics of normalisation are averaged with the weights. This works best with a learning rate that stays
    high: constant, or cyclical with one cycle per `every` steps.

    Args:
        start: optimizer updates before the first weights are averaged; until then the average equals the weights.
        every: number of optimizer updates between the weights that are averaged, for example the updates per epoch.
        replace_at_end: see `WeightAveraging`.

    Raises:
        ConfigurationError: see `WeightAveraging`.
    """

    def __init__(self, start: int, every: int = 1, replace_at_end: bool = False) -> None:
        super().__init__(replace_at_end)
        self.start = whole("SWA(start=...)", start, 0)
        self.every = whole("SWA(every=...)", every)
        self.weight_average = {"start": self.start, "every": self.every}
