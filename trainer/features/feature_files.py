"""Save and load declared features and their learned state, two files in a folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..checkpoint import durable, strict_json, tensor_file
from ..checkpoint.manifest import FolderWriter
from ..errors import CheckpointDamagedError, ConfigurationError
from .features import Features

NAME = "features"  # file name without its extension


def write_state(state: Mapping[str, Any], folder: FolderWriter, name: str = NAME) -> None:
    """Write a state, ``{"json": ..., "arrays": ...}``, into two files of a folder."""
    folder.write(f"{name}.json", [strict_json.dumps(state["json"]).encode()])
    folder.write(f"{name}.safetensors", tensor_file.blocks(state["arrays"]))


def declared_state(features: Features) -> dict[str, Any]:
    """Return the learned state and the declaration, for `write_state`."""
    state = features.published_state()
    return {**state, "json": {"declaration": features.declaration(), "state": state["json"]}}


def read_features(folder: Path) -> Features:
    """Return the features of a folder with a `declared_state`."""
    body = strict_json.loads((folder / f"{NAME}.json").read_bytes())
    path = folder / f"{NAME}.safetensors"
    features = Features.from_declaration(body["declaration"])
    features.load_state_dict({"json": body["state"], "arrays": tensor_file.parse(path.read_bytes(), str(path))})
    return features


def save_fitted(features: Features, target: Path) -> None:
    """Write fitted features to a new folder, for `Features(fitted=...)`.

    Raises:
        ConfigurationError: the folder exists, or cannot be written.
    """
    path = durable.resolve_path(target)
    if path.exists():
        raise ConfigurationError(f"{target} exists; give a folder that does not, or remove it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FolderWriter(path) as folder:
            write_state(declared_state(features), folder)
            folder.seal("features", {})
            folder.path.rename(path)
    except OSError as error:
        raise ConfigurationError(str(durable.write_error("fitted features", path, error))) from error


def load_fitted(features: Features, folder: str | Path) -> None:
    """Load the learned state of equal features from a folder of `save_fitted`.

    Raises:
        ConfigurationError: the folder holds no fitted features.
        CheckpointMismatchError: the folder holds the state of other features.
    """
    try:
        fitted = read_features(Path(folder))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ConfigurationError(
            f"Features(fitted={str(folder)!r}): {error.filename} is missing; such a folder is written by "
            "`trainer features CONFIG --fit --to FOLDER`"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointDamagedError(f"Features(fitted={str(folder)!r}): {error!r}") from None
    features.load_state_dict(fitted.published_state())
