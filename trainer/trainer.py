"""`Trainer`: its arguments and verbs; `run/trained_network.py` constructs it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from callbacks import History

from . import checks
from .cadence import Every
from .compat import keywords
from .compat.verbs import MindSporeVerbs
from .metrics.window import Window
from .mindspore_internals.messages import silence_adams_operator
from .run import inference, training
from .run.limits import Trial

if TYPE_CHECKING:
    from .data.chunk import InputBatch


silence_adams_operator()  # at import, since users create their optimizers before their Trainer


class Trainer(MindSporeVerbs):
    """Trains, evaluates and applies a network, with `mindspore.Model`'s arguments.

    Args:
        network: the network; with `loss_fn=None` it receives every column and returns the loss (or a tuple that starts
            with loss and prediction); with `optimizer=None` it is a whole training step such as `nn.TrainOneStepCell`.
            Its `construct` takes columns by position, or one dict of the columns named in its attribute ``batch_keys``.
        loss_fn: loss of (prediction, label); the label is the last column. For several tasks a
            `trainer.graph.multi_task.MultiTaskLoss`, with one label column per task.
        optimizer: one of: a MindSpore optimizer over the network's parameters; a list of optimizers for different
            parameters; a name such as "adam", or ("adam", {"learning_rate": 1e-3}); a function of the trainable
            parameters that returns an optimizer; for a network of only sparse tables, a row optimizer.
        metrics: names, `mindspore.train.Metric` objects, or a dict of them; see `trainer.metrics.get_metrics`. They are
            computed by `evaluate`, validation and the windows of `online_train`; for windows the default depends on
            the label: binary, classes or numbers.
        eval_network: cell that returns the outputs to evaluate; None builds one from network and loss.
        eval_indexes: positions of loss (-1: none), prediction and label in the outputs of `eval_network`.
        amp_level: "O0", "O1", "O2", "O3" or "auto"; see `trainer.graph.precision`.
        boost_level: "O0", "O1" or "O2"; see `trainer.graph.boost`.
        amp_dtype: "float16" or "bfloat16".
        loss_scale: number, `amp.LossScaler` or MindSpore loss scale manager; None: dynamic at O2, else none. Also taken
            as `loss_scale_manager`, its name in `mindspore.Model`.
        keep_batchnorm_fp32: whether BatchNorm stays float32; None: the default of the level.
        boost_config: `trainer.graph.boost.BoostConfig` or a dict of its fields.
        gradient_accumulation_steps: micro-batches per optimizer update; k of them equal one batch of k times the size.
            A custom `loss_fn`, or a network that returns its loss, must tell what the loss divides by: its attribute
            ``denominator`` is "rows" for a mean over rows, 1 for a sum, or a method that returns it for the label
            columns of a batch (all columns without `loss_fn`). Several processes need it too.
        clip_norm: bound of the global 2-norm of the gradients (Pascanu et al. 2013).
        clip_value: bound of each gradient entry.
        seed: seed of shuffling and of everything the trainer draws. None: the seed of `mindspore.set_seed` or
            `mindspore.dataset.config.set_seed`, read when a call begins, so rows have the same order as in
            `mindspore.Model`; if none is set, 0 (MindSpore would draw one).
        run_dir: folder for checkpoints and logs; None: only callbacks with their own folder write files.
        amp_white_list, amp_black_list: Cell classes lowered at O1, kept in float32 at O2.
        exact_resume: replace `nn.Dropout`, whose masks MindSpore cannot restore, by stateless dropout.
        features: the declared columns of raw data (`trainer.features.Features`); every verb then takes raw rows:
            frames, mappings, lists of mappings, paths of files, streams.
        compile: False for a network that MindSpore cannot compile but runs operator by operator: one step per call,
            many times slower.
        prediction_activation: function from the network's output to the quantity that metrics compare with the label:
            "identity", "sigmoid", "softmax", "exp", or a function of a NumPy array; a dict by task. None: from the
            class of the loss (`BCEWithLogitsLoss`, `CrossEntropyLoss`, `PoissonNLLLoss`) or its attribute
            ``prediction_activation``. It changes neither training nor `predict`; MindSpore's metrics and those with
            only `clear`, `update` and `eval` read the output itself.
        deterministic: compile programs whose bits do not depend on the number of cores, so that they are the same in
            every run on one kind of processor (docs/resuming.md has the price). Networks with `nn.Dropout` need
            `exact_resume` too; refused off the CPU, in a lower precision, and with ``compile=False``.
        device: "cpu", "gpu" or "ascend": where this process computes; "auto": MindSpore's choice. None: the device of
            `mindspore.set_device`, else the CPU; a device that MindSpore has taken unasked is refused.
        calibration: turns scores of a binary label into probabilities: "platt", "isotonic", a
            `trainer.metrics.Calibrator` or a mapping of its arguments; see there for the rows it learns from. Versions,
            exports and ``predict(output="probability")`` then give calibrated probabilities, but only once it has
            learned.
        weighted_metrics: whether metrics weight rows by the weight that `features` declares, as the loss does; a metric
            that accepts no weights is then refused.

    Attributes:
        device: the device and its abilities (`trainer.mindspore_internals.device.Device`).
        group: the processes that train together (`trainer.distributed.group.Group`); only this one without a launcher.
        state: progress, latest outputs and metrics, why the run ended.
        callbacks, history: callbacks and history of the current run, or of the last training.
        run: the current training (`trainer.run.run.Run`), or None.
        saver: takes and restores snapshots.
        parts: name -> object with `state_dict` and `load_state_dict` that goes into snapshots.
        compiled: whether programs are compiled; see `compile`.
        sink_mode: how several steps per call are trained, as text.

    Raises:
        ConfigurationError: an invalid argument, before anything is compiled.
    """

    # -- training ------------------------------------------------------------------------------------------------

    @keywords.translated()
    def fit(
        self,
        train_dataset: Any,
        epochs: int = 1,
        valid_dataset: Any = None,
        valid_every: Every | int | None = None,
        callbacks: Any = None,
        dataset_sink_mode: bool = True,
        sink_size: int = -1,
        *,
        batch_size: int | None = None,
        shuffle: bool = True,
        sharded: bool | None = None,
        valid_sharded: bool | None = None,
        valid_on_start: bool = False,
        max_steps: int | None = None,
        resume: str | Path | None = None,
        max_time: timedelta | str | float | None = None,
        limit_train_batches: int | float | None = None,
        limit_valid_batches: int | float | None = None,
        overfit_batches: int | float | None = None,
        fast_dev_run: bool | int = False,
    ) -> History:
        """Train on finite data and return the `History` of the run.

        Args:
            train_dataset: a `mindspore.dataset` pipeline, a dict or tuple of arrays (with `batch_size`), an iterable of
                batches, or a function that returns one. The last column is the label when there is a loss function.
            epochs: epochs to train in this call; with `resume`, the total of the resumed run.
            valid_dataset: evaluated when `valid_every` is due; results are named "val_*". A dict of datasets (a dict of
                columns is one dataset) gives "val_<name>_*" for each.
            valid_every: an `Every`, a number of optimizer steps, or None for the end of each epoch. Calls of several
                steps end where a cadence in steps is due, also a callback's: 2 means calls of 2 steps at most.
            callbacks: a callback, or a list of them; MindSpore's own work too. None shows a progress bar.
            dataset_sink_mode: train several steps in one graph call, bit-identical to single steps.
            sink_size: steps per call; -1 chooses (up to 32, by size). Hooks run once per call.
            batch_size: rows per batch, for arrays.
            shuffle: whether arrays are shuffled, differently each epoch, from the seed alone.
            sharded: whether the dataset holds only the rows of this process; None: as the pipeline's
                num_shards says. Parts may differ in length. Otherwise every process is given the whole dataset and
                takes its part of each step.
            valid_sharded: the same for `valid_dataset`.
            valid_on_start: whether to validate before the first step too, except in a resumed run. The initial weights
                then count for `EarlyStopping`, and `ModelCheckpoint(monitor=...)` keeps them if they are best.
            max_steps: bound of the optimizer steps of this call.
            resume: a snapshot, a folder of snapshots or a run folder to continue, or the URL of a mirrored one;
                "auto" continues if there is a snapshot.
            max_time: bound of the wall time of this call: seconds, a `timedelta`, or text "HH:MM:SS", "DD:HH:MM:SS".
            limit_train_batches: batches of an epoch: a number, or a share of them (0.1). An iterator, or a pipeline
                without a size, continues in the next epoch; other data restart.
            limit_valid_batches: batches of a validation set, likewise; 0 for no validation.
            overfit_batches: train on the same first batches in every epoch, to see whether the network can learn them
                by heart: a number of batches, or a share.
            fast_dev_run: train one batch (or that many) and validate on as many, to find mistakes early; callbacks that
                write files are skipped, and so is `resume`.

        Raises:
            ConfigurationError, DataError, CheckpointError: see these classes; SystemExit(128 + number) or
                KeyboardInterrupt after a signal, once the run has shut down. In a notebook or at a prompt, an
                interrupted training returns its history, which says "interrupted".
        """
        with self.group.inside("fit"):
            return training.fit(
                self,
                train_dataset,
                epochs,
                valid_dataset,
                valid_every,
                callbacks,
                checks.steps_per_call(dataset_sink_mode, sink_size),
                batch_size=batch_size,
                shuffle=shuffle,
                sharded=sharded,
                valid_sharded=valid_sharded,
                valid_on_start=checks.boolean("valid_on_start", valid_on_start),
                max_steps=max_steps,
                max_seconds=checks.seconds("max_time", max_time),
                resume=resume,
                trial=Trial(fast_dev_run, overfit_batches, limit_train_batches, limit_valid_batches),
            )

    def compile(
        self,
        sample: Any,
        callbacks: Any = None,
        dataset_sink_mode: bool = True,
        sink_size: int = -1,
        *,
        batch_size: int | None = None,
    ) -> None:
        """Compile the training program for data like `sample`; trains nothing.

        Args:
            sample: data as for `fit`; its first batches are read for their shapes. Pass a function that returns a
                generator, not the generator: its first batches would be lost.
            callbacks: the callbacks of the later run; some (`TerminateOnNaN`, `SkipNonFinite`) change the program.
            dataset_sink_mode, sink_size, batch_size: as in the later `fit`.

        Raises:
            ConfigurationError, DataError: as `fit` does; GraphError: MindSpore could not compile it.
        """
        steps = checks.steps_per_call(dataset_sink_mode, sink_size)
        training.compile_program(self, sample, callbacks, steps, batch_size)

    @keywords.translated(train_dataset="stream")
    def online_train(
        self,
        stream: Any,
        callbacks: Any = None,
        dataset_sink_mode: bool = True,
        sink_size: int = 1,
        *,
        batch_size: int | None = None,
        window: Window | int | None = None,
        max_steps: int | None = None,
        idle_timeout: float | None = None,
        flush_after: float = 1.0,
        skip_non_finite: bool = True,
        resume: str | Path | None = None,
        max_time: timedelta | str | float | None = None,
    ) -> History:
        """Train on a stream; metrics use each batch's predictions before its update.

        With several processes, all call it and divide the stream: partitions, keys and segments are distributed; if the
        stream gives every process the same rows, each of N processes trains on every N-th batch. Steps, windows and
        snapshots are global.

        Args:
            stream: a `trainer.streams` stream, a `mindspore.dataset` (endless or not), an iterable of batches, or a
                function that returns one. Columns go to the network by name when its arguments are all among them.
            callbacks: as in `fit`.
            dataset_sink_mode: train `sink_size` steps in one graph call.
            sink_size: steps per call; -1 is refused, as in MindSpore Rec.
            batch_size: rows per batch; None: 1024, or an iterable's own batches.
            window: when metric windows close: a `Window`, or a number of rows. None: every 10,000 rows.
            max_steps: bound of the optimizer steps of this call.
            idle_timeout: end after this many seconds without a row.
            flush_after: after this many seconds without a row, complete batches are trained without waiting for a full
                call; with several processes, also how long they wait for a process without a batch.
            skip_non_finite: leave out updates whose loss or gradient norm is not finite, name their rows in the log and
                end the run after 20 in a row, unless `callbacks` say otherwise (`SkipNonFinite`, `TerminateOnNaN`).
            resume: as in `fit`; the stream continues at the row after the last trained row.
            max_time: as in `fit`.

        Returns:
            The `History` of the run.
        """
        checks.boolean("dataset_sink_mode", dataset_sink_mode)
        checks.whole("sink_size", sink_size)  # rows wait until a call is full, so the size is not chosen automatically
        from .run import online  # imports stream code, which `fit` does not need

        with self.group.inside("online_train"):
            return online.online_train(
                self,
                stream,
                callbacks,
                sink_size if dataset_sink_mode else 1,
                batch_size=batch_size,
                window=window,
                max_steps=max_steps,
                max_seconds=checks.seconds("max_time", max_time),
                idle_timeout=idle_timeout,
                flush_after=flush_after,
                skip_non_finite=checks.boolean("skip_non_finite", skip_non_finite),
                resume=resume,
            )

    @keywords.translated()
    def evaluate(
        self,
        dataset: Any,
        callbacks: Any = None,
        dataset_sink_mode: bool = True,
        *,
        batch_size: int | None = None,
        sharded: bool | None = None,
    ) -> dict[str, float]:
        """Evaluate and return "loss" (mean over samples) and the metrics.

        With several processes, all call it on the same data, each evaluates its share of the batches, and all get the
        global results. A callback may call it during training without affecting it.

        Args:
            dataset: as in `fit`; not shuffled.
            callbacks: their on_eval_* hooks run; those of a current training do not.
            dataset_sink_mode: accepted for compatibility with `mindspore.Model`; has no effect.
            batch_size: rows per batch, for arrays; None: 4,096, fewer where those would be more than 1 MB.
            sharded: as in `fit`; the results are those of the rows of all processes.

        Raises:
            ConfigurationError: the processes have different data without ``sharded=True``.
            DataError, GraphError: see these classes; TypeError: `dataset_sink_mode` is not a bool.
        """
        checks.boolean("dataset_sink_mode", dataset_sink_mode)
        return inference.evaluate(self, dataset, callbacks, batch_size, sharded)

    @keywords.translated()
    def predict(
        self,
        *data: Any,
        batch_size: int | None = None,
        stream: bool = False,
        keep: bool = False,
        set_aside: bool = False,
        sharded: bool | None = None,
        output: str = "network",
    ) -> Any:
        """Apply the network.

        With several processes, all call it on the same data, share the work, and get all predictions.

        Args:
            data: the input arrays themselves (one call, as `mindspore.Model.predict`), or one dataset, or one dict or
                tuple of arrays. A label column after the inputs is dropped.
            batch_size: rows per batch, for arrays; None: as in `evaluate` for a dict or a tuple. Up to 256 rows at once
                are padded to 128 or 256 if the network declares `rows_are_independent = True`, so the predictions are
                bit-identical to those of a served model.
            stream: return an iterator over the batches' predictions instead of one array.
            keep: for raw rows, return a dict of "prediction" and the columns of `Features(keep=...)`.
            set_aside: for raw rows, leave out rows that violate the declaration, and log how many, why, and the first;
                otherwise one such row is a `DataError`.
            sharded: as in `fit`; each process gets the predictions of its own rows.
            output: "network" for the network's own output; "probability" for the quantity that the loss compares with
                the label, calibrated if `calibration` is given, as in `ServedModel.predict`.

        Returns:
            The network's output itself (logits stay logits), float32 arrays with the rows on axis 0; a tuple or a
            dict of them when the network returns one. If predictions of batches have different row shapes, a list of
            arrays, one per batch. A "probability" that the loss or the calibration computes is float64.

        Raises:
            DataError: "probability" before the calibration has learned.
        """
        return inference.predict(self, data, batch_size, stream, keep, set_aside, sharded, output)

    def first_batch(self, data: Any, batch_size: int | None = None) -> InputBatch:
        """Return the network's input for the first batch of `data` in `predict`.

        Raises:
            DataError: `data` has no batch.
        """
        return inference.first_batch(self, data, batch_size)

    if not TYPE_CHECKING:  # hidden from type checkers, for which every attribute would exist

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError that names the nearest known attribute."""
            raise keywords.missing_verb(type(self), name)
