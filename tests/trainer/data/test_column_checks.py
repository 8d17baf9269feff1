"""Wrong columns are refused, by name and before anything is compiled."""

import numpy as np
import pytest
from mindspore import nn, ops

from trainer import Trainer
from trainer.data.as_columns import describe_non_finite
from trainer.data.column_checks import ColumnCheck, arguments_of, label_columns
from trainer.data.ragged import Ragged
from trainer.errors import DataError


class TwoInputs(nn.Cell):
    def construct(self, user, item, scale=1.0):
        return user * item * scale


class Anything(nn.Cell):
    def construct(self, *columns):
        return columns[0]


class Lists(nn.Cell):
    def __init__(self):
        super().__init__()
        self.top = nn.Dense(1, 1)

    def construct(self, x):
        return self.top(x.sum(1).reshape(-1, 1))


class WeightedLoss(nn.Cell):
    def construct(self, prediction, label, weight, floor=0.0):
        return prediction


def test_arguments_are_read_from_construct():
    assert arguments_of(TwoInputs()) == (2, 3, ["user", "item", "scale"])
    assert arguments_of(Anything()) == (0, None, ["*columns"])


def test_label_columns_are_what_the_loss_requires_after_the_prediction():
    assert label_columns(None) == 0
    assert label_columns(nn.BCEWithLogitsLoss()) == 1
    assert label_columns(nn.CrossEntropyLoss()) == 1
    assert label_columns(WeightedLoss()) == 2
    assert label_columns(lambda prediction, label: ops.square(prediction - label)) == 1


def test_non_finite_columns_are_described():
    columns = (np.array([1, 2]), np.array([1.0, np.nan], np.float32))
    expected = "column 'price' holds NaN or infinite values, first in row 1 (1 rows)"
    assert describe_non_finite(columns, ("id", "price")) == expected
    assert describe_non_finite(columns[:1], ("id",)) is None


def test_values_that_are_not_finite_in_lists_are_described_by_their_rows():
    lists = [[], [1.0, np.nan, np.inf], [], [2.0], [np.nan]]
    column = Ragged.of([np.array(row, np.float32) for row in lists])
    expected = "column 'prices' holds NaN or infinite values, first in row 1 (2 rows)"
    assert describe_non_finite([column], ["prices"]) == expected
    assert describe_non_finite([Ragged(column.values, [3, 4])], ["prices"]) is None
    assert describe_non_finite([Ragged(np.ones((4, 2), np.float32), [0, 4])], ["prices"]) is None


def test_lists_of_floats_are_trained_and_what_is_not_finite_is_reported(caplog):
    network = Lists()
    trainer = Trainer(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.1))
    prices = [[1.0] * (row % 3 + 1) for row in range(12)]
    prices[7][1] = np.nan
    trainer.fit({"x": prices, "label": np.ones((12, 1), np.float32)}, callbacks=[], batch_size=4, shuffle=False)
    assert "column 'x' holds NaN or infinite values, first in row 7 (1 rows)" in caplog.text


def test_arrays_with_nan_are_reported_when_they_are_given(linear, caplog):
    network = linear()
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.0))
    x = np.zeros((8, 30), np.float32)
    x[5, 2] = np.inf
    trainer.fit({"x": x, "y": np.ones((8, 1), np.float32)}, batch_size=8, callbacks=[])
    assert "column 'x' holds NaN or infinite values, first in row 5 (1 rows)" in caplog.text


def test_a_label_without_a_loss_is_reported(linear):
    with pytest.raises(DataError, match="so 1 column is expected; if the last one is a label, a loss_fn is missing"):
        Trainer(linear()).evaluate((np.zeros((8, 30), np.float32), np.zeros((8, 1), np.float32)), batch_size=8)


def test_dicts_of_one_fit_may_order_their_columns_differently(linear, cancer):
    network = linear()
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.1))
    swapped = {"y": cancer["y"], "x": cancer["x"]}
    history = trainer.fit(cancer, 1, swapped, batch_size=100, callbacks=[], max_steps=6)
    assert history.history["val_loss"] == [pytest.approx(trainer.evaluate(cancer, batch_size=100)["loss"])]


def column(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


class TestCheck:
    def test_a_right_number_passes_and_others_are_refused(self):
        def passes(count):
            try:
                ColumnCheck(TwoInputs(), 1)((column(4),) * count, tuple("abcdefg"[:count]))
            except DataError:
                return False
            return True

        assert [count for count in range(1, 7) if passes(count)] == [3, 4]

    def test_a_wrong_number_names_columns_and_arguments(self):
        with pytest.raises(
            DataError,
            match=r"received 2 columns \(user, label\); TwoInputs.construct takes 2 to 3 \(user, item, scale\) and the "
            r"last 1 \(label\) go to the loss, so 3 columns are expected",
        ):
            ColumnCheck(TwoInputs(), 1)((column(4),) * 2, ("user", "label"))

    def test_names_of_arguments_in_other_places_are_refused(self):
        check = ColumnCheck(TwoInputs(), 1)
        with pytest.raises(
            DataError,
            match=r"received \(item, user, label\), and TwoInputs.construct takes \(user, item\) first",
        ):
            check((column(4),) * 3, ("item", "user", "label"))
        for names in (("user", "item", "label"), ("item", "price", "label"), ("a", "b", "user")):
            ColumnCheck(TwoInputs(), 1)((column(4),) * 3, names)

    @pytest.mark.parametrize(
        ("later", "message"),
        [
            ((column(4), column(4)), r"column 'x' changed its number of axes: received shape \[4\], expected 2 axes"),
            (
                (column(4, 2), column(4, dtype=np.int32)),
                "column 'y' changed its dtype: received int32, expected float32",
            ),
            ((column(4, 2),), "received 1 columns, expected 2 as in the first batch"),
        ],
        ids=["axes", "dtype", "number"],
    )
    def test_a_change_after_the_first_batch(self, later, message):
        check = ColumnCheck(Anything(), 1)
        check((column(8, 2), column(8)), ("x", "y"))
        check((column(3, 2), column(3)), ("x", "y"))
        check((column(3, 5), column(3)), ("x", "y"))
        with pytest.raises(DataError, match=message):
            check(later, ("x", "y"))


class TestBeforeCompile:
    """Through the trainer: the error comes although nothing may be compiled."""

    @pytest.fixture
    def trainer(self, linear, monkeypatch):
        def refuse(*args, **kwargs):
            raise AssertionError("something was compiled")

        monkeypatch.setattr(nn.Cell, "compile_and_run", refuse)
        network = linear()
        return Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.1), metrics=["auc"])

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            ({"x": column(8, 30), "extra": column(8, 1), "y": column(8, 1)}, r"3 columns \(x, extra, y\)"),
            ({"x": column(8, 30)}, r"received 1 columns \(x\)"),
            (
                [(column(8, 30), column(8, 1, dtype=object))],
                "batch 0 of epoch 0: column 'column_1': received dtype obj",
            ),
            (iter([]), "the dataset delivered no batches"),
            ([], "the dataset is empty"),
        ],
        ids=["too many", "too few", "objects", "no batches", "empty"],
    )
    @pytest.mark.parametrize("verb", ["fit", "evaluate"])
    def test_bad_data(self, verb, data, message, trainer):
        with pytest.raises(DataError, match=message):
            getattr(trainer, verb)(data, callbacks=[], batch_size=8 if isinstance(data, dict) else None)

    def test_a_change_in_the_middle_names_batch_and_column(self, trainer):
        data = [{"x": column(8, 30), "y": column(8, 1)}] * 2 + [{"x": column(8, 30), "y": column(7, 1)}]
        with pytest.raises(DataError, match=r"batch 2 of epoch 0: columns have different numbers of rows: .*\(7, 1\)"):
            trainer.fit(data, callbacks=[])

    def test_predict_needs_its_inputs(self, trainer):
        with pytest.raises(DataError, match="predict: takes arrays, or one dataset; received a mixture"):
            trainer.predict(column(8, 30), [1, 2])
