"""`CSVLogger` and `JSONLinesLogger`: log a run to a text file in the run folder."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.cadence import Every
from trainer.errors import ConfigurationError

from ..callback import Trainer
from ..output import finite, in_run_folder, replace_text, require_writable
from .logger import Logger


class _FileLogger(Logger):
    """Logs to one file; a resumed run drops the lines written after the snapshot."""

    default_name = ""

    def __init__(
        self, path: str | Path | None = None, every: Every | int | None = None, hparams: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(every, hparams)
        self.path = self._given_path = None if path is None else Path(path)
        self._file: Any = None
        self._failed = False  # whether the last write failed and may have left a partial line

    def setup(self, trainer: Trainer) -> None:
        owner = type(self).__name__
        self.path = self._path_in(trainer)
        if self.path is None:
            raise ConfigurationError(f"{owner} needs a file: {owner}(path=...) or Trainer(run_dir=...)")
        others = [callback for callback in trainer.callbacks if isinstance(callback, _FileLogger)]
        if sum(other._path_in(trainer) == self.path for other in others) > 1:
            raise ConfigurationError(
                f"two loggers would write to {self.path}, and each over the other's lines: give {owner}(path=...)"
            )
        require_writable(f"{owner}(path=...)", self.path.parent)

    def _path_in(self, trainer: Trainer) -> Path | None:
        return self._given_path or in_run_folder(trainer, self.default_name)

    def open(self, trainer: Trainer, step: int) -> None:
        """Open an empty file, or after a resume keep the lines up to `step`."""
        self._replace(self._lines_up_to(step) if step and self._known_path.is_file() else "")

    @property
    def _known_path(self) -> Path:
        assert self.path is not None  # `setup` has set it
        return self.path

    def _replace(self, text: str) -> None:
        """Replace the file's text and open the file for appending."""
        replace_text(self._known_path, text)
        self._failed = False
        self._file = open(self._known_path, "a", encoding="utf-8", newline="")  # noqa: SIM115 (closed by `close`)

    def _lines_up_to(self, step: int) -> str:
        raise NotImplementedError

    def _append(self, lines: str) -> None:
        """Append complete lines; after a failed write, first end its partial line."""
        separator, self._failed = "\n" if self._failed else "", True
        self._file.write(separator + lines)
        self._failed = False

    def flush(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        file, self._file = self._file, None
        file.close()


class JSONLinesLogger(_FileLogger):
    """Logs a run to ``<run_dir>/log.jsonl``, one JSON object per line.

    A line looks like ``{"step": 20, "train/loss": 0.3}``. Hyperparameters, results and snapshots are on separate lines
    with the keys "hyperparameters", "results" and "snapshot". NaN and infinities are written as null.

    Args:
        path: the file; None for ``log.jsonl`` in the run folder.
        every, hparams: see `Logger`.
    """

    default_name = "log.jsonl"

    def _lines_up_to(self, step: int) -> str:
        kept = []
        for line in self._known_path.read_text("utf-8").splitlines():
            try:
                if json.loads(line)["step"] <= step:
                    kept.append(line + "\n")
            except (ValueError, KeyError, TypeError):  # a partial line from a killed process
                continue
        return "".join(kept)

    def _write(self, step: int, values: Mapping[str, Any]) -> None:
        self._append(json.dumps({"step": step, **finite(dict(values))}, default=str) + "\n")

    def log_metrics(self, values: Mapping[str, float], step: int) -> None:
        self._write(step, values)

    def log_hyperparameters(self, values: Mapping[str, Any], metrics: Sequence[str]) -> None:
        self._write(0, {"hyperparameters": dict(values)})

    def log_results(self, values: Mapping[str, float], step: int) -> None:
        self._write(step, {"results": dict(values)})

    def log_snapshot(self, path: Path, step: int) -> None:
        self._write(step, {"snapshot": str(path)})


class CSVLogger(_FileLogger):
    """Logs a run to ``<run_dir>/log.csv``: a row per step, a column per metric.

    For a new metric, the file is rewritten with a further column.

    Args:
        path: the file; None for ``log.csv`` in the run folder.
        every, hparams: see `Logger`.
    """

    default_name = "log.csv"

    def open(self, trainer: Trainer, step: int) -> None:
        self._names: list[str] = ["step"]
        self._row: dict[str, Any] = {}
        self._written_step: int | None = None  # step of the last row in the file
        super().open(trainer, step)

    def _lines_up_to(self, step: int) -> str:
        with open(self._known_path, encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            self._names = list(reader.fieldnames or ["step"])
            rows = [row for row in reader if (row["step"] or "").isdecimal() and int(row["step"]) <= step]
        self._written_step = int(rows[-1]["step"]) if rows else None
        return self._text(rows, header=True)

    def _text(self, rows: Sequence[Mapping[str, Any]], *, header: bool) -> str:
        text = io.StringIO()
        writer = csv.DictWriter(text, self._names, restval="", extrasaction="ignore", lineterminator="\n")
        if header:
            writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()

    def log_metrics(self, values: Mapping[str, float], step: int) -> None:
        """Add to the row of `step`; a row is written when the next one starts."""
        if self._row and self._row["step"] != step:
            self._write_row()
        self._row = {"step": step, **self._row, **values}

    def _write_row(self) -> None:
        row, self._row = self._row, {}
        new = [name for name in row if name not in self._names]
        if new or self._file.tell() == 0 or row["step"] == self._written_step:
            self._file.flush()
            with open(self._known_path, encoding="utf-8", newline="") as file:
                rows: list[Mapping[str, Any]] = list(csv.DictReader(file))
            if row["step"] == self._written_step and rows:  # written in part by `flush`, or before a resume
                row = {**rows.pop(), **row}
            names, old_file = self._names, self._file
            self._names = [*names, *new]
            try:
                self._replace(self._text([*rows, row], header=True))
            except OSError:
                self._names = names  # those of the file, to which rows are appended again
                raise
            old_file.close()
        else:
            self._append(self._text([row], header=False))
        self._written_step = int(row["step"])

    def flush(self) -> None:
        if self._row:
            self._write_row()
        super().flush()

    def close(self) -> None:
        try:
            if self._row:
                self._write_row()
        finally:
            super().close()
