"""README's three commands on tables of five kinds: none ends below the regression, and better trees are named."""

import csv
import json

import pytest

from tests.own_tables import KINDS, write_csv
from trainer.experiment.cli import main

pytestmark = pytest.mark.long

ROWS = 4000
MODELS, OPTIONS = {"implicit": ["two_tower"]}, {"revenue": ["--label", "revenue"]}
METRICS = {"clicks": ["log_loss", "auc"], "classes": ["log_loss", "accuracy"], "implicit": ["recall_10"]}
CHANCE = 1e-3  # by which the validation rows, which choose the weights, may mislead
HIGHER = ("auc", "accuracy", "recall_10")


@pytest.mark.long(but=["clicks"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_result_is_at_or_above_the_baseline(kind, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    data = str(write_csv(KINDS[kind](ROWS), tmp_path / "table.csv").name)
    first = ["init", *MODELS.get(kind, []), data, *OPTIONS.get(kind, [])]
    for command in (first, ["fit", "table.yaml"]):
        assert main(command) == 0, capsys.readouterr()
    printed = capsys.readouterr().out
    metrics = json.loads((tmp_path / "runs" / "table" / "metrics.json").read_text())
    own, (linear, *others) = metrics["baseline"]["model"], metrics["baseline"]["plain"].values()
    assert list(own) == list(linear) == METRICS.get(kind, ["rmse", "mae"])
    name = next(iter(own))  # which the best weights are chosen by
    better = max if name in HIGHER else min
    assert better(own[name], linear[name]) == pytest.approx(own[name], rel=CHANCE)
    wins = better([own[name], linear[name], *(other[name] for other in others)])
    assert ("the baseline wins" in printed) == (f"{wins:.4f}" != f"{own[name]:.4f}")
    assert main(["report", "runs/table"]) == 0, capsys.readouterr()
    if name != "recall_10":  # the weights of the best epoch are the ones that are tested
        best = metrics["best"][f"val_{name}"]
        assert best["snapshot"] is not None
        assert metrics["results"][f"test_{name}"] == pytest.approx(own[name], rel=1e-6)
        assert best["step"] <= metrics["progress"]["global_step"]
    if kind == "classes":
        names_are_answered(tmp_path, capsys)


def names_are_answered(folder, capsys):
    assert main(["predict", "runs/table", "--data", "table.csv", "--output", "answers.csv"]) == 0, capsys.readouterr()
    with open(folder / "answers.csv") as file:
        answers = list(csv.DictReader(file))
    classes = ["bought", "left", "returned"]
    assert list(answers[0]) == ["row", "prediction", *(f"probability_{name}" for name in classes)]
    for answer in answers[:50]:
        chances = {name: float(answer[f"probability_{name}"]) for name in classes}
        assert answer["prediction"] == max(chances, key=chances.get)
        assert sum(chances.values()) == pytest.approx(1, abs=1e-5)
