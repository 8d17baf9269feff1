"""Collect and restore the content of a snapshot, without touching files."""

from __future__ import annotations

import contextlib
import copy
import logging
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import mindspore
import numpy as np
from mindspore import Parameter, amp, nn

from ..checks import any_number, whole
from ..distributed.exchange import BEFORE
from ..errors import CheckpointError, TrainerError
from ..mindspore_internals.cell_structure import cells_and_names, parameters_of
from ..mindspore_internals.shared_memory import overwrite
from .ckpt_files import compare
from .content import AVERAGES, Content, Cursor
from .parts import Parts
from .snapshot import Snapshot

logger = logging.getLogger(__name__)

MODEL, OPTIMIZER, STEP = "model", "optimizer", "step"
TABLES = "tables"  # name of the part that holds the sparse tables
TABLES_GROUP = f"part.{TABLES}"
ACCUMULATION = "window"  # group of gradients, in snapshots taken inside an accumulation
NOT_OF_THE_STEP = (BEFORE, AVERAGES)  # name prefixes of the step's parameters that snapshots do not contain
# Releases up to 0.6 named a list of optimizers once for each Trainer that was made with them.
_REPEATED_GROUP = re.compile(r"^(group_\d+\.)(?:group_\d+\.)+")
UNREGISTERED = "unregistered."  # prefix of parameters that no cell has registered
DROPOUT_COUNTER = "dropout_forwards"  # suffix of the counters of stateless dropout


def named_parameters(content: Content) -> dict[str, dict[str, Parameter]]:
    """Return the parameters of a run by group: network, optimizer, step."""
    groups: dict[str, dict[str, Parameter]] = {MODEL: {}, OPTIMIZER: {}, STEP: {}}
    for parameter in parameters_of(content.network):
        # Dropout counters belong to the run, so that the weights also fit a network without dropout.
        groups[STEP if parameter.name.endswith(DROPOUT_COUNTER) else MODEL][parameter.name] = parameter
    seen = {id(parameter) for group in groups.values() for parameter in group.values()}
    cells: list[tuple[str, nn.Cell | None]] = [(OPTIMIZER, content.optimizer), (STEP, content.step)]
    for group, cell in cells:
        for parameter in parameters_of(cell) if cell is not None else ():
            if id(parameter) not in seen and not parameter.name.startswith(NOT_OF_THE_STEP):
                seen.add(id(parameter))
                groups[group][parameter.name] = parameter
    scaler = content.scaler
    for name, value in vars(scaler).items() if scaler is not None else ():
        if isinstance(value, Parameter) and id(value) not in seen:
            groups[STEP][f"scaler.{name}"] = value
    groups[STEP] |= _unregistered(content)
    return groups


def _unregistered(content: Content) -> dict[str, Parameter]:
    """Return the parameters that cells hold without registering them.

    These are the learning rates of `mindspore.experimental.optim`, which are in dictionaries, and the loss scalers of a
    user's training step, which are no cells.
    """
    own = content.optimizer
    found: dict[str, Any] = {}
    for path, cell in cells_and_names(content.network) if own is None else (("optimizer", own),):
        for place, group in enumerate(vars(cell).get("param_groups") or ()):
            found[f"{path}.{place}.lr"] = group.get("lr") if isinstance(group, Mapping) else None
        for name, value in vars(cell).items():
            if isinstance(value, amp.LossScaler):
                found |= {f"{path}.{name}.{key}": part for key, part in vars(value).items()}
    return {f"{UNREGISTERED}{name}": value for name, value in found.items() if isinstance(value, Parameter)}


def take(content: Content, files: Parts | None = None) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, Any]]:
    """Return the arrays of a run by group, and the rest of its state.

    On CPU the arrays are live views of the parameters: write or copy them before the next step. With `files`, each
    process writes its own table rows, so only the rows of this process are returned.
    """
    groups = {
        group: {name: parameter.asnumpy() for name, parameter in parameters.items()}
        for group, parameters in named_parameters(content).items()
        if parameters
    }
    if content.accumulation.is_open:
        gradients = content.accumulation.parameters()
        groups[ACCUMULATION] = {name: parameter.asnumpy() for name, parameter in gradients.items()}
    parts = {name: part.state_dict() for name, part in content.parts.items() if files is None or name != TABLES}
    if files is not None and content.tables is not None:
        parts[TABLES] = content.tables.state_dict(own_rows=True)
    groups |= {f"part.{name}": dict(part["arrays"]) for name, part in parts.items() if part["arrays"]}
    if files is not None:
        groups[files.part_group(0)] = groups.pop(TABLES_GROUP)
    state = {
        **content.state.state_dict(),
        "callbacks": content.callbacks.state_dict(),
        "random": generator_states(),
        "parts": {name: part["json"] for name, part in parts.items()},
        **({} if content.cursor is None else content.cursor.state_dict()),
    }
    return groups, state


def match_tensors(
    content: Content, groups: Mapping[str, Mapping[str, np.ndarray]], *, strict: bool, weights_only: bool
) -> list[tuple[Parameter, np.ndarray]]:
    """Return the pairs (parameter, saved tensor) to assign; change nothing.

    Raises:
        CheckpointMismatchError: with `strict`, parameters are missing, unexpected, or differ in shape or dtype.
    """
    expected = named_parameters(content)
    if weights_only:
        expected = {MODEL: expected[MODEL]} | _of_loss(content, groups)
    else:  # releases up to 0.6 did not save the unregistered ones
        own = {name for name in expected[STEP] if name.startswith(UNREGISTERED)} - set(groups.get(STEP, {}))
        expected[STEP] = {name: parameter for name, parameter in expected[STEP].items() if name not in own}
    if not weights_only and ACCUMULATION in groups:
        expected[ACCUMULATION] = dict(content.accumulation.parameters())
    saved: dict[str, Mapping[str, Any]] = {group: groups.get(group, {}) for group in expected}
    if OPTIMIZER in saved:
        saved[OPTIMIZER] = {_REPEATED_GROUP.sub(r"\1", name): value for name, value in saved[OPTIMIZER].items()}
    if weights_only:  # the rest of these groups is not asked for
        saved |= {group: {name: saved[group][name] for name in expected[group]} for group in expected if group != MODEL}
    problems = compare(_flat(expected), _flat(saved))
    if problems and strict:
        raise problems.error("the snapshot", "this network and optimizer")
    if problems:
        logger.warning("%s", problems.message("the snapshot", "this network and optimizer"))
    return [
        (parameter, value)
        for group, parameters in expected.items()
        for name, parameter in parameters.items()
        if (value := saved[group].get(name)) is not None
        and tuple(value.shape) == tuple(parameter.shape)
        and value.dtype.kind != "c"
    ]


def _of_loss(content: Content, saved: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Parameter]]:
    """Return the loss's parameters that a snapshot has, by group.

    Those that are trained are in the group of the optimizer, the others in that of the step.
    """
    cell = content.loss_fn
    own = [p for p in parameters_of(cell) if not p.name.startswith("trainer.")] if isinstance(cell, nn.Cell) else []
    return {group: {p.name: p for p in own if p.name in saved.get(group, {})} for group in (OPTIMIZER, STEP)}


def assign(tensors: Iterable[tuple[Parameter, np.ndarray]]) -> None:
    """Assign saved tensors to their parameters."""
    for parameter, value in tensors:
        overwrite(parameter, value)


def restore_all(
    content: Content,
    snapshot: Snapshot,
    tensors: Iterable[tuple[Parameter, np.ndarray]],
    load_tables: Callable[[list[dict[str, Any]]], None],
    cursor: Cursor | None,
) -> None:
    """Restore a whole snapshot, or nothing if any part is unusable.

    Large tensors and tables are checked first and changed last. Small parts are restored in between; if one is
    unusable, all of them are reset to their former state.

    Raises:
        CheckpointError: a part of the state is unusable; the message names the part.
        CheckpointMismatchError: the snapshot belongs to other tables.
    """
    tables = table_states(content, snapshot)
    undo, owner = _undo_steps(content), "its parts"
    try:
        for owner, restore in _small_parts(content, snapshot, cursor):  # noqa: B007 - the handler names it
            restore()
    except BaseException as error:
        for step in undo:
            with contextlib.suppress(Exception):  # a user's callback may reject even its own state
                step()
        if not isinstance(error, Exception) or isinstance(error, CheckpointError):
            raise
        reason = str(error) if isinstance(error, TrainerError) else f"{type(error).__name__}: {error}"
        raise CheckpointError(f"{snapshot.path} holds no usable state of {owner}: {reason}") from error
    if tables:
        load_tables(tables)
    if ACCUMULATION not in snapshot.groups:
        content.accumulation.clear()
    assign(tensors)
    if not part_states(snapshot, "averages"):
        restore_averages(content, snapshot)  # now that the weights are restored


def _undo_steps(content: Content) -> list[Callable[[], Any]]:
    """Return functions that reset the small parts to their present state.

    The cursor needs no reset, because an error ends the call that created it.
    """
    state = copy.deepcopy(content.state.state_dict())
    stateful = [part for name, part in content.parts.items() if name != TABLES] + list(content.callbacks)
    return [
        partial(content.state.progress.load_state_dict, state["progress"]),
        partial(content.state.load_metrics, state["metrics"]),
        partial(restore_generators, generator_states()),
        *(partial(owner.load_state_dict, copy.deepcopy(owner.state_dict())) for owner in stateful),
    ]


def _small_parts(
    content: Content, snapshot: Snapshot, cursor: Cursor | None
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield (name for messages, function that restores it) for all but the tables."""
    saved, state = snapshot.state, content.state
    for name, part in content.parts.items():
        if name == TABLES:
            continue
        states = part_states(snapshot, name)
        if states:
            yield f"the part {name!r}", partial(part.load_state_dict, states[-1])
        else:
            logger.warning("the snapshot holds no state of %s; it starts from the beginning", name)

    def restore_callbacks() -> None:
        for key in content.callbacks.load_state_dict(saved["callbacks"]):
            level = logging.INFO if cursor is None else logging.WARNING  # outside a run there are no callbacks yet
            logger.log(level, "the snapshot holds the state of callback %s, which this run does not have", key)

    yield "the counters", lambda: state.load_progress(saved["progress"], snapshot.step)
    yield "the metrics", lambda: state.load_metrics(saved["metrics"])
    yield "the random generators", lambda: restore_generators(saved["random"])
    yield "the callbacks", restore_callbacks
    if cursor is not None:
        yield "the position in the data", lambda: cursor.load_state_dict(saved)


def table_states(content: Content, snapshot: Snapshot) -> list[dict[str, Any]]:
    """Return the checked states of the sparse tables, oldest first.

    If the columns that feed the tables are not known yet, `Trainer.use_tables` checks the states later.

    Raises:
        CheckpointMismatchError: the states belong to other tables.
        CheckpointDamagedError: the states cannot be restored.
    """
    states = part_states(snapshot, TABLES)
    if content.tables is not None:
        if not content.tables.tables.tables:  # all are dense, and so parameters
            return []
        if not states:
            logger.warning("the snapshot has no rows of the sparse tables; they stay as they are")
        content.tables.check_states(states)
    return states


def part_states(snapshot: Snapshot, name: str) -> list[dict[str, Any]]:
    """Return the states of a part in a snapshot and its bases, oldest first."""
    group = f"part.{name}"
    states = []
    for link in snapshot.chain():
        parts = link.state.get("parts", {})
        if not isinstance(parts, Mapping):
            raise CheckpointError(f"{link.path} holds no usable state of its parts: it is not a mapping")
        if name in parts:
            states.append({"json": parts[name], "arrays": link.tensors(group) if group in link.groups else {}})
    return states


def restore_averages(content: Content, snapshot: Snapshot) -> None:
    """Restore the averages of the weights, if any; without saved ones, begin anew."""
    averages: Any = content.parts.get("averages")  # a `WeightAverage`
    if averages is not None:
        states = part_states(snapshot, "averages")
        if states:
            averages.load_state_dict(states[-1])
        else:
            averages.restart()


def with_averages(groups: Mapping[str, Mapping[str, Any]], snapshot: Snapshot) -> dict[str, Mapping[str, Any]]:
    """Return a snapshot's tensor groups; weight averages, if any, replace the weights."""
    states = part_states(snapshot, "averages")
    if not states:
        return dict(groups)
    weights, rest = groups[MODEL], groups.get(OPTIMIZER, {})  # the optimizer has the trained parameters of the loss
    result, averages = dict(groups), states[-1]["arrays"].items()
    averaged = {name: value.astype(weights[name].dtype) for name, value in averages if name in weights}
    of_loss = {name: value.astype(rest[name].dtype) for name, value in averages if name in rest and name not in weights}
    return result | {MODEL: {**weights, **averaged}} | ({OPTIMIZER: {**rest, **of_loss}} if of_loss else {})


def _flat(groups: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the parameters of all groups by name; prefix names outside the model."""
    return {
        name if group == MODEL else f"{group}: {name}": value
        for group, values in groups.items()
        for name, value in values.items()
    }


_WORDS = 624


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and MindSpore (which also seeds its datasets)."""
    random.seed(seed)
    np.random.seed(seed)
    mindspore.set_seed(seed)


def generator_states() -> dict[str, Any]:
    """Return the states of Python's and NumPy's generators and MindSpore's seed."""
    version, internal, gauss = random.getstate()
    state: Any = np.random.get_state(legacy=True)
    name, keys, position, has_gauss, cached = state
    return {
        "python": [version, list(internal), gauss],
        "numpy": [name, keys.tolist(), int(position), int(has_gauss), float(cached)],
        "mindspore_seed": mindspore.get_seed(),
    }


def restore_generators(states: Mapping[str, Any]) -> None:
    """Restore the states that `generator_states` returned.

    Raises:
        ValueError, TypeError, KeyError: `states` is not a result of `generator_states`.
    """
    version, internal, gauss = states["python"]
    name, keys, position, has_gauss, cached = states["numpy"]
    if name != "MT19937" or len(keys) != _WORDS:
        raise ValueError(f"the state of NumPy's generator is of {name!r} with {len(keys)} words, not of MT19937")
    # NumPy does not check the position and would read past the end of its words
    position, has_gauss = whole("position", position, 0, maximum=_WORDS), whole("has_gauss", has_gauss, 0, maximum=1)
    words = np.array([whole("word", key, 0, maximum=2**32 - 1) for key in keys], np.uint32)
    seed = whole("mindspore_seed", states.get("mindspore_seed"), 0, maximum=2**32 - 1, optional=True)
    random.setstate((version, tuple(internal), gauss if gauss is None else any_number("gauss", gauss)))
    np.random.set_state((name, words, position, has_gauss, any_number("cached", cached)))
    if seed is not None:
        before = np.random.get_state()
        mindspore.set_seed(seed)
        np.random.set_state(before)  # mindspore.set_seed reseeds NumPy
