"""Exports a trained model to a folder for other programs: ONNX, MindIR, tables."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mindspore as ms
import numpy as np

from ..checkpoint import durable, strict_json
from ..checkpoint.manifest import FolderWriter
from ..checks import require, whole
from ..data.chunk import InputBatch
from ..data.ragged import column_of
from ..embedding.planning.layout import FieldMap
from ..embedding.tables.hashing import ids_of_rows, to_ids
from ..embedding.tables.spec import DEFAULT_ROW
from ..errors import ConfigurationError
from ..metrics import calibration_map
from ..mindspore_internals.cell_structure import parameters_of
from ..models.retrieval import item_vectors, user_vectors, write_vectors
from ..streams.formats.ragged_column import Ragged
from . import call_exported, onnx_graph
from .exported_tables import ExportedTable, exported_tables, file_name, table_of_each_element
from .finite import check_finite
from .graph_export import GRAPH_JSON, NETWORK, fields_of
from .published import FEATURES
from .published_graph import blank_inputs, check_publishable, publish_network, trained_batch
from .served_graph import ServedGraph

if TYPE_CHECKING:
    from callbacks.callback import Trainer

MODEL, ONNX, EXAMPLE = "model.json", "network.onnx", "example.npz"
PROBABILITY = "@probability"  # name of the example's calibrated probabilities
_TOLERANCE, _TOLERANCE_HALF = 1e-4, 2e-2  # largest allowed difference in float32, and in float16
_UNKNOWN_ID = 8_765_432_109_876_543  # an id that tables are unlikely to have
_RAGGED_LONGEST = 8


@dataclass(frozen=True)
class Exported:
    """The files that `export_model` wrote.

    Attributes:
        folder: path of the folder.
        files: mapping from file name to size in bytes.
        batch: batch size of the ONNX graph; None if it takes any number of rows, or without ONNX.
        difference: largest difference between the outputs of onnxruntime and of the network, divided by the largest
            output if that is above 1; None without ONNX.
        compared: number of rows compared.
    """

    folder: Path
    files: Mapping[str, int]
    batch: int | None
    difference: float | None
    compared: int


def export_model(
    trainer: Trainer,
    folder: str | os.PathLike[str],
    data: Any = None,
    *,
    onnx: bool = True,
    batch: int = 256,
    items: tuple[Any, Any] | None = None,
    users: tuple[Any, Any] | None = None,
    step: int | None = None,
) -> Exported:
    """Write a trained model for other programs into a new folder.

    If the export fails, the folder is not created.

    Args:
        trainer: a Trainer.
        folder: a folder that does not exist yet.
        data: some rows, as `Trainer.predict` takes them. They define the network's inputs, and answers are compared on
            them. In a callback during training, the default is the last trained batch.
        onnx: whether to write ``network.onnx`` (extra [onnx]) and compare its answers with the network's.
        batch: batch size of the MindIR program, and of the ONNX graph if it cannot take any number of rows.
        items: pair (ids, raw rows) of items, whose vectors are written to ``items.parquet``; only for a `TwoTower`.
        users: pair (ids, raw rows) of users, whose vectors are written to ``users.parquet``; only for a `TwoTower`.
        step: number of optimizer steps to record; default: the trainer's step, which is 0 if only weights were loaded.

    Returns:
        A description of the written files.

    Raises:
        ConfigurationError: an argument is invalid, an extra is missing, or the network cannot be exported. If
            MindSpore's ONNX exporter lacks an operator, the message names it.
        DataError: the calibration has not been fitted yet, or a row of `items` or `users` violates the features'
            declaration.
        NonFiniteError: a parameter, a table row or a feature statistic is NaN or infinite.
        OSError: a file cannot be written.
    """
    whole("export_model(batch=...)", batch)
    folder = _new_folder(folder)
    _check(trainer, onnx, data)
    calibration = trainer.fitted_calibration()
    example = trained_batch(trainer) if data is None else trainer.first_batch(data, batch)
    network = trainer.tables.tables if trainer.tables is not None else None
    fields = fields_of(network)
    sparse_tables = exported_tables(fields, network.planner.tables) if network is not None else []
    for rows in sparse_tables:
        check_finite({"id rows": rows.vectors, "default": rows.default}, f"table {rows.name!r}:")
    with trainer.averaged_weights(), tempfile.TemporaryDirectory() as scratch, FolderWriter(folder) as files:
        graph_folder = Path(scratch) / publish_network(trainer, Path(scratch), batch, example).name
        check_finite({p.name: p.asnumpy() for p in parameters_of(trainer.network)}, "the parameter")
        graph = ServedGraph(graph_folder)
        _fill_graph(graph, trainer, sparse_tables)
        names = tuple(graph.description["columns"])
        columns = _comparison_batch(example, graph, fields)
        expected = graph.run(columns)
        answers = dict(zip(_output_names(graph, len(expected)), expected, strict=True))
        model: dict[str, Any] = {
            "format_version": 1,
            "mindspore": ms.__version__,
            "step": trainer.state.progress.global_step if step is None else step,
            "inputs": _described_inputs(graph, fields, columns, sparse_tables),
            "outputs": [{"name": name, "shape": [None, *answer.shape[1:]]} for name, answer in answers.items()],
            "activation": graph.activation,
            **({"activations": graph.tasks} if graph.tasks else {}),
            **({} if calibration is None else {"calibration": calibration.to_json()}),
            **({"classes": list(graph.classes)} if graph.classes else {}),
            "tables": _write_tables(files, sparse_tables),
            "onnx": None,
        }
        if calibration is not None:
            check_finite(calibration.state()["arrays"], "the calibration:")
            files.write("calibration_map.py", [Path(calibration_map.__file__).read_bytes()])
            id_name = calibration.column
            ids = None if id_name is None else ids_of_rows(id_name, columns[names.index(id_name)], calibration.index)
            answers[PROBABILITY] = calibration(expected[0], ids)
        if onnx:
            exported = onnx_graph.Network(
                trainer.network,
                network,
                names,
                tuple(entry["name"] for entry in model["outputs"]),
                blank=lambda rows: blank_inputs(example, rows),
                cast=trainer.builder.cast,
                by_row=not any("_offsets" in spec.suffixes for spec in graph.ragged.values()),
            )
            onnx_inputs = _onnx_inputs(names, fields, columns, sparse_tables)
            model["onnx"] = _write_onnx(files, exported, onnx_inputs, expected, _tolerance(trainer))
        _write_published(files, graph_folder)
        _write_example(files, dict(zip(names, columns, strict=True)), answers)
        model |= _write_all_vectors(files, trainer, items, users)
        plain = strict_json.loads(strict_json.dumps(model))  # without NumPy's types
        files.write(MODEL, [json.dumps(plain, allow_nan=False, indent=1).encode()])
        files.seal("export", {})
        sizes = {path.name: path.stat().st_size for path in sorted(files.path.iterdir())}
        os.rename(files.path, folder)
        durable.sync_folder(folder.parent)
    about = model["onnx"] or {"batch": None, "difference": None, "rows_compared": 0}
    return Exported(folder, sizes, about["batch"], about["difference"], about["rows_compared"])


def _new_folder(folder: str | os.PathLike[str]) -> Path:
    path = durable.resolve_path(folder)
    if os.path.lexists(path):
        raise ConfigurationError(f"export: {path} exists; give a folder that does not, or remove it")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _check(trainer: Trainer, onnx: bool, data: Any) -> None:
    if onnx:
        for module in ("onnx", "onnxruntime"):
            require(module, f"export to ONNX needs {module} (leave ONNX out by onnx=False, --no-onnx)", "onnx")
    if trainer.tables is not None:
        require("pyarrow", "export of tables needs PyArrow", "arrow")
    if trainer.group.size > 1:
        raise ConfigurationError(
            f"export works in one process, and this is one of {trainer.group.size}: export the run's snapshot, "
            "`trainer export RUN`"
        )
    if data is None and (trainer.run is None or trainer.state.outputs is None):
        raise ConfigurationError("export_model needs data=...: some rows that show the network's inputs")
    if trainer.features is not None:
        check_publishable(trainer.features)


def _fill_graph(graph: ServedGraph, trainer: Trainer, sparse_tables: Sequence[ExportedTable]) -> None:
    graph.set_weights({parameter.name: parameter.asnumpy() for parameter in parameters_of(trainer.network)})
    for rows in sparse_tables:
        table = graph.tables[rows.name]
        table.store.write(np.array([DEFAULT_ROW]), rows.default[None])
        table.put(rows.ids, rows.vectors)


# -- a batch to compare answers on -----------------------------------------------------------------------------------


def _comparison_batch(example: InputBatch, graph: ServedGraph, fields: FieldMap) -> list[np.ndarray]:
    """Return a batch to compare answers on, made from the rows of `example`.

    Lists of ragged columns are drawn at random. The ids of the first row are replaced by ids unknown to the tables.
    """
    blank = blank_inputs(example, graph.batch)
    random = np.random.default_rng(0)
    lists: dict[str, np.ndarray] = {}
    for name, spec in example.ragged.items():
        values = example.columns[example.names.index(name)]
        values = values.reshape(-1, *values.shape[1 if "_offsets" in spec.suffixes else 2 :])
        lengths = random.integers(0, min(_RAGGED_LONGEST, spec.length or 1) + 1, graph.batch)
        drawn = values[random.integers(0, len(values), lengths.sum())]
        ragged = Ragged(drawn, np.concatenate([[0], np.cumsum(lengths)]))
        lists |= spec.arrays(name, ragged, spec.capacity(graph.batch))
    columns = []
    for index, (name, zeros) in enumerate(zip(example.names, blank, strict=True)):
        if name in lists:
            columns.append(_to_numeric(lists[name]).astype(zeros.dtype, copy=False))
            continue
        rows = _to_numeric(example.columns[index])
        column = rows[np.arange(graph.batch) % len(rows)].astype(zeros.dtype)
        for part in (part for component in fields.components for part in component.parts if part.column == index):
            elements = slice(None) if part.elements is None else part.elements  # elements that are ids
            column[:1].reshape(-1)[elements] = _UNKNOWN_ID if column.itemsize > 4 else np.iinfo(column.dtype).max
        columns.append(column)
    return columns


def _to_numeric(rows: np.ndarray) -> np.ndarray:
    return to_ids(rows) if rows.dtype.kind in "USO" else rows


def _onnx_inputs(
    names: Sequence[str], fields: FieldMap, columns: Sequence[np.ndarray], sparse_tables: Sequence[ExportedTable]
) -> dict[str, np.ndarray]:
    """Return the ONNX graph's inputs: table rows, and columns with ids as row numbers."""
    by_name = {table.name: table for table in sparse_tables}
    inputs = {f"rows.{table.name}": table.rows for table in sparse_tables}
    for index, (name, column) in enumerate(zip(names, columns, strict=True)):
        tables = table_of_each_element(fields, index, column, sparse_tables)
        if tables is not None:
            flat = column.reshape(len(column), -1)
            positions = flat.astype(np.int32)
            for element, table in enumerate(tables):
                if table is not None:
                    positions[:, element] = by_name[table].positions(flat[:, element])
            column = positions.reshape(column.shape)
        inputs[name] = column
    return inputs


# -- files -----------------------------------------------------------------------------------------------------------


def _output_names(graph: ServedGraph, count: int) -> list[str]:
    names = graph.output_names or tuple(graph.tasks)
    if len(names) == count:  # an input may have the same name
        return [f"output_{name}" if name in graph.description["columns"] else name for name in names]
    return ["output"] if count == 1 else [f"output_{number}" for number in range(count)]


def _described_inputs(
    graph: ServedGraph, fields: FieldMap, columns: Sequence[np.ndarray], sparse_tables: Sequence[ExportedTable]
) -> list[dict[str, Any]]:
    described = []
    for index, (name, column) in enumerate(zip(graph.description["columns"], columns, strict=True)):
        tables = table_of_each_element(fields, index, column, sparse_tables)
        entry: dict[str, Any] = {"name": name, "shape": [None, *column.shape[1:]], "tables": tables}
        entry["dtype"] = "int32" if tables is not None else column.dtype.name
        if (limits := fields.limits(index)) is not None:
            entry["range"] = list(limits)
        owner = name if name in graph.ragged else column_of(name)
        if owner in graph.ragged:
            spec = graph.ragged[owner]
            entry["ragged"] = {"column": owner, "padding": spec.padding, "length": len(column)}
        described.append(entry)
    return described


def _write_tables(files: FolderWriter, sparse_tables: Sequence[ExportedTable]) -> dict[str, dict[str, Any]]:
    described: dict[str, dict[str, Any]] = {}
    for table in sparse_tables:
        file = file_name(table.name, {entry["file"] for entry in described.values()})
        table.write(files, file)
        described[table.name] = {
            "file": file,
            "rows": len(table.ids),
            "dim": int(table.vectors.shape[1]),
            "padding": None if table.padding is None else int(table.padding),
            "default": table.default.tolist(),
        }
    return described


def _tolerance(trainer: Trainer) -> float:
    """Return the allowed difference between onnxruntime's answers and the network's."""
    half = any(parameter.dtype == ms.float16 for parameter in parameters_of(trainer.network)) or trainer.builder.cast
    return _TOLERANCE_HALF if half else _TOLERANCE


def _write_onnx(
    files: FolderWriter,
    exported: onnx_graph.Network,
    inputs: dict[str, np.ndarray],
    expected: Sequence[np.ndarray],
    allowed: float,
) -> dict[str, Any]:
    """Write the ONNX graph; return its batch size and the result of the comparison."""
    graph = onnx_graph.onnx_graph(exported, inputs, expected, allowed)
    files.write(ONNX, [graph.content])
    files.write("call.py", [Path(call_exported.__file__).read_bytes()])
    return {"batch": graph.batch, "difference": graph.difference, "rows_compared": graph.rows}


def _write_published(files: FolderWriter, graph_folder: Path) -> None:
    """Copy the published network and the features into the export."""
    for file in (NETWORK, GRAPH_JSON, f"{FEATURES}.json", f"{FEATURES}.safetensors"):
        if (graph_folder / file).is_file():
            files.write(file, [(graph_folder / file).read_bytes()])


def _write_example(files: FolderWriter, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
    """Write a batch and the network's answers."""
    arrays = {f"input.{name}": column for name, column in inputs.items()}
    np.savez(files.path / EXAMPLE, **arrays | {f"output.{name}": answer for name, answer in outputs.items()})
    files.adopt(EXAMPLE)


def _write_all_vectors(files: FolderWriter, trainer: Trainer, items: Any, users: Any) -> dict[str, str]:
    """Write the vectors of `items` and `users`, if given; return the file names."""
    written = {}
    for name, rows, vectors_of in (("items", items, item_vectors), ("users", users, user_vectors)):
        if rows is not None:
            written[name] = f"{name}.parquet"
            write_vectors(files.path / written[name], rows[0], vectors_of(trainer, rows[1]))
            files.adopt(written[name])
    return written
