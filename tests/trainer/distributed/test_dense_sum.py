"""Sums over processes, in the order of ranks; threads stand for processes, each with its own connections."""

import numpy as np
import pytest

from tests.trainer.distributed.threads import connected
from trainer.distributed.dense_sum import DIRECT_BYTES, DenseSum
from trainer.errors import TrainerError


@pytest.fixture(params=[2, 3, 4])
def members(request):
    with connected(request.param) as (members, run):
        yield members, run


@pytest.mark.parametrize("length", [1, DIRECT_BYTES // 4, DIRECT_BYTES // 4 + 1, 100_003])
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


@pytest.mark.parametrize("entries", [DIRECT_BYTES // 16, 30_000, 1 << 22])
def test_gradients_of_any_shapes_are_summed_with_their_head(members, monkeypatch, entries):
    """In messages of at most so many entries; those of a process without rows count as 0, and its head counts."""
    monkeypatch.setattr("trainer.distributed.dense_sum.MESSAGE_ENTRIES", entries)
    members, run = members
    shapes = [(3, 7), (1,), (250, 160), (0, 4), (41,)]
    rng = np.random.default_rng(0)
    gradients = [[rng.normal(size=shape).astype(np.float32) for shape in shapes] for _ in members]
    gradients[1][0][:] = np.nan
    heads = np.arange(2 * len(members), dtype=np.float32).reshape(-1, 2)

    def total(member):
        rows = np.array([member.rank != 1, 5], np.float32)
        sums = DenseSum(member).add_gradients(*gradients[member.rank], heads[member.rank], rows, np.zeros(1))
        return [array.copy() for array in sums]

    expected = [np.copy(array) for array in gradients[0]]
    for own in gradients[2:]:
        for array, other in zip(expected, own, strict=True):
            array += other
    for found in run(total):
        for array, other in zip(found, [*expected, heads.sum(0)], strict=True):
            np.testing.assert_array_equal(array, other)


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
        with pytest.raises(TrainerError, match="rank 1 has ended" if len(members) == 2 else r"rank \d has ended"):
            add_often(member)
        member.connections.close()

    run(one)
