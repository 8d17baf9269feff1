"""Detectors fire soon after a change of concept in real data, and keep quiet before."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

from trainer.errors import ConfigurationError
from trainer.metrics.drift import Adwin, PageHinkley

CHANGE = 100


@pytest.fixture(scope="module")
def losses():
    """Loss of each window of 32 rows of a linear model learning online; from window 100 on, labels are swapped."""
    features, digits = load_digits(return_X_y=True)
    generator = np.random.default_rng(5)
    model = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=0.05, random_state=0)
    model.partial_fit(features[:32] / 16, digits[:32] % 2, classes=[0, 1])
    losses = []
    for window in range(130):
        rows = generator.choice(len(digits), 32)
        labels = digits[rows] % 2 if window < CHANGE else 1 - digits[rows] % 2
        logits = model.decision_function(features[rows] / 16)
        losses.append(float(np.mean(np.logaddexp(0, logits) - labels * logits)))
        model.partial_fit(features[rows] / 16, labels)
    return losses


@pytest.mark.parametrize("make", [lambda: PageHinkley(threshold=0.5, delta=0.02), Adwin])
def test_a_swap_of_labels_is_found_and_nothing_before_it(losses, make):
    detector = make()
    fired = [place for place, loss in enumerate(losses) if detector.update(loss)]
    assert fired
    assert CHANGE <= fired[0] <= CHANGE + 10


def test_adwin_follows_the_mean_and_forgets_the_old_one():
    generator, detector = np.random.default_rng(0), Adwin()
    values = generator.normal(0.3, 0.1, 3000)
    assert not any([detector.update(value) for value in values])  # noqa: C419 every value must be taken
    assert detector.width == 3000
    assert detector.mean == pytest.approx(values.mean(), rel=1e-12)
    assert detector.variance == pytest.approx(values.var(), rel=1e-9)
    assert sum(map(len, detector.state_dict()["levels"])) < 60
    fired = [detector.update(value) for value in generator.normal(0.5, 0.1, 1000)]
    assert 0 < fired.index(True) < 60
    assert detector.mean == pytest.approx(0.5, abs=0.02)
    assert detector.width <= 1100


def test_adwin_takes_a_fall_for_drift_only_when_asked():
    generator = np.random.default_rng(1)
    values = [*generator.normal(0.7, 0.1, 500), *generator.normal(0.3, 0.1, 500)]
    quiet, loud = Adwin(), Adwin(rise_only=False)
    assert sum(quiet.update(value) for value in values) == 0
    assert sum(loud.update(value) for value in values) > 0
    assert quiet.mean == loud.mean == pytest.approx(0.3, abs=0.02)


def test_adwin_scale_makes_units_irrelevant():
    generator = np.random.default_rng(2)
    values = [*generator.normal(0.3, 0.1, 300), *generator.normal(0.6, 0.1, 300)]
    unit, large = Adwin(), Adwin(scale=1024.0)
    assert [unit.update(value) for value in values] == [large.update(1024.0 * value) for value in values]
    assert large.mean == 1024.0 * unit.mean


def test_page_hinkley_ignores_a_falling_loss_and_what_is_not_finite():
    detector = PageHinkley()
    assert not any(detector.update(1 / (1 + step)) for step in range(500))
    before = detector.state_dict()
    assert not detector.update(math.nan)
    assert not detector.update(math.inf)
    assert detector.state_dict() == before
    fired = [detector.update(0.4) for _ in range(5)]
    assert sum(fired) == 1  # a long fall does not delay it, and it starts anew after firing


@given(st.lists(st.floats(0, 3), min_size=2, max_size=200), st.data())
@settings(deadline=None, max_examples=30)
def test_a_restart_changes_no_decision(values, data):
    stop = data.draw(st.integers(0, len(values)))
    for make in (lambda: PageHinkley(threshold=0.3), lambda: Adwin(delta=0.3)):
        whole, first, second = make(), make(), make()
        expected = [whole.update(value) for value in values]
        fired = [first.update(value) for value in values[:stop]]
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert fired + [second.update(value) for value in values[stop:]] == expected
        assert second.state_dict() == whole.state_dict()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PageHinkley(threshold=0), "threshold takes a number > 0; received 0"),
        (lambda: PageHinkley(delta=-1), "delta takes a number >= 0"),
        (lambda: PageHinkley(min_values=0), "min_values takes a whole number >= 1"),
        (lambda: Adwin(delta=2), r"delta takes a number in \(0, 1\); received 2"),
        (lambda: Adwin(scale="1"), "scale takes a number > 0; received '1'"),
    ],
)
def test_options_out_of_range_are_refused(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()
