"""What every drop-in case shares: tiny networks, data, and callbacks that write down what they are given."""

import importlib

import mindspore
import mindspore.dataset as ms_dataset
import numpy as np
from mindspore import nn
from mindspore import train as ms

CASES = {}


def case(name, differs=""):
    """Register a case: a function that takes the class (and a scratch folder) and returns what is compared.

    `differs` names what stays different.
    """

    def register(function):
        CASES[name] = (function, differs)
        return function

    return register


def all_cases():
    """Return name -> (function, what stays different) of every case of this folder."""
    for module in ("methods", "hooks", "networks", "mindrec", "mindrec_more"):
        importlib.import_module(f"tests.dropin.{module}")
    return CASES


HOOKS = (
    *("on_train_begin", "on_train_epoch_begin", "on_train_step_begin", "on_train_step_end", "on_train_epoch_end"),
    *("on_train_end", "on_eval_begin", "on_eval_epoch_begin", "on_eval_step_begin", "on_eval_step_end"),
    *("on_eval_epoch_end", "on_eval_end"),
)
KEYS = (
    *("mode", "cur_epoch_num", "epoch_num", "cur_step_num", "batch_num", "dataset_sink_mode", "initial_step"),
    *("net_outputs", "train_dataset_element", "eval_dataset_element", "train_dataset", "valid_dataset", "metrics"),
    *("parallel_mode", "device_number", "last_save_ckpt_step", "latest_ckpt_file"),
)


class Recorder(ms.Callback):
    """Writes down every hook with everything the run context holds."""

    def __init__(self):
        self.seen = []


def _note(name):
    def hook(self, run_context):
        params = run_context.original_args()
        self.seen.append((name, {key: plain(params[key]) for key in KEYS if key in params}))

    return hook


for _name in HOOKS:
    setattr(Recorder, _name, _note(_name))


def plain(value):
    """Return what can be compared: Tensors as (dtype, bytes), datasets by their kind."""
    if isinstance(value, mindspore.Tensor):
        array = value.asnumpy()
        return str(value.dtype), array.shape, array.tolist()
    if isinstance(value, tuple | list):
        return tuple(map(plain, value))
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, int | float | str | bool | type(None)):
        return value
    return type(value).__name__


_random = np.random.default_rng(0)
X = _random.normal(size=(10, 3)).astype(np.float32)
Y = (X.sum(1, keepdims=True) > 0).astype(np.float32)


def pipeline(rows=10, batch=4, **columns):
    """Return a fresh pipeline of the first `rows` rows; the last batch is short unless `batch` divides them."""
    columns = columns or {"x": X, "y": Y}
    data = {name: column[:rows] for name, column in columns.items()}
    return ms_dataset.NumpySlicesDataset(data, shuffle=False).batch(batch)


def linear():
    """Return a new linear network 3 -> 1."""
    return nn.Dense(3, 1, weight_init=mindspore.Tensor(np.full((1, 3), 0.5, np.float32)), bias_init="zeros")


def optimizer(network, kind=nn.Momentum):
    """Return an optimizer of the network's parameters."""
    return kind(network.trainable_params(), 0.1, 0.9)


_kept = {}  # {kind: (a model that was used before, the values its parameters began with)}


def model(kind, metrics=("mae",), loss=None, **options):
    """Return a model of `kind`, MindSpore's or ours, on a new network.

    With no arguments it is one that was used before, put back as it was: its programs are compiled already.
    """
    usual = loss is None and metrics == ("mae",) and not options
    if usual and kind in _kept:
        made, first = _kept[kind]
        for parameter, value in first:
            parameter.asnumpy()[...] = value  # on CPU a view
        return made
    network = linear()
    metrics = set(metrics) if metrics else None
    optimizer_of_it = optimizer(network)
    made = kind(network, loss or nn.MSELoss(), optimizer_of_it, metrics=metrics, **options)
    if usual:
        held = [*network.get_parameters(), *optimizer_of_it.get_parameters()]
        _kept[kind] = made, [(parameter, parameter.asnumpy().copy()) for parameter in held]
    return made


def weights(network):
    """Return the network's parameters as lists."""
    return {parameter.name: parameter.asnumpy().tolist() for parameter in network.get_parameters()}
