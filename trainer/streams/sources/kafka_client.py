"""Kafka client functions for `KafkaStream`, and the merge order of partitions."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from ...checks import require
from ...errors import ConfigurationError, StreamError, did_you_mean
from ...masking import is_secret, remember_secret


def library() -> Any:
    """Import confluent_kafka."""
    return require("confluent_kafka", "KafkaStream needs confluent-kafka", "kafka")


def connect(servers: str, group: str, options: Mapping[str, Any]) -> Any:
    """Return a consumer with the stream's settings; `options` override them.

    Raises:
        ConfigurationError: the client library is missing or rejects the settings.
    """
    kafka = library()
    settings = {
        "bootstrap.servers": servers,
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "allow.auto.create.topics": False,
        # The stream buffers messages itself, so the client's queue may be smaller than the default of 64 MB. A full
        # queue may drain in far less than one second, the client's default pause before it fetches again.
        "queued.max.messages.kbytes": 16_384,
        "fetch.queue.backoff.ms": 20,
        "log_level": 2,
        **options,
    }
    for name, value in settings.items():
        if is_secret(name):
            remember_secret(value)
    try:
        return kafka.Consumer(settings)
    except (kafka.KafkaException, ValueError, TypeError) as error:
        raise ConfigurationError(f"the Kafka client refuses its settings: {error}") from error


def weak_callback(method: Callable[..., None]) -> Callable[..., None]:
    """Return a callback that calls `method` while its object is alive.

    A normal reference would form a cycle of client and stream, which only the garbage collector frees. A process can
    hold only about 1,000 clients, so they must be freed earlier.
    """
    reference = weakref.WeakMethod(method)

    def call(*arguments: Any) -> None:
        alive = reference()
        if alive is not None:
            alive(*arguments)

    return call


def partitions_of(consumer: Any, topic: str, chosen: Sequence[int] | None, timeout: float) -> list[int]:
    """Return the numbers of the partitions to read: `chosen`, or all if it is None."""
    metadata = consumer.list_topics(timeout=timeout)
    described = metadata.topics.get(topic)
    if described is None:
        names = sorted(name for name in metadata.topics if not name.startswith("__"))
        raise StreamError(f"there is no topic {topic!r}{did_you_mean(topic, names)}; there are {names[:20]}")
    if described.error is not None:
        raise library().KafkaException(described.error)
    if chosen is None:
        return sorted(described.partitions)
    missing = [number for number in chosen if number not in described.partitions]
    if missing:
        raise StreamError(f"topic {topic!r} has partitions {sorted(described.partitions)}; asked for {missing}")
    return list(chosen)


def ends_of(consumer: Any, topic: str, partition: int, timeout: float) -> tuple[int, int]:
    """Return the first offset of a partition and the offset after its last message.

    It does not call `get_watermark_offsets`, which sends two requests and, if one of them fails, may return the other
    result twice. The partition would then look empty, and its messages would be skipped.
    """
    kafka = library()
    offsets = []
    for which in (kafka.OFFSET_BEGINNING, kafka.OFFSET_END):
        (result,) = consumer.offsets_for_times([kafka.TopicPartition(topic, partition, which)], timeout=timeout)
        if result.error is not None:
            raise kafka.KafkaException(result.error)
        offsets.append(result.offset)
    return offsets[0], offsets[1]


class PausedPartitions:
    """Pauses partitions while too many of their messages are buffered.

    A partition is paused above `limit` buffered messages, and resumed below half of that.
    """

    def __init__(self, consumer: Any, topic: str, limit: int) -> None:
        self._consumer, self._topic, self._limit = consumer, topic, limit
        self._paused: set[int] = set()

    def _topic_partitions(self, numbers: set[int]) -> list[Any]:
        return [library().TopicPartition(self._topic, number) for number in numbers]

    def balance(self, buffered: Mapping[int, int]) -> None:
        """Pause and resume partitions by the number of messages buffered for each."""
        full = {number for number, count in buffered.items() if count > self._limit} - self._paused
        drained = {number for number in self._paused if buffered[number] < self._limit // 2}
        if full:
            self._consumer.pause(self._topic_partitions(full))
            self._paused |= full
        if drained:
            self._consumer.resume(self._topic_partitions(drained))
            self._paused -= drained

    def resume_all(self) -> None:
        """Resume all partitions."""
        self.balance(dict.fromkeys(self._paused, 0))


def content_of(message: Any) -> tuple[bytes | None, ...]:
    """Return the content of a message for a checksum: its time, key and value."""
    return str(message.timestamp()[1]).encode(), message.key(), message.value()


@dataclass
class RoundRobinMerger:
    """Buffers messages by partition and returns them in turns.

    A turn of a partition ends where its offset crosses a multiple of `quota`. The partition with the fewest completed
    turns is next; among equals, the partition with the lowest number. The number of completed turns follows from the
    first and the next offset of a partition. So the position alone determines whose turn it is, even within a turn, and
    gaps in the offsets do no harm.

    Args:
        next: mapping from partition to the offset to read next.
        first_offsets: mapping from partition to its first offset.
        quota: number of offsets in a turn.
        timeout: seconds to wait for an empty partition. Then it is skipped until it has caught up with the others. None
            waits forever.
        in_turns: whether partitions take turns; if False, `take` returns all buffered messages.
    """

    next: dict[int, int]
    first_offsets: Mapping[int, int]
    quota: int
    timeout: float | None
    in_turns: bool = True

    def __post_init__(self) -> None:
        self.next = dict(self.next)
        self._buffers: dict[int, deque[Any]] = {number: deque() for number in self.next}
        self._skipped: set[int] = set()  # empty partitions that are skipped
        self._waiting_since: dict[int, float] = {}  # by partition: time when waiting for it began

    def add(self, partition: int, message: Any) -> None:
        """Buffer a message; ``offset()`` must increase within the partition."""
        self._buffers[partition].append(message)

    def buffered(self, partition: int) -> int:
        """Return the number of buffered messages of a partition."""
        return len(self._buffers[partition])

    def end_of_buffer(self, partition: int) -> int:
        """Return the offset after the last buffered or taken message."""
        buffer = self._buffers[partition]
        return buffer[-1].offset() + 1 if buffer else self.next[partition]

    @property
    def ready(self) -> bool:
        """Whether `take` would return messages."""
        if not self.in_turns:
            return any(self._buffers.values())
        chosen = self._next_partition()
        return chosen is not None and bool(self._buffers[chosen])

    def take(self) -> list[Any]:
        """Return the next messages: the buffered part of the current turn, or none."""
        taken: list[Any] = []
        if not self.in_turns:
            for partition, buffer in self._buffers.items():
                self.next[partition] = self.end_of_buffer(partition)
                taken += buffer
                buffer.clear()
            return taken
        chosen = self._next_partition()
        if chosen is None:
            return []
        buffer = self._buffers[chosen]
        if not buffer:
            self._wait_for(chosen)
            return []
        self._waiting_since.pop(chosen, None)
        turn = buffer[0].offset() // self.quota
        while buffer and buffer[0].offset() // self.quota == turn:
            taken.append(buffer.popleft())
        self.next[chosen] = taken[-1].offset() + 1
        return taken

    def _sort_key(self, partition: int) -> tuple[int, int]:
        """Return the sort key of a partition: its number of completed turns, its number."""
        buffer = self._buffers[partition]
        # If offsets are missing, the next message may belong to a later turn than the next offset.
        following = buffer[0].offset() if buffer else self.next[partition]
        return following // self.quota - self.first_offsets[partition] // self.quota, partition

    def _next_partition(self) -> int | None:
        if not self._buffers:
            return None
        keys = [self._sort_key(number) for number in self._buffers if number not in self._skipped]
        front = min(keys) if keys else max(map(self._sort_key, self._buffers))
        # A skipped partition is waited for again only once it has reached the front.
        self._skipped -= {number for number in self._skipped if self._sort_key(number) >= front}
        eligible = [number for number in self._buffers if number not in self._skipped or self._buffers[number]]
        return min(eligible, key=self._sort_key, default=None)

    def _wait_for(self, partition: int) -> None:
        now = monotonic()
        since = self._waiting_since.setdefault(partition, now)
        if self.timeout is not None and now - since >= self.timeout:
            del self._waiting_since[partition]
            self._skipped.add(partition)
