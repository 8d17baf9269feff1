import io
import re
import time

import pytest
from mindspore import nn

from callbacks import EarlyStopping, ModelCheckpoint, ProgressBar
from tests.terminals import real_terminal
from trainer import Trainer
from trainer.features import Features, Numeric
from trainer.streams import IterableStream


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_without_a_terminal_there_is_one_line_per_epoch(fit, capsys):
    fit(ProgressBar(refresh_seconds=0), epochs=2)
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert captured.out == ""
    assert len(lines) == 2
    speed = r"([\d,]+ samples/s, )?(\d+% waiting for data, )?"
    assert re.match(rf"epoch 2/2: (8 steps, )?loss [\d.]+, {speed}val_loss [\d.]+, val_auc [\d.]+$", lines[1])
    assert len(lines[1]) <= 80


def test_an_epoch_that_did_not_end_is_not_shown_with_the_loss_of_the_one_before(fit, capsys):
    fit(ProgressBar(refresh_seconds=0), epochs=2, max_steps=11, valid=False)
    first, last = capsys.readouterr().err.splitlines()
    assert ", loss " in first
    assert last.startswith("epoch 2/2: 3 steps")
    assert "loss" not in last


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
    bar = [line for line in lines if "2/2" in line][-1]
    assert {text for text in shown if text in bar} == shown


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


@pytest.mark.parametrize("columns", [40, 80, 140])
def test_the_end_says_last_and_best_values_with_step_and_snapshot_and_where_the_time_went(columns, fit, tmp_path):
    with real_terminal(columns) as (file, read):
        trainer = fit(ProgressBar(file=file), ModelCheckpoint(monitor="val_auc"), epochs=3)
        text = read()
    end = text[re.search(r"\S+ +last ", text).start() :]
    lines = end.replace("\r", "").strip().splitlines()
    assert all(len(line) < columns for line in lines)
    words = " ".join(end.split())
    best = trainer.history.best["val_auc"]
    assert f"val_auc last {trainer.state.metrics['val_auc']:.4g}, best {best.value:.4g} at step {best.step:,}" in words
    assert f"in step_{best.step:08d}" in words
    parts = r"(\d+% setting up, )?(\d+% waiting for data, )?(\d+% preparing data, )?\d+% training, "
    parts += r"(\d+% evaluation, )?\d+% saving"
    assert re.search(rf"[\d.]+ s: {parts}", words)


def slowly(monkeypatch, seconds):
    """Let preparing a chunk take so much longer."""
    from trainer.data.feed import Feed

    fill_in = Feed._fill_in

    def slow(self, chunk):
        time.sleep(seconds)
        fill_in(self, chunk)

    monkeypatch.setattr(Feed, "_fill_in", slow)


def test_the_end_tells_preparing_from_waiting_for_data(fit, cancer, monkeypatch):
    slowly(monkeypatch, 0.02)
    with real_terminal(140) as (file, read):
        fit(bar := ProgressBar(file=file), epochs=1, valid=False)  # so few arrays are prepared by the training thread
        words = " ".join(read().split())
    assert re.search(r"\d+% preparing data, \d+% training", words)
    assert bar._times.seconds["preparing data"] >= 8 * 0.02
    batches = [{name: cancer["train"][name][i : i + 64] for name in "xy"} for i in range(0, 512, 64)]
    with real_terminal(140) as (file, read):  # read ahead by a thread
        fit(bar := ProgressBar(file=file), data=lambda: iter(batches), batch_size=None, epochs=1, valid=False)
        words = " ".join(read().split())
    assert re.search(r"; [\d.]+ s of preparing data in parallel", words)
    assert bar._times.seconds["preparing data"] == 0
    assert bar._times.ahead >= 8 * 0.02


@pytest.mark.long
def test_the_end_says_how_many_rows_were_set_aside_and_why():
    features = Features([Numeric("a"), Numeric("b")], label="y")
    rows = {"a": ["1", "2", "x", "4"] * 8, "b": ["1"] * 32, "y": [0, 1] * 16}
    network = nn.Dense(2, 1)

    def trainer():
        return Trainer(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.01), features=features)

    for columns in (60, 140):
        with real_terminal(columns) as (file, read):
            trainer().fit(rows, batch_size=8, callbacks=[ProgressBar(file=file)])
            text = read()
        assert "8 of 32 rows set aside: " in " ".join(text.split())
        assert all(len(line) <= columns for line in re.split(r"[\r\n]+", text))
    stream = IterableStream(lambda: ({name: rows[name][i] for name in rows} for i in range(32)))
    with real_terminal(140) as (file, read):
        trainer().online_train(stream, batch_size=8, callbacks=[ProgressBar(file=file)])
        assert "8 of 32 rows set aside: " in " ".join(read().split())


def test_the_end_leaves_results_to_the_table_of_the_command_line(fit):
    with real_terminal(80) as (file, read):
        fit(ProgressBar(file=file, results=False), epochs=1)
        text = read()
    assert "% training" in text
    assert not re.search(r"\blast [\d.]+", text)


def test_nothing_is_printed_at_the_end_of_a_run_that_failed(fit):
    with real_terminal(80) as (file, read):
        with pytest.raises(OSError, match="disk"):
            fit(ProgressBar(file=file), fail_at=3)
        assert "best" not in read()
