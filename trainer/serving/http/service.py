"""Handlers of a server's calls, which connect the web application to the model."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from ...errors import CheckpointError, CheckpointNotFoundError, ConfigurationError
from ...streams.sinks import address_of
from ..published import Current
from ..served_model import ServedModel
from .answers import predict_reply, version_json, with_id
from .batching import Engine, ScoredRequest
from .open_inference import infer_reply, model_metadata, rows_of_infer
from .openapi import openapi_document
from .recommendation import Recommendation
from .request_log import RequestLog, request_id
from .request_rows import RequestRows, RowReader, rows_of_body
from .service_call import TEXT, Call, RefusalError, Reply, ServeOptions, refusal_reply
from .traffic import Traffic

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 0.2


class Service:
    """Answers calls with one published model, given as a folder or a mirror's URL."""

    def __init__(self, root: Path | str, options: ServeOptions) -> None:
        self._root, self._options = root, options
        self._traffic = Traffic()
        log, log_recommended = options.log, options.log_recommended
        if log is not None and log_recommended is not None and address_of(log) == address_of(log_recommended):
            raise ConfigurationError(
                "serve: log_recommended needs a different target than log: training reads the rows of log"
            )
        self._log = None if log is None else RequestLog(log, options, self._traffic)
        self._recommended = (
            None if log_recommended is None else RequestLog(log_recommended, options, self._traffic, "recommended_log")
        )
        self._engine: Engine | None = None
        self._problem = f"no model has been published at {root} yet"  # why there is no engine
        self._answer_counts = (0, 0, 0)  # version, rows that it computed, rows among them that were not finite
        self._opening: asyncio.Task | None = None
        self._handlers = {  # handler of each operation
            "predict": self._predict,
            "recommend": self._recommend,
            "infer": self._infer,
            "ready": self._ready,
            "metrics": self._metrics,
            "openapi": self._openapi,
            "server": self._server,
            "model": self._model,
        }

    async def start(self) -> None:
        """Open the model and compile its programs.

        Raises:
            CheckpointNotFoundError: no version is published, and `options.wait` is False.
            CheckpointDamagedError: the published model is damaged.
        """
        try:
            await self._open()
        except CheckpointNotFoundError:
            if not self._options.wait:
                raise
            self._opening = asyncio.create_task(self._open_later())

    async def _open(self) -> None:
        model = await asyncio.to_thread(ServedModel, self._root)
        try:
            if self._log is not None:
                self._log.check(RowReader(model.graph))
        except ConfigurationError:
            await asyncio.to_thread(model.close)
            raise
        engine = Engine(model, self._options, self._traffic, asyncio.get_running_loop())
        self._traffic.add_model_gauges(model, lambda: engine.queued)
        await asyncio.to_thread(engine.ready.wait)
        self._engine = engine

    async def _open_later(self) -> None:
        while self._engine is None:
            try:
                await self._open()
            except (CheckpointError, ConfigurationError) as error:
                self._problem = str(error)
                await asyncio.sleep(_RETRY_SECONDS)

    async def stop(self) -> None:
        """Answer the queued requests, then close the model and the logs."""
        if self._opening is not None:
            self._opening.cancel()
        if self._engine is not None:
            engine, self._engine = self._engine, None
            await asyncio.to_thread(engine.close)
            await asyncio.to_thread(engine.model.close)
        for log in (self._log, self._recommended):
            if log is not None:
                await asyncio.to_thread(log.close, self._options.drain)

    async def handle(self, call: Call) -> Reply:
        """Answer a call within `options.timeout`; errors become replies too."""
        started, timeout = time.monotonic(), self._options.timeout
        try:
            reply = await asyncio.wait_for(self._handlers[call.operation](call), timeout)
        except RefusalError as error:
            reply = refusal_reply(error)
        except asyncio.TimeoutError:
            reply = refusal_reply(RefusalError(504, f"no answer within {timeout:g} s", retry_after=1))
        except Exception as error:
            logger.exception("%s failed", call.operation)
            reply = refusal_reply(RefusalError(500, f"{call.operation} failed: {type(error).__name__}"))
        self._traffic.count_request(call.operation, reply.status, time.monotonic() - started)
        return reply

    def _require_engine(self, call: Call) -> Engine:
        engine, name = self._engine, self._options.name
        if engine is None:
            raise RefusalError(503, self._problem, retry_after=1)
        if call.model and call.model != name:
            raise RefusalError(404, f"the model is called {name!r}; received {call.model!r}")
        return engine

    def _current(self, call: Call) -> Current:
        """Return the served version's record; refuse calls that name another version."""
        current = self._require_engine(call).model.current
        if call.version and call.version != str(current.version):
            raise RefusalError(404, f"version {current.version} is served; received {call.version!r}")
        return current

    async def _predict(self, call: Call) -> Reply:
        name = request_id(call.request_id)
        scored = await self._score(call, functools.partial(rows_of_body, call.body, call.media))
        await self._log_answer(self._log, name, scored)
        return predict_reply(scored, name, logits=call.logits or scored.request.logits)

    async def _recommend(self, call: Call) -> Reply:
        name = request_id(call.request_id)
        recommendation, items = Recommendation.of_body(call.body, call.media), self._require_engine(call).model.items
        scored = await self._score(call, functools.partial(recommendation.rows, items))
        if self._log is not None:
            self._traffic.count_logged("log", "recommend", 1)
        listed = await asyncio.to_thread(recommendation.items, scored)
        request = {key: value for key, value in vars(recommendation).items() if value is not None}
        await self._log_answer(self._recommended, name, scored, {**request, "items": listed})
        return with_id(Reply(200, orjson.dumps({**version_json(scored.current), "items": listed})), name)

    async def _infer(self, call: Call) -> Reply:
        scored = await self._score(call, functools.partial(rows_of_infer, call.body))
        name = request_id(call.request_id if scored.request.id is None else scored.request.id)
        reply = infer_reply(scored, self._options.name)
        await self._log_answer(self._log, name, scored)
        return with_id(reply, name)

    async def _log_answer(
        self, log: RequestLog | None, name: str, scored: ScoredRequest, recommended: dict[str, Any] | None = None
    ) -> None:
        """Pass answered rows to a log, if there is one; wait for it if configured."""
        written = None if log is None else log.add(name, scored, recommended)
        if written is not None:
            await asyncio.wait([written], timeout=self._options.log_wait)

    async def _score(self, call: Call, parse: Callable[[], RequestRows]) -> ScoredRequest:
        scored = await self._require_engine(call).score(parse, call.version)
        self._traffic.count_rows(len(scored.good), len(scored.bad))
        version, rows, not_finite = scored.current.version, len(scored.good), scored.not_finite
        earlier = self._answer_counts[1:] if self._answer_counts[0] == version else (0, 0)
        self._answer_counts = version, earlier[0] + rows + not_finite, earlier[1] + not_finite
        return scored

    async def _ready(self, call: Call) -> Reply:
        current = self._current(call)
        problem, max_age = self._require_engine(call).model.problem, self._options.max_age
        age = time.time() - current.time
        version, rows, not_finite = self._answer_counts if self._answer_counts[0] == current.version else (0, 0, 0)
        is_recent = max_age is None or age <= max_age
        is_sound = 2 * not_finite <= rows  # at most half of the answers are NaN or infinite
        ready = is_recent and is_sound
        if not is_recent:
            problem = problem or f"no new version for {age:.0f} s; the limit is {max_age:g} s"
        if not_finite:
            problem = f"{not_finite} of {rows} answers of version {version} were NaN or infinite" + (
                f"; {problem}" if problem else ""
            )
        body = {"ready": ready, "name": self._options.name, **version_json(current), "problem": problem}
        return Reply(200 if ready else 503, orjson.dumps(body))

    async def _metrics(self, call: Call) -> Reply:
        return Reply(200, self._traffic.text(), TEXT)

    async def _openapi(self, call: Call) -> Reply:
        fields = self._engine.reader().fields if self._engine is not None else {}
        items = self._engine.model.items if self._engine is not None else None
        tasks = tuple(self._engine.model.graph.tasks) if self._engine is not None else ()
        return Reply(200, orjson.dumps(openapi_document(self._options, fields, items, tasks)))

    async def _server(self, call: Call) -> Reply:
        body = {"name": "mindspore-trainer", "version": version("mindspore-trainer"), "extensions": []}
        return Reply(200, orjson.dumps(body))

    async def _model(self, call: Call) -> Reply:
        current, engine = self._current(call), self._require_engine(call)
        graph, number = engine.model.graph, np.dtype(np.float32)
        outputs = dict.fromkeys(["probability", "logits"] if graph.activation else ["prediction"], number)
        if graph.activation and graph.classes:
            outputs = {"prediction": np.array(graph.classes).dtype, **outputs}
        if graph.tasks:
            outputs = dict.fromkeys([*graph.tasks, *(f"{task}_logits" for task in graph.tasks)], number)
        body = model_metadata(self._options.name, current.version, engine.reader(), outputs)
        return Reply(200, orjson.dumps(body))
