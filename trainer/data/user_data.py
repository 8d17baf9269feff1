"""`UserData`: recognizes the kind of a user's data and turns them into a `Source`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from ..checks import refuse
from ..distributed.agreement import StopHooks
from ..distributed.group import Group
from ..errors import ConfigurationError, DataError
from ..features.feature_data import KeptColumns, inputs_of, is_raw, learn_together, raw_data
from ..features.features import Features
from ..features.raw_rows import RawData, RawTable
from ..mindspore_internals.pipelines import is_pipeline
from ..streams.base import Stream
from ..streams.batch import columns_of, is_frame
from ..streams.sources.iterable import IterableStream
from .as_columns import as_array
from .finite.interactions import DrawnNegatives
from .finite.raw_row_sources import DrawnRows, RawRowBlocks, RawRowsInOrder
from .finite.shards import DividedSource, EveryNth, ShardedArrays
from .finite.sources import ArraySource, IterableSource, PipelineSource
from .finite.wrapped_arrays import wrapped_arrays
from .source import Source

RAW_BATCH_SIZE = 1024  # for raw rows without a given size


class Form(Enum):
    """Kinds of data."""

    RAW = "raw rows"
    ARRAYS = "arrays"
    PIPELINE = "a mindspore.dataset pipeline"
    BATCHES = "an iterable of batches, or a function that returns one"
    SOURCE = "a source"
    STREAM = "a stream"


class UserData:
    """Data as the user passed them to a method of the trainer.

    Args:
        data: a frame, a dict or tuple of arrays, a `mindspore.dataset` pipeline, an iterable of batches or a function
            that returns one, a `ParquetFolder`, a stream.
        features: features that the Trainer declares. Tables, rows and file paths are then raw rows.

    Attributes:
        form: kind of `data`.
        content: `data`; for a frame, its columns by name; for raw rows, a `RawData`.

    Raises:
        DataError: data of any other kind.
        ConfigurationError: raw rows without declared features.
    """

    def __init__(self, data: Any, features: Features | None = None) -> None:
        self.features: Any = features  # not None if the form is RAW
        self.content = data
        self._is_shard = _is_shard(data)
        self._negatives = data if isinstance(data, DrawnNegatives) else None
        if features is not None and is_raw(data):
            self.form, self.content = Form.RAW, raw_data(data)
        elif isinstance(data, Source):
            self.form = Form.SOURCE
        elif isinstance(data, Stream):
            self.form = Form.STREAM
        elif isinstance(data, str | Path | RawData):
            raise ConfigurationError(f"{data}: raw rows need Trainer(features=...), the section features")
        elif self._negatives is not None:
            raise ConfigurationError(
                "interactions(negatives=...) needs Trainer(features=...), which draws negatives for each epoch; "
                "other trainers take interactions without them"
            )
        elif is_frame(data):
            self.form, self.content = Form.ARRAYS, columns_of(data)
        elif is_pipeline(data):
            self.form = Form.PIPELINE
        elif _are_arrays(data):
            self.form = Form.ARRAYS
        elif callable(data) or hasattr(data, "__iter__"):
            self.form = Form.BATCHES
        elif hasattr(data, "create_tuple_iterator"):  # an object that mimics a pipeline
            self.form, self.content = Form.BATCHES, lambda: data.create_tuple_iterator(num_epochs=1)
        else:
            _check_not_a_stream(data)
            raise self._unknown_kind()

    def _unknown_kind(self) -> DataError:
        return DataError(
            f"dataset: received {type(self.content).__name__}; accepted are a mindspore.dataset pipeline, a dict or "
            "tuple of arrays with batch_size, an iterable of batches, or a function that returns one"
        )

    @classmethod
    def of_arguments(
        cls, data: tuple[Any, ...], features: Features | None, batch_size: int | None
    ) -> tuple[UserData, int | None]:
        """Return (data, batch size) for the arguments of `Trainer.predict`."""
        if batch_size is None and (all(map(_is_array, data)) or (len(data) > 1 and all(map(_is_list, data)))):
            columns = tuple([as_array(item, f"column_{index}") for index, item in enumerate(data)])
            return cls(columns), max(1, len(columns[0]))
        if len(data) != 1:
            raise DataError("predict: takes arrays, or one dataset; received a mixture")
        return cls(data[0], features), batch_size

    @property
    def is_table(self) -> bool:
        """Whether the rows are in memory: arrays, or raw rows that are not in files."""
        return self.form is Form.ARRAYS or isinstance(self.content, RawTable)

    @property
    def takes_batch_size(self) -> bool:
        """Whether the data consist of rows rather than batches."""
        return self.form in (Form.RAW, Form.ARRAYS)

    def has_own_rows(self, sharded: bool | None) -> bool:
        """Return whether the data hold only this process's rows.

        If `sharded` is None, return True for a pipeline or source that reads one of several shards.
        """
        return self._is_shard if sharded is None else sharded

    @property
    def column_names(self) -> tuple[Any, ...]:
        """Names of arrays that are given by name; empty for other data."""
        return tuple(self.content) if self.form is Form.ARRAYS and isinstance(self.content, Mapping) else ()

    def in_order(self, names: Sequence[Any], inputs: Sequence[Any] = ()) -> UserData:
        """Return arrays by name in the order of `names`, which may have more.

        If the arrays include all `inputs`, others than `names` are left out. Return data unchanged that are not arrays
        by name, or that have other names.
        """
        given = set(self.column_names)
        if not given or not (given <= set(names) or (inputs and given >= set(inputs))):
            return self
        return UserData({name: self.content[name] for name in names if name in given})

    # -- as a source ---------------------------------------------------------------------------------------------

    def train_source(
        self,
        group: Group,
        hooks: StopHooks,
        *,
        batch_size: int | None,
        shuffle: bool,
        seed: int,
        sharded: bool | None,
    ) -> Source:
        """Return the source of this process's rows to train on.

        Features that have not learned yet learn from the raw rows. If each process has its own rows, they learn from
        the rows of all.
        """
        has_own_rows, data = self.has_own_rows(sharded), self
        if self.form is Form.RAW:
            if has_own_rows and group.size > 1:
                learn_together(self.features, self.content, group)
            if self._negatives is not None:
                source_of_draws = DrawnRows(self.features, self._negatives, batch_size, shuffle, seed)
                batch_size, data = None, UserData(source_of_draws)
            elif self.content.in_memory:
                data = UserData(inputs_of(self.features, self.content, fit=True))
        if data.form is Form.ARRAYS and group.size > 1 and not has_own_rows:
            return ShardedArrays(data.content, batch_size, group, shuffle=shuffle, seed=seed)
        if data.form is Form.RAW:
            source: Source = RawRowBlocks(self.features, self.content, batch_size or RAW_BATCH_SIZE, shuffle, seed)
        else:
            source = data.source(batch_size, shuffle=shuffle, seed=seed)
        if group.size == 1:
            return source
        return DividedSource(source, group, hooks) if has_own_rows else EveryNth(source, group)

    def inference_source(self, group: Group, *, sharded: bool | None, **options: Any) -> Source:
        """Return the source of this process's batches for evaluation or prediction.

        The processes take whole batches in turn; not even the last batches are divided. `options` are passed to
        `source`.
        """
        source = self.source(fitting=True, **options)
        return source if group.size == 1 or self.has_own_rows(sharded) else EveryNth(source, group)

    def source(
        self,
        batch_size: int | None = None,
        *,
        shuffle: bool = False,
        seed: int = 0,
        fitting: bool = False,
        labelled: bool = True,
        kept: KeptColumns | None = None,
        set_aside: bool = False,
    ) -> Source:
        """Return the source of all rows.

        Args:
            batch_size: rows per batch of arrays and raw rows.
            shuffle, seed, fitting: as in `ArraySource`; the seed applies to pipelines too.
            labelled, kept, set_aside: as in `inputs_of`, for raw rows.
        """
        arrays = self.content
        if self.form is Form.RAW:
            if not self.content.in_memory:
                size = batch_size or RAW_BATCH_SIZE
                return RawRowsInOrder(self.features, self.content, size, labelled, kept, set_aside)
            arrays = inputs_of(self.features, self.content, labelled=labelled, kept=kept, set_aside=set_aside)
        if self.takes_batch_size:
            return ArraySource(arrays, batch_size, shuffle=shuffle, seed=seed, fitting=fitting)
        if self.form is Form.STREAM:
            raise self._unknown_kind()
        if batch_size is not None:
            kinds = tuple | list | dict
            hint = "; columns are given as a tuple or dict of NumPy arrays" if isinstance(self.content, kinds) else ""
            raise ConfigurationError(
                f"batch_size={batch_size!r} needs arrays; a {type(self.content).__name__} is expected to deliver "
                f"batches{hint}"
            )
        if self.form is Form.PIPELINE:
            return wrapped_arrays(self.content, seed) or PipelineSource(self.content, seed=seed)
        return self.content if self.form is Form.SOURCE else IterableSource(self.content)

    # -- as a stream ---------------------------------------------------------------------------------------------

    def stream(self) -> Stream:
        """Return the stream, or an `IterableStream` over batches.

        Raises:
            ConfigurationError: the data are arrays.
        """
        if self.form is Form.STREAM:
            return self.content
        if self.form is Form.ARRAYS:
            raise ConfigurationError(
                "stream: received arrays; make a stream of them, as trainer.streams.ReplayStream({'x': x, 'label': "
                "y}), or use fit"
            )
        _check_not_a_stream(self.content)
        return IterableStream(self.content)

    @property
    def restarts(self) -> bool:
        """Whether every call reads a stream of these data from the beginning.

        Lists and functions are read from the beginning; streams, iterators and objects with a state are continued.
        """
        return not (isinstance(self.content, Stream | Iterator) or hasattr(self.content, "load_state_dict"))


def named_sets(data: Any, features: Features | None) -> dict[str, UserData]:
    """Return validation sets by name; a single one has an empty name."""
    if data is None:
        return {}
    fields = set() if features is None else set(features.schema.fields)
    is_named = isinstance(data, Mapping) and bool(data) and fields.isdisjoint(data)
    if not is_named or any(_is_column(part) and (features is None or not is_raw(part)) for part in data.values()):
        return {"": UserData(data, features)}
    for name in data:
        if not isinstance(name, str) or not name:
            refuse("valid_dataset", "a dict from names to datasets", name)
    return {name: UserData(part, features) for name, part in data.items()}


def _is_column(value: Any) -> bool:
    """Return whether a dict's value is a column rather than a dataset."""
    column = isinstance(value, list | str) or hasattr(value, "dtype") or hasattr(value, "to_pylist")
    return column and not is_frame(value)


def _are_arrays(data: Any) -> bool:
    """Return whether `data` is an array, a frame, or a dict or tuple of arrays only."""
    if is_frame(data) or (hasattr(data, "shape") and hasattr(data, "dtype")):
        return True
    if not isinstance(data, Mapping | tuple) or not data:
        return False
    if isinstance(data, Mapping):
        return all(isinstance(v, list) or _are_arrays(v) or hasattr(v, "to_pylist") for v in data.values())
    return all(hasattr(v, "shape") and (hasattr(v, "dtype") or is_frame(v)) for v in data)


def _is_array(item: Any) -> bool:
    return hasattr(item, "shape") and not is_frame(item)


def _is_list(item: Any) -> bool:
    return isinstance(item, list) and not any(_is_array(part) or isinstance(part, Mapping) for part in item[:1])


def _is_shard(data: Any) -> bool:
    """Return whether a pipeline or source reads only one shard of the rows."""
    if not (isinstance(data, Source) or hasattr(data, "create_tuple_iterator")):
        return False
    parts = [getattr(owner, "num_shards", None) or 1 for owner in (data, getattr(data, "sampler", None))]
    return max(parts) > 1 or any(map(_is_shard, getattr(data, "children", [])))


def _check_not_a_stream(data: Any) -> None:
    if hasattr(data, "poll"):
        raise ConfigurationError(
            f"stream: {type(data).__name__} has a poll method but is not a trainer.streams.Stream; derive it from that "
            "class, which declares what a stream may add and its defaults"
        )
