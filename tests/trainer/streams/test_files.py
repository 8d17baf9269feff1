import hashlib
import json
import os
import shutil

import numpy as np
import pytest

from trainer.errors import ConfigurationError, StreamError
from trainer.streams import FileStream, Schema, advance, write_checksum


def jsonl(rows):
    """One row per line, but the first two rows of every ten as a list on one line, and a blank line."""
    lines = []
    for first in range(0, len(rows), 10):
        lines += [json.dumps(rows[first : first + 2]), "", *(json.dumps(row) for row in rows[first + 2 : first + 10])]
    return ("\n".join(lines) + "\n").encode()


def csv(rows):
    lines = ["ts,user,ids,note,price,label"]
    lines += [f"{r['ts']},{r['user']},{' '.join(map(str, r['ids']))},7,{r['price']},{r['label']}" for r in rows]
    return ("\n".join(lines) + "\n").encode()


def table(rows):
    import pyarrow as pa

    return pa.Table.from_pylist(rows)


def write(path, rows):
    """Write a segment in the format its suffix names."""
    if path.suffix == ".jsonl":
        path.write_bytes(jsonl(rows))
    elif path.suffix == ".csv":
        path.write_bytes(csv(rows))
    else:
        pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(table(rows), path, row_group_size=4)


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "segments"
    path.mkdir()
    return path


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_every_format_gives_the_rows_and_resumes_behind_each(folder, schema, rows, same, read, resumes, suffix):
    for number, first in enumerate(range(0, 30, 10)):
        write(folder / f"part-{number}.{suffix}", rows(first, first + 10))
    stream = FileStream(folder, schema, end="at_last")
    same(read(stream), rows(0, 30))
    assert stream.exhausted
    resumes(lambda: FileStream(folder, schema, end="at_last"), list(range(30)), max_rows=7)


def test_small_blocks_give_the_same_rows_and_positions(folder, schema, rows, read, resumes, monkeypatch):
    write(folder / "a.jsonl", rows(0, 40))
    whole = FileStream(folder, schema, end="at_last")
    at = advance({}, whole.poll(25, 0))
    monkeypatch.setattr("trainer.streams.formats.segments.BLOCK_BYTES", 200)
    resumed = FileStream(folder, schema, end="at_last")
    resumed.seek(at)
    assert read(resumed).columns["user"].tolist() == list(range(25, 40))
    resumes(lambda: FileStream(folder, schema, end="at_last"), list(range(40)), max_rows=3)


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_each_training_declares_its_own_columns_unless_the_stream_was_given_some(folder, schema, rows, read, suffix):
    write(folder / f"a.{suffix}", rows(0, 30))
    first = Schema({"user": "int64"})
    stream, given = FileStream(folder, end="at_last"), FileStream(folder, first, end="at_last")
    for one, expected in ((stream, schema), (given, first)):
        one.declare(first)
        assert read(one, rows=4).columns["user"].tolist() == [0, 1, 2, 3]
        one.declare(schema)
        assert one.schema == expected
        rest = read(one)
        assert list(rest.columns) == list(expected.columns)
        assert rest.columns["user"].tolist() == list(range(4, 30))
    assert rest.columns["user"].dtype == np.int64


def test_a_growing_folder_is_followed(folder, schema, rows, read):
    stream = FileStream(folder, schema, poll_interval=0.01)
    assert stream.poll(10, 0.02) is None
    lines = [json.dumps(row).encode() + b"\n" for row in rows(0, 9)]
    with (folder / "a.jsonl").open("wb", buffering=0) as file:
        file.write(lines[0] + lines[1] + lines[2][:-9])
        assert read(stream).columns["user"].tolist() == [0, 1]
        assert stream.poll(10, 0.02) is None
        file.write(lines[2][-9:] + lines[3][:5])
        assert read(stream).columns["user"].tolist() == [2]
        at = stream.position()
        (folder / "b.jsonl.tmp").write_bytes(b"not a segment yet")
        assert stream.poll(10, 0) is None
        file.write(lines[3][5:] + lines[4][:-1])  # a finished segment's last line needs no newline
        (folder / "b.jsonl").write_bytes(lines[5])
        assert read(stream).columns["user"].tolist() == [3, 4, 5]
    assert not stream.exhausted
    (folder / "c.jsonl").write_bytes(lines[6] + lines[7][:-1])
    assert read(stream).columns["user"].tolist() == [6]
    (folder / "_DONE").touch()
    assert read(stream).columns["user"].tolist() == [7]
    assert stream.poll(10, 5.0) is None
    assert stream.exhausted
    resumed = FileStream(folder, schema)
    resumed.seek(at)
    assert read(resumed).columns["user"].tolist() == [3, 4, 5, 6, 7]


def test_bad_lines_go_to_the_dead_letter_file_with_their_place(folder, tmp_path, schema, rows, read, resumes):
    good = [json.dumps(row) for row in rows(0, 6)]
    lines = [good[0], "{broken", good[1], f"[{good[2]}, 5, {good[3]}]", good[4], '{"user": 1}', good[5], "[]"]
    (folder / "a.jsonl").write_text("\n".join(lines) + "\n")
    bad = tmp_path / "bad" / "letters.jsonl"

    def stream():
        return FileStream(folder, schema, end="at_last", dead_letter=bad, max_bad_share=1.0)

    assert read(stream()).columns["user"].tolist() == [0, 1, 2, 3, 4, 5]
    entries = [json.loads(line) for line in bad.read_text().splitlines()]
    assert [entry["row"] for entry in entries] == [1, 4, 7, 9]
    assert [entry["line"] for entry in entries] == [2, 4, 6, 8]
    assert {entry["offset"] for entry in entries} == {"a.jsonl@0"}
    assert entries[0]["raw"] == "{broken"
    resumes(stream, list(range(6)), max_rows=4)

    (folder / "a.jsonl").write_text("{broken\n" * 1000)
    with pytest.raises(StreamError, match=r"1000 of the last 1000 rows .*letters\.jsonl"):
        read(FileStream(folder, schema, dead_letter=bad))


def test_bad_csv_cells_cost_only_their_rows(folder, tmp_path, schema, rows, read):
    lines = csv(rows(0, 6)).decode().splitlines()
    lines[2] = lines[2].replace(",7,", ",7,x")  # the price is no number
    lines[3] = "1,2"
    lines[4] = lines[4].replace("3 4 5", "3 4")
    lines[5] = lines[5].replace(",7,", ',"a, b",')  # quoted: fine
    (folder / "a.csv").write_text("\r\n".join(lines) + "\r\n")
    bad = tmp_path / "bad.jsonl"
    batch = read(FileStream(folder, schema, end="at_last", dead_letter=bad, max_bad_share=1.0))
    assert batch.columns["user"].tolist() == [0, 4, 5]
    np.testing.assert_array_equal(batch.columns["ids"][1], [4, 5, 6])
    entries = [json.loads(line) for line in bad.read_text().splitlines()]
    assert [(entry["row"], entry["raw"].strip()) for entry in entries] == [(n, lines[n + 1]) for n in (1, 2, 3)]
    assert "'price'" in entries[0]["reason"]
    assert "6 fields" in entries[1]["reason"]


def test_consumed_segments_may_go_unread_ones_may_not(folder, schema, rows, read):
    for number in range(3):
        write(folder / f"{number}.jsonl", rows(number * 3, number * 3 + 3))
    stream = FileStream(folder, schema)
    position = advance(stream.position(), stream.poll(3, 0))
    behind = stream.poll(1, 0)
    # Once a later segment has been begun, the end of a segment is the start of the next.
    assert stream.resolve(position)["files"] == ["1.jsonl@0", 0]
    position = advance(position, behind)
    (folder / "0.jsonl").unlink()
    (folder / "1.jsonl").write_bytes(b"")
    assert read(stream).columns["user"].tolist() == [4, 5, 6, 7, 8]
    for number in (3, 4):
        write(folder / f"{number}.jsonl", rows(0, 3))
    stream.poll(2, 0)
    (folder / "4.jsonl").unlink()
    with pytest.raises(StreamError, match=r"4\.jsonl .* deleted before it was read"):
        read(stream)

    (folder / "1.jsonl").unlink()
    resumed = FileStream(folder, schema)
    with pytest.raises(StreamError, match=r"1\.jsonl .* is gone; .*on_missing='skip'"):
        resumed.seek(position)
    resumed = FileStream(folder, schema, on_missing="skip")
    resumed.seek(position)
    assert read(resumed, rows=3).columns["user"].tolist() == [6, 7, 8]


def test_a_rewritten_segment_is_an_error(folder, schema, rows, read):
    write(folder / "a.jsonl", rows(0, 20))
    stream = FileStream(folder, schema)
    assert read(stream).rows == 20
    (folder / "a.jsonl").write_bytes(b"")
    assert stream.poll(5, 0) is None
    write(folder / "a.jsonl", rows(20, 25))
    with pytest.raises(StreamError, match="Segments must only grow"):
        stream.poll(5, 0)


def test_what_is_no_segment_is_named_once_and_read_over(folder, schema, rows, read, caplog):
    write(folder / "a.jsonl", rows(0, 5))
    write(folder / "c.csv", rows(5, 9))
    for stray in ("README.txt", "a.jsonl.1", "b.jsonl~"):
        (folder / stray).write_text("not a row\n")
    (folder / "archive").mkdir()
    (folder / "b.jsonl").mkdir()
    (folder / "z.jsonl").symlink_to("nowhere")
    stream = FileStream(folder, schema, poll_interval=0.01)
    assert read(stream, timeout=0.05).columns["user"].tolist() == list(range(9))
    write(folder / "d.jsonl", rows(9, 12))
    (folder / "notes").touch()
    assert read(stream).columns["user"].tolist() == [9, 10, 11]
    logged = [record.getMessage() for record in caplog.records]
    assert len(logged) == 2
    named = "README.txt, a.jsonl.1, archive, b.jsonl, b.jsonl~ and 1 more;"
    assert logged[0].split("segments: ")[1].startswith(named)
    assert logged[1].split("segments: ")[1].startswith("notes;")


def test_a_format_and_a_pattern_say_what_else_is_read(folder, schema, rows, read):
    (folder / "0.log").write_bytes(jsonl(rows(0, 3)))
    (folder / "1").write_bytes(jsonl(rows(3, 6)))
    (folder / "2.jsonl").write_bytes(jsonl(rows(6, 9)))

    def read_with(**options):
        return read(FileStream(folder, schema, end="at_last", **options)).columns["user"].tolist()

    assert read_with() == [6, 7, 8]
    assert read_with(format="jsonl") == [3, 4, 5, 6, 7, 8]
    assert read_with(format="jsonl", pattern="*.log") == [0, 1, 2]
    assert read_with(format="jsonl", pattern="*") == list(range(9))
    pytest.importorskip("pyarrow")
    write(folder / "3.parquet", rows(9, 12))
    (folder / "3.parquet").rename(folder / "3")
    assert read_with(format="parquet", pattern="3") == [9, 10, 11]


def rewrite(path, rows, way):
    """Give a segment other rows: in place, by another file in its place, or emptied first."""
    new = path.with_name("_new" + path.suffix)
    write(new, rows)
    if way == "replaced":
        os.replace(new, path)
        return
    if way == "emptied first":
        path.write_bytes(b"")
    path.write_bytes(new.read_bytes())


@pytest.mark.parametrize("way", ["replaced", "in place", "emptied first"])
@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize("count", [4, 10, 25], ids=["shorter", "as long", "longer"])
def test_a_segment_with_other_rows_is_never_read_on_as_if_it_were_the_old_one(
    folder, schema, rows, read, suffix, way, count
):
    path = folder / f"a.{suffix}"
    write(path, rows(0, 10))
    write(folder / f"b.{suffix}", rows(90, 92))
    first = FileStream(folder, schema, end="at_last")
    position = advance(first.position(), read(first, rows=3))
    rewrite(path, rows(50, 50 + count), way)
    resumed = FileStream(folder, schema, end="at_last")
    with pytest.raises(StreamError, match=r"a\..* replaced or written again.*on_change='restart'"):
        resumed.seek(position)
    resumed = FileStream(folder, schema, end="at_last", on_change="restart")
    resumed.seek(position)
    assert read(resumed).columns["user"].tolist() == [*range(50, 50 + count), 90, 91]


@pytest.mark.parametrize("way", ["replaced", "in place", "emptied first"])
@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_other_rows_are_noticed_while_a_segment_is_followed(folder, schema, rows, read, suffix, way):
    path = folder / f"a.{suffix}"
    write(path, rows(0, 10))
    streams = [FileStream(folder, schema, on_change=on_change) for on_change in ("error", "restart")]
    for stream in streams:
        assert read(stream).rows == 10
    rewrite(path, rows(50, 62), way)
    write(folder / f"b.{suffix}", rows(90, 92))
    with pytest.raises(StreamError, match="written again"):
        read(streams[0])
    assert read(streams[1]).columns["user"].tolist() == [*range(50, 62), 90, 91]


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_a_copy_of_the_folder_is_read_on(folder, schema, rows, read, suffix, tmp_path):
    write(folder / f"a.{suffix}", rows(0, 10))
    first = FileStream(folder, schema)
    position = advance(first.position(), read(first, rows=3))
    shutil.copytree(folder, tmp_path / "copy")
    resumed = FileStream(tmp_path / "copy", schema)
    resumed.seek(position)
    assert read(resumed).columns["user"].tolist() == [3, 4, 5, 6, 7, 8, 9]


def test_positions_without_a_fingerprint_are_read_on(folder, schema, rows, read):
    write(folder / "a.jsonl", rows(0, 10))
    write(folder / "b.jsonl", rows(10, 12))
    for position, left in ((["a.jsonl@0", 4], 4), (["b.jsonl@0", 0], 10)):
        stream = FileStream(folder, schema, end="at_last")
        stream.seek({"files": position})
        assert read(stream).columns["user"].tolist() == list(range(left, 12))
    shorter = FileStream(folder, schema, end="at_last")
    shorter.seek({"files": ["a.jsonl@100000", 0]})
    with pytest.raises(StreamError, match="written again"):
        read(shorter)


def test_rows_emptied_away_unread_are_an_error(folder, schema, rows, read, monkeypatch):
    write(folder / "a.jsonl", rows(0, 40))
    monkeypatch.setattr("trainer.streams.formats.segments.BLOCK_BYTES", 200)
    stream = FileStream(folder, schema)
    stream.poll(1, 0)
    (folder / "a.jsonl").write_bytes(b"")
    with pytest.raises(StreamError, match="emptied before it was read"):
        read(stream)


def test_lag_counts_what_is_waiting(folder, schema, rows):
    write(folder / "a.csv", rows(100, 200))
    write(folder / "b.csv", rows(200, 300))
    stream = FileStream(folder, schema)
    assert stream.lag() is None
    stream.poll(60, 0)
    assert stream.lag() == pytest.approx(140, abs=5)


def test_a_folder_that_is_away_for_a_while_is_waited_for(folder, schema, rows, read, caplog):
    write(folder / "a.jsonl", rows(0, 3))
    stream = FileStream(folder, schema)
    assert read(stream).rows == 3
    folder.rename(folder.with_name("away"))
    assert stream.poll(3, 0.3) is None
    folder.with_name("away").rename(folder)
    write(folder / "b.jsonl", rows(3, 6))
    assert stream.poll(3, 5.0).columns["user"].tolist() == [3, 4, 5]
    assert [record.message.split(" ")[0] for record in caplog.records] == ["folder", "folder"]
    assert "is back" in caplog.records[1].message


def test_wrong_arguments_are_refused(folder, schema):
    with pytest.raises(ConfigurationError, match="did you mean 'at_last'"):
        FileStream(folder, schema, end="at_lst")
    with pytest.raises(ConfigurationError, match="exists"):
        FileStream(folder / "nowhere", schema)
    (folder / "a.xyz").touch()
    for path, pattern in ((folder / "a.xyz", None), (folder, "*.xyz")):
        with pytest.raises(ConfigurationError, match="format="):
            FileStream(path, schema, pattern=pattern)
    with pytest.raises(ConfigurationError, match="did you mean 'label'"):
        FileStream(folder, {"columns": {"user": "int32"}, "labels": "user"})
    with pytest.raises(StreamError, match="position of FileStream"):
        FileStream(folder, schema).seek({"files": ["x", 0]})
    for name in ("../a.jsonl", "a.xyz"):
        with pytest.raises(StreamError, match="not a segment"):
            FileStream(folder, schema).seek({"files": [f"{name}@0", 1]})


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_a_segment_is_compared_with_the_checksum_beside_it(folder, schema, rows, read, caplog, suffix):
    first, second = folder / f"0.{suffix}", folder / f"1.{suffix}"
    write(first, rows(0, 4))
    written = write_checksum(first)
    assert written.read_text() == f"{hashlib.sha256(first.read_bytes()).hexdigest()}  {first.name}\n"
    write(second, rows(4, 8))
    assert write_checksum(second, folder / "other").name == "other.sha256"
    assert read(FileStream(folder, schema, end="at_last")).rows == 8
    assert "ignored" not in caplog.text

    content = bytearray(first.read_bytes())
    place = content.rindex(b"1000") if suffix in ("jsonl", "csv") else content.index(np.float64(1003).tobytes())
    content[place + 3] ^= 1  # another value, which nothing else would tell
    first.write_bytes(content)
    stream = FileStream(folder, schema, end="at_last")
    for _ in range(2):
        with pytest.raises(StreamError, match=rf"0\.{suffix} is damaged: .* checksum in 0\.{suffix}\.sha256"):
            stream.poll(10, 0)
    written.write_text("no checksum\n")
    with pytest.raises(StreamError, match=r"holds no SHA-256: .*sha256sum 0"):
        read(FileStream(folder, schema, end="at_last"))
    written.unlink()
    assert read(FileStream(folder, schema, end="at_last")).rows == 8


def test_a_segment_that_cannot_be_read_for_too_long_is_an_error_that_names_it(tmp_path, schema, rows, read):
    path = tmp_path / "0.jsonl"
    path.symlink_to("/proc/self/mem")  # whose first page gives EIO
    stream = FileStream(tmp_path, schema, poll_interval=0.01, give_up_after=0.3)
    with pytest.raises(StreamError, match=rf"failing for .* give_up_after=0\.3 s; .* '{path}'"):
        read(stream, timeout=60.0)
    path.unlink()
    path.write_bytes(jsonl(rows(0, 10)))
    assert read(stream, timeout=1.0).columns["user"].tolist() == list(range(10))
    stream.close()
    with pytest.raises(ConfigurationError, match="poll_interval takes seconds >= 0; received None"):
        FileStream(tmp_path, schema, poll_interval=None)
    with pytest.raises(ConfigurationError, match="give_up_after takes a number > 0 or None"):
        FileStream(tmp_path, schema, give_up_after=0)


@pytest.mark.parametrize("laned", [False, True])
def test_a_folder_is_listed_when_it_changed_and_not_for_each_segment(folder, schema, rows, monkeypatch, laned):
    listings, scandir = [], os.scandir

    def count(path="."):
        if os.fspath(path) == str(folder):
            listings.append(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", count)
    for number in range(0, 80, 2):
        write(folder / f"{number:03d}.jsonl", rows(0, 2))
    (folder / "_DONE").touch()
    os.utime(folder, (1e9 + 0.5, 1e9 + 0.5))
    stream = FileStream(folder, schema)
    if laned:
        stream.assign_partitions(0, 1)
    taken = 0
    for _ in range(10):
        taken += stream.poll(2, 1.0).rows
    write(folder / "035.jsonl", rows(0, 2))  # before segments that were listed, after those begun: not late
    os.utime(folder, (1e9 + 1.5, 1e9 + 1.5))
    while not stream.exhausted:
        batch = stream.poll(2, 1.0)
        taken += 0 if batch is None else batch.rows
    assert taken == 82  # two each
    assert len(listings) < 20


@pytest.mark.parametrize("laned", [False, True], ids=["alone", "laned"])
@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_rows_that_come_after_their_segment_was_left_are_told_of_and_counted(
    folder, schema, rows, caplog, suffix, laned
):
    def names(number):
        return folder / f"{number:03d}.{suffix}"

    def open_stream():
        stream = FileStream(folder, schema, poll_interval=0.01)
        if laned:
            stream.assign_partitions(0, 1)
        return stream

    def read_to_the_end(stream):
        (folder / "_DONE").touch()
        count = 0
        while not stream.exhausted:
            batch = stream.poll(1000, 0.1)
            count += 0 if batch is None else batch.rows
        return count

    def warnings(name):
        return [message for message in caplog.messages if name.name in message]

    def grow(name, first, last):
        """Append where the format can grow; return how many rows are then unread."""
        if suffix in ("jsonl", "csv"):
            lines = [json.dumps(row).encode() for row in rows(first, last)]
            with name.open("ab") as file:
                file.write(
                    b"\n".join(lines) + b"\n" if suffix == "jsonl" else csv(rows(first, last)).split(b"\n", 1)[1]
                )
            return last - first
        write(name, rows(0, last))
        return last

    for number in range(4):
        write(names(number), rows(number * 8, number * 8 + 8))
    stream = open_stream()
    taken = sum(stream.poll(8, 1.0).rows for _ in range(3))
    late = grow(names(0), 100, 110)
    taken += read_to_the_end(stream)
    assert taken == 32
    assert stream.late_rows() == late
    assert len(warnings(names(0))) == 1
    saved = json.loads(json.dumps(stream.resolve(stream.position())))

    # while no process reads: one grows, one is replaced by fewer rows, one was read and may be emptied
    late = grow(names(0), 110, 115) + 3
    write(names(1), rows(50, 53))
    names(2).write_bytes(b"")
    resumed = open_stream()
    resumed.seek(saved)
    caplog.clear()
    assert read_to_the_end(resumed) == 0
    assert resumed.late_rows() == late
    assert len(warnings(names(0))) == len(warnings(names(1))) == 1
    assert not warnings(names(2))
