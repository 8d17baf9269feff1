"""Accuracy and log loss of several classes agree with scikit-learn."""

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, log_loss

from trainer.errors import DataError
from trainer.metrics import Accuracy, LogLoss


@pytest.fixture(scope="module")
def digits():
    features, labels = load_digits(return_X_y=True)
    model = LogisticRegression(C=1e-3, max_iter=500).fit(features[::2], labels[::2])
    return model.decision_function(features[1::2]).astype(np.float32), labels[1::2]


def softmax(z):
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("view", ["logits", "probabilities"])
@pytest.mark.parametrize("labelled", ["numbers", "column", "floats", "one-hot"])
def test_log_loss_and_accuracy_are_the_reference(digits, view, labelled):
    logits, labels = digits
    p = softmax(logits.astype(np.float64))
    predictions = logits if view == "logits" else p
    given = {
        "numbers": labels,
        "column": labels[:, None].astype(np.int32),
        "floats": labels.astype(np.float32),
        "one-hot": np.eye(10)[labels],
    }[labelled]
    weights = np.random.default_rng(0).random(len(labels))
    loss, right, weighted = LogLoss(), Accuracy(), LogLoss()
    for start in range(0, len(labels), 100):
        rows = slice(start, start + 100)
        loss.update(predictions[rows], given[rows])
        right.update(predictions[rows], given[rows], weights[rows])
        weighted.update(predictions[rows], given[rows], weights=weights[rows])
    assert loss.eval() == pytest.approx(log_loss(labels, p), rel=1e-6)
    assert weighted.eval() == pytest.approx(log_loss(labels, p, sample_weight=weights), rel=1e-6)
    assert right.eval() == pytest.approx(accuracy_score(labels, p.argmax(axis=1), sample_weight=weights), rel=1e-9)


def test_it_joins_ages_and_restores(digits):
    logits, labels = digits
    weights = np.where(np.arange(len(labels)) < 400, 0.5, 1.0)
    for kind in (LogLoss, Accuracy):
        old, new, whole, restored = kind(), kind(), kind(), kind()
        old.update(logits[:400], labels[:400])
        old.decay(0.5)
        new.update(logits[400:], labels[400:])
        old.merge(new)
        whole.update(logits, labels, weights)
        assert old.eval() == pytest.approx(whole.eval(), rel=1e-12)
        restored.load_state_dict(old.state_dict())
        assert restored.eval() == old.eval()


def test_labels_that_are_no_classes_are_named():
    with pytest.raises(DataError, match="0 to 2; received 0 to 3"):
        LogLoss().update(np.zeros((2, 3)), np.array([0, 3]))
    with pytest.raises(DataError, match=r"whole class numbers; received .*0\.5"):
        LogLoss().update(np.zeros((2, 3)), np.array([0, 0.5]))


@pytest.mark.parametrize("labels_of", [lambda rows: np.eye(3)[rows], lambda rows: rows], ids=["one-hot", "numbers"])
def test_a_window_that_an_older_release_began_is_continued(digits, labels_of):
    logits, labels = np.array(digits[0][:40, :3]), np.arange(40) % 3
    whole, began, resumed = Accuracy(), Accuracy(), Accuracy()
    whole.update(logits, labels_of(labels))
    began.update(logits[:20], labels_of(labels[:20]))
    state = began.state_dict()
    older = {name: value for name, value in state["json"].items() if name not in ("right_classes", "not_one_hot")}
    correct = float((logits[:20].argmax(1) == labels[:20]).sum())
    resumed.load_state_dict({**state, "json": older | {"right_identity": correct, "right_logits": correct}})
    resumed.update(logits[20:], labels_of(labels[20:]))
    assert resumed.value() == whole.value()


def test_a_window_of_binary_labels_that_an_older_release_began_is_continued():
    scores, labels = np.array([0.2, 0.6, 0.9, 0.1]), np.array([0, 1, 0, 0])
    whole, began, resumed = Accuracy(), Accuracy(), Accuracy()
    whole.update(scores * 4 - 2, labels)
    began.update(scores[:2] * 4 - 2, labels[:2])
    state = began.state_dict()
    older = {name: value for name, value in state["json"].items() if name not in ("right_classes", "not_one_hot")}
    resumed.load_state_dict({**state, "json": older})
    assert resumed.value() == began.value() == 1.0
    resumed.update(scores[2:] * 4 - 2, labels[2:])
    assert resumed.value() == whole.value() == 0.75


@pytest.mark.parametrize("rows", [1, 2, 64])
def test_several_labels_of_an_unknown_loss_are_read_alike_whatever_the_batches(rows):
    """The rows of a small batch may have one label each, as classes do."""
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(64, 2)).astype(np.float32), rng.integers(0, 2, (64, 2))
    one_hot = np.eye(2, dtype=np.int64)[labels[:, 0]]
    probabilities = 1 / (1 + np.exp(-logits.astype(np.float64)))
    losses = -np.log(np.where(labels, probabilities, 1 - probabilities))
    of_class = np.log(np.exp(logits.astype(np.float64)).sum(1)) - (logits * one_hot).sum(1)
    expected = {
        "several": (((logits > 0) == labels).all(1).mean(), losses.mean()),
        "classes": ((logits.argmax(1) == one_hot.argmax(1)).mean(), of_class.mean()),
    }
    for kind, given in (("several", labels), ("classes", one_hot)):
        for metric, wanted in zip((Accuracy(), LogLoss()), expected[kind], strict=True):
            for first in range(0, 32, rows):
                metric.update(logits[first : first + rows], given[first : first + rows])
            whole = type(metric)()
            whole.load_state_dict(metric.state_dict())
            rest = type(metric)()
            for first in range(32 if rows < 64 else 64, 64, rows):
                rest.update(logits[first : first + rows], given[first : first + rows])
            whole.merge(rest)
            value = whole.value()
            assert (value[""] if isinstance(value, dict) else value) == pytest.approx(wanted)
