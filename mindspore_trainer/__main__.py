"""The command line: ``python -m mindspore_trainer`` and the command `trainer`."""

import sys

from trainer.experiment.cli import main

if __name__ == "__main__":
    sys.exit(main())
