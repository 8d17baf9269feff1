"""`FeatureEmbedding`: the first layer of a network that uses declared features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore import dtype as mstype
from mindspore.common.initializer import Normal, initializer

from ..checks import choice, refuse, whole
from ..embedding.layers.embedding import Embedding
from ..embedding.layers.embedding_group import EmbeddingBag, EmbeddingGroup, check_arguments
from ..errors import ConfigurationError
from .feature import Kind, NumberVector, Output, check_shared_tables
from .features import Features
from .lists import PADDING

LEAK = 0.01  # slope of the leaky ReLU for negative numbers


class SequenceEmbedding(Embedding):
    """Returns the vectors of padded lists of ids, zero at padding, and a mask of ids.

    Inputs:
        ids: integers [batch, length].

    Outputs:
        (float32 [batch, length, dim], bool [batch, length]).
    """

    def __call__(self, ids):
        """Read rows outside a graph; see `Embedding`."""
        return super().__call__(ids) if self.is_dense else (super().__call__(ids), ids != self.padding)

    def construct(self, ids):
        """Return vectors and mask."""
        if self.is_dense:
            return self.lowered(self._dense(ids)), ids != self.padding
        positions = self.row_positions(ids)
        mask = positions != 0
        return self.lowered(self.vectors(positions) * ops.cast(ops.expand_dims(mask, -1), mstype.float32)), mask


class NumberEmbedding(nn.Cell):
    """Turns several numbers into vectors; each number has its own parameters.

    AutoDis (H. Guo, B. Chen, R. Tang, W. Zhang, Z. Li, X. He, "An Embedding Learning Framework for Numerical Features
    in CTR Prediction", KDD 2021, section 3.2) computes, for number x of feature j with H meta-embeddings M_j [H, dim]:

        h = leaky_relu(w_j x),  s = W_j h + skip h,  a = softmax(s / temperature),  e = sum_k a_k M_jk.

    The perceptron computes e = V_j relu(w_j x + b_j) + c_j, with H hidden units. A missing number has its own vector.

    Args:
        features: number of features.
        dim: length of the vectors.
        options: options that all of the features share.

    Inputs:
        numbers: float [N, 2 * features]: for each feature, the number, then 1 if it is missing, else 0.

    Outputs:
        [N, features, dim].
    """

    def __init__(self, features: int, dim: int, options: NumberVector) -> None:
        super().__init__()
        hidden = options.buckets
        self.features, self.is_autodis = features, options.kind == "autodis"
        self.temperature, self.skip = options.temperature, options.skip

        def weights(name: str, shape: tuple[int, ...], init: Any) -> Parameter:
            return Parameter(initializer(init, shape), name=name)

        self.first = weights("first", (features, hidden), Normal(1.0))
        self.missing = weights("missing", (features, dim), Normal(0.01))
        scale = hidden**-0.5
        self.second = weights("second", (features, hidden, hidden if self.is_autodis else dim), Normal(scale))
        if self.is_autodis:
            self.meta = weights("meta", (features, hidden, dim), Normal(0.01))
        else:
            self.first_bias = weights("first_bias", (features, hidden), "zeros")
            self.second_bias = weights("second_bias", (features, 1, dim), "zeros")

    def construct(self, numbers):
        pairs = numbers.reshape(-1, self.features, 2)
        missing = pairs[:, :, 1:]
        hidden = pairs[:, :, :1] * ops.expand_dims(self.first, 0)  # [N, features, H]
        if self.is_autodis:
            hidden = ops.maximum(hidden, LEAK * hidden).transpose(1, 0, 2)
            scores = ops.bmm(hidden, self.second) + self.skip * hidden
            vectors = ops.bmm(ops.softmax(scores / self.temperature, -1), self.meta)
        else:
            hidden = ops.relu(hidden + ops.expand_dims(self.first_bias, 0)).transpose(1, 0, 2)
            vectors = ops.bmm(hidden, self.second) + self.second_bias
        return vectors.transpose(1, 0, 2) * (1 - missing) + ops.expand_dims(self.missing, 0) * missing


class FeatureEmbedding(nn.Cell):
    """Turns the inputs of `Features` into vectors (categories, lists) and numbers.

    Args:
        features: the declared columns.
        dim: length of the vectors, the same for all categorical features.
        optimizer: `RowOptimizer` of all tables; None: the one that matches the Trainer's optimizer.
        exclude: names of fields or sequences to leave out.
        prefix: prefix of the names of the tables and of their files, which distinguishes two of these layers in one
            network. With a prefix, all vectors have length `dim`, even if a feature declares another `dim`.
        options: further arguments of every `Embedding`; the options of a feature take precedence.

    Inputs:
        the columns named by `Features.inputs`, in that order.

    Outputs:
        fields: float32 [N, fields, dim]: a vector for each category, then for each pooled list, then for each number
            with an `embedding`, each group in the order of declaration; zeros [N, 1, dim] if there are none.
        numbers: float32 [N, number_width]: all other numbers; zeros [N, 1] if there are none.
        sequences: for each list without pooling, in order: its vectors, float32 [N, length, dim], zero at padding,
            and its mask, bool [N, length].

    Attributes:
        field_names: names of the fields, in order.
        sequence_names: names of the sequences, in order.
        number_width: number of columns of `numbers`.
        plain_columns: their indices in the input "numbers".

    Raises:
        ConfigurationError: a feature declares another `dim`, so that its vectors cannot be stacked; or features with a
            table in common differ in what decides an id, learn a vocabulary each, or give the table other options.
    """

    def __init__(
        self,
        features: Features,
        dim: int = 16,
        *,
        optimizer: Any = None,
        exclude: Sequence[str] = (),
        prefix: str = "",
        **options: Any,
    ) -> None:
        super().__init__()
        whole("FeatureEmbedding(dim=...)", dim)
        if not isinstance(features, Features):
            refuse("FeatureEmbedding(features)", "Features", features)
        self.dim = dim
        ids, lists = _ids_and_lists(features, exclude)
        if not prefix:
            _check_dim((*ids, *lists), dim)
        owners = _owners_of_tables(features, (*ids, *lists))
        pooled = [output for output in lists if output.pooling is not None]
        sequences = [output for output in lists if output.pooling is None]
        inputs, all_ids = features.inputs, features.of_kind(Kind.IDS)
        self.has_numbers, self.has_ids = "numbers" in inputs, bool(ids)
        used = np.array([index for index, output in enumerate(all_ids) if output in ids], np.int32)
        self.id_columns = Tensor(used) if 0 < len(used) < len(all_ids) else None
        plain, vectors = _number_columns(features.of_kind(Kind.NUMBERS))
        self.number_width = len(plain) or 1
        self.plain_columns = tuple(plain)
        self.has_plain_numbers = bool(plain)
        self.plain_numbers = Tensor(np.array(plain, np.int32)) if plain and vectors else None
        self.vector_columns = [
            Tensor(np.concatenate([np.arange(first, first + 2) for _, first in group]).astype(np.int32))
            for group in vectors.values()
        ]
        self.number_vectors = nn.CellList(
            [NumberEmbedding(len(group), dim, shared) for shared, group in vectors.items()]
        )
        self.field_names = (
            *(output.name for output in (*ids, *pooled)),
            *(name for group in vectors.values() for name, _ in group),
        )
        self.sequence_names = tuple(output.name for output in sequences)
        self._make_tables(ids, pooled, sequences, owners, prefix, {"mode": "sparse", "optimizer": optimizer, **options})
        self.bag_inputs = tuple(inputs.index(output.name) for output in pooled)
        self.weight_inputs = tuple(inputs.index(output.weights) if output.weights else -1 for output in pooled)
        self.row_inputs = tuple(inputs.index(output.name) for output in sequences)

    def _make_tables(
        self,
        ids: Sequence[Output],
        pooled: Sequence[Output],
        sequences: Sequence[Output],
        owners: Mapping[str, Output],
        prefix: str,
        options: dict[str, Any],
    ) -> None:
        """Create the cells that read tables, one table per name."""
        has_sparse = any(_mode_of(output, options) != "dense" for output in owners.values())
        tables: dict[str, Embedding] = {}
        if ids:
            columns: dict[str, dict[str, Any]] = {}
            for output in ids:
                table = f"{prefix}{output.id_table.name}"
                if table in columns:
                    columns[f"{table}/{output.name}"] = {"table": table}
                else:
                    columns[table] = _table_options(output, prefix, options, has_sparse)
            shared = {output.id_table.name for output in ids} & {
                output.id_table.name for output in (*pooled, *sequences)
            }
            # A group reads its tables together only if their padding is the same. If a list reads one of them, all get
            # the padding id.
            padding = {"padding": PADDING} if shared else {}
            self.categories = EmbeddingGroup(self.dim, columns, **options, **padding)
            tables = dict(zip(columns, self.categories.members, strict=True))

        def list_cell(kind: type[Embedding], output: Output, **arguments: Any) -> Embedding:
            """Return the cell that reads a list from an existing or a new table."""
            table = f"{prefix}{output.id_table.name}"
            if table in tables:
                return kind(self.dim, table=tables[table], **arguments)
            arguments |= {"padding": PADDING, "name": table}
            owner = owners[output.id_table.name]
            arguments = {**options, **_table_options(owner, prefix, options, has_sparse), **arguments}
            return tables.setdefault(table, kind(self.dim, **arguments))

        self.bags = nn.CellList([list_cell(EmbeddingBag, output, combiner=output.pooling) for output in pooled])
        self.rows = nn.CellList([list_cell(SequenceEmbedding, output) for output in sequences])

    def field_index(self, name: str) -> int:
        """Return the index of a field.

        Raises:
            ConfigurationError: there is no such field; the message names the nearest one.
        """
        return self.field_names.index(choice("FeatureEmbedding.field_index(name)", name, self.field_names))

    def construct(self, *columns):
        """Return fields, numbers and sequences; see the class."""
        rows = columns[0].shape[0]
        vectors = ()
        if self.has_ids:
            ids = columns[1] if self.has_numbers else columns[0]
            vectors += (self.categories(ids if self.id_columns is None else ops.gather(ids, self.id_columns, 1)),)
        for index in range(len(self.bag_inputs)):
            ids = columns[self.bag_inputs[index]]
            weights = None if self.weight_inputs[index] < 0 else columns[self.weight_inputs[index]]
            vectors += (ops.expand_dims(self.bags[index](ids, weights), 1),)
        for index in range(len(self.vector_columns)):
            numbers = ops.gather(columns[0], self.vector_columns[index], 1)
            vectors += (self.number_vectors[index](numbers),)
        if not vectors:
            dtype = columns[0].dtype if self.has_numbers else mstype.float32
            fields = ops.zeros((rows, 1, self.dim), dtype)
        else:
            fields = vectors[0] if len(vectors) == 1 else ops.concat(vectors, 1)
        if self.plain_numbers is not None:
            numbers = ops.gather(columns[0], self.plain_numbers, 1)
        else:
            numbers = columns[0] if self.has_plain_numbers else ops.zeros((rows, 1), fields.dtype)
        sequences = ()
        for index in range(len(self.row_inputs)):
            sequences += (self.rows[index](columns[self.row_inputs[index]]),)
        return fields, numbers, sequences

    def rows_of(self, columns, field):
        """Return table rows of a category, int32 [N], and of the first sequence, [N, L].

        Graph code. Within a step, two ids of a table are equal if and only if their rows are equal.
        """
        ids = columns[1] if self.has_numbers else columns[0]
        ids = ids if self.id_columns is None else ops.gather(ids, self.id_columns, 1)
        category_rows = self.categories.members[field].row_positions(ids[:, field])
        sequence_rows = self.rows[0].row_positions(columns[self.row_inputs[0]])
        return ops.cast(category_rows, mstype.int32), ops.cast(sequence_rows, mstype.int32)


def _ids_and_lists(features: Features, exclude: Sequence[str]) -> tuple[list[Output], list[Output]]:
    """Return the ids and the lists of `features` without those in `exclude`."""
    ids, lists = features.of_kind(Kind.IDS), features.of_kind(Kind.LIST)
    for name in exclude:
        choice("FeatureEmbedding(exclude=...)", name, [output.name for output in (*ids, *lists)])
    ids = [output for output in ids if output.name not in exclude]
    return ids, [output for output in lists if output.name not in exclude]


def _check_dim(outputs: Sequence[Output], dim: int) -> None:
    """Raise if a feature's vectors have another length than `dim`."""
    for output in outputs:
        if output.id_table.dim not in (None, dim):
            raise ConfigurationError(
                f"feature {output.name!r} has dim={output.id_table.dim}; a FeatureEmbedding stacks vectors of one "
                f"length, here {dim}: leave dim out of the feature, or give it its own FeatureEmbedding"
            )


def _owners_of_tables(features: Features, outputs: Sequence[Output]) -> dict[str, Output]:
    """Return the output whose options each table has.

    Raises:
        ConfigurationError: features of one table differ in ids or in its options.
    """
    check_shared_tables(f for f in features.features if any(output in outputs for output in f.outputs()))
    first: dict[str, Output] = {}
    for output in outputs:
        owner = first.setdefault(output.id_table.name, output)
        if output.id_table.options and output.id_table.options != owner.id_table.options:
            raise ConfigurationError(
                f"feature {output.name!r} has options={output.id_table.options!r}, and its table "
                f"{output.id_table.name!r} is that of the feature {owner.name!r}, whose options decide: give "
                f"{owner.name!r} these options"
            )
    return first


def _mode_of(output: Output, options: Mapping[str, Any]) -> str:
    """Return the mode of a feature's table: "auto", "dense" or "sparse"."""
    return {**options, **(output.id_table.options or {})}["mode"]


def _table_options(output: Output, prefix: str, options: dict[str, Any], has_sparse: bool) -> dict[str, Any]:
    """Return the arguments of a feature's table that differ from `options`.

    Args:
        has_sparse: whether a table is not dense, so that the optimizer in `options` is that of the sparse tables.
    """
    table = dict(output.id_table.options or {})
    check_arguments(f"feature {output.name!r}: an argument in options", table)
    is_dense = _mode_of(output, options) == "dense"
    if is_dense and has_sparse:
        table.setdefault("optimizer", None)
    if is_dense and table.get("capacity", options.get("capacity")) is None:
        table["capacity"] = _dense_rows(output)
    if prefix and table.get("path") is not None:
        table["path"] = Path(table["path"]).with_name(prefix + Path(table["path"]).name)
    return table


def _dense_rows(output: Output) -> int:
    """Return the number of rows of a dense table, which the feature must determine."""
    if output.id_table.size is None:
        raise ConfigurationError(
            f"feature {output.name!r}: mode='dense' needs the number of ids; give it a vocabulary (learned ones with "
            "max_size) or hash_buckets, or options={'mode': 'dense', 'capacity': ...}"
        )
    return output.id_table.size


def _number_columns(
    outputs: Sequence[Output],
) -> tuple[list[int], dict[NumberVector, list[tuple[str, int]]]]:
    """Return the columns that stay numbers, and {options: (name, first column) pairs}."""
    plain: list[int] = []
    vectors: dict[NumberVector, list[tuple[str, int]]] = {}
    column = 0
    for output in outputs:
        if output.vector is None:
            plain.extend(range(column, column + output.width))
        else:
            vectors.setdefault(output.vector, []).append((output.name, column))
        column += output.width
    return plain, vectors
