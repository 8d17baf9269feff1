"""Publishes the trained network as a folder: program, columns and features."""

from __future__ import annotations

import logging
import os
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..checkpoint import durable, strict_json
from ..checkpoint.manifest import FolderWriter
from ..data.chunk import InputBatch
from ..data.ragged import Ragged, column_of
from ..errors import ConfigurationError
from ..features.feature import Kind
from ..features.features import Features
from ..metrics.defaults import BINARY, meaning_of
from ..metrics.predictions import ACTIVATIONS
from .graph_export import GRAPH_JSON, NETWORK, export_network, plain_folder, program_file, write_features
from .published import GRAPH, VERSION, FolderRef, publish_folder

if TYPE_CHECKING:
    from callbacks.callback import Trainer

logger = logging.getLogger(__name__)


def publish_network(trainer: Trainer, root: Path, batch: int | Sequence[int], example: InputBatch) -> FolderRef:
    """Write the network for servers into a new folder of `root`.

    Args:
        trainer: a Trainer.
        root: folder of the published model.
        batch: batch size of the exported program, or several sizes for several programs.
        example: a batch with the network's inputs.

    Raises:
        ConfigurationError: `example` has a ragged column without a maximum length.
    """
    tables = trainer.tables.tables if trainer.tables is not None else None
    _check_lists(example)
    *smaller, largest = sorted({batch} if isinstance(batch, int) else set(batch))
    name = f"graph-{uuid.uuid4().hex[:12]}"
    with FolderWriter(root / name) as folder:

        def export(rows: int, file: str) -> dict[str, Any]:
            columns, cast = blank_inputs(example, rows), trainer.builder.cast
            return export_network(trainer.network, tables, columns, folder.path, batch=rows, cast=cast, file=file)

        description = export(largest, NETWORK)
        smaller_stacks = {rows: export(rows, program_file(rows))["stacks"] for rows in smaller}
        description["smaller"] = [{"batch": rows, "stacks": stacks} for rows, stacks in smaller_stacks.items()]
        description["columns"] = list(example.names)
        ragged = example.ragged
        description["ragged"] = {n: [list(spec.suffixes), spec.padding, spec.length] for n, spec in ragged.items()}
        description["longest"] = {name: spec.longest for name, spec in ragged.items()}
        for file in os.listdir(folder.path):
            folder.adopt(file)
        description["activation"] = _activation_name(trainer)
        description["tasks"] = _task_activations(trainer)
        description["own_activations"] = _own_activations(trainer)
        description["features"] = trainer.features is not None
        if trainer.features is not None:
            write_features(trainer.features, folder)
        folder.write(GRAPH_JSON, [strict_json.dumps(description).encode()])
        return publish_folder(root, folder, GRAPH, name, {})


def check_folder(root: Path, size: int) -> None:
    """Check before training that versions and a program can be written to a folder.

    Warns if less than `size` bytes, the size of the network's parameters, are free.

    Raises:
        ConfigurationError: the folder cannot be written.
    """
    try:
        with FolderWriter(root / "v_00000000") as folder:
            folder.write("weights.safetensors", [b"trial"])
            folder.seal(VERSION, {})
    except OSError as error:
        raise ConfigurationError(str(durable.write_error("a version to", root, error))) from error
    with plain_folder(root):
        free = shutil.disk_usage(root).free
    if free < size:
        logger.warning("%s has %s bytes free; a version takes %s at least", root, f"{free:,}", f"{size:,}")


def blank_inputs(example: InputBatch, batch: int) -> list[np.ndarray]:
    """Return a batch of zeros for each input of the network, [batch, ...]."""
    blank: dict[str, np.ndarray] = {}
    for name, array in zip(example.names, example.columns, strict=True):
        dtype = np.int64 if array.dtype.kind in "USO" else array.dtype
        if name in example.ragged:
            spec = example.ragged[name]._replace(padding=0)
            element_shape = array.shape[1 if "_offsets" in spec.suffixes else 2 :]
            empty = Ragged(np.zeros((0, *element_shape), dtype), np.zeros(batch + 1, np.int64))
            blank |= spec.arrays(name, empty, spec.capacity(batch))
        elif name not in blank:
            blank[name] = np.zeros((batch, *array.shape[1:]), dtype)
    return [blank[name] for name in example.names]


def trained_batch(trainer: Trainer) -> InputBatch:
    """Return the network's inputs from the last trained batch."""
    chunk = trainer.state.outputs.chunk
    names = chunk.names[: len(chunk.names) - trainer.label_count]
    if trainer.features is not None:  # drop the group and loss weights that follow the inputs
        inputs = trainer.features.inputs
        names = tuple(name for name in names if name in inputs or column_of(name) in inputs)
    columns = tuple(array[0] if chunk.stacked else array for array in chunk.arrays[: len(names)])
    return InputBatch(names, columns, trainer.run.feed.ragged_inputs)


def _check_lists(example: InputBatch) -> None:
    for name, spec in example.ragged.items():
        if spec.length is None:
            raise ConfigurationError(
                f"rows of column {name!r} may have any length, but a published or exported program needs a maximum; "
                "give max_length, as Column(..., shape=(None,), max_length=50) or Ragged.of(rows, max_length=50)"
            )


def check_publishable(features: Features) -> None:
    """Check before training that a server can transform raw rows.

    Raises:
        ConfigurationError: a list feature has no `max_length`, or a custom function cannot be imported.
    """
    features.declaration()
    for feature in features.features:
        has_lists = any(output.kind is Kind.LIST for output in feature.outputs())
        if has_lists and getattr(feature, "max_length", None) is None:
            raise ConfigurationError(
                f"lists of feature {feature.name!r} may have any length, but a published or exported program needs a "
                "maximum; give max_length, as ListFeature(..., max_length=50)"
            )


def _activation_name(trainer: Trainer) -> str | None:
    """Return the activation from output to label units; None if unknown."""
    meaning = meaning_of(trainer.loss_fn, trainer.prediction_activations.get(""))
    activation = meaning.activation or ("identity" if meaning.target == BINARY else None)
    return activation if isinstance(activation, str) else None


def _task_activations(trainer: Trainer) -> dict[str, str | None]:
    """Return the activation of each task, None if unknown; empty without tasks."""
    activations = {} if trainer.tasks is None else _activations(trainer)
    return {task: activation if isinstance(activation, str) else None for task, activation in activations.items()}


def _own_activations(trainer: Trainer) -> list[str]:
    """Return the tasks whose activation is a function, [""] for a single loss.

    Warns that functions are not published.
    """
    tasks = [task for task, activation in _activations(trainer).items() if callable(activation)]
    if tasks:
        logger.warning(
            "the function prediction_activation%s is not published: servers answer with the network's output; "
            "names are published: %s",
            f" of {', '.join(tasks)}" if trainer.tasks is not None else "",
            ", ".join(map(repr, ACTIVATIONS)),
        )
    return tasks


def _activations(trainer: Trainer) -> dict[str, Any]:
    """Return the activation of each task, or that of "" without tasks."""
    tasks = trainer.tasks
    pairs = [("", trainer.loss_fn)] if tasks is None else zip(tasks.tasks, tasks.losses, strict=True)
    return {task: meaning_of(loss, trainer.prediction_activations.get(task)).activation for task, loss in pairs}
