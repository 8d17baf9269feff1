import json
from datetime import date
from time import time

import numpy as np
import pytest

from trainer.data.streaming.stream_source import BadRowFilter
from trainer.errors import ConfigurationError, DataError, StreamError
from trainer.streams import Column, DelayedLabelJoin, FileStream, IterableStream, ReplayStream, Schema, advance
from trainer.streams.sources.pending import PendingRows

WITHIN = 50.0


def stream(users, times, sizes):
    """A stream of batches whose sizes go through `sizes` again and again."""
    items, first = [], 0
    while first < len(users):
        size = sizes[len(items) % len(sizes)]
        items.append({"user": np.array(users[first : first + size]), "ts": np.array(times[first : first + size])})
        first += size
    return IterableStream(items, event_time="ts", rows="batch")


@pytest.fixture
def logs():
    """Impressions 0..299 slightly out of order, outcomes for a third of them, early, in time and too late."""
    random = np.random.default_rng(7)
    shown = np.arange(300) * 3.0 + random.integers(-5, 5, 300)
    users = np.arange(300)
    chosen = np.sort(random.choice(300, 100, replace=False))
    acted = shown[chosen] + random.choice([1, 20, 49, 50, 51, 80], 100)
    order = np.argsort(acted + random.integers(-3, 3, 100), kind="stable")
    return (users, shown), (chosen[order], acted[order])


def join(logs, sizes=(7,), acted_sizes=(5,), **options):
    (users, shown), (chosen, acted) = logs
    options = {"lateness": 20.0, **options}
    return DelayedLabelJoin(stream(users, shown, sizes), stream(chosen, acted, acted_sizes), "user", WITHIN, **options)


def test_labels_are_those_of_the_outcomes_within_the_limit(logs, read):
    (users, shown), (chosen, acted) = logs
    delay = dict(zip(chosen.tolist(), (acted - shown[chosen]).tolist(), strict=True))
    joined = join(logs)
    batch = read(joined)
    assert joined.exhausted
    assert sorted(batch.columns["user"].tolist()) == users.tolist()
    expected = [float(delay.get(user, 1e9) <= WITHIN) for user in batch.columns["user"].tolist()]
    assert batch.columns["label"].tolist() == expected
    assert batch.columns["label"].dtype == np.float32
    assert 0 < sum(expected) < 100
    np.testing.assert_array_equal(batch.event_time, shown[batch.columns["user"]])
    assert set(batch.columns["weight"].tolist()) == {1.0}
    assert joined.pending == 0


def test_a_positive_leaves_when_its_outcome_comes_and_a_negative_when_its_time_is_up():
    logs = ([0, 1, 2, 3], [0.0, 10.0, 20.0, 100.0]), ([1, 3], [12.0, 101.0])
    batch = join(logs, sizes=(1,), acted_sizes=(1,), lateness=0.0).poll(10, 0)
    assert batch.columns["user"].tolist() == [1]
    joined = join(logs, lateness=0.0)
    order = [u for b in iter(lambda: joined.poll(10, 0), None) for u in b.columns["user"].tolist()]
    assert order == [1, 0, 2, 3]


def test_outcomes_that_met_no_impression_are_counted(read):
    # 1 is met by a waiting impression, 2 by one that is read after it; 9 was never shown, 0 acts too late.
    shown = [0, 1, 2, 3], [0.0, 10.0, 7.0, 500.0]
    acted = [2, 1, 9, 0, 3], [8.0, 11.0, 20.0, 60.0, 501.0]
    joined = join((shown, acted), sizes=(1,), acted_sizes=(1,))
    batch = read(joined)
    assert dict(zip(batch.columns["user"].tolist(), batch.columns["label"].tolist(), strict=True)) == {
        0: 0.0,
        1: 1.0,
        2: 1.0,
        3: 1.0,
    }
    assert joined.unmatched_outcomes == 2


@pytest.mark.parametrize("rate", [1.0, 0.4])
def test_rows_and_order_do_not_depend_on_how_the_streams_are_cut(logs, read, rate):
    whole = read(join(logs, negative_sampling_rate=rate))
    for sizes, acted_sizes in (((1,), (1,)), ((300,), (1, 9)), ((2, 31), (100,))):
        batch = read(join(logs, sizes, acted_sizes, negative_sampling_rate=rate), max_rows=3)
        for name, column in whole.columns.items():
            np.testing.assert_array_equal(batch.columns[name], column)


@pytest.mark.parametrize("options", [{}, {"negative_sampling_rate": 0.3, "lateness": 0.0}], ids=["all", "sampled"])
def test_resumes_behind_every_row_with_the_waiting_rows_of_that_moment(logs, read, resumes, options):
    expected = read(join(logs, **options)).columns["user"].tolist()
    resumes(lambda: join(logs, (16,), (3,), **options), expected, max_rows=6, every=5)


def test_resumes_exactly_where_event_times_are_out_of_order_by_more_than_the_limit(read, resumes):
    random = np.random.default_rng(1)
    shown = np.arange(120) * 3.0 + random.integers(-90, 90, 120)
    acted = shown[::2] + random.integers(0, 60, 60)
    logs = (np.arange(120), shown), (np.arange(0, 120, 2), acted)
    whole = read(join(logs, lateness=0.0))
    assert sorted(whole.columns["user"].tolist()) == list(range(120))
    np.testing.assert_array_equal(read(join(logs, (1,), (9,), lateness=0.0)).columns["label"], whole.columns["label"])
    resumes(lambda: join(logs, (16,), (3,), lateness=0.0), whole.columns["user"].tolist(), max_rows=6)


def test_a_resumed_join_resumes_again(logs, read):
    whole = read(join(logs))
    joined = join(logs)
    seen = []
    for rows in (1, 40, 3, 100):
        seen += read(joined, max_rows=50, rows=rows).columns["user"].tolist()
        # Read on, as a prefetching reader does, and come back to the row trained on.
        position = joined.position()
        joined.poll(25, 0)
        position = json.loads(json.dumps(joined.resolve(position)))
        joined = join(logs)
        joined.seek(position)
    rest = read(joined)
    assert seen + rest.columns["user"].tolist() == whole.columns["user"].tolist()
    np.testing.assert_array_equal(rest.columns["label"], whole.columns["label"][len(seen) :])


def of_frames(shown, acted):
    return DelayedLabelJoin(*(ReplayStream(table, event_time="ts") for table in (shown, acted)), "user", WITHIN)


def test_texts_of_frames_are_keys_and_wait_in_checkpoints(read, resumes):
    """Pandas holds texts, and numbers beside missing values, as objects."""
    users, values = np.array([f"u{number}" for number in range(60)], object), ["here", None, 3, 2.5, True, 2**70]
    shown = {"user": users, "place": np.array(values * 10, object), "ts": np.arange(60) * 3.0}
    acted = {"user": users[::3], "ts": np.arange(0, 60, 3) * 3.0 + 5}
    whole = read(of_frames(shown, acted))
    assert whole.columns["label"].sum() == 20
    resumes(lambda: of_frames(shown, acted), whole.columns["user"].tolist(), max_rows=6, every=5)
    joined, resumed = of_frames(shown, acted), of_frames(shown, acted)
    joined.poll(7, 0)
    resumed.seek(json.loads(json.dumps(joined.resolve(joined.position()))))
    rest = read(resumed)
    for name in ("place", "label"):
        assert rest.columns[name].tolist() == whole.columns[name].tolist()[7:]


@pytest.mark.parametrize("dtype", ["S", object])
def test_keys_that_are_bytes_on_one_side_meet_those_that_are_text(read, dtype):
    shown = {"user": np.array(["ä", "b", "c"]), "ts": np.arange(3.0)}
    acted = {"user": np.array([b"c", "ä".encode()], dtype), "ts": np.array([3.0, 4.0])}
    labelled = read(of_frames(shown, acted))
    assert dict(zip(labelled.columns["user"].tolist(), labelled.columns["label"].tolist(), strict=True)) == {
        "ä": 1,
        "b": 0,
        "c": 1,
    }


def test_times_of_other_units_meet_and_labels_may_have_the_shape_of_a_loss(read):
    days = np.array(["2024-01-01", "2024-01-02", "NaT"], "M8[ns]")
    acted = {"user": np.array(["2024-01-02", "NaT"], "M8[D]"), "ts": np.array([1.5, 1.6])}
    acted["label"] = np.array([[0.5], [1.0]])
    labelled = read(of_frames({"user": days, "ts": np.array([0.0, 1.0, 1.2])}, acted))
    assert dict(zip(labelled.columns["user"].tolist(), labelled.columns["label"].tolist(), strict=True)) == {
        days[0].item(): 0,
        days[1].item(): 0.5,
        None: 0,
    }


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (np.array([2.0**60, np.nan]), "of the outcomes of a join holds floats too large to be exact integers"),
        (np.array([[1], [2]]), r"takes one key per row; received rows of shape \[1\]"),
    ],
)
def test_keys_that_could_match_nothing_are_refused(read, keys, said):
    with pytest.raises(DataError, match=said):
        read(of_frames({"user": np.array([2**60 + 1, 1]), "ts": np.arange(2.0)}, {"user": keys, "ts": np.arange(2.0)}))


def test_objects_that_a_checkpoint_cannot_hold_are_named():
    shown = {"user": np.arange(2), "day": np.array([date(2024, 1, 1)] * 2, object), "ts": np.array([0.0, 0.2])}
    joined = of_frames(shown, {"user": np.array([0]), "ts": np.array([0.5])})
    assert joined.poll(1, 0).rows == 1
    with pytest.raises(DataError, match="column 'day' of a join holds date"):
        joined.resolve(joined.position())


def test_rows_without_a_key_match_nothing(read):
    shown = {"user": np.array(["a", None, None, "b"], object), "ts": np.arange(4.0)}
    labels = read(of_frames(shown, {"user": np.array([None, "a"], object), "ts": np.array([5.0, 6.0])}))
    assert dict(zip(labels.event_time.tolist(), labels.columns["label"].tolist(), strict=True)) == {
        0: 1,
        1: 0,
        2: 0,
        3: 0,
    }


def test_what_lies_far_behind_is_forgotten_also_without_checkpoints(monkeypatch):
    monkeypatch.setattr("trainer.streams.sources.join._KEPT_ROWS", 200)
    pending = []
    monkeypatch.setattr(
        "trainer.streams.sources.join.PendingRows", lambda: pending.append(PendingRows()) or pending[-1]
    )
    n = 20_000
    joined = join(((np.arange(n), np.arange(n) * 1.0), (np.arange(0, n, 10), np.arange(0, n, 10) * 1.0)), (50,), (5,))
    start, held = joined.position(), []
    while (batch := joined.poll(50, 0)) is not None:
        held.append(pending[-1].rows)
        last = batch
    assert max(held) < 1000
    with pytest.raises(StreamError, match="no longer known"):
        joined.resolve(start)
    assert joined.resolve(advance(start, last.split(1)[0]))["join"][1] > 0


def test_many_rows_that_leave_at_once_do_not_make_the_position_before_them_unknown(read, monkeypatch):
    monkeypatch.setattr("trainer.streams.sources.join._KEPT_ROWS", 16)
    users = np.arange(100)
    shown, acted = {"user": users, "ts": users * 0.01}, {"user": np.array([3, 5]), "ts": np.array([0.5, 2.0])}
    joined = of_frames(shown, acted)
    seen = joined.poll(1, 0.0).columns["user"].tolist()
    position = joined.position()
    assert joined.poll(1, 0.0).rows == joined.poll(1, 0.0).rows == 1  # the others leave at the end of both streams
    resumed = of_frames(shown, acted)
    resumed.seek(json.loads(json.dumps(joined.resolve(position))))
    assert sorted(seen + read(resumed).columns["user"].tolist()) == users.tolist()


def test_a_join_of_a_join_resumes_again(read):
    users = np.arange(60)

    def joined():
        tables = [{"user": users[::n], "ts": users[::n] * 3.0 + n} for n in (1, 2, 3)]
        shown, clicked, bought = (ReplayStream(table, event_time="ts") for table in tables)
        clicks = DelayedLabelJoin(shown, clicked, "user", WITHIN, label="clicked", weight="click_weight")
        return DelayedLabelJoin(clicks, bought, "user", WITHIN)

    whole = read(joined())
    one, seen = joined(), []
    for _ in range(4):
        position = json.loads(json.dumps(one.resolve(one.position())))
        one = joined()
        one.seek(position)
        seen += read(one, rows=11).columns["user"].tolist()
    assert seen + read(one).columns["user"].tolist() == whole.columns["user"].tolist()


def test_a_position_does_not_grow_with_the_segments_of_earlier_trainings(tmp_path, read):
    schema, folders, position = Schema({"user": "int64"}, event_time="ts"), (tmp_path / "shown", tmp_path / "acted"), {}
    for folder in folders:
        folder.mkdir()

    def joined():
        sides = (FileStream(folder, schema, end="at_last") for folder in folders)
        return DelayedLabelJoin(*sides, "user", WITHIN)

    sizes = []
    for turn in range(3):
        for number in range(150 * turn, 150 * turn + 150):
            for folder in folders:
                (folder / f"{number:04d}.jsonl").write_text(json.dumps({"user": number, "ts": 10.0 * number}) + "\n")
        one = joined()
        one.seek(position)
        assert read(one).rows == 150
        position = json.loads(json.dumps(one.resolve(one.position())))
        sizes.append([len(side) for side in position["@state"]["positions"]])
    assert sizes == [[101, 101]] * 3


def test_sampled_negatives_weigh_for_those_left_out():
    n = 20_000
    keys = np.arange(n) * 7 + 3
    logs = (keys, np.arange(n) * 1.0), (keys[::10], np.arange(n)[::10] * 1.0 + 5)
    batch = join(logs, (4096,), (4096,), negative_sampling_rate=0.1, seed=3).poll(n, 0)
    labels, weights = batch.columns["label"], batch.columns["weight"]
    assert np.unique(weights[labels == 0]) == pytest.approx([10.0])
    assert np.unique(weights[labels == 1]).tolist() == [1.0]
    share = join(logs, (n,), (n,), negative_sampling_rate=0.1, seed=3)
    total = labels_kept = 0.0
    while (batch := share.poll(n, 0)) is not None:
        total += batch.columns["weight"].sum()
        labels_kept += batch.columns["label"].sum()
    assert labels_kept == n / 10
    assert total == pytest.approx(n, rel=0.05)
    text = (np.char.add("k", keys.astype(str)), logs[0][1]), (["k3"], [0.0])
    by_text = join(text, (n,), (1,), negative_sampling_rate=0.1)
    kept = sum(batch.rows for batch in iter(lambda: by_text.poll(n, 0), None))
    assert kept == pytest.approx(n / 10, rel=0.1)


def test_an_idle_stream_is_waited_for_and_then_gone_on_without():
    class Idle(IterableStream):
        exhausted = False

    def make(idle_timeout):
        shown = stream(np.arange(20), np.arange(20) * 10.0, (20,))
        idle = Idle([{"user": np.array([0]), "ts": np.array([1.0])}], event_time="ts")
        return DelayedLabelJoin(shown, idle, "user", WITHIN, idle_timeout=idle_timeout)

    patient = make(None)
    assert patient.poll(50, 0.3).columns["user"].tolist() == [0]
    assert patient.poll(50, 0.3) is None
    joined = make(0.05)
    rows = []
    while (batch := joined.poll(50, 0.5)) is not None:
        rows += batch.columns["label"].tolist()
    # The last event time is 190: impressions up to 130 are past their limit, the others still wait.
    assert rows == [1.0] + [0.0] * 13
    assert joined.pending == 6
    assert not joined.exhausted


def test_at_the_end_waiting_rows_are_negatives_or_dropped(read):
    logs = ([0, 1], [0.0, 100.0]), ([], [])
    assert read(join(logs)).columns["user"].tolist() == [0, 1]
    dropped = join(logs, at_end="drop")
    assert read(dropped).columns["user"].tolist() == [0]
    assert dropped.exhausted


def test_what_cannot_be_joined_is_refused(logs):
    with pytest.raises(ConfigurationError, match="negative_sampling_rate"):
        join(logs, negative_sampling_rate=0.0)
    with pytest.raises(ConfigurationError, match="lateness takes seconds >= 0; received -1"):
        join(logs, lateness=-1)
    with pytest.raises(ConfigurationError, match="idle_timeout takes seconds >= 0 or None; received '1'"):
        join(logs, idle_timeout="1")
    plain = IterableStream([{"user": np.arange(3)}], rows="batch")
    with pytest.raises(DataError, match="impressions of a join need 'event time'"):
        DelayedLabelJoin(plain, stream([1], [1.0], (1,)), "user", 1.0).poll(1, 0)
    with pytest.raises(StreamError, match="damaged"):
        join(logs).seek({"join": [3, 0], "@state": {}})
    with pytest.raises(StreamError, match="no longer known"):
        join(logs).seek({"join": [30, 0]})


@pytest.mark.parametrize(
    ("shown", "chosen", "label", "said"),
    [
        (([0, 1], [1.0, 2.0]), (["0", "1"], [1.0, 2.0]), 1.0, "'user' is text on one side of a join and numbers on"),
        (([0, 1], [1.0, 2.0]), (np.array(["0", "1"], object), [1.0, 2.0]), 1.0, "'user' is text on one side of a join"),
        (([0, 1], [1.0, np.nan]), ([0, 1], [1.0, 2.0]), 1.0, "impressions of a join need 'event time' in each row"),
        (([0, 1], [1.0, 2.0]), ([0, 1], [1.0, 2.0]), np.nan, "'label' of the outcomes of a join holds NaN"),
    ],
)
def test_rows_that_would_become_negatives_or_wait_forever_are_refused(read, shown, chosen, label, said):
    outcomes = {"user": np.array(chosen[0]), "ts": np.array(chosen[1]), "label": np.array([1.0, label])}
    sides = stream(*shown, (2,)), IterableStream([outcomes], event_time="ts", rows="batch")
    joined = DelayedLabelJoin(*sides, "user", WITHIN)
    with pytest.raises(DataError, match=said):
        read(joined)


def test_late_rows_are_those_of_both_sides(tmp_path):
    """Streams that cannot tell count none."""
    sides, schema = [], Schema({"user": "int64", "ts": "float64"}, event_time="ts")
    for side in range(2):
        folder = tmp_path / str(side)
        folder.mkdir()
        for number in range(3):
            lines = [json.dumps({"user": user, "ts": user * 1.0}) for user in range(4 * number, 4 * number + 4)]
            (folder / f"{number}.jsonl").write_text("\n".join(lines) + "\n")
        sides.append(FileStream(folder, schema, poll_interval=0.01))
    joined = DelayedLabelJoin(*sides, "user", 1.0)
    while not all("1.jsonl" in json.dumps(side.position()) for side in sides):
        joined.poll(2, 0.1)
    for side, late in enumerate((3, 2)):
        with (tmp_path / str(side) / "0.jsonl").open("a") as file:
            file.writelines(json.dumps({"user": user, "ts": 0.0}) + "\n" for user in range(late))
        (tmp_path / str(side) / "_DONE").touch()
    while not joined.exhausted:
        joined.poll(100, 0.1)
    assert [side.late_rows() for side in sides] == [3, 2]
    assert joined.late_rows() == 5
    joined.close()
    assert join((([1], [0.0]), ([1], [1.0]))).late_rows() is None


def test_values_and_times_that_the_impressions_allow_are_those_of_the_join(tmp_path):
    columns, ahead = {"user": "int64", "age": Column("float32", allow_nan=True)}, time() + 1e6
    (tmp_path / "0.jsonl").write_text("".join(f'{{"user": {user}, "age": NaN, "ts": {ahead}}}\n' for user in range(3)))
    of_files = FileStream(tmp_path, Schema(columns, event_time="ts", max_future=None), end="at_last")
    in_memory = ReplayStream({"user": np.arange(3), "age": [np.nan] * 3, "ts": [ahead] * 3}, "ts", allow_nan=["age"])
    for impressions in (of_files, in_memory):
        outcomes = stream([1], [ahead], (1,))
        impressions.max_future = outcomes.max_future = None
        joined = DelayedLabelJoin(impressions, outcomes, "user", WITHIN)
        names, rows = ("user", "age", "label"), []
        while not joined.exhausted:
            batch = joined.poll(10, 0.1)
            rows += [] if batch is None else BadRowFilter(joined)(batch, names).columns["user"].tolist()
        assert sorted(rows) == [0, 1, 2]
