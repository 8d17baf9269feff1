"""Rows of different lengths: cutting, joining, padding to a few lengths, and training on them."""

import mindspore
import numpy as np
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mindspore import nn, ops

from trainer import Trainer
from trainer.data.ragged import Ragged, RaggedColumns
from trainer.data.source import Item, Source
from trainer.data.streaming.stream_source import ChecksummedSource
from trainer.embedding import Embedding, EmbeddingBag
from trainer.embedding.tables.hashing import to_ids
from trainer.errors import ConfigurationError, DataError
from trainer.native.memory import bucket
from trainer.streams import ReplayStream

LISTS = [[5, 1, 2], [], [3], [4, 4], [7, 8, 9, 1, 2]]
_rows = st.lists(st.lists(st.integers(-9, 9), max_size=6), min_size=1, max_size=8)


def as_lists(column):
    return [column[i].tolist() for i in range(len(column))]


class TestRagged:
    @given(_rows, st.data())
    def test_rows_are_those_of_the_lists_however_they_are_cut_and_joined(self, rows, data):
        column = Ragged.of(rows)
        assert as_lists(column) == rows
        first, last = sorted(data.draw(st.tuples(*[st.integers(0, len(rows))] * 2)))
        assert as_lists(column[first:last]) == rows[first:last]
        order = data.draw(st.lists(st.integers(0, len(rows) - 1)))
        assert as_lists(column[np.array(order, np.int64)]) == [rows[i] for i in order]
        assert as_lists(np.concatenate([column[first:], column[:last]])) == rows[first:] + rows[:last]

    @given(_rows, st.integers(1, 7))
    def test_padding_fills_up_and_cutting_keeps_the_newest(self, rows, most):
        column = Ragged.of(rows, padding=-1, max_length=most).cut()
        expected = [row[-most:] + [-1] * (most - len(row[-most:])) for row in rows]
        assert column.padded(most).tolist() == expected

    @pytest.mark.parametrize(
        "column",
        [
            pyarrow.array(LISTS),
            pyarrow.chunked_array([pyarrow.array(LISTS[:2]), pyarrow.array(LISTS[2:])]),
            pyarrow.array([[0], *LISTS]).slice(1),
            [np.array(row, np.int64) for row in LISTS],
            [tuple(row) if row else None for row in LISTS],
        ],
        ids=["arrow", "chunks", "slice", "arrays", "None"],
    )
    def test_lists_of_any_kind(self, column):
        assert as_lists(Ragged.of(column)) == LISTS

    def test_padded_lengths_are_few(self):
        assert sorted({bucket(n) for n in range(1000)}) == [2**n for n in range(11)]
        assert sorted({bucket(n, 4) for n in range(8, 33)}) == [8, 10, 12, 14, 16, 20, 24, 28, 32]
        assert all(n <= bucket(n, 16) <= n * 17 / 16 + 1 for n in range(1, 5000))

    @pytest.mark.parametrize(
        ("make", "error", "message"),
        [
            (lambda: Ragged([1, 2], [0, 3]), ConfigurationError, "offsets: takes 0 to 2; received 0 to 3"),
            (lambda: Ragged([1, 2], [1, 0]), ConfigurationError, "ascending"),
            (lambda: Ragged.of([[1]], per_octave=3), ConfigurationError, "per_octave: takes 1, 2, 4, 8 or 16"),
            (lambda: Ragged.of([[1]], max_length=0), ConfigurationError, "max_length: takes a whole number >= 1"),
            (lambda: Ragged.of([[1], 2]), DataError, "mixes lists and single values"),
            (lambda: Ragged.of([[1], [[2]]]), DataError, "different depths"),
        ],
    )
    def test_refused(self, make, error, message):
        with pytest.raises(error, match=message):
            make()


class TestColumns:
    def test_mask_and_lengths_stand_where_the_network_takes_them(self):
        make = RaggedColumns(["user", "history", "history_mask", "history_lengths", "item"])
        columns, names = make(
            (np.arange(2), Ragged.of([[1, 2, 3], [4]]), np.arange(2), np.ones(2)), ("user", "history", "item", "y")
        )
        assert names == ("user", "history", "history_mask", "history_lengths", "item", "y")
        assert columns[1].tolist() == [[1, 2, 3, 0], [4, 0, 0, 0]]
        assert columns[2].tolist() == [[True, True, True, False], [True, False, False, False]]
        assert columns[3].tolist() == [3, 1]

    def test_lists_that_are_equally_long_by_chance_get_their_mask_too(self):
        columns, _ = RaggedColumns(["h", "h_mask"])((np.array([[1, 2, 3]]),), ("h",))
        assert [column.tolist() for column in columns] == [[[1, 2, 3, 0]], [[True, True, True, False]]]

    def test_offsets_take_the_values_one_after_another(self):
        columns, names = RaggedColumns(["h", "h_offsets"])((Ragged.of([[1, 2, 3], [], [4, 5]], padding=-1),), ("h",))
        assert names == ("h", "h_offsets")
        assert [column.tolist() for column in columns] == [[1, 2, 3, 4, 5, -1, -1, -1], [0, 3, 3]]
        with pytest.raises(ConfigurationError, match="either one after another"):
            RaggedColumns(["h", "h_offsets", "h_mask"])((Ragged.of([[1]]),), ("h",))


class MeanOfHistory(nn.Cell):
    """The mean of a history's vectors, by its mask, to one logit."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 4, embedding_table=mindspore.Tensor(_values(10, 4)))
        self.head = nn.Dense(4, 1, weight_init=mindspore.Tensor(_values(1, 4)), bias_init="zeros")

    def construct(self, history, history_mask):
        weight = ops.cast(history_mask, mindspore.float32).expand_dims(-1)
        return self.head(
            (self.table(history) * weight).sum(1) / ops.maximum(weight.sum(1), ops.ones_like(weight.sum(1)))
        )


class BagOfHistory(nn.Cell):
    """The same from flat ids with offsets."""

    def __init__(self, sparse=False):
        super().__init__()
        self.bag = EmbeddingBag(4, 10, combiner="mean", mode="sparse" if sparse else "dense")
        self.head = nn.Dense(4, 1, weight_init=mindspore.Tensor(_values(1, 4)), bias_init="zeros")

    def construct(self, history, history_offsets):
        return self.head(self.bag(history, None, history_offsets))


class BagOfPadded(nn.Cell):
    """Neither mask nor offsets: the padding is that of the bag, or an id."""

    def __init__(self):
        super().__init__()
        self.bag = EmbeddingBag(4, combiner="mean")

    def construct(self, history):
        return self.bag(history).sum(1)


def test_padding_that_a_bag_would_read_as_an_id_is_warned_of(caplog):
    rows = [[1, 2, 3], [4], []]
    padded = Ragged.of(rows, padding=-1)
    expected = Trainer(BagOfPadded()).predict({"history": padded})
    assert "reads as an id" not in caplog.text
    assert Trainer(BagOfPadded()).predict({"history": rows}).shape == expected.shape
    assert "lists of column 'history' are padded with 0, which table 'bag', whose padding is -1" in caplog.text


def _values(*shape):
    return np.random.default_rng(3).normal(size=shape).astype(np.float32)


def histories(count=40):
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 10, rng.integers(0, 9)).tolist() for _ in range(count)]
    return rows, np.array([[float(sum(row) % 2)] for row in rows], np.float32)


def fitted(data, network=None, **options):
    network = network or MeanOfHistory()
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params(), 1e-2))
    trainer.fit(data, 2, callbacks=[], shuffle=False, **options)
    return trainer, trainer.state.train_loss


@pytest.fixture(scope="module")
def by_hand():
    """The training on arrays padded by hand, all to one length."""
    rows, labels = histories()
    mask = np.array([[i < len(row) for i in range(8)] for row in rows])
    padded = np.array([row + [0] * (8 - len(row)) for row in rows])
    return fitted({"history": padded, "history_mask": mask, "y": labels}, batch_size=8)


@pytest.mark.long(but=["lists"])
@pytest.mark.parametrize("kind", ["lists", "arrow table", "batches"])
def test_a_network_with_a_mask_trains_as_on_arrays_padded_by_hand(kind, by_hand):
    rows, labels = histories()
    data, options = {"history": rows, "y": labels}, {"batch_size": 8}
    if kind == "arrow table":
        data = pyarrow.table({"history": rows, "y": labels[:, 0]})
        data = {"history": data.column("history"), "y": labels}
    elif kind == "batches":
        data = [{"history": rows[i : i + 8], "y": labels[i : i + 8]} for i in range(0, 40, 8)]
        options = {}
    trainer, loss = fitted(data, **options)
    assert loss == pytest.approx(by_hand[1], rel=1e-5)
    np.testing.assert_allclose(
        trainer.predict({"history": rows}, batch_size=8), by_hand[0].predict({"history": rows}, batch_size=8), rtol=1e-4
    )


@pytest.mark.long(but=["True"])
@pytest.mark.parametrize("sparse", [False, True])
def test_bags_with_offsets_train(sparse):
    rows, labels = histories()
    data = {"history": Ragged.of(rows, padding=-1), "y": labels}
    trainer, loss = fitted(data, BagOfHistory(sparse), batch_size=8, sink_size=1)
    assert 0.4 < loss < 0.9
    assert trainer.state.progress.samples_seen == 80
    assert trainer.predict({"history": Ragged.of(rows, padding=-1)}, batch_size=8).shape == (40, 1)


class TableOfHistory(nn.Cell):
    """The mean of a history's vectors from a table of the trainer's."""

    def __init__(self, mode):
        super().__init__()
        self.table = Embedding(4, 10, mode=mode)
        self.head = nn.Dense(4, 1)

    def construct(self, history, history_mask):
        weight = ops.cast(history_mask, mindspore.float32).expand_dims(-1)
        return self.head((self.table(history) * weight).sum(1))


@pytest.mark.long(but=["sparse"])
@pytest.mark.parametrize("mode", ["dense", "sparse"])
def test_tables_take_batches_longer_and_shorter_than_the_first(mode):
    rows = [[1, 2, 3]] * 4 + [[4]] * 4 + [[5, 6, 7, 8, 9]] * 4
    data = {"history": rows, "y": np.ones((12, 1), np.float32)}
    trainer, _ = fitted(data, TableOfHistory(mode), batch_size=4, sink_size=1)
    assert trainer.predict({"history": rows}, batch_size=4).shape == (12, 1)
    if mode == "dense":
        with pytest.raises(DataError, match="takes ids from 0 to 9; received 10"):
            trainer.predict({"history": [[1] * 9 + [10]]}, batch_size=4)


def sums(*batches):
    """Return the sums that a process tells the others after each of these batches of one column."""
    source = Source()
    source.names = ("history",)
    source.batches = lambda epoch, start, state=None: (Item((batch,)) for batch in batches)
    return [item.state[0] for item in ChecksummedSource(source).batches(0, 0)]


def test_processes_that_read_the_same_rows_have_the_same_sum_and_others_another():
    def texts():
        return Ragged(np.array(["".join(["it", "em"]), "b" * 20, "c"], object), [0, 2, 3])

    assert sums(texts(), texts()) == sums(texts(), texts())
    assert sums(Ragged.of([[1, 2], [3]])) != sums(Ragged.of([[1], [2, 3]]))
    assert sums(Ragged.of([[0, 9], [1, 2], [3]])[1:]) == sums(Ragged.of([[1, 2], [3]]))


def test_short_lists_have_one_length_so_that_several_columns_do_not_multiply_programs():
    ragged = RaggedColumns(("genres", "history", "history_mask", "long"))
    shapes, lengths = set(), set()
    for size in (1, 2, 5, 20):
        rows = [[1] * min(size, 6)], [[1] * size], [[1] * size]
        columns = [Ragged.of(r, max_length=most) for r, most in zip(rows, (6, 20, 200), strict=True)]
        arrays, names = ragged(columns, ("genres", "history", "long"))
        assert names == ragged.arguments
        shapes.add(tuple(array.shape for array in arrays[:3]))
        lengths.add(arrays[3].shape[1])
        assert arrays[1].sum() == size == arrays[2].sum()
    assert shapes == {((1, 6), (1, 20), (1, 20))}
    assert lengths == {1, 2, 8, 32}


TEXTS = [["a", "b"], ["c"], [], ["a"]]


@pytest.mark.long(but=["arrow"])
@pytest.mark.parametrize(
    "lists",
    [
        pyarrow.array(TEXTS),
        pyarrow.chunked_array([TEXTS[:1], TEXTS[1:]]),
        [np.array(row, object) for row in TEXTS],
        pyarrow.table({"tags": TEXTS}).to_pandas()["tags"],
    ],
    ids=["arrow", "chunks", "objects", "pandas"],
)
def test_lists_of_text_reach_the_table_in_any_form(lists):
    trainers = []
    for tags in (TEXTS, lists):
        network = TableOfHistory("sparse")
        trainers.append(Trainer(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.1)))
        trainers[-1].fit({"history": tags, "y": np.ones((4, 1), np.float32)}, batch_size=4, callbacks=[])
        assert trainers[-1].tables.tables.tables["table"].lookup(to_ids(np.array(["a", "b", "c"]))).all()
        assert trainers[-1].predict({"history": TEXTS}).tolist() == trainers[-1].predict({"history": lists}).tolist()


@pytest.mark.parametrize(
    "lists", [[["a", 5], ["b"]], [["a", None], ["b"]], pyarrow.array([["a", None], ["b"]])], ids=str
)
def test_lists_that_mix_text_with_other_values_are_refused_by_name(lists):
    network = TableOfHistory("sparse")
    trainer = Trainer(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.1))
    with pytest.raises(DataError, match="column 'history': its lists hold values of several types, or missing ones"):
        trainer.fit({"history": lists, "y": np.ones((2, 1), np.float32)}, batch_size=2, callbacks=[])


class Total(nn.Cell):
    def construct(self, x):
        return (x + 1).sum(1)


VECTORS = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]


@pytest.mark.parametrize(
    "vectors",
    [
        pyarrow.array(VECTORS),
        pyarrow.array(VECTORS, pyarrow.list_(pyarrow.float32(), 3)),
        pyarrow.chunked_array([VECTORS[:1], VECTORS[1:]]),
        pyarrow.table({"x": VECTORS}).to_pandas()["x"],
    ],
    ids=["lists", "fixed lists", "chunks", "pandas"],
)
def test_lists_of_one_length_are_an_array_without_padding_in_any_form(vectors):
    trainer, expected = Trainer(Total(), nn.MSELoss()), [9.0, 18.0]
    assert trainer.predict({"x": vectors}).tolist() == expected
    assert trainer.evaluate({"x": vectors, "y": np.array(expected)})["loss"] == 0.0
    assert ReplayStream({"x": vectors}).poll(2).columns["x"].tolist() == VECTORS
    assert trainer.evaluate([pyarrow.table({"x": vectors, "y": expected})])["loss"] == 0.0
