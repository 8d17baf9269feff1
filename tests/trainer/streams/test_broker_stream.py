"""What streams that read from a server have in common, by the two there are."""

import pytest

from trainer.errors import ConfigurationError, StreamError
from trainer.streams import KafkaStream, RedisStream

NOWHERE = "127.0.0.1:1"


@pytest.fixture(params=["redis", "kafka"])
def open_stream(request, schema):
    """A function that makes a stream of a server that does not answer."""
    opened = []
    if request.param == "redis":
        pytest.importorskip("redis")
    else:
        pytest.importorskip("confluent_kafka")

    def make(**options):
        if request.param == "redis":
            opened.append(RedisStream("clicks", schema, url=f"redis://{NOWHERE}", start="$", **options))
        else:
            opened.append(KafkaStream("clicks", schema, servers=NOWHERE, **options))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def test_an_unknown_first_position_is_an_error(open_stream, monkeypatch):
    monkeypatch.setattr("trainer.streams.sources.broker_stream._MAX_FIRST_WAIT", 1.0)
    monkeypatch.setattr("trainer.streams.sources.kafka._REQUEST_SECONDS", 0.2)
    with pytest.raises(StreamError, match=rf"at .*{NOWHERE} did not answer for 1 s; the .* unknown"):
        open_stream().position()


def test_a_server_that_stays_away_is_given_up(open_stream, monkeypatch):
    monkeypatch.setattr("trainer.streams.sources.kafka._REQUEST_SECONDS", 0.2)
    with pytest.raises(StreamError, match=rf"at .*{NOWHERE} has been failing .* longer than give_up_after=0.3"):
        open_stream(give_up_after=0.3).poll(5, 20.0)


def test_wrong_arguments_are_refused_before_anything_is_asked(open_stream):
    with pytest.raises(ConfigurationError, match=r"on_missing takes .* received 'skipp'; did you mean 'skip'"):
        open_stream(on_missing="skipp")
    with pytest.raises(ConfigurationError, match="max_bad_share takes a share"):
        open_stream(max_bad_share=2.0)


def test_the_schema_is_declared_as_that_of_every_stream(open_stream):
    assert open_stream().schema.label == "label"
    assert open_stream().schema.event_time == "ts"


def test_a_closed_stream_may_be_closed_again_and_reads_nothing(open_stream):
    stream = open_stream()
    stream.close()
    stream.close()
    assert stream.poll(5, 20.0) is None
