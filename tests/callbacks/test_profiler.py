"""`Profiler` on real runs: parts, operators, trace, files, and that nothing stays behind."""

import json
import time

import pytest

from callbacks import LambdaCallback, Profiler
from callbacks.callback import CallbackList
from trainer.mindspore_internals.operator_times import OperatorProfile

PROGRAM_MATMULS = 5  # two layers forward; weights of both and the inner activations backward


def test_a_step_is_divided_into_parts_that_add_up(fit, tmp_path):
    slow = LambdaCallback(on_train_step_end=lambda trainer: time.sleep(0.003))
    profiler = Profiler(steps=8, skip=2, verbose=False)
    fit(profiler, slow, epochs=4)
    profile = profiler.profile
    assert (profile.phase.steps, profile.phase.calls, profile.phase.rows) == (8, 8, 512)
    parts = profile.parts()
    assert parts["LambdaCallback"] >= 7 * 3 / 8  # ms: a measurement begins within the hooks of a call
    assert parts["program"] > 0
    assert profile.milliseconds() == pytest.approx(sum(parts.values()))
    validations = [span for span in profile.spans if span.part == "validation"]
    assert validations  # epochs end inside the measurement
    wall = 1000 * (profile.phase.ended - profile.phase.began) / 8
    inside = sum(s.ended - s.began for s in validations if profile.phase.began <= s.began <= profile.phase.ended)
    assert profile.milliseconds() == pytest.approx(wall - 1000 * inside / 8)


def test_operators_are_those_of_the_training_program_and_have_layers(fit):
    profiler = Profiler(steps=8, skip=2, verbose=False)
    fit(profiler, epochs=4)
    runs = {kind: per_step for kind, per_step, _ in profiler.profile.by_kind()}
    assert runs["MatMul"] == PROGRAM_MATMULS  # without those of the validations in between
    assert runs["ReLU"] == 1
    layers = {layer: (forward, backward) for layer, forward, backward in profiler.profile.by_layer()}
    assert min(layers["network.0"]) > 0
    assert layers["optimizer"][0] > 0
    program = profiler.profile.parts(profiler.profile.operators_phase)["program"]
    assert 0 < sum(ms for _, _, ms in profiler.profile.by_kind()) <= program


def test_waiting_reading_and_preparing_are_distinguished(fit, cancer):
    train = cancer["train"]

    def batches():
        for first in range(0, 512, 64):
            time.sleep(0.004)
            yield {name: train[name][first : first + 64] for name in train}

    profiler = Profiler(steps=8, skip=2, operators=False, verbose=False)
    fit(profiler, data=batches, epochs=2, batch_size=None, valid=False)
    profile = profiler.profile
    assert profile.parts()["waiting for data"] > 0
    assert profile.parts_ahead()["reading"] >= 2  # ms: at least six of the eight sleeps lie inside
    assert profile.parts_ahead()["preparing"] > 0
    assert not profile.operators


def test_table_numbers_and_trace_are_written(fit, tmp_path, capsys):
    profiler = Profiler(steps=8, skip=2)
    fit(profiler, epochs=3, sink_size=4)
    text = (tmp_path / "profile" / "profile.txt").read_text()
    assert text.strip() in capsys.readouterr().out
    assert "8 steps in 2 calls, 64 rows per step" in text
    numbers = json.loads((tmp_path / "profile" / "profile.json").read_text())
    assert numbers["parts"] == profiler.profile.parts()
    assert numbers["operators"][0][0] in text
    trace = json.loads((tmp_path / "profile" / "trace.json").read_text())
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert {event["ph"] for event in trace["traceEvents"]} == {"X", "M"}
    assert all(event["dur"] >= 0 and {"name", "pid", "tid", "ts"} <= set(event) for event in spans)
    calls = [(event["ts"], event["ts"] + event["dur"]) for event in spans if event["name"] == "program"]
    operators = [event for event in spans if event["cat"] == "operator"]
    assert len(calls) == 4
    for event in operators:  # they lie inside the calls, so the clocks agree
        assert any(began <= event["ts"] + 1 and event["ts"] <= ended for began, ended in calls)
    assert profiler.profile._repr_html_().count("<table>") == 3


def test_the_trace_keeps_the_trace_event_format(fit, tmp_path):
    """Of complete ("X") and metadata ("M") events, as ui.perfetto.dev reads them."""
    fit(Profiler(steps=8, skip=2, verbose=False), epochs=3, sink_size=4)
    text = (tmp_path / "profile" / "trace.json").read_text()
    trace = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert trace["displayTimeUnit"] in ("ms", "ns")
    events = trace["traceEvents"]
    named = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert [event["args"] for event in events if event["name"] == "process_name"] == [{"name": "training"}]
    assert len(set(named.values())) == len(named)
    for event in events:
        assert isinstance(event["name"], str)
        assert type(event["pid"]) is int
        assert event["ph"] in ("X", "M")
    spans = [event for event in events if event["ph"] == "X"]
    assert [event["ts"] for event in spans] == sorted(event["ts"] for event in spans)
    for event in spans:
        assert set(event) == {"ph", "name", "cat", "pid", "tid", "ts", "dur", "args"}
        assert isinstance(event["cat"], str)
        assert event["ts"] >= 0
        assert event["dur"] >= 0
    assert {event["tid"] for event in spans} == set(named)
    for thread, name in named.items():  # a viewer stacks the spans of a thread: each lies within the one it began in
        ends = []
        for event in (event for event in spans if event["tid"] == thread):
            while ends and ends[-1] <= event["ts"] + 1e-3:
                ends.pop()
            end = event["ts"] + event["dur"]
            assert not ends or name == "operators" or end <= ends[-1] + 1e-2, event  # operators run on several threads
            ends.append(end)


def test_nothing_is_observed_outside_of_the_measurement(fit):
    seen = []

    def look(trainer):
        hooks = trainer.callbacks.bound("on_train_step_end")
        seen.append((trainer.run.feed.observer is not None, any(type(hook).__name__ == "_TimedHook" for hook in hooks)))

    fit(Profiler(steps=2, skip=3, operators=False, verbose=False), LambdaCallback(on_train_step_end=look), epochs=1)
    assert seen == [(on, on) for on in (False, False, True, True, False, False, False, False)]


def test_an_exception_ends_the_measurement_and_mindspores_profile(fit):
    from mindspore.profiler.profiler_interface import ProfilerInterface

    profiler = Profiler(steps=3, skip=0, verbose=False)
    with pytest.raises(OSError, match="the disk is gone"):
        fit(profiler, epochs=1, fail_at=6)
    assert not ProfilerInterface.is_initialized
    assert fit.trainer.run is None
    assert profiler.profile.phase.steps == 3


def test_a_run_that_is_too_short_and_a_profile_under_way_are_reported(fit, caplog):
    profiler = Profiler(skip=100)
    fit(profiler, epochs=1)
    assert profiler.profile is None
    assert "ended after 8 calls, before its measurement; lower Profiler(skip=100)" in caplog.text
    fit(Profiler(steps=2, skip=2, verbose=False), second := Profiler(steps=2, skip=2, verbose=False), epochs=1)
    assert "operators are not timed: another profiler is active" in caplog.text
    assert second.profile.phase.steps == 2


def test_observed_hooks_keep_the_name_of_a_failing_callback():
    callbacks = CallbackList([LambdaCallback(on_train_begin=lambda trainer: 1 / 0)])
    times = []
    callbacks.observe(lambda *span: times.append(span))
    with pytest.raises(ZeroDivisionError) as raised:
        callbacks.call("on_train_begin", None)
    assert raised.value.failed_hook == "on_train_begin"
    assert times[0][0].endswith(".on_train_begin")


@pytest.mark.parametrize("at", ["begin", "end"])
def test_a_failure_of_mindspores_profiler_leaves_the_rest(at, fit, caplog, monkeypatch):
    def fail(*_):
        raise RuntimeError("no profiler here")

    end = OperatorProfile.end
    monkeypatch.setattr(OperatorProfile, at, fail if at == "begin" else lambda profile: (end(profile), fail()))
    profiler = Profiler(steps=2, skip=2, verbose=False)
    assert fit(profiler, epochs=1).state.progress.global_step == 8
    assert caplog.text.count("no profiler here") == 1
    assert profiler.profile.phase.steps == 2
    assert not profiler.profile.operators
    assert profiler._state == "done"


def test_several_sets_are_one_validation(fit):
    profiler = Profiler(steps=8, skip=2, operators=False, verbose=False)
    again = LambdaCallback(on_eval_step_end=lambda trainer: (time.sleep(0.002), profiler.on_eval_begin(trainer)))
    fit(profiler, again, epochs=2)
    assert not any(span.part.startswith("LambdaCallback.on_eval") for span in profiler.profile.spans)
    (validation,) = [span for span in profiler.profile.spans if span.part == "validation"]
    assert validation.ended - validation.began >= 0.002
