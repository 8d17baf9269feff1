"""With MindSpore's seed and none of the Trainer's, rows come in the order of `mindspore.Model`, call after call."""

import random

import mindspore
import mindspore.dataset as ms_dataset
import numpy as np
import pytest
from mindspore import Model, nn

from callbacks import ModelCheckpoint
from trainer import Model as OurModel
from trainer import Trainer

ROWS = np.arange(24, dtype=np.float32).reshape(-1, 1)
COLUMNS = {"x": ROWS, "y": ROWS**2}
EPOCHS = 2


class Rows:
    def __len__(self):
        return len(ROWS)

    def __getitem__(self, row):
        return ROWS[row], ROWS[row] ** 2


def shuffled(**options):
    return ms_dataset.NumpySlicesDataset(COLUMNS, shuffle=True, **options)


def moved(values):
    return (values + np.float32(np.random.rand() + random.random())).astype(np.float32)


PIPELINES = {
    "arrays": lambda: shuffled(),
    "rows of a generator": lambda: ms_dataset.GeneratorDataset(Rows(), ["x", "y"], shuffle=True),
    "a buffer": lambda: ms_dataset.NumpySlicesDataset(COLUMNS, shuffle=False).shuffle(7),
    "drawn with replacement": lambda: ms_dataset.NumpySlicesDataset(
        COLUMNS, sampler=ms_dataset.RandomSampler(replacement=True, num_samples=24)
    ),
    "half of the rows, by the seed when it was made": lambda: shuffled(num_shards=2, shard_id=0),
    "repeated": lambda: shuffled().repeat(2),
    "the larger part of a split": lambda: ms_dataset.NumpySlicesDataset(COLUMNS, shuffle=False).split([16, 8])[0],
    "moved at random in Python": lambda: shuffled().map(
        moved, "x", num_parallel_workers=1, python_multiprocessing=False
    ),
}


class Losses(mindspore.train.Callback):
    def __init__(self):
        self.values = []

    def on_train_step_end(self, run_context):
        self.values.append(float(run_context.original_args().net_outputs.asnumpy()))


def make(kind, **options):
    network = nn.Dense(1, 1, weight_init="ones", bias_init="zeros")
    return kind(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 1e-3), **options)


@pytest.fixture(scope="module")
def models():
    return make(Model), make(OurModel)


@pytest.fixture(autouse=True)
def kept_seeds():
    states = mindspore.get_seed(), random.getstate(), np.random.get_state()
    yield
    mindspore.common.seed._GLOBAL_SEED = states[0]
    ms_dataset.config.set_seed(5489)
    random.setstate(states[1])
    np.random.set_state(states[2])


def global_state():
    return mindspore.get_seed(), ms_dataset.config.get_seed(), random.getstate()[1], np.random.get_state()[1].tolist()


@pytest.mark.long(
    but=[
        "arrays-mindspore",
        "a buffer-dataset",
        "drawn with replacement-mindspore",
        "moved at random in Python-dataset",
    ]
)
@pytest.mark.parametrize("set_seed", [mindspore.set_seed, ms_dataset.config.set_seed], ids=["mindspore", "dataset"])
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_losses_and_all_that_is_global_are_those_of_mindspore(models, pipeline, set_seed):
    losses, states = [], []
    for model in models:
        set_seed(1)
        data, seen = PIPELINES[pipeline]().batch(4), Losses()
        for _ in range(2):
            model.train(EPOCHS, data, callbacks=[seen])
        losses.append(seen.values)
        states.append(global_state())
    assert losses[1] == losses[0]
    assert states[1] == states[0]


def order_of(trainer, data, epochs=EPOCHS, **options):
    seen = Losses()
    trainer.fit(data, epochs, callbacks=[seen, *options.pop("callbacks", [])], sink_size=1, **options)
    return seen.values


def test_a_resumed_run_takes_the_seed_of_its_snapshot(tmp_path):
    mindspore.set_seed(1)
    whole = make(Trainer)
    order_of(whole, shuffled().batch(4))  # a call before: the next one begins the order again
    expected = order_of(whole, shuffled().batch(4), callbacks=[ModelCheckpoint(tmp_path, every=4, keep_last=9)])
    mindspore.set_seed(2)
    resumed = make(Trainer)
    assert len(expected) == 12
    assert order_of(resumed, shuffled().batch(4), resume=tmp_path / "step_00000016") == expected[4:]


def test_a_seed_of_the_trainer_prevails_and_arrays_follow_mindspores():
    def losses(data, **options):
        return order_of(make(Trainer, **options), data, **({"batch_size": 4} if isinstance(data, tuple) else {}))

    given = losses(shuffled().batch(4), seed=3), losses((ROWS, ROWS**2), seed=3)
    mindspore.set_seed(1)
    assert (losses(shuffled().batch(4), seed=3), losses((ROWS, ROWS**2), seed=3)) == given
    drawn = losses((ROWS, ROWS**2))
    assert drawn == losses((ROWS, ROWS**2), seed=1)
    mindspore.set_seed(2)
    assert losses((ROWS, ROWS**2)) != drawn
