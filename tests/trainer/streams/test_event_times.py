"""Event times from the far future: one such row closes no window and expires nothing; it is set aside by name."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest
from mindspore import nn

from trainer import LambdaCallback, Trainer, Window
from trainer.embedding import Embedding, Eviction
from trainer.errors import ConfigurationError, DataError, StreamError
from trainer.streams import DeadLetter, DelayedLabelJoin, FileStream, IterableStream, ReplayStream, Schema

FAR = 4e9  # the year 2096
SCHEMA = {"columns": {"user": "int64", "label": "float32"}, "label": "label", "event_time": "time"}


class Users(nn.Cell):
    def __init__(self):
        super().__init__()
        self.table = Embedding(2, name="users", eviction=Eviction(None, ttl=3_600.0))
        self.head = nn.Dense(2, 1)

    def construct(self, user):
        return self.head(self.table(user))[:, 0]


@pytest.fixture(scope="module")
def trainer():
    network = Users()
    return Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.1), metrics=["auc"])


def rows(now, wrong=None):
    """Return 40 rows, a minute apart, over four whole spans of ten minutes; the 12th has the time `wrong`."""
    first = now // 600 * 600 - 2_400.0
    made = [{"user": number, "label": number % 2, "time": first + 60 * number} for number in range(40)]
    if wrong is not None:
        made[11]["time"] = wrong
    return made


def files(folder, records):
    folder.mkdir()
    (folder / "0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in records))
    return folder


def read_all(stream):
    while not stream.exhausted:
        stream.poll(40, 0.1)


def iterable(records):
    columns = {name: np.array([row[name] for row in records]) for name in records[0]}
    columns["label"] = columns["label"].astype(np.float32)
    batches = [{name: column[first : first + 4] for name, column in columns.items()} for first in range(0, 40, 4)]
    return IterableStream(batches, event_time="time")


@pytest.mark.long(but=["iterable"])
@pytest.mark.parametrize("kind", ["files", "iterable"])
def test_a_row_from_the_far_future_is_bad_closes_no_window_and_expires_nothing(kind, trainer, tmp_path):
    now, letters, closed = time.time(), DeadLetter(tmp_path / "bad.jsonl", max_bad_share=1.0), []
    if kind == "files":
        stream = FileStream(files(tmp_path / "in", rows(now, FAR)), SCHEMA, end="at_last", dead_letter=letters)
    else:
        stream = iterable(rows(now, FAR))
        stream.dead_letter = letters
    noting = LambdaCallback(on_window_end=lambda trainer: closed.append(trainer.state.window["window_rows"]))
    trainer.online_train(stream, noting, batch_size=4, window=Window(event_time=600.0), idle_timeout=1.0)
    stream.close()
    (line,) = (tmp_path / "bad.jsonl").read_text().splitlines()
    reason = "event time lies more than max_future=86400 s ahead of this machine's clock"
    assert json.loads(line)["reason"].startswith(f"{reason}; received 4000000000,")
    assert f"1 of 40 rows set aside: {reason} 1;" in letters.report().replace("this machines", "this machine's")
    assert len(closed) == 4
    assert letters.bad == 1
    assert trainer.tables.tables.tables["users"].counters["expired"] == 0


def test_times_in_other_units_are_recognised_or_refused_by_name(tmp_path):
    now = time.time()
    right = FileStream(files(tmp_path / "seconds", rows(now)), SCHEMA, end="at_last").poll(40, 1.0).event_time
    for scale in (10**3, 10**6, 10**9):
        records = [{**row, "time": int(row["time"]) * scale} for row in rows(now)]
        stream = FileStream(files(tmp_path / str(scale), records), SCHEMA, end="at_last")
        assert stream.poll(40, 1.0).event_time.tolist() == right.tolist()
    records = [{**row, "time": row["time"] * 10} for row in rows(now)]
    stream = FileStream(files(tmp_path / "in", records), SCHEMA, end="at_last", dead_letter=DeadLetter(min_rows=10))
    with pytest.raises(StreamError, match="event_time_unit"):
        read_all(stream)


def test_any_future_is_taken_where_that_is_asked_for(tmp_path):
    schema = {**SCHEMA, "max_future": None}
    stream = FileStream(files(tmp_path / "in", rows(0.0, FAR)), schema, end="at_last")
    assert stream.poll(40, 1.0).event_time.max() == FAR
    with pytest.raises(ConfigurationError, match="max_future takes"):
        Schema(**{**SCHEMA, "max_future": -1})


def test_a_join_names_the_row_that_would_make_negatives_of_all_that_wait():
    now = time.time()
    joined = DelayedLabelJoin(iterable(rows(now, FAR)), iterable(rows(now)), "user", 60.0)
    with pytest.raises(DataError, match=r"impressions of a join: event time lies .*received 4000000000"):
        read_all(joined)


def test_a_row_without_a_time_is_bad_and_leaves_the_times_of_its_batch(trainer):
    """A time that is missing made the new ids of its batch expire, and hid the times of the others."""
    now, newest = time.time(), []
    stream = iterable(rows(now, np.nan))
    noting = LambdaCallback(on_train_step_end=lambda trainer: newest.append(trainer.state.outputs.chunk.extras))
    before = dict(trainer.tables.tables.tables["users"].counters) if trainer.tables else {}
    trainer.online_train(stream, noting, batch_size=4)
    assert all(np.isfinite(extras["event_time"]).all() for (extras,) in newest)
    assert stream.dead_letter.report().startswith("1 of 40 rows set aside: event time is missing 1")
    assert trainer.tables.tables.tables["users"].counters["expired"] == before.get("expired", 0)


@pytest.mark.parametrize("kind", [ReplayStream, lambda *table: IterableStream([table[0]], event_time=table[1])])
def test_times_of_streams_in_memory_may_be_times(kind):
    """Days were taken for seconds, and nanoseconds for times of the far future."""
    first, seconds = np.datetime64("2024-01-01"), [1704067200.0, 1704153600.0]
    days = np.array([first, first + 1])
    forms = [
        days,
        days.astype("datetime64[ns]"),
        days.tolist(),
        days.astype(str),
        np.array(seconds),
        [*map(int, seconds)],
    ]
    for form in forms:
        assert kind({"x": np.arange(2), "at": form}, "at").poll(2, 0).event_time.tolist() == seconds
    assert np.isnan(kind({"x": np.arange(2), "at": [days[0].item(), None]}, "at").poll(2, 0).event_time[1])
    with pytest.raises(
        DataError, match="event time: row 1 of column 'at' takes a time; received text that is not a time"
    ):
        kind({"x": np.arange(2), "at": ["2024-01-01", "soon"]}, "at").poll(2, 0)
