"""Publishing a model while it trains: versions of tables and weights that servers follow (`served_model`).

    root/
      current.json        which versions make up the present model; replaced atomically, last of all
      graph-<id>/         the network as MindIR, and which columns feed which table
      v_00000007/         weights.safetensors, rows.safetensors (what changed), full.safetensors (all rows, in some)

A version is written aside and renamed, so what has a name is whole. `current.json` names a full version and the changes
after it; a server that has an earlier one applies the changes it lacks.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..checkpoint import durable, strict_json, tensor_file
from ..checks import choice, whole
from ..embedding.graph_export import ABOUT, export_network
from ..embedding.tables import SparseTables
from ..errors import CheckpointError, ConfigurationError
from ..hooks import Callback, Every

if TYPE_CHECKING:
    from ..trainer import Trainer

logger = logging.getLogger(__name__)

CONSUMER = "serving"
CURRENT = "current.json"
ROW_TYPES = ("float32", "int8")


def pack_rows(weights: np.ndarray, rows: str) -> dict[str, np.ndarray]:
    """Return weights (float32 [n, dim]) as what is stored: "weights", and for int8 "scale" (float32 [n], max / 127)."""
    if rows == "float32":
        return {"weights": np.ascontiguousarray(weights)}
    scale = np.abs(weights).max(axis=1, initial=0.0) / np.float32(127)
    quantized = np.rint(weights / np.where(scale > 0, scale, 1)[:, None]).astype(np.int8)
    return {"weights": quantized, "scale": scale.astype(np.float32)}


def unpack_rows(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return float32 [n, dim] from what `pack_rows` returned."""
    if "scale" in arrays:
        return arrays["weights"].astype(np.float32) * np.asarray(arrays["scale"])[:, None]
    return np.asarray(arrays["weights"], np.float32)


class Publish(Callback):
    """Publishes the model for servers, in the background, while it trains.

    The first version holds everything and exports the network, which holds training for the time of a compilation.
    Later ones hold the rows that changed. A version starts when it is due and the one before it is written. A version
    that cannot be written is logged, and the next one holds everything again: training does not end for it.

    Args:
        root: folder that servers follow.
        every: an `Every`, or seconds.
        rows: "float32", or "int8" with one scale a row: a quarter of the size, errors up to 1/254 of a row's maximum.
        batch: rows of the exported program; a server pads the last batch.
        redis: address of a server that also receives the rows: a hash ``<prefix>:<table>`` from the id's 8 bytes
            (little-endian) to float32 bytes, and ``<prefix>:version``, set last.
        prefix: see `redis`.
        compact: versions of changes after which all rows are written once more.

    Raises:
        ConfigurationError: an argument cannot work.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        every: Every | float = 1.0,
        rows: str = "float32",
        *,
        batch: int = 256,
        redis: str | None = None,
        prefix: str = "model",
        compact: int = 32,
    ) -> None:
        choice("Publish(rows=...)", rows, ROW_TYPES)
        whole("Publish(batch=...)", batch)
        whole("Publish(compact=...)", compact)
        self.root = Path(root)
        self.every = every if isinstance(every, Every) else Every(seconds=every)
        self.rows, self.batch, self.compact = rows, batch, compact
        self._redis = _connect(redis) if redis is not None else None
        self._prefix = prefix
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._graph: str | None = None
        self._chain: list[str] = []
        self._full = "rows"
        self._version = 0
        self.hold_seconds: list[float] = []

    def on_train_begin(self, trainer: Trainer) -> None:
        """Go on after the newest version in the folder; the first one of this run is full."""
        self.root.mkdir(parents=True, exist_ok=True)
        versions = [int(path.name[2:]) for path in self.root.glob("v_*") if path.name[2:].isdigit()]
        self._version = max(versions, default=0)
        self._chain, self._graph = [], None

    def on_train_step_end(self, trainer: Trainer) -> None:
        """Publish the first version at once, and each later one when it is due."""
        busy = self._thread is not None and self._thread.is_alive()
        if not busy and (self.every.due(trainer.state.progress) or self._graph is None):
            self._try(trainer)

    def on_train_end(self, trainer: Trainer) -> None:
        """Publish the final state and wait for it."""
        if trainer.state.outputs is not None:
            self._try(trainer)
            self._try(None)

    def _try(self, trainer: Trainer | None) -> None:
        try:
            if trainer is None:
                self.wait()
            else:
                self.publish(trainer)
        except (CheckpointError, OSError) as error:
            logger.error("%s; the next version will hold everything", error)

    def teardown(self, trainer: Trainer) -> None:
        """Wait for the version being written."""
        if self._thread is not None:
            self._thread.join()

    def wait(self) -> None:
        """Wait for the version being written.

        Raises:
            CheckpointError: it could not be written.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            self._chain = []
            raise CheckpointError(f"publishing to {self.root} failed: {failure!r}") from failure

    def publish(self, trainer: Trainer) -> None:
        """Start writing a version of the trainer's present state; waits for the one before it."""
        self.wait()
        started = time.perf_counter()
        tables = trainer.tables.tables if trainer.tables is not None else None
        if self._graph is None:
            self._graph = self._export(trainer, tables)
        full = not self._chain
        compact = not full and len(self._chain) > self.compact
        saved = tables.take(CONSUMER, full=full) if tables is not None else {"arrays": {}, "json": {}}
        everything = tables.take(CONSUMER + ".full", full=True) if compact and tables is not None else None
        weights = {p.name: np.array(p.asnumpy()) for p in trainer.network.get_parameters()}
        self._version += 1
        times = [extras["event_time"].max() for extras in trainer.state.outputs.chunk.extras if _has_time(extras)]
        about = {
            "version": self._version,
            "step": trainer.state.progress.global_step,
            "event_time": float(max(times)) if times else None,
            "graph": self._graph,
            "rows": self.rows,
        }
        arguments = (about, weights, saved, everything, full or compact)
        self._thread = threading.Thread(target=self._write, args=arguments, name="publisher")
        self._thread.start()
        self.hold_seconds.append(time.perf_counter() - started)

    # -- the writing thread --------------------------------------------------------------------------------------

    def _write(self, about: dict, weights: dict, saved: dict, everything: dict | None, restart: bool) -> None:
        try:
            name = f"v_{about['version']:08d}"
            aside = durable.temporary_name(self.root / name, "tmp")
            aside.mkdir()
            durable.write_file(aside / "weights.safetensors", tensor_file.blocks(weights))
            changed = self._packed(saved)
            durable.write_file(aside / "rows.safetensors", tensor_file.blocks(changed))
            if everything is not None:
                durable.write_file(aside / "full.safetensors", tensor_file.blocks(self._packed(everything)))
            durable.sync_folder(aside)
            os.rename(aside, self.root / name)
            self._chain = [name] if restart else [*self._chain, name]
            if restart:
                self._full = "full" if everything is not None else "rows"
            about |= {"chain": self._chain, "full": self._full, "time": time.time()}
            durable.replace_file(self.root / CURRENT, strict_json.dumps(about).encode())
            if self._redis is not None:
                self._send(about["version"], changed)
            self._sweep(about)
        except BaseException as error:
            self._failure = error

    def _packed(self, saved: dict) -> dict[str, np.ndarray]:
        packed: dict[str, np.ndarray] = {}
        for name, json in saved["json"].items():
            arrays = saved["arrays"]
            rows, values = np.asarray(arrays[f"{name}/rows"]), np.asarray(arrays[f"{name}/values"])
            own = rows > 0
            weights = values[:, : json["dim"]]
            default = weights[~own] if (~own).any() else np.zeros((0, json["dim"]), np.float32)
            parts = {"ids": np.asarray(arrays[f"{name}/ids"])[own], "removed": arrays[f"{name}/removed"]}
            parts |= {"default": default, **pack_rows(weights[own], self.rows)}
            packed |= {f"{name}/{key}": value for key, value in parts.items()}
        return packed

    def _sweep(self, about: dict) -> None:
        """Remove versions that no server needs any more: all but the present chain and the few before it."""
        keep = {f"v_{number:08d}" for number in range(about["version"] - self.compact, about["version"] + 1)}
        for path in self.root.glob("v_*"):
            if path.name not in keep and path.name not in about["chain"]:
                shutil.rmtree(path, ignore_errors=True)

    def _send(self, version: int, packed: Mapping[str, np.ndarray]) -> None:
        for key in [key for key in packed if key.endswith("/ids")]:
            table = key.removesuffix("/ids")
            arrays = {name.rsplit("/", 1)[1]: value for name, value in packed.items() if name.startswith(f"{table}/")}
            ids, weights = arrays["ids"].astype("<i8"), unpack_rows(arrays).astype("<f4")
            place = f"{self._prefix}:{table}"
            removed = [one.tobytes() for one in np.asarray(arrays["removed"]).astype("<i8")]
            for start in range(0, len(removed), 10_000):
                self._redis.hdel(place, *removed[start : start + 10_000])
            for start in range(0, len(ids), 10_000):
                block = slice(start, start + 10_000)
                pairs = zip(ids[block], weights[block], strict=True)
                self._redis.hset(place, mapping={one.tobytes(): row.tobytes() for one, row in pairs})
        self._redis.set(f"{self._prefix}:version", version)

    # -- the network ---------------------------------------------------------------------------------------------

    def _export(self, trainer: Trainer, tables: SparseTables | None) -> str:
        """Write the network for servers and return the folder's name."""
        chunk = trainer.state.outputs.chunk
        columns = []
        for array in chunk.arrays[: len(chunk.arrays) - trainer.label_count]:
            shape = array.shape[2:] if chunk.stacked else array.shape[1:]
            columns.append(np.zeros((self.batch, *shape), np.int64 if array.dtype.kind in "USO" else array.dtype))
        graph = f"graph-{uuid.uuid4().hex[:12]}"
        aside = durable.temporary_name(self.root / graph, "tmp")
        aside.mkdir()
        about = export_network(trainer.network, tables, columns, aside, cast=trainer.builder.cast)
        about["columns"] = list(chunk.names[: len(columns)])
        durable.write_file(aside / ABOUT, [strict_json.dumps(about).encode()])
        durable.sync_folder(aside)
        os.rename(aside, self.root / graph)
        return graph


def _has_time(extras: Any) -> bool:
    return bool(extras) and "event_time" in extras


def _connect(address: str) -> Any:
    try:
        import redis
    except ImportError:
        raise ConfigurationError("Publish(redis=...) needs redis-py: pip install 'mindspore-trainer[redis]'") from None
    return redis.Redis.from_url(address)
