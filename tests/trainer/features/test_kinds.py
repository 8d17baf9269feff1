"""Every kind of feature gives what a reference in NumPy and pandas gives, missing and unseen values included."""

import numpy as np
import pandas as pd
import pytest

from trainer.embedding.tables.hashing import to_ids
from trainer.errors import ConfigurationError, DataError
from trainer.features import (
    Bucketized,
    Categorical,
    Cross,
    Custom,
    Expression,
    Features,
    ListFeature,
    Lookup,
    Numeric,
    Overlap,
    Text,
    Time,
    Vector,
    WeightedList,
)

NAN, NO_ID = float("nan"), np.iinfo(np.int64).min


def transformed(feature, train, data=None):
    """Fit one feature on `train` and return its outputs for `data`, by name."""
    features = Features([feature])
    features.fit(train)
    return features.transform(train if data is None else data)


def lists(ragged):
    return [row.tolist() for row in np.split(ragged.values, ragged.offsets[1:-1])]


def test_numeric():
    values = pd.Series([1.0, 5, NAN, -3, 10, np.inf])
    unseen = {"x": [1000.0, NAN]}
    plain = transformed(Numeric("x", missing=-1), {"x": values})
    np.testing.assert_array_equal(plain["numbers"][:, 0], np.float32([1, 5, -1, -3, 10, -1]))
    clipped = values.clip(0, 8)
    standard = transformed(Numeric("x", clip=(0, 8), normalize="standard", indicator=True), {"x": values}, unseen)
    expected = (8 - clipped.mean()) / clipped.std(ddof=0)
    np.testing.assert_allclose(standard["numbers"], [[expected, 0], [0, 1]], rtol=1e-6)
    log = np.sign(clipped) * np.log1p(clipped.abs())
    scaled = transformed(
        Numeric("x", clip=(0, 8), transform="log1p", normalize="min_max", missing="mean"), {"x": values}
    )
    expected = ((log - log.min()) / (log.max() - log.min())).fillna((log.mean() - log.min()) / (log.max() - log.min()))
    np.testing.assert_allclose(scaled["numbers"][:, 0], expected, rtol=1e-6)
    empty = transformed(Numeric("x", normalize="standard"), {"x": [NAN, NAN]}, unseen)
    np.testing.assert_array_equal(empty["numbers"][:, 0], np.float32([1000, 0]))


def test_a_number_that_float32_cannot_hold_counts_as_missing():
    features = Features(
        [
            Numeric("x", missing=-1, indicator=True),
            Expression("scaled", expression="x * 1e38", missing=-2),
            Lookup("l", column="m", key="k", missing=-3),
        ]
    )
    found = features.transform({"x": [1e39, -1e39, 2.0], "m": ["a:1e39", "a:3", "b:1"], "k": ["a", "a", "a"]})
    expected = [[-1, 1, -2, -3], [-1, 1, -2, 3], [2, 0, 2e38, -3]]
    np.testing.assert_array_equal(found["numbers"], np.float32(expected))


def test_bucketized():
    data = {"x": [NAN, -5.0, 0, 0.5, 1, 7]}
    given = transformed(Bucketized("x", boundaries=[0, 1]), data)
    np.testing.assert_array_equal(given["ids"][:, 0], [0, 1, 2, 2, 3, 3])
    values = np.random.default_rng(0).lognormal(3, 2, 10_000) - 10
    learned = transformed(Bucketized("x", boundaries=8), {"x": values})
    counts = np.bincount(learned["ids"][:, 0], minlength=9)
    assert counts[0] == 0
    np.testing.assert_allclose(counts[1:], 1250, atol=130)
    edges = np.quantile(values, np.arange(1, 8) / 8, method="lower")
    exact = 1 + np.searchsorted(edges, values, side="right")
    differing = exact != learned["ids"][:, 0]
    assert differing.mean() < 0.01
    nearest = np.abs(values[differing, None] - edges).min(1)
    assert (nearest <= 0.011 * np.abs(values[differing])).all()


def test_vector_and_expression():
    data = {"v": [[1.0, NAN], None, [3, 4]], "a": [1.0, NAN, 0], "b": [2.0, 3, 0]}
    np.testing.assert_array_equal(
        transformed(Vector("v", width=2), data)["numbers"], np.float32([[1, 0], [0, 0], [3, 4]])
    )
    expression = Expression("e", expression="where(is_missing(a), 7, log1p(b) / a)", missing=-1)
    expected = np.float32([np.log1p(2.0), 7, -1])
    np.testing.assert_array_equal(transformed(expression, data)["numbers"][:, 0], expected)


def test_categorical():
    train, data = {"c": ["a", "b", "a", None, "c", "a", "b"]}, {"c": ["b", "new", None, "", "a", "c"]}
    raw = transformed(Categorical("c"), train, data)["ids"][:, 0]
    np.testing.assert_array_equal(raw, [*to_ids(np.array(["b", "new"])), NO_ID, NO_ID, *to_ids(np.array(["a", "c"]))])
    learned = transformed(Categorical("c", vocabulary="learn", min_count=2), train, data)["ids"][:, 0]
    assert learned[[1, 2, 3, 5]].tolist() == [1, 0, 0, 1]  # unseen, missing, missing, too rare
    assert set(learned[[0, 4]]) == {2, 3}
    most = transformed(Categorical("c", vocabulary="learn", max_size=1), train, data)["ids"][:, 0]
    assert most.tolist() == [1, 1, 0, 0, 2, 1]
    given = transformed(Categorical("c", vocabulary=["a", "b"]), train, data)["ids"][:, 0]
    assert given[[1, 2, 3, 5]].tolist() == [1, 0, 0, 1]
    assert set(given[[0, 4]]) == {2, 3}
    hashed = transformed(Categorical("c", hash_buckets=7), train, data)["ids"][:, 0]
    assert hashed[2] == hashed[3] == 0
    assert ((hashed[[0, 1, 4, 5]] >= 1) & (hashed[[0, 1, 4, 5]] <= 7)).all()
    numbers = transformed(Categorical("n", dtype="int64"), {"n": [3, None, -1]})["ids"][:, 0]
    assert numbers.tolist() == [3, NO_ID, -1]


def test_vocabulary_of_a_file(tmp_path):
    (tmp_path / "words.txt").write_text("a\nb\n", encoding="utf-8-sig")  # with the mark that Windows writes
    feature = Categorical("c", vocabulary=str(tmp_path / "words.txt"))
    given = Categorical("c", vocabulary=["a", "b"])
    data = {"c": ["b", "x", "a"]}
    np.testing.assert_array_equal(transformed(feature, data)["ids"], transformed(given, data)["ids"])


def test_cross():
    data = {"a": ["x", "x", "y", None, "x"], "n": [1, 2, 1, 1, 1]}
    ids = transformed(Cross("c", columns=["a", "n"], dtype=["str", "int64"]), data)["ids"][:, 0]
    assert ids[0] == ids[4]
    assert len(set(ids[:4])) == 4
    assert ids[3] == NO_ID
    buckets = transformed(Cross("c", columns=["a", "n"], dtype=["str", "int64"], hash_buckets=5), data)["ids"][:, 0]
    assert buckets[3] == 0
    assert ((buckets[[0, 1, 2]] >= 1) & (buckets[[0, 1, 2]] <= 5)).all()


@pytest.mark.parametrize("as_times", [False, True])
def test_time(as_times):
    times = pd.Series(pd.to_datetime(["1970-01-01 05:00:00", "2024-02-29 23:59:59", None, "1969-12-31 23:00:00"]))
    before = times - pd.Timedelta(hours=10)
    seconds = (times - pd.Timestamp(0)) / pd.Timedelta(seconds=1), (before - pd.Timestamp(0)) / pd.Timedelta(seconds=1)
    parts = ["hour", "weekday", "hour_of_week", "day", "month"]
    data = pd.DataFrame({"t": times, "u": before} if as_times else {"t": seconds[0], "u": seconds[1]})
    inputs = transformed(Time("t", parts=parts, since="u"), data)
    reference = [
        times.dt.hour,
        times.dt.weekday,
        times.dt.weekday * 24 + times.dt.hour,
        times.dt.day - 1,
        times.dt.month - 1,
    ]
    expected = np.stack([(part + 1).fillna(0) for part in reference], 1)
    np.testing.assert_array_equal(inputs["ids"], expected)
    np.testing.assert_allclose(inputs["numbers"][:, 0], np.float32([np.log(11), np.log(11), 0, np.log(11)]))


def test_lists():
    data = {"g": ["x| y", "", None, "z"], "h": [["a", None, "b"], [], None, ["c", "d", "e"]]}
    split = transformed(ListFeature("g", separator="|"), data)["g"]
    assert lists(split) == [to_ids(np.array(["x", "y"])).tolist(), [], [], to_ids(np.array(["z"])).tolist()]
    cut = transformed(ListFeature("h", max_length=2), data)["h"]
    assert lists(cut) == [to_ids(np.array(["a", "b"])).tolist(), [], [], to_ids(np.array(["d", "e"])).tolist()]
    known = transformed(ListFeature("h", vocabulary="learn"), data, {"h": [["new", "a"]]})["h"]
    assert lists(known)[0][0] == 1
    assert lists(known)[0][1] >= 2
    weighted = {"i": [[5, 6], [7], None], "w": [[0.5], None, [1.0]]}
    inputs = transformed(WeightedList("i", dtype="int64", weights="w"), weighted)
    assert lists(inputs["i"]) == [[5, 6], [7], []]
    assert lists(inputs["i_weights"]) == [[0.5, 1.0], [1.0], []]


def test_text():
    data = {"t": ["Hello, big World", None, "big"]}
    words = transformed(Text("t", ngrams=2), data)["t"]
    expected = to_ids(np.array(["hello", "big", "world", "hello big", "big world"])).tolist()
    assert lists(words) == [expected, [], [expected[1]]]
    given = (["Hello", "BIG"], ["hello", "big"])
    capitals, small = (transformed(Text("t", vocabulary=words), data)["t"] for words in given)
    assert lists(capitals) == lists(small)
    assert lists(capitals)[2][0] > 1  # known
    with pytest.raises(ConfigurationError, match=r"Text\(dtype=...\) takes .str."):
        Text("t", dtype="int64")


def test_columns_together():
    data = {"m": ["a:0.5|b:2", "a:x", None], "k": ["b", "a", "a"]}
    assert transformed(Lookup("l", column="m", key="k", missing=-1), data)["numbers"][:, 0].tolist() == [2, -1, -1]
    texts = {"p": ["red Shoe", None, "a b"], "q": ["a red shoe", "x", "b c"]}
    overlap = transformed(Overlap("o", columns=["p", "q"]), texts)["numbers"]
    np.testing.assert_allclose(overlap, [[1, 2 / 3, 2 / 3, 1], [0, 0, 0, 0], [0.5, 0.5, 1 / 3, 0]], rtol=1e-6)
    custom = Custom("c", function=lambda a, b: np.stack([a + b, a - b], 1), columns=["a", "b"], width=2)
    summed = transformed(custom, {"a": [1.0, NAN], "b": [2.0, 1]})["numbers"]
    np.testing.assert_array_equal(summed, np.float32([[3, -1], [0, 0]]))


def test_a_function_gets_a_part_without_rows():
    custom = Custom("c", function=lambda a: a * 2, columns=["a"])
    assert custom.apply({"a": np.zeros(0)}, None)[0].shape == (0, 1)


def test_a_function_may_return_a_single_row_without_its_axis():
    """So does `np.squeeze`, in a request or a last batch of one row."""
    custom = Custom("c", function=lambda a, b: np.squeeze(np.stack([a, b], 1)), columns=["a", "b"], width=2)
    assert transformed(custom, {"a": [1.0], "b": [4.0]})["numbers"].tolist() == [[1, 4]]
    assert transformed(custom, {"a": [1.0, 2], "b": [4.0, 5]})["numbers"].tolist() == [[1, 4], [2, 5]]


def test_a_function_that_returns_a_row_for_each_number_is_refused():
    custom = Custom("c", function=lambda a, b: np.stack([a, b]), columns=["a", "b"], width=2)
    with pytest.raises(DataError, match=r"returned shape \[2, 3\]; expected \[3, 2\]"):
        transformed(custom, {"a": [1.0, 2, 3], "b": [4.0, 5, 6]})


def test_a_weight_that_is_a_feature_too_has_the_same_value_for_both():
    features = Features([Bucketized("w", boundaries=[0.3, 0.7])], label="y", weight="w")
    rows = {"w": [0.1, 0.3, 0.7, 0.9], "y": [0, 1, 0, 1]}
    features.fit(rows)
    trained = features.batch(features.read(rows).columns)
    for name, column in features.transform(rows).items():
        np.testing.assert_array_equal(trained[name], column)
    assert trained["w"].dtype == np.float32
    with pytest.raises(ConfigurationError, match="weights are numbers; give the weight its own column"):
        Features([Categorical("w")], label="y", weight="w")


def test_a_cross_with_a_list_has_a_combination_for_each_element():
    data = {"u": ["x", "y", None, "x", "x"], "g": [["a", "b"], ["a", None], ["a"], [], ["b", "c", "a"]]}
    crossed = transformed(Cross("c", columns=["u", "g"], elements="g", max_length=2), data)["c"]
    lists = [row.tolist() for row in np.split(crossed.values, crossed.offsets[1:-1])]
    assert [len(ids) for ids in lists] == [2, 1, 0, 0, 2]
    assert lists[4] == [lists[4][0], lists[0][0]]  # cut at the front; "x" with "a" both times
    assert len({lists[0][0], lists[0][1], lists[1][0], lists[4][0]}) == 4
    alone = transformed(Cross("c", columns=["u", "e"]), {"u": ["x", "x"], "e": ["a", "b"]})["ids"][:, 0]
    other = Cross("c", columns=["u", "e"], elements="e", separator="|", hash_buckets=7)
    texts = transformed(other, {"u": ["x", None], "e": ["a| b", "a"]})["c"]
    assert texts.lengths.tolist() == [2, 0]
    assert texts.values.min() >= 1
    assert texts.values.max() <= 7
    single = Cross("c", columns=["u", "e"], elements="e", separator="|")
    assert transformed(single, {"u": ["x"], "e": ["a|b"]})["c"].values.tolist() == alone.tolist()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"elements": "genre"}, r"elements=...\) takes 'user', 'genres' or None.*did you mean 'genres'"),
        ({"separator": "|"}, "need elements="),
        ({"elements": "genres", "pooling": None}, "sum"),
        ({"elements": "genres", "max_length": 0}, "max_length"),
    ],
)
def test_a_cross_that_cannot_be_is_refused(arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        Cross("c", columns=["user", "genres"], **arguments)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("(a > 1) + (b > 1)", [2, 0, 1]),
        ("is_missing(c) + is_missing(d)", [0, 2, 1]),
        ("(a > 1) - (b > 1)", [0, 0, 1]),
        ("-is_missing(c)", [0, -1, 0]),
        ("exp(a > 1)", [np.e, 1, np.e]),
        ("not a + (b > 1)", [0, 1, 0]),
    ],
)
def test_truth_values_in_an_expression_are_the_numbers_0_and_1(expression, expected):
    data = {"a": [2.0, 0, 3], "b": [5.0, 0, 0], "c": [1.0, NAN, 9], "d": [1.0, NAN, NAN]}
    numbers = transformed(Expression("x", expression=expression), data)["numbers"][:, 0]
    np.testing.assert_array_equal(numbers, np.float32(expected))


def test_the_format_of_values_applies_within_texts_and_lists():
    csv = {"decimal": ",", "thousands": ".", "missing": ["n/a"]}

    def outputs(feature, data):
        return Features([feature], csv=csv).transform(data)

    data = {"m": ["a:0,5|b:1.234,5", "a:0.5", "a:n/a"], "k": ["b", "a", "a"]}
    assert outputs(Lookup("l", column="m", key="k", missing=-1), data)["numbers"][:, 0].tolist() == [1234.5, 0.5, -1]
    a, b = to_ids(np.array(["a", "b"])).tolist()
    split = ListFeature("g", separator="|")
    assert lists(outputs(split, {"g": ["n/a|b", "n/a", "a| n/a"]})["g"]) == [[b], [], [a]]
    assert lists(outputs(ListFeature("g"), {"g": [["n/a", "b"], ["a"]]})["g"]) == [[b], [a]]
    numbers = ListFeature("g", separator="|", dtype="int64")
    assert lists(outputs(numbers, {"g": ["1.000|n/a|2"]})["g"]) == [[1000, 2]]
    aligned = ListFeature("g", separator="|", sequence="s")
    assert lists(outputs(aligned, {"g": ["n/a|b"]})["g"]) == [[NO_ID, b]]
    crossed = Cross("x", columns=["c", "g"], elements="g", separator="|")
    ids = lists(outputs(crossed, {"c": ["u", "u"], "g": ["n/a|b", "b"]})["x"])
    assert ids[0] == ids[1]
    assert outputs(Vector("v", width=2), {"v": [["0,5", "n/a"]]})["numbers"].tolist() == [[0.5, 0]]
