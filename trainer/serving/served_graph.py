"""Runs an exported network and its tables in a server."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from ..checkpoint import strict_json
from ..data.ragged import Ragged, RaggedInput, data_arguments
from ..embedding.planning.fixed_reads import FixedReads
from ..embedding.planning.layout import FieldMap, read_layout
from ..embedding.tables.hashing import ids_of_rows, to_ids
from ..embedding.tables.spec import TableSpec
from ..embedding.tables.table import SparseTable
from ..errors import DataError, GraphError
from ..features.feature_files import read_features
from ..metrics.calibration_map import CalibrationMap
from ..metrics.predictions import activate, activate_outputs
from ..mindspore_internals.cell_structure import parameters_of
from ..mindspore_internals.compilation import compile_lock, release_failed
from ..mindspore_internals.messages import main_message
from ..mindspore_internals.shared_memory import HostMirror, overwrite
from ..streams.batch import columns_of, is_frame
from ..streams.formats.coercion import whole_numbers
from ..streams.formats.ragged_column import text_only
from .graph_export import GRAPH_JSON, NETWORK, program_file
from .published import Current
from .published_items import PublishedItems

logger = logging.getLogger(__name__)

_NO_ROWS = "predict: there are no rows"


class ServedGraph:
    """An exported network with empty tables: ``network.mindir``, ``graph.json``.

    Only one thread at a time may call it, and tables must not change during a call. The caller fills `tables` (by
    name) and sets `weights`, the parameters of the network outside its tables.
    """

    def __init__(self, folder: Path) -> None:
        description = strict_json.loads((folder / GRAPH_JSON).read_bytes())
        self.description = description
        self.batch: int = description["batch"]  # maximum number of rows per call
        longest = description.get("longest", {})  # absent in older versions
        self.ragged = {
            name: RaggedInput(tuple(suffixes), padding, length, longest.get(name, length))
            for name, (suffixes, padding, length) in description.get("ragged", {}).items()
        }
        self.column_names = data_arguments(description["columns"], self.ragged)  # the columns that callers pass
        self.features = read_features(folder) if description.get("features") else None  # transforms raw rows
        self.classes: tuple[Any, ...] = () if self.features is None else self.features.label_classes
        self.activation: str | None = description.get("activation")  # maps the first output to label units
        self.output_names: tuple[str, ...] = tuple(description.get("outputs", ()))  # keys of a dict of outputs
        self.tasks: dict[str, str | None] = description.get("tasks", {})  # activation of each task; empty without tasks
        self.own_activations: list[str] = description.get("own_activations", [])  # tasks with an unpublished function
        specs = [
            TableSpec(table["name"], table["dim"], initializer="zeros", padding=table["padding"])
            for table in description["tables"]
        ]
        self.tables = {spec.name: SparseTable(spec, np.zeros(0, np.float32)) for spec in specs}
        files = [*((program_file(entry["batch"]), entry) for entry in description.get("smaller", ()))]
        files.append((NETWORK, description))
        self._programs = [_Program(folder / file, entry["batch"], entry["stacks"]) for file, entry in files]
        self.sizes = tuple(program.batch for program in self._programs)  # batch sizes, ascending
        self.weights = self._programs[-1].weights
        dense = description.get("dense", ())  # absent in older versions
        self.fields = FieldMap.from_json(description["fields"], dense)
        self.fields.names = tuple(description["columns"])
        layout = read_layout(self.fields.components, specs)
        self._reads = FixedReads(list(self.tables.values()), self.fields, layout)

    def set_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Set the parameters of the network outside its tables; ignore unknown names.

        Call this on the thread that calls `run`.
        """
        for program in self._programs:
            for name, value in weights.items():
                if name in program.weights:
                    overwrite(program.weights[name], value)

    def size_for(self, rows: int) -> int:
        """Return the size of the smallest program that fits `rows`, else the largest."""
        return next((size for size in self.sizes if size >= rows), self.batch)

    def run(self, columns: Sequence[np.ndarray], size: int | None = None) -> tuple[np.ndarray, ...]:
        """Return the outputs of one call, [size, ...] each.

        Args:
            columns: raw columns [size, ...]. For a network without ragged columns they may have fewer rows; the last
                row is then repeated.
            size: one of `sizes`; None for the largest.
        """
        program = self._programs[-1 if size is None else self.sizes.index(size)]
        inputs = self._reads(columns, *program.row_buffers())
        if not self.ragged:  # pad after the lookup, so that the ids of repeated rows are not looked up
            inputs = [_pad(column, program.batch) for column in inputs]
        return program.run(inputs)


class _Program:
    """The network for one batch size; for `stacks`, see `exportable`."""

    def __init__(self, file: Path, batch: int, stacks: Sequence[Mapping[str, Any]]) -> None:
        self.batch = batch
        with compile_lock:
            self._cell = nn.GraphCell(ms.load(str(file)))
        self._compiled = False
        self.weights = {parameter.name: parameter for parameter in parameters_of(self._cell)}

        def mirror_and_size(stack: Mapping[str, Any], kind: str, size: str) -> Any:
            name = f"embedding.{stack['name']}.{kind}"
            return (HostMirror(self.weights.pop(name)), stack[size]) if stack[size] else None

        # One pair for each stack; in `_maps`, None for a stack without a map.
        self._rows = [mirror_and_size(stack, "rows", "size") for stack in stacks]
        self._maps = [mirror_and_size(stack, "places", "map_size") for stack in stacks]

    def row_buffers(self) -> tuple[list[np.ndarray], list[np.ndarray | None]]:
        """Return each stack's arrays of rows and positions, for `FixedReads` to fill."""
        rows = [mirror.array(size) for mirror, size in self._rows]
        return rows, [None if pair is None else pair[0].array(pair[1]) for pair in self._maps]

    def run(self, columns: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """Return the outputs for `batch` rows, whose table rows are in `row_buffers`."""
        for pair in (*self._rows, *self._maps):
            if pair is not None:
                pair[0].push()
        try:
            with contextlib.nullcontext() if self._compiled else compile_lock:
                outputs = self._cell(*(Tensor(column) for column in columns))
        except Exception as error:
            self._compiled = False
            release_failed(self._cell)
            raise GraphError(f"the published network failed on these rows: {main_message(str(error))}") from error
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        if not self._compiled:
            _check_rows(outputs, self.batch)
        self._compiled = True
        return tuple(output.asnumpy() for output in outputs)


def _check_rows(outputs: Sequence[Any], rows: int) -> None:
    """Refuse outputs that cannot be joined; warn of others without a row for each row."""
    for index, output in enumerate(outputs):
        is_tensor = isinstance(output, Tensor)
        if is_tensor and output.shape[:1] == (rows,):
            continue
        found = f"a tensor of shape {list(output.shape)}" if is_tensor else f"{output!r:.60}"
        text = (
            f"output {index} of the published network has no row for each of the {rows} rows of a batch: it is "
            f"{found}; a served network returns tensors with a row for each row, or a tuple, list or dict of them"
        )
        if not is_tensor or not output.shape:
            raise GraphError(text)
        logger.warning("%s; answers hold parts of it", text)


def _pad(column: np.ndarray, rows: int) -> np.ndarray:
    """Pad a column to `rows` rows by repeating its last row."""
    if len(column) == rows:
        return column
    filled = np.empty((rows, *column.shape[1:]), column.dtype)
    filled[: len(column)] = column
    filled[len(column) :] = column[-1]
    return filled


@dataclass(eq=False)
class HeldVersion:
    """The version that is served until the context of `ServedModel.held` ends."""

    graph: ServedGraph
    current: Current
    items: PublishedItems | None = None  # items of `Publish(items=...)`
    calibration: CalibrationMap | None = None  # calibration of `Trainer(calibration=...)`

    def run(self, batch: Any) -> tuple[np.ndarray, ...]:
        """Return the network's outputs for its input columns, float32 [n, ...] each.

        Args:
            batch: a mapping from names to columns [n, ...], a sequence of columns, or a single column.

        Raises:
            DataError: columns are missing, differ in their number of rows, or have another shape than in training.
        """
        graph = self.graph
        columns = _validated(graph, batch)
        count, start = len(columns[0]), 0
        parts: list[tuple[np.ndarray, ...]] = []
        while start < count:
            size = graph.size_for(count - start)
            parts.append(graph.run(_slice_rows(graph, columns, start, size), size))
            start += size
        return tuple(np.concatenate(outputs)[:count] for outputs in zip(*parts, strict=True))

    def probability(self, outputs: Sequence[np.ndarray], batch: Any) -> np.ndarray | None:
        """Return float32 predictions in label units; None if the loss defines none.

        Args:
            outputs: result of `run` for `batch`.
            batch: the argument of `run`.
        """
        if self.calibration is not None:
            by, ids = self.calibration.column, None
            if by is not None:
                column = dict(zip(self.graph.column_names, _validated(self.graph, batch), strict=True))[by]
                ids = ids_of_rows(by, column, self.calibration.index)
            return self.calibration(outputs[0], ids).astype(np.float32)
        if self.graph.activation is None:
            return None
        return activate(self.graph.activation, outputs[0]).astype(np.float32)

    def as_returned(self, outputs: Sequence[np.ndarray]) -> Any:
        """Return outputs of `run` as the network does: a dict, a tuple or an array."""
        if self.graph.output_names:
            return dict(zip(self.graph.output_names, outputs, strict=True))
        return tuple(outputs) if len(outputs) > 1 else outputs[0]

    def task_predictions(self, outputs: Sequence[np.ndarray]) -> Any:
        """Return `as_returned` with predictions in the units of the tasks' labels."""
        predictions = activate_outputs(self.graph.tasks, self.as_returned(outputs))
        if isinstance(predictions, dict):
            return {name: part.astype(np.float32) for name, part in predictions.items()}
        if isinstance(predictions, tuple):
            return tuple(part.astype(np.float32) for part in predictions)
        return predictions.astype(np.float32)

    def outputs_by_task(self, outputs: Sequence[np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Return the output of each task, and further ones as output_<index>."""
        tasks = tuple(self.graph.tasks)
        if len(outputs) == 1 < len(tasks):  # a column for each task
            return {task: outputs[0][:, index] for index, task in enumerate(tasks)}, {}
        names = self.graph.output_names or (*tasks, *[""] * (len(outputs) - len(tasks)))
        found = dict(zip(names, outputs, strict=True))
        further = {f"output_{index}": outputs[index] for index, name in enumerate(names) if name not in tasks}
        return {task: found[task] for task in tasks}, further


def _validated(graph: ServedGraph, batch: Any) -> list[Any]:
    names, shapes = graph.column_names, graph.description["shapes"]
    batch = columns_of(batch) if is_frame(batch) else batch
    if isinstance(batch, Mapping):
        missing = [name for name in names if name not in batch]
        if missing:
            raise DataError(f"predict needs the columns {', '.join(names)}; {', '.join(missing)} not given")
        batch = [batch[name] for name in names]
    elif not isinstance(batch, Sequence) or isinstance(batch, np.ndarray):
        batch = [batch]
    if not len(batch):
        raise DataError(_NO_ROWS)
    if len(batch) != len(names):
        raise DataError(f"predict takes {len(names)} columns ({', '.join(names)}); received {len(batch)}")
    indices = [graph.description["columns"].index(name) for name in names]
    columns: list[Any] = []
    for name, index, column in zip(names, indices, batch, strict=True):
        if name in graph.ragged:
            options = {"padding": graph.ragged[name].padding, "max_length": graph.ragged[name].longest}
            column = Ragged.of(column, **options).cut()
            shape = ["lists"]
        else:
            column, shape = text_only(column, np.asarray(column)), shapes[index]
        wrong = name not in graph.ragged and (not column.ndim or list(column.shape[1:]) != shape)
        if wrong or len(column) != len(columns[0] if columns else column):
            raise DataError(f"column {name} must be [n{''.join(f', {s}' for s in shape)}]; received {column.shape}")
        is_id = index in graph.fields.id_columns
        columns.append(_typed(name, column, np.dtype(graph.description["dtypes"][index]), is_id=is_id))
    if not len(columns[0]):
        raise DataError(_NO_ROWS)
    return columns


def _typed(name: str, column: Any, dtype: np.dtype, *, is_id: bool) -> Any:
    """Return a column in a type that the network takes, with all its values."""
    if isinstance(column, Ragged) and not len(column[:].values):  # the dtype of empty lists is unknown
        return column.astype("U1" if column.padding == "" else dtype)
    if column.dtype.kind == "O":
        if isinstance(column, Ragged) or dtype.kind not in "iu":
            accepted = "text" if isinstance(column, Ragged) and column.padding == "" else dtype
            raise DataError(f"column {name!r} takes {accepted}; received values of several types, or missing ones")
        return to_ids(column, f"column {name!r}")
    if column.dtype.kind in "US" and not is_id and dtype != np.int64:  # text that is no id was trained by its hash
        raise DataError(f"column {name!r} takes {dtype}; received text")
    if column.dtype.kind == "f" and dtype.kind in "iub":
        values = column[:].values if isinstance(column, Ragged) else column
        whole = whole_numbers(values.reshape(-1))
        if whole is None or whole[1].any() or not np.array_equal(whole[0].astype(dtype), whole[0]):
            raise DataError(f"column {name!r} takes {dtype}; received fractions, missing values or larger numbers")
    return column.astype(dtype) if column.dtype.kind == "f" else column


def _slice_rows(graph: ServedGraph, columns: Sequence[Any], start: int, size: int) -> list[np.ndarray]:
    """Return the arguments of one call: `size` rows starting at `start`."""
    rows: Any = slice(start, start + size)
    if graph.ragged:
        rows = np.minimum(np.arange(start, start + size), len(columns[0]) - 1)
    arrays: dict[str, np.ndarray] = {}
    for name, column in zip(graph.column_names, columns, strict=True):
        if name in graph.ragged:
            spec = graph.ragged[name]
            arrays |= spec.arrays(name, column[rows], spec.capacity(size))
        else:
            arrays[name] = column[rows]
    return [arrays[name] for name in graph.description["columns"]]
