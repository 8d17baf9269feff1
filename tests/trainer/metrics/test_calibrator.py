"""Calibrations of binary scores against scikit-learn's, and how they learn and fall back."""

import numpy as np
import pytest
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from trainer.errors import CheckpointMismatchError, ConfigurationError, DataError
from trainer.metrics import Calibrator
from trainer.metrics.calibration_map import CalibrationMap
from trainer.metrics.calibrator import isotonic, platt
from trainer.metrics.predictions import Meaning

ROWS = 40_000


def scored(seed=0):
    """Return logits that are off, labels, ids, and what the probability of each row really is."""
    rng = np.random.default_rng(seed)
    logits, ids = rng.normal(-1, 1.5, ROWS), rng.choice([3, 7, 9], ROWS, p=[0.6, 0.399, 0.001])
    truth = 1 / (1 + np.exp(-(0.5 * logits - 1 + 0.5 * (ids == 7))))
    return logits.astype(np.float32), (rng.random(ROWS) < truth).astype(np.float32), ids, truth


def calibrator(activation="sigmoid", **options):
    made = Calibrator(**options)
    made.bind(Meaning("binary", activation), None)
    return made


def test_the_numbers_are_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    z, weights = np.sort(rng.normal(size=300)), 100 * rng.random((2, 300))
    rows = np.concatenate([z, z])[:, None], np.repeat([1.0, 0.0], 300), np.concatenate(weights)
    wanted = LogisticRegression(C=np.inf, tol=1e-10).fit(*rows)
    slope, intercept = platt(z[None], *weights[:, None])
    assert [*slope, *intercept] == pytest.approx([wanted.coef_[0, 0], wanted.intercept_[0]], abs=1e-4)
    knots = isotonic(z, *weights)
    np.testing.assert_allclose(np.interp(z, *knots), IsotonicRegression().fit(*rows).predict(z), atol=1e-4)
    for separated in ([[-1.0, 1.0]], [[2.0, 2.0]]):  # of which logistic regression has no solution, or many
        assert np.isfinite(platt(np.array(separated), np.array([[0, 5.0]]), np.array([[5.0, 0]]))).all()


@pytest.mark.parametrize("activation", ["sigmoid", "identity", "softmax"])
@pytest.mark.parametrize("method", ["platt", "isotonic"])
def test_each_value_has_its_own_and_thin_or_unknown_ones_the_overall_calibration(method, activation):
    logits, labels, ids, truth = scored()
    outputs = {"identity": 1 / (1 + np.exp(-logits.astype(np.float64))), "softmax": np.stack([-logits, 0 * logits], 1)}
    outputs = outputs.get(activation, logits[:, None])
    made = calibrator(activation, method=method, by="site", half_life=10 * ROWS, min_rows=200)
    made.add(outputs, labels, None, ids)
    fitted = made.fitted()
    assert fitted.values.tolist() == [3, 7]
    answers = fitted(outputs, ids)
    assert answers.shape == outputs.shape
    probability = answers[:, 1] if activation == "softmax" else answers.reshape(-1)
    for value in (3, 7):
        rows = ids == value
        assert probability[rows].sum() / truth[rows].sum() == pytest.approx(1, abs=0.03)
        assert np.abs(probability[rows] - truth[rows]).mean() < 0.02
    overall, unknown, thin = (fitted(outputs[:50], np.full(50, value)) for value in (-1, 123, 9))
    assert np.array_equal(overall, unknown)
    assert np.array_equal(overall, thin)
    assert not np.array_equal(overall, fitted(outputs[:50], np.full(50, 7)))


def test_sampled_negatives_are_counted_as_those_they_stand_for():
    logits, labels, _, truth = scored()
    kept = (labels == 1) | (np.random.default_rng(1).random(ROWS) < 0.1)
    made = calibrator(negative_sampling_rate=0.1)
    made.add(logits[kept], labels[kept])
    assert made.fitted()(logits).sum() / truth.sum() == pytest.approx(1, abs=0.04)


def test_what_is_learned_depends_neither_on_batches_nor_on_a_restore():
    logits, labels, ids, _ = scored()
    weights = np.random.default_rng(0).random(ROWS)
    whole, parts = calibrator(by="site"), calibrator(by="site")
    whole.add(logits, labels, weights, ids)
    for start in range(0, ROWS, 777):
        rows = slice(start, start + 777)
        parts.add(logits[rows], labels[rows], weights[rows], ids[rows])
        if start == 777 * 20:
            state, parts = parts.state_dict(), calibrator(by="site")
            parts.load_state_dict(state)
    one, other = whole.fitted().to_json(), parts.fitted().to_json()
    assert one == other
    assert CalibrationMap.from_json(one).to_json() == one
    with pytest.raises(CheckpointMismatchError, match="learned with by='site'; here it is None"):
        calibrator().load_state_dict(state)


def test_old_rows_are_forgotten():
    logits, labels, *_ = scored()
    made = calibrator(half_life=ROWS // 10)
    made.add(logits, 1 - labels)
    made.add(logits, labels)
    assert made.fitted()(logits).mean() == pytest.approx(labels.mean(), abs=0.01)


def test_before_enough_rows_of_both_classes_there_is_no_probability():
    made = calibrator(min_rows=50)
    made.add(np.zeros(1000), np.zeros(1000))
    assert not made.is_learned
    assert made.current() is None
    with pytest.raises(DataError, match="has too few rows: it needs 50 rows of each class"):
        made.fitted()
    made.add(np.array([np.nan] * 60 + [1.0] * 40), np.ones(100))
    assert not made.is_learned  # rows that are NaN do not count


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("plat", "did you mean 'platt'"),
        (7, "received 7"),
        ({"method": "isotonic", "bye": "x"}, "received 'bye'; did you mean 'by'"),
        ({"negative_sampling_rate": 1.5}, "negative_sampling_rate"),
        ({"min_rows": 0}, "min_rows"),
    ],
)
def test_options_that_cannot_work_are_named(options, message):
    with pytest.raises(ConfigurationError, match=message):
        Calibrator.of(options)


@pytest.mark.parametrize(
    ("outputs", "labels", "message"),
    [
        (np.zeros((4, 3)), np.zeros(4), "one binary label"),
        (np.zeros(4), np.full(4, 0.5), "label of 0 or 1"),
        (np.zeros(4), np.zeros(3), "label of 0 or 1"),
    ],
)
def test_rows_that_are_no_scores_are_refused(outputs, labels, message):
    with pytest.raises(DataError, match=message):
        calibrator().add(outputs, labels)


@pytest.mark.parametrize("method", ["platt", "isotonic"])
def test_a_value_whose_rows_weigh_nothing_uses_the_overall_calibration(method):
    rng = np.random.default_rng(0)
    logits, site = rng.normal(size=3000), np.arange(3000) % 3
    labels = (rng.random(3000) < 1 / (1 + np.exp(-logits))).astype(np.float64)
    made = calibrator(method=method, by="site", min_rows=100)
    made.add(logits, labels, np.where(site == 1, 0.0, 1.0), site)
    fitted = made.fitted()
    assert fitted.values.tolist() == [0, 2]
    known, unknown = fitted(np.zeros(2), np.array([1, 99]))
    assert known == unknown


def test_values_may_be_hashed_ids_far_apart():
    """As ids of a declared category without a vocabulary are: their difference does not fit into 64 bits."""
    rng = np.random.default_rng(0)
    logits, site = rng.normal(size=3000), np.array([-(2**62) - 2**61, 2**62])[np.arange(3000) % 2]
    labels = (rng.random(3000) < 1 / (1 + np.exp(-logits - (site > 0)))).astype(np.float64)
    made = calibrator(by="site", min_rows=100)
    made.add(logits, labels, None, site)
    fitted = made.fitted()
    assert fitted.values.tolist() == [-(2**62) - 2**61, 2**62]
    low, high = fitted(np.zeros(2), fitted.values)
    assert high > low + 0.1
