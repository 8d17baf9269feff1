"""`Limits` end a run; `Trial` shortens a `fit`."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .. import checks
from ..errors import ConfigurationError
from ..state import Progress

if TYPE_CHECKING:
    from ..data.source import Source


@dataclass
class Limits:
    """The limits of a run; None means unlimited. The first limit reached ends the run.

    Args:
        epochs: total number of epochs, including those before a resume; a resumed run thus ends at the same epoch as an
            uninterrupted one.
        steps: total number of optimizer steps (`Progress.global_step`).
        seconds: wall time of this call.
    """

    epochs: int | None = None
    steps: int | None = None
    seconds: float | None = None
    _started: float = field(default_factory=time.monotonic, repr=False)

    def start(self) -> None:
        """Start the clock of the `seconds` limit."""
        self._started = time.monotonic()

    def reached(self, progress: Progress) -> str | None:
        """Return the limit of epochs or steps that `progress` has reached, or None."""
        if self.epochs is not None and progress.epoch >= self.epochs:
            return f"epochs={self.epochs}"
        if self.steps is not None and progress.global_step >= self.steps:
            return f"steps={self.steps}"
        return None

    def out_of_time(self) -> str | None:
        """Return the limit in seconds if this process has reached it, or None."""
        is_over = self.seconds is not None and time.monotonic() - self._started >= self.seconds
        return f"seconds={self.seconds}" if is_over else None

    def steps_left(self, progress: Progress) -> int | None:
        """Return how many more optimizer steps are allowed, or None if unlimited."""
        return None if self.steps is None else max(0, self.steps - progress.global_step)


@dataclass(frozen=True)
class Trial:
    """The limits of a shortened `fit`; see `Trainer.fit`."""

    fast_dev_run: bool | int = False
    overfit_batches: int | float | None = None
    limit_train_batches: int | float | None = None
    limit_valid_batches: int | float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.fast_dev_run, bool):
            checks.whole("fast_dev_run", self.fast_dev_run, 0, also=", True or False")
        for name in ("overfit_batches", "limit_train_batches", "limit_valid_batches"):
            checks.batches(name, getattr(self, name), minimum=0 if name == "limit_valid_batches" else 1)
        if self.overfit_batches is not None and self.limit_train_batches is not None:
            raise ConfigurationError(
                "overfit_batches and limit_train_batches both say how many batches an epoch has; give one of them"
            )

    @property
    def steps(self) -> int | None:
        """Number of batches of a `fast_dev_run`, or None."""
        return int(self.fast_dev_run) or None

    def train_batches(self, source: Source) -> int | None:
        """Return the number of batches per epoch, or None for all of them."""
        return self._batch_limit("limit_train_batches" if self.overfit_batches is None else "overfit_batches", source)

    def valid_batches(self, source: Source) -> int | None:
        """Return the number of batches per validation set, or None for all of them."""
        return self._batch_limit("limit_valid_batches", source)

    def _batch_limit(self, name: str, source: Source) -> int | None:
        count = getattr(self, name)
        if count is not None and not checks.is_whole(count):
            if source.size is None:
                raise ConfigurationError(
                    f"{name}={count} is a share of the batches, but the number of batches is not known; give a "
                    "whole number"
                )
            share, count = count, int(count * source.size)  # rounded down, like Lightning
            if not count:
                raise ConfigurationError(
                    f"{name}={share} of {source.size} batches is less than one; give a larger share or a whole number"
                )
        return min(map(int, filter(None, (count, self.steps))), default=None)

    def callbacks(self, callbacks: Any) -> Any:
        """Return the callbacks to use; a `fast_dev_run` omits those that write files."""
        if callbacks is None:
            return None
        given = list(callbacks) if isinstance(callbacks, Iterable) else [callbacks]  # a generator is read only once
        return [callback for callback in given if self.steps is None or not _leaves_files(callback)]


def _leaves_files(callback: Any) -> bool:
    import mindspore.train

    of_mindspore = isinstance(callback, mindspore.train.ModelCheckpoint | mindspore.train.SummaryCollector)
    return of_mindspore or getattr(callback, "leaves_files", False)
