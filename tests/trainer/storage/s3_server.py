"""A real S3 server for tests: moto's, as a program of its own, whose objects outlive it.

    python s3_server.py PORT FOLDER

Objects are kept in FOLDER. A file ``fault.json`` there, ``{"method", "ends", "when"}``, makes the program die at the
first request of that method whose path ends so: "before" it is handled, in the "middle" of its body, or "after" it has
been handled and before it is answered.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from urllib.parse import quote, unquote

KEY, SECRET = "key-of-the-test", "secret-of-the-test"


class S3Server:
    """The program, started on a free port and stopped by its process."""

    def __init__(self, folder):
        self.folder = Path(folder)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.environment = {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.url,
        }
        self.process = None

    def start(self, **environment):
        assert self.process is None or self.died, "it runs"
        command = [sys.executable, __file__, str(self.port), str(self.folder)]
        with open(self.folder / "server.log", "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **environment})
        for _ in range(3000):
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return self
            except OSError:
                assert self.process.poll() is None, (self.folder / "server.log").read_text()
                time.sleep(0.02)
        raise RuntimeError("the S3 server did not start")

    def kill(self):
        """Stop it the hard way, by its own process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def die_at(self, method, ends, when):
        (self.folder / "fault.json").write_text(json.dumps({"method": method, "ends": ends, "when": when}))

    @property
    def died(self):
        return self.process is not None and self.process.poll() is not None

    def make_bucket(self, name):
        urllib.request.urlopen(urllib.request.Request(f"{self.url}/{name}", method="PUT")).read()

    def objects(self):
        """Return what it holds: "bucket/key" -> bytes."""
        files = (self.folder / "objects").iterdir()
        return {unquote(path.name): path.read_bytes() for path in files if path.suffix != ".tmp"}


class _Kept:
    """WSGI: the application with its objects kept in a folder, and the fault."""

    def __init__(self, application, folder):
        self._application, self._folder = application, Path(folder)
        self._objects = self._folder / "objects"
        self._objects.mkdir(exist_ok=True)
        self._written = {}
        self._load()

    @staticmethod
    def _backend():
        from moto.s3.models import s3_backends

        return s3_backends["123456789012"]["aws"]

    def _load(self):
        backend = self._backend()
        for bucket in json.loads(self._buckets().read_text()) if self._buckets().exists() else []:
            backend.create_bucket(bucket, "us-east-1")
        for path in self._objects.iterdir():
            if path.suffix != ".tmp":
                bucket, _, key = unquote(path.name).partition("/")
                backend.put_object(bucket, key, path.read_bytes())

    def _buckets(self):
        return self._folder / "buckets.json"

    def _save(self):
        backend, present = self._backend(), set()
        self._buckets().with_suffix(".tmp").write_text(json.dumps(list(backend.buckets)))
        os.replace(self._buckets().with_suffix(".tmp"), self._buckets())
        for bucket in backend.buckets.values():
            for key, value in bucket.keys.items():
                name = quote(f"{bucket.name}/{key}", safe="")
                present.add(name)
                if self._written.get(name) != (value.etag, value.last_modified):
                    (self._objects / f"{name}.tmp").write_bytes(value.value)
                    os.replace(self._objects / f"{name}.tmp", self._objects / name)
                    self._written[name] = (value.etag, value.last_modified)
        for path in self._objects.iterdir():
            if path.name not in present:
                path.unlink()

    def __call__(self, environ, start_response):
        method, path = environ["REQUEST_METHOD"], unquote(environ["PATH_INFO"])
        fault = self._fault(method, f"{path}?{environ['QUERY_STRING']}")
        if fault == "middle":
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0) // 2)
        if fault in ("before", "middle"):
            os._exit(9)
        answer = list(self._application(environ, start_response))
        if method != "GET":
            self._save()
        if fault == "after":
            os._exit(9)
        return answer

    def _fault(self, method, path):
        file = self._folder / "fault.json"
        with contextlib.suppress(FileNotFoundError):
            fault = json.loads(file.read_text())
            if method == fault["method"] and fault["ends"] in path:
                file.unlink()
                return fault["when"]
        return None


def main(port, folder):
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import run_simple

    application = DomainDispatcherApplication(create_backend_app)
    # One thread: what is saved is the state between two requests.
    run_simple("127.0.0.1", port, _Kept(application, folder), threaded=False)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
