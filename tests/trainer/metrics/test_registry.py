"""Metrics agree with scikit-learn over all batches, whatever their sizes, shapes and links."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

from trainer.errors import ConfigurationError, DataError
from trainer.metrics import (
    Accuracy,
    Auc,
    Calibration,
    LogLoss,
    Loss,
    NormalizedEntropy,
    WeightedMean,
    get_metrics,
    metric_names,
    read_metrics,
    update_metrics,
)

BATCH = 64


@pytest.fixture(scope="module")
def cancer():
    """Held-out logits and labels of a logistic regression on real data, float32 and int64, 285 rows."""
    features, labels = load_breast_cancer(return_X_y=True)
    features = (features - features.mean(axis=0)) / features.std(axis=0)
    model = LogisticRegression(C=0.003).fit(features[::2, :3], labels[::2])
    return model.decision_function(features[1::2, :3]).astype(np.float32), labels[1::2]


def sigmoid(z):
    return 1 / (1 + np.exp(-np.asarray(z, np.float64)))


def over_batches(metric, predictions, labels, weights=None):
    metric.clear()
    for start in range(0, len(labels), BATCH):
        rows = slice(start, start + BATCH)
        metric.update(predictions[rows], labels[rows], *([] if weights is None else [weights[rows]]))
    return metric.eval()


VIEWS = {
    "logits [B]": ("auto", lambda z: z),
    "logits [B, 1]": ("sigmoid", lambda z: z[:, None]),
    "probabilities [B]": ("identity", lambda z: sigmoid(z)),
    "probabilities, link found out": ("auto", lambda z: sigmoid(z)),
    "logits [B, 2]": ("auto", lambda z: np.stack([0.5 - z / 2, 0.5 + z / 2], axis=1)),
    "logits [B, 2], softmax": ("softmax", lambda z: np.stack([z * 0 + 3, z + 3], axis=1)),
    "probabilities [B, 2]": ("identity", lambda z: np.stack([sigmoid(-z), sigmoid(z)], axis=1)),
    "probabilities [B, 2], link found out": ("auto", lambda z: np.stack([sigmoid(-z), sigmoid(z)], axis=1)),
}


@pytest.mark.parametrize("view", VIEWS)
def test_every_accepted_shape_and_link_gives_the_reference_value(cancer, view):
    logits, labels = cancer
    link, look = VIEWS[view]
    predictions, p = look(logits), sigmoid(logits)
    base = labels.mean()
    entropy = -(base * np.log(base) + (1 - base) * np.log(1 - base))
    assert over_batches(Auc(link), predictions, labels[:, None]) == pytest.approx(roc_auc_score(labels, p), abs=1e-12)
    assert over_batches(LogLoss(link), predictions, labels.astype(np.float32)) == pytest.approx(
        log_loss(labels, p), rel=1e-6
    )
    assert over_batches(NormalizedEntropy(link), predictions, labels) == pytest.approx(
        log_loss(labels, p) / entropy, rel=1e-6
    )
    assert over_batches(Calibration(link), predictions, labels) == pytest.approx(p.sum() / labels.sum(), rel=1e-6)
    assert over_batches(Accuracy(link), predictions, labels) == pytest.approx(((p > 0.5) == labels).mean(), rel=1e-12)


def test_sample_weights_are_respected(cancer):
    logits, labels = cancer
    weights = np.random.default_rng(0).integers(0, 4, len(labels)).astype(np.float32)
    assert over_batches(Auc(), logits, labels, weights) == pytest.approx(
        roc_auc_score(labels, logits, sample_weight=weights), abs=1e-12
    )
    assert over_batches(LogLoss("sigmoid"), logits, labels, weights) == pytest.approx(
        log_loss(labels, sigmoid(logits), sample_weight=weights), rel=1e-6
    )


def test_auto_link_does_not_depend_on_the_order_of_batches():
    logits, labels = np.array([0.2, 0.7, 0.9, -3.0, 4.0], np.float32), np.array([0, 1, 1, 0, 1])
    forwards, backwards = LogLoss(), LogLoss()
    for row in range(5):
        forwards.update(logits[row : row + 1], labels[row : row + 1])
        backwards.update(logits[4 - row : 5 - row], labels[4 - row : 5 - row])
    assert forwards.eval() == pytest.approx(log_loss(labels, sigmoid(logits)), rel=1e-6)
    assert backwards.eval() == pytest.approx(forwards.eval(), rel=1e-12)


def test_two_columns_of_logits_stay_logits_when_their_difference_looks_like_a_probability():
    logits, labels = np.array([[2.0, 2.3], [1.0, 1.9], [-1.0, -0.5]], np.float32), np.array([0, 1, 1])
    metric, difference = LogLoss(), np.array([0.3, 0.9, 0.5])
    metric.update(logits, labels)
    assert metric.eval() == pytest.approx(log_loss(labels, sigmoid(difference)), rel=1e-6)


def test_auc_over_more_rows_than_are_sorted_at_once():
    generator = np.random.default_rng(1)
    labels = generator.random(200_000) < 0.3
    scores = (generator.normal(size=len(labels)) + labels).astype(np.float32)
    metric, start = Auc(), 0
    for rows in (1, 1000, 70_000, 29_000, 99_999):
        metric.update(scores[start : start + rows], labels[start : start + rows])
        start += rows
    assert start == len(labels)
    assert metric.eval() == pytest.approx(roc_auc_score(labels, scores), abs=1e-4)


def test_tensors_of_float16_and_metrics_inside_model(cancer):
    logits, labels = cancer

    class Identity(nn.Cell):
        def construct(self, x):
            return x

    data = ms.dataset.NumpySlicesDataset((logits[:, None], labels[:, None].astype(np.float32)), shuffle=False)
    model = ms.Model(Identity(), nn.BCEWithLogitsLoss(), metrics={"auc": Auc(), "log_loss": LogLoss("sigmoid")})
    results = model.eval(data.batch(BATCH), dataset_sink_mode=False)
    assert results["auc"] == pytest.approx(roc_auc_score(labels, logits), abs=1e-12)
    assert results["log_loss"] == pytest.approx(log_loss(labels, sigmoid(logits)), rel=1e-6)
    half = Auc()
    half.update(ms.Tensor(logits, ms.float16), ms.Tensor(labels, ms.int32))
    assert half.eval() == pytest.approx(roc_auc_score(labels, logits.astype(np.float16)), abs=1e-12)


def test_auc_covers_all_batches_where_mindspore_roc_keeps_the_last(cancer):
    logits, labels = cancer
    roc = ms.train.ROC(pos_label=1)
    roc.clear()
    for start in range(0, len(labels), BATCH):
        roc.update(sigmoid(logits[start : start + BATCH]), labels[start : start + BATCH])
    fpr, tpr, _ = roc.eval()
    theirs, exact = ms.train.auc(fpr, tpr), roc_auc_score(labels, logits)
    last = len(labels) // BATCH * BATCH
    assert theirs == pytest.approx(roc_auc_score(labels[last:], logits[last:]), abs=1e-6)
    assert abs(theirs - exact) > 1e-3
    assert over_batches(get_metrics("auc")["auc"], logits, labels) == pytest.approx(exact, abs=1e-12)
    with pytest.raises(ConfigurationError, match="only the last batch"):
        get_metrics({"roc"})


def test_loss_counts_a_short_last_batch_as_what_it_is_where_mindspore_does_not(cancer):
    logits, labels = cancer
    per_row = np.logaddexp(0, logits) - labels * logits
    batches = [per_row[start : start + BATCH] for start in range(0, len(labels), BATCH)]
    assert len(batches[-1]) != BATCH
    theirs, ours = ms.train.Loss(), get_metrics({"loss": ms.train.Loss()})
    for batch in batches:
        theirs.update(np.array(batch.mean(), np.float32))
        update_metrics(ours, (np.float32(batch.mean()), None, None), [0, 1, 2], len(batch))
    assert read_metrics(ours)["loss"] == pytest.approx(per_row.mean(), rel=1e-6)
    assert abs(theirs.eval() - per_row.mean()) > 1e-4


def test_eval_loss_is_that_of_all_batches_where_model_reports_the_last(cancer):
    logits, labels = cancer
    seen = {}

    class Spy(ms.train.Callback):
        def on_eval_end(self, run_context):
            seen.update(run_context.original_args().get("eval_results", {}))

    columns = (logits[:, None], labels[:, None].astype(np.float32))
    train, valid = (ms.dataset.NumpySlicesDataset(columns, shuffle=False) for _ in range(2))
    network = nn.Dense(1, 1, weight_init="ones", bias_init="zeros")
    frozen = nn.SGD(network.trainable_params(), learning_rate=0.0)
    model = ms.Model(network, nn.BCEWithLogitsLoss(), frozen, metrics={"mae"})
    model.fit(1, train.take(BATCH).batch(BATCH), valid.batch(BATCH), callbacks=[Spy()], dataset_sink_mode=False)
    per_row = np.logaddexp(0, logits) - labels * logits
    last = len(labels) // BATCH * BATCH
    assert seen["eval_loss"] == pytest.approx(per_row[last:].mean(), rel=1e-5)
    ours = Loss()
    for start in range(0, len(labels), BATCH):
        rows = per_row[start : start + BATCH]
        ours.update(rows.mean(), len(rows))
    assert ours.eval() == pytest.approx(per_row.mean(), rel=1e-6)
    assert abs(seen["eval_loss"] - per_row.mean()) > 1e-3


def test_weighted_mean_takes_the_losses_of_several_steps_at_once():
    mean = WeightedMean()
    mean.update(np.array([1.0, 3.0], np.float32), [10, 30])
    mean.update(5.0, 60)
    assert mean.eval() == pytest.approx((10 + 90 + 300) / 100)
    assert np.isnan(WeightedMean().eval())


def test_one_class_or_no_rows_is_nan_not_an_error():
    ones = np.ones(8)
    for metric in (Auc(), NormalizedEntropy()):
        assert np.isnan(metric.eval())
        metric.update(np.linspace(0, 1, 8), ones)
        assert np.isnan(metric.eval())
    calibration = Calibration()
    calibration.update(np.linspace(0, 1, 8), 1 - ones)
    assert np.isnan(calibration.eval())
    nan = Auc()
    nan.update(np.array([0.1, np.nan, 0.3]), np.array([0, 1, 1]))
    assert np.isnan(nan.eval())


@pytest.mark.parametrize("metric", [Auc, LogLoss, Calibration, Accuracy])
def test_wrong_inputs_name_both_shapes_or_the_value(metric):
    with pytest.raises(DataError, match=r"\(4,\) and labels \(5,\)"):
        metric().update(np.zeros(4), np.zeros(5))
    with pytest.raises(DataError, match=r"softmax.*\(4, 1\)"):
        metric("softmax").update(np.zeros((4, 1)), np.zeros(4))
    with pytest.raises(DataError, match=r"\[0, 1\]"):
        metric("identity").update(np.array([0.5, 1.5]), np.array([0, 1]))
    with pytest.raises(DataError, match=r"2"):
        metric().update(np.array([0.5, 0.6]), np.array([0, 2]))
    with pytest.raises(ConfigurationError, match="did you mean 'sigmoid'"):
        metric("sigmoyd")


def test_merge_and_snapshot_give_the_value_of_all_rows(cancer):
    logits, labels = cancer
    for kind in (Auc, LogLoss, NormalizedEntropy, Calibration):
        left, right, whole, restored = kind(), kind(), kind(), kind()
        left.update(logits[:100], labels[:100])
        right.update(logits[100:], labels[100:])
        whole.update(logits, labels)
        left.merge(right)
        restored.load_state_dict(left.state_dict())
        assert left.eval() == pytest.approx(whole.eval(), rel=1e-12)
        assert restored.eval() == left.eval()


def test_names_instances_classes_and_dicts_are_found():
    assert list(get_metrics(["auc", "F1", "log_loss", "mae", "top_1_accuracy"])) == [
        "auc", "F1", "log_loss", "mae", "top_1_accuracy",
    ]  # fmt: skip
    assert isinstance(get_metrics({"f1"})["f1"], ms.train.F1)
    assert isinstance(get_metrics({"auc"})["auc"], Auc)
    assert list(get_metrics((LogLoss, ms.train.MAE(), ms.train.Top1CategoricalAccuracy))) == [
        "log_loss", "mae", "top_1_accuracy",
    ]  # fmt: skip
    given = ms.train.MSE().set_indexes([2, 1])
    assert get_metrics({"error": given, "area": "auc"})["error"] is given
    assert get_metrics(None) == {}
    assert {"auc", "calibration", "f1", "mse", "top_5_accuracy"} <= set(metric_names())


def test_indexes_of_a_metric_choose_among_all_outputs():
    metrics = get_metrics({"mse": ms.train.MSE().set_indexes([2, 1]), "auc": Auc().set_indexes([1, 0]), "loss": Loss()})
    label = np.array([0.0, 1.0, 1.0])
    update_metrics(metrics, (label, np.array([0.1, 0.2, 0.3]), np.array([1.1, 1.2, 1.3])), None, 3)
    values = read_metrics(metrics)
    assert values["mse"] == pytest.approx(1.0)
    assert values["auc"] == 1.0


def test_a_metric_of_one_value_a_class_is_reported_by_class_and_mean():
    metrics = get_metrics("precision")
    update_metrics(metrics, (0.0, np.array([[0.9, 0.1], [0.2, 0.8], [0.3, 0.7]]), np.array([0, 1, 0])), [0, 1, 2], 3)
    assert read_metrics(metrics) == pytest.approx({"precision": 0.75, "precision_0": 1.0, "precision_1": 0.5})


def test_accuracy_of_classes_takes_class_numbers_and_one_hot():
    predictions = np.eye(3)[[0, 1, 2, 2]]
    for labels in (np.array([0, 1, 2, 0]), np.array([[0], [1], [2], [0]]), np.eye(3)[[0, 1, 2, 0]]):
        metric = Accuracy()
        metric.update(predictions, labels)
        assert metric.eval() == 0.75


def test_unknown_names_and_values_are_refused_with_the_nearest_choice():
    with pytest.raises(ConfigurationError, match="did you mean 'log_loss'"):
        get_metrics({"logloss"})
    with pytest.raises(ConfigurationError, match="needs arguments"):
        get_metrics("confusion_matrix")
    with pytest.raises(ConfigurationError, match="received 3"):
        get_metrics([3])
    with pytest.raises(ConfigurationError, match="given twice"):
        get_metrics([Auc(), Auc()])


@pytest.mark.parametrize("metric", [Calibration, LogLoss, NormalizedEntropy])
def test_a_metric_of_another_name_has_the_same_value(cancer, metric):
    class Renamed(metric):
        name = "of_the_sample"

    own, renamed = metric(), Renamed()
    for one in (own, renamed):
        one.update(*cancer)
    assert renamed.eval() == own.eval()
