"""Implement `trainer doctor`: check the machine and the installation."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import socket
import struct
import sys
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from packaging.requirements import Requirement

from ...checks import installed
from ...distributed.launched import is_launched, process_count
from ...errors import ConfigurationError, TrainerError
from ...mindspore_internals import gpu_libraries

if TYPE_CHECKING:
    from ...distributed.group import Group

OK, NOTE, WRONG = "ok", "note", "WRONG"
_REASONS = {"numpy": "; MindSpore's binaries are built against NumPy 1"}
_DISTRIBUTION = "mindspore-trainer"
_COMMON_DISTRIBUTIONS = ("mindspore", "numpy", _DISTRIBUTION)  # versions that must be equal on all ranks of a job
_COMMON_SETTINGS = ("MS_CPU_COMM_OP_TIMEOUT", "ONEDNN_MAX_CPU_ISA", "MS_COMPILER_CACHE_ENABLE")
_MESSAGE_BYTES = 1 << 20
_REPEATS = 5
_DEVELOPER_EXTRAS = ("test", "dev")
_REPEATABLE_CORES = 2  # as measured: LeNet runs are bit-identical on 2 cores, but not on 16
_THREAD_SETTINGS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "MS_DEV_RUNTIME_CONF", "GLOG_v")
# e_machine field of an ELF header -> name that platform.machine() uses
_ELF_MACHINES = {0x3E: "x86_64", 0xB7: "aarch64", 0x03: "i686", 0xF3: "riscv64"}
_MACHINE_ALIASES = {"amd64": "x86_64", "arm64": "aarch64"}


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    name: str
    value: str
    state: str = OK  # "ok", "note" (worth knowing) or "WRONG" (runs will fail)
    advice: str = ""


def examine(run_a_graph: bool = True) -> list[Finding]:
    """Run all checks and return the findings."""
    checks: list[Callable[[], Iterator[Finding]]] = [_python, _packages, _job, _architecture, _cpus, _threads]
    checks += [_graph_cache, _convolutions, _devices, _gpu]
    if run_a_graph:
        checks += [_graph, _differences]
    checks += [_extras, _shadow]
    findings = []
    for check in checks:
        try:
            findings += list(check())
        except Exception as error:  # one broken check must not hide the others
            name = check.__name__.strip("_")
            findings.append(Finding(name, f"the check failed: {type(error).__name__}: {error}", NOTE))
    return findings


def report(findings: list[Finding]) -> str:
    """Format the findings as text."""
    width = max(len(finding.name) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"{finding.state:5}  {finding.name.ljust(width)}  {finding.value}")
        if finding.advice:
            lines.append(f"{'':5}  {'':{width}}  -> {finding.advice}")
    return "\n".join(lines)


def _python() -> Iterator[Finding]:
    is_supported = (3, 10) <= sys.version_info[:2] < (3, 13)
    advice = "" if is_supported else "MindSpore has wheels for CPython 3.10, 3.11 and 3.12"
    yield Finding("python", f"{platform.python_version()} ({sys.executable})", OK if is_supported else WRONG, advice)
    yield Finding("platform", f"{platform.platform()}, {platform.machine()}")


def _packages() -> Iterator[Finding]:
    for requirement in _requirements().get("", []):
        version = installed(requirement.name)
        is_supported = version is not None and requirement.specifier.contains(version, prereleases=True)
        required_version = f"{requirement.name}{requirement.specifier}"
        advice = "" if is_supported else f"pip install '{required_version}'{_REASONS.get(requirement.name, '')}"
        yield Finding(requirement.name, version or "not installed", OK if is_supported else WRONG, advice)
    yield Finding(_DISTRIBUTION, installed(_DISTRIBUTION) or "not installed; running from a source folder")


def _requirements() -> dict[str, list[Requirement]]:
    """Return the package's requirements by extra; "" has those of no extra."""
    by_extra: dict[str, list[Requirement]] = {}
    for text in (importlib.metadata.requires(_DISTRIBUTION) or ()) if installed(_DISTRIBUTION) else ():
        requirement = Requirement(text)
        extra = re.search(r"extra == [\"'](\w+)", str(requirement.marker))
        by_extra.setdefault(extra[1] if extra else "", []).append(requirement)
    return by_extra


def _job() -> Iterator[Finding]:
    """Yield findings about the job of this process; all its ranks must call this."""
    if not is_launched() or process_count() == 1:
        return
    from ...distributed.group import join

    try:
        group = join()
    except ConfigurationError as error:
        yield Finding("job", str(error), WRONG, "see that the processes reach MS_SCHED_HOST at any port")
        return
    facts = group.gather_json(local_facts())
    hosts = Counter(str(rank_facts.pop("host")) for rank_facts in facts)
    placement = ", ".join(f"{count} on {host}" for host, count in hosts.items())
    yield Finding("job", f"rank {group.rank} of {group.size} processes: {placement}")
    yield from compare_ranks(facts)
    yield Finding("collectives", f"AllGather of 1 KB in {1000 * _allgather_seconds(group):.1f} ms")
    try:
        took, intact = _all_to_all_seconds(group)
    except TrainerError as error:
        advice = "processes that keep the rows of sparse tables connect to each other at free ports: open them"
        yield Finding("exchange of rows", str(error), WRONG, advice)
        return
    text = f"1 MB to each of the others in {1000 * took:.1f} ms" if intact else "bytes arrived changed"
    yield Finding("exchange of rows", text, OK if intact else WRONG)


def local_facts() -> dict[str, str | None]:
    """Return the host name and the settings that must be equal on all ranks."""
    facts: dict[str, str | None] = {"host": socket.gethostname(), "python": platform.python_version()}
    facts |= {name: installed(name) for name in _COMMON_DISTRIBUTIONS}
    package, code = Path(__file__).parents[2], 0
    for path in sorted(package.rglob("*.py")):
        code = zlib.crc32(path.read_bytes(), zlib.crc32(path.relative_to(package).as_posix().encode(), code))
    facts["code of trainer"] = f"{code:08x}"
    return facts | {name: os.environ.get(name) for name in _COMMON_SETTINGS}


def compare_ranks(facts: Sequence[Mapping[str, str | None]]) -> Iterator[Finding]:
    """Yield a finding for each setting that differs, or one if all ranks agree."""
    differing = [name for name in facts[0] if len({rank_facts[name] for rank_facts in facts}) > 1]
    for name in differing:
        values = defaultdict(list)
        for rank, rank_facts in enumerate(facts):
            values[rank_facts[name]].append(rank)
        text = "; ".join(f"ranks {ranks}: {value or 'none'}" for value, ranks in values.items())
        yield Finding(name, f"differs: {text}", WRONG, f"give all processes the same {name}")
    if not differing:
        shown = ", ".join(f"{name} {value}" for name, value in facts[0].items() if value is not None)
        yield Finding("same on all ranks", shown)


def _allgather_seconds(group: Group) -> float:
    """Return the shortest time of a small AllGather, in seconds."""
    message, shortest = np.zeros(128, np.int64), float("inf")
    for _ in range(_REPEATS):  # the first call compiles the program
        began = time.perf_counter()
        group.gather(message)
        shortest = min(shortest, time.perf_counter() - began)
    return shortest


def _all_to_all_seconds(group: Group) -> tuple[float, bool]:
    """Return (shortest all-to-all time in seconds, whether all bytes arrived)."""
    shortest, intact = float("inf"), True
    parts = [bytes([16 * group.rank + rank & 0xFF]) * _MESSAGE_BYTES for rank in range(group.size)]
    for _ in range(_REPEATS):
        began = time.perf_counter()
        received = group.all_to_all(parts)
        shortest = min(shortest, time.perf_counter() - began)
        for rank, part in enumerate(received):
            intact = intact and bytes(part) == bytes([16 * rank + group.rank & 0xFF]) * _MESSAGE_BYTES
    return shortest, not group.any(not intact)


def _architecture() -> Iterator[Finding]:
    # pip may install MindSpore's aarch64 wheels on any machine, because they are tagged none-any
    spec = importlib.util.find_spec("mindspore")
    folder = Path(spec.origin).parent if spec and spec.origin else None
    libraries = sorted(folder.glob("_c_expression*.so")) if folder else []
    built_for = elf_machine(libraries[0]) if libraries else None
    if built_for is None:
        yield Finding("mindspore binaries", "not checked on this platform", OK)
        return
    machine = platform.machine().lower()
    machine = _MACHINE_ALIASES.get(machine, machine)
    advice = "pip took a wheel for another machine; install the one for this machine by its full address"
    wrong = built_for != machine
    yield Finding("mindspore binaries", f"built for {built_for}", WRONG if wrong else OK, advice if wrong else "")


def elf_machine(path: Path) -> str | None:
    """Return the machine an ELF library is built for, or None for other files."""
    with open(path, "rb") as file:
        head = file.read(20)
    if len(head) < 20 or head[:4] != b"\x7fELF":
        return None
    (code,) = struct.unpack("<H" if head[5] == 1 else ">H", head[18:20])
    return _ELF_MACHINES.get(code, f"machine {code:#x}")


def _cpus() -> Iterator[Finding]:
    count = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0))
    quota = _cpu_quota()
    text = f"{count}, usable {usable}" + (f", quota {quota:g}" if quota else "")
    over_quota = quota is not None and quota < usable
    advice = "set OMP_NUM_THREADS to the quota: more threads than that are throttled" if over_quota else ""
    yield Finding("cpus", text, NOTE if over_quota else OK, advice)
    not_repeatable = usable > _REPEATABLE_CORES
    differs = "networks with convolutions differ from run to run in the last digits"
    text = differs if not_repeatable else "same bits in every run"
    advice = "for the same bits: Trainer(deterministic=True), or start with `taskset -c 0,1`; see docs/resuming.md"
    yield Finding("repeatability", text, NOTE if not_repeatable else OK, advice if not_repeatable else "")
    load = os.getloadavg()[0]
    busy = load > usable
    advice = "other work is running; timings will vary" if busy else ""
    yield Finding("load", f"{load:.1f}", NOTE if busy else OK, advice)


def _cpu_quota() -> float | None:
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _threads() -> Iterator[Finding]:
    settings = {name: os.environ[name] for name in _THREAD_SETTINGS if name in os.environ}
    yield Finding("thread settings", ", ".join(f"{name}={value}" for name, value in settings.items()) or "all default")
    import mindspore

    yield Finding("mindspore threads", f"runtime_num_threads={mindspore.get_context('runtime_num_threads')}")


def _graph_cache() -> Iterator[Finding]:
    # In MindSpore 2.10, a run that was restarted with another constant in the network still ran the old graph.
    import mindspore

    on = os.environ.get("MS_COMPILER_CACHE_ENABLE") == "1" or mindspore.get_context("enable_compile_cache")
    advice = (
        "unset MS_COMPILER_CACHE_ENABLE: MindSpore finds a stored graph by its number in the run and by source files, "
        "so a changed setting can silently run the graph of the old one"
    )
    yield Finding("graph cache", "on" if on else "off", NOTE if on else OK, advice if on else "")


def _convolutions() -> Iterator[Finding]:
    from ...mindspore_internals import cpu_kernels

    setting = cpu_kernels.user_choice()
    if not cpu_kernels.is_affected():
        yield Finding("convolutions", "at full speed as they are")
    elif setting is None:
        yield Finding("convolutions", "AVX-512 found: a Trainer of a network with convolutions limits oneDNN to AVX2")
    else:
        slow = not setting.partition("=")[2].upper().startswith(("SSE41", "AVX2"))
        advice = "with AVX-512, MindSpore's convolutions are 10 to 100 times slower: unset it, or set it to AVX2"
        yield Finding("convolutions", f"oneDNN as you set it: {setting}", NOTE if slow else OK, advice if slow else "")


def _devices() -> Iterator[Finding]:
    import mindspore

    from ...mindspore_internals import device

    findings = []
    for name in ("cpu", "gpu", "ascend"):
        kind = getattr(getattr(mindspore, "device_context", None), name, None)
        try:
            if kind is not None and kind.is_available():
                findings.append(f"{name} ({kind.device_count()})")
        except RuntimeError:  # raised by MindSpore if there is no such device
            continue
    current = device.current()
    yield Finding("devices", f"{', '.join(findings) or 'unknown'}; MindSpore uses {current.name} by default")
    lowest = "bfloat16" if current.has_bfloat16 else f"MindSpore has no bfloat16 on {current.name}"
    yield Finding("precision", f"float32, float16{' (emulated, slower)' if current.uses_onednn else ''}; {lowest}")


def _gpu() -> Iterator[Finding]:
    """Yield findings about MindSpore's GPU plugin, the driver and the cards."""
    plugin = gpu_libraries.plugin()
    if plugin is None or not gpu_libraries.loads(gpu_libraries.DRIVER):
        reason = "MindSpore's wheel has no plugin" if plugin is None else f"no driver ({gpu_libraries.DRIVER})"
        yield Finding("gpu", f"cannot be used: {reason}")
        return
    for library, package in gpu_libraries.missing().items():
        advice = f"pip install '{_DISTRIBUTION}[gpu]' brings {package}, which has it"
        yield Finding("gpu library", f"{library} cannot be loaded, which {plugin.name} needs", NOTE, advice)
    yield Finding("gpu driver", f"supports CUDA {gpu_libraries.driver_version() or '(unknown)'}")
    for card in gpu_libraries.cards():
        capability = "{}.{}".format(*card.capability)
        slow = card.compiles_at_first_use
        code = "the driver compiles MindSpore's operators at first use" if slow else "runs MindSpore's machine code"
        advice = "allow some minutes once; CUDA_CACHE_PATH keeps the result" if slow else ""
        yield Finding("gpu", f"{card.name}, compute capability {capability}: {code}", NOTE if slow else OK, advice)
    loaded = gpu_libraries.plugin_is_loaded()
    advice = "" if loaded else "import trainer before mindspore, which loads the plugin while it is imported"
    yield Finding("gpu plugin", f"{plugin.name} {'' if loaded else 'not '}loaded", OK if loaded else NOTE, advice)


def _graph() -> Iterator[Finding]:
    import mindspore
    from mindspore import nn

    start_time = time.monotonic()
    cell = nn.Dense(4, 2, weight_init="ones", has_bias=False)
    cell.set_train(False)
    out = cell.compile_and_run(mindspore.Tensor(np.ones((3, 4), np.float32)))
    right = np.array_equal(out.asnumpy(), np.full((3, 2), 4, np.float32))
    text = f"compiled and ran in {time.monotonic() - start_time:.1f} s{'' if right else f'; it gave {out.asnumpy()}'}"
    yield Finding("a tiny graph", text, OK if right else WRONG, "" if right else "reinstall MindSpore and NumPy")


def _differences() -> Iterator[Finding]:
    from ...mindspore_internals.differences import differences

    differences_found = differences()
    for sentence in differences_found:
        yield Finding("mindspore differs", sentence, NOTE)
    if not differences_found:
        yield Finding("mindspore differs", "nowhere in what the trainer uses")


def _extras() -> Iterator[Finding]:
    for extra, requirements in _requirements().items():
        if extra in ("", "gpu", *_DEVELOPER_EXTRAS):  # `_gpu` reports the GPU libraries
            continue
        versions = {requirement.name: installed(requirement.name) for requirement in requirements}
        missing = None in versions.values()
        text = ", ".join(f"{name} {version or '(missing)'}" for name, version in versions.items())
        advice = f"pip install '{_DISTRIBUTION}[{extra}]'" if missing else ""
        yield Finding(f"extra {extra}", text, NOTE if missing else OK, advice)


def _shadow() -> Iterator[Finding]:
    package_root = Path(__file__).parents[3]
    for name in ("callbacks", "trainer"):
        candidates = [Path(folder or ".") / f"{name}.py" for folder in ("", *sys.path)]
        candidates += [Path(folder or ".") / name / "__init__.py" for folder in ("", *sys.path)]
        existing = dict.fromkeys(path.resolve() for path in candidates if path.is_file())
        hiding = [path for path in existing if path.parent.parent != package_root]
        advice = f"it hides the package {name!r} from scripts in its folder: rename it, for example to my_{name}.py"
        for path in hiding:
            yield Finding(f"module {name}", str(path), NOTE, advice)
        if not hiding:
            yield Finding(f"module {name}", str(package_root / name))
