"""The changes of CONTRIBUTING.md's table, each made in a copy of the packages in the files that its row names."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.sources import ROOT

STREAM = '''"""Counts down."""

import numpy as np

from ..base import Stream
from ..batch import Batch, Span


class Countdown(Stream):
    """Rows from `left` down to 1."""

    def __init__(self, left):
        self.first = self.left = left

    def poll(self, max_rows, timeout):
        rows = min(max_rows, self.left)
        if not rows:
            return None
        values = np.arange(self.left, self.left - rows, -1, dtype=np.float32)[:, None]
        first = self.first - self.left
        self.left -= rows
        return Batch({"x": values, "y": values}, None, (Span("numbers", 0, first, first + rows - 1),))

    @property
    def exhausted(self):
        return not self.left

    def position(self):
        return {"numbers": [0, self.first - self.left]}

    def seek(self, position):
        self.left = self.first - position["numbers"][1]
'''
METRIC = '''"""The largest error."""

from .regression import OutputMetric


class Half(OutputMetric):
    """Half of the mean absolute error."""

    name = "half_mae"
    higher_is_better = False
    sums = ("weight", "half")

    def terms(self, predictions, labels):
        return abs(predictions - labels) / 2


'''
ROW_OPTIMIZER = '''
@inlined
def _sign(row, gradient, dim, numbers):
    for k in range(dim):
        row[k] = row[k] - numbers[0] * np.sign(gradient[k])


@RowKernel
def _update_sign(block):
    return update_rows(_sign, block)


class RowSign(RowOptimizer):
    """``w -= lr * sign(g)``; no slots."""

    def first_slots(self, dim):
        return np.zeros(0, np.float32)

    def kernel(self):
        return _update_sign, ()

    def construct(self, rows, gradients, lr, step):
        return rows - lr * ops.sign(gradients)
'''
CALLBACK = '''"""Counts."""

from .callback import Callback


class Counter(Callback):
    """Counts calls."""

    calls = 0

    def on_train_step_end(self, trainer):
        self.calls += 1
        self.position = trainer.position
'''
LOGGER = '''"""Remembers."""

from .logger import Logger


class Remembers(Logger):
    """Keeps all names."""

    def open(self, trainer, step):
        self.names = set()

    def log_metrics(self, values, step):
        self.names |= set(values)

    def close(self):
        pass
'''
MIXUP = '''"""Mixes each row with another one."""

from mindspore import nn, ops


class Mixup(nn.Cell):
    """Mixes all columns with those of the rows in reverse order."""

    def __init__(self, share):
        super().__init__(auto_prefix=False)
        self.share, self.reverse = share, ops.ReverseV2([0])

    def construct(self, columns):
        mixed = ()
        for column in columns:
            mixed += (self.share * column + (1.0 - self.share) * self.reverse(column),)
        return mixed
'''
COMMAND = '''"""Count the parameters of an experiment."""


def add_arguments(parser):
    parser.add_argument("config")


def run(args):
    from ..configuration.instantiate import build
    from ..configuration.loader import load_config

    network = build(load_config(args.config), ()).trainer.network
    print("parameters:", sum(parameter.size for parameter in network.get_parameters()))
'''
# change: the files that are added, and of those that are there (line, what stands before it then)
CHANGES = {
    "a stream source": (
        {"trainer/streams/sources/countdown.py": STREAM},
        {"trainer/streams/__init__.py": ("_HOMES =", "    from .sources.countdown import Countdown as Countdown\n\n")},
    ),
    "a window metric": ({"trainer/metrics/half.py": METRIC}, {}),
    "a row optimizer": (
        {},
        {
            "trainer/embedding/layers/row_optimizers.py": ("\n@inlined\ndef _sgd", ROW_OPTIMIZER + "\n"),
            "trainer/embedding/__init__.py": (
                "_HOMES =",
                "    from .layers.row_optimizers import RowSign as RowSign\n\n",
            ),
        },
    ),
    "a callback": (
        {"callbacks/counter.py": CALLBACK},
        {"callbacks/__init__.py": ("_HOMES =", "    from .counter import Counter as Counter\n\n")},
    ),
    "a logger": (
        {"callbacks/loggers/remembers.py": LOGGER},
        {"callbacks/__init__.py": ("_HOMES =", "    from .loggers.remembers import Remembers as Remembers\n\n")},
    ),
    "what a resume position holds": (
        {},
        {
            "trainer/data/position.py": [
                ("    dealt: tuple", "    rows: int = 0  # trained so far, in all epochs\n"),
                (') -> Position:\n        """Return the position `batches` later', ", rows: int = 0"),
                (
                    "        state = self.state if state is None",
                    "        if rows:\n"
                    "            moved = self.next(batches, micro_batches, state, ends_epoch=ends_epoch)\n"
                    "            return dataclasses.replace(moved, rows=self.rows + rows)\n",
                ),
                ('"state": self.state, "dealt"', '"rows": self.rows or None, '),
                (
                    "        return cls(epoch, batch",
                    "        if value.get('rows'):\n"
                    "            return dataclasses.replace(cls.from_json({**value, 'rows': 0}), rows=value['rows'])\n",
                ),
            ],
            "trainer/data/feed.py": ("ends_epoch=ends)", "rows=len(items) * self._conversion.rows(first.columns), "),
        },
    ),
    "the sizes that uneven batches are padded to": (
        {},
        {"trainer/data/batch_sizes.py": ("    if few and rows <= fine:", "    return -(-rows // 10) * 10\n")},
    ),
    "an augmentation inside the step (mixup)": (
        {"trainer/graph/mixup.py": MIXUP},
        {
            "trainer/graph/program.py": [
                ("    average: AverageRule | None = None\n    output", "    mixup: Any = None\n"),
                ("        self.kind = forward.kind\n", "        self.mixup = options.mixup\n"),
                (
                    "        return self.forward(*columns)\n",
                    "        if self.mixup is not None:\n            return self.forward(*self.mixup(columns))\n",
                ),
            ],
            "trainer/run/trained_network.py": [
                ("        calibration: Calibrator | Mapping", "        mixup: float | None = None,\n"),
                (
                    "            accumulate=self.accumulate,\n",
                    "            mixup=None if mixup is None else Mixup(mixup),\n",
                ),
                ("from ..graph.multi_task import", "from ..graph.mixup import Mixup\n"),
            ],
        },
    ),
    "a command over `experiment.build(config)`": (
        {"trainer/experiment/commands/count_command.py": COMMAND},
        {
            "trainer/experiment/cli.py": [
                ("    experiment_commands,\n", "    count_command,\n"),
                ('    "fit": (\n', '    "count": (count_command.run, "count parameters", ("one.yaml", "two.yaml")),\n'),
                ("    launch_command.add_arguments(", '    count_command.add_arguments(parsers["count"])\n'),
            ]
        },
    ),
}
PROGRAM = """
import json
from pathlib import Path

import numpy as np
from mindspore import nn

from callbacks import Counter, Remembers
from trainer import Trainer
from trainer.data.batch_sizes import padded_size
from trainer.data.position import Position
from trainer.embedding import RowSign
from trainer.experiment.cli import main
from trainer.streams import Countdown


class Independent(nn.Dense):
    rows_are_independent = True

    def __init__(self):
        super().__init__(1, 1, weight_init="ones", bias_init="zeros")


counter, logger = Counter(), Remembers(every=1)
trainer = Trainer(nn.Dense(1, 1, weight_init="zeros"), nn.MSELoss(), "sgd", metrics=["half_mae", "mae"])
trainer.online_train(Countdown(8), [counter, logger], batch_size=4)
x = np.array([[0.0], [4.0]], np.float32)
found = trainer.evaluate((x, x), batch_size=2)
mixed = Trainer(nn.Dense(1, 1, weight_init="zeros", has_bias=False), nn.MSELoss(), "sgd", mixup=0.5)
history = mixed.fit((x, x), batch_size=2, callbacks=[])
uneven = Trainer(Independent(), nn.MSELoss(), "sgd")
parts = [(np.ones((rows, 1), np.float32), np.zeros((rows, 1), np.float32)) for rows in (4, 3, 2, 1)]
Path("one.yaml").write_text(
    "experiment: one\\nnetwork: {class_path: mindspore.nn.Dense, init_args: {in_channels: 3, out_channels: 2}}\\n"
    "loss: mindspore.nn.MSELoss\\noptimizer: mindspore.nn.SGD\\n"
)
print(json.dumps({
    "rows": trainer.state.progress.samples_seen,
    "half": found["half_mae"] * 2 == found["mae"],
    "calls": counter.calls,
    "logged": "train/loss" in logger.names,
    "position": (counter.position["rows"], Position.from_json(counter.position).rows),
    "padded": (padded_size(21), uneven.evaluate(parts)["loss"]),
    "row optimizer": RowSign.__name__,
    "mixed loss": history.history["loss"][-1],  # of the labels 2 and 2; of 0 and 4 it is 8
    "code": main(["count", "one.yaml"]),
}))
"""


def rows_of_the_table():
    """Return change -> (number of files, the files as its row names them)."""
    rows = re.findall(r"^\| ([^|]+) \| (\d+) \| ([^|]+) \|$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    return {change: (int(count), named) for change, count, named in rows}


def changed_files(change):
    added, edited = CHANGES[change]
    return [*added, *edited]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_needs_the_files_that_its_row_names_and_no_other(change):
    count, named = rows_of_the_table()[change]
    names = re.findall(r"`([\w/.]+/[\w.]*)`", named)
    files = changed_files(change)
    assert [file for file in files if not any(file == name or file.startswith(name) for name in names)] == []
    beside = len(re.findall(r"\b(?:its test|a line in|a case in)\b", named))
    assert len(files) + beside == count


@pytest.mark.long
def test_all_of_them_made_together_work(tmp_path):
    for package in ("trainer", "callbacks", "mindspore_trainer", "tests"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "CONTRIBUTING.md"):
        shutil.copy(ROOT / name, tmp_path)
    for added, edited in CHANGES.values():
        for file, text in added.items():
            (tmp_path / file).write_text(text)
        for file, places in edited.items():
            text = (tmp_path / file).read_text()
            for line, before in places if isinstance(places, list) else [places]:
                assert text.count(line) == 1, (file, line)
                text = text.replace(line, before + line)
            (tmp_path / file).write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}

    def run(*arguments):
        options = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True, "timeout": 300}
        done = subprocess.run([sys.executable, *arguments], **options)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    printed = run("-c", PROGRAM)
    assert "parameters: 8" in printed
    assert json.loads(printed.splitlines()[-1]) == {
        "rows": 8,
        "half": True,
        "calls": 2,
        "logged": True,
        "position": [8, 8],
        "padded": [30, 1.0],
        "row optimizer": "RowSign",
        "mixed loss": pytest.approx(4.0),
        "code": 0,
    }
    # the kernel of a row optimizer and its graph code are compared by the test that the row names
    test = "tests/trainer/embedding/test_row_optimizers.py"
    assert "1 passed" in run("-m", "pytest", "-p", "no:cacheprovider", test, "-k", "RowSign and kernel")
