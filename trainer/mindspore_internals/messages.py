"""Parse MindSpore's error messages: headings, stack traces, frames of user code.

This module relies on the layout of MindSpore's C++ exceptions: parts are separated by lines of dashes, and a frame is a
line ``# n In file F:L, ...`` with the source line below it. A message with another layout is returned unchanged,
without a location.

It also relies on `mindspore.common._decorator.DEPRECATE_SET`, the set of names and versions already reported as
deprecated.
"""

from __future__ import annotations

import re
from pathlib import Path

import mindspore
from mindspore.common import _decorator

_RULE = re.compile(r"^-{20,}\s*$", re.MULTILINE)
_FRAME = re.compile(r"^# \d+ In file (?P<file>.+?):(?P<line>\d+)(?:~\d+)?, .*\n(?P<code>.*)$", re.MULTILINE)
_NO_GRAPH = re.compile(r"unsupported (statement|expression|syntax|AST)", re.IGNORECASE)
_LIBRARIES = (Path(mindspore.__file__).parent, Path(__file__).parents[1])


def silence_adam_warning() -> None:
    """Silence the deprecation warning of `FusedSparseAdam`, which `nn.Adam` creates."""
    reported: set[str] = getattr(_decorator, "DEPRECATE_SET", set())
    reported.add("FusedSparseAdam2.8.0")


LAMBDA = (
    "MindSpore cannot compile a lambda that is written inside a call or another expression: it reads the source line, "
    "which holds more than the lambda; use a method or a Cell in its place"
)


def is_of_lambda(error: Exception) -> bool:
    """Return whether MindSpore failed to read the source of a lambda."""
    # A source line taken from the middle of a call may be invalid Python, such as "lambda x: x)".
    unreadable = isinstance(error, SyntaxError) and "lambda" in (error.text or "")
    return unreadable or "Parse Lambda Function Fail" in str(error)


def cannot_be_compiled(message: str) -> bool:
    """Return whether the message says that a network's source cannot be compiled."""
    return _NO_GRAPH.search(message) is not None


_ASSERTED = re.compile(r"\[710\]|\b710\b.*assert|device-side assert|CUDA_ERROR_ASSERT", re.IGNORECASE)
_OPERATOR = re.compile(
    r"(?:kernel|op(?:erator)?)[ _](?:full[ _])?name[: ]*\[?(?P<name>[\w./-]+)|(?P<full>[\w./-]+-op\d+)", re.IGNORECASE
)


def failed_assertion(message: str) -> str | None:
    """Explain an assertion that failed on a GPU (CUDA's error 710), or return None.

    The driver reports the failure at a later call, and then refuses all further calls.
    """
    if _ASSERTED.search(message) is None:
        return None
    match = _OPERATOR.search(message)
    operator = f"operator {match['name'] or match['full']}" if match else "an operator that MindSpore does not name"
    return (
        f"an assertion failed on the GPU (error 710), reported by {operator}; usually an index, such as an id of an "
        "embedding or a class number, is out of range. The GPU cannot be used in this process any more: "
        "start the process again, with device='cpu' to see the value"
    )


def main_message(message: str) -> str:
    """Return a message without headings and stack traces."""
    for part in _RULE.split(message):
        lines = [line for line in part.splitlines() if line.strip()]
        if lines and not (len(lines) == 1 and lines[0].startswith("- ")):
            return "\n".join(lines).strip()
    return ""


def location_in_network(message: str) -> str | None:
    """Return "file:line: code" of the innermost frame in the user's code, or None."""
    frames = [
        frame
        for frame in _FRAME.finditer(message)
        if not any(library in Path(frame["file"]).parents for library in _LIBRARIES)
    ]
    return f"{frames[-1]['file']}:{frames[-1]['line']}: {frames[-1]['code'].strip()}" if frames else None
