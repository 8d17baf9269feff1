"""A stream that reads a Kafka topic; needs confluent-kafka (extra ``kafka``)."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from ...checks import choice, is_whole, number, refuse, whole
from ...errors import StreamError
from ..batch import Cursor, Position, Span, cursors_of
from ..dead_letter import DeadLetter
from ..formats.decode import MAX_RECORD_BYTES
from ..formats.schema import Schema
from . import kafka_client as client
from .broker_stream import BrokerStream, Mark, ReadMarks, checksum

logger = logging.getLogger(__name__)

_FIRST_OFFSETS = "@start"
_START_CHOICES = ("earliest", "latest", "committed")
_ORDERS = ("round_robin", "arrival")
_BLOCK_SECONDS = 0.2  # longest blocking call, so that `close` takes effect
_REQUEST_SECONDS = 3.0
_CHECK_SECONDS = 60.0  # interval of checks for added partitions and for a recreated topic
_ROW = re.compile(r"row (\d+)")  # metadata of a committed offset: the next row within its message
_MIN_BUFFERED = 1000  # a partition is paused above eight times this number of buffered messages, or times the quota


class KafkaStream(BrokerStream):
    """A stream of the messages in a topic's partitions, JSON or Arrow IPC.

    The stream assigns partitions itself instead of subscribing, and reads from explicit offsets. A position is
    ``{"topic:0": [offset, row], ...}``. `commit` writes offsets to the consumer group, but only as a hint. Several
    processes divide the partitions: partitions go to the ranks in turn, in numeric order.

    With the order "round_robin", the default, partitions take turns of `quota` offsets each. Turns depend only on the
    offsets (a position stores the first offsets under ``"@start"``), so the same logs give the same row order in every
    run, as long as every partition has messages. The stream waits up to `turn_timeout` seconds for an empty partition,
    then skips it until it has caught up. If `turn_timeout` is None, it waits forever, and the order depends only on the
    logs. With the order "arrival", the stream returns rows as the client delivers them: this is fastest, but the order
    is not fixed.

    The stream detects that a topic was deleted and created again. Either the topic ends before the position, or a
    message before the position has changed: a checkpoint stores the checksum of one message
    (``"@mark:topic:0": [offset, checksum]``), which is compared on resume and once a minute while the stream is idle.
    If retention or compaction removed that message, the change is not detected.

    Args:
        topic: name of the topic.
        schema: a `Schema`, or a mapping of its arguments. None uses the columns of the Trainer's features.
        servers: the client's ``bootstrap.servers``.
        partitions: numbers of the partitions to read. None reads all partitions. New partitions are then looked for
            every minute and read from their first message.
        format: "json", "arrow" or "auto".
        start: where to begin without a position: "earliest", "latest", or "committed" for the offsets committed to the
            group, or the earliest without any.
        group: name of the consumer group to which positions are committed.
        order: "round_robin" or "arrival".
        quota: number of offsets in a turn; a resumed run keeps the quota of its position.
        turn_timeout: seconds to wait for a partition whose turn it is; None to wait forever.
        config: further client settings, for example for TLS; they override the stream's own settings.
        on_missing: what to do if unread messages were removed, by retention or because the topic was deleted and
            created again: "error", or "skip" to warn and continue with the first available message.
        dead_letter: file for bad records, or a `DeadLetter`.
        max_bad_share: largest share of bad records. None uses the share of `dead_letter`, which is 0.01 by default.
        max_record_bytes: maximum size of a message in bytes; a larger message is a bad row.
        give_up_after: seconds of unbroken failure after which StreamError is raised; None to retry forever.

    Raises:
        ConfigurationError: confluent-kafka is missing, or an option is invalid.
    """

    def __init__(
        self,
        topic: str,
        schema: Schema | Mapping[str, Any] | None = None,
        *,
        servers: str = "localhost:9092",
        partitions: Sequence[int] | None = None,
        format: str = "auto",
        start: str = "earliest",
        group: str = "mindspore-trainer",
        order: str = "round_robin",
        quota: int = 256,
        turn_timeout: float | None = 1.0,
        config: Mapping[str, Any] | None = None,
        on_missing: str = "error",
        dead_letter: DeadLetter | str | Path | None = None,
        max_bad_share: float | None = None,
        max_record_bytes: int = MAX_RECORD_BYTES,
        give_up_after: float | None = None,
    ) -> None:
        choice("start", start, _START_CHOICES)
        choice("order", order, _ORDERS)
        whole("quota", quota)
        number("turn_timeout", turn_timeout, minimum=0, optional=True, what="seconds")
        chosen = [] if partitions is None else list(partitions)
        if (partitions is not None and not chosen) or len(set(chosen)) < len(chosen) or not all(map(is_whole, chosen)):
            refuse("partitions", "different numbers of partitions, or None for all", partitions)
        source, server = f"kafka {topic}", f"Kafka at {servers}"
        super().__init__(
            source, server, schema, format, on_missing, dead_letter, max_bad_share, max_record_bytes, give_up_after
        )
        self.topic, self.start, self.order, self.quota, self.turn_timeout = topic, start, order, quota, turn_timeout
        self._partitions = None if partitions is None else sorted(partitions)
        self._slice = slice(None)
        self._uncommitted: Position = {}
        self._client_error: Any = None
        self._kafka = client.library()
        self._errors = (self._kafka.KafkaException,)
        handlers = {
            "error_cb": client.weak_callback(self._on_error),
            "on_commit": client.weak_callback(self._on_commit),
        }
        self._consumer = client.connect(servers, group, {**handlers, **(config or {})})
        self._start_cursors: dict[str, Cursor] = {}
        self._assigned = False
        self._next_check = 0.0
        self._end_offsets: dict[int, int] = {}
        self._merger = client.RoundRobinMerger({}, {}, quota, turn_timeout)
        self._paused = client.PausedPartitions(self._consumer, topic, 8 * max(quota, _MIN_BUFFERED))
        self._marks = ReadMarks()
        self._unverified: dict[int, Mark] = {}  # marked messages that are read again to detect a recreated topic

    def _on_error(self, error: Any) -> None:
        self._client_error = error

    def _on_commit(self, error: Any, partitions: Any) -> None:
        if error is not None:
            logger.warning("%s: the position could not be committed: %s", self._retry.label, error)

    def assign_partitions(self, rank: int, world: int) -> None:
        """Read only every `world`-th partition in numeric order, from index `rank` on."""
        own_slice = slice(rank, None, world)
        if own_slice != self._slice:
            self._slice, self._assigned = own_slice, False
            self._position = self._position if self._start_cursors else {}  # begin at `start`

    def join(self, positions: Sequence[Position]) -> Position:
        joined = super().join(positions)
        starts = [position[_FIRST_OFFSETS] for position in positions if _FIRST_OFFSETS in position]
        if starts:
            offsets = {name: offset for start in starts for name, offset in start["offsets"].items()}
            joined[_FIRST_OFFSETS] = {"quota": starts[0]["quota"], "offsets": offsets}
        return joined

    def _name(self, partition: int) -> str:
        return f"{self.topic}:{partition}"

    def position(self) -> Position:
        """Return the position after the rows returned so far.

        The first call asks the brokers for the first offsets and waits up to 30 seconds for the answer.

        Raises:
            StreamError: the brokers did not answer, or the topic does not exist.
        """
        self._retry_until(self._assign, lambda: self._assigned, f"the first offsets of {self.topic!r} are unknown")
        return dict(self._position)

    def seek(self, position: Position) -> None:
        """Continue reading at `position`.

        If `position` is empty, all partitions begin at `start`. Otherwise partitions missing from it begin at their
        first message.

        Raises:
            StreamError: the position belongs to another stream.
        """
        cursors = cursors_of(self, position, position)
        if not all(n.rpartition(":")[0] == self.topic and isinstance(c.offset, int) for n, c in cursors.items()):
            raise StreamError(
                f"a position of KafkaStream is {{'{self.topic}:<partition>': [offset, row]}}; received {position!r}"
            )
        self._marks.begin(position)
        self._start_cursors, self._position, self._assigned = cursors, dict(position), False

    def resolve(self, position: Position) -> Position:
        return self._marks.resolve(position)

    def _handle_failure(self, error: Any) -> None:
        if isinstance(error, self._kafka.KafkaException):
            error = error.args[0]
        code, codes = error.code(), self._kafka.KafkaError
        permanent = (codes.TOPIC_AUTHORIZATION_FAILED, codes.GROUP_AUTHORIZATION_FAILED, codes._AUTHENTICATION)
        if error.fatal() or code in permanent:
            raise StreamError(f"{self._retry.label} rejected the request: {error.str()}")
        self._retry.failed(error.str())

    def _assign(self) -> None:
        """Look up the partitions and their start offsets, and assign them."""
        numbers = client.partitions_of(self._consumer, self.topic, self._partitions, _REQUEST_SECONDS)[self._slice]
        topics = [self._kafka.TopicPartition(self.topic, number) for number in numbers]
        position: Position = {}
        resume_rows: dict[str, Cursor] = {}
        unverified: dict[int, Mark] = {}
        starts: dict[int, int] = {}
        ends: dict[int, int] = {}
        for tp in topics:
            name = self._name(tp.partition)
            low, high = client.ends_of(self._consumer, self.topic, tp.partition, _REQUEST_SECONDS)
            ends[tp.partition] = high
            if name in self._start_cursors:
                cursor = self._start_cursors[name]
            elif self._start_cursors or _FIRST_OFFSETS in self._position:
                lag = high - low
                logger.warning("%s was added to the topic: its %d messages are read from the first on", name, lag)
                cursor = Cursor(low)
            else:
                cursor = self._start_cursor(tp, low, high)
            if not low <= int(cursor.offset) <= high:
                self._report_missing(name, int(cursor.offset), low, high)
                cursor = Cursor(low)
                self._marks.forget(name)
            position[name] = cursor.to_json()
            starts[tp.partition] = tp.offset = int(cursor.offset)
            if cursor.row:
                resume_rows[name] = cursor
            mark = self._marks.before(name, cursor)
            # Read a marked message again, to compare it with its checksum.
            if mark is not None and low <= int(mark.offset):
                unverified[tp.partition], tp.offset = mark, int(mark.offset)
        stored = self._position.get(_FIRST_OFFSETS) or {"quota": self.quota, "offsets": {}}
        first_offsets = {n: min(stored["offsets"].get(self._name(n), offset), offset) for n, offset in starts.items()}
        offsets = {self._name(number): base for number, base in first_offsets.items()}
        position[_FIRST_OFFSETS] = {"quota": stored["quota"], "offsets": offsets}
        with self._lock:
            if not self._closed:
                self._paused.resume_all()  # partitions stay paused when they are assigned again
                self._consumer.assign(topics)
        self._clear()
        in_turns = self.order == "round_robin"
        self._merger = client.RoundRobinMerger(starts, first_offsets, stored["quota"], self.turn_timeout, in_turns)
        self._resume_rows, self._unverified = resume_rows, unverified
        self._position, self._end_offsets = position, ends
        self._assigned = True
        self._next_check = monotonic() + _CHECK_SECONDS

    def _start_cursor(self, tp: Any, low: int, high: int) -> Cursor:
        """Return the start of a partition if there is no position."""
        if self.start == "committed":
            (committed,) = self._consumer.committed([tp], timeout=_REQUEST_SECONDS)
            row = _ROW.fullmatch(committed.metadata or "")
            return Cursor(low) if committed.offset < 0 else Cursor(committed.offset, int(row[1]) if row else 0)
        return Cursor(high if self.start == "latest" else low)

    def _report_missing(self, name: str, offset: int, low: int, high: int) -> None:
        lost = f"messages of {name} from offset {offset} on were deleted before they were read; the first one is {low}"
        if offset > high:
            lost = f"offset {offset} of {name} is beyond its end, {high}: {_describe_new_log(low, high)}"
        self._report_loss(lost)

    def _fetch(self, max_rows: int, timeout: float) -> None:
        if self._assigned and monotonic() >= self._next_check:
            self._attempt(self._check_topic, 0.0)
        if self._assigned or self._attempt(self._assign, timeout):
            try:
                self._consume(min(timeout, _BLOCK_SECONDS))
            except self._kafka.KafkaException as error:
                self._go_back()  # fetches the buffered messages again
                self._handle_failure(error)
                return
            if self._assigned:  # otherwise `_consume` has sought back, and the buffered messages are obsolete
                self._deliver(max_rows)

    def _check_topic(self) -> None:
        """Look for added partitions; when idle, also check for a recreated topic.

        Both happen when the partitions are assigned again.
        """
        self._next_check = monotonic() + _CHECK_SECONDS
        reassign = not any(self._merger.buffered(number) for number in self._merger.next)
        if self._partitions is None:
            metadata = self._consumer.list_topics(self.topic, timeout=_REQUEST_SECONDS)
            reassign |= not set(sorted(metadata.topics[self.topic].partitions)[self._slice]) <= set(self._end_offsets)
        if reassign:
            self._go_back()

    def _consume(self, timeout: float) -> None:
        """Move messages from the client to the buffers of the partitions."""
        if self._merger.ready:
            timeout = 0.0
        with self._lock:
            if self._closed:
                return
            # `consume` waits until it has all requested messages, so request only one when waiting.
            messages = self._consumer.consume(2000, 0)
            if not messages and timeout:
                messages = self._consumer.consume(1, timeout)  # even without partitions: it also runs callbacks
            self._update_end_offsets()
            self._commit_pending()
        for message in messages:
            error = message.error()
            if error is not None:
                self._on_message_error(message, error)
            elif self._is_new(message):
                self._merger.add(message.partition(), message)
                self._client_error = None
        if self._client_error is not None:
            error, self._client_error = self._client_error, None
            self._handle_failure(error)
        elif messages and not messages[-1].error():
            self._retry.succeeded()
        elif self._retry.failures:
            # On a quiet topic, the client reports lost brokers but not their return, so send a request.
            self._attempt(lambda: self._consumer.list_topics(self.topic, timeout=1.0), 0.0)
        self._paused.balance({number: self._merger.buffered(number) for number in self._merger.next})

    def _is_new(self, message: Any) -> bool:
        """Return whether a message is unread; compare a marked one with its checksum.

        If it differs, the topic was recreated: raise, or restart the partition if `on_missing` is "skip".
        """
        partition, offset = message.partition(), message.offset()
        mark = self._unverified.get(partition)
        if mark is not None and offset >= int(mark.offset):
            del self._unverified[partition]
            # A later offset means that the marked message was removed, so nothing can be compared.
            if offset == mark.offset and checksum(client.content_of(message)) != mark.checksum:
                name = self._name(partition)
                low, high = client.ends_of(self._consumer, self.topic, partition, _REQUEST_SECONDS)
                problem = f"offset {offset} of {name} holds another message than the one that was read there"
                self._report_loss(f"{problem}: {_describe_new_log(low, high)}")
                self._restart(name, low)
        return self._assigned and offset >= self._merger.next[partition]

    def _restart(self, name: str, low: int) -> None:
        self._marks.forget(name)
        self.seek({**self.resolve(self._position), name: Cursor(low).to_json()})

    def _on_message_error(self, message: Any, error: Any) -> None:
        codes = self._kafka.KafkaError
        if error.code() == codes._PARTITION_EOF:
            return
        if error.code() not in (codes._AUTO_OFFSET_RESET, codes.OFFSET_OUT_OF_RANGE):
            self._handle_failure(error)
            return
        partition = message.partition()
        low, high = client.ends_of(self._consumer, self.topic, partition, _REQUEST_SECONDS)
        next_offset = self._merger.end_of_buffer(partition)
        if low <= next_offset <= high:  # only the marked message is gone, or a recreated topic has grown since
            self._go_back()
            return
        name = self._name(partition)
        self._report_missing(name, next_offset, low, high)
        self._restart(name, low)

    def _deliver(self, max_rows: int) -> None:
        taken: list[Any] = []
        while len(taken) < max(max_rows, 1000):
            turn = self._merger.take()
            if not turn:
                break
            taken += turn
        if not taken:
            return
        names = {number: self._name(number) for number in self._merger.next}
        origins = [Span(names[m.partition()], m.offset(), 0, 0, m.offset() + 1) for m in taken]
        self._marks.add(origins, lambda index: client.content_of(taken[index]))
        self._push_messages(self._decoder.decode([m.value() or b"" for m in taken]), origins)

    def commit(self, position: Position) -> None:
        """Commit `position` to the group in the background; only log a failure."""
        if self._closed:
            return
        self._uncommitted = dict(position)
        # While the reading thread calls the client, another call could deadlock: each thread would hold one of the GIL
        # and the client's lock, and wait for the other. The reading thread then commits after its own call.
        if self._lock.acquire(blocking=False):
            try:
                self._commit_pending()
            finally:
                self._lock.release()

    def _commit_pending(self) -> None:
        """Commit the last position passed to `commit`; the caller holds `_lock`."""
        position, self._uncommitted = self._uncommitted, {}
        cursors = {int(n.rpartition(":")[2]): Cursor.of(c) for n, c in position.items() if not n.startswith("@")}
        partition = self._kafka.TopicPartition
        offsets = [partition(self.topic, n, c.offset, metadata=f"row {c.row}") for n, c in cursors.items()]
        try:
            if offsets:
                self._consumer.commit(offsets=offsets, asynchronous=True)
        except self._kafka.KafkaException as error:
            self._on_commit(error, None)

    def lag(self) -> int | None:
        """Return how many messages wait, by the last known end offsets; None if unknown."""
        if not self._assigned:
            return None
        behind = (self._end_offsets.get(partition, 0) - offset for partition, offset in list(self._merger.next.items()))
        return self._ready_rows + sum(max(0, count) for count in behind)

    def _update_end_offsets(self) -> None:
        # `lag` uses the result: it runs on other threads, where a client call could deadlock (see `commit`).
        for partition in self._end_offsets:
            tp = self._kafka.TopicPartition(self.topic, partition)
            _, high = self._consumer.get_watermark_offsets(tp, cached=True)
            self._end_offsets[partition] = max(high, self._end_offsets[partition])

    def _disconnect(self) -> None:
        self._commit_pending()
        try:
            self._consumer.close()
        except self._kafka.KafkaException as error:
            logger.warning("%s: the client could not be closed: %s", self._retry.label, error)


def _describe_new_log(low: int, high: int) -> str:
    return (
        "the topic was deleted and created again, or is another one; it holds "
        f"{high - low} messages from offset {low} on, none of which was read"
    )
