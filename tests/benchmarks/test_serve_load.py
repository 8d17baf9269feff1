"""Replicas of a server on one published folder: every request is answered by one version, whatever ends or restarts."""

from __future__ import annotations

import http.client
import json
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # benchmarks are not installed

from benchmarks import serve_load, serve_model
from benchmarks.serve_process import Server, wait_for_version

pytestmark = pytest.mark.server

CLIENTS = 4
ANSWERS = 100  # before and after each change


class Balancer:
    """A client's share of a load balancer: the next replica answers what one of them did not."""

    def __init__(self, urls):
        self.connections = [http.client.HTTPConnection(urlsplit(url).netloc, timeout=30) for url in urls]

    def post(self, body):
        """Return status and content of the first answer that is no 503."""
        until = time.monotonic() + 60
        while time.monotonic() < until:
            connection = self.connections.pop(0)
            self.connections.append(connection)
            try:
                connection.request("POST", "/predict", body, {"Content-Type": "application/json"})
                response = connection.getresponse()
                content = json.loads(response.read())
                if response.status != 503:
                    return response.status, content
            except (OSError, http.client.HTTPException):  # it has ended, or is not up yet
                connection.close()
        raise AssertionError("no replica answered within 60 s")


@pytest.mark.long
def test_replicas_answer_every_request_while_they_end_and_restart(tmp_path):
    published, rows = tmp_path / "published", serve_model.pool(200)
    trained = serve_load.Trained(published, 2.0)
    answers, stop = [], threading.Event()
    try:
        wait_for_version(published)
        with ThreadPoolExecutor() as starting:
            replicas = list(starting.map(Server, [published] * 3))
        urls = [replica.url for replica in replicas]
        asking = [threading.Thread(target=ask, args=(urls, rows, answers, stop)) for _ in range(CLIENTS)]
        for thread in asking:
            thread.start()
        wait_for(lambda answer: True, answers)
        assert replicas[0].stop() == 128 + signal.SIGTERM
        replicas[1].process.kill()
        before = max(version for _, _, version, _ in answers)
        wait_for(lambda answer: answer[2] > before, answers)  # from the third
        replicas[0] = Server(published, port=urlsplit(urls[0]).port)
        replicas[2].process.kill()
        before = max(version for _, _, version, _ in answers)
        wait_for(lambda answer: answer[2] > before, answers)  # from the first
    finally:
        stop.set()
        trained.kill()
    for thread in asking:
        thread.join()
    for replica in replicas:
        replica.stop()
    assert {status for _, status, _, _ in answers} == {200}
    checked, versions, torn = serve_load.torn_answers(published, answers, rows)
    assert (checked, torn) == (len(answers), 0)
    assert versions >= 3


def wait_for(condition, answers):
    """Wait until so many answers meet the condition."""
    until = time.monotonic() + 60
    while sum(map(condition, list(answers))) < ANSWERS:
        assert time.monotonic() < until, f"{len(answers)} answers, the last: {answers[-3:]}"
        time.sleep(0.02)


def ask(urls, rows, answers, stop):
    """Ask for one row after the other until `stop`."""
    balancer, number = Balancer(urls), 0
    while not stop.is_set():
        number = (number + 61) % len(rows)
        status, body = balancer.post(json.dumps(rows[number]))
        answers.append((number, status, body.get("version", -1), body.get("probability", [])))


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
