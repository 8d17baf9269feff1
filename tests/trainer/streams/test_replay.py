import numpy as np
import pytest

from trainer.errors import ConfigurationError, DataError, StreamError
from trainer.streams import ReplayStream

TIMES = np.array([30.0, 10.0, 20.0, 10.0])
TABLE = {"user": np.array([3, 0, 2, 1]), "ts": TIMES}


def test_rows_come_in_time_order_equal_times_as_in_the_table(read):
    batch = read(ReplayStream(TABLE, "ts"))
    assert batch.columns["user"].tolist() == [0, 1, 2, 3]
    assert batch.event_time.tolist() == [10, 10, 20, 30]
    ties = {"user": np.arange(3000), "ts": np.arange(3000) % 3}
    assert read(ReplayStream(ties, "ts")).columns["user"].tolist() == sorted(range(3000), key=lambda n: n % 3)
    batch.columns["ts"][:] = 0
    assert TABLE["ts"].tolist() == [30, 10, 20, 10]
    assert read(ReplayStream(TABLE)).columns["user"].tolist() == [3, 0, 2, 1]


def test_resumes_behind_every_row_of_every_pass(resumes):
    resumes(lambda: ReplayStream(TABLE, "ts", repeat=3), [0, 1, 2, 3] * 3, max_rows=3)


def test_an_endless_replay_never_ends():
    stream = ReplayStream(TABLE, repeat=None)
    assert sum(stream.poll(100, 0).rows for _ in range(10)) == 40
    assert not stream.exhausted
    assert stream.lag() is None


def test_rows_are_released_at_the_pace_of_the_clock():
    now = [100.0]
    stream = ReplayStream({"user": np.arange(100)}, rows_per_second=10, clock=lambda: now[0])
    assert stream.poll(50, 5.0) is None
    now[0] += 0.35
    assert stream.poll(2, 5.0).rows == 2
    assert stream.lag() == 1
    now[0] += 0.1
    assert stream.poll(50, 5.0).columns["user"].tolist() == [2, 3]
    paced = ReplayStream({"user": np.arange(9)}, rows_per_second=200)
    assert sum(paced.poll(50, 5.0).rows for _ in range(3)) >= 3


def test_tables_that_cannot_be_replayed_are_refused():
    with pytest.raises(DataError, match="one length"):
        ReplayStream({"user": np.arange(3), "item": np.arange(2)})
    with pytest.raises(ConfigurationError, match="did you mean 'ts'"):
        ReplayStream(TABLE, "tss")
    with pytest.raises(ConfigurationError, match="rows_per_second"):
        ReplayStream(TABLE, rows_per_second=0)
    with pytest.raises(StreamError, match=r"reads \['table'\]; the position contains 'clicks:0'"):
        ReplayStream(TABLE).seek({"clicks:0": [3, 0], "@start": {}})
    with pytest.raises(StreamError, match="row from 0 to 4"):
        ReplayStream(TABLE).seek({"table": [0, 5]})
