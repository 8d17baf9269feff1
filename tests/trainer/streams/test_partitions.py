"""Streams divided among processes: nothing twice, nothing left out, whatever the number of processes becomes."""

import json

import pytest

from trainer.errors import ConfigurationError, StreamError
from trainer.streams import FileStream, KafkaStream, RedisStream, ReplayStream, Sharing

pytestmark = pytest.mark.server

NUMBERS = [1, 2, 4, 3, 1]  # processes, one after the other


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def users(batch):
    return batch.columns["user"].tolist()


def read_some(streams, count, patience):
    """Read up to `count` rows with each stream, in pieces that end within segments."""
    found = []
    for rank, stream in enumerate(streams):
        left = count + rank
        while left and (batch := stream.poll(min(left, 7), patience)) is not None:
            found += users(batch)
            left -= batch.rows
    return found


def chain(open_stream, each, patience):
    """Read with 1, 2, 4, 3 and 1 processes, each going on from the joined position of those before it."""
    position, found = {}, []
    for place, world in enumerate(NUMBERS):
        streams = [open_stream() for _ in range(world)]
        for rank, stream in enumerate(streams):
            if world > 1:
                stream.assign_partitions(rank, world)
            stream.seek(position)
            stream.position()
        found += read_some(streams, each if place + 1 < len(NUMBERS) else 10_000, patience)
        parts = [json.loads(json.dumps(stream.resolve(stream.position()))) for stream in streams]
        names = [name for part in parts for name in part if not name.startswith("@") and name != "files"]
        assert len(names) == len(set(names)), "no partition has two readers"
        position = streams[0].join(parts)
        begun = position.get("@start", {"offsets": names})
        assert len(begun["offsets"]) == len(names), "where the turns of each partition began"
        for stream in streams:
            stream.close()
    return found


def goes_on(stream, patience):
    """Read as one of two processes that is dealt the same part again before a further training; close the stream."""
    stream.assign_partitions(0, 2)
    found = read_some([stream], 9, patience)
    stream.assign_partitions(0, 2)
    later = read_some([stream], 10_000, patience)
    stream.close()
    return found and later and not {*found} & {*later}


@pytest.fixture
def folder(tmp_path, rows):
    path = tmp_path / "segments"
    path.mkdir()
    for number in range(11):
        (path / f"part-{number:04d}.jsonl").write_text(lines(rows(number * 20, number * 20 + 20)))
    return path


def test_files_are_read_once_by_any_number_of_processes(folder, schema):
    (folder / "_DONE").touch()
    found = chain(lambda: FileStream(folder, schema), 13, 5.0)
    assert sorted(found) == list(range(220))
    assert goes_on(FileStream(folder, schema), 5.0)


def test_segments_go_to_processes_in_turn_and_later_ones_by_the_same_rule(folder, schema, rows):
    streams = [FileStream(folder, schema) for _ in range(2)]
    for rank, stream in enumerate(streams):
        stream.assign_partitions(rank, 2)
    found = [read_some([stream], 10_000, 0.3) for stream in streams]
    (folder / "part-0011.jsonl").write_text(lines(rows(220, 240)))
    (folder / "part-0012.jsonl").write_text(lines(rows(240, 260)))
    (folder / "part-0013.jsonl").write_text("")
    later = [read_some([stream], 10_000, 0.3) for stream in streams]
    for rank in range(2):
        assert {user // 20 % 2 for user in [*found[rank], *later[rank]]} == {rank}
        assert sorted(found[rank] + later[rank]) == [user for user in range(260) if user // 20 % 2 == rank]
        streams[rank].close()


def test_segments_that_all_have_read_may_be_deleted(folder, schema):
    streams = [FileStream(folder, schema) for _ in range(2)]
    for rank, stream in enumerate(streams):
        stream.assign_partitions(rank, 2)
    found = read_some(streams, 60, 5.0)
    position = streams[0].join([stream.resolve(stream.position()) for stream in streams])
    for number in range(4):
        (folder / f"part-{number:04d}.jsonl").unlink()
    alone = FileStream(folder, schema, end="at_last")
    alone.seek(position)
    assert sorted(found + read_some([alone], 10_000, 5.0)) == list(range(220))
    (folder / "part-0006.jsonl").unlink()
    again = FileStream(folder, schema, end="at_last")
    with pytest.raises(StreamError, match="part-0006"):
        again.seek({**position, "files:6": ["part-0006.jsonl@40", 0]})


def test_a_growing_segment_is_followed_by_the_process_it_falls_to(folder, schema, rows):
    streams = [FileStream(folder, schema) for _ in range(2)]
    for rank, stream in enumerate(streams):
        stream.assign_partitions(rank, 2)
    found = read_some(streams, 10_000, 0.3)
    with (folder / "part-0010.jsonl").open("a") as file:
        file.write(lines(rows(220, 225)))
    assert read_some(streams[1:], 10_000, 0.3) == []
    assert read_some(streams[:1], 10_000, 0.3) == list(range(220, 225))
    assert sorted(found) == list(range(220))


def test_keys_are_read_once_by_any_number_of_processes(redis_server, schema, rows):
    client = redis_server.client()
    for row in rows(0, 200):
        client.xadd("abc"[row["user"] % 3], {"data": json.dumps(row)})

    def open_stream():
        return RedisStream(["c", "a", "b"], schema, url=redis_server.url)

    assert sorted(chain(open_stream, 9, 0.2)) == list(range(200))
    assert goes_on(open_stream(), 0.2)


@pytest.mark.long
def test_partitions_are_read_once_by_any_number_of_processes(make_kafka, schema, rows):
    server = make_kafka("clicks", 3)
    for partition in range(3):
        server.produce([json.dumps(row) for row in rows(0, 300) if row["user"] % 3 == partition], partition)

    def open_stream():
        return KafkaStream("clicks", schema, servers=server.servers, quota=8, turn_timeout=0.2)

    assert sorted(chain(open_stream, 13, 3.0)) == list(range(300))
    assert goes_on(open_stream(), 3.0)


def test_a_position_is_about_the_partitions_of_the_process(make_kafka, schema, rows):
    server = make_kafka("clicks", 2)
    server.produce([json.dumps(row).encode() for row in rows(0, 6)], partition=1)
    stream = KafkaStream("clicks", schema, servers=server.servers, group="own")
    stream.assign_partitions(1, 2)
    assert read_some([stream], 6, 20.0) == list(range(6))
    assert [name for name in stream.position() if name != "@start"] == ["clicks:1"]
    stream.close()


def test_too_many_processes_for_a_folder_are_refused(folder, schema):
    with pytest.raises(ConfigurationError, match="at most 251 processes; there are 300"):
        FileStream(folder, schema).assign_partitions(299, 300)


def test_only_what_can_be_divided_says_so(folder, schema):
    assert FileStream(folder, schema).sharing is Sharing.PARTITIONED
    replay = ReplayStream({"x": [1.0, 2.0]})
    assert replay.sharing is Sharing.REPEATABLE
