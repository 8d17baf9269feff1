"""Draw the pictures of docs/callbacks.md from real training runs on the digits.

Check the pictures by eye before committing them.

python scripts/callback_pictures.py docs/pictures/callbacks                all pictures
python scripts/callback_pictures.py docs/pictures/callbacks drift lines    two of them
"""

from __future__ import annotations

import contextlib
import html
import io
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
from chart import COLORS, chart_svg
from mindspore import nn
from pictures import draw as draw_terminal
from sklearn.datasets import load_digits

from callbacks import (
    EMA,
    SWA,
    CSVLogger,
    DeviceStats,
    DriftMonitor,
    EarlyStopping,
    JSONLinesLogger,
    LambdaCallback,
    LearningRateMonitor,
    LossMonitor,
    LRFinder,
    ModelCheckpoint,
    Profiler,
    PrometheusMonitor,
    ReduceLROnPlateau,
    SkipNonFinite,
    TimeMonitor,
)
from trainer import Schedule, Trainer, Window
from trainer.streams import ReplayStream

TRAIN, BATCH = 1200, 50
SPAN_COLORS = {"program": 0, "callback": 1, "step": 2, "operator": 3}


def digits() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return training and validation rows."""
    x, y = load_digits(return_X_y=True)
    x, y = (x / 16).astype(np.float32), y.astype(np.int32)
    return {"x": x[:TRAIN], "y": y[:TRAIN]}, {"x": x[TRAIN:], "y": y[TRAIN:]}


def make_trainer(rate: Any) -> Trainer:
    """Return a trainer for a small network with reproducible initial weights."""
    mindspore.set_seed(1)
    np.random.seed(1)
    net = nn.SequentialCell(nn.Dense(64, 64), nn.ReLU(), nn.Dense(64, 10))
    return Trainer(net, nn.CrossEntropyLoss(), nn.Adam(net.trainable_params(), rate), {"accuracy"})


def schedules() -> str:
    """Draw the named learning rate schedules."""
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
    make_trainer(1e-3).fit(digits()[0], epochs=100, batch_size=BATCH, sink_size=1, callbacks=[finder])
    return chart_svg(
        {"loss": (finder.rates, finder.losses)},
        f"Loss over learning rate, {finder.min_lr:g} to {finder.max_lr:g}",
        "learning rate",
        "smoothed loss",
        log_x=True,
        marks={} if finder.suggestion is None else {f"suggested: {finder.suggestion:.3g}": finder.suggestion},
    )


def averages() -> str:
    """Draw the validation loss of the weights, of their EMA and of their SWA."""
    train, valid = digits()
    curves = {}
    for name, callbacks in (("weights", []), ("EMA", [EMA(decay=0.98)]), ("SWA", [SWA(start=72)])):
        history = make_trainer(0.02).fit(train, 15, valid, batch_size=BATCH, callbacks=callbacks)
        curves[name] = (history.steps["val_loss"], history.history["val_loss"])
    return chart_svg(curves, "Validation loss of weights and of their averages", "optimizer step", "val_loss")


def early_stopping() -> str:
    """Draw a run that stops when its validation loss no longer falls."""
    train, valid = digits()
    stopping = EarlyStopping("val_loss", patience=4)
    history = make_trainer(0.01).fit(train, 60, valid, batch_size=BATCH, callbacks=[stopping])
    steps = history.steps["val_loss"]
    epoch_loss = (history.steps["loss"], history.history["loss"])
    curves = {"loss": epoch_loss, "val_loss": (steps, history.history["val_loss"])}
    marks = {"best": stopping.best_step, "stopped": steps[-1]}
    return chart_svg(curves, "EarlyStopping(patience=4)", "optimizer step", "loss", marks=marks)


def profiler(calls: int = 3) -> str:
    """Draw the last calls of a profiler's trace, with one row per thread."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(1e-3)
        trainer.run_dir = Path(folder)
        measured = Profiler(steps=20, verbose=False)
        trainer.fit(digits()[0], 6, batch_size=BATCH, sink_size=1, callbacks=[measured])
        assert measured.profile is not None
        events = measured.profile.trace()["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    programs = [span for span in spans if span["name"] == "program"][-calls - 1 :]
    begin, end = programs[0]["ts"] + programs[0]["dur"], programs[-1]["ts"] + programs[-1]["dur"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    width, left, row_height = 900, 120, 58
    height = 40 + row_height * len(names)
    parts = [f'<text x="12" y="22" font-weight="bold">{calls} steps, {(end - begin) / 1000:.1f} ms</text>']
    for row, (thread, name) in enumerate(sorted(names.items())):
        top = 34 + row_height * row
        parts.append(f'<text x="12" y="{top + 24}">{html.escape(name)}</text>')
        for span in spans:
            if span["tid"] != thread or span["ts"] + span["dur"] <= begin or span["ts"] >= end:
                continue
            x = left + (width - left - 12) * (max(span["ts"], begin) - begin) / (end - begin)
            wide = (width - left - 12) * (min(span["ts"] + span["dur"], end) - max(span["ts"], begin)) / (end - begin)
            color = COLORS[SPAN_COLORS.get(span["name"], SPAN_COLORS.get(span["cat"], 0))]
            parts.append(f'<rect x="{x:.1f}" y="{top}" width="{max(wide, 0.6):.1f}" height="40" fill="{color}"/>')
            if wide > 7 * len(span["name"]):
                parts.append(f'<text x="{x + 4:.1f}" y="{top + 24}" fill="#fff">{html.escape(span["name"])}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="trace of a profiler" width="{width}" '
        f'height="{height}" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12" fill="#333">'
        f'<rect width="100%" height="100%" rx="6" fill="#fff"/>{"".join(parts)}</svg>'
    )


def plateau() -> str:
    """Draw how ReduceLROnPlateau lowers the learning rate."""
    train, valid = digits()
    rates = LearningRateMonitor(every=1)
    lowering = ReduceLROnPlateau(factor=0.3, patience=2)
    history = make_trainer(0.03).fit(train, 25, valid, batch_size=BATCH, sink_size=1, callbacks=[lowering, rates])
    losses = [value / 10 for value in history.history["val_loss"]]
    curves = {
        "learning rate": (rates.curve.steps, rates.curve.values),
        "val_loss / 10": (history.steps["val_loss"], losses),
    }
    return chart_svg(curves, "ReduceLROnPlateau(factor=0.3, patience=2)", "optimizer step", "value")


def checkpoints() -> str:
    """Draw which snapshots ModelCheckpoint has kept at the end of a run."""
    train, valid = digits()
    with tempfile.TemporaryDirectory() as folder:
        saving = ModelCheckpoint(folder, monitor="val_loss", keep_best=1, keep_last=2)
        history = make_trainer(0.02).fit(train, 20, valid, batch_size=BATCH, callbacks=[saving])
        kept = sorted(path.name for path in Path(folder).glob("step_*"))
    marks = {f"{name}{' (best)' if name == saving.best_name else ''}": int(name.removeprefix("step_")) for name in kept}
    newest = max(marks, key=lambda name: marks[name])
    marks = {name: step for name, step in marks.items() if name == newest or "best" in name}
    curves = {"val_loss": (history.steps["val_loss"], history.history["val_loss"])}
    return chart_svg(curves, "Snapshots kept by ModelCheckpoint", "optimizer step", "val_loss", marks=marks)


def skipped() -> str:
    """Draw the loss of a run in which SkipNonFinite skips two batches."""
    train = digits()[0]
    rows = {name: values.copy() for name, values in train.items()}
    for batch in (8, 15):
        rows["x"][batch * BATCH, 0] = np.nan
    losses: dict[int, float] = {}

    def note(trainer: Trainer) -> None:
        losses[trainer.state.progress.global_step] = trainer.state.outputs.loss

    skipping = SkipNonFinite(every=1)
    callbacks = [skipping, LambdaCallback(on_train_step_end=note)]
    make_trainer(0.005).fit(rows, 1, batch_size=BATCH, sink_size=1, shuffle=False, callbacks=callbacks)
    marks = {f"step {record['step']}": record["step"] for record in skipping.skipped}
    return chart_svg(
        {"loss": (list(losses), list(losses.values()))},
        "SkipNonFinite: two batches with a NaN",
        "step",
        "loss",
        marks=marks,
    )


class LossIncrease:
    """A drift detector that fires once, when the loss exceeds 1.5 times its minimum."""

    def __init__(self) -> None:
        self.lowest, self.fired = float("inf"), False

    def update(self, value: float) -> bool:
        """Add a value; return whether it is a drift."""
        self.lowest = min(self.lowest, value)
        fires, self.fired = not self.fired and value > 1.5 * self.lowest, self.fired or value > 1.5 * self.lowest
        return fires


def drift() -> str:
    """Draw the log loss of a drifting stream and the point that DriftMonitor reports."""
    rng = np.random.default_rng(0)
    rows, changed = 20_000, 12_000
    x = rng.standard_normal((rows, 8)).astype(np.float32)
    sign = np.where(np.arange(rows) < changed, 1, -1)
    label = (x.sum(1) * sign + rng.standard_normal(rows) > 0).astype(np.float32)[:, None]
    losses: dict[int, float] = {}
    events: list[int] = []

    def note(trainer: Trainer) -> None:
        losses[trainer.state.progress.samples_seen] = trainer.state.window["window_log_loss"]

    def mark(trainer: Trainer) -> None:
        events.append(trainer.state.progress.samples_seen)

    net = nn.Dense(8, 1)
    trainer = Trainer(net, nn.BCEWithLogitsLoss(), nn.Adam(net.trainable_params(), 0.02))
    stream = ReplayStream({"x": x, "label": label})
    callbacks = [DriftMonitor(LossIncrease()), LambdaCallback(on_window_end=note, on_drift=mark)]
    trainer.online_train(stream, callbacks, batch_size=50, window=Window(rows=1000))
    marks = {"DriftMonitor": events[0]}
    curves = {"window_log_loss": (list(losses), list(losses.values()))}
    return chart_svg(curves, "A stream whose labels turn around", "rows", "window_log_loss", marks=marks)


def device_stats() -> str:
    """Draw the number of CPU cores that a run uses."""
    stats = DeviceStats(every=40)
    make_trainer(1e-3).fit(digits()[0], 60, batch_size=BATCH, sink_size=1, callbacks=[stats])
    records = stats.records[1:]
    cores = ([record["step"] for record in records], [record["process_cpu"] for record in records])
    return chart_svg({"cores": cores}, "DeviceStats: device/process_cpu", "optimizer step", "cores in use")


def lines() -> list[str]:
    """Return the output of LossMonitor and TimeMonitor."""
    train, valid = digits()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        callbacks = [LossMonitor(8), TimeMonitor()]
        make_trainer(5e-3).fit(train, 2, valid, batch_size=BATCH, sink_size=1, callbacks=callbacks)
    return printed.getvalue().splitlines()


def files() -> list[str]:
    """Return the first lines of the loggers' files."""
    train, valid = digits()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trainer = make_trainer(5e-3)
        trainer.run_dir = folder
        trainer.fit(train, 2, valid, batch_size=BATCH, sink_size=1, callbacks=[CSVLogger(), JSONLinesLogger()])
        shown = []
        for file in ("log.csv", "log.jsonl"):
            shown += [f"$ head -4 {file}", *(folder / file).read_text("utf-8").splitlines()[:4], ""]
    return shown[:-1]


def prometheus() -> list[str]:
    """Return the metrics of a run as Prometheus reads them."""
    seen = []

    def scrape(trainer: Trainer) -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{monitor.port}/metrics", timeout=10) as answer:
            seen.append(answer.read().decode())

    train, valid = digits()
    monitor = PrometheusMonitor(port=0, every=1)
    callbacks = [monitor, LambdaCallback(order=1, on_train_end=scrape)]
    make_trainer(5e-3).fit(train, 2, valid, batch_size=BATCH, sink_size=1, callbacks=callbacks)
    shown = [line for line in seen[-1].splitlines() if not line.startswith("#")]
    return ["$ curl -s localhost:8000/metrics | grep -v '^#'", *shown]


TERMINALS = {"lines": (lines, 80), "files": (files, 110), "prometheus": (prometheus, 80)}
PICTURES = {
    "plateau": plateau,
    "checkpoints": checkpoints,
    "skipped": skipped,
    "drift": drift,
    "device-stats": device_stats,
    "schedules": schedules,
    "lr-finder": lr_finder,
    "averages": averages,
    "early-stopping": early_stopping,
    "profiler-trace": profiler,
}


def main(folder: Path, only: list[str]) -> None:
    """Write all pictures, or only those in `only`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (print_lines, columns) in TERMINALS.items():
        if name in (only or TERMINALS):
            draw_terminal(folder / f"{name}.svg", print_lines(), columns)
    for name, draw in PICTURES.items():
        if name in (only or PICTURES):
            (folder / f"{name}.svg").write_text(draw() + "\n", "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
