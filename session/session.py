"""The domain, data, model and settings of a task, each built from the configuration when it is first used."""

import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from ..core.errors import UserError, suggestions
from ..domains.base import Domain
from ..domains.clocks import Clock
from ..domains.store import Store
from ..kernels.choice import Plan
from ..lightning_modules.context_parallel import ContextParallel
from ..lightning_modules.cost import free_memory, step_seconds, total_memory, training_memory
from ..lightning_modules.data_module import DataModule
from ..lightning_modules.evaluation import Evaluation
from ..lightning_modules.language_model import LanguageModel
from ..lightning_modules.outline import outlined
from ..lightning_modules.trainer import TrainerSettings, precision_on
from ..lightning_modules.transformer import Transformer
from .command import Command
from .configuration import build, with_group
from .conversion import check_start, check_vocabulary
from .matching import matched
from .models import build_transformer, read_checkpoint
from .overrides import key_of
from .refusals import begun, refuse_missing_axes, refuse_runs_among_data, refuse_unshared_rows, refuse_unsound_outputs
from .run_directory import PLACES, RunDirectory, changes


class Session(Command):
    """The context of a task that needs a configuration or a run. Each part is built when it is first used.

    Attributes:
        config: the resolved configuration. Its `names` are the chosen files of each group; its `content` identifies
            the domain's data by hash or version rather than by path.
    """

    @classmethod
    def of(cls, config: Mapping) -> "Session":
        """A session whose parts have been checked. Raises UserError if values contradict each other."""
        session = cls(matched(config))
        session.check()
        return session

    def check(self) -> None:
        """Build all parts that need no data, and `identify` the run.

        Raises:
            UserError: values contradict each other, or this machine cannot train the run.
        """
        settings, data = self.settings, self.data
        if data.batch_size % settings.replicas:
            what = "processes" if settings.context_parallel == 1 else "groups of processes"
            raise UserError(
                f"data.batch_size={data.batch_size}: the batch is split across {settings.replicas} {what}, so it "
                f"must be a multiple of {settings.replicas}"
            )
        _ = self.evaluation
        with outlined():
            transformer = self.language_model(vocabulary=2).transformer
        with self._encoding_named():
            refuse_unshared_rows(settings, data, transformer)
        self.plans(transformer)
        check_start(self.config, settings, transformer)
        if any(not type(encoding).__module__.startswith("bearings.") for encoding in transformer.encodings):
            given = self.config["encoding"].items()  # the probe runs on a CPU, and its tokens have no time
            encoding = {key: value for key, value in given if key not in ("implementation", "clock")}
            refuse_unsound_outputs(build_transformer({**self.config, "encoding": encoding}, 2), data.length)
        self.identify()  # last, because it reads all the data

    def identify(self) -> None:
        """Complete `config` by what the run's name depends on: `content` and the resolved precision.

        It does not depend on the machine, except for precision=auto, which can mean bf16 or float32.

        Raises:
            UserError: the data cannot be read, or do not fit the pretrained model.
        """
        trainer = self.config["trainer"]
        precision = precision_on(trainer["accelerator"], trainer["precision"])
        self.config = {**self.config, "trainer": {**trainer, "precision": precision}}
        if "content" not in self.config:
            check_vocabulary(self.config, self.domain.vocabulary)
            self.config = {**self.config, "content": self.domain.content()}

    @cached_property
    def domain(self) -> Domain:
        """The source of tokens. Raises UserError if runs would be written to its data folder."""
        domain = build(self.config["domain"], "domain")
        refuse_runs_among_data(self.config, domain.searched)
        return domain

    @cached_property
    def settings(self) -> TrainerSettings:
        """Training settings: steps, intervals, device."""
        return build(self.config["trainer"], "trainer")

    @cached_property
    def data(self) -> DataModule:
        """Batches of the domain's tokens."""
        return build(self.config["data"], "data", domain=self.domain, seed=self.config["seed"])

    @cached_property
    def evaluation(self) -> Evaluation:
        """The scorer of splits."""
        given = {"length": self.data.length, "precision": self.settings.precision, "period": self.domain.period}
        return build(self.config["evaluation"], "evaluation", **given)

    def plans(self, transformer: Transformer) -> list[Plan]:
        """The plans for computing attention, one for each kind of layer.

        Raises UserError if `encoding.implementation` cannot be used.
        """
        dtype = torch.bfloat16 if self.settings.precision == "bf16-mixed" else torch.float32
        length, before = self.data.length, None
        if (size := self.settings.context_parallel) > 1:  # plan for the last chunk, which sees the most tokens
            length = ContextParallel(size).chunk(length)
            before = (2 * size - 1) * length
        with self._encoding_named():
            return [
                encoding.plan(self.settings.device, dtype, length, self.data.several_documents, before)
                for encoding in transformer.kinds
            ]

    @contextmanager
    def _encoding_named(self) -> Iterator[None]:
        """Name the group of the keys in a message of the encoding."""
        try:
            yield
        except ValueError as error:
            raise UserError(with_group(error, "encoding", self.config["encoding"])) from error

    def attention(self, transformer: Transformer) -> str:
        """The implementations of attention, and why they are used."""
        return "; ".join(dict.fromkeys(map(str, self.plans(transformer))))

    def compiled(self, transformer: Transformer) -> bool:
        """Whether blocks are compiled for training.

        By default, they are if a kernel computes the attention, or row blocks for an encoding without a kernel. PyTorch
        operations in place of a kernel do not compile for variable lengths.
        """
        settings = self.settings
        if isinstance(settings.compile, bool):
            return settings.compile
        worth_it = settings.device.type == "cuda" and settings.steps >= 1000
        return worth_it and all(plan.compiles for plan in self.plans(transformer))

    def step_memory(self, transformer: Transformer) -> float | None:
        """Estimated bytes of a training step on one device; None if 3 rows do not fit in its free memory."""
        settings, at_a_time = self.settings, _rows_at_a_time(self)
        compiled = self.compiled(transformer)
        try:
            given = settings.precision, compiled, settings.context_parallel
            return training_memory(transformer, at_a_time, self.data.length, *given)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            return None

    def refuse_too_large_a_step(self, memory: float | None) -> None:
        """When training on a CPU, raise UserError if a training step needs more memory than this machine has.

        Otherwise the operating system would kill the process without a message. On a GPU that runs out of memory,
        training processes fewer rows at a time instead.

        Args:
            memory: bytes of a training step, from `step_memory`.
        """
        settings, at_a_time, there = self.settings, _rows_at_a_time(self), total_memory(self.settings.device)
        if settings.device.type == "cpu" and memory is not None and memory * settings.devices > there:
            where = f" on each of {settings.devices} processes" if settings.devices > 1 else ""
            fewer = "trainer.micro_batch (rows at a time) or " if at_a_time > 1 else ""
            raise UserError(
                f"data.length={self.data.length}: a training step of {at_a_time} x {self.data.length} tokens needs "
                f"about {memory / 2**30:,.1f} GiB{where}, but this machine has {there / 2**30:,.1f} GiB: choose a "
                f"smaller {fewer}data.length"
            )

    def cuda_graphs(self, transformer: Transformer, memory: float | None) -> tuple[bool, str]:
        """Whether training steps are replayed as CUDA graphs, and the reason.

        Call it once per run: the answer depends on free memory, which changes.

        Args:
            memory: bytes of a training step, from `step_memory`.
        """
        settings = self.settings
        work, launches = step_seconds(transformer, self.data.batch_size, self.data.length, settings.device)
        times = f"per step: about {1e3 * work:.2g} ms of arithmetic, {1e3 * launches:.2g} ms of kernel launches"
        if reason := settings.against_graphs or ("trainer.cuda_graphs=false" if settings.cuda_graphs is False else ""):
            if settings.device.type == "cuda" and settings.ranks > 1 and work < launches:
                reason += f"; {times}: one GPU would be faster (trainer.devices=1), and leaves others to other runs"
            return False, reason
        if settings.cuda_graphs is True:
            return True, "trainer.cuda_graphs=true"
        if work < launches or not self.data.always_full:
            return work < launches, times
        # Graphs keep a step's memory until the run ends, in addition to what scoring and the first steps need. An
        # encoding that needs more memory may run without them: full rows are not padded, so only rounding differs.
        free = free_memory(settings.device)
        if memory is None or memory > free / 2:
            return False, f"a step needs more than half of the {free / 2**20:,.0f} MiB that are free"
        return True, f"{times}; rows are always full, so nothing is padded"

    @property
    def device_name(self) -> str:
        """The GPU's name, or the CPU's architecture."""
        device = self.settings.device
        return torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine() + " CPU"

    def device_facts(self, transformer: Transformer) -> dict[str, Any]:
        """The device and kernels of training, for a run's manifest."""
        settings = self.settings
        return {
            "device": self.device_name,
            "ranks": settings.ranks,
            "strategy": settings.strategy if settings.ranks > 1 else None,
            **({"context_parallel": settings.context_parallel} if settings.context_parallel > 1 else {}),
            "compiled": self.compiled(transformer),
            "precision": settings.precision,
            "attention": self.attention(transformer),
        }

    def refuse_another_source(self, overrides: Sequence[str]) -> None:
        """Raise UserError if `overrides` name a data source whose content differs from the run's.

        The store is opened by content, not by path, so the scores would still come from the run's data.
        """
        sources = [f"domain.{name}" for name in PLACES["domain"]]
        named = [override for override in overrides if key_of(override) in sources]
        if not named:
            return
        if other := changes(self.config["content"], self.domain.content()):
            raise UserError(
                f"{' '.join(named)}: not the data of {self.config['run']} (different {', '.join(other)}), which this "
                "task uses: leave out this setting"
            )

    def store(self) -> Store:
        """The prepared token store; built if it does not exist."""
        stores, content, run = Path(self.config["stores"]), self.config["content"], self.config.get("run")
        try:
            return self.domain.prepare(stores, content)
        except UserError as error:
            if not begun(self.config) or self.domain.is_prepared(stores, content):
                raise
            raise UserError(
                f"{error}; or, as the data of {run} are not in stores={stores}, name the folder that holds them with "
                "stores=DIRECTORY"
            ) from error

    def transformer(self, vocabulary: int) -> Transformer:
        found = build_transformer(self.config, vocabulary, self.settings.activation_checkpointing, self.clock)
        with self._encoding_named():
            refuse_missing_axes(found)
        return found

    def clock(self) -> Clock | None:
        """The time of the medium; None before the data are prepared, because tokenizers do not exist until then.

        Raises:
            UserError: the domain has no such time.
        """
        if type(self.domain).clock is Domain.clock:
            with self._encoding_named():
                raise ValueError(
                    f"clock=medium: domain={self.config['names']['domain']} has no time other than the number of "
                    "tokens: use clock=index"
                )
        return self.domain.clock() if "content" in self.config else None

    def language_model(self, vocabulary: int) -> LanguageModel:
        optimizer, seed = build(self.config["optimizer"], "optimizer"), self.config["seed"]
        given = self.transformer(vocabulary), seed, self.settings.steps, self.settings.micro_batch
        with self._encoding_named():
            return LanguageModel(*given, **vars(optimizer))

    def model_in_place(self, vocabulary: int, training: bool) -> LanguageModel:
        """The untrained model on the settings' device.

        Args:
            training: require memory for gradients and AdamW's two moments in addition to the weights.

        Raises:
            UserError: the device has too little memory. In that case nothing is allocated.
        """
        device, shared_out = self.settings.device, self.settings.strategy == "fsdp" and self.settings.ranks > 1
        with outlined():
            parameters = self.transformer(vocabulary).parameter_count()
        copies, what = (4, "weights, gradients and moments") if training and not shared_out else (1, "weights")
        needed, there = 4 * copies * parameters, total_memory(device)
        if needed > there:
            raise UserError(
                f"model: {parameters:,} parameters need {needed / 2**30:,.0f} GiB for {what}, but {device} has "
                f"{there / 2**30:,.0f} GiB: choose a smaller model"
            )
        return self.language_model(vocabulary).to(device)

    def trained(self, run: RunDirectory) -> tuple[Store, Transformer]:
        """The data and the best model of a run; prints a note if its training has not finished.

        Raises:
            UserError: the data differ from the data it was trained on; see also `load`.
        """
        store = self.store()
        run.check_data(store.manifest)
        transformer = self.load(run.checked_best(), store.manifest["vocabulary"])
        if unfinished := run.unfinished():
            self.console.print(unfinished)
        return store, transformer

    def refuse_untested(self, split: str) -> None:
        """Raise UserError if `split`, from the task's settings, is not a split that the domain scores."""
        splits = self.domain.splits[1:]
        if split not in splits:
            raise UserError(f"task.split={split}: {suggestions(split, splits)}")

    def load(self, checkpoint: Path, vocabulary: int) -> Transformer:
        """The trained Transformer of a checkpoint, on the session's device, in evaluation mode.

        Raises:
            UserError: the file is missing or damaged, or belongs to another encoding or model.
        """
        weights = read_checkpoint(checkpoint, self.config, vocabulary)["state_dict"]
        transformer = self.transformer(vocabulary)  # after the file has been checked
        transformer.load_state_dict(weights)
        return transformer.to(self.settings.device).eval()


def _rows_at_a_time(session: Session) -> int:
    """The number of rows that one device processes at a time."""
    rows = session.data.batch_size // session.settings.replicas
    return min(session.settings.micro_batch or rows, rows)
