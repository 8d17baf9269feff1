"""Bring `.venv` up to date with `requirements.lock` and the project.

    python scripts/setup_env.py
    python scripts/setup_env.py run                install only what `make run` needs
    MINDSPORE=2.8.0 python scripts/setup_env.py    update `.venv-2.8.0`, with another MindSpore than the lock's

The script uses only the standard library, because it runs before anything is installed. It stores a digest of the
lock, the packaging files, the interpreter and the folder. If the digest is unchanged, it returns within milliseconds;
otherwise, as after a moved folder or an interrupted run, it installs again. Concurrent runs wait for each other.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MINDSPORE = os.environ.get("MINDSPORE", "")
VENV = ROOT / f".venv-{MINDSPORE}".rstrip("-")
STAMP = VENV / "installed"
INPUTS = (
    "requirements.lock",
    "requirements-run.lock",
    "requirements-mindspore.lock",
    "setup.cfg",
    "setup.py",
    "pyproject.toml",
    "scripts/setup_env.py",
)
EXTRAS = "arrow,dev,docs,examples,kafka,mlflow,monitor,onnx,prometheus,redis,report,retrieval,s3,serve,sweep,test,wandb"
RUN_EXTRAS = "arrow,examples,report"
# part -> (lock file, extras, download size in MB)
PARTS = {"run": ("requirements-run.lock", RUN_EXTRAS, 400), "all": ("requirements.lock", EXTRAS, 600)}
# On other platforms, pip would install MindSpore's wheel for "any" platform, which contains Linux ARM binaries.
PLATFORMS = {
    ("Linux", "x86_64"),
    ("Linux", "aarch64"),
    ("Darwin", "x86_64"),
    ("Darwin", "arm64"),
    ("Windows", "AMD64"),
}
# pip's setting -> uv's option
_OPTIONS = {"index-url": "--default-index", "extra-index-url": "--index", "find-links": "--find-links"}


def main(part: str = "all") -> int:
    """Install the part "run" or "all" if it is not up to date; return the exit code."""
    if (platform.system(), platform.machine()) not in PLATFORMS:
        known = ", ".join(sorted("-".join(pair) for pair in PLATFORMS))
        print(
            f"MindSpore has no wheel for {platform.system()}-{platform.machine()}; it runs on {known}", file=sys.stderr
        )
        return 2
    accepted_digests = {digest("all"), digest(part)}
    if _installed() in accepted_digests:
        return 0
    with _exclusive():
        if _installed() in accepted_digests:  # another run has installed it while this one waited
            return 0
        started = time.monotonic()
        python, size = platform.python_version(), PARTS[part][2]
        print(f"setting up {VENV} with Python {python} (once; downloads some {size} MB)", flush=True)
        try:
            _install(part)
        except ValueError as error:
            print(error, file=sys.stderr)
            return 2
        except subprocess.CalledProcessError as error:
            print(
                f"setting up {VENV.name} failed: {' '.join(map(str, error.cmd))} ended with exit code "
                f"{error.returncode}. Its own message is above; the next run tries again.",
                file=sys.stderr,
            )
            return 1
        print(f"ready after {time.monotonic() - started:.0f} s", flush=True)
    return 0


def digest(part: str = "all") -> str:
    """Return the digest of an up-to-date `.venv`; its own Python gives the same."""
    hasher = hashlib.sha256(f"{VENV}\n{sys.version}\n{os.path.realpath(sys.base_prefix)}\n{part}".encode())
    for name in INPUTS:
        hasher.update((ROOT / name).read_bytes())
    return hasher.hexdigest()


def _installed() -> str | None:
    try:
        return STAMP.read_text()
    except OSError:
        return None


def _python() -> Path:
    return VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def _install(part: str) -> None:
    requirements = _requirements(part)
    is_run_environment = _installed() == digest("run")
    STAMP.unlink(missing_ok=True)
    # The environment's own interpreter cannot replace itself.
    if not is_run_environment and Path(sys.prefix).resolve() != VENV:
        venv.create(VENV, with_pip=True, clear=VENV.exists(), symlinks=os.name != "nt")
    lock = VENV / "requirements.lock"
    lock.write_text(requirements)
    pip = [_python(), "-m", "pip", "--disable-pip-version-check", "install", "-qq"]
    try:
        _install_by(_uv(pip), lock, ["--quiet", "--python", _python(), *_indexes_of_pip()], part)
    except subprocess.CalledProcessError as error:
        print(
            f"{' '.join(map(str, error.cmd))} ended with exit code {error.returncode}; pip installs instead", flush=True
        )
        _install_by(pip, lock, [], part)
    subprocess.run([_python(), "-m", "pip", "check", "-qq"], check=True, cwd=ROOT)
    subprocess.run([_python(), "-c", "import mindspore"], check=True, cwd=VENV, env={**os.environ, "GLOG_v": "3"})
    STAMP.write_text(digest(part))


def _requirements(part: str) -> str:
    """Return the lock of a part, with the MindSpore version of the variable MINDSPORE."""
    lock = (ROOT / PARTS[part][0]).read_text()
    if not MINDSPORE:
        return lock
    others = (ROOT / "requirements-mindspore.lock").read_text()
    wanted = _pin(others, f"mindspore=={MINDSPORE} ")
    if not wanted:
        known = ", ".join(line.split()[0] for line in others.splitlines() if line.startswith("mindspore=="))
        raise ValueError(f"MINDSPORE={MINDSPORE}: requirements-mindspore.lock has no pin of it, but of {known}")
    return lock.replace(_pin(lock, "mindspore=="), wanted)


def _pin(lock: str, start: str) -> str:
    """Return the lines of the pin whose first line begins with `start`, or ""."""
    lines = lock.split("\n")
    first = next((number for number, line in enumerate(lines) if line.startswith(start)), len(lines))
    last = next((number for number in range(first, len(lines)) if not lines[number].endswith("\\")), first)
    return "\n".join(lines[first : last + 1])


def _install_by(install: list[str | Path], lock: Path, options: list[str | Path], part: str) -> None:
    subprocess.run([*install, *options, "--require-hashes", "--requirement", lock], check=True, cwd=ROOT)
    # Python, started in this folder, would find an older checkout's metadata first, with its version number.
    for old in ROOT.glob("*.egg-info"):
        shutil.rmtree(old)
    # Build without isolation, because the lock already contains setuptools.
    project = f"{ROOT}[{PARTS[part][1]}]"
    subprocess.run(
        [*install, *options, "--no-deps", "--no-build-isolation", "--editable", project], check=True, cwd=ROOT
    )


def _uv(pip: list[str | Path]) -> list[str | Path]:
    """Install the pinned uv, which is faster than pip; return its install command."""
    pinned = VENV / "uv.lock"
    pinned.write_text(_pin((ROOT / "requirements.lock").read_text(), "uv=="))
    subprocess.run([*pip, "--require-hashes", "--requirement", pinned], check=True, cwd=ROOT)
    return [_python(), "-m", "uv", "pip", "install"]


def _indexes_of_pip() -> list[str]:
    """Return uv options for the package indexes that pip is configured to use."""
    command = [_python(), "-m", "pip", "config", "list"]
    settings = subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True).stdout
    options = ["--index-strategy", "unsafe-best-match"]  # like pip: the best version among all indexes
    for line in settings.splitlines():
        name, _, value = line.partition("=")
        option = _OPTIONS.get(name.rpartition(".")[2])
        for part in value.strip("'\"").split() if option else ():
            options += [option, part]
    return options


@contextlib.contextmanager
def _exclusive() -> Iterator[None]:
    if os.name == "nt":
        yield
        return
    import fcntl

    with open(ROOT / ".venv.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
