"""Metrics by group against plain loops over groups with scikit-learn, ties and bounded memory included."""

import functools
import json
from itertools import permutations

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import ndcg_score, roc_auc_score

from trainer.errors import ConfigurationError, DataError
from trainer.metrics import Gauc, HitRateAtK, Ndcg, RecallAtK, get_metrics


@pytest.fixture(scope="module")
def digits():
    """Scores for "the digit is 3", labels and a user who looked at some 18 images each; 1,797 rows."""
    features, digits = load_digits(return_X_y=True)
    model = SGDClassifier(loss="log_loss", random_state=0).fit(features[::5] / 16, digits[::5] == 3)
    scores = model.decision_function(features / 16).astype(np.float32)
    return np.round(scores, 0), (digits == 3).astype(np.float32), np.random.default_rng(0).integers(0, 100, len(digits))


def filled(metric, scores, labels, users, weights=None, cut=100):
    for start in range(0, len(labels), cut):
        rows = slice(start, start + cut)
        part = None if weights is None else weights[rows]
        metric.update(scores[rows], labels[rows], weights=part, groups=users[rows])
    return metric


def per_group(of_group, scores, labels, users):
    return [of_group(scores[users == user], labels[users == user]) for user in np.unique(users)]


def test_gauc_is_the_auc_of_each_user_weighted_by_impressions(digits):
    scores, labels, users = digits
    weights = np.random.default_rng(1).integers(1, 4, len(labels)).astype(np.float64)
    total = weight = 0.0
    for user in np.unique(users):
        mine = users == user
        if 0 < labels[mine].sum() < mine.sum():
            area = roc_auc_score(labels[mine], scores[mine], sample_weight=weights[mine])
            total, weight = total + area * weights[mine].sum(), weight + weights[mine].sum()
    assert filled(Gauc("user"), scores, labels, users, weights).eval() == pytest.approx(total / weight, abs=1e-12)
    names = np.array([f"u{user}" for user in users])
    assert filled(Gauc("user"), scores, labels, names, weights, cut=7).eval() == pytest.approx(
        total / weight, abs=1e-12
    )


@pytest.mark.parametrize("k", [1, 3, 10])
def test_ndcg_is_that_of_scikit_learn_with_ties_shared(digits, k):
    scores, labels, users = digits
    graded = labels * (1 + users % 3)
    values = per_group(
        lambda s, y: ndcg_score([y], [s], k=k) if y.any() and len(y) > 1 else None, scores, graded, users
    )
    expected = np.mean([value for value in values if value is not None])
    assert filled(Ndcg(k, "user"), scores, graded, users).eval() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_recall_and_hit_rate_are_the_mean_over_all_orders_of_equal_scores(k):
    rng = np.random.default_rng(3)
    users = np.repeat(np.arange(30), 6)
    scores, labels = rng.integers(0, 3, 180).astype(np.float32), (rng.random(180) < 0.3).astype(np.float64)

    def by_hand(s, y, value):
        orders = [order for order in permutations(range(6)) if all(np.diff(s[list(order)]) <= 0)]
        return np.mean([value(y[list(order[:k])], y) for order in orders]) if y.any() else None

    recall = per_group(lambda s, y: by_hand(s, y, lambda top, all_: top.sum() / all_.sum()), scores, labels, users)
    hits = per_group(lambda s, y: by_hand(s, y, lambda top, all_: float(top.any())), scores, labels, users)
    for kind, values in ((RecallAtK, recall), (HitRateAtK, hits)):
        expected = np.mean([value for value in values if value is not None])
        assert filled(kind(k, "user"), scores, labels, users, cut=11).eval() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("make", [lambda: Gauc("user"), lambda: Ndcg(5, "user"), lambda: HitRateAtK(2, "user")])
def test_two_halves_join_to_the_whole_and_past_windows_are_averaged(digits, make):
    scores, labels, users = digits
    whole = filled(make(), scores, labels, users)
    left, right = filled(make(), *(c[:900] for c in digits)), filled(make(), *(c[900:] for c in digits))
    past, first, second = make(), left.eval(), right.eval()
    weights = []
    for window in (left, right):
        state = window.state_dict()
        copy = make()
        copy.load_state_dict({"json": json.loads(json.dumps(state["json"])), "arrays": state["arrays"]})
        assert copy.eval() == window.eval()
        copy.close()
        weights.append(copy.state_dict()["json"]["weight"])
        past.decay(0.5)
        past.merge(copy)
    expected = np.average([first, second], weights=[0.5 * weights[0], weights[1]])
    assert past.eval() == pytest.approx(expected, abs=1e-12)
    left.merge(right)
    assert left.eval() == pytest.approx(whole.eval(), abs=1e-12), "a user with rows in both halves is ranked once"


def test_memory_is_bounded_by_leaving_out_whole_groups_whatever_the_order():
    rng = np.random.default_rng(5)
    users = rng.integers(0, 3000, 60_000)
    labels = (rng.random(60_000) < 0.3).astype(np.float32)
    scores = (rng.normal(size=60_000) + labels).astype(np.float32)
    exact = filled(Gauc("user"), scores, labels, users).eval()
    order = rng.permutation(60_000)
    sampled = filled(Gauc("user", capacity=10_000), scores, labels, users, cut=1000)
    shuffled = filled(Gauc("user", capacity=10_000), scores[order], labels[order], users[order], cut=777)
    kept = sampled.state_dict()["arrays"]["keys"]
    assert len(kept) <= 10_000
    assert all(np.bincount(np.searchsorted(np.unique(kept), kept)) > 5), "whole users are kept, 20 rows each on average"
    assert sampled.eval() == pytest.approx(exact, abs=0.02)
    assert shuffled.eval() == pytest.approx(exact, abs=0.02)
    one = filled(Gauc("user", capacity=10_000), scores, labels, users * 0)
    assert one.eval() == pytest.approx(roc_auc_score(labels, scores), abs=0.02)


def test_a_group_larger_than_the_capacity_is_sampled_at_random_or_has_no_value(caplog):
    """Rows in turns of both classes: every other one would be of one class."""
    rows = 60_000
    labels = np.tile(np.float32([0, 1]), rows // 2)
    scores = (np.random.default_rng(7).normal(size=rows) + labels).astype(np.float32)
    found = {}
    for kind in (
        Gauc,
        functools.partial(RecallAtK, 10),
        functools.partial(Ndcg, 10),
        functools.partial(HitRateAtK, 10),
    ):
        metric = filled(kind(group="country", capacity=10_000), scores, labels, np.zeros(rows, np.int64), cut=1000)
        assert len(metric.state_dict()["arrays"]["keys"]) <= 10_000
        found[metric.name] = metric.eval()
    assert found["gauc"] == pytest.approx(roc_auc_score(labels, scores), abs=0.02)
    assert np.isnan([value for name, value in found.items() if name != "gauc"]).all()
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 4
    assert "gauc by 'country' received more rows in a window or evaluation than its capacity of 10,000" in told[0]
    assert "a random sample of its rows" in told[0]
    assert all("the value is NaN" in text for text in told[1:])


def test_groups_left_out_by_a_smaller_capacity_after_a_resume_stay_out():
    users = np.tile(np.arange(3000), 6)
    labels, scores = np.random.default_rng(6).integers(0, 2, (2, 18_000)).astype(np.float32)
    saved = filled(Gauc("user"), scores[:15_000], labels[:15_000], users[:15_000]).state_dict()
    resumed = Gauc("user", capacity=12_000)
    resumed.load_state_dict(saved)
    filled(resumed, scores[15_000:], labels[15_000:], users[15_000:])
    counts = np.unique(resumed.state_dict()["arrays"]["keys"], return_counts=True)[1]
    assert len(counts) > 1500
    assert set(counts) == {6}, "a user is kept with all rows, or not at all"


def test_names_say_column_and_k_and_mistakes_are_named(digits):
    found = get_metrics(["gauc/user", "recall@10/user", "ndcg@5/session", "hit_rate@1/user"])
    assert list(found) == ["gauc", "recall@10", "ndcg@5", "hit_rate@1"]
    assert (found["ndcg@5"].group, found["ndcg@5"].k) == ("session", 5)
    for name, message in (
        ("gauc", "'gauc/user'"),
        ("ndcg", "'ndcg@10/user'"),
        ("ndgc@10/user", "look like recall@10/user"),
        ("recall@ten/user", "look like recall@10/user"),
        ("auk/site", "did you mean 'auc'"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            get_metrics([name])
    with pytest.raises(ConfigurationError, match=r"k=.*>= 1; received 0"):
        RecallAtK(0, "user")
    with pytest.raises(DataError, match="needs the column 'user'"):
        Gauc("user").update(digits[0], digits[1])


def test_groups_count_by_the_mean_weight_of_their_rows():
    """As scikit-learn's `ndcg_score(sample_weight=...)`, which weighs groups; a row of weight 0 is not there."""
    rng = np.random.default_rng(0)
    scores, labels, group_weights = rng.random((6, 9)), rng.integers(0, 4, (6, 9)), rng.integers(0, 5, 6).astype(float)
    metric = Ndcg(4, "user")
    metric.update(
        scores.reshape(-1).astype(np.float32),
        labels.reshape(-1),
        weights=np.repeat(group_weights, 9),
        groups=np.repeat(np.arange(6), 9),
    )
    expected = ndcg_score(labels, scores, k=4, sample_weight=group_weights)
    assert metric.value() == pytest.approx(expected, rel=1e-6)
