"""The options of all tasks: `TrainOptions` belongs to `Train`, and so on. Imports no PyTorch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..core.options import Count, Natural, Options, Place, Positive, Seed
from ..lightning_modules.options import SamplingOptions


@dataclass(frozen=True)
class TrainOptions(SamplingOptions):
    """Train a run, resume it, or print the results of a finished one.

    Attributes:
        samples: number of samples to write at the end.
        tokens: length of each sample in tokens.
    """

    samples: Natural = 2
    tokens: Count = 512


@dataclass(frozen=True)
class ConvertOptions(TrainOptions):
    """Convert a pretrained RoPE model to another encoding, and continue its training: a run like any other.

    `trainer.anneal_steps`, `trainer.match_steps` and `trainer.distil_steps` set the stages.
    """


@dataclass(frozen=True)
class CheckOptions(Options):
    """Check the configuration, print the cost of the run, and exit without training."""


@dataclass(frozen=True)
class PrepareOptions(Options):
    """Download or read the data and build the token store, unless it exists."""


@dataclass(frozen=True)
class EvaluateOptions(Options):
    """Score a split with a run's best checkpoint.

    Attributes:
        split: valid, test, or another test split of the domain.
    """

    split: str = "test"


@dataclass(frozen=True)
class MechanismsOptions(Options):
    """Measure where the attention of a run's best checkpoint goes and which frequencies it uses, as training does."""


@dataclass(frozen=True)
class GenerateOptions(SamplingOptions):
    """Write samples of a run's best checkpoint, as files of the domain's kind.

    Attributes:
        samples: number of samples.
        tokens: length of each sample in tokens, without the prompt.
        prompt: a file of the domain's kind (.mid, .fa, .txt) to continue; null for no prompt. The model sees at most
            the last data.length tokens of it.
        sampling_seed: seed of the random draws.
    """

    samples: Count = 2
    tokens: Count = 512
    prompt: Place | None = None
    sampling_seed: Seed = 0


@dataclass(frozen=True)
class ScoreOptions(Options):
    """Score your own files with a run's best checkpoint, in windows of data.length, in the same way as a split.

    Attributes:
        files: files of the domain's kind (.mid, .fa, .txt), FILE or [FILE,...]; each file is a document, or each record
            of a .fa file.
        out: CSV file that gets one row per run and document; other rows in it are kept; null for no file.
    """

    files: Place | Sequence[Place] = ()
    out: Place | None = None


@dataclass(frozen=True)
class BenchmarkOptions(Options):
    """Score zero-shot benchmarks of language understanding with a run's best checkpoint, for models of text.

    Attributes:
        benchmarks: names, such as [lambada,blimp], of lambada, blimp, hellaswag, piqa, arc_easy, winogrande, copa,
            cbt_cn and cbt_ne; null for all that are available.
        path: file or folder with the benchmarks' files; null downloads them from their publishers, except cbt_cn and
            cbt_ne.
        limit: number of items of each benchmark, and of each of BLiMP's paradigms, for a quick look: results are
            printed but not saved; null for all.
        prefix: begin each context with the token that begins documents in training.
    """

    benchmarks: Sequence[str] | None = None
    path: Place | None = None
    limit: Count | None = None
    prefix: bool = True

    def check_together(self) -> None:
        if self.benchmarks is not None and not self.benchmarks:
            raise ValueError("benchmarks=[]: name at least one benchmark, or use null for all")


@dataclass(frozen=True)
class VariantsOptions(Options):
    """Predict the effect of single-base variants with a run on a genome, without training on them (zero-shot).

    Attributes:
        files: .tsv or .tsv.gz tables of labelled variants, FILE or [FILE,...].
        genome: FASTA or .2bit files, or folders, with the reference genome of the tables, FILE or [FILE,...]; null for
            the files of the run's own data.
        window: number of bases around a variant that the model reads; null for those of data.length tokens, at most
            `domain.chunk` and 8192.
    """

    files: Place | Sequence[Place] = ()
    genome: Place | Sequence[Place] | None = None
    window: Count | None = None


@dataclass(frozen=True)
class ExportOptions(Options):
    """Export the best checkpoint: its weights, and the files needed to build the model and to encode its input.

    Attributes:
        format: bearings, for this package; hf, for `AutoModelForCausalLM` of transformers, with the model's code; or
            llama, for `LlamaForCausalLM`, which needs no other code and can express RoPE models without a window.
        out: folder for the files; null for `<run>/export`, or `<run>/export-hf` and `<run>/export-llama`.
    """

    format: Literal["bearings", "hf", "llama"] = "bearings"
    out: Place | None = None


@dataclass(frozen=True)
class KeepOptions(Options):
    """Copy the records of a run that has finished or diverged, without checkpoints.

    Attributes:
        out: folder for the copy.
    """

    out: Place = "kept"


@dataclass(frozen=True)
class ExtrapolateOptions(Options):
    """Score every target of a split with shorter and longer contexts than in training.

    Attributes:
        contexts: context lengths in tokens, such as [256,512]; null for `data.length` times powers of two from 1/4 to
            16, up to the longest document.
        stretches: methods for contexts beyond `data.length`: none, interpolation, ntk, dynamic_ntk, yarn, llama3 or
            longrope change frequencies; lm_infinite and window limit the keys that a query sees to the last
            `data.length`, lm_infinite also to the first ones; power and truncated are for models trained with them.
            null for those from none to llama3 that the encoding supports. none is always scored for comparison.
        split: valid, test, or another test split of the domain.
        files: score these files instead of a split, FILE or [FILE,...]: files of the domain's kind (.mid, .fa, .txt),
            or folders of texts, each as one document. The header and licence of Project Gutenberg are left out.
        long_factors: factors of longrope for documents beyond `data.length`: one per frequency of the encoding, from
            high to low. In tables, the name longrope ends in a hash of all factors.
        short_factors: factors of longrope for documents within `data.length`; null for 1 each.
        first_tokens: number of first keys that lm_infinite keeps visible; fewer than `data.length`.
    """

    contexts: Sequence[int] | None = None
    stretches: Sequence[str] | None = None
    split: str = "test"
    files: Place | Sequence[Place] = ()
    long_factors: Sequence[float] | None = None
    short_factors: Sequence[float] | None = None
    first_tokens: Count = 10

    def check_together(self) -> None:
        contexts = self.contexts
        if contexts is not None and not (contexts and all(1 <= context < 2**48 for context in contexts)):
            raise ValueError(f"contexts={list(contexts)}: give at least one length, each from 1 token to 2**48 - 1")


@dataclass(frozen=True)
class ReportOptions(Options):
    """Compare all finished runs in some folders, and list unfinished ones.

    Attributes:
        directories: folders of runs, [FOLDER,...]; null for the folder `runs=`.
        out: folder for the report; an earlier report is replaced.
        reference: encoding with which the others are compared, or a model of the tables, such as
            'rope, implementation=triton'. If an encoding has several models, the one with its default options.
        margin: difference in nats per token up to which encodings count as equal; null for that of the study or the
            domain.
    """

    directories: Sequence[str] | None = None
    out: Place = "report"
    reference: str = "rope"
    margin: Positive | None = None

    def check_together(self) -> None:
        if self.directories is not None and not self.directories:
            raise ValueError("directories=[]: name at least one folder of runs, or use null for the folder runs=")


@dataclass(frozen=True)
class TuneOptions(Options):
    """Train at each point of a grid of learning rates and other settings, and print which is best on validation.

    Attributes:
        rates: learning rates, such as [3e-4,6e-4]; null for `optimizer.learning_rate` times 1/4, 1/2, 1, 2 and 4.
        grid: values of other settings, such as {model.dropout:[0.0,0.1]}; every combination is trained.
        seeds: seeds for each point, such as [0,1,2], compared by their mean; null for `seed=`.
        points: points of the grid to train, counted from 0, such as [0,1]; null for all. So several processes can share
            a search: each adds its points to the results.
        out: folder for the runs of the search, separate from those that reports compare.
    """

    rates: Sequence[float] | None = None
    grid: dict[str, list[Any]] | None = None
    seeds: Sequence[int] | None = None
    points: Sequence[int] | None = None
    out: Place = "tuning"

    def check_together(self) -> None:
        rates, seeds = self.rates, self.seeds
        fewest, wanted = (1, "one learning rate") if self.grid else (2, "two different learning rates")
        if rates is not None and (len(set(rates)) < fewest or not all(0 < rate < math.inf for rate in rates)):
            raise ValueError(f"rates={list(rates)}: give at least {wanted}, finite and above 0, or null")
        for key, values in (self.grid or {}).items():
            if len(values) < 2:
                raise ValueError(f"grid: {key}={values}: give at least two values")
            if key in ("seed", "optimizer.learning_rate"):
                raise ValueError(f"grid: {key}: use task.seeds or task.rates instead")
        if self.points is not None and not self.points:
            raise ValueError("points=[]: give at least one point, or null for all")
        if seeds is not None and not seeds:
            raise ValueError("seeds=[]: give at least one seed, or null for seed=")
        if seeds is not None and not all(0 <= seed < 2**63 for seed in seeds):
            raise ValueError(f"seeds={list(seeds)}: each must be 0 or more and below 2**63")


@dataclass(frozen=True)
class StudyOptions(Options):
    """Train the missing runs of a study on all visible GPUs, keep their records, and summarise them.

    Attributes:
        study: name of a study, or a folder with a study.yaml; `all` with `report` or `check`. Set it with `study=`.
        jobs: number of processes at a time on each GPU; several small runs use a GPU better than one.
        seeds: maximum number of runs per process, one after the other, that differ only in their seeds, and of points
            of a search. Saves the time that small runs need to start.
        limit: time limit in seconds, after which running runs are stopped; null for none.
        settings: settings for every run, such as {domain.path:FILE,trainer.micro_batch:4}; only settings that do not
            change results are allowed.
        commit: commit of the source tree, if it is not a git checkout.
        dry: only list the runs and whether they are finished.
        report: only write README.md, results.csv and plots from kept records; with study=all also README's table.
        check: with study=all, only check that README's table matches the records.
    """

    study: str | None = None
    jobs: Count = 1
    seeds: Count = 1
    limit: Positive | None = None
    settings: dict[str, Any] | None = None
    commit: str | None = None
    dry: bool = False
    report: bool = False
    check: bool = False
