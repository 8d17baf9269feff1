"""The Kafka client of a `KafkaStream`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import ConfigurationError, StreamError, did_you_mean
from ...masking import is_secret, remember_secret


def library() -> Any:
    """Return confluent_kafka.

    Raises:
        ConfigurationError: it is not installed.
    """
    try:
        import confluent_kafka
    except ImportError as error:
        raise ConfigurationError("KafkaStream needs confluent-kafka: pip install 'mindspore-trainer[kafka]'") from error
    return confluent_kafka


def connect(servers: str, group: str, given: Mapping[str, Any]) -> Any:
    """Return a consumer with the stream's settings, of which `given` changes some.

    Raises:
        ConfigurationError: the client is missing or refuses its settings.
    """
    kafka = library()
    settings = {
        "bootstrap.servers": servers,
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "allow.auto.create.topics": False,
        # The stream buffers decoded rows, so the client's queue may be smaller than the default of 64 MB. It may be
        # used up in far less than the second that the client pauses by default once it is full.
        "queued.max.messages.kbytes": 16_384,
        "fetch.queue.backoff.ms": 20,
        "log_level": 2,
        **given,
    }
    for name, value in settings.items():
        if is_secret(name):
            remember_secret(value)
    try:
        return kafka.Consumer(settings)
    except (kafka.KafkaException, ValueError, TypeError) as error:
        raise ConfigurationError(f"the Kafka client refuses its settings: {error}") from error


def partitions_of(consumer: Any, topic: str, chosen: Sequence[int] | None, timeout: float) -> list[int]:
    """Return the numbers of the partitions of `topic` to be read: those `chosen`; None: all.

    Raises:
        StreamError: there is no such topic or partition.
        KafkaException: the brokers did not answer within `timeout` seconds.
    """
    metadata = consumer.list_topics(timeout=timeout)
    described = metadata.topics.get(topic)
    if described is None:
        names = sorted(name for name in metadata.topics if not name.startswith("__"))
        raise StreamError(f"there is no topic {topic!r}{did_you_mean(topic, names)}; there are {names[:20]}")
    if described.error is not None:
        raise library().KafkaException(described.error)
    if chosen is None:
        return sorted(described.partitions)
    absent = [number for number in chosen if number not in described.partitions]
    if absent:
        raise StreamError(f"topic {topic!r} has partitions {sorted(described.partitions)}; asked for {absent}")
    return list(chosen)


def ends_of(consumer: Any, topic: str, partition: int, timeout: float) -> tuple[int, int]:
    """Return the first offset of a partition and the one after its last.

    Not `get_watermark_offsets`, which asks for both at once and, when one answer is an error, may give the other one
    twice: an empty partition, whose messages would be passed over.

    Raises:
        KafkaException: the brokers did not answer within `timeout` seconds, or with an error.
    """
    kafka = library()
    ends = []
    for end in (kafka.OFFSET_BEGINNING, kafka.OFFSET_END):
        (answer,) = consumer.offsets_for_times([kafka.TopicPartition(topic, partition, end)], timeout=timeout)
        if answer.error is not None:
            raise kafka.KafkaException(answer.error)
        ends.append(answer.offset)
    return ends[0], ends[1]


def content_of(message: Any) -> tuple[bytes | None, ...]:
    """Return what makes a message another one at the same offset: its time, key and value."""
    return str(message.timestamp()[1]).encode(), message.key(), message.value()
