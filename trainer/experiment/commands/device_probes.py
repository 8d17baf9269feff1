"""Probe what MindSpore can do on a device, with one function per ability.

    python -m trainer.experiment.commands.device_probes DEVICE PROBE

This command prints the result of a probe as JSON. `device_report` runs each probe in its own process and writes a
table of the results.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, amp, mint, nn, ops
from mindspore import dtype as mstype

from ...mindspore_internals import device, python_operators, shared_memory
from ...mindspore_internals.cell_structure import parameters_of, trainable_parameters
from ...mindspore_internals.messages import main_message
from ...trainer import Trainer

ROWS, BATCH, EPOCHS, RATE = 256, 32, 4, 0.05


def main() -> None:
    """Choose the device, run a probe and print its result."""
    name, probe = sys.argv[1:]
    try:
        device.choose(name)
        result = PROBES[probe]()
    except Exception as error:
        result = {"failed": main_message(str(error)).partition("\n")[0] or type(error).__name__}
    print(json.dumps(result), flush=True)


class Linear(nn.Cell):
    """Linear regression with weights that start at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(4, 1, weight_init="zeros", bias_init="zeros")

    def construct(self, x):
        """Return the prediction [batch, 1]."""
        return self.dense(x)


class Product(nn.Cell):
    """Matrix product."""

    def construct(self, x):
        """Return the product of x and its transpose."""
        return ops.matmul(x, x.T)


class FromPython(nn.Cell):
    """Network with an operator written in Python."""

    def __init__(self, doubler: Doubler) -> None:
        super().__init__()
        self.operator = python_operators.operator(doubler.double, lambda shape: shape)

    def construct(self, x):
        """Return the result of the Python function."""
        return self.operator(x)


class Doubler:
    """Owner of the Python function that `FromPython` calls."""

    def double(self, values: np.ndarray) -> np.ndarray:
        """Return twice the values."""
        return 2 * values


def _data() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(ROWS, 4)).astype(np.float32)
    return x, (x @ np.array([[1.0], [-2.0], [0.5], [0.0]], np.float32)).astype(np.float32)


def _trainer(network: nn.Cell | None = None, optimizer: Any = nn.SGD, **options: Any) -> Trainer:
    network = network or Linear()
    trainable = trainable_parameters(network)
    return Trainer(network, nn.MSELoss(), optimizer(trainable, RATE), device="auto", **options)


def _losses(trainer: Trainer, **options: Any) -> list[float]:
    history = trainer.fit(_data(), EPOCHS, batch_size=BATCH, shuffle=False, callbacks=[], **options)
    return [float(loss) for loss in history.history["loss"]]


def _expected() -> list[float]:
    """Compute the mean loss of each epoch with NumPy in float64."""
    x, y = (array.astype(np.float64) for array in _data())
    weight, bias, losses = np.zeros((4, 1)), 0.0, []
    for _ in range(EPOCHS):
        total = 0.0
        for first in range(0, ROWS, BATCH):
            part, error = x[first : first + BATCH], x[first : first + BATCH] @ weight + bias - y[first : first + BATCH]
            total += float((error**2).mean()) * BATCH / ROWS
            weight, bias = weight - RATE * 2 * part.T @ error / BATCH, bias - RATE * 2 * float(error.mean())
        losses.append(total)
    return losses


def losses_are_right() -> bool:
    """Train a linear regression and compare the losses with NumPy's."""
    return bool(np.allclose(_losses(_trainer()), _expected(), rtol=1e-5))


def sinks_agree() -> bool:
    """Train with 1, 8 and 32 steps per call, and compare the losses with NumPy's."""
    return all(np.allclose(_losses(_trainer(), sink_size=size), _expected(), rtol=1e-5) for size in (1, 8, 32))


def resumes_to_the_bit() -> bool:
    """Compare an uninterrupted run with one resumed from a copy of another's state."""
    uninterrupted, first, second = _trainer(optimizer=nn.Adam), _trainer(optimizer=nn.Adam), _trainer(optimizer=nn.Adam)
    uninterrupted.fit(_data(), 2, batch_size=BATCH, shuffle=False, callbacks=[])
    first.fit(_data(), 1, batch_size=BATCH, shuffle=False, callbacks=[])
    values = {parameter.name: parameter.asnumpy().copy() for parameter in parameters_of(first.optimizer)}
    for parameter in parameters_of(second.optimizer):
        shared_memory.overwrite(parameter, values[parameter.name])
    second.fit(_data(), 1, batch_size=BATCH, shuffle=False, callbacks=[])
    weights = [trainer.network.dense.weight.asnumpy().tobytes() for trainer in (uninterrupted, second)]
    return weights[0] == weights[1]


def shares_memory() -> bool:
    """Check whether a NumPy array can share the memory of a parameter."""
    return shared_memory.try_view()


def runs_python() -> bool:
    """Call a Python function from a compiled graph."""
    doubler = Doubler()
    output = FromPython(doubler).compile_and_run(Tensor(np.ones(3, np.float32)))
    return bool((output.asnumpy() == 2).all())


def has_bfloat16() -> bool:
    """Multiply matrices in bfloat16."""
    output = Product().compile_and_run(Tensor(np.ones((4, 4), np.float32), mstype.bfloat16))
    return bool((output.float().asnumpy() == 4).all())


def lowers_batch_norm() -> bool:
    """Train and evaluate at O3 with BatchNorm in the lower precision."""
    network = nn.SequentialCell(nn.Dense(4, 4), nn.BatchNorm1d(4), nn.Dense(4, 1))
    trainer = _trainer(network, amp_level="O3", keep_batchnorm_fp32=False)
    trainer.fit(_data(), 1, batch_size=BATCH, callbacks=[])
    return bool(np.isfinite(trainer.evaluate(_data(), batch_size=BATCH)["loss"]))


def has_overflow_status() -> bool:
    """Train one step with MindSpore's loss-scaling cell and its overflow check."""
    network = Linear()
    step = nn.TrainOneStepWithLossScaleCell(
        nn.WithLossCell(network, nn.MSELoss()), nn.SGD(trainable_parameters(network), RATE), Tensor(8.0)
    )
    step.set_train()
    step.compile_and_run(*(Tensor(array[:BATCH]) for array in _data()))
    return bool(np.abs(network.dense.weight.asnumpy()).max() > 0)


def trains_with_mint() -> bool:
    """Take an eager step with `mint.optim.SGD`."""
    weight = Parameter(Tensor(np.ones(3, np.float32)), name="weight")
    mint.optim.SGD([weight], lr=0.5)((Tensor(np.ones(3, np.float32)),))
    return bool((weight.asnumpy() != 1).all())


def keeps_programs_apart() -> bool:
    """Train twice in one process, keeping the first Trainer; compare the losses."""
    first, second = _trainer(optimizer=_momentum), _trainer(optimizer=_momentum)
    losses = [_losses(trainer, sink_size=1) for trainer in (first, second)]
    return losses[0] == losses[1]


def _momentum(parameters: Any, rate: float) -> nn.Cell:
    return nn.Momentum(parameters, rate, 0.9)


def scales_the_loss() -> bool:
    """Train at O2 with an initial loss scale that overflows."""
    trainer = _trainer(amp_level="O2", loss_scale=amp.DynamicLossScaler(2.0**40, 2, 1000))
    losses = _losses(trainer)
    scaler: Any = trainer.scaler
    return losses[-1] < losses[0] and float(scaler.scale_value.asnumpy()) < 2.0**40


def microseconds_per_step() -> dict[str, int]:
    """Return the shortest time per step of three runs, by steps per call."""
    microseconds = {}
    for size in (1, 32):
        trainer = _trainer()
        _losses(trainer, sink_size=size)
        times = []
        for _ in range(3):
            began = time.perf_counter()
            _losses(trainer, sink_size=size)
            times.append(time.perf_counter() - began)
        microseconds[f"{size} per call"] = round(1e6 * min(times) / (EPOCHS * ROWS / BATCH))
    return microseconds


def versions() -> dict[str, str]:
    """Return the version of MindSpore and the name of the device."""
    return {"mindspore": mindspore.__version__, "device": device.current().name}


PROBES: dict[str, Callable[[], Any]] = {
    probe.__name__: probe
    for probe in (
        versions,
        losses_are_right,
        sinks_agree,
        resumes_to_the_bit,
        scales_the_loss,
        shares_memory,
        runs_python,
        has_bfloat16,
        lowers_batch_norm,
        has_overflow_status,
        trains_with_mint,
        keeps_programs_apart,
        microseconds_per_step,
    )
}

if __name__ == "__main__":
    main()
