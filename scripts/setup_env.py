"""Bring `.venv` up to date with `requirements.lock` and the project.

    python scripts/setup_env.py
    python scripts/setup_env.py run                only what `make run` needs; the rest follows with the next target
    MINDSPORE=2.8.0 python scripts/setup_env.py    brings `.venv-2.8.0`, with that MindSpore in the place of the lock's

Standard library only: it runs before anything is installed. What was installed is remembered as a digest of the
lock, the packaging files, the interpreter and the folder, so an unchanged checkout costs a few milliseconds and a
moved, interrupted or re-locked one is repaired. Two runs at once wait for each other.
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
PARTS = {"run": ("requirements-run.lock", RUN_EXTRAS, 400), "all": ("requirements.lock", EXTRAS, 600)}  # lock, ..., MB
# Elsewhere pip would pick the wheel tagged for any platform, which holds Linux ARM binaries.
PLATFORMS = {
    ("Linux", "x86_64"),
    ("Linux", "aarch64"),
    ("Darwin", "x86_64"),
    ("Darwin", "arm64"),
    ("Windows", "AMD64"),
}
# pip's settings, and uv's options for the same
_OPTIONS = {"index-url": "--default-index", "extra-index-url": "--index", "find-links": "--find-links"}


def main(part: str = "all") -> int:
    """Install what is missing of a part, "run" or "all"; return the exit code."""
    if (platform.system(), platform.machine()) not in PLATFORMS:
        known = ", ".join(sorted("-".join(pair) for pair in PLATFORMS))
        print(
            f"MindSpore has no wheel for {platform.system()}-{platform.machine()}; it runs on {known}", file=sys.stderr
        )
        return 2
    enough = {digest("all"), digest(part)}
    if _installed() in enough:
        return 0
    with _exclusive():
        if _installed() in enough:  # another run has finished the job while this one waited
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
    """Return the digest of an up-to-date `.venv`, the same from inside and outside."""
    found = hashlib.sha256(f"{VENV}\n{sys.version}\n{os.path.realpath(sys.base_prefix)}\n{part}".encode())
    for name in INPUTS:
        found.update((ROOT / name).read_bytes())
    return found.hexdigest()


def _installed() -> str | None:
    try:
        return STAMP.read_text()
    except OSError:
        return None


def _python() -> Path:
    return VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def _install(part: str) -> None:
    requirements = _requirements(part)
    sound = _installed() == digest("run")
    STAMP.unlink(missing_ok=True)
    # The environment's own interpreter cannot replace itself.
    if not sound and Path(sys.prefix).resolve() != VENV:
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
    """Return the lock of a part with the pin of the MindSpore that is asked for."""
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
    """Return the lines of the package whose first line begins with `start`, or ""."""
    lines = lock.split("\n")
    first = next((number for number, line in enumerate(lines) if line.startswith(start)), len(lines))
    last = next((number for number in range(first, len(lines)) if not lines[number].endswith("\\")), first)
    return "\n".join(lines[first : last + 1])


def _install_by(install: list[str | Path], lock: Path, options: list[str | Path], part: str) -> None:
    subprocess.run([*install, *options, "--require-hashes", "--requirement", lock], check=True, cwd=ROOT)
    # What an older checkout left there names its version, and Python run in this folder finds it first.
    for old in ROOT.glob("*.egg-info"):
        shutil.rmtree(old)
    # The lock holds setuptools, so the build needs no environment and no download of its own.
    project = f"{ROOT}[{PARTS[part][1]}]"
    subprocess.run(
        [*install, *options, "--no-deps", "--no-build-isolation", "--editable", project], check=True, cwd=ROOT
    )


def _uv(pip: list[str | Path]) -> list[str | Path]:
    """Install uv as the lock pins it, and return its command: it takes a fraction of pip's time."""
    pinned = VENV / "uv.lock"
    pinned.write_text(_pin((ROOT / "requirements.lock").read_text(), "uv=="))
    subprocess.run([*pip, "--require-hashes", "--requirement", pinned], check=True, cwd=ROOT)
    return [_python(), "-m", "uv", "pip", "install"]


def _indexes_of_pip() -> list[str]:
    """Return uv's options for the package indexes that pip is told to use, by its files or the environment."""
    command = [_python(), "-m", "pip", "config", "list"]
    told = subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True).stdout
    options = ["--index-strategy", "unsafe-best-match"]  # pip's: the best version of all indexes
    for line in told.splitlines():
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
