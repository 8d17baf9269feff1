"""A trainer may load, evaluate, predict and fit in any order; a loaded snapshot goes on as its own trainer does."""

import numpy as np
import pytest
from mindspore import Parameter, Tensor, load_param_into_net, nn, ops, save_checkpoint

from callbacks import LambdaCallback, SkipNonFinite
from trainer import Trainer
from trainer.embedding import Embedding
from trainer.errors import CheckpointError, CheckpointMismatchError

ORDERS = [
    ("load", "fit"),
    ("load", "evaluate", "predict", "fit"),
    ("evaluate", "fit", "load", "load", "fit"),
]
_random = np.random.default_rng(3)
WEIGHTS = _random.normal(0, 0.3, (1, 4)).astype(np.float32)
DENSE = [(_random.normal(0, 1, (8, 4)).astype(np.float32), np.ones((8, 1), np.float32)) for _ in range(6)]
BAD = [(np.full_like(x, np.inf) if index == 2 else x, y) for index, (x, y) in enumerate(DENSE)]
IDS = [(_random.integers(0, 20, (8, 1)).astype(np.int32), y) for _, y in DENSE]


class Table(nn.Cell):
    def __init__(self, capacity=None, mode="sparse"):
        super().__init__()
        self.embedding = Embedding(4, capacity, name="ids", seed=1, mode=mode)
        self.head = nn.Dense(4, 1, weight_init=Tensor(WEIGHTS))

    def construct(self, ids):
        return self.head(ops.squeeze(self.embedding(ids), 1))


def dense_trainer():
    net = nn.SequentialCell(nn.Dense(4, 4, weight_init=Tensor(np.tile(WEIGHTS, (4, 1)))), nn.Dense(4, 1, "ones"))
    options = {"amp_level": "O2", "boost_level": "O1", "boost_config": {"freeze_after": 4}}
    return Trainer(net, nn.MSELoss(), nn.Adam(net.trainable_params(), 0.01), seed=5, **options)


def table_trainer():
    net = Table()
    adam = nn.Adam(net.trainable_params(), 0.01)
    return Trainer(net, nn.MSELoss(), adam, seed=5, gradient_accumulation_steps=2)


def state_of(trainer, data, values):
    """Return everything a verb may depend on: parameters, counters, loss scale, and what the network predicts."""
    arrays = values(trainer.network, trainer.optimizer)
    counters = trainer.read_counters(), trainer.read_bad_steps(), trainer.loss_scale, dict(vars(trainer.state.progress))
    arrays["predicted"] = trainer.predict([batch[:1] for batch in data])
    return {name: array.tolist() for name, array in arrays.items()}, counters


@pytest.mark.long
@pytest.mark.parametrize(("make", "data", "trained"), [(dense_trainer, DENSE, BAD), (table_trainer, IDS, IDS)])
def test_any_order_ends_where_the_trainer_of_the_snapshot_ends(make, data, trained, values, tmp_path):
    options = {"callbacks": [SkipNonFinite()], "sink_size": 1}
    own = make()
    own.fit(trained, **options)
    own.save(tmp_path)
    saved = state_of(own, data, values)
    own.fit(data, **options)
    ended = state_of(own, data, values)
    assert saved != ended
    if data is DENSE:
        assert 3 in own.read_bad_steps()
    for order in ORDERS:
        trainer = make()
        verbs = {
            "load": lambda trainer=trainer: trainer.load(tmp_path),
            "evaluate": lambda trainer=trainer: trainer.evaluate(data),
            "predict": lambda trainer=trainer: trainer.predict([batch[:1] for batch in data]),
            "fit": lambda trainer=trainer: trainer.fit(data, **options),
        }
        for number, verb in enumerate(order):
            verbs[verb]()
            if number and set(order[:number]) == {"load"}:
                assert verb == "fit" or state_of(trainer, data, values) == saved, order
        assert state_of(trainer, data, values) == ended, order


def test_bad_steps_keep_their_numbers_over_a_training_without_a_guard(tmp_path):
    net = nn.Dense(4, 1)
    trainer = Trainer(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 0.01))
    trainer.fit(BAD, callbacks=[SkipNonFinite()])
    trainer.fit(DENSE, callbacks=[])
    assert trainer.read_bad_steps() == [3]
    trainer.fit(BAD, callbacks=[SkipNonFinite()])
    assert trainer.read_bad_steps() == [3, 15]
    assert trainer.read_counters()["skipped"] == 2


def test_tables_that_were_loaded_and_not_yet_attached_are_not_saved_away(tmp_path):
    own = table_trainer()
    own.fit(IDS, callbacks=[])
    own.save(tmp_path)
    trainer = table_trainer()
    trainer.load(tmp_path)
    with pytest.raises(CheckpointError, match="call fit, evaluate or predict first"):
        trainer.save(tmp_path / "again")


@pytest.mark.parametrize("make", [dense_trainer, table_trainer])
def test_what_is_saved_before_the_first_data_can_be_gone_back_to(make, tmp_path):
    data = DENSE if make is dense_trainer else IDS
    first = make()
    first.save(tmp_path)
    inputs = [batch[:1] for batch in data]
    before = first.predict(inputs)
    first.fit(data, callbacks=[])
    again = make()
    again.load(tmp_path)
    again.fit(data, callbacks=[])
    np.testing.assert_array_equal(again.predict(inputs), first.predict(inputs))
    if make is table_trainer:  # the rows are not in the snapshot
        with pytest.raises(CheckpointMismatchError, match=r"before the first data and has no rows of .*\['ids'\]"):
            again.load(tmp_path)
        with pytest.raises(CheckpointMismatchError, match="no rows"):
            first.rollback()
    else:
        again.load(tmp_path)
        np.testing.assert_array_equal(again.predict(inputs), before)


@pytest.mark.parametrize("evaluated", [False, True])
def test_parameters_alone_go_from_a_network_with_sparse_tables_to_one_with_dense_ones(evaluated, tmp_path):
    own = table_trainer()
    own.fit(IDS, callbacks=[])
    own.save(tmp_path)
    net = Table(capacity=20, mode="dense")
    trainer = Trainer(net, nn.MSELoss(), nn.Adam(net.trainable_params(), 0.01), gradient_accumulation_steps=2)
    if evaluated:
        trainer.evaluate(IDS)
    trainer.load(tmp_path, strict=False)
    np.testing.assert_array_equal(net.head.weight.asnumpy(), own.network.head.weight.asnumpy())
    trainer.fit(IDS, callbacks=[])


@pytest.mark.parametrize(("sink_size", "accumulate"), [(2, 1), (1, 2)])
def test_a_training_after_parameters_were_replaced_trains_these(sink_size, accumulate):
    """MindSpore's `load_param_into_net` gives parameters other memory, to which compiled loops do not write."""
    net = nn.Dense(4, 1, weight_init=Tensor(WEIGHTS), bias_init="zeros")
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    trainer, found = Trainer(net, nn.MSELoss(), optimizer, gradient_accumulation_steps=accumulate), []
    for _ in range(3):
        parameters = {"weight": Parameter(WEIGHTS), "bias": Parameter(np.zeros(1, np.float32))}
        assert load_param_into_net(net, parameters) == ([], [])
        trainer.fit(DENSE, callbacks=[], sink_size=sink_size)
        found.append(net.weight.asnumpy().tolist())
    assert found[0] == found[1] == found[2] != WEIGHTS.tolist()


@pytest.mark.parametrize(("sink_size", "accumulate"), [(2, 1), (1, 2)])
@pytest.mark.parametrize("hook", ["on_train_begin", "on_train_step_end"])
def test_parameters_that_a_callback_replaces_are_trained_on(hook, sink_size, accumulate, caplog):
    def trained(assign):
        def replace(trainer):
            if trainer.state.progress.global_step in (2, 4):
                assign(trainer.network.weight, Tensor(2 * WEIGHTS))

        net = nn.Dense(4, 1, weight_init=Tensor(WEIGHTS), bias_init="zeros")
        optimizer = nn.SGD(net.trainable_params(), 0.1)
        trainer = Trainer(net, nn.MSELoss(), optimizer, gradient_accumulation_steps=accumulate)
        for _ in range(2):
            trainer.fit(DENSE, 2, callbacks=[LambdaCallback(**{hook: replace})], sink_size=sink_size)
        return net.weight.asnumpy().tolist()

    assert trained(ops.assign) == trained(Parameter.set_data)
    assert ("a callback replaced parameters" in caplog.text) == (hook == "on_train_step_end")


def test_what_stays_as_it_was_is_named(tmp_path, caplog):
    """Rows that a file of weights has not, the rule of rows that another Trainer trained, frozen parameters."""
    own = table_trainer()
    own.fit(IDS, callbacks=[])
    assert not caplog.messages
    path = tmp_path / "weights.ckpt"
    save_checkpoint(own.network, str(path))
    for verb in (own.load, own.init_from):
        verb(path)
        assert caplog.messages.pop() == f"{path} has no rows of the sparse tables ids; they stay as they are"
        caplog.clear()
    net = own.network
    Trainer(net, nn.MSELoss(), nn.Adam(net.trainable_params(), 0.1)).fit(IDS, callbacks=[])
    assert not caplog.messages
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    net.head.weight.requires_grad = False
    Trainer(net, nn.MSELoss(), optimizer).fit(IDS, callbacks=[])
    rule, frozen = caplog.messages
    assert rule.startswith(
        "table 'ids' keeps the RowAdam of the Trainer that trained it first; the dense parameters use RowSGD"
    )
    assert frozen.startswith("head.weight: requires_grad is False, but the optimizer was made with it and trains it")


@pytest.mark.parametrize("freezes", [True, False])
@pytest.mark.parametrize("verb", ["fit", "online_train"])
def test_a_callback_that_freezes_parameters_is_told_that_it_has_no_effect(verb, freezes, caplog):
    net = nn.SequentialCell(nn.Dense(4, 4), nn.Dense(4, 1))
    for parameter in net[0].get_parameters():
        parameter.requires_grad = freezes

    def change(trainer):
        for parameter in trainer.network[0].get_parameters():
            parameter.requires_grad = not freezes

    trainer = Trainer(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 0.1))
    options = {"window": 8} if verb == "online_train" else {}
    getattr(trainer, verb)(DENSE, callbacks=[LambdaCallback(on_train_begin=change)], **options)
    assert caplog.text.count("a callback changed requires_grad of 0.bias, 0.weight, which has no effect") == 1
