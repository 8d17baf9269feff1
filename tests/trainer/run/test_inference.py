"""`evaluate` and `predict`: over all batches, weighted by samples, from whatever the network gives."""

import threading

import mindspore.dataset as ms_dataset
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops
from mindspore.train import MAE, Accuracy, Metric, Recall
from mindspore.train import Callback as MindSporeCallback
from sklearn.metrics import log_loss, roc_auc_score

from callbacks import LambdaCallback
from tests.trainer.run.compiled_rows import compiled_for, note_rows
from trainer import Callback, Trainer
from trainer.embedding import Embedding
from trainer.errors import ConfigurationError, DataError
from trainer.state import Phase


@pytest.fixture(scope="module")
def truth(linear, cancer):
    """What NumPy and scikit-learn say of the untrained network: logits, loss and AUC over all 569 rows."""
    weight, bias = (p.asnumpy().astype(np.float64) for p in linear().trainable_params())
    logits = cancer["x"] @ weight.T + bias
    return {
        "logits": logits,
        "loss": log_loss(cancer["y"], 1 / (1 + np.exp(-logits))),
        "auc": roc_auc_score(cancer["y"], logits),
    }


@pytest.fixture(scope="module")
def trainer(linear):
    network = linear()
    return Trainer(
        network,
        nn.BCEWithLogitsLoss(),
        nn.SGD(network.trainable_params(), 0.1),
        metrics={"auc": "auc", "mae": MAE(), "log_loss": "log_loss"},
    )


class TestEvaluate:
    def test_weights_loss_and_metrics_by_samples(self, trainer, cancer, truth):
        # 5 batches of 100 rows and one of 69
        results = trainer.evaluate(cancer, batch_size=100)
        assert list(results) == ["loss", "auc", "mae", "log_loss"]
        assert results["loss"] == pytest.approx(truth["loss"], rel=1e-5)
        assert results["log_loss"] == pytest.approx(truth["loss"], rel=1e-5)
        assert results["auc"] == pytest.approx(truth["auc"], abs=1e-3)
        assert results["mae"] == pytest.approx(np.abs(truth["logits"] - cancer["y"]).mean(), rel=1e-5)
        assert trainer.state.metrics == results

    def test_again_gives_the_same_and_trains_nothing(self, trainer, cancer, values, same):
        before = values(trainer.network, trainer.optimizer)
        assert trainer.evaluate(cancer, batch_size=100) == trainer.evaluate(cancer, batch_size=100)
        assert same(before, values(trainer.network, trainer.optimizer))
        assert trainer.state.progress.global_step == 0

    def test_calls_the_evaluation_hooks(self, trainer, cancer):
        called = []

        class Hooks(Callback):
            def on_eval_begin(self, trainer):
                called.append("begin")

            def on_eval_step_end(self, trainer):
                called.append("step")

            def on_eval_end(self, trainer):
                called.append(("end", trainer.state.metrics["auc"]))

        results = trainer.evaluate(cancer, Hooks(), batch_size=100)
        assert called == ["begin", *["step"] * 6, ("end", results["auc"])]

    def test_an_empty_dataset_is_refused(self, trainer, cancer):
        with pytest.raises(DataError, match="empty"):
            trainer.evaluate({name: column[:0] for name, column in cancer.items()}, batch_size=100)

    def test_a_metric_of_one_value_a_class(self, linear, cancer):
        class TwoLogits(nn.Cell):
            def __init__(self):
                super().__init__()
                self.inner = linear()

            def construct(self, x):
                logit = self.inner(x)
                return ops.concat((ops.zeros_like(logit), logit), 1)

        trainer = Trainer(TwoLogits(), nn.CrossEntropyLoss(), metrics={"recall": Recall(), "acc": Accuracy()})
        labels = cancer["y"][:, 0].astype(np.int32)
        results = trainer.evaluate({"x": cancer["x"], "y": labels}, batch_size=100)
        assert results.keys() == {"loss", "recall", "recall_0", "recall_1", "acc"}
        assert results["recall"] == pytest.approx((results["recall_0"] + results["recall_1"]) / 2)


class Scorer(nn.Cell):
    """An evaluation network of the user's: (label, prediction, loss, weight) in an order of its own."""

    def __init__(self, network):
        super().__init__()
        self.network, self.loss = network, nn.BCEWithLogitsLoss()

    def construct(self, x, y):
        prediction = self.network(x)
        return y, ops.sigmoid(prediction), self.loss(prediction, y), ops.ones_like(y)


class TestEvalNetwork:
    @pytest.fixture(scope="class")
    @staticmethod
    def scorer(linear):
        return Scorer(linear())

    def test_indexes_say_where_loss_prediction_and_label_are(self, scorer, cancer, truth):
        trainer = Trainer(scorer.network, metrics=["auc"], eval_network=scorer, eval_indexes=[2, 1, 0])
        results = trainer.evaluate(cancer, batch_size=100)
        assert results["loss"] == pytest.approx(truth["loss"], rel=1e-5)
        assert results["auc"] == pytest.approx(truth["auc"], abs=1e-3)

    def test_minus_one_means_no_loss(self, scorer, cancer):
        trainer = Trainer(scorer.network, metrics=["auc"], eval_network=scorer, eval_indexes=[-1, 1, 0])
        assert list(trainer.evaluate(cancer, batch_size=100)) == ["auc"]

    def test_without_indexes_metrics_choose_for_themselves(self, scorer, cancer, truth):
        metric = MAE().set_indexes([1, 0])
        trainer = Trainer(scorer.network, metrics={"mae": metric}, eval_network=scorer)
        expected = np.abs(1 / (1 + np.exp(-truth["logits"])) - cancer["y"]).mean()
        assert trainer.evaluate(cancer, batch_size=100) == {"mae": pytest.approx(expected, rel=1e-5)}

    def test_goes_with_a_network_that_is_a_whole_step(self, linear, cancer, batches, truth):
        class Loss(nn.Cell):
            def __init__(self):
                super().__init__()
                self.network, self.loss = linear(), nn.BCEWithLogitsLoss()

            def construct(self, x, y):
                return self.loss(self.network(x), y)

        network = Loss()
        step = nn.TrainOneStepCell(network, nn.SGD(network.trainable_params(), 0.1))
        trainer = Trainer(step, metrics=["auc"], eval_network=Scorer(network.network), eval_indexes=(2, 1, 0))
        history = trainer.fit(batches(64, 4), 1, cancer, callbacks=[], batch_size=100)
        assert history.history["val_loss"][0] < truth["loss"]
        with pytest.raises(ConfigurationError, match=r"TrainOneStepCell is a whole training step.*pass eval_network="):
            Trainer(step).evaluate(cancer, batch_size=100)
        with pytest.raises(ConfigurationError, match="predict: TrainOneStepCell is a whole training step"):
            Trainer(step).predict(cancer["x"])

    def test_a_network_that_returns_loss_and_prediction_needs_none(self, linear, cancer, truth):
        class Both(nn.Cell):
            def __init__(self):
                super().__init__()
                self.network, self.loss = linear(), nn.BCEWithLogitsLoss()

            def construct(self, x, y):
                prediction = self.network(x)
                return self.loss(prediction, y), prediction

        results = Trainer(Both(), metrics=["auc"]).evaluate(cancer, batch_size=100)
        assert results["loss"] == pytest.approx(truth["loss"], rel=1e-5)
        assert results["auc"] == pytest.approx(truth["auc"], abs=1e-3)


class TestPredict:
    def test_arrays_in_one_call(self, trainer, cancer, truth):
        predictions = trainer.predict(cancer["x"])
        assert predictions.dtype == np.float32
        np.testing.assert_allclose(predictions, truth["logits"], atol=1e-4)

    def test_a_dataset_is_concatenated_and_its_label_dropped(self, trainer, cancer, batches, truth):
        for data, size in ((cancer, 100), (batches(100), None)):
            predictions = trainer.predict(data, batch_size=size)
            assert predictions.shape == (569, 1)
            np.testing.assert_allclose(predictions, truth["logits"], atol=1e-4)

    def test_streamed_batch_by_batch_as_asked_for(self, trainer, batches, truth):
        read = []

        def source():
            for number, batch in enumerate(batches(100)):
                read.append(number)
                yield batch

        stream = trainer.predict(source, stream=True)
        assert read == []
        assert next(stream).shape == (100, 1)
        assert len(read) < 6
        rest = list(stream)
        assert [len(batch) for batch in rest] == [100, 100, 100, 100, 69]
        np.testing.assert_allclose(np.concatenate(rest), truth["logits"][100:], atol=1e-4)

    def test_leaving_a_stream_early_frees_the_trainer(self, trainer, cancer, batches, caplog):
        stream = trainer.predict(batches(100), stream=True)
        next(stream)
        with pytest.raises(ConfigurationError, match="busy with predict"):
            trainer.evaluate(cancer, batch_size=100)
        stream.close()
        assert trainer.state.phase == "idle"
        assert not [record for record in caplog.records if record.levelname == "ERROR"]  # it is no failure

    def test_several_outputs_in_float32_whatever_the_level(self, linear, cancer):
        class Two(nn.Cell):
            def __init__(self):
                super().__init__()
                self.inner = linear()

            def construct(self, x):
                logit = self.inner(x)
                return logit, (x > 0).astype("int32")

        logits, signs = Trainer(Two(), amp_level="O2").predict((cancer["x"],), batch_size=100)
        assert (logits.dtype, logits.shape, signs.dtype, signs.shape) == (np.float32, (569, 1), np.int32, (569, 30))


def test_a_callback_may_evaluate_while_training_goes_on(linear, cancer, values, same):
    seen = []

    class Evaluate(Callback):
        def on_train_epoch_end(self, trainer):
            seen.append(trainer.evaluate(cancer, batch_size=100))

    runs = []
    for callbacks in ([], [Evaluate()]):
        network = linear()
        runs.append(Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.1), {"auc"}))
        runs[-1].fit(cancer, 2, batch_size=100, callbacks=callbacks)
    assert len(seen) == 2
    assert seen[-1] == runs[1].evaluate(cancer, batch_size=100)
    assert same(values(runs[0].network), values(runs[1].network))


@pytest.mark.long
def test_hooks_and_results_of_a_training_are_not_mixed_with_what_its_callbacks_evaluate(linear, cancer):
    hooks, monitored = [], []

    class Aside(Callback):
        def on_eval_end(self, trainer):
            hooks.append((trainer.state.phase, sorted(trainer.state.metrics)))

    class Evaluate(Callback):
        def on_eval_begin(self, trainer):
            hooks.append("of the training")

        def on_train_epoch_end(self, trainer):
            assert trainer.evaluate(cancer, Aside(), batch_size=100)["auc"] > 0
            assert trainer.predict(cancer["x"][:7]).shape == (7, 1)
            monitored.append(sorted(trainer.state.metrics))

    class InTheOldStyle(MindSporeCallback):
        def epoch_end(self, run_context):
            losses.append(float(run_context.original_args().net_outputs.asnumpy()))

    losses = []
    network = linear()
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.1), {"auc"})
    trainer.fit(cancer, 2, cancer, batch_size=100, callbacks=[Evaluate(), InTheOldStyle()])
    assert hooks == ["of the training", (Phase.EVALUATE, ["auc", "loss"])] * 2
    assert monitored == [["val_auc", "val_loss"]] * 2
    assert len(losses) == 2
    assert np.isfinite(losses).all()


class Own:
    """A metric of a user: the mean of the outputs."""

    def clear(self):
        self.sum = self.rows = 0

    def update(self, predictions, labels):
        self.sum, self.rows = self.sum + np.sum(np.asarray(predictions)), self.rows + len(predictions)

    def eval(self):
        return self.sum / self.rows


class Locked(Own):
    """A metric that cannot be copied."""

    def __init__(self):
        self.lock = threading.Lock()


def test_a_metric_that_cannot_be_copied_is_measured_in_windows_and_by_callbacks(linear, cancer, batches):
    network = linear()
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.1), {"own": Locked()})
    measured = []
    ask = LambdaCallback(on_train_epoch_end=lambda trainer: measured.append(trainer.evaluate(cancer, batch_size=100)))
    trainer.fit(batches(64, 2), 1, callbacks=[ask])
    trainer.online_train(batches(64, 4), [], window=128)
    assert np.isfinite([measured[0]["own"], *trainer.history.history["window_own"]]).all()


@pytest.mark.parametrize("hook", ["on_eval_begin", "on_eval_step_end", "on_train_step_end", "on_window_end"])
def test_what_a_callback_evaluates_is_not_counted_in_a_validation_or_a_window(linear, cancer, batches, hook):
    def ask(trainer):
        if trainer.state.phase != Phase.EVALUATE:
            trainer.evaluate({"x": -cancer["x"][:64], "y": cancer["y"][:64]})

    measured = []
    for callbacks in ([], [LambdaCallback(**{hook: ask})]):
        network = linear()
        trainer = Trainer(
            network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.1), {"auc": "auc", "own": Own()}
        )
        valid = {name: column[:200] for name, column in cancer.items()}
        trainer.fit(batches(64, 2), 1, valid, batch_size=100, callbacks=callbacks)
        values = [trainer.history.history[name] for name in ("val_auc", "val_own")]
        trainer.online_train(batches(64, 4), callbacks, window=128)
        measured.append([*values, trainer.history.history["window_own"]])
    assert measured[0] == measured[1]


class Noting(nn.Cell):
    def __init__(self, network, centre=False):
        super().__init__()
        self.network = network
        self.centre = centre
        self.rows_are_independent = not centre

    def construct(self, x):
        out = self.network(x) * note_rows(x.shape[0])
        if self.centre:
            out = out - out.mean(axis=0)
        return out


class TestPredictionsOfManySizes:
    def test_few_programs_serve_all_numbers_of_rows_and_predict_the_same(self, mlp, cancer):
        compiled_for.clear()
        trainer = Trainer(Noting(mlp()))
        expected = trainer.predict(cancer["x"])
        for rows in [5, 2, 8, 3, 17, 20, 31, 32, 1, 90]:
            np.testing.assert_allclose(trainer.predict(cancer["x"][:rows]), expected[:rows], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(trainer.predict(cancer["x"], batch_size=100), expected, rtol=1e-5, atol=1e-6)
        assert len(set(compiled_for)) <= 5

    def test_a_network_whose_rows_depend_on_each_other_is_never_filled_up(self, mlp, cancer, caplog):
        trainer = Trainer(Noting(mlp(), centre=True))
        for rows in (9, 5, 7):
            np.testing.assert_allclose(trainer.predict(cancer["x"][:rows]).mean(axis=0), 0, atol=1e-6)
        assert caplog.text.count("Noting does not declare rows_are_independent = True") == 1

    def test_a_shuffled_pipeline_is_filled_up_too(self, mlp, cancer, caplog):
        trainer = Trainer(Noting(mlp()))
        expected = trainer.predict(cancer["x"][:100])
        for drop in (False, True):
            pipeline = ms_dataset.NumpySlicesDataset((cancer["x"][:100],), ["x"]).batch(32, drop_remainder=drop)
            found = trainer.predict(pipeline)
            apart = np.abs(found[:, None] - expected[None]).reshape(len(found), 100, -1).max(2).min(1)
            assert len(found) == (96 if drop else 100)
            assert apart.max() < 1e-5
        assert "every number of rows" not in caplog.text


class Rows(Metric):
    """Number of rows seen."""

    def clear(self):
        self.count = 0

    def update(self, *inputs):
        assert len(inputs[0]) == len(inputs[1])
        self.count += len(inputs[0])

    def eval(self):
        return self.count


def first(data, rows):
    return {name: column[:rows] for name, column in data.items()}


def log_loss_of(logits, labels):
    logits = logits.astype(np.float64)
    return float((np.logaddexp(0, logits) - labels * logits).mean())


class Net(nn.Cell):
    """A linear function of the vectors of three ids."""

    rows_are_independent = True

    def __init__(self):
        super().__init__()
        self.table, self.dense = Embedding(4, mode="sparse", scale=1.0), nn.Dense(12, 1)

    def construct(self, ids):
        return self.dense(self.table(ids).reshape(-1, 12))


class TestEvaluationsOfManySizes:
    def make(self, network, loss=None):
        optimizer = nn.SGD(network.trainable_params(), 0.1)
        metrics = {"rows": Rows(), "mae": MAE(), "loss": "loss"}
        return Trainer(network, loss or nn.BCEWithLogitsLoss(), optimizer, metrics)

    def check(self, results, logits, labels):
        assert results["rows"] == len(logits)
        assert results["loss"] == pytest.approx(log_loss_of(logits, labels), rel=1e-5)
        assert results["mae"] == pytest.approx(np.abs(logits - labels).mean(), rel=1e-5)

    def test_few_programs_serve_all_numbers_of_rows_and_give_the_same(self, mlp, cancer):
        trainer = self.make(network := Noting(mlp()))
        logits = network(Tensor(cancer["x"])).asnumpy()
        compiled_for.clear()
        shapes = []
        noting = LambdaCallback(on_eval_step_end=lambda t: shapes.append(t.state.evaluation.outputs[1].shape))
        counts = [40, 3, 5, 2, 8, 17, 20, 31, 33, 1, 60, 40]
        for rows in counts:
            self.check(
                trainer.evaluate(first(cancer, rows), noting, batch_size=rows), logits[:rows], cancer["y"][:rows]
            )
        assert set(compiled_for) == {40, 3, 32, 128}
        assert [shape[0] for shape in shapes] == counts

    def test_a_last_batch_of_whatever_size_needs_no_program_of_its_own(self, mlp, cancer):
        trainer = self.make(network := Noting(mlp()))
        logits = network(Tensor(cancer["x"])).asnumpy()
        compiled_for.clear()
        for rows in (569, 150, 130, 121, 329):  # 100 rows each, and 69, 50, 30, 21 and 29
            results = trainer.evaluate(first(cancer, rows), batch_size=100)
            self.check(results, logits[:rows], cancer["y"][:rows])
        assert set(compiled_for) == {100, 69, 128, 32}

    def test_rows_of_a_table_are_read_for_rows_that_are_there(self):
        rng = np.random.default_rng(0)
        ids, labels = rng.integers(0, 1000, (40, 3)), rng.integers(0, 2, (40, 1)).astype(np.float32)
        trainer = self.make(Net())
        trainer.fit({"ids": ids, "label": labels}, batch_size=20, callbacks=[])
        logits = trainer.predict(ids)
        before = trainer.builder.programs
        for rows in (1, 2, 3, 7, 9, 11, 14, 16, 40, 33, 1, 2, 7):
            results = trainer.evaluate({"ids": ids[:rows], "label": labels[:rows]}, batch_size=rows)
            self.check(results, logits[:rows], labels[:rows])
        assert (
            trainer.builder.programs - before == 4
        )  # 1, 2, 3, 32 and 128 rows, also once more of a table have been read

    @pytest.mark.long
    def test_a_call_of_one_batch_starts_no_thread(self, monkeypatch):
        trainer = self.make(Net())
        ids, labels = np.arange(60).reshape(20, 3), np.ones((20, 1), np.float32)
        trainer.fit({"ids": ids, "label": labels}, batch_size=20, callbacks=[])
        trainer.predict(ids)  # from the first call on a thread waits for signals
        started = []
        monkeypatch.setattr(threading.Thread, "start", lambda thread: started.append(thread.name))
        trainer.predict(ids)
        trainer.evaluate({"ids": ids, "label": labels})
        assert started == []

    def test_arrays_without_a_batch_size_are_cut_to_fit(self, linear, cancer):
        sizes = []
        note = LambdaCallback(on_eval_step_end=lambda t: sizes.append(t.state.evaluation.chunk.num_samples))
        trainer = Trainer(linear(), nn.BCEWithLogitsLoss(), metrics=["auc"])
        many = {name: np.concatenate([column] * 20) for name, column in cancer.items()}  # 124 bytes per row
        results = trainer.evaluate(many, note)
        assert sizes == [4096, 4096, 20 * 569 - 2 * 4096]
        assert results["loss"] == pytest.approx(trainer.evaluate(many, batch_size=569)["loss"], rel=1e-5)
        np.testing.assert_allclose(trainer.predict(many), trainer.predict(many["x"]), rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("why", ["rows", "loss"])
    def test_what_cannot_be_filled_up_is_evaluated_as_it_is_and_the_reason_is_reported(self, mlp, cancer, caplog, why):
        network = Noting(mlp(), centre=why == "rows")

        class Own(nn.BCEWithLogitsLoss):
            pass

        trainer = self.make(network, Own() if why == "loss" else None)
        for rows in (9, 5, 7, 8, 6, 4):
            logits = network(Tensor(cancer["x"][:rows])).asnumpy()
            self.check(trainer.evaluate(first(cancer, rows), batch_size=rows), logits, cancer["y"][:rows])
        undeclared = "Noting does not declare rows_are_independent = True"
        told = {"rows": undeclared, "loss": "Own is not known to give a loss for each row"}[why]
        assert caplog.text.count("evaluate: every number of rows") == 1
        assert "9, 5, 7 so far, because" in caplog.text
        assert told in caplog.text


class WithState(nn.Cell):
    """A logit, and numbers that are none."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(30, 1)

    def construct(self, x):
        logit = self.dense(x)
        return logit, 3 * logit


class OfFirst(nn.Cell):
    def construct(self, outputs, label):
        return ops.square(outputs[0] - label).mean()


def test_a_declared_activation_is_of_the_first_output(cancer):
    network = WithState()
    optimizer = nn.SGD(network.trainable_params(), 0.1)
    trainer = Trainer(network, OfFirst(), optimizer, prediction_activation="sigmoid")
    logit, state = trainer.predict(cancer["x"][:8])
    probability, unchanged = trainer.predict(cancer["x"][:8], output="probability")
    np.testing.assert_allclose(probability, 1 / (1 + np.exp(-logit)), rtol=1e-5)
    np.testing.assert_array_equal(unchanged, state)


class Classes(nn.Cell):
    rows_are_independent = True

    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(30, 3)

    def construct(self, x):
        return self.dense(x)


def test_a_class_out_of_range_is_named_in_a_padded_evaluation_too(cancer):
    network = Classes()
    trainer = Trainer(network, nn.CrossEntropyLoss(), nn.SGD(network.trainable_params(), 0.1))
    classes = np.zeros(40, np.int32)
    for rows in (40, 30, 20):
        assert trainer.evaluate((cancer["x"][:rows], classes[:rows]), batch_size=rows)["loss"] > 0
    for wrong in (-1, 3):
        classes[4] = wrong
        with pytest.raises(DataError, match=f"class {wrong} in row 4 of the batch"):
            trainer.evaluate((cancer["x"][:20], classes[:20]), batch_size=20)


class WithWeights(nn.Cell):
    rows_are_independent = True

    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(30, 1)

    def construct(self, x):
        return {"score": self.dense(x), "weights": self.dense.weight.reshape(30), "largest": self.dense.weight.max()}


def test_outputs_without_rows_are_not_cut_to_the_rows_of_a_padded_batch(cancer):
    network = WithWeights()
    outputs = Trainer(network).predict((cancer["x"][:8],), batch_size=100)
    assert outputs["score"].shape == (8, 1)
    np.testing.assert_array_equal(outputs["weights"], network.dense.weight.asnumpy()[0])
    assert outputs["largest"] == network.dense.weight.asnumpy().max()


def test_joined_outputs_without_rows_are_warned_of(cancer, caplog):
    trainer = Trainer(WithWeights())
    trainer.predict((cancer["x"][:8],), batch_size=8)
    parts = list(trainer.predict((cancer["x"][:8],), batch_size=4, stream=True))
    assert [part["largest"].shape for part in parts] == [()] * 2
    assert "no row for each" not in caplog.text
    assert trainer.predict((cancer["x"][:8],), batch_size=4)["largest"].shape == (2,)
    said = [record.message for record in caplog.records if "no row for each of the 4 rows" in record.message]
    assert [shape in text for shape, text in zip(["[30]", "[]"], said, strict=True)] == [True, True]


class Difference(nn.Cell):
    def __init__(self):
        super().__init__()
        self.factor = Parameter(Tensor(1.0), name="factor")

    def construct(self, one, other):
        return (one - other) * self.factor


@pytest.mark.parametrize("weights_only", [False, True])
def test_columns_in_another_order_are_taken_by_name_after_a_load(weights_only, tmp_path):
    rows = {name: np.full((4, 1), value, np.float32) for name, value in (("price", 5), ("cost", 2), ("gain", 3))}

    def make():
        network = Difference()
        return Trainer(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.1))

    trainer = make()
    trainer.fit(rows, callbacks=[], batch_size=4)
    trainer.save(tmp_path)
    other = make()
    other.load(tmp_path, weights_only=weights_only)
    assert other.predict({"cost": rows["cost"], "price": rows["price"]}, batch_size=4).tolist() == [[3.0]] * 4
    assert other.evaluate(dict(reversed(rows.items())), batch_size=4)["loss"] == 0.0
