"""Ways to damage files, folders and JSON, chosen by a seeded generator."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

Make = Callable[[random.Random, Path], None]


class WrongError(AssertionError):
    """What a case found."""


def damage(choose: random.Random, content: bytes) -> bytes:
    """Return `content` changed in one to three places."""
    for _ in range(choose.choice((1, 1, 1, 2, 3))):
        kind = choose.randrange(6)
        place = choose.randrange(len(content) + 1)
        if kind == 0 and content:
            place = place % len(content)
            content = content[:place] + bytes([content[place] ^ (1 << choose.randrange(8))]) + content[place + 1 :]
        elif kind == 1:
            content = content[:place]
        elif kind == 2:
            content = content[:place] + choose.randbytes(choose.randrange(1, 9)) + content[place:]
        elif kind == 3:
            content = content[:place] + content[place + choose.randrange(1, 20) :]
        elif kind == 4:
            content = content[:place] + content[choose.randrange(len(content) + 1) :][:30] + content[place:]
        else:
            words = (b"-1", b"1e999", b"null", b"NaN", b"true", b'"', b"{", b"[", b"../../x", b"\0", b"9" * 30, b"")
            content = content[:place] + choose.choice(words) + content[place + choose.randrange(4) :]
    return content


def damage_folder(choose: random.Random, folder: Path) -> None:
    """Damage one file below `folder`, or what there is of files."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    victim = choose.choice(files)
    kind = choose.randrange(8)
    if kind < 5:
        victim.write_bytes(damage(choose, victim.read_bytes()))
    elif kind == 5:
        victim.unlink()
        if choose.random() < 0.3:
            victim.mkdir()
    elif kind == 6:
        victim.write_bytes(choose.choice(files).read_bytes())
    else:
        victim.write_bytes(b"")


def forge(choose: random.Random, value: Any) -> Any:
    """Return plain JSON with one value in it replaced, dropped or renamed."""
    here, key = value, None
    while isinstance(here, dict | list) and here:
        parent, key = here, choose.choice(sorted(here) if isinstance(here, dict) else range(len(here)))
        here = parent[key]
        if choose.random() < 0.3:
            break
    if key is None:
        return value
    action = choose.randrange(4)
    if action == 0 and isinstance(parent, dict):
        del parent[key]
    elif action == 1 and isinstance(parent, dict):
        parent[choose.choice(("x", "", "$map", "../x"))] = parent.pop(key)
    else:
        parent[key] = choose.choice((None, True, -1, 2**70, 1.5, "x", "", [], {}, [1, "a"], {"$tuple": [1]}, "nan", 0))
    return value


def forge_folder(choose: random.Random, folder: Path) -> None:
    """Change the content of one JSON file below `folder`, and give it and its manifest the right checksums."""
    from trainer.checkpoint import manifest

    path = choose.choice(sorted(folder.rglob("*.json")))
    document = json.loads(path.read_text())
    sealed = [key for key in document if key != "crc32"] if "crc32" in document else []
    if len(sealed) == 1:  # a document with a checksum of itself
        path.write_bytes(manifest.seal(sealed[0], forge(choose, document[sealed[0]])))
        return
    path.write_text(json.dumps(forge(choose, document)))
    place, content = path.with_name(manifest.MANIFEST), path.read_bytes()
    if place.is_file():
        document = json.loads(place.read_text())
        (kind,) = (key for key in document if key != "crc32")
        sums = {"size": len(content), "crc32": f"{zlib.crc32(content):08x}"}
        document[kind]["files"][path.name] = {**document[kind]["files"][path.name], **sums}
        place.write_bytes(manifest.seal(kind, document[kind]))
