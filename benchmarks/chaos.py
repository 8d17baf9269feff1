"""Kill training again and again, go on each time, and show that nothing was lost, repeated or changed.

    python benchmarks/chaos.py --kills 20 --source fit files redis kafka job kafka-job

The run is Wide & Deep on MovieLens-100K as `trainer fit` and `trainer online` start it, a process of its own, with
snapshots every few steps written in the background. SIGKILL comes during steps, evaluations, while a snapshot is
being written, and while the process starts; a few SIGTERMs besides, after which nothing at all may have to be done
again. Each time ``--resume`` goes on, until the run ends by itself. Then its last snapshot is compared bit for bit
with that of a run nobody disturbed, and the diary of trained rows (`benchmarks.ledger`) with what had to be trained.

`job` and `kafka-job` are two processes under one supervisor, which starts both again when either was killed; of the
topic each reads its own partition. Last, a supervisor is killed, and nothing of its job may be left.

Ends with exit code 1 when a step or row was lost or repeated, a parameter differs, or a resume failed.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import chaos_job, lifetime, servers  # noqa: E402
from benchmarks.ledger import EVALUATING, STEPPING, History, longest_hold, read_phase, surviving  # noqa: E402
from examples.movielens import load  # noqa: E402
from examples.movielens_stream import messages, segments  # noqa: E402
from trainer import checkpoint  # noqa: E402

SOURCES = ("fit", "files", "redis", "kafka", "job", "kafka-job")
JOBS = ("job", "kafka-job")
STEP, WRITE, EVALUATION, START = "step", "write", "evaluation", "start"
PATIENCE = 300.0  # seconds for a process to reach the moment it is to be killed at, on a busy machine
POLL = 0.0005
EVERY = 4  # steps between snapshots
BATCH = 128
TABLES = "part.tables"
SHOWN = 8  # differences named one by one


@dataclass
class Case:
    """A run to be disturbed.

    Attributes:
        command: "fit" or "online".
        config: the experiment file.
        overrides: ``--set`` arguments.
        steps: optimizer steps of the whole run.
        expected: the rows a stream holds, in order; None where the undisturbed run tells them.
    """

    command: str
    config: Path
    overrides: list[str]
    steps: int
    expected: np.ndarray | None = None


@dataclass
class Result:
    """What came of one source.

    Attributes:
        kills: by what they hit.
        resumes: processes that went on from a snapshot.
        restarts: processes that began anew, because the one before was killed before its first snapshot.
        mid_write: kills that left an unfinished snapshot behind.
        history: what the snapshots hold in the end.
        lost_rows, repeated_rows: rows missing from that history, or in it too often.
        in_order: whether its rows are those expected in the order expected.
        differences: tensors and counters that differ from the undisturbed run's.
        hold: longest hold of the steps by a snapshot, seconds; waiting for the write before it is included.
        exits: seconds from SIGTERM to the end of the process.
        term_lost: steps that had to be done again after a SIGTERM.
        failures: what went wrong otherwise.
    """

    source: str
    kills: Counter = field(default_factory=Counter)
    resumes: int = 0
    restarts: int = 0
    mid_write: int = 0
    history: History | None = None
    lost_rows: int = 0
    repeated_rows: int = 0
    in_order: bool = False
    differences: list[str] = field(default_factory=list)
    hold: float = math.nan
    exits: list[float] = field(default_factory=list)
    term_lost: int = 0
    failures: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether nothing was lost, repeated or changed."""
        counts = (self.history.lost_steps, self.history.repeated_steps) if self.history else (1, 1)
        trouble = self.differences or self.failures
        return not (any(counts) or self.lost_rows or self.repeated_rows or self.term_lost or trouble) and self.in_order


class Run:
    """One experiment that a case starts, resumes and disturbs.

    Args:
        case: what to run.
        folder: holds run folder, ledger and log.
    """

    def __init__(self, case: Case, folder: Path) -> None:
        self.case = case
        self.folder = folder
        self.run_dir, self.ledger, self.log = folder / "run", folder / "ledger", folder / "log.txt"
        folder.mkdir(parents=True)

    @property
    def snapshots(self) -> Path:
        """Folder of the run's snapshots."""
        return self.run_dir / "checkpoints"

    def start(self) -> subprocess.Popen:
        """Start the run, or go on with it where there is something to go on from."""
        (self.ledger / "phase").unlink(missing_ok=True)
        command = [sys.executable, "-m", "trainer.experiment.cli", self.case.command]
        if (self.run_dir / "config.yaml").is_file():
            command += ["--resume", str(self.run_dir)]
        else:
            shutil.rmtree(self.run_dir, ignore_errors=True)
            command += [str(self.case.config), "--set", f"run_dir={self.run_dir}"]
            callbacks = (
                f"[{{class_path: benchmarks.ledger.Ledger, init_args: {{folder: {self.ledger}}}}}, "
                f"{{class_path: callbacks.ModelCheckpoint, init_args: {{every: {EVERY}, background: true}}}}]"
            )
            for override in (*self.case.overrides, f"callbacks={callbacks}"):
                command += ["--set", override]
        with open(self.log, "ab") as log:
            log.write(f"\n$ {' '.join(command)}\n".encode())
            log.flush()
            return subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def finish(self) -> None:
        """Run to the end.

        Raises:
            RuntimeError: it did not end well.
        """
        code = self.start().wait(PATIENCE)
        if code:
            raise RuntimeError(f"the run ended with exit code {code}:\n{self.tail()}")

    def tail(self, lines: int = 15) -> str:
        """Return the end of what the run has printed."""
        return "\n".join(self.log.read_text("utf-8", "replace").splitlines()[-lines:])

    def unfinished(self) -> list[Path]:
        """Return snapshots being written, or left behind in the middle of it."""
        try:
            return [path for path in self.snapshots.iterdir() if path.name.endswith(".tmp") and path.is_dir()]
        except FileNotFoundError:
            return []

    def wait_for(self, process: subprocess.Popen, moment: str, step: int) -> bool:
        """Wait until the run has done `step` steps and `moment` has come; False when it ended before."""
        deadline = time.monotonic() + PATIENCE
        before = {path.name for path in self.unfinished()}
        while process.poll() is None:
            phase, done = read_phase(self.ledger)
            if done >= step and (
                (moment == STEP and phase == STEPPING)
                or (moment == EVALUATION and phase == EVALUATING)
                or (moment == WRITE and any(path.name not in before for path in self.unfinished()))
            ):
                return True
            if time.monotonic() > deadline:
                process.kill()
                process.wait()
                raise RuntimeError(f"no {moment} at step {step} within {PATIENCE:.0f} s:\n{self.tail()}")
            time.sleep(POLL)
        return False


def inject_faults(run: Run, kills: int, terms: int, seed: int, result: Result) -> None:
    """Kill `run` `kills` times and end it by SIGTERM `terms` times, spread over its length; then let it finish."""
    choose = random.Random(seed)
    fit = run.case.command == "fit"
    moments = [WRITE, EVALUATION if fit else STEP, STEP, WRITE, STEP, STEP, START]
    if kills >= len(moments):
        moments.insert(0, moments.pop())  # some of these come before the first snapshot
    plan = [(signal.SIGKILL, moments[number % len(moments)]) for number in range(kills)]
    for number in range(terms):
        moment = EVALUATION if fit and number % 2 else STEP
        plan.insert(choose.randint(1, len(plan)), (signal.SIGTERM, moment))
    last_step = 0
    for number, (kind, moment) in enumerate(plan):
        process = run.start()
        mean = (run.case.steps - last_step) / (len(plan) - number + 1)
        target = min(last_step + int(choose.expovariate(1 / mean)), run.case.steps - 2 * EVERY)
        if moment == START:
            time.sleep(choose.uniform(0, 4))
        elif not run.wait_for(process, moment, target):
            result.failures.append(f"ended with exit code {process.returncode} before a {moment}:\n{run.tail()}")
            return
        time.sleep(choose.uniform(0, 0.004))
        sent = time.perf_counter()
        process.send_signal(kind)
        code = process.wait(PATIENCE)
        took = time.perf_counter() - sent
        expected = -signal.SIGKILL if kind == signal.SIGKILL else 128 + signal.SIGTERM
        if code != expected:
            result.failures.append(f"{kind.name} during {moment}: exit code {code}, not {expected}:\n{run.tail()}")
            return
        last_step = _newest_step(run)
        if kind == signal.SIGKILL:
            result.kills[moment] += 1
            result.mid_write += bool(run.unfinished())
        else:
            result.exits.append(took)
            trained = int(surviving(run.ledger).steps.max(initial=0))
            result.term_lost += trained - last_step
    run.finish()


def _newest_step(run: Run) -> int:
    return (
        max((entry.step for entry in checkpoint.available(run.snapshots)), default=0) if run.snapshots.is_dir() else 0
    )


def compare_runs(run: Run, undisturbed: Run, result: Result) -> None:
    """Compare what is left of both runs."""
    history, reference = surviving(run.ledger), surviving(undisturbed.ledger)
    expected = reference.rows if run.case.expected is None else run.case.expected
    result.history = history
    result.resumes = sum(step > 0 for step in history.resumed_from)
    result.restarts = sum(step == 0 for step in history.resumed_from[1:])
    count_rows(history.rows, expected, result)
    result.hold = longest_hold(run.ledger)
    result.differences = differences(run.snapshots, undisturbed.snapshots)
    steps = int(history.steps.max(initial=0))
    if steps != run.case.steps:
        result.failures.append(f"{steps} steps were trained, not {run.case.steps}")


def count_rows(trained: np.ndarray, expected: np.ndarray, result: Result) -> None:
    """Count the rows that are missing or too many among those trained."""
    rows, times = np.unique(np.concatenate([trained, expected]), return_inverse=True)
    counted = np.bincount(times[: len(trained)], minlength=len(rows))
    wanted = np.bincount(times[len(trained) :], minlength=len(rows))
    result.lost_rows = int(np.maximum(wanted - counted, 0).sum())
    result.repeated_rows = int(np.maximum(counted - wanted, 0).sum())
    result.in_order = np.array_equal(trained, expected)


def differences(first: Path, second: Path) -> list[str]:
    """Return what differs between the last snapshots of two runs: tensors bit by bit, counters and loss sums."""
    one, other = checkpoint.find(first), checkpoint.find(second)
    found = [f"group {group}" for group in set(one.groups) ^ set(other.groups)]
    for group in sorted(set(one.groups) & set(other.groups)):
        a, b = whole(one, group), whole(other, group)
        found += [f"{group}: {name}" for name in sorted(set(a) ^ set(b))]
        for name in sorted(set(a) & set(b)):
            same_kind = a[name].dtype == b[name].dtype and a[name].shape == b[name].shape
            if not same_kind or a[name].tobytes() != b[name].tobytes():
                found.append(f"{group}: {name}")
    for key in ("progress", "metrics"):
        if one.state[key] != other.state[key]:
            found.append(f"{key}: {one.state[key]} and {other.state[key]}")
    if one.state["loop"]["meter"] != other.state["loop"]["meter"]:
        found.append("loss sums")
    return found


def whole(snapshot: checkpoint.Snapshot, group: str) -> dict[str, np.ndarray]:
    """Return the tensors of a group; those of sparse tables put together from a full state and its changes.

    Of a table come all ids in order and what belongs to each. In which row of memory an id lives is left out: it says
    nothing about the model.
    """
    if group != TABLES:
        return snapshot.tensors(group)
    tables: dict[str, dict[int, dict[str, np.ndarray]]] = {}
    for link in snapshot.chain():
        tensors = {name: np.asarray(array) for name, array in link.tensors(group).items()}
        for table in {name.rpartition("/")[0] for name in tensors}:
            columns = {n.rpartition("/")[2]: array for n, array in tensors.items() if n.rpartition("/")[0] == table}
            ids, rows = columns.pop("ids"), tables.setdefault(table, {})
            for gone in columns.pop("removed", np.zeros(0, np.int64)):
                rows.pop(int(gone), None)
            columns.pop("rows", None)
            for place, number in enumerate(ids.tolist()):
                rows[number] = {name: array[place] for name, array in columns.items() if len(array) == len(ids)}
    merged = {}
    for table, rows in tables.items():
        numbers = sorted(rows)
        merged[f"{table}/ids"] = np.array(numbers)
        for name in rows[numbers[0]] if numbers else ():
            merged[f"{table}/{name}"] = np.array([rows[number][name] for number in numbers])
    return merged


# The ledger names rows by their users and items, so the batches have these as columns of their own.
_NETWORK = "network={{class_path: benchmarks.id_network.WideDeep, init_args: {{dim: 8, hidden: [32, 16], {}: true}}}}"
_PART = "{{class_path: examples.movielens.MovieLens, init_args: {{split: {}, batch_size: 1000}}}}"
RAW_IDS = ["features=null", _NETWORK.format("raw_ids")]
NUMBERED = ["features=null", _NETWORK.format("crosses"), "fit.batch_size=null", "data.test=null"]
NUMBERED += [f"data.{name}={_PART.format(split)}" for name, split in (("train", "train"), ("valid", "test"))]


@contextlib.contextmanager
def case_of(source: str, folder: Path, rows: int, epochs: int) -> Iterator[Case]:
    """Give the case of one source; its server runs as long as the context."""
    if source == "fit":
        overrides = [*NUMBERED, f"fit.epochs={epochs}", "fit.sink_size=1", "fit.valid_every=10"]
        yield Case("fit", ROOT / "configs" / "wide_deep_movielens.yaml", [*overrides, "report=null"], 90 * epochs)
        return
    columns = {name: column[:rows] for name, column in load().items()}
    expected = (columns["user"].astype(np.int64) << 20) + columns["item"]
    steps = rows // BATCH
    online = [f"online.batch_size={BATCH}", "online.sink_size=2", f"online.max_steps={steps}"]
    online += ["online.window={class_path: trainer.Window, init_args: {rows: 1000}}"]
    with contextlib.ExitStack() as stack:
        schema = "schema: {class_path: examples.movielens_stream.schema}"
        if source == "files":
            place = segments(folder / "segments", rows)
            stream = f"{{class_path: trainer.streams.FileStream, init_args: {{path: {place}, {schema}}}}}"
        elif source == "redis":
            url = stack.enter_context(servers.redis(folder / "server", list(messages(columns))))
            arguments = f'keys: ratings, url: "{url}", {schema}'
            stream = f"{{class_path: trainer.streams.RedisStream, init_args: {{{arguments}}}}}"
        else:
            quota = 8  # messages of a partition in a turn
            address = stack.enter_context(servers.kafka_process(list(messages(columns)), quota=quota))
            arguments = f'topic: ratings, servers: "{address}", quota: {quota}, {schema}'
            stream = f"{{class_path: trainer.streams.KafkaStream, init_args: {{{arguments}}}}}"
        config = ROOT / "configs" / "wide_deep_movielens_online.yaml"
        yield Case("online", config, [*RAW_IDS, *online, f"data.stream={stream}"], steps, expected[: steps * BATCH])


def run_source(source: str, folder: Path, given: argparse.Namespace) -> Result:
    """Run one source undisturbed and disturbed, and compare_runs."""
    result = Result(source)
    with case_of(source, folder, given.rows, given.epochs) as case, ThreadPoolExecutor(1) as pool:
        run, undisturbed = Run(case, folder / "disturbed"), Run(case, folder / "undisturbed")
        other = pool.submit(undisturbed.finish)
        try:
            inject_faults(run, given.kills, given.terms, given.seed, result)
            other.result()
            compare_runs(run, undisturbed, result)
        except (RuntimeError, subprocess.TimeoutExpired, checkpoint.CheckpointError) as error:
            result.failures.append(f"{type(error).__name__}: {error}")
    return result


@contextlib.contextmanager
def job_of(source: str, rows: int, epochs: int) -> Iterator[tuple[str, Path, list[str]]]:
    """Give command, configuration and overrides of a job; its server runs as long as the context."""
    if source == "job":
        options = [*NUMBERED, f"fit.epochs={epochs}", "fit.sink_size=1", "report=null"]
        yield "fit", ROOT / "configs" / "wide_deep_movielens.yaml", options
        return
    payloads = list(messages({name: column[:rows] for name, column in load().items()}))
    steps = len(payloads) // 2 * 100 // BATCH  # those for which both partitions have rows
    options = [*RAW_IDS, f"online.batch_size={BATCH}", "online.sink_size=2", f"online.max_steps={steps}"]
    # nobody goes on without the other: which rows meet in a step then follows from the partitions alone
    options += ["online.flush_after=600", "online.window={class_path: trainer.Window, init_args: {rows: 1000}}"]
    with servers.kafka(payloads, partitions=2) as address:
        schema = "schema: {class_path: examples.movielens_stream.schema}"
        arguments = f'topic: ratings, servers: "{address}", {schema}'
        stream = f"{{class_path: trainer.streams.KafkaStream, init_args: {{{arguments}}}}}"
        yield "online", ROOT / "configs" / "wide_deep_movielens_online.yaml", [*options, f"data.stream={stream}"]


def run_job(source: str, folder: Path, given: argparse.Namespace) -> Result:
    """Run a job of two processes undisturbed and with ranks killed, and compare what is left of both."""
    result = Result(source)
    try:
        with job_of(source, given.rows, given.epochs) as case:
            undisturbed = chaos_job.Job(folder / "undisturbed", *case, 0)
            if undisturbed.finish():
                raise RuntimeError(f"the undisturbed job failed:\n{undisturbed.tail()}")
            job = chaos_job.Job(folder / "disturbed", *case, given.kills)
            result.kills[STEP] = chaos_job.kill_ranks(job, given.kills, given.seed)
            code = job.finish()
            if code:
                raise RuntimeError(f"the job ended with exit code {code}:\n{job.tail()}")
            left = chaos_job.orphans(chaos_job.Job(folder / "orphaned", *case, 0))
        both = [[surviving(one.ledger / f"rank_{rank}") for rank in range(2)] for one in (job, undisturbed)]
        rows, expected = (np.concatenate([history.rows for history in histories]) for histories in both)
        result.history = both[0][0]
        count_rows(rows, expected, result)
        result.resumes = sum(step > 0 for step in result.history.resumed_from)
        result.differences = differences(job.run_dir / "checkpoints", undisturbed.run_dir / "checkpoints")
        result.failures += [f"process {pid} outlived its killed supervisor" for pid in left]
        if source != "job" and len(np.unique(expected)) != len(expected):
            result.failures.append("the undisturbed job trained rows twice")
    except (RuntimeError, subprocess.TimeoutExpired, checkpoint.CheckpointError) as error:
        result.failures.append(f"{type(error).__name__}: {error}")
    return result


def table(results: Sequence[Result]) -> str:
    """Return the results as a Markdown table."""
    heads = ["source", "kills", "resumes", "lost steps", "repeated steps", "lost rows", "repeated rows"]
    heads += ["bit-identical", "longest hold", "SIGTERM to exit"]
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    for result in results:
        history = result.history
        cells = [result.source, str(sum(result.kills.values())), str(result.resumes)]
        cells += ["?"] * 2 if history is None else [str(history.lost_steps), str(history.repeated_steps)]
        cells += ["?"] * 2 if history is None else [str(result.lost_rows), str(result.repeated_rows)]
        cells += ["?" if history is None else "no" if result.differences else "yes"]
        cells += [
            "-" if np.isnan(result.hold) else f"{result.hold * 1e3:.1f} ms",
            f"{max(result.exits):.2f} s" if result.exits else "-",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def details(result: Result) -> str:
    """Return what the table leaves out."""
    hits = ", ".join(f"{count} {moment}" for moment, count in result.kills.items())
    text = f"{result.source}: kills by moment: {hits or 'none'}; {result.mid_write} left an unfinished snapshot; "
    text += f"{result.restarts} before the first snapshot; {len(result.exits)} SIGTERMs, {result.term_lost} steps lost"
    if result.history is not None:
        text += f"; {result.history.redone} steps of killed processes done again"
        text += "" if result.in_order else "; THE ROWS ARE NOT THOSE EXPECTED, IN THAT ORDER"
    return "\n".join(
        [text, *(f"  DIFFERS: {name}" for name in result.differences), *(f"  {f}" for f in result.failures)]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the chosen sources and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="SIGKILLs for each source")
    parser.add_argument("--terms", type=int, default=2, help="SIGTERMs for each source")
    parser.add_argument("--source", nargs="+", choices=SOURCES, default=list(SOURCES))
    parser.add_argument("--rows", type=int, default=40_000, help="ratings in a stream")
    parser.add_argument("--epochs", type=int, default=4, help="epochs of fit, 90 steps each")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--keep", type=Path, help="folder for everything the runs leave; else removed")
    given = parser.parse_args(argv)
    results = []
    with contextlib.ExitStack() as stack:
        temporary = stack.enter_context(lifetime.guarded("chaos-"))
        folder = given.keep or temporary
        for source in given.source:
            server = source.partition("-")[0]
            reason = servers.missing(server) if server in ("redis", "kafka") else None
            if reason:
                print(f"{source}: left out, {reason}", flush=True)
                continue
            began = time.monotonic()
            run = run_job if source in JOBS else run_source
            results.append(run(source, folder / source, given))
            print(f"{details(results[-1])} ({time.monotonic() - began:.0f} s)", flush=True)
    print(f"\n{table(results)}")
    return 0 if results and all(result.good for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
