"""`PredictionWriter`: writes predictions and labels of an evaluation to a file."""

from __future__ import annotations

import contextlib
import csv
import logging
import os
from pathlib import Path
from typing import Any

from trainer.errors import ConfigurationError

from .callback import Callback, Trainer
from .output import in_run_folder, writable

logger = logging.getLogger(__name__)


class PredictionWriter(Callback):
    """Writes a CSV line per evaluated row: the network's output, then the labels.

    In `evaluate(dataset, callbacks=[PredictionWriter(path)])` it writes one file; in training, one per validation,
    ``<folder>/step_<global_step>.csv``. Columns are prediction and label; with several values per row, prediction_0,
    prediction_1 and so on. A file gets its name once it is complete. With several processes, each writes the rows that
    it evaluates, with its rank in the name. Predictions are the network's output (logits stay logits).

    Args:
        path: the file of `evaluate`, or the folder of a training; None: ``<run_dir>/predictions``.

    Raises:
        ConfigurationError: at `setup`, there is neither a path nor a run folder, the folder cannot be written, or the
            evaluation does not return predictions (an `eval_network` without `eval_indexes`).
    """

    leaves_files = True

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = None if path is None else Path(path)
        self._file: Any = None
        self._warned = False

    def setup(self, trainer: Trainer) -> None:
        folder = self.path or in_run_folder(trainer, "predictions")
        if folder is None:
            raise ConfigurationError("PredictionWriter needs a place: PredictionWriter(path) or Trainer(run_dir=...)")
        if trainer.own_eval_network is not None and trainer.eval_indexes is None:
            raise ConfigurationError(
                "PredictionWriter cannot tell the outputs of an eval_network apart: give Trainer(eval_indexes=...)"
            )
        self._is_file = trainer.state.phase == "evaluate" and folder.suffix != ""
        self._folder = folder
        writable("PredictionWriter(path=...)", folder.parent if self._is_file else folder)

    def on_eval_begin(self, trainer: Trainer) -> None:
        """Begin a file; one of several validation sets goes on in that of the first."""
        if self._file is not None:
            return
        name = f"step_{trainer.state.progress.global_step:08d}.csv"
        self._target = self._folder if self._is_file else self._folder / name
        if trainer.group.size > 1:
            self._target = self._target.with_stem(f"{self._target.stem}_{trainer.group.rank}")
        self._aside = self._target.with_name(self._target.name + ".new")
        try:
            self._file = open(self._aside, "w", encoding="utf-8", newline="")  # noqa: SIM115 (closed by `on_eval_end`)
        except OSError as error:
            self._fail(trainer, error)
            return
        self._writer = csv.writer(self._file)
        self._has_header = False

    def on_eval_step_end(self, trainer: Trainer) -> None:
        import numpy as np

        if self._file is None:  # it could not be written
            return
        outputs: Any = trainer.state.evaluation.outputs
        _, prediction, label = trainer.eval_indexes or (0, 1, 2)
        columns, names = [], []
        for name, index in (("prediction", prediction), ("label", label)):
            parts = outputs[index]
            parts = list(parts.values()) if isinstance(parts, dict) else parts
            for part in parts if isinstance(parts, tuple | list) else (parts,):
                values = part.asnumpy()
                columns.append(values.reshape(len(values), -1))
                names += [name] * columns[-1].shape[1]
        if not self._has_header:
            self._has_header = True
            self._writer.writerow(_numbered(names))
        rows = np.concatenate([column.astype(object) for column in columns], axis=1).tolist()
        try:
            self._writer.writerows(rows)
        except OSError as error:
            self._fail(trainer, error)

    def _fail(self, trainer: Trainer, error: OSError) -> None:
        """Drop the file; training goes on, an `evaluate` with a writer fails."""
        self._drop()
        if trainer.state.phase == "evaluate":
            raise error
        if not self._warned:
            self._warned = True
            logger.warning("PredictionWriter cannot write %s (%s); training goes on", self._target, error)

    def _drop(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # what is left in its buffer cannot be written either
                file.close()
            self._aside.unlink(missing_ok=True)

    def on_eval_end(self, trainer: Trainer) -> None:
        if self._file is None:
            return
        try:
            self._file.close()
            os.replace(self._aside, self._target)
            self._file = None
        except OSError as error:
            self._fail(trainer, error)

    def teardown(self, trainer: Trainer) -> None:
        self._drop()


def _numbered(names: list[str]) -> list[str]:
    return [
        name if names.count(name) == 1 else f"{name}_{names[:index].count(name)}" for index, name in enumerate(names)
    ]
