"""`Trainer`, the public class; its constructor is in `run/trained_network.py`."""

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
from .mindspore_internals.messages import silence_adam_warning
from .run import inference, training
from .run.limits import Trial

if TYPE_CHECKING:
    from .data.chunk import InputBatch


silence_adam_warning()  # runs on import, because users create their optimizers before their Trainer


class Trainer(MindSporeVerbs):
    """Trains, evaluates and applies a network; accepts `mindspore.Model`'s arguments.

    Args:
        network: the network; with `loss_fn=None` it receives every column and returns the loss (or a tuple that starts
            with loss and prediction); with `optimizer=None` it is a whole training step such as `nn.TrainOneStepCell`.
            Its `construct` takes columns by position, or one dict of the columns named in its attribute ``batch_keys``.
        loss_fn: cell or function that computes the loss from (prediction, label); the label is the last column. For
            several tasks a `trainer.graph.multi_task.MultiTaskLoss`, with one label column per task.
        optimizer: one of: a MindSpore optimizer over the network's parameters; a list of optimizers for different
            parameters; a name such as "adam", or ("adam", {"learning_rate": 1e-3}); a function of the trainable
            parameters that returns an optimizer; a row optimizer, if the network consists of sparse tables only.
        metrics: names, `mindspore.train.Metric` objects, or a dict of them; see `trainer.metrics.get_metrics`. They are
            computed by `evaluate`, in validation and in the windows of `online_train`. The default for windows depends
            on whether the label is binary, a class or a number.
        eval_network: cell that returns the outputs to evaluate; None builds one from network and loss.
        eval_indexes: positions of loss (-1: no loss), prediction and label in the outputs of `eval_network`.
        amp_level: "O0", "O1", "O2", "O3" or "auto"; see `trainer.graph.precision`.
        boost_level: "O0", "O1" or "O2"; see `trainer.graph.boost`.
        amp_dtype: "float16" or "bfloat16".
        loss_scale: number, `amp.LossScaler` or MindSpore loss scale manager. None: dynamic at O2, no scaling at other
            levels; False: no scaling at any level. Also accepted under the name `loss_scale_manager`, as in
            `mindspore.Model`.
        keep_batchnorm_fp32: whether BatchNorm stays float32; None: the default of the level.
        boost_config: `trainer.graph.boost.BoostConfig` or a dict of its fields.
        gradient_accumulation_steps: micro-batches per optimizer update; k micro-batches give the same update as one
            batch of k times the size. A custom `loss_fn`, or a network that returns its loss, must declare the
            denominator of the loss in an attribute ``denominator``: "rows" for a mean over rows, 1 for a sum, or a
            method that computes it from the label columns of a batch (from all columns without `loss_fn`). Training
            with several processes needs this attribute too.
        clip_norm: maximum global 2-norm of the gradients (Pascanu et al. 2013).
        clip_value: maximum absolute value of each gradient entry.
        seed: seed of shuffling and of all other random numbers of the trainer. None: the seed of `mindspore.set_seed`
            or `mindspore.dataset.config.set_seed`, read when a call begins, so rows have the same order as in
            `mindspore.Model`; 0 if no seed is set (MindSpore would draw one).
        run_dir: folder for checkpoints and logs; None: only callbacks with their own folder write files.
        amp_white_list, amp_black_list: Cell classes to lower at O1, and Cell classes to keep in float32 at O2.
        exact_resume: replace `nn.Dropout`, whose masks MindSpore cannot restore, by stateless dropout.
        features: the declared columns of raw data (`trainer.features.Features`); all methods then accept raw rows:
            frames, mappings, lists of mappings, paths of files, streams.
        compile: False for a network that MindSpore can run operator by operator but cannot compile. Each call then
            trains one step, and training is many times slower.
        prediction_activation: function from the network's output to the quantity that metrics compare with the label:
            "identity", "sigmoid", "softmax", "exp", a function of a NumPy array, or a dict with one of these per task.
            None: chosen from the class of the loss (`BCEWithLogitsLoss`, `CrossEntropyLoss`, `PoissonNLLLoss`) or its
            attribute ``prediction_activation``. It affects neither training nor `predict`. MindSpore's metrics, and
            metrics that only have `clear`, `update` and `eval`, receive the network's output without activation.
        deterministic: compile programs whose results do not depend on the number of cores, so runs are bit-identical
            on the same kind of processor (docs/resuming.md describes the cost). Networks with `nn.Dropout` need
            `exact_resume` too. Only on the CPU, in full precision, and not with ``compile=False``.
        device: device of this process: "cpu", "gpu" or "ascend"; "auto": MindSpore's choice. None: the device of
            `mindspore.set_device`, else the CPU; an error if MindSpore has selected another device by itself.
        calibration: turns scores of a binary label into probabilities: "platt", "isotonic", a
            `trainer.metrics.Calibrator` or a mapping of its arguments. `Calibrator` describes which rows it is fitted
            on. Once it is fitted, published versions, exports and ``predict(output="probability")`` return calibrated
            probabilities.
        weighted_metrics: whether metrics weight rows by the weight that `features` declares, as the loss does. True
            raises an error for metrics that do not accept weights.

    Attributes:
        device: the device and its abilities (`trainer.mindspore_internals.device.Device`).
        group: the processes that train together (`trainer.distributed.group.Group`); only this process without a
            launcher.
        state: progress, latest outputs and metrics, and the reason why the run ended.
        callbacks, history: callbacks and history of the current run, or of the last training.
        run: the current training (`trainer.run.run.Run`), or None.
        saver: takes and restores snapshots.
        parts: name -> object with `state_dict` and `load_state_dict` whose state goes into snapshots.
        compiled: whether programs are compiled; see `compile`.
        sink_mode: description of how a call trains several steps.

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
                batches, or a function that returns one of these. The last column is the label when there is a loss
                function.
            epochs: epochs to train in this call; with `resume`, the total of the resumed run.
            valid_dataset: evaluated when `valid_every` is due; results are named "val_*". A dict of datasets gives
                "val_<name>_*" for each; a dict of columns is one dataset.
            valid_every: an `Every`, a number of optimizer steps, or None for the end of each epoch. A call of several
                steps ends where a cadence in steps is due, including the cadences of callbacks; so a value of 2 limits
                calls to 2 steps.
            callbacks: a callback, or a list of them; MindSpore's own callbacks work too. None shows a progress bar.
            dataset_sink_mode: train several steps in one graph call, bit-identical to single steps.
            sink_size: steps per call; -1 chooses up to 32, depending on the size of the batches. Hooks run once per
                call.
            batch_size: rows per batch, for arrays.
            shuffle: whether arrays are shuffled, differently in each epoch; the order depends only on the seed and the
                epoch.
            sharded: True if the dataset holds only the rows of this process; parts may differ in length. False if every
                process has the whole dataset and takes its part of each step. None: True if the pipeline has
                num_shards.
            valid_sharded: the same for `valid_dataset`.
            valid_on_start: whether to validate before the first step too, except in a resumed run. The initial weights
                then count for `EarlyStopping`, and `ModelCheckpoint(monitor=...)` keeps them if they are best.
            max_steps: maximum number of optimizer steps of this call; with `resume`, of the resumed call in all.
            resume: a snapshot, a folder of snapshots or a run folder to resume from, or the URL of its mirror. "auto"
                resumes from the latest snapshot if there is one, else starts from the beginning.
            max_time: maximum wall time of this call: seconds, a `timedelta`, or text "HH:MM:SS", "DD:HH:MM:SS".
            limit_train_batches: batches per epoch: a number, or a share of the data (0.1). The next epoch starts at the
                first batch again, except that an iterator, or a pipeline without a size, continues.
            limit_valid_batches: batches per validation set, a number or a share; 0 for no validation.
            overfit_batches: train on the same first batches in every epoch, to see whether the network can memorize
                them: a number of batches, or a share of the data.
            fast_dev_run: True trains one batch and validates on one, to find mistakes early; a number trains that many
                and validates on as many. Callbacks that write files are skipped, and `resume` is ignored.

        Raises:
            ConfigurationError, DataError, CheckpointError: see these classes; SystemExit(128 + signal number) or
                KeyboardInterrupt after a signal, once the run has shut down. In a notebook or at a Python prompt, an
                interrupted training returns its history, marked "interrupted".
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

        With several processes, all of them call it and share the stream: each process reads its own partitions, keys or
        segments. If every process receives the same rows, each of N processes trains on every N-th batch. Steps,
        windows and snapshots are global.

        Args:
            stream: a `trainer.streams` stream, a `mindspore.dataset` (endless or not), an iterable of batches, or a
                function that returns one of these. Columns are passed by name if all arguments of the network are names
                of columns.
            callbacks: as in `fit`.
            dataset_sink_mode: train `sink_size` steps in one graph call.
            sink_size: steps per call; -1 is refused, as in MindSpore Rec.
            batch_size: rows per batch; None: 1024, or the batches of the iterable as they are.
            window: when metric windows close: a `Window`, or a number of rows. None: every 10,000 rows.
            max_steps: maximum number of optimizer steps of this call; with `resume`, of the resumed call in all.
            idle_timeout: end the run after this many seconds without a row.
            flush_after: after this many seconds without a row, train the complete batches without waiting for
                `sink_size` batches. With several processes, this is also the time that they wait for a process that has
                no batch.
            skip_non_finite: skip updates whose loss or gradient norm is not finite, log their rows, and end the run
                after 20 skipped updates in a row. A `SkipNonFinite` or `TerminateOnNaN` in `callbacks` overrides this.
            resume: as in `fit`; the stream continues after the last trained row.
            max_time: as in `fit`.

        Returns:
            The `History` of the run.
        """
        checks.boolean("dataset_sink_mode", dataset_sink_mode)
        checks.whole("sink_size", sink_size)  # no automatic size: a larger call delays the training of new rows
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

        With several processes, all of them call it on the same data. Each process evaluates its share of the batches,
        and all return the global results. A callback may call it during training without affecting the training.

        Args:
            dataset: as in `fit`; not shuffled.
            callbacks: callbacks whose on_eval_* hooks run; the callbacks of a current training are not called.
            dataset_sink_mode: accepted for compatibility with `mindspore.Model`; has no effect.
            batch_size: rows per batch, for arrays; None: 4,096, or fewer if they exceed 1 MB.
            sharded: as in `fit`; the results cover the rows of all processes.

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
        """Apply the network to data and return its predictions.

        With several processes, all of them call it on the same data and share the work; each returns all predictions.

        Args:
            data: the input arrays as separate arguments (one call of the network, as in `mindspore.Model.predict`), or
                one dataset, or one dict or tuple of arrays. A label column after the inputs is dropped.
            batch_size: rows per batch, for arrays; None: as in `evaluate` for a dict or a tuple. A batch of up to 256
                rows is padded to 128 or 256 rows if the network declares `rows_are_independent = True`, so the
                predictions are bit-identical to those of a served model.
            stream: return an iterator over the predictions of each batch instead of one array.
            keep: for raw rows, return a dict of "prediction" and the columns of `Features(keep=...)`.
            set_aside: for raw rows, leave out the rows that violate the declaration, and log their number, the reasons
                and the first such row. If False, such a row raises `DataError`.
            sharded: as in `fit`; each process returns the predictions of its own rows.
            output: "network" for the network's own output; "probability" for the quantity that the loss compares with
                the label, calibrated if `calibration` is given, as in `ServedModel.predict`.

        Returns:
            The network's unchanged output (logits stay logits) as a float32 array with the rows on axis 0, or a tuple
            or dict of arrays if the network returns one. If the batches have different row shapes, a list with one
            array per batch. A "probability" that the loss or the calibration computes is float64.

        Raises:
            DataError: "probability" was requested before the calibration was fitted.
        """
        return inference.predict(self, data, batch_size, stream, keep, set_aside, sharded, output)

    def first_batch(self, data: Any, batch_size: int | None = None) -> InputBatch:
        """Return the network's input for the first batch of `data` in `predict`.

        Raises:
            DataError: `data` has no batch.
        """
        return inference.first_batch(self, data, batch_size)

    if not TYPE_CHECKING:  # hidden from type checkers, which would otherwise accept any attribute

        def __getattr__(self, name: str) -> Any:
            """Raise an AttributeError that suggests a similar attribute."""
            raise keywords.missing_attribute(type(self), name)
