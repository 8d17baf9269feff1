"""MovieLens-100K as a stream: files, Redis entries and Kafka messages hold the same rows, and streams read them."""

import numpy as np
import pytest

from examples.movielens import load
from examples.movielens_stream import COLUMNS, main, messages, publish_to_kafka, schema, segments
from tests.trainer.streams import brokers
from trainer.errors import ConfigurationError
from trainer.streams import FileStream, KafkaStream, RedisStream

ROWS = 1050


@pytest.fixture(scope="module")
def ratings():
    return {name: column[:ROWS] for name, column in load().items()}


def read(stream):
    """The columns of the stream's first rows, and their event times."""
    batches, rows = [], 0
    while rows < ROWS and (batch := stream.poll(10_000, 10.0)) is not None:
        batches.append(batch)
        rows += batch.rows
    stream.close()
    assert rows >= ROWS
    columns = {name: np.concatenate([batch.columns[name] for batch in batches]) for name in COLUMNS}
    return columns, np.concatenate([batch.event_time for batch in batches])


def same(found, ratings):
    """Both hold the same; of the stream at least the first `ROWS`."""
    columns, times = found
    for name, column in columns.items():
        np.testing.assert_array_equal(column[:ROWS], ratings[name], name)
    np.testing.assert_array_equal(times[:ROWS], ratings["timestamp"])


def test_files_hold_the_rows(tmp_path, ratings):
    folder = segments(tmp_path / "ratings", rows=ROWS, count=3)
    assert segments(folder, rows=ROWS, count=3) == folder
    same(read(FileStream(folder, schema())), ratings)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").touch()
    with pytest.raises(ConfigurationError, match="contains other files instead of finished segments"):
        segments(tmp_path / "other")


@pytest.mark.server
def test_redis_entries_hold_the_rows(tmp_path, ratings, capsys):
    pytest.importorskip("redis")
    if brokers.RedisServer.program() is None:
        pytest.skip("no Redis server is installed")
    server = brokers.RedisServer(tmp_path).start()
    try:
        assert main(["redis", "--url", server.url]) == 0
        assert capsys.readouterr().out == "1000 messages\n"
        same(read(RedisStream("ratings", schema(), url=server.url)), ratings)
    finally:
        server.kill()


@pytest.mark.server
def test_kafka_messages_hold_the_rows(ratings):
    if brokers.MockKafka.library() is None:
        pytest.skip("confluent-kafka with its own librdkafka is not installed")
    cluster = brokers.MockKafka("ratings", 1)
    try:
        publish_to_kafka(list(messages(ratings)), cluster.servers)
        same(read(KafkaStream("ratings", schema(), servers=cluster.servers)), ratings)
    finally:
        cluster.close()
