"""Ranking over all items beside a plain reference, and interactions in parts beside their definitions."""

import csv
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from mindspore import nn
from pyarrow import parquet

from trainer import Trainer
from trainer.data.finite.interactions import interactions
from trainer.errors import ConfigurationError, DataError
from trainer.experiment.cli import main
from trainer.models import AllItems, all_items

RANDOM = np.random.default_rng(0)
USERS, ITEMS = RANDOM.normal(size=(9, 3)).round(1), RANDOM.normal(size=(30, 3)).round(1)  # some scores are equal


class Vectors:
    """A model whose vectors are those of the arrays above."""

    def predict(self, rows):
        users = USERS[np.asarray(rows.get("user", np.zeros(len(rows.get("film", ())), int)), int)]
        items = ITEMS[[int(name[1:]) for name in rows["film"]]] if "film" in rows else np.zeros_like(users)
        return np.concatenate((users, items), 1).astype(np.float32)


def pairs(count, seed):
    random = np.random.default_rng(seed)
    chosen = random.permutation(9 * 30)[:count]
    return {"user": chosen // 30, "film": np.char.add("f", (chosen % 30).astype(str))}


@pytest.mark.parametrize("at_once", [1 << 24, 70])
@pytest.mark.parametrize("with_seen", [True, False])
def test_the_metrics_are_those_of_their_formulas(at_once, with_seen, monkeypatch):
    monkeypatch.setattr(all_items, "_SCORES_AT_ONCE", at_once)
    rows, k = pairs(40, 1), 5
    seen = [pairs(60, 2), {"user": np.array([99, 1]), "film": np.array(["f3", "unknown"])}] if with_seen else None
    catalogue = {"film": [f"f{n}" for n in [*range(30), 3, 3]]}
    got = AllItems(rows, catalogue, "film", "user", seen, k)(Vectors())
    wanted = {"hit": [], "recall": [], "ndcg": [], "mrr": []}
    scores = USERS.astype(np.float32) @ ITEMS.astype(np.float32).T
    for user in np.unique(rows["user"]):
        own = [int(name[1:]) for name in rows["film"][rows["user"] == user]]
        left_out = {int(n[1:]) for n in seen[0]["film"][seen[0]["user"] == user]} if with_seen else set()
        if with_seen and user == 1:
            left_out.discard("unknown")
        ranks = [
            1 + sum(scores[user, n] >= scores[user, item] for n in range(30) if n != item and n not in left_out)
            for item in own
        ]
        found = [rank for rank in ranks if rank <= k]
        wanted["hit"].append(bool(found))
        wanted["recall"].append(len(found) / len(own))
        best = sum(1 / np.log2(r + 1) for r in range(1, min(len(own), k) + 1))
        wanted["ndcg"].append(sum(1 / np.log2(r + 1) for r in found) / best)
        wanted["mrr"].append(1 / min(found) if found else 0)
    assert got == pytest.approx({f"{name}@5": np.mean(values) for name, values in wanted.items()})


def test_columns_of_a_shuffled_frame_are_read_row_by_row():
    films = pd.DataFrame({"film": list("abcd"), "year": [1, 2, 3, 4]}).iloc[[2, 0, 3, 1]]
    assert AllItems({"film": ["a"]}, dict(films), item="film").items == {"film": list("abcd"), "year": [1, 2, 3, 4]}


def table(rows=400):
    random = np.random.default_rng(3)
    return {
        "user": random.integers(0, 20, rows),
        "item": random.integers(0, 60, rows),
        "time": random.permutation(rows) * 1.0,
    }


@pytest.mark.parametrize("by", ["leave_one_out", "time", "random"])
def test_every_interaction_is_in_one_part(by):
    rows = table()
    parts = {name: interactions(rows, name, by, time="time") for name in ("train", "valid", "test")}
    times = [part["time"] for part in parts.values()]
    assert sorted(np.concatenate(times)) == sorted(rows["time"])
    for user in range(20):
        own = {name: part["time"][part["user"] == user] for name, part in parts.items()}
        if by == "leave_one_out":
            newest = np.sort(rows["time"][rows["user"] == user])
            assert (own["test"].tolist(), own["valid"].tolist()) == ([newest[-1]], [newest[-2]])
        elif by == "random":
            count = sum(map(len, own.values()))
            assert len(own["test"]) == len(own["valid"]) == max(1, int(0.1 * count))
    if by == "time":
        assert [len(part) for part in times] == [320, 40, 40]
        assert times[0].max() < times[1].min() < times[1].max() < times[2].min()


def test_a_history_is_what_came_before_and_each_choice_is_learned_once():
    rows = table()
    of_users = {u: rows["item"][rows["user"] == u][np.argsort(rows["time"][rows["user"] == u])] for u in range(20)}
    options = {"time": "time", "history": "before", "length": 7}
    train, test = (interactions(rows, part, **options) for part in ("train", "test"))
    for user, items in of_users.items():
        row = test["user"].tolist().index(user)
        assert (test["before"][row].tolist(), test["item"][row]) == (items[-8:-1].tolist(), items[-1])
        learned = [
            [*before, item][1:]
            for before, item, own in zip(train["before"], train["item"], train["user"], strict=True)
            if own == user
        ]
        assert np.concatenate(learned).tolist() == items[1:-2].tolist()


@pytest.mark.parametrize("text", [False, True])
def test_negatives_are_drawn_uniformly_from_what_the_user_has_not_chosen(text):
    rows = {"user": np.array([0, 0, 0, 0, 1, 1]), "item": np.array([0, 1, 2, 3, 4, 5]), "time": np.arange(6)}
    if text:
        rows = {name: np.char.add("n", column.astype(str)) for name, column in rows.items() if name != "time"}
    part = interactions(rows, "train", "random", shares=(0.98, 0.01, 0.01), negatives=2000, seed=3)
    epochs = [part.of_epoch(epoch) for epoch in (0, 1, 0)]
    np.testing.assert_array_equal(epochs[0]["negatives"], epochs[2]["negatives"])
    np.testing.assert_array_equal(epochs[0]["negatives"], part["negatives"])
    assert (epochs[0]["negatives"] != epochs[1]["negatives"]).any()
    for user in np.unique(rows["user"]):
        own = part["item"][part["user"] == user]
        drawn, counts = np.unique(part["negatives"][part["user"] == user], return_counts=True)
        assert sorted(drawn) == sorted(set(rows["item"]) - set(own))
        assert counts.max() < 1.2 * counts.min()


def test_users_and_items_of_few_rows_are_left_out_until_none_is_left():
    part = interactions(table(), "train", "random", min_per_user=15, min_per_item=4, shares=(0.98, 0.01, 0.01))
    rows = {name: part[name] for name in ("user", "item")}
    whole = [interactions(table(), p, "random", min_per_user=15, min_per_item=4) for p in ("train", "valid", "test")]
    for name, least in (("user", 15), ("item", 4)):
        assert np.unique(np.concatenate([p[name] for p in whole]), return_counts=True)[1].min() >= least
        assert len(rows[name])


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet", "frame"])
def test_interactions_are_read_as_other_raw_rows_are(kind, tmp_path):
    path = tmp_path / f"rows.{kind}"
    rows = [{"user": f"u{n % 2}", "item": f"i, {n}", "time": n, "shop": 3} for n in range(8)]
    data = path
    if kind in ("csv", "tsv"):
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter="," if kind == "csv" else "\t")
            writer.writeheader()
            writer.writerows(rows)
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        data = pa.Table.from_pylist(rows)
        if kind == "parquet":
            parquet.write_table(data, path)
            data = path
    test = interactions(data, "test", time="time")
    assert (test["item"].tolist(), test["time"].tolist()) == (["i, 6", "i, 7"], [6.0, 7.0])


def test_a_line_may_lack_a_column_that_later_ones_have(tmp_path):
    lines = [{"user": "u", "item": "a", "time": 1}, {"user": "u", "item": "b", "time": 2, "shop": "s"}]
    (tmp_path / "rows.jsonl").write_text("\ufeff" + "".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    part = interactions(tmp_path / "rows.jsonl", "train", time="time")
    assert part["shop"].tolist() == ["", "s"]


@pytest.mark.parametrize(
    ("line", "message"),
    [("u1,,9", "item is missing|'item'.*missing|missing"), ("u1,i9,late", "late"), ("u1,i9", "fields|2")],
)
def test_a_row_that_does_not_fit_is_named(line, message, tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(f"user,item,time\nu1,i1,1\nu1,i2,2\n{line}\n")
    with pytest.raises(DataError, match=message):
        interactions(path, "train", time="time")


@pytest.mark.parametrize("make", [pd.DataFrame, pa.table, dict], ids=["pandas", "Arrow", "dict"])
def test_missing_values_of_interactions_are_named_and_integers_stay_exact(make):
    user, big = ["u"] * 4, [2**62 + 1, 2**62 + 3, None, 5]
    exact = {pd.DataFrame: pd.array(big, "Int64"), pa.table: pa.array(big), dict: big}[make]
    rows = {"user": user, "item": ["a", "b", "c", "d"], "time": [1.0, 2.0, 3.0, 4.0]}
    part = interactions(make({**rows, "shop": exact}), "train", time="time")
    assert part["shop"].tolist() == big[:2]
    for name, column in (("item", exact), ("user", ["u", "v", None, "w"])):
        with pytest.raises(DataError, match=f"row 2 has no '{name}'"):
            interactions(make({**rows, name: column}), "train", time="time")
    times = np.array(["2024-01-01", "2024-01-02", "NaT", "2024-01-04"], "datetime64[ns]")
    with pytest.raises(DataError, match="row 2 has no 'time'"):
        interactions(make({**rows, "time": times}), "train", time="time")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: interactions(table(), "tset"), ConfigurationError, "did you mean 'test'"),
        (lambda: interactions(table(), "test", "leave_two_out"), ConfigurationError, "leave_one_out"),
        (lambda: interactions(table(), "test"), ConfigurationError, "name its column: time="),
        (
            lambda: interactions(table(), "test", "random", history="h", time="time"),
            ConfigurationError,
            "the order in which a user chose",
        ),
        (lambda: interactions(table(), "test", "random", shares=(0.5, 0.1, 0.1)), ConfigurationError, "add up to 1"),
        (lambda: interactions(table(), "test", "random", user="usr"), DataError, "did you mean 'user'"),
        (lambda: interactions(table(), "test", "random", min_per_user=999), DataError, "no rows left with 999"),
        (lambda: interactions("none.csv", "test", "random"), DataError, "no such file"),
        (lambda: interactions(table(), "train", time="time", history="h", negatives=1), ConfigurationError, "combined"),
        (
            lambda: interactions({"user": [1, 1, 2], "item": [1, 2, 1]}, "train", "random", negatives=-1),
            Exception,
            "-1",
        ),
        (
            lambda: interactions({"user": [7] * 2, "item": [1, 2], "time": [1, 2]}, "train", time="time", negatives=1),
            DataError,
            "user 7 has chosen all 2",
        ),
        (lambda: AllItems([], {}), ConfigurationError, "columns by name"),
        (lambda: AllItems({"item": ["a"]}, {"itm": ["a"]}), DataError, "did you mean 'itm'"),
        (lambda: AllItems({"item": ["a"]}, {"item": ["b"]}), DataError, "not in items"),
        (lambda: AllItems({"item": ["a"]}, {"item": ["a"]}, seen={"item": ["a"]}), ConfigurationError, "user=..."),
    ],
)
def test_what_does_not_fit_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


CONFIG = """
experiment: next
features:
  columns:
    - {kind: categorical, name: item, table: item}
    - {kind: list, name: before, table: item, pooling: null, max_length: 5}
  label: item
network: {model: sasrec, dim: 8, blocks: 1}
loss: {class_path: trainer.models.InBatchSoftmax, init_args: {temperature: 1.0}}
optimizer: {class_path: mindspore.nn.Adam, init_args: {learning_rate: 1e-2}}
data:
  train:
    class_path: trainer.data.finite.interactions.interactions
    init_args: {rows: rows.csv, part: train, time: time, history: before, length: 5}
fit: {epochs: 15, batch_size: 16}
report:
  class_path: trainer.models.AllItems
  init_args:
    rows:
      class_path: trainer.data.finite.interactions.interactions
      init_args: {rows: rows.csv, part: test, time: time, history: before, length: 5}
    items:
      class_path: trainer.data.finite.interactions.interactions
      init_args: {rows: rows.csv, part: train, time: time}
    k: 1
"""


@pytest.mark.long
def test_an_experiment_is_divided_trained_and_ranked(tmp_path, monkeypatch):
    """Each person watches item after item in the order of their numbers, from a first one of their own."""
    monkeypatch.chdir(tmp_path)
    rows = [f"u{user},i{(3 * user + n) % 12},{n}" for user in range(24) for n in range(15)]
    (tmp_path / "rows.csv").write_text("user,item,time\n" + "\n".join(rows) + "\n")
    (tmp_path / "next.yaml").write_text(CONFIG)
    assert main(["fit", "next.yaml"]) == 0
    report = json.loads((tmp_path / "runs/next/metrics.json").read_text())["report"]
    assert report["hit@1"] > 0.9


def test_negatives_that_nothing_would_draw_again_are_refused():
    rows = {"user": np.arange(12) % 3, "film": np.arange(12), "time": np.arange(12)}
    drawn = interactions(rows, "train", by="random", item="film", time="time", negatives=2)
    net = nn.Dense(1, 1)
    with pytest.raises(ConfigurationError, match=r"negatives=\.\.\.\) needs Trainer\(features"):
        Trainer(net, nn.MSELoss(), nn.SGD(net.trainable_params())).fit(drawn, batch_size=4)


def test_shares_without_an_effect_are_warned_of(caplog):
    interactions(table(), "test", time="time")
    assert "shares" not in caplog.text
    interactions(table(), "test", time="time", shares=(0.6, 0.2, 0.2))
    assert "ignores shares=(0.6, 0.2, 0.2)" in caplog.text
