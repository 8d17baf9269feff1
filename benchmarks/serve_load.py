"""`trainer serve` under load, while the model trains and publishes every two seconds.

    python benchmarks/serve_load.py [--requests 200000] [--peer PYTHON]

1. The load: `wrk` asks from 16 connections for one row at a time until all requests are answered. Every answer is
   checked afterwards: its status, and that its probability is the one that its version gives that row, computed again
   from the version's files. The process that trains is killed on the way.
2. Latency and rows a second, without training beside: requests of 1 and 100 rows, from 1 and 16 clients; beside
   LitServe with the same network in PyTorch, where --peer names an interpreter that has litserve and torch. Rounds
   of both alternate; figures are medians of the rounds.

`wrk` comes with Debian and Ubuntu: apt-get install wrk.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from benchmarks import lifetime, serve_model
from benchmarks.serve_process import Server, wait_for_version
from benchmarks.worker import EARLIER_VARIABLE

HERE = Path(__file__).resolve().parent

# One connection a thread: a response then belongs to the request before it.
SCRIPT = """
local bodies, number = {}, 0
local threads = 0
for line in io.lines(os.getenv("BODIES")) do bodies[#bodies + 1] = line end
function setup(thread) thread:set("id", threads); threads = threads + 1 end
function init(args)
  number = id * 61
  if os.getenv("ANSWERS") then file = io.open(os.getenv("ANSWERS") .. "." .. id, "a"); file:setvbuf("line") end
end
function request()
  number = number + 1
  return wrk.format("POST", nil, {["Content-Type"] = "application/json"}, bodies[number % #bodies + 1])
end
function response(status, headers, body)
  if file then
    local version = string.match(body, '"version":(%d+)')
    local answer = string.match(body, '"probability":(%b[])')
    file:write(number % #bodies, " ", status, " ", version or "-", " ", answer or "-", "\\n")
  end
end
"""


def wrk(url: str, folder: Path, bodies: Path, clients: int, seconds: float, answers: Path | None = None) -> dict:
    """Let `wrk` ask for a while; return requests, failures, and seconds of p50 and p99."""
    script = folder / "load.lua"
    script.write_text(SCRIPT)
    variables = {**os.environ, "BODIES": str(bodies)} | ({"ANSWERS": str(answers)} if answers else {})
    command = ["wrk", f"-t{clients}", f"-c{clients}", f"-d{seconds:g}s", "--timeout", "20s", "--latency"]
    done = subprocess.run(
        [*command, "-s", str(script), f"{url}/predict"], env=variables, capture_output=True, text=True, check=True
    )
    return parse(done.stdout)


def parse(text: str) -> dict[str, float]:
    """Return the figures of `wrk`'s report."""
    units = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
    seconds = {}
    for share in ("50", "99"):
        value, unit = re.search(rf"{share}%\s+([\d.]+)(us|ms|s)", text).groups()
        seconds[f"p{share}"] = float(value) * units[unit]
    failed = sum(map(int, re.findall(r"(?:connect|read|write|timeout) (\d+)", text)))
    failed += sum(map(int, re.findall(r"Non-2xx or 3xx responses: (\d+)", text)))
    rate = float(re.search(r"Requests/sec:\s+([\d.]+)", text)[1])
    return {"requests": int(re.search(r"(\d+) requests in", text)[1]), "failed": failed, "rate": rate, **seconds}


def write_bodies(path: Path, rows: int) -> Path:
    """Write request bodies of so many rows, one a line."""
    pool = serve_model.pool()
    with open(path, "w") as file:
        for start in range(0, len(pool), rows):
            file.write(json.dumps({"rows": pool[start : start + rows]}, separators=(",", ":")) + "\n")
    return path


# -- one version an answer -------------------------------------------------------------------------------------------


def read_answers(paths: list[Path]) -> Iterator[tuple[int, int, int, list[float]]]:
    """Yield row, status, version and probabilities of every answer that was written down in full."""
    for path in paths:
        for line in path.read_text().splitlines():
            row, status, version, answer = (line.split(" ", 3) + ["-"] * 4)[:4]
            complete = answer.startswith("[")
            yield int(row), int(status), int(version) if complete else -1, json.loads(answer) if complete else []


def torn_answers(folder: Path, answers: Any, rows: list[dict[str, object]]) -> tuple[int, int, int]:
    """Compute every version's predictions from its files; return answers, versions, and answers of no version."""
    from trainer.serving import ServedModel

    # Versions differ by far more. To the bit where oneDNN has AVX-512; with AVX2 the last rows of a batch are summed in
    # another order, so a row's last bits depend on its position in the batch.
    tolerance = 1e-6
    by_version: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for row, _, version, values in answers:
        by_version[version].append((row, values[0] if len(values) == 1 else float("nan")))
    torn = 0
    for version, given in sorted(by_version.items()):
        if version < 0:
            torn += len(given)
            continue
        with ServedModel(folder, version=version, follow=False) as model:
            expected = model.predict(rows, output="probability")
        which, values = np.array([row for row, _ in given]), np.array([value for _, value in given], np.float32)
        torn += int((~np.isclose(values, expected[which], rtol=0, atol=tolerance)).sum())
    return sum(map(len, by_version.values())), len(by_version), torn


class Trained:
    """The process that trains and publishes."""

    def __init__(self, folder: Path, every: float) -> None:
        command = [sys.executable, str(HERE / "serve_model.py"), str(folder), "--every", str(every)]
        environment = {**os.environ, "GLOG_v": "3"}
        if checkout := environment.get(EARLIER_VARIABLE):
            environment["PYTHONPATH"] = checkout  # the packages of another commit
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def load(folder: Path, requests: int, every: float, clients: int = 16) -> dict[str, Any]:
    """Run the first part; return what was asked, and what went wrong."""
    published = folder / "published"
    trained = Trained(published, every)
    wait_for_version(published)
    server = Server(published)
    bodies, answers = write_bodies(folder / "bodies-1", 1), folder / "answers"
    total, failed, rounds = 0, 0, []
    before = server.ask("/readyz")[2]["version"]
    while total < requests:
        if len(rounds) == 4:
            trained.kill()
            trained = Trained(published, every)
        figures = wrk(server.url, folder, bodies, clients, 10, answers)
        total, failed = total + figures["requests"], failed + figures["failed"]
        rounds.append(figures)
        print(f"  {total:,} requests, {failed} failed, version {server.ask('/readyz')[2]['version']}", flush=True)
    after = server.ask("/readyz")[2]["version"]
    trained.kill()
    server.stop()
    checked, versions, torn = torn_answers(
        published, read_answers(sorted(folder.glob("answers.*"))), serve_model.pool()
    )
    return {
        "requests": total,
        "failed": failed,
        "checked": checked,
        "versions": versions,
        "torn": torn,
        "first_version": before,
        "last_version": after,
        "rate": statistics.median(r["rate"] for r in rounds),
        "p50_ms": 1e3 * statistics.median(r["p50"] for r in rounds),
        "p99_ms": 1e3 * statistics.median(r["p99"] for r in rounds),
    }


# -- latency -----------------------------------------------------------------------------------------------------------


def latency(folder: Path, peer: str | None, rounds: int, seconds: float) -> list[list[str]]:
    """Run the second part; return the lines of its table."""
    published = folder / "still"
    serve_model.train(published, 1.0, 1e9, 5.0)
    servers: dict[str, Any] = {"trainer serve": Server(published)}
    if peer:
        servers["LitServe"] = PeerServer(peer, folder)
    lines = []
    for rows in (1, 100):
        bodies = write_bodies(folder / f"bodies-{rows}", rows)
        for clients in (1, 16):
            figures: dict[str, list[dict]] = {name: [] for name in servers}
            for number in range(rounds + 1):
                for name, server in servers.items():
                    result = wrk(server.url, folder, bodies, clients, seconds)
                    if number:  # the first is a warm-up
                        figures[name].append(result)
            for name, results in figures.items():
                p50, p99, rate = (statistics.median(r[key] for r in results) for key in ("p50", "p99", "rate"))
                failed = sum(r["failed"] for r in results)
                lines.append(
                    [
                        name,
                        str(rows),
                        str(clients),
                        f"{p50 * 1e3:.2f}",
                        f"{p99 * 1e3:.2f}",
                        f"{rate * rows:,.0f}",
                        str(failed),
                    ]
                )
                print("  " + " | ".join(lines[-1]), flush=True)
    for server in servers.values():
        server.stop()
    return lines


class PeerServer:
    """LitServe with the same network in PyTorch."""

    def __init__(self, python: str, folder: Path) -> None:
        self.url = "http://127.0.0.1:18765"
        self._log = open(folder / "peer.log", "w")  # noqa: SIM115
        self.process = subprocess.Popen(
            [python, str(HERE / "serve_peer.py"), "18765"],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        import urllib.request

        for _ in range(240):
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=1).read()
                return
            except OSError:
                time.sleep(0.25)
        raise RuntimeError((folder / "peer.log").read_text()[-2000:])

    def stop(self) -> None:
        os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self._log.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200_000)
    parser.add_argument("--every", type=float, default=2.0, help="seconds between versions")
    parser.add_argument("--peer", metavar="PYTHON", help="interpreter with litserve and torch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of a round")
    parser.add_argument("--part", choices=("load", "latency"), help="default: both")
    given = parser.parse_args()
    if shutil.which("wrk") is None:
        sys.exit("this needs wrk: apt-get install wrk")
    with lifetime.guarded("serve-load-") as folder:
        if given.part != "latency":
            print(json.dumps(load(folder, given.requests, given.every), indent=1))
        if given.part != "load":
            print("| server | rows | clients | p50 ms | p99 ms | rows/s | failed |")
            for line in latency(folder, given.peer, given.rounds, given.seconds):
                print("| " + " | ".join(line) + " |")


if __name__ == "__main__":
    main()
