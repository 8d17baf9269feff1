"""Cases: programs built as MindSpore Rec's own are, which differ from one class to the other in nothing but the class.

What those programs have in common: a network of (ids, weights, label), a cell that adds the loss, a cell that holds
one optimizer or two and is the whole training step, an evaluation cell of three outputs with a metric of one's own,
callbacks of the older names that read all outputs of a step, and an evaluation called from within a callback.
"""

import contextlib

import mindspore
import mindspore.dataset as ms_dataset
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from mindspore import train as ms
from sklearn.metrics import roc_auc_score

import trainer
from tests.dropin.cases import case, plain, weights

FIELDS, VOCABULARY, DIM, BATCH = 4, 30, 3, 8
_random = np.random.default_rng(5)
ROWS = {
    "id": _random.integers(0, VOCABULARY, (40, FIELDS)).astype(np.int32),
    "weight": _random.uniform(0.5, 1.0, (40, FIELDS)).astype(np.float32),
    "label": _random.integers(0, 2, (40, 1)).astype(np.float32),
}


def dataset(first=0, last=40):
    return ms_dataset.NumpySlicesDataset({n: c[first:last] for n, c in ROWS.items()}, shuffle=False).batch(BATCH)


def table(name, rows, dim, seed):
    values = np.random.default_rng(seed).normal(0, 0.1, (rows, dim)).astype(np.float32)
    return Parameter(Tensor(values), name=name)


class Deep(nn.Cell):
    def __init__(self, width):
        super().__init__()
        self.first = table("first", width, 5, 1)
        self.last = table("last", 5, 1, 2)

    def construct(self, x):
        return ops.matmul(ops.relu(ops.matmul(x, self.first)), self.last)


class WideDeep(nn.Cell):
    """A linear part and a perceptron over one vector per field; returns the logit and the table."""

    def __init__(self):
        super().__init__()
        self.wide_w = table("wide_w", VOCABULARY, 1, 3)
        self.wide_b = table("wide_b", 1, 1, 4)
        self.embedding_table = table("vectors", VOCABULARY, DIM, 5)
        self.deep = Deep(FIELDS * DIM)

    def construct(self, ids, values):
        mask = values.expand_dims(2)
        wide = (ops.gather(self.wide_w, ids, 0) * mask).sum(1) + self.wide_b
        vectors = ops.gather(self.embedding_table, ids, 0) * mask
        return wide + self.deep(vectors.reshape(-1, FIELDS * DIM)), self.embedding_table


class WideDeepLoss(nn.Cell):
    """Two losses: that of the wide part, and the deep one's with a penalty."""

    def __init__(self, network):
        super().__init__(auto_prefix=False)
        self.network = network

    def construct(self, ids, values, label):
        logit, vectors = self.network(ids, values)
        loss = ops.binary_cross_entropy_with_logits(logit, label, None, None, "mean")
        return loss, loss + 1e-3 * ops.square(vectors).sum() / 2


class Nth(nn.Cell):
    def __init__(self, network, place):
        super().__init__(auto_prefix=False)
        self.network, self.place = network, place

    def construct(self, *columns):
        return self.network(*columns)[self.place]


class TwoOptimizers(nn.Cell):
    """The whole training step: FTRL for what is wide, Adam for the rest, gradients scaled by a number."""

    def __init__(self, network, scale=64.0):
        super().__init__()
        self.network = network
        self.network.set_train()
        parameters = network.trainable_params()
        self.wide = ParameterTuple([p for p in parameters if "wide" in p.name])
        self.rest = ParameterTuple([p for p in parameters if "wide" not in p.name])
        self.optimizer_w = nn.FTRL(self.wide, learning_rate=5e-2, l1=1e-8, l2=1e-8, initial_accum=1.0, loss_scale=scale)
        self.optimizer_d = nn.Adam(self.rest, learning_rate=1e-2, eps=1e-8, loss_scale=scale)
        self.gradient = ops.GradOperation(get_by_list=True, sens_param=True)
        self.first, self.second = Nth(network, 0), Nth(network, 1)
        self.scale = scale

    def construct(self, ids, values, label):
        one, two = self.network(ids, values, label)
        of_wide = self.gradient(self.first, self.wide)(ids, values, label, ops.full_like(one, self.scale))
        of_rest = self.gradient(self.second, self.rest)(ids, values, label, ops.full_like(two, self.scale))
        return ops.depend(one, self.optimizer_w(of_wide)), ops.depend(two, self.optimizer_d(of_rest))


class Scores(nn.Cell):
    """What is evaluated: logit, probability and label."""

    def __init__(self, network):
        super().__init__(auto_prefix=False)
        self.network = network

    def construct(self, ids, values, label):
        logit = self.network(ids, values)[0]
        return logit, ops.sigmoid(logit), label


class Auc(ms.Metric):
    """A metric that reads all outputs of the evaluation cell."""

    def __init__(self):
        super().__init__()
        self.clear()

    def clear(self):
        self.scores, self.labels = [], []

    def update(self, *inputs):
        self.scores += inputs[1].asnumpy().ravel().tolist()
        self.labels += inputs[2].asnumpy().ravel().tolist()

    def eval(self):
        return roc_auc_score(self.labels, self.scores)


class NoteLosses(ms.Callback):
    """Reads every output of a training step, as a callback of the older names does."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def step_end(self, run_context):
        params = run_context.original_args()
        outputs = params.net_outputs if isinstance(params.net_outputs, tuple) else (params.net_outputs,)
        place = (params.cur_step_num - 1) % params.batch_num + 1
        self.seen.append((params.cur_epoch_num, params.cur_step_num, place, [float(o.asnumpy()) for o in outputs]))


class EvaluateEachEpoch(ms.Callback):
    """Evaluates from within a training."""

    def __init__(self, model, data):
        super().__init__()
        self.model, self.data, self.seen = model, data, []

    def epoch_end(self, run_context):
        self.seen.append(list(self.model.eval(self.data, dataset_sink_mode=True).values()))


@contextlib.contextmanager
def graph_mode():
    """As those programs have it; operator by operator MindSpore rounds some expressions differently."""
    before = mindspore.get_context("mode")
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    try:
        yield
    finally:
        mindspore.set_context(mode=before)


def program(kind, folder, network, step, epochs=2, **options):
    """Train with the usual callbacks; return all that can be seen of it."""
    model = kind(step, eval_network=Scores(network), metrics={"auc": Auc()})
    losses, evaluations = NoteLosses(), EvaluateEachEpoch(model, dataset(24, 40))
    config = ms.CheckpointConfig(save_checkpoint_steps=4, keep_checkpoint_max=5)
    saving = ms.ModelCheckpoint(prefix="train", directory=str(folder), config=config)
    with graph_mode():
        model.train(epochs, dataset(), callbacks=[ms.TimeMonitor(5), evaluations, losses, saving], **options)
    files = sorted(path.name for path in folder.glob("*.ckpt"))
    saved = {name: plain(value) for name, value in mindspore.load_checkpoint(str(folder / files[-1])).items()}
    return repr((losses.seen, evaluations.seen, weights(network), files, saved))  # as text, to compare every bit


@case("MindRec's wide_deep: two losses, FTRL and Adam in one training cell")
def _(kind, folder):
    network = WideDeep()
    return program(kind, folder, network, TwoOptimizers(WideDeepLoss(network)), dataset_sink_mode=True)


@case("MindRec's wide_deep: `sink_size` of a whole epoch")
def _(kind, folder):
    network = WideDeep()
    options = {"dataset_sink_mode": True, "sink_size": 5}
    return program(kind, folder, network, TwoOptimizers(WideDeepLoss(network)), **options)


class DeepFM(WideDeep):
    """The same with products of pairs of vectors."""

    def construct(self, ids, values):
        mask = values.expand_dims(2)
        weight = ops.gather(self.wide_w, ids, 0)
        vectors = ops.gather(self.embedding_table, ids, 0) * mask
        pairs = 0.5 * (ops.square(vectors.sum(1)) - ops.square(vectors).sum(1)).sum(1).reshape(-1, 1)
        deep = self.deep(vectors.reshape(-1, FIELDS * DIM))
        return (weight * mask).sum(1) + self.wide_b + pairs + deep, weight, vectors


class DeepFMLoss(nn.Cell):
    def __init__(self, network):
        super().__init__(auto_prefix=False)
        self.network = network

    def construct(self, ids, values, label):
        logit, weight, vectors = self.network(ids, values)
        penalty = 1e-3 * (ops.square(weight).sum() + ops.square(vectors).sum()) / 2
        return ops.binary_cross_entropy_with_logits(logit, label, None, None, "mean") + penalty


class OneOptimizer(nn.Cell):
    """The whole training step with one loss and one optimizer."""

    def __init__(self, network, scale=100.0):
        super().__init__(auto_prefix=False)
        self.network = network
        self.network.set_train()
        self.weights = ParameterTuple(network.trainable_params())
        self.optimizer = nn.Adam(self.weights, learning_rate=1e-2, eps=1e-8, loss_scale=scale)
        self.gradient = ops.GradOperation(get_by_list=True, sens_param=True)
        self.scale = scale

    def construct(self, ids, values, label):
        loss = self.network(ids, values, label)
        scaled = ops.fill(loss.dtype, loss.shape, self.scale)
        gradients = self.gradient(self.network, self.weights)(ids, values, label, scaled)
        return ops.depend(loss, self.optimizer(gradients))


@case("MindRec's deepfm: one optimizer in a training cell")
def _(kind, folder):
    network = DeepFM()
    return program(kind, folder, network, OneOptimizer(DeepFMLoss(network)))


class MultiTable(WideDeep):
    """A table per field instead of one for all."""

    def __init__(self):
        super().__init__()
        self.tables = ParameterTuple([table(f"field_{n}", VOCABULARY, DIM, 10 + n) for n in range(FIELDS)])

    def construct(self, ids, values):
        vectors = ()
        for place in range(FIELDS):
            vectors += (ops.gather(self.tables[place], ids[:, place], 0) * values[:, place : place + 1],)
        wide = (ops.gather(self.wide_w, ids, 0) * values.expand_dims(2)).sum(1) + self.wide_b
        return wide + self.deep(ops.concat(vectors, 1)), self.embedding_table


@case("MindRec's multitable: a table per field")
def _(kind, folder):
    network = MultiTable()
    return program(kind, folder, network, TwoOptimizers(WideDeepLoss(network)), dataset_sink_mode=True)


class Receiver:
    """Rows as they come, one at a time; ends where the real one would wait."""

    def __iter__(self):
        for row in range(len(ROWS["label"])):
            yield tuple(column[row] for column in ROWS.values())


@case("MindRec's online_learning: `online_train` on rows as they come")
def _(kind, folder):
    network, losses = WideDeep(), NoteLosses()
    step = TwoOptimizers(WideDeepLoss(network))
    step.set_train()
    data = ms_dataset.GeneratorDataset(Receiver(), list(ROWS), shuffle=False, num_parallel_workers=1).batch(BATCH)
    config = ms.CheckpointConfig(save_checkpoint_steps=2, keep_checkpoint_max=5)
    saving = ms.ModelCheckpoint(prefix="online", directory=str(folder), config=config)
    callbacks = [ms.TimeMonitor(1), losses, saving]
    with graph_mode():
        if kind is trainer.Model:
            trainer.RecModel(step).online_train(data, callbacks=callbacks, dataset_sink_mode=True)
        else:  # what MindRec's loop does, which is not to be had, on rows that end
            data.dataset_size = len(ROWS["label"]) // BATCH
            kind(step).train(1, data, callbacks=callbacks, dataset_sink_mode=False)
    steps = [(step_, outputs) for _, step_, _, outputs in losses.seen]
    return repr((steps, weights(network), len(list(folder.glob("*.ckpt")))))


@case("nn.TrainOneStepWithLossScaleCell: loss, overflow and scale of every step")
def _(kind, folder):
    network = WideDeep()
    loss = Nth(WideDeepLoss(network), 1)
    optimizer = nn.Adam(network.trainable_params(), 1e-2)
    scale = nn.DynamicLossScaleUpdateCell(2.0**12, 2, 2)
    losses = NoteLosses()
    step = LossScaleOnCpu(loss, optimizer, scale_sense=scale)
    with graph_mode():
        kind(step).train(2, dataset(), callbacks=[losses])
    return repr((losses.seen, weights(network), plain(step.scale_sense.value())))


class LossScaleOnCpu(nn.TrainOneStepWithLossScaleCell):
    """MindSpore's cell with a check for overflow that has a kernel on CPU, so that its `Model` runs it at all."""

    def get_overflow_status(self, status, compute_output):
        return ops.logical_not(mindspore.amp.all_finite(compute_output))
