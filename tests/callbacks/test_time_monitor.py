import re

import pytest

from callbacks import TimeMonitor


def test_an_epoch_is_timed_without_its_validation(fit, capsys):
    monitor = TimeMonitor()
    fit(monitor, epochs=2)
    assert [(record["epoch"], record["steps"]) for record in monitor.records] == [(1, 8), (2, 8)]
    record = monitor.records[1]
    assert record["eval_seconds"] > 0
    assert record["samples_per_second"] * record["seconds"] == pytest.approx(512)
    assert 0 <= record["data_wait"] <= 1
    assert re.match(r"epoch 1: [\d.]+ s, [\d.]+ ms/step, [\d,]+ samples/s", capsys.readouterr().out)
