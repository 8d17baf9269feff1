"""A calibration of a Trainer: learned before rows are, the same on every way to a probability, and never left out."""

import json
import subprocess
import sys

import numpy as np
import pyarrow.csv as pcsv
import pytest
import yaml
from mindspore import nn, ops, save_checkpoint, set_seed

from benchmarks.serve_process import Server
from callbacks import EMA, Callback, EarlyStopping, ModelCheckpoint
from trainer import Every, Trainer
from trainer.errors import CheckpointDamagedError, ConfigurationError, DataError
from trainer.experiment.cli import main
from trainer.features import Categorical, Features, Numeric
from trainer.metrics.window import Window
from trainer.models import LogisticRegression
from trainer.serving import Publish, ServedModel, export_model, read_features

WINDOW = Window(rows=10_000, negative_sampling_rate=0.1)
OPTIONS = {"method": "platt", "by": "city", "negative_sampling_rate": 0.1}


def traffic(rows, seed=0):
    """Return rows, and the probability of a click of each."""
    rng = np.random.default_rng(seed)
    x, city = rng.normal(size=rows), rng.choice(20, rows, p=np.linspace(2, 1, 20) / 30)
    truth = 1 / (1 + np.exp(-(0.9 * x + 0.06 * city - 1.7)))
    label = (rng.random(rows) < truth).astype(np.float32)
    return {"x": x.astype(np.float32), "city": np.char.add("c", city.astype(str)), "click": label}, truth


def sampled(rows, seed=0):
    """Return rows of which one in ten negatives is left."""
    kept = (rows["click"] == 1) | (np.random.default_rng(seed).random(len(rows["click"])) < 0.1)
    return {name: column[kept] for name, column in rows.items()}


def make_trainer(calibration=OPTIONS, network=LogisticRegression, rate=2e-2, **options):
    set_seed(0)
    features = Features([Numeric("x"), Categorical("city", vocabulary=[f"c{n}" for n in range(20)])], label="click")
    net = network(features)
    optimizer = nn.Adam(net.trainable_params(), rate)
    return Trainer(
        net, nn.BCEWithLogitsLoss(), optimizer, features=features, seed=0, calibration=calibration, **options
    )


def batches(rows, size=256):
    return [{n: c[start : start + size] for n, c in rows.items()} for start in range(0, len(rows["click"]), size)]


class Numbers(nn.Cell):
    def __init__(self, features):
        super().__init__()
        self.dense = nn.Dense(1, 1)

    def construct(self, numbers, ids):
        return self.dense(numbers)[:, 0]


class Windows(Callback):
    def __init__(self):
        self.values = []

    def on_window_end(self, trainer):
        self.values.append(dict(trainer.state.window))


@pytest.fixture(scope="module")
def online(tmp_path_factory):
    """A trainer after a stream with sampled negatives, its windows, and the folder of its versions."""
    folder = tmp_path_factory.mktemp("calibrated")
    rows, windows, trainer = sampled(traffic(150_000)[0]), Windows(), make_trainer()
    publish = Publish(folder / "published", Every(steps=50), on_error="raise")
    trainer.online_train(batches(rows), window=WINDOW, callbacks=[windows, publish])
    return trainer, windows.values, folder / "published"


def test_windows_say_what_the_calibration_by_earlier_rows_does(online):
    _, windows, _ = online
    assert np.isnan(windows[0]["window_calibrated_calibration"]) == (not windows[0]["window_calibrated_rows"])
    assert windows[-1]["window_calibrated_rows"] == windows[-1]["window_rows"]
    assert windows[-1]["window_calibrated_calibration"] == pytest.approx(1, abs=0.08)
    assert windows[-1]["window_calibrated_normalized_entropy"] < 1


def test_every_way_to_a_probability_is_calibrated(online, tmp_path):
    trainer, _, published = online
    rows, truth = traffic(2_000, seed=5)
    rows["city"][::50] = "elsewhere"
    named = {"x": rows["x"], "city": rows["city"]}
    wanted = trainer.predict(named, output="probability", batch_size=256)
    plain = 1 / (1 + np.exp(-trainer.predict(named, batch_size=256).astype(np.float64)))
    assert wanted.sum() / truth.sum() == pytest.approx(1, abs=0.1)
    assert plain.sum() / truth.sum() > 2  # what the negatives left out do
    with ServedModel(published, follow=False) as model:
        assert model.calibration.column == "ids"
        assert len(model.calibration.values) > 15
        np.testing.assert_allclose(model.predict(named, output="probability"), wanted, atol=1e-6)
        np.testing.assert_allclose(model.predict(named), trainer.predict(named), atol=1e-5)
    some = [{"x": float(x), "city": str(city)} for x, city in zip(rows["x"][:60], rows["city"][:60], strict=True)]
    server = Server(published, "--log", str(tmp_path / "log"), "--log-wait", "5")
    try:
        answer = server.ask("/predict", {"rows": some})[2]
        (log,) = (tmp_path / "log").glob("*.jsonl")
        assert [json.loads(line)["score"] for line in log.read_bytes().splitlines()] == answer["probability"]
        np.testing.assert_allclose(answer["probability"], wanted[:60], atol=1e-6)
        tensors = [
            {"name": "x", "shape": [60], "datatype": "FP32", "data": [row["x"] for row in some]},
            {"name": "city", "shape": [60], "datatype": "BYTES", "data": [row["city"] for row in some]},
        ]
        outputs = server.ask("/v2/models/published/infer", {"inputs": tensors})[2]["outputs"]
        np.testing.assert_allclose(
            next(o["data"] for o in outputs if o["name"] == "probability"), wanted[:60], atol=1e-6
        )
    finally:
        server.stop()
    exported = export_model(trainer, tmp_path / "model", rows)
    assert "calibration_map.py" in exported.files
    columns = read_features(exported.folder).transform(named)
    np.savez(tmp_path / "columns.npz", **columns)
    code = (
        "import sys, numpy as np; sys.path.insert(0, sys.argv[1]); from pathlib import Path; import call\n"
        "columns = dict(np.load(sys.argv[2]))\n"
        "np.save(sys.argv[3], call.ExportedModel(Path(sys.argv[1])).probability(columns))"
    )
    command = [sys.executable, "-I", "-c", code, exported.folder, tmp_path / "columns.npz", tmp_path / "answers.npy"]
    subprocess.run(command, check=True)
    np.testing.assert_allclose(np.load(tmp_path / "answers.npy"), wanted, atol=1e-6)


def test_the_same_rows_and_a_resumed_run_give_the_same_bits(tmp_path):
    rows = batches(sampled(traffic(60_000)[0]))
    plain = make_trainer()
    plain.online_train(rows, window=WINDOW, callbacks=[ModelCheckpoint(tmp_path / "a", every=Every(steps=25))])
    for resume in (None, "auto"):
        part = make_trainer()
        saver = ModelCheckpoint(tmp_path / "b", every=Every(steps=25))
        limit = {} if resume else {"max_steps": 25}
        part.online_train(rows, window=WINDOW, callbacks=[saver], resume=resume and tmp_path / "b", **limit)
    assert part.fitted_calibration().to_json() == plain.fitted_calibration().to_json()
    counted = [name for name in plain.state.window if name.split("_")[0] in ("window", "decayed", "lifetime")]
    assert [part.state.window[name] for name in counted] == [plain.state.window[name] for name in counted]
    other = make_trainer()
    other.load(tmp_path / "b", weights_only=True)  # as `trainer predict` and `trainer export` do
    assert other.fitted_calibration().to_json() == plain.fitted_calibration().to_json()


def test_fit_learns_from_the_validation_of_the_weights_it_keeps(tmp_path):
    rows, truth = traffic(60_000)
    train, valid = sampled(rows), sampled(traffic(60_000, seed=1)[0])
    made = make_trainer({**OPTIONS, "by": None}, network=Numbers)
    found = []

    class Keep(Callback):
        def on_eval_end(self, trainer):
            found.append(trainer.fitted_calibration().to_json())

    stopping = EarlyStopping("val_loss", patience=1, min_delta=10.0, restore_best=True)
    made.fit(train, epochs=3, valid_dataset=valid, batch_size=512, callbacks=[Keep(), stopping])
    assert len(found) == 2
    assert found[0] != found[1]
    assert made.fitted_calibration().to_json() == found[0]
    answers = made.predict(rows, output="probability", batch_size=4096)
    assert answers.sum() / truth.sum() == pytest.approx(1, abs=0.05)
    assert made.evaluate(valid, batch_size=4096)["calibrated_calibration"] == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("verb", ["init_from", "load", "a .ckpt file"])
def test_weights_of_another_training_have_no_calibration(verb, tmp_path):
    """Nor is a version published with that of the weights before."""
    rows, valid = traffic(2_000)[0], traffic(2_000, seed=1)[0]
    plain = make_trainer(None, network=Numbers)
    plain.fit(rows, batch_size=512, callbacks=[])
    plain.save(tmp_path)
    save_checkpoint(plain.network, str(tmp_path / "plain.ckpt"))
    made = make_trainer({"min_rows": 10}, network=Numbers)
    made.fit(rows, valid_dataset=valid, batch_size=512, callbacks=[])
    assert made.predict(rows, output="probability", batch_size=512).shape == (2_000,)
    if verb == "init_from":
        made.init_from(tmp_path)
    else:
        made.load(tmp_path if verb == "load" else tmp_path / "plain.ckpt", weights_only=True)
    with pytest.raises(DataError, match="has too few rows"):
        made.predict(rows, output="probability", batch_size=512)


def test_a_rollback_brings_back_the_calibration_of_the_weights(tmp_path):
    """What it learned from the scores of a training that diverged would calibrate the weights from before."""
    rows = traffic(20_000)[0]
    made, found = make_trainer({"min_rows": 10}, network=Numbers), {}

    class Diverges(Callback):
        order = -100

        def on_save_checkpoint(self, trainer):
            found.setdefault("saved", trainer.fitted_calibration().to_json())

        def on_train_step_end(self, trainer):
            step = trainer.state.progress.global_step
            if step == 21:  # after the snapshot
                ops.assign(trainer.network.dense.weight, trainer.network.dense.weight * -50.0)
            if step == 39:
                found["diverged"] = trainer.fitted_calibration().to_json()
                trainer.rollback()
                found["after"] = trainer.fitted_calibration().to_json()

    callbacks = [Diverges(), ModelCheckpoint(tmp_path, every=20)]
    made.online_train(batches(rows, 512), callbacks=callbacks, sink_size=1)
    assert found["saved"] != found["diverged"]
    assert found["after"] == found["saved"]


def test_a_stream_after_fit_forgets_the_rows_of_the_validation():
    made = make_trainer({"half_life": 1000}, network=Numbers, rate=1e-6)
    rows, valid, later = (traffic(count, seed)[0] for count, seed in ((4_000, 0), (20_000, 1), (30_000, 2)))
    made.fit(rows, valid_dataset=valid, batch_size=512, callbacks=[])
    later["click"] *= np.random.default_rng(0).random(30_000) < 0.2
    made.online_train(batches(later, 512), callbacks=[])
    answers = made.predict(rows, output="probability", batch_size=4096)
    assert answers.mean() == pytest.approx(later["click"].mean(), rel=0.15)


def test_no_version_comes_before_the_calibration(tmp_path):
    trainer, publish = make_trainer({**OPTIONS, "min_rows": 10_000}), Publish(tmp_path, Every(steps=1))
    trainer.online_train(batches(sampled(traffic(3_000)[0])), window=WINDOW, callbacks=[publish])
    assert "the calibration has too few rows: it needs 10000 rows of each class" in publish.problem
    assert not (tmp_path / "current.json").exists()
    for ask in (
        lambda: trainer.predict(traffic(5)[0], output="probability"),
        lambda: export_model(trainer, tmp_path / "model", traffic(5)[0], onnx=False),
    ):
        with pytest.raises(DataError, match="has too few rows"):
            ask()


def test_releases_that_know_no_calibration_refuse_a_version_with_one(online, tmp_path):
    """They read up to format 2, and would answer without the calibration."""
    bodies = [json.loads(path.read_bytes())["version"] for path in online[2].glob("v_*/manifest.json")]
    assert bodies
    assert {body["format_version"] for body in bodies} == {3}
    make_trainer(None).online_train(batches(traffic(2_000)[0]), callbacks=[Publish(tmp_path / "plain")])
    bodies = [json.loads(path.read_bytes())["version"] for path in (tmp_path / "plain").glob("v_*/manifest.json")]
    assert {body["format_version"] for body in bodies} == {1}


def test_a_damaged_calibration_is_not_served(online, tmp_path):
    _, _, published = online
    version = max(published.glob("v_*"))
    for name in ("calibration.json", "calibration.safetensors"):
        content = (version / name).read_bytes()
        try:
            (version / name).write_bytes(content[:-1] + b"x")
            with pytest.raises(CheckpointDamagedError, match=name):
                ServedModel(published, follow=False)
        finally:
            (version / name).write_bytes(content)


class Dropped(LogisticRegression):
    def __init__(self, features):
        super().__init__(features)
        self.dropout = nn.Dropout(p=0.5)

    def construct(self, *columns):
        return self.dropout(self.linear(*columns))


@pytest.mark.parametrize(
    ("options", "window", "callbacks", "message"),
    [
        ({"network": Dropped}, WINDOW, [], "with Dropout the scores of online_train"),
        ({}, WINDOW, [EMA(0.9)], "with EMA or SWA the scores"),
        ({}, Window(rows=100), [], "negative_sampling_rate=0.1 differs from that of Window, None"),
        ({"calibration": {"by": "citty"}}, WINDOW, [], "received 'citty'; did you mean 'city'"),
        ({"calibration": {"by": "x"}}, WINDOW, [], "a feature whose value is one id .city.; received 'x'"),
        ({"prediction_activation": "exp"}, WINDOW, [], "takes one binary label"),
    ],
)
def test_scores_that_are_not_those_of_a_version_are_refused(options, window, callbacks, message):
    with pytest.raises(ConfigurationError, match=message):
        make_trainer(**options).online_train(batches(traffic(512)[0]), window=window, callbacks=callbacks)


def test_fit_without_validation_rows_is_refused():
    with pytest.raises(ConfigurationError, match="learns from validation rows"):
        make_trainer().fit(traffic(512)[0], callbacks=[])


def write_config(path, rows, calibration):
    table = path / "visits.csv"
    lines = zip(rows["x"].tolist(), rows["city"].tolist(), rows["click"].tolist(), strict=True)
    table.write_text("x,city,click\n" + "".join(f"{x},{city},{click:g}\n" for x, city, click in lines))
    config = {
        "experiment": "visits",
        "run_dir": str(path / "run"),
        "seed": 0,
        "features": {
            "columns": [{"kind": "numeric", "name": "x"}, {"kind": "categorical", "name": "city"}],
            "label": "click",
        },
        "network": {"model": "lr"},
        "loss": "mindspore.nn.BCEWithLogitsLoss",
        "optimizer": {"class_path": "mindspore.nn.Adam", "init_args": {"learning_rate": 0.02}},
        "trainer": {"calibration": calibration},
        "callbacks": ["callbacks.ModelCheckpoint"],
        "data": {"train": str(table), "valid": str(table)},
        "fit": {"epochs": 2, "batch_size": 512},
    }
    (path / "visits.yaml").write_text(yaml.safe_dump(config))
    return str(path / "visits.yaml"), str(table)


def test_the_command_line_answers_calibrated(tmp_path, capsys):
    rows, truth = traffic(20_000)
    config, _ = write_config(tmp_path, sampled(rows), {"method": "plat", "by": "city"})
    assert main(["check", config]) == 2
    assert "did you mean 'platt'" in capsys.readouterr().err
    config, _ = write_config(tmp_path, sampled(rows), OPTIONS)
    assert main(["fit", config]) == 0
    (tmp_path / "rest").mkdir()
    _, everything = write_config(tmp_path / "rest", rows, OPTIONS)
    output = tmp_path / "scores.csv"
    assert main(["predict", str(tmp_path / "run"), "--data", everything, "--output", str(output)]) == 0
    answers = pcsv.read_csv(output)["prediction"].to_numpy()
    assert answers.sum() / truth.sum() == pytest.approx(1, abs=0.06)
    assert main(["export", str(tmp_path / "run"), "--publish", str(tmp_path / "served")]) == 0
    with ServedModel(tmp_path / "served", follow=False) as model:
        np.testing.assert_allclose(model.predict(rows, output="probability"), answers, atol=1e-6)
    assert json.loads((max((tmp_path / "served").glob("v_*")) / "calibration.json").read_text())["method"] == "platt"


@pytest.mark.long
@pytest.mark.parametrize("method", ["platt", "isotonic"])
def test_a_long_stream_with_one_negative_in_ten_is_calibrated(method):
    """After a warm-up of 1,000,000 rows: every window, the twenty slices, and the error on rows of known truth."""
    windows, trainer = (
        Windows(),
        make_trainer({**OPTIONS, "method": method, "half_life": 3_000_000}, rate=nn.CosineDecayLR(1e-4, 2e-2, 1000)),
    )

    def stream():
        for seed in range(75):
            yield from batches(sampled(traffic(200_000, seed)[0], seed), 1024)

    window = Window(rows=200_000, negative_sampling_rate=0.1, correct_probability=False)
    trainer.online_train(stream, window=window, callbacks=[windows])
    full = [values for values in windows.values[5:] if values["window_rows"] > 190_000]
    assert len(full) >= 8
    ratios = [values["window_calibrated_calibration"] for values in full]
    rows, truth = traffic(2_000_000, seed=100)
    answers = trainer.predict(rows, output="probability", batch_size=8192)
    of_slices = [rows["city"] == name for name in np.unique(rows["city"])]
    slices = [answers[chosen].sum() / truth[chosen].sum() for chosen in of_slices]
    bins = np.minimum((answers * 15).astype(int), 14)
    counts = np.bincount(bins, minlength=15)
    error = np.abs(np.bincount(bins, answers - truth, 15)).sum() / counts.sum()
    print("windows", min(ratios), max(ratios), "slices", min(slices), max(slices), "ECE", error)
    assert error <= 0.005
    assert 0.98 <= min(ratios) <= max(ratios) <= 1.02
    assert len(slices) == 20
    assert 0.98 <= min(slices) <= max(slices) <= 1.02
    assert full[-1]["window_calibration"] > 2  # what is served without a calibration
