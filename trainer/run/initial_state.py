"""`init_from`: start a training from the results of another one."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import nn

from .. import checkpoint, checks
from ..checkpoint import capture, durable
from ..checkpoint.ckpt_files import compare, load_ckpt
from ..checkpoint.content import Content
from ..checkpoint.saver import groups_of, snapshots_of
from ..embedding.layers.embedding_cells import embedding_cells, head_cells, name_by_path
from ..errors import CheckpointMismatchError, did_you_mean
from ..features import Features
from ..features.feature import id_problems

logger = logging.getLogger(__name__)

# "ids" int64 [n], "weights" float32 [n, dim], "default" float32 [0 or 1, dim], "removed" int64 [m].
Rows = dict[str, np.ndarray]


@dataclass
class TrainingResults:
    """The results of a training: a snapshot, .ckpt file or published model."""

    where: Path
    weights: Mapping[str, np.ndarray]
    tables: dict[str, Rows] | None = None  # rows by table name; None for .ckpt files, which hold no tables
    features: Mapping[str, Any] | None = None  # state of the features


def init_from(
    content: Content,
    features: Features | None,
    path: str | Path,
    parameter_map: Mapping[str, str | None] | None,
    *,
    strict: bool,
) -> None:
    """Implement `Trainer.init_from`."""
    mapping = _check_map(parameter_map)
    results = read_training_results(path)
    expected = capture.named_parameters(content)[capture.MODEL]
    sources = {name: _source_of(name, mapping) for name in expected}
    wanted = {name: source for name, source in sources.items() if source is not None}
    values = {
        name: _as_dtype_of(results.weights[source], expected[name])
        for name, source in wanted.items()
        if source in results.weights
    }
    problems = compare({name: expected[name] for name in wanted}, values)
    if problems and strict:
        raise CheckpointMismatchError(
            f"init_from: {problems.error(str(results.where), 'the network')}; parameter_map={{name here: name there}} "
            "renames, and {name here: None} leaves out"
        )
    if problems:
        logger.warning("init_from: %s", problems.message(str(results.where), "the network"))
    tables = _tables_to_fill(content.network, results, mapping, strict)
    if features is not None and results.features is not None:
        tables, same_ids = _tables_with_same_ids(tables, features, results, mapping, strict)
        try:
            if features.statistics and same_ids:
                features.load_state_dict(results.features)
        except CheckpointMismatchError as error:
            if strict:
                raise
            logger.warning("init_from: %s", error)
    capture.assign((expected[name], values[name]) for name in problems.matching)
    for cell, rows in tables:
        _fill(cell.host_table(), rows)
    counts = f"{len(problems.matching)} parameters" + (f" and the rows of {len(tables)} tables" if tables else "")
    logger.info("starting from %s of %s", counts, results.where)


def read_training_results(path: str | Path) -> TrainingResults:
    """Read a snapshot, run folder, .ckpt file or published model."""
    from ..serving.published import CURRENT  # only `init_from` needs the serving code

    path = durable.resolve_path(path)
    if path.suffix == ".ckpt":
        return TrainingResults(path, load_ckpt(path))
    if (path / CURRENT).is_file():
        return _read_published(path)
    snapshot = checkpoint.find(snapshots_of(path))
    states = capture.part_states(snapshot, "features")
    tables: dict[str, Rows] = {}
    for state in capture.part_states(snapshot, "tables"):
        for name, metadata in state["json"].items():
            earlier = None if metadata["full"] else tables.get(name)
            tables[name] = _merge(earlier, _saved_rows(name, metadata, state["arrays"]))
    weights = groups_of(snapshot).get(capture.MODEL, {})
    return TrainingResults(snapshot.path, weights, tables, states[-1] if states else None)


def _saved_rows(name: str, metadata: Mapping[str, Any], arrays: Mapping[str, Any]) -> Rows:
    rows, values = np.asarray(arrays[f"{name}/rows"]), np.asarray(arrays[f"{name}/values"])[:, : metadata["dim"]]
    own = rows > 0  # row 0 is the default for unknown ids
    return {
        "ids": np.asarray(arrays[f"{name}/ids"])[own],
        "weights": values[own],
        "default": values[~own][:1],
        "removed": np.asarray(arrays[f"{name}/removed"]),
    }


def _read_published(root: Path) -> TrainingResults:
    from ..features.feature_files import read_features
    from ..serving.packed_rows import unpack_rows
    from ..serving.published import FEATURES, GRAPH, ROWS, VERSION, WEIGHTS, Current, Folder, locked, table_rows

    current = Current.read(root)
    with locked(root, current):
        graph = Folder(root, GRAPH, current.graph)
        graph.verify()
        folders = [Folder(root, VERSION, part) for part in current.chain]
        tables: dict[str, Rows] = {}
        for index, folder in enumerate(folders):
            file = current.full if index == 0 else ROWS
            tensors = folder.tensors(file)
            names = {key.rpartition("/")[0]: tensors[key].shape[1] for key in tensors if key.endswith("/weights")}
            for name, arrays in table_rows(tensors, names, str(folder.path / file)).items():
                tables[name] = _merge(tables.get(name), {**arrays, "weights": unpack_rows(arrays)})
        features = read_features(graph.path) if (graph.path / f"{FEATURES}.json").is_file() else None
        state = None if features is None else folders[-1].state(FEATURES) or features.state_dict()
        return TrainingResults(root, folders[-1].tensors(WEIGHTS), tables, state)


def _merge(earlier: Rows | None, rows: Rows) -> Rows:
    if earlier is None:
        return rows
    kept = ~np.isin(earlier["ids"], np.concatenate([rows["removed"], rows["ids"]]))
    joined = {name: np.concatenate([earlier[name][kept], rows[name]]) for name in ("ids", "weights")}
    return {**rows, **joined, "default": rows["default"] if len(rows["default"]) else earlier["default"]}


def _check_map(parameter_map: Mapping[str, str | None] | None) -> dict[str, str | None]:
    wanted = "a mapping from names or prefixes of names in this network to those in the source, or to None to "
    wanted += "keep them unchanged"
    mapping = {} if parameter_map is None else parameter_map
    if not isinstance(mapping, Mapping):
        checks.refuse("init_from(parameter_map=...)", wanted, parameter_map)
    for name, source in mapping.items():
        if not isinstance(name, str) or not name or not (source is None or isinstance(source, str)):
            checks.refuse("init_from(parameter_map=...)", wanted, {name: source})
    return dict(mapping)


def _source_of(name: str, mapping: Mapping[str, str | None]) -> str | None:
    """Return the name that `name` has in the source; None if the mapping excludes it."""
    entries = [entry for entry in mapping if name == entry or (entry.endswith(".") and name.startswith(entry))]
    entry = max(entries, key=len, default="")
    source = mapping.get(entry, "")
    return None if source is None else source + name[len(entry) :]


def _as_dtype_of(value: np.ndarray, parameter: Any) -> np.ndarray:
    dtype = parameter.asnumpy().dtype
    return value.astype(dtype) if value.dtype.kind == dtype.kind == "f" else value


def _refuse_table(problem: str, remedy: str, strict: bool) -> None:
    if strict:
        raise CheckpointMismatchError(f"init_from: {problem}; strict=False{remedy}")
    logger.warning("init_from: %s; the table starts empty", problem)


def _tables_to_fill(
    network: nn.Cell, results: TrainingResults, mapping: Mapping[str, str | None], strict: bool
) -> list[tuple[Any, Rows]]:
    """Return the sparse tables to fill, with their rows."""
    heads = head_cells(embedding_cells(network))
    name_by_path(network, heads)
    filled: list[tuple[Any, Rows]] = []
    for cell in heads:
        source = None if cell.is_dense else _source_of(cell.spec.name, mapping)
        if source is None or results.tables is None:
            continue
        rows = results.tables.get(source)
        if rows is None:
            names = ", ".join(sorted(results.tables)) or "none"
            problem = f"has no table {source!r}; it has {names}{did_you_mean(source, results.tables)}"
        elif rows["weights"].shape[1] != cell.dim:
            problem = f"has vectors of length {rows['weights'].shape[1]} in table {source!r}, not of {cell.dim}"
        else:
            filled.append((cell, rows))
            continue
        _refuse_table(f"{results.where} {problem}", " leaves it as it is", strict)
    return filled


def _tables_with_same_ids(
    tables: list[tuple[Any, Rows]],
    features: Features,
    results: TrainingResults,
    mapping: Mapping[str, str | None],
    strict: bool,
) -> tuple[list[tuple[Any, Rows]], bool]:
    """Return the tables whose ids stand for the same values, and whether all do."""
    assert results.features is not None
    problems = id_problems(features.features, results.features, lambda table: _source_of(table, mapping) or table)
    kept = tables
    for table, problem in problems.items():
        # The network's name of the table may have a prefix.
        remaining = [pair for pair in kept if not f".{pair[0].spec.name}".endswith(f".{table}")]
        if _source_of(table, mapping) is not None or len(remaining) < len(kept):  # the mapping does not exclude it
            remedy = f", or parameter_map={{{table!r}: None}}, leaves the table empty"
            _refuse_table(f"{results.where}: {problem}", remedy, strict)
        kept = remaining
    if problems:
        logger.warning("init_from: the statistics of the features are not loaded, because their ids differ")
    return kept, not problems


def _fill(table: Any, rows: Rows) -> None:
    if len(rows["default"]):
        table.store.write(np.zeros(1, np.int64), table.packed(np.asarray(rows["default"], np.float32)))
    table.put(np.array(rows["ids"]), np.asarray(rows["weights"], np.float32))
