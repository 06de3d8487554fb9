"""The zero-shot benchmarks: their files, forms, addresses and metrics."""

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..core.checked_files import DAMAGE, why
from ..core.errors import UserError
from ..domains.fetch import fetch
from ..domains.openwebtext import published_sha256
from . import prompts
from .questions import Question, Questions
from .readers import Reader, groups_of_lines, json_lines, parquet, zipped, zipped_folder

HUB = "https://huggingface.co/datasets"
ARC = "allenai/ai2_arc/resolve/210d026faf9955653af8916fad021475a3f00453/ARC-Easy/test-00000-of-00001.parquet"


@dataclass(frozen=True)
class Download:
    """The publisher's file: address, name, and digest. Without a digest, the server's own is required."""

    url: str
    name: str
    sha256: str | None
    size: int | None = None


@dataclass(frozen=True)
class Form:
    """A form in which a benchmark's file occurs: patterns of file names, and a note on how its text differs."""

    names: tuple[str, ...]
    read: Reader
    note: str = ""


@dataclass(frozen=True)
class Benchmark:
    """A zero-shot benchmark.

    Attributes:
        title: its name in tables.
        metrics: names of its scores: acc, acc_norm, perplexity.
        chance: accuracy of guessing.
        forms: forms of its file, preferred first.
        download: the publisher's file; None if it must be given.
    """

    title: str
    metrics: tuple[str, ...]
    chance: float
    forms: tuple[Form, ...]
    download: Download | None = None

    def find(self, folder: Path) -> tuple[Form, Path] | None:
        """The benchmark's file at or below `folder`, and its form; None if there is none."""
        files = [folder] if folder.is_file() else sorted(path for path in folder.rglob("*") if path.is_file())
        for form in self.forms:
            for path in files:
                if any(fnmatch.fnmatchcase(path.name, name) for name in form.names):
                    return form, path
        return None

    def read(self, form: Form, path: Path) -> Questions:
        """The questions in a file. Raises UserError if it is damaged or of another form."""
        try:
            items: list[Question] = [*form.read(path)]
            if not items:
                raise ValueError("it contains no questions")
            single = [number for number, each in enumerate(items, 1) if len(each.pairs) == 1]
            if single and "perplexity" not in self.metrics:  # only that metric is of questions without choices
                raise ValueError(f"question {single[0]:,} has a single choice")
        except DAMAGE as error:
            raise UserError(f"{path} is damaged or in another format ({why(error)}): get the file again") from error
        return Questions(items, form.note)

    def fetched(self, folder: Path) -> tuple[Form, Path] | None:
        """The file in `folder`, where the publisher's is downloaded if there is none; None if it must be given.

        The publisher's file is verified. A file that was put there in another form is used as it is.
        """
        given = self.download
        if given is None or not (folder / given.name).exists():
            there = self.find(folder)
            if there is not None or given is None:
                return there
        hint = f"get it from {given.url} and set task.path=/folder/you/put/it/in"
        target = fetch([given.url], given.sha256 or published_sha256, folder / given.name, hint, size=given.size)
        return self.find(target)


def _names(name: str) -> tuple[str, ...]:
    """A file name, and those of the file compressed."""
    return name, f"{name}.gz", f"{name}.bz2", f"{name}.xz"


def _cbt(kind: str) -> tuple[Form, ...]:
    return (Form(_names(f"cbtest_{kind}_test_2500ex.txt"), groups_of_lines(prompts.cbt, None)),)


RESOLVED = "the second half of each context is not capitalised, so scores can differ from those of the published file"
BENCHMARKS: Mapping[str, Benchmark] = {
    "lambada": Benchmark(
        "LAMBADA (OpenAI)",
        ("acc", "perplexity"),
        0.0,
        (Form((*_names("lambada_test.jsonl"), *_names("lambada_test_en.jsonl")), json_lines(prompts.lambada)),),
        Download(
            "https://openaipublic.blob.core.windows.net/gpt-2/data/lambada_test.jsonl",
            "lambada_test.jsonl",
            "4aa8d02cd17c719165fc8a7887fddd641f43fcafa4b1c806ca8abc31fabdb226",
            1_819_752,
        ),
    ),
    "blimp": Benchmark(
        "BLiMP",
        ("acc",),
        0.5,
        (Form(("BLiMP.zip",), zipped_folder("data/", prompts.blimp)),),
        Download(
            "https://github.com/alexwarstadt/blimp/raw/master/BLiMP.zip",
            "BLiMP.zip",
            "172a1a714d72e72a89e8384dd531483f3d0f8a9aee3d33dccaf7992d8cecbb73",
            2_354_164,
        ),
    ),
    "hellaswag": Benchmark(
        "HellaSwag",
        ("acc", "acc_norm"),
        0.25,
        (
            Form(_names("hellaswag_val.jsonl"), json_lines(prompts.hellaswag)),
            Form(_names("hellaswag_val_full.txt"), groups_of_lines(prompts.hellaswag_plain, 6), RESOLVED),
        ),
        Download(
            "https://github.com/rowanz/hellaswag/raw/master/data/hellaswag_val.jsonl",
            "hellaswag_val.jsonl",
            "0aa3b88843990f3f10a97b9575c94d7b71fb2205240ba04ae4884d9e9c992588",
            12_246_618,
        ),
    ),
    "piqa": Benchmark(
        "PIQA",
        ("acc", "acc_norm"),
        0.5,
        (
            Form(
                ("physicaliqa-train-dev.zip",),
                zipped("physicaliqa-train-dev/dev.jsonl", prompts.piqa, "physicaliqa-train-dev/dev-labels.lst"),
            ),
            Form(_names("piqa.jsonl"), json_lines(prompts.piqa_query)),
        ),
        Download(
            "https://storage.googleapis.com/ai2-mosaic/public/physicaliqa/physicaliqa-train-dev.zip",
            "physicaliqa-train-dev.zip",
            "54d32a04f59a7e354396f321723c8d7ec35cc6b08506563d8d1ffcc15ce98ddd",
            1_824_009,
        ),
    ),
    "arc_easy": Benchmark(
        "ARC-Easy",
        ("acc", "acc_norm"),
        0.25,
        (
            Form(("arc-easy-test.parquet",), parquet(prompts.arc)),
            Form(_names("ARC-Easy-Test.jsonl"), json_lines(prompts.arc_published)),
            Form(_names("arc_easy.jsonl"), json_lines(prompts.arc_query)),
        ),
        Download(f"{HUB}/{ARC}", "arc-easy-test.parquet", None),
    ),
    "winogrande": Benchmark(
        "WinoGrande",
        ("acc",),
        0.5,
        (
            Form(("winogrande_1.1.zip",), zipped("winogrande_1.1/dev.jsonl", prompts.winogrande)),
            Form(_names("winogrande.jsonl"), json_lines(prompts.winogrande_contexts)),
        ),
        Download(
            "https://storage.googleapis.com/ai2-mosaic/public/winogrande/winogrande_1.1.zip",
            "winogrande_1.1.zip",
            "3619ab104d8be2977b25c90ff420cb42d491707dcc75362a1e5d22bc082b7318",
            3_395_492,
        ),
    ),
    "copa": Benchmark(
        "COPA",
        ("acc",),
        0.5,
        (
            Form(("COPA.zip",), zipped("COPA/val.jsonl", prompts.copa)),
            Form(_names("copa.jsonl"), json_lines(prompts.copa_query)),
        ),
        Download(
            "https://dl.fbaipublicfiles.com/glue/superglue/data/v2/COPA.zip",
            "COPA.zip",
            "405906cddac74bc1e1ce8220f1107d1025b66a25ef10149d91b10bb30651125f",
            43_986,
        ),
    ),
    "cbt_cn": Benchmark("CBT, common nouns", ("acc",), 0.1, _cbt("CN")),
    "cbt_ne": Benchmark("CBT, named entities", ("acc",), 0.1, _cbt("NE")),
}
