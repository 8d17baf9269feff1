"""Finds a model's history and candidate among the declared features."""

from __future__ import annotations

from ..errors import ConfigurationError, did_you_mean
from ..features import Features
from ..features.feature import Kind


def history_of(features: Features, model: str, candidate: str | None) -> str:
    """Return the name of the candidate's feature.

    Args:
        features: the declared columns.
        model: name of the model, for messages.
        candidate: the name given by the user, or None.

    Raises:
        ConfigurationError: there is not exactly one list without pooling, or no categorical feature for the candidate.
    """
    histories = [output for output in features.of_kind(Kind.LIST) if output.pooling is None]
    if not histories:
        raise ConfigurationError(
            f"{model} needs a history: declare a list without pooling, as ListFeature('history', pooling=None, "
            "table='item')"
        )
    if len(histories) > 1:
        raise ConfigurationError(
            f"{model} takes one history; {', '.join(output.name for output in histories)} have pooling=None: give the "
            "others a pooling"
        )
    ids = features.of_kind(Kind.IDS)
    names = [output.name for output in ids]
    if candidate is not None:
        if candidate not in names:
            raise ConfigurationError(
                f"{model}(candidate={candidate!r}): no categorical feature of that name; there are {', '.join(names)}"
                f"{did_you_mean(candidate, names)}"
            )
        return candidate
    table = histories[0].table.name
    sharing = [output.name for output in ids if output.table.name == table]
    if not sharing:
        raise ConfigurationError(
            f"{model} needs a candidate: a categorical feature with table={table!r}, that of the history "
            f"{histories[0].name!r}; there are {', '.join(names) or 'none'}"
        )
    return sharing[0]
