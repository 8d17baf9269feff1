"""LitServe with the network of `serve_model` in PyTorch: what `serve_load` compares with. It needs litserve and torch.

python benchmarks/serve_peer.py PORT
"""

from __future__ import annotations

import sys
import zlib

import litserve as ls
import torch

USERS, ITEMS, CITIES, NUMBERS, DIM = 20_000, 5_000, 50, 4, 16


class DeepFM(torch.nn.Module):
    """First-order weights, pairwise products and a perceptron, as `trainer.models.DeepFM`."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (USERS, ITEMS, 64)
        self.vectors = torch.nn.ModuleList(torch.nn.Embedding(size, DIM) for size in sizes)
        self.weights = torch.nn.ModuleList(torch.nn.Embedding(size, 1) for size in sizes)
        self.linear = torch.nn.Linear(NUMBERS, 1)
        self.deep = torch.nn.Sequential(
            torch.nn.Linear(3 * DIM + NUMBERS, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32), torch.nn.ReLU()
        )
        self.top = torch.nn.Linear(32, 1)

    def forward(self, ids, numbers):
        fields = torch.stack([table(ids[:, i]) for i, table in enumerate(self.vectors)], 1)
        first = sum(table(ids[:, i]) for i, table in enumerate(self.weights))[:, 0] + self.linear(numbers)[:, 0]
        pairs = 0.5 * (fields.sum(1) ** 2 - (fields**2).sum(1)).sum(1)
        deep = self.top(self.deep(torch.cat((fields.flatten(1), numbers), 1)))[:, 0]
        return first + pairs + deep


class Api(ls.LitAPI):
    """Rows of the same requests; a batch is the requests that wait, as many as 64."""

    def setup(self, device):
        torch.set_num_threads(1)
        self.model = DeepFM().eval()

    def decode_request(self, request):
        rows = request["rows"]
        ids = [[r["user"] % USERS, r["item"] % ITEMS, zlib.crc32(r["city"].encode()) % 64] for r in rows]
        return ids, [[r[f"number_{n}"] for n in range(NUMBERS)] for r in rows]

    def batch(self, inputs):
        return inputs

    def predict(self, requests):
        ids = torch.tensor([row for ids, _ in requests for row in ids])
        numbers = torch.tensor([row for _, numbers in requests for row in numbers])
        with torch.inference_mode():
            scores = torch.sigmoid(self.model(ids, numbers)).tolist()
        answers, start = [], 0
        for part, _ in requests:
            answers.append(scores[start : start + len(part)])
            start += len(part)
        return answers

    def unbatch(self, output):
        return output

    def encode_response(self, output):
        return {"probability": output}


if __name__ == "__main__":
    api = Api(max_batch_size=64, batch_timeout=0.001, api_path="/predict")
    server = ls.LitServer(api, accelerator="cpu")
    server.run(port=int(sys.argv[1]), host="127.0.0.1", generate_client_file=False, log_level="warning")
