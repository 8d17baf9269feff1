"""The environment of the peers: PyTorch, FBGEMM, Lightning, Keras and Vowpal Wabbit, in a cache folder of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

from examples.movielens import cache_folder

TORCH = "torch==2.13.0"
# A release of FBGEMM is built for one of PyTorch: 1.8 for 2.13, 1.9 for 2.14.
FBGEMM = "fbgemm-gpu-cpu==1.8.0"
VOWPAL_WABBIT = "vowpalwabbit==9.11.9"
# torch first and alone: it decides on the versions of what the others share
STAGES = ((TORCH,), (FBGEMM,), ("lightning", "keras", "numpy", "scikit-learn", "pyarrow"), (VOWPAL_WABBIT,))
# names what was installed: an environment made of other packages is built anew
DONE = "complete-" + "-".join((TORCH, FBGEMM, VOWPAL_WABBIT)).replace("==", "-")
VARIABLE = "BENCHMARK_PEERS"


def python() -> Path:
    """Return the interpreter of the peers' environment, building it on first use; takes minutes then.

    The variable BENCHMARK_PEERS names another interpreter that has the packages.

    Raises:
        RuntimeError: it could not be built; the message is pip's.
    """
    given = os.environ.get(VARIABLE)
    if given:
        return Path(given)
    folder = cache_folder() / f"peers-{sys.version_info[0]}.{sys.version_info[1]}-{TORCH.partition('==')[2]}"
    interpreter = folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    if (folder / DONE).is_file() and interpreter.exists():
        return interpreter
    print(f"building the peers' environment in {folder}", file=sys.stderr, flush=True)
    venv.create(folder, with_pip=True, clear=True)
    for packages in STAGES:
        command = [str(interpreter), "-m", "pip", "install", "--quiet", *packages]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise RuntimeError(f"pip could not install {', '.join(packages)}:\n{done.stderr[-2000:]}")
    (folder / DONE).touch()
    return interpreter
