"""`Trainer`: the part of the trainer that callbacks may use in their hooks.

Anything that is not in this class may change without notice. `trainer.state` (`trainer.state.State`) has the counters,
the latest outputs and metrics, the current validation, windows, snapshots and the stop reason.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, Protocol


class Trainer(Protocol):
    """The interface of the trainer for callbacks; `trainer.Trainer` implements it.

    Attributes:
        state: progress, outputs, metrics and stop reason (`trainer.state.State`); only the run changes it.
        run: the current training, with its times and operator profiles (`trainer.run.run.Run`), or None.
        network, loss_fn, optimizer: as given to the trainer.
        metrics: metrics by name.
        tasks: the loss of several tasks, or None.
        features: the declared columns, or None.
        calibrator: fits the calibration of scores, or None.
        tables: the sparse tables being trained, or None.
        group: the processes that train together (`trainer.distributed.group.Group`).
        saver: takes and restores snapshots (`trainer.checkpoint.saver.Saver`).
        builder: the compiled programs (`trainer.graph.builder.StepBuilder`).
        parts: name -> object with `state_dict` and `load_state_dict` whose state goes into snapshots.
        run_dir: folder for the files of callbacks, or None.
        callbacks, history: callbacks and history of this run.
        learning_rate: rate of the next update; it can be assigned if it is constant.
        learning_rates: the rate of the next update of each parameter group; they can be assigned likewise.
    """

    state: Any
    run: Any
    network: Any
    loss_fn: Any
    optimizer: Any
    metrics: dict[str, Any]
    prediction_activations: dict[str, Any]
    eval_indexes: tuple[int, int, int] | None
    tasks: Any
    features: Any
    calibrator: Any
    label_count: int
    tables: Any
    group: Any
    saver: Any
    builder: Any
    parts: dict[str, Any]
    run_dir: Path | None
    callbacks: Any
    history: Any
    seed: int
    accumulate: int
    precision: Any
    step_options: Any
    reports_overflow: bool
    sink_mode: str

    @property
    def learning_rate(self) -> float | None:
        """Learning rate of the next update."""

    @learning_rate.setter
    def learning_rate(self, value: float) -> None: ...

    @property
    def learning_rates(self) -> list[float]:
        """Constant learning rate of every parameter group."""

    @learning_rates.setter
    def learning_rates(self, values: list[float]) -> None: ...

    @property
    def loss_scale(self) -> float | None:
        """Current loss scale, copied from the device."""

    @property
    def boost_parts(self) -> tuple[str, ...]:
        """Names of the active techniques of the boost level."""

    @property
    def base(self) -> dict[str, int]:
        """The "epoch" and "step" at which the run started counting."""

    @property
    def position(self) -> dict[str, Any] | None:
        """Position in the data right after the last row trained on."""

    @property
    def metric_directions(self) -> dict[str, bool | None]:
        """Name -> whether higher is better, for the metrics that callbacks may monitor."""

    @property
    def train_dataset(self) -> Any:
        """The pipeline being trained on, or None."""

    @property
    def train_network(self) -> Any:
        """The training cell of `mindspore.Model`."""

    @property
    def own_eval_network(self) -> Any:
        """The evaluation cell that the user gave, or None."""

    def stop(self, reason: str = "", kind: str = "user") -> None:
        """Stop the run after the current training call."""

    def save(self, root: str | Path, background: bool = False) -> Path:
        """Write a snapshot below `root`; return its path."""

    def load(
        self, path: str | Path, strict: bool = True, weights_only: bool = False, *, averaged: bool = False
    ) -> None:
        """Restore a snapshot, or only weights."""

    def rollback(self) -> None:
        """Restore weights and optimizer from the latest snapshot of this run."""

    def set_pointer(self, root: str | Path, pointer: str, name: str) -> None:
        """Write a snapshot's name to the file "last" or "best" in `root`."""

    def predict(self, *data: Any, batch_size: int | None = None) -> Any:
        """Apply the network to data and return its predictions."""

    def first_batch(self, data: Any, batch_size: int | None = None) -> Any:
        """Return the network's input for the first batch of `data`."""

    def evaluate(self, dataset: Any, callbacks: Any = None) -> dict[str, float]:
        """Evaluate without affecting the training."""

    def read_counters(self) -> dict[str, int]:
        """Return the counters of skipped updates."""

    def read_bad_steps(self) -> list[int]:
        """Return the latest skipped steps."""

    def read_tables(self) -> dict[str, dict[str, int]]:
        """Return rows, bytes and counters of the sparse tables."""

    def read_scores(self) -> dict[str, dict[str, Any]]:
        """Return calibration and distribution of binary scores by task."""

    def fitted_calibration(self) -> Any:
        """Return the calibration from all rows scored so far, or None."""

    def report_drift(self, drift: dict[str, Any]) -> None:
        """Publish a drift detector's report and call `on_drift`."""

    def averaged_weights(self) -> contextlib.AbstractContextManager[None]:
        """Use the averaged weights of `EMA` or `SWA`, if any, inside the context."""

    def use_averaged_weights(self) -> None:
        """Replace the weights by their averages."""
