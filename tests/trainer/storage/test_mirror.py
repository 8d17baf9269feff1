"""A run with a mirror: it outlives its server's death, and goes on from the mirror on another machine."""

import logging
import re
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from mindspore import nn

from callbacks import Callback, ModelCheckpoint
from tests.trainer.storage.s3_server import KEY, SECRET
from tests.trainer.storage.test_mirror_pass import shown
from trainer import Every, Mirror, Trainer
from trainer.errors import CheckpointError, ConfigurationError
from trainer.experiment.cli import main
from trainer.serving import Publish, ServedModel, Versions
from trainer.storage.location import Location
from trainer.storage.mirror_pass import MirrorPass

sys.path.insert(0, str(Path(__file__).parents[3]))  # benchmarks are not installed

from benchmarks.serve_process import Server

pytestmark = pytest.mark.server

CONFIG = """\
experiment: table
mirror: {url}
features:
  columns:
    - {{kind: numeric, name: age, normalize: standard, indicator: true}}
    - {{kind: categorical, name: city, vocabulary: learn, min_count: 2}}
    - {{kind: list, name: genres, separator: "|", max_length: 4}}
  label: click
network: {{class_path: tests.trainer.features.every_kind.Net, init_args: {{dim: 2}}}}
loss: mindspore.nn.BCEWithLogitsLoss
optimizer: {{class_path: mindspore.nn.Adam, init_args: {{learning_rate: 0.01}}}}
data: {{train: {rows}}}
callbacks: [callbacks.ModelCheckpoint, {{class_path: trainer.serving.Publish, init_args: {{root: served, batch: 8}}}}]
fit: {{epochs: 1, batch_size: 64}}
"""


class Kills(Callback):
    """Kills the server at a step, and starts it again at a later one."""

    def __init__(self, server, step, back):
        self.server, self.step, self.back = server, step, back

    def on_train_step_end(self, trainer):
        if trainer.state.progress.global_step == self.step:
            self.server.kill()
        if trainer.state.progress.global_step == self.back:
            self.server.start()


@pytest.fixture(scope="module")
def made(linear):
    """Return a new trainer in a run folder."""

    def make(run_dir):
        network = linear()
        optimizer = nn.Adam(network.trainable_params(), 0.01)
        return Trainer(network, nn.BCEWithLogitsLoss(), optimizer, run_dir=run_dir, seed=1)

    return make


def fit(trainer, cancer, callbacks, **options):
    saving = ModelCheckpoint(every=Every(steps=4), keep_last=2)
    trainer.fit(cancer, epochs=1, batch_size=32, dataset_sink_mode=False, callbacks=[saving, *callbacks], **options)
    return {parameter.name: parameter.asnumpy() for parameter in trainer.network.trainable_params()}


def test_training_goes_on_without_its_mirror_which_catches_up(s3, url, cancer, made, tmp_path, caplog):
    mirror = Mirror(url, every=0.05)
    with caplog.at_level(logging.INFO):
        whole = fit(made(tmp_path / "run"), cancer, [mirror, Kills(s3, 5, 17)])
    assert mirror.problem is None
    assert mirror.lag == 0
    local = {path.name for path in (tmp_path / "run" / "checkpoints").iterdir() if path.is_dir()}
    assert shown(s3, url) == local == {"step_00000016", "step_00000018"}

    # another machine: the run's first part was all there was when the machine was lost
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step_00000018")
    (tmp_path / "run" / "checkpoints" / "last").write_text("step_00000016\n")
    assert mirror.catch_up()
    elsewhere = tmp_path / "elsewhere"
    resumed = fit(made(elsewhere), cancer, [Mirror(url)], resume=url)
    assert {path.name for path in (elsewhere / "checkpoints").iterdir() if path.is_dir()} == local
    assert shown(s3, url) == local
    for name, value in whole.items():
        np.testing.assert_array_equal(resumed[name], value)
    other = made(tmp_path / "other")
    other.load(f"{url}/checkpoints/last", weights_only=True)
    np.testing.assert_array_equal(other.network.trainable_params()[0].asnumpy(), next(iter(whole.values())))
    with pytest.raises(CheckpointError, match="there is no snapshot in"):
        other.load("s3://bucket/nothing")
    with pytest.raises(ConfigurationError, match="is the mirror of another run"):
        fit(made(tmp_path / "third"), cancer, [Mirror(url)])


@pytest.mark.long
def test_a_fast_dev_run_leaves_nothing_in_a_mirror(url, cancer, made, tmp_path):
    fit(made(tmp_path / "run"), cancer, [Mirror(url)], fast_dev_run=True)
    assert not Location(url).files()


@pytest.mark.long
def test_a_run_that_ends_without_its_mirror_says_so_and_the_next_start_uploads(s3, url, cancer, made, tmp_path, caplog):
    fit(made(tmp_path / "run"), cancer, [Mirror(url, wait=0), Kills(s3, 2, None)], max_steps=8)
    assert "the next start of this run uploads them" in caplog.text
    s3.start()
    assert len(shown(s3, url)) == 0
    fit(made(tmp_path / "run"), cancer, [Mirror(url)], resume="auto", max_steps=9)
    assert shown(s3, url) == {"step_00000008", "step_00000009"}


@pytest.fixture
def config(url, tmp_path, monkeypatch):
    from tests.trainer.features.every_kind import make_rows
    from tests.trainer.features.test_features import write_csv

    write_csv(make_rows(300), tmp_path / "rows.csv")
    Location(url).upload(tmp_path / "rows.csv", "data/rows.csv")
    (tmp_path / "table.yaml").write_text(CONFIG.format(url=f"{url}/run", rows=f"{url}/data/rows.csv"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "table.yaml"


@pytest.mark.long
def test_an_experiment_is_mirrored_and_goes_on_elsewhere(s3, url, config, tmp_path, capsys, monkeypatch):
    assert main(["fit", str(config)]) == 0, capsys.readouterr()
    first = shown(s3, f"{url}/run")
    assert {"step_00000005", "v_00000001"} <= first
    assert b'"finished"' in Location(f"{url}/run").read("metrics.json")
    assert main(["evaluate", "runs/table", "--data", f"{url}/data/rows.csv"]) == 0, capsys.readouterr()
    assert main(["fit", str(config)]) == 2  # a second run of the same name
    assert re.search("holds the versions of the run|is the mirror of another run", capsys.readouterr().err)
    assert not Path("runs/table-2").exists()

    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main(["fit", "--resume", f"{url}/run", "--set", "fit.epochs=2"]) == 0, capsys.readouterr()
    assert Path("runs/table/checkpoints/step_00000010").is_dir()
    assert "step_00000010" in shown(s3, f"{url}/run")
    with ServedModel("served", follow=False) as here, ServedModel(f"{url}/run", follow=False) as there:
        assert there.version == here.version > 2  # numbers went on from those of the mirror
        rows = [{"age": 30.0, "city": "a", "genres": "x|y"}, {"age": None, "city": None, "genres": None}]
        np.testing.assert_array_equal(here.predict(rows), there.predict(rows))

    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    text = b"".join([*(path.read_bytes() for path in written), *s3.objects().values()])
    told = "".join(capsys.readouterr())
    assert SECRET.encode() not in text
    assert KEY.encode() not in text
    assert SECRET not in told


def test_a_mistake_in_the_url_is_named_at_its_line(config, capsys):
    config.write_text(config.read_text().replace("mirror: s3://", "mirror: s4://"))
    assert main(["check", str(config)]) == 2
    said = capsys.readouterr().err
    assert "table.yaml:2" in said
    assert "unknown scheme 's4'" in said


@pytest.mark.long
def test_a_served_model_follows_a_mirror_and_refuses_damage(s3, url, cancer, made, tmp_path):
    trainer = made(tmp_path / "run")
    publish = Publish(tmp_path / "run" / "published", every=1e-6, batch=8)
    mirror = Mirror(url)
    trainer.fit(cancer, epochs=1, batch_size=128, callbacks=[publish, mirror], max_steps=2)
    rows = cancer["x"][:5]
    with ServedModel(url, follow=False) as served:
        before = served.predict(rows)
        np.testing.assert_allclose(before, trainer.predict((rows,)), rtol=1e-6)
        version = served.version
        trainer.fit(cancer, epochs=1, batch_size=128, callbacks=[publish, mirror], max_steps=2)
        target = Location(f"{url}/published")
        newest = max(name for name in target.files() if name.startswith("v_")).partition("/")[0]
        sound = target.read(f"{newest}/weights.safetensors")
        target.write(f"{newest}/weights.safetensors", sound[:-1])
        with pytest.raises(CheckpointError, match=r"weights\.safetensors does not match its checksum"):
            served.refresh()
        assert served.version == version
        assert "does not match its checksum" in served.problem
        np.testing.assert_array_equal(served.predict(rows), before)
        s3.kill()
        with pytest.raises(CheckpointError, match="NETWORK_CONNECTION"):
            served.refresh()
        np.testing.assert_array_equal(served.predict(rows), before)
        s3.start()
        target.write(f"{newest}/weights.safetensors", sound)
        assert served.refresh()
        assert served.problem is None
        assert served.version > version
        np.testing.assert_allclose(served.predict(rows), trainer.predict((rows,)), rtol=1e-6)


def test_trainer_serve_answers_from_a_mirror(s3, url, cancer, made, tmp_path):
    trainer = made(tmp_path / "run")
    callbacks = [Publish(tmp_path / "run" / "published", batch=8), Mirror(url)]
    trainer.fit(cancer, epochs=1, batch_size=128, callbacks=callbacks, max_steps=2)
    server = Server(url)
    try:
        status, _, ready = server.ask("/readyz")
        assert (status, ready["version"]) == (200, ServedModel(url, follow=False).version)
    finally:
        server.stop()


def test_any_version_of_a_mirror_is_served_by_its_number(s3, url, cancer, made, tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    trainer, root = made(tmp_path / "run"), tmp_path / "run" / "published"
    for _ in range(2):  # the versions of the second call build on none of the first
        trainer.fit(cancer, batch_size=128, callbacks=[Publish(batch=8), Mirror(url)], max_steps=2)
    numbers = [version.number for version in Versions(root).list()]
    assert len(numbers) == 4
    for number in numbers:
        with ServedModel(root, version=number, follow=False) as here:
            expected = here.predict(cancer["x"][:8])
        with ServedModel(url, version=number, follow=False) as there:
            np.testing.assert_array_equal(there.predict(cancer["x"][:8]), expected)
            assert there.version == number
        np.testing.assert_array_equal(there.predict(cancer["x"][:8]), expected)
    with pytest.raises(CheckpointError, match=r"there is no .*/published/v_00000009, or it is incomplete"):
        ServedModel(url, version=9, follow=False)
    assert list((tmp_path / "temporary").iterdir()) == [], "copies of a mirror that nobody serves any more"


def test_versions_that_follow_each_other_faster_than_they_are_uploaded_reach_a_mirror(cancer, made, tmp_path):
    """The versions of a pass would be gone before their turn, and those of the next pass too."""
    trainer, root = made(tmp_path / "run"), tmp_path / "run" / "published"
    publish = Publish(batch=8, compact=1, keep=1)
    target = Location(f"file://{tmp_path}/mirror")
    mirror_pass, upload = MirrorPass({"": tmp_path / "run"}, target), target.upload

    def publish_two():
        trainer.fit(cancer, batch_size=128, callbacks=[publish], max_steps=1)
        return Versions(root).newest()

    def slow_upload(path, name):
        if path.parent.name.startswith("v_"):
            publish_two()
        return upload(path, name)

    first = publish_two()
    target.upload = slow_upload
    mirror_pass.run()
    with ServedModel(target.url, follow=False) as there:
        assert there.version == first
    target.upload = upload
    publish_two()
    assert mirror_pass.run()
    assert {path.name for path in root.glob("[vg]*")} == {
        path.name for path in (tmp_path / "mirror/published").glob("[vg]*")
    }


@pytest.mark.long
@pytest.mark.parametrize("inside", [True, False], ids=["in-the-run-folder", "beside-it"])
def test_what_was_published_stays_and_its_numbers_go_on_elsewhere(s3, url, cancer, made, tmp_path, inside):
    def train(name, **options):
        trainer = made(tmp_path / name)
        root = tmp_path / name / "served" if inside else tmp_path / f"{name}-served"
        publish = Publish(root, batch=8, keep=1)
        for resume in (options, {}, {}):  # each call publishes at its end
            fit(trainer, cancer, [publish, Mirror(url)], max_steps=1, **resume)
        return root

    where = f"{url}/{'served' if inside else 'published'}"
    root = train("run")
    versions = Versions(root)
    newest = versions.newest()
    versions.keep(newest - 1)
    versions.pin(newest - 1)
    folders = {"": tmp_path / "run"} if inside else {"": tmp_path / "run", "published": root}
    assert MirrorPass(folders, Location(url)).run()
    again = train("elsewhere", resume=url)
    with ServedModel(where, follow=False) as served:
        assert served.version == newest - 1  # the pin came along, and all that it needs is still in the mirror
    assert Versions(again).newest() > newest
    assert {path.name for path in again.glob("[vg]*")} == shown(s3, where)  # nothing is left behind for ever


@pytest.mark.long
def test_the_number_of_a_version_that_is_damaged_in_the_mirror_is_not_used_again(url, cancer, made, tmp_path, caplog):
    def train(name, **options):
        trainer = made(tmp_path / name)
        publish = Publish(tmp_path / name / "published", batch=8)
        for resume in (options, {}):
            fit(trainer, cancer, [publish, Mirror(url)], max_steps=1, **resume)
        return Versions(tmp_path / name / "published").newest()

    newest = train("run")
    target = Location(f"{url}/published/v_{newest:08d}")
    damaged = target.read("weights.safetensors")[:-1]
    target.write("weights.safetensors", damaged)
    assert train("elsewhere", resume=url) > newest
    assert target.read("weights.safetensors") == damaged
    assert "is left in the mirror" in caplog.text
    with ServedModel(url, follow=False) as served:
        assert served.version > newest
