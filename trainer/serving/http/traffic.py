"""A server's Prometheus metrics, in their own registry."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from ..served_model import ServedModel

PREFIX = "trainer_serve"
LOG_OUTCOMES = ("written", "left_out", "queue_full", "refused", "unusable", "recommend", "stopped")
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16384)


class Traffic:
    """Counters and gauges of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            f"{PREFIX}_requests", "Requests by operation and status", ["operation", "status"], registry=self.registry
        )
        self._rows = Counter(f"{PREFIX}_rows", "Rows by outcome", ["outcome"], registry=self.registry)
        self._seconds = Histogram(
            f"{PREFIX}_request_seconds",
            "From a request's body to its answer",
            ["operation"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._batch_rows = Histogram(f"{PREFIX}_batch_rows", "Rows of a batch", buckets=_ROWS, registry=self.registry)
        self._batch_seconds = Histogram(
            f"{PREFIX}_batch_seconds", "Seconds of a batch", buckets=_SECONDS, registry=self.registry
        )
        self._log_rows: dict[str, Counter] = {}
        self._child = functools.cache(lambda metric, *labels: metric.labels(*labels))

    def add_model_gauges(self, model: ServedModel, queued: Callable[[], int]) -> None:
        """Add gauges for a model's version and the number of queued rows."""

        def gauge(name: str, text: str, value: Callable[[], float]) -> None:
            Gauge(f"{PREFIX}_{name}", text, registry=self.registry).set_function(value)

        gauge("queued_rows", "Rows that wait", queued)
        gauge("model_version", "Version being served", lambda: model.version)
        gauge("model_step", "Optimizer steps that it was trained for", lambda: model.step)
        gauge("model_age_seconds", "Seconds since the version was published", lambda: time.time() - model.current.time)
        gauge("model_behind", "1 while a newer version cannot be served", lambda: float(model.problem is not None))
        gauge(
            "model_delay_seconds",
            "From its newest event, or its publication, until it was served",
            lambda: model.delays[-1] if model.delays else 0.0,
        )

    def add_log_metrics(self, log: str, queued: Callable[[], int], is_failing: Callable[[], bool]) -> None:
        """Add the metrics of a log, which is "log" or "recommended_log"."""
        text = "Rows that wait to be logged"
        Gauge(f"{PREFIX}_{log}_queued_rows", text, registry=self.registry).set_function(queued)
        text = "1 while the log cannot be written"
        Gauge(f"{PREFIX}_{log}_failing", text, registry=self.registry).set_function(is_failing)
        text = "Answered rows: written to the log, or why not"
        self._log_rows[log] = Counter(f"{PREFIX}_{log}_rows", text, ["outcome"], registry=self.registry)
        for outcome in LOG_OUTCOMES:
            self._log_rows[log].labels(outcome)

    def count_logged(self, log: str, outcome: str, rows: int) -> None:
        """Count rows of a log by outcome, one of `LOG_OUTCOMES`."""
        self._log_rows[log].labels(outcome).inc(rows)

    def count_request(self, operation: str, status: int, seconds: float) -> None:
        """Count a request and its duration."""
        self._child(self._requests, operation, str(status)).inc()
        self._child(self._seconds, operation).observe(seconds)

    def count_rows(self, answered: int, bad: int) -> None:
        """Count answered and bad rows."""
        self._child(self._rows, "answered").inc(answered)
        if bad:
            self._child(self._rows, "bad").inc(bad)

    def record_batch(self, rows: int, seconds: float) -> None:
        """Record the size and duration of a batch."""
        self._batch_rows.observe(rows)
        self._batch_seconds.observe(seconds)

    def text(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        return generate_latest(self.registry)
