"""The two trainings of the shop.

python -m examples.shop.learn fit FOLDER ROWS        on visits of the past, once
python -m examples.shop.learn online FOLDER URL      from there on, on what customers do: Redis to published versions
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from mindspore import nn, set_seed

from callbacks import Callback
from examples.shop.rows import WITHIN, features, network, part, visits
from trainer import ModelCheckpoint, Trainer, Window
from trainer.serving import Publish
from trainer.streams import ServedOutcomes


def _trainer(rate: float) -> Trainer:
    declared = features()
    net = network(declared)
    optimizer = nn.Adam(net.trainable_params(), rate)
    return Trainer(net, nn.BCEWithLogitsLoss(), optimizer, {"auc"}, features=declared)


def fit(folder: Path, rows: int) -> None:
    """Train on the oldest visits and leave a snapshot."""
    set_seed(1)
    _trainer(2e-3).fit(
        part(visits(), slice(0, rows)),
        epochs=2,
        batch_size=256,
        callbacks=[ModelCheckpoint(folder / "offline", every=200)],
    )


def online(folder: Path, url: str) -> None:
    """Train on what the server answered and its outcomes, publish every second, until SIGTERM."""
    trainer = _trainer(1e-3)
    trainer.load(folder / "offline", weights_only=True)
    trainer.online_train(
        ServedOutcomes(url, url, wait=WITHIN, idle_timeout=None),
        callbacks=[
            ModelCheckpoint(folder / "online", every=20),
            Publish(folder / "published", every=1.0, compact=10_000),
            Windows(folder / "windows.jsonl"),
        ],
        batch_size=64,
        sink_size=4,
        window=Window(event_time=2 * 86400),
        resume="auto",
    )


class Windows(Callback):
    """Writes down the metrics of every window of two days."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def on_window_end(self, trainer: Trainer) -> None:
        """Write the window that closed."""
        with open(self._path, "a") as file:
            file.write(json.dumps(trainer.state.window, default=float) + "\n")


if __name__ == "__main__":
    if sys.argv[1] == "fit":
        fit(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        online(Path(sys.argv[2]), sys.argv[3])
