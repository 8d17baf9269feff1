"""Kafka topics as a stream. Needs confluent-kafka, the extra ``kafka``."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from ...checks import choice, whole
from ...errors import StreamError
from ..batch import Cursor, Position, Span, cursors_of
from ..dead_letter import DeadLetter
from ..formats.schema import Schema
from .broker_stream import BrokerStream
from .kafka_client import connect, content_of, ends_of, library, partitions_of
from .read_marks import Mark, ReadMarks, checksum, to_mark
from .round_robin_merger import RoundRobinMerger

logger = logging.getLogger(__name__)

_START = "@start"
_STARTS = ("earliest", "latest", "committed")
_ORDERS = ("round_robin", "arrival")
# How long a call blocks at most, so that `close` is noticed.
_BLOCK_SECONDS = 0.2
_ASK_SECONDS = 3.0
# Between looks for partitions that were added to the topic, and at whether it is still the same one.
_LOOK_SECONDS = 60.0
# Messages, of which eight times as many of a partition are held before it is paused.
_AHEAD = 1000


class KafkaStream(BrokerStream):
    """Messages of a topic's partitions, JSON or Arrow IPC.

    Partitions are assigned, not subscribed to, and offsets sought: a position is ``{"topic:0": [offset, row], ...}``,
    and what the broker's group holds is written by `commit` as a hint. Several processes that train together share the
    partitions: in the order of their numbers they go to the processes in turn.

    Order: with "round_robin", the default, partitions take turns of `quota` offsets each. Turns are counted from the
    offsets alone (the position keeps where they began under ``"@start"``), so the same logs give the same row order
    whenever and from wherever they are read, as long as every partition has something to read. A partition that has
    nothing is waited for `turn_timeout` seconds, then passed over until it has caught up; None waits for ever, and
    makes the order depend on the logs alone. With "arrival" rows come as the client delivers them, fastest and in
    no fixed order.

    A topic that was deleted and created again is known by its end, where that lies before the position, else by a
    message before the position: a checkpoint keeps the checksum of one (``"@mark:topic:0": [offset, checksum]``). It is
    read again at a resume, and once a minute while nothing is waiting. Where that message is gone by retention or
    compaction, another topic is taken for the one that was read.

    Args:
        topic: the topic.
        schema: what the columns are to be, or a mapping of `Schema`'s arguments; None: as the Trainer's features say.
        servers: the ``bootstrap.servers``.
        partitions: their numbers; None: all, those that are added later included (looked for every minute, and read
            from their first message on).
        format: "json", "arrow" or "auto".
        start: where to begin without a position: "earliest", "latest", or "committed" (what the group holds, else the
            earliest).
        group: name under which positions are committed.
        order: "round_robin" or "arrival".
        quota: offsets in a turn; a resumed run keeps that of its position.
        turn_timeout: seconds to wait for a partition whose turn it is, or None.
        config: further client settings, such as those for TLS; they come after the stream's own.
        on_missing: when unread messages are gone, by retention or because the topic was deleted and created again:
            "error", or "skip" to warn and go on with the first available.
        dead_letter: file for records that do not fit, or a `DeadLetter`.
        max_bad_share: largest share of such records; None: that of `dead_letter`, 0.01 for a new one.
        give_up_after: seconds of unbroken failure after which StreamError is raised; None: never.

    Raises:
        ConfigurationError: confluent-kafka is missing, or an option is not one of those accepted.
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
        give_up_after: float | None = None,
    ) -> None:
        choice("start", start, _STARTS)
        choice("order", order, _ORDERS)
        whole("quota", quota)
        super().__init__(
            f"kafka {topic}",
            f"Kafka at {servers}",
            schema,
            format=format,
            on_missing=on_missing,
            dead_letter=dead_letter,
            max_bad_share=max_bad_share,
            give_up_after=give_up_after,
        )
        self.topic, self.start, self.order, self.quota = topic, start, order, quota
        self.turn_timeout = turn_timeout
        self._partitions = None if partitions is None else sorted(partitions)
        self._share = slice(None)
        self._uncommitted: Position = {}
        self._trouble: Any = None
        self._kafka = library()
        self._errors = (self._kafka.KafkaException,)
        own = {"error_cb": self._on_error, "on_commit": self._on_commit}
        self._consumer = connect(servers, group, {**own, **(config or {})})
        self._target: dict[str, Cursor] = {}
        self._assigned = False
        self._look_at = 0.0
        self._ends: dict[int, int] = {}
        self._turns = RoundRobinMerger({}, {}, quota, turn_timeout)
        self._paused: set[int] = set()
        self._marks = ReadMarks()
        self._unverified: dict[int, Mark] = {}  # records that are read again, to see whether the log is the same

    def _on_error(self, error: Any) -> None:
        self._trouble = error

    def _on_commit(self, error: Any, partitions: Any) -> None:
        if error is not None:
            logger.warning("%s: the position could not be committed: %s", self._retry.what, error)

    def deal(self, rank: int, world: int) -> None:
        """Read only every `world`-th partition in the order of numbers, from number `rank` on."""
        share = slice(rank, None, world)
        if share != self._share:
            self._share, self._assigned = share, False

    def join(self, positions: Sequence[Position]) -> Position:
        """Return the position of all partitions, with the offsets at which their turns began."""
        joined = super().join(positions)
        begun = [position[_START] for position in positions if _START in position]
        if begun:
            offsets = {name: offset for start in begun for name, offset in start["offsets"].items()}
            joined[_START] = {"quota": begun[0]["quota"], "offsets": offsets}
        return joined

    def _name(self, partition: int) -> str:
        return f"{self.topic}:{partition}"

    def position(self) -> Position:
        """Return the position after the rows returned so far.

        The first call asks the brokers where the partitions begin, and waits for them up to 30 seconds.

        Raises:
            StreamError: they did not answer, or there is no such topic.
        """
        self._insist(self._assign, lambda: self._assigned, f"the first offsets of {self.topic!r} are unknown")
        return dict(self._position)

    def seek(self, position: Position) -> None:
        """Go on reading at `position`; partitions it lacks begin at `start`. Done with the next `poll` or `position`.

        Raises:
            StreamError: it is not one of this stream's.
        """
        cursors = cursors_of(self, position, position)
        if not all(n.rpartition(":")[0] == self.topic and isinstance(c.offset, int) for n, c in cursors.items()):
            raise StreamError(
                f"a position of KafkaStream is {{'{self.topic}:<partition>': [offset, row]}}; received {position!r}"
            )
        self._marks.begin(position)
        self._target, self._position, self._assigned = cursors, dict(position), False

    def resolve(self, position: Position) -> Position:
        """Return `position` with the mark of a message before it in every partition, to know the topic again."""
        return self._marks.resolve(position)

    def _failed(self, error: Any) -> None:
        if isinstance(error, self._kafka.KafkaException):
            error = error.args[0]
        code, codes = error.code(), self._kafka.KafkaError
        lasting = (codes.TOPIC_AUTHORIZATION_FAILED, codes.GROUP_AUTHORIZATION_FAILED, codes._AUTHENTICATION)
        if error.fatal() or code in lasting:
            raise StreamError(f"{self._retry.what} refuses: {error.str()}")
        self._retry.failed(error.str())

    def _assign(self) -> None:
        """Look up the partitions and where each begins, and assign them."""
        mine = partitions_of(self._consumer, self.topic, self._partitions, _ASK_SECONDS)[self._share]
        topics = [self._kafka.TopicPartition(self.topic, number) for number in mine]
        position: Position = {}
        begun: dict[str, Cursor] = {}
        marked: dict[int, Mark] = {}
        starts: dict[int, int] = {}
        ends: dict[int, int] = {}
        for tp in topics:
            name = self._name(tp.partition)
            low, high = ends_of(self._consumer, self.topic, tp.partition, _ASK_SECONDS)
            ends[tp.partition] = high
            if name in self._target:
                cursor = self._target[name]
            elif self._target:
                logger.warning(
                    "%s was added to the topic: its %d messages are read from the first on", name, high - low
                )
                cursor = Cursor(low)
            else:
                cursor = Cursor(self._first(tp, low, high))
            if not low <= int(cursor.offset) <= high:
                self._missing(name, int(cursor.offset), low, high)
                cursor = Cursor(low)
                self._marks.forget(name)
            position[name] = cursor.to_json()
            starts[tp.partition] = tp.offset = int(cursor.offset)
            if cursor.row:
                begun[name] = cursor
            mark = self._marks.before(name, cursor)
            if mark is not None and low <= int(mark.offset):
                marked[tp.partition], tp.offset = mark, int(mark.offset)
        turns = self._position.get(_START) or {"quota": self.quota, "offsets": {}}
        known = turns["offsets"]
        bases = {number: min(known.get(self._name(number), offset), offset) for number, offset in starts.items()}
        offsets = {self._name(number): base for number, base in bases.items()}
        position[_START] = {"quota": turns["quota"], "offsets": offsets}
        with self._lock:
            if not self._closed:
                if self._paused:  # which outlasts an assignment
                    self._consumer.resume([self._kafka.TopicPartition(self.topic, number) for number in self._paused])
                self._consumer.assign(topics)
        self._clear()
        self._turns = RoundRobinMerger(starts, bases, turns["quota"], self.turn_timeout, self.order == "round_robin")
        self._begun, self._paused, self._unverified = begun, set(), marked
        self._position, self._ends = position, ends
        self._assigned = True
        self._look_at = monotonic() + _LOOK_SECONDS

    def _first(self, tp: Any, low: int, high: int) -> int:
        """Return the offset at which a partition without a position begins."""
        if self.start == "committed":
            (held,) = self._consumer.committed([tp], timeout=_ASK_SECONDS)
            return low if held.offset < 0 else max(low, held.offset)
        return high if self.start == "latest" else low

    def _missing(self, name: str, offset: int, low: int, high: int) -> None:
        """Report that `offset` is not available and that reading goes on at `low`."""
        lost = f"messages of {name} from offset {offset} on were deleted before they were read; the first one is {low}"
        if offset > high:
            lost = (
                f"offset {offset} of {name} lies behind its end, {high}: the topic was deleted and created again, or "
                f"is another one; it holds {high - low} messages from offset {low} on, of which none was read"
            )
        self._lost(lost)

    def _fetch(self, max_rows: int, timeout: float) -> None:
        if self._assigned and monotonic() >= self._look_at:
            self._attempt(self._look, 0.0)
        if self._assigned or self._attempt(self._assign, timeout):
            try:
                self._consume(min(timeout, _BLOCK_SECONDS))
            except self._kafka.KafkaException as error:
                self._go_back()  # messages that had come are fetched again
                self._failed(error)
                return
            if self._assigned:  # otherwise messages that had come are fetched again
                self._deliver(max_rows)

    def _look(self) -> None:
        """Read partitions that were added to the topic, too, and when idle look whether it is still the same topic."""
        self._look_at = monotonic() + _LOOK_SECONDS
        again = not any(self._turns.held(number) for number in self._turns.next)
        if self._partitions is None:
            metadata = self._consumer.list_topics(self.topic, timeout=_ASK_SECONDS)
            again |= not set(sorted(metadata.topics[self.topic].partitions)[self._share]) <= set(self._ends)
        if again:
            self._go_back()

    def _consume(self, timeout: float) -> None:
        """Move what the client has into the partitions' buffers."""
        if self._turns.ready:
            timeout = 0.0
        with self._lock:
            if self._closed:
                return
            # A call waits until it has all that it was asked for, so the wait is for one message.
            messages = self._consumer.consume(2000, 0)
            if not messages and timeout:
                messages = self._consumer.consume(1, timeout)  # without partitions too: it waits, and serves callbacks
            self._note_ends()
            self._commit_now()
        for message in messages:
            error = message.error()
            if error is not None:
                self._on_message_error(message, error)
            elif self._is_new(message):
                self._turns.add(message.partition(), message)
                self._trouble = None
        if self._trouble is not None:
            trouble, self._trouble = self._trouble, None
            self._failed(trouble)
        elif messages and not messages[-1].error():
            self._retry.succeeded()
        elif self._retry.failures:
            # The client says that brokers are gone, but on a quiet topic not that they are back: ask.
            self._attempt(lambda: self._consumer.list_topics(self.topic, timeout=1.0), 0.0)
        self._balance()

    def _is_new(self, message: Any) -> bool:
        """Compare a message with the one read at its offset before; return whether it is to be read.

        Raises:
            StreamError: it is another one, and `on_missing` is "error".
        """
        partition, offset = message.partition(), message.offset()
        mark = self._unverified.get(partition)
        if mark is not None and offset >= int(mark.offset):
            del self._unverified[partition]
            # a later offset: that message was compacted, which says nothing
            if offset == mark.offset and checksum(content_of(message)) != mark.checksum:
                name = self._name(partition)
                low, high = ends_of(self._consumer, self.topic, partition, _ASK_SECONDS)
                self._lost(
                    f"offset {offset} of {name} holds another message than the one that was read there: the topic was "
                    f"deleted and created again, or is another one; it holds {high - low} messages from offset {low} "
                    "on, of which none was read"
                )
                self._restart(name, low)
        return self._assigned and offset >= self._turns.next[partition]

    def _restart(self, name: str, low: int) -> None:
        """Read a partition from offset `low` on, the others from where they are."""
        self._marks.forget(name)
        self.seek({**self.resolve(self._position), name: Cursor(low).to_json()})

    def _on_message_error(self, message: Any, error: Any) -> None:
        codes = self._kafka.KafkaError
        if error.code() == codes._PARTITION_EOF:
            return
        if error.code() not in (codes._AUTO_OFFSET_RESET, codes.OFFSET_OUT_OF_RANGE):
            self._failed(error)
            return
        partition = message.partition()
        low, high = ends_of(self._consumer, self.topic, partition, _ASK_SECONDS)
        fetched = self._turns.fetched(partition)
        if low <= fetched <= high:  # only the mark is gone, or the topic was created again and has grown since
            self._go_back()
            return
        name = self._name(partition)
        self._missing(name, fetched, low, high)
        self._restart(name, low)

    def _balance(self) -> None:
        """Pause partitions that are far ahead of their turn; resume those that have been used up."""
        limit = 8 * max(self.quota, _AHEAD)
        held = {number: self._turns.held(number) for number in self._turns.next}
        for action, chosen in (
            (self._consumer.pause, {n for n, count in held.items() if count > limit} - self._paused),
            (self._consumer.resume, {n for n in self._paused if held[n] < limit // 2}),
        ):
            if chosen:
                action([self._kafka.TopicPartition(self.topic, number) for number in chosen])
                self._paused ^= chosen

    def _deliver(self, max_rows: int) -> None:
        taken: list[Any] = []
        while len(taken) < max(max_rows, 1000):
            turn = self._turns.take()
            if not turn:
                break
            taken += turn
        if not taken:
            return
        names = {number: self._name(number) for number in self._turns.next}
        origins = [Span(names[m.partition()], m.offset(), 0, 0, m.offset() + 1) for m in taken]
        for index in to_mark(origins):
            self._marks.add(origins[index].partition, origins[index].offset, content_of(taken[index]))
        self._push_messages(self._decoder.decode([m.value() or b"" for m in taken]), origins)

    def commit(self, position: Position) -> None:
        """Write `position` to the group, in the background; a failure is only logged."""
        if self._closed:
            return
        self._uncommitted = dict(position)
        # Never during a call of the reading thread, whose callback into Python could deadlock with this one between the
        # interpreter's lock and the client's. The reading thread commits after its call.
        if self._lock.acquire(blocking=False):
            try:
                self._commit_now()
            finally:
                self._lock.release()

    def _commit_now(self) -> None:
        """Commit the last position passed to `commit`; `_lock` is held."""
        position, self._uncommitted = self._uncommitted, {}
        offsets = []
        for name in (name for name in position if not name.startswith("@")):
            number, cursor = int(name.rpartition(":")[2]), Cursor.of(position[name])
            offsets.append(self._kafka.TopicPartition(self.topic, number, cursor.offset, metadata=f"row {cursor.row}"))
        if offsets:
            try:
                self._consumer.commit(offsets=offsets, asynchronous=True)
            except self._kafka.KafkaException as error:
                logger.warning("%s: the position could not be committed: %s", self._retry.what, error)

    def lag(self) -> int | None:
        """Return the messages waiting, by the ends of the partitions as last seen; None before anything was fetched."""
        if not self._assigned:
            return None
        ends = self._ends
        behind = (ends.get(partition, 0) - offset for partition, offset in list(self._turns.next.items()))
        return self._ready_rows + sum(max(0, count) for count in behind)

    def _note_ends(self) -> None:
        # Not in `lag`, which other threads call: a call while the client consumes can deadlock, as in `commit`.
        for partition in self._ends:
            tp = self._kafka.TopicPartition(self.topic, partition)
            _, high = self._consumer.get_watermark_offsets(tp, cached=True)
            self._ends[partition] = max(high, self._ends[partition])

    def _disconnect(self) -> None:
        self._commit_now()
        try:
            self._consumer.close()
        except self._kafka.KafkaException as error:
            logger.warning("%s: the client could not be closed: %s", self._retry.what, error)
