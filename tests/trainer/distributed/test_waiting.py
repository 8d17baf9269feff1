"""Processes that wait for the data of one: in short agreements, or where no collective gives them up."""

import contextlib
import json
import math
import socket
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from trainer.data.chunk import FeedOptions
from trainer.data.feed import Feed
from trainer.data.finite.shards import DividedSource
from trainer.data.finite.sources import IterableSource
from trainer.data.position import Position
from trainer.data.ragged import RaggedColumns
from trainer.data.source import Item, Source
from trainer.data.streaming.shared_stream import JobHooks, SharedStream
from trainer.data.streaming.stream_source import StreamSource
from trainer.data.waiting import Interrupted
from trainer.distributed import all_to_all
from trainer.distributed.agreement import StopHooks
from trainer.distributed.group import Group
from trainer.errors import TrainerError
from trainer.run.limits import Limits
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
        self._meeting.wait(timeout=60)
        found = np.stack(self._held)
        self._meeting.wait(timeout=60)
        return found

    def gather_bytes(self, message):
        self._held[self.rank] = message
        self._meeting.wait(timeout=60)
        found = list(self._held)
        self._meeting.wait(timeout=60)
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
        thread.join(timeout=120)
    for one in found:
        if isinstance(one, Exception) and not isinstance(one, TrainerError):
            raise one
    return found


def parts(group, counts, *, waits=(0.0, 0.0), wishes=None):
    """Return the data of processes that have `counts` batches of 8 rows; one asks to stop before its third."""
    reasons, requested = [], []

    def give():
        for number in range(counts[group.rank]):
            time.sleep(waits[group.rank])
            if wishes == group.rank and number == 2:
                time.sleep(0.5)
                requested.append(StopReason("signal", "told"))
                time.sleep(0.5)
            yield {"x": np.full((8, 2), number, np.float32)}

    hooks = StopHooks(lambda: requested[0] if requested else None, reasons.append)
    return DividedSource(IterableSource(give), group, hooks), reasons


def trained(source, steps=1):
    """Return (rows here, rows everywhere, batches) of each chunk, and the clock of the feed."""
    feed, found = Feed(source, FeedOptions(steps)), []
    with contextlib.suppress(Interrupted):
        for chunk in feed.chunks(Position()):
            found.append((chunk.num_samples, chunk.all_samples, chunk.num_batches))
    return found, feed.clock


def test_a_process_that_waits_for_its_data_agrees_with_the_others_all_the_while():
    def run(group):
        source, _ = parts(group, (3, 2), waits=(0.0, 0.3))
        found, clock = trained(source)
        return found, group.gathered, clock.waited

    (zero, rounds, short), (one, same, long) = on_both(run)
    assert zero == [(8, 16, 1), (8, 16, 1), (8, 8, 1)]
    assert one == [(8, 16, 1), (8, 16, 1), (0, 8, 1)]
    assert rounds == same
    assert rounds > 8
    assert short < long / 2, "waiting for the other process is not waiting for data"


def test_a_process_that_gets_a_stop_signal_while_it_waits_stops_all():
    def run(group):
        source, reasons = parts(group, (4, 4), wishes=1)
        return trained(source)[0], [reason.kind for reason in reasons]

    assert on_both(run) == [([(8, 16, 1)], ["signal"])] * 2, "the second step is held back: it may be the last one"


def test_a_call_ends_where_one_process_has_no_more_batches_and_calls_go_on_after_it():
    def run(group):
        return trained(parts(group, (9, 3))[0], steps=4)[0]

    zero, one = on_both(run)
    assert zero == [(24, 48, 3), (32, 32, 4), (16, 16, 2)]
    assert one == [(24, 48, 3), (0, 32, 4), (0, 16, 2)]


def test_a_process_without_any_batch_takes_part():
    zero, one = on_both(lambda group: trained(parts(group, (0, 2))[0])[0])
    assert zero == [(0, 8, 1), (0, 8, 1)]
    assert one == [(8, 8, 1), (8, 8, 1)]


def test_a_limited_epoch_loses_no_batch_of_an_iterator():
    """Each process is asked for the batches of an epoch, and for no more of them before the next one begins."""

    def run(group):
        batches = iter([{"x": np.full((8, 2), number, np.float32)} for number in range(6 - group.rank)])
        source = DividedSource(IterableSource(batches), group, StopHooks(lambda: None, lambda reason: None))
        feed, found, position = Feed(source, FeedOptions(2, batches_per_epoch=3)), [], Position()
        for _ in range(2):
            for chunk in feed.chunks(position):
                columns = chunk.arrays[0] if chunk.stacked else chunk.arrays[0][None]
                found += columns[: chunk.num_batches, 0, 0].tolist() if chunk.num_samples else []
                position = chunk.position
        return found

    assert on_both(run) == [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4]]


class States:
    """Batches that know their own position."""

    def __init__(self, first):
        self.number = self.first = first

    def state_dict(self):
        return {"number": self.number}

    def load_state_dict(self, state):
        self.number = state["number"]

    def __iter__(self):
        while self.number < self.first + 4:
            self.number += 1
            yield {"x": np.full((8, 2), self.number, np.float32)}


def test_a_position_holds_the_states_of_all_processes():
    def run(group):
        def source():
            data = IterableSource(States(100 * group.rank))
            return DividedSource(data, group, StopHooks(lambda: None, lambda reason: None))

        first = source()
        chunks = Feed(first, FeedOptions(1)).chunks(Position())
        position = [next(chunks) for _ in range(2)][-1].position
        chunks.close()
        saved = Position.from_json(json.loads(json.dumps(first.joint_position(position).to_json())))
        return [chunk.arrays[0][0, 0] for chunk in Feed(source(), FeedOptions(1)).chunks(saved)]

    assert on_both(run) == [[3, 4], [103, 104]]


def test_ranks_whose_data_are_not_divided_are_named():
    def run(group):
        if group.rank == 0:
            return parts(group, (1, 1))
        return group.gather_json({"data: rows": 8})

    assert "ranks [1] are given the whole dataset" in str(on_both(run)[0])


def open_barrier(group):
    return all_to_all.AllToAll(group, deadline=math.inf)


@pytest.fixture
def scheduler(monkeypatch):
    monkeypatch.setenv("MS_SCHED_HOST", "127.0.0.1")
    monkeypatch.setenv("MS_SCHED_PORT", "8118")


def test_processes_wait_for_the_last_one(scheduler):
    came, left = [0.0, 0.0], [0.0, 0.0]

    def run(group):
        meeting = open_barrier(group)
        for round_ in range(2):
            time.sleep(0.2 * (group.rank == round_))
            came[group.rank] = time.monotonic()
            meeting.exchange([b""] * 2)
            left[group.rank] = time.monotonic()
        return meeting.is_open

    assert on_both(run) == [True, True]
    assert min(left) >= max(came)


def test_a_process_that_has_gone_ends_the_waiting(scheduler):
    def run(group):
        meeting = open_barrier(group)
        if group.rank == 1:
            meeting.close()
        else:
            meeting.exchange([b""] * 2)

    found = on_both(run)
    assert isinstance(found[0], TrainerError)
    assert "has ended" in str(found[0])


def test_processes_that_do_not_meet_say_so_and_let_go_of_each_other(scheduler, monkeypatch):
    monkeypatch.setattr(all_to_all, "CONNECT_SECONDS", 0.3)
    connect = socket.create_connection
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        monkeypatch.setattr(socket, "create_connection", lambda _, seconds: connect(elsewhere.getsockname(), seconds))
        found = on_both(open_barrier)
        connection = elsewhere.accept()[0]
    with connection:
        connection.settimeout(5)
        assert len(connection.recv(64)) == 24
        assert connection.recv(64) == b"", "the connection is still open"
    for error in found:
        assert isinstance(error, TrainerError)
        assert "rank 0 cannot connect to the others: no connection with ranks [1]" in str(error)


def test_the_kernel_ends_the_waiting_for_a_machine_without_power(scheduler, monkeypatch):
    connections, connect = [], socket.create_connection

    def note(*arguments):
        connections.append(connect(*arguments))
        return connections[-1]

    monkeypatch.setattr(socket, "create_connection", note)
    assert all(one.is_open for one in on_both(open_barrier))
    assert connections[0].getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert connections[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) < 9, "the probes end after seconds"


def test_all_read_on_the_thread_of_graphs_where_one_has_to():
    def run(group):
        group.wait_for_all = lambda: group.gather(np.zeros(1))
        source = Source()
        source.names = ("x",)
        source.thread_bound = group.rank == 1
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


def test_processes_with_parts_meet_before_each_agreement_where_one_reads_on_the_thread_of_graphs():
    def run(group):
        met = []
        group.wait_for_all = lambda: met.append(group.gathered) or group.gather(np.zeros(1))
        source, _ = parts(group, (2, 3))
        source.source.thread_bound = group.rank == 1
        return trained(source)[0], met

    (zero, met), (one, same) = on_both(run)
    assert [rows for rows, *_ in zero] == [8, 8, 0]
    assert [rows for rows, *_ in one] == [8, 8, 8]
    assert met == same
    assert len(met) > 3


class Histories(Stream):
    """Lists of which every process has its own, in batches of two rows."""

    sharing = Sharing.PARTITIONED
    parts = (
        [[[1, 2], [3, 4]], [[5, 6, 7, 8, 9], [1]], [[1, 2, 3], [1, 2, 3]], [[4, 5], [6, 7]]],
        [[[1], [2, 3, 4]], [[1, 2], [3]], [[5, 6], [7, 8]]],
    )

    def assign_partitions(self, rank, world):
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


def test_rows_that_a_reader_that_still_waits_has_read_are_warned_of(monkeypatch, caplog):
    monkeypatch.setattr("trainer.data.waiting.JOIN_SECONDS", 0.1)
    release = threading.Event()

    class Blocking(Histories):
        def poll(self, max_rows, timeout=0.0):
            return super().poll(max_rows, timeout) if self.at < 2 else release.wait(20) and None

    def run(group):
        hooks = JobHooks(lambda: None, lambda reason: None)
        shared = SharedStream(StreamSource(Blocking(), 2, inputs=["history"]), group, 1, hooks)
        items = shared.batches(0, 0)
        first = next(item for item in items if item is not None)
        items.close()
        shared.close()
        shared.go_back(Position(0, 1, state=first.state), 4)  # two rows of each process

    on_both(run)
    release.set()
    assert caplog.text.count("2 rows were read ahead but not trained on") == 2
