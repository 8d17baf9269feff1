"""The web application: routes requests to a `Service`, checks tokens and sizes."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from .service import Service
from .service_call import JSON, Call, RefusalError, Reply, ServeOptions, refusal_reply

logger = logging.getLogger(__name__)

OPEN = ("/healthz", "/readyz", "/v2/health/live", "/v2/health/ready")  # paths without a token, for health probes


def web_app(service: Service, options: ServeOptions) -> Starlette:
    """Return the web application of a service that the caller starts and stops."""

    def endpoint_for(operation: str) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            try:
                _check_token(request, options)
                call = await _call(request, operation, options)
            except RefusalError as error:
                return _response(refusal_reply(error))
            return _response(await service.handle(call))

        return endpoint

    async def alive(request: Request) -> Response:
        return Response(b"ok", media_type="text/plain")

    async def failed(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        reason = error.detail if isinstance(error, HTTPException) else type(error).__name__
        if status == 404:
            reason = f"{request.url.path} is not served; GET /openapi.json lists what is"
        if status == 405:
            allowed = (getattr(error, "headers", None) or {}).get("Allow", "another method")
            reason = f"{request.url.path} takes {allowed}; received {request.method}; see GET /openapi.json"
        return _response(refusal_reply(RefusalError(status, reason)))

    model = "/v2/models/{model}"
    routes = [
        Route("/predict", endpoint_for("predict"), methods=["POST"]),
        Route("/recommend", endpoint_for("recommend"), methods=["POST"]),
        Route("/healthz", alive),
        Route("/readyz", endpoint_for("ready")),
        Route("/metrics", endpoint_for("metrics")),
        Route("/openapi.json", endpoint_for("openapi")),
        Route("/v2", endpoint_for("server")),
        Route("/v2/health/live", alive),
        Route("/v2/health/ready", endpoint_for("ready")),
    ]
    for path in (model, model + "/versions/{version}"):
        routes += [
            Route(path, endpoint_for("model")),
            Route(path + "/ready", endpoint_for("ready")),
            Route(path + "/infer", endpoint_for("infer"), methods=["POST"]),
        ]
    handlers = {HTTPException: failed, Exception: failed}
    longest = 3 * options.timeout  # one timeout each to receive the body, to compute the answer and to send it
    return Starlette(routes=routes, middleware=[Middleware(_AnswerDeadline, longest)], exception_handlers=handlers)


class _AnswerDeadline:
    """Middleware that closes the connection of a client that does not read its answer."""

    def __init__(self, app: ASGIApp, seconds: float) -> None:
        self._app, self._seconds = app, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await asyncio.wait_for(self._app(scope, receive, send), self._seconds)
        except asyncio.TimeoutError:
            logger.warning("%s: the client has not read its answer; its connection is closed", scope["path"])


def _check_token(request: Request, options: ServeOptions) -> None:
    if options.token is None or request.url.path in OPEN:
        return
    header = request.headers.get("authorization", "")
    kind, _, token = header.partition(" ")
    if kind.lower() != "bearer" or not hmac.compare_digest(token.strip().encode(), options.token.encode()):
        raise RefusalError(401, "the header Authorization takes Bearer and the server's token")


async def _call(request: Request, operation: str, options: ServeOptions) -> Call:
    media = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
    body = b"" if request.method == "GET" else await _body(request, options)
    return Call(
        operation,
        body,
        media,
        request.query_params.get("logits", "").lower() in ("1", "true"),
        request.path_params.get("model", ""),
        request.path_params.get("version", ""),
        request.headers.get("x-request-id"),
    )


async def _body(request: Request, options: ServeOptions) -> bytes:
    """Return the body, or raise RefusalError: 413 if too long, 408 if too slow."""
    maximum = options.body_bytes
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length) > maximum:
        raise RefusalError(413, f"a body has up to {maximum} bytes; received {length}")
    try:
        return await asyncio.wait_for(_read(request, maximum), options.timeout)
    except asyncio.TimeoutError:
        raise RefusalError(408, f"the body did not come within {options.timeout:g} s") from None
    except ClientDisconnect:
        raise RefusalError(400, "the client left before its body was complete") from None


async def _read(request: Request, maximum: int) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > maximum:
            raise RefusalError(413, f"a body has up to {maximum} bytes; received more")
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _response(reply: Reply) -> Response:
    return Response(reply.body, reply.status, reply.headers or None, reply.media)
