"""Every verb takes the same data in the same forms; what cannot be taken names column, row and cure."""

import numpy as np
import pandas as pd
import pyarrow
import pytest
from mindspore import dtype as mstype
from mindspore import nn, ops

from trainer import Trainer
from trainer.data.ragged import Ragged
from trainer.embedding import Embedding
from trainer.errors import ConfigurationError, DataError, GraphError, TrainerError
from trainer.features import RawFiles

RANDOM = np.random.default_rng(0)
ROWS = {
    "item": RANDOM.integers(0, 50, 12).astype(np.int32),
    "price": RANDOM.normal(size=12).astype(np.float32),
    "bought": RANDOM.integers(0, 2, 12).astype(np.float32),
}
FRAME = pd.DataFrame(ROWS)


class Items(nn.Cell):
    def __init__(self, **options):
        super().__init__()
        self.items = Embedding(4, **options)
        self.last = nn.Dense(5, 1)

    def construct(self, item, price):
        return self.last(ops.concat([self.items(item), price.reshape(-1, 1)], 1)).squeeze(1)


def trainer_of(network, loss):
    return Trainer(network, loss, nn.SGD(network.trainable_params(), 0.1))


@pytest.fixture(scope="module")
def items():
    return trainer_of(Items(capacity=50, mode="dense"), nn.BCEWithLogitsLoss())


FORMS = {
    "dict": ROWS,
    "frame": FRAME,
    "arrow": pyarrow.table(ROWS),
    "lists": {name: column.tolist() for name, column in ROWS.items()},
    "dict in another order": {name: ROWS[name] for name in ("bought", "price", "item")},
    "frame with the label in the middle": FRAME[["item", "bought", "price"]],
}


@pytest.mark.long(but=["arrow", "frame with the label in the middle"])
@pytest.mark.parametrize("form", FORMS)
def test_fit_evaluate_and_predict_take_named_columns_in_any_form_and_order(items, form):
    expected = items.predict(ROWS["item"], ROWS["price"])
    loss = items.evaluate(ROWS)["loss"]
    assert items.predict(FORMS[form]).tolist() == expected.tolist()
    assert items.evaluate(FORMS[form])["loss"] == loss
    items.fit(FORMS[form], 1, batch_size=12, shuffle=False)
    assert items.evaluate(ROWS)["loss"] < loss


@pytest.mark.parametrize("data", [FRAME[["price", "item"]], [ROWS["item"].tolist(), ROWS["price"].tolist()]], ids=str)
def test_predict_takes_inputs_alone(items, data):
    expected = items.predict(ROWS["item"], ROWS["price"])
    given = data if isinstance(data, list) else [data]
    assert items.predict(*given).tolist() == expected.tolist()


def test_rows_in_place_of_batches_name_a_column_and_the_cure(items):
    rows = FRAME.to_dict("records")
    for verb in (items.fit, items.evaluate, items.predict):
        with pytest.raises(DataError, match=r"column 'item' is a single value.*pandas.DataFrame\(rows\)"):
            verb(rows)


@pytest.mark.parametrize("options", [{}, {"capacity": 50, "mode": "dense"}], ids=["sparse", "dense"])
@pytest.mark.parametrize("text", [False, True], ids=["numbers", "text"])
def test_missing_ids_name_column_row_and_cure(options, text):
    ids = [f"i{item}" if text else int(item) for item in ROWS["item"]]
    ids[3] = None
    trainer = trainer_of(Items(**options), nn.BCEWithLogitsLoss())
    for data in ({**ROWS, "item": ids}, pd.DataFrame({**ROWS, "item": ids}), pyarrow.table({**ROWS, "item": ids})):
        with pytest.raises(TrainerError, match=r"column 'item'.*row 3.*fillna\(0\)"):
            trainer.fit(data, 1, batch_size=12, shuffle=False)


def test_integers_of_several_axes_name_the_cure():
    trainer = trainer_of(nn.Dense(4, 1), nn.MSELoss())
    with pytest.raises(GraphError, match=r"column_0 \(uint8\) holds integers: x.astype\(np.float32\)"):
        trainer.fit((np.ones((8, 4), np.uint8), np.ones((8, 1), np.float32)), 1, batch_size=8)


LOSSES = {
    "CrossEntropyLoss": nn.CrossEntropyLoss,
    "SoftmaxCrossEntropyWithLogits": lambda: nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"),
}


@pytest.mark.long(but=["4-CrossEntropyLoss"])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("batch_size", [4, 8])
def test_a_class_out_of_range_is_named_before_the_program_runs_and_the_process_trains_on(loss, batch_size):
    x, classes = RANDOM.normal(size=(8, 4)).astype(np.float32), np.arange(8, dtype=np.int32) % 3
    trainer = trainer_of(nn.Dense(4, 3), LOSSES[loss]())
    for wrong in (3, -1):
        labels = classes.copy()
        labels[1] = wrong
        with pytest.raises(DataError, match=rf"'column_1': class {wrong} in row 1 .*{loss} takes 0 to 2"):
            trainer.fit((x, labels), 1, batch_size=batch_size, shuffle=False)
        with pytest.raises(DataError, match=rf"class {wrong} in row 1"):
            trainer.evaluate((x, labels), batch_size=batch_size)
    assert np.isfinite(trainer.evaluate((x, classes), batch_size=batch_size)["loss"])


def test_the_class_that_the_loss_ignores_is_no_class_out_of_range():
    x, labels = RANDOM.normal(size=(8, 4)).astype(np.float32), np.arange(8, dtype=np.int32) % 3
    labels[1] = -100
    trainer_of(nn.Dense(4, 3), nn.CrossEntropyLoss()).fit((x, labels), 1, batch_size=8)


class Lists(nn.Cell):
    """Adds up a list, an array and a number of each row."""

    def construct(self, history, history_mask, pair, number):
        return (history * ops.cast(history_mask, history.dtype)).sum(1) + pair.sum(1) + number


MIXED = [
    {"number": float(i), "history": [1.0] * (i % 3), "pair": np.array([i, 1], np.float32)} for i in range(7)
]  # lists, arrays and numbers


@pytest.mark.parametrize("batch_size", [None, 3])
def test_predict_takes_lists_of_any_length_and_rows_of_lists_arrays_and_numbers(batch_size):
    trainer, expected = Trainer(Lists()), [2 * i + 1 + i % 3 for i in range(7)]
    columns = {name: [row[name] for row in MIXED] for name in MIXED[0]}
    for data in (columns, {**columns, "history": Ragged.of(columns["history"])}, pd.DataFrame(MIXED)):
        assert trainer.predict(data, batch_size=batch_size).tolist() == expected
    with pytest.raises(DataError, match=r"the batch has no rows; column 'number' is a single value.*DataFrame\(rows\)"):
        trainer.predict(MIXED)


@pytest.mark.parametrize("verb", ["fit", "evaluate", "predict", "online_train", "compile"])
@pytest.mark.parametrize("path", ["rows.csv", RawFiles("rows.csv")], ids=["text", "RawFiles"])
def test_files_of_raw_rows_without_declared_features_are_refused_by_name(verb, path):
    trainer = Trainer(nn.Dense(1, 1), nn.MSELoss(), "sgd")
    with pytest.raises(ConfigurationError, match=r"rows\.csv: raw rows need Trainer\(features=\.\.\.\)"):
        getattr(trainer, verb)(path)
    assert trainer.builder.programs == 0


def test_validation_frames_may_have_their_columns_in_another_order():
    """As dicts may: the label is the last column of the training data."""
    network = nn.Dense(1, 1)
    trainer = Trainer(network, nn.MSELoss(), "sgd")
    rows = pd.DataFrame({"value": np.arange(8, dtype=np.float32)[:, None].tolist(), "y": np.ones((8, 1)).tolist()})
    valid = [rows, rows[["y", "value"]]]
    losses = [trainer.fit(rows, valid_dataset=part, batch_size=8, callbacks=[], shuffle=False) for part in valid]
    assert losses[1].history["val_loss"][-1] == trainer.evaluate(rows, batch_size=8)["loss"]


@pytest.mark.parametrize("dtype", [">f4", ">f8", ">i4", ">u2"])
def test_arrays_of_the_other_byte_order_have_their_values(dtype):
    """As files of FITS, HDF5 or MNIST hold them."""

    class Sum(nn.Cell):
        def construct(self, x):
            return ops.cast(x, mstype.float32).sum(1)

    x, y = np.arange(12).reshape(4, 3), np.full(4, 5)
    swapped, trainer = (x.astype(dtype), y.astype(dtype)), Trainer(Sum(), nn.MSELoss())
    assert trainer.predict(swapped[0]).tolist() == x.sum(1).tolist()
    for data, options in ((swapped, {"batch_size": 4}), ([swapped], {}), ({"x": swapped[0], "y": y}, {})):
        assert trainer.evaluate(data, **options)["loss"] == ((x.sum(1) - 5.0) ** 2).mean()


SPARSE_ROWS = {"item": ROWS["item"].astype(np.int64), "price": ROWS["price"], "bought": ROWS["bought"]}


@pytest.mark.parametrize(
    "labels", [["1", "0"] * 6, np.array([1.0, 0.0] * 6, object), np.array([1, 0] * 6, object)], ids=type
)
def test_text_and_objects_are_no_labels_beside_a_sparse_table(labels):
    trainer = trainer_of(Items(), nn.BCEWithLogitsLoss())
    for verb in (trainer.fit, trainer.evaluate):
        with pytest.raises(DataError, match="column 'bought': received dtype"):
            verb({**SPARSE_ROWS, "bought": labels}, batch_size=4)


def test_text_that_no_table_reads_is_named(caplog):
    trainer_of(Items(), nn.BCEWithLogitsLoss()).predict({"item": ROWS["item"][:2], "price": np.array(["1.5", "2"])})
    assert "column 'price': no table reads it" in caplog.text


def test_text_in_the_place_of_numbers_is_refused_after_a_training():
    trainer = trainer_of(Items(), nn.BCEWithLogitsLoss())
    trainer.fit(SPARSE_ROWS, 1, batch_size=12, callbacks=[])
    text = SPARSE_ROWS["price"].astype(str)
    for prices in (text, text.astype(object)):
        with pytest.raises(DataError, match="column 'price' takes numbers, as at first; received text"):
            trainer.predict({**SPARSE_ROWS, "price": prices})
    whole = np.arange(12)
    expected = trainer.predict({**SPARSE_ROWS, "price": whole.astype(np.float32)})
    np.testing.assert_array_equal(trainer.predict({**SPARSE_ROWS, "price": whole.astype(object)}), expected)


def test_an_integer_is_one_id_in_lists_objects_and_frames():
    trainer = trainer_of(Items(), nn.BCEWithLogitsLoss())
    trainer.fit(SPARSE_ROWS, 1, batch_size=12, callbacks=[])
    numbers = SPARSE_ROWS["item"].tolist()
    expected = trainer.predict(SPARSE_ROWS).tolist()
    for items in (
        numbers,
        np.array(numbers, object),
        pd.Series(numbers, dtype="Int64"),
        pd.Series(numbers, dtype=object),
    ):
        assert trainer.predict({**SPARSE_ROWS, "item": items}).tolist() == expected


def test_a_missing_value_in_a_list_of_text_is_named():
    trainer = trainer_of(Items(), nn.BCEWithLogitsLoss())
    with pytest.raises(DataError, match="column 'item': row 1 holds nan"):
        trainer.fit({"item": ["a", float("nan")], "price": [1.0, 2.0], "bought": [0.0, 1.0]}, batch_size=2)


class Weighed(nn.Cell):
    def __init__(self):
        super().__init__()
        self.top = nn.Dense(1, 1, weight_init="ones")

    def construct(self, first, second):
        return self.top(first) - 2 * second


def test_named_columns_in_another_order_than_in_fit_are_the_same_columns():
    trainer = trainer_of(Weighed(), nn.MSELoss())
    rows = {name: RANDOM.normal(size=(8, 1)).astype(np.float32) for name in ("height", "width", "label")}
    trainer.fit(rows, batch_size=8, callbacks=[])
    other = {name: rows[name] for name in ("label", "width", "height")}
    assert trainer.evaluate(other) == trainer.evaluate(rows)
    expected = trainer.predict(rows).tolist()
    assert trainer.predict(other).tolist() == expected
    assert trainer.predict({name: rows[name] for name in ("width", "height")}).tolist() == expected
    assert trainer.predict({"id": np.arange(8.0)[:, None], **other}).tolist() == expected
