"""`Trainer`: the verbs. Each checks its arguments, puts the parts together and lets the loop run."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mindspore import nn

from callbacks import History

from .compat import ModelVerbs, also_as_model, renamed
from .data import column_checks
from .data.feed import Chunk, Feed, FeedOptions
from .data.finite_values import describe_non_finite
from .data.sources import Item, Source, is_arrays, make_source
from .data.stream_source import StreamSource, as_stream, check_stream_options
from .embedding.table_feed import TableFeed, check_trainable
from .errors import ConfigurationError, DataError
from .graph import network_checks, precision
from .graph.boost import MOST_STEPS_A_CALL as MOST_FROZEN_STEPS
from .graph.boost import make_boost
from .graph.builder import StepBuilder, TrainRunner
from .graph.dropout import repeatable, replace_dropout
from .graph.program import StepOptions
from .metrics import get_metrics
from .metrics.prequential import Window
from .run import loop
from .run.inference import Inference
from .run.limits import Every, Limits
from .run.online import DEFAULT_WINDOW, OnlineMetrics
from .run.seed import check_seed
from .state import Phase

logger = logging.getLogger(__name__)

MOST_SUNK_STEPS = 32
MOST_SUNK_BYTES = 32 << 20


class Trainer(Inference, ModelVerbs):
    """Trains, evaluates and applies a network; the arguments are those of `mindspore.Model`, in its order.

    Args:
        network: the network; with `loss_fn=None` it receives every column and returns the loss (or a tuple that starts
            with loss and prediction); with `optimizer=None` it is a whole training step such as `nn.TrainOneStepCell`.
        loss_fn: loss of (prediction, label); the label is the last column.
        optimizer: a MindSpore optimizer over the network's parameters.
        metrics: names, `mindspore.train.Metric` objects, or a dict of them.
        eval_network: cell returning what is evaluated; None builds one from network and loss.
        eval_indexes: positions of loss (-1: none), prediction and label in the outputs of `eval_network`.
        amp_level: "O0", "O1", "O2", "O3" or "auto"; see `trainer.graph.precision`.
        boost_level: "O0", "O1" or "O2"; see `trainer.graph.boost`.
        amp_dtype: "float16" or "bfloat16".
        loss_scale: number, `amp.LossScaler` or MindSpore loss scale manager; None: dynamic at O2, else none.
        keep_batchnorm_fp32: whether BatchNorm stays float32; None: as the level says.
        boost_config: `trainer.graph.boost.BoostConfig` or a dict of its fields.
        gradient_accumulation_steps: micro-batches per optimizer update; k of them equal one batch of k times the size.
        clip_norm: bound of the global 2-norm of the gradients (Pascanu et al. 2013).
        clip_value: bound of each gradient entry.
        seed: seed of shuffling and of everything the trainer draws; None is 0.
        run_dir: folder for what a run leaves behind (checkpoints, logs); None: nothing is written unless a callback is
            given a folder of its own.
        amp_white_list, amp_black_list: Cell classes lowered at O1, kept in float32 at O2.
        exact_resume: put stateless dropout in place of `nn.Dropout`, whose masks MindSpore cannot restore.
        loss_scale_manager: the same as `loss_scale`, as `mindspore.Model` calls it.

    Raises:
        ConfigurationError: an argument that cannot work, before anything is compiled.
    """

    def __init__(
        self,
        network: nn.Cell,
        loss_fn: nn.Cell | None = None,
        optimizer: nn.Cell | None = None,
        metrics: Any = None,
        eval_network: nn.Cell | None = None,
        eval_indexes: Sequence[int] | None = None,
        amp_level: str = "O0",
        boost_level: str = "O0",
        *,
        amp_dtype: Any = "float16",
        loss_scale: Any = None,
        keep_batchnorm_fp32: bool | None = None,
        boost_config: Any = None,
        gradient_accumulation_steps: int = 1,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        seed: int | None = None,
        run_dir: str | Path | None = None,
        amp_white_list: Sequence[type[nn.Cell]] | None = None,
        amp_black_list: Sequence[type[nn.Cell]] | None = None,
        exact_resume: bool = False,
        loss_scale_manager: Any = None,
    ) -> None:
        super().__init__()
        network_checks.check_network(network, loss_fn, optimizer, eval_network)
        self.network, self.loss_fn, self.optimizer, self.eval_network = network, loss_fn, optimizer, eval_network
        self.metrics = get_metrics(metrics)
        self.eval_indexes = network_checks.check_eval_indexes(eval_network, eval_indexes)
        self.accumulate = network_checks.check_positive(
            "gradient_accumulation_steps", gradient_accumulation_steps, whole=True
        )
        self.seed = check_seed(seed) or 0
        self.run_dir = None if run_dir is None else Path(run_dir)
        self.precision = precision.resolve(amp_level, amp_dtype, keep_batchnorm_fp32, amp_white_list, amp_black_list)
        if optimizer is None:
            network_checks.check_custom_step(
                network,
                amp_level=self.precision.level,
                gradient_accumulation_steps=self.accumulate,
                clip_norm=clip_norm,
                clip_value=clip_value,
                loss_scale=loss_scale if loss_scale is not None else loss_scale_manager,
            )
        self.scaler = precision.make_scaler(
            loss_scale if loss_scale is not None else loss_scale_manager, self.precision
        )
        if exact_resume:
            replace_dropout(network, self.seed)
        self.boost = make_boost(boost_level, boost_config, network, optimizer, self.seed)
        self.boost_parts = self.boost.parts
        if self.boost.freezing is not None:
            self.parts["boost"] = self.boost.freezing
        precision.convert(network, self.precision)
        self.exact_resume = exact_resume
        self._options = StepOptions(
            scaler=self.scaler,
            accumulate=self.accumulate,
            clip_norm=network_checks.check_positive("clip_norm", clip_norm),
            clip_value=network_checks.check_positive("clip_value", clip_value),
            transform=self.boost.transform(),
            reduce=self.boost.reduce,
        )
        self.builder = StepBuilder(
            network,
            loss_fn,
            optimizer,
            cast=self.precision.lowers,
            eval_network=eval_network,
            options=self._options,
            boost=self.boost,
            steps_done=lambda: self.state.progress.global_step,
        )
        self.label_count = self.builder.label_count
        self.tables: TableFeed | None = None

    # -- training ------------------------------------------------------------------------------------------------

    @also_as_model
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
        max_steps: int | None = None,
        max_seconds: float | None = None,
        resume: str | Path | None = None,
    ) -> History:
        """Train on finite data and return what happened.

        Args:
            train_dataset: a `mindspore.dataset` pipeline, a dict or tuple of arrays (with `batch_size`), an iterable of
                batches, or a function that returns one. The last column is the label when there is a loss function.
            epochs: epochs to train in this call; with `resume`, the total of the resumed run.
            valid_dataset: evaluated when `valid_every` is due; results are named "val_*".
            valid_every: an `Every`, a number of optimizer steps, or None for the end of each epoch.
            callbacks: a callback, or a list of them; MindSpore's own work too. None shows a progress bar.
            dataset_sink_mode: train several steps in one graph call, bit-identical to single steps.
            sink_size: steps a call; -1 chooses (up to 32, by size). Hooks run once a call.
            batch_size: rows a batch, for arrays.
            shuffle: whether arrays are shuffled, anew each epoch, from the seed alone.
            max_steps: bound of the optimizer steps of this call.
            max_seconds: bound of the wall time of this call.
            resume: a snapshot, a folder of snapshots or a run folder to go on from; "auto" goes on when there is
                something to go on from.

        Returns:
            The `History` of the run.

        Raises:
            ConfigurationError, DataError, CheckpointError: see there; SystemExit(143) or KeyboardInterrupt after a
            signal asked to stop and the run was wound up.
        """
        network_checks.check_epochs(epochs)
        valid = None
        if valid_dataset is not None:
            valid_dataset = column_checks.in_order_of(train_dataset, valid_dataset)
            valid = self._inference_feed(valid_dataset, batch_size if is_arrays(valid_dataset) else None)
            if is_arrays(valid_dataset) and not is_arrays(train_dataset):
                batch_size = None  # it was for the validation arrays
        source = make_source(train_dataset, batch_size=batch_size, shuffle=shuffle, seed=self.seed)
        every = Every(valid_every) if isinstance(valid_every, int) else valid_every
        progress = self.state.progress
        progress.step_in_epoch = 0
        self._limits_base = {"epoch": progress.epoch, "step": progress.global_step}
        with self._session(Phase.FIT, callbacks) as signals:
            train = loop.TrainLoop(
                self,
                self._train_feed(source, network_checks.check_sink(dataset_sink_mode, sink_size)),
                self._train_runner,
                Limits(),
                validate=None if valid is None else lambda: self._validate(valid),
                valid_every=every,
            )
            train.position = {"epoch": progress.epoch, "batch": 0}
            try:
                self._run(train, resume, epochs, max_steps, max_seconds)
            finally:
                if valid is not None:
                    valid.close()
        signals.leave()
        return self.history

    def _run(
        self,
        train: loop.TrainLoop,
        resume: str | Path | None,
        epochs: int | None,
        max_steps: int | None,
        max_seconds: float | None,
    ) -> None:
        self._loop = train
        self.callbacks.call("setup", self)
        self._check_monitors()
        self.builder.train_step(self._run_options())  # the snapshot restores its parameters
        if resume is not None and self.saver.resume(resume):
            self.callbacks.call("on_load_checkpoint", self)
            if not repeatable(self.network):
                logger.warning(
                    "nn.Dropout draws other masks than before the interruption; exact_resume=True repeats them"
                )
        base = self._limits_base
        train.limits = self.state.limits = Limits(
            epochs=None if epochs is None else base["epoch"] + epochs,
            steps=None if max_steps is None else base["step"] + max_steps,
            seconds=max_seconds,
        )
        self.state.total_steps = self._steps_per_epoch(train.feed.source)
        try:
            with self.builder.training():
                self.callbacks.call("on_train_begin", self)
                train.run()
                logger.info("training ended: %s", self.state.stop_reason)
                self.callbacks.call("on_train_end", self)
                self.saver.wait()
        finally:
            train.feed.close()

    def compile(
        self,
        sample: Any,
        callbacks: Any = None,
        dataset_sink_mode: bool = True,
        sink_size: int = -1,
        *,
        batch_size: int | None = None,
    ) -> None:
        """Compile the training program for data like `sample` ahead of time; nothing is trained and nothing changes.

        Args:
            sample: data as `fit` takes it; its first batches are read and their shapes used. A generator would lose
                them: pass a function that returns one.
            callbacks: those of the run to come; some of them (`TerminateOnNaN`, `SkipNonFinite`) change the program.
            dataset_sink_mode, sink_size, batch_size: as they will be given to `fit`.

        Raises:
            ConfigurationError, DataError: as `fit` does; GraphError: MindSpore could not compile it.
        """
        source = make_source(sample, batch_size=batch_size, seed=self.seed)
        if getattr(source, "one_shot", False):
            raise ConfigurationError("compile: would use up the generator; pass a function that returns a fresh one")
        if self.builder.tables is not None:
            raise ConfigurationError("compile: programs with sparse tables are compiled when the first ids are known")
        self._check_idle()
        self._use(callbacks if callbacks is not None else [])
        feed = self._train_feed(source, network_checks.check_sink(dataset_sink_mode, sink_size))
        chunks = feed.chunks({})
        try:
            chunk = next(chunks, None)
        finally:
            chunks.close()
            feed.close()
        if chunk is None:
            raise DataError("compile: the dataset delivered no batches")
        size = len(chunk.arrays[0]) if chunk.stacked else None
        self.builder.compile(self._run_options(), size, chunk)

    def _steps_per_epoch(self, source: Source) -> int | None:
        return None if source.size is None else -(-source.size // self.accumulate)

    def _train_feed(self, source: Source, steps_per_call: int | None) -> Feed:
        check_trainable(self.network, self.optimizer)

        def batches_per_call(item: Item) -> int:
            steps = steps_per_call
            if steps is None:
                most = MOST_SUNK_STEPS if self.boost.freezing is None else MOST_FROZEN_STEPS
                size = max(1, sum(column.nbytes for column in item.columns) * self.accumulate)
                steps = max(1, min(most, MOST_SUNK_BYTES // size, self._steps_per_epoch(source) or most))
            self.sink_mode = f"graph loop of {steps} steps" if steps > 1 else "off: one step a call"
            logger.info("sink mode: %s", self.sink_mode)
            return steps * self.accumulate

        options = FeedOptions(
            batches_per_call, self.accumulate, check=column_checks.ColumnCheck(self.network, self.label_count)
        )
        if self._run_options().guard:
            options.inspect = describe_non_finite
        feed = Feed(source, options)
        self._find_tables(feed, training=True)
        return feed

    def _train_runner(self, sample: Chunk) -> TrainRunner:
        size = len(sample.arrays[0]) if sample.stacked else None
        return self.builder.train(self._run_options(), size, sample)

    def _run_options(self) -> StepOptions:
        policies = {getattr(callback, "non_finite", None) for callback in self.callbacks} - {None}
        return dataclasses.replace(
            self._options,
            guard=bool(policies),
            halt="terminate" in policies,
            keep_predictions=self._online is not None and self._online.metrics is not None,
        )

    @renamed("train_dataset", "stream")
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
        max_seconds: float | None = None,
        idle_timeout: float | None = None,
        flush_after: float = 1.0,
        resume: str | Path | None = None,
    ) -> History:
        """Train on a stream, scoring every batch by the forward that trains on it.

        Args:
            stream: a `trainer.streams` stream, a `mindspore.dataset` (endless or not), an iterable of batches, or a
                function that returns one. Columns go to the network by name when its arguments are all among them.
            callbacks: as in `fit`.
            dataset_sink_mode: train `sink_size` steps in one graph call.
            sink_size: steps a call.
            batch_size: rows a batch; None: 1024, or an iterable's own batches.
            window: when metric windows close: a `Window`, or a number of rows. None: every 10,000 rows.
            max_steps: bound of the optimizer steps of this call.
            max_seconds: bound of the wall time of this call.
            idle_timeout: end after this many seconds without a row.
            flush_after: seconds without a row after which complete batches are trained though the call is not full.
            resume: as in `fit`; the stream is read on from the row after the last one trained on.

        Returns:
            The `History` of the run.
        """
        check_stream_options(batch_size, idle_timeout, flush_after)
        window = Window(rows=window) if isinstance(window, int) else window or DEFAULT_WINDOW
        label = window.label if isinstance(window.label, str) else None
        source = StreamSource(
            as_stream(stream),
            batch_size,
            inputs=column_checks.arguments_of(self.network)[2],
            labelled=self.loss_fn is not None,
            label=label,
            weight="weight" if self.label_count > 1 else None,
            extras=[window.group] if window.group else [],
            flush_after=flush_after,
            idle_timeout=idle_timeout,
        )
        progress = self.state.progress
        self._limits_base = {"epoch": progress.epoch, "step": progress.global_step}
        with self._session(Phase.ONLINE, callbacks) as signals:
            feed = self._train_feed(source, network_checks.check_sink(dataset_sink_mode, sink_size) or 1)
            self._online = OnlineMetrics(self, feed, window, scored=self.loss_fn is not None)
            self.parts["online"] = self._online
            train = loop.TrainLoop(self, feed, self._train_runner, Limits(), online=self._online)
            try:
                self._run(train, resume, None, max_steps, max_seconds)
            finally:
                del self.parts["online"]
        signals.leave()
        return self.history
