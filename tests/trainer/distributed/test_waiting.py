"""Processes that wait for the data of one: in short agreements, or where no collective gives them up."""

import threading
import time

import numpy as np
import pytest

from trainer.data.chunk import Chunk
from trainer.distributed.agreement import StopHooks, everyones_chunks
from trainer.distributed.barrier import Barrier
from trainer.distributed.group import Group
from trainer.errors import TrainerError
from trainer.state import StopReason


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
        except TrainerError as error:
            found[rank] = error

    threads = [threading.Thread(target=process, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    return found


def chunk(number, last):
    position = {"epoch": 1, "batch": 0} if last else {"epoch": 0, "batch": number + 1}
    return Chunk((), (), (), (), False, 1, 1, 8, 8, False, last, position)


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
    found = [(one.num_samples, one.all_samples) for one in everyones_chunks(group, hooks, open_chunks, lambda: None)]
    return found, group.gathered, [reason.kind for reason in reasons]


def test_a_process_that_waits_for_its_data_agrees_with_the_others_all_the_while():
    (zero, rounds, _), (one, same, _) = on_both(chunks)
    assert zero == [(8, 16), (8, 16), (8, 8)]
    assert one == [(8, 16), (8, 16), (0, 8)]
    assert rounds == same
    assert rounds > 10


def test_a_process_that_is_told_to_stop_while_it_waits_stops_all():
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
        barrier = Barrier(group)
        for round_ in range(2):
            time.sleep(0.2 * (group.rank == round_))
            came[group.rank] = time.monotonic()
            barrier.wait()
            left[group.rank] = time.monotonic()
        return barrier.works

    assert on_both(run) == [True, True]
    assert min(left) >= max(came)


def test_a_process_that_has_gone_ends_the_waiting(scheduler):
    def run(group):
        barrier = Barrier(group)
        if group.rank == 1:
            barrier.close()
        else:
            barrier.wait()

    found = on_both(run)
    assert isinstance(found[0], TrainerError)
    assert "is gone" in str(found[0])
