"""Streams damaged by `make fuzz`: rows between good ones, and folders of segments."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.damage import Make, WrongError, damage

SCHEMA = {"columns": {"user": "int32", "ids": {"dtype": "int64", "shape": [2]}, "price": "float32"}}


def row(number: int) -> dict[str, Any]:
    """Return a row that tells in every value which one it is."""
    return {"user": number, "ids": [number, number + 1], "price": number / 8}


def csv_line(number: int) -> str:
    """Return the same row as a line of CSV."""
    return f"{number},{number} {number + 1},{number / 8}"


def check_in_order(batches: Sequence[Any], expected: Sequence[int], *, alone: bool) -> None:
    """Check that the rows `expected` came once each, in order; `alone`: and nothing else came."""
    found = [
        int(user)
        for batch in batches
        for user, ids, price in zip(*(batch.columns[name] for name in ("user", "ids", "price")), strict=True)
        if ids.tolist() == [user, user + 1] and price == np.float32(user / 8)
    ]
    total = sum(batch.rows for batch in batches)
    if alone and (found != list(expected) or total != len(found)):
        raise WrongError(f"{total} rows came, {len(found)} of them whole: {found[:20]}, not {list(expected)[:20]}")
    at = iter(found)
    lost = [number for number in expected if number not in at]
    if lost:
        raise WrongError(f"good rows were lost, changed or moved: {lost[:10]}")


def rows(folder: Path) -> Make:
    """Rows of a stream: every good one arrives whole and in order, whatever stands between them."""
    import pyarrow as pa

    from trainer.streams import DeadLetter, FileStream, Span
    from trainer.streams.formats.decode import Decoder
    from trainer.streams.formats.schema import Schema

    def lines(choose: random.Random, scratch: Path) -> None:
        suffix = choose.choice(("jsonl", "csv"))
        text, good = [], []
        for number in range(choose.randrange(1, 60)):
            line = (json.dumps(row(number)) if suffix == "jsonl" else csv_line(number)).encode()
            if choose.random() < 0.3:
                line = damage(choose, line).replace(b"\n", b"").replace(b"\r", b"")
            else:
                good.append(number)
            text.append(line)
        head = b"user,ids,price\n" if suffix == "csv" else b""
        (scratch / f"a.{suffix}").write_bytes(head + b"\n".join(text) + b"\n")
        stream = FileStream(scratch, SCHEMA, end="at_last", dead_letter=DeadLetter(scratch / "_bad", 1.0))
        check_in_order(list(read(stream, choose.choice((3, 1000)))), good, alone=False)
        stream.close()

    def messages(choose: random.Random, scratch: Path) -> None:
        letters = DeadLetter(scratch / "_bad", 1.0)
        decoder = Decoder(Schema(**SCHEMA), letters, "fuzz")
        payloads, good = [], []
        for first in range(0, 5 * choose.randrange(1, 5), 5):
            numbers = list(range(first, first + 5))
            payload = encode(pa, numbers)
            if choose.random() < 0.5:
                payload = damage(choose, payload)
            else:
                good += numbers
            payloads.append(payload)
        decoded = decoder.decode(payloads)
        batch = decoder.batch(decoded, [Span("p", n, 0, 0, n + 1) for n in range(len(payloads))])
        check_in_order([batch] if batch is not None else [], good, alone=False)
        letters.close()

    return lambda choose, scratch: choose.choice((lines, lines, messages))(choose, scratch)


def encode(pa: Any, numbers: Sequence[int]) -> bytes:
    """Return rows as one Arrow message."""
    table = pa.Table.from_pylist([row(number) for number in numbers])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def read(stream: Any, most: int) -> Iterator[Any]:
    """Yield what a stream has now."""
    while (batch := stream.poll(most, 0.0)) is not None:
        yield batch


def segments(folder: Path) -> Make:
    """Folders of segments that grow, get strays, are resumed anywhere and are rewritten: each row comes once."""
    from trainer.streams import FileStream, advance

    def case(choose: random.Random, scratch: Path) -> None:
        place = scratch / "segments"
        place.mkdir()
        suffix = choose.choice(("jsonl", "csv"))
        written = segment = 0

        def write(mode: str) -> None:
            nonlocal written
            count = choose.randrange(1, 9)
            encoded = [
                json.dumps(row(n)) if suffix == "jsonl" else csv_line(n) for n in range(written, written + count)
            ]
            path = place / f"{segment:04d}.{suffix}"
            head = [] if suffix == "jsonl" or path.exists() else ["user,ids,price"]
            with path.open(mode) as file:
                file.write("\n".join([*head, *encoded]) + "\n")
            written += count

        write("a")
        stream = FileStream(place, SCHEMA, poll_interval=0.0)
        position, batches = stream.position(), []
        for _ in range(choose.randrange(2, 12)):
            event = choose.randrange(6)
            if event == 0:
                segment += 1
                write("a")
            elif event == 1:
                write("a")
            elif event == 2:
                stray = place / choose.choice(("README.txt", "a.jsonl.1", "0000.jsonl~", "b.csv.tmp", ".x", "z", "Ä ö"))
                stray.write_bytes(b"not a row\n")
            elif event == 3:
                (place / choose.choice(("archive", "0001.jsonl.d", f"000{segment}5.{suffix}"))).mkdir(exist_ok=True)
            elif event == 4:
                stored = json.loads(json.dumps(stream.resolve(position)))
                stream.close()
                stream = FileStream(place, SCHEMA, poll_interval=0.0)
                stream.seek(stored)
            batch = stream.poll(choose.choice((1, 2, 100)), 0.0)
            if batch is not None:
                position = advance(position, batch)
                batches.append(batch)
        if choose.random() < 0.4:
            batches += list(read(stream, 100))
            check_in_order(batches, range(written), alone=True)
            path = place / f"{segment:04d}.{suffix}"
            path.write_bytes(path.read_bytes().translate(bytes.maketrans(b"0123456789", b"9876543210")))
            segment += 1
            write("a")
            rewritten = list(read(stream, 100))
            raise WrongError(f"a rewritten segment went unnoticed; {sum(batch.rows for batch in rewritten)} rows came")
        batches += list(read(stream, 100))
        check_in_order(batches, range(written), alone=True)
        stream.close()

    return case
