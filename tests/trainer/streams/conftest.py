"""Tables with recognisable rows, and the check that every source resumes exactly."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from trainer.streams import Column, Schema, advance, concat


def make_rows(first, last):
    """Rows whose every value tells which row it is."""
    return [
        {"user": n, "ids": [n, n + 1, n + 2], "price": n / 8, "label": n % 2, "ts": 1000.0 + n}
        for n in range(first, last)
    ]


def make_schema():
    columns = {"user": "int32", "ids": Column("int64", (3,)), "price": "float32", "label": "float32"}
    return Schema(columns, label="label", event_time="ts")


def read_all(stream, max_rows=1000, timeout=0.0, rows=None):
    """Read until the stream has ended, has nothing more, or `rows` were read."""
    batches = []
    count = 0
    while rows is None or count < rows:
        batch = stream.poll(max_rows if rows is None else min(max_rows, rows - count), timeout)
        if batch is None:
            break
        assert 1 <= batch.rows <= max_rows
        assert sum(span.rows for span in batch.spans) == batch.rows
        count += batch.rows
        batches.append(batch)
    return concat(batches) if batches else None


def users(batch):
    return [] if batch is None else batch.columns["user"].tolist()


def check_resumes_everywhere(open_stream, expected, max_rows=7, every=1):
    """Read in pieces of `max_rows`, then resume a fresh stream from behind every row by the position of that row."""
    stream = open_stream()
    position, positions = stream.position(), []
    read = []
    while (batch := stream.poll(max_rows, 0.5)) is not None:
        for first in range(batch.rows):
            row = batch.split(first)[1].split(1)[0]
            position = advance(position, row)
            read += users(row)
            positions.append(position)
        assert stream.position() == position
    assert read == expected
    stored = [json.loads(json.dumps(stream.resolve(at))) for at in positions]
    stream.close()
    for count, at in list(enumerate(stored, start=1))[::every]:
        resumed = open_stream()
        resumed.seek(at)
        rest = read_all(resumed, max_rows=5, timeout=20.0, rows=len(expected) - count)
        assert users(rest) == expected[count:], f"resumed after row {count} at {at}"
        assert resumed.poll(5, 0.0) is None
        resumed.close()


@pytest.fixture
def rows():
    return make_rows


@pytest.fixture
def schema():
    return make_schema()


@pytest.fixture
def read():
    return read_all


@pytest.fixture
def resumes():
    return check_resumes_everywhere


@pytest.fixture
def same():
    """Check a batch against the rows it was made from, every column of it."""

    def check(batch, rows):
        assert users(batch) == [row["user"] for row in rows]
        assert batch.columns["user"].dtype == np.int32
        np.testing.assert_array_equal(batch.columns["ids"], [row["ids"] for row in rows])
        np.testing.assert_array_equal(batch.columns["price"], np.float32([row["price"] for row in rows]))
        np.testing.assert_array_equal(batch.event_time, [row["ts"] for row in rows])

    return check


def _brokers():
    spec = importlib.util.spec_from_file_location("stream_test_brokers", Path(__file__).parent / "brokers.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def brokers():
    """The module with the servers."""
    return _brokers()


@pytest.fixture
def redis_server(brokers, tmp_path):
    pytest.importorskip("redis")
    if brokers.RedisServer.program() is None:
        pytest.skip("no Redis server is installed")
    server = brokers.RedisServer(tmp_path).start()
    yield server
    server.kill()


@pytest.fixture
def make_kafka(brokers):
    """A function that starts a cluster with a topic."""
    if brokers.MockKafka.library() is None:
        pytest.skip("confluent-kafka with its own librdkafka is not installed")
    clusters = []

    def make(topic, partitions=1):
        clusters.append(brokers.MockKafka(topic, partitions))
        return clusters[-1]

    yield make
    for cluster in clusters:
        cluster.close()
