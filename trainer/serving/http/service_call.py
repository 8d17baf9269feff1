"""Messages between the web application and the model: calls, replies, refusals."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from pathlib import Path

from ...checks import number, whole
from ...errors import ConfigurationError
from ...masking import remember_secret

JSON, TEXT = "application/json", "text/plain"
TOKEN_VARIABLE = "TRAINER_SERVE_TOKEN"
LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class Call:
    """One request for the model, without its transport."""

    operation: str  # "predict", "recommend", "infer", "ready", "metrics", "openapi", "server" or "model"
    body: bytes = b""
    media: str = JSON  # media type of the body, lower case, without parameters
    logits: bool = False  # whether to return the network's raw outputs too
    model: str = ""  # model named in the path, or ""
    version: str = ""  # version named in the path, or ""
    request_id: str | None = None  # value of the header X-Request-Id


@dataclass(frozen=True)
class Reply:
    """The answer to a call."""

    status: int  # HTTP status
    body: bytes
    media: str = JSON
    headers: dict[str, str] = field(default_factory=dict)


class RefusalError(Exception):
    """Refuses a request with an HTTP error status.

    Attributes:
        status: HTTP status.
        reason: message for the client.
        column: the column that caused the error, or None.
        retry_after: seconds after which the client should retry, or None.
    """

    def __init__(
        self, status: int, reason: str, *, column: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(reason)
        self.status, self.reason, self.column, self.retry_after = status, reason, column, retry_after


@dataclass(frozen=True)
class ServeOptions:
    """Address, batching and limits of a server.

    Raises:
        ConfigurationError: a value is out of range, or the server would accept other machines without a token.
    """

    host: str = "127.0.0.1"  # address to listen on
    port: int = 8080  # TCP port; 0 selects a free port
    name: str = "model"  # name of the model in URLs and answers
    batch_rows: int = 1024  # maximum rows per batch
    batch_delay: float = 0.0  # maximum seconds that the first request of a batch waits for others
    request_rows: int = 10_000  # maximum rows per request; larger requests get status 413
    body_bytes: int = 16 << 20  # maximum bytes of a request's body; larger bodies get status 413
    queue_rows: int = 20_000  # maximum number of queued rows; requests beyond it get status 429
    timeout: float = 10.0  # seconds after which a request gets status 504
    drain: float = 30.0  # seconds that open requests get to finish after SIGTERM
    max_age: float | None = None  # seconds after which a version is too old for ``/readyz``; None for no limit
    token: str | None = field(default=None, repr=False)  # bearer token that requests need, or None
    insecure: bool = False  # also accept requests from other machines without a token
    wait: bool = False  # start before anything is published; ``/readyz`` returns 503 until then
    log: str | Path | None = None  # folder, redis:// or kafka:// URL to which answered rows are written
    log_recommended: str | Path | None = None  # another target, for the lists of recommended items
    log_share: float = 1.0  # share of requests to log, chosen by a hash of their ids
    log_wait: float = 0.0  # maximum seconds that an answer waits until its rows are logged durably
    log_queue_rows: int = 100_000  # maximum rows queued for logging; further rows are counted and dropped

    def __post_init__(self) -> None:
        whole("serve: port", self.port, 0, maximum=65535)
        for name in ("batch_rows", "request_rows", "body_bytes", "queue_rows", "log_queue_rows"):
            whole(f"serve: {name}", getattr(self, name))
        number("serve: timeout", self.timeout, above=0, below=math.inf, what="seconds")
        for name in ("batch_delay", "drain", "log_wait"):
            number(f"serve: {name}", getattr(self, name), minimum=0, below=math.inf, what="seconds")
        number("serve: log_share", self.log_share, above=0, maximum=1, what="a share")
        if self.log is None and self.log_recommended is None and (self.log_share != 1 or self.log_wait):
            raise ConfigurationError("serve: log_share and log_wait need log, the place where rows are written")
        if self.log_wait >= self.timeout:
            raise ConfigurationError(
                f"serve: log_wait must be less than timeout={self.timeout:g} s; got {self.log_wait:g}"
            )
        number("serve: max_age", self.max_age, above=0, optional=True, what="seconds")
        if self.token is not None and not (self.token.isascii() and self.token.isprintable() and self.token.strip()):
            raise ConfigurationError("serve: the token must consist of visible ASCII characters")
        if self.host not in LOOPBACK and self.token is None and not self.insecure:
            raise ConfigurationError(
                f"serve: host {self.host!r} accepts requests from other machines; set a token in the variable "
                f"{TOKEN_VARIABLE}, or give --insecure if a proxy checks requests"
            )
        remember_secret(self.token)


def refusal_reply(error: RefusalError) -> Reply:
    """Return the reply to a refused request: {"error": reason, "column": ...}."""
    import orjson

    body = {"error": error.reason} | ({"column": error.column} if error.column is not None else {})
    headers = {} if error.retry_after is None else {"Retry-After": f"{error.retry_after:g}"}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return Reply(error.status, orjson.dumps(body), JSON, headers)


def token_from(variable: str = TOKEN_VARIABLE) -> str | None:
    """Return the token from an environment variable, or None if it is not set.

    Raises:
        ConfigurationError: the variable is set but empty, which would leave the server open by mistake.
    """
    token = os.environ.get(variable)
    if token is not None and not token.strip():
        raise ConfigurationError(f"the variable {variable} is set and empty; give a token, or unset it")
    return token.strip() if token is not None else None


def default_name(root: Path | str) -> str:
    """Derive a model name from the folder's name, with "-" for special characters."""
    name = root.resolve().name if isinstance(root, Path) else root.partition("?")[0].rstrip("/").rpartition("/")[2]
    return "".join(c if c.isalnum() or c in "-_" else "-" for c in name) or "model"
