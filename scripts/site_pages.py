"""MkDocs hook: references that are built from the code, and links to the glossary.

It adds every callback to docs/callbacks-reference.md, every metric to docs/metrics.md, and the keywords of other
frameworks to docs/faq.md. On every page the first use of a word of `TERMS` is a link to the glossary.
"""

from __future__ import annotations

import re
from typing import Any

import callbacks
from trainer.compat.keywords import HINTS, SAME_MEANING, VERBS
from trainer.metrics import registry

GLOSSARY = "ARCHITECTURE.md"
TERMS = ("sink", "ragged", "set aside", "snapshot", "version")
_ENTRY = """
{level} {name}

::: {module}.{kind}
    options:
      members: false
      show_root_heading: false
"""
# code, links and pictures, headings, HTML, entries made from docstrings
_PROTECTED = re.compile(
    r"(^```.*?^```|^ *:::.*?(?=^\S|\Z)|`[^`\n]*`|!?\[[^\]]*\]\([^)]*\)|^#.*?$|<[^>]+>)", re.M | re.S
)


def callback_entries() -> str:
    """Return an entry in Markdown for each callback, in the order of `callbacks.__all__`."""
    public = [getattr(callbacks, name) for name in callbacks.__all__]
    classes = [value for value in public if isinstance(value, type) and issubclass(value, callbacks.Callback)]
    shown = [value for value in classes if value is not callbacks.Callback]
    return "".join(_entry("##", value.__name__, value) for value in shown)


def metric_entries() -> str:
    """Return an entry for each metric of the registry, and the names of MindSpore's."""
    named = registry.named_metrics()
    shown = {registry.shown_name(name, kind): kind for name, kind in sorted(named.items()) if name != "acc"}
    others = sorted(set(registry.metric_names()) - set(shown) - {"acc"})
    own = "".join(_entry("###", f"`{name}`", kind) for name, kind in shown.items())
    listed = ", ".join(f"`{name}`" for name in others)
    return f"{own}\n### MindSpore's\n\nThese names mean the metrics of `mindspore.train`: {listed}.\n"


def keyword_table() -> str:
    """Return a table of the keywords and methods of other frameworks with ours."""
    rows = [f"| `{name}` | `{ours}`; taken as it is |" for name, ours in SAME_MEANING.items()]
    rows += [f"| `{name}` | {hint} |" for name, hint in HINTS.items()]
    rows += [f"| `trainer.{name}(...)` | `{hint}` |" for name, hint in VERBS.items()]
    return "\n".join(["", "| you write | here |", "| --- | --- |", *rows, ""])


ADDED = {"callbacks-reference.md": callback_entries, "metrics.md": metric_entries, "faq.md": keyword_table}


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the page's text with what the code adds and with links to the glossary."""
    path = page.file.src_uri
    if path == GLOSSARY:
        return re.sub(r"^\| (.+?) \|", _with_anchors, markdown, flags=re.M)
    markdown = with_glossary_links(markdown, "../" * path.count("/") + GLOSSARY) if "_cn" not in path else markdown
    return markdown + ADDED[path]() if path in ADDED else markdown


def with_glossary_links(markdown: str, glossary: str) -> str:
    """Return the text with the first use of each word of `TERMS` as a link."""
    for term in TERMS:
        parts = _PROTECTED.split(markdown)
        word = re.compile(rf"\b{term}s?\b", re.I)
        for place in range(0, len(parts), 2):  # the odd ones are protected
            if word.search(parts[place]):
                anchor = f"{glossary}#{term.replace(' ', '-')}"
                parts[place] = word.sub(lambda found, at=anchor: f"[{found[0]}]({at})", parts[place], count=1)
                break
        markdown = "".join(parts)
    return markdown


def _entry(level: str, name: str, kind: type) -> str:
    return _ENTRY.format(level=level, name=name, module=kind.__module__, kind=kind.__name__)


def _with_anchors(row: re.Match) -> str:
    """Return the beginning of a row of the glossary, to which links lead."""
    words = [word for word in TERMS if word in row[1].split(", ")]
    return "| " + "".join(f'<a id="{word.replace(" ", "-")}"></a>' for word in words) + f"{row[1]} |"
