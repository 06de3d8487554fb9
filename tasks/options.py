"""The options of this folder's tasks: `TrainOptions` are those of `Train`. Imports no PyTorch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..core.options import Count, Natural, Options, Place, Positive
from ..lightning_modules.options import SamplingOptions


@dataclass(frozen=True)
class TrainOptions(SamplingOptions):
    """Train a run, or resume it, or show what it found.

    Attributes:
        samples: pieces to write at the end.
        sample_tokens: their length in tokens.
    """

    samples: Natural = 2
    sample_tokens: Count = 512


@dataclass(frozen=True)
class CheckOptions(Options):
    """Build everything that the run would need, say what it would cost, and exit."""


@dataclass(frozen=True)
class PrepareOptions(Options):
    """Download or read the sources and build the token store; instant when it is there."""


@dataclass(frozen=True)
class EvaluateOptions(Options):
    """Score a split with a run's best checkpoint.

    Attributes:
        split: valid, test, or another that the domain tests.
    """

    split: str = "test"


@dataclass(frozen=True)
class MechanismsOptions(Options):
    """Look inside a run's best checkpoint, as the end of training does."""


@dataclass(frozen=True)
class GenerateOptions(SamplingOptions):
    """Write samples of a run's best checkpoint, in the domain's own medium.

    Attributes:
        samples: how many.
        tokens: length of each continuation.
        prompt: a file of the domain's kind (.mid, .fa, .txt) to continue; null to begin from nothing.
        sampling_seed: of the draw.
    """

    samples: Count = 2
    tokens: Count = 512
    prompt: Place | None = None
    sampling_seed: int = 0


@dataclass(frozen=True)
class ScoreOptions(Options):
    """Score files with a run's best checkpoint, in windows of data.length, as a split is scored.

    Attributes:
        files: one or several of the domain's kind (.mid, .fa, .txt), [FILE,...]; each is a document, or each record of
            a .fa.
        out: CSV for a row of figures a run and document, both by their whole paths, whose folder is made; rows of
            others stay in it. null for none.
    """

    files: Place | Sequence[Place] = ()
    out: Place | None = None


@dataclass(frozen=True)
class ExportOptions(Options):
    """Write the best checkpoint's weights and what is needed to build the model, and to encode for it.

    Attributes:
        out: folder that gets the files; null for `<run>/export`.
    """

    out: Place | None = None


@dataclass(frozen=True)
class KeepOptions(Options):
    """Copy the records of a finished run.

    Attributes:
        out: the directory of the copy.
    """

    out: Place = "kept"


@dataclass(frozen=True)
class ExtrapolateOptions(Options):
    """Score every target of a split of a finished run under each context.

    Attributes:
        contexts: in tokens, [256,512]; null for powers of two from a quarter to 16 times `data.length`, as far as
            documents reach.
        stretches: how frequencies are changed in contexts beyond `data.length`: none, interpolation, ntk, dynamic_ntk,
            yarn, llama3 or longrope; null for all that the encoding takes and that need no factors. none is always
            scored: the others are compared with it.
        split: valid, test, or another that the domain tests.
        long_factors: of longrope, which needs them: one for each frequency of the encoding, from high to low, for
            documents beyond `data.length`. In tables its name ends in a hash of them and the short ones.
        short_factors: likewise, for documents within `data.length`; null for 1 each.
    """

    contexts: Sequence[int] | None = None
    stretches: Sequence[str] | None = None
    split: str = "test"
    long_factors: Sequence[float] | None = None
    short_factors: Sequence[float] | None = None

    def check_together(self) -> None:
        if self.contexts is not None and (not self.contexts or min(self.contexts) < 1):
            raise ValueError(f"contexts={list(self.contexts)}: at least one length is needed, each of at least 1 token")


@dataclass(frozen=True)
class ReportOptions(Options):
    """Compare every finished run under some folders, and list those that are not finished.

    Attributes:
        directories: folders of runs, [a,b]; null for that of `runs=`.
        out: folder that the report is written to; an earlier report there is replaced.
        reference: encoding that the others are compared with.
        margin: nats a token within which encodings count as equal; null for the domain's own.
    """

    directories: Sequence[str] | None = None
    out: Place = "report"
    reference: str = "rope"
    margin: Positive | None = None

    def check_together(self) -> None:
        if self.directories is not None and not self.directories:
            raise ValueError("directories=[]: name at least one folder of runs, or null for that of runs=")


@dataclass(frozen=True)
class TuneOptions(Options):
    """Train the run at each learning rate, and say which is best on validation.

    Attributes:
        rates: learning rates, [3e-4,6e-4]; null for `optimizer.learning_rate` times 1/4, 1/2, 1, 2 and 4.
        seeds: of each rate, [0,1,2]; the mean over them decides. null for that of `seed=`.
        out: where the runs of the search are kept, separately from those that a report compares.
    """

    rates: Sequence[float] | None = None
    seeds: Sequence[int] | None = None
    out: Place = "tuning"

    def check_together(self) -> None:
        rates, seeds = self.rates, self.seeds
        if rates is not None and (len(set(rates)) < 2 or not all(0 < rate < math.inf for rate in rates)):
            raise ValueError(
                f"rates={list(rates)}: at least two learning rates are needed, finite and above 0, or null"
            )
        if seeds is not None and not seeds:
            raise ValueError("seeds=[]: name at least one, or null for that of seed=")
        if seeds is not None and not all(0 <= seed < 2**63 for seed in seeds):
            raise ValueError(f"seeds={list(seeds)}: each must be 0 or more and below 2**63")


@dataclass(frozen=True)
class StudyOptions(Options):
    """Train what a study lacks on every visible GPU, keep its records, and sum them up.

    Attributes:
        study: name of a study of this package, or a folder with a study.yaml; all with `report` or `check`. Given as
            `study=`.
        jobs: runs at a time on a GPU: small ones leave it idle.
        limit: seconds after which what runs is stopped; null for none.
        settings: of every run, by key, such as {domain.path:FILE,trainer.micro_batch:4}; they say where and how it is
            made, and none may change what it finds.
        commit: of the source tree, where it is not a git checkout.
        dry: list the runs and whether they are finished, and do nothing.
        report: write README.md, results.csv and plots of what is kept, and train nothing; of all studies, also README's
            table.
        check: with study=all, whether README's table is what the records give; write nothing.
    """

    study: str | None = None
    jobs: Count = 1
    limit: Positive | None = None
    settings: dict[str, Any] | None = None
    commit: str | None = None
    dry: bool = False
    report: bool = False
    check: bool = False
