"""Items for people from a published two-tower model of MovieLens: in Python, over HTTP and for all people of a file."""

import csv
import json
import os
import signal
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from mindspore import nn, set_seed
from pyarrow import parquet

from benchmarks.serve_process import Server
from callbacks import Callback
from examples.movielens_raw import raw_rows
from trainer import Every, Trainer
from trainer.errors import CheckpointDamagedError, CheckpointError, ConfigurationError, DataError
from trainer.experiment.cli import main
from trainer.features import Categorical, Features, ListFeature, Numeric, Time
from trainer.models import InBatchSoftmax, SASRec, TwoTower, item_vectors, user_vectors
from trainer.serving import Publish, ServedModel
from trainer.serving.published_items import ItemTable, PublishedItems

PEOPLE = [{"user": "1", "age": 24}, {"user": "655", "age": 50}, {"user": "nobody"}]
NEW = {"item": "5000", "genres": ["Comedy"], "year": 1998}


def make_trainer():
    set_seed(0)
    declared = [Categorical("user"), Numeric("age", normalize="standard")]
    declared += [Categorical("item"), ListFeature("genres", max_length=6)]
    features = Features(declared, label="item")
    net = TwoTower(features, ["item", "genres"], dim=8, hidden=[16], width=8)
    return Trainer(net, InBatchSoftmax(0.2), nn.Adam(net.trainable_params(), 1e-2), features=features, seed=0)


def write_items(path, films):
    path.write_text("".join(json.dumps(film) + "\n" for film in films))


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """Two versions, the second with an item more: the folder, and what the trainer's last vectors are."""
    folder = tmp_path_factory.mktemp("films")
    lines = raw_rows(folder / "ratings.jsonl").read_text("utf-8").splitlines()
    rows = [json.loads(line) for line in lines if '"liked": 1' in line][:6000]
    films = list({row["item"]: {name: row[name] for name in ("item", "genres", "year")} for row in rows}.values())
    trainer, items = make_trainer(), folder / "items.jsonl"
    publish = Publish(folder / "published", 60.0, items=items, item_id="item", item_filters=["genres", "year"])
    for table in (films, [*films, NEW]):
        write_items(items, table)
        trainer.fit(rows, epochs=1, batch_size=512, callbacks=[publish], shuffle=False)
    newest = [*films, NEW]
    return folder / "published", newest, user_vectors(trainer, PEOPLE), item_vectors(trainer, newest)


def test_the_best_items_are_those_of_the_served_version_exactly(published):
    root, films, users, items = published
    ids = np.array([film["item"] for film in films])
    scores = users @ items.T
    with ServedModel(root, follow=False) as model:
        answer = model.recommend(PEOPLE, 10)
        assert answer.version == model.version
        for person, expected in enumerate(scores):
            best = np.argsort(-expected, kind="stable")[:10]
            np.testing.assert_allclose(answer.scores[person], expected[best], rtol=1e-5)
            assert set(answer.ids[person]) == set(ids[best])
        alone = model.recommend(PEOPLE[0], 3, without=[answer.ids[0][:2]])
        assert alone.ids[0].tolist() == answer.ids[0][2:5].tolist()
        comedies = [n for n, film in enumerate(films) if "Comedy" in film["genres"] and film["year"] in (1996, 1997)]
        found = model.recommend(PEOPLE[:1], 10_000, filter={"genres": "Comedy", "year": ["1996", "1997"]})
        assert sorted(found.ids[0]) == sorted(ids[comedies])
        assert model.recommend(PEOPLE[:1], filter={"genres": "Comedie"}).ids[0].size == 0


def test_items_are_part_of_their_version(published):
    root, films, *_ = published
    for version, known in ((1, False), (None, True)):
        with ServedModel(root, version=version or "newest", follow=False) as model:
            everything = model.recommend(PEOPLE[:1], 10_000)
            assert (NEW["item"] in everything.ids[0], len(everything.ids[0])) == (known, len(films) - (not known))


def test_many_items_are_found_by_an_index_whose_recall_is_measured(tmp_path, caplog, monkeypatch):
    films = [{"item": str(number), "genres": [], "year": 1990 + number % 9} for number in range(2000)]
    names = [film["item"] for film in films]
    rows = {"user": list("pqrs") * 500, "age": [30] * 2000, "item": names, "genres": [[]] * 2000}
    write_items(tmp_path / "films.jsonl", films)
    parquet.write_table(pa.Table.from_pylist(films), tmp_path / "films.parquet")
    trainer, found = make_trainer(), []
    for above in (1999, 2000):
        folders = {tmp_path / str(above): films, tmp_path / f"{above}-lines": tmp_path / "films.jsonl"}
        folders[tmp_path / f"{above}-parquet"] = tmp_path / "films.parquet"
        named = {"item_id": "item", "item_filters": ["year"], "index_above": above}
        publish = [Publish(folder, items=table, **named) for folder, table in folders.items()]
        with caplog.at_level("INFO", "trainer.serving"):
            trainer.fit(rows, epochs=1, batch_size=500, callbacks=publish)
        with ServedModel(tmp_path / str(above), follow=False) as model:
            assert model.items.recall is None if above == 2000 else 0.7 < model.items.recall <= 1
            assert model.items.index.method == ("hnsw" if above < 2000 else "exact")
            answers = model.recommend({"user": list("pq"), "age": [1, 60]}, 10, without=[["7"], []])
            assert "7" not in answers.ids[0]
            vectors = item_vectors(model, films)
            scores = user_vectors(model, {"user": list("pq"), "age": [1, 60]}) @ vectors.T
            scores[0, 7] = -np.inf
            found.append(
                np.mean(
                    [
                        np.isin(np.argsort(-s)[:10], one.astype(int)).mean()
                        for s, one in zip(scores, answers.ids, strict=True)
                    ]
                )
            )
            exact = model.recommend({"user": "p"}, 3, filter={"year": "1991"})
            assert {int(name) % 9 for name in exact.ids[0]} == {1}
        for folder in folders:
            with ServedModel(folder, follow=False) as model:
                alike = model.recommend({"user": list("pq"), "age": [1, 60]}, 10, without=[["7"], []])
                assert model.items.index.method == ("hnsw" if above < 2000 else "exact")
                np.testing.assert_array_equal(alike.ids, answers.ids)
    assert found[1] == 1
    assert found[0] > 0.7
    assert "the index of 2,000 items finds" in caplog.text
    with pytest.raises(ConfigurationError, match="index_above"):
        Publish(index_above=10)
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(CheckpointError, match=r"Faiss: pip install 'mindspore-trainer\[retrieval\]'") as raised:
        ServedModel(tmp_path / "1999", follow=False)
    assert not isinstance(raised.value, CheckpointDamagedError)


@pytest.mark.parametrize("source", ["file", "rows"])
def test_the_first_items_may_lack_a_column_that_later_ones_have(source, tmp_path):
    class Vectors:
        def predict(self, rows):
            return np.ones((len(rows["ids"]), 4), np.float32)

    films = [*({"item": f"i{n}"} for n in range(150)), {"item": "last", "genre": "War", "year": 1998}]
    (tmp_path / "items.jsonl").write_text("\n" + "".join(json.dumps(film) + "\n" for film in films))
    table = ItemTable(tmp_path / "items.jsonl" if source == "file" else films, "item", ["genre"])
    features = Features([Categorical("user"), Categorical("item"), Numeric("year")], label="item")
    state = table.state(Vectors(), features, None)["json"]
    assert state["user_columns"] == ["user"]
    assert state["filters"]["genre"][-2:] == ["", "War"]


def test_texts_that_the_features_split_are_filtered_by_their_elements():
    class Vectors:
        def predict(self, rows):
            return np.ones((len(rows["ids"]), 4), np.float32)

    films = {"item": list("abc"), "genres": ["War|Comedy", "War", None]}
    declared = [Categorical("user"), Categorical("item"), ListFeature("genres", separator="|", max_length=2)]
    table = ItemTable(films, "item", ["genres"])
    items = PublishedItems(table.state(Vectors(), Features(declared, label="item"), None))
    for wanted, found in (("Comedy", ["a"]), ("War", ["a", "b"]), (["Comedy", "War"], ["a", "b"])):
        assert items.nearest(np.ones((1, 2)), 3, None, {"genres": wanted})[0][0].tolist() == found


class Terminate(Callback):
    def on_train_step_end(self, trainer):
        if trainer.state.progress.global_step == 3:
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_training_that_is_stopped_publishes_its_last_items_too(tmp_path):
    films = [{"item": name} for name in "abc"]
    publish = Publish(tmp_path, 1000.0, items=films, item_id="item", on_error="raise")
    rows = {"user": list("pqrs") * 16, "age": [30] * 64, "item": list("abca") * 16, "genres": [[]] * 64}
    with pytest.raises(SystemExit):
        make_trainer().fit(rows, epochs=9, batch_size=32, sink_size=1, callbacks=[Terminate(), publish])
    with ServedModel(tmp_path, follow=False) as model:
        assert (model.step, sorted(model.recommend({"user": "p"}).ids[0])) == (3, ["a", "b", "c"])


class Rewrite(Callback):
    def __init__(self, path):
        self.path = path

    def on_train_step_end(self, trainer):
        if trainer.state.progress.global_step == 2:
            write_items(self.path, [{"film": "a"}])


def test_a_table_that_is_spoilt_while_it_trains_ends_neither_training_nor_serving(tmp_path):
    items = tmp_path / "items.jsonl"
    write_items(items, [{"item": name} for name in "abc"])
    publish = Publish(tmp_path / "published", Every(steps=1), items=items, item_id="item")
    rows = {"user": list("pqrs") * 16, "age": [30] * 64, "item": list("abca") * 16, "genres": [[]] * 64}
    trainer = make_trainer()
    trainer.fit(rows, epochs=2, batch_size=32, sink_size=1, callbacks=[Rewrite(items), publish])
    assert trainer.state.progress.global_step == 4
    assert "no column 'item'; it has film" in publish.problem
    with ServedModel(tmp_path / "published", follow=False) as model:
        assert (model.step, len(model.recommend({"user": "p"}).ids[0])) == (1, 3)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (({"usr": "1"},), DataError, r"a user has the columns user, age; received usr; did you mean 'user'"),
        (({"item": "1"},), DataError, "received item"),
        ((PEOPLE, 0), ConfigurationError, "recommend"),
        ((PEOPLE, 3, [["1"]]), ConfigurationError, "1 lists for 3 users"),
        ((PEOPLE[:1], 3, ["1"]), DataError, "list of ids for each user"),
        ((PEOPLE[:1], 3, [[1]]), DataError, "are text; received 1"),
        ((PEOPLE[:1], 3, None, {"genre": "Comedy"}), DataError, "did you mean 'genres'"),
        ((PEOPLE[:1], 3, None, {"genres": 3}), DataError, "'genres' holds text; received 3"),
    ],
)
def test_what_cannot_be_asked_is_named(published, arguments, error, message):
    names = ("users", "k", "without", "filter")
    with ServedModel(published[0], follow=False) as model, pytest.raises(error, match=message):
        model.recommend(**dict(zip(names, arguments, strict=False)))


@pytest.mark.parametrize(
    ("films", "options", "message"),
    [
        ([{"item": "1"}, {"item": "1"}], {}, "item='1' more than once"),
        ([{"item": "1"}, {"item": None}], {}, "row 1 of the table of items has no 'item'"),
        ([{"item": "1"}], {"item_id": "film"}, "no column 'film'"),
        ([{"item": "1"}], {"item_filters": ["year"]}, "no column 'year'"),
        (7, {}, "received int"),
        ([{"item": "1"}], {"item_id": None}, "item_id takes the name"),
        (None, {}, "need items"),
    ],
)
def test_a_table_that_names_no_items_is_refused_before_the_first_step(tmp_path, films, options, message):
    with pytest.raises((ConfigurationError, DataError), match=message):
        Publish(tmp_path / "published", **{"items": films, "item_id": "item", **options}).setup(make_trainer())


@pytest.fixture(scope="module")
def recommended(tmp_path_factory):
    return tmp_path_factory.mktemp("recommended")


@pytest.fixture(scope="module")
def server(published, recommended):
    logs = ("--log", str(recommended / "rows"), "--log-recommended", str(recommended / "lists"), "--log-wait", "5")
    server = Server(published[0], *logs)
    yield server
    server.stop()


@pytest.mark.server
def test_a_user_is_answered_over_http_as_in_python_and_the_list_is_logged(server, published, recommended):
    asked = {"k": 4, "filter": {"genres": ["Comedy", "War"]}}
    with ServedModel(published[0], follow=False) as model:
        asked["without"] = [*model.recommend(PEOPLE[0], 2, filter=asked["filter"]).ids[0].tolist(), "no film"]
        expected = model.recommend(PEOPLE[0], 4, without=[asked["without"]], filter=asked["filter"])
    status, _, answer = server.ask("/recommend", {"user": PEOPLE[0], **asked}, X_Request_Id="visit-1")
    (lists,), rows = (recommended / "lists").glob("*.jsonl"), list((recommended / "rows").glob("*.jsonl"))
    (line,) = map(json.loads, lists.read_bytes().splitlines())
    served = {"request_id": "visit-1", "served_at": line["served_at"], "version": answer["version"], "share": 1.0}
    assert line == {**served, "user": PEOPLE[0], **asked, "items": answer["items"]}
    metrics = server.ask("/metrics")[2].decode()
    assert 'trainer_serve_recommended_log_rows_total{outcome="written"} 1.0' in metrics
    assert 'trainer_serve_log_rows_total{outcome="recommend"} 1.0' in metrics
    assert rows == []  # what is learned from has no lists
    assert (status, answer["version"]) == (200, expected.version)
    assert [item["id"] for item in answer["items"]] == expected.ids[0].tolist()
    np.testing.assert_allclose([item["score"] for item in answer["items"]], expected.scores[0], rtol=1e-5)
    assert len(server.ask("/recommend", {"user": {"user": "1"}})[2]["items"]) == 10
    described = server.ask("/openapi.json")[2]["paths"]["/recommend"]["post"]
    form = described["requestBody"]["content"]["application/json"]["schema"]["properties"]
    assert (list(form), list(form["user"]["properties"])) == (["user", "k", "without", "filter"], ["user", "age"])


@pytest.mark.server
@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"{", 400, "not JSON"),
        ([1], 400, "received list without user"),
        ({"user": {"user": "1"}, "top": 3}, 400, "received 'top'"),
        ({"user": {"user": "1"}, "k": "3"}, 400, "received k='3'"),
        ({"user": {"user": "1"}, "k": True}, 400, "received k=True"),
        ({"user": {"user": "1"}, "k": 0}, 400, "recommend(k=...)"),
        ({"user": ["1"]}, 400, "received user=['1']"),
        ({"history": ["1"]}, 400, "needs a version of sasrec or hstu"),
        ({"history": ["1"], "user": {"user": "1"}}, 400, "received dict with both"),
        ({"history": "1"}, 400, "received history='1'"),
        ({"user": {"usr": "1", "age": 3}}, 400, "did you mean 'user'"),
        ({"user": {"user": "1", "age": "old"}}, 422, "'old'"),
        ({"user": {"user": "1"}, "without": [50]}, 400, "are text; received 50"),
        ({"user": {"user": "1"}, "filter": {"genre": "War"}}, 400, "did you mean 'genres'"),
    ],
)
def test_a_request_that_cannot_be_answered_is_refused_with_the_reason(server, body, status, said):
    answer = server.ask("/recommend", body)
    assert answer[0] == status
    assert said in answer[2]["error"]


def test_all_users_of_a_file_are_written_as_they_are_answered(published, tmp_path, capsys):
    users, output = tmp_path / "users.csv", tmp_path / "items.csv"
    users.write_text("user,age,zip\n1,24,1\n655,50,2\nnobody,,3\n", encoding="utf-8")
    command = ["recommend", str(published[0]), "--users", str(users), "-k", "3", "--output", str(output)]
    assert main(command) == 0
    assert "9 recommendations" in capsys.readouterr().out
    with ServedModel(published[0], follow=False) as model:
        _, ids, scores = model.recommend(PEOPLE, 3)
    header, *lines = csv.reader(output.read_text("utf-8").splitlines())
    assert header == ["user", "rank", "item", "score"]
    people = [person["user"] for person in PEOPLE]
    expected = [[person, str(n + 1), ids[i][n]] for i, person in enumerate(people) for n in range(3)]
    assert [line[:3] for line in lines] == expected
    np.testing.assert_allclose([float(line[3]) for line in lines], np.concatenate(scores), rtol=1e-5)
    users.write_text("user,age,seen\n1,24,50 nothing\n655,50,\n", encoding="utf-8")
    assert main([*command, "--without", "seen", "--filter", "genres=War", "--filter", "genres=Comedy"]) == 0
    with ServedModel(published[0], follow=False) as model:
        wanted = {"genres": ["War", "Comedy"]}
        expected = model.recommend(PEOPLE[:2], 3, without=[["50"], []], filter=wanted).ids
    lines = list(csv.reader(output.read_text("utf-8").splitlines()))[1:]
    assert [line[2] for line in lines] == np.concatenate(expected).tolist()
    for change, said in (
        (["--output", "a.npy"], "'.csv'"),
        (["--without", "sen"], "did you mean 'seen'"),
        (["--filter", "genres"], "COLUMN=VALUE"),
        (["--filter", "genre=War"], "did you mean 'genres'"),
        (["-k", "0"], "-k"),
        (["--user-id", "usr"], "did you mean 'user'"),
    ):
        assert main([*command, *change]) == 2
        assert said in capsys.readouterr().err
    assert main([*command, "--filter", "genres=None"]) == 1
    assert "--filter and --without leave no items" in capsys.readouterr().err
    users.write_text("usr\n1\n", encoding="utf-8")
    assert main(command) == 1
    assert "a user has the columns user, age; received usr" in capsys.readouterr().err


def test_times_and_lists_of_users_are_read_from_a_file_as_in_python(tmp_path, capsys):
    """A time has a unit, which is that of the file; ids to leave out may be a text that the features split."""
    declared = [Categorical("user"), Time("joined", unit="ms", parts=["hour"], since="born")]
    declared += [ListFeature("seen", separator="|", max_length=4), Categorical("item")]
    features = Features(declared, label="item")
    net = TwoTower(features, ["item"], dim=4, hidden=[8], width=4)
    trainer = Trainer(net, InBatchSoftmax(0.2), ("adam", {}), features=features, seed=0)
    names, people = [f"i{n}" for n in range(8)], [f"u{n}" for n in range(8)]
    joined = (1_700_000_000_000 + 4_000_000 * np.arange(8)).tolist()
    users = {
        "user": people,
        "joined": joined,
        "born": [0] * 8,
        "seen": [f"{name}|i{n % 3}" for n, name in enumerate(names)],
    }
    root, file, output = tmp_path / "published", tmp_path / "users.csv", tmp_path / "items.jsonl"
    items = {"item": names, "fresh": [True, False] * 4}
    publish = Publish(root, items=items, item_id="item", item_filters=["fresh"])
    trainer.fit({**users, "item": names}, epochs=9, batch_size=8, callbacks=[publish])
    file.write_text("\n".join(",".join(map(str, row)) for row in [users, *zip(*users.values(), strict=True)]) + "\n")
    command = ["recommend", str(root), "--users", str(file), "-k", "5", "--without", "seen", "--output", str(output)]
    assert main(command) == 0, capsys.readouterr().err
    with ServedModel(root, follow=False) as model:
        expected = model.recommend(users, 5, without=[text.split("|") for text in users["seen"]])
        for fresh in (True, "true", "True"):  # one value, as in the table of items
            assert sorted(model.recommend({"user": "u0"}, 8, filter={"fresh": fresh}).ids[0]) == names[::2]
    lines = [json.loads(line) for line in output.read_text("utf-8").splitlines()]
    assert [line["item"] for line in lines] == np.concatenate(expected.ids).tolist()
    np.testing.assert_allclose([line["score"] for line in lines], np.concatenate(expected.scores), rtol=1e-6)
    assert main([*command, "--without", "joined"]) == 2
    assert "--without takes a column of lists of ids; received 'joined, which" in capsys.readouterr().err


def test_missing_ids_of_users_and_in_their_lists_are_read_from_a_file_as_in_python(tmp_path, capsys):
    ids = {"dtype": "int64"}
    declared = [Categorical("user", **ids), ListFeature("likes", max_length=4, **ids), Categorical("item", **ids)]
    features = Features(declared, label="item")
    net = TwoTower(features, ["item"], dim=4, hidden=[8], width=4)
    trainer = Trainer(net, InBatchSoftmax(0.2), ("adam", {}), features=features, seed=0)
    rows = {"user": range(8), "likes": [[n, n + 1] for n in range(8)], "item": range(8)}
    root, file, output = tmp_path / "published", tmp_path / "users.jsonl", tmp_path / "items.jsonl"
    publish = Publish(root, items={"item": range(8)}, item_id="item")
    trainer.fit(rows, epochs=9, batch_size=8, callbacks=[publish])
    users = [{"user": 1, "likes": [1, None, 3]}, {"user": None, "likes": [2]}, {"user": 3}]
    write_items(file, users)
    command = ["recommend", str(root), "--users", str(file), "-k", "2", "--output", str(output)]
    assert main(command) == 0, capsys.readouterr().err
    with ServedModel(root, follow=False) as model:
        expected = model.recommend(users, 2)
    lines = [json.loads(line) for line in output.read_text("utf-8").splitlines()]
    assert [line["item"] for line in lines] == np.concatenate(expected.ids).tolist()
    np.testing.assert_allclose([line["score"] for line in lines], np.concatenate(expected.scores), rtol=1e-6)
    assert [line["user"] for line in lines] == [1, 1, None, None, 3, 3]


@pytest.mark.server
def test_a_history_is_answered_over_http_and_by_the_command_as_in_python(tmp_path, capsys):
    item = {"table": "item"}
    history = ListFeature("seen", pooling=None, max_length=4, **item)
    features = Features([Categorical("item", **item), history], label="item")
    trainer = Trainer(SASRec(features, dim=4, blocks=1), InBatchSoftmax(1.0), ("adam", {}), features=features, seed=0)
    names = [f"i{n}" for n in range(8)]
    rows = {
        "seen": [[names[n % 8], names[(n + 1) % 8]] for n in range(32)],
        "item": [names[(n + 2) % 8] for n in range(32)],
    }
    root, users, output = tmp_path / "published", tmp_path / "users.jsonl", tmp_path / "items.jsonl"
    trainer.fit(rows, epochs=1, batch_size=32, callbacks=[Publish(root, items={"item": names}, item_id="item")])
    with ServedModel(root, follow=False) as model:
        ids = model.recommend(k=5, history=[["i1", "i2"]], without=[["i3"]]).ids[0].tolist()
        kept = model.recommend({"seen": [["i1", "i2"]]}, k=8).ids[0].tolist()
    assert (sorted(kept), [name for name in kept if name not in ("i1", "i2", "i3")]) == (names, ids)
    server = Server(root)
    try:
        status, _, answer = server.ask("/recommend", {"history": ["i1", "i2"], "k": 5, "without": ["i3"]})
        assert (status, [found["id"] for found in answer["items"]]) == (200, ids)
        status, _, answer = server.ask("/recommend", {"history": [1]})
        assert (status, "are text; received 1" in answer["error"]) == (400, True)
        described = server.ask("/openapi.json")[2]["paths"]["/recommend"]["post"]["requestBody"]["content"]
        assert "history" in described["application/json"]["schema"]["properties"]
    finally:
        server.stop()
    users.write_text(json.dumps({"user": "a", "seen": ["i1", "i2"], "left": ["i3"]}) + "\n", encoding="utf-8")
    command = ["recommend", str(root), "--users", str(users), "-k", "5", "--without", "left", "--output", str(output)]
    assert main(command) == 0, capsys.readouterr().err
    assert [json.loads(line)["item"] for line in output.read_text("utf-8").splitlines()] == ids


def test_a_history_may_have_integer_ids(tmp_path):
    item = {"table": "item", "dtype": "int64"}
    history = ListFeature("seen", pooling=None, max_length=4, **item)
    features = Features([Categorical("item", **item), history], label="item")
    trainer = Trainer(SASRec(features, dim=4, blocks=1), InBatchSoftmax(1.0), ("adam", {}), features=features, seed=0)
    rows = {"seen": [[n % 8, (n + 1) % 8] for n in range(32)], "item": [(n + 2) % 8 for n in range(32)]}
    trainer.fit(
        rows, epochs=1, batch_size=32, callbacks=[Publish(tmp_path / "v", items={"item": range(8)}, item_id="item")]
    )
    with ServedModel(tmp_path / "v", follow=False) as model:
        every = model.recommend({"seen": [[1, 2]]}, k=8).ids[0].tolist()
        others = [number for number in every if number not in (1, 2, 3)]
        assert model.recommend(k=8, history=[[1, 2]], without=[[3]]).ids[0].tolist() == others
        assert model.recommend(k=8, history=[np.array([1, 2])], without=[[np.int64(3)]]).ids[0].tolist() == others
    users, output = tmp_path / "users.jsonl", tmp_path / "items.jsonl"
    users.write_text(json.dumps({"user": "a", "seen": [1, None, 2], "left": [3]}) + "\n", encoding="utf-8")
    command = ["recommend", str(tmp_path / "v"), "--users", str(users), "-k", "8", "--without", "left"]
    assert main([*command, "--output", str(output)]) == 0
    assert [json.loads(line)["item"] for line in output.read_text("utf-8").splitlines()] == others


CONFIG = """\
experiment: films
features:
  columns:
    - {kind: categorical, name: user}
    - {kind: categorical, name: item}
  label: item
network: {model: two_tower, item: [item], dim: 4, hidden: [8], width: 4}
loss: {class_path: trainer.models.InBatchSoftmax, init_args: {temperature: 0.2}}
optimizer: {class_path: mindspore.nn.Adam, init_args: {learning_rate: 0.01}}
data: {train: ratings.jsonl, test: ratings.jsonl}
callbacks:
  - callbacks.ModelCheckpoint
  - {class_path: trainer.serving.Publish, init_args: {items: items.csv, item_id: item}}
fit: {epochs: 1, batch_size: 128}
"""


@pytest.mark.long
def test_a_run_and_its_exported_snapshot_recommend_the_same(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lines = raw_rows(tmp_path / "all.jsonl").read_text("utf-8").splitlines()[:1000]
    Path("ratings.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    Path("items.csv").write_text("item\n" + "\n".join({json.loads(line)["item"] for line in lines}) + "\n")
    Path("users.csv").write_text("user\n196\n186\n")
    Path("films.yaml").write_text(CONFIG)
    for command in (
        ["fit", "films.yaml"],
        ["recommend", "runs/films", "--users", "users.csv", "--output", "run.csv"],
        ["export", "runs/films", "--checkpoint", "last", "--publish", "exported", "--items", "items.csv"],
        ["recommend", "exported", "--users", "users.csv", "--output", "exported.csv"],
    ):
        assert main(command) == 0, capsys.readouterr().err
    answers = [Path(name).read_text() for name in ("run.csv", "exported.csv")]
    assert answers[0] == answers[1]
    assert answers[0].count("\n") == 21
    assert main(["export", "runs/films", "--publish", "other", "--users", "users.csv"]) == 2
    assert "--users cannot be combined with --publish" in capsys.readouterr().err


def test_a_filter_of_a_long_integer_is_exact():
    sellers = {"seller": [2**53, 2**53 + 1]}
    described = {"ids": [1, 2], "filters": sellers, "user_columns": [], "training_columns": [], "history": None}
    state = {"json": described | {"recall": None}, "arrays": {"vectors": np.ones((2, 3), np.float32)}}
    items = PublishedItems(state)
    filters = items.parse_filters([f"seller={2**53 + 1}"])
    ids, _ = items.nearest(np.ones((1, 3), np.float32), 2, None, filters)
    assert ids[0].tolist() == [2]


def test_long_integer_ids_are_left_out_as_they_are():
    state = {"json": {"ids": [5, 2**40 + 5], "filters": {}, "user_columns": []}, "arrays": {"vectors": np.eye(2)}}
    ids, _ = PublishedItems(state).nearest(np.ones((1, 2), np.float32), 2, [[2**40 + 5]], None)
    assert ids[0].tolist() == [5]
