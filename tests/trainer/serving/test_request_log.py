"""`trainer serve --log`: answered rows are written as they were asked for, and nothing about it delays an answer."""

import asyncio
import json
import re
import resource
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from mindspore import nn

from trainer import Trainer
from trainer.errors import ConfigurationError
from trainer.features import Categorical, Features, ListFeature, Numeric, Time
from trainer.models import DeepFM
from trainer.serving import Publish, ServedModel
from trainer.serving.http.service import Service
from trainer.serving.http.service_call import Call, ServeOptions
from trainer.streams import FileStream, ServedOutcomes

sys.path.insert(0, str(Path(__file__).parents[3]))  # benchmarks are not installed

from benchmarks.serve_process import Server

pytestmark = pytest.mark.server

# Forms in which a value may come: numbers as text, wide integers, dates, missing values, lists, other scripts.
ROWS = [
    {"age": 33, "city": "a", "person": 2**62 + 1, "seen": 1_700_000_000_123, "tags": [1, 2]},
    {"age": "41.1", "city": None, "person": 7, "seen": "2024-02-03T17:18:00Z", "tags": []},
    {"age": 0.1 + 0.2, "city": "Łódź \u2028", "person": "8", "at": 1_700_000_000.25, "unknown": 3},
]


def features():
    columns = [Numeric("age", normalize="standard"), Categorical("city"), Categorical("person", dtype="int64")]
    columns += [
        Time("seen", unit="ms", parts=["hour"]),
        ListFeature("tags", pooling="mean", max_length=4, dtype="int64"),
    ]
    return Features(columns, label="click", weight="weight", event_time="at")


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shop") / "ads"
    rng = np.random.default_rng(0)
    table = {"age": rng.uniform(18, 70, 64), "city": rng.choice(list("abc"), 64), "person": np.arange(64)}
    table |= {
        "seen": 1_700_000_000_000 + np.arange(64),
        "tags": [[n] for n in range(64)],
        "at": np.arange(64.0) + 1.7e9,
    }
    table |= {"click": (table["age"] > 40).astype(np.float32), "weight": np.ones(64, np.float32)}
    declared = features()
    net = DeepFM(declared, dim=2, hidden=[4])
    trainer = Trainer(net, nn.BCEWithLogitsLoss(), nn.Adam(net.trainable_params(), 1e-2), features=declared)
    trainer.fit(table, epochs=1, batch_size=32, callbacks=[Publish(folder, batch=32)])
    return folder


def logged(folder):
    return [
        json.loads(line) for path in sorted(Path(folder).glob("*.jsonl")) for line in path.read_bytes().splitlines()
    ]


def outcomes(metrics):
    found = re.findall(r'trainer_serve_log_rows_total\{outcome="(\w+)"\} ([\d.]+)', metrics)
    return {name: int(float(value)) for name, value in found if float(value)}


def serving(published, check, **options):
    """Run an async check against a service in this process, and stop it."""

    async def run():
        service = Service(published, ServeOptions(**options))
        await service.start()
        try:
            return await check(service)
        finally:
            await service.stop()

    return asyncio.run(run())


def call(rows, name=None, operation="predict"):
    return Call(operation, json.dumps({"rows": rows}).encode(), request_id=name)


async def metrics_of(service):
    return outcomes((await service.handle(Call("metrics"))).body.decode())


def test_logged_rows_read_as_the_server_read_them(published, tmp_path):
    """Bit for bit the same inputs of the network; the id is the caller's, in the header, the body or the protocol."""
    server = Server(published, "--log", str(tmp_path / "log"), "--log-wait", "5")
    status, headers, answer = server.ask("/predict", {"rows": [*ROWS, {"age": "old"}]}, X_Request_Id="visit-7")
    assert (status, headers["X-Request-Id"], answer["request_id"]) == (200, "visit-7", "visit-7")
    inputs = [
        {"name": "age", "shape": [1], "datatype": "FP32", "data": [33.3]},
        {"name": "city", "shape": [1], "datatype": "BYTES", "data": ["b"]},
    ]
    _, headers, tensors = server.ask("/v2/models/ads/infer", {"id": "t1", "inputs": inputs})
    assert (headers["X-Request-Id"], tensors["id"]) == ("t1", "t1")
    _, headers, drawn = server.ask("/predict", ROWS[0])
    assert headers["X-Request-Id"] == drawn["request_id"]
    assert len(drawn["request_id"]) == 32
    assert server.ask("/predict", ROWS[0], X_Request_Id="a" * 201)[0] == 400
    metrics = server.ask("/metrics")[2].decode()
    server.stop()
    assert outcomes(metrics) == {"written": 5}
    rows = logged(tmp_path / "log")
    assert [row["request_id"] for row in rows] == [*(f"visit-7/{n}" for n in range(3)), "t1", drawn["request_id"]]
    assert [row["score"] for row in rows[:3]] == answer["probability"][:3]
    assert {(row["version"], row["share"]) for row in rows} == {(answer["version"], 1.0)}
    assert rows[2]["at"] == ROWS[2]["at"]  # the row's own time, else the server's
    assert rows[0]["at"] == rows[0]["served_at"]
    assert "unknown" not in rows[2]
    declared = features()
    stream = FileStream(tmp_path / "log", declared.unlabelled_schema, end="at_last")
    batch = stream.poll(10)
    stream.close()
    with ServedModel(published, follow=False) as model:
        asked = declared.read([*ROWS, {"age": np.float32(33.3).item(), "city": "b"}, ROWS[0]], labelled=False).columns
        served, learned = (model.graph.features.apply(columns) for columns in (asked, batch.columns))
    assert list(served) == list(learned)
    for name in served:
        one, other = served[name], learned[name]
        if hasattr(one, "offsets"):
            one, other = np.concatenate([one.values, one.offsets]), np.concatenate([other.values, other.offsets])
        assert (one.dtype, one.tobytes()) == (other.dtype, other.tobytes()), name


def test_a_missing_event_time_that_a_feature_reads_is_logged_as_the_server_read_it(tmp_path):
    """The network returns its input, the event time in seconds."""

    class Seconds(nn.Cell):
        def __init__(self):
            super().__init__()
            self.scale = nn.Dense(1, 1, weight_init="ones", has_bias=False)

        def construct(self, numbers):
            return self.scale(numbers)[:, 0]

    def declared():
        return Features([Numeric("at", missing=-1)], label="y", event_time="at")

    table = {"at": np.arange(8.0) + 1.7e9, "y": np.ones(8, np.float32)}
    net = Seconds()
    trainer = Trainer(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 1e-30), features=declared())
    trainer.fit(table, epochs=1, batch_size=8, callbacks=[Publish(tmp_path / "published", batch=4)])

    async def ask(service):
        rows = [{"at": None}, {"at": 1_700_000_000.25}, {"at": " "}]
        tensor = {"name": "at", "shape": [2, 1], "datatype": "FP64", "data": [1.7e9, None]}
        infer = Call("infer", json.dumps({"inputs": [tensor]}).encode(), request_id="t")
        answers = [json.loads((await service.handle(c)).body) for c in (call(rows, "r"), infer)]
        return [*answers[0]["prediction"], *answers[1]["outputs"][0]["data"]]

    before = time.time()
    answers = serving(tmp_path / "published", ask, log=str(tmp_path / "log"), log_wait=5.0)
    assert (answers[1], answers[3]) == (np.float32(1_700_000_000.25), 1.7e9)
    assert all(before - 128 <= answers[n] <= time.time() + 128 for n in (0, 2, 4))  # float32
    rows = declared().transform(logged(tmp_path / "log"))
    assert trainer.predict(rows).tolist() == answers


def test_a_share_of_the_requests_is_the_same_in_every_server_and_named_in_each_row(published, tmp_path):
    async def ask(service):
        for number in range(60):
            assert (await service.handle(call(ROWS[:2], f"r{number}"))).status == 200
        return await metrics_of(service)

    counted, ids = {}, {}
    for name in ("one", "other"):
        counted[name] = serving(published, ask, log=tmp_path / name, log_share=0.3, log_wait=5.0)
        ids[name] = [row["request_id"] for row in logged(tmp_path / name)]
    assert ids["one"] == ids["other"]
    assert counted["one"] == {"written": len(ids["one"]), "left_out": 120 - len(ids["one"])}
    assert 2 * 8 < len(ids["one"]) < 2 * 30
    assert {row["share"] for row in logged(tmp_path / "one")} == {0.3}
    assert len({name.partition("/")[0] for name in ids["one"]}) * 2 == len(ids["one"])  # whole requests


@pytest.mark.parametrize("target", ["folder", "redis"])
def test_a_full_disk_or_an_absent_broker_costs_no_answer(published, tmp_path, target):
    """Rows wait as long as there is room, then are counted; what waited is written once there is space again."""
    log = tmp_path / "log" if target == "folder" else f"unix://{tmp_path}/nobody.sock"
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)

    async def ask(service):
        assert (await service.handle(call(ROWS, "first"))).status == 200
        resource.setrlimit(resource.RLIMIT_FSIZE, (1200, limit[1]))  # no file grows beyond, as on a full disk
        try:
            replies = [await service.handle(call(ROWS, f"r{number}")) for number in range(20)]
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        assert [reply.status for reply in replies] == [200] * 20
        full = await metrics_of(service)
        text = (await service.handle(Call("metrics"))).body.decode()
        assert "trainer_serve_log_failing 1.0" in text
        return full["queue_full"]

    left_out = serving(published, ask, log=log, log_queue_rows=30, drain=20.0 if target == "folder" else 0.5)
    assert 20 <= left_out <= 33
    if target == "folder":
        names = [row["request_id"] for row in logged(log)]
        assert len(names) == len(set(names)) == 63 - left_out


def test_what_cannot_be_logged_or_served_is_refused_by_name(published, tmp_path):
    for options, said in (
        ({"log_share": 0.0}, "log_share takes a share in"),
        ({"log_wait": 10.0}, "log_wait must be less than timeout=10 s"),
        ({"log": "redsi://x"}, "did you mean 'redis'"),
        ({"log": None, "log_share": 0.5}, "need log"),
        ({"log_recommended": f"{tmp_path}/x/../log"}, "needs a different target than log"),
        (
            {"log": "redis://a/0", "log_recommended": "redis://a/0?key=served&maxlen=9"},
            "needs a different target than log",
        ),
        ({"log": "kafka://a/t", "log_recommended": "kafka://a/t?linger.ms=9"}, "needs a different target than log"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            serving(published, None, **{"log": tmp_path / "log", **options})
    declared = Features([Numeric("score")], label="click")
    table = {"score": np.arange(32.0), "click": np.zeros(32, np.float32)}
    net = DeepFM(declared, dim=2, hidden=[4])
    trainer = Trainer(net, nn.BCEWithLogitsLoss(), nn.Adam(net.trainable_params()), features=declared)
    trainer.fit(table, epochs=1, batch_size=32, callbacks=[Publish(tmp_path / "taken", batch=32)])
    with pytest.raises(ConfigurationError, match="the model reads a column 'score' of its own"):
        serving(tmp_path / "taken", None, log=tmp_path / "log")


def test_an_answer_that_waits_for_its_row_waits_no_longer_than_allowed(published, tmp_path):
    async def ask(service):
        began = time.monotonic()
        reply = await service.handle(call(ROWS[:1], "late"))
        assert time.monotonic() - began >= 0.3
        return reply.status

    assert serving(published, ask, log=f"unix://{tmp_path}/nobody.sock", log_wait=0.3, drain=0.1) == 200


def test_a_share_of_the_requests_and_one_of_the_negatives_are_drawn_apart(published, tmp_path):
    """Together their weights stand for all rows."""

    async def ask(service):
        for number in range(600):
            assert (await service.handle(call(ROWS[:1], f"r{number}"))).status == 200

    log, outcomes = tmp_path / "log", tmp_path / "outcomes"
    serving(published, ask, log=log, log_share=0.5)
    outcomes.mkdir()
    for folder in (log, outcomes):
        (folder / "_DONE").touch()
    stream = ServedOutcomes(log, outcomes, wait=60, negative_sampling_rate=0.5)
    stream.declare(features().schema)
    weights = [stream.poll(1000, 1.0).columns["weight"]]
    assert (stream.exhausted, set(weights[0].tolist())) == (True, {4.0})
    assert 400 < weights[0].sum() < 800
    stream.close()


def test_a_row_whose_time_is_blank_gets_that_of_the_answer(published, tmp_path):
    blanks = [{**ROWS[0], "at": value} for value in ("", " ", None)]

    async def ask(service):
        assert (await service.handle(call(blanks))).status == 200
        tensors = [{"name": "age", "shape": [1], "datatype": "FP64", "data": [30]}]
        tensors.append({"name": "at", "shape": [1], "datatype": "FP64", "data": [None]})
        body = json.dumps({"inputs": tensors}).encode()
        assert (await service.handle(Call("infer", body))).status == 200

    serving(published, ask, log=tmp_path / "log", log_wait=5.0)
    rows = logged(tmp_path / "log")
    assert [row["at"] for row in rows] == [row["served_at"] for row in rows]
    assert len(rows) == 4


def test_a_model_that_the_log_cannot_take_is_not_kept_by_a_server_that_waits(tmp_path):
    """Such a server tries again; each try opened the model anew, with a thread that followed it."""
    declared = Features([Numeric("score")], label="click")
    net = DeepFM(declared, dim=2, hidden=[4])
    trainer = Trainer(net, nn.BCEWithLogitsLoss(), nn.Adam(net.trainable_params(), 1e-2), features=declared)
    table = {"score": np.arange(8.0), "click": np.ones(8, np.float32)}
    trainer.fit(table, epochs=1, batch_size=8, callbacks=[Publish(tmp_path / "published", batch=4)])

    async def wait(service):
        for _ in range(100):
            reply = await service.handle(Call("ready"))
            if b"rename that column" in reply.body:
                break
            await asyncio.sleep(0.05)
        await asyncio.sleep(1.0)
        return reply, [thread.name for thread in threading.enumerate() if thread not in earlier]

    empty = tmp_path / "empty"
    earlier = threading.enumerate()  # models of other tests may still be open

    async def run():
        service = Service(empty, ServeOptions(wait=True, log=str(tmp_path / "log")))
        await service.start()
        (tmp_path / "published").rename(empty)
        try:
            return await wait(service)
        finally:
            await service.stop()

    reply, threads = asyncio.run(run())
    assert (reply.status, b"rename that column" in reply.body) == (503, True)
    assert threads.count("model-consumer") <= 1


def test_a_new_version_whose_columns_the_log_cannot_take_is_answered_and_not_logged(tmp_path, caplog):
    """Its column would have been logged with the number of the version, and learned from the log so."""
    root = tmp_path / "published"

    def publish(*names):
        declared = Features([Numeric(name) for name in names], label="click")
        net = DeepFM(declared, dim=2, hidden=[4])
        trainer = Trainer(net, nn.BCEWithLogitsLoss(), nn.Adam(net.trainable_params(), 1e-2), features=declared)
        table = {name: np.arange(8.0) for name in names} | {"click": np.ones(8, np.float32)}
        trainer.fit(table, epochs=1, batch_size=8, callbacks=[Publish(root, batch=4)])

    async def ask(service):
        assert (await service.handle(call([{"age": 1.0}]))).status == 200
        await asyncio.to_thread(publish, "age", "version")
        for _ in range(500):
            reply = await service.handle(call([{"age": 1.0, "version": 3.5}] * 2))
            if b'"version":4' in reply.body:
                break
            await asyncio.sleep(0.02)
        assert reply.status == 200
        return await metrics_of(service)

    publish("age")
    counts = serving(root, ask, log=tmp_path / "log", log_wait=5.0)
    assert counts["unusable"] >= 2
    assert "answered rows are not logged: serve: the log of served rows has the columns" in caplog.text
    assert {row["version"] for row in logged(tmp_path / "log")} <= {1, 2}
    assert all(row["age"] == 1.0 for row in logged(tmp_path / "log"))
