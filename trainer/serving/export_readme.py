"""The README of an exported model: its files, and a program that calls it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_CALL = '''```python
import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
{imports}
folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
model = json.loads((folder / "model.json").read_text())
session = onnxruntime.InferenceSession(folder / "network.onnx")

numbers, rows = {{}}, {{}}  # of each table: id -> row number; the rows
for name, table in model["tables"].items():
{read}
    no_id, unknown = np.zeros((1, table["dim"])), [table["default"]]
    rows["rows." + name] = np.concatenate([no_id, unknown, vectors]).astype(np.float32)
    numbers[name] = {{**{{one: 2 + row for row, one in enumerate(ids)}}, table["padding"]: 0}}


def answer(columns):
    """Return the outputs for a batch: columns by name, ids as int64."""
    given = dict(rows)
    for one in model["inputs"]:
        column = np.asarray(columns[one["name"]])
        if one["tables"] is not None:  # row numbers in place of ids; 1 is the row of an unknown id
            flat = column.reshape(len(column), -1)
            pairs = [(flat[:, i].tolist(), name) for i, name in enumerate(one["tables"])]
            indices = [ids if name is None else [numbers[name].get(id, 1) for id in ids] for ids, name in pairs]
            column = np.array(indices, np.int32).T.reshape(column.shape)
        given[one["name"]] = column.astype(one["dtype"])
    wanted = {{one.name for one in session.get_inputs()}}
    return session.run(None, {{name: array for name, array in given.items() if name in wanted}})


example = np.load(folder / "example.npz")
answers = answer({{one["name"]: example["input." + one["name"]] for one in model["inputs"]}})
for one, values in zip(model["outputs"], answers):
    expected = example["output." + one["name"]]
    print(one["name"], values.shape, "largest difference", np.abs(values - expected).max())
```'''

_READ_PARQUET = """    held = parquet.read_table(folder / table["file"])
    ids, vectors = held["id"].to_pylist(), held["vector"].combine_chunks().flatten()
    vectors = vectors.to_numpy().reshape(-1, table["dim"])"""
_READ_SAFETENSORS = """    held = load_file(folder / table["file"])
    ids, vectors = held["id"].tolist(), held["vector"]"""

_FEATURES = """## From raw rows

`features.json` declares the columns and says what was learned of them (vocabularies, means, bounds), arrays of it in
`features.safetensors`. The code that trained the model makes the network's columns of raw rows:

```python
from trainer.serving import read_features

columns = read_features("{folder}").transform([{{"column": "value"}}])  # the names are in features.json
```

"""


def readme(folder: str, model: Mapping[str, Any], *, features: bool) -> str:
    """Return the text for a folder of this name with this ``model.json``."""
    parts = [f"# {folder}\n", _files(model, features), _inputs(model)]
    if model["onnx"] is not None:
        parts.append(_onnx(model))
    if features:
        parts.append(_FEATURES.format(folder=folder))
    parts.append(_mindir(model))
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _files(model: Mapping[str, Any], features: bool) -> str:
    lines = [f"A model after {model['step']:,} optimizer steps, exported with MindSpore {model['mindspore']}.\n"]
    table = [("file", ""), ("---", "---"), ("`model.json`", "inputs, outputs and tables of the network")]
    if model["onnx"] is not None:
        table.append(("`network.onnx`", "the network without its sparse tables"))
    table.append(("`network.mindir`, `graph.json`", "the same for MindSpore, for a fixed size of batch"))
    table += [
        (f"`{entry['file']}`", f"table {name!r}: {entry['rows']:,} ids, {entry['dim']} numbers each")
        for name, entry in model["tables"].items()
    ]
    if features:
        table.append(("`features.json`, `features.safetensors`", "how raw rows become the network's columns"))
    table += [
        (f"`{model[name]}`", f"vectors of {name}: columns id and vector")
        for name in ("items", "users")
        if name in model
    ]
    table.append(("`example.npz`", "a batch of inputs and the network's outputs for it"))
    table.append(("`manifest.json`", "sizes and checksums (CRC-32) of the files"))
    return "\n".join(lines + [f"| {name} | {what} |" for name, what in table]) + "\n"


def _inputs(model: Mapping[str, Any]) -> str:
    lines = ["## Inputs and outputs\n", "| name | shape | dtype | |", "| --- | --- | --- | --- |"]
    for entry in model["inputs"]:
        tables = entry["tables"]
        note = "" if tables is None else "ids of " + ", ".join(dict.fromkeys(name for name in tables if name))
        if "ragged" in entry:
            note += f"{'; ' if note else ''}from the lists of {entry['ragged']['column']}"
        lines.append(
            f"| {entry['name']} | {_shape(entry['shape'])} | {'int64' if tables else entry['dtype']} | {note} |"
        )
    for entry in model["outputs"]:
        lines.append(f"| {entry['name']} | {_shape(entry['shape'])} | float32 | output |")
    if model["activation"] == "sigmoid":
        lines.append(f"\nProbabilities are 1 / (1 + exp(-{model['outputs'][0]['name']})).")
    elif model["activation"] not in (None, "identity"):
        lines.append(f"\nThe quantity of the label is the {model['activation']} of {model['outputs'][0]['name']}.")
    if model.get("classes"):
        shown = ", ".join(f"{number} is {name}" for number, name in enumerate(model["classes"]))
        lines.append(f"\nThe label's classes: {shown}{'; probabilities are of 1' * (len(model['classes']) == 2)}.")
    return "\n".join(lines) + "\n"


def _shape(shape: list[int | None]) -> str:
    return "[" + ", ".join("n" if size is None else str(size) for size in shape) + "]"


def _onnx(model: Mapping[str, Any]) -> str:
    about, tables = model["onnx"], list(model["tables"].values())
    size = "The graph takes batches of any size."
    if about["batch"] is not None:
        size = f"The graph takes batches of exactly {about['batch']} rows: fill the last one up, and drop its answers."
    checked = (
        f"onnxruntime's answers for {about['rows_compared']} rows differed from the network's by "
        f"{about['difference']:.2g} at most."
    )
    lookup = ""
    if tables:
        lookup = (
            "\nThe rows of a table come in as an input, `rows.NAME`, and columns of ids as row numbers in it: 0 for no "
            "id, 1 for an unknown one.\nA whole table, as here, or only the rows of a batch may be given.\n"
        )
    imports, read = "", ""
    if tables and tables[0]["file"].endswith(".parquet"):
        imports, read = "from pyarrow import parquet\n", _READ_PARQUET
    elif tables:
        imports, read = "from safetensors.numpy import load_file\n", _READ_SAFETENSORS
    code = _CALL.format(imports=imports, read=read or '    vectors, ids = np.zeros((0, table["dim"])), []')
    return f"## Calling it with onnxruntime\n\n{size} {checked}\n{lookup}\n{code}\n"


def _mindir(model: Mapping[str, Any]) -> str:
    call = '## Calling it with MindSpore\n\n`mindspore.nn.GraphCell(mindspore.load("network.mindir"))` takes the inputs'
    if not model["tables"]:
        return f"{call} in their order.\n"
    return call + (
        " in their order, with row numbers\n"
        "in place of ids. Its parameters `embedding.NAME.rows` take the rows of a batch, of all tables of one width\n"
        "together, and `embedding.NAME.places`, where there are any, the row number of each id; `graph.json` has\n"
        "their tables and sizes under `stacks`. `trainer serve` does this for a published model.\n"
    )
