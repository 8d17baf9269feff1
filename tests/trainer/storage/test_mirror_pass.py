"""What a mirror shows at every moment is whole: the S3 server is killed in each phase, and goes on afterwards."""

import json
import shutil
import zlib

import numpy as np
import pytest

from trainer import checkpoint
from trainer.errors import CheckpointDamagedError, CheckpointNotFoundError, ConfigurationError
from trainer.storage.fetch import fetch_run, fetch_snapshot
from trainer.storage.location import Location
from trainer.storage.mirror import claim_mirror
from trainer.storage.mirror_pass import MirrorPass, part_names_in

pytestmark = pytest.mark.server


@pytest.fixture
def run_dir(tmp_path):
    """A run folder with two snapshots, the second one the last."""
    folder = tmp_path / "run"
    for step in (1, 2):
        snapshot(folder, step)
    (folder / "metrics.json").write_text("{}")
    return folder


def snapshot(run_dir, step, base=None):
    root = run_dir / "checkpoints"
    arrays = {"w": np.arange(40_000, dtype=np.float32) * step}
    checkpoint.write(root, step, {"model": arrays}, {"step": step}, base=base)
    checkpoint.set_pointer(root, "last", checkpoint.step_name(step))


def shown(s3, url):
    """Return the parts that a mirror shows, each checked: no file is missing or cut, no pointer dangles."""
    prefix = url.removeprefix("s3://") + "/"
    objects = {name.removeprefix(prefix): content for name, content in s3.objects().items() if name.startswith(prefix)}
    parts = {name.rpartition("/")[0] for name in objects if name.endswith("/manifest.json")}
    for part in parts:
        (body,) = (value for key, value in json.loads(objects[f"{part}/manifest.json"]).items() if key != "crc32")
        for name, entry in body["files"].items():
            content = objects[f"{part}/{name}"]
            assert (len(content), f"{zlib.crc32(content):08x}") == (entry["size"], entry["crc32"])
    for pointer in ("checkpoints/last", "checkpoints/best"):
        assert all(f"checkpoints/{name}" in parts for name in part_names_in(objects.get(pointer, b"")))
    return {part.rpartition("/")[2] for part in parts}


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "ends", "when", "whole"),
    [
        ("PUT", "step_00000002/model.safetensors", "before", {"step_00000001"}),
        ("PUT", "step_00000002/model.safetensors", "middle", {"step_00000001"}),
        ("PUT", "step_00000002/manifest.json", "before", {"step_00000001"}),
        ("PUT", "step_00000002/manifest.json", "after", {"step_00000001", "step_00000002"}),
        ("GET", "list-type=2", "before", {"step_00000001"}),
    ],
    ids=["before-upload", "mid-upload", "before-marker", "marker-unanswered", "while-listing"],
)
def test_a_server_killed_in_the_middle_shows_nothing_half(s3, url, run_dir, method, ends, when, whole):
    shutil.move(run_dir / "checkpoints" / "step_00000002", run_dir.parent / "aside")
    checkpoint.set_pointer(run_dir / "checkpoints", "last", "step_00000001")
    target = Location(url)
    assert MirrorPass({"": run_dir}, target).run()
    shutil.move(run_dir.parent / "aside", run_dir / "checkpoints" / "step_00000002")
    checkpoint.set_pointer(run_dir / "checkpoints", "last", "step_00000002")
    mirror = MirrorPass({"": run_dir}, target)
    s3.die_at(method, ends, when)
    with pytest.raises(OSError, match="NETWORK_CONNECTION"):
        mirror.run()
    assert s3.died
    assert shown(s3, url) == whole
    s3.start()
    assert shown(s3, url) == whole
    assert mirror.run()
    assert shown(s3, url) == {"step_00000001", "step_00000002"}
    assert Location(url).read("checkpoints/last") == b"step_00000002\n"
    assert mirror.uploaded == (1 if when != "after" else 0)


@pytest.mark.long
@pytest.mark.parametrize(("when", "left"), [("before", {"step_00000002"}), ("after", set())])
def test_what_is_pruned_here_is_pruned_there_and_a_kill_shows_nothing_half(s3, url, run_dir, when, left):
    mirror = MirrorPass({"": run_dir}, Location(url))
    assert mirror.run()
    snapshot(run_dir, 3)
    assert checkpoint.prune(run_dir / "checkpoints", ["step_00000003"]) == ["step_00000002", "step_00000001"]
    s3.die_at("DELETE", "step_00000002/manifest.json", when)
    with pytest.raises(OSError, match="NETWORK_CONNECTION"):
        mirror.run()
    assert shown(s3, url) == {"step_00000001", "step_00000003"} | left
    s3.start()
    assert mirror.run()
    assert shown(s3, url) == {"step_00000003"}
    prefix = url.removeprefix("s3://")
    assert not [name for name in s3.objects() if name.startswith(f"{prefix}/checkpoints/step_00000002")]


def test_a_lost_local_folder_removes_nothing(s3, url, run_dir):
    mirror = MirrorPass({"": run_dir}, Location(url))
    assert mirror.run()
    shutil.rmtree(run_dir / "checkpoints")
    mirror.run()
    assert shown(s3, url) == {"step_00000001", "step_00000002"}


def test_a_pass_without_news_asks_nothing(s3, url, run_dir):
    mirror = MirrorPass({"": run_dir}, Location(url))
    assert mirror.run()
    s3.kill()
    assert mirror.run()  # nothing to send, so nobody to miss


def test_changes_come_with_what_they_build_on(s3, url, run_dir, tmp_path):
    snapshot(run_dir, 3, base="step_00000002")
    assert MirrorPass({"": run_dir}, Location(url)).run()
    fetched = fetch_snapshot(Location(url), tmp_path / "fetched")
    assert sorted(path.name for path in fetched.parent.iterdir()) == ["step_00000002", "step_00000003"]
    np.testing.assert_array_equal(checkpoint.read(fetched).tensors("model")["w"][1], np.float32(3))


def test_a_damaged_object_is_skipped_or_named(s3, url, run_dir, tmp_path, caplog):
    target = Location(url)
    assert MirrorPass({"": run_dir}, target).run()
    target.write("checkpoints/step_00000002/model.safetensors", b"something else")
    assert fetch_snapshot(target, tmp_path / "fetched").name == "step_00000001"
    assert "step_00000002/model.safetensors does not match its checksum" in caplog.text
    with pytest.raises(CheckpointDamagedError, match=r"step_00000002/model\.safetensors"):
        fetch_snapshot(Location(f"{url}/checkpoints/last"), tmp_path / "fetched")
    assert sorted(path.name for path in (tmp_path / "fetched").iterdir()) == ["step_00000001"]
    with pytest.raises(CheckpointNotFoundError, match="there is no snapshot in"):
        fetch_snapshot(Location(f"{url}/nothing"), tmp_path / "fetched")


def test_a_mirror_is_of_one_run(s3, url, run_dir, tmp_path):
    target = Location(url)
    claim_mirror(target, run_dir)
    assert MirrorPass({"": run_dir}, target).run()
    other = tmp_path / "other"
    snapshot(other, 7)
    with pytest.raises(ConfigurationError, match="is the mirror of another run"):
        claim_mirror(target, other)
    with pytest.raises(ConfigurationError, match="is not empty and is not a copy"):
        fetch_run(url, other)
    fetched = fetch_run(url, tmp_path / "fetched")
    assert claim_mirror(target, fetched) == json.loads((run_dir / "mirror.json").read_text()) | {
        "spared": ["checkpoints/step_00000001"]
    }
    # what was left behind was not pruned: it stays in the mirror
    snapshot(fetched, 3)
    assert MirrorPass({"": fetched}, target, ["checkpoints/step_00000001"]).run()
    assert shown(s3, url) == {"step_00000001", "step_00000002", "step_00000003"}
    with pytest.raises(ConfigurationError, match="holds no mirrored run"):
        fetch_run("s3://bucket/nothing-here", tmp_path / "nothing")


def test_a_long_record_comes_along(s3, url, run_dir, tmp_path):
    claim_mirror(Location(url), run_dir)
    (run_dir / "record.jsonl").write_bytes(b"\n" * (17 << 20))
    assert MirrorPass({"": run_dir}, Location(url)).run()
    fetched = fetch_run(url, tmp_path / "fetched")
    assert (fetched / "record.jsonl").stat().st_size == 17 << 20


def test_a_run_goes_on_from_an_older_snapshot_where_the_last_one_is_damaged(s3, url, run_dir, tmp_path, caplog):
    target = Location(url)
    claim_mirror(target, run_dir)
    checkpoint.set_pointer(run_dir / "checkpoints", "best", "step_00000001")
    assert MirrorPass({"": run_dir}, target).run()
    target.write("checkpoints/step_00000002/model.safetensors", b"something else")
    fetched = fetch_run(url, tmp_path / "fetched") / "checkpoints"
    assert sorted(path.name for path in fetched.iterdir()) == ["best", "step_00000001"]
    assert "checkpoints/last is skipped" in caplog.text


def test_a_large_record_is_sent_when_it_has_grown_by_a_tenth_and_at_the_end(s3, url, run_dir):
    target, record = Location(url), run_dir / "record.jsonl"
    mirror = MirrorPass({"": run_dir}, target)
    sent = []
    for size, final in [(2000, False), (2100, False), (2300, False), (2310, True)]:
        record.write_bytes(b"\n" * (size << 10))
        assert mirror.run(final=final)
        sent.append(target.entry("record.jsonl").size >> 10)
    assert sent == [2000, 2000, 2300, 2310]
