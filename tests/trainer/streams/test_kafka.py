import gc
import json
import threading
import time
import weakref

import pytest

from trainer.errors import ConfigurationError, StreamError
from trainer.streams import KafkaStream, advance
from trainer.streams.sources.kafka_client import RoundRobinMerger

pytestmark = pytest.mark.server

# Seconds; long enough for a busy machine, never waited for when things go well.
LONG = 60.0


class Message:
    def __init__(self, at):
        self.at = at

    def offset(self):
        return self.at


def in_turns(logs, starts, bases, quota):
    turns = RoundRobinMerger(starts, bases, quota, timeout=0.0)
    for partition, offsets in logs.items():
        for at in offsets:
            if at >= starts[partition]:
                turns.add(partition, Message(at))
    order = []
    for _ in range(200):
        before = dict(turns.next)
        taken = [message.offset() for message in turns.take()]
        moved = [number for number in turns.next if turns.next[number] != before[number]]
        order += [(moved[0], at) for at in taken]
    return order


def test_turns_go_on_in_the_same_order_from_every_point():
    logs = {0: range(5, 40), 1: [at for at in range(17, 45) if at % 7], 2: range(100, 108)}
    bases = {0: 5, 1: 17, 2: 100}
    order = in_turns(logs, bases, bases, quota=4)
    assert sorted(order) == sorted((number, at) for number, log in logs.items() for at in log)
    assert order[:9] == [(0, 5), (0, 6), (0, 7), (1, 17), (1, 18), (1, 19), (2, 100), (2, 101), (2, 102)]
    starts = dict(bases)
    for count, (partition, at) in enumerate(order, start=1):
        starts[partition] = at + 1
        assert in_turns(logs, starts, bases, quota=4) == order[count:]


def test_a_partition_without_messages_holds_its_turn_until_the_timeout():
    starts = {0: 0, 1: 0}
    for timeout, expected in ((None, []), (0.0, [2, 3])):
        turns = RoundRobinMerger(starts, starts, 2, timeout)
        for at in range(4):
            turns.add(0, Message(at))
        assert [message.at for message in turns.take()] == [0, 1]
        turns.take()
        assert [message.at for message in turns.take()] == expected
        turns.add(1, Message(0))
        assert [message.at for message in turns.take()] == [0]


def test_a_partition_that_ends_within_a_turn_does_not_hold_the_others_up():
    starts = {0: 6, 1: 4}
    turns = RoundRobinMerger(starts, {0: 0, 1: 0}, 4, timeout=0.0)
    for at in range(4, 12):
        turns.add(1, Message(at))
    assert [message.at for _ in range(6) for message in turns.take()] == list(range(4, 12))
    turns.add(0, Message(6))
    assert [message.at for message in turns.take()] == [6]


@pytest.fixture
def stream(schema):
    opened = []

    def make(cluster, **options):
        options = {"turn_timeout": None, "max_bad_share": 1.0, **options}
        # A short poll of the broker: calls that follow a seek wait for its end.
        options["config"] = {"fetch.wait.max.ms": 20, **options.get("config", {})}
        opened.append(KafkaStream(cluster.topic, schema, servers=cluster.servers, **options))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def fill(cluster, rows, partitions):
    """Three messages for each partition in turn: a row, a bad one, three rows."""
    users = iter(range(1000))
    for _ in range(4):
        for partition in range(partitions):
            some = [rows(user, user + 1)[0] for user in (next(users), next(users), next(users), next(users))]
            cluster.produce([json.dumps(some[0]), "broken", json.dumps(some[1:])], partition)


def test_resumes_behind_every_row_of_every_partition(make_kafka, stream, rows, read):
    cluster = make_kafka("clicks", 2)
    fill(cluster, rows, 2)
    first = stream(cluster, quota=3)
    position, seen = first.position(), []
    while len(seen) < 32:
        batch = first.poll(5, LONG)
        for at in range(batch.rows):
            row = batch.split(at)[1].split(1)[0]
            position = advance(position, row)
            seen.append((row.columns["user"].tolist()[0], json.dumps(position)))
    # RoundRobinMerger of three offsets, which each hold four good rows.
    assert [user for user, _ in seen] == list(range(32))
    assert first.position() == position
    resumed = stream(cluster, quota=100)
    for count, (_, at) in list(enumerate(seen, start=1))[:-1:3]:
        resumed.seek(json.loads(at))
        rest = read(resumed, max_rows=7, timeout=LONG, rows=32 - count)
        assert rest.columns["user"].tolist() == list(range(count, 32)), f"resumed after {at}"
        assert resumed.position() == position


def test_a_message_that_is_delivered_twice_is_two_messages(make_kafka, stream, rows, read):
    cluster = make_kafka("clicks")
    cluster.produce([json.dumps(row) for row in rows(0, 4) for _ in range(2)])
    kafka = stream(cluster)
    assert read(kafka, timeout=LONG, rows=3).columns["user"].tolist() == [0, 0, 1]
    position = json.loads(json.dumps(kafka.position()))
    resumed = stream(cluster)
    resumed.seek(position)
    assert read(resumed, timeout=LONG, rows=5).columns["user"].tolist() == [1, 2, 2, 3, 3]


def test_a_message_above_the_declared_size_is_set_aside(make_kafka, stream, rows, read, tmp_path):
    cluster = make_kafka("clicks")
    long = json.dumps({**rows(1, 2)[0], "note": "x" * 5000})
    cluster.produce([json.dumps(rows(0, 1)[0]), long, b"x" * 6000, json.dumps(rows(2, 3)[0])])
    letters = tmp_path / "letters"
    opened = stream(cluster, dead_letter=letters, max_record_bytes=5000)
    assert read(opened, timeout=LONG, rows=2).columns["user"].tolist() == [0, 2]
    told = [json.loads(line)["reason"] for line in letters.read_text().splitlines()]
    assert told == [
        f"takes a record of at most max_record_bytes=5000; received one of {size} bytes" for size in (len(long), 6000)
    ]
    resumed = stream(cluster, dead_letter=tmp_path / "others", max_record_bytes=5000)
    resumed.seek(opened.position())
    cluster.produce([json.dumps(rows(3, 4)[0])])
    assert read(resumed, timeout=LONG, rows=1).columns["user"].tolist() == [3]
    assert not (tmp_path / "others").exists()


def test_arrow_arrival_order_lag_and_commit(make_kafka, stream, rows, read, same):
    pa = pytest.importorskip("pyarrow")
    cluster = make_kafka("clicks")
    sink = pa.BufferOutputStream()
    table = pa.Table.from_pylist(rows(0, 50))
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    cluster.produce([sink.getvalue().to_pybytes(), json.dumps(rows(50, 51)[0])])
    one = stream(cluster, order="arrival", group="g")
    assert one.lag() is None
    batch = read(one, timeout=LONG, rows=50)
    same(batch, rows(0, 50))
    position = advance(one.position(), batch)
    assert position["clicks:0"] == [1, 0]
    one.commit(position)
    one.poll(1, LONG)
    assert one.lag() == 0
    deadline = time.monotonic() + LONG
    while True:
        committed = stream(cluster, start="committed", group="g")
        if committed.position()["clicks:0"] == [1, 0] or time.monotonic() > deadline:
            break
        one.poll(1, 0.1)
    assert committed.poll(5, LONG).columns["user"].tolist() == [50]
    assert stream(cluster, start="latest").position()["clicks:0"] == [2, 0]


def test_brokers_that_go_down_and_fetches_that_fail_lose_nothing(make_kafka, stream, rows, read, caplog, monkeypatch):
    cluster = make_kafka("clicks")
    fast = {"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 100}
    cluster.produce([json.dumps(row) for row in rows(0, 5)])
    one = stream(cluster, config=fast)
    assert read(one, timeout=LONG, rows=5).columns["user"].tolist() == [0, 1, 2, 3, 4]
    cluster.down()
    deadline = time.monotonic() + LONG
    while not caplog.records and time.monotonic() < deadline:
        assert one.poll(5, 0.1) is None
    assert "growing waits" in caplog.records[0].message
    cluster.up()
    cluster.fail_fetches(6, 7, 3)  # not the leader, timed out, unknown partition
    cluster.produce([json.dumps(row) for row in rows(5, 9)])
    assert read(one, timeout=LONG, rows=4).columns["user"].tolist() == [5, 6, 7, 8]
    assert "is back" in caplog.records[-1].message

    cluster.down()
    monkeypatch.setattr("trainer.streams.sources.kafka._REQUEST_SECONDS", 0.3)
    with pytest.raises(StreamError, match="give_up_after"):
        stream(cluster, config=fast, give_up_after=0.3).poll(5, LONG)


@pytest.mark.parametrize("left", ["no topic", "an empty topic", "as many other messages"])
@pytest.mark.parametrize("resumed", [False, True], ids=["while reading", "at a resume"])
def test_a_broker_that_comes_back_without_its_data_is_an_error(
    left, resumed, make_kafka, stream, rows, read, monkeypatch
):
    monkeypatch.setattr("trainer.streams.sources.kafka._CHECK_SECONDS", 0.1)
    cluster = make_kafka("clicks")
    cluster.produce([json.dumps(row) for row in rows(0, 10)])
    reader = stream(cluster, config={"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 50})
    position = advance(reader.position(), read(reader, timeout=LONG, rows=10))
    cluster.down()
    assert reader.poll(5, 0.1) is None
    cluster.delete() if left == "no topic" else cluster.create_again()
    cluster.up()
    if left == "as many other messages":
        cluster.produce([json.dumps(row) for row in rows(20, 30)])
    if resumed:
        position = reader.resolve(position)
        reader = stream(cluster)
        reader.seek(position)
    expected = {
        "no topic": "there is no topic 'clicks'",
        "an empty topic": "offset 10 of clicks:0 is beyond its end, 0",
    }
    with pytest.raises(StreamError, match=expected.get(left, "offset 9 of clicks:0 holds another message")):
        reader.poll(5, LONG)


@pytest.mark.parametrize("number", [0, 1])
def test_an_end_that_the_broker_does_not_tell_is_not_taken_for_an_empty_partition(
    number, make_kafka, stream, rows, read
):
    cluster = make_kafka("clicks")
    cluster.produce([json.dumps(row) for row in rows(0, 10)])
    for _ in range(3):  # whether the client notices is a matter of timing
        one = stream(cluster)
        cluster.fail_requests(2, [0] * number + [6])  # not the leader
        assert read(one, timeout=LONG, rows=10).columns["user"].tolist() == list(range(10))
        cluster.stop_failing(2)
        one.close()


def test_partitions_paused_when_a_delivery_fails_are_read_on(make_kafka, stream, rows, read, monkeypatch, tmp_path):
    monkeypatch.setattr("trainer.streams.sources.kafka._MIN_BUFFERED", 1)
    cluster = make_kafka("clicks", 2)
    for partition in (0, 1):
        some = rows(40 * partition, 40 * partition + 40)
        cluster.produce(["broken", *(json.dumps(row) for row in some)], partition)
    (tmp_path / "bad").mkdir()
    one = stream(cluster, quota=1, order="arrival", dead_letter=tmp_path / "bad", max_bad_share=None)
    one.position()
    time.sleep(0.5)  # so that more messages come at once than are held
    with pytest.raises(StreamError, match="dead-letter file"):
        one.poll(5, LONG)
    (tmp_path / "bad").rmdir()
    one.dead_letter.max_bad_share = 1.0
    assert sorted(read(one, timeout=5.0, rows=80).columns["user"].tolist()) == list(range(80))


def test_messages_deleted_unread_are_an_error_that_names_the_first_one_left(make_kafka, stream, rows, read):
    cluster = make_kafka("clicks")
    cluster.produce([json.dumps(row) for row in rows(0, 10)])
    one = stream(cluster)
    position = advance(one.position(), read(one, timeout=LONG, rows=3))
    cluster.delete_before(7)
    resumed = stream(cluster)
    resumed.seek(position)
    with pytest.raises(StreamError, match=r"from offset 3 on were deleted .* the first one is 7"):
        resumed.poll(5, LONG)
    skipping = stream(cluster, on_missing="skip")
    skipping.seek(position)
    assert read(skipping, timeout=LONG, rows=3).columns["user"].tolist() == [7, 8, 9]
    resumed.seek({"clicks:0": [99, 0]})
    with pytest.raises(StreamError, match="beyond its end, 10"):
        resumed.poll(5, LONG)


def test_a_topic_created_again_is_named_while_reading_and_at_a_resume(make_kafka, stream, rows, read):
    cluster = make_kafka("clicks")
    cluster.produce([json.dumps(row) for row in rows(0, 10)])
    readers = [stream(cluster), stream(cluster, on_missing="skip")]
    begun = [reader.position() for reader in readers]
    positions = [advance(at, read(reader, timeout=LONG, rows=10)) for at, reader in zip(begun, readers, strict=True)]
    cluster.create_again()
    cluster.produce([json.dumps(row) for row in rows(20, 23)])
    again = "offset 10 of clicks:0 is beyond its end, 3: the topic was deleted .* holds 3 messages from offset 0 on"
    with pytest.raises(StreamError, match=again):
        readers[0].poll(5, LONG)
    assert read(readers[1], timeout=LONG, rows=3).columns["user"].tolist() == [20, 21, 22]
    resumed = stream(cluster, on_missing="skip")
    resumed.seek(positions[1])
    assert read(resumed, timeout=LONG, rows=3).columns["user"].tolist() == [20, 21, 22]


@pytest.mark.parametrize("when", ["at a resume", "while it waits"])
def test_a_topic_created_again_that_has_grown_beyond_the_position_is_known_by_a_message(
    when, make_kafka, stream, rows, read, monkeypatch
):
    monkeypatch.setattr("trainer.streams.sources.kafka._CHECK_SECONDS", 0.1)
    cluster = make_kafka("clicks", 2)
    for partition in (0, 1):
        cluster.produce([json.dumps(row) for row in rows(10 * partition, 10 * partition + 10)], partition)
    readers = {choice: stream(cluster, on_missing=choice, turn_timeout=0.0) for choice in ("error", "skip")}
    begun = {choice: reader.position() for choice, reader in readers.items()}
    for choice, reader in readers.items():
        position = advance(begun[choice], read(reader, timeout=LONG, rows=20))
        position = json.loads(json.dumps(reader.resolve(position)))
        assert position["@mark:clicks:0"][0] == 9
        if when == "at a resume":
            reader.close()
            readers[choice] = stream(cluster, on_missing=choice, turn_timeout=0.0)
            readers[choice].seek(position)
    cluster.create_again(partitions=2)
    for partition, first in ((0, 100), (1, 200)):
        cluster.produce([json.dumps(row) for row in rows(first, first + 15)], partition)
    again = (
        r"offset 9 of clicks:[01] holds another message .* deleted and created again.* holds 15 messages from .* 0 on"
    )
    with pytest.raises(StreamError, match=again):
        read(readers["error"], timeout=LONG, rows=1)
    rest = read(readers["skip"], timeout=LONG, rows=30).columns["user"].tolist()
    assert sorted(rest) == [*range(100, 115), *range(200, 215)]


def test_a_message_that_retention_removed_or_an_older_snapshot_raises_no_false_alarm(make_kafka, stream, rows, read):
    cluster = make_kafka("clicks")
    cluster.produce([json.dumps(row) for row in rows(0, 10)])
    first = stream(cluster)
    position = advance(first.position(), read(first, timeout=LONG, rows=5))
    resolved = first.resolve(position)
    assert set(resolved) - set(position) == {"@mark:clicks:0"}
    for at in (position, resolved):
        resumed = stream(cluster)
        resumed.seek(at)
        assert read(resumed, timeout=LONG, rows=5).columns["user"].tolist() == [5, 6, 7, 8, 9]
        assert resumed.position()["clicks:0"] == [10, 0]
        cluster.delete_before(5)
    with pytest.raises(StreamError, match=r"'@mark:clicks:0' as \[offset, checksum\]; received \[3\]"):
        first.seek({**position, "@mark:clicks:0": [3]})


def test_partitions_that_are_added_are_read_from_their_first_message_on(
    make_kafka, stream, rows, read, monkeypatch, caplog
):
    monkeypatch.setattr("trainer.streams.sources.kafka._CHECK_SECONDS", 0.1)
    cluster = make_kafka("clicks", 2)
    for partition, first in enumerate((0, 10)):
        cluster.produce([json.dumps(row) for row in rows(first, first + 5)], partition, timestamp=1000)
    alone = stream(cluster, partitions=[0])
    position = advance(alone.position(), read(alone, timeout=LONG, rows=5))
    resumed = stream(cluster, start="latest", turn_timeout=0.0)
    resumed.seek(position)
    assert read(resumed, timeout=LONG, rows=5).columns["user"].tolist() == [10, 11, 12, 13, 14]
    assert "clicks:1 was added to the topic: its 5 messages are read from the first on" in caplog.text

    cluster.create_again(partitions=3)  # this cluster cannot add any; what was read is put back
    for partition, first in enumerate((0, 10, 20)):
        cluster.produce([json.dumps(row) for row in rows(first, first + 5)], partition, timestamp=1000)
    assert read(resumed, timeout=LONG, rows=5).columns["user"].tolist() == [20, 21, 22, 23, 24]


def test_a_close_ends_a_wait(make_kafka, stream):
    one = stream(make_kafka("clicks"))
    started = time.monotonic()
    threading.Timer(0.3, one.close).start()
    assert one.poll(5, 600.0) is None
    assert time.monotonic() - started < 300


def test_a_dropped_stream_frees_its_client_at_once(make_kafka, schema):
    """Not at some later garbage collection: a process has room for about 1,000 clients."""
    dropped = KafkaStream("clicks", schema, servers=make_kafka("clicks").servers)
    alive = weakref.ref(dropped)  # and what it holds
    dropped.close()
    gc.disable()
    try:
        del dropped
        assert alive() is None
    finally:
        gc.enable()


def test_wrong_arguments_are_refused(make_kafka, stream, schema):
    cluster = make_kafka("clicks")
    with pytest.raises(ConfigurationError, match="did you mean 'arrival'"):
        stream(cluster, order="arival")
    for partitions in ([], [0, 0], "01"):
        with pytest.raises(
            ConfigurationError, match="partitions takes different numbers of partitions, or None for all"
        ):
            stream(cluster, partitions=partitions)
    with pytest.raises(ConfigurationError, match="turn_timeout takes seconds >= 0 or None; received -1"):
        stream(cluster, turn_timeout=-1)
    with pytest.raises(ConfigurationError, match="refuses its settings"):
        stream(cluster, config={"no.such.setting": 1})
    with pytest.raises(StreamError, match="did you mean 'clicks'"):
        KafkaStream("clickz", schema, servers=cluster.servers).poll(1, LONG)
    with pytest.raises(StreamError, match=r"partitions \[0\]; asked for \[3\]"):
        stream(cluster, partitions=[0, 3]).poll(1, LONG)
    with pytest.raises(StreamError, match="position of KafkaStream"):
        stream(cluster).seek({"other:0": [0, 0]})


def test_lag_is_known_at_once_while_another_thread_waits_for_messages(make_kafka, stream, rows):
    cluster = make_kafka("clicks")
    cluster.produce([json.dumps(row) for row in rows(0, 3)])
    one = stream(cluster)
    seen = 0
    while seen < 3:
        seen += one.poll(3, LONG).rows
    done = threading.Event()

    def wait():
        while not done.is_set():
            one.poll(3, 0.2)

    reader = threading.Thread(target=wait, daemon=True)
    reader.start()
    told = []
    asker = threading.Thread(target=lambda: told.extend(one.lag() for _ in range(200)), daemon=True)
    asker.start()
    asker.join(LONG)
    done.set()
    reader.join(LONG)
    assert len(told) == 200
    assert told[-1] == 0


def test_a_committed_position_within_a_message_begins_behind_the_rows_read(make_kafka, stream, rows, read):
    cluster = make_kafka("clicks")
    cluster.produce([json.dumps(rows(0, 5)), json.dumps(rows(5, 7))])
    one = stream(cluster, group="g")
    position = advance(one.position(), read(one, timeout=LONG, rows=3))
    assert position["clicks:0"] == [0, 3]
    one.commit(position)
    deadline = time.monotonic() + LONG
    while True:
        committed = stream(cluster, start="committed", group="g")
        if committed.position()["clicks:0"] == [0, 3] or time.monotonic() > deadline:
            break
        one.poll(1, 0.1)
    assert read(committed, timeout=LONG, rows=4).columns["user"].tolist() == [3, 4, 5, 6]
    cluster.delete_before(1)
    with pytest.raises(StreamError, match="messages of clicks:0 from offset 0 on were deleted"):
        stream(cluster, start="committed", group="g").position()
    skipping = stream(cluster, start="committed", group="g", on_missing="skip")
    assert read(skipping, timeout=LONG, rows=2).columns["user"].tolist() == [5, 6]


def test_a_partition_added_to_a_process_that_had_none_is_read_from_its_first_message_on(
    make_kafka, stream, rows, read, monkeypatch
):
    monkeypatch.setattr("trainer.streams.sources.kafka._CHECK_SECONDS", 0.1)
    cluster = make_kafka("clicks", 1)
    second = stream(cluster, start="latest")
    second.position()
    second.assign_partitions(1, 2)
    assert second.poll(5, 0.5) is None
    cluster.create_again(partitions=2)  # this cluster cannot add any
    cluster.produce([json.dumps(row) for row in rows(0, 5)], 1)
    assert read(second, timeout=LONG, rows=5).columns["user"].tolist() == [0, 1, 2, 3, 4]
