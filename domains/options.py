"""The options of this folder's domains: `JSBOptions` are those of `JSB`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field

from ..core.options import Count, Natural, Options, Place, Share

Part = Annotated[float, Field(gt=0, lt=1)]
HUMAN = {"train": [*(f"chr{number}" for number in range(1, 21)), "chrX", "chrY"], "valid": ["chr21"], "test": ["chr22"]}
MD5 = "dcc3ea27079aa6dc3f9deccd7275e0f8"  # UCSC publishes md5 alone
SHARDS = 80
TRANSPOSE = 6  # semitones: with half an octave each way every key of the chorales is within reach


@dataclass(frozen=True)
class JSBOptions(Options):
    """J. S. Bach's four-part chorales, one token a voice and 16th note.

    Attributes:
        source: music21, the four-part chorales in music21's corpus (no network), split by melody; or separated16, the
            file and the split that papers use. There most test melodies are also in train, in other settings.
        path: for separated16 the file, already downloaded, or another in the same format, with its own splits; for
            music21 a folder of MusicXML scores in place of Bach's.
        urls: mirrors of the separated16 file, in order.
        transpose: training windows move by a uniform draw of -transpose..transpose semitones, since the task overfits;
            any more would leave the vocabulary. The PoPE paper uses 0.
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
        path: the release's zip, a folder unpacked from it, or a tar of that folder; null downloads the zip (56 MB).
            With split=random also a folder or archive of any MIDI files, each a performance of another piece.
        urls: mirrors of the zip, in order.
        split: official, or random: 90/5/5 % by file as in the PoPE paper, where pieces are in several splits.
        tokenizer: fine (onsets every 20.8 ms, 313 tokens) or pope (62.5 ms, chords and tempo, 328 tokens as in the PoPE
            paper).
        transpose: training windows move by a uniform draw of -transpose..transpose semitones, as far as that leaves
            every pitch of the window on the keyboard: the draw is uniform over the shifts that do.
        skip_unreadable: leave out files that cannot be read, and name them in the manifest, rather than refuse all.
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
    """A genome, as 6-mers or as single bases: the human one (hg38, UCSC), or any assembly by path.

    Attributes:
        path: a FASTA file (plain, gzip, BGZF), a .2bit file, a folder of such files, or a list of all these; null
            downloads the first of `urls`.
        urls: mirrors of one file, in order; hg38 has 835 MB.
        md5: what that file's publisher gives; null where there is none.
        tokenizer: kmer6 (the Nucleotide Transformer's 6-mers) or base (A C G T N).
        chunk: bases a document; null for whole sequences, each held in memory for a moment.
        n_runs: keep runs of N (as the PoPE paper); split sequences at them, so that no N is left; drop documents of
            nothing else.
        split: chromosome, by `train`, `valid` and `test`; bed, by a BED file whose 4th column names the split; header,
            by `split=train` and so on in FASTA headers. What no split names is left out; a header must.
        train: names of records; null for all that the others do not name. Where none is named, and where a source of
            one record meets the human names that are the default, the records are cut into windows for the splits.
        valid, test: names of records.
        bed: that BED file, for split=bed.
        soft_mask: keep which tokens are repeats, in lower case, so that these are scored separately as well: a byte a
            token more in the store.
        reverse_complement: half of the training windows are read from the other strand. The PoPE paper does not say.
    """

    path: Place | Sequence[Place] | None = None
    urls: Sequence[str] = ("https://hgdownload.soe.ucsc.edu/goldenPath/hg38/bigZips/hg38.2bit",)
    md5: str | None = MD5
    tokenizer: Literal["kmer6", "base"] = "kmer6"
    chunk: Count | None = 6200
    n_runs: Literal["keep", "split", "drop"] = "keep"
    split: Literal["chromosome", "bed", "header"] = "chromosome"
    train: Sequence[str] | None = tuple(HUMAN["train"])
    valid: Sequence[str] | None = tuple(HUMAN["valid"])
    test: Sequence[str] | None = tuple(HUMAN["test"])
    bed: Place | None = None
    soft_mask: bool = False
    reverse_complement: bool = True

    def check_together(self) -> None:
        if (self.split == "bed") != (self.bed is not None):
            raise ValueError(f"split is {self.split!r} and bed is {self.bed!r}: split=bed goes with bed=FILE")
        named = [*(self.train or ()), *(self.valid or ()), *(self.test or ())]
        if twice := sorted({name for name in named if named.count(name) > 1}):
            raise ValueError(f"train, valid and test share {', '.join(twice)}: a record belongs to one split")
        if self.path is None and (len(names := {file_name(url) for url in self.urls}) != 1 or names & {"", ".."}):
            raise ValueError(f"urls is {list(self.urls)}: mirrors of one file are needed, all with that file's name")
        if self.path is not None and not self.path:
            raise ValueError(f"path is {self.path!r}: a file, a folder or a list of them is needed")


@dataclass(frozen=True)
class TextOptions(Options):
    """Text of your own: a file or folder of .txt, .tokens, .jsonl (each also .gz or .zst) or .parquet.

    Attributes:
        path: a file, or a folder that is searched to its depth. Its files are read whole to recognise them, 2 s a GB,
            whenever the domain is opened.
        field: of .jsonl objects, or column of .parquet files, that holds the text.
        documents: where .txt and .tokens files are cut: nowhere (file), before each line or paragraph, or before each
            article (a ` = Title = ` between blank lines, as in WikiText).
        tokenizer: gpt2, bytes, or train: a byte-level BPE learnt from the training split only.
        tokenizer_path: GPT-2's tokenizer.json, already downloaded.
        tokenizer_urls: mirrors of that file, in order.
        vocabulary_size: tokens for tokenizer=train to learn, the 256 bytes and end of text included.
        split: hash, by the hash of each document's text, so that copies of a document are in one split, and a single
            .txt file is cut into blocks, in order; or files: a file is of the split that its name, or its folder's
            below `path`, has as a word (train, valid, val, validation, test).
        valid_fraction, test_fraction: of the documents, for split=hash.
    """

    path: Place | None = None
    field: str = "text"
    documents: Literal["file", "line", "paragraph", "article"] = "file"
    tokenizer: Literal["gpt2", "bytes", "train"] = "gpt2"
    tokenizer_path: Place | None = None
    tokenizer_urls: Sequence[str] = (  # a revision that does not change
        "https://huggingface.co/openai-community/gpt2/resolve/607a30d783dfa663caf39e06633721c8d4cfcd7e/tokenizer.json",
    )
    vocabulary_size: Annotated[int, Field(ge=257)] = 8192
    split: Literal["hash", "files"] = "hash"
    valid_fraction: Part = 0.05
    test_fraction: Part = 0.05

    def check_together(self) -> None:
        if self.valid_fraction + self.test_fraction >= 1:
            raise ValueError(
                f"valid_fraction={self.valid_fraction}: with test_fraction={self.test_fraction} none is left to train"
            )


@dataclass(frozen=True)
class OpenWebTextOptions(TextOptions):
    """OpenWebText, a document a page.

    Attributes:
        path: a file or folder of it, already downloaded: .parquet, .jsonl (also .gz and .zst) or .txt; null downloads
            it.
        urls: mirrors, in order, in which `{shard:05d}` stands for 00000, 00001, ...
        shards: how many of the 80 to read, 0.3 GB and 100,000 pages each; null for all.
        valid_fraction, test_fraction: of the first shard's pages, or of the first file in `path`, for split=hash.
    """

    urls: Sequence[str] = (  # a revision of the dataset that does not change
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
                raise ValueError(f"urls: {url} has no {{shard:05d}} where a shard's number goes")


@dataclass(frozen=True)
class GeneratedOptions(Options):
    """What every generated domain takes.

    Attributes:
        train: training examples kept in the store, for the baselines; training makes its own.
        valid, test: examples of these splits.
        pool: how many different examples training draws from, in a new order each epoch; null for ever new ones.
        seed: of the examples kept and of the pool. Ever new examples come from the run's own seed.
    """

    train: Count = 5000
    valid: Count = 1000
    test: Count = 1000
    pool: Count | None = None
    seed: Natural = 0


@dataclass(frozen=True)
class FlipFlopOptions(GeneratedOptions):
    """Flip-flop language modelling: what was the bit last written?

    Attributes:
        sparse, dense: examples of these further test splits.
        length: tokens an example.
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
    """Indirect indexing: which letter is so many places to the left or right of a given one?"""

    pool: Count | None = 1_000_000


@dataclass(frozen=True)
class MQRAROptions(GeneratedOptions):
    """MQRAR-N-back: variables are assigned again and again; what was the N-th last value of one?

    Attributes:
        back: N: the answer is the value given so many assignments ago.
        length: tokens an example.
        variables, values: how many there are.
        queries: probability of asking where that is possible.
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
            raise ValueError(f"length={self.length}: it must be even, and {needed} at least to be sure to hold a query")


@dataclass(frozen=True)
class WordProblemA5Options(GeneratedOptions):
    """The word problem of A5: do these permutations, one after the other, change anything?

    Attributes:
        shortest, longest_word: letters a word, uniform between the two; no word of one letter equals the identity.
    """

    shortest: Annotated[int, Field(ge=2)] = 2
    longest_word: int = 20

    def check_together(self) -> None:
        if self.longest_word < self.shortest:
            raise ValueError(f"longest_word={self.longest_word}: it must be at least shortest={self.shortest}")


def file_name(url: str) -> str:
    """The last part of a URL's path."""
    return Path(urlsplit(url).path).name
