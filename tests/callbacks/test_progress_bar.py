import contextlib
import fcntl
import io
import os
import pty
import re
import select
import struct
import termios

import pytest

from callbacks import EarlyStopping, ModelCheckpoint, ProgressBar


@contextlib.contextmanager
def real_terminal(columns):
    """A pseudo-terminal of this width: a file to write to, and a function that returns what was written."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    seen = bytearray()

    def read():
        while select.select([leader], [], [], 0.2)[0]:
            seen.extend(os.read(leader, 65536))
        return seen.decode()

    with os.fdopen(follower, "w") as file:
        yield file, read
    os.close(leader)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_without_a_terminal_there_is_one_line_per_epoch(fit, capsys):
    fit(ProgressBar(refresh_seconds=0), epochs=2)
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert captured.out == ""
    assert len(lines) == 2
    assert re.match(
        r"epoch 2/2: 8 steps, loss [\d.]+, [\d,]+ samples/s(, \d+% waiting for data)?, val_loss [\d.]+, val_auc",
        lines[1],
    )


def test_on_a_terminal_a_bar_shows_steps_loss_and_speed(fit, monkeypatch):
    terminal = Terminal()
    monkeypatch.setenv("COLUMNS", "140")
    fit(ProgressBar(refresh_seconds=0, file=terminal), epochs=2)
    text = terminal.getvalue()
    assert re.search(r"epoch 1/2 .*8/8 steps, loss [\d.]+, [\d,]+ samples/s", text)
    assert "epoch 2/2 " in text


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (40, {"2/2", "val_auc"}),
        (80, {"epoch 2/2", "8/8 steps", "loss", "val_auc"}),
        (140, {"epoch 2/2", "8/8 steps", "loss", "samples/s", "val_loss", "val_auc"}),
    ],
)
def test_the_monitored_metric_stays_at_any_width_and_no_line_is_longer_than_the_terminal(fit, columns, shown):
    with real_terminal(columns) as (file, read):
        fit(EarlyStopping("val_auc", patience=9), ProgressBar(refresh_seconds=0, file=file), epochs=2)
        lines = [line for line in re.split(r"[\r\n]+", read()) if line.strip()]
    assert max(map(len, lines)) <= columns
    assert {text for text in shown if text in lines[-1]} == shown


@pytest.mark.parametrize("resumed", [False, True], ids=["second fit", "resumed"])
def test_results_of_an_earlier_run_are_not_shown(fit, tmp_path, resumed, monkeypatch):
    terminal = Terminal()
    monkeypatch.setenv("COLUMNS", "140")
    trainer = fit(ModelCheckpoint(tmp_path), epochs=1)
    before = f"{trainer.state.metrics['val_loss']:.4g}"
    options = {"epochs": 2, "resume": tmp_path} if resumed else {"epochs": 1, "fresh": False}
    fit(ProgressBar(refresh_seconds=0, file=terminal), **options)
    own = f"{trainer.state.metrics['val_loss']:.4g}"
    assert own != before
    assert "loss " in terminal.getvalue()
    assert set(re.findall(r"val_loss ([\d.]+)", terminal.getvalue())) == {own}


def test_results_of_evaluate_are_not_shown_as_those_of_the_run(fit, cancer, capsys):
    trainer = fit(epochs=1, valid=False)
    assert set(trainer.evaluate(cancer["valid"], batch_size=64)) == {"loss", "auc"}
    capsys.readouterr()
    fit(ProgressBar(), epochs=1, valid=False, fresh=False)
    assert "auc" not in capsys.readouterr().err


def test_between_refreshes_the_bar_reads_no_loss(fit, monkeypatch):
    from trainer.state import StepOutputs

    terminal, read = Terminal(), []
    monkeypatch.setattr(StepOutputs, "loss", property(lambda self: read.append(self) or 1.0))
    fit(ProgressBar(refresh_seconds=3600, file=terminal), epochs=1, valid=False)
    assert len(read) == 1


def test_a_stream_shows_its_window_in_few_lines(online, capsys):
    online([{"window_auc": 0.75, "lag": 12} for _ in range(8)], ProgressBar(line_seconds=3600))
    lines = capsys.readouterr().err.splitlines()
    assert re.match(r"online: 1 steps, [\d,]+ samples/s(, \d+% waiting for data)?, window_auc 0.75, lag 12", lines[0])
    assert re.match(r"online: 8 steps, ", lines[1])
    assert [line.split(": ")[:2] for line in lines[2:]] == [["stopped", "stream_end"]]


def test_a_failing_run_leaves_the_terminal_in_order(fit):
    terminal = Terminal()
    bar = ProgressBar(refresh_seconds=0, file=terminal)
    with pytest.raises(OSError, match="disk"):
        fit(bar, fail_at=3)
    assert terminal.getvalue().endswith("\n")
    fit(bar)
    assert terminal.getvalue().endswith("\n")
