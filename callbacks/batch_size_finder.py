"""`BatchSizeFinder`: suggests the smallest batch that trains as fast as any."""

from __future__ import annotations

import logging
from typing import Any

from trainer.checks import choice, number, require, whole
from trainer.errors import ConfigurationError, GraphError

from .callback import Callback, Trainer
from .output import say
from .summary import table_html

logger = logging.getLogger(__name__)

FREE_SHARE = 0.8  # of the memory that is free when the search begins
FINEST = 8  # a binary search ends when the interval is this part of its lower end


class BatchSizeFinder(Callback):
    """Trains a few calls with batches of growing size and suggests one.

    It begins with the `batch_size` of `fit` and doubles it until samples per second stop rising, memory reaches its
    limit, or the data have no more rows. The suggestion is the smallest size that trains as many samples per second as
    the fastest, up to `min_gain`. Then weights, optimizer, loss scale, random generators and position are put back as
    they were and the run ends; train with ``fit(batch_size=finder.suggestion)``. A larger batch means fewer updates per
    epoch: the learning rate may have to grow with it.

    On a CPU, memory that runs out ends the process, so a size whose memory, by those before it, would exceed the limit
    is not tried. Masks of MindSpore's own `nn.Dropout` are not put back.

    Args:
        most: largest size that is tried.
        mode: "power" tries doublings only; "binary" then halves the interval between the last size that fitted and the
            first that did not.
        calls: calls of the program that are timed for each size, after three that are not.
        memory_limit_mb: resident memory of the process, 10**6 bytes; None: what it has plus 80 % of what is free.
        min_gain: least relative gain in samples per second that counts.
        patience: doublings without such a gain after which the search ends.
        verbose: whether a line per size is printed.

    Attributes:
        records: one dict per size: "batch_size", "samples_per_second", "memory_mb" (resident after it).
        suggestion: rows of a batch; None before the end.
        reason: why the search ended.

    Raises:
        ConfigurationError: an argument is invalid; at `setup`, psutil is not installed; when training begins, the data
            come in batches of their own, the network has sparse tables, or there are several processes.
    """

    def __init__(
        self,
        most: int = 1 << 20,
        mode: str = "power",
        calls: int = 10,
        memory_limit_mb: float | None = None,
        min_gain: float = 0.05,
        patience: int = 2,
        verbose: bool = True,
    ) -> None:
        self.most = whole("BatchSizeFinder(most=...)", most)
        self.mode = choice("BatchSizeFinder(mode=...)", mode, ("power", "binary"))
        self.calls = whole("BatchSizeFinder(calls=...)", calls)
        self.memory_limit_mb = number("BatchSizeFinder(memory_limit_mb=...)", memory_limit_mb, above=0, optional=True)
        self.min_gain = number("BatchSizeFinder(min_gain=...)", min_gain, least=0.0)
        self.patience = whole("BatchSizeFinder(patience=...)", patience)
        self.verbose = bool(verbose)
        self.records: list[dict[str, float]] = []
        self.suggestion: int | None = None
        self.reason = ""

    def setup(self, trainer: Trainer) -> None:
        self._process = require("psutil", "BatchSizeFinder needs psutil", "monitor").Process()

    def on_train_begin(self, trainer: Trainer) -> None:
        import psutil

        trials = None if trainer.run is None else trainer.run.batch_trials
        if trials is None:
            raise ConfigurationError("BatchSizeFinder goes with fit; a stream's batches are not searched")
        self.records, self.suggestion, self.reason = [], None, ""
        free = psutil.virtual_memory().available / 1e6
        self._limit = self.memory_limit_mb or self._memory() + FREE_SHARE * free
        with trials.restored():
            self._search(trainer, trials, trials.batch_size)
        if trainer.state.stop_reason is not None:
            return
        if not self.records:
            raise ConfigurationError(f"BatchSizeFinder: no size could be tried: {self.reason}")
        fastest = max(record["samples_per_second"] for record in self.records)
        self.suggestion = int(
            min(r["batch_size"] for r in self.records if r["samples_per_second"] * (1 + self.min_gain) >= fastest)
        )
        text = f"BatchSizeFinder suggests batch_size={self.suggestion}; the search ended because {self.reason}"
        if self.verbose:
            say(text)
        trainer.stop(text, kind="callback")

    def _memory(self) -> float:
        return self._process.memory_info().rss / 1e6

    def _search(self, trainer: Trainer, trials: Any, size: int) -> None:
        best, stalled, fits = 0.0, 0, 0
        while not self._is_stopped(trainer):
            if size > self.most:
                self.reason = f"the next size, {size:,}, is above {self.most:,}"
                return
            rate = self._try(trials, size)
            if rate is None:
                break
            stalled = 0 if rate > best * (1 + self.min_gain) else stalled + 1
            best, fits = max(best, rate), size
            if stalled >= self.patience:
                self.reason = "samples per second rise no more"
                return
            size *= 2
        fails = size
        while self.mode == "binary" and fits and fails - fits > max(1, fits // FINEST):
            if self._is_stopped(trainer):
                return
            middle = (fits + fails) // 2
            fits, fails = (fits, middle) if self._try(trials, middle) is None else (middle, fails)

    def _is_stopped(self, trainer: Trainer) -> bool:
        reason = trainer.state.stop_reason
        if reason is not None:
            self.reason = f"the run is to end: {reason}"
        return reason is not None

    def _try(self, trials: Any, size: int) -> float | None:
        """Return samples per second at `size` rows a batch; None and why if it fails."""
        expected = self._expected(size)
        if expected > self._limit:
            self.reason = f"{size:,} rows would need {expected:,.0f} MB of memory, the limit is {self._limit:,.0f} MB"
            return None
        try:
            rate = trials.measure(size, self.calls)
        except (MemoryError, GraphError) as error:
            if not self.records or (isinstance(error, GraphError) and "memory" not in str(error).lower()):
                raise
            self.reason = f"{size:,} rows do not fit into memory"
            return None
        if rate is None:
            self.reason = f"the data have fewer than {size:,} rows"
            return None
        memory = self._memory()
        if memory > self._limit:
            self.reason = f"{size:,} rows need {memory:,.0f} MB of memory, the limit is {self._limit:,.0f} MB"
            return None
        self.records.append({"batch_size": size, "samples_per_second": rate, "memory_mb": memory})
        if self.verbose:
            say(f"batch_size {size:>9,}: {rate:>12,.0f} samples/s, {memory:,.0f} MB")
        return float(rate)

    def _expected(self, size: int) -> float:
        """Extrapolate the memory of `size` rows, in MB, from the two largest sizes."""
        known = sorted((record["batch_size"], record["memory_mb"]) for record in self.records)[-2:]
        if len(known) < 2:
            return 0.0
        (rows, memory), (more_rows, more_memory) = known
        growth = max(0.0, more_memory - memory) / (more_rows - rows)
        return more_memory + growth * max(0, size - more_rows)

    def _repr_html_(self) -> str:
        rows = [
            [f"{r['batch_size']:,}", f"{r['samples_per_second']:,.0f}", f"{r['memory_mb']:,.0f}"] for r in self.records
        ]
        table = table_html(("batch size", "samples/s", "memory, MB"), rows)
        return f"<div>{table}<p>suggested batch size: {self.suggestion or 'none yet'} ({self.reason})</p></div>"
