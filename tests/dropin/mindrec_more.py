"""Cases: MindSpore Rec's deepfm, deep_and_cross and multitable, as `mindrec` has wide_deep and online_learning."""

import mindspore
import mindspore.dataset as ms_dataset
import numpy as np
from mindspore import ParameterTuple, nn, ops
from mindspore.nn.optim import Adam

from tests.dropin.cases import case, plain, weights
from tests.dropin.mindrec import (
    BATCH,
    CheckpointConfig,
    DenseLayer,
    LossCallBack,
    ModelCheckpoint,
    TimeMonitor,
    TwoOptimizers,
    create_dataset,
    graph_mode,
    init_method,
    known_values,
    settings,
    train_eval,
    written,
)


class DeepFMModel(nn.Cell):
    def __init__(self, config):
        super().__init__()
        self.batch_size, self.field_size, self.emb_dim = config.batch_size, config.field_size, config.emb_dim
        self.fm_w = init_method("normal", [config.vocab_size, 1], name="W_l2")
        self.embedding_table = init_method("normal", [config.vocab_size, self.emb_dim], name="V_l2")
        sizes = [self.field_size * self.emb_dim, config.deep_layer_dim[0], 1]
        self.dense_layer_1 = DenseLayer(sizes[0], sizes[1], config.weight_bias_init, "relu", convert_dtype=False)
        self.dense_layer_2 = DenseLayer(sizes[1], sizes[2], config.weight_bias_init, "relu", False, False)
        self.Gatherv2, self.Mul = ops.Gather(), ops.Mul()
        self.ReduceSum = ops.ReduceSum(keep_dims=False)
        self.Reshape, self.Square = ops.Reshape(), ops.Square()
        self.Shape, self.Tile, self.Concat, self.Cast = ops.Shape(), ops.Tile(), ops.Concat(), ops.Cast()

    def construct(self, id_hldr, wt_hldr):
        mask = self.Reshape(wt_hldr, (self.batch_size, self.field_size, 1))
        linear_out = self.ReduceSum(self.Mul(self.Gatherv2(self.fm_w, id_hldr, 0), mask), 1)
        vectors = self.Mul(self.Gatherv2(self.embedding_table, id_hldr, 0), mask)
        pairs = self.Square(self.ReduceSum(vectors, 1)) - self.ReduceSum(self.Square(vectors), 1)
        fm_out = self.Reshape(0.5 * self.ReduceSum(pairs, 1), (-1, 1))
        deep_in = self.Reshape(vectors, (-1, self.field_size * self.emb_dim))
        out = linear_out + fm_out + self.dense_layer_2(self.dense_layer_1(deep_in))
        return out, self.fm_w, self.embedding_table


class DeepFMLoss(nn.Cell):
    def __init__(self, network, l2_coef=1e-6):
        super().__init__(auto_prefix=False)
        self.loss = ops.SigmoidCrossEntropyWithLogits()
        self.network = network
        self.l2_coef = l2_coef
        self.Square = ops.Square()
        self.ReduceMean_false = ops.ReduceMean(keep_dims=False)
        self.ReduceSum_false = ops.ReduceSum(keep_dims=False)

    def construct(self, batch_ids, batch_wts, label):
        predict, fm_id_weight, fm_id_embs = self.network(batch_ids, batch_wts)
        penalty = self.ReduceSum_false(self.Square(fm_id_embs)) + self.ReduceSum_false(self.Square(fm_id_weight))
        return self.ReduceMean_false(self.loss(predict, label)) + self.l2_coef * penalty * 0.5


class TrainStepWrap(nn.Cell):
    """The training cell of deepfm and of deep_and_cross: one loss, one optimizer."""

    def __init__(self, network, lr=1e-2, eps=1e-8, loss_scale=1000.0):
        super().__init__(auto_prefix=False)
        self.network = network
        self.network.set_grad()
        self.network.set_train()
        self.weights = ParameterTuple(network.trainable_params())
        self.optimizer = Adam(self.weights, learning_rate=lr, eps=eps, loss_scale=loss_scale)
        self.hyper_map = ops.HyperMap()
        self.grad = ops.GradOperation(get_by_list=True, sens_param=True)
        self.sens = loss_scale
        self.reducer_flag, self.grad_reducer = False, None

    def construct(self, batch_ids, batch_wts, label):
        loss = self.network(batch_ids, batch_wts, label)
        sens = ops.Fill()(ops.DType()(loss), ops.Shape()(loss), self.sens)
        grads = self.grad(self.network, self.weights)(batch_ids, batch_wts, label, sens)
        if self.reducer_flag:
            grads = self.grad_reducer(grads)
        return ops.depend(loss, self.optimizer(grads))


class PredictWithSigmoid(nn.Cell):
    def __init__(self, network):
        super().__init__(auto_prefix=False)
        self.network = network
        self.sigmoid = ops.Sigmoid()

    def construct(self, batch_ids, batch_wts, labels):
        logits, _, _ = self.network(batch_ids, batch_wts)
        return logits, self.sigmoid(logits), labels


class ModelBuilder:
    def __init__(self, model_config, train_config):
        self.model_config, self.train_config = model_config, train_config

    def get_train_eval_net(self):
        deepfm_net = known_values(DeepFMModel(self.model_config))
        loss_net = DeepFMLoss(deepfm_net, l2_coef=self.train_config.l2_coef)
        train_net = TrainStepWrap(loss_net, lr=self.train_config.learning_rate)
        return deepfm_net, train_net, PredictWithSigmoid(deepfm_net)


@case("MindRec's deepfm: one optimizer in a training cell")
def _(kind, folder):
    config = settings(folder)
    parts = ModelBuilder(config, config).get_train_eval_net()
    return train_eval(kind, config, folder, *parts, dataset_sink_mode=True)


class CrossLayer(nn.Cell):
    def __init__(self, cross_col_dim):
        super().__init__()
        self.cross_weight = init_method("normal", [cross_col_dim, 1], name="weight")
        self.cross_bias = init_method("normal", [cross_col_dim, 1], name="bias")
        self.matmul = nn.MatMul()
        self.expand_dims = ops.ExpandDims()
        self.squeeze = ops.Squeeze(2)

    def construct(self, inputs, x_0):
        x_l = self.expand_dims(inputs, 2)
        x_lw = ops.tensor_dot(x_l, self.cross_weight, ((1,), (0,)))
        return self.squeeze(self.matmul(self.expand_dims(x_0, 2), x_lw) + self.cross_bias + x_l)


class EmbeddingLookup(nn.Cell):
    def __init__(self, vocab_size, embedding_size):
        super().__init__()
        self.embedding_table = init_method("normal", [vocab_size, embedding_size], name="embedding_table")
        self.shape_flat, self.embedding_size = (-1,), embedding_size
        self.gather, self.reshape, self.shape = ops.Gather(), ops.Reshape(), ops.Shape()

    def construct(self, input_ids):
        rows = self.gather(self.embedding_table, self.reshape(input_ids, self.shape_flat), 0)
        return self.reshape(rows, (*self.shape(input_ids), self.embedding_size)), self.embedding_table


class DeepCrossModel(nn.Cell):
    def __init__(self, config):
        super().__init__()
        self.concat = ops.Concat(axis=1)
        self.reshape, self.deep_reshape, self.deep_mul = ops.Reshape(), ops.Reshape(), ops.Mul()
        self.batch_size, self.field_size, self.emb_dim = config.batch_size, config.field_size, config.emb_dim
        self.input_size = self.field_size * self.emb_dim
        self.deep_embeddinglookup = EmbeddingLookup(config.vocab_size, self.emb_dim)
        self.cross_layer_1 = CrossLayer(self.input_size)
        self.cross_layer_2 = CrossLayer(self.input_size)
        width = config.deep_layer_dim[0]
        self.dense_layer_1 = DenseLayer(self.input_size, width, config.weight_bias_init, "relu", convert_dtype=False)
        self.dense_layer_2 = DenseLayer(
            self.input_size + width, 1, config.weight_bias_init, "sigmoid", use_activation=False, convert_dtype=False
        )

    def construct(self, id_hldr, wt_hldr):
        mask = self.reshape(wt_hldr, (self.batch_size, self.field_size, 1))
        vectors, _ = self.deep_embeddinglookup(id_hldr)
        input_x = self.deep_reshape(self.deep_mul(vectors, mask), (-1, self.input_size))
        crossed = self.cross_layer_2(self.cross_layer_1(input_x, input_x), input_x)
        return self.dense_layer_2(self.concat((self.dense_layer_1(input_x), crossed)))


class DeepCrossLoss(nn.Cell):
    def __init__(self, network):
        super().__init__(auto_prefix=False)
        self.loss = ops.SigmoidCrossEntropyWithLogits()
        self.network = network
        self.reduce_mean = ops.ReduceMean(keep_dims=False)

    def construct(self, batch_ids, batch_wts, label):
        return self.reduce_mean(self.loss(self.network(batch_ids, batch_wts), label))


@case("MindRec's deep_and_cross: training alone, no evaluation network")
def _(kind, folder):
    config = settings(folder)
    network = known_values(DeepCrossModel(config))
    train_net = TrainStepWrap(DeepCrossLoss(network))
    train_net.set_train()
    ds_train, model = create_dataset(), kind(train_net)
    ckptconfig = CheckpointConfig(save_checkpoint_steps=ds_train.get_dataset_size(), keep_checkpoint_max=5)
    ckpoint_cb = ModelCheckpoint(prefix="deepcross_train", directory=config.ckpt_path, config=ckptconfig)
    callbacks = [TimeMonitor(ds_train.get_dataset_size()), LossCallBack(config=config), ckpoint_cb]
    with graph_mode():
        model.train(config.epochs, ds_train, callbacks=callbacks)
    return written(folder, network)


def _many_columns(rows=40):
    random = np.random.default_rng(7)
    ids = lambda size, width: random.integers(0, size, (rows, width)).astype(np.int32)  # noqa: E731
    numbers = lambda width: random.uniform(0, 1, (rows, width)).astype(np.float32)  # noqa: E731
    columns = {"label": random.integers(0, 2, (rows, 1)).astype(np.float32), "continue_val": numbers(2)}
    columns |= {"indicator_id": ids(5, 2), "emb_128_id": ids(20, 2), "emb_64_single_id": ids(12, 3)}
    for name in ("multi_doc_ad_category_id", "multi_doc_event_entity_id"):
        columns |= {name: ids(15, 3), f"{name}_mask": (numbers(3) > 0.3).astype(np.float32)}
    return columns | {name: ids(50, 1) for name in ("display_id", "ad_id", "display_ad_and_is_leak", "is_leak")}


MANY = _many_columns()


class WideDeepModel(nn.Cell):
    """Tables of several sizes, columns of lists with masks, and columns that are passed on unused."""

    def __init__(self, config):
        super().__init__()
        tables = {
            "emb128_embedding": [20, 4],
            "emb64_single": [12, 3],
            "emb64_multi": [15, 3],
            "emb64_indicator": [5, 3],
        }
        for name, shape in tables.items():
            setattr(self, name, init_method("normal", shape, name=name))
        sizes = {"continue": 2, "emb128": 20, "emb64_single": 12, "emb64_multi": 15, "indicator": 5}
        for name, size in sizes.items():
            setattr(self, f"wide_{name}_w", init_method("normal", [size], name=f"wide_{name}_w"))
        self.wide_bias = init_method("normal", [1], name="wide_bias")
        self.dense_layer_1 = DenseLayer(31, 6, config.weight_bias_init, config.deep_layer_act)
        self.deep_predict = DenseLayer(6, 1, config.weight_bias_init, config.deep_layer_act, use_activation=False)
        self.gather_v2, self.mul, self.cast = ops.Gather(), ops.Mul(), ops.Cast()
        self.reduce_sum_true = ops.ReduceSum(keep_dims=True)
        self.reduceMean_false = ops.ReduceMean(keep_dims=False)
        self.Concat, self.BiasAdd, self.expand_dims = ops.Concat(axis=1), ops.BiasAdd(), ops.ExpandDims()
        self.flatten = nn.Flatten()

    def several(self, ids, mask):
        vectors = self.mul(self.gather_v2(self.emb64_multi, ids, 0), self.expand_dims(mask, 2))
        weight = self.mul(self.gather_v2(self.wide_emb64_multi_w, ids, 0), mask)
        return self.reduceMean_false(vectors, 1), self.reduce_sum_true(weight, 1)

    def construct(
        self,
        continue_val,
        indicator_id,
        emb_128_id,
        emb_64_single_id,
        multi_doc_ad_category_id,
        multi_doc_ad_category_id_mask,
        multi_doc_event_entity_id,
        multi_doc_event_entity_id_mask,
        display_id,
        ad_id,
        display_ad_and_is_leak,
        is_leak,
    ):
        first, first_weight = self.several(multi_doc_ad_category_id, multi_doc_ad_category_id_mask)
        second, second_weight = self.several(multi_doc_event_entity_id, multi_doc_event_entity_id_mask)
        vectors = (
            self.flatten(self.gather_v2(self.emb64_indicator, indicator_id, 0)),
            self.flatten(self.gather_v2(self.emb128_embedding, emb_128_id, 0)),
            self.flatten(self.gather_v2(self.emb64_single, emb_64_single_id, 0)),
        )
        deep_out = self.deep_predict(self.dense_layer_1(self.Concat((continue_val * 1, *vectors, first, second))))
        wide = self.reduce_sum_true(self.mul(continue_val, self.expand_dims(self.wide_continue_w, 0)), 1)
        wide = wide + self.reduce_sum_true(self.gather_v2(self.wide_indicator_w, indicator_id, 0), 1)
        wide = wide + self.reduce_sum_true(self.gather_v2(self.wide_emb128_w, emb_128_id, 0), 1)
        wide = wide + self.reduce_sum_true(self.gather_v2(self.wide_emb64_single_w, emb_64_single_id, 0), 1)
        wide_out = self.BiasAdd(wide + first_weight + second_weight, self.wide_bias)
        return wide_out + deep_out, self.emb128_embedding, self.emb64_single, self.emb64_multi


class NetWithLossClass(nn.Cell):
    def __init__(self, network, config):
        super().__init__()
        self.network = network
        self.loss = ops.SigmoidCrossEntropyWithLogits()
        self.reduceMean_false = ops.ReduceMean(keep_dims=False)

    def construct(self, label, *columns):
        logits = self.network(*columns)[0]
        basic_loss = self.loss(logits, label)
        return self.reduceMean_false(basic_loss), self.reduceMean_false(basic_loss)


class IthOutputCell(nn.Cell):
    def __init__(self, network, output_index):
        super().__init__()
        self.network = network
        self.output_index = output_index

    def construct(self, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13):
        return self.network(x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13)[self.output_index]


class MultitableStep(TwoOptimizers):
    def __init__(self, network, config, sens=1000.0):
        ftrl = {"learning_rate": config.ftrl_lr, "l1": 5e-4, "l2": 5e-4, "initial_accum": 0.1}
        super().__init__(network, sens, IthOutputCell, ftrl, {"learning_rate": config.adam_lr, "eps": 1e-6})

    def construct(self, label, continue_val, indicator_id, emb_128_id, *others):
        return self.losses(label, continue_val, indicator_id, emb_128_id, *others)


class PredictSeveral(nn.Cell):
    def __init__(self, network):
        super().__init__()
        self.network = network
        self.sigmoid = ops.Sigmoid()
        self.reshape = ops.Reshape()

    def construct(self, label, a, b, c, d, e, f, g, h, display_id, ad_id, display_ad_and_is_leak, is_leak):
        logits, _, _, _ = self.network(a, b, c, d, e, f, g, h, display_id, ad_id, display_ad_and_is_leak, is_leak)
        logits = self.reshape(logits, (-1,))
        return logits, self.sigmoid(logits), label, display_id


def many(first=0, last=40):
    rows = ms_dataset.NumpySlicesDataset({n: c[first:last] for n, c in MANY.items()}, shuffle=False)
    return rows.batch(BATCH, drop_remainder=True)


@case("MindRec's multitable: thirteen columns, the label first; `sink_size` of a whole epoch")
def _(kind, folder):
    config = settings(folder)
    network = known_values(WideDeepModel(config))
    train_net = MultitableStep(NetWithLossClass(network, config), config)
    eval_net = PredictSeveral(network)
    return train_eval(kind, config, folder, network, train_net, eval_net, many, sink_size=5)


class LossScaleOnCpu(nn.TrainOneStepWithLossScaleCell):
    """MindSpore's cell with a check for overflow that has a kernel on CPU, so that its `Model` runs it at all."""

    def get_overflow_status(self, status, compute_output):
        return ops.logical_not(mindspore.amp.all_finite(compute_output))


@case("nn.TrainOneStepWithLossScaleCell: loss, overflow and scale of every step")
def _(kind, folder):
    config = settings(folder)
    network = known_values(DeepFMModel(config))
    optimizer = nn.Adam(network.trainable_params(), 1e-2)
    step = LossScaleOnCpu(DeepFMLoss(network), optimizer, scale_sense=nn.DynamicLossScaleUpdateCell(2.0**12, 2, 2))
    with graph_mode():
        kind(step).train(2, create_dataset(), callbacks=[LossCallBack(config=config)])
    return repr((open(config.loss_file_name).read(), weights(network), plain(step.scale_sense.value())))
