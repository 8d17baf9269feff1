"""Make the pictures of docs/callbacks.md from real runs on scikit-learn's digits; look at them before you commit them.

python scripts/callback_pictures.py docs/pictures/callbacks
"""

from __future__ import annotations

import html
import sys
import tempfile
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
from mindspore import nn
from sklearn.datasets import load_digits

from callbacks import EMA, BatchSizeFinder, EarlyStopping, LRFinder, Profiler
from callbacks.chart import COLORS, chart_svg
from trainer import Schedule, Trainer

TRAIN, BATCH = 1200, 50
SPANS = {"program": 0, "callback": 1, "step": 2, "operator": 3}


def digits() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return rows to train and to validate on."""
    x, y = load_digits(return_X_y=True)
    x, y = (x / 16).astype(np.float32), y.astype(np.int32)
    return {"x": x[:TRAIN], "y": y[:TRAIN]}, {"x": x[TRAIN:], "y": y[TRAIN:]}


def make(rate: Any) -> Trainer:
    """Return a trainer of a small network that starts from the same weights every time."""
    mindspore.set_seed(1)
    np.random.seed(1)
    net = nn.SequentialCell(nn.Dense(64, 64), nn.ReLU(), nn.Dense(64, 10))
    return Trainer(net, nn.CrossEntropyLoss(), nn.Adam(net.trainable_params(), rate), {"accuracy"})


def schedules() -> str:
    """Draw the schedules by name."""
    steps = list(range(0, 1000, 10))
    options = {"total_steps": 1000, "warmup_steps": 100}
    curves = {
        kind: (steps, [float(Schedule(kind, 0.01, **options)(mindspore.Tensor(step)).asnumpy()) for step in steps])
        for kind in ("linear", "cosine", "inverse_sqrt", "one_cycle")
    }
    return chart_svg(curves, "Schedules with a warm-up of 100 steps", "optimizer step", "learning rate")


def lr_finder() -> str:
    """Draw a learning rate range test."""
    finder = LRFinder(1e-5, 1, steps=80)
    make(1e-3).fit(digits()[0], epochs=100, batch_size=BATCH, sink_size=1, callbacks=[finder])
    return finder.svg()


def averages() -> str:
    """Draw the validation loss of weights and of their moving average."""
    train, valid = digits()
    curves = {}
    for name, callbacks in (("weights", []), ("EMA of the weights", [EMA(decay=0.98)])):
        history = make(0.02).fit(train, 15, valid, batch_size=BATCH, callbacks=callbacks)
        curves[name] = (history.steps["val_loss"], history.history["val_loss"])
    return chart_svg(curves, "Validation loss with and without EMA", "optimizer step", "val_loss")


def early_stopping() -> str:
    """Draw a run that ends when its validation loss no longer falls."""
    train, valid = digits()
    stopping = EarlyStopping("val_loss", patience=4)
    history = make(0.01).fit(train, 60, valid, batch_size=BATCH, callbacks=[stopping])
    steps = history.steps["val_loss"]
    epoch_loss = (history.steps["loss"], history.history["loss"])
    curves = {"loss": epoch_loss, "val_loss": (steps, history.history["val_loss"])}
    marks = {"best": stopping.best_step, "stopped": steps[-1]}
    return chart_svg(curves, "EarlyStopping(patience=4)", "optimizer step", "loss", marks=marks)


def batch_sizes() -> str:
    """Draw samples per second over the size of batches."""
    finder = BatchSizeFinder(calls=8, most=1024)
    make(1e-3).fit(digits()[0], batch_size=8, callbacks=[finder])
    records = sorted(finder.records, key=lambda record: record["batch_size"])
    rates = ([r["batch_size"] for r in records], [r["samples_per_second"] for r in records])
    marks = {f"suggested: {finder.suggestion}": finder.suggestion}
    title = "Samples per second over the batch size"
    return chart_svg({"samples": rates}, title, "batch size", "samples/s", log_x=True, marks=marks)


def profiler(calls: int = 3) -> str:
    """Draw the last calls of a profiler's trace as a viewer of traces does: a row for each thread."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = make(1e-3)
        trainer.run_dir = Path(folder)
        measured = Profiler(steps=20, verbose=False)
        trainer.fit(digits()[0], 6, batch_size=BATCH, sink_size=1, callbacks=[measured])
        assert measured.profile is not None
        events = measured.profile.trace()["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    programs = [span for span in spans if span["name"] == "program"][-calls - 1 :]
    begin, end = programs[0]["ts"] + programs[0]["dur"], programs[-1]["ts"] + programs[-1]["dur"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    width, left, tall = 900, 120, 58
    height = 40 + tall * len(names)
    parts = [f'<text x="12" y="22" font-weight="bold">{calls} steps, {(end - begin) / 1000:.1f} ms</text>']
    for row, (thread, name) in enumerate(sorted(names.items())):
        top = 34 + tall * row
        parts.append(f'<text x="12" y="{top + 24}">{html.escape(name)}</text>')
        for span in spans:
            if span["tid"] != thread or span["ts"] + span["dur"] <= begin or span["ts"] >= end:
                continue
            x = left + (width - left - 12) * (max(span["ts"], begin) - begin) / (end - begin)
            wide = (width - left - 12) * (min(span["ts"] + span["dur"], end) - max(span["ts"], begin)) / (end - begin)
            color = COLORS[SPANS.get(span["name"], SPANS.get(span["cat"], 0))]
            parts.append(f'<rect x="{x:.1f}" y="{top}" width="{max(wide, 0.6):.1f}" height="40" fill="{color}"/>')
            if wide > 7 * len(span["name"]):
                parts.append(f'<text x="{x + 4:.1f}" y="{top + 24}" fill="#fff">{html.escape(span["name"])}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="trace of a profiler" width="{width}" '
        f'height="{height}" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12" fill="#333">'
        f'<rect width="100%" height="100%" rx="6" fill="#fff"/>{"".join(parts)}</svg>'
    )


PICTURES = {
    "schedules": schedules,
    "lr-finder": lr_finder,
    "averages": averages,
    "early-stopping": early_stopping,
    "batch-sizes": batch_sizes,
    "profiler-trace": profiler,
}


def main(folder: Path) -> None:
    """Write the pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in PICTURES.items():
        (folder / f"{name}.svg").write_text(draw() + "\n", "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
