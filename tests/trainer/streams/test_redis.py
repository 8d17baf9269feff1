import json
import threading
import time

import pytest

from trainer.errors import ConfigurationError, StreamError
from trainer.streams import Column, RedisStream, Schema, advance


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
    assert one.poll(5, 20.0).rows == 1
    threading.Timer(0.1, one.close).start()
    assert one.poll(5, 20.0) is None
    assert time.monotonic() - started < 15
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
    assert [("growing waits" in text, "is back" in text) for text in messages if "could not be noted" not in text] == [
        (True, False),
        (False, True),
    ]
    redis_server.kill()
    with pytest.raises(StreamError, match=r"failing for .* give_up_after=0\.2"):
        stream(give_up_after=0.2).poll(5, 10.0)


def test_commit_notes_the_position_and_trims_what_lies_before(redis_server, stream, rows, read):
    client = redis_server.client()
    for row in rows(0, 10):
        client.xadd("clicks", {"data": json.dumps(row)})
    one = stream(trim=True)
    assert one.lag() == 10
    position = advance({}, one.poll(4, 1.0))
    one.poll(6, 1.0)
    assert one.lag() == 0
    one.commit(position)
    assert json.loads(client.hget("clicks:position", "clicks")) == position["clicks"]
    assert client.xlen("clicks") == 7
    resumed = stream()
    resumed.seek(position)
    assert read(resumed, timeout=0.2).columns["user"].tolist() == [4, 5, 6, 7, 8, 9]


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


def test_wrong_arguments_are_refused(redis_server, stream, schema):
    with pytest.raises(ConfigurationError, match="redis://"):
        RedisStream("clicks", schema, url="localhost")
    with pytest.raises(ConfigurationError, match="start takes an entry id"):
        stream(start="newest")
    with pytest.raises(StreamError, match="position of RedisStream"):
        stream().seek({"clicks": ["x", 0]})
    redis_server.client().set("clicks", "text")
    with pytest.raises(StreamError, match="WRONGTYPE"):
        stream().poll(1, 1.0)
