"""Read and write run folders, which hold the inputs and results of a run.

    config.yaml      the resolved configuration, overrides applied, defaults filled in; loads as the same experiment
    versions.json    versions, platform, seed, command, and source of the configuration
    resumes.json     one entry per resume: the snapshot or null, and the seconds that the run had taken until then
    checkpoints/     snapshots (`callbacks.ModelCheckpoint`)
    history.json     result of `fit`: losses, metrics and their steps
    metrics.json     final results by name, stop reason, counters
    record.jsonl     data for `trainer report`: values over steps, windows, scores, tables, timings

A new run never overwrites an existing folder; it uses the next free name ``NAME-2``, ``NAME-3``, ... An active run
holds the lock of its folder (`trainer.checkpoint.folder_lock`), so that no second process can resume it.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ...checkpoint import durable
from ...checks import installed
from ...errors import ConfigurationError, did_you_mean
from ...masking import mask_text
from ...report.run_data import read_record
from ..configuration.experiment_config import ExperimentConfig
from ..configuration.yaml_tree import dump, mask_override, read_tree

CONFIG, VERSIONS, RESUMES = "config.yaml", "versions.json", "resumes.json"
HISTORY, METRICS, RECORD = "history.json", "metrics.json", "record.jsonl"
CHECKPOINTS = "checkpoints"
DISTRIBUTION = "mindspore-trainer"
_PACKAGES = ("mindspore", "numpy", DISTRIBUTION, "pyyaml", "safetensors", "tensorboardX", "tqdm")


def claim_run_dir(preferred: Path) -> Path:
    """Create a run folder: `wanted`, or ``wanted-N`` if it is in use."""
    folder, number = preferred, 1
    while True:
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            if folder.is_dir() and number == 1 and not any(folder.iterdir()):
                return folder
        except OSError as error:
            raise ConfigurationError(f"run_dir: {folder} cannot be created: {error.strerror or error}") from error
        number += 1
        folder = preferred.with_name(f"{preferred.name}-{number}")


def remove_rejected(run_dir: Path) -> None:
    """Remove the folder of a run that was rejected before its first step."""
    for name in (CONFIG, VERSIONS, METRICS, HISTORY):
        (run_dir / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        run_dir.rmdir()


def newest_run(preferred: Path, experiment: str) -> Path | None:
    """Return the newest run folder of an experiment, or None.

    The folders are those that `claim_run_dir` creates for `preferred`. One of them may be of another experiment: of
    ``visits-2``, or of a copy of the configuration with another name and the same `run_dir`.
    """
    folders = []
    for folder in preferred.parent.iterdir() if preferred.parent.is_dir() else ():
        name, _, number = folder.name.rpartition("-")
        is_first = folder.name == preferred.name
        if is_first or (name == preferred.name and number.isdecimal()):
            folders.append((1 if is_first else int(number), folder))
    newest_first = (folder for _, folder in sorted(folders, reverse=True))
    return next((folder for folder in newest_first if _experiment_of(folder) == experiment), None)


def _experiment_of(folder: Path) -> Any:
    config = read_tree(folder / CONFIG).value if (folder / CONFIG).is_file() else None
    return config.get("experiment") if isinstance(config, dict) else None


def existing_run(path: str | Path) -> Path:
    """Return `path`, or raise ConfigurationError if it is not a run folder."""
    path = Path(path)
    if (path / CONFIG).is_file():
        return path
    siblings = [folder.name for folder in path.parent.iterdir() if folder.is_dir()] if path.parent.is_dir() else []
    reason = f"has no {CONFIG}" if path.is_dir() else "does not exist"
    raise ConfigurationError(f"{path} is not a run folder: it {reason}{did_you_mean(path.name, siblings)}")


def origin(path: Path) -> Path | None:
    """Return the file that a run was started from; None if `path` is not of a run."""
    folder = path if path.is_dir() else path.parent
    try:
        config = json.loads((folder / VERSIONS).read_text("utf-8"))["config"]
        return Path(config) if path.name == CONFIG or path.is_dir() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


@contextlib.contextmanager
def project_paths(path: Path | None) -> Iterator[None]:
    """Put the working directory and the folders above `path` on ``sys.path``."""
    known = {entry or "." for entry in sys.path}
    configs = [] if path is None else [config.absolute() for config in (path, origin(path)) if config is not None]
    above = [folder for config in configs for folder in (config, *list(config.parents)[:2])]
    prepended = [str(folder) for folder in [Path.cwd()] if str(folder) not in known]
    known.update(prepended)
    appended = [str(folder) for folder in above if folder.is_dir() and str(folder) not in known]
    sys.path[:0] = prepended
    sys.path.extend(appended)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        for entry in (*prepended, *appended):
            with contextlib.suppress(ValueError):
                sys.path.remove(entry)


def write_record(run_dir: Path, config: ExperimentConfig, command: str) -> None:
    """Write ``config.yaml`` and ``versions.json`` of a new run."""
    write_config(run_dir, config)
    record = {
        **versions(),
        "seed": config.seed,
        "command": command,
        "defaults": sorted(config.default_paths()),
        "config": None if config.source is None else str(config.source.absolute()),
        "overrides": [mask_override(override) for override in config.overrides],
        "cwd": str(Path.cwd()),
        "started": now(),
    }
    write_json(run_dir / VERSIONS, record)


def write_config(run_dir: Path, config: ExperimentConfig) -> None:
    """Write the resolved configuration."""
    header = "# The resolved configuration of this run: overrides applied, defaults filled in.\n"
    durable.replace_file(run_dir / CONFIG, (header + dump(config.to_dict())).encode())


def record_resume(run_dir: Path, config: ExperimentConfig, snapshot: Path | None, seconds: float) -> None:
    """Add an entry to ``resumes.json``; update ``config.yaml`` if there are overrides."""
    entries = read_json(run_dir / RESUMES) if (run_dir / RESUMES).is_file() else []
    entry = {
        "time": now(),
        "snapshot": None if snapshot is None else str(snapshot),
        "overrides": [mask_override(override) for override in config.overrides],
        "seconds_before": round(seconds, 3),
        **versions(),
    }
    write_json(run_dir / RESUMES, [*entries, entry])
    if config.overrides:
        write_config(run_dir, config)


def resume_overrides(run_dir: Path) -> list[str]:
    """Return the overrides that the resumes of a run were given, in their order."""
    resumes = read_json_or(run_dir / RESUMES, [])
    return [override for entry in resumes for override in entry.get("overrides", ())]


def recorded_defaults(run_dir: Path, overrides: Iterable[str]) -> set[str]:
    """Return the dotted paths of arguments that a run recorded with default values.

    Paths that `overrides` or the overrides of a resume have set are left out, as are paths below those.
    """
    all_overrides = [*overrides, *resume_overrides(run_dir)]
    prefixes = tuple(f"{override.partition('=')[0].strip()}." for override in all_overrides)
    defaults = read_json_or(run_dir / VERSIONS, {}).get("defaults", ())
    return {path for path in defaults if not f"{path}.".startswith(prefixes)}


def seconds_before(run_dir: Path) -> float:
    """Return the seconds that the processes of a run have taken so far.

    For a killed process, which recorded no time, this is the time from the first to the last line of its record.
    """
    metrics, entries = read_json_or(run_dir / METRICS, {}), read_json_or(run_dir / RESUMES, [])
    record = read_record(run_dir / RECORD)
    last = entries[-1] if entries else {}
    before_resume = max(last.get("seconds_before", 0.0), 0.0)
    if record.began is None or record.newest is None or _time(last.get("time")) > record.began:
        return max(before_resume, metrics.get("seconds", 0.0))
    if _time(metrics.get("finished")) >= int(record.began):
        return float(metrics["seconds"])
    return float(before_resume + record.newest - record.began)


def _time(text: Any) -> float:
    """Return an ISO 8601 time in epoch seconds; minus infinity if it is invalid."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (TypeError, ValueError):
        return -math.inf


def read_json_or(path: Path, default: Any) -> Any:
    """Return the value in a JSON file, or `default` if unreadable or of another type."""
    with contextlib.suppress(ConfigurationError):
        if path.is_file() and isinstance(value := read_json(path), type(default)):
            return value
    return default


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON atomically.

    NaN and infinities become null, arrays become lists, and NumPy scalars become numbers. Credentials are masked.
    """
    durable.replace_file(path, (json.dumps(_to_json(value), indent=2, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """Return the value in a JSON file of a run."""
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error


def _to_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_to_json(item) for item in value]
    if hasattr(value, "tolist"):
        return _to_json(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, int | float | bool | None) else mask_text(str(value))


@dataclass(frozen=True)
class Run:
    """Contents of a run folder; reading them does not import the run's classes."""

    path: Path
    config: Mapping[str, Any]
    versions: Mapping[str, Any]  # content of ``versions.json``, or empty
    metrics: Mapping[str, Any]  # content of ``metrics.json``, or empty until the run has ended

    @classmethod
    def read(cls, path: str | Path) -> Run:
        """Read the run in the folder `path`."""
        folder = existing_run(path)
        config = read_tree(folder / CONFIG).value
        versions, metrics = (
            read_json(file) if file.is_file() else {} for file in (folder / VERSIONS, folder / METRICS)
        )
        for name, value in ((VERSIONS, versions), (METRICS, metrics), (CONFIG, config)):
            if not isinstance(value, dict):
                raise ConfigurationError(f"{folder / name}: does not hold a mapping")
        return cls(folder, config, versions, metrics)

    def resumed_since_results(self) -> bool:
        """Return whether the run was resumed after its last results were written."""
        entries = read_json_or(self.path / RESUMES, [])
        return bool(entries) and _time(entries[-1].get("time")) > _time(self.metrics.get("finished"))


def versions() -> dict[str, Any]:
    """Return the versions of Python, packages and platform."""
    return {
        "python": platform.python_version(),
        **{name: installed(name) for name in _PACKAGES},
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "executable": sys.executable,
    }


def now() -> str:
    """Return the current UTC time in ISO 8601, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
