"""What `benchmarks.cases.startup` starts: builds a contender of case (a), trains one step, says so."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("GLOG_v", "3")
sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.cases import mlp

if __name__ == "__main__":
    mlp.make(sys.argv[1], {"steps": 1}).epoch()
    print("\nstepped", flush=True)
