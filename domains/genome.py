"""Genomes: chromosomes cut into chunks and tokenized as 6-mers or single bases."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from tokenizers import Tokenizer

from ..core.errors import UserError
from ..core.options import as_path
from . import base_markov, overlaps, repeats, sequence_rows, sequences
from .base import Domain
from .chunks import Part, chunks, within, without_n
from .clocks import Clock
from .documents import Fields, is_table
from .fast_tokenizers import by_pattern
from .fetch import discarded, fetch
from .nucleotides import START, TOKENIZERS, reverse_complement
from .options import CHR21, CHR21_MD5, HG38, HUMAN, MD5, GenomeOptions, file_name
from .regions import BLOCK, EVERY, GAP, Assignment, Region, in_blocks, in_windows
from .store import Store, StoreWriter, hash_files

# sha256 and size of the file with that md5, because a different file with the same md5 can be constructed.
KNOWN = {
    MD5: ("1f67aaa17a77b327738fe750ab37430a85dddf73c7d9189385ad1839259acec0", 835_393_456),
    CHR21_MD5: ("c979ca1e5065c2521a50773473e0d0cc018fd6f3e9bb3aa90493fe7b45d57d1b", 12_709_705),
}
MOST_BYTES = 1 << 36  # for downloads of unknown size; larger than any assembly
CLUSTER = 1_000_000  # bases; documents of the same block of a record count as dependent
LINE = 60  # bases per line of FASTA
NO_NUCLEOTIDE = re.compile("[^ACGTNRYSWKMBDHV]", re.IGNORECASE)


class Genome(Domain):
    """Documents are contiguous pieces of a sequence, named `record:begin-end` (from 0, `end` excluded, as in BED).

    Lower case, which marks repeats, is counted and read as upper case; IUPAC ambiguity codes are counted and read as N.
    The unit "base" does not include N. Documents in the same block of CLUSTER bases of a record form a cluster. If
    records are cut into windows for the splits, a cluster is a held-out window, or the windows between two of them.

    With `soft_mask` the tokens do not change, but unique sequence, repeats and N are also scored separately. A token is
    a repeat if more than half of its bases are in lower case; for 6-mers, at least four.

    Args:
        options: fields of `GenomeOptions`, in order. nucleotides.py has the tokenizers.

    Raises:
        ValueError: see `GenomeOptions`.
    """

    name = "genome"
    margin = 0.015  # the published difference between RoPE and PoPE is 0.065
    units = ("base",)
    start = START

    def __init__(self, *options: Any, **named: Any):
        given = GenomeOptions(*options, **named)
        listed = [] if given.path is None else [given.path] if isinstance(given.path, str | Path) else given.path
        self.paths, self.urls, self.md5 = [as_path(each) for each in listed], list(given.urls), given.md5
        self.source = given.source
        if self.source == "chr21" and self.urls == [HG38]:
            self.urls, self.md5 = [CHR21], CHR21_MD5 if self.md5 == MD5 else self.md5
        self.tokenizer, self._tokenizer = given.tokenizer, TOKENIZERS[given.tokenizer]()
        self.chunk, self.n_runs, self.split = given.chunk, given.n_runs, given.split
        self.named = {
            "train": given.train and list(given.train),
            "valid": list(given.valid or ()),
            "test": list(given.test or ()),
        }
        self.bed = as_path(given.bed) if given.bed else None
        self.groups = repeats.GROUPS if given.soft_mask else ()
        self.fields = Fields(given.field, given.split_field, given.group_field)
        self._in_tables = bool(self.paths) and all(map(is_table, self.paths))
        if any(map(is_table, self.paths)) and not self._in_tables:
            raise ValueError(f"path={listed}: tables and other files cannot be mixed: give one of them")
        if self._in_tables and (self.split != "chromosome" or self.source == "chr21"):
            raise ValueError(f"split={self.split}, source={self.source}: leave them out for a table; use split_field")
        self.reverse_complement = given.reverse_complement

    @property
    def vocabulary(self) -> int:
        return self._tokenizer.vocabulary

    @property
    def searched(self) -> Sequence[Path]:
        return self.paths

    @property
    def bases_per_token(self) -> int:
        """Letters of the longest token."""
        return int(self._tokenizer.widths.max())

    def reference_files(self, stores: Path) -> list[Path]:
        """The files that the data come from, downloaded if needed."""
        return self._files() or [self._download(stores / self.name / "downloads")]

    def options(self) -> Mapping[str, Any]:
        read = {"tokenizer": self.tokenizer, "chunk": self.chunk, "n_runs": self.n_runs, "split": self.split}
        read["soft_mask"] = bool(self.groups)
        if self._in_tables:
            read.update(field=self.fields.text, split_field=self.fields.split, group_field=self.fields.group)
        elif self._blocks is not None:
            read["blocks"] = [*self._blocks, EVERY]
        elif self.split == "chromosome":
            read.update(self.named)
        if self.bed is not None:
            read["bed"] = _sha256([self.bed])
        if not self.paths:
            return {**read, "download": file_name(self.urls[0]), "md5": self.md5}
        return {**read, "sha256": self._sha256}

    def options_again(self) -> Mapping[str, Any]:
        vars(self).pop("_sha256", None)
        return self.options()

    @property
    def _blocks(self) -> tuple[int, int] | None:
        """Bases per block, and unused bases between splits, if splits consist of blocks. Chunks divide both."""
        if self.source != "chr21" or self.split != "chromosome":
            return None
        chunk = self.chunk or 1
        return -(-BLOCK // chunk) * chunk, -(-GAP // chunk) * chunk

    @cached_property
    def _sha256(self) -> str:
        return _sha256(self._files())

    def build(self, writer: StoreWriter) -> None:
        files = self._files() or [self._download(writer.directory.parent / "downloads")]
        if self._in_tables:
            return self._build_rows(writer, files)
        windows, splits_by = self._windows(files)
        tally, assignment = sequences.Tally(), Assignment(self.split, self.named, self.bed, windows)
        digests, splits = {}, {}  # by document
        # Splits are assigned while records are read, so that each file is read only once.
        for record, blocks in groupby(self._read(files, tally, bool(self.groups)), key=itemgetter(0)):
            wanted = assignment.regions(record)
            for part in self._documents(within(record, (codes for _, codes in blocks), wanted, self.bed)):
                block = part.begin // CLUSTER if windows is None else part.region.begin
                name = self._add(writer, record.name, part, f"{record.name} {part.region.split} {block}")
                digests[name], splits[name] = _digest(part), part.region.split
        assignment.refuse_absent(files)
        self._refuse_unmasked(files, tally)
        if splits_by is not None:
            writer.facts["splits_by"] = splits_by
        writer.facts.update(
            files=[file.name for file in files],
            records={split: len(names) for split, names in assignment.used.items()},
            left_out=assignment.left_out,
            soft_masked_bases=tally.soft_masked,
            ambiguity_codes_read_as_n=tally.ambiguous,
            documents_also_in_train=overlaps.shared(digests, splits),
        )

    def _build_rows(self, writer: StoreWriter, files: list[Path]) -> None:
        tally, digests, splits = sequences.Tally(), {}, {}  # the last two by document
        for file in files:
            for row in sequence_rows.read(file, self.fields, tally, bool(self.groups)):
                for part in self._documents([Part(Region(0, np.inf, row.split), 0, row.codes)]):
                    name = self._add(writer, row.name, part, row.cluster)
                    digests[name], splits[name] = _digest(part), row.split
        self._refuse_unmasked(files, tally)
        if self.fields.split is None:
            writer.facts["splits_by"] = f"hash of the {'group' if self.fields.group else 'sequence'}"
        counts = {"soft_masked_bases": tally.soft_masked, "ambiguity_codes_read_as_n": tally.ambiguous}
        also = overlaps.shared(digests, splits)
        writer.facts.update(files=[file.name for file in files], **counts, documents_also_in_train=also)

    def _add(self, writer: StoreWriter, record: str, part: Part, cluster: str) -> str:
        """Write a document of `record`, and return its name."""
        codes = part.codes & sequences.CODE if self.groups else part.codes
        tokens, name = self._tokenizer.encode(codes), f"{record}:{part.begin}-{part.begin + len(codes)}"
        writer.add(
            name,
            part.region.split,
            cluster,
            tokens,
            {"base": float(np.count_nonzero(codes < sequences.N))},
            repeats.marks(tokens, part.codes, self._tokenizer) if self.groups else None,
        )
        return name

    def _refuse_unmasked(self, files: list[Path], tally: sequences.Tally) -> None:
        if self.groups and not tally.soft_masked:
            remedy = "give a soft-masked file, or set domain.soft_mask=false"
            raise UserError(f"{files[0]}: no base is in lower case, so repeats cannot be scored separately: {remedy}")

    def _windows(self, files: list[Path]) -> tuple[dict[str, list[Region]] | None, str | None]:
        """Regions by record and a description of them, if splits consist of blocks or windows."""
        if self._blocks is not None:
            return self._in_blocks(files, *self._blocks)
        nothing_named = not any(self.named.values())
        if self.split != "chromosome" or not (nothing_named or (self.paths and self.named == HUMAN)):
            return None, None
        lengths: dict[str, int] = {}
        for record, codes in self._read(files, sequences.Tally()):
            if lengths and record.name not in lengths and not nothing_named:
                return None, None
            lengths[record.name] = lengths.get(record.name, 0) + len(codes)
        windows, size = in_windows(lengths, self.chunk or 1)
        return windows, f"windows of {size:,} bases: of every 20 one for valid and one for test"

    def _in_blocks(self, files: list[Path], size: int, gap: int) -> tuple[dict[str, list[Region]], str]:
        known: dict[str, np.ndarray] = {}
        lengths: dict[str, int] = {}
        for record, codes in self._read(files, sequences.Tally()):
            begin = lengths.get(record.name, 0)
            end = lengths[record.name] = begin + len(codes)
            places = (begin + np.flatnonzero(codes < sequences.N)) // size
            counts = np.bincount(places, minlength=-(-end // size))
            before = known.get(record.name, counts[:0])
            counts[: len(before)] += before
            known[record.name] = counts
        splits_by = (
            f"blocks of {size:,} bases: of every {EVERY} one for valid and one for test, {gap:,} bases from train"
        )
        return in_blocks(known, lengths, size, gap), splits_by

    def _files(self) -> list[Path]:
        return [file for path in self.paths for file in sequences.files(path)]

    def _download(self, folder: Path) -> Path:
        name = file_name(self.urls[0])
        hint = f"get {name} from {urlsplit(self.urls[0]).netloc} and set domain.path=/where/you/put/{name}"
        if self.source == "hg38":
            hint += "; for a first try, domain.source=chr21 downloads 13 MB only"
        sha256, size = KNOWN.get((self.md5 or "").lower(), (None, None))
        return fetch(self.urls, sha256, folder / name, hint, size=size, md5=self.md5, limit=MOST_BYTES)

    def _read(
        self, files: list[Path], tally: sequences.Tally, soft_mask: bool = False
    ) -> Iterator[tuple[sequences.Record, np.ndarray]]:
        try:
            yield from sequences.read(files, tally, soft_mask)
        except UserError as error:
            if self.paths or self.md5 is not None:
                raise
            raise discarded(files[0], error) from error

    def _documents(self, parts: Iterable[Part]) -> Iterator[Part]:
        if self.n_runs == "split":
            parts = without_n(parts)
        for part in chunks(parts, self.chunk):
            if self.n_runs != "drop" or (part.codes != sequences.N).any():
                yield part

    def unit_weights(self, tokens: np.ndarray) -> dict[str, np.ndarray]:
        return {"base": self._tokenizer.bases[np.asarray(tokens, np.int64)]}

    def clock(self) -> Clock:
        """Letters: a 6-mer advances by 6, a single letter or N by 1."""
        return Clock(self._tokenizer.widths)

    def fast_tokenizer(self) -> Tokenizer:
        """For sequences without a header; letters other than A C G T are encoded as N."""
        spelt = {self.decode([token]): token for token in range(1, self.vocabulary)}
        longest = max(map(len, spelt))
        pattern = f"[ACGT]{{{longest}}}|." if longest > 1 else "."
        return by_pattern(spelt, pattern, {letter.lower(): letter for letter in sequences.LETTERS}, unknown="N")

    @classmethod
    def augmented_with(cls, options: Mapping[str, Any]) -> str | None:
        both = options.get("reverse_complement")
        return "In training, half of the windows are read from the other strand." if both else None

    def augment(self, tokens: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Replace half of the windows by the other strand, with the same tokens that `build` would produce.

        Both strands have the same number of tokens: a run of 6 a + b bases between Ns has a + b. A window without a
        start token, from the middle of a document, is reversed including its first token, which is context.
        """
        if not self.reverse_complement or random.random() < 0.5:
            return tokens
        tokens = np.asarray(tokens)
        begun = int(tokens[0] == START)
        seen = self._tokenizer.encode(reverse_complement(self._tokenizer.codes(tokens[begun:])))
        return np.concatenate([tokens[:begun], seen[1:]]).astype(tokens.dtype)

    def markov(self, store: Store, split: str, max_order: int) -> dict[int, np.ndarray]:
        """Nats of each document of `split` under Markov models over bases, for any tokenizer."""
        return base_markov.markov(store, split, max_order, self._tokenizer.codes)

    def encode(self, sequence: str) -> np.ndarray:
        """Tokens, start token first, of letters in either case. Letters other than A C G T are read as N."""
        codes = np.frombuffer(sequence.encode("ascii", "replace").translate(sequences.TABLE), np.uint8)
        return self.encode_codes(np.minimum(codes & sequences.CODE, sequences.N))

    def encode_codes(self, codes: np.ndarray) -> np.ndarray:
        """Tokens, start token first, of codes from 0 to 4 for A C G T N."""
        return self._tokenizer.encode(codes)

    def encode_text(self, text: str) -> np.ndarray:
        """Tokens of a sequence of nucleotides in IUPAC codes, which may contain white space."""
        if not (letters := "".join(text.split())) or (wrong := NO_NUCLEOTIDE.search(letters)):
            found = f"{wrong[0]!r} is not a nucleotide" if letters else "the sequence is empty"
            raise UserError(f"{found}: give letters A C G T N or IUPAC codes, or the path of a FASTA file")
        return self.encode(letters)

    def encode_file(self, path: Path) -> np.ndarray:
        """Tokens of a FASTA or .2bit file with one record."""
        records = self.encode_documents(path)
        name, tokens = next(records)
        if another := next(records, None):
            raise UserError(f"{path} has the records {name} and {another[0]}: give a file with one record")
        return tokens

    def encode_documents(self, path: Path) -> Iterator[tuple[str, np.ndarray]]:
        """Name and tokens of each record of a FASTA or .2bit file."""
        for record, blocks in groupby(sequences.read([Path(path)], sequences.Tally()), itemgetter(0)):
            yield record.name, self._tokenizer.encode(np.concatenate([codes for _, codes in blocks]))

    def decode(self, ids: Iterable[int]) -> str:
        """Letters of any ids. Start tokens are skipped; ids out of range are decoded as N."""
        unknown = self.vocabulary - 1
        known = [value if 0 <= value < self.vocabulary else unknown for value in map(int, ids) if value != START]
        letters = np.frombuffer(sequences.LETTERS.encode(), np.uint8)
        return letters[self._tokenizer.codes(np.array(known, np.int64))].tobytes().decode()

    def render(self, item: str, stem: Path) -> list[Path]:
        """Write `stem`.fa, a FASTA file with one record named like the file."""
        path = stem.with_name(stem.name + ".fa")
        lines = [item[at : at + LINE] for at in range(0, len(item), LINE)]
        path.write_text("\n".join([f">{stem.name}", *lines]) + "\n", newline="\n")
        return [path]


def _digest(part: Part) -> bytes:
    """A digest of its bases, whether or not they are in lower case."""
    return hashlib.blake2b((part.codes & sequences.CODE).tobytes(), digest_size=16).digest()


def _sha256(files: list[Path]) -> str:
    try:
        return hash_files(files)
    except OSError as error:
        raise UserError(f"{error.filename} cannot be read: {error.strerror}") from error
