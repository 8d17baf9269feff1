import pytest

from trainer.errors import StreamError
from trainer.masking import is_masked, is_secret, mask_text, mask_value, remember_secret


@pytest.mark.parametrize(
    "name",
    ["password", "redis_password", "sasl.password", "sasl.oauthbearer.config", "data.stream.api_key", "clientSecret",
     "ssl.key.password", "access-key", "token", "SASL.USERNAME", "auth_token"],
)  # fmt: skip
def test_names_of_credentials(name):
    assert is_secret(name)


@pytest.mark.parametrize(
    "name", ["key", "keys", "tokens", "max_tokens", "tokenizer", "password_length", "sasl.mechanism", "monkey", 3, ""]
)
def test_names_of_other_things(name):
    assert not is_secret(name)


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("redis://:hunter2@host:6379/0 is down", "redis://***@host:6379/0 is down"),
        ("rediss://me:hun@ter2@host/0", "rediss://***@host/0"),
        ("redis://host/0?password=hunter2&db=1", "redis://host/0?password=***&db=1"),
        ("--set data.config.api_key='hunter 2' more", "--set data.config.api_key='***' more"),
        ("{'sasl.password': 'hunter2', 'client.id': 'a'}", "{'sasl.password': '***', 'client.id': 'a'}"),
        ('{"token": "hunter2"}', '{"token": "***"}'),
    ],
)
def test_credentials_in_text(text, masked):
    assert mask_text(text) == masked
    assert str(StreamError(text)) == masked
    assert "hunter2" not in repr(StreamError(text))
    assert mask_text(masked) == masked


@pytest.mark.parametrize(
    "text",
    ["redis://localhost:6379/0", "redis://:${env:PW}@host/0", "password=${env:PW}", "max_tokens=5, key=user_id",
     "token: takes text; received 5 (int)", "password=None", "a@b.c"],
)  # fmt: skip
def test_other_text_stays_as_it_is(text):
    assert mask_text(text) == text


def test_a_configuration_keeps_its_references_and_loses_its_credentials():
    config = {"url": "redis://:hunter2@h/0", "config": {"sasl.password": "${env:PW}", "api_key": "x"}, "token": [7]}
    masked = {"url": "redis://***@h/0", "config": {"sasl.password": "${env:PW}", "api_key": "***"}, "token": ["***"]}
    assert mask_value(config) == masked
    assert mask_value("x", "password") == "***"
    assert all(map(is_masked, ("***", "redis://***@h", "redis://h?password=***")))
    assert not any(map(is_masked, ("**/*.py", "a *** b", "", 3)))


def test_what_was_remembered_is_masked_wherever_it_stands():
    assert mask_text("the value s3cr3t-of-the-test was refused") == "the value s3cr3t-of-the-test was refused"
    remember_secret("s3cr3t-of-the-test")
    assert mask_text("the value s3cr3t-of-the-test was refused") == "the value *** was refused"


def test_very_long_words_are_searched_once():
    """Searched again from each letter, these would take an hour."""
    for word in ("x" * 10**6, "a." * 500_000, "a://" * 250_000, "a " * 500_000):
        assert mask_text(f"{word} a:@ password=abcdef") == f"{word} a:@ password=***"
    assert mask_text("x-token=abc 'b.secret': 'c'") == "x-token=*** 'b.secret': '***'"
