"""`trainer serve` as a process, for tests and benchmarks."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.worker import EARLIER_VARIABLE

ROOT = Path(__file__).resolve().parents[1]


class Server:
    """A running `trainer serve`.

    Args:
        folder: what is served.
        arguments: further arguments of the command.
        port: 0 takes a free one.
        environment: further variables.
    """

    def __init__(self, folder, *arguments, port=0, **environment):
        command = [sys.executable, "-m", "trainer", "serve", str(folder), "--port", str(port), *arguments]
        variables = {**os.environ, "GLOG_v": "3", **environment}
        checkout = os.environ.get(EARLIER_VARIABLE, ROOT)  # `python -m` takes the packages of the working directory
        self.process = subprocess.Popen(
            command, cwd=checkout, env=variables, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )
        self.lines, self.url = [], None
        for line in self.process.stderr:
            self.lines.append(line)
            if found := re.search(r"is served at (http://\S+)", line):
                self.url = found[1]
                break
        self.connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=30) if self.url else None

    def ask(self, path, body=None, media="application/json", **headers):
        """Return status, headers and content of an answer; a body of another kind than bytes is sent as JSON."""
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None:
            headers["Content-Type"] = media
        self.connection.request("GET" if body is None else "POST", path, body, headers)
        answer = self.connection.getresponse()
        content = answer.read()
        is_json = answer.headers.get_content_type() == "application/json"
        return answer.status, answer.headers, json.loads(content) if is_json else content

    def stop(self, number=signal.SIGTERM):
        """End it and return its exit code; what it wrote is in `lines` then."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        if not self.process.stderr.closed:
            self.lines += self.process.stderr.read().splitlines(keepends=True)
            self.process.stderr.close()
        if self.connection is not None:
            self.connection.close()
        return self.process.wait(30)


def wait_for_version(folder, seconds=120.0):
    """Wait until something is published in a folder."""
    until = time.monotonic() + seconds
    while not (Path(folder) / "current.json").is_file():
        if time.monotonic() > until:
            raise RuntimeError(f"nothing was published in {folder} within {seconds:g} s")
        time.sleep(0.05)
