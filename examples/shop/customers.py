"""Simulated customers, who ask the shop's server and report later what they liked."""

from __future__ import annotations

import heapq
import http.client
import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from examples.shop.rows import COLUMNS, delay

ASK = 25  # number of visits per request


class Customers:
    """Plays visits in the order of time.

    Args:
        server: URL of `trainer serve`, which receives the requests.
        redis: URL of the Redis server, which receives the outcomes.
        visits: columns of the visits.

    Attributes:
        answers: predicted probability of each visit.
        versions: model version that answered each visit.
        asked: number of requests answered.
    """

    def __init__(self, server: str, redis: str, visits: dict[str, Any]) -> None:
        import redis as client

        self._connection = http.client.HTTPConnection(urlsplit(server).netloc, timeout=30)
        self._redis = client.Redis.from_url(redis)
        self._visits = visits
        self._outcomes: list[tuple[float, str]] = []
        self.answers: list[float] = []
        self.versions: list[int] = []
        self.asked = 0

    def play(self, rows_per_second: float, between: Callable[[int], None]) -> None:
        """Send all visits at the given rate.

        After each request, `between` is called with the number of visits answered so far.
        """
        total, began = len(self._visits["label"]), time.monotonic()
        for start in range(0, total, ASK):
            self._ask(start, min(start + ASK, total))
            between(len(self.answers))
            time.sleep(max(0.0, began + start / rows_per_second - time.monotonic()))
        self._send_outcomes(float("inf"))

    def _ask(self, start: int, stop: int) -> None:
        rows = [self._row(number) for number in range(start, stop)]
        self._send_outcomes(rows[0]["timestamp"])
        body = json.dumps({"rows": rows})
        headers = {"Content-Type": "application/json", "X-Request-Id": f"visits-{start}"}
        self._connection.request("POST", "/predict", body, headers)
        response = self._connection.getresponse()
        answer = json.loads(response.read())
        if response.status != 200 or answer["errors"]:
            raise RuntimeError(f"the server answered {response.status}: {answer}")
        self.asked += 1
        self.answers += answer["probability"]
        self.versions += [answer["version"]] * len(rows)
        for number, row in enumerate(rows):
            if self._visits["label"][start + number]:
                visit = f"visits-{start}/{number}"
                heapq.heappush(self._outcomes, (row["timestamp"] + delay(visit), visit))

    def _row(self, number: int) -> dict[str, Any]:
        row = {name: self._visits[name][number] for name in COLUMNS}
        return {name: value.item() if hasattr(value, "item") else value for name, value in row.items()}

    def _send_outcomes(self, until: float) -> None:
        pipeline = self._redis.pipeline(transaction=False)
        while self._outcomes and self._outcomes[0][0] <= until:
            event_time, visit = heapq.heappop(self._outcomes)
            pipeline.xadd("outcomes", {"data": json.dumps({"request_id": visit, "timestamp": event_time})})
        pipeline.execute()
