"""Generate docs/yaml-reference.md from the experiment schema (`trainer schema`).

python scripts/yaml_reference.py
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parent.parent / "docs" / "yaml-reference.md"
_HEAD = """# YAML reference

Made by `python scripts/yaml_reference.py` from the schema that `trainer schema` prints. An object is
`{class_path: dotted.path, init_args: {...}}`, or the path alone; `${env:NAME,default}` is a variable of the
environment.
"""


def reference(schema: Mapping[str, Any]) -> str:
    """Return the reference page for a schema."""
    parts = [_HEAD]
    for section, body in schema["properties"].items():
        parts.append(f"## {section}\n\n{_text(body.get('description', ''))}\n")
        rows = list(_rows(body.get("properties", {})))
        if rows:
            parts.append("| key | values | meaning |\n| --- | --- | --- |\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def _rows(properties: Mapping[str, Any]) -> Iterator[str]:
    for name, body in properties.items():
        yield f"| `{name}` | {_kinds(body)} | {_text(body.get('description', ''))} |"


def _kinds(body: Mapping[str, Any]) -> str:
    """Return the kinds of values that a key accepts, as text."""
    kinds: list[str] = []
    for part in (body, *body.get("anyOf", ())):
        if "enum" in part:
            kinds += [f"`{value}`" for value in part["enum"]]
        elif "$ref" in part:
            kinds.append("object")
        elif "pattern" not in part:
            types = part.get("type", ())
            kinds += [types] if isinstance(types, str) else list(types)
    return ", ".join(dict.fromkeys("mapping" if kind == "object" and "properties" in body else kind for kind in kinds))


def _text(text: str) -> str:
    return re.sub(r"\s+", " ", text.replace("``", "`").replace("|", "\\|")).strip()


def main() -> int:
    """Write the page; return the exit code."""
    sys.path.insert(0, str(PAGE.parent.parent))
    from trainer.experiment.configuration.json_schema import experiment_schema

    PAGE.write_text(reference(experiment_schema()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
