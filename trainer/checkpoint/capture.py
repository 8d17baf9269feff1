"""What of a trainer goes into a snapshot, and how it is put back. Files are `checkpoint`'s concern."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from ..checks import any_number
from ..distributed.exchange import BEFORE
from ..errors import CheckpointError, TrainerError
from . import generators
from .ckpt_files import compare
from .undo import Undo

if TYPE_CHECKING:
    from ..run.cursor import Cursor
    from ..trainer import Trainer
    from .snapshot import Snapshot

logger = logging.getLogger(__name__)

MODEL, OPTIMIZER, STEP = "model", "optimizer", "step"
WINDOW = "window"  # of gradients being accumulated; in snapshots that were taken inside one
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
    if trainer.builder.window.is_open:
        groups[WINDOW] = {name: gathered.asnumpy() for name, gathered in trainer.builder.window.parameters().items()}
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


def fitting_tensors(
    trainer: Trainer, groups: Mapping[str, Mapping[str, np.ndarray]], *, strict: bool, weights_only: bool
) -> list[tuple[Parameter, np.ndarray]]:
    """Return which parameter takes which saved tensor; nothing is changed.

    Raises:
        CheckpointMismatchError: parameters are missing, unexpected or differently shaped and `strict` is set.
    """
    expected = named_parameters(trainer)
    if weights_only:
        expected = {MODEL: expected[MODEL]}
    elif WINDOW in groups:
        expected[WINDOW] = trainer.builder.window.parameters()
    groups = {group: groups.get(group, {}) for group in expected}
    problems = compare(_flat(expected), _flat(groups))
    if problems and strict:
        raise problems.error("the snapshot", "this network and optimizer")
    if problems:
        logger.warning("%s", problems.message("the snapshot", "this network and optimizer"))
    pairs = [
        (parameter, groups[group].get(name))
        for group, parameters in expected.items()
        for name, parameter in parameters.items()
    ]
    return [
        (parameter, value)
        for parameter, value in pairs
        if value is not None and tuple(value.shape) == tuple(parameter.shape) and value.dtype.kind != "c"
    ]


def assign(tensors: Iterable[tuple[Parameter, np.ndarray]]) -> None:
    """Put saved tensors into their parameters."""
    for parameter, value in tensors:
        # A compiled step with a branch in it goes on with the old value after `set_data`.
        ops.assign(parameter, Tensor(np.array(value), parameter.dtype))


def restore_all(
    trainer: Trainer, snapshot: Snapshot, tensors: Iterable[tuple[Parameter, np.ndarray]], cursor: Cursor | None
) -> None:
    """Put everything a snapshot holds back, or, when any of it cannot be, nothing.

    Tensors and tables, which are large, are checked first and changed last; what comes in between is small, and is put
    back as it was when something in it turns out to be unusable.

    Raises:
        CheckpointError: a part of the state is not what its owner saves; the message names the part.
        CheckpointMismatchError: it belongs to other tables.
    """
    tables = table_states(trainer, snapshot)
    small = {name: part for name, part in trainer.parts.items() if part is not trainer.tables}
    undo = Undo(trainer, *([] if cursor is None else [cursor.source]))
    for one in (small, list(trainer.callbacks), trainer.state.progress, cursor):
        undo.remember(one)
    before, random = dict(vars(trainer.state)), generators.capture()
    place = ["its parts"]
    try:
        _restore_small(trainer, snapshot, small, cursor, place)
    except BaseException as error:
        undo.put_back()
        vars(trainer.state).update(before)
        generators.restore(random)
        if not isinstance(error, Exception) or isinstance(error, CheckpointError):
            raise
        said = str(error) if isinstance(error, TrainerError) else f"{type(error).__name__}: {error}"
        raise CheckpointError(f"{snapshot.path} holds no usable state of {place[0]}: {said}") from error
    if tables:
        trainer.tables.load_states(tables)
    if WINDOW not in snapshot.groups:
        trainer.builder.window.forget()
    assign(tensors)
    if WINDOW not in snapshot.groups and trainer.builder.window.is_open:
        logger.warning(
            "%s was written inside an accumulation window without its gradients; the rest of it makes up for them",
            snapshot.path,
        )
        trainer.builder.window.forget(keep_count=True)
    trainer.state.snapshot = snapshot.path


def _restore_small(
    trainer: Trainer, snapshot: Snapshot, parts: Mapping[str, Any], cursor: Cursor | None, place: list[str]
) -> None:
    """Restore all but tensors and tables; `place` tells the caller what was being restored."""
    state = snapshot.state
    for name, part in parts.items():
        place[0] = f"the part {name!r}"
        states = part_states(snapshot, name)
        if states:
            part.load_state_dict(states[-1])
        else:
            logger.warning("the snapshot holds no state of %s; it starts anew", name)
    place[0] = "the counters"
    trainer.state.progress.load_state_dict(state["progress"])
    if trainer.state.progress.global_step != snapshot.step:
        raise ValueError(f"global_step is {trainer.state.progress.global_step}, the snapshot's step {snapshot.step}")
    place[0] = "the metrics"
    trainer.state.metrics = {name: any_number(name, value) for name, value in state["metrics"].items()}
    place[0] = "the random generators"
    generators.restore(state["random"])
    place[0] = "the callbacks"
    for key in trainer.callbacks.load_state_dict(state["callbacks"]):
        logger.warning("the snapshot holds the state of callback %s, which this run does not have", key)
    if cursor is not None:
        place[0] = "the place in the data"
        cursor.load_state_dict(state)


def table_states(trainer: Trainer, snapshot: Snapshot) -> list[dict[str, Any]]:
    """Return the checked states of the trainer's sparse tables, the first one first; none where there are no tables.

    Raises:
        CheckpointMismatchError: they belong to other tables. CheckpointDamagedError: they cannot be restored.
    """
    if trainer.tables is None:
        return []
    states = part_states(snapshot, "tables")
    if not states:
        logger.warning("the snapshot holds no state of tables; they start anew")
    trainer.tables.check_states(states)
    return states


def part_states(snapshot: Snapshot, name: str) -> list[dict[str, Any]]:
    """Return the states of one part in a snapshot and those that it builds on, the first one first."""
    group = f"part.{name}"
    parts = [(link, link.state.get("parts", {})) for link in snapshot.chain()]
    for link, found in parts:
        if not isinstance(found, Mapping):
            raise CheckpointError(f"{link.path} holds no usable state of its parts: it is no mapping")
    return [
        {"json": found[name], "arrays": link.tensors(group) if group in link.groups else {}}
        for link, found in parts
        if name in found
    ]


def _flat(groups: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Network parameters keep their names; the others get their group's, since names may repeat between groups."""
    return {
        name if group == MODEL else f"{group}: {name}": value
        for group, values in groups.items()
        for name, value in values.items()
    }
