"""Genomes: chromosomes cut into chunks, as 6-mers or as single bases."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

import numpy as np

from bearings.domains import base_markov, sequences
from bearings.domains.base import Domain
from bearings.domains.fetch import fetch
from bearings.domains.nucleotides import START, TOKENIZERS, reverse_complement
from bearings.domains.store import SPLITS, Store, StoreWriter, hash_files
from bearings.errors import UserError, nearest

URL = "https://hgdownload.soe.ucsc.edu/goldenPath/hg38/bigZips/hg38.2bit"
MD5 = "dcc3ea27079aa6dc3f9deccd7275e0f8"  # UCSC publishes md5 alone
AUTOSOMES = [f"chr{number}" for number in range(1, 21)]
CLUSTER = 1_000_000  # bases: documents of one such block of a record count as dependent
LINE = 60  # bases a line of FASTA
CALLED = {**{split: split for split in SPLITS}, "training": "train", "validation": "valid", "val": "valid"}


class Region(NamedTuple):
    """Bases `begin` to `end` - 1 of a record belong to `split`; `line` of the BED file says so."""

    begin: int
    end: float
    split: str
    line: int = 0


class Part(NamedTuple):
    """Bases of a region in one piece, from `begin` of the record on."""

    region: Region
    begin: int
    codes: np.ndarray


class Genome(Domain):
    """Documents are contiguous pieces of a sequence, named `record:begin-end` (from 0, `end` excluded, as in BED).

    Lower case, which marks repeats, is counted and read as upper case; IUPAC's ambiguity codes are counted and read as
    N. A "base" is one that is not N. Documents of one block of CLUSTER bases of a record form a cluster.

    Args:
        path: a FASTA file (plain, gzip, BGZF), a .2bit file, a folder of such files, or a list of all these; null
            downloads the first of `urls`.
        urls: mirrors of one file.
        md5: what that file's publisher gives; null where there is none.
        tokenizer: "kmer6" or "base", see nucleotides.py.
        chunk: bases a document; null for whole sequences, each held in memory for a moment.
        n_runs: "keep" runs of N; "split" sequences at them, so that no N is left; "drop" documents of nothing else.
        split: "chromosome", by `train`, `valid` and `test`; "bed", by a BED file whose 4th column names the split;
            "header", by `split=train` and so on in FASTA headers. What no split names is left out; a header must.
        train, valid, test: names of records; `train` null takes all the others.
        bed: that BED file.
        reverse_complement: half of the training windows are read from the other strand.

    Raises:
        ValueError: an unknown choice, or arguments that contradict each other.
    """

    name = "genome"
    units = ("base",)
    start = START

    def __init__(
        self,
        path: str | Sequence[str] | None = None,
        urls: Sequence[str] = (URL,),
        md5: str | None = MD5,
        tokenizer: Literal["kmer6", "base"] = "kmer6",
        chunk: int | None = 6200,
        n_runs: Literal["keep", "split", "drop"] = "keep",
        split: Literal["chromosome", "bed", "header"] = "chromosome",
        train: Sequence[str] | None = (*AUTOSOMES, "chrX", "chrY"),
        valid: Sequence[str] = ("chr21",),
        test: Sequence[str] = ("chr22",),
        bed: str | None = None,
        reverse_complement: bool = False,
    ):
        choices = {"tokenizer": (tokenizer, TOKENIZERS), "n_runs": (n_runs, ("keep", "split", "drop"))}
        choices["split"] = (split, ("chromosome", "bed", "header"))
        for key, (given, allowed) in choices.items():
            if given not in allowed:
                raise ValueError(f"{key} is {given!r}: {', '.join(allowed)} are allowed")
        if chunk is not None and chunk < 1:
            raise ValueError(f"chunk is {chunk}: a document needs 1 base at least, or null for whole sequences")
        if (split == "bed") != (bed is not None):
            raise ValueError(f"split is {split!r} and bed is {bed!r}: split=bed goes with bed=FILE")
        named = [*(train or ()), *valid, *test]
        if twice := sorted({name for name in named if named.count(name) > 1}):
            raise ValueError(f"train, valid and test share {', '.join(twice)}: a record belongs to one split")
        if path is None and len({_file_name(url) for url in urls}) != 1:
            raise ValueError(f"urls is {list(urls)}: mirrors of one file are needed, all with that file's name")
        if path is not None and not path:
            raise ValueError(f"path is {path!r}: a file, a folder or a list of them is needed")
        listed = [] if path is None else [path] if isinstance(path, str) else path
        self.paths, self.urls, self.md5 = [Path(each).expanduser() for each in listed], list(urls), md5
        self.tokenizer, self._tokenizer = tokenizer, TOKENIZERS[tokenizer]()
        self.chunk, self.n_runs, self.split = chunk, n_runs, split
        self.named = {"train": train and list(train), "valid": list(valid), "test": list(test)}
        self.bed = Path(bed).expanduser() if bed else None
        self.reverse_complement = reverse_complement

    @property
    def vocabulary(self) -> int:
        return self._tokenizer.vocabulary

    def options(self) -> Mapping[str, Any]:
        read = {"tokenizer": self.tokenizer, "chunk": self.chunk, "n_runs": self.n_runs, "split": self.split}
        if self.split == "chromosome":
            read.update(self.named)
        if self.bed is not None:
            read["bed"] = _sha256([self.bed])
        if not self.paths:
            return {**read, "download": _file_name(self.urls[0]), "md5": self.md5}
        return {**read, "sha256": self._sha256}

    @cached_property
    def _sha256(self) -> str:
        return _sha256(self._files())

    def build(self, writer: StoreWriter) -> None:
        tally, regions = sequences.Tally(), self._bed_regions()
        files = self._files() or [self._download(writer.directory.parent / "downloads")]
        used = {split: [] for split in SPLITS}
        left_out = []
        # Records come with their bases, so that a file is read once, whatever its size.
        for record, blocks in groupby(sequences.read(files, tally), key=itemgetter(0)):
            wanted = self._regions_of(record, regions)
            if not wanted:
                left_out.append(record.name)
            for split in {region.split for region in wanted}:
                used[split].append(record.name)
            for part in self._documents(_within(record, (codes for _, codes in blocks), wanted, self.bed)):
                end = part.begin + len(part.codes)
                writer.add(
                    f"{record.name}:{part.begin}-{end}",
                    part.region.split,
                    f"{record.name} {part.region.split} {part.begin // CLUSTER}",
                    self._tokenizer.encode(part.codes),
                    {"base": float(np.count_nonzero(part.codes < sequences.N))},
                )
        self._refuse_absent(used, left_out, regions, files)
        writer.facts.update(
            files=[file.name for file in files],
            records={split: len(names) for split, names in used.items()},
            left_out=left_out,
            soft_masked_bases=tally.soft_masked,
            ambiguity_codes_read_as_n=tally.ambiguous,
        )

    def _files(self) -> list[Path]:
        return [file for path in self.paths for file in sequences.files(path)]

    def _download(self, folder: Path) -> Path:
        name = _file_name(self.urls[0])
        hint = f"get {name} from {urlsplit(self.urls[0]).netloc} and set domain.path=/where/you/put/{name}"
        file = fetch(self.urls, None, folder / name, hint)
        if self.md5 is not None:
            with open(file, "rb") as opened:
                found = hashlib.file_digest(opened, "md5").hexdigest()
            if found != self.md5.lower():
                raise UserError(f"{file} has md5 {found}, not {self.md5}: delete it to have it downloaded anew")
        return file

    def _bed_regions(self) -> dict[str, list[Region]]:
        """Regions of each record as the BED file gives them, by their places."""
        found: dict[str, list[Region]] = {}
        if self.bed is None:
            return found
        for number, text in enumerate(_lines(self.bed), 1):
            if not text.strip() or text.startswith(("#", "track", "browser")):
                continue
            place, fields = f"{self.bed}, line {number}", text.split()
            if len(fields) < 4 or not (fields[1].isdecimal() and fields[2].isdecimal()):
                raise UserError(f"{place}: {text.strip()[:80]!r} is no BED line of record, start, end and split")
            if not (begin := int(fields[1])) < (end := int(fields[2])):
                raise UserError(f"{place}: start {begin} is not below end {end}")
            found.setdefault(fields[0], []).append(Region(begin, end, _split(fields[3], place), number))
        for name, regions in found.items():
            regions.sort()
            for one, other in pairwise(regions):
                if other.begin < one.end:
                    raise UserError(f"{self.bed}: lines {one.line} and {other.line} overlap on {name}")
        return found

    def _regions_of(self, record: sequences.Record, bed: Mapping[str, list[Region]]) -> list[Region]:
        if self.split == "bed":
            return bed.get(record.name, [])
        if self.split == "header":
            said = re.search(r"(?:^|\s)split=(\S+)", record.header)
            if not said:
                raise UserError(f"{record.file}: the header of {record.name} has no split=, which split=header needs")
            return [Region(0, np.inf, _split(said[1], f"{record.file}, header of {record.name}"))]
        splits = [split for split, names in self.named.items() if names is not None and record.name in names]
        if not splits and self.named["train"] is None:
            splits = ["train"]
        return [Region(0, np.inf, split) for split in splits]

    def _documents(self, parts: Iterable[Part]) -> Iterator[Part]:
        if self.n_runs == "split":
            parts = _without_n(parts)
        for part in _chunks(parts, self.chunk):
            if self.n_runs != "drop" or (part.codes != sequences.N).any():
                yield part

    def _refuse_absent(self, used: Mapping, left_out: list[str], bed: Mapping, files: list[Path]) -> None:
        """Every name that was asked for must have come, and every split have a record."""
        present = dict.fromkeys([*(name for names in used.values() for name in names), *left_out])
        source = str(files[0]) if len(files) == 1 else f"{files[0].parent} ({len(files)} files)"
        holds = f"{source} has {', '.join(list(present)[:5])}{' ...' if len(present) > 5 else ''}"
        for name in bed:
            if name not in present:
                raise UserError(
                    f"{self.bed}, line {bed[name][0].line}: {name} is absent; {nearest(name, present)}{holds}"
                )
        if self.split == "chromosome":
            for split, names in self.named.items():
                for name in names or ():
                    if name not in present:
                        raise UserError(f"{split} names {name}, which is absent; {nearest(name, present)}{holds}")
        for split, names in used.items():
            if not names:
                raise UserError(f"no record is in {split}: {holds}, split={self.split} gives it none")

    def unit_weights(self, tokens: np.ndarray) -> dict[str, np.ndarray]:
        return {"base": self._tokenizer.bases[np.asarray(tokens, np.int64)]}

    def augment(self, tokens: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Half of the windows from the other strand, in the very tokens that `build` would give it.

        A window of a document has as many tokens on either strand: a run between Ns of 6 a + b bases has a + b. One
        from a document's middle, without a start token, is turned as a whole, its first token being context.
        """
        if not self.reverse_complement or random.random() < 0.5:
            return tokens
        tokens = np.asarray(tokens)
        begun = int(tokens[0] == START)
        seen = self._tokenizer.encode(reverse_complement(self._tokenizer.codes(tokens[begun:])))
        return np.concatenate([tokens[:begun], seen[1:]]).astype(tokens.dtype)

    def markov(self, store: Store, split: str, max_order: int) -> dict[int, np.ndarray]:
        """Nats of each document of `split` under Markov models over bases, whatever the tokenizer."""
        return base_markov.markov(store, split, max_order, self._tokenizer.codes)

    def encode(self, sequence: str) -> np.ndarray:
        """Tokens, start first, of letters A C G T and others, which are N, in either case."""
        codes = np.frombuffer(sequence.encode("ascii", "replace").translate(sequences.TABLE), np.uint8)
        return self._tokenizer.encode(np.minimum(codes & sequences.CODE, sequences.N))

    def encode_file(self, path: Path) -> np.ndarray:
        """Tokens of a FASTA or .2bit file of one record."""
        found = list(sequences.read([Path(path)], sequences.Tally()))
        if names := sorted({record.name for record, _ in found if record is not found[0][0]}):
            raise UserError(f"{path} has the record {names[0]} besides {found[0][0].name}: give a file of one record")
        return self._tokenizer.encode(np.concatenate([codes for _, codes in found]))

    def decode(self, ids: Iterable[int]) -> str:
        """Letters of any ids: start tokens are skipped, an id out of range is an N."""
        unknown = self.vocabulary - 1
        known = [value if 0 <= value < self.vocabulary else unknown for value in map(int, ids) if value != START]
        letters = np.frombuffer(sequences.LETTERS.encode(), np.uint8)
        return letters[self._tokenizer.codes(np.array(known, np.int64))].tobytes().decode()

    def render(self, item: str, stem: Path) -> list[Path]:
        """Write `stem`.fa, FASTA of one record that bears the file's name."""
        path = stem.with_name(stem.name + ".fa")
        lines = [item[at : at + LINE] for at in range(0, len(item), LINE)]
        path.write_text("\n".join([f">{stem.name}", *lines]) + "\n", newline="\n")
        return [path]


def _within(record: sequences.Record, blocks: Iterable[np.ndarray], regions: list[Region], bed: Path) -> Iterator[Part]:
    """What of `blocks`, which follow each other, lies in `regions`, which are sorted and do not overlap."""
    at, begun = 0, 0
    for codes in blocks:
        end = at + len(codes)
        while begun < len(regions) and regions[begun].end <= at:
            begun += 1
        for region in regions[begun:]:
            if region.begin >= end:
                break
            first, last = max(region.begin, at), int(min(region.end, end))
            yield Part(region, first, codes[first - at : last - at])
        at = end
    if regions and at < regions[-1].end < np.inf:
        last = regions[-1]
        raise UserError(f"{bed}, line {last.line}: end {last.end} lies beyond {record.name}, which has {at} bases")


def _without_n(parts: Iterable[Part]) -> Iterator[Part]:
    for region, begin, codes in parts:
        known = codes != sequences.N
        edges = [0, *(np.flatnonzero(known[1:] != known[:-1]) + 1).tolist(), len(codes)]
        for first, last in pairwise(edges):
            if first < last and known[first]:
                yield Part(region, begin + first, codes[first:last])


def _chunks(parts: Iterable[Part], size: int | None) -> Iterator[Part]:
    """Join parts that follow each other in a region, and cut what results every `size` bases."""
    held: list[np.ndarray] = []
    region, begin, end = None, 0, 0
    for part in parts:
        if held and (part.region is not region or part.begin != end):
            yield Part(region, begin, _joined(held))
        if not held:
            region, begin, end = part.region, part.begin, part.begin
        held.append(part.codes)
        end += len(part.codes)
        if size is not None and end - begin >= size:
            codes = _joined(held)
            for first in range(0, len(codes) - size + 1, size):
                yield Part(region, begin + first, codes[first : first + size])
            begin = end - len(codes) % size
            if begin < end:
                held.append(codes[-(end - begin) :])
    if held:
        yield Part(region, begin, _joined(held))


def _joined(held: list[np.ndarray]) -> np.ndarray:
    """The arrays of `held` as one; empties it, so that they are not in memory twice for longer than that."""
    codes = held[0] if len(held) == 1 else np.concatenate(held)
    held.clear()
    return codes


def _split(word: str, place: str) -> str:
    if word.lower() not in CALLED:
        raise UserError(f"{place}: {word!r} is no split; {nearest(word, CALLED)}allowed: {', '.join(CALLED)}")
    return CALLED[word.lower()]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise UserError(f"{path} cannot be read ({reason}): give a BED file") from error


def _sha256(files: list[Path]) -> str:
    try:
        return hash_files(files)
    except OSError as error:
        raise UserError(f"{error.filename} cannot be read: {error.strerror}") from error


def _file_name(url: str) -> str:
    return Path(urlsplit(url).path).name
