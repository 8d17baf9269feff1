"""Failures of Redis and Kafka for `fault_calls`: the clients' calls, a server's replies, a broker's answers."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

# The requests of Kafka's protocol that a consumer sends, by their numbers.
REQUESTS = {
    "Kafka request: fetch": 1,
    "Kafka request: list offsets": 2,
    "Kafka request: metadata": 3,
    "Kafka request: commit": 8,
    "Kafka request: committed": 9,
    "Kafka request: find coordinator": 10,
}
_OF_LEADER = ("NOT_LEADER_FOR_PARTITION", "REQUEST_TIMED_OUT", "_TRANSPORT")
_OF_COORDINATOR = ("COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR", "_TRANSPORT")
ERRORS: dict[str, tuple[str, ...]] = {
    "Redis reply": ("LOADING", "READONLY", "OOM"),
    "Kafka": ("_ALL_BROKERS_DOWN", "_TRANSPORT"),
    "Kafka request: fetch": (*_OF_LEADER, "UNKNOWN_TOPIC_OR_PART", "OFFSET_OUT_OF_RANGE", "KAFKA_STORAGE_ERROR"),
    "Kafka request: list offsets": _OF_LEADER,
    "Kafka request: metadata": ("LEADER_NOT_AVAILABLE", "REQUEST_TIMED_OUT", "_TRANSPORT"),
    "Kafka request: commit": _OF_COORDINATOR,
    "Kafka request: committed": _OF_COORDINATOR,
    "Kafka request: find coordinator": _OF_COORDINATOR,
}
_LASTING = 50  # requests
_CALLS = (
    "consume",
    "assign",
    "get_watermark_offsets",
    "offsets_for_times",
    "list_topics",
    "seek",
    "commit",
    "committed",
    "pause",
    "resume",
    "close",
)


def error(name: str) -> Exception:
    """Return the exception with which a client reports an error of `ERRORS`."""
    if name in ERRORS["Redis reply"]:
        from redis import exceptions

        kind = {
            "LOADING": exceptions.BusyLoadingError,
            "READONLY": exceptions.ReadOnlyError,
            "OOM": exceptions.OutOfMemoryError,
        }[name]
        return kind(f"{name} (injected)")
    import confluent_kafka

    code = getattr(confluent_kafka.KafkaError, name)
    return confluent_kafka.KafkaException(confluent_kafka.KafkaError(code, "injected"))


@contextlib.contextmanager
def failing_requests(cluster: Any, kind: str, number: int, name: str, lasting: bool) -> Iterator[None]:
    """Let a broker answer its next request but `number` of one kind with an error, for a while."""
    import confluent_kafka

    code = getattr(confluent_kafka.KafkaError, name)
    cluster.fail_requests(REQUESTS[kind], [0] * number + [code] * (_LASTING if lasting else 1))
    try:
        yield
    finally:
        cluster.stop_failing(REQUESTS[kind])


def requests(cluster: Any) -> Counter[str]:
    """Return how many requests of each kind came since the last call."""
    counts = cluster.count_requests()
    return Counter({kind: counts[api] for kind, api in REQUESTS.items() if counts[api]})


def replacements(check: Callable[[str], None]) -> Iterator[tuple[Any, str, Any]]:
    """Yield what replaces parts of the clients: (owner, name, replacement); `check` counts a call and may raise."""
    import confluent_kafka
    from redis.connection import AbstractConnection

    class Consumer(confluent_kafka.Consumer):
        def __init__(self, *args: Any) -> None:
            check("Kafka")
            super().__init__(*args)

    for name in _CALLS:

        def failing(consumer: Any, *args: Any, _name: str = name, **named: Any) -> Any:
            check("Kafka")
            return getattr(confluent_kafka.cimpl.Consumer, _name)(consumer, *args, **named)

        setattr(Consumer, name, failing)
    yield confluent_kafka, "Consumer", Consumer
    read_response = AbstractConnection.read_response

    def reply(connection: Any, *args: Any, **named: Any) -> Any:
        response = read_response(connection, *args, **named)
        check("Redis reply")
        return response

    for kind in (AbstractConnection, *AbstractConnection.__subclasses__()):
        if "read_response" in vars(kind):
            yield kind, "read_response", reply
