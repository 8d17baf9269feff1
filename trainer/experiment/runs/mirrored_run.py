"""Runs mirrored in an object store: fetched to resume on another machine."""

from __future__ import annotations

from pathlib import Path

from ...errors import CheckpointError, ConfigurationError
from ..configuration.experiment_config import ExperimentConfig
from ..configuration.yaml_tree import parse_tree
from . import run_folder


def fetched_run(url: str) -> Path:
    """Fetch a mirrored run to the folder named in its configuration and return the folder; see `fetch_run`.

    Raises:
        ConfigurationError: the URL cannot be used or holds no run, or the folder holds another run.
        CheckpointError: there is no intact snapshot, or the store cannot be read.
    """
    from ...storage.fetch import fetch_run, mirrored_run
    from ...storage.location import Location

    source = Location(url)
    try:
        mirrored_run(source)
        plain = parse_tree(source.read(run_folder.CONFIG).decode("utf-8"), source.shown(run_folder.CONFIG)).plain()
        wanted = plain.get("run_dir") if isinstance(plain, dict) else None
        if not isinstance(wanted, str):
            raise ConfigurationError(f"{source.shown(run_folder.CONFIG)} names no run_dir")
        return fetch_run(url, Path(wanted))
    except OSError as error:
        raise CheckpointError(f"{url} cannot be fetched: {error}") from error


def published_roots(config: ExperimentConfig) -> list[Path]:
    """Return the folders that the callbacks of an experiment publish to."""
    return [
        Path(spec.init_args["root"])
        for spec in config.callbacks
        if spec.class_path.rpartition(".")[2] == "Publish" and "root" in spec.init_args
    ]


def fetch_published(url: str, config: ExperimentConfig) -> None:
    """Fetch a mirrored run's published versions if this machine has none, so that their numbers continue.

    Raises:
        CheckpointError: the store cannot be read.
    """
    from ...storage import fetch
    from ...storage.location import Location

    try:
        fetch.fetch_published(Location(url), Path(config.run_dir), published_roots(config))
    except OSError as error:
        raise CheckpointError(f"{url} cannot be fetched: {error}") from error
