"""Translate or refuse keywords of Keras, Lightning and Hugging Face."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

from ..checks import epochs
from ..errors import did_you_mean

Method = TypeVar("Method", bound=Callable[..., Any])

SAME_MEANING = {
    "validation_data": "valid_dataset",
    "val_dataloaders": "valid_dataset",
    "eval_dataset": "valid_dataset",
    "train_dataloaders": "train_dataset",
    "max_epochs": "epochs",
    "num_train_epochs": "epochs",
    "ckpt_path": "resume",
    "limit_val_batches": "limit_valid_batches",
    "loss_scale_manager": "loss_scale",
    "resume_from_checkpoint": "resume",
    "eval_on_start": "valid_on_start",
}
_POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD
HINTS = {  # keyword -> rest of the error message, which begins with the keyword
    "x": "and y go together into the first argument: fit((x, y), epochs, batch_size=...)",
    "y": "belongs in the first argument, with the inputs: fit((x, y), epochs, batch_size=...)",
    "validation_split": "is done by slicing: fit((x[n:], y[n:]), valid_dataset=(x[:n], y[:n]))",
    "validation_freq": "is valid_every=Every(epochs=n)",
    "val_check_interval": "is valid_every=n, in optimizer steps; for part of an epoch, give that part of its steps",
    "check_val_every_n_epoch": "is valid_every=Every(epochs=n)",
    "eval_steps": "is valid_every=n",
    "save_steps": "is a callback: callbacks=[ModelCheckpoint(folder, every=n)]",
    **dict.fromkeys(
        ("logging_steps", "log_every_n_steps"), "is an option of a logger: callbacks=[CSVLogger(file, every=n)]"
    ),
    "num_sanity_val_steps": "has no counterpart: the first batch of each validation set is tried before training",
    "min_epochs": "has no counterpart: EarlyStopping(start_from_epoch=n) does not stop before epoch n",
    "validation_steps": "is limit_valid_batches=n",
    "steps_per_epoch": "is limit_train_batches=n",
    "initial_epoch": "is resume=..., which continues from a snapshot",
    "class_weight": "belongs to the loss: nn.CrossEntropyLoss(weight=Tensor([...])), or your own loss",
    "sample_weight": "is a column: fit((x, y, weight)) with a loss_fn(prediction, label, weight)",
    "args": "has no counterpart: give the arguments one by one",
    **dict.fromkeys(("gradient_clip_val", "max_grad_norm"), "is Trainer(clip_norm=...)"),
    "accumulate_grad_batches": "is Trainer(gradient_accumulation_steps=k)",
    "precision": "is Trainer(amp_level='O2')",
    "accelerator": "is Trainer(device=...)",
    "devices": "are processes: trainer launch -n N",
    "loss": "is Trainer(loss_fn=...)",
    "learning_rate": "is the optimizer's: nn.Adam(network.trainable_params(), learning_rate=...)",
    "logger": "is a callback: callbacks=[TensorBoard(...)]",
}
VERBS = {
    **dict.fromkeys(("test", "validate", "score"), "evaluate(dataset) returns the loss and the metrics"),
    "transform": "predict(data) returns the network's outputs",
    "fit_generator": "fit(generator_function, epochs) takes iterables as they are",
    "train_on_batch": "fit([batch], 1) trains on one batch",
    "summary": "print(trainer.network) shows the network",
    **dict.fromkeys(("save_weights", "save_checkpoint", "push_to_hub"), "save(folder) writes a snapshot"),
    "load_weights": "load(path) reads a snapshot",
}


def translated(*also: str, **renamed: str) -> Callable[[Method], Method]:
    """Decorate a method to accept other trainers' keywords, or suggest ours.

    Args:
        also: keywords that the method accepts through its ``**kwargs``.
        renamed: arguments of `fit` that this method has under another name, such as train_dataset="stream".
    """
    aliases = {name: renamed.get(canonical, canonical) for name, canonical in SAME_MEANING.items()} | renamed

    def decorate(method: Method) -> Method:
        parameters = inspect.signature(method).parameters
        known = {*parameters, *also}
        positional = [name for name, parameter in parameters.items() if parameter.kind is _POSITIONAL]

        @functools.wraps(method)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not kwargs.keys() <= known:
                passed = {*positional[: len(args)], *kwargs}
                kwargs = dict(_translate(method.__name__, known, aliases, passed, item) for item in kwargs.items())
                kwargs.pop("verbose", None)
            if "epochs" in kwargs and "epochs" in positional[: len(args)]:
                epochs(args[positional.index("epochs")])  # raise the error for labels passed in place of epochs
            return method(*args, **kwargs)

        return cast(Method, wrapper)

    return decorate


def _translate(
    method: str, known: set[str], aliases: dict[str, str], passed: set[str], item: tuple[str, Any]
) -> tuple[str, Any]:
    """Translate a keyword and its value for the method, or raise TypeError."""
    name, value = item
    if name in known:
        return item
    method = "Trainer" if method == "__init__" else method
    if name == "verbose" and method != "Trainer":
        return _verbose(method, known, passed, value)
    canonical = aliases.get(name)
    if canonical in known:
        if canonical in passed:
            raise TypeError(f"{method}: {name} is another name of {canonical}; give only one of them")
        passed.add(canonical)
        return canonical, value
    if name in HINTS:
        raise TypeError(f"{method}: {name} {HINTS[name]}")
    if canonical is not None:
        raise TypeError(f"{method}: pass {name} as {canonical} to {'Trainer' if canonical == 'loss_scale' else 'fit'}")
    raise TypeError(f"{method} takes no {name!r}{did_you_mean(name, known - {'self'})}")


def _verbose(method: str, known: set[str], passed: set[str], value: Any) -> tuple[str, Any]:
    if value not in (0, 1, "auto"):
        raise TypeError(
            f"{method}: verbose takes 0 (nothing is shown) or 1; received {value!r}. Callbacks decide what is shown: "
            "callbacks=[LossMonitor()] prints lines"
        )
    quiet = not value and "callbacks" in known and "callbacks" not in passed
    return ("callbacks", []) if quiet else ("verbose", None)


def missing_attribute(kind: type, name: str) -> AttributeError:
    """Return the error for a missing attribute; it suggests our counterpart."""
    if name in VERBS:
        return AttributeError(f"{kind.__name__} has no {name!r}: {VERBS[name]}")
    public = [known for known in dir(kind) if not known.startswith("_")]
    return AttributeError(f"{kind.__name__} has no attribute {name!r}{did_you_mean(name, public)}")
