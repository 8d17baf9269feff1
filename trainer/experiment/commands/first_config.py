"""Format the commented first experiment that `trainer init` writes for a table."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ..configuration.yaml_tree import dump_line
from .proposal import Proposal, time_options
from .table_summary import TableSummary

_HEADER = """\
# {path}: {rows} rows{looked}, {columns} columns.
# Written by `trainer init`; change what you know better.
#
{commands}
experiment: {name}  # its runs, with snapshots and versions, go to runs/{name}
seed: 1

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
_BASELINE = """
# plain models of the same rows, to compare with{start}
baseline: {{start: {starts}}}
"""
_START = "; the network begins as the regression"
_STARTS = ("lr", "fm", "wide_deep", "deepfm")  # models with a linear part, which can start as the regression


def _commands(file: str, name: str) -> str:
    """Return comment lines with the commands for the file and their explanations."""
    lines = [(command.format(file=file, name=name), about) for command, about in _COMMANDS]
    width = max(len(command) for command, about in lines if about)
    return "\n".join(f"#   trainer {command:<{width if about else 0}}  {about}".rstrip() for command, about in lines)


def config_text(table: TableSummary, proposal: Proposal, output: Path) -> str:
    """Return the proposed experiment as YAML text, for the file `output`."""
    name = re.sub(r"[^\w-]+", "_", output.stem, flags=re.ASCII).strip("_-") or "table"
    text = _HEADER.format(
        path=_one_line(str(table.path)),
        rows=f"{'' if table.complete else 'about '}{table.rows:,}",
        looked="" if table.complete else f" (figures below are of the first {table.columns[0].rows:,})",
        columns=len(table.columns),
        commands=_commands(f'"{output}"' if " " in str(output) else str(output), name),
        name=name,
    )
    if table.csv is not None and (options := table.csv.declaration()):
        text = (
            text.removesuffix("  columns:\n") + f"  csv: {dump_line(options)}  # how values are written\n  columns:\n"
        )
    for arguments, about in proposal.features:
        line = f"- {dump_line(arguments)}  # " if arguments else "# left out: "
        text += f"    {line}{_one_line(about)}\n"
    labels = proposal.labels[0] if len(proposal.labels) == 1 else list(proposal.labels)
    shares = ", ".join(table.column(name).describe() for name in proposal.labels)
    text += f"  label: {dump_line(labels)}  # {shares}\n"
    if proposal.classes:
        about = f"  # {proposal.classes[-1]} is predicted" if len(proposal.classes) == 2 else ""
        text += f"  label_classes: {dump_line(list(proposal.classes))}{_one_line(about) and '  ' + _one_line(about)}\n"
    if proposal.model == "two_tower":
        text += "  label_dtype: int32\n"
    if proposal.event_time:
        text += f"  event_time: {dump_line(proposal.event_time)}  # the newest rows are kept to judge on\n"
        if not any(arguments and arguments["name"] == proposal.event_time for arguments, _ in proposal.features):
            options = time_options(table.column(proposal.event_time))
            text += "".join(f"  event_time_{name}: {dump_line(value)}\n" for name, value in options.items())
    reason = f"# {proposal.reason}; `trainer models` lists others\n" if proposal.reason else ""
    text += f"\n{reason}network:\n  model: {proposal.model}\n"
    text += "".join(f"  {name}: {dump_line(value)}\n" for name, value in proposal.options.items())
    return text + _training_sections(table, proposal) + _data_sections(table, proposal)


def _training_sections(table: TableSummary, proposal: Proposal) -> str:
    kinds = {name: _loss(table, proposal, name) for name in proposal.labels}
    losses = {name: {"class_path": f"mindspore.nn.{kind}"} for name, kind in kinds.items()}
    loss: Any = losses[proposal.labels[0]]
    if proposal.model == "two_tower":
        loss = {"class_path": "trainer.models.InBatchSoftmax"}
    elif len(proposal.labels) > 1:
        loss = {"class_path": "trainer.graph.multi_task.MultiTaskLoss", "init_args": {"losses": losses}}
    metrics = _metrics(table, proposal)
    text = f"loss: {dump_line(loss)}\n"
    text += "optimizer: {class_path: mindspore.nn.Adam, init_args: {learning_rate: 1e-3}}\n"
    return f"{text}metrics: {dump_line(metrics)}\n" if metrics else text


def _loss(table: TableSummary, proposal: Proposal, label: str) -> str:
    if len(proposal.classes) > 2:
        return "CrossEntropyLoss"
    return "BCEWithLogitsLoss" if proposal.classes or table.column(label).is_binary else "MSELoss"


def _metrics(table: TableSummary, proposal: Proposal) -> list[str]:
    """Return the metrics; the first one selects the best snapshot."""
    kinds = {table.column(name).is_binary for name in proposal.labels}
    if proposal.model == "two_tower" or len(kinds) > 1:
        return []
    if len(proposal.classes) > 2:
        return ["log_loss", "accuracy"]
    return ["log_loss", "auc"] if proposal.binary else ["rmse", "mae"]


def _monitor(table: TableSummary, proposal: Proposal) -> str:
    """Return the validation metric that selects the best weights."""
    metrics = _metrics(table, proposal)
    return f"val_{metrics[0]}" if metrics and len(proposal.labels) == 1 else "val_loss"


def _stream_arguments(table: TableSummary, proposal: Proposal) -> dict[str, Any]:
    """Return the stream's arguments, which allow for rows that are set aside."""
    required = [*proposal.labels, *([proposal.event_time] if proposal.event_time else [])]
    share = table.set_aside_share + sum(table.column(name).missing_share for name in required)
    arguments: dict[str, Any] = {"path": str(table.path), "end": "at_last"}
    if share:
        limit = {"max_bad_share": round(min(1.0, 0.01 + 2 * share), 2)}
        arguments["dead_letter"] = {"class_path": "trainer.streams.DeadLetter", "init_args": limit}
    return arguments


def _data_sections(table: TableSummary, proposal: Proposal) -> str:
    rows = table.rows
    batch = 64 if rows < 10_000 else 256 if rows < 1_000_000 else 1024
    sections: dict[str, dict[str, Any]] = {}
    has_one_label = len(proposal.labels) == 1
    for part in ("train", "valid", "test"):
        arguments = {"path": str(table.path), "part": part}
        sections[part] = {"class_path": "trainer.features.RawFiles", "init_args": arguments}
    sections["stream"] = {"class_path": "trainer.streams.FileStream", "init_args": _stream_arguments(table, proposal)}
    starts = has_one_label and proposal.model in _STARTS
    baseline = _BASELINE.format(start=_START if starts else "", starts=str(starts).lower()) if has_one_label else ""
    fit = {"epochs": 30, "batch_size": batch} | ({"valid_on_start": True} if starts else {})
    parts = "".join(f"  {part}:{_yaml_value(value, 4)}" for part, value in sections.items())
    monitor = _monitor(table, proposal)
    window = {"class_path": "trainer.Window", "init_args": {"rows": max(100, rows // 20)}}
    return f"""
# 80 % of the rows to train on, 10 % to validate on after every epoch, 10 % to
# test on; other files: `train: newer.csv`
data:
{parts}fit: {dump_line(fit)}  # fewer where {monitor} stops improving
online:{_yaml_value({"batch_size": min(batch, 64), "window": window}, 2)}
callbacks:
  - callbacks.ProgressBar
  # the weights that are best by {monitor} are kept, tested and published
  - class_path: callbacks.EarlyStopping
    init_args: {{monitor: {monitor}, patience: 3}}
  - class_path: callbacks.ModelCheckpoint
    init_args: {{monitor: {monitor}, restore_best: true}}
{_publish_callback(proposal)}{baseline}"""


def _publish_callback(proposal: Proposal) -> str:
    # commented out for two towers, whose vectors are for retrieval rather than for served predictions
    start = "  # " if proposal.model == "two_tower" else "  "
    return f"""{start}- class_path: trainer.serving.Publish  # for servers
{start}  init_args: {{every: 10}}
"""


def _yaml_value(value: dict[str, Any], indent: int) -> str:
    """Return a mapping as a YAML value: on one line if short, else indented."""
    flow = f" {dump_line(value)}\n"
    if indent + len(flow) <= _COLUMNS - 8:
        return flow
    return "\n" + "".join(f"{' ' * indent}{key}: {dump_line(item)}\n" for key, item in value.items())


def _one_line(text: str) -> str:
    return " ".join(text.split())
