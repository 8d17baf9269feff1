"""What cannot work is said in plain sentences when the URL is first used, and data are read where they lie."""

import json
import sys
import threading
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.trainer.storage.s3_server import S3Server
from tests.trainer.streams.conftest import check_resumes_everywhere, make_rows, make_schema, read_all, users
from trainer import Mirror, ParquetFolder
from trainer.errors import ConfigurationError, DataError, StreamError
from trainer.features import RawFiles
from trainer.masking import mask_text
from trainer.storage.location import Location
from trainer.streams import FileStream

pytestmark = pytest.mark.server


def lines(first, last):
    return "".join(json.dumps(row) + "\n" for row in make_rows(first, last)).encode()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("s4://bucket/run", r"unknown scheme 's4'; accepts s3, gs, .*did you mean 's3'"),
        ("runs/here", "is not a URL; accepts for example s3://bucket/folder"),
        ("s3://", "names no bucket"),
        ("s3://no-such-bucket/run", "there is no bucket 'no-such-bucket' at http"),
        ("s3://key-of-someone:their-secret-key@bucket/run", "credentials do not belong in a URL"),
        ("abfs://container:their-secret-key@account.dfs.core.windows.net/x", "credentials do not belong in a URL"),
        ("s3://bucket/run?endpoint=x", "Unexpected query parameter"),
    ],
)
def test_a_url_that_cannot_work_is_refused(s3, url, given, message):
    with pytest.raises(ConfigurationError, match=message) as error:
        Mirror(given)
    assert "their-secret-key" not in str(error.value)


def test_a_container_of_azure_is_no_credential():
    assert mask_text("abfs://logs@account.dfs.core.windows.net/x") == "abfs://logs@account.dfs.core.windows.net/x"
    assert "their-key" not in mask_text("abfss://logs:their-key@account.dfs.core.windows.net/x")


@pytest.mark.long
def test_wrong_credentials_are_named(tmp_path, monkeypatch):
    server = S3Server(tmp_path).start(INITIAL_NO_AUTH_ACTION_COUNT="0")
    try:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(ConfigurationError, match=r"cannot be used: .*ACCESS_DENIED during HeadBucket"):
            Mirror("s3://bucket/run")
    finally:
        server.kill()


@pytest.mark.long
def test_a_server_that_is_not_there_is_named(monkeypatch):
    with pytest.raises(ConfigurationError, match=r"cannot be used: .*NETWORK_CONNECTION"):
        Mirror("s3://bucket/run?endpoint_override=127.0.0.1:9&scheme=http&region=us-east-1")


def test_the_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigurationError, match=r"needs PyArrow: pip install 'mindspore-trainer\[s3\]'"):
        Location("s3://bucket/run")


def test_a_folder_on_a_shared_disk_is_a_store_too(tmp_path):
    location = Location(f"file://{tmp_path}/mirror")
    location.write("a/b", b"content")
    assert location.child("a").read("b") == b"content"
    assert list(location.files()) == ["a/b"]
    location.delete_folder("a")
    assert location.files() == {}


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_stream_in_a_store_resumes_behind_every_row(s3, url, tmp_path, kind):
    location = Location(url)
    for number, first in enumerate((0, 10, 20)):
        if kind == "jsonl":
            location.write(f"{number}.jsonl", lines(first, first + 10))
        else:
            pq.write_table(pa.Table.from_pylist(make_rows(first, first + 10)), tmp_path / "rows", row_group_size=4)
            location.upload(tmp_path / "rows", f"{number}.parquet")
    check_resumes_everywhere(lambda: FileStream(url, make_schema(), end="at_last"), list(range(30)), every=4)
    single = FileStream(f"{url}/1.{kind}", make_schema(), end="at_last")
    assert users(read_all(single)) == list(range(10, 20))
    single.close()


def test_an_object_that_grew_is_read_on_and_one_that_was_replaced_is_noticed(s3, url):
    location = Location(url)
    location.write("0.jsonl", lines(0, 5))
    stream = FileStream(url, make_schema(), poll_interval=0.01)
    assert users(read_all(stream, timeout=2.0, rows=5)) == [0, 1, 2, 3, 4]
    location.write("0.jsonl", lines(0, 8))
    assert users(read_all(stream, timeout=5.0, rows=3)) == [5, 6, 7]
    location.write("0.jsonl", lines(100, 120))
    with pytest.raises(StreamError, match="it was replaced or written again"):
        read_all(stream, timeout=5.0, rows=1)
    stream.close()


@pytest.mark.long
def test_a_stream_goes_on_when_its_server_is_back(s3, url):
    location = Location(url)
    location.write("0.jsonl", lines(0, 5))
    location.write("1.jsonl", lines(5, 10))
    stream = FileStream(url, make_schema(), end="at_last")
    assert users(stream.poll(3, 1.0)) == [0, 1, 2]
    s3.die_at("GET", "1.jsonl", "before")
    position, read = None, []
    for _ in range(100):
        batch = stream.poll(100, 0.2)
        read += users(batch)
        if s3.died:
            position = position or stream.position()
            s3.start()
        if stream.exhausted:
            break
    assert read == [3, 4, 5, 6, 7, 8, 9]
    stream.close()


def test_raw_files_are_copied_once(s3, url, tmp_path):
    location = Location(url)
    location.write("rows/a.csv", b"x,y\n1,2\n")
    location.write("rows/_skipped", b"")
    copy = RawFiles(f"{url}/rows").path
    assert sorted(path.name for path in copy.iterdir()) == ["a.csv"]
    assert RawFiles(f"{url}/rows").path == copy
    assert RawFiles(f"{url}/rows/a.csv").path.read_bytes() == b"x,y\n1,2\n"
    with pytest.raises(DataError, match="there is no such file or folder"):
        RawFiles(f"{url}/none")
    location.write("rows/a.csv", b"x,y\n1,2\n3,4\n")
    assert (RawFiles(f"{url}/rows").path / "a.csv").read_bytes() == b"x,y\n1,2\n3,4\n"
    assert (copy / "a.csv").read_bytes() == b"x,y\n1,2\n"  # still in use by the first one


def test_a_folder_of_parquet_files_is_read_where_it_lies(s3, url, tmp_path):
    location, rows = Location(url), np.arange(600)
    for part in range(2):
        table = pa.table({"x": rows[part::2].astype(np.float32), "y": rows[part::2].astype(np.int64)})
        pq.write_table(table, tmp_path / f"{part}.parquet", row_group_size=50)
        location.upload(tmp_path / f"{part}.parquet", f"{part}.parquet")
    local, remote = (ParquetFolder(place, 32, seed=3) for place in (tmp_path, url))
    assert (remote.rows, remote.names) == (local.rows, local.names)
    s3.die_at("GET", "1.parquet", "before")  # read again when it is back
    numbers = list(range(len(local._groups)))

    def restart():
        while not s3.died:
            time.sleep(0.05)
        s3.start()

    thread = threading.Thread(target=restart)
    thread.start()
    for ours, theirs in zip(local.read(numbers), remote.read(numbers), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    thread.join()
    with pytest.raises(ConfigurationError, match=r"s3://.*0\.parquet has no column 'z'"):
        ParquetFolder(url, 32, ["z"])
    with pytest.raises(DataError, match=r"holds no files named \*\.parquet"):
        ParquetFolder(f"{url}/none", 32)


def test_objects_that_grew_after_they_were_left_are_told_of_and_counted(s3, url, caplog):
    location = Location(url)
    for number in range(3):
        location.write(f"{number}.jsonl", lines(8 * number, 8 * number + 8))
    stream = FileStream(url, make_schema(), poll_interval=0.01)
    assert users(read_all(stream, timeout=5.0, rows=18)) == [*range(18)]
    location.write("0.jsonl", lines(0, 8) + lines(100, 105))
    location.write("1.jsonl", lines(50, 57))  # another one: none of its rows has been read
    location.write("_DONE", b"")
    assert users(read_all(stream, timeout=5.0, rows=6)) == [*range(18, 24)]
    until = time.monotonic() + 20
    while not stream.exhausted and time.monotonic() < until:
        assert stream.poll(100, 0.1) is None
    assert stream.late_rows() == 12
    told = [message for message in caplog.messages if "that will not be read" in message]
    assert sorted(message.split()[1] for message in told) == ["0.jsonl", "1.jsonl"]
    stream.close()
