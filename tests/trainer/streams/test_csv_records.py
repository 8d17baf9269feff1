"""CSV records whose quoted fields hold line ends are read whole, wherever blocks end; broken quotes cost their line."""

import csv
import random

import pandas as pd
import pyarrow as pa
import pytest

from trainer.errors import DataError, StreamError
from trainer.experiment.commands.table_summary import summarize
from trainer.features import Features, Numeric
from trainer.streams import FileStream, Schema
from trainer.streams.formats import segments

SCHEMA = {"columns": {"n": "int64", "note": "str", "x": "float64"}}
NOTES = ["fine", "dear shop,\nsecret word good", 'say "hi"\r\nand, bye\n', "\n\n", "1,2,3\n4,a,6\n7,b,8\n", 'a"b', ""]


def read(path, **options):
    with_notes, bad = [], []
    stream = FileStream(path, SCHEMA, end="at_last", max_bad_share=1.0, **options)
    while not stream.exhausted:
        batch = stream.poll(100, 1.0)
        if batch is not None:
            with_notes += zip(batch.columns["n"].tolist(), batch.columns["note"].tolist(), strict=True)
    bad = dict(stream.dead_letter.reasons)
    stream.close()
    return with_notes, bad


@pytest.mark.parametrize("block", [16, 64, 1000, 1 << 20])
@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_records_are_read_whole(tmp_path, monkeypatch, block, suffix):
    monkeypatch.setattr(segments, "BLOCK_BYTES", block)
    draw = random.Random(5)
    expected = [(n, draw.choice(NOTES)) for n in range(700)]
    path = tmp_path / f"rows.{suffix}"
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter="," if suffix == "csv" else "\t")
        writer.writerow(["n", "note", "x"])
        writer.writerows([n, note, 0.5] for n, note in expected)
    assert read(path) == (expected, {})
    path.write_bytes(path.read_bytes() + b'700,"ends\nwithout",0.5'.replace(b",", b"," if suffix == "csv" else b"\t"))
    assert read(path) == ([*expected, (700, "ends\nwithout")], {})


def test_a_resume_in_the_middle_reads_the_rest(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("n,note,x\n" + "".join(f'{n},"a\n{n},b",1\n' for n in range(50)))
    rows, position = [], None
    for _ in range(50):
        stream = FileStream(path, SCHEMA, end="at_last")
        if position is not None:
            stream.seek(position)
        batch = stream.poll(1, 1.0)
        rows += zip(batch.columns["n"].tolist(), batch.columns["note"].tolist(), strict=True)
        position = stream.position()
        stream.close()
    assert rows == [(n, f"a\n{n},b") for n in range(50)]


@pytest.mark.parametrize("block", [16, 1 << 20])
def test_a_quote_that_is_not_closed_costs_its_line_by_name(tmp_path, monkeypatch, block):
    monkeypatch.setattr(segments, "BLOCK_BYTES", block)
    path = tmp_path / "rows.csv"
    path.write_text('n,note,x\n1,5" pipe,2\n2,"open,3\n3,c,4\n4,d,5\n')
    rows, bad = read(path)
    assert rows == [(1, '5" pipe'), (3, "c"), (4, "d")]
    [(reason, times)] = bad.items()
    assert "a quote is not closed" in reason
    assert times == 1


@pytest.mark.parametrize("block", [16, 1 << 20])
def test_two_stray_quotes_cost_no_row_between_them(tmp_path, monkeypatch, block):
    monkeypatch.setattr(segments, "BLOCK_BYTES", block)
    path = tmp_path / "rows.csv"
    good = [(n, "c") for n in range(2, 40)]
    path.write_text('n,note,x\n1,"open,3\n' + "".join(f"{n},c,4\n" for n, _ in good) + '40,"open too,5\n41,d,6\n')
    rows, bad = read(path)
    assert rows == [*good, (41, "d")]
    assert sum(bad.values()) == 2


def test_no_number_holds_line_ends(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text('n,note,x\n"1,a,2\n2,b,3\n3,c,4\n4",d,5\n5,e,6\n')
    rows, bad = read(path)
    assert rows == [(2, "b"), (3, "c"), (5, "e")]
    assert sum(bad.values()) == 2


def test_a_quote_left_open_in_a_growing_file_does_not_stop_the_stream(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text('n,note,x\n1,"open,3\n' + "".join(f"{n},c,4\n" for n in range(2, 1200)))
    stream = FileStream(tmp_path, SCHEMA, max_bad_share=1.0)
    assert stream.poll(2000, 5.0).columns["n"].tolist() == list(range(2, 1200))
    stream.close()


def test_a_record_that_is_still_being_written_waits(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text('n,note,x\n1,a,2\n2,"one\n')
    stream = FileStream(tmp_path, SCHEMA)
    assert stream.poll(10, 0.5).columns["n"].tolist() == [1]
    assert stream.poll(10, 0.3) is None
    with path.open("a") as file:
        file.write('two",3\n')
    assert stream.poll(10, 5.0).columns["note"].tolist() == ["one\ntwo"]
    stream.close()


def test_a_column_that_is_there_twice_is_refused_by_name(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("n,note,x,n\n1,a,2,3\n")
    with pytest.raises(StreamError, match="names column 'n' 2 times"):
        read(path)
    with pytest.raises(DataError, match="column 'n' occurs 2 times"):
        summarize(path)
    features = Features([Numeric("n"), Numeric("x")])
    arrays = [pa.array([1]), pa.array([2]), pa.array([3])]
    for twice in (
        pa.Table.from_arrays(arrays, ["n", "x", "n"]),
        pa.RecordBatch.from_arrays(arrays, ["n", "x", "n"]),
        pd.DataFrame([[1, 2, 3]], columns=["n", "x", "n"]),
    ):
        with pytest.raises(DataError, match="2 columns named 'n'"):
            features.transform(twice)
        features.transform(twice[["x"]] if isinstance(twice, pd.DataFrame) else twice.select(["x"]))


@pytest.mark.parametrize("names", [None, ["user", "label"]])
def test_a_file_whose_lines_end_in_carriage_returns_alone_is_named_as_such(tmp_path, names):
    rows = ["1,0", "2,1"] if names else ["user,label", "1,0", "2,1"]
    (tmp_path / "a.csv").write_bytes("\r".join([*rows, ""]).encode())
    stream = FileStream(
        tmp_path, Schema({"user": "int64", "label": "float32"}), end="at_last", names=names, max_bad_share=0.0
    )
    with pytest.raises(StreamError, match="carriage returns without line feeds"):
        stream.poll(10, 1.0)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_names_hold_line_ends(tmp_path, end, encoding):
    path = tmp_path / "rows.csv"
    lines = ['n,"note', '(of the ""shop"")",x', *(f"{n},a,{n}.5" for n in range(40))]
    path.write_bytes((end.join(lines) + end).encode(encoding))
    name = 'note\n(of the "shop")'
    assert summarize(path).names == ["n", name, "x"]
    options = {"encoding": "utf-16"} if encoding == "utf-16" else {}
    stream = FileStream(path, Schema({"n": "int64", name: "str", "x": "float64"}, csv=options), end="at_last")
    batch = stream.poll(100, 1.0)
    assert (batch.rows, batch.columns[name].tolist()[:2], batch.columns["x"][39]) == (40, ["a", "a"], 39.5)
    stream.close()


@pytest.mark.parametrize("row", ["1,2,3", '1,"b",3'])
def test_a_stray_quote_in_a_header_takes_no_rows_for_names(tmp_path, row):
    path = tmp_path / "rows.csv"
    path.write_text(f'"n,note,x\n{row}\n')
    with pytest.raises(StreamError, match="its first line names none of the declared columns"):
        read(path)
    path.write_text(f'n,note,5" x\n{row}\n')
    assert summarize(path).names == ["n", "note", '5" x']


def test_a_header_that_is_still_being_written_waits(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text('n,x,"note\n')
    stream = FileStream(tmp_path, {"columns": {"n": "int64", "x": "float64"}})
    assert stream.poll(10, 0.3) is None
    with path.open("a") as file:
        file.write('of the shop"\n1,2,a\n')
    assert stream.poll(10, 5.0).columns["x"].tolist() == [2.0]
    stream.close()


def test_a_file_without_a_good_row_says_why(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("# made by a tool\nn,note\n1,a\n")
    with pytest.raises(DataError, match=r"has no good rows: 2 of 2 rows set aside: takes a line of 1 fields"):
        summarize(path)
