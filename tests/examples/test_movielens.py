"""MovieLens-100K: where it may come from, and that whatever it came from gives the same arrays in the same order."""

import functools
import hashlib
import http.server
import threading
import zipfile

import numpy as np
import pytest

from examples import movielens
from examples.movielens import ATOMIC, FEATURES, GENRES, OFFICIAL, SIZES, MovieLens, load, split_by_time
from trainer.errors import ConfigurationError, DataError


@pytest.fixture(scope="module")
def atomic():
    """The real files in RecBole's format: from the cache, or fetched as a user's would be."""
    folder = movielens.find_files()
    if not (folder / "ml-100k.inter").is_file():
        pytest.skip("the cache holds the official files, so RecBole's are not at hand")
    return folder


@pytest.fixture(scope="module")
def official(atomic, tmp_path_factory):
    """The same films, people and ratings written the way GroupLens does (its links to IMDb left out)."""
    folder = tmp_path_factory.mktemp("official") / "ml-100k"
    folder.mkdir()
    lines = {name: (atomic / name).read_text().split("\n")[1:] for name in ATOMIC}
    (folder / "u.data").write_text("\n".join(lines["ml-100k.inter"]))
    (folder / "u.user").write_text("\n".join(lines["ml-100k.user"]).replace("\t", "|"))
    with open(folder / "u.item", "w", encoding="latin-1") as file:
        for number, title, year, genres in (line.split("\t") for line in lines["ml-100k.item"] if line):
            suffix = "" if year == "unkonwn" else f" ({year})"
            flags = "|".join(str(int(genre in genres.split())) for genre in GENRES)
            file.write(f"{number}|{title}{suffix}|01-Jan-1995|||{flags}\n")
    return folder


@pytest.fixture
def _empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(movielens.FOLDER_VARIABLE, raising=False)
    # pip then has nowhere to look, as on a machine without a network
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))


def test_both_formats_give_the_same_arrays(atomic, official):
    for name in ("u.data", "u.user"):  # byte for byte what GroupLens publishes
        assert hashlib.sha256((official / name).read_bytes()).hexdigest() == OFFICIAL[name]
    ours, theirs = movielens.read(atomic), movielens.read(official)
    assert list(ours) == list(theirs)
    for name, column in ours.items():
        assert column.dtype == theirs[name].dtype
        np.testing.assert_array_equal(column, theirs[name], err_msg=name)


def test_ratings_are_complete_and_in_the_order_of_time():
    columns = load()
    assert {len(column) for column in columns.values()} == {100_000}
    assert (np.diff(columns["timestamp"]) >= 0).all()
    assert len(np.unique(columns["user"])) == 943
    assert len(np.unique(columns["item"])) == 1682
    assert columns["label"].mean() == pytest.approx(0.55375)
    np.testing.assert_array_equal(columns["label"], columns["rating"] >= 4)
    for name in FEATURES:
        assert columns[name].min() >= 0
        assert columns[name].shape[1] == SIZES[name] if name == "genres" else columns[name].max() < SIZES[name]


def test_ratings_of_the_same_second_keep_the_order_of_the_file(atomic):
    rows = [line.split("\t") for line in (atomic / "ml-100k.inter").read_text().splitlines()[1:]]
    rows.sort(key=lambda row: int(row[3]))  # Python's sort is stable
    assert len({row[3] for row in rows}) < 50_000
    np.testing.assert_array_equal(load()["item"], [int(row[1]) for row in rows])


def test_the_newest_tenth_is_held_out_and_its_new_ids_share_row_0():
    train, test = MovieLens("train").columns, MovieLens("test").columns
    assert (len(train["label"]), len(test["label"])) == (90_000, 10_000)
    assert train["timestamp"].max() <= test["timestamp"].min()
    assert (test["user"] == 0).mean() == pytest.approx(0.71, abs=0.005)
    assert not (train["user"] == 0).any()
    assert set(test["item"]) - {0} <= set(train["item"])
    raw = MovieLens("test", share_unknown=False).columns
    assert (raw["user"] > 0).all()
    known = test["user"] > 0
    np.testing.assert_array_equal(raw["user"][known], test["user"][known])


def test_an_epoch_is_every_row_once_in_an_order_of_its_own():
    data = MovieLens("train", 700, seed=3)
    first, second = list(data), list(data)
    assert len(first) == len(data) == 129
    assert list(first[0]) == [*FEATURES, "label"]
    assert len(first[-1]["label"]) == 90_000 - 128 * 700
    pairs = [np.concatenate([b["user"] * 2000 + b["item"] for b in epoch]) for epoch in (first, second)]
    assert (pairs[0] != pairs[1]).any()
    np.testing.assert_array_equal(np.sort(pairs[0]), np.sort(pairs[1]))
    again = np.concatenate([batch["item"] for batch in MovieLens("train", 700, seed=3)])
    np.testing.assert_array_equal(again, np.concatenate([batch["item"] for batch in first]))
    assert (again != np.concatenate([batch["item"] for batch in MovieLens("train", 700, seed=4)])).any()


def test_a_restored_position_goes_on_with_the_very_next_batch():
    data = MovieLens("train", 1000, seed=1, unknown_rate=0.2)
    for _ in data:
        pass
    going = iter(data)
    for _ in range(5):
        next(going)
    state = data.state_dict()
    assert state == {"epoch": 1, "step": 5}
    other = MovieLens("train", 1000, seed=1, unknown_rate=0.2)
    other.load_state_dict(state)
    rest, wanted = list(other), list(going)
    assert len(rest) == len(wanted) == 85
    for mine, theirs in zip(rest, wanted, strict=True):
        for name in mine:
            np.testing.assert_array_equal(mine[name], theirs[name])
    assert 0.15 < np.mean(np.concatenate([batch["user"] for batch in rest]) == 0) < 0.25
    assert other.state_dict() == data.state_dict() == {"epoch": 2, "step": 0}


@pytest.mark.usefixtures("_empty_cache")
def test_a_given_folder_is_used_and_a_damaged_file_in_it_is_named(atomic, tmp_path, monkeypatch):
    folder = tmp_path / "mine" / "ml-100k"
    folder.mkdir(parents=True)
    for name in ATOMIC:
        (folder / name).write_bytes((atomic / name).read_bytes())
    monkeypatch.setenv(movielens.FOLDER_VARIABLE, str(tmp_path / "mine"))
    assert movielens.find_files() == folder
    content = (folder / "ml-100k.user").read_bytes()
    (folder / "ml-100k.user").write_bytes(content.replace(b"technician", b"magician", 1))
    with pytest.raises(DataError, match=r"ml-100k\.user is not that of MovieLens-100K: its SHA-256 is"):
        movielens.find_files()
    with pytest.raises(DataError, match=r"has none of the two sets of files; accepted: u\.data, .* or ml-100k\.inter"):
        movielens.find_files(tmp_path)


@pytest.mark.usefixtures("_empty_cache")
def test_when_everything_fails_one_message_names_the_three_ways(monkeypatch):
    monkeypatch.setattr(movielens, "ARCHIVE_URL", "http://127.0.0.1:9/ml-100k.zip")
    with pytest.raises(DataError) as raised:
        load()
    message = str(raised.value)
    assert "1. local folder: none was given" in message
    assert "2. official archive http://127.0.0.1:9/ml-100k.zip: " in message
    assert "Connection refused" in message
    assert "3. copy inside the package recbole==1.2.1, by pip: ERROR: No matching distribution" in message
    assert "set MOVIELENS_FOLDER to that folder" in message
    assert not list(movielens.cache_folder().glob("*"))


@pytest.mark.long
@pytest.mark.server
@pytest.mark.usefixtures("_empty_cache")
def test_the_official_archive_is_fetched_checked_and_cached(official, tmp_path, monkeypatch, caplog):
    site = tmp_path / "site"
    site.mkdir()
    with zipfile.ZipFile(site / "ml-100k.zip", "w") as archive:
        for name in OFFICIAL:
            archive.write(official / name, f"ml-100k/{name}")
    handler = functools.partial(_QuietHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(movielens, "ARCHIVE_URL", f"http://127.0.0.1:{server.server_port}/ml-100k.zip")
        with pytest.raises(DataError, match="the archive is not that of MovieLens-100K"):
            movielens.find_files()
        digest = hashlib.sha256((site / "ml-100k.zip").read_bytes()).hexdigest()
        monkeypatch.setattr(movielens, "ARCHIVE_SHA256", digest)
        item = hashlib.sha256((official / "u.item").read_bytes()).hexdigest()
        monkeypatch.setitem(OFFICIAL, "u.item", item)
        found = movielens.find_files()
        server.shutdown()
    assert found == tmp_path / "cache" / "mindspore-trainer" / "ml-100k"
    assert movielens.find_files() == found  # the server is gone: this is the cache
    (found / "u.item").write_bytes(b"cut off")
    with pytest.raises(DataError, match="could not be found or downloaded"):
        movielens.find_files()
    assert "fetching MovieLens-100K again" in caplog.text


class _QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split": "tset"}, "split takes 'train' or 'test'; received 'tset'; did you mean 'test'?"),
        ({"batch_size": 0}, "batch_size takes a whole number >= 1; received 0"),
        ({"unknown_rate": 1.0}, "unknown_rate takes a number from 0 to below 1; received 1.0"),
        ({"hold_out": 0}, "hold_out takes a number between 0 and 1; received 0"),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments, message):
    with pytest.raises(ConfigurationError) as raised:
        MovieLens(**arguments)
    assert message in str(raised.value)


def test_splitting_leaves_the_shared_arrays_alone():
    columns = load()
    split_by_time(columns, 0.5)
    np.testing.assert_array_equal(columns["user"], load()["user"])
    assert not columns["user"].flags.writeable
