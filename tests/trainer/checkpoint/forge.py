"""Snapshots whose checksums are right and whose content is not: made by changing one value and sealing them again."""

import json
import random
import zlib
from pathlib import Path

import numpy as np

from trainer.checkpoint import tensor_file

NONSENSE = (None, True, -1, 10**30, 0.5, "x", "../../etc", [], [1], {}, {"a": 1}, {"$float": "nan"}, {"$tuple": [1]})


def places(tree, path=()):
    """Yield the path of every value in plain JSON; of long lists, the first two."""
    yield path
    items = tree.items() if isinstance(tree, dict) else enumerate(tree[:2]) if isinstance(tree, list) else ()
    for key, value in items:
        yield from places(value, (*path, key))


def change(tree, path, value):
    """Set or, when `value` is `DROP`, remove the value at a path."""
    for key in path[:-1]:
        tree = tree[key]
    if value is DROP:
        del tree[path[-1]]
    else:
        tree[path[-1]] = value


DROP = object()


def forged_states(folder: Path, rng: random.Random, most: int):
    """Yield (what was done, bytes of state.json) of at most `most` changes to a snapshot's state."""
    text = (folder / "state.json").read_text()
    cases = [(path, value) for path in places(json.loads(text)) if path for value in (*NONSENSE, DROP)]
    rng.shuffle(cases)
    for path, value in cases[:most]:
        tree = json.loads(text)
        change(tree, path, value)
        shown = "dropped" if value is DROP else repr(value)
        yield f"state.json {'.'.join(map(str, path))} {shown}", "state.json", json.dumps(tree).encode()


def forged_tensors(folder: Path, rng: random.Random, most: int):
    """Yield the same for the tensors of all groups."""
    changes = (
        lambda array: array.astype(np.float64),
        lambda array: array.astype(np.complex64),
        lambda array: array.reshape(-1)[:-1],
        lambda array: array.reshape(1, *array.shape),
        lambda array: np.full_like(array, 2**31 - 1 if array.dtype.kind in "iu" else 1),
        lambda array: np.full_like(array, -1 if array.dtype.kind == "i" else 0),
        lambda array: np.zeros(0, array.dtype),
        None,
    )
    files = sorted(path.name for path in folder.glob("*.safetensors"))
    groups = {file: tensor_file.parse((folder / file).read_bytes(), file) for file in files}
    cases = [(file, name, place) for file in files for name in groups[file] for place in range(len(changes))]
    rng.shuffle(cases)
    for file, name, place in cases[:most]:
        tensors = dict(groups[file])
        array = tensors.pop(name)
        if changes[place] is not None:
            tensors[name] = changes[place](array)
        yield f"{file} {name} change {place}", file, b"".join(map(bytes, tensor_file.blocks(tensors)))


def put(folder: Path, file: str, content: bytes) -> None:
    """Replace a file of a snapshot and make the manifest agree with it."""
    (folder / file).write_bytes(content)
    manifest = folder / "manifest.json"
    body = json.loads(manifest.read_bytes())["snapshot"]
    body["files"][file] = {"size": len(content), "crc32": f"{zlib.crc32(content):08x}"}
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    manifest.write_text(json.dumps({"crc32": f"{zlib.crc32(canonical):08x}", "snapshot": body}))
