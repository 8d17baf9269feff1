"""Aligned lists: columns of one sequence, each with a value per element."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import ConfigurationError, did_you_mean
from .column import Column
from .ragged_column import Ragged


@dataclass(frozen=True)
class AlignedLists:
    """Columns whose lists have the same length in every row.

    Attributes:
        name: name of the sequence, for messages.
        columns: name of each column -> the separator of lists that are written as one text; None for columns of lists.
    """

    name: str
    columns: Mapping[str, str | None]

    def misfits(self, arrays: Mapping[str, Any]) -> dict[int, str]:
        """Return why rows do not fit, by row index: the columns with their lengths.

        Args:
            arrays: converted columns by name, of the same number of rows.
        """
        lengths = {name: list_lengths(arrays[name], separator) for name, separator in self.columns.items()}
        first, *others = lengths.values()
        differ = np.any([other != first for other in others], axis=0) if others else np.zeros(len(first), bool)
        reason = f"sequence {self.name!r} takes lists of one length; received "
        return {
            int(row): reason + ", ".join(f"{name} {length[row]}" for name, length in lengths.items())
            for row in np.flatnonzero(differ)
        }


def list_lengths(values: Any, separator: str | None) -> np.ndarray:
    """Return the number of values in each row, int64 [N].

    Args:
        values: `Ragged`, or text [N] of lists written with `separator`.
        separator: see `values`; blank text is an empty list, an empty part a value that is missing.
    """
    if isinstance(values, Ragged):
        return values.lengths
    blank = np.char.strip(values) == ""
    return np.where(blank, 0, np.char.count(values, separator) + 1)


def as_aligned(value: Any, columns: Mapping[str, Column]) -> tuple[AlignedLists, ...]:
    """Return the sequences that the argument `aligned` of a schema declares.

    Args:
        value: name of a sequence -> names of its columns, or a mapping from these names to separators.
        columns: the schema's columns.

    Raises:
        ConfigurationError: it is no such mapping, or a column is unknown or holds no lists.
    """
    accepted = "a mapping from names of sequences to names of their columns"
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"aligned takes {accepted}; received {value!r}")
    sequences = []
    for sequence, names in value.items():
        if isinstance(names, str) or not isinstance(names, Sequence | Mapping) or not names:
            raise ConfigurationError(f"aligned takes {accepted}; received {names!r} for {sequence!r}")
        separators = dict(names) if isinstance(names, Mapping) else dict.fromkeys(names)
        for name, separator in separators.items():
            if name not in columns:
                raise ConfigurationError(
                    f"aligned={{{sequence!r}: ...}}: {name!r} is not among the columns {list(columns)}"
                    f"{did_you_mean(name, columns)}"
                )
            if not columns[name].ragged and separator is None:
                raise ConfigurationError(
                    f"aligned={{{sequence!r}: ...}} takes columns of lists, shape=(None,); {name!r} holds single values"
                )
        sequences.append(AlignedLists(str(sequence), separators))
    return tuple(sequences)
