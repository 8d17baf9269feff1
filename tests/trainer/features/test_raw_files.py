"""Files of raw rows divided into parts: by time where there is one, else by a draw; times as text."""

import numpy as np
import pytest

from trainer.errors import ConfigurationError, DataError
from trainer.features import Features, Numeric, RawFiles, Time
from trainer.features.feature_data import inputs_of, rows_of

ROWS = 1000


def make_features(**roles):
    return Features([Numeric("x")], label="y", **roles)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One table as CSV, as JSON lines and as Parquet, its rows in no order of time; every tenth lacks its label."""
    import pandas as pd

    folder = tmp_path_factory.mktemp("tables")
    rng = np.random.default_rng(0)
    days = rng.permutation(ROWS)
    table = pd.DataFrame(
        {
            "x": days.astype(float),
            "when": pd.Timestamp("2020-01-01") + pd.to_timedelta(days, "D"),
            "y": [None if n % 10 == 0 else float(n % 2) for n in range(ROWS)],
        }
    )
    table.to_csv(folder / "rows.csv", index=False)
    table.to_json(folder / "rows.jsonl", orient="records", lines=True, date_format="iso")
    table.to_parquet(folder / "rows.parquet")
    return folder


def numbers(features, data, **options):
    return np.concatenate([rows.columns["x"] for rows in rows_of(features, data, **options)])


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl", "rows.parquet"])
def test_parts_by_time_follow_one_another(folder, name):
    features = make_features(event_time="when")
    parts = [numbers(features, RawFiles(folder / name, part, 0.2, 0.1)) for part in ("train", "valid", "test")]
    # the numbers are days, so the parts are 700, 200 and 100 days long, less the rows without a label
    assert [(part.min() // 100, part.max() // 100) for part in parts] == [(0, 6), (7, 8), (9, 9)]
    assert sum(map(len, parts)) == ROWS * 0.9


def test_the_drift_of_a_part_by_time_needs_no_feature_of_the_time(folder):
    features = Features([Numeric("x")], label="y", event_time="when")
    features.fit(RawFiles(folder / "rows.csv", "train"))
    assert features.drift(RawFiles(folder / "rows.csv", "test"))["x"] > 0.25


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl", "rows.parquet"])
def test_parts_drawn_are_the_same_every_time_and_together_the_table(folder, name):
    features = make_features()
    parts = [numbers(features, RawFiles(folder / name, part, 0.2, 0.1)) for part in ("train", "valid", "test")]
    assert [round(len(part) / 900, 1) for part in parts] == [0.7, 0.2, 0.1]
    assert sorted(np.concatenate(parts)) == sorted(numbers(features, folder / name))
    again = numbers(features, RawFiles(folder / name, "test", 0.2, 0.1))
    assert again.tolist() == parts[2].tolist()


def test_a_prediction_reads_the_rows_that_an_evaluation_reads(folder):
    features = make_features()
    part = RawFiles(folder / "rows.csv", "test")
    read = [inputs_of(features, part, labelled=labelled)["numbers"] for labelled in (True, False)]
    assert np.array_equal(*read)


def test_a_part_that_cannot_be_made_says_why(folder, tmp_path):
    with pytest.raises(ConfigurationError, match="did you mean 'train'"):
        RawFiles(folder / "rows.csv", "trian")
    with pytest.raises(ConfigurationError, match="leaves nothing to train on"):
        RawFiles(folder / "rows.csv", "train", valid=0.5, test=0.5)
    (tmp_path / "none.csv").write_text("x,when,y\n1,soon,0\n")
    (tmp_path / "few.csv").write_text("x,y\n" + "1,0\n2,1\n" * 2)
    with pytest.raises(DataError, match=r"its 4 rows are too few for a part 'valid' .* valid: other.csv"):
        inputs_of(make_features(), RawFiles(tmp_path / "few.csv", "valid"))
    with pytest.raises(DataError, match="no row has a time in column 'when'"):
        numbers(make_features(event_time="when"), RawFiles(tmp_path / "none.csv", "train"))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2024-01-05", 1704412800),
        ("2024-01-05 10:00", 1704448800),
        ("2024-01-05T10:00:00.25Z", 1704448800.25),
        ("2024-01-05T10:00:00+02:00", 1704441600),
        ("1704448800", 1704448800),
        ("", None),
    ],
)
def test_a_time_is_read_the_same_from_text_in_any_form(tmp_path, text, seconds):
    features = Features([Time("when")])
    (tmp_path / "alike.csv").write_text("when,x\n" + f"{text},1\n" * 3)
    (tmp_path / "mixed.csv").write_text(f"when,x\n{text},1\n{text},1\n2024-01-05 10:00:00+01:00,1\n")
    (tmp_path / "rows.jsonl").write_text(f'{{"when": "{text}"}}\n' * 3)
    wanted = np.nan if seconds is None else seconds
    for data in (tmp_path / "alike.csv", tmp_path / "mixed.csv", tmp_path / "rows.jsonl", [{"when": text}] * 3):
        (rows,) = rows_of(features, data)
        assert np.array_equal(rows.columns["when"][:2], [wanted, wanted], equal_nan=True), data


def test_what_is_no_time_is_set_aside_with_its_text():
    with pytest.raises(DataError, match="column 'when' takes a time; received text that is not a time: 'tomorrow'"):
        Features([Time("when")]).transform({"when": ["2024-01-05", "tomorrow"]})


def test_a_byte_order_mark_costs_no_row(tmp_path):
    """Windows writes one; the rows are read in a block or, like these with mixed values, line by line."""
    for values in ([1, 2, 3], [1, "2", None]):
        lines = [f'{{"x": {"null" if value is None else repr(value)}}}'.replace("'", '"') for value in values]
        (tmp_path / "rows.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8-sig")
        read = numbers(make_features(), tmp_path / "rows.jsonl", labelled=False)
        assert read[:2].tolist() == [1, 2]
        assert len(read) == 3
