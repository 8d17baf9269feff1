"""``python -m trainer``: the command line."""

import sys

if __name__ == "__main__":
    from .experiment.cli import main

    sys.exit(main())
