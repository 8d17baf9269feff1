"""`WandbLogger`: logs a run to Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.cadence import Every
from trainer.checks import require

from ..callback import Trainer
from ..output import in_run_folder
from .logger import Logger


class WandbLogger(Logger):
    """Logs a run to Weights & Biases: metrics, configuration, snapshots.

    A resumed run continues the same W&B run if it is online. Offline, it starts another run with the same id, and
    `wandb sync` merges the two.

    Args:
        project: name of the project.
        name: name of the run; None for the name of the run folder.
        mode: "online", "offline" or "disabled"; None to use the environment variable WANDB_MODE.
        log_snapshots: whether each snapshot is uploaded as an artifact.
        every, hparams: see `Logger`.
        options: further arguments of `wandb.init`.

    Raises:
        ConfigurationError: at `setup`, wandb is not installed.
    """

    report_errors = (Exception,)  # the exceptions of wandb's client have no common base class

    def __init__(
        self,
        project: str = "mindspore-trainer",
        name: str | None = None,
        mode: str | None = None,
        log_snapshots: bool = False,
        every: Every | int | None = None,
        hparams: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(every, hparams)
        self.project, self.name, self.mode = project, name, mode
        self.log_snapshots, self.options = bool(log_snapshots), dict(options or {})
        self.run_id: str | None = None
        self._run: Any = None
        self._exit_code = 0

    def setup(self, trainer: Trainer) -> None:
        require("wandb", "WandbLogger needs wandb", "wandb")
        self.run_id = None

    def open(self, trainer: Trainer, step: int) -> None:
        import wandb

        folder = in_run_folder(trainer, "")
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        resumed = {"id": self.run_id, "resume": "allow"} if step and self.run_id is not None else {}
        self._exit_code = 0
        self._has_logged_hparams = bool(resumed)  # a further training has another W&B run
        self._run = wandb.init(
            project=self.project,
            name=self.name or (None if folder is None else folder.name),
            mode=self.mode,  # type: ignore[arg-type]
            dir=folder,
            reinit="create_new",
            **{**resumed, **self.options},
        )
        self.run_id = self._run.id
        self._run.define_metric("global_step")
        self._run.define_metric("*", step_metric="global_step")

    def log_metrics(self, values: Mapping[str, float], step: int) -> None:
        self._run.log({**values, "global_step": step})

    def log_hyperparameters(self, values: Mapping[str, Any], metrics: Sequence[str]) -> None:
        self._run.config.update(dict(values), allow_val_change=True)

    def log_results(self, values: Mapping[str, float], step: int) -> None:
        self._run.summary.update(dict(values))

    def log_snapshot(self, path: Path, step: int) -> None:
        import wandb

        if self.log_snapshots:
            artifact = wandb.Artifact(f"snapshot-{self.run_id}", type="model", metadata={"step": step})
            artifact.add_dir(str(path))
            self._run.log_artifact(artifact)
        else:
            self._run.summary["snapshot"] = str(path)

    def on_exception(self, trainer: Trainer) -> None:
        self._exit_code = 1

    def close(self) -> None:
        run, self._run = self._run, None
        run.finish(exit_code=self._exit_code)

    def state_dict(self) -> dict[str, Any]:
        return {"run_id": self.run_id}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.run_id = state["run_id"]
