"""`trainer serve`: a published model answers over HTTP, with the real server and the real model."""

import asyncio
import contextlib
import gc
import json
import shutil
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from mindspore import nn

from trainer import Trainer
from trainer.embedding import Embedding
from trainer.errors import ConfigurationError
from trainer.experiment.cli import main
from trainer.features import Categorical, FeatureEmbedding, Features, ListFeature, Numeric, Vector
from trainer.serving import Publish, ServedModel, Versions
from trainer.serving.http.open_inference import rows_of_infer
from trainer.serving.http.request_rows import RowReader
from trainer.serving.http.service import Service
from trainer.serving.http.service_call import Call, ServeOptions

sys.path.insert(0, str(Path(__file__).parents[3]))  # benchmarks are not installed

from benchmarks.serve_process import Server

pytestmark = pytest.mark.server

TOKEN = "a-token-of-the-test"
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}
MANY = [{"age": age, "city": city} for age in (20.0, 33.3, 61.0) for city in "abc"] * 11  # more than a program's batch
ROWS = [{"age": 33, "city": "a"}, {"age": 41.5, "city": None}, {"age": 18, "city": "new"}]


class Linear(nn.Cell):
    def __init__(self, features):
        super().__init__()
        self.embedding = FeatureEmbedding(features, dim=1)
        self.weights = nn.Dense(self.embedding.number_width, 1)

    def construct(self, *columns):
        fields, numbers, _ = self.embedding(*columns)
        return self.weights(numbers)[:, 0] + fields.sum((1, 2))


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shop") / "ads"
    publish_again(folder)
    return folder


def publish_again(folder):
    """Train, the further the more versions there are, and publish."""
    rng = np.random.default_rng(0)
    table = {"age": rng.uniform(18, 70, 512), "city": rng.choice(list("abc"), 512)}
    table |= {"click": (table["age"] > 40).astype(np.float32), "weight": np.ones(512, np.float32)}
    declared = [Numeric("age", normalize="standard", required=True), Categorical("city")]
    features = Features(declared, label="click", weight="weight")
    net = Linear(features)
    trainer = Trainer(net, nn.BCEWithLogitsLoss(), nn.Adam(net.trainable_params(), 1e-2), features=features)
    trainer.fit(table, epochs=1 + folder.exists(), batch_size=256, callbacks=[Publish(folder, batch=32)])


@pytest.fixture(scope="module")
def expected(published):
    with ServedModel(published, follow=False) as model:
        return model.version, model.predict(ROWS), model.predict(ROWS, output="probability")


@pytest.fixture(scope="module")
def server(published):
    limits = ["--request-rows", "50", "--body-bytes", "4000"]
    server = Server(published, *limits, "--timeout", "5", TRAINER_SERVE_TOKEN=TOKEN)
    yield server
    server.stop()


def test_rows_are_answered_with_probabilities_logits_and_the_version(server, expected):
    status, _, answer = server.ask("/predict", {"rows": ROWS, "logits": True}, **AUTHORIZED)
    assert status == 200
    assert (answer["version"], answer["errors"]) == (expected[0], [])
    assert answer["age_seconds"] > 0
    np.testing.assert_array_equal(np.float32(answer["logits"]), expected[1])
    np.testing.assert_array_equal(np.float32(answer["probability"]), expected[2])
    columns = {"columns": {name: [row[name] for row in ROWS] for name in ROWS[0]}}
    for body in (ROWS, columns):
        assert server.ask("/predict", body, **AUTHORIZED)[2]["probability"] == answer["probability"]
    alone = server.ask("/predict?logits=true", ROWS[0], **AUTHORIZED)[2]
    assert (alone["probability"], alone["logits"]) == (answer["probability"][:1], answer["logits"][:1])


def test_a_bad_row_is_named_and_its_neighbours_are_answered(server, expected):
    rows = [ROWS[0], {"age": "old"}, ROWS[1], {"city": "a"}, {"agee": 3}, 7, ROWS[2]]
    status, _, answer = server.ask("/predict", {"rows": rows}, **AUTHORIZED)
    assert status == 200
    assert [p for p in answer["probability"] if p is not None] == expected[2].tolist()
    assert [(e["row"], e["status"], e["column"]) for e in answer["errors"]] == [
        (1, 422, "age"),
        (3, 422, "age"),
        (4, 422, None),
        (5, 422, None),
    ]
    reasons = [error["reason"] for error in answer["errors"]]
    assert "'old'" in reasons[0]
    assert "missing" in reasons[1]
    assert "did you mean 'age'?" in reasons[2]
    status, _, answer = server.ask("/predict", {"rows": rows[1:2]}, **AUTHORIZED)
    assert (status, answer["probability"], answer["errors"][0]["column"]) == (422, [None], "age")


@pytest.mark.parametrize(
    ("body", "media", "status", "said"),
    [
        (b"{", "application/json", 400, "not JSON"),
        (b"[]", "application/json", 400, "no rows"),
        (b'{"rows": [{}], "logit": 1}', "application/json", 400, "'logit'"),
        (b'{"columns": {"age": [1, 2], "city": ["a"]}}', "application/json", 400, "equal length"),
        (b"age=3", "text/csv", 415, "text/csv"),
        (b"[" + b",".join([b"{}"] * 51) + b"]", "application/json", 413, "up to 50 rows; received 51"),
        (b" " * 4001, "application/json", 413, "up to 4000 bytes"),
    ],
)
def test_what_is_no_request_is_refused_with_the_reason(server, body, media, status, said):
    answer = server.ask("/predict", body, media, **AUTHORIZED)
    assert answer[0] == status
    assert said in answer[2]["error"]


def test_the_token_is_asked_for_except_by_probes(server):
    for path, body in (("/predict", ROWS), ("/metrics", None), ("/openapi.json", None)):
        assert server.ask(path, body)[0] == 401
        assert server.ask(path, body, Authorization="Bearer other")[0] == 401
    assert server.ask("/healthz")[0] == server.ask("/readyz")[0] == 200


def test_state_metrics_and_description(server, expected):
    state = server.ask("/readyz")[2]
    assert (state["ready"], state["version"], state["problem"], state["name"]) == (True, expected[0], None, "ads")
    server.ask("/predict", ROWS, **AUTHORIZED)
    metrics = server.ask("/metrics", **AUTHORIZED)[2].decode()
    assert f"trainer_serve_model_version {expected[0]}.0" in metrics
    assert 'trainer_serve_requests_total{operation="predict",status="200"}' in metrics
    document = server.ask("/openapi.json", **AUTHORIZED)[2]
    body = document["paths"]["/predict"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert set(body["anyOf"][-1]["properties"]) == {"age", "city"}
    status, _, answer = server.ask("/predictions", **AUTHORIZED)
    assert (status, answer["error"]) == (404, "/predictions is not served; GET /openapi.json lists what is")
    status, _, answer = server.ask("/predict", **AUTHORIZED)
    assert (status, answer["error"]) == (405, "/predict takes POST; received GET; see GET /openapi.json")


def test_the_open_inference_protocol(server, expected):
    inputs = [
        {"name": "age", "shape": [3], "datatype": "FP64", "data": [row["age"] for row in ROWS]},
        {"name": "city", "shape": [3, 1], "datatype": "BYTES", "data": [row["city"] for row in ROWS]},
    ]
    request = {"id": "7", "inputs": inputs, "outputs": [{"name": "probability"}]}
    status, _, answer = server.ask("/v2/models/ads/infer", request, **AUTHORIZED)
    assert (status, answer["id"], answer["model_version"]) == (200, "7", str(expected[0]))
    (tensor,) = answer["outputs"]
    assert (tensor["name"], tensor["datatype"], tensor["shape"]) == ("probability", "FP32", [3])
    assert tensor["data"] == expected[2].tolist()
    assert server.ask("/v2/models/ads/ready", **AUTHORIZED)[0] == server.ask("/v2/health/live")[0] == 200
    model = server.ask("/v2/models/ads", **AUTHORIZED)[2]
    assert {one["name"]: one["datatype"] for one in model["inputs"]} == {"age": "FP64", "city": "BYTES"}
    inputs[0]["data"] = [1, 2]
    assert "shape [3]" in server.ask("/v2/models/ads/infer", request, **AUTHORIZED)[2]["error"]
    assert server.ask("/v2/models/other/infer", request, **AUTHORIZED)[0] == 404


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"datatype": "INT32", "data": [0.9, 1, 2]}, "not INT32 values"),
        ({"datatype": "INT32", "data": ["1", "2", "3"]}, "not INT32 values"),
        ({"datatype": "INT32", "data": [True, False, True]}, "not INT32 values"),
        ({"datatype": "UINT8", "data": [300, 1, 2]}, "not UINT8 values"),
        ({"datatype": "UINT64", "data": [-1, 1, 2]}, "not UINT64 values"),
        ({"datatype": "FP32", "data": [1e39, 1, 2]}, "not FP32 values"),
        ({"datatype": "FP32", "data": ["1", "2", "3"]}, "not FP32 values"),
        ({"datatype": "BOOL", "data": [1, 0, 1]}, "not BOOL values"),
        ({"datatype": "BYTES", "data": [1, 2, 3]}, "not BYTES values"),
        ({"datatype": ["a"], "data": [1, 2, 3]}, "datatype takes BYTES"),
        ({"datatype": "FP32", "data": 5}, "not FP32 values"),
        ({"datatype": "FP32", "data": [1, 2, 3], "name": "city"}, "a different name"),
        ({"datatype": "FP32", "data": [1, 2, 3], "name": 3}, "a different name"),
    ],
)
def test_tensors_that_do_not_hold_their_datatype_are_refused(server, change, said):
    age = {"name": "age", "shape": [3], **change}
    city = {"name": "city", "shape": [3], "datatype": "BYTES", "data": ["a", None, "b"]}
    status, _, answer = server.ask("/v2/models/ads/infer", {"inputs": [age, city]}, **AUTHORIZED)
    assert (status, said in answer["error"]) == (400, True), answer


@pytest.mark.parametrize(
    "outputs", [5, ["probability"], [{"parameters": {}}], {"name": "probability"}, [{"name": ["x"]}]], ids=str
)
def test_outputs_of_another_form_are_refused(server, outputs):
    inputs = [{"name": "age", "shape": [1], "datatype": "INT64", "data": [30.0]}]
    request = {"inputs": inputs, "outputs": outputs}
    status, _, answer = server.ask("/v2/models/ads/infer", request, **AUTHORIZED)
    assert (status, answer["error"].startswith('"outputs" takes a list')) == (400, True), answer


def test_many_requests_at_once_become_batches(published, expected):
    async def ask_all():
        service = Service(published, ServeOptions(batch_delay=0.05))
        await service.start()
        calls = [service.handle(Call("predict", b'{"age": %d, "city": "a"}' % age)) for age in range(20, 40)]
        bad = service.handle(Call("predict", b'{"city": "a"}'))
        replies = await asyncio.gather(*calls, bad)
        text = (await service.handle(Call("metrics"))).body.decode()
        await service.stop()
        return replies, text

    replies, text = asyncio.run(ask_all())
    assert [reply.status for reply in replies] == [200] * 20 + [422]
    with ServedModel(published, follow=False) as model:
        wanted = model.predict({"age": list(range(20, 40)), "city": ["a"] * 20}, output="probability")
    answers = [json.loads(reply.body)["probability"] for reply in replies[:20]]
    assert answers == [[value] for value in wanted.tolist()]
    assert "trainer_serve_batch_rows_count 1.0" in text


def test_requests_beyond_the_queue_or_the_time_are_refused(published):
    async def ask_all(**options):
        service = Service(published, ServeOptions(batch_delay=0.5, **options))
        await service.start()
        replies = await asyncio.gather(*[service.handle(Call("predict", b'{"age": 3}')) for _ in range(3)])
        await service.stop()
        return sorted(reply.status for reply in replies)

    assert asyncio.run(ask_all(queue_rows=2)) == [200, 200, 429]
    assert asyncio.run(ask_all(timeout=0.05)) == [504, 504, 504]


def test_a_server_waits_for_the_first_version_where_it_is_to(tmp_path):
    async def ask():
        service = Service(tmp_path, ServeOptions(wait=True))
        await service.start()
        replies = [await service.handle(Call(name, b'{"age": 3}')) for name in ("ready", "predict")]
        await service.stop()
        return [reply.status for reply in replies]

    assert asyncio.run(ask()) == [503, 503]


def test_readiness_says_why_a_newer_version_is_not_served_and_that_one_is_too_old(published, tmp_path, expected):
    root = shutil.copytree(published, tmp_path / "ads")
    sound = (root / "current.json").read_bytes()

    async def ready(service, expect):
        for _ in range(600):
            reply = await service.handle(Call("ready"))
            state = json.loads(reply.body)
            if expect(state):
                return reply.status, state
            await asyncio.sleep(0.05)
        raise AssertionError(state)

    async def ask():
        service = Service(root, ServeOptions())
        await service.start()
        (root / "current.json").write_text("{")
        damaged = await ready(service, lambda state: state["problem"] is not None)
        answer = await service.handle(Call("predict", json.dumps(ROWS).encode()))
        (root / "current.json").write_bytes(sound)
        again = await ready(service, lambda state: state["problem"] is None)
        await service.stop()
        service = Service(root, ServeOptions(max_age=1e-3))
        await service.start()
        old = await ready(service, lambda state: True)
        await service.stop()
        return damaged, json.loads(answer.body), again, old

    damaged, answer, again, old = asyncio.run(ask())
    assert (damaged[0], damaged[1]["ready"], damaged[1]["version"]) == (200, True, expected[0])
    assert "current.json" in damaged[1]["problem"]
    assert answer["probability"] == expected[2].tolist()
    assert again[0] == 200
    assert (old[0], old[1]["ready"]) == (503, False)
    assert "no new version for" in old[1]["problem"]


def test_other_machines_need_a_token():
    with pytest.raises(ConfigurationError, match="TRAINER_SERVE_TOKEN"):
        ServeOptions(host="0.0.0.0")
    assert ServeOptions(host="0.0.0.0", token="secret-token").port == 8080


def test_a_body_that_does_not_come_is_given_up(published):
    server = Server(published, "--timeout", "0.5")
    with socket.create_connection(urlsplit(server.url).netloc.split(":"), 30) as client:
        client.sendall(
            b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
        )
        assert client.recv(4096).startswith(b"HTTP/1.1 408")
    assert server.stop() == 128 + signal.SIGTERM


class Taste(nn.Cell):
    def __init__(self):
        super().__init__()
        self.taste, self.top = Embedding(4, mode="sparse"), nn.Dense(4, 1)

    def construct(self, ids):
        return self.top(self.taste(ids))[:, 0]


def test_a_request_does_not_depend_on_others_of_its_batch(tmp_path):
    """Raw ids as numbers, text and what cannot be read, alone and in one batch: the same status and the same answer."""
    net = Taste()
    trainer = Trainer(net, nn.BCEWithLogitsLoss(), nn.Adam(net.trainable_params(), 0.1))
    ids = np.arange(2000) % 20
    label = (ids % 2).astype(np.float32)
    trainer.fit({"ids": ids, "label": label}, batch_size=100, callbacks=[Publish(tmp_path, batch=8)])
    rows = [5, "a", "5", 7.5, None, [3], {"a": 1}, 2**70, True, "", -(2**63)]
    bodies = [json.dumps({"rows": [{"ids": value}, {"ids": 3}][: 1 + (value != "a")]}).encode() for value in rows]
    bodies.append(json.dumps({"columns": {"ids": [5, 6]}}).encode())
    bodies.append(json.dumps({"columns": {"ids": ["5", "b"]}}).encode())

    async def ask_all():
        service = Service(tmp_path, ServeOptions(batch_delay=0.2))
        await service.start()
        alone = [await service.handle(Call("predict", body)) for body in bodies]
        together = await asyncio.gather(*[service.handle(Call("predict", body)) for body in bodies])
        text = (await service.handle(Call("metrics"))).body.decode()
        await service.stop()
        return alone, together, text

    alone, together, text = asyncio.run(ask_all())
    assert "trainer_serve_batch_rows_count" in text
    for body, one, other in zip(bodies, alone, together, strict=True):
        expected, received = json.loads(one.body), json.loads(other.body)
        for answer in (expected, received):
            answer.pop("age_seconds", None)
            answer.pop("request_id", None)
        assert (body, other.status, received) == (body, one.status, expected)
        assert one.status in (200, 422)
    assert {reply.status for reply in alone[:2]} == {200}


def test_every_answer_is_that_of_its_version_while_versions_change(published, tmp_path):
    """Two versions take each other's place all the time; each answer is one of them, in all of its rows."""
    root = shutil.copytree(published, tmp_path / "ads")
    versions = Versions(root)
    old = versions.newest()
    publish_again(root)
    new = versions.newest()
    answers = {}
    for number in (old, new):
        with ServedModel(root, version=number, follow=False) as model:
            answers[number] = model.predict(MANY, output="probability").tolist()
    assert all(a != b for a, b in zip(answers[old], answers[new], strict=True))

    async def ask_all():
        service, seen = Service(root, ServeOptions()), set()
        await service.start()
        stop = threading.Event()
        thread = threading.Thread(target=change, args=(stop,))
        thread.start()
        body = json.dumps(MANY).encode()
        columns = {"FP64": "age", "BYTES": "city"}
        inputs = [
            {"name": name, "datatype": kind, "shape": [len(MANY)], "data": [row[name] for row in MANY]}
            for kind, name in columns.items()
        ]
        infer = json.dumps({"inputs": inputs}).encode()
        calls = [Call("predict", body)] * 2 + [Call("infer", infer, version=str(n)) for n in (old, new) * 2]
        until = time.monotonic() + 60
        try:
            for _ in range(100):
                replies = await asyncio.gather(*map(service.handle, calls))
                for call, reply in zip(calls, replies, strict=True):
                    answer = json.loads(reply.body)
                    if call.operation == "predict":
                        assert answer["probability"] == answers[answer["version"]]
                        seen.add(answer["version"])
                    elif reply.status == 200:  # of the version that was asked for
                        assert answer["model_version"] == call.version
                        assert answer["outputs"][0]["data"] == answers[int(call.version)]
                        seen.add(call.version)
                    else:
                        assert (reply.status, f"received '{call.version}'" in answer["error"]) == (404, True)
                        seen.add(404)
                if len(seen) == 5 or time.monotonic() > until:
                    break
        finally:
            stop.set()
            thread.join()
            await service.stop()
        return seen

    def change(stop):
        while not stop.is_set():
            for number in (old, new):
                versions.pin(number)
                time.sleep(0.06)

    assert asyncio.run(ask_all()) == {old, new, str(old), str(new), 404}


VALID = {
    "/predict": {"rows": [{"age": 33, "city": "a"}], "logits": True},
    "/predict?": {"columns": {"age": [33, 2.5], "city": ["a", None]}},
    "/v2/models/ads/infer": {
        "id": "7",
        "inputs": [
            {"name": "age", "shape": [2, 1], "datatype": "FP32", "data": [33, 2.5]},
            {"name": "city", "shape": [2], "datatype": "BYTES", "data": ["a", "b"]},
        ],
        "outputs": [{"name": "probability"}],
    },
}
JUNK = ["null", "true", "-1", "1e400", "2.5", str(2**70), '""', '"\\ud800"', '"x"', "[]", "{}", '["x"]', "[[[1]]]"]
JUNK += ['{"a": {"b": []}}', "[" * 5000, "}"]


def reasons(answer):
    """Return why a request, or each of its bad rows, was not answered; none is empty."""
    named = [answer["error"]] if "error" in answer else [error["reason"] for error in answer["errors"]]
    return named if all(named) else []


def with_junk(value, junk):
    """Yield the JSON of a value with junk in the place of each of its parts in turn."""
    yield junk
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        for text in with_junk(part, junk):
            marked = {**value, key: "MARK"} if isinstance(value, dict) else [*value[:key], "MARK", *value[key + 1 :]]
            yield json.dumps(marked).replace('"MARK"', text)


@pytest.mark.parametrize("path", VALID)
@pytest.mark.parametrize("junk", JUNK, ids=lambda junk: junk[:12])
def test_junk_anywhere_in_a_body_is_answered_with_the_reason(server, path, junk):
    server.connection.close()  # one that has been idle may be closed by the server
    for text in with_junk(VALID[path], junk):
        status, _, answer = server.ask(path, text.encode(), **AUTHORIZED)
        assert status in (200, 400, 413, 422), (text, status, answer)
        assert status == 200 or reasons(answer), (text, answer)
    assert server.ask("/readyz")[0] == 200


@pytest.mark.parametrize(
    "path",
    ["/predict", "/healthz", "/readyz", "/metrics", "/openapi.json", "/v2", "/v2/health/ready",
     "/v2/models/ads", "/v2/models/ads/ready", "/v2/models/ads/infer", "/v2/models/ads/versions/1/infer",
     "/v2/models/ads/versions/x",
     "/v2/models/%00/infer", "/v2/models/ads/versions/99/infer", "/../etc"],
)  # fmt: skip
def test_malformed_requests_of_every_endpoint_are_answered_in_time(server, path):
    connection = server.connection
    connection.close()
    bodies = [b"", b"\x00\xff", b"{", b'{"inputs": [{}]}', b'"rows"', b"NaN"]
    for method in ("GET", "POST", "PUT", "DELETE", "PATCH"):
        for media in ("application/json", "text/csv", "", "application/json; charset=utf-16"):
            for body in bodies if method != "GET" else [None]:
                connection.request(method, path, body, {**AUTHORIZED, "Content-Type": media, "Accept": "\xff"})
                answer = connection.getresponse()  # TimeoutError where there is none
                content = answer.read()
                wellformed = method == "GET" and answer.status == 200
                assert wellformed or 400 <= answer.status < 500, (method, path, media, body, answer.status, content)
                assert wellformed or reasons(json.loads(content)), content
    assert server.ask("/readyz")[0] == 200


@pytest.mark.parametrize(
    "lines",
    [b"POST /predict HTTP/1.1\r\nContent-Length: x\r\n\r\n", b"POST /predict HTTP/9\r\n\r\n", b"\x16\x03\x01\x00\xff",
     b"POST /predict HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"GET " + b"/" * 100_000,
     b"GET / HTTP/1.1\r\n" + b"a: " + b"b" * 200_000 + b"\r\n\r\n"],
)  # fmt: skip
def test_what_is_no_http_ends_its_connection_alone(server, lines):
    client = socket.create_connection(urlsplit(server.url).netloc.split(":"), 10)
    with client, contextlib.suppress(ConnectionError):
        client.sendall(lines)
        client.shutdown(socket.SHUT_WR)
        assert client.recv(4096)[9:12] in (b"400", b"401", b"404", b"431", b""), lines[:40]
    assert server.ask("/readyz")[0] == 200


def test_a_signal_closes_the_listener_and_open_requests_are_answered(server):
    """Kept last: the server is stopped while a request is on its way."""
    address = urlsplit(server.url).netloc.split(":")
    server.connection.close()  # one that has been idle may be closed by the server
    with socket.create_connection(address, 30) as client:
        head = f"POST /predict HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
        client.sendall(f"{head}Content-Type: application/json\r\nContent-Length: 12\r\n\r\n".encode())
        assert server.ask("/healthz")[0] == 200
        server.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(ConnectionRefusedError):  # the listener is closed first
            for _ in range(100):
                socket.create_connection(address, 5).close()
                time.sleep(0.05)
            pytest.fail("the server still listens")
        client.sendall(b'{"age": 33} ')
        assert client.recv(15).startswith(b"HTTP/1.1 200")
    assert server.stop() == 128 + signal.SIGTERM
    assert TOKEN not in "".join(server.lines)
    assert "Traceback" not in "".join(server.lines)


def test_collections_of_garbage_do_not_visit_what_the_server_started_with(published, monkeypatch):
    seen = []

    def serve(root, options, started):
        started("http://localhost")
        seen.append(len(gc.get_objects()))
        return signal.SIGTERM

    monkeypatch.setattr("trainer.serving.http.web_server.serve", serve)
    before = len(gc.get_objects())
    assert main(["serve", str(published), "--port", "0"]) == 128 + signal.SIGTERM
    assert seen[0] < before / 100
    assert len(gc.get_objects()) > before / 2  # a process that goes on collects as before


class Places(nn.Cell):
    def __init__(self):
        super().__init__()
        self.users = Embedding(2, name="users")
        self.places = Embedding(2, 10, name="places")

    def construct(self, user, place):
        return (self.users(user) + self.places(place)).sum(1)


def test_ids_have_the_range_that_they_have_in_the_trainer(tmp_path):
    network = Places()
    trainer = Trainer(network, nn.MSELoss(), nn.Adam(network.trainable_params(), 0.1))
    users = np.array([2**63, 2**64 - 1, 7], np.uint64)
    rows = {"user": users, "place": np.array([0, 9, 3])}
    signed = {**rows, "user": users.view(np.int64), "y": np.ones(3, np.float32)}
    trainer.fit(signed, 3, batch_size=3, callbacks=[Publish(tmp_path, batch=8)])
    expected = [*trainer.predict(rows).tolist(), None, None]
    columns = {"user": [*users.tolist(), 2**64, 7], "place": [0, 9, 3, 3, 10]}
    tensors = {"inputs": [
        {"name": "user", "shape": [3], "datatype": "UINT64", "data": users.tolist()},
        {"name": "place", "shape": [3], "datatype": "INT64", "data": [0, 9, 3]},
    ]}  # fmt: skip

    async def ask():
        service = Service(tmp_path, ServeOptions())
        await service.start()
        calls = [
            Call("predict", json.dumps({"columns": columns}).encode()),
            Call("infer", json.dumps(tensors).encode()),
        ]
        answers = [json.loads((await service.handle(call)).body) for call in calls]
        await service.stop()
        return answers

    of_rows, of_tensors = asyncio.run(ask())
    assert of_rows["prediction"] == expected
    assert [error["reason"] for error in of_rows["errors"]] == [
        f"takes int64 from {-(2**63)} to {2**63 - 1}; received {2**64}",
        "takes int64 from 0 to 9; received 10",
    ]
    assert of_tensors["outputs"][0]["data"] == expected[:3]


class OfFeatures:
    def __init__(self, *declared):
        self.features = Features(declared)


@pytest.mark.parametrize("rows", [1, 2])
def test_a_tensor_of_one_value_a_row_is_a_list_where_lists_are_declared(rows):
    def tensor(name, kind, values):
        return {"name": name, "shape": [rows, 1], "datatype": kind, "data": values[:rows]}

    reader = RowReader(OfFeatures(Categorical("city"), ListFeature("tags"), Vector("face", width=1)))
    columns = [tensor("city", "BYTES", ["a", "b"]), tensor("tags", "BYTES", ["x", "y"]), tensor("face", "FP32", [1, 2])]
    request = rows_of_infer(json.dumps({"inputs": columns}).encode())
    read = reader.read(request)
    assert (read.columns["city"].tolist(), read.reasons) == (["a", "b"][:rows], {})
    assert [row.tolist() for row in read.columns["tags"]] == [["x"], ["y"]][:rows]
    assert read.columns["face"].tolist() == [[1.0], [2.0]][:rows]
    assert reader.raw_rows(request, [0]) == [{"city": "a", "tags": ["x"], "face": [1.0]}]


def test_integers_below_and_above_the_largest_signed_one_are_exact_in_one_tensor():
    users = {"name": "user", "shape": [2], "datatype": "UINT64", "data": [5, 2**63 + 1]}
    request = rows_of_infer(json.dumps({"inputs": [users]}).encode())
    read = RowReader(OfFeatures(Categorical("user"))).read(request)
    assert read.columns["user"].tolist() == ["5", str(2**63 + 1)]
