"""Cases: programs with the classes, attributes, methods and calls of MindSpore Rec's published ones, made small.

In them a training cell holds a list under the name of a method (`trainable_params`), cells rename the parameters of
others by their prefix, layers have a batch size of their own, callbacks of the older names read all outputs of a step
and evaluate from within, and the dataset is mapped batch by batch.
"""

import contextlib
import time
from types import SimpleNamespace

import mindspore
import mindspore.dataset as ms_dataset
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, context, nn, ops
from mindspore.common.initializer import Uniform, initializer
from mindspore.context import ParallelMode
from mindspore.nn.optim import FTRL, Adam
from mindspore.train.callback import Callback, CheckpointConfig, ModelCheckpoint, TimeMonitor
from mindspore.train.metrics import Metric
from sklearn.metrics import roc_auc_score

import trainer
from tests.dropin.cases import case, plain, weights

FIELDS, VOCABULARY, BATCH = 4, 30, 8
_random = np.random.default_rng(5)
ROWS = {
    "feat_ids": _random.integers(0, VOCABULARY, (40, FIELDS)).astype(np.int32),
    "feat_vals": _random.uniform(0.5, 1.0, (40, FIELDS)).astype(np.float32),
    "label": _random.integers(0, 2, (40, 1)).astype(np.float32),
}


def settings(folder):
    """Return a configuration with the names that the published ones read."""
    return SimpleNamespace(
        batch_size=BATCH,
        field_size=FIELDS,
        vocab_size=VOCABULARY,
        emb_dim=3,
        deep_layer_dim=[6, 5, 5, 4],
        cross_layer_num=2,
        deep_layer_act="relu",
        keep_prob=1.0,
        weight_bias_init=["normal", "normal"],
        emb_init="normal",
        init_args=[-0.1, 0.1],
        l2_coef=8e-5,
        sparse=False,
        parameter_server=False,
        dropout_flag=False,
        use_mixed_precision=True,
        learning_rate=1e-2,
        ftrl_lr=0.1,
        adam_lr=1e-2,
        epochs=2,
        ckpt_path=str(folder),
        loss_file_name=str(folder / "loss.log"),
        eval_file_name=str(folder / "eval.log"),
    )


def create_dataset(first=0, last=40):
    """Return batches that a function of Python has passed through, as the published readers give."""
    rows = ms_dataset.NumpySlicesDataset({n: c[first:last] for n, c in ROWS.items()}, shuffle=False)
    rows = rows.batch(BATCH, drop_remainder=True)
    shaped = lambda ids, vals, label: (ids.reshape(-1, FIELDS), vals.reshape(-1, FIELDS), label.reshape(-1, 1))  # noqa: E731
    return rows.map(shaped, input_columns=list(ROWS), output_columns=list(ROWS), num_parallel_workers=1)


def init_method(method, shape, name):
    values = {"uniform": Uniform(1.0), "one": "ones", "zero": "zeros", "normal": "normal"}[method]
    return Parameter(initializer(values, shape, mindspore.float32), name=name)


def known_values(network, seed=3):
    """Give all parameters values that do not depend on what else the process has drawn."""
    random = np.random.default_rng(seed)
    for parameter in network.get_parameters():
        parameter.set_data(Tensor(random.normal(0, 0.1, parameter.shape).astype(np.float32)))
    return network


def parallel(*modes):
    return context.get_auto_parallel_context("parallel_mode") in modes


class DenseLayer(nn.Cell):
    def __init__(self, input_dim, output_dim, weight_bias_init, act_str, use_activation=True, convert_dtype=True):
        super().__init__()
        weight_init, bias_init = weight_bias_init
        self.weight = init_method(weight_init, [input_dim, output_dim], name="weight")
        self.bias = init_method(bias_init, [output_dim], name="bias")
        self.act_func = self._init_activation(act_str)
        self.matmul = ops.MatMul(transpose_b=False)
        self.bias_add = ops.BiasAdd()
        self.cast = ops.Cast()
        self.dropout = nn.Dropout(p=0.5)
        self.use_activation, self.convert_dtype, self.drop_out = use_activation, convert_dtype, False

    def _init_activation(self, act_str):
        return {"relu": ops.ReLU, "sigmoid": ops.Sigmoid, "tanh": ops.Tanh}[act_str.lower()]()

    def construct(self, x):
        if self.training and self.drop_out:
            x = self.dropout(x)
        weight, bias = self.weight, self.bias
        if self.convert_dtype:
            x = self.cast(x, mindspore.float16)
            weight = self.cast(weight, mindspore.float16)
            bias = self.cast(bias, mindspore.float16)
        out = self.bias_add(self.matmul(x, weight), bias)
        if self.use_activation:
            out = self.act_func(out)
        return self.cast(out, mindspore.float32)


class WideDeepModel(nn.Cell):
    def __init__(self, config):
        super().__init__()
        self.batch_size, self.field_size, self.emb_dim = config.batch_size, config.field_size, config.emb_dim
        self.wide_b = init_method(config.emb_init, [1], name="Wide_b")
        sizes = [self.field_size * self.emb_dim, *config.deep_layer_dim[:2], 1]
        layer = lambda n, **options: DenseLayer(  # noqa: E731
            sizes[n], sizes[n + 1], config.weight_bias_init, config.deep_layer_act, **options
        )
        self.dense_layer_1 = layer(0, convert_dtype=config.use_mixed_precision)
        self.dense_layer_2 = layer(1, convert_dtype=config.use_mixed_precision)
        self.dense_layer_3 = layer(2, convert_dtype=config.use_mixed_precision, use_activation=False)
        self.wide_mul, self.deep_mul = ops.Mul(), ops.Mul()
        self.reduce_sum = ops.ReduceSum(keep_dims=False)
        self.reshape, self.deep_reshape = ops.Reshape(), ops.Reshape()
        self.unique = ops.Unique().shard(((1,),))
        options = {"target": "DEVICE", "sparse": config.sparse}
        self.deep_embeddinglookup = nn.EmbeddingLookup(config.vocab_size, self.emb_dim, **options)
        self.wide_embeddinglookup = nn.EmbeddingLookup(config.vocab_size, 1, **options)
        self.embedding_table = self.deep_embeddinglookup.embedding_table

    def construct(self, id_hldr, wt_hldr):
        mask = self.reshape(wt_hldr, (self.batch_size, self.field_size, 1))
        wide = self.wide_mul(self.wide_embeddinglookup(id_hldr), mask)
        wide_out = self.reshape(self.reduce_sum(wide, 1) + self.wide_b, (-1, 1))
        deep = self.deep_mul(self.deep_embeddinglookup(id_hldr), mask)
        deep = self.deep_reshape(deep, (-1, self.field_size * self.emb_dim))
        deep_out = self.dense_layer_3(self.dense_layer_2(self.dense_layer_1(deep)))
        return wide_out + deep_out, self.embedding_table


class NetWithLossClass(nn.Cell):
    def __init__(self, network, config):
        super().__init__(auto_prefix=False)
        self.no_l2loss = bool(config.parameter_server) or config.sparse
        self.network = network
        self.l2_coef = config.l2_coef
        self.loss = ops.SigmoidCrossEntropyWithLogits()
        self.square = ops.Square()
        self.reducemean_false = ops.ReduceMean(keep_dims=False)
        self.reducesum_false = ops.ReduceSum(keep_dims=False)

    def construct(self, batch_ids, batch_wts, label):
        predict, embedding_table = self.network(batch_ids, batch_wts)
        log_loss = self.loss(predict, label)
        wide_loss = deep_loss = self.reducemean_false(log_loss)
        if not self.no_l2loss:
            deep_loss = deep_loss + self.l2_coef * self.reducesum_false(self.square(embedding_table)) / 2
        return wide_loss, deep_loss


class IthOutputCell(nn.Cell):
    def __init__(self, network, output_index):
        super().__init__()
        self.network = network
        self.output_index = output_index

    def construct(self, x1, x2, x3):
        return self.network(x1, x2, x3)[self.output_index]


class TwoOptimizers(nn.Cell):
    """What the training cells of wide_deep and of multitable have in common."""

    def __init__(self, network, sens, ith_output, ftrl, adam):
        super().__init__()
        self.network = network
        self.network.set_train()
        self.trainable_params = network.trainable_params()
        self.weights_w = ParameterTuple([p for p in self.trainable_params if "wide" in p.name])
        self.weights_d = ParameterTuple([p for p in self.trainable_params if "wide" not in p.name])
        self.optimizer_d = Adam(self.weights_d, loss_scale=sens, **adam)
        self.optimizer_w = FTRL(params=self.weights_w, loss_scale=sens, **ftrl)
        self.hyper_map = ops.HyperMap()
        self.grad_w = ops.GradOperation(get_by_list=True, sens_param=True)
        self.grad_d = ops.GradOperation(get_by_list=True, sens_param=True)
        self.sens = sens
        self.loss_net_w = ith_output(network, output_index=0)
        self.loss_net_d = ith_output(network, output_index=1)
        self.loss_net_w.set_grad()
        self.loss_net_d.set_grad()
        self.reducer_flag = parallel(ParallelMode.DATA_PARALLEL, ParallelMode.HYBRID_PARALLEL)
        self.grad_reducer_w = self.grad_reducer_d = None

    def losses(self, *columns):
        loss_w, loss_d = self.network(*columns)
        sens_w = ops.Fill()(ops.DType()(loss_w), ops.Shape()(loss_w), self.sens)
        sens_d = ops.Fill()(ops.DType()(loss_d), ops.Shape()(loss_d), self.sens)
        grads_w = self.grad_w(self.loss_net_w, self.weights_w)(*columns, sens_w)
        grads_d = self.grad_d(self.loss_net_d, self.weights_d)(*columns, sens_d)
        if self.reducer_flag:
            grads_w, grads_d = self.grad_reducer_w(grads_w), self.grad_reducer_d(grads_d)
        return ops.depend(loss_w, self.optimizer_w(grads_w)), ops.depend(loss_d, self.optimizer_d(grads_d))


class TrainStepWrap(TwoOptimizers):
    def __init__(self, network, sens=1024.0):
        ftrl = {"learning_rate": 5e-2, "l1": 1e-8, "l2": 1e-8, "initial_accum": 1.0}
        super().__init__(network, sens, IthOutputCell, ftrl, {"learning_rate": 3.5e-4, "eps": 1e-8})

    def construct(self, batch_ids, batch_wts, label):
        return self.losses(batch_ids, batch_wts, label)


class PredictWithSigmoid(nn.Cell):
    def __init__(self, network):
        super().__init__()
        self.network = network
        self.sigmoid = ops.Sigmoid()

    def construct(self, batch_ids, batch_wts, labels):
        logits = self.network(batch_ids, batch_wts)[0]
        return logits, self.sigmoid(logits), labels


class AUCMetric(Metric):
    def __init__(self):
        super().__init__()
        self.clear()

    def clear(self):
        self.true_labels, self.pred_probs = [], []

    def update(self, *inputs):
        self.pred_probs.extend(inputs[1].asnumpy().flatten().tolist())
        self.true_labels.extend(inputs[2].asnumpy().flatten().tolist())

    def eval(self):
        return roc_auc_score(self.true_labels, self.pred_probs)


class LossCallBack(Callback):
    def __init__(self, config=None, per_print_times=1):
        super().__init__()
        self._per_print_times, self.config = per_print_times, config

    def step_end(self, run_context):
        cb_params = run_context.original_args()
        if cb_params.net_outputs is None:
            return
        outputs = cb_params.net_outputs if isinstance(cb_params.net_outputs, tuple) else (cb_params.net_outputs,)
        cur_step_in_epoch = (cb_params.cur_step_num - 1) % cb_params.batch_num + 1
        if self.config is not None and cb_params.cur_step_num % self._per_print_times == 0:
            with open(self.config.loss_file_name, "a+") as loss_file:
                losses = [output.asnumpy().tolist() for output in outputs]
                loss_file.write(f"epoch {cb_params.cur_epoch_num}, step {cur_step_in_epoch}, losses {losses}\n")


class EvalCallBack(Callback):
    def __init__(self, model, eval_dataset, auc_metric, config):
        super().__init__()
        self.model, self.eval_dataset, self.aucMetric, self.config = model, eval_dataset, auc_metric, config
        self.aucMetric.clear()

    def epoch_end(self, run_context):
        self.aucMetric.clear()
        started = time.time()
        out = self.model.eval(self.eval_dataset, dataset_sink_mode=not self.config.sparse)
        assert time.time() >= started
        with open(self.config.eval_file_name, "a+") as file_out:
            file_out.write(f"{list(out.values())}\n")


@contextlib.contextmanager
def graph_mode():
    """As those programs have it; operator by operator MindSpore rounds some expressions differently."""
    before = mindspore.get_context("mode")
    context.set_context(mode=context.GRAPH_MODE)
    try:
        yield
    finally:
        context.set_context(mode=before)


def written(folder, network):
    """Return all that a program has left: weights, the logs of its callbacks, the files and the last one's values."""
    files = sorted(path.name for path in folder.glob("*.ckpt"))
    graphs = sorted(path.name for path in folder.glob("*.meta"))
    saved = {name: plain(value) for name, value in mindspore.load_checkpoint(str(folder / files[-1])).items()}
    logs = [path.read_text() for path in sorted(folder.glob("*.log"))]
    return repr((logs, weights(network), files, graphs, saved))  # as text, to compare every bit


def train_eval(kind, config, folder, network, train_net, eval_net, data=create_dataset, **options):
    """Train and evaluate as the published `train_and_eval` does."""
    ds_train, ds_eval = data(), data(24, 40)
    train_net.set_train()
    auc_metric = AUCMetric()
    model = kind(train_net, eval_network=eval_net, metrics={"auc": auc_metric})
    eval_callback = EvalCallBack(model, ds_eval, auc_metric, config)
    ckptconfig = CheckpointConfig(save_checkpoint_steps=ds_train.get_dataset_size(), keep_checkpoint_max=5)
    ckpoint_cb = ModelCheckpoint(prefix="train", directory=config.ckpt_path, config=ckptconfig)
    callbacks = [TimeMonitor(ds_train.get_dataset_size()), eval_callback, LossCallBack(config=config), ckpoint_cb]
    with graph_mode():
        model.train(config.epochs, ds_train, callbacks=callbacks, **options)
    return written(folder, network)


def wide_deep(config):
    net = known_values(WideDeepModel(config))
    return net, TrainStepWrap(NetWithLossClass(net, config)), PredictWithSigmoid(net)


@case("MindRec's wide_deep: two losses, FTRL and Adam in one training cell")
def _(kind, folder):
    config = settings(folder)
    return train_eval(kind, config, folder, *wide_deep(config), dataset_sink_mode=True)


class Receiver:
    """Messages of several rows; ends where the real one would wait."""

    def __init__(self):
        self.messages = [slice(first, first + 10) for first in range(0, len(ROWS["label"]), 10)]

    def recv(self):
        message = self.messages.pop(0)
        return [tuple(column[row] for column in ROWS.values()) for row in range(message.start, message.stop)]


class StreamingDataset:
    def __init__(self, receiver):
        self.data_, self.receiver_ = [], receiver

    def __getitem__(self, item):
        while not self.data_:
            self.data_ = self.receiver_.recv()
        return self.data_.pop()

    def __len__(self):
        return len(ROWS["label"])


@case("MindRec's online_learning: `online_train` on rows as they come")
def _(kind, folder):
    config = settings(folder)
    network, train_net, _ = wide_deep(config)
    rows = StreamingDataset(Receiver())
    dataset = ms_dataset.GeneratorDataset(rows, column_names=["id", "weight", "label"], num_parallel_workers=1)
    dataset = dataset.batch(config.batch_size)
    train_net.set_train()
    ckptconfig = CheckpointConfig(save_checkpoint_steps=5, keep_checkpoint_max=5)
    ckpoint_cb = ModelCheckpoint(prefix="widedeep_train", directory=config.ckpt_path, config=ckptconfig)
    callbacks = [TimeMonitor(1), LossCallBack(config=config), ckpoint_cb]
    with graph_mode():
        if kind is trainer.Model:
            trainer.RecModel(train_net).online_train(dataset, callbacks=callbacks, dataset_sink_mode=True)
        else:  # MindRec's loop never ends: the same rows in one epoch
            kind(train_net).train(1, dataset, callbacks=callbacks, dataset_sink_mode=False)
    return written(folder, network)
