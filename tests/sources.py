"""The source of the packages as syntax trees, parsed once for all tests that look at it."""

import ast
import functools
from pathlib import Path

ROOT = Path(__file__).parents[1]


@functools.cache
def trees():
    """Return path -> syntax tree of every module."""
    paths = [path for package in ("trainer", "callbacks") for path in sorted((ROOT / package).rglob("*.py"))]
    return {path: ast.parse(path.read_text("utf-8")) for path in paths}
