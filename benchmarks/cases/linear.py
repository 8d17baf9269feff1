"""`lr` by name from a CSV file of 10 columns, beside Vowpal Wabbit on the same file; rows per second of processor time.

Four numbers, four categories (Zipf, 10,000 ids), the label, and the label as Vowpal Wabbit wants it, -1 or 1. A window
reads the file once from its first byte to the last update. `online_train` scores each row before it is learned, as
Vowpal Wabbit does; that one updates its weights after every row, ours after every 4,096. Ids begin with a letter,
because Vowpal Wabbit takes fields of digits for numbers.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.clock import timed
from benchmarks.measure import OURS, PEERS, Group, Ratio

ROWS, BATCH, FIELDS, IDS = 500_000, 4096, 4, 10_000
FIT, ONLINE, WABBIT = "lr, fit", "lr, online_train", "Vowpal Wabbit"
GOAL = 300_000.0


def groups(quick: bool) -> list[Group]:
    """Return what this case measures."""
    return [
        Group(
            "linear",
            f"lr from CSV of 10 columns, batch {BATCH:,}, by processor time",
            "linear",
            {FIT: OURS, ONLINE: OURS, WABBIT: PEERS},
            {"rows": ROWS // 10 if quick else ROWS},
            (Ratio(FIT, WABBIT), Ratio(ONLINE, WABBIT)),
            unit="rows/s",
            goals={FIT: GOAL, ONLINE: GOAL},
        )
    ]


def make(name: str, options: dict[str, Any]) -> Any:
    """Return a contender."""
    return Wabbit(**options) if name == WABBIT else Ours(name, **options)


def write(path: Path, rows: int) -> None:
    """Write the file."""
    import pyarrow
    import pyarrow.csv

    rng = np.random.default_rng(0)
    table: dict[str, Any] = {f"number_{i}": rng.normal(size=rows).round(4) for i in range(FIELDS)}
    table |= {f"category_{i}": np.char.mod("c%05x", rng.zipf(1.3, rows) % IDS) for i in range(FIELDS)}
    table["click"] = (rng.random(rows) < 1 / (1 + np.exp(-table["number_0"]))).astype(np.int8)
    table["sign"] = 2 * table["click"] - 1
    pyarrow.csv.write_csv(pyarrow.table(table), path, pyarrow.csv.WriteOptions(quoting_style="none"))


class Base:
    """The file, and windows of processor time."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._folder = tempfile.TemporaryDirectory()
        self.folder = Path(self._folder.name)
        write(self.folder / "rows.csv", rows)
        self.build()
        for _ in range(2):
            self.train()

    def build(self) -> None:
        """Make what is trained."""

    def window(self) -> dict[str, float]:
        """Train on every row once."""
        told = timed(self.train, self.rows)
        return {"seconds": told["process_us"] * self.rows / 1e6, "rows": self.rows, "wall_s": told["seconds"]}


class Ours(Base):
    """`LogisticRegression`, by its name, with declared features."""

    def __init__(self, verb: str, rows: int) -> None:
        self.verb = verb
        super().__init__(rows)

    def build(self) -> None:
        from mindspore import nn

        from trainer import Trainer, models
        from trainer.features import Categorical, Features, Numeric

        numbers = [Numeric(f"number_{i}", normalize="standard") for i in range(FIELDS)]
        features = Features([*numbers, *(Categorical(f"category_{i}") for i in range(FIELDS))], label="click")
        features.fit(self.folder)
        network = getattr(models, models.MODELS["lr"])(features)
        optimizer = nn.Adam(network.trainable_params(), 1e-3)
        self.trainer = Trainer(network, nn.BCEWithLogitsLoss(), optimizer, features=features)

    def train(self) -> None:
        """Read the file once."""
        from trainer.streams import FileStream

        if self.verb == FIT:
            self.trainer.fit(self.folder, 1, callbacks=[], batch_size=BATCH)
            return
        stream = FileStream(self.folder, end="at_last")
        try:
            self.trainer.online_train(stream, [], batch_size=BATCH)
        finally:
            stream.close()


class Wabbit(Base):
    """`vw --csv`, the driver of its library, with the namespace of the other label left out."""

    def train(self) -> None:
        """Read the file once."""
        import vowpalwabbit

        names = [f"{kind}_{i}" for kind in ("number", "category") for i in range(FIELDS)]
        header = ",".join((*names, "x|click", "_label"))
        arguments = ["-d", str(self.folder / "rows.csv"), "--csv", "--csv_header", header, "--ignore", "x", "--quiet"]
        vowpalwabbit.Workspace(arg_list=[*arguments, "--loss_function", "logistic"]).finish()
