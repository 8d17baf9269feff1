"""Run on every rank by test_group.py: each check of a collective, written down as JSON by every rank."""

import json
import sys

import numpy as np

from trainer.distributed.group import join
from trainer.errors import ConfigurationError

group = join()
rank = group.rank
found = {"rank": rank, "size": group.size}
for dtype in (np.int64, np.int32, np.float64, np.float32, np.float16, np.int8, np.uint16, np.bool_):
    array = (np.arange(5) % 2 == rank).astype(dtype) if dtype == np.bool_ else (np.arange(5) + 10 * rank).astype(dtype)
    gathered, sent = group.gather(array), group.broadcast(array)
    found[dtype.__name__] = [gathered.dtype == dtype, gathered.tolist(), sent.dtype == dtype, sent.tolist()]
found["bytes"] = [len(message) for message in group.gather_bytes(b"x" * (1000 * rank))]
found["json"] = group.gather_json({"of": rank})
found["rows"] = [rows.tolist() for rows in group.gather_rows(np.arange(6.0).reshape(3, 2)[: rank + 1])]
found["any"] = [group.any(rank == 1), group.any(False)]
found["total"] = float(group.total(np.array([0.1, 0.7])[rank]).item() if rank < 2 else 0)
group.check_same("parameters", {"w": np.ones(3)})
try:
    group.check_same("parameters", {"w": np.ones(3), "b": np.ones(2) * rank})
except ConfigurationError as error:
    found["differing"] = str(error)
with open(f"{sys.argv[1]}/found_{rank}.json", "w") as file:
    json.dump(found, file)
