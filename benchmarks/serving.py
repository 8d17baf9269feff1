"""From an event to its effect on predictions: delay of served rows while a model trains on a stream.

    python benchmarks/serving.py [--rows 1000000] [--seconds 30] [--int8]

One process trains Wide & Deep (39 ids per row, dimension 16) on events that carry the time they were made, Zipf(1.2)
ids over a table of the given size, and publishes; another follows and predicts all the while. The delay of a version
runs from its newest event to the moment all of its rows are served.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

FIELDS, DIM, BATCH = 39, 16, 1024


def serve(root: str, seconds: float) -> None:
    """Follow and predict for a while; print delays and latencies as JSON."""
    from trainer.errors import CheckpointError
    from trainer.serving.served_model import ServedModel

    model = None
    while model is None:
        try:
            model = ServedModel(root)
        except CheckpointError:
            time.sleep(0.05)
    rng = np.random.default_rng(9)
    model.delays.clear()
    latencies, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        ids = rng.zipf(1.2, (64, FIELDS)) % 1_000_000
        began = time.perf_counter()
        model.predict(ids)
        latencies.append(time.perf_counter() - began)
        time.sleep(0.01)
    print(json.dumps({"delays": list(model.delays), "latencies": latencies, "rows": len(model.graph.tables["ids"])}))
    model.close()


def train(root: Path, rows: int, seconds: float, kind: str, every: float) -> tuple[int, list[float]]:
    """Train on a stream while publishing; return the steps and how long publishing held them."""
    from mindspore import nn

    from trainer import Trainer
    from trainer.embedding import Embedding
    from trainer.serving.publisher import Publish

    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.embedding = Embedding(DIM, name="ids")
            self.deep = nn.SequentialCell(nn.Dense(FIELDS * DIM, 400), nn.ReLU(), nn.Dense(400, 1))

        def construct(self, ids):
            return self.deep(self.embedding(ids).reshape(ids.shape[0], -1)).reshape(-1)

    rng = np.random.default_rng(0)

    def events():
        first = rng.permutation(rows)
        for start in range(0, rows - BATCH * FIELDS, BATCH * FIELDS):
            yield event(first[start : start + BATCH * FIELDS].reshape(BATCH, FIELDS))
        while True:
            yield event(rng.zipf(1.2, (BATCH, FIELDS)) % rows)

    def event(ids):
        label = (rng.random(BATCH) < 0.3).astype(np.float32)
        return {"ids": ids, "label": label, "event_time": np.full(BATCH, time.time())}

    network = Net()
    publish = Publish(root, every=every, rows=kind)
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params(), 1e-3))
    trainer.online_train(events, callbacks=[publish], max_time=seconds)
    return trainer.state.progress.global_step, list(publish.hold_seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--every", type=float, default=0.5, help="seconds between versions")
    parser.add_argument("--int8", action="store_true")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve, arguments.seconds)
        return
    kind = "int8" if arguments.int8 else "float32"
    import lifetime  # beside this script

    with lifetime.guarded("serving-") as folder:
        command = [sys.executable, __file__, "--serve", str(folder), "--seconds", str(arguments.seconds - 5)]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        steps, holds = train(folder, arguments.rows, arguments.seconds, kind, arguments.every)
        answer = json.loads(server.communicate()[0].splitlines()[-1])
    delays, latencies = np.array(answer["delays"]), np.array(answer["latencies"]) * 1e3
    print(
        f"{answer['rows']:,} rows of {kind}, {steps / arguments.seconds:.0f} steps/s, {len(delays)} versions followed"
    )
    print(f"event to serving: median {np.median(delays):.2f} s, p99 {np.quantile(delays, 0.99):.2f} s (goal <= 2 s)")
    print(f"predict 64 rows: median {np.median(latencies):.1f} ms, p99 {np.quantile(latencies, 0.99):.1f} ms")
    print(f"publishing held training: median {np.median(holds[1:]) * 1e3:.1f} ms, most {max(holds[1:]) * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
