"""MkDocs hook that adds every callback to docs/callbacks-reference.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import callbacks

PAGE = "callbacks-reference.md"
_ENTRY = """
## {name}

::: {module}.{name}
    options:
      members: false
      show_root_heading: false
"""


def entries() -> str:
    """Return the entries in Markdown, in the order of `callbacks.__all__`."""
    public = [getattr(callbacks, name) for name in callbacks.__all__]
    classes = [value for value in public if isinstance(value, type) and issubclass(value, callbacks.Callback)]
    shown = [value for value in classes if value is not callbacks.Callback]
    return "".join(_ENTRY.format(name=value.__name__, module=value.__module__) for value in shown)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the page's text, with the entries at the end of the reference."""
    return markdown + entries() if Path(page.file.src_uri).name == PAGE else markdown
