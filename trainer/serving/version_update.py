"""Reads and verifies the changes from the served version to another version."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..embedding.tables.spec import DEFAULT_ROW
from ..errors import CheckpointDamagedError, CheckpointError, ConfigurationError, MissingPackageError
from ..metrics.calibration_map import CalibrationMap
from ..mindspore_internals.messages import main_message
from .finite import check_finite, check_state
from .packed_rows import unpack_rows
from .published import (
    CALIBRATION,
    FEATURES,
    FULL,
    GRAPH,
    ITEMS,
    ROWS,
    VERSION,
    WEIGHTS,
    Current,
    Folder,
    FolderRef,
    table_rows,
)
from .published_items import PublishedItems
from .served_graph import ServedGraph

_BLOCK = 1 << 16


class VersionUpdate:
    """The verified changes from the served version to another version.

    The constructor reads and verifies all files. The served graph stays unchanged until `write_tables` and
    `load_features`.

    Args:
        root: folder of the published model.
        served: the version being served, or None.
        graph: network and tables of the served version, or None.
        target: the version to serve next.

    Attributes:
        graph: network and tables of `target`.
        has_own_graph: whether `graph` is a new graph, which needs all rows; False if it is the served graph.
        weights: parameters of the network outside its tables.
        items: items from `Publish(items=...)`, or None.
        calibration: calibration from `Trainer(calibration=...)`, or None.

    Raises:
        CheckpointDamagedError: a file is missing or damaged, or does not belong to the network.
        CheckpointError: the version needs a package that is not installed.
        NonFiniteError: a parameter, a table row or a feature statistic is NaN or infinite.
    """

    def __init__(self, root: Path, served: Current | None, graph: ServedGraph | None, target: Current) -> None:
        same_graph = served is not None and served.graph == target.graph
        new_folders = _folders_to_apply(root, served.chain[-1], target) if served is not None and same_graph else None
        self.has_own_graph = graph is None or new_folders is None
        self.graph = _open_graph(root, target.graph) if graph is None or new_folders is None else graph
        folders = [Folder(root, VERSION, reference) for reference in new_folders or target.chain]
        files = [target.full if self.has_own_graph else ROWS, *[ROWS] * (len(folders) - 1)]
        dims = {name: table.spec.dim for name, table in self.graph.tables.items()}
        self._rows = [
            table_rows(arrays, dims, path)  # parts have no id in common, so they can be applied one after another
            for folder, file in zip(folders, files, strict=True)
            for path, arrays in folder.pieces(file)
        ]
        self.weights = _weights_for(self.graph, folders[-1])
        self._feature_state = folders[-1].state(FEATURES)
        if self._feature_state is not None:
            check_state(self._feature_state)
        self.items = _read_state(folders[-1], ITEMS, PublishedItems)
        self.calibration = _read_state(folders[-1], CALIBRATION, CalibrationMap)

    def write_tables(self) -> None:
        """Write the version's rows to the tables of `graph`."""
        for name, arrays in (item for rows in self._rows for item in rows.items()):
            table = self.graph.tables[name]
            table.discard(np.asarray(arrays["removed"]))
            if len(arrays["default"]):
                table.store.write(np.array([DEFAULT_ROW]), np.array(arrays["default"]))
            for start in range(0, len(arrays["ids"]), _BLOCK):
                block = slice(start, start + _BLOCK)
                rows = {key: arrays[key][block] for key in ("weights", "scale") if key in arrays}
                table.put(np.array(arrays["ids"][block]), unpack_rows(rows))

    def load_features(self) -> None:
        """Load the version's feature statistics, if it has any."""
        if self._feature_state is not None and self.graph.features is not None:
            self.graph.features.load_state_dict(self._feature_state)


def _folders_to_apply(root: Path, served: FolderRef, target: Current) -> tuple[FolderRef, ...] | None:
    """Return the versions to apply to the served one; None if all rows must be read."""
    if served in target.chain[:-1]:
        return target.chain[target.chain.index(served) + 1 :]
    # If `target.full` is `FULL`, the chain's first version also has a file `ROWS` with the changes since its `before`.
    follows = target.full == FULL and Folder(root, VERSION, target.chain[0]).before == served
    return target.chain if follows else None


def _open_graph(root: Path, reference: FolderRef) -> ServedGraph:
    folder = Folder(root, GRAPH, reference)
    folder.verify()
    try:
        graph = ServedGraph(folder.path)
        folder.verify()  # MindSpore opens the files by name, so verify that they were not replaced meanwhile
        return graph
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointDamagedError(
            f"{folder.path} cannot be loaded though its checksums are right; was it published with another version of "
            f"MindSpore or of this package? {type(error).__name__}: {main_message(str(error))}"
        ) from error


def _read_state(folder: Folder, kind: str, build: Callable[[Any], Any]) -> Any:
    """Load a version's state of one kind with `build`; return None if there is none."""
    state = folder.state(kind)
    if state is None:
        return None
    check_state(state, f"{folder.path}: {kind}:")
    try:
        return build(state)
    except MissingPackageError as error:
        raise CheckpointError(f"{folder.path} has {kind} that this environment cannot read: {error}") from error
    except (ValueError, TypeError, KeyError, AttributeError, ConfigurationError) as error:
        raise CheckpointDamagedError(f"{folder.path} does not describe {kind}: {error!r}") from None


def _weights_for(graph: ServedGraph, folder: Folder) -> dict[str, np.ndarray]:
    tensors = folder.tensors(WEIGHTS)
    for name, parameter in graph.weights.items():
        array = tensors.get(name)
        if array is None or array.shape != tuple(parameter.shape):
            problem = "is missing" if array is None else f"has the shape {list(array.shape)}"
            raise CheckpointDamagedError(
                f"the weights in {folder.path} are not those of the network: {name!r} {problem}, not {parameter.shape}"
            )
    weights = {name: np.array(tensors[name]) for name in graph.weights}
    check_finite(weights, f"{folder.path}: the parameter")
    return weights
