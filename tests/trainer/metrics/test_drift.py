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
from trainer.metrics.drift import PageHinkley

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


def test_a_swap_of_labels_is_found_and_nothing_before_it(losses):
    detector = PageHinkley(threshold=0.5, delta=0.02)
    fired = [place for place, loss in enumerate(losses) if detector.update(loss)]
    assert fired
    assert CHANGE <= fired[0] <= CHANGE + 10


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
    whole, first, second = (PageHinkley(threshold=0.3) for _ in range(3))
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
    ],
)
def test_options_out_of_range_are_refused(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()
