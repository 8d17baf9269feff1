"""``trainer versions``: list, pin, roll back, promote and compare versions."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ...checks import choice, refuse, require
from ...errors import ConfigurationError

_ACTIONS = {
    "list": "the versions, and which of them servers answer with",
    "pin": "servers stay with a version (default: the one served now)",
    "roll-back": "servers go back to an older version (default: the one before) and stay with it",
    "promote": "servers go on to a newer version (default: the shadow, else the newest) and stay with it",
    "follow": "servers follow the newest version again",
    "keep": "a version is not removed, whatever its age",
    "release": "undo keep",
    "shadow": "the version to compare with the served one (default: the newest)",
    "compare": "score the shadow, or VERSION, beside the served version on --data",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add = parser.add_argument
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "actions:\n" + "\n".join(f"  {name:10} {text}" for name, text in _ACTIONS.items())
    add("folder", metavar="RUN_OR_PUBLISHED", help="run folder, or folder that Publish writes to")
    add("action", metavar="ACTION", nargs="?", default="list", help="see below; default: list")
    add("version", metavar="VERSION", nargs="?", type=int, help="its number")
    add("--json", action="store_true", help="print JSON")
    add("--data", metavar="FILE", help="compare: labelled rows, as evaluate --data takes them")
    add("--label", metavar="COLUMN", help="compare: column of the label; without it answers alone")
    add("--metrics", metavar="NAME", nargs="*", action="extend", help="compare: default: those of the loss")
    add("--batch", metavar="ROWS", type=int, default=8192, help="compare: rows at a time")


def run(args: argparse.Namespace) -> None:
    """Run the requested action; raises what `Versions` and `ShadowScoring` raise."""
    from ...serving.versions import Versions
    from ..runs import run_folder
    from ..runs.restart import published_by
    from .serve_command import SERVED

    choice("trainer versions", args.action, _ACTIONS)
    folder = Path(args.folder)
    if (folder / run_folder.CONFIG).is_file():
        folder = published_by(folder) or folder / SERVED
    versions = Versions(folder)
    if args.action == "list":
        _list(versions, args.json)
    elif args.action == "compare":
        _compare(versions, args)
    elif args.action in ("keep", "release"):
        if args.version is None:
            raise ConfigurationError(f"trainer versions {args.folder} {args.action} takes VERSION")
        (versions.keep if args.action == "keep" else versions.release)(args.version)
        _tell(args, {"action": args.action, "version": args.version})
    elif args.action == "shadow":
        versions.shadow(args.version)
        _tell(args, {"action": "shadow", "version": versions.newest() if args.version is None else args.version})
    elif args.action == "follow":
        if args.version is not None:
            raise ConfigurationError("follow takes no VERSION; pin takes one")
        _tell(args, {"action": "follow", "version": versions.follow()})
    else:
        change = {"pin": versions.pin, "roll-back": versions.roll_back, "promote": versions.promote}[args.action]
        before = versions.served()
        _tell(args, {"action": args.action, "version": change(args.version), "before": before})


def _tell(args: argparse.Namespace, outcome: dict[str, Any]) -> None:
    if args.json:
        print(json.dumps(outcome))
        return
    text = f"{outcome['action']}: version {outcome['version']}"
    print(text + (f" is served, before it {outcome['before']}" if "before" in outcome else ""))


def _list(versions: Any, as_json: bool) -> None:
    from ..runs.compare import table

    listed = versions.list()
    if as_json:
        print(json.dumps([vars(version) for version in listed], indent=1))
        return
    rows = [["version", "step", "published", "MB", ""]]
    for version in listed:
        published = version.published
        when = "" if published is None else f"{datetime.fromtimestamp(published, timezone.utc):%Y-%m-%d %H:%M:%SZ}"
        notes = ", ".join(version.marks) + (f" {version.problem}" if version.problem else "")
        step = "" if version.step is None else str(version.step)
        rows.append([str(version.number), step, when, f"{version.bytes / 1e6:.2f}", notes])
    print("\n".join(table(rows)))


def _compare(versions: Any, args: argparse.Namespace) -> None:
    from ...serving.shadow import ShadowScoring
    from ..runs.compare import table

    if args.data is None:
        raise ConfigurationError("trainer versions FOLDER compare takes --data FILE with rows to score")
    which = "shadow" if args.version is None else args.version
    with ShadowScoring(versions.root, which, args.metrics, follow=False) as scoring:
        for rows, labels in _rows_of(scoring, args):
            scoring.score(rows, labels)
        report = scoring.report()
    if args.json:
        print(json.dumps(report))
        return
    values = [[name, _cell(value), _cell(report["shadow"][name])] for name, value in report["served"].items()]
    print("\n".join(table([["", "served", "shadow"], *values])))
    mean, largest = (_cell(report["difference"][name]) for name in ("mean", "largest"))
    print(f"{report['rows']:,} rows; answers differ by {mean} in the mean, {largest} at most")


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "" if value is None else f"{value:.6g}"


def _rows_of(scoring: Any, args: argparse.Namespace) -> Iterator[tuple[Any, Any]]:
    """Yield blocks of the rows of --data with their labels, or None without --label."""
    from ...features.feature import text_column
    from ...streams.formats.column import Column
    from .declared_rows import DeclaredRows, columns_of_all

    declared = [model.features for model in (scoring.served, scoring.shadow) if model.features is not None]
    if not declared:
        yield from _arrays_of(args.data, args.label, args.batch)
        return
    features = declared[0]
    table = DeclaredRows(args.data, features.csv)
    columns = columns_of_all([own.columns for own in declared])
    groups = [name.rpartition("/")[2] for name in args.metrics or () if "/" in name]
    for name in groups:
        table.check_column(name)
        columns.setdefault(name, text_column(required=False))
    if args.label is not None:
        table.check_column(args.label)
        declared_label = features.schema.fields[args.label] if args.label in features.labels else None
        columns[args.label] = declared_label or Column(features.label_dtype, coerce=True)
    for block in table.blocks(columns, args.batch, features.max_bad_share):
        labels = None if args.label is None else block[args.label]
        read = any(args.label in own.columns for own in declared) or args.label in groups
        yield block if read else {name: values for name, values in block.items() if name != args.label}, labels


def _arrays_of(path: str, label: str | None, batch: int) -> Iterator[tuple[Any, Any]]:
    """Yield blocks of inputs by name, and labels or None, with PyArrow's types."""
    from ...data.as_columns import as_array
    from .declared_rows import require_column

    dataset = require("pyarrow.dataset", "reading rows needs PyArrow", "arrow")
    import pyarrow.csv as pa_csv

    kinds = {".parquet": "parquet", ".csv": "csv", ".jsonl": "json", ".ndjson": "json", ".json": "json"}
    tabs = dataset.CsvFileFormat(pa_csv.ParseOptions(delimiter="\t"))
    kinds |= {".arrow": "ipc", ".feather": "ipc", ".tsv": tabs}
    kind = kinds.get(Path(path).suffix.lower())
    if kind is None:
        refuse("--data", f"a file {', '.join(kinds)}", path)
    source = dataset.dataset(path, format=kind)
    names = source.schema.names
    if label is not None:
        require_column(path, label, names)
    for block in source.to_batches(batch_size=batch):
        if block.num_rows:
            labels = None if label is None else as_array(block.column(label), label)
            yield {name: as_array(block.column(name), name) for name in names if name != label}, labels
