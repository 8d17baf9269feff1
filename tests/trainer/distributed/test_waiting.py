"""Processes that wait for the data of one: in short agreements, or where no collective gives them up."""

import socket
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from trainer.data.chunk import Chunk
from trainer.data.feed import Feed, FeedOptions
from trainer.data.position import Position
from trainer.data.ragged import RaggedColumns
from trainer.data.source import Item, ReadMode, Source
from trainer.data.streaming.shared_stream import JobHooks, SharedStream
from trainer.data.streaming.stream_source import StreamSource
from trainer.distributed import world as groups
from trainer.distributed.agreement import StopHooks
from trainer.distributed.group import Group
from trainer.distributed.world import Barrier
from trainer.errors import TrainerError
from trainer.run.limits import Limits
from trainer.run.lockstep import lockstep_chunks
from trainer.run.run import Run
from trainer.state import Progress, StopReason
from trainer.streams import Batch, Sharing, Span, Stream


class Threads(Group):
    """One of several threads that stand for processes."""

    size = 2

    def __init__(self, rank, meeting, held):
        self.rank, self._meeting, self._held = rank, meeting, held
        self.gathered = 0

    def gather(self, array):
        self.gathered += 1
        self._held[self.rank] = array
        self._meeting.wait(timeout=10)
        found = np.stack(self._held)
        self._meeting.wait(timeout=10)
        return found

    def gather_bytes(self, message):
        self._held[self.rank] = message
        self._meeting.wait(timeout=10)
        found = list(self._held)
        self._meeting.wait(timeout=10)
        return found


def on_both(run):
    """Run `run(group)` as both processes; return what they returned, or raised."""
    meeting, held, found = threading.Barrier(2), [None, None], [None, None]

    def process(rank):
        try:
            found[rank] = run(Threads(rank, meeting, held))
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=process, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    for one in found:
        if isinstance(one, Exception) and not isinstance(one, TrainerError):
            raise one
    return found


def chunk(number, last):
    position = Position(1) if last else Position(0, number + 1)
    return Chunk([], (), False, 1, 1, 8, 8, False, last, Position(), position)


def chunks(group, *, stops=False):
    """What process 0 has at once, and process 1, which has one chunk less, after it has waited a while each time."""
    wishes = []

    def open_chunks(wait):
        for number in range(3 - group.rank):
            for _ in range(5 * group.rank):
                if stops and number == 1:
                    wishes.append(StopReason("signal", "told"))
                if wait():
                    return
            yield chunk(number, number == 2 - group.rank)

    reasons = []
    hooks = StopHooks(lambda: wishes[0] if wishes else None, reasons.append)
    found = [(one.num_samples, one.all_samples) for one in lockstep_chunks(group, hooks, open_chunks, lambda: None)]
    return found, group.gathered, [reason.kind for reason in reasons]


def test_a_process_that_waits_for_its_data_agrees_with_the_others_all_the_while():
    (zero, rounds, _), (one, same, _) = on_both(chunks)
    assert zero == [(8, 16), (8, 16), (8, 8)]
    assert one == [(8, 16), (8, 16), (0, 8)]
    assert rounds == same
    assert rounds > 10


def test_a_process_that_gets_a_stop_signal_while_it_waits_stops_all():
    (zero, _, reasons), (one, _, same) = on_both(lambda group: chunks(group, stops=group.rank == 1))
    assert zero == one == [(8, 16)]
    assert reasons == same == ["signal"]


@pytest.fixture
def scheduler(monkeypatch):
    monkeypatch.setenv("MS_SCHED_HOST", "127.0.0.1")
    monkeypatch.setenv("MS_SCHED_PORT", "8118")


def test_processes_wait_for_the_last_one(scheduler):
    came, left = [0.0, 0.0], [0.0, 0.0]

    def run(group):
        meeting = Barrier(group)
        for round_ in range(2):
            time.sleep(0.2 * (group.rank == round_))
            came[group.rank] = time.monotonic()
            meeting.wait()
            left[group.rank] = time.monotonic()
        return meeting.works

    assert on_both(run) == [True, True]
    assert min(left) >= max(came)


def test_a_process_that_has_gone_ends_the_waiting(scheduler):
    def run(group):
        meeting = Barrier(group)
        if group.rank == 1:
            meeting.close()
        else:
            meeting.wait()

    found = on_both(run)
    assert isinstance(found[0], TrainerError)
    assert "is gone" in str(found[0])


def test_processes_that_do_not_meet_say_so_and_let_go_of_each_other(scheduler, monkeypatch, caplog):
    monkeypatch.setattr(groups, "CONNECT_SECONDS", 0.3)
    connect = socket.create_connection
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        monkeypatch.setattr(socket, "create_connection", lambda _, seconds: connect(elsewhere.getsockname(), seconds))
        found = on_both(Barrier)
        connection = elsewhere.accept()[0]
    with connection:
        connection.settimeout(5)
        assert len(connection.recv(64)) == 16
        assert connection.recv(64) == b"", "the connection is still open"
    assert [one.works for one in found] == [False, False]
    assert [one.wait() for one in found] == [None, None]
    assert "rank 0 is not reached by 1 of the others" in caplog.text
    assert "does not reach" not in caplog.text


def test_the_kernel_ends_the_waiting_for_a_machine_without_power(scheduler, monkeypatch):
    connections, connect = [], socket.create_connection

    def note(*arguments):
        connections.append(connect(*arguments))
        return connections[-1]

    monkeypatch.setattr(socket, "create_connection", note)
    assert all(one.works for one in on_both(Barrier))
    assert connections[0].getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert connections[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) > 0


@pytest.mark.parametrize("separate", [True, False])
def test_all_read_on_the_thread_of_graphs_where_one_has_to(separate):
    def run(group):
        group.wait_for_all = lambda: group.gather(np.zeros(1))
        source = Source()
        source.names = ("x",)
        source.thread_bound = group.rank == 1
        source.read_mode = ReadMode.SEPARATE if separate else ReadMode.COMMON
        threads = []

        def batches(epoch, start, state=None):
            for _ in range(3):
                threads.append(threading.current_thread())
                yield Item((np.zeros((4, 2), np.float32),), step_rows=8)

        source.batches = batches
        state = SimpleNamespace(
            stop_reason=None, requested_stop=None, progress=Progress(), agree_to_stop=lambda reason: None
        )
        trainer = SimpleNamespace(group=group, callbacks=[], state=state)
        feed = Feed(source, FeedOptions(lambda item: 1))
        cursor = SimpleNamespace(position=Position())
        run = Run(trainer, feed, None, Limits(epochs=1, steps=None, seconds=None), cursor)
        rows = [one.num_samples for one in run.chunks()]
        return rows, {*threads} == {threading.current_thread()}, group.gathered

    (rows, inline, gathered), *others = on_both(run)
    assert rows == [4, 4, 4]
    assert inline
    assert others == [(rows, inline, gathered)]


class Histories(Stream):
    """Lists of which every process has its own, in batches of two rows."""

    sharing = Sharing.PARTITIONED
    parts = (
        [[[1, 2], [3, 4]], [[5, 6, 7, 8, 9], [1]], [[1, 2, 3], [1, 2, 3]], [[4, 5], [6, 7]]],
        [[[1], [2, 3, 4]], [[1, 2], [3]], [[5, 6], [7, 8]]],
    )

    def deal(self, rank, world):
        self.rank, self.at = rank, 0

    def poll(self, max_rows, timeout=0.0):
        if self.exhausted:
            return None
        found, self.at = self.parts[self.rank][self.at], self.at + 1
        span = Span(str(self.rank), self.at - 1, 0, 1, self.at)
        return Batch({"history": found, "label": np.zeros((2, 1), np.float32)}, None, (span,))

    def position(self):
        return {str(self.rank): [self.at, 0]}

    @property
    def exhausted(self):
        return self.at == len(self.parts[self.rank])


@pytest.mark.parametrize("first", [0, 2], ids=["one's first lists", "both's"])
def test_lists_that_are_equally_long_by_chance_are_padded_as_on_the_other_processes(first, monkeypatch):
    monkeypatch.setattr(Histories, "parts", [part[first:] for part in Histories.parts])

    def run(group):
        hooks = JobHooks(lambda: None, lambda reason: None)
        shared = SharedStream(StreamSource(Histories(), 2, inputs=["history"]), group, 1, hooks)
        pad, found = RaggedColumns(["history", "history_mask"]), []
        for item in shared.batches(0, 0):
            if item is not None:
                columns, names = pad(item.columns, shared.names, item.lengths)
                found.append({name: column.shape for name, column in zip(names, columns, strict=True)})
        return found

    zero, one = on_both(run)
    assert zero == one
    assert [shapes["history"] for shapes in zero] == [(2, 4), (2, 8), (2, 4), (2, 2)][first:]
