"""All uses of private MindSpore code.

Each module describes the behaviour it relies on. If the installed MindSpore behaves differently, the module uses public
functions instead and calls `warn_of_fallback`.
"""

from __future__ import annotations

import functools
import logging
import os

logger = logging.getLogger(__name__)

VARIABLE = "TRAINER_PUBLIC_MINDSPORE"


def public_only() -> bool:
    """Return whether the user has set `VARIABLE` to 1, to use only public functions."""
    return os.environ.get(VARIABLE, "0") not in ("", "0")


@functools.cache
def warn_of_fallback(what: str, cost: str) -> None:
    """Warn, once per process, how MindSpore differs and what the fallback costs."""
    logger.warning(
        "this MindSpore differs from the versions the trainer was written for: %s. Results stay correct, because a "
        "public function is used instead; %s",
        what,
        cost,
    )
