"""The package as a user has it: built, installed, and the checkout out of sight."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def without_checkout(programs=None):
    """Return this process's variables without those that show the checkout; `programs` is the folder of the others."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if programs is not None:
        environment["PATH"] = f"{programs}{os.pathsep}{environment.get('PATH', '/usr/bin:/bin')}"
    return environment


def install(folder):
    """Build the wheel, install it beside the dependencies of this environment; return its folder of programs."""
    source = folder / "source"
    for name in ("trainer", "callbacks", "mindspore_trainer"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    env = without_checkout()
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(folder), str(source)]
    subprocess.run(build, check=True, timeout=200, cwd=folder, env=env)
    (wheel,) = folder.glob("*.whl")
    shutil.rmtree(source)
    venv.create(folder / "env", symlinks=True)
    python = folder / "env" / "bin" / "python"
    subprocess.run(
        [*pip, "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)],
        check=True,
        timeout=200,
        env=env,
    )
    site = next((folder / "env" / "lib").glob("python*/site-packages"))
    # a plain line: the editable installation beside the dependencies is not followed from here
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "env" / "bin"
