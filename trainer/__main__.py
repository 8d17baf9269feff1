"""``python -m trainer``: the command line."""

import sys

from . import shadow_error

if __name__ == "__main__":
    hidden = shadow_error()
    if hidden is not None:
        print(hidden, file=sys.stderr)
        sys.exit(2)
    from .experiment.cli import main

    sys.exit(main())
