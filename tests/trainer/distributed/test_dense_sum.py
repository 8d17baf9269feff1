"""Sums over processes, in the order of ranks; threads stand for processes, each with its own connections."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from trainer.distributed.all_to_all import AllToAll
from trainer.distributed.dense_sum import WHOLE_BYTES, DenseSum
from trainer.distributed.group import Group
from trainer.errors import TrainerError


class Thread(Group):
    """A member of a group of threads."""

    def __init__(self, rank, values, barrier):
        self.rank, self.size = rank, len(values)
        self._values, self._barrier = values, barrier
        self.connections = None

    def connect(self):
        self.connections = AllToAll(self, 20.0, "127.0.0.1")
        return self

    def all_to_all(self, parts, *, in_graph=False):
        return self.connections.exchange(parts)

    def gather_json(self, value):
        self._values[self.rank] = value
        self._barrier.wait()
        values = list(self._values)
        self._barrier.wait()
        return values


@pytest.fixture(params=[2, 3, 4])
def members(request):
    values, barrier = [None] * request.param, threading.Barrier(request.param)
    with ThreadPoolExecutor(request.param) as pool:
        members = [*pool.map(lambda rank: Thread(rank, values, barrier).connect(), range(request.param))]
        yield members, lambda function: [*pool.map(function, members)]
        for member in members:
            member.connections.close()


@pytest.mark.parametrize("length", [1, WHOLE_BYTES // 4, WHOLE_BYTES // 4 + 1, 100_003])
def test_all_have_the_bits_of_the_sum_in_the_order_of_ranks(members, length):
    members, run = members
    rng = np.random.default_rng(0)
    values = (rng.normal(size=(len(members), length)) * 10.0 ** rng.integers(-4, 4, length)).astype(np.float32)
    expected = values[0].copy()
    for other in values[1:]:
        expected += other
    before = values.copy()
    for total in run(lambda member: DenseSum(member).add(values[member.rank])):
        assert total.dtype == np.float32
        np.testing.assert_array_equal(total, expected)
    np.testing.assert_array_equal(values, before, err_msg="what was given is not changed")


def test_a_large_sum_sends_the_bytes_of_a_ring(members):
    members, run = members
    size, length = len(members), 120_000
    run(lambda member: DenseSum(member).add(np.ones(length, np.float32)))
    sent = sum(member.connections.sent.bytes for member in members) / size
    assert sent == pytest.approx(2 * (size - 1) / size * 4 * length, rel=1e-3)


def test_infinities_and_nan_reach_all(members):
    members, run = members

    def total(member):
        own = np.zeros(50_000, np.float32)
        if member.rank == 1:
            own[[0, -1]] = np.inf, np.nan
        return DenseSum(member).add(own)

    for found in run(total):
        assert np.isinf(found[0])
        assert np.isnan(found[-1])
        assert not found[1:-1].any()


def add_often(member):
    for _ in range(10):
        DenseSum(member).add(np.ones(50_000, np.float32))


def test_a_process_that_is_gone_is_named(members):
    members, run = members

    def one(member):
        if member.rank == 1:
            member.connections.close()
            return
        with pytest.raises(TrainerError, match="rank 1 is gone" if len(members) == 2 else r"rank \d is gone"):
            add_often(member)
        member.connections.close()

    run(one)
