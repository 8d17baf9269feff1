"""Downloads parts of a mirror and verifies them against their manifests."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ..checkpoint import catalog, durable, manifest
from ..checkpoint.manifest import MANIFEST, FileSums
from ..distributed.group import Group
from ..errors import (
    CheckpointDamagedError,
    CheckpointError,
    CheckpointNotFoundError,
    ConfigurationError,
    did_you_mean,
)
from .location import Location, is_url
from .mirror import RECORD, parse_record
from .mirror_pass import PART_NAME, has_content, part_names_in, read_manifest

logger = logging.getLogger(__name__)

CHECKPOINTS, PUBLISHED = "checkpoints", "published"
_CURRENT, _PINS = "current.json", "pins.json"
_WRITTEN_LAST = (RECORD, _CURRENT, _PINS)  # written after everything that they refer to
_scratch: list[tempfile.TemporaryDirectory[str]] = []  # keeps the folders until the process ends


def scratch_folder(purpose: str) -> Path:
    """Return a new folder that is removed when the process ends."""
    folder = tempfile.TemporaryDirectory(prefix=f"trainer-{purpose}-", ignore_cleanup_errors=True)
    _scratch.append(folder)
    return Path(folder.name)


def fetch_part(source: Location, name: str, into: Path) -> Path:
    """Download a snapshot, version or graph; return its verified local folder.

    Raises:
        CheckpointNotFoundError: the part does not exist.
        CheckpointDamagedError: a file is missing or does not match its checksum.
        OSError: the store or the local disk failed.
    """
    final = into / name
    content, _, files = _manifest(source, name)
    if has_content(final / MANIFEST, content):
        return final
    into.mkdir(parents=True, exist_ok=True)
    temporary = durable.temporary_name(final, "tmp")
    temporary.mkdir()
    try:
        for file, sums in files.items():
            try:
                received = source.download(f"{name}/{file}", temporary / file)
            except FileNotFoundError:
                raise CheckpointDamagedError(f"{source.display_url(name)}/{file} is missing") from None
            if received != sums:
                raise CheckpointDamagedError(f"{source.display_url(name)}/{file} does not match its checksum")
        durable.write_file(temporary / MANIFEST, [content])
        durable.sync_folder(temporary)
        if os.path.lexists(final):
            catalog.delete(final)  # a different part with the same name
        os.rename(temporary, final)
        durable.sync_folder(into)
    except BaseException:
        catalog.delete(temporary)
        raise
    return final


def _manifest(source: Location, name: str) -> tuple[bytes, dict[str, Any], FileSums]:
    """Return a part's manifest as bytes, its body, and the files that it lists."""
    try:
        content = source.read(f"{name}/{MANIFEST}")
        body = read_manifest(content)[1]
        return content, body, manifest.files_of(body)
    except FileNotFoundError:
        raise CheckpointNotFoundError(f"there is no {source.display_url(name)}, or it is incomplete") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointDamagedError(f"{source.display_url(name)}/{MANIFEST} is damaged: {error}") from None


def fetch_snapshot(source: Location, into: Path) -> Path:
    """Download a mirror's newest intact snapshot and its bases; return its folder.

    Args:
        source: a mirrored run, a folder of snapshots, a snapshot, or a pointer to a snapshot
            (``.../checkpoints/best``).
        into: local folder of snapshots to download to.

    Raises:
        CheckpointNotFoundError: no snapshot exists.
        CheckpointDamagedError: the snapshot that `source` names is damaged, or all snapshots are.
        OSError: the store or the local disk failed.
    """
    root, wanted = _locate_snapshot(source)
    if wanted is not None:
        return _fetch_chain(root, wanted, into)
    problems = []
    for _, name in sorted(_snapshots(root), reverse=True):
        try:
            return _fetch_chain(root, name, into)
        except (CheckpointDamagedError, CheckpointNotFoundError) as error:
            logger.warning("snapshot %s is skipped: %s", root.display_url(name), error)
            problems.append(str(error))
    if problems:
        raise CheckpointDamagedError(f"no snapshot in {root.display_url('')} is sound: {'; '.join(problems)}")
    raise CheckpointNotFoundError(f"there is no snapshot in {source.display_url('')}")


def _locate_snapshot(source: Location) -> tuple[Location, str | None]:
    """Return the folder of snapshots, and the name of the snapshot if `source` is one."""
    parent, last = source.parent()
    if PART_NAME.fullmatch(last):
        return parent, last
    if last in catalog.POINTERS:
        try:
            names = part_names_in(parent.read(last))
        except FileNotFoundError:
            raise CheckpointNotFoundError(f"there is no {source.display_url('')}") from None
        if len(names) != 1:
            raise CheckpointDamagedError(f"the pointer {source.display_url('')} does not hold the name of a snapshot")
        return parent, names.pop()
    snapshots = source.child(CHECKPOINTS)
    return (snapshots, None) if snapshots.exists() else (source, None)


def _snapshots(root: Location) -> list[tuple[int, str]]:
    """Return (sequence number, name) of each snapshot that has a manifest."""
    steps = []
    for part in _parts_in(root):
        if "/" not in part and part.startswith("step_"):
            try:
                body = read_manifest(root.read(f"{part}/{MANIFEST}"))[1]
                steps.append((manifest.checked_count(body["sequence"]), part))
            except (FileNotFoundError, ValueError, TypeError, KeyError) as error:
                logger.warning("snapshot %s is skipped: %s", root.display_url(part), error)
    return steps


def _fetch_chain(root: Location, name: str, into: Path) -> Path:
    names = [name]
    while (base := _manifest(root, names[-1])[1].get("base")) is not None:  # follow the bases to a full snapshot
        names.append(manifest.checked_name(PART_NAME, base["name"]))
        if names[-1] in names[:-1]:
            raise CheckpointDamagedError(f"{root.display_url(name)} builds on itself")
    for part in reversed(names):
        fetch_part(root, part, into)
    return into / name


def fetch_run(url: str, run_dir: Path) -> Path:
    """Download a mirrored run in order to continue it; return the run folder.

    Downloads the run's records, its newest snapshot and the snapshots that pointers such as ``best`` name. A folder
    that already is a copy of this run is left unchanged.

    Raises:
        ConfigurationError: the URL cannot be used, there is no mirrored run, or the folder contains something else.
        CheckpointDamagedError: no snapshot is intact.
        OSError: the store or the local disk failed.
    """
    source = Location(url)
    record = mirrored_run(source)
    if (run_dir / RECORD).is_file():
        if _is_copy_of(run_dir, record):
            logger.info("%s was already downloaded to %s; the run continues from there", url, run_dir)
            return run_dir
        raise ConfigurationError(f"{run_dir} holds another run than {url}; move it away, or give another run_dir")
    if run_dir.is_dir() and any(run_dir.iterdir()):
        raise ConfigurationError(f"{run_dir} is not empty and is not a copy of {url}; move it away")
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    temporary = durable.temporary_name(run_dir, "tmp")
    temporary.mkdir()
    try:
        _fetch_into(source, record, temporary)
        os.rename(temporary, run_dir)  # also replaces an empty folder
        durable.sync_folder(run_dir.parent)
    except Exception:
        if _is_copy_of(run_dir, record):
            return run_dir  # another process of this job was faster
        raise
    finally:
        catalog.delete(temporary)
    logger.info("fetched %s to %s", url, run_dir)
    return run_dir


def _is_copy_of(run_dir: Path, record: dict[str, Any]) -> bool:
    path = run_dir / RECORD
    return path.is_file() and json.loads(path.read_text("utf-8")).get("run") == record["run"]


def _fetch_into(source: Location, record: dict[str, Any], folder: Path) -> None:
    for name in source.files(recursive=False):
        if name not in _WRITTEN_LAST:
            source.download(name, folder / name)
    snapshots = source.child(CHECKPOINTS)
    if _snapshots(snapshots):
        fetch_snapshot(source, folder / CHECKPOINTS)
        _fetch_pointers(snapshots, folder / CHECKPOINTS)
    # Record the parts that were not downloaded, so that the mirror does not remove them as deleted locally.
    not_fetched = {name for name in _parts_in(source) if not (folder / name).is_dir()}
    durable.write_file(folder / RECORD, [_encode_record(record, not_fetched.union(record.get("spared", ())))])


def _parts_in(folder: Location) -> set[str]:
    """Return the paths of all parts with a manifest below a folder of a mirror."""
    names = (name.rpartition("/")[0] for name in folder.files() if name.endswith(f"/{MANIFEST}"))
    return {name for name in names if PART_NAME.fullmatch(name.rpartition("/")[2])}


def _encode_record(record: dict[str, Any], spared: Iterable[str]) -> bytes:
    return (json.dumps({**record, "spared": sorted(spared)}, indent=1) + "\n").encode()


def fetch_published(source: Location, run_dir: Path, roots: Iterable[Path]) -> None:
    """Download a mirrored run's published versions to folders that have none.

    All versions and graphs are downloaded, so later versions continue their numbers. Damaged or missing versions are
    skipped.

    Args:
        source: the mirrored run.
        run_dir: the local run folder.
        roots: the folders that the run publishes to. A folder outside `run_dir` is ``published`` in the mirror.
    """
    run_dir = durable.resolve_path(run_dir)
    for root in map(durable.resolve_path, roots):
        if (root / _CURRENT).exists():
            continue
        prefix = root.relative_to(run_dir).as_posix() if root.is_relative_to(run_dir) else PUBLISHED
        published = source.child(prefix)
        parts = {part for part in _parts_in(published) if "/" not in part and not part.startswith("step_")}
        fetched = set()
        for part in sorted(parts):
            try:
                fetch_part(published, part, root)
                fetched.add(f"{prefix}/{part}")
            except (CheckpointDamagedError, CheckpointNotFoundError) as error:
                logger.warning("%s is left in the mirror: %s", published.display_url(part), error)
        record = json.loads((run_dir / RECORD).read_text("utf-8"))
        spared = set(record.get("spared", ())) - fetched  # the mirror may again remove parts that are removed locally
        durable.replace_file(run_dir / RECORD, _encode_record(record, spared))
        for pointer in (_PINS, _CURRENT):  # current.json last, because it marks the copy as complete
            if published.entry(pointer) is not None:
                root.mkdir(parents=True, exist_ok=True)
                durable.replace_file(root / pointer, published.read(pointer))


def mirrored_run(source: Location) -> dict[str, Any]:
    """Return the record of a mirrored run; raise ConfigurationError if there is none."""
    try:
        return parse_record(source.read(RECORD), source.display_url(RECORD))
    except FileNotFoundError:
        folder, name = source.parent()
        runs = sorted({file.partition("/")[0] for file in folder.files() if file.endswith(f"/{RECORD}")})
        hint = did_you_mean(name, runs)
        raise ConfigurationError(f"{source.display_url('')} holds no mirrored run: it has no {RECORD}{hint}") from None


def _fetch_pointers(source: Location, into: Path) -> None:
    """Download pointers, each after its snapshots; skip missing and damaged ones."""
    for pointer in catalog.POINTERS:
        try:
            content = source.read(pointer)
        except FileNotFoundError:
            continue
        try:
            for name in sorted(part_names_in(content)):
                _fetch_chain(source, name, into)
        except (CheckpointDamagedError, CheckpointNotFoundError) as error:
            logger.warning("the pointer %s is skipped: %s", source.display_url(pointer), error)
            continue
        into.mkdir(parents=True, exist_ok=True)
        durable.replace_file(into / pointer, content)


def local_snapshot(
    path: Path | str | None, group: Group, run_dir: Path | None = None, published: Callable[[], Iterable[Path]] = list
) -> Path | str | None:
    """Return the local path of the snapshot to restore, after downloading a URL.

    If `path` is a mirrored run and the run folder is missing or empty, the run is downloaded there and continues with
    its mirror. Otherwise the snapshot is downloaded to a temporary folder, which is removed when the process ends. The
    run's published versions go to the folders that `published` returns; see `fetch_published`. Rank 0 downloads.

    Raises:
        ConfigurationError: the URL cannot be used.
        CheckpointError: there is no intact snapshot, or the download fails.
    """
    if not is_url(path):
        return path
    return Path(group.from_main(lambda: str(_fetch_url(str(path), run_dir, published))))


def _fetch_url(url: str, run_dir: Path | None, published: Callable[[], Iterable[Path]]) -> Path:
    source = Location(url)
    try:
        path = None
        if run_dir is not None and source.entry(RECORD) is not None:
            if not (run_dir.is_dir() and any(run_dir.iterdir())):
                path = fetch_run(url, run_dir)
            if _is_copy_of(run_dir, mirrored_run(source)):
                fetch_published(source, run_dir, published())
        return path or fetch_snapshot(source, scratch_folder("snapshot"))
    except OSError as error:
        raise CheckpointError(f"cannot fetch {source.display_url('')}: {error}") from error
