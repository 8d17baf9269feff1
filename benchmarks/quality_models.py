"""Each model of `trainer.models` beside the same network in PyTorch, and a published figure beside ours.

Models: MovieLens-100K with RecBole's protocol for context-aware models on MovieLens-1M (its `benchmark/md/
ml-1m_context.md`): ratings of 3 are left out, 4 and 5 are label 1, a random 8:1:1, vectors of 16. Features: film,
author, gender, occupation, the film's genres as one category, age and year as numbers. Both sides train on the first
part with the same optimizers and number of steps and are measured on the last; nothing is tuned on it. DIN and BST read
the last 20 films too, on rows whose author rated as many before. MMoE, PLE and ESMM learn "liked" and "loved" (5
stars). The two towers learn which film was liked; their AUC is that of this film among all films.

Published: the RMSE and MAE of matrix factorization in the README of Surprise (github.com/NicolasHug/Surprise), five
folds drawn with seed 0 from the ratings in the order of the file, beside `FM` of author and film on the same folds.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import nn, set_seed

from benchmarks import peers
from examples.baselines import auc
from examples.last_films import LENGTH, last_films
from examples.movielens import ATOMIC, OFFICIAL, SIZES, file_rows, find_files
from trainer import EarlyStopping, ModelCheckpoint, MultiTaskLoss, Trainer, models
from trainer.features import Categorical, Features, ListFeature, Numeric

ROOT = Path(__file__).parents[1]
NEXT_ITEM = ("bpr", "sasrec", "hstu")  # benchmarks/published.py measures these, over all items
NAMES = tuple(name for name in models.MODELS if name not in NEXT_ITEM)
HISTORIES, TASKS, TOWERS = ("din", "bst"), ("mmoe", "ple", "esmm"), "two_tower"
CATEGORIES, NUMBERS = ("item", "user", "gender", "occupation", "genre_set"), ("age", "year")
OF_USER = (("item", "user", "gender", "occupation"), ("age",))  # what two towers read: nothing else of the film
RATE, BATCH, EPOCHS = 2e-3, 512, 4
FOLDS = 5
SVD_ROW, FM_ROW = "SVD, published by Surprise", "`fm` of author and film"
SURPRISE = {SVD_ROW: {"rmse": 0.934, "mae": 0.737}, "baseline, published by Surprise": {"rmse": 0.944, "mae": 0.748}}

Columns = Mapping[str, np.ndarray]
Figures = dict[str, dict[str, float]]


def prepared(columns: Columns) -> dict[str, np.ndarray]:
    """Return the ratings that are not 3, with numbers of mean 0 and variance 1, labels and earlier films."""
    films = last_films(columns)["films"].astype(np.int64)
    ages, years = (columns[name].astype(np.float32) for name in NUMBERS)
    table = {name: columns[name].astype(np.int64) for name in ("item", "user", "gender", "occupation")}
    table["genre_set"] = np.unique(columns["genres"], axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
    table |= {"age": (ages - ages.mean()) / ages.std(), "year": (years - years.mean()) / years.std(), "films": films}
    table |= {
        "liked": (columns["rating"] >= 4).astype(np.float32),
        "loved": (columns["rating"] == 5).astype(np.float32),
    }
    return {name: column[columns["rating"] != 3] for name, column in table.items()}


def split(table: Columns, model: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return a model's training and test rows, eight and one tenths of a random order; the last tenth is for tuning."""
    rows = len(table["liked"])
    order = np.random.default_rng(0).permutation(rows)
    if model in HISTORIES:
        order = order[(table["films"][order] > 0).all(axis=1)]
    if model == TOWERS:
        order = order[table["liked"][order] == 1]
    ends = int(len(order) * 0.8), int(len(order) * 0.9)
    train, test = order[: ends[0]], order[ends[1] :]
    return {name: column[train] for name, column in table.items()}, {name: table[name][test] for name in table}


def inputs_of(model: str) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return the names of a model's categories, numbers and labels."""
    if model == TOWERS:
        return (*OF_USER, ("item",))
    return CATEGORIES, NUMBERS, ("liked", "loved") if model in TASKS else ("liked",)


def with_all_films(model: str, test: Columns) -> dict[str, np.ndarray]:
    """Return the test rows, for two towers with a row for each film behind them."""
    if model != TOWERS:
        return dict(test)
    films = np.arange(1, SIZES["item"])
    rest = {name: column[np.zeros(len(films), int)] for name, column in test.items()}
    return {name: np.concatenate([test[name], (rest | {"item": films})[name]]) for name in test}


def trained(model: str, train: Columns, test: Columns, seed: int, epochs: int) -> tuple[np.ndarray, ...]:
    """Return the outputs of the package's model for the test rows."""
    set_seed(seed)
    np.random.seed(seed)
    categories, numbers, labels = inputs_of(model)
    parts: list[Any] = [*map(Numeric, numbers), *(Categorical(name, dtype="int64") for name in categories)]
    if model in HISTORIES:
        parts.append(ListFeature("films", dtype="int64", table="item", pooling=None, max_length=LENGTH))
    features = Features(parts, label=list(labels) if len(labels) > 1 else labels[0])
    network = getattr(models, models.MODELS[model])(features, **({"item": ["item"]} if model == TOWERS else {}))
    loss: Any = nn.BCEWithLogitsLoss()
    if model in TASKS:
        loss = MultiTaskLoss({name: nn.BCEWithLogitsLoss() for name in labels})
    elif model == TOWERS:
        loss = models.InBatchSoftmax()
    trainer = Trainer(network, loss, nn.Adam(network.trainable_params(), RATE), features=features, seed=seed)
    names = {*categories, *numbers, *labels, *(("films",) if model in HISTORIES else ())}
    trainer.fit({name: train[name] for name in names}, epochs, batch_size=BATCH)
    outputs = trainer.predict({name: test[name] for name in names}, batch_size=2048)
    return outputs if isinstance(outputs, tuple) else (outputs,)


def trained_by_torch(tables: Mapping[str, tuple[Columns, Columns]], seed: int, epochs: int) -> dict[str, Any]:
    """Return the outputs of the networks in PyTorch, by model; they are trained in one process of the peers'."""
    with tempfile.TemporaryDirectory() as folder:
        for model, pair in tables.items():
            categories, numbers, labels = inputs_of(model)
            sizes = [1 + max(int(part[name].max()) for part in pair) for name in categories]
            arrays: dict[str, np.ndarray] = {"sizes": np.array(sizes)}
            for side, part in zip(("train", "test"), pair, strict=True):
                arrays[f"{side}_numbers"] = np.stack([part[name] for name in numbers], 1)
                arrays[f"{side}_ids"] = np.stack([part[name] for name in categories], 1)
                arrays[f"{side}_labels"] = np.stack([part[name] for name in labels])
                if model in HISTORIES:
                    arrays[f"{side}_history"] = part["films"]
            np.savez(Path(folder) / f"{model}.npz", **arrays)
        options = [folder, str(seed), str(epochs), str(BATCH), str(RATE)]
        subprocess.run([str(peers.python()), "-m", "benchmarks.quality_torch", *options], cwd=ROOT, check=True)
        return {model: tuple(np.load(Path(folder) / f"{model}.npy")) for model in tables}


def scores(model: str, outputs: tuple[np.ndarray, ...], test: Columns) -> dict[str, float]:
    """Return AUCs by the names of the table's rows."""
    if model == TOWERS:
        return {model: auc_among_films(outputs[0], test["item"])}
    labels = inputs_of(model)[2]
    names = [model] if len(labels) == 1 else [f"{model}, {label}" for label in labels]
    found = zip(names, labels, outputs, strict=True)
    return {name: auc(test[label], np.asarray(output, np.float64)) for name, label, output in found}


def auc_among_films(vectors: np.ndarray, chosen: np.ndarray) -> float:
    """Return the mean share of the films that score below the chosen one; films' vectors are in the last rows."""
    width, rows = vectors.shape[1] // 2, len(chosen)
    products = vectors[:rows, :width] @ vectors[rows:, width:].T
    own = products[np.arange(rows), chosen - 1][:, None]
    below = (products < own).sum(axis=1) + 0.5 * ((products == own).sum(axis=1) - 1)
    return float(np.mean(below / (products.shape[1] - 1)))


def beside_torch(columns: Columns, seed: int, epochs: int, names: tuple[str, ...] = NAMES) -> Figures:
    """Return the AUC of each model, and of the same network in PyTorch; for multi-task models, of each task."""
    table = prepared(columns)
    pairs = {model: split(table, model) for model in names}
    tables = {model: (train, with_all_films(model, test)) for model, (train, test) in pairs.items()}
    theirs = trained_by_torch(tables, seed, epochs)
    figures: Figures = {}
    for model, (train, test) in tables.items():
        ours = scores(model, trained(model, train, test, seed, epochs), pairs[model][1])
        other = scores(model, theirs[model], pairs[model][1])
        figures |= {name: {"auc": value, "auc, torch": other[name]} for name, value in ours.items()}
    return figures


def behind_torch(runs: Sequence[Figures]) -> list[str]:
    """Return the names whose mean AUC lies below that of PyTorch's network by more than AUCs spread over the seeds."""
    behind = []
    for name in runs[0]:
        ours, theirs = (np.array([run[name][side] for run in runs]) for side in ("auc", "auc, torch"))
        if theirs.mean() - ours.mean() > max(np.ptp(ours), np.ptp(theirs)):
            behind.append(name)
    return behind


def reproduced(means: Figures) -> bool:
    """Return whether `FM` comes within half a percent of the published matrix factorization, or beats it."""
    return means[FM_ROW]["rmse"] <= 1.005 * SURPRISE[SVD_ROW]["rmse"]


def published(seed: int, epochs: int, dim: int = 16) -> Figures:
    """Return RMSE and MAE over the folds of `FM` of author and film, beside those that Surprise publishes.

    A tenth of a fold's training rows says when to stop.
    """
    folder = find_files()
    name = next(names[0] for names in (tuple(OFFICIAL), tuple(ATOMIC)) if (folder / names[0]).is_file())
    user, item, rating = np.array([row[:3] for row in file_rows(folder / name)], np.float64).T
    table = {"user": user.astype(np.int64), "item": item.astype(np.int64), "rating": rating.astype(np.float32) - 3.5}
    order = np.arange(len(user))
    np.random.RandomState(0).shuffle(order)  # as Surprise's KFold(random_state=0) does
    results = []
    for fold in np.array_split(order, FOLDS):
        rest = np.setdiff1d(order, fold)
        np.random.default_rng(seed).shuffle(rest)
        cuts = len(rest) // 10
        parts = [{name: column[part] for name, column in table.items()} for part in (rest[cuts:], rest[:cuts], fold)]
        results.append(factorized(parts, seed, epochs, dim))
    mean = {metric: float(np.mean([result[metric] for result in results])) for metric in ("rmse", "mae")}
    return {**SURPRISE, FM_ROW: mean}


def factorized(parts: list[dict[str, np.ndarray]], seed: int, epochs: int, dim: int) -> dict[str, float]:
    """Train `FM` on the first part, stop by the second, and return its RMSE and MAE on the last."""
    set_seed(seed)
    np.random.seed(seed)
    features = Features([Categorical("user", dtype="int64"), Categorical("item", dtype="int64")], label="rating")
    network = models.FM(features, dim=dim)
    trainer = Trainer(network, nn.MSELoss(), nn.Adam(network.trainable_params(), RATE), features=features, seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        best = ModelCheckpoint(folder, monitor="val_loss", keep_last=1)
        stop = EarlyStopping("val_loss", patience=2)
        trainer.fit(parts[0], epochs, parts[1], callbacks=[best, stop], batch_size=BATCH)
        trainer.load(Path(folder) / "best")
    errors = np.clip(trainer.predict(parts[2], batch_size=4096) + 3.5, 1, 5) - (parts[2]["rating"] + 3.5)
    return {"rmse": float(np.sqrt(np.mean(np.square(errors)))), "mae": float(np.mean(np.abs(errors)))}
