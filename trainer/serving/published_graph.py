"""The trained network as a published folder: its program, the columns it takes and the declared features."""

from __future__ import annotations

import logging
import os
import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..checkpoint import durable, strict_json
from ..checkpoint.manifest import FolderWriter
from ..data.ragged import Ragged, RaggedInput, base_of
from ..errors import ConfigurationError
from ..features.feature import Kind
from ..features.features import Features
from ..metrics.defaults import BINARY, meaning_of
from .graph_export import ABOUT, export_network, plain_folder, write_features
from .published import GRAPH, VERSION, Part, place

if TYPE_CHECKING:
    from ..trainer import Trainer

logger = logging.getLogger(__name__)


def publish_network(trainer: Trainer, root: Path, batch: int) -> Part:
    """Write the network for servers into a new folder of `root`.

    Args:
        trainer: a Trainer that has trained or predicted a chunk, whose columns show the inputs.
        root: folder of the published model.
        batch: rows of the exported program.

    Raises:
        ConfigurationError: the network takes lists without a longest row, or no folder suits MindSpore.
        OSError: the file system refused.
    """
    tables = trainer.tables.tables if trainer.tables is not None else None
    names, columns, ragged = blank_inputs(trainer, batch)
    name = f"graph-{uuid.uuid4().hex[:12]}"
    with FolderWriter(root / name) as folder:
        about = export_network(trainer.network, tables, columns, folder.path, batch=batch, cast=trainer.builder.cast)
        about["columns"] = list(names)
        about["ragged"] = {name: [list(suffixes), *rest] for name, (suffixes, *rest) in ragged.items()}
        for file in os.listdir(folder.path):
            folder.adopt(file)
        about["activation"] = activation_name(trainer)
        about["features"] = trainer.features is not None
        if trainer.features is not None:
            write_features(trainer.features, folder)
        folder.write(ABOUT, [strict_json.dumps(about).encode()])
        return place(root, folder, GRAPH, name, {})


def check_folder(root: Path, size: int) -> None:
    """Check, before anything is trained, that versions can be written: folders in it, and a network's program.

    Args:
        root: folder of the published model.
        size: bytes of the network's parameters; a warning says where there is less room than that.

    Raises:
        ConfigurationError: it cannot be.
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


def blank_inputs(trainer: Trainer, batch: int) -> tuple[tuple[str, ...], list[np.ndarray], dict[str, RaggedInput]]:
    """Return the names of the network's inputs, a batch of zeros for each, [batch, ...], and what is ragged of them.

    Raises:
        ConfigurationError: as `ragged_inputs`.
    """
    chunk = trainer.state.outputs.chunk
    ragged = ragged_inputs(trainer)
    names = chunk.names[: len(chunk.names) - trainer.label_count]
    if trainer.features is not None:  # a group and loss weights come behind the inputs too
        names = tuple(name for name in names if base_of(name) in trainer.features.inputs)
    blank: dict[str, np.ndarray] = {}
    for name, array in zip(names, chunk.arrays, strict=False):
        dtype = np.int64 if array.dtype.kind in "USO" else array.dtype
        shape = array.shape[2:] if chunk.stacked else array.shape[1:]
        if name in ragged:
            within = shape if "_offsets" in ragged[name].suffixes else shape[1:]
            empty = Ragged(np.zeros((0, *within), dtype), np.zeros(batch + 1, np.int64))
            numbers = ragged[name]._replace(padding=0)
            blank |= numbers.arrays(name, empty, numbers.capacity(batch))
        elif name not in blank:
            blank[name] = np.zeros((batch, *shape), dtype)
    return names, [blank[name] for name in names], ragged


def ragged_inputs(trainer: Trainer) -> dict[str, RaggedInput]:
    """Return what the network takes of ragged columns, by name.

    Raises:
        ConfigurationError: a column has no longest row: a published program has one length.
    """
    found = {} if trainer.run is None else dict(trainer.run.feed.ragged.inputs)
    for name, wanted in found.items():
        if wanted.length is None:
            raise ConfigurationError(
                f"Publish: rows of column {name!r} may have any length, and a published program has one; give "
                "max_length, as Column(..., shape=(None,), max_length=50) or Ragged.of(rows, max_length=50)"
            )
    return found


def check_publishable(features: Features) -> None:
    """Check that raw rows can be transformed elsewhere, before anything is trained.

    Raises:
        ConfigurationError: a list has no longest row, or a custom function cannot be imported.
    """
    features.declaration()
    for feature in features.features:
        if any(output.kind is Kind.LIST for output in feature.outputs()) and feature.max_length is None:
            raise ConfigurationError(
                f"Publish: lists of feature {feature.name!r} may have any length, and a published program has one; "
                "give max_length, as ListFeature(..., max_length=50)"
            )


def activation_name(trainer: Trainer) -> str | None:
    """Return the name of what turns the network's output into the quantity of the label; None where none is known."""
    meaning = meaning_of(trainer.loss_fn, trainer.prediction_activations.get(""))
    activation = meaning.activation or ("identity" if meaning.target == BINARY else None)
    return activation if isinstance(activation, str) else None
