"""Progressive validation agrees with scikit-learn over each horizon, and survives interruption to the last bit."""

import copy
import io
import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss, roc_auc_score

from trainer.errors import DataError
from trainer.metrics import Auc, BinaryMetrics, BySlice, prequential
from trainer.metrics.prequential import PrequentialMetrics

BATCH, WINDOW = 32, 256


def sigmoid(z):
    return 1 / (1 + np.exp(-np.asarray(z, np.float64)))


def binary(*options, decay=0.9, by=None, max_groups=32, **keywords):
    """The metrics of a binary target, with the AUC of the values of the column `by`."""
    metrics = {"": BinaryMetrics(*options, **keywords)}
    if by:
        metrics[f"auc/{by}"] = BySlice(Auc(buckets=1024), by, max_groups)
    return PrequentialMetrics(metrics, decay)


@pytest.fixture(scope="module")
def learned_online():
    """Logits given before each update by a linear model learning odd from even digits, the labels and the digits."""
    features, digits = load_digits(return_X_y=True)
    features, labels = features / 16, digits % 2
    model = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=0.05, random_state=0)
    model.partial_fit(features[:BATCH], labels[:BATCH], classes=[0, 1])
    logits = []
    for start in range(BATCH, len(labels), BATCH):
        rows = slice(start, start + BATCH)
        logits.append(model.decision_function(features[rows]))
        model.partial_fit(features[rows], labels[rows])
    return np.concatenate(logits).astype(np.float32), labels[BATCH:], digits[BATCH:]


def run(metrics, logits, labels, first=0, cuts=(), **columns):
    """Feed rows from `first` on in batches, closing a window every WINDOW rows; return what each window gave."""
    windows = []
    edges = {*range(0, len(labels), BATCH), *range(0, len(labels), WINDOW), *cuts, len(labels)}
    for start, stop in itertools.pairwise(sorted(edge for edge in edges if edge <= len(labels))):
        if start >= first:
            rows = slice(start, stop)
            of_rows = {name: column[rows] for name, column in columns.items()}
            metrics.update(logits[rows], labels[rows], groups=of_rows)
            if stop % WINDOW == 0:
                windows.append(metrics.close_window())
    return windows


def test_each_horizon_gives_the_reference_value_over_its_rows(learned_online):
    logits, labels, _ = learned_online
    windows = run(binary("sigmoid", decay=0.5), logits, labels)
    assert len(windows) == len(labels) // WINDOW
    for place, results in enumerate(windows):
        seen = slice(0, (place + 1) * WINDOW)
        age = place - np.arange(seen.stop) // WINDOW
        y, z = labels[seen], logits[seen]
        for name, weights in (("window", age == 0), ("decayed", 0.5**age), ("lifetime", np.ones(seen.stop))):
            p, base = sigmoid(z), np.average(y, weights=weights)
            loss = log_loss(y, p, sample_weight=weights)
            entropy = -(base * np.log(base) + (1 - base) * np.log(1 - base))
            assert results[f"{name}_auc"] == pytest.approx(roc_auc_score(y, z, sample_weight=weights), abs=1e-9)
            assert results[f"{name}_log_loss"] == pytest.approx(loss, rel=1e-6)
            assert results[f"{name}_normalized_entropy"] == pytest.approx(loss / entropy, rel=1e-6)
            calibration = np.dot(weights, p) / np.dot(weights, y)
            assert results[f"{name}_calibration"] == pytest.approx(calibration, rel=1e-6)
        assert results["window_rows"] == WINDOW
        assert results["lifetime_rows"] == seen.stop
    assert windows[-1]["window_auc"] > windows[0]["window_auc"]


@given(cuts=st.sets(st.integers(1, 1500), max_size=30), stop=st.integers(1, 1700))
@settings(deadline=None, max_examples=12)
def test_cut_of_batches_and_a_restart_change_no_bit(learned_online, cuts, stop):
    logits, labels, digits = learned_online
    names = np.array(["few", "some", "more", "many", "most"])[digits // 2]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prequential, "BUFFER_ROWS", 100)  # so that blocks get full in the middle of windows
        whole = run(binary(buckets=64, by="size"), logits, labels, size=names)
        first, second = binary(buckets=64, by="size"), binary(buckets=64, by="size")
        edges = {*cuts, stop}
        before = run(first, logits[:stop], labels[:stop], cuts=edges, size=names[:stop])
        state = first.state_dict()
        copy.deepcopy(first).close_window()
        file = io.BytesIO()
        assert {array.dtype.kind for array in state["arrays"].values()} <= set("fbiu")  # no strings: tensors only
        np.savez(file, **state["arrays"])
        file.seek(0)
        second.load_state_dict({"json": json.loads(json.dumps(state["json"])), "arrays": dict(np.load(file))})
        for metrics in (first, second):
            assert before + run(metrics, logits, labels, first=stop, cuts=edges, size=names) == whole


def test_a_copy_shows_the_open_window(learned_online):
    logits, labels, _ = learned_online
    metrics = binary("sigmoid")
    metrics.update(logits[:100], labels[:100])
    metrics.update(logits[100:200], labels[100:200])
    seen = copy.deepcopy(metrics).close_window()
    assert seen["window_auc"] == pytest.approx(roc_auc_score(labels[:200], logits[:200]), abs=1e-12)
    assert metrics.close_window() == seen


def test_each_group_gets_its_own_auc_and_their_number_is_bounded(learned_online):
    logits, labels, digits = learned_online
    half = np.where(digits < 5, b"low", b"high")
    windows = run(binary(by="half"), logits, labels, half=half)
    rows = len(windows) * WINDOW
    for name in ("low", "high"):
        mine = half[:rows] == name.encode()
        exact = roc_auc_score(labels[:rows][mine], logits[:rows][mine])
        assert windows[-1][f"lifetime_auc/half={name}"] == pytest.approx(exact, abs=1e-9)
        mine[: rows - WINDOW] = False
        exact = roc_auc_score(labels[:rows][mine], logits[:rows][mine])
        assert windows[-1][f"window_auc/half={name}"] == pytest.approx(exact, abs=1e-9)
    many = binary(by="user", max_groups=4)
    names = {key for results in run(many, logits, labels, user=np.arange(len(labels)) % 50) for key in results}
    assert {name for name in names if name.startswith("window_auc/")} == {
        f"window_auc/user={group}" for group in ("0", "1", "2", "3", "other")
    }
    with pytest.raises(DataError, match="reads the column 'user', which the rows do not"):
        many.update(logits[:5], labels[:5])


def test_negative_down_sampling_is_corrected():
    generator = np.random.default_rng(3)
    p = sigmoid(generator.normal(-3, 1, 400_000))
    labels = generator.random(len(p)) < p
    kept = labels | (generator.random(len(p)) < 0.1)
    on_sample = p / (p + (1 - p) * 0.1)  # what a model trained on the sample predicts
    full, naive = binary("identity"), binary("identity")
    corrected = binary("identity", negative_sampling_rate=0.1)
    weighted = binary("identity", negative_sampling_rate=0.1, correct_probability=False)
    logits = binary("sigmoid", negative_sampling_rate=0.1)
    full.update(p, labels)
    corrected.update(on_sample[kept], labels[kept])
    logits.update(np.log(on_sample[kept] / (1 - on_sample[kept])), labels[kept])
    weighted.update(p[kept], labels[kept])
    naive.update(p[kept], labels[kept])
    expected = full.close_window()
    for metrics in (corrected, logits, weighted):
        results = metrics.close_window()
        assert results["window_calibration"] == pytest.approx(1, abs=0.02)
        for name in ("auc", "log_loss", "normalized_entropy"):
            assert results[f"window_{name}"] == pytest.approx(expected[f"window_{name}"], rel=0.02)
    assert naive.close_window()["window_calibration"] < 0.5


def test_rows_without_a_number_are_counted_and_an_undefined_metric_is_nan():
    metrics = binary("sigmoid")
    metrics.update(np.array([1.0, np.nan, 2.0]), np.array([1, 0, 1]))
    results = metrics.close_window()
    assert (results["window_rows"], results["window_nan_rows"]) == (2, 1)
    assert np.isnan(results["window_auc"])
    assert np.isnan(results["window_normalized_entropy"])
    assert results["window_log_loss"] == pytest.approx(log_loss([1, 1], sigmoid([1.0, 2.0]), labels=[0, 1]))
    empty = metrics.close_window()
    assert np.isnan(empty["window_log_loss"])
    assert empty["decayed_log_loss"] == results["window_log_loss"]
    with pytest.raises(DataError, match=r"\(3,\) and labels \(2,\)"):
        metrics.update(np.zeros(3), np.zeros(2))
    metrics.update(np.zeros(3), np.array([0, 2.0, 1]))
    with pytest.raises(DataError, match=r"0 or 1; received 2\.0 in row 1"):
        metrics.close_window()


def test_a_window_put_together_from_those_of_several_processes_is_that_of_one(learned_online):
    logits, labels, digits = (column[:WINDOW] for column in learned_online)
    whole, parts = binary("sigmoid", by="digit"), [binary("sigmoid", by="digit") for _ in range(3)]
    whole.update(logits, labels, groups={"digit": digits})
    for rank, part in enumerate(parts):
        rows = slice(rank, None, 3)
        part.update(logits[rows], labels[rows], groups={"digit": digits[rows]})
    parts[0].put_window([part.take_window() for part in parts])
    found, expected = parts[0].close_window(), whole.close_window()
    assert found == pytest.approx(expected, rel=1e-9, nan_ok=True)
    assert found["window_rows"] == WINDOW
    assert parts[1].close_window()["window_rows"] == 0
