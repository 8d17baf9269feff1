"""`PrometheusMonitor`: serves the state of a run to Prometheus."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from trainer.cadence import Every, cadence
from trainer.checks import refuse, require, whole

from .callback import Callback, Trainer
from .output import window_numbers

_HELP = {
    "epoch": "Epochs finished",
    "global_step": "Optimizer steps done",
    "samples_seen": "Rows trained on",
    "skipped_steps": "Updates skipped because of an overflow or a non-finite value",
    "loss": "Training loss of the newest step",
}


class PrometheusMonitor(Callback):
    """Serves a run's counters, losses and metrics to Prometheus.

    Gauges: <namespace>_global_step, _samples_seen, _loss, _samples_per_second, _val_*, _window_*, ... It has its own
    registry, so other metrics of the process are not served. The endpoint is closed at teardown.

    Args:
        port: TCP port; 0 for any free port (see the attribute).
        addr: address to listen on; "0.0.0.0" for all interfaces.
        every: cadence at which the gauges are updated, or number of optimizer steps. None: every 5 seconds.
        namespace: prefix of the metric names.

    Attributes:
        port: the port that is served, set by `setup`.

    Raises:
        ConfigurationError: an argument is invalid; at `setup`, prometheus_client is not installed.
        OSError: at `setup`, the port is in use.
    """

    main_only = True
    reports_only = True

    def __init__(
        self, port: int = 8000, addr: str = "127.0.0.1", every: Every | int | None = None, namespace: str = "trainer"
    ) -> None:
        self.port = whole("PrometheusMonitor(port=...)", port, 0, maximum=65535)
        if not isinstance(namespace, str) or not namespace.isidentifier():
            refuse("PrometheusMonitor(namespace=...)", "letters, digits and _", namespace)
        self.addr, self.namespace = addr, namespace
        self.every = cadence("PrometheusMonitor", every, Every(seconds=5))
        self._requested_port = port
        self._rate_start = (0.0, 0)  # time and number of rows when the rate was last computed
        self._server: Any = None

    def setup(self, trainer: Trainer) -> None:
        client = require("prometheus_client", "PrometheusMonitor needs prometheus_client", "prometheus")
        import threading
        from wsgiref.simple_server import WSGIRequestHandler, make_server

        class QuietHandler(WSGIRequestHandler):
            def log_message(self, *args: Any) -> None:
                """Do not print scrapes to the terminal."""

        self.teardown(trainer)
        self._registry = client.CollectorRegistry()
        self._gauges: dict[str, Any] = {}
        self._metric_names: set[str] = set()
        app = client.make_wsgi_app(self._registry)
        server_class = client.exposition.ThreadingWSGIServer
        self._server = make_server(self.addr, self._requested_port, app, server_class, handler_class=QuietHandler)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, name="prometheus", daemon=True)
        self._thread.start()

    def _set(self, name: str, value: float) -> None:
        if name not in self._gauges:
            from prometheus_client import Gauge

            metric_name = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in name)
            while metric_name in self._metric_names:  # of another name, such as "auc/grade=A-" beside "auc/grade=A+"
                metric_name += "_"
            self._metric_names.add(metric_name)
            text = _HELP.get(name, name.replace("_", " "))
            self._gauges[name] = Gauge(metric_name, text, namespace=self.namespace, registry=self._registry)
        self._gauges[name].set(value)

    def _update_gauges(self, trainer: Trainer) -> None:
        state, now = trainer.state, time.monotonic()
        values = {name: getattr(state.progress, name) for name in ("epoch", "global_step", "samples_seen")}
        values["skipped_steps"] = state.skipped_steps
        if state.outputs is not None:
            values["loss"] = state.outputs.loss
        values |= {name: value for name, value in state.metrics.items() if name.startswith("val_")}
        for name, value in {**values, **state.task_losses, **window_numbers(trainer)}.items():
            self._set(name, value)
        if values["samples_seen"] != self._rate_start[1]:
            then, rows = self._rate_start
            self._set("samples_per_second", (values["samples_seen"] - rows) / max(now - then, 1e-9))
            self._rate_start = now, values["samples_seen"]
        self._set("last_update_timestamp_seconds", time.time())

    def on_train_begin(self, trainer: Trainer) -> None:
        self.every.start(trainer.state.progress)
        self._rate_start = time.monotonic(), trainer.state.progress.samples_seen
        self._set("samples_per_second", 0.0)
        self._update_gauges(trainer)

    def on_train_step_end(self, trainer: Trainer) -> None:
        if self.every.due(trainer.state.progress):
            self._update_gauges(trainer)

    def on_save_checkpoint(self, trainer: Trainer) -> None:
        if self._server is not None and trainer.state.snapshot is not None:
            self._set("last_snapshot_timestamp_seconds", Path(trainer.state.snapshot).stat().st_mtime)

    def on_train_end(self, trainer: Trainer) -> None:
        self._update_gauges(trainer)

    def teardown(self, trainer: Trainer) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
            self._server = None
