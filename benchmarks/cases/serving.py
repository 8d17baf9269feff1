"""(s) Serving: one raw row in process, and `trainer serve` by HTTP, alone and while the model trains and publishes.

What is measured is what `benchmarks/serve_row.py` and `benchmarks/serve_load.py` measure. The client, `wrk`, shares the
cores with the server and the training. It corrects latencies for coordinated omission: a pause of the server counts as
often as requests would have come in it.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import serve_load, serve_model, serve_row
from benchmarks.measure import OURS, Group
from benchmarks.serve_process import Server, wait_for_version

BOTH, ONE = "ServedModel.predict, programs of 128 and 256 rows", "ServedModel.predict, programs of 1 and 256 rows"
SIZES = {BOTH: [128, 256], ONE: [1, 256]}
SINGLE, HUNDRED, TRAINING = "1 row a request", "100 rows a request", "1 row a request, p99"
ROWS = {SINGLE: 1, HUNDRED: 100, TRAINING: 1}
PROGRAMS = {SINGLE: 256, HUNDRED: (256, 1024)}  # rows; the server scores requests that wait in one call
CLIENTS = 16


def groups(quick: bool) -> list[Group]:
    """Return what this case measures."""
    row, http = {"rows": 200 if quick else 2000}, {"seconds": 1.0 if quick else 10.0}
    return [
        _group("one raw row of DeepFM, 13 numbers and 26 categories, p50", (BOTH, ONE), row, "ms", most={ONE: 0.5}),
        *(
            _group(f"trainer serve, 16 clients, {name}", (name,), http, "rows/s", goals={name: goal})
            for name, goal in ((SINGLE, 1000.0), (HUNDRED, 100_000.0))
        ),
        _group(
            f"trainer serve, 16 clients, while the model trains, {TRAINING}",
            (TRAINING,),
            http,
            "ms",
            most={TRAINING: 15.0},
        ),
    ]


def _group(title: str, names: tuple[str, ...], options: dict[str, Any], unit: str, **goals: dict[str, float]) -> Group:
    return Group("serving", title, "serving", dict.fromkeys(names, OURS), options, unit=unit, **goals)


def make(name: str, options: dict[str, Any]) -> Any:
    """Return a contender."""
    return InProcess(SIZES[name], **options) if name in SIZES else Http(name, **options)


class InProcess:
    """A published model in this process, and raw rows."""

    def __init__(self, sizes: list[int], rows: int) -> None:
        from trainer.serving import ServedModel

        self._folder = tempfile.TemporaryDirectory()
        serve_row.publish(Path(self._folder.name) / "published", sizes)
        self.model = ServedModel(Path(self._folder.name) / "published", follow=False)
        self.rows = serve_row.raw_rows(rows)

    def window(self) -> dict[str, float]:
        """Predict each row alone."""
        median, p99 = serve_row.milliseconds(self.model.predict, self.rows)
        return {"seconds": median / 1e3, "p99_ms": p99}


class Http:
    """A server, and `wrk`."""

    def __init__(self, name: str, seconds: float) -> None:
        if shutil.which("wrk") is None:
            raise RuntimeError("this needs wrk: apt-get install wrk")
        self.name, self.seconds = name, seconds
        self._folder = tempfile.TemporaryDirectory()
        self.folder = Path(self._folder.name)
        published = self.folder / "published"
        if name == TRAINING:
            atexit.register(serve_load.Trained(published, 2.0).kill)
            wait_for_version(published)
        else:
            serve_model.train(published, 1.0, 1e9, 5.0, PROGRAMS[name])
        self.server = Server(published)
        atexit.register(self.server.stop)
        self.bodies = serve_load.write_bodies(self.folder / "bodies", ROWS[name])
        self.window()

    def window(self) -> dict[str, float]:
        """Ask for some seconds.

        Raises:
            RuntimeError: a request failed.
        """
        told = serve_load.wrk(self.server.url, self.folder, self.bodies, CLIENTS, self.seconds)
        if told["failed"]:
            raise RuntimeError(f"{told['failed']} of {told['requests']} requests failed")
        found = {"p50_ms": told["p50"] * 1e3, "p99_ms": told["p99"] * 1e3}
        if self.name == TRAINING:
            return {"seconds": told["p99"], **found}
        return {"seconds": 1.0, "rows": told["rate"] * ROWS[self.name], **found}
