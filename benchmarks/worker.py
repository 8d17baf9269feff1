"""A contender's process: makes one contender of a case and does what standard input says, line by line.

    python -m benchmarks.worker MODULE NAME OPTIONS

"ready" is answered when it is made, with the device that computes, "losses" with the losses of its first steps,
"window" with what a window of work took. Answers are lines of JSON after a mark, since frameworks print as they like.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("GLOG_v", "3")

MARK = "\x1e"
EARLIER_VARIABLE = "BENCHMARK_EARLIER_CHECKOUT"


def device() -> str:
    """Return the device of the framework that was imported: "CPU", "Ascend" or the card's name."""
    mindspore, torch = sys.modules.get("mindspore"), sys.modules.get("torch")
    if mindspore is not None:
        name = mindspore.get_context("device_target")
    else:
        name = "GPU" if torch is not None and torch.cuda.is_initialized() else "CPU"
    if name == "GPU":
        for told in Path("/proc/driver/nvidia/gpus").glob("*/information"):
            name = told.read_text("utf-8").partition("Model:")[2].partition("\n")[0].strip() or name
    return name


def main() -> None:
    """Serve until standard input ends."""
    if checkout := os.environ.get(EARLIER_VARIABLE):
        sys.path.insert(0, checkout)  # the packages of another commit, under the benchmarks of this one
        for package in ("trainer", "callbacks"):
            importlib.import_module(package)
        sys.path.remove(checkout)
    module, name, options = sys.argv[1:4]
    contender = importlib.import_module(f"benchmarks.cases.{module}").make(name, json.loads(options))
    for line in sys.stdin:
        what = line.strip()
        answer = device() if what == "ready" else getattr(contender, what)()
        print(f"\n{MARK}{json.dumps(answer)}", flush=True)


if __name__ == "__main__":
    main()
