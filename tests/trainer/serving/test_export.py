"""Exported models answer as the network does, in programs that have onnxruntime and no MindSpore."""

import json
import subprocess
import sys
from pathlib import Path

import mindspore as ms
import numpy as np
import pyarrow.parquet as pq
import pytest
from mindspore import nn, ops, set_seed

from tests.trainer.models.tables import make_features, make_rows
from tests.trainer.serving.test_served_lists import rows as lists
from tests.trainer.serving.test_served_lists import train as train_lists
from trainer import Trainer, models
from trainer.data.ragged import Ragged
from trainer.embedding import Embedding
from trainer.errors import ConfigurationError
from trainer.experiment.cli import main
from trainer.experiment.commands.serve_command import published_folder
from trainer.features import Categorical, Features
from trainer.models.retrieval import read_vectors
from trainer.serving import ServedModel, export_model, read_features
from trainer.serving.call_exported import ExportedModel

pytestmark = pytest.mark.process

TABLE = make_rows()
FURTHER = """
import sys
from pathlib import Path

import numpy as np

folder = Path(sys.argv[1])
sys.path.insert(0, str(folder))
from call import ExportedModel

more = np.load(folder.parent / "more.npz")
np.savez(folder.parent / "answers.npz", *ExportedModel(folder).answer({name: more[name] for name in more.files}))
assert not {"mindspore", "trainer"} & set(sys.modules)
"""


@pytest.fixture(scope="module")
def trainer():
    set_seed(0)
    features = make_features()
    net = models.FM(features, dim=4)  # two tables for each column of ids
    trainer = Trainer(net, nn.BCEWithLogitsLoss(), nn.Adam(net.trainable_params(), 2e-2), features=features)
    trainer.fit(TABLE, epochs=3, batch_size=64)
    return trainer


def call(folder, *command):
    """Run the program that an exported model brings along; return what it printed."""
    folder = folder.absolute()
    command = [sys.executable, "-I", *(command or [folder / "call.py"]), folder]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder.parent)
    assert not done.returncode, done.stderr
    return done.stdout


@pytest.mark.long
def test_the_program_in_the_folder_answers_new_rows_as_the_trainer_does(trainer, tmp_path):
    folder = tmp_path / "a model"
    exported = export_model(trainer, folder, TABLE, batch=16)
    assert exported.batch is None
    assert exported.difference < 1e-6
    assert exported.files == {path.name: path.stat().st_size for path in folder.iterdir()}
    rows = make_rows(seed=5)
    rows["user"] = rows["user"] + 1000 * (np.arange(len(rows["user"])) % 3 == 0)  # a third of them unknown
    columns = read_features(folder).transform(rows)
    widths = {one["name"]: one["shape"][-1] for one in json.loads((folder / "model.json").read_text())["inputs"]}
    arrays = {
        name: column.padded(widths[name]) if isinstance(column, Ragged) else column for name, column in columns.items()
    }
    np.savez(tmp_path / "more.npz", **arrays)
    assert "output (16,) largest difference" in call(folder)
    call(folder, "-c", FURTHER)
    answers = np.load(tmp_path / "answers.npz")["arr_0"]
    wanted = trainer.predict(rows)
    assert np.abs(wanted).max() > 0.1
    np.testing.assert_allclose(answers, wanted, atol=1e-6)


def test_the_files_say_what_the_network_takes(trainer, tmp_path):
    exported = export_model(trainer, tmp_path / "model", TABLE, onnx=False)
    assert exported.difference is None
    assert "network.onnx" not in exported.files
    assert "call.py" not in exported.files
    model = json.loads((tmp_path / "model" / "model.json").read_text())
    assert model["activation"] == "sigmoid"
    assert model["step"] == trainer.state.progress.global_step
    assert [one["name"] for one in model["inputs"]] == ["numbers", "ids", "genres", "history"]
    assert set(model["tables"]) == set(trainer.tables.tables.tables)
    for name, about in model["tables"].items():
        held, own = pq.read_table(tmp_path / "model" / about["file"]), trainer.tables.tables.tables[name]
        assert len(held) == about["rows"] == len(own)
        wanted = np.empty((len(held), about["dim"]), np.float32)
        own.store.read_part(own.lookup(held["id"].to_numpy()), wanted)
        np.testing.assert_array_equal(np.stack(held["vector"].to_numpy()), wanted)


class Sums(nn.Cell):
    """The last of running sums, which MindSpore's exporter has no name for; or the last column."""

    def __init__(self, running):
        super().__init__()
        self.head, self.running = nn.Dense(3, 3), running

    def construct(self, x):
        x = self.head(x)
        return ops.cumsum(x, 1)[:, -1] if self.running else x[:, -1]


DENSE = {"x": np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)}


def test_an_operator_that_mindspore_does_not_export_is_named(tmp_path):
    trainer = Trainer(Sums(True))
    with pytest.raises(ConfigurationError, match=r"cannot export the operator CumSum; .*--no-onnx"):
        export_model(trainer, tmp_path / "model", DENSE)
    assert not list(tmp_path.iterdir())
    export_model(trainer, tmp_path / "model", DENSE, onnx=False)
    assert (tmp_path / "model" / "network.mindir").is_file()


@pytest.mark.long
def test_a_network_without_tables_is_exported(tmp_path):
    assert export_model(Trainer(Sums(False)), tmp_path / "model", DENSE, batch=4).batch is None
    assert "output (4,) largest difference" in call(tmp_path / "model")


class Ranked(nn.Cell):
    def __init__(self):
        super().__init__()
        self.items = Embedding(2, 10)

    def construct(self, item):
        return self.items(item).sum(1)


def test_the_program_in_the_folder_refuses_ids_out_of_range_of_a_dense_table(tmp_path):
    items = {"item": np.arange(8)}
    trainer = Trainer(Ranked())
    export_model(trainer, tmp_path / "model", items, batch=8)
    model = ExportedModel(tmp_path / "model")
    np.testing.assert_allclose(model.answer(items)[0], trainer.predict(items), atol=1e-6)
    for wrong in (-1, 10):
        with pytest.raises(ValueError, match="item takes ids from 0 to 9"):
            model.answer({"item": np.array([3, wrong])})


class Mixed(nn.Cell):
    def __init__(self):
        super().__init__()
        self.users = Embedding(2)

    def construct(self, user, count):
        return self.users(user).sum(1) * count.astype(ms.float32)


def test_the_program_in_the_folder_refuses_values_that_it_would_change(tmp_path):
    rows = {"user": np.arange(8), "count": np.arange(8, dtype=np.int32)}
    trainer = Trainer(Mixed())
    export_model(trainer, tmp_path / "model", rows, batch=8)
    model = ExportedModel(tmp_path / "model")
    np.testing.assert_allclose(model.answer(rows)[0], trainer.predict(rows), atol=1e-6)
    for column, wrong in (("count", np.full(8, 2**31)), ("count", np.full(8, 0.5)), ("user", np.full(8, "7"))):
        with pytest.raises(ValueError, match=f"{column} takes int"):
            model.answer({**rows, column: wrong})


@pytest.mark.long
def test_lists_as_values_and_offsets_have_an_operator_that_is_named(tmp_path):
    trainer = train_lists(tmp_path / "published", max_length=8)
    history, tags, number = lists()
    data = {"history": Ragged.of(history, max_length=8), "tags": Ragged.of(tags, max_length=8), "number": number}
    with pytest.raises(ConfigurationError, match="cannot export the operator SearchSorted"):
        export_model(trainer, tmp_path / "model", data, batch=8)
    exported = export_model(trainer, tmp_path / "model", data, batch=8, onnx=False)
    assert {"table-films.embedding.parquet", "network.mindir"} & set(exported.files)


class Numbered(nn.Cell):
    """Adds the number of the row, so a batch of another size is another graph."""

    def __init__(self):
        super().__init__()
        self.head = nn.Dense(3, 1)

    def construct(self, x):
        return self.head(x) + ops.cast(ops.arange(x.shape[0]), x.dtype).reshape(-1, 1)


@pytest.mark.long
def test_a_network_that_counts_its_rows_is_exported_for_one_size_of_batch(tmp_path):
    assert export_model(Trainer(Numbered()), tmp_path / "model", DENSE, batch=4).batch == 4
    assert "output (4, 1) largest difference" in call(tmp_path / "model")


def test_what_cannot_be_exported_is_refused(trainer, tmp_path, monkeypatch):
    with pytest.raises(ConfigurationError, match="exists"):
        export_model(trainer, tmp_path)
    with pytest.raises(ConfigurationError, match=r"needs data=\.\.\.: some rows"):
        export_model(Trainer(Sums(False)), tmp_path / "model")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ConfigurationError, match=r"mindspore-trainer\[onnx\]"):
        export_model(trainer, tmp_path / "model", TABLE)
    assert not list(tmp_path.iterdir())


CONFIG = """\
experiment: towers
features:
  columns:
    - {kind: categorical, name: user, dtype: int64}
    - {kind: categorical, name: item, dtype: int64}
  label: item
  label_dtype: int32
network: {model: two_tower, item: [item], dim: 4, hidden: [8], width: 4}
loss: trainer.models.InBatchSoftmax
optimizer: {class_path: mindspore.nn.Adam, init_args: {learning_rate: 0.01}}
metrics: []
data: DATA
callbacks: [callbacks.ModelCheckpoint]
COMMAND
"""


@pytest.fixture(params=["fit", "online"])
def run(tmp_path, monkeypatch, request):
    """A run folder of two towers, trained on a file or on a stream alone."""
    random = np.random.default_rng(0)
    lines = [f"{user},{item}" for user, item in random.integers(1, 9, (128, 2))]
    (tmp_path / "rows.csv").write_text("\n".join(["user,item", *lines, ""]))
    (tmp_path / "items.csv").write_text("\n".join(["item", *map(str, range(1, 9)), ""]))
    data, command = ("{train: rows.csv}", "fit: {epochs: 1, batch_size: 32}")
    if request.param == "online":
        data, command = ("{stream: rows.csv}", "online: {batch_size: 32, max_steps: 3}")
    (tmp_path / "towers.yaml").write_text(CONFIG.replace("DATA", data).replace("COMMAND", command))
    monkeypatch.chdir(tmp_path)
    assert main([request.param, "towers.yaml"]) == 0
    return Path("runs/towers")


@pytest.mark.long
def test_a_run_is_exported_with_vectors_of_items_and_users(run, capsys):
    Path("users.csv").write_text("user,item\n3,5\n99,\n")  # a missing id stays missing
    rows_of = ["--items", "items.csv", "--item-id", "item", "--users", "users.csv"]
    assert main(["export", str(run), *rows_of]) == 0, capsys.readouterr()
    assert "takes any number of rows; onnxruntime's answers differ" in capsys.readouterr().out
    ids, vectors = read_vectors(run / "export" / "items.parquet")
    assert ids.tolist() == list(range(1, 9))
    np.testing.assert_allclose(np.square(vectors).sum(1), 1, rtol=1e-5)
    assert len(np.unique(vectors, axis=0)) == 8
    trained = pq.read_table(run / "export" / "table-item.parquet")
    assert set(trained["id"].to_pylist()) <= set(range(1, 9))
    assert "output" in call(run / "export")
    step = 3 if "stream" in (run / "config.yaml").read_text() else 4
    assert json.loads((run / "export" / "model.json").read_text())["step"] == step
    assert main(["export", str(run)]) == 2
    assert "exists" in capsys.readouterr().err
    # a run that does not publish is served from its snapshot
    root = published_folder(run)
    rows = [{"user": 3, "item": 5}, {"user": 99, "item": 1}]
    with ServedModel(root, follow=False) as model:
        assert model.step == step
        served = model.predict(rows)
    # With AVX2 alone, oneDNN sums the last rows of a batch in another order.
    np.testing.assert_allclose(served[:, 4:], vectors[[4, 0]], rtol=1e-6)
    users, of_users = read_vectors(run / "export" / "users.parquet")
    assert users.tolist() == [3, 99]
    np.testing.assert_allclose(served[:, :4], of_users, rtol=1e-6)


def test_model_json_is_plain_json_for_names_that_begin_with_a_dollar(tmp_path):
    rows = {"$site": list("abca"), "y": [0.0, 1.0, 1.0, 0.0]}
    features = Features([Categorical("$site")], label="y")
    trainer = Trainer(models.FM(features, dim=2), nn.BCEWithLogitsLoss(), ("adam", {}), features=features)
    trainer.fit(rows, batch_size=4)
    export_model(trainer, tmp_path / "m", rows, onnx=False)
    model = json.loads((tmp_path / "m" / "model.json").read_text())
    assert set(model["tables"]) == {"$site", "linear.$site"}
