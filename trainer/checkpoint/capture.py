"""What of a trainer goes into a snapshot, and how it is put back. Files are `checkpoint`'s concern."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from ..distributed.exchange import BEFORE
from . import generators
from .ckpt_files import compare

if TYPE_CHECKING:
    from ..run.cursor import Cursor
    from ..trainer import Trainer
    from .snapshot import Snapshot

logger = logging.getLogger(__name__)

MODEL, OPTIMIZER, STEP = "model", "optimizer", "step"
DROPOUT_COUNTER = "dropout_forwards"  # what the counters of stateless dropout are called in a network


def named_parameters(trainer: Trainer) -> dict[str, dict[str, Parameter]]:
    """Return the parameters of a run by group: the network, what the optimizer adds, what the step adds."""
    groups: dict[str, dict[str, Parameter]] = {MODEL: {}, OPTIMIZER: {}, STEP: {}}
    for parameter in trainer.network.get_parameters():
        # counters of stateless dropout belong to the run: the weights fit a network without them too
        groups[STEP if parameter.name.endswith(DROPOUT_COUNTER) else MODEL][parameter.name] = parameter
    seen = {id(parameter) for group in groups.values() for parameter in group.values()}
    cells: list[tuple[str, nn.Cell | None]] = [(OPTIMIZER, trainer.optimizer), (STEP, trainer.builder.step)]
    for group, cell in cells:
        for parameter in cell.get_parameters() if cell is not None else ():
            if id(parameter) not in seen and not parameter.name.startswith(BEFORE):
                seen.add(id(parameter))
                groups[group][parameter.name] = parameter
    scaler = trainer.scaler
    for name, value in vars(scaler).items() if scaler is not None else ():
        if isinstance(value, Parameter) and id(value) not in seen:
            groups[STEP][f"scaler.{name}"] = value
    return groups


def take(trainer: Trainer) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, Any]]:
    """Return the arrays of a run by group, and everything else.

    On CPU the arrays of parameters are live views, to be written or copied before the next step.
    """
    groups = {
        group: {name: parameter.asnumpy() for name, parameter in parameters.items()}
        for group, parameters in named_parameters(trainer).items()
        if parameters
    }
    parts = {name: part.state_dict() for name, part in trainer.parts.items()}
    groups |= {f"part.{name}": dict(part["arrays"]) for name, part in parts.items() if part["arrays"]}
    state = {
        "phase": trainer.state.phase.value,
        "progress": trainer.state.progress.state_dict(),
        "metrics": dict(trainer.state.metrics),
        "callbacks": trainer.callbacks.state_dict(),
        "random": generators.capture(),
        "parts": {name: part["json"] for name, part in parts.items()},
        **({} if trainer.run is None else trainer.run.cursor.state_dict()),
    }
    return groups, state


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
    groups = {group: groups.get(group, {}) for group in expected}
    problems = compare(_flat(expected), _flat(groups))
    if problems and strict:
        raise problems.error("the snapshot", "this network and optimizer")
    if problems:
        logger.warning("%s", problems.message("the snapshot", "this network and optimizer"))
    for group, parameters in expected.items():
        for name, parameter in parameters.items():
            value = groups.get(group, {}).get(name)
            if value is not None and tuple(value.shape) == tuple(parameter.shape):
                # A compiled step with a branch in it goes on with the old value after `set_data`.
                ops.assign(parameter, Tensor(np.array(value), parameter.dtype))


def restore_parts(trainer: Trainer, snapshot: Snapshot) -> None:
    """Put back the state of the run's parts (online metrics, tables); parts the snapshot lacks start anew.

    A part is given the states of all snapshots that this one builds on, the first one first.
    """
    for name, part in trainer.parts.items():
        states = part_states(snapshot, name)
        if not states:
            logger.warning("the snapshot holds no state of %s; it starts anew", name)
        else:
            part.load_states(states)


def restore_state(trainer: Trainer, state: Mapping[str, Any], cursor: Cursor | None) -> None:
    """Put back what a snapshot holds besides tensors and parts: counters, generators, callbacks, place in the data."""
    trainer.state.progress.load_state_dict(state["progress"])
    trainer.state.metrics = dict(state["metrics"])
    generators.restore(state["random"])
    for key in trainer.callbacks.load_state_dict(state["callbacks"]):
        logger.warning("the snapshot holds the state of callback %s, which this run does not have", key)
    if cursor is not None:
        cursor.load_state_dict(state)


def part_states(snapshot: Snapshot, name: str) -> list[dict[str, Any]]:
    """Return the states of one part in a snapshot and those that it builds on, the first one first."""
    group = f"part.{name}"
    return [
        {"json": link.state["parts"][name], "arrays": link.tensors(group) if group in link.groups else {}}
        for link in snapshot.chain()
        if name in link.state.get("parts", {})
    ]


def _flat(groups: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Network parameters keep their names; the others get their group's, since names may repeat between groups."""
    return {
        name if group == MODEL else f"{group}: {name}": value
        for group, values in groups.items()
        for name, value in values.items()
    }
