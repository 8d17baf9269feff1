"""`benchmarks/quality.py` on few rows: its tables hold every contender, means and spreads over the seeds."""

import json

import numpy as np
import pytest

from benchmarks import quality_models, quality_targets
from benchmarks.quality import fitted_sequence, main, split, table
from examples.last_films import last_films
from examples.movielens import load


@pytest.mark.long
def test_the_network_that_reads_the_last_films_trains_on_the_rows_of_a_split():
    columns = {name: column[:3000] for name, column in load().items()}
    parts = split({**columns, **last_films(columns)}, "time")
    assert not set(parts[2]["films"].flat) - set(parts[0]["item"]) - {0}
    assert 0.5 < fitted_sequence("attention", parts, seed=1, epochs=1)["rmse"] < 2


@pytest.mark.long
def test_labels_and_counts_are_measured_beside_their_regressions():
    columns = {name: column[::10] for name, column in load().items()}
    figures = quality_targets.labels(split(columns, "random"), seed=1, epochs=1)
    assert set(figures) == {"share of each label", "logistic regression", "network, four labels"}
    assert all(0.5 < values["auc"] < 1 for values in figures.values() if "auc" in values)
    figures = quality_targets.counts(columns, seed=1, epochs=1)
    assert all(values["poisson_deviance"] > 0 for values in figures.values())
    assert abs(figures["network, counts"]["bias"]) < 1, "in ratings, not in their logarithm"


def test_figures_that_were_kept_are_shown_again_and_judged(tmp_path):
    names = ("without the last 20 films", "the last 20 films, mean", "the last 20, attention")
    kept = {"1": dict(zip(names, ({"rmse": 1.0}, {"rmse": 0.9}, {"rmse": 0.8}), strict=True))}
    (tmp_path / "films.json").write_text(json.dumps(kept))
    shown = []
    assert main(["--parts", "films", "--show", "--output", str(tmp_path)], shown.append) == 0
    assert "| the last 20, attention | 0.8000 |" in shown[0]
    kept["1"]["the last 20, attention"]["rmse"] = 1.1
    (tmp_path / "films.json").write_text(json.dumps(kept))
    assert main(["--parts", "films", "--show", "--output", str(tmp_path)], shown.append) == 1


def test_a_table_gives_means_and_spreads():
    runs = [{"mean": {"rmse": 1.0}, "network": {"rmse": value, "accuracy": 0.5}} for value in (0.9, 1.0, 1.1)]
    assert table(runs).splitlines() == [
        "| | rmse | accuracy |",
        "| --- | --- | --- |",
        "| mean | 1.0000 |  |",
        "| network | 1.0000 ± 0.1000 | 0.5000 |",
    ]


@pytest.mark.long
def test_models_train_on_eight_tenths_of_the_ratings_other_than_3():
    table = quality_models.prepared({name: column[:20_000] for name, column in load().items()})
    train, test = quality_models.split(table, "deepfm")
    assert len(train["liked"]) / len(table["liked"]) == pytest.approx(0.8, abs=1e-3)
    assert len(test["liked"]) / len(table["liked"]) == pytest.approx(0.1, abs=1e-3)
    assert set(table["loved"][table["liked"] == 0]) == {0}
    histories = quality_models.split(table, "din")[1]["films"]
    assert histories.shape[1] == 20
    assert histories.min() > 0
    outputs = quality_models.trained("lr", train, test, seed=1, epochs=1)
    assert quality_models.scores("lr", outputs, test)["lr"] > 0.6


def test_the_chosen_film_is_ranked_among_all():
    films = np.eye(4, dtype=np.float32)[[3, 2, 1, 0]]
    users = np.array([[0.9, 0.3, 0.2, 0.1], [0, 0, 0, 0]], np.float32)
    vectors = np.concatenate([np.concatenate([users, films[:2]], 1), np.concatenate([films, films], 1)])
    # of films 1 to 4 the first user likes the fourth most; the second makes no difference between them
    assert quality_models.auc_among_films(vectors, np.array([4, 2])) == pytest.approx((1 + 0.5) / 2)
    assert quality_models.auc_among_films(vectors, np.array([2, 2])) == pytest.approx((1 / 3 + 0.5) / 2)


def test_a_model_may_lie_behind_by_the_spread_of_the_seeds():
    runs = [{"fm": {"auc": 0.80 + seed, "auc, torch": 0.82}} for seed in (0.0, 0.01, 0.03)]
    assert quality_models.behind_torch(runs) == []
    runs = [{"fm": {"auc": 0.80 + seed, "auc, torch": 0.82}} for seed in (0.0, 0.001, 0.002)]
    assert quality_models.behind_torch(runs) == ["fm"]
