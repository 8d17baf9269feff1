"""Runs an exported model with onnxruntime and PyArrow: python call.py [FOLDER].

`trainer export` copies this file into the folder of the model as ``call.py``.
"""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


class ExportedModel:
    """An exported ONNX graph with the rows of its tables."""

    def __init__(self, folder: Path) -> None:
        import onnxruntime

        self.about = json.loads((folder / "model.json").read_text())
        if "calibration" in self.about:
            self._calibration = runpy.run_path(str(folder / "calibration_map.py"))["CalibrationMap"].from_json
        self.session = onnxruntime.InferenceSession(folder / "network.onnx")
        self._rows: dict[str, np.ndarray] = {}  # per table: row 0 for padding, row 1 for unknown ids, rows of all ids
        self._row_numbers: dict[str, dict[int | None, int]] = {}  # per table: id -> row number
        for name, table in self.about["tables"].items():
            from pyarrow import parquet

            stored = parquet.read_table(folder / table["file"])
            vectors = stored["vector"].combine_chunks().flatten().to_numpy().reshape(-1, table["dim"])
            padding = np.zeros((1, table["dim"]))
            self._rows[f"rows.{name}"] = np.concatenate([padding, [table["default"]], vectors]).astype(np.float32)
            row_numbers = {id_: 2 + row for row, id_ in enumerate(stored["id"].to_pylist())}
            self._row_numbers[name] = {**row_numbers, table["padding"]: 0}

    def answer(self, columns: Mapping[str, Any]) -> list[Any]:
        """Return the outputs for a batch.

        `columns` maps column names to arrays; ids are int64.
        """
        feeds: dict[str, Any] = dict(self._rows)
        for entry in self.about["inputs"]:
            name, column = entry["name"], np.asarray(columns[entry["name"]])
            if "range" in entry:  # of a dense table, in which ONNX would read the last row for -1
                low, high = entry["range"]
                if not ((column >= low) & (column <= high)).all():
                    raise ValueError(f"{name} takes ids from {low} to {high}")
            if entry["tables"] is not None:  # replace ids by row numbers
                if column.dtype.kind in "USO":
                    raise ValueError(f"{name} takes integer ids, of text its hash; received {column.dtype}")
                flat = column.reshape(len(column), -1).copy()
                for element, table in enumerate(entry["tables"]):
                    if table is not None:
                        rows = self._row_numbers[table]
                        flat[:, element] = [rows.get(id_, 1) for id_ in flat[:, element].tolist()]
                column = flat.reshape(column.shape)
            feeds[name] = column.astype(entry["dtype"])
            if feeds[name].dtype.kind in "iub" and not np.array_equal(feeds[name], column):
                raise ValueError(f"{name} takes {entry['dtype']}; received other values")
        input_names = {entry.name for entry in self.session.get_inputs()}
        return self.session.run(None, {name: array for name, array in feeds.items() if name in input_names})

    def probability(self, columns: Mapping[str, Any]) -> Any:
        """Return calibrated probabilities; raise KeyError if there is no calibration."""
        calibration = self._calibration(self.about["calibration"])
        id_column, ids = calibration.column, None
        if id_column is not None:
            ids = np.asarray(columns[id_column])
            ids = (ids if calibration.index is None else ids[:, calibration.index]).reshape(-1).astype(np.int64)
        return calibration(np.asarray(self.answer(columns)[0]), ids)


def main() -> None:
    """Compare the ONNX graph's answers for the example with those of the network."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else __file__).resolve()
    folder = folder if folder.is_dir() else folder.parent
    model, example = ExportedModel(folder), np.load(folder / "example.npz")
    columns = {entry["name"]: example["input." + entry["name"]] for entry in model.about["inputs"]}
    answers = model.answer(columns)
    for entry, values in zip(model.about["outputs"], answers, strict=True):
        expected = example["output." + entry["name"]]
        print(entry["name"], values.shape, "largest difference", np.abs(values - expected).max())
    if "calibration" in model.about:
        difference = np.abs(model.probability(columns) - example["output.@probability"]).max()
        print("probability, calibrated, largest difference", difference)


if __name__ == "__main__":
    main()
