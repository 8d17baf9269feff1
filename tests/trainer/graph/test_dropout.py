"""Stateless dropout: fair masks, told by seed, layer and forward alone, and the same again after a resume."""

import numpy as np
import pytest
from mindspore import Tensor, nn

from trainer import ModelCheckpoint, Trainer
from trainer.graph.dropout import StatelessDropout, layer_key, repeatable, replace_dropout


def reference(shape, keep_prob, key, forward):
    """The mask in NumPy."""
    bits = np.arange(np.prod(shape), dtype=np.uint64)
    bits = (bits + forward * 0x9E3779B9 + key) % 2**32
    bits = (bits ^ (bits >> 16)) * 0x85EBCA6B % 2**32
    bits = (bits ^ (bits >> 13)) * 0xC2B2AE35 % 2**32
    return (bits < round(keep_prob * 2**32)).reshape(shape)


@pytest.fixture(scope="module")
def masks():
    """40 forwards of [200, 500] with keep_prob 0.7: the outputs for ones."""
    cell = StatelessDropout(0.7, layer_key(3, 0)).set_train()
    ones = Tensor(np.ones((200, 500), np.float32))
    return np.stack([cell.compile_and_run(ones).asnumpy() for _ in range(40)]), cell, ones


class TestMasks:
    def test_are_the_documented_hash(self, masks):
        outputs, cell, _ = masks
        for forward in (0, 1, 39):
            expected = reference((200, 500), 0.7, layer_key(3, 0), forward)
            assert ((outputs[forward] > 0) == expected).all()
        assert int(cell.forwards.asnumpy()) == 40

    def test_keep_the_mean(self, masks):
        outputs, _, _ = masks
        assert np.unique(outputs).tolist() == [0, np.float32(1 / 0.7)]
        # 4 million draws: the standard error of the mean is 0.0003
        assert abs(outputs.mean() - 1) < 0.0015
        # no row, column or forward is favoured: five standard errors of each
        for axis, error in (((1, 2), 0.0021), ((0, 2), 0.0046), ((0, 1), 0.0073)):
            assert np.abs(outputs.mean(axis) - 1).max() < 5 * error, axis

    def test_are_independent_of_their_neighbours_in_place_and_time(self, masks):
        kept = masks[0] > 0
        flat = kept.reshape(-1)
        pairs = {
            "next column": (kept[:, :, 1:], kept[:, :, :-1]),
            "next row": (kept[:, 1:], kept[:, :-1]),
            "next forward": (kept[1:], kept[:-1]),
            "next but one": (kept[2:], kept[:-2]),
            "far": (flat[77777:], flat[:-77777]),
        }
        for name, (one, other) in pairs.items():
            correlation = np.corrcoef(one.reshape(-1), other.reshape(-1))[0, 1]
            assert abs(correlation) < 5 / np.sqrt(one.size), name

    def test_differ_between_layers_and_seeds(self):
        keys = {layer_key(seed, layer) for seed in range(20) for layer in range(20)}
        assert len(keys) == 400
        one, other = (reference((100_000,), 0.5, layer_key(0, layer), 0) for layer in (0, 1))
        assert abs(np.corrcoef(one, other)[0, 1]) < 5 / np.sqrt(100_000)

    def test_drop_whole_maps(self):
        cell = StatelessDropout(0.5, 7, whole=2).set_train()
        output = cell.compile_and_run(Tensor(np.ones((16, 8, 3, 5), np.float32))).asnumpy()
        assert set(output.sum((2, 3)).ravel().tolist()) == {0, 30}
        assert (output.any((2, 3)) == reference((16, 8), 0.5, 7, 0)).all()

    def test_inference_drops_nothing_and_counts_nothing(self, masks):
        _, cell, ones = masks
        before = int(cell.forwards.asnumpy())
        cell.set_train(False)
        assert (cell.compile_and_run(ones).asnumpy() == 1).all()
        assert int(cell.forwards.asnumpy()) == before
        cell.set_train()


class TestReplacing:
    def network(self):
        shared = nn.Dropout(p=0.4)
        return nn.SequentialCell(
            nn.Dense(30, 8), shared, nn.SequentialCell(nn.Dropout2d(p=0.25), shared, nn.Dropout(p=0.0)), nn.Dense(8, 1)
        )

    def test_every_dropout_once_keeping_its_kind(self):
        network = self.network()
        names = [parameter.name for parameter in network.get_parameters()]
        assert not repeatable(network)
        assert replace_dropout(network, 0) == ["1", "2.0", "2.1"]
        assert repeatable(network)
        assert network[1] is network[2][1]
        assert (network[1].keep_prob, network[1].whole) == (0.6, 0)
        assert (network[2][0].keep_prob, network[2][0].whole) == (0.75, 2)
        assert isinstance(network[2][2], nn.Dropout)
        assert [p.name for p in network.get_parameters() if not p.name.endswith("forwards")] == names
        assert replace_dropout(network, 0) == []

    def test_replacement_is_opt_in_and_logged(self, caplog):
        network = self.network()
        Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.1))
        assert isinstance(network[1], nn.Dropout)
        with caplog.at_level("INFO"):
            Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.1), exact_resume=True)
        assert "stateless dropout in place of 1, 2.0, 2.1" in caplog.text
        assert isinstance(network[1], StatelessDropout)


class TestResume:
    @pytest.fixture(scope="class")
    @staticmethod
    def run(linear, cancer, values):
        def fit(folder, options, resume=None, every=100, sink_size=1, callbacks=()):
            network = nn.SequentialCell(nn.Dropout(p=0.2), linear(seed=0 if resume is None else 1))
            optimizer = nn.Adam(network.trainable_params(), 0.01)
            trainer = Trainer(network, nn.BCEWithLogitsLoss(), optimizer, exact_resume=True, seed=5, **options)
            data = {name: column[:320] for name, column in cancer.items()}
            trainer.fit(
                data,
                2,
                callbacks=[ModelCheckpoint(folder, every=every, keep_last=None), *callbacks],
                batch_size=32,
                sink_size=sink_size,
                resume=resume,
            )
            return values(network, optimizer, trainer.builder.step), trainer

        return fit

    @pytest.mark.long(but=["single steps"])
    @pytest.mark.parametrize(
        ("options", "step", "sink_size"),
        [({}, 7, 1), ({"amp_level": "O2", "gradient_accumulation_steps": 2}, 4, 2)],
        ids=["single steps", "float16, accumulated, sunk"],
    )
    def test_is_bit_identical(self, options, step, sink_size, run, same, tmp_path):
        whole, trainer = run(tmp_path, options, every=step, sink_size=sink_size)
        snapshot = tmp_path / f"step_{step:08d}"
        resumed, _ = run(tmp_path / "more", options, resume=snapshot, sink_size=sink_size)
        assert same(whole, resumed)
        assert int(trainer.network[0].forwards.asnumpy()) == 20

    def test_weights_fit_a_network_with_ordinary_dropout(self, run, linear, tmp_path, cancer):
        _, trainer = run(tmp_path, {})
        plain = nn.SequentialCell(nn.Dropout(p=0.2), linear(seed=1))
        other = Trainer(plain)
        other.load(tmp_path, weights_only=True)
        np.testing.assert_allclose(other.predict(cancer["x"]), trainer.predict(cancer["x"]), atol=1e-6)

    @pytest.mark.long
    def test_ordinary_dropout_is_warned_of(self, linear, batches, tmp_path, caplog):
        network = nn.SequentialCell(nn.Dropout(p=0.2), linear())
        trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.1))
        trainer.fit(batches(64, 4), 1, callbacks=[ModelCheckpoint(tmp_path)], sink_size=1, max_steps=2)
        assert "exact_resume=True" not in caplog.text
        trainer.fit(batches(64, 4), 1, callbacks=[], sink_size=1, resume=tmp_path)
        assert "exact_resume=True draws the same masks" in caplog.text
