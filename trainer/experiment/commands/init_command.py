"""`trainer init`: writes a commented, runnable first experiment for a table."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...checkpoint import durable
from ...checks import choice
from ...errors import ConfigurationError, did_you_mean
from ...models import MODELS
from ..configuration.loader import load_config
from ..configuration.yaml_tree import dump
from .table_summary import ColumnSummary, TableSummary, summarize

HISTORY_MODELS, TASK_MODELS = ("din", "bst"), ("mmoe", "ple", "esmm")
_LABELS = re.compile(
    r"(^|_)(label|labels|target|y|click|clicks|clicked|is_click|conversion|converted|purchase|purchased|bought|buy|"
    r"like|liked|churn|outcome|response|rating|score)$",
    re.IGNORECASE,
)
_IDS = re.compile(r"(^|_)(id|ids|uid|key|code)$|id$|Id$|^(user|item|movie|film|product|ad|article|shop|store)$")
_ROW_IDS = re.compile(r"^(id|index|row|row_id|uuid|guid|rowid|unnamed: 0|)$", re.IGNORECASE)
_HISTORIES = re.compile(r"hist|seq|recent|last|past|previous|viewed|clicks|items", re.IGNORECASE)
_ITEMS = re.compile(r"item|film|movie|product|article|ad|song|video|goods|news", re.IGNORECASE)
_FEW, _SMALL_VOCABULARY, _LONGEST_LIST = 20, 1000, 50


@dataclass
class Proposal:
    """The experiment that `propose` suggests for a table.

    Attributes:
        binary: whether the labels are 0 and 1; otherwise they are real numbers.
        event_time: name of the column that the table is split by, or None.
        features: pairs of a feature's arguments and a description of its column. For a column left out the arguments
            are None and the description gives the reason.
    """

    model: str
    options: dict[str, Any]
    labels: tuple[str, ...]
    binary: bool
    event_time: str | None
    features: list[tuple[dict[str, Any] | None, str]] = field(default_factory=list)
    reason: str = ""


def propose(
    table: TableSummary, model: str | None = None, labels: Sequence[str] = (), event_time: str | None = None
) -> Proposal:
    """Propose features and a model for a table.

    Args:
        labels: names of the label columns; empty: the column whose name and values look like a label.
        event_time: name of the column with the time of an event; None: the first column of times.
    """
    choice("MODEL", model, MODELS, optional=True)
    for name in (*labels, *([event_time] if event_time else [])):
        if name not in table.names:
            raise ConfigurationError(
                f"{table.path} has no column {name!r}; it has {', '.join(table.names)}{did_you_mean(name, table.names)}"
            )
    labels = tuple(labels) or (_item_label(table) if model == "two_tower" else _label(table, model))
    _check_labels(table, labels)
    if event_time is None:
        event_time = next((c.name for c in table.columns if c.kind == "time" and c.name not in labels), None)
    history, item = _history(table, labels, wanted=model in HISTORY_MODELS)
    reason = ""
    if model is None:
        model, reason = _suitable(labels, history, item)
    if model in HISTORY_MODELS and history is None:
        raise ConfigurationError(
            f"{model} needs a history, a column of lists that share their values with a column of single ones; "
            f"{table.path} has {', '.join(table.names)}"
        )
    if model in TASK_MODELS and len(labels) < 2:
        raise ConfigurationError(f"{model} has several tasks; name the label columns: --label {labels[0]} --label NAME")
    if model not in TASK_MODELS and len(labels) > 1:
        raise ConfigurationError(
            f"{model} has one label; received {', '.join(labels)}; several go with mmoe, ple, esmm"
        )
    binary = all(table.column(name).is_binary for name in labels)
    proposal = Proposal(model, {}, labels, binary, event_time, reason=reason)
    for column in table.columns:
        if column.name not in labels or model == "two_tower":
            shared = item if column.name in (history, item) and item is not None else None
            sequence = column.name == history and model in HISTORY_MODELS
            proposal.features.append(_feature(column, shared, sequence))
    if not any(arguments for arguments, _ in proposal.features):
        raise ConfigurationError(f"{table.path}: no column but {', '.join(labels)} can be a feature")
    proposal.options = _options(table, proposal)
    return proposal


def _label(table: TableSummary, model: str | None) -> tuple[str, ...]:
    usable = [column for column in table.columns if column.kind in ("number", "integer", "bool")]
    named = [column.name for column in usable if _LABELS.search(column.name)]
    binary = [column.name for column in usable if column.is_binary]
    best = [name for name in named if name in binary]
    if model in TASK_MODELS and len(best) > 1:
        return tuple(best)
    texts = [column for column in table.columns if column.kind == "text" and _LABELS.search(column.name)]
    if texts and not named:
        others = f", or name another column: --label {binary[-1]}" if binary else ""
        raise ConfigurationError(f"{_text_label(texts[0])}{others}")
    for names in (best, named, binary[-1:] if len(binary) == 1 else []):
        if names:
            return (names[0],)
    raise ConfigurationError(
        f"no column of {table.path} is named like a label; name it: --label NAME, one of {', '.join(table.names)}"
    )


def _item_label(table: TableSummary) -> tuple[str, ...]:
    items = [c.name for c in table.columns if c.kind == "integer" and _ITEMS.search(c.name) and _IDS.search(c.name)]
    if not items:
        raise ConfigurationError(
            "two_tower learns which item goes with a row; name the column with the item's number: --label NAME, one of "
            f"{', '.join(c.name for c in table.columns if c.kind == 'integer') or 'none: it has no whole numbers'}"
        )
    return (items[0],)


def _check_labels(table: TableSummary, labels: Sequence[str]) -> None:
    for name in labels:
        column = table.column(name)
        if column.kind not in ("number", "integer", "bool"):
            raise ConfigurationError(_text_label(column))


def _text_label(column: ColumnSummary) -> str:
    values = ", ".join(map(repr, list(column.values)[:3]))
    return (
        f"label {column.name!r} is {column.kind}{f', as {values}' if values else ''}; a label is a number: write 1 for "
        "what happened and 0 for what did not into the file"
    )


def _history(table: TableSummary, labels: Sequence[str], *, wanted: bool) -> tuple[str | None, str | None]:
    """Return (history, item): a list column and the one with its values, or Nones."""
    best: tuple[float, str | None, str | None] = (0.2, None, None)
    for column in table.columns:
        if column.kind != "list" or not (wanted or _HISTORIES.search(column.name)):
            continue
        for other in table.columns:
            same_kind = other.kind == ("integer" if column.whole else "text")
            if not same_kind or other.name in labels:
                continue
            common = len(column.values.keys() & other.values.keys())
            shared = common / max(1, column.distinct + other.distinct - common)
            if shared > best[0]:
                best = (shared, column.name, other.name)
    return best[1:]


def _suitable(labels: Sequence[str], history: str | None, item: str | None) -> tuple[str, str]:
    if len(labels) > 1:
        return "mmoe", f"{len(labels)} labels are {len(labels)} tasks"
    if history is not None:
        return "din", f"{history} is a history of {item}"
    return "deepfm", "one label, and columns of categories and numbers"


def _feature(column: ColumnSummary, table: str | None, sequence: bool) -> tuple[dict[str, Any] | None, str]:
    """Return feature arguments and description of a column."""
    about = column.describe()
    shared = {"table": table} if table is not None and table != column.name else {}
    if column.kind == "empty":
        return None, f"{column.name}: no value"
    if column.distinct == 1 and not column.missing and column.kind not in ("list", "map"):
        return None, f"{column.name}: one value in all rows"
    if column.kind == "milliseconds":
        return None, f"{column.name}: times in milliseconds; give seconds, or text as 2024-05-01 09:30"
    if column.kind == "map":
        return None, f"{column.name}: maps; see kind lookup in docs/features.md"
    if _is_row_id(column):
        return None, f"{column.name}: another value in every row"
    if column.kind in ("list", "vector", "time"):
        return _listed(column, sequence, shared), about
    few = column.kind == "integer" and column.distinct <= _FEW and column.maximum - column.minimum < 10 * _FEW
    ids = column.kind == "integer" and (few or bool(_IDS.search(column.name)))
    if ids or column.kind == "bool" or table is not None:
        dtype = {"dtype": "int64"} if column.kind == "integer" else {}
        return {"kind": "categorical", "name": column.name, **dtype, **shared, **_vocabulary(column, table)}, about
    if column.kind in ("number", "integer"):
        return _number(column), about
    if column.width >= 3 and column.distinct > 0.5 * (column.rows - column.missing):
        return {"kind": "text", "name": column.name, "max_length": 32}, f"{column.width:.0f} words, {about}"
    return {"kind": "categorical", "name": column.name, **_vocabulary(column, table)}, about


def _is_row_id(column: ColumnSummary) -> bool:
    unique = column.rows > 50 and column.distinct == column.rows
    if column.kind == "integer":
        return unique and bool(_ROW_IDS.match(column.name))
    return unique and column.kind == "text" and column.width < 2


def _vocabulary(column: ColumnSummary, table: str | None) -> dict[str, Any]:
    return {"vocabulary": "learn"} if column.distinct <= _SMALL_VOCABULARY // 10 and table is None else {}


def _listed(column: ColumnSummary, sequence: bool, shared: dict[str, Any]) -> dict[str, Any]:
    if column.kind == "vector":
        return {"kind": "vector", "name": column.name, "width": int(column.width)}
    if column.kind == "time":
        days = column.minimum % 86_400 == 0 and column.maximum % 86_400 == 0
        return {"kind": "time", "name": column.name, "parts": ["weekday", "month"] if days else ["hour", "weekday"]}
    arguments: dict[str, Any] = {"kind": "list", "name": column.name}
    if column.separator is not None:
        arguments["separator"] = column.separator
    if column.whole:
        arguments["dtype"] = "int64"
    arguments["max_length"] = min(_LONGEST_LIST, max(1, int(column.maximum)))
    return {**arguments, **shared, **({"pooling": None} if sequence else {})}


def _number(column: ColumnSummary) -> dict[str, Any]:
    arguments: dict[str, Any] = {"kind": "numeric", "name": column.name}
    if column.minimum >= 0 and column.maximum > 100 * max(1.0, column.median):
        arguments["transform"] = "log1p"  # a long tail
    arguments["normalize"] = "standard"
    return {**arguments, **({"indicator": True} if column.missing else {})}


def _options(table: TableSummary, proposal: Proposal) -> dict[str, Any]:
    small = table.rows < 100_000
    options: dict[str, Any] = {}
    if proposal.model != "lr":
        options["dim"] = 8 if small else 16
    if proposal.model in ("wide_deep", "deepfm", "dcn_v2", "autoint", "masknet", "din", "bst"):
        options["hidden"] = [64, 32] if small else [256, 128]
    if proposal.model == "two_tower":
        names = [arguments["name"] for arguments, _ in proposal.features if arguments]
        options["item"] = [name for name in names if _ITEMS.search(name) or name in proposal.labels]
    return options


# -- text --------------------------------------------------------------------------------------------------------------

_HEAD = """\
# {path}: {rows} rows{looked}, {columns} columns.
# Written by `trainer init`; change what you know better.
#
{commands}
experiment: {name}
seed: 1
run_dir: {run_dir}

features:
  columns:
"""
_COMMANDS = (
    ("fit {file}", "train, validate, test on the rows kept for that"),
    ("evaluate {file}", "test the last run again; --data FILE: other rows"),
    ("predict {file} --data FILE --output answers.csv", ""),
    ("serve runs/{name}", "answer over HTTP"),
    ("online {file}", "learn row by row; each is scored first"),
)
_COLUMNS = 80


def _commands(file: str, name: str) -> str:
    """Return the file's commands as comments, with explanations in a column."""
    lines = [(command.format(file=file, name=name), about) for command, about in _COMMANDS]
    width = max(len(command) for command, about in lines if about)
    return "\n".join(f"#   trainer {command:<{width if about else 0}}  {about}".rstrip() for command, about in lines)


def config_text(table: TableSummary, proposal: Proposal, output: Path) -> str:
    """Return the proposed experiment as YAML text, for the file `output`."""
    name = re.sub(r"[^\w-]+", "_", output.stem, flags=re.ASCII).strip("_-") or "table"
    text = _HEAD.format(
        path=_comment(str(table.path)),
        rows=f"{'' if table.complete else 'about '}{table.rows:,}",
        looked="" if table.complete else f" (figures below are of the first {table.columns[0].rows:,})",
        columns=len(table.columns),
        commands=_commands(f'"{output}"' if " " in str(output) else str(output), name),
        name=name,
        run_dir=f"runs/{name}",
    )
    for arguments, about in proposal.features:
        text += (
            f"    - {_flow(arguments)}  # {_comment(about)}\n" if arguments else f"    # left out: {_comment(about)}\n"
        )
    labels = proposal.labels[0] if len(proposal.labels) == 1 else list(proposal.labels)
    shares = ", ".join(table.column(name).describe() for name in proposal.labels)
    text += f"  label: {_flow(labels)}  # {shares}\n"
    if proposal.model == "two_tower":
        text += "  label_dtype: int32\n"
    if proposal.event_time:
        text += f"  event_time: {_flow(proposal.event_time)}  # the newest rows are kept to judge on\n"
    why = f"# {proposal.reason}; `trainer models` lists others\n" if proposal.reason else ""
    text += f"\n{why}network:\n  model: {proposal.model}\n"
    text += "".join(f"  {name}: {_flow(value)}\n" for name, value in proposal.options.items())
    return text + _training(table, proposal) + _data(table, proposal, name)


def _training(table: TableSummary, proposal: Proposal) -> str:
    loss_path = "mindspore.nn.BCEWithLogitsLoss" if proposal.binary else "mindspore.nn.MSELoss"
    loss: Any = {"class_path": loss_path}
    if proposal.model == "two_tower":
        loss = {"class_path": "trainer.models.InBatchSoftmax"}
    elif len(proposal.labels) > 1:
        losses = {
            name: {"class_path": f"mindspore.nn.{'BCEWithLogitsLoss' if table.column(name).is_binary else 'MSELoss'}"}
            for name in proposal.labels
        }
        loss = {"class_path": "trainer.graph.multi_task.MultiTaskLoss", "init_args": {"losses": losses}}
    metrics = ["auc", "log_loss"] if proposal.binary else ["rmse", "mae"]
    mixed = len({table.column(name).is_binary for name in proposal.labels}) > 1
    text = f"loss: {_flow(loss)}\n"
    text += "optimizer: {class_path: mindspore.nn.Adam, init_args: {learning_rate: 1e-3}}\n"
    return text if mixed or proposal.model == "two_tower" else f"{text}metrics: {_flow(metrics)}\n"


def _stream(table: TableSummary, proposal: Proposal) -> dict[str, Any]:
    """Return the stream's arguments; it may set aside rows without label or time."""
    required = [*proposal.labels, *([proposal.event_time] if proposal.event_time else [])]
    share = sum(table.column(name).missing_share for name in required)
    arguments: dict[str, Any] = {"path": str(table.path), "end": "at_last"}
    if share:
        limit = {"max_bad_share": round(min(1.0, 0.01 + 2 * share), 2)}
        arguments["dead_letter"] = {"class_path": "trainer.streams.DeadLetter", "init_args": limit}
    return arguments


def _data(table: TableSummary, proposal: Proposal, name: str) -> str:
    rows = table.rows
    batch = 64 if rows < 10_000 else 256 if rows < 1_000_000 else 1024
    path = str(table.path)
    sections = {
        part: {"class_path": "trainer.features.RawFiles", "init_args": {"path": path, "part": part}}
        for part in ("train", "valid", "test")
    }
    sections["stream"] = {"class_path": "trainer.streams.FileStream", "init_args": _stream(table, proposal)}
    parts = "".join(f"  {part}:{_block(value, 4)}" for part, value in sections.items())
    window = {"class_path": "trainer.Window", "init_args": {"rows": max(100, rows // 20)}}
    return f"""
# 80 % of the rows to train on, 10 % to validate on after every epoch, 10 % to
# test on; other files: `train: newer.csv`
data:
{parts}fit: {{epochs: 3, batch_size: {batch}}}
online:{_block({"batch_size": min(batch, 64), "window": window}, 2)}
callbacks:
  - callbacks.ProgressBar
  - callbacks.ModelCheckpoint
{_published(proposal, name)}"""


def _published(proposal: Proposal, name: str) -> str:
    lines = (
        "- class_path: trainer.serving.Publish  # for servers",
        f"  init_args: {{root: published/{name}, every: 10}}",
    )
    # two-tower vectors are for retrieval, not for serving predictions
    return "".join(f"  # {line}\n" if proposal.model == "two_tower" else f"  {line}\n" for line in lines)


def _block(value: dict[str, Any], indent: int) -> str:
    """Return a mapping as a YAML value: on one line if short, else indented."""
    flow = f" {_flow(value)}\n"
    if indent + len(flow) <= _COLUMNS - 8:
        return flow
    return "\n" + "".join(f"{' ' * indent}{key}: {_flow(item)}\n" for key, item in value.items())


def _flow(value: Any) -> str:
    """Return plain data as YAML on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_flow, value)) + "]"
    text = dump([value]).removeprefix("- ").strip()
    plain = not isinstance(value, str) or not (text == value and set(text) & set(",[]{}#:"))
    return text if plain else json.dumps(value, ensure_ascii=False)


def _comment(text: str) -> str:
    return " ".join(text.split())


def write_first_config(
    data: Path,
    model: str | None = None,
    *,
    labels: Sequence[str] = (),
    event_time: str | None = None,
    output: Path | None = None,
    overwrite: Callable[[Path], bool] = lambda path: False,
) -> tuple[Path, Proposal]:
    """Write a first experiment for a table; return its path and the proposal.

    Args:
        output: the file to write; None: named like the data, with the suffix .yaml, in the working directory.
        overwrite: whether an existing file may be replaced.
    """
    output = Path(f"{data.name.partition('.')[0] or 'table'}.yaml") if output is None else output
    table = summarize(data)
    proposal = propose(table, model, labels, event_time)
    text = config_text(table, proposal, output)
    if output.exists() and not overwrite(output):
        raise ConfigurationError(f"{output} exists; give --output FILE for another, or --force to replace it")
    try:
        durable.replace_file(output, text.encode())
    except OSError as error:
        raise ConfigurationError(f"{output} cannot be written: {error.strerror or error}") from error
    load_config(output)
    return output, proposal
