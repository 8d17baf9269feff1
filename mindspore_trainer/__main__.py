"""``python -m mindspore_trainer`` and the command `trainer`: the command line."""

import importlib
import os
import sys

from . import PACKAGES, home_of


def main() -> int:
    """Run the command line; modules of the working directory are the user's, whatever they are called."""
    sys.path.insert(0, os.getcwd())
    try:
        for package in PACKAGES:
            home_of(package)
    finally:
        sys.path.pop(0)
    return importlib.import_module(f"{home_of('trainer')}.experiment.cli").main()


if __name__ == "__main__":
    sys.exit(main())
