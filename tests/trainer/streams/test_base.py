import numpy as np
import pytest

from trainer.data.position import Position
from trainer.data.streaming.stream_source import StreamSource
from trainer.data.user_data import UserData
from trainer.errors import ConfigurationError, DataError
from trainer.streams import Batch, Span, Stream, advance, concat


def batch(first, last, *spans):
    return Batch({"user": np.arange(first, last)}, np.arange(first, last, dtype=np.float64), spans)


def test_a_split_batch_knows_which_rows_each_half_holds():
    whole = concat([batch(0, 3, Span("a", 10, 2, 4, 11)), batch(3, 7, Span("b", "7-0", 0, 3, "7-1"))])
    for n in range(8):
        head, tail = whole.split(n)
        assert (head.rows, tail.rows) == (n, 7 - n)
        assert sum(span.rows for span in head.spans) == n
        assert sum(span.rows for span in tail.spans) == 7 - n
        assert advance(advance({}, head), tail) == advance({}, whole) == {"a": [11, 0], "b": ["7-1", 0]}
    assert advance({"c": [5, 0]}, whole.split(1)[0]) == {"c": [5, 0], "a": [10, 3]}
    assert advance({}, whole.split(5)[0]) == {"a": [11, 0], "b": ["7-0", 2]}


def test_batches_that_differ_in_columns_are_not_joined():
    with pytest.raises(DataError, match="same columns"):
        concat([batch(0, 1), Batch({"item": np.arange(1)}, None, ())])
    with pytest.raises(DataError, match="row shape"):
        concat([batch(0, 1), Batch({"user": np.zeros((1, 2))}, np.zeros(1), ())])


class Squares(Stream):
    """A stream as a user writes one: where rows come from, and how to get back to one of them."""

    def __init__(self, rows):
        self.rows, self.row = rows, 0

    @property
    def exhausted(self):
        return self.row == self.rows

    def poll(self, max_rows, timeout=0.0):
        count = min(max_rows, self.rows - self.row)
        if not count:
            return None
        x = np.arange(self.row, self.row + count, dtype=np.float32)
        span = Span("squares", 0, self.row, self.row + count - 1)
        self.row += count
        return Batch({"x": x, "label": x**2}, None, (span,))

    def position(self):
        return {"squares": [0, self.row]}

    def seek(self, position):
        self.row = position.get("squares", [0, 0])[1]


def test_a_stream_of_a_users_own_needs_to_say_no_more_than_where_its_rows_are():
    source = StreamSource(UserData(Squares(10)).stream(), 4)
    items = list(source.batches(0, 0))
    assert [item.columns[1].tolist() for item in items] == [[0, 1, 4, 9], [16, 25, 36, 49], [64, 81]]
    again = StreamSource(UserData(Squares(10)).stream(), 4)
    position = again.resolve(Position(state=items[0].state))
    assert next(again.batches(0, 1, position.state)).columns[0].tolist() == [4, 5, 6, 7]
    again.commit(position)
    assert again.ended is None
    assert source.ended == "stream_end"


def test_something_that_only_looks_like_a_stream_is_named():
    class Almost:
        def poll(self, max_rows, timeout):
            return None

    with pytest.raises(ConfigurationError, match=r"Almost has a poll method .* derive it from that class"):
        UserData(Almost()).stream()
