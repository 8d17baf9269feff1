"""Draw pictures for the documentation from real training runs.

The pictures show a terminal, `trainer compare`, a notebook, a report, a sweep and TensorBoard.

    python scripts/pictures.py docs/pictures --python .venv/bin/python

The interpreter of `--python` runs the trainer on the digits of `configs/lenet_digits.yaml`. The environment of this
script needs `pip install playwright pillow nbconvert tensorboard` and an installed Chromium. Use `--only terminal` to
draw a single kind of picture.
"""

from __future__ import annotations

import argparse
import html
import json
import os
import pty
import re
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import termios
import time
import urllib.request
from pathlib import Path
from typing import Any

from report_pictures import check_page, take_screenshots

ROOT = Path(__file__).resolve().parent.parent
COLUMN, LINE, MARGIN = 7.9, 19, 16

KINDS = ("terminal", "compare", "notebook", "report", "sweep", "tensorboard")
EXPERIMENT = """extends: {base}
run_dir: runs/{run}
optimizer: {{init_args: {{learning_rate: {rate}}}}}
fit: {{epochs: 6}}
callbacks:
  - {{class_path: callbacks.ProgressBar}}
  - {{class_path: callbacks.TensorBoard}}
  - {{class_path: callbacks.ModelCheckpoint, init_args: {{monitor: val_accuracy}}}}
"""
NOTEBOOK = (
    """import numpy as np
from mindspore import nn
from sklearn.datasets import load_digits
from trainer import Trainer

x, y = load_digits(return_X_y=True)
x, y = (x / 16).astype(np.float32), y.astype(np.int32)
net = nn.SequentialCell(nn.Dense(64, 64), nn.ReLU(), nn.Dense(64, 10))
trainer = Trainer(net, nn.CrossEntropyLoss(), nn.Adam(net.trainable_params(), 5e-3), {"accuracy"})""",
    "history = trainer.fit((x[:1500], y[:1500]), 8, (x[1500:], y[1500:]), batch_size=50)",
    "history",
    "trainer",
)


def main() -> int:
    """Write the pictures; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the pictures go")
    parser.add_argument("--python", type=Path, default=ROOT / ".venv" / "bin" / "python", help="has the trainer")
    parser.add_argument("--chromium", default=shutil.which("chromium"), help="program; default: found on the path")
    parser.add_argument("--only", choices=KINDS, nargs="+", default=KINDS)
    options = parser.parse_args()
    python = str(options.python.absolute())
    with tempfile.TemporaryDirectory() as folder_name:
        work = Path(folder_name)
        for columns, run, rate in ((80, "digits", "2e-3"), (140, "digits-fast", "8e-3")):
            text = EXPERIMENT.format(base=ROOT / "configs" / "lenet_digits.yaml", run=run, rate=rate)
            (work / f"{run}.yaml").write_text(text)
            lines_shown = record([python, "-m", "mindspore_trainer", "fit", f"{run}.yaml"], columns, work)
            if "terminal" in options.only:
                draw(options.folder / f"terminal-{columns}.svg", [f"$ trainer fit {run}.yaml", *lines_shown], columns)
        if "compare" in options.only:
            lines = []
            for words in (["runs"], ["compare", "runs/digits", "runs/digits-fast"]):
                lines_shown = record([python, "-m", "mindspore_trainer", *words], 110, work)
                lines += [f"$ trainer {' '.join(words)}", *lines_shown, ""]
            draw(options.folder / "compare.svg", lines[:-1], 110)
        browser_pictures(options, python, work)
    return 0


def browser_pictures(options: argparse.Namespace, python: str, work: Path) -> None:
    """Take the pictures that need a browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=options.chromium, args=["--no-sandbox"])
        if "report" in options.only:
            command = [python, "-m", "mindspore_trainer", "report", "runs/digits", "runs/digits-fast"]
            subprocess.run([*command, "--output", "report.html"], cwd=work, env=environment(), check=True)
            take_screenshots(browser, work / "report.html", str(options.folder / "report"))
        if "sweep" in options.only:
            command = [python, "-m", "mindspore_trainer", "sweep", "digits.yaml", "--monitor", "val_accuracy"]
            values = ["optimizer.init_args.learning_rate=1e-3,4e-3,1.6e-2", "fit.batch_size=32,128"]
            options = [part for value in values for part in ("--vary", value)]
            subprocess.run([*command, *options, "--set", "fit.epochs=3"], cwd=work, env=environment(), check=True)
            view = browser.new_page(viewport={"width": 1400, "height": 1000})
            check_page(view, (work / "sweeps" / "digits" / "report.html").as_uri(), 1400)
            view.screenshot(path=options.folder / "sweep.png")
        if "notebook" in options.only:
            view = browser.new_page(viewport={"width": 1000, "height": 1130})
            view.goto(notebook(python, work).as_uri())
            view.wait_for_timeout(1500)
            view.screenshot(path=options.folder / "notebook.png", full_page=True)
        if "tensorboard" in options.only:
            view = browser.new_page(viewport={"width": 1400, "height": 900})
            tensorboard(view, work, options.folder)
        browser.close()


def environment() -> dict[str, str]:
    """Return environment variables that select the trainer of this checkout."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "GLOG_v": "3", "TERM": "xterm"}


def record(command: list[str], columns: int, work: Path) -> list[str]:
    """Run a program in a pseudo-terminal; return the final lines on the screen."""
    control, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (60, columns))
    process = subprocess.Popen(
        command, cwd=work, env=environment(), stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True
    )
    os.close(terminal)
    data = b""
    while process.poll() is None or select.select([control], [], [], 0)[0]:
        if select.select([control], [], [], 0.1)[0]:
            try:
                data += os.read(control, 1 << 16)
            except OSError:  # the other end is closed
                break
    if process.wait():
        raise RuntimeError(data.decode("utf-8", "replace"))
    return screen(data.decode("utf-8"))


def screen(text: str) -> list[str]:
    """Return the lines that a terminal shows after this output.

    Carriage returns, cursor-up and erase sequences are interpreted.
    """
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[\d;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", text):
        if part == "\r":
            column = 0
        elif part == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif part[0] == "\x1b":
            if part[-1] == "A":
                row = max(0, row - int(part[2:-1] or 1))
            elif part[-1] == "K":
                lines[row] = "" if part[2:-1] == "2" else lines[row][:column]
        else:
            lines[row] = lines[row][:column].ljust(column) + part + lines[row][column + len(part) :]
            column += len(part)
    return [line.rstrip() for line in "\n".join(lines).rstrip().splitlines()]


def draw(path: Path, lines: list[str], columns: int) -> None:
    """Write the screen of a terminal as SVG; lines wrap after `columns`."""
    wrapped = [line[start : start + columns] for line in lines for start in range(0, max(len(line), 1), columns)]
    width, height = 2 * MARGIN + round(COLUMN * columns), 2 * MARGIN + LINE * len(wrapped)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        "<style>text{font:13px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#d7e0da;"
        "white-space:pre}</style>",
        f'<rect width="{width}" height="{height}" rx="8" fill="#10201a"/>',
    ]
    for number, line in enumerate(wrapped):
        size = f'textLength="{COLUMN * len(line):.1f}" lengthAdjust="spacingAndGlyphs"' if line.strip() else ""
        y = MARGIN + LINE * number + 14
        parts.append(f'<text x="{MARGIN}" y="{y}" {size}>{html.escape(line)}</text>')
    path.write_text("\n".join([*parts, "</svg>\n"]), encoding="utf-8")


def notebook(python: str, work: Path) -> Path:
    """Execute a notebook in the trainer's environment; return the HTML file."""
    kernel = work / "jupyter" / "kernels" / "trainer"
    kernel.mkdir(parents=True)
    arguments = [python, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernel / "kernel.json").write_text(
        json.dumps({"argv": arguments, "display_name": "trainer", "language": "python"})
    )
    empty: dict[str, Any] = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
    cells = [{**empty, "source": source} for source in NOTEBOOK]
    kernelspec = {"name": "trainer", "display_name": "trainer", "language": "python"}
    content = {"cells": cells, "metadata": {"kernelspec": kernelspec}, "nbformat": 4, "nbformat_minor": 4}
    (work / "run.ipynb").write_text(json.dumps(content))
    command = [sys.executable, "-m", "nbconvert", "--execute", "--to", "html", "run.ipynb"]
    variables = {**environment(), "JUPYTER_PATH": str(work / "jupyter")}
    subprocess.run(command, cwd=work, env=variables, check=True)
    return work / "run.html"


def tensorboard(view: Any, work: Path, folder: Path) -> None:
    """Take screenshots of TensorBoard: curves and the table of hyperparameters."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(work / "runs"), "--port", str(port)]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(120):
            try:
                with urllib.request.urlopen(f"{address}/data/environment", timeout=5):
                    break
            except OSError:
                time.sleep(0.5)
        for tab, name in (("timeseries", "tensorboard"), ("hparams", "tensorboard-hparams")):
            view.goto(f"{address}/?forceSVG=true&tagFilter=train%2Floss%7Clearning_rate%7Cval%2F#{tab}")
            view.reload()
            view.wait_for_timeout(5000)
            if tab == "timeseries":
                view.get_by_role("button", name="Settings").last.click()
            view.wait_for_timeout(3000)
            view.screenshot(path=folder / f"{name}.png")
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    sys.exit(main())
