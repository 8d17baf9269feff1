"""Served rows and outcomes: what one does that is late, early, repeated or absent, and what a kill leaves."""

import json

import numpy as np
import pytest

from trainer.errors import ConfigurationError, DataError, StreamError
from trainer.features import Categorical, Features, Numeric, Time
from trainer.streams import ServedOutcomes, advance, concat

T = 1_700_000_000.0


def declared(**options):
    columns = [Categorical("n", dtype="int64"), Time("seen", unit="ms", parts=["hour"])]
    return Features(columns, **{"label": "click", "weight": "weight", **options})


def served_row(name, at, **values):
    return {"request_id": name, "served_at": T + at, "version": 1, "score": 0.5, "share": 1.0, "n": at, **values}


def outcome(name, at, **values):
    return {"request_id": name, "time": T + at, **values}


class Logs:
    """Two folders of segments, and streams of them as the features declare them."""

    def __init__(self, folder):
        self.folders = [folder / "served", folder / "outcomes"]
        for each in self.folders:
            each.mkdir()

    def write(self, served=(), outcomes=(), name="0.jsonl"):
        for folder, rows in zip(self.folders, (served, outcomes), strict=True):
            with (folder / name).open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)

    def end(self):
        for folder in self.folders:
            (folder / "_DONE").touch()

    def open(self, features=None, wait=10, **options):
        features = features or declared()
        stream = ServedOutcomes(*self.folders, wait=wait, **options)
        stream.declare(features.schema)
        return stream


def read_to_end(stream, max_rows=1000):
    batches = []
    while not stream.exhausted:
        if (batch := stream.poll(max_rows, 1.0)) is not None:
            batches.append(batch)
    stream.close()
    return concat(batches)


def labels(batch):
    return dict(zip(batch.columns["n"].tolist(), batch.columns["click"].tolist(), strict=True))


@pytest.fixture
def logs(tmp_path):
    return Logs(tmp_path)


def test_every_kind_of_outcome_has_its_effect_and_its_count(logs):
    served = [served_row(f"r{n}", n) for n in (0, 1, 2, 3, 4, 40)]
    served.insert(3, served_row("r1", 2))  # the caller asked again with the same id
    outcomes = [outcome("r2", 1.5), outcome("r1", 5), outcome("r1", 6), outcome("r3", 7, click=0), outcome("r9", 9)]
    outcomes += [outcome("r0", 12), outcome("r40", 41, click=None)]
    logs.write(served, outcomes)
    logs.end()
    stream = logs.open()
    batch = read_to_end(stream)
    # r2 is dated before its row (clocks differ), r3 says 0, r0 is too late, r4 has none
    assert labels(batch) == {0: 0.0, 1: 1.0, 2: 1.0, 3: 0.0, 4: 0.0, 40: 1.0}
    assert batch.rows == 6
    counts = stream.counts()
    assert {name: count for name, count in counts.items() if count} == {
        "repeated_rows": 1,
        "repeated_outcomes": 1,
        "late_outcomes": 1,
        "expired_rows": 2,
        "unmatched_outcomes": 3,  # late, repeated, and of no row
    }


def test_columns_are_those_that_the_features_declare(logs):
    """A time is decoded once: in its declared unit, not again in seconds."""
    row = served_row("a", 0, seen=1_700_003_600_000, share=0.25)
    logs.write([row], [outcome("a", 1)])
    logs.end()
    features = declared()
    batch = read_to_end(logs.open(features))
    assert list(batch.columns) == list(features.schema.columns)
    assert batch.columns["weight"].tolist() == [4.0]
    direct = features.read([{**row, "click": 1, "weight": 4}]).columns
    for name, column in direct.items():
        assert (column.dtype, column.tobytes()) == (batch.columns[name].dtype, batch.columns[name].tobytes()), name


def test_negatives_come_after_their_time_or_never_and_a_sample_weighs_for_the_others(logs):
    logs.write([served_row(f"r{n}", n) for n in range(100)], [outcome("r5", 30)])
    logs.end()
    assert labels(read_to_end(logs.open(wait="20s", negative_after="1m")))[5] == 0.0
    assert labels(read_to_end(logs.open(wait="1m", negative_after="never"))) == {5: 1.0}
    batch = read_to_end(logs.open(wait="1m", negative_sampling_rate=0.25))
    assert 8 < batch.rows < 50
    assert set(batch.columns["weight"][batch.columns["click"] == 0].tolist()) == {4.0}
    early = logs.open(wait="20s", negative_after="50s")
    assert max(early.poll(200, 1.0).columns["n"]) < 50
    early.close()


def test_memory_is_bounded_and_what_was_left_out_is_counted(logs):
    logs.write([served_row(f"r{n}", n) for n in range(50)], [outcome("r15", 49), outcome("r49", 49)])
    logs.end()
    stream = logs.open(wait="1h", max_waiting=20)
    batch = read_to_end(stream)
    assert sorted(labels(batch)) == list(range(30, 50))
    assert labels(batch)[49] == 1.0
    counts = stream.counts()
    assert (counts["dropped_rows"], counts["late_outcomes"]) == (30, 1)


@pytest.mark.parametrize("options", [{}, {"max_waiting": 15}], ids=["all", "bounded"])
def test_resumes_behind_every_row(logs, options):
    """With rows that wait, ids seen before and outcomes before their rows, as a kill leaves them."""
    rng = np.random.default_rng(3)
    served, acted = [], []
    for n in range(120):
        served.append(served_row(f"r{n}", n))
        if n % 9 == 0:
            served.append(served_row(f"r{n - int(rng.integers(0, 4))}", n, n=1000 + n))
        if n % 3 == 0:
            acted += [outcome(f"r{n}", n + rng.uniform(-3, 14)) for _ in range(1 + n % 2)]
    logs.write(served, sorted(acted, key=lambda row: row["time"]))
    logs.end()
    whole = read_to_end(logs.open(**options), 7)
    stream, positions = logs.open(**options), []
    position = stream.position()
    while not stream.exhausted:
        batch = stream.poll(7, 1.0)
        for first in range(batch.rows if batch is not None else 0):
            position = advance(position, batch.split(first)[1].split(1)[0])
            positions.append(position)
    stored = [json.dumps(stream.resolve(at)) for at in positions]
    stream.close()
    assert len(stored) == whole.rows
    for count, at in list(enumerate(stored, 1))[:-1:5]:
        resumed = logs.open(**options)
        resumed.seek(json.loads(at))
        rest = read_to_end(resumed, 5)
        for name, column in whole.columns.items():
            np.testing.assert_array_equal(rest.columns[name], column[count:], err_msg=f"{name} after row {count}")


def test_a_torn_file_of_outcomes_costs_its_own_line_alone(logs):
    logs.write([served_row(f"r{n}", n) for n in range(20)], [outcome(f"r{n}", n + 1) for n in range(10)])
    torn = logs.folders[1] / "0.jsonl"
    torn.write_bytes(torn.read_bytes()[:-9])
    logs.write(outcomes=[outcome(f"r{n}", n + 1) for n in range(10, 15)], name="1.jsonl")
    logs.end()
    stream = logs.open()
    expected = {n: float(n < 15 and n != 9) for n in range(20)}
    assert labels(read_to_end(stream)) == expected
    assert stream.outcomes.dead_letter.bad == 1


@pytest.mark.server
def test_a_broker_that_is_killed_costs_no_row_and_doubles_none(redis_server):
    """Rows read before it, written again by a caller that got no answer, and outcomes that come back first."""
    client = redis_server.client()

    def write(key, *rows):
        for row in rows:
            client.xadd(key, {"data": json.dumps(row)})

    write("served", *(served_row(f"r{n}", n) for n in range(10)))
    write("outcomes", outcome("r3", 4))
    urls = [f"{redis_server.url}?key={key}" for key in ("served", "outcomes")]
    stream = ServedOutcomes(*urls, wait=100, idle_timeout=None)  # which log is read first changes nothing
    stream.declare(declared().schema)
    batches = [stream.poll(100, 20.0)]
    assert labels(batches[0]) == {3: 1.0}
    redis_server.kill()
    assert stream.poll(100, 0.3) is None
    redis_server.start()
    write("outcomes", outcome("r12", 13), outcome("r4", 14), outcome("none", 300))
    write("served", *(served_row(f"r{n}", n) for n in (9, 10, 11, 12)), *(served_row(f"s{n}", n) for n in (200, 201)))
    while sum(batch.rows for batch in batches) < 13:
        batch = stream.poll(100, 20.0)
        assert batch is not None
        batches.append(batch)
    read = concat(batches)
    assert labels(read) == {n: float(n in (3, 4, 12)) for n in range(13)}
    assert (read.rows, stream.counts()["repeated_rows"]) == (13, 1)
    stream.close()


def test_outcomes_behind_a_broker_that_is_away_are_waited_for(redis_server, logs):
    """Far longer than `idle_timeout`: a row whose outcome is there unseen is no negative."""
    stream = ServedOutcomes(logs.folders[0], f"{redis_server.url}?key=outcomes", wait=10, idle_timeout=0.2)
    stream.declare(declared().schema)
    redis_server.client().xadd("outcomes", {"data": json.dumps(outcome("r0", 1))})
    logs.write([served_row("r0", 0), served_row("r1", 1)])
    assert labels(stream.poll(100, 20.0)) == {0: 1.0}
    redis_server.client().xadd("outcomes", {"data": json.dumps(outcome("r1", 2))})
    redis_server.kill()
    logs.write([served_row("late", 100)])
    assert stream.poll(100, 1.5) is None
    redis_server.start()
    assert labels(stream.poll(100, 20.0)) == {1: 1.0}
    stream.close()


def test_what_cannot_be_learned_is_refused_by_name(logs):
    for options, said in (
        ({"wait": "30 minutes"}, "wait takes seconds > 0, or text as 45s, 30m"),
        ({"negative_after": 5}, r"negative_after takes wait \(10 s\) or longer"),
        ({"max_waiting": 0}, "max_waiting"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            logs.open(**options)
    for features, said in (
        (declared(label=None), "received none"),
        (declared(label=["click", "buy"]), "received none, or several"),
        (declared(label_classes=["no", "yes"]), "'click' of text"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            logs.open(features)
    with pytest.raises(ConfigurationError, match="needs weights: declare weight: weight in the features"):
        logs.open(declared(weight=None), negative_sampling_rate=0.5)
    logs.write([served_row("a", 0, share=0.1)], [outcome("a", 1)])
    logs.end()
    with pytest.raises(DataError, match=r"share of 0\.1 of the requests was logged, so rows need weights"):
        read_to_end(logs.open(declared(weight=None)))
    with pytest.raises(StreamError, match="damaged"):
        logs.open().seek({"join": [3, 0], "@state": {}})


def test_a_feature_may_have_the_name_of_the_weight(logs):
    logs.write([served_row("a", 0, weight=2.5), served_row("b", 1, weight=4)], [outcome("a", 1)])
    logs.end()
    batch = read_to_end(logs.open(Features([Numeric("weight")], label="click")))
    assert sorted(batch.columns["weight"].tolist()) == [2.5, 4.0]


@pytest.mark.parametrize(
    ("times", "options"),
    [
        ([5000, 6000], {"event_time_unit": "ms"}),
        (["03/02/2024 10:00:05", "03/02/2024 10:00:06"], {"event_time_day_first": True}),
    ],
)
def test_times_of_outcomes_are_read_as_those_of_the_rows(logs, times, options):
    logs.write([{**served_row("a", 0), "at": times[0]}], [{"request_id": "a", "at": times[1]}])
    logs.end()
    assert labels(read_to_end(logs.open(declared(event_time="at", **options)))) == {0: 1.0}
