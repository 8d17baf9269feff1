"""``--resume auto``: one command line that begins a run and, started again, goes on with it.

For engines that start a job again themselves: Kubernetes, Ray, systemd, the scheduler of a cluster.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ...errors import CheckpointError, ConfigurationError
from ..configuration.class_paths import expand
from ..configuration.dotted_paths import flatten
from ..configuration.experiment_config import ExperimentConfig
from . import run_folder

_ABSENT = object()


def begun_run(config: ExperimentConfig) -> str | Path | None:
    """Return the newest run of a configuration, here or, where there is none, in its mirror (a URL).

    None if there is none yet.

    Raises:
        ConfigurationError: that run was begun with other values; the message names them.
        CheckpointError: the mirror cannot be read.
    """
    folder = run_folder.newest_run(config.run_dir)
    if folder is None:
        return _mirrored_run(config)
    run = run_folder.Run.read(folder)
    changed = _changed(run.config, run.versions.get("defaults", ()), config)
    if changed:
        raise ConfigurationError(
            f"{folder} was begun with other values: {'; '.join(changed[:5])}{'; ...' if len(changed) > 5 else ''}. "
            "--resume auto goes on with the same configuration only: name another run_dir, or change the run with "
            f"`--resume {folder} --set A.B=C`"
        )
    return folder


def _mirrored_run(config: ExperimentConfig) -> str | None:
    if config.mirror is None:
        return None
    from ...storage.location import Location
    from ...storage.mirror import RECORD

    url = expand(config.mirror, "mirror")
    try:
        Location(url).read(RECORD)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"{url} cannot be read: {error}") from error
    return url


def _changed(recorded: Mapping[str, Any], defaults: Collection[str], config: ExperimentConfig) -> list[str]:
    """Return what differs, except for the run folder and for defaults, which another version may have changed."""
    before, now = flatten(recorded), flatten(config.to_dict())
    given = (before.keys() - set(defaults)) | (now.keys() - set(config.default_paths()))
    changed = []
    for key in sorted(given - {"run_dir"}):
        then, new = before.get(key, _ABSENT), now.get(key, _ABSENT)
        if then != new:
            changed.append(f"{key}: {_text(then)}, now {_text(new)}")
    return changed


def _text(value: Any) -> str:
    return "absent" if value is _ABSENT else repr(value)
