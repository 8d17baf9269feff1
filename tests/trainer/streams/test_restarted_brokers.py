"""Servers that go away and come back in the middle of a training and at a resume."""

import json
import threading

import pytest
from mindspore import nn

from trainer import Callback, ModelCheckpoint, Trainer
from trainer.streams import KafkaStream, RedisStream

pytestmark = pytest.mark.server

BATCH = 4


class Users(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(1, 1)

    def construct(self, user, ids, price):
        return self.dense(price[:, None])[:, 0]


class Redis:
    def __init__(self, server, schema):
        self.server, self.schema = server, schema
        self.away, self.back = server.kill, server.start

    def produce(self, rows):
        for row in rows:
            self.server.client().xadd("clicks", {"data": json.dumps(row)})

    def open(self):
        return RedisStream("clicks", self.schema, url=self.server.url)


class Kafka:
    def __init__(self, cluster, schema):
        self.cluster, self.schema = cluster, schema
        self.away, self.back = cluster.down, cluster.up

    def produce(self, rows):
        self.cluster.produce([json.dumps(row) for row in rows])

    def open(self):
        config = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 50, "fetch.wait.max.ms": 20}
        return KafkaStream("clicks", self.schema, servers=self.cluster.servers, config=config)


@pytest.fixture(params=["redis", "kafka"])
def broker(request, schema):
    if request.param == "redis":
        return Redis(request.getfixturevalue("redis_server"), schema)
    return Kafka(request.getfixturevalue("make_kafka")("clicks"), schema)


@pytest.fixture(scope="module")
def trainer():
    network = Users()
    return Trainer(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.01))


class Outage(Callback):
    """Notes the rows of every step; takes the server away after the second one for a moment, then adds rows."""

    def __init__(self, broker, rows):
        self.broker, self.rows, self.trained = broker, rows, []
        self.timer = threading.Timer(0.5, self.come_back)

    def come_back(self):
        self.broker.back()
        self.broker.produce(self.rows)

    def on_train_step_end(self, trainer):
        chunk = trainer.state.outputs.chunk
        self.trained += chunk.rows(chunk.names.index("user"))[: chunk.num_samples].tolist()
        if len(self.trained) == 2 * BATCH:
            self.broker.away()
            self.timer.start()


@pytest.mark.long(but=["redis"])
def test_every_row_is_trained_once_through_outages(broker, trainer, rows, tmp_path, caplog):
    options = {"batch_size": BATCH, "sink_size": 1, "idle_timeout": 20.0, "resume": tmp_path}
    trainer.state.progress.global_step = 0
    broker.produce(rows(0, 10))
    outage = Outage(broker, rows(10, 24))
    saving = ModelCheckpoint(tmp_path, every=2)
    stream = broker.open()
    trainer.online_train(stream, [outage, saving], max_steps=4, **{**options, "resume": None})
    stream.close()
    assert outage.trained == list(range(16))
    assert "growing waits" in caplog.text
    assert "is back" in caplog.text

    outage.timer.join()  # all rows are produced before the server goes away again
    broker.away()  # and not there when the run goes on
    threading.Timer(0.5, broker.back).start()
    stream = broker.open()
    trainer.online_train(stream, [outage, saving], max_steps=6, **options)
    stream.close()
    assert outage.trained == list(range(24))
