"""Rows written to a folder, Redis or Kafka are read back once each, over full disks, torn lines and lost brokers."""

import contextlib
import json
import resource

import pytest

from trainer.errors import ConfigurationError, FolderInUseError
from trainer.streams import FileStream, KafkaStream, RedisStream, Schema
from trainer.streams.sinks import SegmentSink, sink_for
from trainer.streams.sources.served import _as_stream

SCHEMA = Schema({"id": "int64"})


def lines(first, last):
    return [json.dumps({"id": number}).encode() for number in range(first, last)]


def ids(stream, count):
    read = []
    while len(read) < count and (batch := stream.poll(1000, 30.0)) is not None:
        read += batch.columns["id"].tolist()
    return read


@contextlib.contextmanager
def largest_file(size):
    """Let no file grow beyond `size` bytes, as a full disk does in the middle of a write."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_segments_are_begun_in_order_and_a_torn_line_is_cut_off(tmp_path):
    folder = tmp_path / "served"
    sink = SegmentSink(folder, segment_bytes=60)
    stream = FileStream(folder, SCHEMA, poll_interval=0.01)
    for first in range(0, 30, 5):
        sink.append(lines(first, first + 5))
    with pytest.raises(FolderInUseError, match="one writer at a time"):
        SegmentSink(folder)
    sink.close()
    assert ids(stream, 30) == list(range(30))
    newest = sorted(folder.glob("*.jsonl"))[-1]
    with newest.open("ab") as file:  # a process killed in the middle of a line
        file.write(b'{"id": 9')
    again = SegmentSink(folder)
    again.append(lines(30, 33))
    assert len(sorted(folder.glob("*.jsonl"))) > 2
    again.close()
    assert ids(stream, 3) == [30, 31, 32]
    assert stream.dead_letter.bad == 0
    stream.close()


def test_a_full_disk_in_the_middle_of_a_batch_neither_loses_nor_doubles_a_row(tmp_path):
    sink = SegmentSink(tmp_path / "served")
    stream = FileStream(tmp_path / "served", SCHEMA, poll_interval=0.01)
    sink.append(lines(0, 3))
    batch = lines(3, 100)
    with largest_file(200):
        with pytest.raises(OSError, match="File too large"):
            sink.append(batch)
        early = ids(stream, 5)  # the whole lines of the part that was written
    assert early == list(range(len(early)))
    sink.append(batch)
    assert early + ids(stream, 100 - len(early)) == list(range(100))
    sink.close()
    stream.close()


@pytest.mark.server
def test_redis_holds_every_row_once_over_a_kill(redis_server, monkeypatch):
    redis = pytest.importorskip("redis")
    url = f"{redis_server.url}?key=asked"
    sink = sink_for(url)
    sink.append(lines(0, 10))
    batch = lines(10, 20)
    redis_server.kill()
    with pytest.raises(sink.errors):
        sink.append(batch)
    redis_server.start()
    sink.append(batch)
    batch, execute = lines(20, 30), redis.client.Pipeline.execute

    def lose_the_answer(self, *arguments, **options):
        execute(self, *arguments, **options)
        raise redis.exceptions.ConnectionError("the answer was lost")

    with monkeypatch.context() as patch:
        patch.setattr(redis.client.Pipeline, "execute", lose_the_answer)
        with pytest.raises(sink.errors):
            sink.append(batch)
    sink.append(batch)
    stream = _as_stream("served", url)
    assert isinstance(stream, RedisStream)
    stream.declare(SCHEMA)
    assert ids(stream, 30) == list(range(30))
    assert stream.poll(10, 0.1) is None
    redis_server.client().set("text", "no stream")
    other = sink_for(f"{redis_server.url}?key=text")
    batch = lines(0, 2)
    for _ in range(2):  # a refusal is not taken for a batch that was written
        with pytest.raises(other.errors, match="wrong kind"):
            other.append(batch)
    for each in (sink, other, stream):
        each.close()


@pytest.mark.server
def test_kafka_holds_every_row_once_over_an_outage(make_kafka, monkeypatch):
    cluster = make_kafka("served")
    sink = sink_for(f"kafka://{cluster.servers}/served?message.max.bytes=2000")
    assert sink.append([*lines(0, 10), b"x" * 3000]) == 1
    monkeypatch.setattr("trainer.streams.sinks._KAFKA_SECONDS", 1.0)  # not before: the first connection may take longer
    cluster.down()
    batch = lines(10, 20)
    with pytest.raises(sink.errors, match="10 messages were not accepted"):
        sink.append(batch)
    cluster.up()
    for _ in range(100):
        with contextlib.suppress(OSError):
            assert sink.append(batch) == 0
            break
    stream = _as_stream("served", f"kafka://{cluster.servers}/served")
    assert isinstance(stream, KafkaStream)
    stream.declare(SCHEMA)
    assert ids(stream, 20) == list(range(20))
    assert stream.poll(10, 0.3) is None
    sink.close()
    stream.close()


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("kafka://host:9092", "takes kafka://host:9092/topic"),
        ("kafka://user:pass@host:9092/t", "takes kafka://host:9092/topic"),
        ("redsi://host", "did you mean 'redis'"),
        ("redis://host?maxlen=many", "maxlen takes a whole number"),
        ("redis://host?key=a&key=b", "twice"),
    ],
)
def test_targets_that_cannot_be_written_are_refused(target, said):
    with pytest.raises(ConfigurationError, match=said):
        sink_for(target)
