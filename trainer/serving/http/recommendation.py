"""Parses and answers requests for a user's best items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import ConfigurationError, DataError, did_you_mean
from ...models.retrieval import halves
from ..published_items import PublishedItems
from .batching import ScoredRequest
from .request_rows import RequestRows, column_and_reason, parse_json
from .service_call import RefusalError

_KEYS = ("user", "history", "k", "without", "filter")
_FORM = (
    '{"user": {column: value, ...} or "history": [id, ...], "k": 10, "without": [id, ...], "filter": {column: value, '
    "...}}"
)


@dataclass(frozen=True)
class Recommendation:
    """A parsed request for recommendations."""

    user: Mapping[str, Any] | None = None
    history: list[Any] | None = None  # alternative to `user`: ids of earlier items, which are not recommended
    k: int = 10
    without: list[Any] = field(default_factory=list)  # ids of items to exclude
    filter: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_body(cls, body: bytes, media: str) -> Recommendation:
        """Parse a request's body; raise RefusalError if it is invalid."""
        value = parse_json(body, media)
        if not isinstance(value, dict) or ("user" in value) == ("history" in value):
            both = "with both" if isinstance(value, dict) and "user" in value else "without user or history"
            raise RefusalError(400, f"the body takes {_FORM}; received {type(value).__name__} {both}")
        for name, argument in value.items():
            if name not in _KEYS:
                raise RefusalError(400, f"the body takes {_FORM}; received {name!r}{did_you_mean(name, _KEYS)}")
            kind = {"k": int, "without": list, "history": list}.get(name, dict)
            if not isinstance(argument, kind) or isinstance(argument, bool):
                raise RefusalError(400, f"the body takes {_FORM}; received {name}={argument!r}")
        return cls(**value)

    def rows(self, items: PublishedItems | None) -> RequestRows:
        """Return the user's row; raise RefusalError (400) for an unknown column."""
        items = _require_items(items)
        if self.user is None:
            return RequestRows(1, rows=[self._row_and_excluded(items)[0]])
        known = items.user_columns
        for name in self.user:
            if name not in known:
                hint = did_you_mean(name, known)
                raise RefusalError(400, f"a user has the columns {', '.join(known)}; received {name!r}{hint}")
        return RequestRows(1, rows=[self.user])

    def items(self, scored: ScoredRequest) -> list[dict[str, Any]]:
        """Return ids and scores of the best items, best first, from a scored user row."""
        if not len(scored.good):
            column, reason = column_and_reason(scored.bad[0])
            raise RefusalError(422, reason, column=column)
        users, _ = halves(scored.outputs[0])
        items = _require_items(scored.items)
        try:
            ids, scores = items.nearest(users, self.k, self._row_and_excluded(items)[1], self.filter)
        except (DataError, ConfigurationError) as error:
            raise RefusalError(400, str(error)) from None
        pairs = zip(ids[0].tolist(), scores[0].tolist(), strict=True)
        return [{"id": name, "score": score} for name, score in pairs]

    def _row_and_excluded(self, items: PublishedItems) -> tuple[dict[str, Any], Sequence[Sequence[Any]]]:
        """Return the row for a history and the ids to exclude, or raise RefusalError."""
        if self.history is None:
            return {}, [self.without]
        try:
            rows, excluded = items.users_of_histories([self.history], [self.without])
            return {name: lists[0] for name, lists in rows.items()}, excluded
        except (DataError, ConfigurationError) as error:
            raise RefusalError(400, str(error)) from None


def _require_items(items: PublishedItems | None) -> PublishedItems:
    if items is None:
        raise RefusalError(404, "this version has no items to recommend; set them by Publish(items=...)")
    return items
