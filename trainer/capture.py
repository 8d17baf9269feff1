"""What of a trainer goes into a snapshot, and how it is put back. Files are `checkpoint`'s concern."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from trainer import seed
from trainer.errors import CheckpointMismatchError, did_you_mean

if TYPE_CHECKING:
    from trainer.trainer import Trainer

logger = logging.getLogger(__name__)

MODEL, OPTIMIZER, STEP = "model", "optimizer", "step"


def named_parameters(trainer: Trainer) -> dict[str, dict[str, Parameter]]:
    """Return the parameters of a run by group: the network, what the optimizer adds, what the step adds."""
    model = {parameter.name: parameter for parameter in trainer.network.get_parameters()}
    seen = {id(parameter) for parameter in model.values()}
    groups = {MODEL: model, OPTIMIZER: {}, STEP: {}}
    cells: list[tuple[str, nn.Cell | None]] = [(OPTIMIZER, trainer.optimizer), (STEP, trainer.builder.step)]
    for group, cell in cells:
        for parameter in cell.get_parameters() if cell is not None else ():
            if id(parameter) not in seen:
                seen.add(id(parameter))
                groups[group][parameter.name] = parameter
    scaler = trainer.scaler
    for name, value in vars(scaler).items() if scaler is not None else ():
        if isinstance(value, Parameter) and id(value) not in seen:
            groups[STEP][f"scaler.{name}"] = value
    return groups


def tensors(trainer: Trainer) -> dict[str, dict[str, np.ndarray]]:
    """Return every array by group; on CPU parameters are live views, to be written or copied before the next step."""
    groups = {
        group: {name: parameter.asnumpy() for name, parameter in parameters.items()}
        for group, parameters in named_parameters(trainer).items()
        if parameters
    }
    for name, part in trainer.parts.items():
        arrays = part.state_dict()["arrays"]
        if arrays:
            groups[f"part.{name}"] = dict(arrays)
    return groups


def state(trainer: Trainer) -> dict[str, Any]:
    """Return everything of a run that is not a tensor."""
    return {
        "phase": trainer.state.phase.value,
        "progress": trainer.state.progress.state_dict(),
        "metrics": dict(trainer.state.metrics),
        "callbacks": trainer.callbacks.state_dict(),
        "random": seed.capture(),
        "parts": {name: part.state_dict()["json"] for name, part in trainer.parts.items()},
        **trainer.run_state(),
    }


def restore_tensors(
    trainer: Trainer, groups: Mapping[str, Mapping[str, np.ndarray]], *, strict: bool, weights_only: bool
) -> None:
    """Put saved tensors back into the trainer's parameters.

    Raises:
        CheckpointMismatchError: parameters are missing, unexpected or differently shaped and `strict` is set; nothing
            has been changed then.
    """
    expected = named_parameters(trainer)
    if weights_only:
        expected = {MODEL: expected[MODEL]}
        groups = {MODEL: groups.get(MODEL, {})}
    problems = mismatch(expected, groups)
    if problems and strict:
        raise CheckpointMismatchError(
            "the snapshot does not fit this network and optimizer:\n" + "\n".join(problems) + "\npass strict=False to "
            "load what fits"
        )
    for line in problems:
        logger.warning("not loaded: %s", line.strip())
    for group, parameters in expected.items():
        for name, parameter in parameters.items():
            value = groups.get(group, {}).get(name)
            if value is not None and tuple(value.shape) == tuple(parameter.shape):
                # A compiled step with a branch in it goes on with the old value after `set_data`.
                ops.assign(parameter, Tensor(np.array(value), parameter.dtype))


def restore_parts(trainer: Trainer, states: Mapping[str, Any], groups: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    """Put back the state of the run's parts (online metrics, tables); parts the snapshot lacks start anew."""
    for name, part in trainer.parts.items():
        if name in states:
            part.load_state_dict({"json": states[name], "arrays": groups.get(f"part.{name}", {})})
        else:
            logger.warning("the snapshot holds no state of %s; it starts anew", name)


def mismatch(
    expected: Mapping[str, Mapping[str, Parameter]], found: Mapping[str, Mapping[str, np.ndarray]]
) -> list[str]:
    """Return one line per parameter that is missing, unexpected or of another shape."""
    lines = []
    for group in expected:
        have, want = found.get(group, {}), expected[group]
        for name in want:
            if name not in have:
                unexpected = [other for other in have if other not in want]
                lines.append(f"  missing {group}: {name} {list(want[name].shape)}{did_you_mean(name, unexpected)}")
            elif tuple(have[name].shape) != tuple(want[name].shape):
                lines.append(
                    f"  shape of {group}: {name} is {list(have[name].shape)} in the snapshot, "
                    f"{list(want[name].shape)} in the network"
                )
        lines.extend(f"  unexpected {group}: {name} {list(have[name].shape)}" for name in have if name not in want)
    return lines
