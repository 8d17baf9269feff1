"""Propose features and a model for a table, from a summary of its columns."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ...checks import choice
from ...errors import ConfigurationError
from ...features.feature import IDS, NUMBERS, as_feature
from ...models import MODELS
from ...streams.formats.coercion import EXACT
from .column_summary import ColumnSummary
from .declared_rows import require_column
from .table_summary import TableSummary

HISTORY_MODELS, TASK_MODELS = ("din", "bst"), ("mmoe", "ple", "esmm")
UNSUPPORTED = ("bpr", "sasrec", "hstu")  # their training rows must first be created by `data.split`
_LABELS = re.compile(
    r"(^|_)(label|labels|target|y|click|clicks|clicked|is_click|conversion|converted|purchase|purchased|bought|buy|"
    r"like|liked|churn|churned|survived|fraud|class|outcome|response|rating|score)\W*$",
    re.IGNORECASE,
)
_IDS = re.compile(r"(^|_)(id|ids|uid|key|code)$|id$|Id$|^(user|item|movie|film|product|ad|article|shop|store)$")
_ROW_IDS = re.compile(r"^(id|index|row|row_id|uuid|guid|rowid|unnamed: 0|)$", re.IGNORECASE)
_HISTORIES = re.compile(r"hist|seq|recent|last|past|previous|viewed|clicks|items", re.IGNORECASE)
_ITEMS = re.compile(r"item|film|movie|product|article|ad|song|video|goods|news", re.IGNORECASE)
_USERS = re.compile(r"user|customer|member|visitor|client|person|session|(^|_)uid$", re.IGNORECASE)
_NEGATIVE = ("no", "n", "nein", "non", "nee", "nej", "nie", "не", "нет", "否", "不", "false", "off", "none", "negative")
_LABEL_KINDS = ("number", "integer", "bool", "text")
_MIN_TIMES = 10  # distinct times needed to split the rows into three parts
_FEW_VALUES, _SMALL_VOCABULARY, _MAX_LIST, _MAX_CLASSES = 20, 1000, 50, 100


@dataclass
class Proposal:
    """The experiment that `propose` suggests for a table."""

    model: str
    options: dict[str, Any]
    labels: tuple[str, ...]
    binary: bool  # whether every label has two values
    classes: tuple[Any, ...]  # values of a categorical label; () for numbers, and for the classes 0 and 1
    event_time: str | None  # name of the column that the table is split by, or None
    # Pairs (feature arguments, column description). A column that is not a feature has None instead of arguments; its
    # description gives the reason.
    features: list[tuple[dict[str, Any] | None, str]] = field(default_factory=list)
    reason: str = ""


@dataclass(frozen=True)
class Sides:
    """Columns assigned to the user tower or the item tower, or left out."""

    user: Sequence[str] = ()
    item: Sequence[str] = ()
    left_out: Sequence[str] = ()


NO_SIDES = Sides()


def propose(
    table: TableSummary,
    model: str | None = None,
    labels: Sequence[str] = (),
    event_time: str | None = None,
    sides: Sides = NO_SIDES,
) -> Proposal:
    """Propose features and a model for a table.

    Args:
        labels: names of the label columns; empty: a column is chosen by its name and values.
        event_time: name of the column with the time of an event; None: the first with at least 10 distinct times.
        sides: columns of each tower, and columns that are left out of the features.

    Raises:
        ConfigurationError: the arguments do not fit the table or each other, or no column can be a label or a feature.
    """
    choice("MODEL", model, MODELS, optional=True)
    if model in UNSUPPORTED:
        raise ConfigurationError(
            f"init writes no configuration for {model}; start from the one in docs/models.md, section 'The next item'"
        )
    if (sides.user or sides.item) and model != "two_tower":
        raise ConfigurationError(f"--user and --item need the model two_tower; received {model or 'no model'}")
    for name in (*labels, *([event_time] if event_time else []), *sides.user, *sides.item, *sides.left_out):
        require_column(table.path, name, table.names)
    labels = tuple(labels) or (_item_label(table) if model == "two_tower" else _label(table, model))
    for name in sides.left_out:
        if name in labels:
            message = f"--leave-out {name}: {name} is the label; keep it, or name another by --label NAME"
            raise ConfigurationError(message)
    classes = () if model == "two_tower" else _classes(table, labels)
    if event_time is not None and (problem := table.column(event_time).problem) is not None:
        raise ConfigurationError(f"--time {event_time}: {problem}")
    if event_time is not None and (column := table.column(event_time)).kind not in ("time", "number", "integer"):
        raise ConfigurationError(
            f"--time {event_time}: takes a column of times; received {column.kind}, {column.describe()}"
        )
    if event_time is None:
        times = [c.name for c in table.columns if c.kind == "time" and c.distinct >= _MIN_TIMES]
        event_time = next((name for name in times if name not in labels), None)
    history, item = _history(table, labels, wanted=model in HISTORY_MODELS)
    reason = ""
    if model is None:
        is_number = not classes and not all(table.column(name).is_binary for name in labels)
        model, reason = _choose_model(labels, history, item, len(classes), is_number)
    if len(classes) > 2 and model != "wide_deep":
        raise ConfigurationError(
            f"label {labels[0]!r} has {len(classes)} classes, but {model} has one output; use wide_deep"
        )
    if model in HISTORY_MODELS and history is None:
        raise ConfigurationError(
            f"{model} needs a history: a list column, and a column of single items with the same values; "
            f"{table.path} has {', '.join(table.names)}"
        )
    if model in TASK_MODELS and len(labels) < 2:
        raise ConfigurationError(f"{model} has several tasks; name the label columns: --label {labels[0]} --label NAME")
    if model not in TASK_MODELS and len(labels) > 1:
        several = ", ".join(TASK_MODELS)
        raise ConfigurationError(f"{model} has one label; received {', '.join(labels)}; {several} accept several")
    binary = len(classes) == 2 or all(table.column(name).is_binary for name in labels)
    proposal = Proposal(model, {}, labels, binary, classes, event_time, reason=reason)
    item_side: list[str] = []
    outcomes: list[str] = []
    if model == "two_tower":
        item_side, outcomes = _sides(table, labels[0], sides)
    for column in table.columns:
        if column.name in sides.left_out or column.name in outcomes:
            exclusion = "known only after the user's choice" if column.name in outcomes else "as you asked"
            proposal.features.append((None, f"{column.name}: {exclusion}"))
        elif column.name not in labels or model == "two_tower":
            shared = item if column.name in (history, item) and item is not None else None
            sequence = column.name == history and model in HISTORY_MODELS
            proposal.features.append(_feature(column, shared, sequence))
    proposal.features = _with_own_names(proposal.features)
    if not any(arguments for arguments, _ in proposal.features):
        reasons = "; ".join(about for _, about in proposal.features) or "there is no other column"
        raise ConfigurationError(f"{table.path}: no column besides {', '.join(labels)} can be a feature: {reasons}")
    proposal.options = _options(table, proposal)
    if model == "two_tower":
        declared = [arguments for arguments, _ in proposal.features if arguments]
        sources = {arguments["name"]: arguments.get("column", arguments["name"]) for arguments in declared}
        proposal.options["item"] = [name for name, column in sources.items() if column in item_side]
    return proposal


def _with_own_names(
    features: Sequence[tuple[dict[str, Any] | None, str]],
) -> list[tuple[dict[str, Any] | None, str]]:
    """Rename features whose columns have the names of inputs, or of parts of a time.

    For example, "when_hour" may be a column and a part of the column "when".
    """
    taken, renamed = {NUMBERS, IDS}, list[tuple[dict[str, Any] | None, str]]()
    for arguments, about in features:
        while arguments is not None and not taken.isdisjoint(_output_names(arguments)):
            column = arguments.get("column", arguments["name"])
            arguments = {**arguments, "name": f"{arguments['name']}_", "column": column}
        taken |= _output_names(arguments) if arguments is not None else set()
        renamed.append((arguments, about))
    return renamed


def _output_names(arguments: dict[str, Any]) -> set[str]:
    return {arguments["name"], *(output.name for output in as_feature(arguments).outputs())}


def _label(table: TableSummary, model: str | None) -> tuple[str, ...]:
    usable = [column for column in table.columns if column.kind in _LABEL_KINDS]
    named = [column.name for column in usable if _LABELS.search(column.name)]
    binary = [column.name for column in usable if column.is_binary]
    best = [name for name in named if name in binary]
    if model in TASK_MODELS and len(best) > 1:
        return tuple(best)
    if names := best or named or (binary if len(binary) == 1 else []):
        return (names[0],)
    likely = next((column for column in reversed(usable) if _unusable_reason(column) is None), table.columns[-1])
    raise ConfigurationError(
        f"no column of {table.path} is named like a label; name the one to predict, one of {', '.join(table.names)}: "
        f"trainer init {shlex.quote(str(table.path))} --label {shlex.quote(likely.name)}"
    )


def _classes(table: TableSummary, labels: Sequence[str]) -> tuple[Any, ...]:
    """Return the values of a categorical label; see `Proposal.classes`."""
    for column in map(table.column, labels):
        text = column.kind == "text"
        two = column.kind in ("integer", "number") and column.distinct == 2 and not column.is_binary
        if text and len(labels) > 1:
            raise ConfigurationError(
                f"label {column.name!r} is text; with several tasks each label must be a number, such as 0 and 1"
            )
        if column.problem is not None:
            raise ConfigurationError(f"label {column.name!r}: {column.problem}")
        if table.complete and column.kind in ("bool", "number", "integer") and column.distinct == 1:
            raise ConfigurationError(
                f"label {column.name!r} is {next(iter(column.values))} in all rows; name another "
                f"column, one to learn from: --label NAME, one of {', '.join(table.names)}"
            )
        if column.kind not in _LABEL_KINDS or (text and not 2 <= column.distinct <= _MAX_CLASSES):
            raise ConfigurationError(
                f"label {column.name!r} is {column.kind}, {column.describe()}; a label is a number, 0 and 1, or one of "
                f"2 to {_MAX_CLASSES} texts. Name another column: --label NAME, one of {', '.join(table.names)}"
            )
        if text:
            return tuple(sorted(column.values, key=lambda text: (text.lower() not in _NEGATIVE, text)))
        if two and len(labels) == 1:
            return tuple(
                sorted(int(value) if value.lstrip("+-").isdigit() else float(value) for value in column.values)
            )
    return ()


def _item_label(table: TableSummary) -> tuple[str, ...]:
    items = [c.name for c in table.columns if c.kind == "integer" and _ITEMS.search(c.name) and _IDS.search(c.name)]
    if not items:
        raise ConfigurationError(
            "two_tower learns which item goes with a row; name the column with the item's number: --label NAME, one of "
            f"{', '.join(c.name for c in table.columns if c.kind == 'integer') or 'none: it has no whole numbers'}"
        )
    return (items[0],)


def _sides(table: TableSummary, label: str, sides: Sides) -> tuple[list[str], list[str]]:
    """Return (columns of the item, columns known only after the user's choice).

    A column with one value per item describes the item, and one with one value per user describes the user. A time
    column is the time of the choice, so it is an input. A column named like a label is known only after the choice.

    Raises:
        ConfigurationError: another column is not in `sides`; the message says how to assign it.
    """
    user = next((c.name for c in table.columns if c.name != label and _USERS.search(c.name)), None)
    item, outcomes, unknown = [label, *sides.item], list[str](), list[str]()
    for column in table.columns:
        assigned = column.name in (label, user, *sides.user, *sides.item, *sides.left_out)
        if assigned or _unusable_reason(column) is not None:
            continue
        if table.determines(label, column.name):
            item.append(column.name)
        elif column.kind != "time" and not (user is not None and table.determines(user, column.name)):
            (outcomes if _LABELS.search(column.name) else unknown).append(column.name)
    if unknown:
        first = unknown[0]
        raise ConfigurationError(
            f"two_tower: {', '.join(unknown)} of {table.path} may belong to the user or to the item: the values differ "
            f"within an item and within a user. For each, pass --user {first} if it is known before the user's choice, "
            f"--item {first} if it describes the item, or --leave-out {first} if it is known only afterwards"
        )
    return item, outcomes


def _history(table: TableSummary, labels: Sequence[str], *, wanted: bool) -> tuple[str | None, str | None]:
    """Return (list column, column that shares its values), or (None, None)."""
    # (share of common values, list column, other column); a share up to 0.2 counts as chance
    best: tuple[float, str | None, str | None] = (0.2, None, None)
    lists = [c for c in table.columns if c.kind == "list" and (wanted or _HISTORIES.search(c.name))]
    for column, other in itertools.product(lists, table.columns):
        if other.kind == ("integer" if column.whole else "text") and other.name not in labels:
            common = len(column.values.keys() & other.values.keys())
            shared = common / max(1, column.distinct + other.distinct - common)
            if shared > best[0]:
                best = (shared, column.name, other.name)
    return best[1:]


def _choose_model(
    labels: Sequence[str], history: str | None, item: str | None, classes: int, is_number: bool
) -> tuple[str, str]:
    if len(labels) > 1:
        return "mmoe", f"{len(labels)} labels are {len(labels)} tasks"
    if classes > 2:
        return "wide_deep", f"one label of {classes} classes"
    if is_number:
        return "deepfm", "one label, a number, scaled by its mean and standard deviation"
    if history is not None:
        return "din", f"{history} is a history of {item}"
    return "deepfm", "one label, and columns of categories and numbers"


def _feature(column: ColumnSummary, table: str | None, sequence: bool) -> tuple[dict[str, Any] | None, str]:
    """Return the feature arguments and the description of a column."""
    about = column.describe()
    shared = {"table": table} if table is not None and table != column.name else {}
    if (reason := _unusable_reason(column)) is not None:
        return None, f"{column.name}: {reason}"
    if column.kind in ("list", "vector", "time"):
        return _list_vector_or_time(column, sequence, shared), about
    has_few_values = column.distinct <= _FEW_VALUES and column.maximum - column.minimum < 10 * _FEW_VALUES
    is_id = column.kind == "integer" and (has_few_values or _is_identifier(column))
    if is_id or column.kind == "bool" or table is not None:
        dtype = {"dtype": "int64"} if column.kind == "integer" and column.fits_int64 else {}
        return {"kind": "categorical", "name": column.name, **dtype, **shared, **_vocabulary(column, table)}, about
    if column.kind in ("number", "integer"):
        return _number(column), about
    if column.width >= 3 and column.distinct > 0.5 * (column.rows - column.missing):
        return {"kind": "text", "name": column.name, "max_length": 32}, f"{column.width:.0f} words, {about}"
    return {"kind": "categorical", "name": column.name, **_vocabulary(column, table)}, about


def _unusable_reason(column: ColumnSummary) -> str | None:
    """Return why a column cannot be a feature, or None."""
    if column.problem is not None:
        return column.problem
    if column.distinct == 1 and not column.missing and column.kind not in ("list", "map", "empty"):
        return "one value in all rows"
    named_as_id = column.kind == "integer" and (_ROW_IDS.match(column.name) or _is_identifier(column))
    is_row_number = column.kind == "integer" and column.maximum - column.minimum < 1.1 * column.rows
    single_words = column.kind == "text" and column.width < 2
    if column.rows > 50 and column.distinct == column.rows and (named_as_id or is_row_number or single_words):
        return "a different value in every row"
    return {
        "empty": "no value",
        "map": "maps; see kind lookup in docs/features.md",
    }.get(column.kind)


def _is_identifier(column: ColumnSummary) -> bool:
    """Return whether integers are ids: by their name, or too long for a float."""
    return bool(_IDS.search(column.name)) or max(-column.minimum, column.maximum) >= EXACT


def time_options(column: ColumnSummary) -> dict[str, Any]:
    """Return the options needed to read a column's times."""
    unit = {} if column.unit in (None, "s") else {"unit": column.unit}
    return unit if column.day_first is None else {**unit, "day_first": column.day_first}


def _vocabulary(column: ColumnSummary, table: str | None) -> dict[str, Any]:
    return {"vocabulary": "learn"} if column.distinct <= _SMALL_VOCABULARY // 10 and table is None else {}


def _list_vector_or_time(column: ColumnSummary, sequence: bool, shared: dict[str, Any]) -> dict[str, Any]:
    if column.kind == "vector":
        return {"kind": "vector", "name": column.name, "width": int(column.width)}
    if column.kind == "time":
        days = column.minimum % 86_400 == 0 and column.maximum % 86_400 == 0
        parts = ["weekday", "month"] if days else ["hour", "weekday"]
        return {"kind": "time", "name": column.name, "parts": parts, **time_options(column)}
    arguments: dict[str, Any] = {"kind": "list", "name": column.name}
    if column.separator is not None:
        arguments["separator"] = column.separator
    if column.whole:
        arguments["dtype"] = "int64"
    arguments["max_length"] = min(_MAX_LIST, max(1, int(column.maximum)))
    return {**arguments, **shared, **({"pooling": None} if sequence else {})}


def _number(column: ColumnSummary) -> dict[str, Any]:
    arguments: dict[str, Any] = {"kind": "numeric", "name": column.name}
    if column.minimum >= 0 and column.maximum > 100 * max(1.0, column.median):
        arguments["transform"] = "log1p"  # the values have a long tail
    arguments["normalize"] = "standard"
    return {**arguments, **({"indicator": True} if column.missing else {})}


def _options(table: TableSummary, proposal: Proposal) -> dict[str, Any]:
    small = table.rows < 100_000
    options: dict[str, Any] = {}
    if proposal.model != "lr":
        options["dim"] = 8 if small else 16
    if proposal.model in ("wide_deep", "deepfm", "dcn_v2", "autoint", "masknet", "din", "bst"):
        options["hidden"] = [64, 32] if small else [256, 128]
    if len(proposal.classes) > 2:
        options["classes"] = len(proposal.classes)
    if proposal.model == "deepfm" and not proposal.binary:
        label = table.column(proposal.labels[0])
        options |= {"mean": float(f"{label.mean:.4g}"), "deviation": float(f"{label.deviation:.4g}")}
    return options
