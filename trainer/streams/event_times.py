"""Detects impossible event times: far ahead of this machine's clock.

Windows, times to live and joins follow the latest event time. A single row from the far future would close windows too
early for a long time, expire table rows, and turn waiting impressions into negatives.
"""

from __future__ import annotations

import time

import numpy as np

MAX_FUTURE = 86_400.0  # seconds; tolerates clock skew and local times read as UTC


def far_ahead(times: np.ndarray | None, max_future: float | None) -> dict[int, str]:
    """Return the indexes of rows whose event time is too far ahead, with the reason.

    Args:
        times: seconds since the epoch, float64 [rows], or None.
        max_future: seconds that an event may be ahead of this machine's clock; None: unlimited.
    """
    if times is None or max_future is None or not len(times):
        return {}
    now = time.time()
    ahead = times - now
    return {
        int(row): (
            f"event time lies more than max_future={max_future:g} s ahead of this machine's clock; received "
            f"{times[row]:.15g}, {ahead[row]:.3g} s ahead of {now:.0f} (see also event_time_unit)"
        )
        for row in np.flatnonzero(ahead > max_future)
    }
