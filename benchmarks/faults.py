"""Let every call to the outside fail, one after the other, and show that no row is lost, repeated or dropped.

    python benchmarks/faults.py --source jsonl redis fit --every 1 --pairs 50

Each case is a small training with snapshots, dead letters, a health file and events for TensorBoard (and, with
`--publish`, published versions) of which one call fails: the first, then the second, until a run has no more such call.
With `--pairs`, random cases let another call fail afterwards, while the first failure is dealt with. Then the fault is
gone, and either the same stream is trained on, or a new one from the newest snapshot. The diary of trained rows
(`benchmarks.ledger`) has to hold every row once, or once an epoch.

A case is *named* when an exception or a warning told of it, and *silent* when rows, dead letters, snapshots or other
outputs are not those of an undisturbed run and nothing did. Ends with exit code 1 when a row was lost or repeated, a
training could not go on afterwards, or a case was silent.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import logging
import random
import shutil
import struct
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mindspore import nn

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.fault_brokers import REQUESTS  # noqa: E402
from benchmarks.fault_calls import ERRORS, WRITING, Faults, Plan  # noqa: E402
from benchmarks.fault_sources import BAD, BATCH, EPOCHS, FINITE, NAMES, READ_ONLY, ROWS, STEPS, Source, bad_rows, opened  # noqa: E402
from benchmarks.ledger import Ledger, surviving  # noqa: E402
from callbacks import HealthFile, ModelCheckpoint, TensorBoard  # noqa: E402
from trainer import Trainer, checkpoint  # noqa: E402
from trainer.errors import TrainerError  # noqa: E402
from trainer.streams import advance  # noqa: E402

Tallies = dict[tuple[str, str], "Tally"]
PATIENCE = 60  # seconds for a case
IDLE = 5.0


class Net(nn.Cell):
    """A network that takes the number of the row and does nothing with it."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(2, 1)

    def construct(self, row, x):
        """Return one value a row."""
        return self.dense(x)[:, 0]


@dataclass
class Outcome:
    """What came of one case."""

    plan: Plan
    named: str = ""
    stuck: str = ""
    lost: int = 0
    repeated: int = 0
    altered: str = ""

    def count(self, rows: Counter[int], times: int) -> None:
        """Note what is missing where every row should have come `times` times."""
        self.lost = sum(max(0, times - rows[number]) for number in range(ROWS))
        self.repeated = sum(max(0, count - times) for count in rows.values())

    @property
    def silent(self) -> bool:
        """Whether something is different and nothing told of it."""
        return not self.named and bool(self.altered or self.lost or self.repeated)


@dataclass
class Tally:
    """Outcomes of one kind of call and error."""

    cases: int = 0
    named: int = 0
    lost: int = 0
    repeated: int = 0
    silent: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, source: str, outcome: Outcome) -> None:
        """Count a case."""
        self.cases += 1
        self.named += bool(outcome.named)
        self.lost += outcome.lost
        self.repeated += outcome.repeated
        self.silent += outcome.silent
        if outcome.lost or outcome.repeated or outcome.silent or outcome.stuck:
            self.failures.append(f"{source}: {outcome}")

    def join(self, other: Tally) -> None:
        """Add the cases of another source."""
        for name in ("cases", "named", "lost", "repeated", "silent", "failures"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Warnings(logging.Handler):
    """Keeps what was logged as a warning or worse."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record."""
        self.texts.append(record.getMessage())

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Take what is logged, and keep it off the terminal."""
        loggers = [logging.getLogger(name) for name in ("trainer", "callbacks")]
        for each in loggers:
            each.addHandler(self)
            each.propagate = False
        try:
            yield
        finally:
            for each in loggers:
                each.removeHandler(self)
                each.propagate = True


class Bench:
    """Runs cases with one trainer, so that its program is compiled once.

    Args:
        folder: for everything written.
        publish: whether versions are published as well.
    """

    def __init__(self, folder: Path, publish: bool = False) -> None:
        self.folder, self.case = folder, folder / "case"
        self.first_step = 0
        self.publish = publish
        network = Net()
        self.trainer = Trainer(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.01))
        self.faults = Faults(self.case)
        self.log = Warnings()

    def warm_up(self, source: Source) -> None:
        """Compile, and save the state that every case begins with."""
        self._fill(source)
        self._train(source, self._open(source), None)
        self.start = self.trainer.save(self.folder / "start")
        self.first_step = self.trainer.state.progress.global_step

    def _fill(self, source: Source) -> None:
        for folder in (self.case, self.folder / "ledger"):
            shutil.rmtree(folder, ignore_errors=True)
        (self.case / "data").mkdir(parents=True)
        source.fill(self.case / "data")

    def run(self, source: Source, plan: Plan | None, same_stream: bool) -> tuple[Outcome, dict[str, Any]]:
        """Train with the calls of `plan` failing, then without; return what came of it, and of the other outputs."""
        self._fill(source)
        self.trainer.load(self.start)
        self.log.texts.clear()
        stream, error = None, None
        with self.faults.arm(plan):
            try:
                stream = self._open(source)
                self._train(source, stream, None)
            except Exception as caught:
                error = caught
        outcome = Outcome(plan, "; ".join([*self.log.texts, *([] if error is None else [repr(error)])]))
        outputs = None if error is not None else self._outputs(source)
        try:
            self._recover(source, stream if same_stream and not source.finite else None, error)
        except Exception as caught:
            outcome.stuck = repr(caught)
        with contextlib.suppress(Exception):  # what a close had to tell, it has told under the plan
            stream.close()
        outcome.count(Counter(surviving(self.folder / "ledger").rows.tolist()), EPOCHS if source.finite else 1)
        return outcome, outputs or self._outputs(source)

    def _open(self, source: Source) -> Any:
        return source.open(self.case / "data", self.case / "bad.jsonl")

    def _train(self, source: Source, data: Any, resume: Path | None) -> None:
        callbacks = [
            Ledger(self.folder / "ledger", ("row",)),
            ModelCheckpoint(self.case / "snapshots", every=2, background=True),
            HealthFile(self.case / "health.json", every=2),
            TensorBoard(self.case / "events", every=2),
        ]
        if self.publish:
            from trainer.serving import Publish

            callbacks.append(Publish(self.case / "published", every=2, batch=BATCH))
        if source.finite:
            options = {"batch_size": BATCH, "shuffle": False} if isinstance(data, dict) else {}
            self.trainer.fit(data, EPOCHS, callbacks=callbacks, resume=resume, **options)
            return
        left = STEPS if resume is not None else self.first_step + STEPS - self.trainer.state.progress.global_step
        options = {"batch_size": BATCH, "sink_size": 1, "idle_timeout": IDLE, "max_steps": left}
        if left:
            self.trainer.online_train(data, callbacks, resume=resume, **options)
        if resume is None:
            data.close()

    def _recover(self, source: Source, stream: Any, error: BaseException | None) -> None:
        """Go on with the same stream, or with a new one from the newest snapshot."""
        if stream is not None and error is not None:
            self._train(source, stream, None)
            return
        with contextlib.closing(self._open(source)) if not source.finite else contextlib.nullcontext() as new:
            data = self._open(source) if source.finite else new
            sound = [entry for entry in checkpoint.available(self.case / "snapshots") if entry.problem is None]
            if sound:
                self._train(source, data, self.case / "snapshots")
            else:
                self.trainer.load(self.start)
                self._train(source, data, None)

    def _outputs(self, source: Source) -> dict[str, Any]:
        """Return what was written besides the rows trained."""
        entries = checkpoint.available(self.case / "snapshots")
        health = self.case / "health.json"
        outputs = {
            "snapshot": max((entry.step for entry in entries), default=None),
            "bad rows": bad_rows(self.case / "bad.jsonl"),
            "health": json.loads(health.read_text())["last_step"] if health.exists() else None,
            "events": bool(sum(map(_events, (self.case / "events").glob("*")))),
        }
        if self.publish:
            from trainer.serving.published import Current

            outputs["published"] = Current.read(self.case / "published").step
        return outputs


def _events(path: Path) -> int:
    """Return the number of whole records in a file of TensorBoard's."""
    content, at, count = path.read_bytes(), 0, 0
    while at + 12 <= len(content):
        at += 16 + struct.unpack("<Q", content[at : at + 8])[0]
        count += at <= len(content)
    return count


class Reading:
    """Runs cases that read a stream and train on nothing, which takes milliseconds.

    Args:
        folder: for everything written.
    """

    def __init__(self, folder: Path) -> None:
        self.case = folder / "case"
        self.faults = Faults(self.case)
        self.log = Warnings()

    def run(self, source: Source, plan: Plan | None, same_stream: bool) -> Outcome:
        """Read everything with the calls of `plan` failing; after an exception go on with the same or a new stream."""
        shutil.rmtree(self.case, ignore_errors=True)
        (self.case / "data").mkdir(parents=True)
        source.fill(self.case / "data")
        self.log.texts.clear()
        rows: Counter[int] = Counter()
        stream: Any = None
        position: dict[str, Any] | None = None
        raised = []
        begun = time.monotonic()
        with self.faults.arm(plan):
            while rows.total() < ROWS and time.monotonic() < begun + IDLE:
                if len(raised) >= 3 or time.monotonic() > begun + 0.3:
                    self.faults.lift()
                try:
                    if stream is None:
                        stream = source.open(self.case / "data", self.case / "bad.jsonl")
                        stream.seek(position or {})
                    position = stream.position() if position is None else position
                    batch = stream.poll(7, 0.2)
                    if batch is not None:
                        rows.update(batch.columns["row"].tolist())
                        position = advance(position, batch)
                    elif stream.exhausted:
                        break
                except (TrainerError, OSError) as error:
                    raised.append(error)
                    if stream is not None and not same_stream:
                        position = position and json.loads(json.dumps(stream.resolve(position)))
                        stream = _closed(stream)
            stream = _closed(stream)
        outcome = Outcome(plan, "; ".join([*self.log.texts, *map(repr, raised)]))
        outcome.count(rows, 1)
        unnamed = set(BAD) - bad_rows(self.case / "bad.jsonl")
        outcome.altered = f"bad rows {unnamed} are in no file" if unnamed else ""
        return outcome


def _closed(stream: Any) -> None:
    """Close a stream; what that raises has its place in unit tests."""
    with contextlib.suppress(TrainerError, OSError, AttributeError):
        stream.close()


def cases(name: str, calls: dict[str, int], given: argparse.Namespace) -> Iterator[Plan]:
    """Yield plans: every call of an undisturbed run, which made `calls`, with each of its errors; and pairs."""
    choose = random.Random(f"{given.seed} {name}")
    plans = []
    for kind, count in sorted(calls.items()):
        for number in range(count + 1):  # one more than there are: a run in which nothing fails
            for error in ERRORS[kind]:
                lasting = (False, True) if kind in WRITING else (False,)
                plans += [Plan(kind, number, error, again) for again in lasting]
    choose.shuffle(plans)
    for number, plan in enumerate(plans[: given.most] if given.most else plans[:: given.every]):
        yield plan
        if number < given.pairs:
            kind = choose.choice(sorted(calls.keys() - REQUESTS))
            plan = Plan(kind, choose.randrange(calls[kind]), choose.choice(ERRORS[kind]))
            yield replace(plan, second=choose.randrange(12))


def run_source(name: str, folder: Path, given: argparse.Namespace) -> Tallies:
    """Train in the cases of one source; return tallies by kind of call and error."""
    tallies: Tallies = defaultdict(Tally)
    bench = Bench(folder / "work", given.publish)
    with opened(name, folder / "server") as source, bench.log.listening(), bench.faults.active():
        bench.faults.cluster = source.cluster
        bench.warm_up(source)
        outcome, outputs = bench.run(source, None, False)
        if outcome.named or outcome.lost or outcome.repeated:
            raise RuntimeError(f"{name}: an undisturbed run went wrong: {outcome}")
        deadline = time.monotonic() + (given.seconds or float("inf"))
        for number, plan in enumerate(cases(name, dict(bench.faults.calls), given)):
            if time.monotonic() > deadline:
                break
            faulthandler.dump_traceback_later(PATIENCE, exit=True)
            outcome, after = bench.run(source, plan, bool(number % 2))
            faulthandler.cancel_dump_traceback_later()
            if bench.faults.fired:
                different = [f"{key} {after[key]}, not {outputs[key]}" for key in outputs if after[key] != outputs[key]]
                outcome.altered = "; ".join(different)
                tallies[key_of(plan)].add(name, outcome)
    return tallies


def read_source(name: str, folder: Path, given: argparse.Namespace) -> Tallies:
    """Read in the cases of one stream; return tallies by kind of call and error."""
    tallies: Tallies = defaultdict(Tally)
    reading = Reading(folder / "reads")
    with opened(name, folder / "served") as source, reading.log.listening(), reading.faults.active():
        reading.faults.cluster = source.cluster
        outcome = reading.run(source, None, False)
        if outcome.named or outcome.lost or outcome.repeated or outcome.altered:
            raise RuntimeError(f"{name}: undisturbed reading went wrong: {outcome}")
        deadline = time.monotonic() + (given.seconds or float("inf"))
        for number, plan in enumerate(cases(f"reading {name}", dict(reading.faults.calls), given)):
            if time.monotonic() > deadline:
                break
            outcome = reading.run(source, plan, bool(number % 2))
            if reading.faults.fired:
                tallies[key_of(plan)].add(f"reading {name}", outcome)
    return tallies


def key_of(plan: Plan) -> tuple[str, str]:
    """Return under which call and error a case is counted."""
    return (plan.kind, plan.error) if plan.second is None else ("pair", "any")


def table(tallies: Tallies) -> str:
    """Return a table of calls and failures."""
    lines = [
        "| call | error | cases | named | without effect | rows lost | rows repeated | silent |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    order = [*ERRORS, "pair"]
    for (kind, error), t in sorted(tallies.items(), key=lambda item: (order.index(item[0][0]), item[0][1])):
        counts = (t.cases, t.named, t.cases - t.named - t.silent, t.lost, t.repeated, t.silent)
        lines.append(f"| {kind} | {error} | " + " | ".join(f"{count:,}" for count in counts) + " |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--every", type=int, default=1, help="try every n-th of all cases, in random order")
    parser.add_argument("--most", type=int, default=0, help="at most so many single failures a source")
    parser.add_argument("--pairs", type=int, default=100, help="pairs of failures a source")
    parser.add_argument("--seconds", type=float, default=0.0, help="for each source at most; 0: as long as it takes")
    parser.add_argument("--only-reading", action="store_true", help="leave out training on streams")
    parser.add_argument("--publish", action="store_true", help="publish versions as well")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(argv)
    total: Tallies = defaultdict(Tally)
    for name in given.source:
        runs: tuple[Any, ...] = (run_source,) if name in FINITE else (read_source, run_source)
        if name in READ_ONLY or (given.only_reading and name not in FINITE):
            runs = (read_source,)
        for run in runs:
            with tempfile.TemporaryDirectory(prefix="faults-") as folder:
                started = time.monotonic()
                tallies = run(name, Path(folder), given)
            count = sum(tally.cases for tally in tallies.values())
            what = "reading" if run is read_source else "training"
            print(f"{what}, {name}: {count} cases in {time.monotonic() - started:.0f} s", flush=True)
            for key, tally in tallies.items():
                total[key].join(tally)
                for failure in tally.failures:
                    print(failure, flush=True)
    print(table(total))
    return 1 if any(tally.failures for tally in total.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
