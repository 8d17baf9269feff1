import numpy as np
import pytest

from trainer.errors import DataError
from trainer.streams import Batch, Span, advance, concat


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
