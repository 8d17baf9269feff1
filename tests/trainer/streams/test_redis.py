import json
import threading
import time

import pytest

from trainer.errors import ConfigurationError, StreamError
from trainer.streams import Column, RedisStream, Schema, advance
from trainer.streams.sources.redis_removals import Removals

pytestmark = pytest.mark.server


def arrow_payload(rows):
    pa = pytest.importorskip("pyarrow")
    table = pa.Table.from_pylist(rows)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def payloads(rows):
    """One row, four in JSON, a bad one, five in Arrow, one."""
    broken = json.dumps({"user": "x"})
    return [json.dumps(rows[0]), json.dumps(rows[1:5]), broken, arrow_payload(rows[5:10]), json.dumps(rows[10])]


@pytest.fixture
def stream(redis_server, schema):
    opened = []

    def make(keys="clicks", **options):
        opened.append(RedisStream(keys, schema, url=redis_server.url, **{"max_bad_share": 1.0, **options}))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def test_resumes_behind_every_row_of_every_message(redis_server, stream, rows, same, read, resumes):
    for payload in payloads(rows(0, 11)):
        redis_server.client().xadd("clicks", {"data": payload})
    same(read(stream()), rows(0, 11))
    resumes(stream, list(range(11)), max_rows=3)


def test_a_message_that_is_delivered_twice_is_two_messages(redis_server, stream, rows, read, resumes):
    for row in rows(0, 4):
        for _ in range(2):
            redis_server.client().xadd("clicks", {"data": json.dumps(row)})
    order = [0, 0, 1, 1, 2, 2, 3, 3]
    assert read(stream()).columns["user"].tolist() == order
    resumes(stream, order, max_rows=3)


def test_several_keys_are_merged_in_one_order(redis_server, stream, rows, read, resumes):
    client = redis_server.client()
    for row in rows(0, 40):
        client.xadd("ab"[row["user"] % 3 > 0], {"data": json.dumps(row)})
        if row["user"] % 10 == 0:
            time.sleep(0.002)
    time.sleep(0.002)
    order = read(stream(["a", "b"])).columns["user"].tolist()
    assert sorted(order) == list(range(40))
    assert read(stream(["a", "b"], count=2)).columns["user"].tolist() == order
    resumes(lambda: stream(["a", "b"], count=3), order, max_rows=4, every=3)


def test_a_message_above_the_declared_size_is_set_aside(redis_server, stream, rows, read, tmp_path):
    client = redis_server.client()
    long = json.dumps({**rows(1, 2)[0], "note": "x" * 5000})
    for key, messages in {
        "clicks": [{"data": json.dumps(rows(0, 1)[0])}, {"data": long}],
        "plain": [{"user": long}],
    }.items():
        for fields in messages:
            client.xadd(key, fields)
    opened = stream(dead_letter=tmp_path / "letters", max_record_bytes=5000)
    assert read(opened).columns["user"].tolist() == [0]
    plain = stream("plain", dead_letter=tmp_path / "letters", max_record_bytes=5000, field=None)
    assert read(plain) is None
    told = [json.loads(line)["reason"] for line in (tmp_path / "letters").read_text().splitlines()]
    size = len(long)
    assert told == [f"takes a record of at most max_record_bytes=5000; received one of {size} bytes"] * 2


def test_plain_fields_are_columns(redis_server, tmp_path):
    client = redis_server.client()
    client.xadd("clicks", {"user": 1, "ids": "1 2 3", "price": 0.5, "kind": "new"})
    client.xadd("clicks", {"user": 2, "ids": "1 2", "price": 0.5, "kind": "new"})
    client.xadd("clicks", {"user": b"\xff", "ids": "1 2 3", "price": 0.5, "kind": "new"})
    client.xadd("clicks", {"user": 3, "ids": "4 5 6", "price": "1e3"})
    schema = Schema(
        {"user": "int32", "ids": Column("int64", (3,)), "price": "float32", "kind": Column("str", default="-")}
    )
    bad = tmp_path / "bad.jsonl"
    stream = RedisStream("clicks", schema, url=redis_server.url, field=None, dead_letter=bad, max_bad_share=1.0)
    batch = stream.poll(10, 1.0)
    assert batch.columns["user"].tolist() == [1, 3]
    assert batch.columns["ids"].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert batch.columns["price"].tolist() == [0.5, 1000]
    assert batch.columns["kind"].tolist() == ["new", "-"]
    stream.close()
    reasons = [json.loads(line)["reason"] for line in bad.read_text().splitlines()]
    assert "shape [3]" in reasons[0]
    assert "UTF-8" in reasons[1]


def test_waits_for_new_entries_and_a_close_ends_the_wait(redis_server, stream, rows):
    one = stream(start="$")
    assert one.position() == {"clicks": ["0-1", 0]}
    threading.Timer(0.1, redis_server.client().xadd, ("clicks", {"data": json.dumps(rows(0, 1)[0])})).start()
    started = time.monotonic()
    assert one.poll(5, 600.0).rows == 1
    threading.Timer(0.1, one.close).start()
    assert one.poll(5, 600.0) is None
    assert time.monotonic() - started < 300
    assert stream(start="$").position() == advance({}, stream().poll(5, 1.0))


def test_a_server_that_is_killed_and_comes_back_loses_nothing(redis_server, stream, rows, caplog):
    client = redis_server.client()
    for row in rows(0, 3):
        client.xadd("clicks", {"data": json.dumps(row)})
    one = stream()
    assert one.poll(2, 1.0).columns["user"].tolist() == [0, 1]
    assert one.poll(2, 1.0).columns["user"].tolist() == [2]
    redis_server.kill()
    assert one.poll(2, 0.3) is None
    assert one.lag() is None
    one.commit(one.position())
    redis_server.start()
    client.xadd("clicks", {"data": json.dumps(rows(3, 4)[0])})
    assert one.poll(2, 10.0).columns["user"].tolist() == [3]
    messages = [record.message for record in caplog.records]
    assert [
        ("growing waits" in text, "is back" in text) for text in messages if "could not be written" not in text
    ] == [
        (True, False),
        (False, True),
    ]
    redis_server.kill()
    with pytest.raises(StreamError, match=r"failing for .* give_up_after=0\.2"):
        stream(give_up_after=0.2).poll(5, 10.0)


def test_a_server_that_becomes_a_replica_while_the_stream_waits_is_waited_for(redis_server, stream, rows):
    client, read = redis_server.client(), []
    one = stream()
    reader = threading.Thread(target=lambda: read.append(one.poll(5, 30.0)))
    reader.start()
    try:
        deadline = time.monotonic() + 30.0
        while not any(int(each["flags"].count("b")) for each in client.client_list()) and time.monotonic() < deadline:
            time.sleep(0.01)  # until the stream waits in a blocking call
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
        client.execute_command("REPLICAOF", "NO", "ONE")
        client.xadd("clicks", {"data": json.dumps(rows(0, 1)[0])})
    finally:
        reader.join()
    assert read[0].columns["user"].tolist() == [0]


def test_lag_counts_the_entries_that_wait(redis_server, stream, rows):
    client = redis_server.client()
    for row in rows(0, 10):
        client.xadd("clicks", {"data": json.dumps(row)})
    one = stream()
    assert one.lag() == 10
    one.poll(4, 1.0)
    one.poll(6, 1.0)
    assert one.lag() == 0


def test_entries_trimmed_away_unread_are_an_error_that_names_the_first_one_left(redis_server, stream, rows, read):
    client = redis_server.client()
    ids = [client.xadd("clicks", {"data": json.dumps([row, row])}).decode() for row in rows(0, 6)]
    one = stream(count=2)
    begun = advance({}, one.poll(3, 1.0))
    client.xtrim("clicks", minid=ids[4], approximate=False)
    assert one.poll(3, 1.0).rows == 1  # fetched before
    with pytest.raises(StreamError, match=f"first id available is {ids[4]}"):
        one.poll(3, 1.0)
    resumed = stream()
    resumed.seek(begun)
    with pytest.raises(StreamError, match=f"first id available is {ids[4]}"):
        resumed.poll(3, 1.0)
    resumed = stream(on_missing="skip")
    resumed.seek(begun)
    assert read(resumed, timeout=0.2).columns["user"].tolist() == [4, 4, 5, 5]


def fill(client, rows, first=1, key="clicks"):
    """Append rows with the ids <first>-0, <first + 1>-0, ..."""
    for number, row in enumerate(rows, start=first):
        client.xadd(key, {"data": json.dumps(row)}, id=f"{number}-0")


REMOVALS = {
    "deleted": (lambda client, rows: client.delete("clicks"), "was deleted; the last id seen in it was 10-0", []),
    "created again with older ids": (
        lambda client, rows: (client.delete("clicks"), fill(client, rows(20, 23))),
        "was deleted and created again; the last id seen in it was 10-0: now it holds 3 entries, up to 3-0",
        [20, 21, 22],
    ),
    "all trimmed": (
        lambda client, rows: client.xtrim("clicks", maxlen=0, approximate=False),
        r"has lost entries after 4-0 before they were read .*; none is left",
        [],
    ),
    "the newest deleted": (
        lambda client, rows: client.xdel("clicks", "9-0", "10-0"),
        r"has lost entries after [48]-0 before they were read .*; (none is left|the first id available is 5-0)",
        [4, 5, 6, 7],
    ),
}


@pytest.mark.parametrize("way", REMOVALS)
def test_entries_that_go_unread_are_named_while_reading_and_at_a_resume(redis_server, stream, rows, read, way):
    remove, message, left = REMOVALS[way]
    client = redis_server.client()
    fill(client, rows(0, 10))
    readers = {missing: stream(count=4, on_missing=missing) for missing in ("error", "skip")}
    for reader in readers.values():
        assert reader.poll(4, 1.0).rows == 4
    position = readers["error"].resolve(readers["error"].position())
    remove(client, rows)
    for expected in (f"stream 'clicks' {message}.*on_missing='skip'", r"was deleted|has lost entries after [48]-0"):
        with pytest.raises(StreamError, match=expected):
            read(readers["error"], timeout=1.0)
    assert users_of(read(readers["skip"], timeout=0.1)) == left
    if "trimmed" in way or "newest" in way:
        resumed = stream()
        resumed.seek(position)
        with pytest.raises(StreamError, match=r"has lost entries after [48]-0 before they were read"):
            read(resumed, timeout=1.0)
    fill(client, rows(30, 32), first=40)
    assert users_of(read(readers["skip"], timeout=0.1)) == [30, 31], "what comes later is read"


@pytest.mark.parametrize("when", ["at a resume", "while it waits"])
def test_a_key_created_again_with_the_same_ids_is_known_by_an_entry(
    when, redis_server, stream, rows, read, monkeypatch
):
    monkeypatch.setattr("trainer.streams.sources.redis._CHECK_SECONDS", 0.0)
    client = redis_server.client()
    fill(client, rows(0, 10))
    readers = {missing: stream(count=4, on_missing=missing) for missing in ("error", "skip")}
    for missing, reader in readers.items():
        assert reader.poll(4, 1.0).rows == 4
        position = json.loads(json.dumps(reader.resolve(reader.position())))
        assert position["@mark:clicks"][0] == "4-0"
        if when == "at a resume":
            readers[missing] = stream(on_missing=missing)
            readers[missing].seek(position)
    client.delete("clicks")
    fill(client, rows(20, 35))
    with pytest.raises(StreamError, match=r"'clicks' holds another entry 4-0 .* created again.* it holds 15 entries"):
        readers["error"].poll(4, 1.0)
    assert users_of(read(readers["skip"], timeout=0.1)) == list(range(20, 35))
    assert readers["skip"].resolve(readers["skip"].position())["@mark:clicks"][0] == "15-0"


def test_a_mark_that_is_gone_or_missing_raises_no_false_alarm(redis_server, stream, rows, read):
    client = redis_server.client()
    fill(client, rows(0, 10))
    reader = stream()
    position = advance({}, reader.poll(4, 1.0))
    for at in (position, reader.resolve(position), {**reader.resolve(position), "@mark:clicks": ["3-0", 0]}):
        client.xdel("clicks", "3-0")
        resumed = stream()
        resumed.seek(at)
        assert users_of(read(resumed, timeout=0.1)) == [4, 5, 6, 7, 8, 9]
    with pytest.raises(StreamError, match=r"position of RedisStream|@mark:clicks"):
        reader.seek({**position, "@mark:clicks": ["x", 0]})


@pytest.mark.parametrize("resumed", [False, True], ids=["while reading", "at a resume"])
def test_a_server_that_comes_back_without_its_data_is_an_error(resumed, redis_server, stream, rows, read):
    fill(redis_server.client(), rows(0, 10))
    reader = stream(count=4)
    assert reader.poll(4, 1.0).rows == 4
    redis_server.kill()
    for path in redis_server.folder.glob("appendonly*"):
        path.unlink()
    redis_server.start()
    if resumed:
        position = reader.resolve(reader.position())
        reader = stream()
        reader.seek(position)
    with pytest.raises(StreamError, match="stream 'clicks' was deleted"):
        read(reader, timeout=1.0)
    fill(redis_server.client(), rows(20, 23))
    again = stream(on_missing="skip")
    again.seek(reader.resolve(reader.position()))
    assert users_of(again.poll(5, 1.0)) == [20, 21, 22]


def users_of(batch):
    return [] if batch is None else batch.columns["user"].tolist()


def test_an_entry_deleted_from_the_middle_is_noticed_where_the_server_counts(redis_server, stream, rows, read):
    client = redis_server.client()
    fill(client, rows(0, 10))
    client.xdel("clicks", "3-0")  # before anything is read: no reader has missed it
    reader = stream(count=4)
    assert users_of(reader.poll(2, 1.0)) == [0, 1]
    resumed = stream()
    resumed.seek(json.loads(json.dumps(reader.resolve(reader.position()))))
    assert users_of(read(resumed, timeout=0.1)) == [3, 4, 5, 6, 7, 8, 9]
    client.xdel("clicks", "8-0")
    assert users_of(reader.poll(2, 1.0)) == [3, 4]
    if "max-deleted-entry-id" in client.xinfo_stream("clicks"):
        with pytest.raises(StreamError, match=r"has lost entries after 5-0 .*first id available is 6-0"):
            reader.poll(2, 1.0)
    else:  # Redis 6.2 keeps no counters
        assert users_of(read(reader, timeout=0.1)) == [5, 6, 8, 9]


def test_counters_of_a_newer_server_tell_how_many_entries_went_unread():
    def info(last, added, deleted="0-0", first="1-0"):
        names = ("last-generated-id", "entries-added", "max-deleted-entry-id", "first-entry", "length")
        return dict(zip(names, (last, added, deleted, (first, {}), 5), strict=True))

    removals = Removals(resumed=False)
    assert removals.find_loss(info("5-0", 5, "3-0"), (0, 0), [(1, 0), (2, 0), (4, 0), (5, 0)], False, None) is None
    assert removals.find_loss(info("7-0", 7, "3-0"), (5, 0), [(6, 0), (7, 0)], False, None) is None
    loss = removals.find_loss(info("12-0", 12, "11-0"), (7, 0), [(8, 0), (10, 0), (12, 0)], False, None)
    assert "has lost 2 entries after 7-0 before they were read" in loss.message
    assert loss.up_to == (11, 0)
    again = removals.find_loss(info("15-0", 3, first="13-0"), (12, 0), [(13, 0), (14, 0), (15, 0)], False, None)
    assert again.restart
    assert "created again; the last id seen in it was 12-0: now it holds 5 entries, up to 15-0" in again.message


def test_wrong_arguments_are_refused(redis_server, stream, schema):
    with pytest.raises(ConfigurationError, match="redis://"):
        RedisStream("clicks", schema, url="localhost")
    with pytest.raises(ConfigurationError, match="give_up_after takes seconds > 0 or None; received '5'"):
        stream(give_up_after="5")
    with pytest.raises(ConfigurationError, match="start takes an entry id"):
        stream(start="newest")
    with pytest.raises(StreamError, match="position of RedisStream"):
        stream().seek({"clicks": ["x", 0]})
    redis_server.client().set("clicks", "text")
    with pytest.raises(StreamError, match="WRONGTYPE"):
        stream().poll(1, 1.0)
