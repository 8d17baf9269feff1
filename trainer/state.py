"""The only mutable training state: where a run is (`Progress`) and what its last step, window and evaluation gave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from .checks import any_number, whole

# by MindSpore's names, so that no import of it is needed
NUMPY_DTYPES: dict[str, type[np.floating[Any]]] = {"Float32": np.float32, "Float16": np.float16}


class Phase(str, Enum):
    """What a trainer is doing."""

    IDLE = "idle"
    FIT = "fit"
    ONLINE = "online"
    EVALUATE = "evaluate"
    PREDICT = "predict"


class Stateful:
    """A part of a run that goes into snapshots.

    Its state is ``{"json": a JSON-able value, "arrays": name -> array}``; arrays go to their own file, unlike the state
    of a callback, which is JSON alone.

    Attributes:
        of_model: whether it belongs to the model, and so is restored with the weights alone too.
    """

    of_model: bool = False

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last step."""
        raise NotImplementedError

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        raise NotImplementedError

    def merge_on_main(self, group: Any) -> None:
        """Move what each process has counted by itself to rank 0; all call it together before a snapshot."""

    def clear_on_followers(self) -> None:
        """Clear, on the other ranks, what `merge_on_main` had moved to rank 0 and a snapshot restored everywhere."""

    def load_states(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Restore the last of the states of a snapshot and of those that it builds on, the first one first.

        A part whose state holds only what changed since the one before overrides this and takes all of them.
        """
        self.load_state_dict(states[-1])


@dataclass
class Progress:
    """Counters of a run; they only grow.

    Attributes:
        epoch: epochs finished.
        step_in_epoch: optimizer steps done in the epoch under way.
        global_step: optimizer updates done, those skipped after an overflow included.
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
        detail: what exactly, for people.
    """

    kind: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}" if self.detail else self.kind


def host_copy(tensor: Any) -> np.ndarray:
    """Return a writable copy of what a program returned; by way of bytes, which takes half the time of `asnumpy`."""
    dtype = NUMPY_DTYPES.get(str(tensor.dtype))
    if dtype is None:
        return np.array(tensor.asnumpy())
    return np.frombuffer(tensor.get_bytes(), dtype).reshape(tensor.shape).copy()


def host_losses(device: Any, num_steps: int) -> np.ndarray:
    """Return a copy of the losses a program returned, shape [num_steps], float32."""
    if device.ndim == 0:
        return np.array([device.item()], np.float32)  # a fifth of the cost of asnumpy
    return host_copy(device).astype(np.float32, copy=False).reshape(-1)[:num_steps]


class StepOutputs:
    """Results of one call of the training program, still on the device.

    Reading `loss`, `losses` or `predictions` copies to the host, once; not reading them costs nothing.

    Attributes:
        losses_device: the losses as the program returned them, a Tensor of shape [K] or [].
        predictions_device: the network's output as the program returned it, or None.
        returned: all that a whole training step of the user's returned, or the prediction of a network that returns
            its own loss; None for others, and where many steps are trained per call.
        chunk: what was trained on.
        num_steps: steps done, at most K.
        num_samples: rows trained on.
    """

    __slots__ = (
        "_losses",
        "_predictions",
        "chunk",
        "losses_device",
        "num_samples",
        "num_steps",
        "predictions_device",
        "returned",
    )

    def __init__(self, losses: Any, predictions: Any, chunk: Any, num_steps: int, num_samples: int) -> None:
        self.losses_device = losses
        self.predictions_device = predictions
        self.returned: Any = None
        self._losses: np.ndarray | None = None
        self._predictions: np.ndarray | None = None
        self.chunk = chunk
        self.num_steps = num_steps
        self.num_samples = num_samples

    @property
    def losses(self) -> np.ndarray:
        """Loss of every optimizer step of the call, shape [num_steps], float32."""
        if self._losses is None:
            self._losses = host_losses(self.losses_device, self.num_steps)
        return self._losses

    @property
    def loss(self) -> float:
        """Loss of the last step of the call."""
        return float(self.losses[-1])

    @property
    def predictions(self) -> np.ndarray | None:
        """Network output of every row, shape [num_samples, ...]; None unless the program was asked to keep it."""
        if self._predictions is None and self.predictions_device is not None:
            self._predictions = host_copy(self.predictions_device)
            if self.chunk.filled:
                self._predictions = self._predictions[: self.num_samples]
        return self._predictions


@dataclass
class EvaluationState:
    """What callbacks may know of an evaluation under way.

    Attributes:
        dataset: the `mindspore.dataset` pipeline that is read, or None for other data.
        num_batches: its batches, or None when unknown.
        chunk: the batch under way.
        outputs: what the evaluation network returned for it, device tensors.
    """

    dataset: Any = None
    num_batches: int | None = None
    chunk: Any = None
    outputs: tuple[Any, ...] | None = None


@dataclass
class State:
    """What callbacks read. Only the run writes it.

    Attributes:
        phase: what the trainer is doing.
        progress: the counters.
        limits: bounds of the run under way (`trainer.run.limits.Limits`), or None.
        total_steps: optimizer steps of one epoch where the data has a size, else None.
        chunk: what is trained on next, while on_train_step_begin runs (`trainer.data.chunk.Chunk`).
        outputs: results of the last program call (`StepOutputs`), or None.
        train_loss: sample-weighted mean loss of the epoch that just ended (set before on_train_epoch_end), or None.
        task_losses: mean loss of each of several tasks over that epoch, by ``<task>_loss``.
        metrics: newest evaluation results: in `fit` with prefix "val_" ("val_loss", "val_auc"), from `evaluate`
            without.
        evaluation: the evaluation under way, or None.
        first_epoch: number of the first epoch of this call for MindSpore's callbacks, from 0 (`initial_epoch`).
        window: metrics of the online window that closed last, or None.
        drift: what the drift detector saw last, or None.
        stop_reason: set when the run is to end.
        stop_wish: why this process, of several, wants the run to end; they agree on it after the chunk under way.
        snapshot: path of the newest durable snapshot, or None.
        exception: the exception that ended the run, or None.
        data_wait: share of the time since the epoch, or the newest window, began that was spent waiting for data, 0
            to 1; None before the first step.
        warned_of_non_finite: whether this call has warned of a loss or predictions that are not finite.
        skipped_steps: updates skipped because of an overflow or a non-finite value, as last read from the device.
    """

    phase: Phase = Phase.IDLE
    progress: Progress = field(default_factory=Progress)
    limits: Any = None
    total_steps: int | None = None
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
    stop_wish: StopReason | None = None
    snapshot: Path | None = None
    exception: BaseException | None = None
    data_wait: float | None = None
    warned_of_non_finite: bool = False
    skipped_steps: int = 0

    @property
    def interrupt_requested(self) -> bool:
        """Whether a signal has asked the run to end."""
        return self.stop_reason is not None and self.stop_reason.kind == "signal"

    @property
    def own_interrupt_requested(self) -> bool:
        """Whether a signal has asked this process to end, agreed on by all processes or not."""
        return self.interrupt_requested or (self.stop_wish is not None and self.stop_wish.kind == "signal")

    def state_dict(self) -> dict[str, Any]:
        """Return what a snapshot holds: phase, counters and newest metrics."""
        return {"phase": self.phase.value, "progress": self.progress.state_dict(), "metrics": dict(self.metrics)}

    def load_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Restore the newest metrics of `state_dict`; the counters are restored by `Progress`."""
        self.metrics = {name: any_number(name, value) for name, value in metrics.items()}

    def ask_to_stop(self, reason: StopReason, *, alone: bool) -> None:
        """Let the run end for `reason`; one process of several can only wish for it."""
        if not alone:
            self.stop_wish = self.stop_wish or reason
        elif self.stop_reason is None:
            self.stop_reason = reason

    def agree_to_stop(self, reason: StopReason) -> None:
        """Let the run end for what all processes have agreed on; the first reason stands."""
        self.stop_reason = self.stop_reason or reason

    def begin(self, phase: Phase) -> None:
        """Forget what the call before left, counters and newest evaluation apart."""
        self.phase, self.stop_reason, self.stop_wish, self.exception = phase, None, None, None
        self.warned_of_non_finite = False
        self.outputs = self.train_loss = self.window = self.drift = self.data_wait = None
