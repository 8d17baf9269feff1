"""Kill the server, the training and the broker of a closed loop, and show that no answered row is lost or doubled.

    python benchmarks/closed_loop.py                                # 200,000 requests of one row
    python benchmarks/closed_loop.py --requests 20000 --rows 10     # as many rows, ten a request

A Redis server that keeps its data, `trainer serve --log redis://` and `trainer online` run as processes of their own.
Visitors ask over several connections, and try again with the same id until they get an answer; a third of the rows are
bought at once. At a quarter, a half and three quarters of the requests one of the three processes is
killed with SIGKILL and started again. A diary (`benchmarks.ledger`) has every row that was trained on.

Prints what became of the rows, and how long it took from an event to the first answer of weights that had learned it.
Ends with exit code 1 when an answered row is not in the log (with --log-wait 0 that is counted, no failure), a row of
the log was not trained on, or more than once, or with another label than what came of it, or the inputs of the
training are not those of the server bit for bit: the network returns its inputs, so that the answers tell them.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.ledger import History, surviving  # noqa: E402
from benchmarks.loop_network import BOUGHT, named  # noqa: E402
from benchmarks.servers import redis_server  # noqa: E402
from trainer.streams.sinks import Sink, sink_for  # noqa: E402

PATIENCE, QUIET = 300.0, 180.0
BATCH = 256
PAUSE = 0.05
CITIES = ("Łódź", "Oslo", "São Paulo", None)
CONFIG = """
experiment: loop
seed: 1
features:
  columns:
    - {kind: numeric, name: row}
    - {kind: numeric, name: age, normalize: standard}
    - {kind: categorical, name: city, vocabulary: learn}
    - {kind: time, name: seen, unit: ms, parts: [hour, weekday]}
  label: bought
network: {class_path: benchmarks.loop_network.Echo}
loss: {class_path: benchmarks.loop_network.LogitLoss}
optimizer: {class_path: mindspore.nn.Adam, init_args: {learning_rate: 1e-3}}
data:
  train: past.csv
  stream: {served: "URL?key=served", outcomes: "URL?key=outcomes", wait: WAIT}
online: {batch_size: BATCH, sink_size: 1}
callbacks:
  - {class_path: benchmarks.loop_network.InputLedger, init_args: {folder: ledger}}
  - class_path: callbacks.ModelCheckpoint
    init_args: {every: {class_path: trainer.Every, init_args: {seconds: 5}}, background: true}
  - {class_path: trainer.serving.Publish, init_args: {root: published, every: 0.5, batch: [1, 64], compact: 200}}
"""


def row_of(number: int) -> dict[str, Any]:
    """Return the row of a visit: numbers of many digits, texts, a time in milliseconds."""
    age = None if number % 17 == 0 else 18 + (number * 0.618033988749895) % 50
    return {"row": number, "age": age, "city": CITIES[number % 4], "seen": 1_700_000_000_123 + number * 61_000}


def id_of(number: int, rows: int) -> str:
    """Return the id of a row in a request of so many, as the server writes it."""
    return f"visit-{number // rows}" + (f"/{number % rows}" if rows > 1 else "")


class Processes:
    """Broker, server and training of one loop, each of which can be killed and started again.

    Args:
        folder: holds everything.
        wait: longest time from a row to its outcome, seconds.
        log_wait: how long an answer waits for its row to be durable, seconds.
    """

    def __init__(self, folder: Path, wait: float, log_wait: float) -> None:
        self.folder, self.log_wait = folder, log_wait
        self.redis = redis_server(folder / "redis").start()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        config = CONFIG.replace("URL", self.redis.url).replace("WAIT", str(wait)).replace("BATCH", str(BATCH))
        (folder / "loop.yaml").write_text(config)
        rows = [{**row_of(number), "bought": number % 2} for number in range(400)]
        cells = [[str("" if value is None else value) for value in row.values()] for row in rows]
        (folder / "past.csv").write_text("\n".join(map(",".join, [list(rows[0]), *cells])) + "\n")
        self._trainer("features", "loop.yaml", "--fit", "--to", "learned").wait()
        self.training, self.server = self._online(), self._serve()

    def _trainer(self, *arguments: str) -> subprocess.Popen:
        command = [sys.executable, "-m", "mindspore_trainer", *arguments]
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        variables = {**os.environ, "GLOG_v": "3", "PYTHONPATH": path}
        with open(self.folder / f"{arguments[0]}.txt", "ab") as said:
            return subprocess.Popen(command, cwd=self.folder, stdout=said, stderr=said, env=variables)

    def _online(self) -> subprocess.Popen:
        fixed = ("--set", "features.fitted=learned", "--set", "run_dir=run", "--resume", "auto")
        return self._trainer("online", "loop.yaml", *fixed)

    def _serve(self) -> subprocess.Popen:
        log = ("--log", f"{self.redis.url}?key=served", "--log-wait", str(self.log_wait))
        return self._trainer("serve", "published", "--port", str(self.port), "--wait", *log)

    def kill(self, name: str) -> None:
        """Kill "server", "training" or "broker" with SIGKILL, and start it again."""
        if name == "broker":
            self.redis.kill()
            self.redis.start()
            return
        process: subprocess.Popen = getattr(self, name)
        process.kill()
        process.wait()
        setattr(self, name, self._serve() if name == "server" else self._online())

    def check(self) -> None:
        """RuntimeError if a process has ended by itself."""
        for command, process in (("serve", self.server), ("online", self.training)):
            if process.poll() is not None:
                said = (self.folder / f"{command}.txt").read_text("utf-8", "replace")
                raise RuntimeError(f"trainer {command} ended with {process.returncode}:\n{said[-3000:]}")

    def stop(self) -> None:
        """End everything."""
        for process in (self.training, self.server):
            process.send_signal(signal.SIGTERM)
        for process in (self.training, self.server):
            process.wait(PATIENCE)
        self.redis.kill()


class Visitors:
    """Ask for rows, try again until each is answered, and write what they bought.

    Args:
        port: of the server.
        outcomes: where it is written.
        connections: that ask at the same time.
        rows: of a request.

    Attributes:
        answers: by the number of a row: time of the answer, version's step, and its name (`loop_network.named`).
        bought: by the number of a row: time of its outcome.
        tries: requests that got no answer and were asked again.
    """

    def __init__(self, port: int, outcomes: Sink, connections: int, rows: int) -> None:
        self.answers: dict[int, tuple[float, int, int]] = {}
        self.bought: dict[int, float] = {}
        self.tries = 0
        self._port, self._outcomes, self._connections, self._rows = port, outcomes, connections, rows
        self._lock, self._errors = threading.Lock(), queue.SimpleQueue()

    def ask(self, numbers: Sequence[int], buys: Callable[[int], bool]) -> list[threading.Thread]:
        """Ask for these rows in threads; those that `buys` accepts are bought as soon as they are answered."""
        left, sold = iter(numbers[:: self._rows]), queue.SimpleQueue()
        visitors = [
            threading.Thread(target=self._visit, args=(left, sold, buys), daemon=True) for _ in range(self._connections)
        ]
        writer = threading.Thread(target=self._write, args=(sold,), daemon=True)
        for thread in (*visitors, writer):
            thread.start()
        return [*visitors, threading.Thread(target=lambda: (sold.put(None), writer.join()))]

    def wait(self, threads: list[threading.Thread], check: Callable[[], None]) -> None:
        """Wait until all is asked and bought."""
        *visitors, end = threads
        for thread in visitors:
            while thread.is_alive():
                thread.join(0.5)
                check()
        end.start()
        end.join()
        if not self._errors.empty():
            raise self._errors.get()

    def _visit(self, left: Any, sold: queue.SimpleQueue, buys: Callable[[int], bool]) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        try:
            while True:
                with self._lock:
                    first = next(left, None)
                if first is None:
                    return
                self.answers.update(self._answer(connection, first))
                for number in filter(buys, range(first, first + self._rows)):
                    sold.put((number, time.time()))
        except Exception as error:
            self._errors.put(error)
        finally:
            connection.close()

    def _answer(self, connection: http.client.HTTPConnection, first: int) -> dict[int, tuple[float, int, int]]:
        body = json.dumps([row_of(first + number) for number in range(self._rows)]).encode()
        headers = {"Content-Type": "application/json", "X-Request-Id": f"visit-{first // self._rows}"}
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            try:
                connection.request("POST", "/predict", body, headers)
                response = connection.getresponse()
                content = response.read()
            except (OSError, http.client.HTTPException):
                connection.close()
            else:
                if response.status == 200:
                    answer = json.loads(content)
                    inputs, now = np.array(answer["prediction"], np.float32)[:, 1:], time.time()
                    return {first + n: (now, answer["step"], named(first + n, row)) for n, row in enumerate(inputs)}
                if response.status < 500:
                    raise RuntimeError(f"row {first} was answered with {response.status}: {content[:300]!r}")
            with self._lock:
                self.tries += 1
            time.sleep(PAUSE)
        raise RuntimeError(f"row {first} got no answer within {PATIENCE:g} s")

    def _write(self, sold: queue.SimpleQueue) -> None:
        is_open = True
        while is_open:
            taken = [sold.get(), *(sold.get() for _ in range(sold.qsize()))]
            batch = [sale for sale in taken if sale is not None]
            is_open = len(batch) == len(taken)
            bought = [{"request_id": id_of(number, self._rows), "time": at} for number, at in batch]
            lines = [json.dumps(outcome).encode() for outcome in bought]
            while lines:
                try:
                    self._outcomes.append(lines)
                    break
                except self._outcomes.errors:
                    time.sleep(PAUSE)
            self.bought.update(batch)


def run(
    folder: Path, requests: int, rows: int = 1, wait: float = 30.0, log_wait: float = 5.0, connections: int = 8
) -> dict[str, Any]:
    """Run the loop with its three kills; return the figures, of `requests` of so many `rows`."""
    total = requests * rows
    processes = Processes(folder, wait, log_wait)
    try:
        served = sink_for(f"{processes.redis.url}?key=served")
        # rows of the past for the first version; their numbers are above those asked for
        old = range(total + BATCH * rows, total + BATCH * rows + 4 * BATCH)
        now = {"served_at": time.time(), "version": 0, "score": 0, "share": 1}
        served.append([json.dumps({**row_of(n), **now, "request_id": f"old-{n}"}).encode() for n in old])
        outcomes = sink_for(f"{processes.redis.url}?key=outcomes")
        outcomes.append([json.dumps({"request_id": f"old-{n}", "time": time.time()}).encode() for n in old])
        visitors = Visitors(processes.port, outcomes, connections, rows)
        began = time.monotonic()
        threads = visitors.ask(range(total), lambda number: number % 3 == 0)
        for part, name in enumerate(("server", "training", "broker"), 1):
            _wait_until(lambda part=part: len(visitors.answers) >= total * part // 4, processes.check)
            processes.kill(name)
            print(f"{time.monotonic() - began:6.1f} s  {len(visitors.answers):,} answers: {name} killed", flush=True)
        visitors.wait(threads, processes.check)
        seconds = time.monotonic() - began
        print(f"{seconds:6.1f} s  {requests:,} requests of {rows}, {requests / seconds:.0f} a second", flush=True)
        # With later visits event time goes on, so that those without an outcome are negatives, and batches are full.
        time.sleep(wait + 1)
        visitors.wait(visitors.ask(range(total, total + BATCH * rows), lambda number: True), processes.check)
        logged = _logged(processes, total, rows)
        _wait_for_training(folder, total, len(logged), processes.check)
        metrics = _metrics(processes.port)
    finally:
        processes.stop()
    return {**_judge(visitors, logged, folder, total), "seconds": seconds, "metrics": metrics}


def _wait_until(done: Callable[[], bool], check: Callable[[], None]) -> None:
    while not done():
        check()
        time.sleep(0.1)


def _wait_for_training(folder: Path, total: int, rows: int, check: Callable[[], None]) -> None:
    """Wait until so many rows are trained on, or no more for QUIET seconds: what is missing then is lost."""
    trained, since = -1, time.monotonic()
    while trained < rows and time.monotonic() - since < QUIET:
        check()
        time.sleep(1.0)
        if (now := len(_trained(folder, total)[0])) > trained:
            trained, since = now, time.monotonic()


def _logged(processes: Processes, total: int, rows: int) -> Counter[int]:
    """Return how often each row asked for is in the log."""
    entries = processes.redis.client().xrange("served")
    times = Counter(json.loads(fields[b"data"])["request_id"] for _, fields in entries)
    return Counter({n: times[id_of(n, rows)] for n in range(total) if id_of(n, rows) in times})


def _trained(folder: Path, total: int) -> tuple[np.ndarray, History]:
    """Return the names of the rows asked for that were trained on, and the history."""
    history = surviving(folder / "ledger")
    asked = _numbers(history.rows) < total
    history.learned_at, history.rows = history.learned_at[asked], history.rows[asked]
    return history.rows, history


def _numbers(names: np.ndarray) -> np.ndarray:
    return (names & ~BOUGHT) >> 32


def _metrics(port: int) -> list[str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    return [line for line in lines if line.startswith("trainer_serve_log_rows_total") and not line.endswith(" 0.0")]


def _judge(visitors: Visitors, logged: Counter[int], folder: Path, total: int) -> dict[str, Any]:
    rows, history = _trained(folder, total)
    numbers = _numbers(rows).tolist()
    times = Counter(numbers)
    given = {number: name for number, (_, _, name) in visitors.answers.items()}
    return {
        "answered": sum(number < total for number in visitors.answers),
        "asked again": visitors.tries,
        "answered, not in the log": sum(number not in logged for number in range(total)),
        "twice in the log": sum(count > 1 for count in logged.values()),
        "lost": sum(number not in times for number in logged),
        "doubled": sum(count > 1 for count in times.values()),
        "other inputs": sum(given[n] != name for n, name in zip(numbers, (rows & ~BOUGHT).tolist(), strict=True)),
        "other labels": sum((name >= BOUGHT) != (n in visitors.bought) for n, name in zip(numbers, rows, strict=True)),
        "trained again after the kill": history.redone,
        **_freshness(visitors, _numbers(rows), history.learned_at),
    }


def _freshness(visitors: Visitors, numbers: np.ndarray, learned_at: np.ndarray) -> dict[str, list[float]]:
    """Return p50 and p99 of the seconds from an event to the first answer of weights that had learned it."""
    first: dict[int, float] = {}
    for at, step, _ in sorted(visitors.answers.values()):
        first.setdefault(step, at)
    asked = np.array([visitors.answers[number][0] for number in numbers.tolist()])
    bought = np.array([visitors.bought.get(number, np.nan) for number in numbers.tolist()])
    event = np.where(np.isnan(bought), asked, bought)
    fresh = np.full(len(numbers), np.nan)
    for step, at in sorted(first.items(), key=lambda pair: pair[1]):
        fresh[np.isnan(fresh) & (learned_at <= step) & (event <= at)] = at
    delay, kinds = fresh - event, {"bought": ~np.isnan(bought), "negative": np.isnan(bought)}
    known = {name: delay[kind & ~np.isnan(delay)] for name, kind in kinds.items()}
    return {
        f"seconds to served weights, {name}": np.percentile(values, [50, 99]).round(2).tolist() if len(values) else []
        for name, values in known.items()
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200_000, help="default: 200,000")
    parser.add_argument("--rows", type=int, default=1, help="of a request; default: 1")
    parser.add_argument("--connections", type=int, default=8, help="default: 8")
    parser.add_argument("--wait", type=float, default=30.0, help="of data.stream, seconds; default: 30")
    parser.add_argument("--log-wait", type=float, default=5.0, help="of trainer serve, seconds; default: 5")
    parser.add_argument("--folder", type=Path, help="kept; default: a temporary one")
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="loop-") as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        figures = run(folder, given.requests, given.rows, given.wait, given.log_wait, given.connections)
    for name, value in figures.items():
        print(f"{name:40} {value}")
    wrong = [
        "lost",
        "doubled",
        "other inputs",
        "other labels",
        *(["answered, not in the log"] if given.log_wait else []),
    ]
    return int(any(figures[name] for name in wrong) or figures["answered"] != given.requests * given.rows)


if __name__ == "__main__":
    sys.exit(main())
