"""Options of the domains in this folder: `JSBOptions` for `JSB`, and so on."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field

from ..core.errors import shortened
from ..core.options import Count, Natural, Options, Place, Share

Part = Annotated[float, Field(gt=0, lt=1)]
HUMAN = {"train": [*(f"chr{number}" for number in range(1, 21)), "chrX", "chrY"], "valid": ["chr21"], "test": ["chr22"]}
MD5 = "dcc3ea27079aa6dc3f9deccd7275e0f8"  # UCSC publishes only md5
HG38 = "https://hgdownload.soe.ucsc.edu/goldenPath/hg38/bigZips/hg38.2bit"
CHR21 = "https://hgdownload.soe.ucsc.edu/goldenPath/hg38/chromosomes/chr21.fa.gz"
CHR21_MD5 = "184df2bd9b812b6e6b6da16c6021369e"
SHARDS = 80
DATASET = re.compile(r"[./~].*|[\w][\w.-]*(/[\w][\w.-]*)?")  # a folder, ORG/NAME, or an old name without ORG
TRANSPOSE = 6  # semitones; half an octave in both directions reaches every key


@dataclass(frozen=True)
class JSBOptions(Options):
    """J. S. Bach's four-part chorales, one token per voice and 16th note.

    Attributes:
        source: music21, the four-part chorales in music21's corpus (no network), split by melody; or separated16, the
            file and split used in papers. There most test melodies are also in train, in other settings.
        path: for separated16, the downloaded file, or another one in the same format with its own splits; for music21,
            a folder of MusicXML scores to use instead of Bach's.
        urls: mirrors of the separated16 file, in order.
        transpose: training windows are transposed by a uniform draw from -transpose..transpose semitones, because
            models overfit. The maximum is the limit of the vocabulary. The PoPE paper uses 0.
    """

    source: Literal["music21", "separated16"] = "music21"
    path: Place | None = None
    urls: Sequence[str] = (
        "https://raw.githubusercontent.com/czhuang/JSB-Chorales-dataset/master/Jsb16thSeparated.json",
        "https://cdn.jsdelivr.net/gh/czhuang/JSB-Chorales-dataset@master/Jsb16thSeparated.json",
    )
    transpose: Annotated[int, Field(ge=0, le=TRANSPOSE)] = 3


@dataclass(frozen=True)
class MaestroOptions(Options):
    """MAESTRO v3.0.0: 1,276 piano performances, 199 hours, as REMI tokens.

    Attributes:
        path: the zip of the release, the unpacked folder, or a tar of it; null downloads the zip (56 MB). With
            split=random, also a folder or archive of any MIDI files, each of which counts as a different piece.
        urls: mirrors of the zip, in order.
        split: official, or random: 90/5/5 % by file as in the PoPE paper, where splits share pieces. Copies of a file
            in another split are left out.
        tokenizer: fine (onsets every 20.8 ms, 313 tokens) or pope (62.5 ms, chords and tempo, 328 tokens as in the PoPE
            paper).
        transpose: training windows are transposed by a uniform draw from those of -transpose..transpose semitones that
            keep all pitches of the window on the keyboard.
        skip_unreadable: skip files that cannot be read and list them in the manifest, instead of raising an error.
    """

    path: Place | None = None
    urls: Sequence[str] = (
        "https://storage.googleapis.com/magentadata/datasets/maestro/v3.0.0/maestro-v3.0.0-midi.zip",
    )
    split: Literal["official", "random"] = "official"
    tokenizer: Literal["fine", "pope"] = "fine"
    transpose: Annotated[int, Field(ge=0, le=12)] = 3
    skip_unreadable: bool = False


@dataclass(frozen=True)
class GenomeOptions(Options):
    """A genome, as 6-mers or single bases: the human genome (hg38, UCSC) or any assembly.

    Attributes:
        path: a FASTA file (plain, gzip, BGZF), a .2bit file, a folder of such files, or a list of these; or a .csv,
            .tsv, .jsonl or .parquet file with one sequence per row, or a list of such files; null downloads the source.
        source: hg38, the human genome (835 MB); or chr21, its chromosome 21 (13 MB), for a first try. chr21 is cut into
            blocks of 250,000 bases: of every 10 with known bases, one is for valid and one for test, and 50,000 bases
            on each side of them are not used.
        urls: mirrors of one file, in order; the default is UCSC's file of the source.
        md5: md5 of that file; null if the publisher provides none.
        tokenizer: kmer6 (6-mers as in the Nucleotide Transformer) or base (A C G T N).
        chunk: bases per document; null for whole sequences, which must fit in memory.
        n_runs: keep runs of N (as in the PoPE paper); split sequences at them and remove N; or drop documents of only
            N.
        split: chromosome, by `train`, `valid` and `test`; bed, by a BED file whose 4th column names the split; or
            header, by `split=train` etc. in FASTA headers, which every header must have. With chromosome and bed,
            sequences without a split are skipped.
        train: names of records; null for all that are not in other splits. If no record is named, or the source has
            only one record and the names are the default, records are cut into windows for the splits.
        valid, test: names of records.
        bed: the BED file for split=bed.
        field: column of a .csv, .tsv or .parquet file, or field of .jsonl objects, that holds the sequence.
        split_field: column or field that names the split: train, valid or validation, test; null for a hash of the
            sequence, or of the group, that draws 5 % each for valid and test.
        group_field: column or field that names a group of similar sequences, which are in the same split and count as
            dependent in intervals; null for no groups.
        soft_mask: also score repeats (in lower case) separately; takes one more byte per token in the store.
        reverse_complement: read half of the training windows from the other strand. The PoPE paper does not mention it.
    """

    path: Place | Sequence[Place] | None = None
    source: Literal["hg38", "chr21"] = "hg38"
    urls: Sequence[str] = (HG38,)
    md5: str | None = MD5
    tokenizer: Literal["kmer6", "base"] = "kmer6"
    chunk: Count | None = 6200
    n_runs: Literal["keep", "split", "drop"] = "keep"
    split: Literal["chromosome", "bed", "header"] = "chromosome"
    train: Sequence[str] | None = tuple(HUMAN["train"])
    valid: Sequence[str] | None = tuple(HUMAN["valid"])
    test: Sequence[str] | None = tuple(HUMAN["test"])
    bed: Place | None = None
    field: str = "sequence"
    split_field: str | None = None
    group_field: str | None = None
    soft_mask: bool = False
    reverse_complement: bool = True

    def check_together(self) -> None:
        if (self.split == "bed") != (self.bed is not None):
            raise ValueError(f"split={self.split} with bed={self.bed}: use split=bed together with bed=FILE")
        by_split = {"train": self.train or (), "valid": self.valid or (), "test": self.test or ()}
        named = [*chain(*by_split.values())]
        if twice := sorted({name for name in named if named.count(name) > 1}):
            given = " and ".join(f"{split}={shortened([*at])}" for split, at in by_split.items() if twice[0] in at)
            raise ValueError(f"{given}: {twice[0]} is named twice: name each record once")
        if self.source == "chr21" and (self.split == "header" or named != [*chain(*HUMAN.values())]):
            given = "split=header" if self.split == "header" else "train=, valid= and test="
            raise ValueError(f"source=chr21 is one record, cut into blocks for the splits: leave out {given}")
        if self.path is None and (len(names := {file_name(url) for url in self.urls}) != 1 or names & {"", ".."}):
            raise ValueError(f"urls={list(self.urls)}: all mirrors must have the same file name")
        if self.path is not None and not self.path:
            raise ValueError(f"path={self.path!r}: it must be a file, a folder or a list of them")
        refuse_equal_fields(self)


@dataclass(frozen=True)
class CorpusOptions(Options):
    """Options of domains of text.

    Attributes:
        path: a file, or a folder that is searched recursively. Files are hashed whenever the domain is opened, which
            takes 2 s per GB.
        field: field of .jsonl objects, or column of .csv, .tsv and .parquet files, that holds the text.
        split_field: field or column that names the split: train, valid or validation, test; null for `split`.
        group_field: field or column that names a group, such as a protein family. Documents of a group are in the same
            split, and count as dependent in intervals; null for no groups.
        documents: where .txt and .tokens files are split into documents: nowhere (file), before each line or paragraph,
            or before each article (a ` = Title = ` between blank lines, as in WikiText).
        tokenizer: gpt2, bytes, alphabet (the characters of `alphabet`), train: a byte-level BPE trained on the training
            split, or pretrained: that of a pretrained model, which is also the default with model.pretrained.
        alphabet: the characters of tokenizer=alphabet, such as ACDEFGHIKLMNPQRSTVWY for amino acids.
        tokenizer_path: a downloaded copy of GPT-2's tokenizer.json; or, for tokenizer=pretrained, a tokenizer.json, a
            .gguf file, or a tok*.bin of llama2.c; null for the tokenizer of model.pretrained.
        tokenizer_urls: mirrors of that file, in order.
        vocabulary_size: number of tokens for tokenizer=train, including the 256 bytes and end of text.
        split: hash, by the hash of each document's text, so that copies of a document are in the same split (a single
            .txt file is cut into consecutive blocks); or files, by a word in the name of the file or of a folder below
            `path` (train, valid, val, validation, test), or the splits of `dataset`.
        valid_fraction, test_fraction: shares of the documents for split=hash.
    """

    path: Place | None = None
    field: str = "text"
    split_field: str | None = None
    group_field: str | None = None
    documents: Literal["file", "line", "paragraph", "article"] = "file"
    tokenizer: Literal["gpt2", "bytes", "alphabet", "train", "pretrained"] = "gpt2"
    alphabet: str | None = None
    tokenizer_path: Place | None = None
    tokenizer_urls: Sequence[str] = (  # a fixed revision
        "https://huggingface.co/openai-community/gpt2/resolve/607a30d783dfa663caf39e06633721c8d4cfcd7e/tokenizer.json",
    )
    vocabulary_size: Annotated[int, Field(ge=257)] = 8192
    split: Literal["hash", "files"] = "hash"
    valid_fraction: Part = 0.05
    test_fraction: Part = 0.05

    def check_together(self) -> None:
        if self.valid_fraction + self.test_fraction >= 1:
            given = f"valid_fraction={self.valid_fraction} and test_fraction={self.test_fraction}"
            raise ValueError(f"{given}: their sum must be below 1")
        if self.tokenizer == "alphabet" and not self.alphabet:
            raise ValueError("tokenizer=alphabet: set alphabet=LETTERS, the letters of the text")
        if self.alphabet and self.tokenizer != "alphabet":
            raise ValueError(f"alphabet={self.alphabet} with tokenizer={self.tokenizer}: set tokenizer=alphabet")
        if self.alphabet and len({*self.alphabet}) < len(self.alphabet):
            twice = next(letter for letter in self.alphabet if self.alphabet.count(letter) > 1)
            raise ValueError(f"alphabet={self.alphabet}: it contains {twice!r} twice: give each letter once")
        if self.split_field is not None and self.split == "files":
            raise ValueError(f"split=files with split_field={self.split_field}: use one of them")
        refuse_equal_fields(self)


@dataclass(frozen=True)
class TextOptions(CorpusOptions):
    """Your own text: .txt, .tokens, .jsonl, .csv, .tsv (each also .gz or .zst) or .parquet; or a data set by name.

    Attributes:
        source: wikitext2 downloads WikiText-2 (4 MB), with its published splits and one document per article, unless
            `documents` is line or paragraph; null for `path` or `dataset`.
        urls: mirrors of wikitext-2-v1.zip, in order.
        dataset: a data set on the Hugging Face Hub, ORG/NAME, which is streamed; or a folder that begins with `/`, `.`
            or `~`. Needs the package `datasets`: pip install -e ".[datasets]".
        dataset_config: name of a configuration of the data set; null for the default one.
        dataset_revision: branch, tag or commit of the data set; null for the newest commit. The commit identifies the
            data of a run.
        dataset_split: the split of the data set from which split=hash draws documents.
        dataset_rows: number of rows to read of each split; null for all.
    """

    source: Literal["wikitext2"] | None = None
    urls: Sequence[str] = (
        "https://wikitext.smerity.com/wikitext-2-v1.zip",
        "https://s3.amazonaws.com/research.metamind.io/wikitext/wikitext-2-v1.zip",
    )
    dataset: str | None = None
    dataset_config: str | None = None
    dataset_revision: str | None = None
    dataset_split: str = "train"
    dataset_rows: Count | None = None

    def check_together(self) -> None:
        super().check_together()
        if self.dataset is not None and (self.path is not None or self.source is not None):
            other = f"source={self.source}" if self.path is None else f"path={self.path}"
            raise ValueError(f"dataset={self.dataset} with {other}: use one of them")
        if self.dataset is not None and not DATASET.fullmatch(self.dataset):
            raise ValueError(f"dataset={self.dataset}: give ORG/NAME, or a folder that begins with /, . or ~")
        given = {"dataset_config": self.dataset_config, "dataset_revision": self.dataset_revision}
        given |= {"dataset_split": None if self.dataset_split == type(self).dataset_split else self.dataset_split}
        given |= {"dataset_rows": self.dataset_rows}
        if self.dataset is None and (idle := [name for name, value in given.items() if value is not None]):
            raise ValueError(f"{idle[0]}={given[idle[0]]} without dataset: give dataset=ORG/NAME, or leave it out")


@dataclass(frozen=True)
class OpenWebTextOptions(CorpusOptions):
    """OpenWebText, with one document per page.

    Attributes:
        path: a downloaded file or folder: .parquet, .jsonl (also .gz and .zst) or .txt; null downloads the data.
        urls: mirrors, in order, in which `{shard:05d}` stands for 00000, 00001, ...
        shards: number of shards to read out of 80, with 0.3 GB and 100,000 pages each; null for all.
        valid_fraction, test_fraction: shares of the pages of the first shard, or of the first file in `path`, for
            split=hash.
    """

    urls: Sequence[str] = (  # a fixed revision of the dataset
        "https://huggingface.co/datasets/Skylion007/openwebtext/resolve/79d93d786212f7344586290adb811d4ae6a1762c"
        "/plain_text/train-{shard:05d}-of-00080.parquet",
    )
    shards: Annotated[int, Field(ge=1, le=SHARDS)] | None = None
    valid_fraction: Part = 0.02
    test_fraction: Part = 0.02

    def check_together(self) -> None:
        super().check_together()
        for url in self.urls:
            try:
                distinct = url.format(shard=0) != url.format(shard=1)
            except (KeyError, IndexError, ValueError):
                distinct = False
            if not distinct:
                raise ValueError(f"urls: {url} must contain {{shard:05d}}, the place of the shard number")


@dataclass(frozen=True)
class GeneratedOptions(Options):
    """Options of all generated domains.

    Attributes:
        train: number of training examples in the store, for the baselines. Training generates its own.
        valid, test: number of examples in these splits.
        pool: number of different training examples, reshuffled each epoch; null to generate new examples throughout.
        seed: seed of the stored examples and of the pool. Without a pool, training uses the seed of the run.
    """

    train: Count = 5000
    valid: Count = 1000
    test: Count = 1000
    pool: Count | None = None
    seed: Natural = 0


@dataclass(frozen=True)
class FlipFlopOptions(GeneratedOptions):
    """Flip-flop language modelling: recall the last written bit.

    Attributes:
        sparse, dense: number of examples in these additional test splits.
        length: tokens per example.
        ignore: share of ignored bits in train, valid and test.
        sparse_ignore, dense_ignore: share of ignored bits in these splits.
    """

    train: Count = 1000
    valid: Count = 200
    test: Count = 200
    sparse: Count = 500
    dense: Count = 200
    length: int = 512
    ignore: Share = 0.8
    sparse_ignore: Share = 0.98
    dense_ignore: Share = 0.1

    def check_together(self) -> None:
        if self.length < 4 or self.length % 2:
            raise ValueError(f"length={self.length}: it must be even and at least 4, for a write and a read")


@dataclass(frozen=True)
class IndirectIndexingOptions(GeneratedOptions):
    """Indirect indexing: find the letter at a given distance to the left or right of another.

    Attributes:
        shortest, longest_string: minimum and maximum letters per string; lengths are uniform.
        farthest: greatest shift to the left or right.
    """

    pool: Count | None = 1_000_000
    shortest: Annotated[int, Field(ge=2)] = 20
    longest_string: Annotated[int, Field(le=52)] = 40
    farthest: Count = 15

    def check_together(self) -> None:
        if self.longest_string < self.shortest:
            raise ValueError(f"longest_string={self.longest_string}: it must be at least shortest={self.shortest}")


@dataclass(frozen=True)
class MQRAROptions(GeneratedOptions):
    """MQRAR-N-back: recall the N-th last value of a variable that is assigned repeatedly.

    Attributes:
        back: N; the answer is the value assigned N assignments ago.
        length: tokens per example.
        variables, values: number of variables and of values.
        queries: probability of a query if the variable has been assigned N times.
    """

    train: Count = 1000
    valid: Count = 100
    test: Count = 200
    back: Count = 2
    length: int = 512
    variables: Count = 32
    values: Count = 32
    queries: Annotated[float, Field(gt=0, le=1)] = 0.5

    def check_together(self) -> None:
        needed = 2 * (self.variables * (self.back - 1) + 2)
        if self.length % 2 or self.length < needed:
            raise ValueError(f"length={self.length}: it must be even and at least {needed}, so that there is a query")


@dataclass(frozen=True)
class WordProblemA5Options(GeneratedOptions):
    """The word problem of A5: decide whether a product of permutations is the identity.

    Attributes:
        shortest, longest_word: minimum and maximum letters per word; lengths are uniform. No word of one letter is the
            identity.
    """

    shortest: Annotated[int, Field(ge=2)] = 2
    longest_word: int = 20

    def check_together(self) -> None:
        if self.longest_word < self.shortest:
            raise ValueError(f"longest_word={self.longest_word}: it must be at least shortest={self.shortest}")


def refuse_equal_fields(options: GenomeOptions | CorpusOptions) -> None:
    """Raise ValueError if two of the fields of a table have the same name."""
    keys = ("field", "split_field", "group_field")
    given = {key: name for key in keys if (name := getattr(options, key)) is not None}
    if len({*given.values()}) < len(given):
        named = ", ".join(f"{key}={name}" for key, name in given.items())
        raise ValueError(f"{named}: name a different field for each")


def file_name(url: str) -> str:
    """The last component of the path of a URL."""
    return Path(urlsplit(url).path).name
