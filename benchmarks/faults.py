"""Let every call to the outside fail, one after the other, and show that no row is lost, repeated or dropped.

    python benchmarks/faults.py --source jsonl redis fit --every 1 --pairs 50

Each case is a small training with snapshots, dead letters, a log and events for TensorBoard (and, with
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mindspore import nn

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.fault_brokers import REQUESTS  # noqa: E402
from benchmarks.fault_calls import ERRORS, WRITING, Faults, Plan  # noqa: E402
from benchmarks.fault_sources import (  # noqa: E402
    BAD,
    BATCH,
    EPOCHS,
    FINITE,
    NAMES,
    PUBLISHING,
    READ_ONLY,
    ROWS,
    Source,
    bad_rows,
    opened,
)
from benchmarks.fault_table import Outcome, Tallies, Tally, key_of, read_tallies, table, write_tallies  # noqa: E402
from benchmarks.ledger import Ledger, surviving  # noqa: E402
from callbacks import Callback, JSONLinesLogger, ModelCheckpoint, TensorBoard  # noqa: E402
from trainer import Trainer, checkpoint  # noqa: E402
from trainer.errors import CheckpointNotFoundError, TrainerError  # noqa: E402
from trainer.streams import advance  # noqa: E402

PATIENCE = 60  # seconds for a case
IDLE = 3.0
RECOVERY = 20.0  # seconds without a row that end the training after a failure; longer than a source waits to retry


class StopAfterRows(Callback):
    """Ends a run that has trained on so many rows, for brokers never say that there are no more.

    A bound of steps would not do: a stream that falls idle trains on a smaller batch, and then the last rows would be
    beyond the bound.

    Args:
        rows: `Progress.samples_seen` at the end.
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def on_train_begin(self, trainer: Trainer) -> None:
        """Train on nothing more if the rows were trained on before."""
        self.on_train_step_end(trainer)

    def on_train_step_end(self, trainer: Trainer) -> None:
        """Stop behind the last row."""
        if trainer.state.progress.samples_seen >= self.rows:
            trainer.stop("all rows trained on")


class Net(nn.Cell):
    """A network that takes the number of the row and does nothing with it."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(2, 1)

    def construct(self, row, x):
        """Return one value a row."""
        return self.dense(x)[:, 0]


class Warnings(logging.Handler):
    """Keeps what was logged as a warning or worse."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record."""
        text = record.getMessage()
        if " rows set aside: " not in text:  # the report at the end of every run tells of bad rows, not of a failure
            self.texts.append(text)

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
        self.first_row = 0
        self.publish = publish
        network = Net()
        self.trainer = Trainer(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.01))
        self.faults = Faults(self.case)
        self.log = Warnings()

    def warm_up(self, source: Source) -> None:
        """Compile, and save the state that every case begins with."""
        self._fill(source)
        self._train(source, self._open(source), None, IDLE)
        self.start = self.trainer.save(self.folder / "start")
        self.first_row = self.trainer.state.progress.samples_seen

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
                self._train(source, stream, None, IDLE)
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

    def _train(self, source: Source, data: Any, resume: Path | None, idle: float) -> None:
        callbacks = [
            Ledger(self.folder / "ledger", ("row",)),
            ModelCheckpoint(self.case / "snapshots", every=2, background=True),
            JSONLinesLogger(self.case / "log.jsonl", every=2),
            TensorBoard(self.case / "events", every=2),
        ]
        if self.publish:
            from trainer.serving import Publish

            callbacks.append(Publish(self.case / "published", every=2, batch=BATCH))
        if source.finite:
            options = {"batch_size": BATCH, "shuffle": False} if isinstance(data, dict) else {}
            self.trainer.fit(data, EPOCHS, callbacks=callbacks, resume=resume, **options)
            return
        callbacks.append(StopAfterRows(self.first_row + ROWS))
        options = {"batch_size": BATCH, "sink_size": 1, "idle_timeout": idle}
        self.trainer.online_train(data, callbacks, resume=resume, **options)
        if resume is None:
            data.close()

    def _recover(self, source: Source, stream: Any, error: BaseException | None) -> None:
        """Go on with the same stream, or with a new one from the newest snapshot."""
        if stream is not None and error is not None:
            self._train(source, stream, None, RECOVERY)
            return
        with contextlib.closing(self._open(source)) if not source.finite else contextlib.nullcontext() as new:
            data = self._open(source) if source.finite else new
            sound = [entry for entry in checkpoint.available(self.case / "snapshots") if entry.problem is None]
            if sound:
                self._train(source, data, self.case / "snapshots", RECOVERY)
            else:
                self.trainer.load(self.start)
                self._train(source, data, None, RECOVERY)

    def _outputs(self, source: Source) -> dict[str, Any]:
        """Return what was written besides the rows trained."""
        entries = checkpoint.available(self.case / "snapshots")
        log = self.case / "log.jsonl"
        logged = []
        for line in log.read_text().splitlines() if log.exists() else ():
            with contextlib.suppress(ValueError):  # a line that a failed write cut
                logged.append(json.loads(line)["step"])
        outputs = {
            "snapshot": max((entry.step for entry in entries), default=None),
            "bad rows": bad_rows(self.case / "bad.jsonl"),
            "logged": max(logged, default=None),
            "events": bool(sum(map(_events, (self.case / "events").glob("*")))),
        }
        if self.publish:
            from trainer.serving.published import Current

            outputs["published"] = None
            with contextlib.suppress(CheckpointNotFoundError):
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
    bench = Bench(folder / "work", given.publish or name in PUBLISHING)
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


Way = Callable[[str, Path, argparse.Namespace], Tallies]


def ways_of(name: str, only_reading: bool) -> list[tuple[str, Way]]:
    """Return how the rows of a source are used: read, trained on."""
    ways: list[tuple[str, Way]] = [("reading", read_source), ("training", run_source)]
    if name in FINITE:
        return ways[1:]
    return ways[:1] if only_reading or name in READ_ONLY else ways


def kept(label: str, given: argparse.Namespace, run: Way, name: str) -> Tallies:
    """Return the tallies that an earlier run left in `given.results`, or those of this run, which are left there."""
    path = given.results and given.results / f"{label}.json"
    options = {key: getattr(given, key) for key in ("every", "most", "pairs", "seconds", "publish", "seed")}
    if path and path.exists():
        return read_tallies(path, options)
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        tallies = run(name, Path(folder), given)
    if path:
        write_tallies(path, options, tallies)
    return tallies


def main(argv: Sequence[str] | None = None) -> int:
    """Run and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--every", type=int, default=1, help="try every n-th of all cases, in random order")
    parser.add_argument("--most", type=int, default=0, help="at most so many single failures a source")
    parser.add_argument("--pairs", type=int, default=100, help="pairs of failures a source")
    parser.add_argument("--seconds", type=float, default=0.0, help="for each source at most; 0: as long as it takes")
    parser.add_argument("--only-reading", action="store_true", help="leave out training on streams")
    parser.add_argument("--publish", action="store_true", help="publish versions from every source")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--results", type=Path, help="folder for the counts of each source; those already there are not counted again"
    )
    given = parser.parse_args(argv)
    total: Tallies = defaultdict(Tally)
    for name in given.source:
        for what, run in ways_of(name, given.only_reading):
            started = time.monotonic()
            tallies = kept(f"{what}-{name}", given, run, name)
            count = sum(tally.cases for tally in tallies.values())
            print(f"{what}, {name}: {count} cases in {time.monotonic() - started:.0f} s", flush=True)
            for key, tally in tallies.items():
                total[key].join(tally)
                for failure in tally.failures:
                    print(failure, flush=True)
    print(table(total))
    return 1 if any(tally.failures for tally in total.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
