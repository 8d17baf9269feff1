"""MovieLens-100K: download and check the data, and read it as batches.

The data set has 100,000 ratings (1 to 5) that 943 people gave to 1,682 films between September 1997 and April 1998
(F. M. Harper and J. A. Konstan, "The MovieLens Datasets: History and Context", ACM TiiS 5(4), 2015). Its licence
forbids redistribution, so this module downloads it to the user's cache folder.

    from examples.movielens import MovieLens, load
    columns = load()                                       # every rating, oldest first
    for batch in MovieLens("train", batch_size=512): ...   # dict of NumPy arrays
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from trainer.errors import ConfigurationError, DataError, did_you_mean

ARCHIVE_URL = "https://files.grouplens.org/datasets/movielens/ml-100k.zip"
ARCHIVE_SHA256 = "50d2a982c66986937beb9ffb3aa76efe955bf3d5c6b761f4e3a7cd717c6a3229"
WHEEL = "recbole==1.2.1"
WHEEL_SHA256 = "9c9948202011f37eb0a7c6768129313f00d6403ad221ec940d5e2d5d5f33a407"
FOLDER_VARIABLE = "MOVIELENS_FOLDER"

# The same content in two formats: the original files of GroupLens, and RecBole's "atomic" files. File -> SHA-256.
OFFICIAL = {
    "u.data": "06416e597f82b7342361e41163890c81036900f418ad91315590814211dca490",
    "u.user": "f120e114da2e8cf314fd28f99417c94ae9ddf1cb6db8ce0e4b5995d40e90e62c",
    "u.item": "553841ebc7de3a0fd0d6b62a204ea30c1e651aacfb2814c7a6584ac52f2c5701",
}
ATOMIC = {
    "ml-100k.inter": "4edb74e2a81178c2ba9ff381495f754f996c4aea351b1272ca36b43da0935eff",
    "ml-100k.user": "4f670007d9cfbeb9807e757209af1555b9bcc186bde25e767f67cb67c6dd5972",
    "ml-100k.item": "51d7cdf777ce5c0f5b32c1d947a4a81fe07d75e78abbe761e0cd4d0756064532",
}
FORMATS = (OFFICIAL, ATOMIC)

# fmt: off
GENRES = (
    "unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama",
    "Fantasy", "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western",
)
OCCUPATIONS = (
    "administrator", "artist", "doctor", "educator", "engineer", "entertainment", "executive", "healthcare",
    "homemaker", "lawyer", "librarian", "marketing", "none", "other", "programmer", "retired", "salesman",
    "scientist", "student", "technician", "writer",
)
# fmt: on
GENDERS = ("F", "M")
AGE_EDGES = (18, 25, 35, 45, 50, 56)
YEAR_EDGES = (1, 1950, 1960, 1970, 1980, 1985, 1990, 1993, 1994, 1995, 1996, 1997, 1998)

# Table size for each column. Row 0 of `user` and `item` stands for all ids unseen in training.
SIZES = {
    "user": 944,
    "item": 1683,
    "age": len(AGE_EDGES) + 1,
    "gender": len(GENDERS),
    "occupation": len(OCCUPATIONS),
    "genres": len(GENRES),
    "year": len(YEAR_EDGES) + 1,
}
FEATURES = tuple(SIZES)
LABEL = "label"
SPLITS = ("train", "test")

_log = logging.getLogger(__name__)


class MovieLens:
    """Batches of one part of MovieLens-100K, which is split by time.

    Iterating yields dicts of arrays with `batch_size` rows (the last batch may be shorter). They have the columns of
    `FEATURES` and, last, `label` (float32, 1 for a rating of 4 or 5). Seed and epoch determine the order. The attribute
    `columns` holds the whole part, oldest rating first, with the additional columns `timestamp` (int64, seconds since
    1970) and `rating` (float32).

    Args:
        split: "train", the oldest ratings, or "test", the newest.
        batch_size: number of rows in a batch.
        shuffle: whether to shuffle every epoch; None shuffles only "train".
        folder: folder of the files. None: $MOVIELENS_FOLDER, the cache, or a download (see `find_files`).
        seed: seed of the order and of `unknown_rate`.
        hold_out: share of the ratings, the newest ones, that form "test".
        share_unknown: whether all users and items missing from "train" get the id 0, as a dense table requires.
            Otherwise they keep their ids.
        unknown_rate: share of rows whose user gets the id 0, drawn again in each epoch. It teaches a model to predict
            for unknown users; use it only for training.

    Raises:
        ConfigurationError: an invalid argument.
        DataError: the data cannot be found or downloaded, or is not MovieLens-100K.
    """

    def __init__(
        self,
        split: str = "train",
        batch_size: int = 1024,
        shuffle: bool | None = None,
        folder: str | os.PathLike[str] | None = None,
        *,
        seed: int = 0,
        hold_out: float = 0.1,
        share_unknown: bool = True,
        unknown_rate: float = 0.0,
    ) -> None:
        if split not in SPLITS:
            raise ConfigurationError(f"split takes 'train' or 'test'; received {split!r}{did_you_mean(split, SPLITS)}")
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise ConfigurationError(f"batch_size takes a whole number >= 1; received {batch_size!r}")
        if not 0 <= unknown_rate < 1:
            raise ConfigurationError(f"unknown_rate takes a number from 0 to below 1; received {unknown_rate!r}")
        self.batch_size = batch_size
        self.shuffle = split == "train" if shuffle is None else shuffle
        self.seed = seed
        self.unknown_rate = unknown_rate
        self.columns = dict(zip(SPLITS, split_by_time(load(folder), hold_out, share_unknown), strict=True))[split]
        self._epoch = self._step = 0
        self._resumes_at: int | None = None

    @property
    def num_rows(self) -> int:
        """Number of ratings in this part."""
        return len(self.columns[LABEL])

    def __len__(self) -> int:
        return -(-self.num_rows // self.batch_size)

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        """Yield the batches of the current epoch.

        Start at its first batch or, after `load_state_dict`, at the restored position.
        """
        self._step, self._resumes_at = self._resumes_at or 0, None
        rng = np.random.default_rng([self.seed, self._epoch])
        rows = rng.permutation(self.num_rows) if self.shuffle else np.arange(self.num_rows)
        user = self.columns["user"]
        if self.unknown_rate:
            user = np.where(rng.random(self.num_rows) < self.unknown_rate, np.int32(0), user)
        source = {name: self.columns[name] for name in (*FEATURES, LABEL)} | {"user": user}
        for step in range(self._step, len(self)):
            chosen = rows[step * self.batch_size : (step + 1) * self.batch_size]
            self._step = step + 1
            yield {name: column[chosen] for name, column in source.items()}
        self._epoch, self._step = self._epoch + 1, 0

    def state_dict(self) -> dict[str, int]:
        """Return the next batch's position: number of finished epochs, batch in the epoch."""
        whole = self._step >= len(self)
        return {"epoch": self._epoch + whole, "step": 0 if whole else self._step}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Start the next iteration at a position from `state_dict`."""
        self._epoch, self._step = int(state["epoch"]), int(state["step"])
        self._resumes_at = self._step

    def set_epoch(self, epoch: int) -> None:
        """Start the next iteration at the beginning of an epoch, counted from 0."""
        self.load_state_dict({"epoch": epoch, "step": 0})


def load(folder: str | os.PathLike[str] | None = None) -> dict[str, np.ndarray]:
    """Return every rating with its features, oldest first; ties keep the file's order.

    Args:
        folder: folder of the files. None: $MOVIELENS_FOLDER, the cache, or a download (see `find_files`).

    Returns:
        Read-only arrays of 100,000 rows: user, item, age, gender, occupation, year (int32, indices below `SIZES`),
        genres (float32 [N, 19], 0 or 1), label (float32), rating (float32), timestamp (int64, seconds).

    Raises:
        DataError: the data cannot be found or downloaded, or is not MovieLens-100K.
    """
    return dict(read(find_files(folder)))


def split_by_time(
    columns: Mapping[str, np.ndarray], hold_out: float = 0.1, share_unknown: bool = True
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Split rows into the older part and the newest share `hold_out`.

    See `MovieLens` for `share_unknown`.
    """
    if not 0 < hold_out < 1:
        raise ConfigurationError(f"hold_out takes a number between 0 and 1; received {hold_out!r}")
    rows = len(columns[LABEL])
    cut = rows - round(rows * hold_out)
    train = {name: column[:cut] for name, column in columns.items()}
    test = {name: column[cut:] for name, column in columns.items()}
    if share_unknown:
        for name in ("user", "item"):
            known = np.zeros(SIZES[name], dtype=bool)
            known[train[name]] = True
            test[name] = np.where(known[test[name]], test[name], np.int32(0))
    return train, test


# ------------------------------------------------------------------------------------------------ getting the files


def find_files(folder: str | os.PathLike[str] | None = None) -> Path:
    """Return a folder with checked files of MovieLens-100K in one of the two formats.

    If `folder` or $MOVIELENS_FOLDER is given, it is used. Otherwise the sources are tried in this order: the user's
    cache, the official archive, and the copy in the RecBole wheel, downloaded by pip. Downloads are checked against
    their SHA-256 and kept in the cache.

    Raises:
        DataError: the given folder does not hold the files, or no source works; the message lists the attempts.
    """
    given = folder or os.environ.get(FOLDER_VARIABLE)
    if given:
        return _sound_folder(Path(given).expanduser())
    cache = cache_folder() / "ml-100k"
    if cache.is_dir():
        try:
            return _sound_folder(cache)
        except DataError as error:
            _log.warning("fetching MovieLens-100K again: %s", error)
    failures = []
    for name, fetch in (("official archive", _fetch_archive), ("RecBole wheel", _fetch_wheel)):
        _log.info("fetching MovieLens-100K from the %s", name)
        try:
            return _fetch_into(cache, fetch)
        except (OSError, DataError, zipfile.BadZipFile, KeyError, subprocess.SubprocessError) as error:
            failures.append(f"{name}: {error}")
    raise DataError(
        "MovieLens-100K could not be found or downloaded.\n"
        f"  1. local folder: none was given (folder=..., or the variable {FOLDER_VARIABLE})\n"
        f"  2. official archive {ARCHIVE_URL}: {failures[0].partition(': ')[2]}\n"
        f"  3. copy inside the package {WHEEL}, by pip: {failures[1].partition(': ')[2]}\n"
        "Either connect to the network or a package index and try again, or unpack ml-100k.zip (or the three "
        f"ml-100k.* files of that package) anywhere and set {FOLDER_VARIABLE} to that folder."
    )


def cache_folder() -> Path:
    """Return this project's cache folder, following the conventions of the platform."""
    home = Path.home()
    if os.environ.get("XDG_CACHE_HOME"):
        base = Path(os.environ["XDG_CACHE_HOME"])
    elif sys.platform == "darwin":
        base = home / "Library" / "Caches"
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    else:
        base = home / ".cache"
    return base / "mindspore-trainer"


def _sound_folder(folder: Path) -> Path:
    """Return `folder` or its subfolder ml-100k, whichever holds the files.

    Raises:
        DataError: neither does, or a checksum is wrong.
    """
    for place in (folder, folder / "ml-100k"):
        for names in FORMATS:
            if all((place / name).is_file() for name in names):
                for name, wanted in names.items():
                    _check((place / name).read_bytes(), wanted, str(place / name))
                return place
    accepted = " or ".join(", ".join(names) for names in FORMATS)
    state = "has none of the two sets of files" if folder.is_dir() else "is not a folder"
    raise DataError(f"{folder} {state}; accepted: {accepted}")


def _check(content: bytes, wanted: str, what: str) -> None:
    found = hashlib.sha256(content).hexdigest()
    if found != wanted:
        raise DataError(f"{what} is not that of MovieLens-100K: its SHA-256 is {found}, not {wanted}")


def _fetch_into(cache: Path, fetch: Callable[[Path], None]) -> Path:
    """Download to a temporary folder, check, and rename it to `cache`.

    An interrupted download therefore leaves nothing behind.
    """
    cache.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache.parent) as scratch:
        fetched = Path(scratch) / "ml-100k"
        fetched.mkdir()
        fetch(fetched)
        _sound_folder(fetched)
        try:
            fetched.rename(cache)
        except OSError:
            # `cache` exists: it is damaged, or another process was faster. Replace it by the fresh copy.
            shutil.rmtree(cache, ignore_errors=True)
            fetched.rename(cache)
    return cache


def _fetch_archive(target: Path) -> None:
    with urllib.request.urlopen(ARCHIVE_URL, timeout=5) as response:
        content = response.read()
    _check(content, ARCHIVE_SHA256, "the archive")
    archive = target / "archive.zip"
    archive.write_bytes(content)
    _extract(archive, "ml-100k", OFFICIAL, target)
    archive.unlink()


def _fetch_wheel(target: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(target), WHEEL]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.strip()]
        raise DataError(errors[-1] if errors else f"pip ended with exit code {done.returncode}")
    (wheel,) = target.glob("*.whl")
    _check(wheel.read_bytes(), WHEEL_SHA256, wheel.name)
    _extract(wheel, "recbole/dataset_example/ml-100k", ATOMIC, target)
    wheel.unlink()


def _extract(archive: Path, folder: str, names: Mapping[str, str], target: Path) -> None:
    with zipfile.ZipFile(archive) as opened:
        for name in names:
            (target / name).write_bytes(opened.read(f"{folder}/{name}"))


# ------------------------------------------------------------------------------------------------ reading the files


@lru_cache(maxsize=2)
def read(folder: Path) -> dict[str, np.ndarray]:
    """Read the files of either format, without checks; see `load` for the result."""
    official = (folder / "u.data").is_file()
    ratings, users, items = (file_rows(folder / name) for name in (OFFICIAL if official else ATOMIC))
    ratings_by_column = np.array([row[:4] for row in ratings], dtype=np.float64)
    order = np.argsort(ratings_by_column[:, 3], kind="stable")
    user, item, rating, timestamp = ratings_by_column[order].T
    user, item = user.astype(np.int32), item.astype(np.int32)

    age, gender, occupation = (np.zeros(SIZES["user"], dtype=np.int32) for _ in range(3))
    for number, years, sex, work, *_ in users:
        age[int(number)] = np.searchsorted(AGE_EDGES, int(years), side="right")
        gender[int(number)] = GENDERS.index(sex)
        occupation[int(number)] = OCCUPATIONS.index(work)
    year = np.zeros(SIZES["item"], dtype=np.int32)
    genres = np.zeros((SIZES["item"], len(GENRES)), dtype=np.float32)
    for row in items:
        released, flags = film_of(row, official)
        year[int(row[0])] = np.searchsorted(YEAR_EDGES, released, side="right")
        genres[int(row[0])] = flags

    columns: dict[str, Any] = {"user": user, "item": item, "age": age[user], "gender": gender[user]}
    columns |= {"occupation": occupation[user], "genres": genres[item], "year": year[item]}
    columns |= {LABEL: (rating >= 4).astype(np.float32), "rating": rating.astype(np.float32)}
    columns["timestamp"] = timestamp.astype(np.int64)
    for column in columns.values():
        column.flags.writeable = False
    return columns


def file_rows(path: Path) -> list[list[str]]:
    """Split the lines of a file into fields.

    Files of RecBole have a header and are separated by tabs. Files of GroupLens have no header and are separated by |,
    except u.data, which is separated by tabs.
    """
    official = path.name in OFFICIAL
    separator = "|" if official and path.name != "u.data" else "\t"
    lines = path.read_text(encoding="latin-1" if official else "utf-8").split("\n")[0 if official else 1 :]
    return [line.split(separator) for line in lines if line]


def film_of(row: list[str], official: bool) -> tuple[int, list[bool]]:
    """Return a film's year of release (0 if unknown) and its genre flags."""
    title = row[1]
    if official:
        flags = [field == "1" for field in row[-len(GENRES) :]]
    else:
        # RecBole moved the year from the title to another field, except where another bracket follows the year.
        title += f" ({row[2]})"
        flags = [genre in row[3].split() for genre in GENRES]
    years = re.findall(r"\((\d{4})\)", title)
    return (int(years[-1]) if years else 0), flags
