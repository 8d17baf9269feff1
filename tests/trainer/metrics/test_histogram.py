"""The adaptive histogram: AUC within 1e-3 in bounded memory, exact while few scores are distinct, mergeable."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from trainer.metrics.histogram import RowBuffer, ScoreHistogram, _argsort

ROWS = 1_000_000
SCORES = {
    "normal logits": lambda x: x,
    "probabilities": lambda x: 1 / (1 + np.exp(-x)),
    "saturated probabilities": lambda x: 1 / (1 + np.exp(-20 * x)),
    "all within 1e-3 of 5": lambda x: 5 + 1e-4 * x,
    "a narrow bulk and far outliers": lambda x: np.where(np.arange(len(x)) % 10, 0.5 + 1e-4 * x, 1e6 * x),
    "heavy ties": lambda x: np.round(x, 1),
    "four in five are zero": lambda x: np.where(np.arange(len(x)) % 5, 0, x),
    "many orders of magnitude": lambda x: np.exp(6 * x - 20),
    "ascending": np.sort,
    "drifting": lambda x: x + 1e-5 * np.arange(len(x)),
}


@pytest.fixture(scope="module")
def rows():
    generator = np.random.default_rng(7)
    labels = generator.random(ROWS) < 0.2
    return generator.normal(size=ROWS) + 0.8 * labels, labels


@pytest.mark.parametrize("name", SCORES)
def test_a_million_scores_give_the_exact_auc_within_a_thousandth(rows, name):
    x, labels = rows
    scores = SCORES[name](x).astype(np.float32)
    histogram = ScoreHistogram()
    histogram.add(scores, labels)
    assert histogram.auc() == pytest.approx(roc_auc_score(labels, scores), abs=1e-4)
    assert len(histogram.scores) <= histogram.buckets


def test_rare_positives_sorted_labels_and_double_precision(rows):
    x, labels = rows
    rare = labels & (np.arange(ROWS) % 200 == 0)
    by_label = np.argsort(labels, kind="stable")
    for scores, positive in [(x, rare), (x[by_label], labels[by_label]), (0.5 + 1e-12 * x, labels)]:
        histogram = ScoreHistogram()
        histogram.add(scores, positive)
        assert histogram.auc() == pytest.approx(roc_auc_score(positive, scores), abs=1e-3)


floats = st.floats(width=32, allow_nan=False)
batches = st.lists(st.tuples(st.one_of(floats, st.sampled_from([-0.0, 0.0, 1.0])), st.booleans()), min_size=1)


def counted(rows, buckets=64):
    histogram = ScoreHistogram(buckets)
    histogram.add(np.array([score for score, _ in rows], np.float32), np.array([label for _, label in rows]))
    return histogram


@given(batches, batches)
@settings(deadline=None, max_examples=60)
def test_merging_equals_counting_the_concatenation(first, second):
    merged, whole = counted(first, 1000), counted(first + second, 1000)
    merged.merge(counted(second, 1000))
    for name, array in merged.arrays().items():
        np.testing.assert_array_equal(array, whole.arrays()[name])
    labels = [label for _, label in first + second]
    if 0 < sum(labels) < len(labels):
        finite = [np.clip(np.float64(score), -1e300, 1e300) for score, _ in first + second]
        assert merged.auc() == pytest.approx(roc_auc_score(labels, finite), abs=1e-12)
    else:
        assert np.isnan(merged.auc())


@given(batches, batches)
@settings(deadline=None, max_examples=60)
def test_joining_buckets_keeps_weights_order_and_bound(first, second):
    histogram = counted(first, 8)
    histogram.merge(counted(second, 8))
    labels = [label for _, label in first + second]
    assert len(histogram.scores) <= 8
    assert (np.diff(histogram.scores) > 0).all()
    assert histogram.positives.sum() == sum(labels)
    assert histogram.negatives.sum() == len(labels) - sum(labels)


@given(st.lists(floats, min_size=1))
@settings(deadline=None, max_examples=100)
def test_radix_order_is_the_order_of_floats(values):
    scores = np.array(values, np.float32)
    np.testing.assert_array_equal(scores[_argsort(scores)], np.sort(scores))


@given(st.lists(st.integers(0, 40), max_size=20), st.integers(1, 16))
@settings(deadline=None, max_examples=60)
def test_blocks_do_not_depend_on_how_rows_were_batched(sizes, capacity):
    total = sum(sizes)
    data, ids = np.arange(total, dtype=np.float32), np.arange(total)
    buffer, blocks, start = RowBuffer(capacity), [], 0
    for size in sizes:
        blocks += [tuple(part.copy() for part in block) for block in buffer.push(data[start : start + size],
                                                                               ids[start : start + size])]  # fmt: skip
        start += size
    assert all(len(block[0]) == capacity for block in blocks)
    twin = RowBuffer(capacity)
    twin.load_state_dict(buffer.state_dict())
    blocks.append(twin.drain())
    for place, column in enumerate((data, ids)):
        parts = [block[place] for block in blocks if block]
        np.testing.assert_array_equal(np.concatenate(parts) if parts else column, column)


def test_scaling_weights_the_past_down(rows):
    x, labels = rows
    x, labels = x[:4000].astype(np.float32), labels[:4000]
    histogram = ScoreHistogram()
    histogram.add(x[:2000], labels[:2000])
    histogram.decay(0.25)
    histogram.add(x[2000:], labels[2000:])
    weights = np.repeat([0.25, 1.0], 2000)
    assert histogram.auc() == pytest.approx(roc_auc_score(labels, x, sample_weight=weights), abs=1e-12)
    for _ in range(30):
        histogram.decay(0.1)
        histogram.add(x[:3], np.array([True, False, True]))
    assert len(histogram.scores) == 3
