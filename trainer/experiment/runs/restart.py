"""Support ``--resume auto``, which starts a run or resumes it.

Engines that restart jobs, such as Kubernetes, Ray, systemd and cluster schedulers, need one command line for both.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ...errors import CheckpointError, ConfigurationError
from ...serving.folder_owner import check_owner
from ...storage import fetch
from ...storage.location import Location
from ...storage.mirror import RECORD
from ..configuration.class_paths import expand
from ..configuration.experiment_config import ExperimentConfig
from ..configuration.loader import load_config
from ..configuration.object_spec import flatten
from ..configuration.yaml_tree import parse_tree
from . import run_folder

_ABSENT = object()


def existing_run(config: ExperimentConfig) -> str | Path | None:
    """Return the newest run of a configuration, or None if there is none yet.

    The result is a run folder, or the URL of the mirror if the run exists only there.

    Raises:
        ConfigurationError: the run was started with other values; the message names them.
        CheckpointError: the mirror cannot be read.
    """
    folder = run_folder.newest_run(config.run_dir, config.experiment)
    if folder is None:
        return _mirrored_run(config)
    changed = changed_settings(folder, config)
    if changed:
        raise ConfigurationError(
            f"{folder} was started with other values: {'; '.join(changed[:5])}{'; ...' if len(changed) > 5 else ''}. "
            "--resume auto continues only with the same configuration: name another run_dir, or change the run with "
            f"`--resume {folder} --set A.B=C`"
        )
    return folder


def _mirrored_run(config: ExperimentConfig) -> str | None:
    if config.mirror is None:
        return None
    url = expand(config.mirror, "mirror")
    try:
        Location(url).read(RECORD)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"{url} cannot be read: {error}") from error
    return url


def changed_settings(folder: Path, config: ExperimentConfig, ignored: Iterable[str] = ()) -> list[str]:
    """Describe changed settings; defaults, run_dir and `ignored` do not count.

    A path in `ignored` stands for all paths below it, too.
    """
    run = run_folder.Run.read(folder)
    recorded, defaults = run.config, run.versions.get("defaults", ())
    recorded_flat, current_flat = flatten(recorded), flatten(config.to_dict())
    set_paths = (recorded_flat.keys() - set(defaults)) | (current_flat.keys() - set(config.default_paths()))
    prefixes = tuple(f"{path}." for path in ("run_dir", *ignored))
    keys = sorted(path for path in set_paths if not f"{path}.".startswith(prefixes))
    values = [(key, recorded_flat.get(key, _ABSENT), current_flat.get(key, _ABSENT)) for key in keys]
    return [f"{key}: {_text(old)}, now {_text(new)}" for key, old, new in values if old != new]


def _text(value: Any) -> str:
    return "absent" if value is _ABSENT else repr(value)


def fetched_run(url: str) -> Path:
    """Fetch a mirrored run into its run_dir, and return this folder.

    Raises:
        ConfigurationError: the URL is invalid or holds no run, or the folder holds another run.
        CheckpointError: there is no intact snapshot, or the store cannot be read.
    """
    source = Location(url)
    try:
        fetch.mirrored_run(source)
        plain = parse_tree(source.read(run_folder.CONFIG).decode("utf-8"), source.display_url(run_folder.CONFIG)).value
        run_dir = plain.get("run_dir") if isinstance(plain, dict) else None
        if not isinstance(run_dir, str):
            raise ConfigurationError(f"{source.display_url(run_folder.CONFIG)} names no run_dir")
        return fetch.fetch_run(url, Path(run_dir))
    except OSError as error:
        raise CheckpointError(f"{url} cannot be fetched: {error}") from error


def publish_folders(config: ExperimentConfig, run_dir: Path) -> list[Path]:
    """Return the folders that the callbacks of a run publish to."""
    publishers = [spec for spec in config.callbacks if spec.class_path.rpartition(".")[2] == "Publish"]
    roots = [spec.init_args.get("root", spec.args[0] if spec.args else None) for spec in publishers]
    return [run_dir / fetch.PUBLISHED if root is None else Path(expand(root, "root")) for root in roots]


def published_by(run_dir: Path) -> Path | None:
    """Return the folder that a run publishes to, or None if it does not publish.

    Raises:
        ConfigurationError: the folder belongs to another run.
    """
    roots = publish_folders(load_config(run_dir), run_dir)
    if roots:
        check_owner(roots[0], run_dir)
    return roots[0] if roots else None


def fetch_published(url: str, config: ExperimentConfig) -> None:
    """Fetch a mirror's versions, so that new versions continue their numbers.

    Nothing is fetched if the folder has versions already.
    """
    try:
        fetch.fetch_published(Location(url), Path(config.run_dir), publish_folders(config, Path(config.run_dir)))
    except OSError as error:
        raise CheckpointError(f"{url} cannot be fetched: {error}") from error
