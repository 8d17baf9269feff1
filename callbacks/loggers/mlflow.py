"""`MLflowLogger`: a run as a run of MLflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.cadence import Every
from trainer.errors import ConfigurationError

from .logger import Logger

if TYPE_CHECKING:
    from trainer.trainer import Trainer


class MLflowLogger(Logger):
    """Logs a run to MLflow: metrics, parameters, snapshots as artifacts.

    A resumed run goes on in the same MLflow run. MLflow cannot delete points: those after the snapshot stay, and the
    new ones of the same step come after them. No global state of MLflow is changed.

    Args:
        experiment: name of the experiment; it is made where it is missing.
        tracking_uri: MLflow's server or database; None for ``sqlite:///<run_dir>/mlflow.db``.
        run_name: name of the run; None for the name of the run folder.
        log_snapshots: whether the files of every snapshot are uploaded.
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
        self.experiment, self.tracking_uri, self.run_name = experiment, tracking_uri, run_name
        self.log_snapshots = bool(log_snapshots)
        self.run_id: str | None = None
        self._client: Any = None
        self._failed = False

    def setup(self, trainer: Trainer) -> None:
        """Connect to the server or database."""
        try:
            from mlflow.tracking import MlflowClient
        except ImportError as error:
            raise ConfigurationError("MLflowLogger needs MLflow: pip install 'mindspore-trainer[mlflow]'") from error
        self._artifacts: str | None = None
        uri, run_dir = self.tracking_uri, trainer.run_dir
        if uri is None:
            if run_dir is None:
                raise ConfigurationError("MLflowLogger needs MLflowLogger(tracking_uri=...) or Trainer(run_dir=...)")
            folder = Path(run_dir).absolute()
            folder.mkdir(parents=True, exist_ok=True)
            uri, self._artifacts = f"sqlite:///{folder / 'mlflow.db'}", (folder / "mlartifacts").as_uri()
        if self.run_name is None and run_dir is not None:
            self.run_name = Path(run_dir).name
        self.run_id = None
        self._client = MlflowClient(tracking_uri=uri)

    def open(self, trainer: Trainer, step: int) -> None:
        """Begin a run, or go on with the one of the snapshot."""
        self._failed = False
        if step and self.run_id is not None:
            self._client.update_run(self.run_id, status="RUNNING")
            return
        known = self._client.get_experiment_by_name(self.experiment)
        experiment = known.experiment_id if known else self._client.create_experiment(self.experiment, self._artifacts)
        self.run_id = self._client.create_run(experiment, run_name=self.run_name).info.run_id

    def log_metrics(self, values: Mapping[str, float], step: int) -> None:
        """Log numbers in one request."""
        import time

        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._client.log_batch(self.run_id, [Metric(name, float(value), now, step) for name, value in values.items()])

    def log_hyperparameters(self, values: Mapping[str, Any], metrics: Sequence[str]) -> None:
        """Log parameters; MLflow refuses to change those of an earlier attempt, which stay."""
        from mlflow.entities import Param

        known = self._client.get_run(self.run_id).data.params
        new = [Param(name, str(value)) for name, value in values.items() if name not in known]
        self._client.log_batch(self.run_id, params=new)

    def log_results(self, values: Mapping[str, float], step: int) -> None:
        """Log last and best values."""
        self.log_metrics(values, step)

    def log_snapshot(self, path: Path, step: int) -> None:
        """Upload a snapshot, or note where it is."""
        if self.log_snapshots:
            self._client.log_artifacts(self.run_id, str(path), f"snapshots/{path.name}")
        else:
            self._client.set_tag(self.run_id, "snapshot", str(path))

    def on_exception(self, trainer: Trainer) -> None:
        """Remember that the run failed."""
        self._failed = True

    def close(self) -> None:
        """End the run."""
        self._client.set_terminated(self.run_id, "FAILED" if self._failed else "FINISHED")

    def state_dict(self) -> dict[str, Any]:
        """Return the run's id, with which a resumed run goes on."""
        return {"run_id": self.run_id}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.run_id = state["run_id"]
