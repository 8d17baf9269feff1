"""Dynamic batching: one thread reads requests, another runs the model."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...errors import ConfigurationError, DataError
from ...metrics.predictions import activate
from ...streams.formats.schema import Decoded, join_parts
from ..published import Current
from ..published_items import PublishedItems
from ..served_graph import HeldVersion, ServedGraph
from ..served_model import ServedModel
from .request_rows import RequestRows, RowReader
from .service_call import RefusalError, ServeOptions
from .traffic import Traffic

logger = logging.getLogger(__name__)

_NOT_FINITE = "the model's answer is NaN or infinite: its weights may be too, or the values of this row are too extreme"


@dataclass(frozen=True)
class ScoredRequest:
    """The answer to one request."""

    request: RequestRows
    good: np.ndarray  # indices of the answered rows, int64 [g], ascending
    outputs: tuple[np.ndarray, ...]  # the network's outputs for these rows, [g, ...] each
    probability: np.ndarray | None  # in the unit of the label, [g, ...]; None if the loss does not define it
    bad: dict[int, str]  # index of each row without an answer -> reason
    current: Current  # the version that answered
    classes: tuple[Any, ...]  # class names in the order of the network's outputs
    not_finite: int  # number of bad rows for which the model computed NaN or an infinite value
    items: PublishedItems | None  # items of the version
    reader: RowReader  # the reader of the request's rows
    tasks: dict[str, tuple[np.ndarray, np.ndarray]]  # task -> (predictions in the unit of its label, network's output)
    further: dict[str, np.ndarray]  # outputs of no task, by name; empty without tasks


@dataclass(eq=False)
class _Job:
    request: RequestRows
    version: str  # number of the only version that may answer, or ""
    future: asyncio.Future
    reader: RowReader  # the reader that decoded `rows`
    rows: Decoded
    arrived: float = field(default_factory=time.monotonic)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The dtype kinds of the columns; only requests with equal kinds can be joined."""
        return tuple(column.dtype.kind for column in self.rows.columns.values())


class Engine:
    """Runs a served model on its own thread, in batches of requests.

    A second thread parses, checks and converts each request separately. When a batch is done, the next batch takes the
    queued rows, up to `batch_rows`. With `batch_delay`, the first request of a batch waits up to that long for others.
    If a batch fails, its requests are retried one by one. All methods are called from the event `loop`.
    """

    def __init__(
        self, model: ServedModel, options: ServeOptions, traffic: Traffic, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.model, self.queued = model, 0  # queued: number of queued rows
        self._options, self._traffic, self._loop = options, traffic, loop
        self._jobs: deque[_Job] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._reader_of = functools.lru_cache(maxsize=1)(RowReader)  # caches the reader of the current network
        self._reading = ThreadPoolExecutor(1, "requests")
        self.ready = threading.Event()  # set once the programs are compiled
        self._thread = threading.Thread(target=self._run, name="graphs", daemon=True)
        self._thread.start()

    async def score(self, parse: Callable[[], RequestRows], version: str = "") -> ScoredRequest:
        """Return the answer to one request.

        Args:
            parse: returns the rows of the request's body; called on the thread that reads requests.
            version: number of the only version that may answer, as in the URL, or "" for any version.

        Raises:
            RefusalError: `parse` raised it; or status 413 for too many rows, 429 if the queue is full, 404 if another
                version is served, 422 if the rows do not fit the model, 500 if the model fails, or 503 while the server
                stops.
        """
        if self._closing:
            raise RefusalError(503, "the server is stopping", retry_after=1)
        future = self._loop.create_future()
        request, reader, rows = await self._loop.run_in_executor(self._reading, self._read, parse)
        job, options, count = _Job(request, version, future, reader, rows), self._options, request.count
        with self._wake:
            if self.queued + count > options.queue_rows:
                raise RefusalError(
                    429, f"{self.queued} rows wait; the queue takes up to {options.queue_rows}", retry_after=1
                )
            self.queued += count
            self._jobs.append(job)
            self._wake.notify()
        return await job.future

    def _read(self, parse: Callable[[], RequestRows]) -> tuple[RequestRows, RowReader, Decoded]:
        request, maximum, reader = parse(), self._options.request_rows, self.reader()
        if request.count > maximum:
            raise RefusalError(413, f"a request takes up to {maximum} rows; received {request.count}")
        try:
            return request, reader, reader.read(request)
        except Exception as error:
            raise _refusal(error) from error

    def reader(self) -> RowReader:
        """Return the reader of rows for the network that is served now."""
        return self._reader_of(self.model.graph)

    def close(self) -> None:
        """Answer the queued requests and end the threads."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._reading.shutdown()
        self._thread.join()

    # -- the thread that runs graphs -----------------------------------------------------------------------------

    def _run(self) -> None:
        self._warm_up()
        while jobs := self._next_batch():
            started = time.monotonic()
            outcomes = self._outcomes(jobs)
            self._traffic.record_batch(sum(job.request.count for job in jobs), time.monotonic() - started)
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
        except Exception as error:  # requests will get the same error as their answer
            logger.warning("the warm-up call of the model failed: %s", error)
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
            while self._jobs and (not jobs or rows + self._jobs[0].request.count <= options.batch_rows):
                job = self._jobs.popleft()
                self.queued -= job.request.count
                if not job.future.done():  # skip requests that have timed out or whose client has left
                    jobs.append(job)
                    rows += job.request.count
        return jobs or self._next_batch()  # no job is left if all requests have timed out

    def _outcomes(self, jobs: Sequence[_Job]) -> list[tuple[asyncio.Future, ScoredRequest | Exception]]:
        try:
            with self.model.held() as version:
                return [(job.future, outcome) for job, outcome in self._score(version, jobs)]
        except Exception as error:
            if len(jobs) > 1:
                return [outcome for job in jobs for outcome in self._outcomes([job])]
            return [(jobs[0].future, _refusal(error))]

    def _score(self, version: HeldVersion, jobs: Sequence[_Job]) -> Iterable[tuple[_Job, ScoredRequest | Exception]]:
        number, reader = str(version.current.version), self._reader_of(version.graph)
        jobs_by_kinds: dict[tuple[str, ...], list[_Job]] = {}
        for job in jobs:
            if job.version in ("", number):
                if job.reader is not reader:  # the rows were decoded for another network
                    job.reader, job.rows = reader, reader.read(job.request)
                jobs_by_kinds.setdefault(job.kinds, []).append(job)
            else:
                yield job, RefusalError(404, f"version {number} is served; received {job.version!r}")
        for compatible_jobs in jobs_by_kinds.values():
            yield from zip(compatible_jobs, _score_jobs(version, reader, compatible_jobs), strict=True)


def _score_jobs(version: HeldVersion, reader: RowReader, jobs: Sequence[_Job]) -> list[ScoredRequest]:
    decoded = join_parts([job.rows for job in jobs])
    outputs: tuple[np.ndarray, ...] = ()
    probability = None if version.graph.activation is None else np.zeros(0, np.float32)
    if len(decoded.row):
        inputs = reader.inputs(decoded)
        outputs = version.run(inputs)
        probability = version.probability(outputs, inputs)
    tasks, further = _by_task(version, outputs)
    predictions = [prediction for prediction, _ in tasks.values()] if probability is None else [probability]
    finite = _finite_rows(len(decoded.row), (*outputs, *predictions))
    ends = np.cumsum([len(job.rows.row) for job in jobs]).tolist()
    scored = []
    for job, start, end in zip(jobs, [0, *ends[:-1]], ends, strict=True):
        good, bad = start + np.flatnonzero(finite[start:end]), job.rows.reasons
        not_finite = job.rows.row[~finite[start:end]].tolist()
        scored.append(
            ScoredRequest(
                job.request,
                job.rows.row[good - start],
                tuple(output[good] for output in outputs),
                None if probability is None else probability[good],
                bad | dict.fromkeys(not_finite, _NOT_FINITE),
                version.current,
                version.graph.classes,
                len(not_finite),
                version.items,
                reader,
                {task: (prediction[good], output[good]) for task, (prediction, output) in tasks.items()},
                {name: output[good] for name, output in further.items()},
            )
        )
    return scored


def _by_task(
    version: HeldVersion, outputs: Sequence[np.ndarray]
) -> tuple[dict[str, tuple[np.ndarray, np.ndarray]], dict[str, np.ndarray]]:
    """Return `ScoredRequest.tasks` and `further` for all rows of a batch."""
    activations = version.graph.tasks
    if not activations or not outputs:
        return {task: (np.zeros(0, np.float32), np.zeros(0, np.float32)) for task in activations}, {}
    by_task, further = version.outputs_by_task(outputs)
    return {
        task: (activate(activations[task], output).astype(np.float32), output) for task, output in by_task.items()
    }, further


def _finite_rows(rows: int, outputs: Iterable[np.ndarray]) -> np.ndarray:
    """Return a mask of the rows that are finite in all outputs, bool [rows]."""
    finite = np.ones(rows, np.bool_)
    for output in outputs:
        finite &= np.isfinite(output).all(axis=tuple(range(1, output.ndim)))
    return finite


def _blank_rows(graph: ServedGraph, rows: int) -> dict[str, Any]:
    """Return input columns of zeros, or of empty lists for ragged columns."""
    columns, shapes, dtypes = (graph.description[key] for key in ("columns", "shapes", "dtypes"))
    blank = {name: np.zeros((rows, *shapes[i]), dtypes[i]) for i, name in enumerate(columns)}
    return {name: [[]] * rows if name in graph.ragged else blank[name] for name in graph.column_names}


def _deliver(outcomes: Sequence[tuple[asyncio.Future, ScoredRequest | Exception]]) -> None:
    for future, outcome in outcomes:
        if not future.done():
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)


def _refusal(error: Exception) -> RefusalError:
    if isinstance(error, RefusalError):
        return error
    if isinstance(error, DataError | ConfigurationError):
        return RefusalError(422, str(error))
    logger.error("a request failed", exc_info=error)
    return RefusalError(500, f"the model failed on these rows: {type(error).__name__}")
