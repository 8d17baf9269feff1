import io
import re

import pytest

from callbacks import ModelCheckpoint, ProgressBar


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


def test_on_a_terminal_a_bar_shows_steps_loss_and_speed(fit):
    terminal = Terminal()
    fit(ProgressBar(refresh_seconds=0, file=terminal), epochs=2)
    text = terminal.getvalue()
    assert re.search(r"epoch 1/2: .*8/8 .*loss [\d.]+, [\d,]+ samples/s", text)
    assert "epoch 2/2: " in text


@pytest.mark.parametrize("resumed", [False, True], ids=["second fit", "resumed"])
def test_results_of_an_earlier_run_are_not_shown(fit, tmp_path, resumed):
    terminal = Terminal()
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
