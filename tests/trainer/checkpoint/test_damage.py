"""Property: whatever happens to the bytes of a snapshot, reading gives the documented errors and finding falls back."""

import contextlib
import json
import os
import shutil
import tempfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from trainer import checkpoint
from trainer.checkpoint import manifest, strict_json
from trainer.checkpoint.snapshot import Manifest
from trainer.errors import CheckpointDamagedError, CheckpointError

CASES = int(os.environ.get("TRAINER_TEST_CASES", "200"))
TENSORS = {
    "model": {"w": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.zeros(0)},
    "optimizer": {"m": np.ones(5)},
}
STATE = {"progress": {"global_step": 2}, "rng": (1, b"ab", np.arange(3)), "best": float("inf"), "offsets": {0: 1}}
FILES = ("manifest.json", "state.json", "versions.json", "config.yaml", "model.safetensors", "optimizer.safetensors")

# Small JSON trees built of what the reader looks for, so that garbage gets past the first check.
# fmt: off
_words = st.sampled_from([
    "w", "m", "dtype", "shape", "data_offsets", "F32", "BF16", "F64", "<f4", "|O8", "|V4", "__metadata__",
    "$float", "$array", "$map", "$tuple", "$bytes", "nan",
    "snapshot", "files", "size", "crc32", "base", "name", "id", "step_00000001", "../x",
])
# fmt: on
_scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 100), st.just(2**70), st.just(1e300), _words, st.text(max_size=3)
)
_trees = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_words | st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)
STRICT = tuple(text.encode() for text in ("NaN", '{"a": Infinity}', '{"a": 1, "a": 2}', "1e999", "\ufeff{}"))
_texts = st.one_of(
    _trees.map(json.dumps).map(str.encode),
    st.sampled_from([b"", b"{", b"9" * 5000, *STRICT]),
)


def _header(text: bytes) -> bytes:
    return len(text).to_bytes(8, "little") + text + bytes(16)


DEEP = b"[" * 100_000
_contents = st.one_of(_texts, _texts.map(_header), st.binary(max_size=40))
_steps = st.one_of(
    st.tuples(st.just("flip"), st.integers(0, 10_000), st.integers(1, 255)),
    st.tuples(st.just("cut"), st.integers(0, 10_000), st.just(0)),
    st.tuples(st.just("extend"), st.binary(min_size=1, max_size=9), st.just(0)),
    st.tuples(st.just("insert"), st.integers(0, 10_000), st.binary(min_size=1, max_size=9)),
    st.tuples(st.just("replace"), _contents, st.just(0)),
    st.tuples(st.just("delete"), st.just(0), st.just(0)),
    st.tuples(st.just("folder"), st.just(0), st.just(0)),
    st.tuples(st.just("pipe"), st.just(0), st.just(0)),
    st.tuples(st.just("loop"), st.just(0), st.just(0)),
    st.tuples(st.just("entry"), st.sampled_from(["w", "m", "files", "base", "step", "rng", "offsets"]), _trees),
)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    root = tmp_path_factory.mktemp("pristine")
    for step in (1, 2):
        checkpoint.write(root, step, TENSORS, STATE, config="a: 1\n")
    return root


def damage(path: Path, kind: str, what, detail) -> None:
    """Change one file in one way."""
    if kind in ("delete", "folder", "pipe", "loop"):
        path.unlink()
        if kind == "folder":
            path.mkdir()
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind == "loop":
            path.symlink_to(path.name)
        return
    content = path.read_bytes()
    if kind == "flip" and content:
        place = what % len(content)
        content = content[:place] + bytes([content[place] ^ detail]) + content[place + 1 :]
    elif kind == "cut":
        content = content[: what % (len(content) + 1)]
    elif kind == "extend":
        content += what
    elif kind == "insert":
        place = what % (len(content) + 1)
        content = content[:place] + detail + content[place:]
    elif kind == "replace":
        content = what
    elif kind == "entry":
        content = _with_entry(path, content, what, detail)
    path.write_bytes(content)


def _with_entry(path: Path, content: bytes, key: str, value) -> bytes:
    """Set one key of the JSON in a file, as if a faulty writer had done so."""
    with contextlib.suppress(ValueError, TypeError, LookupError, RecursionError):
        if path.suffix == ".safetensors":
            size = int.from_bytes(content[:8], "little")
            header = json.loads(content[8 : 8 + size])
            text = json.dumps({**header, key: value}).encode()
            return len(text).to_bytes(8, "little") + text + content[8 + size :]
        document = json.loads(content)
        (document["snapshot"] if path.name == "manifest.json" else document)[key] = value
        return json.dumps(document).encode()
    return content


def seal(path: Path) -> None:
    """Make the manifest agree with the damaged files, so that the checksums do not protect what reads them."""
    manifest = path / "manifest.json"
    if not manifest.is_file():
        return
    try:
        document = json.loads(manifest.read_bytes())
        for name, entry in document["snapshot"]["files"].items():
            if (path / name).is_file():
                content = (path / name).read_bytes()
                entry.update(size=len(content), crc32=f"{zlib.crc32(content):08x}")
        body = json.dumps(document["snapshot"], sort_keys=True, separators=(",", ":")).encode()
        document["crc32"] = f"{zlib.crc32(body):08x}"
    except (ValueError, TypeError, KeyError, AttributeError, OSError, RecursionError):
        return
    manifest.write_text(json.dumps(document))


def use(snapshot: checkpoint.Snapshot) -> None:
    """Touch everything a caller may."""
    for group in snapshot.groups:
        for array in snapshot.tensors(group).values():
            assert array.dtype.kind != "O"
            array.tobytes()
    assert isinstance(snapshot.state, dict)
    assert isinstance(snapshot.versions, dict)
    snapshot.chain()


@pytest.mark.long
@example([("state.json", ("replace", DEEP, 0))], True)
@example([("model.safetensors", ("replace", _header(DEEP), 0))], True)
@given(st.lists(st.tuples(st.sampled_from(FILES), _steps), min_size=1, max_size=3), st.booleans())
@settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck))
def test_damaged_bytes_give_only_documented_errors(pristine, damages, sealed):
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        root = Path(folder) / "run"
        shutil.copytree(pristine, root)
        path = root / "step_00000002"
        original = {name: (path / name).read_bytes() for name in FILES}
        for name, (kind, what, detail) in damages:
            if (path / name).is_file() and not (path / name).is_symlink():
                damage(path / name, kind, what, detail)
        if sealed:
            seal(path)
        snapshot = None
        with contextlib.suppress(CheckpointError):
            snapshot = checkpoint.read(path)
        if snapshot is not None:
            use(snapshot)
        if not sealed and any(content != _bytes(path / name) for name, content in original.items()):
            # Nothing but white space and key order of the manifest may change unnoticed.
            assert snapshot is None or _only_layout(path, original)
        found = checkpoint.find(root)
        assert found.step == 1 or snapshot is not None
        if snapshot is None:
            np.testing.assert_array_equal(found.tensors("model")["w"], TENSORS["model"]["w"])
        checkpoint.prune(root, [])
        assert checkpoint.find(root).path == found.path


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _only_layout(path: Path, original: dict[str, bytes]) -> bool:
    same = all(_bytes(path / name) == content for name, content in original.items() if name != "manifest.json")
    return same and json.loads((path / "manifest.json").read_bytes()) == json.loads(original["manifest.json"])


@example(DEEP)
@given(st.binary(max_size=200) | _contents)
@settings(max_examples=CASES, deadline=None)
def test_garbage_manifest_is_damage(content):
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "manifest.json").write_bytes(content)
        with pytest.raises(CheckpointDamagedError):
            Manifest.load(Path(folder))


_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary(max_size=9)
    | st.sampled_from(["$float", "$$"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.sampled_from(["$float", "$map", "$"]), inner, max_size=3)
        | st.dictionaries(st.integers() | st.tuples(st.integers(), st.text(max_size=2)), inner, max_size=3)
    ),
)


@given(_values)
@settings(max_examples=CASES, deadline=None)
def test_state_round_trips_exactly(value):
    assert repr(strict_json.loads(strict_json.dumps(value))) == repr(value)


@example(DEEP)
@given(_texts)
@settings(max_examples=CASES, deadline=None)
def test_any_text_is_decoded_or_refused(text):
    try:
        value = strict_json.loads(text)
    except ValueError:
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            return
        # of what Python's own parser takes it refuses unknown tags, and what JSON does not define
        assert b'"$' in text or text in STRICT, text
        return
    assert text not in STRICT
    if b'"$' not in text:
        assert repr(value) == repr(json.loads(text))
    assert repr(strict_json.loads(strict_json.dumps(value))) == repr(value)


@pytest.mark.parametrize("in_memory", [True, False])
def test_what_was_read_stays_when_its_files_are_overwritten_and_cut(tmp_path, monkeypatch, in_memory):
    if not in_memory:
        monkeypatch.setattr(manifest, "MAX_IN_MEMORY", 0)
    weights = np.random.default_rng(0).random((50_000, 20))  # of several blocks
    path = checkpoint.write(tmp_path, 1, {"model": {"w": weights}}, STATE)
    snapshot = checkpoint.read(path)
    file = path / "model.safetensors"
    with open(file, "r+b") as content:
        content.seek(-800, os.SEEK_END)
        content.write(bytes(800))
    np.testing.assert_array_equal(snapshot.tensors("model")["w"], weights)
    os.truncate(file, 0)  # of a mapped file this would end the process at the next look
    np.testing.assert_array_equal(snapshot.tensors("model")["w"], weights)
    assert not snapshot.tensors("model")["w"].flags.writeable
    with pytest.raises(CheckpointDamagedError, match=r"model\.safetensors has 0 bytes"):
        checkpoint.read(path)
