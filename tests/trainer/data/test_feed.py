"""Chunks: how batches are grouped, padded, prefetched and numbered, and which batch is named when one is bad."""

import itertools
import threading
import time
from unittest import mock

import mindspore.dataset as ms_dataset
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.data.chunk import ChunkTransform, FeedOptions
from trainer.data.feed import Feed, to_tensor
from trainer.data.position import Position
from trainer.data.streaming.stream_source import StreamSource
from trainer.data.user_data import UserData
from trainer.data.waiting import DATA_WAIT, MAX_QUEUED, MIN_QUEUED, Prefetch, WaitClock
from trainer.errors import DataError
from trainer.streams import ReplayStream


def numbered(count, rows=4):
    """Return `count` batches; every value of a batch is its number."""
    return [(np.full((rows, 2), number, np.float32),) for number in range(count)]


def chunks(data, steps=1, accumulate=1, position=None, max_steps=None, **options):
    feed = Feed(UserData(data).source(), FeedOptions(steps, accumulate, **options))
    try:
        return list(feed.chunks(position or Position(), max_steps))
    finally:
        feed.close()


def content(chunk):
    batches = chunk.arrays[0][: chunk.num_batches] if chunk.stacked else chunk.arrays[:1]
    return [int(batch[0, 0]) for batch in batches]


class TestGrouping:
    def test_full_groups_and_a_padded_rest(self):
        first, second, last = chunks(numbered(7), 3)
        assert [content(chunk) for chunk in (first, second, last)] == [[0, 1, 2], [3, 4, 5], [6]]
        assert [chunk.num_steps for chunk in (first, second, last)] == [3, 3, 1]
        assert [chunk.num_samples for chunk in (first, second, last)] == [12, 12, 4]
        assert [chunk.ends_epoch for chunk in (first, second, last)] == [False, False, True]
        assert last.arrays[0].shape == (3, 4, 2)
        assert (last.arrays[0][1:] == 0).all()
        assert last.rows(0).shape == (4, 2)
        assert [chunk.tensors[0].shape for chunk in (first, last)] == [(3, 4, 2), (3, 4, 2)]

    def test_a_full_last_group_still_ends_the_epoch(self):
        assert [chunk.ends_epoch for chunk in chunks(numbered(6), 3)] == [False, True]

    def test_another_shape_starts_another_group(self):
        found = chunks([*numbered(2), *numbered(1, rows=3)], 4)
        assert [(chunk.num_batches, chunk.arrays[0].shape) for chunk in found] == [(2, (4, 4, 2)), (1, (3, 2))]

    def test_shapes_that_keep_changing_are_one_batch_a_call(self):
        lengths = [3, 4, 4, 4, 5, 5, 3, 3]
        found = chunks([(np.full((2, length), n, np.float32),) for n, length in enumerate(lengths)], 4)
        assert [chunk.arrays[0].shape[chunk.stacked :] for chunk in found] == [(2, length) for length in lengths]
        assert [chunk.num_steps for chunk in found] == [1] * 8

    @pytest.mark.parametrize("kind", ["U", "S"])
    def test_text_is_grouped_whatever_its_width_and_nothing_is_cut_off(self, kind):
        class Kept(ChunkTransform):
            def prepare(self, columns, chunk, now):
                seen.append(columns[0][: chunk.num_batches])
                return (np.zeros(columns[0].shape, np.int32),), None

        texts, seen = ["a", "longest", "be", "sea", "d"], []
        found = chunks([(np.array([text] * 2, kind),) for text in texts], 4, transform=Kept)
        assert [(chunk.num_batches, chunk.stacked) for chunk in found] == [(4, True), (1, True)]
        read = [row[0] for batches in seen for row in batches.astype(str)]
        assert read == texts

    def test_many_shapes_are_reported_with_what_they_cost(self, caplog):
        chunks([(np.zeros((2, length), np.float32),) for length in [1, 2, 3, 4, 5, 6, 7, 7, 7]])
        assert not caplog.records
        chunks([(np.zeros((2, length), np.float32),) for length in [1, 2, 3, 4, 5, 6, 7, 8, 8, 9]])
        assert [r.getMessage()[:70] for r in caplog.records] == [
            "batches have had 8 different shapes so far, the newest [[2, 8]]: each "
        ]

    def test_one_batch_a_call_is_not_stacked(self):
        found = chunks(numbered(2), 1)
        assert [chunk.arrays[0].shape for chunk in found] == [(4, 2), (4, 2)]
        assert not found[0].stacked

    def test_a_batch_of_a_step_that_is_short_on_another_process_is_not_stacked_here_either(self):
        source = UserData(numbered(5)).source()
        read = source.batches

        def batches(*position):
            for number, item in enumerate(read(*position)):
                item.kind = "short" if number == 4 else None
                yield item

        source.batches = batches
        found = list(Feed(source, FeedOptions(2)).chunks(Position()))
        assert [(chunk.num_batches, chunk.stacked) for chunk in found] == [(2, True), (2, True), (1, False)]

    def test_the_size_may_depend_on_the_first_batch(self):
        assert [chunk.num_batches for chunk in chunks(numbered(5), lambda item: len(item.columns[0]) // 2)] == [2, 2, 1]


class TestRows:
    """How many rows a batch has where its columns do not agree on it."""

    def graph(self, nodes):
        adjacency, features = np.eye(nodes, dtype=np.float32), np.ones((nodes, 3), np.float32)
        return adjacency[None], features, np.zeros(nodes, np.int32)

    def test_the_counted_column_decides_and_that_is_logged_once(self, caplog):
        found = chunks([self.graph(5), self.graph(7), self.graph(7)], rows_column=-1)
        assert [chunk.num_samples for chunk in found] == [5, 7, 7]
        assert [record.getMessage().partition(";")[2] for record in caplog.records] == [
            " 'column_2' is counted (is the dataset not batched?)"
        ]
        assert [chunk.num_samples for chunk in chunks([self.graph(5)])] == [1]

    def test_a_scalar_counts_as_one_row(self):
        samples = [(np.ones(3, np.float32), np.float32(n)) for n in range(5)]
        found = chunks(samples, 2, rows_column=-1)
        assert [chunk.num_samples for chunk in found] == [2, 2, 1]
        assert found[0].arrays[1].tolist() == [0, 1]
        assert found[0].tensors[1].shape == (2,)
        assert [chunk.tensors[1].shape for chunk in chunks(samples, 1)] == [()] * 5


class TestPositions:
    def test_a_chunk_carries_the_place_after_its_last_batch(self):
        found = chunks(numbered(5), 2, position=Position(3))
        assert [chunk.position for chunk in found] == [
            Position(3, 2),
            Position(3, 4),
            Position(4, 0),
        ]

    def test_going_on_from_any_of_them_gives_the_rest(self):
        all_of_it = chunks(numbered(9), 1, accumulate=2)
        for done, chunk in enumerate(all_of_it[:-1], 1):
            rest = chunks(numbered(9), 1, accumulate=2, position=chunk.position)
            assert [content(c) for c in rest] == [content(c) for c in all_of_it[done:]]
            assert [c.num_steps for c in rest] == [c.num_steps for c in all_of_it[done:]]

    def test_steps_bound_what_is_read(self):
        read = []

        def source():
            for number, batch in enumerate(numbered(100)):
                read.append(number)
                yield batch

        found = chunks(source, 4, max_steps=6)
        assert [chunk.num_steps for chunk in found] == [4, 2]
        assert not found[-1].ends_epoch
        assert len(read) <= 8

    @settings(max_examples=60, deadline=None)
    @given(
        shapes=st.lists(st.sampled_from([4, 4, 4, 3]), min_size=1, max_size=14),
        size=st.integers(1, 4),
        accumulate=st.integers(1, 3),
        max_steps=st.none() | st.integers(1, 5),
    )
    def test_any_grouping_is_complete_and_resumable(self, shapes, size, accumulate, max_steps):
        data = [batch for number, rows in enumerate(shapes) for batch in numbered(number + 1, rows)[number:]]
        found = chunks(data, size, accumulate, max_steps=max_steps)
        seen = [number for chunk in found for number in content(chunk)]
        steps = sum(chunk.num_steps for chunk in found)
        all_steps = -(-len(data) // accumulate)
        if max_steps is None or max_steps >= all_steps:
            assert (seen, steps, found[-1].ends_epoch) == (list(range(len(data))), all_steps, True)
        else:
            assert (seen, steps) == (list(range(max_steps * accumulate)), max_steps)
            assert not any(chunk.ends_epoch for chunk in found)
        for done, chunk in enumerate(found, 1):
            assert len({batch.shape for batch in chunk.arrays[0]} if chunk.stacked else {1}) == 1
            rest = [] if chunk.ends_epoch else chunks(data, size, accumulate, chunk.position)
            assert seen[: sum(c.num_batches for c in found[:done])] + [n for c in rest for n in content(c)] == list(
                range(len(data))
            )
            assert sum(c.num_steps for c in found[:done]) + sum(c.num_steps for c in rest) == all_steps


class TestAccumulation:
    def test_windows_are_counted_over_chunks_and_closed_at_the_end(self):
        # 4 batches per window; the short batch starts a chunk of its own in the middle of one
        found = chunks([*numbered(6), *numbered(1, rows=3)], 1, accumulate=4)
        assert [(chunk.num_batches, chunk.num_steps, chunk.flush) for chunk in found] == [
            (4, 1, False),
            (2, 0, False),
            (1, 1, True),
        ]
        assert found[1].position == Position(0, 6, micro_batches=2)

    def test_a_full_last_window_needs_no_flush(self):
        assert [(chunk.num_steps, chunk.flush) for chunk in chunks(numbered(4), 1, accumulate=2)] == [(1, False)] * 2

    @pytest.mark.parametrize(
        ("steps", "rows", "batches"), [(1, 24, [2, 2, 2]), (2, 24, [4, 2]), (4, 24, [6]), (4, 20, [4])]
    )
    def test_a_silent_stream_lets_complete_updates_be_trained(self, steps, rows, batches):
        times = itertools.chain([0.0], itertools.repeat(float(rows)))
        table = {"x": np.zeros((400, 2), np.float32)}
        stream = ReplayStream(table, rows_per_second=1, clock=lambda: next(times))  # falls silent after `rows`
        source = StreamSource(stream, 4, inputs=("x",), labelled=False, flush_after=0.05)
        feed, deadline, found = Feed(source, FeedOptions(steps, accumulate=2)), time.monotonic() + 20, []
        delivered = feed.chunks(Position(), should_stop=lambda: time.monotonic() > deadline)
        while sum(found) < sum(batches) and (chunk := next(delivered, None)) is not None:
            found.append(chunk.num_batches)
        delivered.close()
        feed.close()
        assert found == batches


class TestBadBatches:
    def test_a_failing_source_names_the_batch_and_keeps_the_cause(self):
        def source():
            yield from numbered(3)
            raise OSError("disk gone")

        with pytest.raises(DataError, match=r"reading batch 3 of epoch 0 failed: OSError: disk gone") as caught:
            chunks(source)
        assert isinstance(caught.value.__cause__, OSError)

    def test_a_failing_worker_of_a_pipeline_names_the_batch(self):
        def source():
            yield from numbered(3)
            raise OSError("disk gone")

        data = ms_dataset.GeneratorDataset(source, ["x"], shuffle=False, num_parallel_workers=1)
        with pytest.raises(DataError, match=r"reading batch \d of epoch 0 failed: RuntimeError: [\s\S]*disk gone"):
            chunks(data)

    @pytest.mark.parametrize(
        ("bad", "message"),
        [
            ((np.ones((4, 2)), np.ones(3)), r"batch 2 of epoch 0: columns have different numbers of rows"),
            ((np.ones((0, 2)),), r"batch 2 of epoch 0: the batch has no rows"),
            (
                (np.array(["a"]),),
                r"batch 2 of epoch 0: column 'column_0': received dtype <U1; accepted are bool, integ",
            ),
            ((3.5,), r"batch 2 of epoch 0: columns have different numbers of rows: {'column_0': \(\)}"),
        ],
        ids=["rows", "empty", "text", "scalar"],
    )
    def test_a_bad_batch_is_named(self, bad, message):
        with pytest.raises(DataError, match=message):
            chunks([*numbered(2), bad])


def test_batches_are_checked_when_their_shapes_or_dtypes_change():
    seen = []
    batches = [*numbered(3), *numbered(1, rows=2), *numbered(2, rows=2), (np.zeros((2, 2), np.float64),)]
    chunks(batches, check=lambda columns, names: seen.append((columns[0].shape, columns[0].dtype)))
    assert seen == [((4, 2), np.float32), ((2, 2), np.float32)]


class TestPrefetch:
    def test_reads_ahead_on_one_thread_and_not_without_bound(self):
        threads, read = set(), []

        def source():
            for number, batch in enumerate(numbered(50)):
                threads.add(threading.current_thread().name)
                read.append(number)
                yield batch

        feed = Feed(UserData(source).source(), FeedOptions(1))
        delivered = feed.chunks(Position())
        next(delivered)
        deadline = time.monotonic() + 60
        while feed.depth < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert 3 <= len(read) <= 5
        assert threads == {"trainer-prefetch"}
        delivered.close()
        feed.close()
        assert "trainer-prefetch" not in {thread.name for thread in threading.enumerate()}

    @pytest.mark.parametrize(("columns", "ahead"), [(2, MAX_QUEUED), (1 << 15, MIN_QUEUED)], ids=["small", "large"])
    def test_reads_a_stream_further_ahead_where_its_batches_are_small(self, columns, ahead):
        rows = {"x": np.arange(400, dtype=np.float32).repeat(columns).reshape(400, columns)}
        feed = Feed(StreamSource(ReplayStream(rows), 4, inputs=("x",), labelled=False), FeedOptions(1))
        delivered = feed.chunks(Position())
        deadline = time.monotonic() + 60
        try:
            assert next(delivered).arrays[0][0, 0] == 0
            while feed.depth < ahead - 1 and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(0.05)
            assert ahead - 1 <= feed.depth <= ahead
            assert [int(chunk.arrays[0][0, 0]) for chunk in delivered] == list(range(4, 400, 4))
        finally:
            delivered.close()

    @pytest.mark.parametrize(("batches", "threads"), [(MAX_QUEUED, 0), (3 * MAX_QUEUED, 1)], ids=["few", "many"])
    def test_arrays_are_cut_ahead_where_they_have_many_batches(self, monkeypatch, batches, threads):
        started = []
        monkeypatch.setattr("trainer.data.feed.Prefetch", lambda *args: started.append(1) or Prefetch(*args))
        x = np.arange(batches * 4, dtype=np.float32)
        feed = Feed(UserData((x,)).source(batch_size=4), FeedOptions(1))
        delivered = feed.chunks(Position(0, 2))
        try:
            assert next(delivered).arrays[0][0] == 8
            assert len(started) == threads
            assert [int(chunk.arrays[0][0]) for chunk in delivered] == list(range(12, batches * 4, 4))
        finally:
            delivered.close()

    def test_a_source_may_reuse_its_buffer(self):
        def source():
            buffer = np.zeros((4, 2), np.float32)
            for number in range(6):
                buffer[:] = number
                yield (buffer,)

        assert [int(chunk.arrays[0][0, 0]) for chunk in chunks(source)] == list(range(6))
        assert [content(chunk) for chunk in chunks(source, 3)] == [[0, 1, 2], [3, 4, 5]]

    def test_waiting_ends_on_a_request_to_stop(self, monkeypatch):
        monkeypatch.setattr("trainer.data.waiting.JOIN_SECONDS", 0.1)
        release = threading.Event()

        def source():
            yield from numbered(1)
            release.wait(10)

        feed = Feed(UserData(source).source(), FeedOptions(1))
        asked = []
        # the last batch of a finite source is held back until the source says whether more follows
        assert list(feed.chunks(Position(), should_stop=lambda: asked.append(1) or len(asked) > 1)) == []
        release.set()
        feed.close()

    def test_a_transform_runs_there_and_its_result_rides_along(self):
        class Increment(ChunkTransform):
            def prepare(self, columns, chunk, now):
                return tuple(column + 1 for column in columns), (chunk.stacked, chunk.num_batches)

        first, last = chunks(numbered(3), 2, transform=Increment)
        assert (first.sparse, last.sparse) == ((True, 2), (True, 1))
        assert int(first.tensors[0].asnumpy()[1, 0, 0]) == 2
        assert int(first.arrays[0][1, 0, 0]) == 1


def test_to_tensor_shares_memory_unless_it_must_not():
    array = np.ones((3, 2), np.float32)
    tensor = to_tensor(array)
    array[0, 0] = 7
    assert tensor.asnumpy()[0, 0] == 7
    frozen = np.ones((3, 2), np.float32)
    frozen.flags.writeable = False
    assert to_tensor(frozen).asnumpy()[0, 0] == 1
    assert (to_tensor(np.arange(6.0, dtype=np.float32).reshape(2, 3).T).asnumpy()[:, 1] == [3, 4, 5]).all()


class Noting(ChunkTransform):
    """Notes what it prepares, and what it is told to forget."""

    def __init__(self, on_graph_thread=False):
        self.on_graph_thread = on_graph_thread
        self.prepared, self.released = [], 0

    def prepare(self, columns, chunk, now):
        self.prepared.append(int(columns[0].flat[0]))
        return columns, None

    def release(self):
        self.released += 1


@pytest.mark.parametrize("on_graph_thread", [False, True], ids=["ahead", "as they are asked for"])
def test_what_was_prepared_and_not_trained_is_released_when_chunks_are_left(on_graph_thread):
    noting = Noting(on_graph_thread)
    feed = Feed(UserData(lambda: numbered(9)).source(), FeedOptions(1, transform=lambda: noting))
    left = feed.chunks(Position())
    assert content(next(left)) == [0]
    left.close()
    feed.close()
    assert noting.released == 1


def test_a_reading_that_was_left_while_its_source_blocked_prepares_nothing_more():
    going_on, found = threading.Event(), []

    def blocking():
        yield from numbered(3)
        going_on.wait(20)

    noting = Noting()
    feed = Feed(UserData(blocking).source(), FeedOptions(2, transform=lambda: noting))
    with mock.patch.object(DATA_WAIT, "leaving", True):  # so a blocked source is waited for a moment only
        for chunk in feed.chunks(Position(), should_stop=lambda: bool(found)):
            found.append(content(chunk))
    assert found == [[0, 1]]
    (reading,) = [thread for thread in threading.enumerate() if thread.name == "trainer-prefetch"]
    going_on.set()
    reading.join(20)
    assert not reading.is_alive()
    assert noting.prepared == [0]  # the third batch stood waiting for a fourth


@pytest.mark.parametrize("on_graph_thread", [False, True], ids=["ahead", "as they are asked for"])
def test_how_a_chunk_is_trained_does_not_depend_on_how_far_ahead_is_read(on_graph_thread):
    """Processes that train together read ahead by different amounts."""
    far = threading.Event()

    def changing():
        for number in range(6):
            if number == 3:
                far.set()
            yield (np.full((4 if number == 0 else 5, 2), number, np.float32),)

    def wait(there):
        return far.wait(20) or True

    noting = Noting(on_graph_thread)
    feed = Feed(UserData(changing).source(), FeedOptions(2, transform=lambda: noting))
    found = [(content(chunk), chunk.stacked) for chunk in feed.chunks(Position(), gate=wait)]
    feed.close()
    assert found == [([0], True), *[([number], False) for number in range(1, 6)]]


def test_waiting_for_other_processes_is_not_waiting_for_data():
    clock = WaitClock()
    start = clock.since
    clock.note_wait(start + 3, 2.0)
    assert (clock.waited, clock.worked, clock.since) == (1.0, 2.0, start + 3)
    clock.note_wait(start + 4, 5.0)  # spent while the caller trained, most of it
    assert (clock.waited, clock.worked) == (1.0, 3.0)
