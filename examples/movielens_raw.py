"""MovieLens-100K as raw rows: the files joined by user and film, not preprocessed.

    python -m examples.movielens_raw runs/movielens.jsonl

Ids, gender, occupation and zip code are strings, genres are a list of strings, and the time of a rating is in seconds.
An unknown year of release is null. `configs/deepfm_movielens.yaml` declares the features made from these columns.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from examples.movielens import ATOMIC, GENRES, OFFICIAL, file_rows, film_of, find_files


def raw_rows(path: str | os.PathLike[str], data: str | os.PathLike[str] | None = None) -> Path:
    """Write the ratings as JSON lines in file order, unless `path` exists; return it.

    Args:
        path: file to write; it is renamed into place.
        data: folder of MovieLens-100K (see `examples.movielens.find_files`).

    Raises:
        DataError: the data cannot be found or downloaded.
    """
    path = Path(path)
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False, encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in _ratings(find_files(data)))
        os.replace(file.name, path)
    return path


def _ratings(folder: Path) -> Iterator[dict[str, Any]]:
    official = (folder / "u.data").is_file()
    ratings, users, items = (file_rows(folder / name) for name in (OFFICIAL if official else ATOMIC))
    people = {row[0]: {"age": int(row[1]), "gender": row[2], "occupation": row[3], "zip": row[4]} for row in users}
    films = {}
    for row in items:
        year, flags = film_of(row, official)
        genres = [genre for genre, flag in zip(GENRES, flags, strict=True) if flag]
        films[row[0]] = {"year": year or None, "genres": genres}
    for user, item, stars, time, *_ in ratings:
        row = {"user": user, "item": item, **people[user], **films[item], "time": int(time)}
        yield row | {"stars": int(stars), "liked": int(int(stars) >= 4)}


if __name__ == "__main__":
    print(raw_rows(sys.argv[1]))
