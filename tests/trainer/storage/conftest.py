"""A real S3 server with a bucket, for the tests of this folder."""

import os

import pytest

from tests.trainer.storage.s3_server import S3Server


@pytest.fixture(scope="module")
def s3(tmp_path_factory):
    """The server, named by the environment as users name theirs."""
    server = S3Server(tmp_path_factory.mktemp("s3")).start()
    before = {name: os.environ.get(name) for name in server.environment}
    os.environ.update(server.environment)
    server.make_bucket("bucket")
    yield server
    server.kill()
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value


@pytest.fixture
def url(s3, request):
    """A folder of the bucket that is this test's."""
    if s3.process is None or s3.died:
        s3.start()
    return f"s3://bucket/{request.node.name.replace('[', '-').replace(']', '')}"
