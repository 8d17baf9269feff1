"""`MLflowLogger`: logs a run to MLflow."""

from __future__ import annotations

import contextlib
import fcntl
import posixpath
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.cadence import Every
from trainer.checks import require
from trainer.errors import ConfigurationError

from ..callback import Trainer
from .logger import Logger
from .sender import Sender

FLUSH_SECONDS = 5.0
CLOSE_SECONDS = 60.0
MAX_LENGTH = 200  # of a name; MLflow accepts 250 characters


def mlflow_name(name: str) -> str:
    """Return the name of a metric or parameter in MLflow: "ndcg@5" is "ndcg_at_5".

    MLflow accepts few signs, and refuses all values of a call if it refuses the name of one of them.
    """
    plain = re.sub(r"[^/\w.\- ]", "_", name.replace("@", "_at_"))[:MAX_LENGTH]
    return re.sub(r"^[./]+", "_", posixpath.normpath(plain))


def _own_name(name: str, names: dict[str, str]) -> str:
    """Return the name in MLflow by `names`, where it is added if missing."""
    if name not in names:
        other = mlflow_name(name)
        while other in names.values():  # of another metric: "auc/grade=A*" beside "auc/grade=A+"
            other += "_"
        names[name] = other
    return names[name]


@contextlib.contextmanager
def _only_creator(uri: str) -> Iterator[None]:
    """Wait until no other process creates the tables of an SQLite file."""
    path = uri.partition("?")[0].removeprefix("sqlite:///")
    if not uri.startswith("sqlite:///") or path in ("", ":memory:"):
        yield
        return
    with open(f"{path}.lock", "w") as file:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _is_temporary(error: Exception) -> bool:
    """Return whether a failed request may succeed later (the server is unavailable)."""
    from requests import exceptions

    if isinstance(error, ConnectionError | TimeoutError | exceptions.ConnectionError | exceptions.Timeout):
        return True
    code = getattr(error, "error_code", None)
    return code in ("INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE", "REQUEST_LIMIT_EXCEEDED")


class MLflowLogger(Logger):
    """Logs a run to MLflow: metrics, parameters, snapshots as artifacts.

    Names are changed where MLflow does not accept them: "ndcg@5" becomes "ndcg_at_5", "auc/site=3" becomes
    "auc/site_3". A name that another metric or parameter has already gets a "_" at its end.

    A resumed run continues the same MLflow run. MLflow cannot delete points, so the points logged after the snapshot
    remain, and the resumed run adds new points for the same steps. MLflow's global state is not changed.

    A background thread sends the requests. Training waits for it only at snapshots, for at most 5 s. While the server
    is unavailable, up to 10,000 requests are queued, and a warning is logged once.

    Args:
        experiment: name of the experiment, which is created if missing.
        tracking_uri: MLflow's server or database; None for ``sqlite:///<run_dir>/mlflow.db``.
        run_name: name of the run; None for the name of the run folder.
        log_snapshots: whether the files of each snapshot are uploaded.
        every, hparams: see `Logger`.

    Raises:
        ConfigurationError: at `setup`, MLflow is not installed, or there is neither a tracking URI nor a run folder.
    """

    def __init__(
        self,
        experiment: str = "mindspore-trainer",
        tracking_uri: str | None = None,
        run_name: str | None = None,
        log_snapshots: bool = False,
        every: Every | int | None = None,
        hparams: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(every, hparams)
        self.experiment, self.tracking_uri = experiment, tracking_uri
        self.run_name = self._given_name = run_name
        self.log_snapshots = bool(log_snapshots)
        self.run_id: str | None = None
        self._names: dict[str, str] = {}  # name of a metric -> its name in MLflow
        self._sender: Any = None

    def setup(self, trainer: Trainer) -> None:
        tracking = require("mlflow.tracking", "MLflowLogger needs MLflow", "mlflow")
        self._artifacts: str | None = None
        uri, run_dir = self.tracking_uri, trainer.run_dir
        if uri is None:
            if run_dir is None:
                raise ConfigurationError("MLflowLogger needs MLflowLogger(tracking_uri=...) or Trainer(run_dir=...)")
            folder = Path(run_dir).absolute()
            folder.mkdir(parents=True, exist_ok=True)
            uri, self._artifacts = f"sqlite:///{folder / 'mlflow.db'}", (folder / "mlartifacts").as_uri()
        self.run_name = self._given_name or (None if run_dir is None else Path(run_dir).name)
        self.run_id, self._names = None, {}
        try:
            with _only_creator(uri):
                self._client = tracking.MlflowClient(tracking_uri=uri)
        except Exception as error:  # of MLflow, or of the database
            raise ConfigurationError(f"MLflowLogger(tracking_uri={uri!r}): {error}") from error

    def open(self, trainer: Trainer, step: int) -> None:
        self._failed = False
        self._sender = Sender("MLflowLogger", _is_temporary)
        if not step:
            self.run_id, self._names = None, {}
        self._has_logged_hparams = self.run_id is not None  # a further training has another MLflow run
        self._sender.send(self._open)

    def _open(self) -> None:
        client = self._client
        if self.run_id is not None:
            client.update_run(self.run_id, status="RUNNING")
            return
        known = client.get_experiment_by_name(self.experiment)
        if known is None:
            from mlflow.exceptions import MlflowException

            try:
                client.create_experiment(self.experiment, self._artifacts)
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":  # by another process, just now
                    raise
            known = client.get_experiment_by_name(self.experiment)
        self.run_id = client.create_run(known.experiment_id, run_name=self.run_name).info.run_id

    def log_metrics(self, values: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        points = [Metric(_own_name(name, self._names), float(value), now, step) for name, value in values.items()]
        self._sender.send(lambda: self._client.log_batch(self.run_id, points))

    def log_hyperparameters(self, values: Mapping[str, Any], metrics: Sequence[str]) -> None:
        """Log only new parameters, because MLflow refuses to change logged ones."""
        names: dict[str, str] = {}

        def send() -> None:
            from mlflow.entities import Param

            known = self._client.get_run(self.run_id).data.params
            params = {_own_name(name, names): str(value) for name, value in values.items()}
            new = [Param(name, value) for name, value in params.items() if name not in known]
            self._client.log_batch(self.run_id, params=new)

        self._sender.send(send)

    def log_results(self, values: Mapping[str, float], step: int) -> None:
        self.log_metrics(values, step)

    def log_snapshot(self, path: Path, step: int) -> None:
        if self.log_snapshots:
            self._sender.send(lambda: self._client.log_artifacts(self.run_id, str(path), f"snapshots/{path.name}"))
        else:
            self._sender.send(lambda: self._client.set_tag(self.run_id, "snapshot", str(path)))

    def flush(self) -> None:
        self._sender.wait(FLUSH_SECONDS)

    def on_exception(self, trainer: Trainer) -> None:
        self._failed = True

    def close(self) -> None:
        """End the run, and wait up to `CLOSE_SECONDS` until all requests are sent."""
        status = "FAILED" if self._failed else "FINISHED"
        self._sender.send(lambda: self._client.set_terminated(self.run_id, status))
        sender, self._sender = self._sender, None
        sender.close(CLOSE_SECONDS)

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs to continue the MLflow run: id and names."""
        return {"run_id": self.run_id, "names": dict(self._names)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.run_id = state["run_id"]
        self._names = dict(state.get("names", {}))  # missing in older snapshots
