import gc
import weakref

from mindspore import Tensor, nn

from callbacks import LambdaCallback
from trainer.run.tally import LossMeter
from trainer.state import StepOutputs
from trainer.trainer import Trainer


def test_losses_that_wait_to_be_averaged_keep_no_batches_alive(linear, batches):

    chunks = []
    watch = LambdaCallback(
        on_train_step_end=lambda trainer: chunks.append(weakref.ref(trainer.state.outputs.chunk.arrays[0]))
    )
    network = linear()
    optimizer = nn.SGD(network.trainable_params(), 0.1)
    alive = []

    def count(trainer):
        gc.collect()
        alive.append(sum(chunk() is not None for chunk in chunks))

    trainer = Trainer(network, nn.BCEWithLogitsLoss(), optimizer)
    trainer.fit(batches(), callbacks=[watch, LambdaCallback(on_train_end=count)], sink_size=1)
    assert len(chunks) == 18
    assert alive[0] <= 4


def test_a_mean_of_losses_without_their_data_is_the_same():
    meter = LossMeter()
    meter.add(StepOutputs(Tensor([1.0, 2.0]), None, object(), 2, 64))
    meter.add(StepOutputs(Tensor(4.0), None, object(), 1, 16))
    assert meter.value() == (1 * 32 + 2 * 32 + 4 * 16) / 80
