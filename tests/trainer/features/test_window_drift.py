"""The drift of a feature's values is measured in every window of a stream, and a DriftMonitor responds to it."""

import numpy as np
import pytest
import yaml

from callbacks import DriftMonitor, LambdaCallback, ModelCheckpoint
from tests.trainer.features.test_online import BATCH, make_trainer
from trainer.errors import ConfigurationError
from trainer.experiment.cli import main
from trainer.features import Categorical, Cross, Features, ListFeature, Numeric
from trainer.features.stream_rows import BatchTransform, WindowDrift
from trainer.streams import ReplayStream
from trainer.streams.batch import Batch, Span

WINDOW, CHANGE = 300, 900


def make_rows(count=1500, seed=0):
    """Return rows of which x and city change at row `CHANGE`, and z never does."""
    rng = np.random.default_rng(seed)
    late = np.arange(count) >= CHANGE
    x = np.where(rng.random(count) < 0.1, np.nan, rng.normal(4 * late, 1))
    cities = np.where(late, rng.choice(["a", "new"], count), rng.choice(["a", "b", "c"], count))
    return {
        "x": x,
        "z": rng.lognormal(1, 1, count),
        "city": [None if rng.random() < 0.1 else str(city) for city in cities],
        "tags": ["|".join(rng.choice(list("uvw"), 2)) for _ in range(count)],
        "y": (rng.random(count) < 0.5).astype(float),
    }


ROWS = make_rows()
EARLIER = make_rows(CHANGE, seed=1)


def part(rows, start, stop):
    return {name: column[start:stop] for name, column in rows.items()}


def train(trainer, *callbacks, stream=None, **options):
    """Train on the stream; return the windows' drift of x and z."""
    windows = []
    watch = LambdaCallback(on_window_end=lambda t: windows.append(dict(t.state.window)))
    monitors = [DriftMonitor(feature="x"), DriftMonitor(feature="z"), DriftMonitor(feature="city")]
    trainer.online_train(
        stream or ReplayStream(ROWS),
        callbacks=[*callbacks, *monitors, watch],
        batch_size=BATCH,
        window=WINDOW,
        **options,
    )
    return [[window[f"drift_{name}"] for name in ("x", "z", "city")] for window in windows]


def test_each_window_has_the_index_of_its_rows():
    trainer = make_trainer(update_every=None)
    trainer.features.fit(EARLIER)
    windows = train(trainer)
    expected = []
    for start in range(0, 1500, WINDOW):
        drift = trainer.features.drift(part(ROWS, start, start + WINDOW))
        expected.append([drift[name] for name in ("x", "z", "city")])
    np.testing.assert_allclose(windows, expected, rtol=1e-12)
    assert (np.array(windows)[:3] < 0.25).all()
    assert (np.array(windows)[3:, [0, 2]] > 1).all()


@pytest.mark.long
def test_without_earlier_rows_the_first_window_is_the_reference():
    windows = train(make_trainer())
    reference = Features([Numeric("x"), Numeric("z"), Categorical("city")])
    reference.fit(part(ROWS, 0, WINDOW))
    assert np.isnan(windows[0]).all()
    for number, window in enumerate(windows[1:], 1):
        drift = reference.drift(part(ROWS, number * WINDOW, (number + 1) * WINDOW))
        np.testing.assert_allclose(window, [drift[name] for name in ("x", "z", "city")], rtol=1e-12)


@pytest.mark.long
def test_the_event_names_the_feature_and_comes_once():
    events = []
    trainer = make_trainer(update_every=None)
    trainer.features.fit(EARLIER)
    train(trainer, LambdaCallback(on_drift=lambda t: events.append(dict(t.state.drift))))
    assert [(event["detector"], event["key"], event["samples_seen"]) for event in events] == [
        ("RisesAbove", "drift_x", CHANGE + WINDOW),
        ("RisesAbove", "drift_city", CHANGE + WINDOW),
    ]


@pytest.mark.long
@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("sink_size", [1, 2])
def test_a_run_resumed_within_a_window_measures_the_same(tmp_path, learned, sink_size):
    def new_trainer():
        trainer = make_trainer(update_every=None) if learned else make_trainer()
        if learned:
            trainer.features.fit(EARLIER)
        return trainer

    whole = train(new_trainer(), sink_size=sink_size)
    for steps in (4, 10, 20):
        folder = tmp_path / str(steps)
        train(new_trainer(), ModelCheckpoint(folder, every=2), max_steps=steps, sink_size=sink_size)
        rest = train(new_trainer(), resume=folder, sink_size=sink_size)
        np.testing.assert_array_equal(rest, whole[-len(rest) :])
        assert len(rest) == 5 - steps * BATCH // WINDOW


def test_windows_of_processes_add_up():
    features = Features([ListFeature("tags", separator="|"), Cross("pair", columns=["city", "tags"])])
    features.fit({name: EARLIER[name] for name in ("city", "tags")})
    rows = features.read({name: ROWS[name] for name in ("city", "tags")}).columns
    whole, left, right = (WindowDrift(features, ["tags", "pair"]) for _ in range(3))
    whole.add(whole.keys_of(rows))
    left.add(left.keys_of({name: column[:600] for name, column in rows.items()}))
    right.add(right.keys_of({name: column[600:] for name, column in rows.items()}))
    left.join([left.state_dict(), right.state_dict()])
    indices = left.close()
    assert indices == whole.close()
    assert indices["drift_pair"] > indices["drift_tags"]  # the cross also reads the column that changed
    assert np.isnan(list(left.close().values())).all()


def test_wrong_arguments_are_named():
    with pytest.raises(ConfigurationError, match="did you mean 'city'"):
        make_trainer().online_train(ReplayStream(ROWS), callbacks=[DriftMonitor(feature="citty")], batch_size=BATCH)
    with pytest.raises(ConfigurationError, match="key or feature, not both"):
        DriftMonitor(key="lag", feature="x")
    with pytest.raises(ConfigurationError, match=r"update\(value\)"):
        DriftMonitor()


def test_a_config_names_the_feature(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "rows"
    folder.mkdir()
    names = ("x", "z", "city", "y")
    lines = [",".join(names)]
    for row in zip(*(ROWS[name] for name in names), strict=True):
        lines.append(",".join("" if value is None or value != value else str(value) for value in row))
    (folder / "0.csv").write_text("\n".join(lines) + "\n")
    config = {
        "features": {
            "columns": [{"kind": kind, "name": name} for kind, name in (("numeric", "x"), ("numeric", "z"))]
            + [{"kind": "categorical", "name": "city"}],
            "label": "y",
        },
        "network": {"model": "lr"},
        "loss": "mindspore.nn.BCEWithLogitsLoss",
        "optimizer": {"class_path": "mindspore.nn.Adam", "init_args": {"learning_rate": 0.01}},
        "data": {
            "stream": {"class_path": "trainer.streams.FileStream", "init_args": {"path": "rows", "end": "at_last"}}
        },
        "callbacks": [{"class_path": "callbacks.DriftMonitor", "init_args": {"feature": "x"}}],
        "experiment": "drift",
        "online": {"batch_size": BATCH, "window": WINDOW},
    }
    (tmp_path / "online.yaml").write_text(yaml.safe_dump(config))
    assert main(["online", "online.yaml"]) == 0
    assert "drift: drift_x = " in capfd.readouterr().err


def test_rows_read_ahead_count_when_they_are_trained_on():
    features = Features([Numeric("x", normalize="standard")], update_every=10)
    features.fit({"x": np.arange(10.0)})
    transform = BatchTransform(features, ReplayStream({"x": np.arange(10.0)}))
    transform.begin()
    positions = [object() for _ in range(3)]
    for position in positions:
        batch = Batch({"x": np.arange(4.0)}, None, (Span("", 0, 0, 4),))
        transform.learn(transform(batch), position)
    rows = []
    for state in (positions[0], positions[0], None, positions[2]):  # the second one is that of a made-up batch
        transform.trained_to(state)
        rows.append(features.recent.rows)
    assert rows == [4, 4, 4, 12]
