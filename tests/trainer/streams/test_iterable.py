import itertools

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from mindspore import dataset as ds

from trainer.errors import DataError, StreamError
from trainer.features import Categorical, Features, ListFeature, Numeric
from trainer.features.stream_rows import BatchTransform
from trainer.streams import IterableStream, ReplayStream, advance, concat

SIZES = [3, 1, 5, 2]
TOTAL = sum(SIZES)


def batches():
    first = 0
    for size in SIZES:
        users = np.arange(first, first + size)
        yield {"user": users, "ts": users * 10.0}
        first += size


class Counter:
    """An iterable that can tell and restore where it is."""

    def __init__(self):
        self.next = 0
        self.restored = 0

    def __iter__(self):
        while self.next < TOTAL:
            self.next += 2
            yield {"user": np.arange(self.next - 2, min(self.next, TOTAL))}

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.restored += 1
        self.next = state["next"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: batches,
        lambda: list(batches()),
        lambda: lambda: ({"user": n} for n in range(TOTAL)),
        lambda: batches(),
        Counter,
    ],
    ids=["factory", "list", "single rows", "fresh generator", "stateful"],
)
def test_resumes_behind_every_row(make, resumes):
    resumes(lambda: IterableStream(make()), list(range(TOTAL)), max_rows=4)


def test_event_time_and_named_tuples():
    stream = IterableStream([(np.arange(4), np.arange(4) * 10.0)], names=["user", "ts"], event_time="ts")
    batch = stream.poll(3, 0)
    assert batch.event_time.tolist() == [0, 10, 20]
    assert not stream.exhausted
    assert stream.poll(3, 0).rows == 1
    assert stream.poll(3, 0) is None
    assert stream.exhausted


def test_a_stateful_source_is_restored_and_not_read_again():
    stream = IterableStream(Counter())
    position = stream.position()
    for _ in range(3):
        position = advance(position, stream.poll(2, 0))
    stream.poll(2, 0)
    position = stream.resolve(position)
    source = Counter()
    resumed = IterableStream(source)
    resumed.seek(position)
    assert source.next == 6
    assert resumed.poll(2, 0).columns["user"].tolist() == [6, 7]


def test_a_plain_iterator_that_has_moved_on_says_what_to_do():
    stream = IterableStream(batches())
    start = stream.position()
    stream.seek(start)
    stream.poll(2, 0)
    with pytest.raises(StreamError, match="a function that returns a new iterator"):
        stream.seek(start)


def test_faulty_items_are_named():
    stream = IterableStream([{"user": np.arange(2)}, {"user": np.ones(2)}])
    stream.poll(2, 0)
    with pytest.raises(DataError, match=r"item 1 .* changed"):
        stream.poll(2, 0)
    with pytest.raises(DataError, match="different numbers of rows"):
        IterableStream([{"user": np.arange(2), "item": np.arange(3)}]).poll(2, 0)
    with pytest.raises(DataError, match="names="):
        IterableStream([(np.arange(2), np.arange(2))], names=["user"]).poll(2, 0)
    with pytest.raises(StreamError, match="has 4 items"):
        IterableStream(batches).seek({"iterable": [9, 0]})


def test_mindspore_datasets_bounded_and_endless(resumes):
    data = ds.NumpySlicesDataset({"user": np.arange(TOTAL, dtype=np.int32)}, shuffle=False).batch(4)
    resumes(lambda: IterableStream(data), list(range(TOTAL)), max_rows=3, every=4)

    def endless():
        for n in itertools.count():
            yield (np.full(2, n, dtype=np.int32),)

    stream = IterableStream(ds.GeneratorDataset(endless, ["user"], shuffle=False), rows="batch")
    assert [stream.poll(2, 0).columns["user"].tolist() for _ in range(3)] == [[0, 0], [1, 1], [2, 2]]
    assert not stream.exhausted


def test_a_shuffled_pipeline_without_a_seed_resumes_in_the_order_that_was_read(resumes, read):
    before = ds.config.get_seed()
    ds.config.set_seed(5489)  # MindSpore's value without a seed
    try:
        data = ds.NumpySlicesDataset({"user": np.arange(TOTAL, dtype=np.int32)}, shuffle=True).batch(4)
        order = read(IterableStream(data)).columns["user"].tolist()
        assert sorted(order) == list(range(TOTAL)) != order
        resumes(lambda: IterableStream(data), order, max_rows=3, every=4)
        made = read(IterableStream(lambda: data, names=["user"])).columns["user"].tolist()
        assert sorted(made) == list(range(TOTAL)) != made
        resumes(lambda: IterableStream(lambda: data, names=["user"]), made, max_rows=3, every=4)
        assert ds.config.get_seed() == 5489
    finally:
        ds.config.set_seed(before)


def test_lists_may_have_one_length_in_each_batch_and_another_one_in_the_next(resumes):
    rows = [[1, 2], [3, 4], [5], [6, 7, 8], [], [9]]
    batches = [
        {"user": np.arange(first, last), "history": rows[first:last]}
        for first, last in ((0, 2), (2, 3), (3, 4), (4, 6))
    ]
    stream, read = IterableStream(batches, rows="batch"), []
    while (batch := stream.poll(10, 0.0)) is not None:
        read += [batch.columns["history"][row].tolist() for row in range(batch.rows)]
    assert read == rows
    resumes(lambda: IterableStream(batches, rows="batch"), list(range(6)), max_rows=1)
    arrays = [{"user": np.arange(1), "history": np.ones((1, length))} for length in (2, 3)]
    stream = IterableStream(arrays, rows="batch")
    stream.poll(1, 0.0)
    with pytest.raises(DataError, match="item 1 of the iterable changed row shape"):
        stream.poll(1, 0.0)


def as_trained(stream, features):
    stream.declare(features.schema)
    transform, batches = BatchTransform(features, stream), []
    while not stream.exhausted:
        if (batch := stream.poll(2, 1.0)) is not None:
            batches.append(transform(batch))
    return concat(batches).columns


def test_raw_rows_are_read_one_by_one_as_they_are_in_a_table():
    """NumPy would read NaN among texts as the text "nan"; rows may lack a value and differ in type."""
    features = Features([Categorical("city"), Numeric("age", indicator=True), ListFeature("tags")], label="y")
    cities, ages = ["a", float("nan"), "b", None, 5, "a", True], [1, 2.5, None, 3, "4", 5, float("nan")]
    tags = [["x"], [], None, ["y", "z"], ["x", None], ["y"], ["z"]]
    rows = [dict(zip(("city", "age", "tags"), row, strict=True), y=0.0) for row in zip(cities, ages, tags, strict=True)]
    del rows[0]["city"], rows[2]["age"], rows[2]["tags"]
    expected = features.transform(rows)
    found = as_trained(IterableStream(rows), features)
    for name in ("ids", "numbers"):
        np.testing.assert_array_equal(found[name], expected[name])
    assert [row.tolist() for row in found["tags"]] == [row.tolist() for row in expected["tags"]]


def test_columns_of_lists_and_arrow_tables_are_read_as_they_are_in_a_table():
    features = Features([Categorical("city"), Categorical("user", dtype="int64"), Categorical("known")], label="y")
    known = [True, float("nan"), False]
    users, table = [2**60 + 1, None, 7], {"city": ["a", float("nan"), "b"], "y": [0.0, 1.0, 0.0], "known": known}
    expected = features.transform({**table, "user": users})["ids"]
    arrow = pa.table({"city": ["a", None, "b"], "user": pa.array(users), "y": table["y"], "known": [True, None, False]})
    for stream in (ReplayStream({**table, "user": users}), IterableStream([{**table, "user": users}])):
        np.testing.assert_array_equal(as_trained(stream, features)["ids"], expected)
    np.testing.assert_array_equal(as_trained(ReplayStream(arrow), features)["ids"], expected)


def test_values_of_different_types_in_lists_are_read_as_they_are_in_a_table():
    features = Features([ListFeature("tags", vocabulary=["a", "b", "1", "2", "true", "nan"])], label="y")
    table = {"tags": [["a", float("nan")], ["b", 2, "a"], [], [1.0, 2], [True, "b"], [2]], "y": [0.0] * 6}
    expected = features.transform(table)["tags"]
    assert expected.lengths.tolist() == [1, 3, 0, 2, 2, 1]
    for stream in (ReplayStream(table), IterableStream([table])):
        found = as_trained(stream, features)["tags"]
        assert [row.tolist() for row in found] == [row.tolist() for row in expected]


def test_rows_that_lack_a_column_of_others_are_refused_without_features():
    stream = IterableStream([{"x": 1.0}, {"x": 2.0, "city": "b"}])
    with pytest.raises(DataError, match=r"rows 0 to 1 of the iterable differ in columns or shapes: 'city'"):
        stream.poll(2, 1.0)


def test_bytes_of_any_length_are_one_column():
    batches = [{"user": np.array([b"a", b"bc"])}, {"user": np.array([b"defgh"])}]
    stream = IterableStream(batches)
    assert [stream.poll(9).columns["user"].tolist() for _ in batches] == [[b"a", b"bc"], [b"defgh"]]


def test_single_rows_of_text_and_other_values_keep_these():
    values = ["a", float("nan"), 5, b"c"]
    (found,) = IterableStream([{"user": value} for value in values]).poll(9, 1.0).columns.values()
    assert found.dtype == object
    assert [str(value) for value in found] == ["a", "nan", "5", "b'c'"]
    assert np.isnan(found[1])


@pytest.mark.parametrize("kind", [pa.table, pd.DataFrame])
def test_lists_of_one_length_in_tables_and_frames_are_arrays_as_python_lists_are(kind):
    items = [kind({"x": [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]}), kind({"x": [[7.0], [8.0, 9.0]]})]
    assert IterableStream(items).poll(2, 0).columns["x"].tolist() == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    stream = IterableStream(items)
    rows = concat([stream.poll(2, 0), stream.poll(2, 0)]).columns["x"]
    assert [row.tolist() for row in rows] == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0], [8.0, 9.0]]
