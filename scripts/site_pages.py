"""MkDocs hook that generates references from the code, and links to the glossary.

It adds every public name to docs/api.md, every callback to docs/callbacks-reference.md, every metric to
docs/metrics.md, and the keywords of other frameworks to docs/faq.md. On every page, the first use of a word in `TERMS`
becomes a link to the glossary.
"""

from __future__ import annotations

import ast
import functools
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import callbacks
from trainer.compat.keywords import HINTS, SAME_MEANING, VERBS
from trainer.metrics import registry

DOCS = Path(__file__).resolve().parent.parent / "docs"
PACKAGES = (
    "trainer", "trainer.features", "trainer.models", "trainer.metrics", "trainer.streams", "trainer.embedding",
    "trainer.serving", "trainer.experiment", "callbacks",
)  # fmt: skip
METHODS = {  # public methods that docs/api.md describes; for other classes it describes only the constructor
    "Trainer": ["fit", "online_train", "evaluate", "predict", "compile", "save", "load", "init_from", "stop"],
    "Features": ["fit", "transform", "merge", "drift"],
    "ServedModel": ["predict", "close"],
}
EXAMPLE_LINES = 8
GLOSSARY = "ARCHITECTURE.md"
TERMS = ("sink", "ragged", "set aside", "snapshot", "version", "window", "event time", "raw rows", "eviction", "shard")
_ENTRY = """
{level} {name}

::: {module}.{kind}
    options:
      members: false
      show_root_heading: false
      show_root_toc_entry: false
"""
_API_ENTRY = """
::: {target}
    options:
      members: {members}
      inherited_members: {inherited}
      show_root_heading: false
      show_root_toc_entry: false
      heading_level: 4
"""
# text without glossary links: code, docstring entries, links and pictures, headings, HTML
_PROTECTED = re.compile(
    r"(^```.*?^```|^ *:::.*?(?=^\S|\Z)|`[^`\n]*`|!?\[[^\]]*\]\([^)]*\)|^#.*?$|<[^>]+>)", re.M | re.S
)


def callback_entries() -> str:
    """Return a Markdown entry for each callback, in the order of `callbacks.__all__`."""
    public = [getattr(callbacks, name) for name in callbacks.__all__]
    classes = [value for value in public if isinstance(value, type) and issubclass(value, callbacks.Callback)]
    shown = [value for value in classes if value is not callbacks.Callback]
    return "".join(_entry("##", value.__name__, value) for value in shown)


def metric_entries() -> str:
    """Return entries for this package's metrics, and a list of MindSpore's metrics."""
    named = registry.named_metrics()
    shown = {registry.display_name(name, cls): cls for name, cls in sorted(named.items()) if name != "acc"}
    others = sorted(set(registry.metric_names()) - set(shown) - {"acc"})
    sections = "".join(_entry("###", f"`{name}`", cls) for name, cls in shown.items())
    listed = ", ".join(f"`{name}`" for name in others)
    heading = "### MindSpore's: confusion matrix, precision, recall, F1 {#mindspores}"
    return f"{sections}\n{heading}\n\nThese names mean the metrics of `mindspore.train`: {listed}.\n"


def public_names() -> dict[str, str]:
    """Return each public name and the first package that exports it."""
    exported = {name: package for package in reversed(PACKAGES) for name in importlib.import_module(package).__all__}
    return {name: package for name, package in exported.items() if not name.startswith("__")}


def api_entries() -> str:
    """Return an entry for each public name: signature, arguments, and an example."""
    of_metrics = {cls.__name__ for cls in registry.named_metrics().values()}
    parts, names = [], public_names()
    for package in PACKAGES:
        parts.append(f"\n## {package}\n")
        for name in sorted(name for name, home in names.items() if home == package):
            value = getattr(importlib.import_module(package), name)
            is_callback = (
                name in callbacks.__all__ and isinstance(value, type) and issubclass(value, callbacks.Callback)
            )
            parts.append(f"\n### {name}\n")
            if name in of_metrics or (is_callback and value is not callbacks.Callback):
                page = "metrics.md" if name in of_metrics else f"callbacks-reference.md#{name.lower()}"
                parts.append(f"\nIts arguments are in [its reference]({page}).\n")
            elif isinstance(value, type) or callable(value):
                parts.append(_API_ENTRY.format(
                    target=f"{value.__module__}.{value.__qualname__}",
                    members=METHODS.get(name, "false"), inherited=str(name in METHODS).lower(),
                ))  # fmt: skip
            else:
                parts.append(f"\nA value: `{', '.join(map(str, value))}`.\n")
            page, code = example(name)
            parts.append(f"\nExample ([{page.removesuffix('.md')}]({page})):\n\n```python\n{code}\n```\n")
    return "".join(parts)


def example(name: str) -> tuple[str, str]:
    """Return the page and code of the best example of a name in the documentation.

    Short statements that call something are preferred.

    Raises:
        LookupError: no page uses the name.
    """
    uses = [(len(code.splitlines()) > EXAMPLE_LINES, "(" not in code, page == "examples.md", len(code), page, code)
             for page, code, words in _statements() if name in words]  # fmt: skip
    if not uses:
        raise LookupError(f"no page has an example of {name}: write one in docs/examples.md")
    *_, page, code = min(uses)
    return page, code


@functools.cache
def _statements() -> list[tuple[str, str, frozenset[str]]]:
    """Return the page, source and names of every statement except imports.

    The statements inside a compound statement are included too.
    """
    statements = []
    for path in sorted(DOCS.rglob("*.md")):
        for text in re.findall(r"^```python\n(.*?)^```", path.read_text("utf-8"), re.M | re.S):
            for node in _nodes(text):
                lines = text.splitlines()[node.lineno - 1 : node.end_lineno]
                code = "\n".join(line[node.col_offset :] for line in lines)
                names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
                names |= {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}
                statements.append((path.relative_to(DOCS).as_posix(), code, frozenset(names)))
    return statements


def _nodes(text: str) -> Iterator[ast.stmt]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.stmt) and not isinstance(node, ast.Import | ast.ImportFrom):
            yield node


def keyword_table() -> str:
    """Return a table from keywords and methods of other frameworks to our own."""
    rows = [f"| `{name}` | `{ours}`; taken as it is |" for name, ours in SAME_MEANING.items()]
    rows += [f"| `{name}` | {hint} |" for name, hint in HINTS.items()]
    rows += [f"| `trainer.{name}(...)` | `{hint}` |" for name, hint in VERBS.items()]
    return "\n".join(["", "| you write | here |", "| --- | --- |", *rows, ""])


# The search ranks how-to pages above references and measurements.
BOOSTS = {
    "faq.md": 2, "install.md": 2, "your-own-table.md": 2, "tasks/training.md": 2, "tasks/imbalanced.md": 2,
    "resuming.md": 2, "devices.md": 2, "metrics.md": 0.5, "index.md": 0.5, "index_cn.md": 0.5, "yaml-reference.md": 0.5,
    "other-frameworks.md": 0.5, "callbacks-reference.md": 0.2, "reliability.md": 0.2, "upgrading.md": 0.2,
    "ARCHITECTURE.md": 0.2, "api.md": 0.1, "examples.md": 0.1, "benchmarks.md": 0.1,
}  # fmt: skip
ADDED = {
    "api.md": api_entries,
    "callbacks-reference.md": callback_entries,
    "metrics.md": metric_entries,
    "faq.md": keyword_table,
}


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Add generated entries and glossary links to a page, and set its search weight."""
    path = page.file.src_uri
    page.meta["search"] = {"boost": BOOSTS.get(path, 1)}
    if path == GLOSSARY:
        return re.sub(r"^\| (.+?) \|", _with_anchors, markdown, flags=re.M)
    markdown = with_glossary_links(markdown, "../" * path.count("/") + GLOSSARY) if "_cn" not in path else markdown
    return markdown + ADDED[path]() if path in ADDED else markdown


def with_glossary_links(markdown: str, glossary: str) -> str:
    """Turn the first use of each word of `TERMS` into a link."""
    for term in TERMS:
        parts = _PROTECTED.split(markdown)
        word = re.compile(rf"\b{term}s?\b", re.I if term != "window" else 0)  # do not link "Windows"
        for index in range(0, len(parts), 2):  # odd parts are protected
            if word.search(parts[index]):
                anchor = f"{glossary}#{term.replace(' ', '-')}"
                parts[index] = word.sub(lambda found, at=anchor: f"[{found[0]}]({at})", parts[index], count=1)
                break
        markdown = "".join(parts)
    return markdown


def _entry(level: str, name: str, cls: type) -> str:
    return _ENTRY.format(level=level, name=name, module=cls.__module__, kind=cls.__name__)


def _with_anchors(row: re.Match) -> str:
    """Add link anchors to the first cell of a glossary row."""
    words = [word for word in TERMS if word in row[1].split(", ")]
    return "| " + "".join(f'<a id="{word.replace(" ", "-")}"></a>' for word in words) + f"{row[1]} |"
