"""While versions are published and the model's process is killed, every request is answered by one version."""

from __future__ import annotations

import http.client
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parents[2]))  # benchmarks are not installed

from benchmarks import serve_load, serve_model
from benchmarks.serve_process import Server, wait_for_version

CLIENTS = 4
ANSWERS = 200  # before and after the kill


def wait_for(condition, answers):
    """Wait until so many answers meet the condition."""
    until = time.monotonic() + 60
    while sum(map(condition, list(answers))) < ANSWERS:
        assert time.monotonic() < until, f"{len(answers)} answers, the last: {answers[-3:]}"
        time.sleep(0.02)


def test_every_answer_under_load_is_one_versions(tmp_path):
    published, rows = tmp_path / "published", serve_model.pool(200)
    trained = serve_load.Trained(published, 2.0)
    answers, stop = [], threading.Event()
    try:
        wait_for_version(published)
        server = Server(published, "--workers", "2")
        asking = [threading.Thread(target=ask, args=(server.url, rows, answers, stop)) for _ in range(CLIENTS)]
        for thread in asking:
            thread.start()
        wait_for(lambda answer: True, answers)
        model_process, before = server.model_process(), max(version for _, _, version, _ in answers)
        os.kill(model_process, signal.SIGKILL)
        while server.ask("/readyz")[0] == 200:
            time.sleep(0.01)
        while server.ask("/readyz")[0] != 200:
            time.sleep(0.05)
        assert server.ask("/readyz")[2]["version"] >= before
        wait_for(lambda answer: answer[2] > before, answers)
    finally:
        stop.set()
        trained.kill()
    for thread in asking:
        thread.join()
    server.stop()
    assert f"({model_process}) was ended by SIGKILL" in "".join(server.lines)
    assert {status for _, status, _, _ in answers} == {200}
    checked, versions, torn = serve_load.torn_answers(published, answers, rows)
    assert (checked, torn) == (len(answers), 0)
    assert versions >= 2


def ask(url, rows, answers, stop):
    """Ask for one row after the other until `stop`."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    number = 0
    while not stop.is_set():
        number = (number + 61) % len(rows)
        connection.request("POST", "/predict", json.dumps(rows[number]), {"Content-Type": "application/json"})
        response = connection.getresponse()
        body = json.loads(response.read())
        answers.append((number, response.status, body.get("version", -1), body.get("probability", [])))
    connection.close()


def test_what_the_load_client_reports_is_read():
    report = """  Latency Distribution
     50%    1.25ms
     99%  296.42us
  26448 requests in 10.00s, 5.10MB read
  Socket errors: connect 0, read 1, write 0, timeout 2
  Non-2xx or 3xx responses: 4
Requests/sec:    620.06
"""
    figures = serve_load.parse(report)
    assert (figures["requests"], figures["failed"], figures["rate"]) == (26448, 7, 620.06)
    assert (figures["p50"], round(figures["p99"], 9)) == (0.00125, 0.00029642)
