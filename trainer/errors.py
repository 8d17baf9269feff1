"""Every exception the trainer raises on purpose, and the nearest-name helper their messages use."""

from __future__ import annotations

from .hooks import ConfigurationError, TrainerError, did_you_mean, nearest

__all__ = [
    "CheckpointDamagedError",
    "CheckpointError",
    "CheckpointMismatchError",
    "CheckpointNotFoundError",
    "ConfigurationError",
    "DataError",
    "FolderInUseError",
    "GraphError",
    "StreamError",
    "TrainerError",
    "did_you_mean",
    "nearest",
]


class DataError(TrainerError, ValueError):
    """A dataset or stream delivered something that cannot be trained on; the message names column and position."""


class GraphError(TrainerError, RuntimeError):
    """MindSpore could not compile or run the network on the data it was given."""


class CheckpointError(TrainerError, RuntimeError):
    """A snapshot could not be written or read."""


class CheckpointDamagedError(CheckpointError):
    """A snapshot on disk is incomplete or does not match its manifest."""


class CheckpointNotFoundError(CheckpointError):
    """There is no snapshot at the place named: the folder is missing or nothing was ever saved in it."""


class CheckpointMismatchError(CheckpointError):
    """A sound snapshot belongs to another network, optimizer or configuration."""


class FolderInUseError(CheckpointError, ConfigurationError):
    """Another run writes in the folder; the message names its process, host and since when."""


class StreamError(TrainerError, RuntimeError):
    """A stream source failed for good: retries are used up or too many records were bad."""
