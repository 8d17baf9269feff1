"""Damage what the trainer reads, in thousands of ways, and see that nothing is silently wrong.

    python benchmarks/fuzz.py --seconds 600 --seed 7
    python benchmarks/fuzz.py --kind snapshots --case 1234 --seed 7     one case again

Snapshots and published models are cut, flipped, mixed up and forged with right checksums; YAML files are mutated; rows
of streams are damaged between good ones; folders of segments get strays, are grown, resumed and rewritten. A case fails
on a wrong value, an exception that is not documented (not one of `trainer.errors`), a traceback for a user's mistake, a
good row that is lost, changed or repeated, a trainer that a failed load has changed, or a file, thread or process that
is left behind. Every case follows from seed, kind and number alone. Ends with exit code 1 when one failed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import os
import random
import shutil
import sys
import threading
import time
import traceback
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("GLOG_v", "4")
import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import lifetime  # noqa: E402
from trainer.errors import TrainerError  # noqa: E402

Make = Callable[[random.Random, Path], None]


class WrongError(AssertionError):
    """What a case found."""


@dataclass
class Kind:
    """What came of one kind of case.

    Attributes:
        name: of the kind.
        cases: cases tried.
        refused: how many ended in a documented error; in the others everything was right.
        failures: (number of the case, what went wrong).
    """

    name: str
    cases: int = 0
    refused: int = 0
    failures: list[tuple[int, str]] = field(default_factory=list)


# -- damage ------------------------------------------------------------------------------------------------------------


def damage(choose: random.Random, content: bytes) -> bytes:
    """Return `content` changed in one to three places."""
    for _ in range(choose.choice((1, 1, 1, 2, 3))):
        kind = choose.randrange(6)
        place = choose.randrange(len(content) + 1)
        if kind == 0 and content:
            place = place % len(content)
            content = content[:place] + bytes([content[place] ^ (1 << choose.randrange(8))]) + content[place + 1 :]
        elif kind == 1:
            content = content[:place]
        elif kind == 2:
            content = content[:place] + choose.randbytes(choose.randrange(1, 9)) + content[place:]
        elif kind == 3:
            content = content[:place] + content[place + choose.randrange(1, 20) :]
        elif kind == 4:
            content = content[:place] + content[choose.randrange(len(content) + 1) :][:30] + content[place:]
        else:
            words = (b"-1", b"1e999", b"null", b"NaN", b"true", b'"', b"{", b"[", b"../../x", b"\0", b"9" * 30, b"")
            content = content[:place] + choose.choice(words) + content[place + choose.randrange(4) :]
    return content


def damage_folder(choose: random.Random, folder: Path) -> None:
    """Damage one file below `folder`, or what there is of files."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    victim = choose.choice(files)
    kind = choose.randrange(8)
    if kind < 5:
        victim.write_bytes(damage(choose, victim.read_bytes()))
    elif kind == 5:
        victim.unlink()
        if choose.random() < 0.3:
            victim.mkdir()
    elif kind == 6:
        victim.write_bytes(choose.choice(files).read_bytes())
    else:
        victim.write_bytes(b"")


def forge(choose: random.Random, value: Any) -> Any:
    """Return plain JSON with one value in it replaced, dropped or renamed."""
    here, key = value, None
    while isinstance(here, dict | list) and here:
        parent, key = here, choose.choice(sorted(here) if isinstance(here, dict) else range(len(here)))
        here = parent[key]
        if choose.random() < 0.3:
            break
    if key is None:
        return value
    action = choose.randrange(4)
    if action == 0 and isinstance(parent, dict):
        del parent[key]
    elif action == 1 and isinstance(parent, dict):
        parent[choose.choice(("x", "", "$map", "../x"))] = parent.pop(key)
    else:
        parent[key] = choose.choice((None, True, -1, 2**70, 1.5, "x", "", [], {}, [1, "a"], {"$tuple": [1]}, "nan", 0))
    return value


# -- kinds -------------------------------------------------------------------------------------------------------------


def snapshots(folder: Path, spoil: Callable[[random.Random, Path], None] | None = None) -> Make:
    """Snapshots of a small training, loaded into a trainer whose weights must change wholly or not at all."""
    spoil = spoil or damage_folder
    from mindspore import nn

    from trainer import ModelCheckpoint, Trainer

    rng = np.random.default_rng(0)
    data = {"x": rng.normal(size=(64, 3)).astype(np.float32), "y": rng.integers(0, 2, (64, 1)).astype(np.float32)}

    def made() -> Any:
        network = nn.SequentialCell(nn.Dense(3, 2), nn.BatchNorm1d(2), nn.Dense(2, 1))
        return Trainer(network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params(), 0.01), seed=1)

    sound = made()
    sound.fit(data, 2, callbacks=ModelCheckpoint(folder / "sound", every=4), batch_size=8, sink_size=1)
    (newest,) = (path for path in [sound.state.snapshot] if path is not None)
    trainer = made()
    trainer.fit(data, callbacks=[], batch_size=8, sink_size=1, max_steps=1)
    before = values(trainer)
    trainer.load(newest)
    expected = values(trainer)

    def case(choose: random.Random, scratch: Path) -> None:
        restore(trainer, before)
        copy = scratch / newest.name
        shutil.copytree(newest, copy)
        spoil(choose, copy)
        names = sorted(path.name for path in copy.rglob("*"))
        try:
            trainer.load(copy)
        except TrainerError:
            if not same(values(trainer), before):
                raise WrongError("a load that failed has changed the trainer") from None
            raise
        finally:
            if sorted(path.name for path in copy.rglob("*")) != names:
                raise WrongError("loading has changed the files of the snapshot")
        if spoil is damage_folder and not same(values(trainer), expected):
            raise WrongError("a damaged snapshot was loaded with other values")

    return case


def forge_folder(choose: random.Random, folder: Path) -> None:
    """Change the content of one JSON file below `folder`, and give it and its manifest the right checksums."""
    from trainer.checkpoint import manifest

    path = choose.choice(sorted(folder.rglob("*.json")))
    document = json.loads(path.read_text())
    sealed = [key for key in document if key != "crc32"] if "crc32" in document else []
    if len(sealed) == 1:  # a document with a checksum of itself
        path.write_bytes(manifest.seal(sealed[0], forge(choose, document[sealed[0]])))
        return
    path.write_text(json.dumps(forge(choose, document)))
    place, content = path.with_name(manifest.MANIFEST), path.read_bytes()
    if place.is_file():
        document = json.loads(place.read_text())
        (kind,) = (key for key in document if key != "crc32")
        sums = {"size": len(content), "crc32": f"{zlib.crc32(content):08x}"}
        document[kind]["files"][path.name] = {**document[kind]["files"][path.name], **sums}
        place.write_bytes(manifest.seal(kind, document[kind]))


def values(trainer: Any) -> dict[str, bytes]:
    """Return every parameter of network and optimizer, and the counters."""
    cells = (trainer.network, trainer.optimizer)
    found = {f"{n}.{p.name}": p.asnumpy().tobytes() for n, cell in enumerate(cells) for p in cell.get_parameters()}
    return {**found, "progress": json.dumps(trainer.state.progress.state_dict()).encode()}


def restore(trainer: Any, to: dict[str, bytes]) -> None:
    """Put back what `values` has returned."""
    for n, cell in enumerate((trainer.network, trainer.optimizer)):
        for parameter in cell.get_parameters():
            held = parameter.asnumpy()  # on CPU a view
            held[...] = np.frombuffer(to[f"{n}.{parameter.name}"], held.dtype).reshape(held.shape)
    trainer.state.progress.load_state_dict(json.loads(to["progress"]))


def same(one: dict[str, bytes], other: dict[str, bytes]) -> bool:
    """Return whether two results of `values` are equal bit by bit."""
    return one == other


def published(folder: Path, spoil: Callable[[random.Random, Path], None] | None = None) -> Make:
    """Published models: what is served predicts as published, or not at all."""
    spoil = spoil or damage_folder
    from mindspore import nn

    from benchmarks.fuzz_net import Net
    from trainer import Trainer
    from trainer.serving.publisher import Publish
    from trainer.serving.served_model import ServedModel

    rng = np.random.default_rng(0)
    batches = [
        {"ids": rng.integers(0, 50, (16, 2)), "label": rng.integers(0, 2, 16).astype(np.float32)} for _ in range(6)
    ]
    network = Net()
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params(), 0.05), seed=1)
    root = folder / "published"
    publish = Publish(root, every=1e-6, compact=3, batch=16)

    seen: set[bytes] = set()
    asked = np.arange(32).reshape(16, 2)
    trainer.online_train(batches, callbacks=publish)
    with ServedModel(root, follow=False) as model:
        seen.add(np.asarray(model.predict(asked)).tobytes())

    def case(choose: random.Random, scratch: Path) -> None:
        copy = scratch / "published"
        shutil.copytree(root, copy)
        spoil(choose, copy)
        with ServedModel(copy, follow=False) as model:
            if np.asarray(model.predict(asked)).tobytes() not in seen and spoil is damage_folder:
                raise WrongError("a damaged model predicts something else")

    return case


CONFIG = """\
experiment: tiny
seed: 1
network: {class_path: mindspore.nn.Dense, init_args: {in_channels: 4, out_channels: 1}}
loss: mindspore.nn.BCEWithLogitsLoss
optimizer:
  class_path: mindspore.nn.Adam
  init_args: {learning_rate: 1e-3, beta1: 0.9}
metrics: [auc, mindspore.train.MAE]
trainer: {amp_level: O0, clip_norm: 1.0}
data:
  train: {class_path: mindspore.dataset.NumpySlicesDataset, init_args: {data: [1, 2]}}
  stream: {class_path: trainer.streams.FileStream, init_args: {path: "${env:FUZZ}", schema: {columns: {a: int32}}}}
fit: {epochs: 3}
online: {max_steps: 5, batch_size: 4}
callbacks:
  - class_path: mindspore.train.LossMonitor
  - {class_path: callbacks.ModelCheckpoint, init_args: {every: 5}}
"""


def configurations(folder: Path) -> Make:
    """Experiment files: `trainer check` says what is wrong, or nothing, and shows no traceback."""
    from trainer.experiment.cli import main
    from trainer.experiment.tree import dump, parse_tree

    def case(choose: random.Random, scratch: Path) -> None:
        path = scratch / "experiment.yaml"
        text = CONFIG.encode()
        if choose.random() < 0.5:
            plain = parse_tree(CONFIG, "text").plain()
            for _ in range(choose.randrange(1, 4)):
                forge(choose, plain)
            text = dump(plain).encode("utf-8", "surrogatepass")
        path.write_bytes(text if choose.random() < 0.4 and text != CONFIG.encode() else damage(choose, text))
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = main(["check", str(path)])
        if code not in (0, 2) or "Traceback" in said.getvalue() or not said.getvalue():
            raise WrongError(f"exit code {code}: {said.getvalue()[-500:]}")
        if sorted(scratch.iterdir()) != [path]:
            raise WrongError(f"check has left {sorted(p.name for p in scratch.iterdir())}")
        if code:
            raise TrainerError(said.getvalue())

    return case


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

    from trainer.streams import DeadLetter, FileStream
    from trainer.streams.decode import Decoder
    from trainer.streams.schema import Schema

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
        batch = decoder.batch(decoded, [("p", n, n + 1) for n in range(len(payloads))])
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
            path.write_bytes(path.read_bytes().replace(b"0", b"7").replace(b"1", b"8").replace(b"2", b"9"))
            segment += 1
            write("a")
            rewritten = list(read(stream, 100))
            raise WrongError(f"a rewritten segment went unnoticed; {sum(batch.rows for batch in rewritten)} rows came")
        batches += list(read(stream, 100))
        check_in_order(batches, range(written), alone=True)
        stream.close()

    return case


KINDS: dict[str, tuple[Callable[[Path], Make], float]] = {
    "configurations": (configurations, 0.2),
    "rows": (rows, 0.2),
    "segments": (segments, 0.2),
    "snapshots": (snapshots, 0.2),
    "forged_snapshots": (lambda folder: snapshots(folder, forge_folder), 0.2),
    "published": (published, 0.2),
    "forged_models": (lambda folder: published(folder, forge_folder), 0.2),
}


# -- running -----------------------------------------------------------------------------------------------------------


def run(name: str, seconds: float, seed: int, folder: Path, only: int | None = None) -> Kind:
    """Try cases of one kind for a while, or one of them."""
    kind = Kind(name)
    folder.mkdir(parents=True)
    case = KINDS[name][0](folder)
    before = threading.active_count()
    end = float("inf")
    number = only or 0
    while time.monotonic() < end:
        scratch = folder / "case"
        scratch.mkdir()
        kind.cases += 1
        try:
            case(random.Random(f"{seed} {name} {number}"), scratch)
        except TrainerError:
            kind.refused += 1
        except WrongError as error:
            kind.failures.append((number, str(error)))
        except BaseException as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(where.filename).name}:{where.lineno}"
            kind.failures.append((number, f"{type(error).__name__} at {place}: {str(error)[:300]}"))
            if not isinstance(error, Exception):
                raise
        shutil.rmtree(scratch)
        number += 1
        if end == float("inf"):  # the first one imports and compiles
            end = time.monotonic() + seconds
        if only is not None:
            break
    left = sorted(path.name for path in Path(os.environ.get("TMPDIR", folder)).glob("tmp*"))
    if left or threading.active_count() > before:
        kind.failures.append((number, f"left behind: files {left}, {threading.active_count() - before} threads"))
    return kind


def run_all(names: Sequence[str], seconds: float, seed: int, folder: Path, only: int | None = None) -> list[Kind]:
    """Try every kind for its share of `seconds`."""
    whole = sum(KINDS[name][1] for name in names)
    logging.disable(logging.ERROR)
    try:
        return [run(name, seconds * KINDS[name][1] / whole, seed, folder / name, only) for name in names]
    finally:
        logging.disable(logging.NOTSET)


def table(kinds: Sequence[Kind]) -> str:
    """Return the results as a Markdown table."""
    lines = ["| damaged | cases | refused by name | failures |", "| --- | --- | --- | --- |"]
    return "\n".join(lines + [f"| {k.name} | {k.cases:,} | {k.refused:,} | {len(k.failures)} |" for k in kinds])


def main(argv: Sequence[str] | None = None) -> int:
    """Run and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0, help="for all kinds together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--case", type=int, help="number of the one case to try")
    given = parser.parse_args(argv)
    with lifetime.guarded("fuzz-") as folder:
        kinds = run_all(given.kind, given.seconds, given.seed, folder / "work", given.case)
    for kind in kinds:
        for number, what in kind.failures[:20]:
            print(f"--kind {kind.name} --case {number} --seed {given.seed}: {what}")
    print(table(kinds))
    return 1 if any(kind.failures for kind in kinds) else 0


if __name__ == "__main__":
    sys.exit(main())
