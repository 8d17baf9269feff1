"""Write rows as JSON lines, which file, Redis and Kafka streams can read.

`Sink.append` writes a batch of lines and returns once they are durable. If it raises one of `Sink.errors`, the caller
calls it again with the same list object, and no line is written twice.
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
_MARKER_SECONDS = 86_400  # how long Redis keeps the number of a writer's last batch
_KAFKA_SECONDS = 5.0  # timeout of one attempt


class Sink:
    """A destination for lines.

    Attributes:
        label: name of the target in messages, without credentials.
        errors: exceptions after which the caller may retry the same batch.
    """

    label: str
    errors: tuple[type[Exception], ...] = (OSError,)

    def append(self, lines: Sequence[bytes]) -> int:
        """Write JSON objects durably; return how many the target rejected.

        The objects contain no line ends.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Release the target."""


class SegmentSink(Sink):
    """Appends lines to segment files in a folder.

    Each writer begins a new segment, and another one after 64 MB or an hour. Segment names contain the time, so a
    `FileStream` reads them in order. A folder has one writer at a time. If a killed process left an unfinished line,
    the next writer removes it.

    Args:
        folder: folder of the segments; created if missing.
        segment_bytes: size after which the next batch begins a new segment.

    Raises:
        ConfigurationError: the folder is not writable.
        FolderInUseError: another process is writing to the folder.
    """

    def __init__(self, folder: str | Path, segment_bytes: int = _SEGMENT_BYTES) -> None:
        self.folder = Path(folder)
        self.label = f"folder {folder}"
        self._segment_bytes = whole("segment_bytes", segment_bytes)
        self._lock = claim(self.folder, "folder of served rows")
        self._file, self._end, self._started = -1, 0, 0.0  # file descriptor, durable bytes, time of creation
        names = sorted(path.name for path in self.folder.glob(f"served-*{_SUFFIX}"))
        self._last_number = int(names[-1].removeprefix("served-").removesuffix(_SUFFIX)) if names else 0
        if names:
            with durable.writing("segment", self.folder / names[-1]):
                _cut_torn_line(self.folder / names[-1])

    def append(self, lines: Sequence[bytes]) -> int:
        """Append lines to the current segment and sync it; return 0."""
        is_old = time.monotonic() - self._started >= _SEGMENT_SECONDS
        if self._file >= 0 and (self._end >= self._segment_bytes or is_old):
            os.close(self._file)
            self._file = -1
        if self._file < 0:
            self._begin_segment()
        # A retry writes the same bytes at the same offset, so bytes that a reader has already seen do not change.
        data, end = memoryview(b"".join(line + b"\n" for line in lines)), self._end
        while data:
            written = os.pwrite(self._file, data, end)
            data, end = data[written:], end + written
        os.fsync(self._file)
        self._end = end
        return 0

    def _begin_segment(self) -> None:
        number = max(int(time.time()), self._last_number + 1)
        path = self.folder / f"served-{number:012d}{_SUFFIX}"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        self._end, self._started, self._last_number = 0, time.monotonic(), number
        durable.sync_folder(self.folder)

    def close(self) -> None:
        """Release the target."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            _cut_torn_line(self.folder / f"served-{self._last_number:012d}{_SUFFIX}")
        self._lock.release()


def _cut_torn_line(path: Path) -> None:
    """Truncate a file after its last line end."""
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
    """Adds one entry per line to a Redis stream.

    Each transaction writes a batch and its number. If the server's answer was lost, a retry reads the number to see
    whether the batch was added.

    Args:
        url: URL in the form that redis-py takes. ``?key=served`` sets the stream's key, and ``&maxlen=1000000`` limits
            the number of entries by dropping the oldest.
    """

    def __init__(self, url: str) -> None:
        from .sources.redis import connect

        address, options = split_url(url, ("key", "maxlen"))
        self._key, self._maxlen = options.get("key", _KEY), options.get("maxlen")
        if self._maxlen is not None and not (self._maxlen.isdecimal() and int(self._maxlen)):
            raise ConfigurationError(f"maxlen takes a whole number of entries; received {self._maxlen!r}")
        self.label = f"Redis at {mask_text(address)}"
        redis, self._client = connect(address)
        self.errors, self._response_error = (redis.exceptions.RedisError, OSError), redis.exceptions.ResponseError
        self._marker_key, self._number = f"{self._key}:writer:{uuid.uuid4().hex}", 0
        self._last_batch: Sequence[bytes] | None = None  # the last batch, to recognise a retry

    def append(self, lines: Sequence[bytes]) -> int:
        """Add the lines in one transaction; return 0."""
        if self._last_batch is not lines:
            self._last_batch, self._number = lines, self._number + 1
        elif self._client.get(self._marker_key) == str(self._number).encode():  # added before the error
            return 0
        with self._client.pipeline(transaction=True) as pipe:
            for line in lines:
                pipe.xadd(self._key, {"data": line}, maxlen=self._maxlen and int(self._maxlen))
            pipe.set(self._marker_key, self._number, ex=_MARKER_SECONDS)
            try:
                pipe.execute()
            except self._response_error:  # XADD failed, e.g. the key is not a stream; the marker may still be set
                self._last_batch = None
                raise
        return 0

    def close(self) -> None:
        """Release the target."""
        self._client.close()


class KafkaSink(Sink):
    """Sends one message per line to a topic, with an idempotent producer.

    Args:
        url: ``kafka://host:9092,other:9092/topic``; the query may contain further client settings, such as
            ``?security.protocol=ssl``.
    """

    def __init__(self, url: str) -> None:
        servers, self._topic, settings = kafka_address(url)
        self.label = f"Kafka at {servers}"
        self._kafka = require("confluent_kafka", "kafka:// needs confluent-kafka", "kafka")
        self.errors = (BufferError, OSError)
        # Messages never time out: the client itself retries them, so `append` need not send a message twice.
        defaults = {"bootstrap.servers": servers, "enable.idempotence": True, "message.timeout.ms": 0, "log_level": 2}
        try:
            self._producer = self._kafka.Producer({**defaults, "linger.ms": 5, **settings})
        except (self._kafka.KafkaException, ValueError, TypeError) as error:
            raise ConfigurationError(f"the Kafka client refuses its settings: {error}") from error
        self._last_batch: Sequence[bytes] | None = None  # the last batch, to recognise a retry
        self._sent = self._undelivered = self._rejected = 0  # numbers of lines

    def append(self, lines: Sequence[bytes]) -> int:
        """Send the lines and wait for their delivery; return how many were rejected."""
        if self._last_batch is not lines:
            self._last_batch, self._sent, self._undelivered, self._rejected = lines, 0, 0, 0
        for line in lines[self._sent :]:
            self._produce(line)
            self._sent += 1
        until = time.monotonic() + _KAFKA_SECONDS
        while self._undelivered and (remaining := until - time.monotonic()) > 0:
            self._producer.poll(min(0.1, remaining))
        if self._undelivered:
            raise OSError(f"{self._undelivered} messages were not accepted within {_KAFKA_SECONDS:g} s")
        return self._rejected

    def _produce(self, line: bytes) -> None:
        try:
            self._producer.produce(self._topic, line, on_delivery=self._delivered)
            self._undelivered += 1
        except self._kafka.KafkaException as error:  # the client rejected this message, for example for its size
            self._undelivered += 1
            self._delivered(error, None)

    def _delivered(self, error: Any, message: Any) -> None:
        self._undelivered -= 1
        if error is not None:  # final, because the client retries by itself
            self._rejected += 1
            logger.warning("%s refuses a row: %s", self.label, error)

    def close(self) -> None:
        """Release the target."""
        self._producer.flush(_KAFKA_SECONDS)


def split_url(url: str, names: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Remove the query arguments `names` from a URL; return the URL and their values.

    Raises:
        ConfigurationError: one of these arguments occurs twice.
    """
    query = parse_qsl(urlsplit(url).query, keep_blank_values=True)
    chosen = [(name, value) for name, value in query if name in names]
    if len(dict(chosen)) < len(chosen):
        raise ConfigurationError(f"{mask_text(url)} has an argument twice: {', '.join(name for name, _ in chosen)}")
    rest = urlencode([pair for pair in query if pair not in chosen])
    return url.partition("?")[0] + (f"?{rest}" if rest else ""), dict(chosen)


def kafka_address(url: str) -> tuple[str, str, dict[str, str]]:
    """Return servers, topic and further client settings of ``kafka://servers/topic``.

    Raises:
        ConfigurationError: the servers or the topic are missing, or credentials stand before the servers.
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
    """Return the scheme of a broker's URL, or "" for a folder.

    Raises:
        ConfigurationError: the URL has another scheme.
    """
    scheme = str(target).partition("://")[0] if "://" in str(target) else ""
    accepted = (*REDIS, KAFKA)
    if scheme and scheme not in accepted:
        raise ConfigurationError(
            f"rows are written to a folder, redis:// or kafka://; received {mask_text(str(target))!r}"
            f"{did_you_mean(scheme, accepted)}"
        )
    return scheme


def address_of(target: str | Path) -> tuple[str, ...]:
    """Return a tuple that identifies a target; equal targets have equal tuples.

    Raises:
        ConfigurationError: the target is invalid.
    """
    scheme = scheme_of(target)
    if not scheme:
        return (str(Path(target).resolve()),)
    if scheme == KAFKA:
        return kafka_address(str(target))[:2]
    address, options = split_url(str(target), ("key", "maxlen"))
    return address, options.get("key", _KEY)


def sink_for(target: str | Path) -> Sink:
    """Return a sink for a folder, a ``redis://`` URL or a ``kafka://`` URL.

    Raises:
        ConfigurationError: the target is invalid, or its client library is not installed.
        FolderInUseError: another process is writing to the folder.
    """
    scheme = scheme_of(target)
    if not scheme:
        return SegmentSink(target)
    return KafkaSink(str(target)) if scheme == KAFKA else RedisSink(str(target))
