"""Rows that cannot be set aside stop a stream where it is: nothing is lost, nothing comes twice."""

import json
import os
from pathlib import Path

import pytest

from trainer.errors import StreamError
from trainer.streams import (
    DeadLetter,
    DelayedLabelJoin,
    FileStream,
    IterableStream,
    KafkaStream,
    RedisStream,
    Span,
)
from trainer.streams.dead_letter import BadRow

FULL = Path("/dev/full")
BAD = {"user": "x"}

pytestmark = pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")


@pytest.fixture
def disk(tmp_path):
    """A path on a full device, and a function that makes room there."""
    path = tmp_path / "bad.jsonl"
    path.symlink_to(FULL)

    def make_room():
        path.unlink()
        path.write_bytes(b'{"torn": ')

    return path, make_room


def payloads(rows):
    """Ten good messages, a bad one, ten good ones."""
    return [json.dumps(row).encode() for row in (*rows(0, 10), BAD, *rows(10, 20))]


@pytest.fixture(params=["jsonl", "csv", "redis", "kafka", "join"])
def open_stream(request, tmp_path, schema, rows):
    """A function that opens a stream of twenty good rows and a bad one among them."""
    opened = []
    folder = tmp_path / "segments"
    folder.mkdir()
    head, tail = rows(0, 10), rows(10, 20)
    if request.param == "csv":
        lines = [f"{r['user']},{' '.join(map(str, r['ids']))},{r['price']},{r['label']},{r['ts']}" for r in head + tail]
        lines.insert(10, "x,,,,")
        (folder / "a.csv").write_text("\n".join(["user,ids,price,label,ts", *lines]) + "\n")
    elif request.param in ("jsonl", "join"):
        (folder / "a.jsonl").write_bytes(b"\n".join(payloads(rows)) + b"\n")
    elif request.param == "redis":
        server = request.getfixturevalue("redis_server")
        for payload in payloads(rows):
            server.client().xadd("clicks", {"data": payload})
    else:
        cluster = request.getfixturevalue("make_kafka")("clicks")
        cluster.produce(payloads(rows))

    def make(path):
        letters = DeadLetter(path, 1.0)
        if request.param == "redis":
            stream = RedisStream("clicks", schema, url=server.url, dead_letter=letters)
        elif request.param == "kafka":
            stream = KafkaStream("clicks", schema, servers=cluster.servers, dead_letter=letters)
        else:
            stream = FileStream(folder, schema, end="at_last", dead_letter=letters)
        if request.param == "join":
            stream = DelayedLabelJoin(stream, IterableStream(no_outcomes, event_time="ts"), "user", 5.0)
        opened.append(stream)
        return stream

    yield make
    for stream in opened:
        stream.close()


def no_outcomes():
    import numpy as np

    yield {"user": np.array([0]), "ts": np.array([0.0])}


def users_of(stream, count):
    """Read until `count` rows came or the stream ended; what it raises is put behind the rows."""
    users = []
    try:
        while len(users) < count and (batch := stream.poll(7, 20.0)) is not None:
            users += batch.columns["user"].tolist()
    except StreamError as error:
        return [*users, str(error)]
    return users


def test_a_full_disk_stops_the_stream_before_the_rows_it_could_not_hand_on(open_stream, disk):
    path, make_room = disk
    stream, users = open_stream(path), []
    for _ in range(2):  # asked again it does not go past them either
        *more, error = users_of(stream, 20)
        users += more
        assert "the dead-letter file" in error
        assert "bad.jsonl cannot be written: No space left" in error
    assert users == list(range(10))[: len(users)]
    position = stream.resolve(stream.position())
    make_room()
    assert users_of(stream, 20 - len(users)) == list(range(len(users), 20))
    counted = stream._sides[0].stream.dead_letter if hasattr(stream, "_sides") else stream.dead_letter
    assert (counted.bad, sum(counted.reasons.values())) == (1, 1)
    first, *letters = path.read_text().splitlines()
    assert first == '{"torn": '  # what a write left that failed in the middle
    assert [json.loads(line)["row"] for line in letters] == [0 if "files" not in letters[0] else 10]

    resumed = open_stream(path)
    resumed.seek(position)
    assert users_of(resumed, 20 - len(users)) == list(range(len(users), 20))


def test_too_many_bad_rows_do_not_carry_the_good_ones_among_them_away(open_stream, tmp_path):
    path = tmp_path / "bad.jsonl"
    stream = open_stream(path)
    letters = stream._sides[0].stream.dead_letter if hasattr(stream, "_sides") else stream.dead_letter
    letters.max_bad_share, letters.min_rows = 0.0, 1
    *users, error = users_of(stream, 20)
    assert error.startswith("1 of the last ")
    letters.max_bad_share = 1.0
    assert users + users_of(stream, 20 - len(users)) == list(range(20))


def test_a_failing_close_names_the_file_and_leaves_nothing_open(tmp_path):
    letters = DeadLetter(tmp_path / "bad.jsonl")
    letters.record("files", [BadRow(0, 3, "text", b"x")], [Span("files", "a@0", 0, 0)])
    held = Path("/proc/self/fd")
    (descriptor,) = (link.name for link in held.iterdir() if os.path.realpath(link) == str(letters.path))
    os.close(int(descriptor))
    with pytest.raises(StreamError, match=r"dead-letter file .* cannot be closed: Bad file descriptor"):
        letters.close()
    letters.close()


@pytest.mark.parametrize("rows_each", ["single", "batch"])
def test_rows_before_a_failure_of_an_iterable_are_returned_and_its_end_after_it_is_no_end(rows_each):
    def numbers():
        for number in range(5):
            if number == 3:
                raise ConnectionError("gone")
            yield {"user": number} if rows_each == "single" else {"user": [number]}

    for source in (numbers, numbers()):
        stream = IterableStream(source, rows=rows_each)
        rows = stream.poll(1, 5.0).rows
        while rows < 3:
            rows += stream.poll(10, 5.0).rows
        assert rows == 3
        with pytest.raises(ConnectionError, match="gone"):
            stream.poll(10, 5.0)
        again, why = (ConnectionError, "gone") if source is numbers else (StreamError, "failed at item 3 .*may be lost")
        with pytest.raises(again, match=why):
            stream.poll(10, 5.0)
        assert not stream.exhausted
        assert stream.position() == {"iterable": [3, 0]}


def test_reasons_beyond_the_first_thousand_are_counted_together():
    letters = DeadLetter(max_bad_share=1.0)
    span = Span("files", "a@0", 0, 0)
    rows = [BadRow(0, number, f"column {number} is missing", b"") for number in range(1500)]
    letters.record("files", rows + rows, [span])  # a reason that is known goes on being counted by itself
    letters.count(0, 3000)
    assert len(letters.reasons) <= 1001
    assert letters.reasons["0 is missing"] == letters.reasons["999 is missing"] == 2
    assert letters.reasons.total() == 3000
    assert letters.reasons["other"] == 1000
    assert "3000 of 3000 rows set aside: other 1000, " in letters.report()
