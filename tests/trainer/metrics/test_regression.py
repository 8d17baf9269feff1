"""Regression metrics agree with scikit-learn, over all rows and outputs, merged, decayed and restored."""

import json

import numpy as np
import pytest
from sklearn.datasets import load_diabetes
from sklearn.linear_model import LinearRegression
from sklearn.metrics import mean_absolute_error, mean_poisson_deviance, r2_score, root_mean_squared_error

from trainer.errors import DataError
from trainer.metrics import R2, Bias, Mae, PoissonDeviance, Rmse, get_metrics
from trainer.metrics.prequential import PrequentialMetrics


def by_output(metric):
    """Return a metric of one output as the mean over outputs, which scikit-learn calls uniform_average."""

    def mean(y, p, sample_weight=None):
        columns = zip(y.reshape(len(y), -1).T, p.reshape(len(p), -1).T, strict=True)
        return np.mean([metric(of_y, of_p, sample_weight=sample_weight) for of_y, of_p in columns])

    return mean


REFERENCE = {
    Mae: mean_absolute_error,
    Rmse: root_mean_squared_error,
    Bias: by_output(lambda y, p, sample_weight=None: np.average(p - y, weights=sample_weight)),
    R2: r2_score,
    PoissonDeviance: by_output(mean_poisson_deviance),
}


@pytest.fixture(scope="module")
def diabetes():
    """Predictions of a linear regression and the labels, shifted far from 0; float32, 442 rows."""
    features, labels = load_diabetes(return_X_y=True)
    predictions = LinearRegression().fit(features[::2], labels[::2]).predict(features)
    return (predictions + 1e5).astype(np.float32), (labels + 1e5).astype(np.float32)


@pytest.mark.parametrize("kind", REFERENCE)
def test_values_are_the_reference_however_rows_are_cut_and_shaped(diabetes, kind):
    predictions, labels = diabetes
    weights = np.random.default_rng(0).integers(0, 4, len(labels)).astype(np.float32)
    y, p = labels.astype(np.float64), predictions.astype(np.float64)
    plain, weighted = kind(), kind()
    for start in range(0, len(labels), 50):
        rows = slice(start, start + 50)
        plain.update(predictions[rows, None], labels[rows])
        weighted.update(predictions[rows], labels[rows, None], weights[rows])
    assert plain.eval() == pytest.approx(REFERENCE[kind](y, p), rel=1e-9)
    assert weighted.eval() == pytest.approx(REFERENCE[kind](y, p, sample_weight=weights), rel=1e-9)


@pytest.mark.parametrize("kind", REFERENCE)
def test_joined_aged_and_restored_it_is_the_weighted_reference(diabetes, kind):
    predictions, labels = diabetes
    old, new, restored = kind(), kind(), kind()
    old.update(predictions[:300], labels[:300])
    new.update(predictions[300:], labels[300:])
    old.decay(0.25)
    old.merge(new)
    weights = np.where(np.arange(len(labels)) < 300, 0.25, 1.0)
    expected = REFERENCE[kind](labels.astype(np.float64), predictions.astype(np.float64), sample_weight=weights)
    assert old.eval() == pytest.approx(expected, rel=1e-9)
    state = old.state_dict()
    restored.load_state_dict({"json": json.loads(json.dumps(state["json"])), "arrays": state["arrays"]})
    assert restored.eval() == old.eval()


@pytest.mark.parametrize("columns", [None, 1, 3])
@pytest.mark.parametrize("kind", REFERENCE)
def test_several_outputs_are_averaged_as_scikit_learn_does_offline_and_in_windows(kind, columns):
    rng = np.random.default_rng(0)
    shape = (300,) if columns is None else (300, columns)
    scale = 1.0 if columns is None else 10.0 ** np.arange(columns)
    labels = rng.poisson(3, shape) * scale
    predictions = (labels + rng.random(shape) * scale).astype(np.float32)
    weights = rng.integers(0, 4, 300).astype(np.float64)
    reference = REFERENCE[kind]
    y, p = labels.astype(np.float32).astype(np.float64), predictions.astype(np.float64)
    given = labels.astype(np.float32)

    parts = [kind() for _ in range(4)]
    windows = PrequentialMetrics({"value": kind()}, decay=0.5)
    for part, rows in zip(parts, np.split(np.arange(300), [50, 51, 200]), strict=True):
        part.update(predictions[rows], given[rows], weights[rows])
        windows.update(predictions[rows], given[rows], weights[rows])
        window = windows.close_window()
    whole, restored = kind(), kind()
    for part in parts:
        whole.merge(part)
    restored.load_state_dict(whole.state_dict())
    expected = reference(y, p, sample_weight=weights)
    assert [whole.eval(), restored.eval(), window["lifetime_value"]] == pytest.approx([expected] * 3, rel=1e-9)
    past = np.repeat([0.125, 0.25, 0.5, 1.0], [50, 1, 149, 100])
    assert window["decayed_value"] == pytest.approx(reference(y, p, sample_weight=weights * past), rel=1e-9)
    plain = kind()
    plain.update(predictions, given)
    assert plain.eval() == pytest.approx(reference(y, p), rel=1e-9)


def test_without_rows_or_spread_it_is_nan_and_shapes_are_named():
    for kind in REFERENCE:
        assert np.isnan(kind().eval())
        with pytest.raises(DataError, match=r"\(4,\) and labels \(3,\)"):
            kind().update(np.zeros(4), np.zeros(3))
    flat = R2()
    flat.update(np.arange(3.0), np.ones(3))
    assert np.isnan(flat.eval())
    assert list(get_metrics(["mae", "rmse", "bias", "r2"])) == ["mae", "rmse", "bias", "r2"]
