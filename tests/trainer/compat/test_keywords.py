"""The words of Keras, Lightning and Hugging Face are taken, or answered with ours."""

import inspect
import re
from pathlib import Path

import numpy as np
import pytest
from mindspore import nn

import callbacks
import trainer as trainer_package
from callbacks.lazy_names import REMOVED_NAMES
from trainer import Trainer
from trainer.compat.keywords import HINTS, SAME_MEANING, VERBS
from trainer.errors import ConfigurationError
from trainer.experiment.configuration.class_paths import UnresolvedError, resolve

ROOT = Path(__file__).parents[3]
UPGRADING, CHANGES = ((ROOT / name).read_text("utf-8") for name in ("docs/upgrading.md", "CHANGELOG.md"))
X = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
DATA = (X, X[:, :1])


@pytest.fixture(scope="module")
def trainer():
    network = nn.Dense(3, 1)
    return Trainer(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.1))


def test_words_that_mean_one_of_ours_are_taken(trainer, capfd):
    history = trainer.fit(DATA, max_epochs=2, validation_data=DATA, verbose=0, batch_size=8)
    assert len(history.epoch) == 2
    assert len(history.history["val_loss"]) == 2
    assert capfd.readouterr().out == ""
    assert trainer.evaluate(DATA, verbose=1).keys() == {"loss"}


@pytest.mark.parametrize(
    ("keywords", "answer"),
    [
        ({"validation_split": 0.1}, r"fit: validation_split is done by slicing: fit\(\(x\[n:\]"),
        ({"class_weight": {0: 1.0}}, r"class_weight belongs to the loss: nn.CrossEntropyLoss\(weight="),
        ({"sample_weight": X}, r"sample_weight is a column: fit\(\(x, y, weight\)\)"),
        ({"verbose": 2}, r"verbose takes 0 .*received 2.*LossMonitor"),
        ({"epochs": 1, "max_epochs": 1}, "max_epochs is another name of epochs; give only one"),
        ({"batchsize": 4}, "fit takes no 'batchsize'; did you mean 'batch_size'"),
    ],
)
def test_other_words_are_a_type_error_with_ours(trainer, keywords, answer):
    with pytest.raises(TypeError, match=answer):
        trainer.fit(DATA, **keywords)


def test_arguments_of_a_verb_given_to_the_constructor_name_the_verb():
    with pytest.raises(TypeError, match="Trainer: pass max_epochs as epochs to fit"):
        Trainer(nn.Dense(3, 1), max_epochs=3)


def test_labels_beside_the_inputs_get_a_hint_where_they_go(trainer):
    with pytest.raises(ConfigurationError, match="inputs and labels go together"):
        trainer.fit(*DATA, epochs=2, batch_size=8)


@pytest.mark.parametrize("verb", ["test", "validate"])
def test_verbs_of_other_trainers_name_ours(trainer, verb):
    with pytest.raises(AttributeError, match=rf"Trainer has no '{verb}': evaluate\(dataset\)"):
        getattr(trainer, verb)


def test_a_mistyped_verb_names_the_nearest(trainer):
    with pytest.raises(AttributeError, match="no attribute 'evalute'; did you mean 'evaluate'"):
        trainer.evalute(DATA)


@pytest.mark.parametrize("package", [callbacks, trainer_package])
def test_an_import_says_what_to_write(package):
    name = package.__name__
    for wrong, said in {"EarlyStoping": "did you mean 'EarlyStopping'", **REMOVED_NAMES}.items():
        for code, kind in ((f"from {name} import {wrong}", ImportError), (f"{name}.{wrong}", AttributeError)):
            with pytest.raises(kind, match=re.escape(said)):
                exec(code, {name: package})
        assert not hasattr(package, wrong)
        with pytest.raises(UnresolvedError, match=re.escape(said)):
            resolve(f"{name}.{wrong}")
        if wrong in REMOVED_NAMES:
            assert f"`{wrong}`" in UPGRADING or f"`{wrong}`" in CHANGES


def test_the_tables_name_only_what_there_is(trainer):
    words = "; ".join([*SAME_MEANING.values(), *HINTS.values(), *VERBS.values()])
    methods = set(re.findall(r"(?:^|; )(\w+)\(", words))
    assert methods == {"evaluate", "predict", "fit", "save", "load", "print"}
    assert all(hasattr(trainer, method) for method in methods - {"print"})
    assert set(re.findall(r"Trainer\((\w+)=", words)) <= inspect.signature(Trainer).parameters.keys()
    assert not any(hasattr(trainer, verb) for verb in VERBS)
