"""Implement `trainer versions`: list, pin, roll back and promote versions."""

from __future__ import annotations

import argparse
import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ...checks import choice
from ...errors import ConfigurationError

_ACTIONS = {
    "list": "the versions, and which of them servers answer with",
    "pin": "servers stay with a version (default: the one served now)",
    "roll-back": "servers go back to an older version (default: the one before)",
    "promote": "move servers on to a newer version (default: the newest)",
    "follow": "servers follow the newest version again",
    "keep": "keep a version, regardless of its age",
    "release": "undo keep",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add = parser.add_argument
    actions = "\n".join(f"  {name:10} {text}" for name, text in _ACTIONS.items())
    parser.epilog = f"actions:\n{actions}\n\n{parser.epilog}"
    add("folder", metavar="RUN_OR_PUBLISHED", help="run folder, or folder that Publish writes to")
    add("action", metavar="ACTION", nargs="?", default="list", help="see below; default: list")
    add("version", metavar="VERSION", nargs="?", type=int, help="its number")
    add("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> None:
    """Run the requested action; raises as the methods of `Versions`."""
    from ...serving.versions import Versions
    from ..runs import run_folder
    from ..runs.restart import published_by
    from .serve_command import SERVED

    choice("trainer versions", args.action, _ACTIONS)
    folder = Path(args.folder)
    is_run = (folder / run_folder.CONFIG).is_file()
    versions = Versions((published_by(folder) or folder / SERVED) if is_run else args.folder)
    if args.action == "list":
        _list(versions, args.json)
    elif args.action in ("keep", "release"):
        if args.version is None:
            raise ConfigurationError(f"trainer versions {args.folder} {args.action} takes VERSION")
        (versions.keep if args.action == "keep" else versions.release)(args.version)
        _print_outcome(args, {"action": args.action, "version": args.version})
    elif args.action == "follow":
        if args.version is not None:
            raise ConfigurationError("follow takes no VERSION; pin takes one")
        _print_outcome(args, {"action": "follow", "version": versions.follow()})
    else:
        method = {"pin": versions.pin, "roll-back": versions.roll_back, "promote": versions.promote}[args.action]
        before = versions.served()
        _print_outcome(args, {"action": args.action, "version": method(args.version), "before": before})


def _print_outcome(args: argparse.Namespace, outcome: dict[str, Any]) -> None:
    if args.json:
        print(json.dumps(outcome))
        return
    text = f"{outcome['action']}: version {outcome['version']}"
    print(text + (f" is served, before it {outcome['before']}" if "before" in outcome else ""))


def _list(versions: Any, as_json: bool) -> None:
    from ..runs.compare import table

    versions_listed = versions.list()
    if as_json:
        print(json.dumps([vars(version) for version in versions_listed], indent=1))
        return
    rows = [["version", "step", "published", "MB", ""]]
    for version in versions_listed:
        published = version.published
        when = "" if published is None else f"{datetime.fromtimestamp(published, timezone.utc):%Y-%m-%d %H:%M:%SZ}"
        notes = ", ".join(version.marks) + (f" {version.problem}" if version.problem else "")
        step = "" if version.step is None else str(version.step)
        rows.append([str(version.number), step, when, f"{version.bytes / 1e6:.2f}", notes])
    print("\n".join(table(rows)))
