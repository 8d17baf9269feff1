"""Ownership of published folders: each folder belongs to one run."""

from __future__ import annotations

import json
from pathlib import Path

from ..checkpoint import durable
from ..errors import CheckpointDamagedError, ConfigurationError
from ..storage.fetch import PUBLISHED

OWNER = "owner.json"  # {"run": path of the run folder}
_CONFIG = "config.yaml"  # exists in the run folder of an experiment


def owner_of(root: Path) -> Path | None:
    """Return the folder of the run that owns a published folder, or None.

    None means that no run owns it, or that the run's folder no longer exists.

    Raises:
        CheckpointDamagedError: ``owner.json`` is damaged.
    """
    parent = durable.resolve_path(root).parent
    if root.name == PUBLISHED and (parent / _CONFIG).is_file():
        return parent
    try:
        owner = Path(json.loads((root / OWNER).read_text("utf-8"))["run"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointDamagedError(f"{root / OWNER} does not name a run folder: {error!r}") from None
    return owner if owner.is_dir() else None  # None if the run folder was removed or renamed


def check_owner(root: Path, run_dir: Path) -> None:
    """Raise ConfigurationError if a published folder belongs to another run."""
    run, other = durable.resolve_path(run_dir), owner_of(root)
    if other is not None and other != run:
        raise ConfigurationError(
            f"{root} holds the versions of the run {other}, not of {run}; leave Publish's root out, which publishes to "
            f"{run / PUBLISHED}, give another folder, or remove {root / OWNER} to hand the folder over"
        )


def record_owner(root: Path, run_dir: Path) -> None:
    """Record a run as the owner of a folder; raise as `check_owner` does."""
    check_owner(root, run_dir)
    record = json.dumps({"run": str(durable.resolve_path(run_dir))}) + "\n"
    durable.replace_file(root / OWNER, record.encode())
