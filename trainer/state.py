"""The training state: counters and the results of the last step and evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from .checks import any_number, whole

# The keys are MindSpore's names of the dtypes, so that this module need not import MindSpore.
NUMPY_DTYPES: dict[str, type[np.floating[Any]]] = {"Float32": np.float32, "Float16": np.float16}


class Phase(str, Enum):
    """What a trainer is doing."""

    IDLE = "idle"
    FIT = "fit"
    ONLINE = "online"
    EVALUATE = "evaluate"
    PREDICT = "predict"


class Stateful:
    """A part of a run that is saved in snapshots.

    Its state is ``{"json": a JSON-able value, "arrays": name -> array}``; snapshots store the arrays in a separate
    file. The state of a callback is different: plain JSON without arrays.

    Attributes:
        of_model: whether the part belongs to the model; if so, it is also restored when only weights are loaded.
    """

    of_model: bool = False

    def state_dict(self) -> dict[str, Any]:
        """Return the current state."""
        raise NotImplementedError

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        raise NotImplementedError

    def merge_on_main(self, group: Any) -> None:
        """Merge the counts of all ranks on rank 0; a collective call before a snapshot."""

    def clear_on_followers(self) -> None:
        """Clear on the other ranks the counts that `merge_on_main` moved to rank 0."""


@dataclass
class Progress:
    """Counters of a run.

    Attributes:
        epoch: epochs finished.
        step_in_epoch: optimizer steps done in the current epoch.
        global_step: optimizer updates done, including those skipped after an overflow.
        samples_seen: rows trained on.
    """

    epoch: int = 0
    step_in_epoch: int = 0
    global_step: int = 0
    samples_seen: int = 0

    def state_dict(self) -> dict[str, int]:
        """Return the counters as plain integers."""
        return dict(vars(self))

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Restore what `state_dict` returned."""
        vars(self).update({name: whole(name, state[name], 0) for name in vars(self)})


@dataclass(frozen=True)
class StopReason:
    """Why a run ended.

    Attributes:
        kind: "limit", "callback", "signal", "stream_end", "idle", "non_finite" or "user".
        detail: human-readable explanation.
    """

    kind: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}" if self.detail else self.kind


def host_copy(tensor: Any) -> np.ndarray:
    """Return a writable host copy; twice as fast as copying `asnumpy()`."""
    dtype = NUMPY_DTYPES.get(str(tensor.dtype))
    if dtype is None:
        return np.array(tensor.asnumpy())
    return np.frombuffer(tensor.get_bytes(), dtype).reshape(tensor.shape).copy()


@dataclass(eq=False, slots=True)
class StepOutputs:
    """Results of one training program call, still on the device.

    The first access to `loss`, `losses` or `predictions` copies to the host; without access, nothing is copied.

    Attributes:
        losses_device: the losses as the program returned them, a Tensor of shape [K] or []. If `has_denominators`, the
            shape is [K, 2] or [2], with a loss and its denominator.
        predictions_device: the network's output as the program returned it, or None.
        returned: the full output of the user's training step, or the prediction of a network that returns its own loss;
            None for other networks, and with several steps per call.
        has_denominators: whether the program returns the denominator of each loss; without it, the denominator is the
            number of rows.
        chunk: the trained chunk.
        num_batches: number of batches trained on, at most K; with gradient accumulation, the number of micro-batches.
        num_samples: rows trained on by all processes.
    """

    losses_device: Any
    predictions_device: Any
    chunk: Any
    num_batches: int
    num_samples: int
    returned: Any = None
    has_denominators: bool = False
    _losses: np.ndarray | None = field(default=None, init=False, repr=False)
    _predictions: np.ndarray | None = field(default=None, init=False, repr=False)

    @property
    def losses(self) -> np.ndarray:
        """Loss of each batch (or micro-batch) of the call, shape [num_batches], float32."""
        if self._losses is None:
            device = self.losses_device
            if device.ndim == 0:
                self._losses = np.array([device.item()], np.float32)  # `item` is five times as fast as `asnumpy`
            else:
                values = host_copy(device).astype(np.float32, copy=False).reshape(-1, self.values_per_loss)
                self._losses = values[: self.num_batches, 0]
        return self._losses

    @property
    def values_per_loss(self) -> int:
        """2 if `losses_device` contains denominators too, else 1."""
        return 2 if self.has_denominators else 1

    @property
    def loss(self) -> float:
        """Loss of the last batch of the call."""
        return float(self.losses[-1])

    @property
    def predictions(self) -> np.ndarray | None:
        """Network output, shape [num_samples, ...]; None if the program does not keep it."""
        if self._predictions is None and self.predictions_device is not None:
            self._predictions = host_copy(self.predictions_device)
            if self.chunk.is_padded:
                self._predictions = self._predictions[: self.num_samples]
        return self._predictions


@dataclass
class EvaluationState:
    """The current evaluation, for callbacks.

    Attributes:
        dataset: the `mindspore.dataset` pipeline, or None for other data.
        num_batches: number of batches, or None if unknown.
        chunk: the current batch.
        outputs: outputs of the evaluation network for the current batch, as device tensors.
        values: the result of each metric, set when the evaluation ends. Each metric is read once, as in
            `mindspore.Model`.
    """

    dataset: Any = None
    num_batches: int | None = None
    chunk: Any = None
    outputs: tuple[Any, ...] | None = None
    values: dict[str, Any] = field(default_factory=dict)


@dataclass
class State:
    """The state that callbacks read. Only the run changes it.

    Attributes:
        phase: what the trainer is doing.
        progress: the counters.
        limits: limits of the current run (`trainer.run.limits.Limits`), or None.
        steps_per_epoch: optimizer steps per epoch if the data has a size, else None.
        chunk: the chunk to train next, while on_train_step_begin runs (`trainer.data.chunk.Chunk`).
        outputs: results of the last program call (`StepOutputs`), or None.
        train_loss: sample-weighted mean loss of the epoch that just ended (set before on_train_epoch_end), or None.
        task_losses: with several tasks, the mean loss of each task over the same epoch, by ``<task>_loss``.
        metrics: latest evaluation results. Names from validation in `fit` have the prefix "val_" ("val_loss",
            "val_auc"); names from `evaluate` have none.
        evaluation: the current evaluation, or None.
        first_epoch: number of the first epoch of this call, from 0, for MindSpore's callbacks (`initial_epoch`).
        window: metrics of the last closed online window, or None.
        drift: the last report of the drift detector, or None.
        stop_reason: why the run should end; None while it should continue.
        requested_stop: with several processes, why this process wants to stop; the processes decide together after the
            current chunk.
        snapshot: path of the latest durable snapshot, or None.
        exception: the exception that ended the run, or None.
        data_wait: share of time spent waiting for data since the start of the epoch or of the latest window, 0 to 1;
            None before the first step.
        data_waits: with several processes, the `data_wait` of each rank in the last completed epoch or window; None
            before the first epoch or window ends, and with one process.
        warned_of_non_finite: whether this call has warned about a non-finite loss or prediction.
        skipped_steps: updates skipped because of an overflow or a non-finite value, as last read from the device.
        trained_columns: names of the columns of the latest `fit` on arrays by name, in their order.
    """

    phase: Phase = Phase.IDLE
    progress: Progress = field(default_factory=Progress)
    limits: Any = None
    steps_per_epoch: int | None = None
    chunk: Any = None
    outputs: StepOutputs | None = None
    train_loss: float | None = None
    task_losses: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    evaluation: EvaluationState | None = None
    first_epoch: int = 0
    window: dict[str, float] | None = None
    drift: dict[str, Any] | None = None
    stop_reason: StopReason | None = None
    requested_stop: StopReason | None = None
    snapshot: Path | None = None
    exception: BaseException | None = None
    data_wait: float | None = None
    data_waits: tuple[float, ...] | None = None
    warned_of_non_finite: bool = False
    skipped_steps: int = 0
    trained_columns: tuple[Any, ...] = ()

    @property
    def interrupt_requested(self) -> bool:
        """Whether a signal has asked the run to end."""
        return self.stop_reason is not None and self.stop_reason.kind == "signal"

    @property
    def own_interrupt_requested(self) -> bool:
        """Whether this process received a signal, even if the run does not end yet."""
        return self.interrupt_requested or (self.requested_stop is not None and self.requested_stop.kind == "signal")

    def state_dict(self) -> dict[str, Any]:
        """Return the phase, counters, latest metrics and columns for a snapshot."""
        names = self.trained_columns
        return {
            "phase": self.phase.value,
            "progress": self.progress.state_dict(),
            "metrics": dict(self.metrics),
            "columns": list(names) if all(isinstance(name, str) for name in names) else [],
        }

    def load_progress(self, counters: Mapping[str, int], step: int) -> None:
        """Restore the counters of `state_dict`.

        Raises:
            ValueError: `global_step` in `counters` differs from `step`, the step in the snapshot's name.
        """
        self.progress.load_state_dict(counters)
        if self.progress.global_step != step:
            raise ValueError(f"global_step is {self.progress.global_step}, the snapshot's step {step}")

    def load_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Restore the latest metrics of `state_dict`."""
        self.metrics = {name: any_number(name, value) for name, value in metrics.items()}

    def load_columns(self, names: Any) -> None:
        """Restore the columns of `state_dict`; a snapshot of an earlier release has none."""
        if isinstance(names, list) and names:
            self.trained_columns = tuple(map(str, names))

    def ask_to_stop(self, reason: StopReason, *, alone: bool) -> None:
        """Stop the run if this process trains `alone`; else record the request."""
        if not alone:
            self.requested_stop = self.requested_stop or reason
        elif self.stop_reason is None:
            self.stop_reason = reason

    def agree_to_stop(self, reason: StopReason) -> None:
        """Stop the run for the reason agreed on by all processes; the first reason wins."""
        self.stop_reason = self.stop_reason or reason

    def begin(self, phase: Phase) -> None:
        """Reset the state, except counters and the latest evaluation."""
        self.phase, self.stop_reason, self.requested_stop, self.exception = phase, None, None, None
        self.warned_of_non_finite = False
        self.outputs = self.train_loss = self.window = self.drift = None
        self.data_wait = self.data_waits = None
