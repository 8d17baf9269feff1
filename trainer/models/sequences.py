"""Find histories and candidates among the declared features, and combine them."""

from __future__ import annotations

from collections.abc import Sequence

from mindspore import nn, ops

from ..errors import ConfigurationError, did_you_mean
from ..features import Features, ListFeature, WeightedList
from ..features.feature import Kind, Output
from .layers import column_sums


def candidates_of(features: Features, model: str, candidate: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the name of the candidate feature for each list without pooling.

    If there are several such lists, they are aligned columns of one sequence, such as the items of a history and their
    shops.

    Args:
        features: the declared columns.
        model: name of the model, for error messages.
        candidate: names given by the user. None: for each list, the category that shares its table.

    Raises:
        ConfigurationError: there is no list without pooling; several lists do not belong to one sequence; or a list has
            no candidate feature.
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
            f"{model} takes one history; {names} have pooling=None but belong to {', '.join(sequences)}: declare "
            "them as columns of one sequence, as ListFeature(..., sequence='history'), or give the others a pooling"
        )
    if candidate is None:
        return tuple(_sharing(features, model, history) for history in histories)
    given = (candidate,) if isinstance(candidate, str) else tuple(candidate)
    ids, argument = [output.name for output in features.of_kind(Kind.IDS)], f"{model}(candidate={candidate!r})"
    for name in given:
        if name not in ids:
            there_are = f"there are {', '.join(ids)}{did_you_mean(name, ids)}"
            raise ConfigurationError(f"{argument}: no categorical feature {name!r}; {there_are}")
    if len(given) != len(histories):
        wanted = f"a category for each list without pooling, {names}"
        raise ConfigurationError(f"{argument} takes {wanted}; received {len(given)}")
    return given


def _sequences(features: Features, histories: Sequence[Output]) -> list[str]:
    """Return the distinct sequences of the lists, as text for an error message."""
    lists = [feature for feature in features.features if isinstance(feature, ListFeature | WeightedList)]
    declared = {feature.name: feature.sequence for feature in lists}
    of_lists = {output.name: declared.get(output.name) for output in histories}
    return list(dict.fromkeys(f"no sequence ({name})" if of is None else repr(of) for name, of in of_lists.items()))


def _sharing(features: Features, model: str, history: Output) -> str:
    """Return the name of the categorical feature that shares a list's table."""
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
    """Concatenate the vectors of aligned columns, such as item and shop; graph code.

    Args:
        fields: float [N, F, D].
        sequences: for each of C columns, its vectors, float [N, L, D], and mask, bool [N, L].
        candidates: index of the candidate's field for each column.

    Returns:
        The candidate [N, C * D], the history [N, L, C * D] and the mask [N, L].
    """
    if len(candidates) == 1:
        return fields[:, candidates[0]], sequences[0][0], sequences[0][1]
    chosen, vectors = (), ()
    for index in range(len(candidates)):
        chosen += (fields[:, candidates[index]],)
        vectors += (sequences[index][0],)
    return ops.concat(chosen, 1), ops.concat(vectors, 2), sequences[0][1]


class PairLayer(nn.Cell):
    """Apply a dense layer to [item, candidate, item - candidate, item * candidate].

    The concatenation is never built. Instead, the kernel is split into four blocks: items are multiplied by the sum of
    the first and third, the candidate by the second minus the third, and the products by the fourth. The candidate is
    projected only once per row. This takes half the work of the concatenated form.

    Maps history float [N, L, dim], candidate float [N, dim], kernel float [hidden, 4 * dim] and bias float [hidden] to
    float [N * L, hidden].
    """

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.product = ops.MatMul()
        self.product_with_transposed = ops.MatMul(transpose_b=True)
        self.product_of_transposed = ops.MatMul(transpose_a=True)
        self.blocks = ops.Split(1, 4)

    def construct(self, history, candidate, kernel, bias):
        batch, length, dim = history.shape
        of_item, of_candidate, of_difference, of_product = self.blocks(kernel)
        items = history.reshape(batch * length, dim)
        products = (history * ops.expand_dims(candidate, 1)).reshape(batch * length, dim)
        of_items = self.product_with_transposed(items, of_item + of_difference)
        of_items = of_items + self.product_with_transposed(products, of_product)
        of_candidates = self.product_with_transposed(candidate, of_candidate - of_difference) + bias
        return (of_items.reshape(batch, length, -1) + ops.expand_dims(of_candidates, 1)).reshape(batch * length, -1)

    def bprop(self, history, candidate, kernel, bias, out, dout):
        batch, length, dim = history.shape
        of_item, of_candidate, of_difference, of_product = self.blocks(kernel)
        items = history.reshape(batch * length, dim)
        products = history * ops.expand_dims(candidate, 1)
        # Sum over the items of a row by matrix products, which are faster on CPU than reductions.
        ones = ops.ones((batch, 1, length), dout.dtype)
        of_rows = ops.matmul(ones, dout.reshape(batch, length, -1)).reshape(batch, -1)
        from_products = self.product(dout, of_product).reshape(batch, length, dim)
        from_items = self.product(dout, of_item + of_difference).reshape(batch, length, dim)
        from_candidates = ops.matmul(ones, from_products * history).reshape(batch, dim)
        item_kernel = self.product_of_transposed(dout, items)
        candidate_kernel = self.product_of_transposed(of_rows, candidate)
        product_kernel = self.product_of_transposed(dout, products.reshape(batch * length, dim))
        return (
            from_items + from_products * ops.expand_dims(candidate, 1),
            from_candidates + self.product(of_rows, of_candidate - of_difference),
            ops.concat((item_kernel, candidate_kernel, item_kernel - candidate_kernel, product_kernel), 1),
            column_sums(of_rows),
        )
