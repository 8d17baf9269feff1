"""The web application: routes, tokens, size limits; requests become `Call`s."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable
from typing import Protocol

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from .openapi import page
from .service_call import ARROW, HTML, JSON, Call, RefusalError, Reply, ServeOptions, refused

OPEN = ("/healthz", "/readyz", "/v2/health/live", "/v2/health/ready")  # for probes, which have no token


class Handler(Protocol):
    """Answers calls: the model in this process, or a link to another process."""

    async def start(self) -> None:
        """Prepare."""

    async def stop(self) -> None:
        """Answer waiting requests and release the model."""

    async def handle(self, call: Call) -> Reply:
        """Return the answer to a call."""


def web_app(handler: Handler, options: ServeOptions) -> Starlette:
    """Return the application of a handler, which is started and stopped elsewhere."""

    def on(operation: str) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            try:
                _check_token(request, options)
                call = await _call(request, operation, options)
            except RefusalError as error:
                return _response(refused(error))
            return _response(await handler.handle(call))

        return endpoint

    async def alive(request: Request) -> Response:
        return Response(b"ok", media_type="text/plain")

    async def docs(request: Request) -> Response:
        answer = await on("openapi")(request)
        if answer.status_code != 200:
            return answer
        return Response(page(orjson.loads(answer.body)), media_type=HTML)

    async def failed(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        reason = error.detail if isinstance(error, HTTPException) else type(error).__name__
        if status == 404:
            reason = f"{request.url.path} is not served; GET /docs lists what is"
        if status == 405:
            allowed = (getattr(error, "headers", None) or {}).get("Allow", "another method")
            reason = f"{request.url.path} takes {allowed}; received {request.method}; GET /docs has an example"
        return _response(refused(RefusalError(status, reason)))

    model = "/v2/models/{model}"
    routes = [
        Route("/predict", on("predict"), methods=["POST"]),
        Route("/healthz", alive),
        Route("/readyz", on("ready")),
        Route("/metrics", on("metrics")),
        Route("/openapi.json", on("openapi")),
        Route("/docs", docs),
        Route("/v2", on("server")),
        Route("/v2/health/live", alive),
        Route("/v2/health/ready", on("ready")),
    ]
    for path in (model, model + "/versions/{version}"):
        routes += [
            Route(path, on("model")),
            Route(path + "/ready", on("ready")),
            Route(path + "/infer", on("infer"), methods=["POST"]),
        ]
    return Starlette(routes=routes, exception_handlers={HTTPException: failed, Exception: failed})


def _check_token(request: Request, options: ServeOptions) -> None:
    if options.token is None or request.url.path in OPEN:
        return
    given = request.headers.get("authorization", "")
    kind, _, token = given.partition(" ")
    if kind.lower() != "bearer" or not hmac.compare_digest(token.strip().encode(), options.token.encode()):
        raise RefusalError(401, "the header Authorization takes Bearer and the server's token")


async def _call(request: Request, operation: str, options: ServeOptions) -> Call:
    media = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
    body = b"" if request.method == "GET" else await _body(request, options)
    return Call(
        operation,
        body,
        media,
        ARROW if ARROW in request.headers.get("accept", "") else JSON,
        request.query_params.get("logits", "").lower() in ("1", "true"),
        request.path_params.get("model", ""),
        request.path_params.get("version", ""),
    )


async def _body(request: Request, options: ServeOptions) -> bytes:
    """Return the body; RefusalError 413 for too many bytes, 408 after a timeout."""
    most = options.body_bytes
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length) > most:
        raise RefusalError(413, f"a body has up to {most} bytes; received {length}")
    try:
        return await asyncio.wait_for(_read(request, most), options.timeout)
    except asyncio.TimeoutError:
        raise RefusalError(408, f"the body did not come within {options.timeout:g} s") from None
    except ClientDisconnect:
        raise RefusalError(400, "the client left before its body was complete") from None


async def _read(request: Request, most: int) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise RefusalError(413, f"a body has up to {most} bytes; received more")
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _response(reply: Reply) -> Response:
    return Response(reply.body, reply.status, reply.headers or None, reply.media)
