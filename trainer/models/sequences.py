"""Finds a model's histories and candidates among the declared features, and joins their vectors."""

from __future__ import annotations

from collections.abc import Sequence

from mindspore import ops

from ..errors import ConfigurationError, did_you_mean
from ..features import Features, ListFeature, WeightedList
from ..features.feature import Kind, Output


def candidates_of(features: Features, model: str, candidate: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of the candidate's features: one for each list without pooling, in the order of the lists.

    Several lists are the aligned columns of one sequence: the items of a history, their shops, their categories.

    Args:
        features: the declared columns.
        model: name of the model, for messages.
        candidate: the names given by the user, or None: for each list a category that shares its table.

    Raises:
        ConfigurationError: no list without pooling, or several that are not of one sequence; a list without a
            candidate's feature.
    """
    histories = [output for output in features.of_kind(Kind.LIST) if output.pooling is None]
    if not histories:
        raise ConfigurationError(
            f"{model} needs a history: declare a list without pooling, as ListFeature('history', pooling=None, "
            "table='item')"
        )
    names = ", ".join(output.name for output in histories)
    if len(histories) > 1 and len(sequences := _sequences(features, histories)) > 1:
        raise ConfigurationError(
            f"{model} takes one history; {names} have pooling=None, and are of {', '.join(sequences)}: declare "
            "them as columns of one sequence, as ListFeature(..., sequence='history'), or give the others a pooling"
        )
    if candidate is None:
        return tuple(_sharing(features, model, history) for history in histories)
    given = (candidate,) if isinstance(candidate, str) else tuple(candidate)
    ids = [output.name for output in features.of_kind(Kind.IDS)]
    for name in given:
        if name not in ids:
            raise ConfigurationError(
                f"{model}(candidate={candidate!r}): no categorical feature {name!r}; there are {', '.join(ids)}"
                f"{did_you_mean(name, ids)}"
            )
    if len(given) != len(histories):
        raise ConfigurationError(
            f"{model}(candidate={candidate!r}) takes a category for each list without pooling, {names}; received "
            f"{len(given)}"
        )
    return given


def _sequences(features: Features, histories: Sequence[Output]) -> list[str]:
    """Return the distinct sequences of lists, in words."""
    declared = {
        feature.name: feature.sequence
        for feature in features.features
        if isinstance(feature, ListFeature | WeightedList)
    }
    of_lists = {output.name: declared.get(output.name) for output in histories}
    return list(dict.fromkeys(f"no sequence ({name})" if of is None else repr(of) for name, of in of_lists.items()))


def _sharing(features: Features, model: str, history: Output) -> str:
    """Return the name of a categorical feature that shares a list's table."""
    assert history.table is not None
    ids = features.of_kind(Kind.IDS)
    sharing = [output.name for output in ids if output.table is not None and output.table.name == history.table.name]
    if not sharing:
        raise ConfigurationError(
            f"{model} needs a candidate: a categorical feature with table={history.table.name!r}, that of the history "
            f"{history.name!r}; there are {', '.join(output.name for output in ids) or 'none'}"
        )
    return sharing[0]


def candidate_and_history(fields, sequences, candidates):
    """Join the vectors of aligned columns, as DIN does for an item, its shop and its category; graph code.

    Args:
        fields: float [N, F, D].
        sequences: for each of C columns its vectors, float [N, L, D], and its mask, bool [N, L].
        candidates: for each column the index of its candidate's field.

    Returns:
        The candidate, float [N, C * D]; the history, float [N, L, C * D]; and the mask, bool [N, L].
    """
    if len(candidates) == 1:
        return fields[:, candidates[0]], sequences[0][0], sequences[0][1]
    chosen, vectors = (), ()
    for index in range(len(candidates)):
        chosen += (fields[:, candidates[index]],)
        vectors += (sequences[index][0],)
    return ops.concat(chosen, 1), ops.concat(vectors, 2), sequences[0][1]
