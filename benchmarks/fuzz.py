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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("GLOG_v", "4")
import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import lifetime  # noqa: E402
from benchmarks.damage import Make, WrongError, damage, damage_folder, forge, forge_folder  # noqa: E402
from benchmarks.fuzz_parsers import parsers  # noqa: E402
from benchmarks.fuzz_streams import rows, segments  # noqa: E402
from trainer.errors import TrainerError  # noqa: E402


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
    from trainer.experiment.configuration.yaml_tree import dump, parse_tree

    def case(choose: random.Random, scratch: Path) -> None:
        path = scratch / "experiment.yaml"
        text = CONFIG.encode()
        if choose.random() < 0.5:
            plain = parse_tree(CONFIG, "text").value
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


KINDS: dict[str, tuple[Callable[[Path], Make], float]] = {
    "configurations": (configurations, 0.2),
    "rows": (rows, 0.2),
    "segments": (segments, 0.2),
    "parsers": (parsers, 0.2),
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
