"""Threads that stand for processes, each with its own connections."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

from trainer.distributed.all_to_all import AllToAll
from trainer.distributed.group import Group


class Thread(Group):
    """A member of a group of threads; `connections` are an `AllToAll`."""

    def __init__(self, rank, values, barrier):
        self.rank, self.size = rank, len(values)
        self._values, self._barrier = values, barrier
        self.connections = None

    def connect(self):
        self.connections = AllToAll(self, 20.0, "127.0.0.1")
        return self

    def wait(self):
        self._barrier.wait()

    def all_to_all(self, parts, *, in_graph=False):
        return self.connections.exchange(parts)

    def gather_json(self, value):
        self._values[self.rank] = value
        self.wait()
        values = list(self._values)
        self.wait()
        return values


@contextlib.contextmanager
def group_of(size, kind=Thread):
    """Yield the members, not connected yet, and a function that calls another for each of them at the same time."""
    values, barrier = [None] * size, threading.Barrier(size)
    members = [kind(rank, values, barrier) for rank in range(size)]
    with ThreadPoolExecutor(size) as pool:
        yield members, lambda function: [*pool.map(function, members)]
        for member in members:
            if member.connections is not None:
                member.connections.close()


@contextlib.contextmanager
def connected(size, kind=Thread):
    """Yield what `group_of` does; the members are connected."""
    with group_of(size, kind) as (members, run):
        run(lambda member: member.connect())
        yield members, run
