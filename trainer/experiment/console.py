"""Write the output of the command line: log, errors and results."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import textwrap
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from ..masking import mask_text

if TYPE_CHECKING:
    from .runs.run_folder import Run

MIN_COLUMNS = 20


def wrapped(text: str, stream: TextIO | None) -> str:
    """Return `text` wrapped for a terminal `stream`; long words stay whole."""
    try:
        columns = os.get_terminal_size(stream.fileno()).columns if stream is not None and stream.isatty() else 0
    except (OSError, ValueError):  # the stream has no file descriptor
        columns = 0
    if columns < MIN_COLUMNS:
        return text
    lines: list[str] = []
    for line in text.split("\n"):
        if len(line) <= columns:
            lines.append(line)
            continue
        indent = line[: len(line) - len(line.lstrip())] + "  "
        lines += textwrap.wrap(line, columns, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)


def print_error(text: str) -> None:
    """Print a message with credentials masked to standard error."""
    print(wrapped(mask_text(text), sys.stderr), file=sys.stderr)


def print_traceback(*exception: Any) -> None:
    """Print the traceback of an unexpected exception with credentials masked."""
    print(mask_text("".join(traceback.format_exception(*exception))), end="", file=sys.stderr)


class Console(logging.StreamHandler):
    """Log handler that remembers the last error, so that it is not printed twice.

    Messages about raw rows are logged once, because train, valid and test are often parts of the same files.
    """

    last_error = ""

    def __init__(self) -> None:
        super().__init__()
        self._logged: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a log record, unless it repeats a message about raw rows."""
        if record.name.startswith("trainer.features."):
            message = record.getMessage()
            if message in self._logged:
                return
            self._logged.add(message)
        if record.levelno >= logging.ERROR:
            self.last_error = mask_text(record.getMessage())
        super().emit(record)

    def format(self, record: logging.LogRecord) -> str:
        """Return the message, with credentials masked, wrapped for the terminal."""
        return wrapped(mask_text(super().format(record)), self.stream)


@contextlib.contextmanager
def logging_to(handler: logging.Handler, verbose: bool = False) -> Iterator[None]:
    """Write this package's log to `handler`, and hide MindSpore's log.

    MindSpore's errors are still reported, because it also raises them as exceptions.
    """
    loggers = [logging.getLogger(name) for name in ("trainer", "callbacks")]
    levels = [logger.level for logger in loggers]
    hides_mindspore_log = "GLOG_v" not in os.environ and "mindspore" not in sys.modules
    if hides_mindspore_log:
        os.environ["GLOG_v"] = "4"  # noqa: SIM112 (MindSpore's spelling)
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG if verbose else logging.INFO)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)
        if hides_mindspore_log:
            del os.environ["GLOG_v"]  # noqa: SIM112


def print_results(run: Run) -> None:
    """Print the last and best metrics of a finished run, and where its files are."""
    from callbacks.output import without_equal_losses

    from ..storage.fetch import PUBLISHED
    from .runs.compare import duration, number, table

    metrics = run.metrics
    results = {**without_equal_losses(metrics["results"]), "steps": metrics["progress"]["global_step"]}
    best = {("train_loss" if name == "loss" else name): values for name, values in metrics["best"].items()}
    rows = [["result", "last", "best", "at step", "in snapshot"]]
    for name, value in results.items():
        entry = best.get(name)
        cells = ["", "", ""]
        if entry is not None:
            cells = [number(entry["value"]), str(entry["step"]), entry["snapshot"] or "none kept"]
        rows.append([name, number(value), *cells])
    print("\n".join(table(rows)))
    before = metrics.get("seconds_before", 0.0)
    print(f"took {duration(metrics['seconds'])}" + (f", {duration(before)} of it before the resume" if before else ""))
    snapshot = metrics["snapshot"] or "none"
    with contextlib.suppress(ValueError):  # the snapshot is not below the working directory
        snapshot = Path(snapshot).relative_to(Path.cwd()) if metrics["snapshot"] else snapshot
    print(f"snapshot {snapshot}")
    print(f"run folder {run.path}")
    commands = ["report"] + ["serve"] * (run.path / PUBLISHED).is_dir()
    print(f"next: {', or '.join(f'trainer {verb} {run.path}' for verb in commands)}")


class RecordedOutput:
    """Wrapper of standard output that remembers its latest failed write.

    The exception alone is not enough: user code may catch it, and the last flush may be the first call that fails.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.lost: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write `text`."""
        with self._recording():
            return self._stream.write(text)

    def flush(self) -> None:
        """Flush the buffer."""
        with self._recording():
            self._stream.flush()

    @contextlib.contextmanager
    def _recording(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.lost = error
            raise


@contextlib.contextmanager
def recorded_output() -> Iterator[RecordedOutput]:
    """Record failed writes to `sys.stdout` inside the context.

    After a failed write, stdout is replaced by the null device when the context ends.
    """
    stream = sys.stdout
    output = RecordedOutput(stream)
    if stream is not None:  # None in a process without stdout
        sys.stdout = output  # type: ignore[assignment]
    try:
        yield output
    finally:
        # the interpreter flushes stdout on exit; if that fails, the exit code becomes 120
        sys.stdout = stream if output.lost is None else open(os.devnull, "w")  # noqa: SIM115
