"""`trainer doctor` in a job: are processes connected, and are they the same."""

from __future__ import annotations

import collections
import os
import platform
import socket
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from ...distributed.group import Group, join
from ...distributed.launched import is_launched, process_count
from ...errors import ConfigurationError, TrainerError

_DISTRIBUTIONS = ("mindspore", "numpy", "mindspore-trainer")
_SETTINGS = ("MS_CPU_COMM_OP_TIMEOUT", "ONEDNN_MAX_CPU_ISA", "MS_COMPILER_CACHE_ENABLE")
_MESSAGE_BYTES = 1 << 20
_TRIES = 5


def examine_job(finding: Callable[..., Any]) -> Iterator[Any]:
    """Yield findings about this process's job, if any. A collective call."""
    if not is_launched() or process_count() == 1:
        return
    try:
        group = join()
    except ConfigurationError as error:
        yield finding("job", str(error), "WRONG", "see that the processes reach MS_SCHED_HOST at any port")
        return
    facts = group.gather_json(own_facts())
    hosts = collections.Counter(str(of_rank.pop("host")) for of_rank in facts)
    placed = ", ".join(f"{count} on {host}" for host, count in hosts.items())
    yield finding("job", f"rank {group.rank} of {group.size} processes: {placed}")
    yield from (finding(*parts) for parts in compare(facts))
    yield finding("collectives", f"AllGather of 1 KB in {1000 * _gathering_takes(group):.1f} ms")
    try:
        took, sound = _exchange(group)
    except TrainerError as error:
        advice = "processes that keep the rows of sparse tables connect to each other at free ports: open them"
        yield finding("exchange of rows", str(error), "WRONG", advice)
        return
    text = f"1 MB to each of the others in {1000 * took:.1f} ms" if sound else "bytes arrived changed"
    yield finding("exchange of rows", text, "ok" if sound else "WRONG")


def own_facts() -> dict[str, str | None]:
    """Return what has to be the same on all processes, by name; and the host."""
    facts: dict[str, str | None] = {"host": socket.gethostname(), "python": platform.python_version()}
    for name in _DISTRIBUTIONS:
        try:
            facts[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            facts[name] = None
    package, code = Path(__file__).parents[2], 0
    for path in sorted(package.rglob("*.py")):
        code = zlib.crc32(path.read_bytes(), zlib.crc32(path.relative_to(package).as_posix().encode(), code))
    facts["code of trainer"] = f"{code:08x}"
    return facts | {name: os.environ.get(name) for name in _SETTINGS}


def compare(facts: Sequence[Mapping[str, str | None]]) -> Iterator[tuple[str, str, str, str]]:
    """Yield (name, value, state, advice) of differences between ranks, or one "ok"."""
    differing = [name for name in facts[0] if len({of_rank[name] for of_rank in facts}) > 1]
    for name in differing:
        values = collections.defaultdict(list)
        for rank, of_rank in enumerate(facts):
            values[of_rank[name]].append(rank)
        text = "; ".join(f"ranks {ranks}: {value or 'none'}" for value, ranks in values.items())
        yield name, f"differs: {text}", "WRONG", f"give all processes the same {name}"
    if not differing:
        shown = ", ".join(f"{name} {value}" for name, value in facts[0].items() if value is not None)
        yield "same on all ranks", shown, "ok", ""


def _gathering_takes(group: Group) -> float:
    """Return the seconds of a small collective, at best."""
    import numpy as np

    message, least = np.zeros(128, np.int64), float("inf")
    for _ in range(_TRIES):  # the first one compiles
        began = time.perf_counter()
        group.gather(message)
        least = min(least, time.perf_counter() - began)
    return least


def _exchange(group: Group) -> tuple[float, bool]:
    """Return (best seconds of an exchange of all pairs; whether all bytes arrived)."""
    least, sound = float("inf"), True
    parts = [bytes([16 * group.rank + rank & 0xFF]) * _MESSAGE_BYTES for rank in range(group.size)]
    for _ in range(_TRIES):
        began = time.perf_counter()
        received = group.all_to_all(parts)
        least = min(least, time.perf_counter() - began)
        for rank, part in enumerate(received):
            sound = sound and bytes(part) == bytes([16 * rank + group.rank & 0xFF]) * _MESSAGE_BYTES
    return least, not group.any(not sound)
