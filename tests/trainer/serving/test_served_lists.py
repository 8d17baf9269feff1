"""Lists of any length from a stream to a served model: what it answers is what the trainer predicts."""

import numpy as np
import pandas
import pytest
from mindspore import nn, ops

from trainer import Trainer
from trainer.data.ragged import Ragged
from trainer.embedding import Embedding, EmbeddingBag
from trainer.errors import ConfigurationError, DataError
from trainer.serving.http.request_rows import RequestRows, RowReader
from trainer.serving.publisher import Publish
from trainer.serving.served_model import ServedModel
from trainer.streams import ReplayStream


class Net(nn.Cell):
    """The mean of a history by its mask, a bag of tags by their offsets, and a number."""

    def __init__(self):
        super().__init__()
        self.films = Embedding(4, mode="sparse")
        self.tags = EmbeddingBag(3)
        self.head = nn.Dense(4 + 3 + 1, 1)

    def construct(self, history, history_mask, tags, tags_offsets, number):
        weight = ops.cast(history_mask, number.dtype).expand_dims(-1)
        films = (self.films(history) * weight).sum(1)
        return self.head(ops.concat((films, self.tags(tags, None, tags_offsets), number), 1))


def rows(count=60, seed=0, most=7):
    rng = np.random.default_rng(seed)
    history = [[f"film-{n}" for n in rng.integers(0, 20, rng.integers(0, most))] for _ in range(count)]
    tags = [rng.integers(0, 9, rng.integers(0, most)).tolist() for _ in range(count)]
    return history, tags, rng.normal(size=(count, 1)).astype(np.float32)


def train(folder, **options):
    history, tags, number = rows()
    network = Net()
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params(), 0.05))
    table = {"history": Ragged.of(history, **options), "tags": Ragged.of(tags, **options), "number": number}
    stream = ReplayStream({**table, "label": (number > 0).astype(np.float32)})
    trainer.online_train(stream, Publish(folder, every=1e9, batch=8), batch_size=16)
    return trainer


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lists")
    return train(folder, max_length=8), folder


@pytest.mark.long
def test_a_served_model_answers_lists_as_the_trainer_does(trained):
    trainer, folder = trained
    history, tags, number = rows(21, seed=1)
    with ServedModel(folder, follow=False) as model:
        answers = model.predict({"number": number, "history": history, "tags": tags})
        expected = trainer.predict({"history": history, "tags": tags, "number": number}, batch_size=21)
        np.testing.assert_allclose(answers, expected, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(model.predict([history, tags, number]), expected, rtol=1e-4, atol=1e-6)
        with pytest.raises(DataError, match="column tags must be"):
            model.predict({"number": number, "history": history, "tags": tags[:3]})


@pytest.mark.long
def test_longer_rows_keep_their_newest_values(trained):
    history, tags, number = rows(3, seed=2, most=3)
    longer = [[*(["other"] * 9), *(row * 9)][-8:] if row else row for row in history]
    with ServedModel(trained[1], follow=False) as model:
        short = model.predict([longer, tags, number])
        np.testing.assert_array_equal(
            short, model.predict([[["first"] * 5 * bool(r) + r for r in longer], tags, number])
        )


def test_lists_are_cut_to_the_declared_length_whatever_the_program_takes(tmp_path):
    """A program for rows of 40 takes 64 values; longer rows keep 40 of them, as in training."""
    trainer = train(tmp_path, max_length=40)
    history, tags, number = rows(20, seed=2, most=70)
    cut = {"history": Ragged.of(history, max_length=40), "tags": Ragged.of(tags, max_length=40), "number": number}
    with ServedModel(tmp_path, follow=False) as model:
        answers = model.predict({"number": number, "history": history, "tags": tags})
        reader = RowReader(model.graph)
        rows_read = reader.read(RequestRows(20, table={"number": number, "history": history, "tags": tags}))
        assert rows_read.columns["history"].cut().lengths.max() == 40
    np.testing.assert_allclose(answers, trainer.predict(cut, batch_size=20), atol=1e-5)


def test_without_a_longest_row_there_is_nothing_to_publish(tmp_path):
    with pytest.raises(ConfigurationError, match="rows of column 'history' may have any length"):
        train(tmp_path)


def test_lists_of_objects_keep_their_text_and_mixed_ones_are_refused(trained):
    history, tags, number = rows(4, seed=3, most=3)
    with ServedModel(trained[1], follow=False) as model:
        expected = model.predict([history, tags, number]).tolist()
        assert model.predict([[np.array(row, object) for row in history], tags, number]).tolist() == expected
        with pytest.raises(DataError, match="column 'history' takes text; received values of several types"):
            model.predict([[["film-1", None], *history[1:]], tags, number])


def test_text_is_read_after_an_empty_list_and_numbers_among_text_are_refused(trained):
    lists = {"history": [[], [], ["film-1"]], "tags": [[1], [2], [3]], "number": np.ones((3, 1), np.float32)}
    with ServedModel(trained[1], follow=False) as model:
        read = RowReader(model.graph).read(RequestRows(3, table={**lists, "number": [[1.0]] * 3}))
        assert read.reasons == {}
        np.testing.assert_array_equal(model.predict(read.columns), model.predict(lists))
        with pytest.raises(DataError, match="lists of int64 cannot be padded with ''"):
            model.predict({**lists, "history": [[1], [2, 3], [4]]})


def test_a_frame_is_read_by_its_columns_as_by_the_trainer(trained):
    history, tags, number = rows(3, seed=4, most=3)
    columns = {"number": number[:, 0], "tags": tags, "history": history}
    with ServedModel(trained[1], follow=False) as model:
        with pytest.raises(DataError, match=r"column number must be \[n, 1\]"):
            model.predict(pandas.DataFrame(columns))
        with pytest.raises(DataError, match="history, tags, number; history not given"):
            model.predict(pandas.DataFrame(columns)[["number", "tags"]])
