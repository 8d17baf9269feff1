"""Write rows as JSON lines that `FileStream`, `RedisStream` or `KafkaStream` read.

`append` writes a batch of lines and returns once it is durable. After it raised one of `errors`, the caller calls it
again with the same list, and no line is written twice.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from ..checkpoint import durable
from ..checkpoint.folder_lock import claim
from ..checks import require, whole
from ..errors import ConfigurationError, did_you_mean
from ..masking import mask_text, remember_secret

logger = logging.getLogger(__name__)

REDIS, KAFKA = ("redis", "rediss", "unix"), "kafka"
_KEY = "served"  # default key in Redis
_SEGMENT_BYTES, _SEGMENT_SECONDS = 64 << 20, 3600.0
_SUFFIX = ".jsonl"
_MARKER_SECONDS = 86_400  # how long Redis remembers the last batch of a writer
_KAFKA_SECONDS = 5.0  # timeout of one attempt


class Sink:
    """A destination for lines.

    Attributes:
        label: the target in messages, without credentials.
        errors: exceptions after which the same batch is tried again.
    """

    label: str
    errors: tuple[type[Exception], ...] = (OSError,)

    def append(self, lines: Sequence[bytes]) -> int:
        """Write JSON objects without line ends, durably; return how many are refused."""
        raise NotImplementedError

    def close(self) -> None:
        """Release the target."""


class SegmentSink(Sink):
    """Appends to the newest segment of a folder; begins one after 64 MB or an hour.

    The names grow with the time, so that a `FileStream` reads the segments in order. A folder has one writer at a time.
    A line that a killed process left unfinished is cut off by the next writer.

    Args:
        folder: created if missing.
        segment_bytes, segment_seconds: size and age after which the next batch begins a segment.

    Raises:
        ConfigurationError: the folder cannot be written.
        FolderInUseError: another process writes there.
    """

    def __init__(
        self, folder: str | Path, segment_bytes: int = _SEGMENT_BYTES, segment_seconds: float = _SEGMENT_SECONDS
    ) -> None:
        self.folder = Path(folder)
        self.label = f"folder {folder}"
        self._most = (whole("segment_bytes", segment_bytes), segment_seconds)
        self._lock = claim(self.folder, "folder of served rows")
        self._file, self._end, self._began = -1, 0, 0.0  # descriptor, bytes that are durable, time of its first line
        names = sorted(path.name for path in self.folder.glob(f"served-*{_SUFFIX}"))
        self._last = int(names[-1].removeprefix("served-").removesuffix(_SUFFIX)) if names else 0
        if names:
            with durable.writing("segment", self.folder / names[-1]):
                _cut_torn_line(self.folder / names[-1])

    def append(self, lines: Sequence[bytes]) -> int:
        """Write JSON objects, durably; return how many are refused."""
        if self._file >= 0 and (self._end >= self._most[0] or time.monotonic() - self._began >= self._most[1]):
            os.close(self._file)
            self._file = -1
        if self._file < 0:
            self._begin()
        # After an error the same bytes go to the same place: what a reader has seen of them stays as it is.
        data, end = memoryview(b"".join(line + b"\n" for line in lines)), self._end
        while data:
            written = os.pwrite(self._file, data, end)
            data, end = data[written:], end + written
        os.fsync(self._file)
        self._end = end
        return 0

    def _begin(self) -> None:
        number = max(int(time.time()), self._last + 1)
        path = self.folder / f"served-{number:012d}{_SUFFIX}"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        self._end, self._began, self._last = 0, time.monotonic(), number
        durable.sync_folder(self.folder)

    def close(self) -> None:
        """Release the target."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            _cut_torn_line(self.folder / f"served-{self._last:012d}{_SUFFIX}")
        self._lock.release()


def _cut_torn_line(path: Path) -> None:
    """Remove what follows the last line end of a file."""
    with open(path, "r+b") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - durable.BLOCK)
            file.seek(start)
            last = file.read(end - start).rfind(b"\n")
            if last >= 0:
                file.truncate(start + last + 1)
                break
            end = start
        else:
            file.truncate(0)
        os.fsync(file.fileno())


class RedisSink(Sink):
    """Adds an entry a line to a Redis stream.

    A batch and its number are written in one transaction, so that a batch whose answer was lost is not added again.

    Args:
        url: as redis-py takes it, with the key as ``?key=served`` and, where old entries may go, ``&maxlen=1000000``.
    """

    def __init__(self, url: str) -> None:
        from .sources.redis import connect

        address, options = split_url(url, ("key", "maxlen"))
        self._key, self._most = options.get("key", _KEY), options.get("maxlen")
        if self._most is not None and not (self._most.isdecimal() and int(self._most)):
            raise ConfigurationError(f"maxlen takes a whole number of entries; received {self._most!r}")
        self.label = f"Redis at {mask_text(address)}"
        redis, self._client = connect(address)
        self.errors, self._refusals = (redis.exceptions.RedisError, OSError), redis.exceptions.ResponseError
        self._marker, self._number = f"{self._key}:writer:{uuid.uuid4().hex}", 0
        self._tried: Sequence[bytes] | None = None

    def append(self, lines: Sequence[bytes]) -> int:
        """Write JSON objects, durably; return how many are refused."""
        if self._tried is not lines:
            self._tried, self._number = lines, self._number + 1
        elif self._client.get(self._marker) == str(self._number).encode():
            return 0
        with self._client.pipeline(transaction=True) as pipe:
            for line in lines:
                pipe.xadd(self._key, {"data": line}, maxlen=self._most and int(self._most))
            pipe.set(self._marker, self._number, ex=_MARKER_SECONDS)
            try:
                pipe.execute()
            except self._refusals:  # of each XADD, as where the key is no stream: the marker may be set nevertheless
                self._tried = None
                raise
        return 0

    def close(self) -> None:
        """Release the target."""
        self._client.close()


class KafkaSink(Sink):
    """Produces a message a line to a topic, by an idempotent producer.

    Args:
        url: ``kafka://host:9092,other:9092/topic``; a query holds further settings of the client, such as
            ``?security.protocol=ssl``.
    """

    def __init__(self, url: str) -> None:
        servers, self._topic, settings = kafka_address(url)
        self.label = f"Kafka at {servers}"
        self._kafka = require("confluent_kafka", "kafka:// needs confluent-kafka", "kafka")
        self.errors = (BufferError, OSError)
        # The client itself tries for ever, so that no message is given twice.
        own = {"bootstrap.servers": servers, "enable.idempotence": True, "message.timeout.ms": 0, "log_level": 2}
        try:
            self._producer = self._kafka.Producer({**own, "linger.ms": 5, **settings})
        except (self._kafka.KafkaException, ValueError, TypeError) as error:
            raise ConfigurationError(f"the Kafka client refuses its settings: {error}") from error
        self._tried: Sequence[bytes] | None = None
        self._given = self._left = self._refused = 0

    def append(self, lines: Sequence[bytes]) -> int:
        """Write JSON objects, durably; return how many are refused."""
        if self._tried is not lines:
            self._tried, self._given, self._left, self._refused = lines, 0, 0, 0
        for line in lines[self._given :]:
            self._produce(line)
            self._given += 1
        until = time.monotonic() + _KAFKA_SECONDS
        while self._left and (left := until - time.monotonic()) > 0:
            self._producer.poll(min(0.1, left))
        if self._left:
            raise OSError(f"{self._left} messages were not accepted within {_KAFKA_SECONDS:g} s")
        return self._refused

    def _produce(self, line: bytes) -> None:
        try:
            self._producer.produce(self._topic, line, on_delivery=self._delivered)
            self._left += 1
        except self._kafka.KafkaException as error:  # this message was refused, for example for its size
            self._left += 1
            self._delivered(error, None)

    def _delivered(self, error: Any, message: Any) -> None:
        self._left -= 1
        if error is not None:  # final: the client has retried already
            self._refused += 1
            logger.warning("%s refuses a row: %s", self.label, error)

    def close(self) -> None:
        """Release the target."""
        self._producer.flush(_KAFKA_SECONDS)


def split_url(url: str, names: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Return a URL without the query arguments of these names, and those arguments.

    Raises:
        ConfigurationError: an argument is given twice.
    """
    query = parse_qsl(urlsplit(url).query, keep_blank_values=True)
    own = [(name, value) for name, value in query if name in names]
    if len(dict(own)) < len(own):
        raise ConfigurationError(f"{mask_text(url)} has an argument twice: {', '.join(name for name, _ in own)}")
    rest = urlencode([pair for pair in query if pair not in own])
    return url.partition("?")[0] + (f"?{rest}" if rest else ""), dict(own)


def kafka_address(url: str) -> tuple[str, str, dict[str, str]]:
    """Return servers, topic and further client settings of ``kafka://servers/topic``.

    Raises:
        ConfigurationError: it names no servers or no topic, or has credentials before the servers.
    """
    parts = urlsplit(url)
    servers, topic, settings = parts.netloc, parts.path.strip("/"), dict(parse_qsl(parts.query))
    for name, value in settings.items():
        if "password" in name:
            remember_secret(value)
    if not servers or not topic or "/" in topic or "@" in servers:
        raise ConfigurationError(f"kafka:// takes kafka://host:9092/topic; received {mask_text(url)!r}")
    return servers, topic, settings


def scheme_of(target: str | Path) -> str:
    """Return the scheme of a broker's URL, or "" of a folder.

    Raises:
        ConfigurationError: a URL of another scheme.
    """
    scheme = str(target).partition("://")[0] if "://" in str(target) else ""
    known = (*REDIS, KAFKA)
    if scheme and scheme not in known:
        raise ConfigurationError(
            f"rows are written to a folder, redis:// or kafka://; received {mask_text(str(target))!r}"
            f"{did_you_mean(scheme, known)}"
        )
    return scheme


def address_of(target: str | Path) -> tuple[str, ...]:
    """Return what two targets that are the same have in common.

    Raises:
        ConfigurationError: the target cannot be used.
    """
    scheme = scheme_of(target)
    if not scheme:
        return (str(Path(target).resolve()),)
    if scheme == KAFKA:
        return kafka_address(str(target))[:2]
    address, options = split_url(str(target), ("key", "maxlen"))
    return address, options.get("key", _KEY)


def sink_for(target: str | Path) -> Sink:
    """Return the sink of a folder, a ``redis://`` or a ``kafka://`` URL.

    Raises:
        ConfigurationError: the target cannot be used, or its client is not installed.
        FolderInUseError: another process writes to the folder.
    """
    scheme = scheme_of(target)
    if not scheme:
        return SegmentSink(target)
    return KafkaSink(str(target)) if scheme == KAFKA else RedisSink(str(target))
