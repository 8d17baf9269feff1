"""Dynamic batching: one thread runs the model on all waiting requests together."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...errors import ConfigurationError, DataError
from ..published import Current
from ..served_graph import HeldVersion, ServedGraph
from ..served_model import ServedModel
from .request_rows import RequestRows, RowReader
from .service_call import RefusalError, ServeOptions
from .traffic import Traffic

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Scored:
    """The answer to one request."""

    count: int  # rows of the request
    good: np.ndarray  # numbers of the rows that were answered, int64 [g], ascending
    outputs: tuple[np.ndarray, ...]  # the network's outputs for these, [g, ...] each
    probability: np.ndarray | None  # in the unit of the label, [g, ...]; None if the loss does not define it
    bad: dict[int, str]  # row number -> why it was not answered
    current: Current  # the version that answered


@dataclass(eq=False)
class _Job:
    rows: RequestRows
    future: asyncio.Future
    arrived: float = field(default_factory=time.monotonic)


class Engine:
    """Runs a served model on a thread of its own, for batches of requests.

    A batch is what waits when the batch before is done, up to `batch_rows`; with `batch_delay` its first request waits
    that long for others. The requests of a batch that fails are retried separately. Callers use the event `loop`.
    """

    def __init__(
        self, model: ServedModel, options: ServeOptions, traffic: Traffic, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.model, self.queued = model, 0  # rows that wait
        self._options, self._traffic, self._loop = options, traffic, loop
        self._jobs: deque[_Job] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._reader_of = functools.lru_cache(maxsize=1)(RowReader)
        self.ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="graphs", daemon=True)
        self._thread.start()

    async def score(self, rows: RequestRows) -> Scored:
        """Return the answer to one request.

        Raises:
            RefusalError: 413 for too many rows, 429 when too many wait, 504 when it took too long, 422 for rows that
                are no rows of this model at all, 503 while the server stops.
        """
        options = self._options
        if rows.count > options.request_rows:
            raise RefusalError(413, f"a request takes up to {options.request_rows} rows; received {rows.count}")
        job = _Job(rows, self._loop.create_future())
        with self._wake:
            if self._closing:
                raise RefusalError(503, "the server is stopping", retry_after=1)
            if self.queued + rows.count > options.queue_rows:
                raise RefusalError(
                    429, f"{self.queued} rows wait; the queue takes up to {options.queue_rows}", retry_after=1
                )
            self.queued += rows.count
            self._jobs.append(job)
            self._wake.notify()
        try:
            return await asyncio.wait_for(job.future, options.timeout)
        except asyncio.TimeoutError:
            raise RefusalError(504, f"no answer within {options.timeout:g} s", retry_after=1) from None

    def reader(self) -> RowReader:
        """Return the reader of the rows that the model takes now."""
        return self._reader_of(self.model.graph)

    def close(self) -> None:
        """Answer waiting requests and end the thread."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    # -- the thread that runs graphs -----------------------------------------------------------------------------

    def _run(self) -> None:
        self._warm_up()
        while jobs := self._next_batch():
            began = time.monotonic()
            outcomes = self._outcomes(jobs)
            self._traffic.batch(sum(job.rows.count for job in jobs), time.monotonic() - began)
            try:
                self._loop.call_soon_threadsafe(_deliver, outcomes)
            except RuntimeError:  # the loop has been closed: no caller is left
                return

    def _warm_up(self) -> None:
        """Compile the programs before the first request needs them."""
        try:
            with self.model.held() as version:
                for size in version.graph.sizes:
                    version.run(_blank_rows(version.graph, size))
        except Exception as error:  # requests are answered with the reason
            logger.warning("the model could not be tried on blank rows: %s", error)
        self.ready.set()

    def _next_batch(self) -> list[_Job]:
        options, rows = self._options, 0
        jobs: list[_Job] = []
        with self._wake:
            self._wake.wait_for(lambda: self._jobs or self._closing)
            if not self._jobs:
                return []
            due = self._jobs[0].arrived + options.batch_delay
            while self.queued < options.batch_rows and not self._closing and (left := due - time.monotonic()) > 0:
                self._wake.wait(left)
            while self._jobs and (not jobs or rows + self._jobs[0].rows.count <= options.batch_rows):
                job = self._jobs.popleft()
                self.queued -= job.rows.count
                if not job.future.done():  # else it has timed out, or the client has left
                    jobs.append(job)
                    rows += job.rows.count
        return jobs or self._next_batch()

    def _outcomes(self, jobs: Sequence[_Job]) -> list[tuple[asyncio.Future, Scored | Exception]]:
        try:
            with self.model.held() as version:
                scored = self._score(version, [job.rows for job in jobs])
        except Exception as error:
            if len(jobs) > 1:
                return [outcome for job in jobs for outcome in self._outcomes([job])]
            return [(jobs[0].future, _refusal(error))]
        return [(job.future, one) for job, one in zip(jobs, scored, strict=True)]

    def _score(self, version: HeldVersion, requests: Sequence[RequestRows]) -> list[Scored]:
        reader = self._reader_of(version.graph)
        decoded = reader.read(requests)
        outputs: tuple[np.ndarray, ...] = ()
        probability = None if version.graph.activation is None else np.zeros(0, np.float32)
        if len(decoded.row):
            outputs = version.run(reader.inputs(decoded))
            probability = version.probability(outputs)
        counts = np.array([request.count for request in requests])
        ends = counts.cumsum()
        starts = ends - counts
        bad: list[dict[int, str]] = [{} for _ in requests]
        for row, reason in decoded.reasons.items():
            which = int(np.searchsorted(ends, row, side="right"))
            bad[which][row - int(starts[which])] = reason
        first, last = np.searchsorted(decoded.row, starts), np.searchsorted(decoded.row, ends)
        return [
            Scored(
                int(counts[i]),
                decoded.row[a:b] - starts[i],
                tuple(output[a:b] for output in outputs),
                None if probability is None else probability[a:b],
                bad[i],
                version.current,
            )
            for i, (a, b) in enumerate(zip(first.tolist(), last.tolist(), strict=True))
        ]


def _blank_rows(graph: ServedGraph, rows: int) -> dict[str, Any]:
    """Return rows of zeros and empty lists, as the network takes them."""
    columns, shapes, dtypes = (graph.about[key] for key in ("columns", "shapes", "dtypes"))
    blank = {name: np.zeros((rows, *shapes[i]), dtypes[i]) for i, name in enumerate(columns) if name in graph.given}
    return {name: [[]] * rows if name in graph.ragged else blank[name] for name in graph.given}


def _deliver(outcomes: Sequence[tuple[asyncio.Future, Scored | Exception]]) -> None:
    for future, outcome in outcomes:
        if not future.done():
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)


def _refusal(error: Exception) -> Exception:
    if isinstance(error, DataError | ConfigurationError):
        return RefusalError(422, str(error))
    logger.error("a request failed", exc_info=error)
    return RefusalError(500, f"the model failed on these rows: {type(error).__name__}")
