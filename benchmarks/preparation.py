"""Measures how fast files become token stores, for genome, text and MAESTRO, each in a separate process.

    python -m bearings.benchmarks.preparation --genome 500 --text FOLDER --gpt2 tokenizer.json --maestro ARCHIVE

Without arguments it measures a genome of 50 Mbp and synthetic text with a tokenizer trained on it. Genomes are
synthetic, with lower-case repeats and runs of N. Text is compared with `encode_batch` of the package tokenizers on the
same documents, already in memory, in alternating runs. `seconds` is wall-clock time, `cpu_seconds` the time of the
process and its children, and each has a rate: they differ on a busy machine. The memory of text includes that of
`encode_batch`, which holds all documents in memory. Runs only on Linux.
"""

import argparse
import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tokenizers

from ..core.cores import cores
from ..domains import documents
from ..domains.base import Domain
from ..domains.genome import Genome
from ..domains.maestro import Maestro
from ..domains.store import SPLITS, Store
from ..domains.text import Text
from .record import source, write_rows

OUT = Path(__file__).parent / "results" / "preparation_cpu.csv"
PACKAGES = ("numpy", "biopython", "tokenizers", "miditok", "symusic")
BLOCK = 6_000_000  # bases drawn at a time
LINE = 60


def main() -> None:
    """Run the requested measurements and write one row per measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", choices=("genome", "text", "maestro"), default=("genome", "text", "maestro")
    )
    parser.add_argument("--genome", type=int, default=50, metavar="MBP", help="size of the synthetic genome")
    parser.add_argument("--text", type=Path, help="a file or folder of text; default: synthetic pages")
    parser.add_argument(
        "--documents", default="file", help="how .txt and .tokens files are split into documents (domain.documents)"
    )
    parser.add_argument("--gpt2", type=Path, help="GPT-2's tokenizer.json; default: train a tokenizer on the text")
    parser.add_argument("--runs", type=int, default=5, help="runs for text, and for encode_batch")
    parser.add_argument("--maestro", type=Path, help="MAESTRO as a zip, tar or folder; default: skip MAESTRO")
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    rows: list[dict] = []
    state = source()  # read first, because commits during the run do not change the measured code
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        if "genome" in arguments.only:
            fasta = work / "genome.fa"
            write_genome(fasta, arguments.genome * 1_000_000)
            for tokenizer, soft_mask in (("kmer6", False), ("kmer6", True), ("base", False), ("base", True)):
                rows.append(isolated(genome, fasta, tokenizer, soft_mask))
        if "text" in arguments.only:
            path, cut = arguments.text, arguments.documents
            if path is None:
                path, cut = work / "pages.txt", "line"
                write_pages(path, 20_000)
            rows.append(isolated(text, path, cut, arguments.gpt2, arguments.runs))
        if "maestro" in arguments.only and arguments.maestro:
            rows.append(isolated(maestro, arguments.maestro))
    for row in rows:
        row["commit"] = state
    write_rows(arguments.out, rows)


def isolated(measure: Callable[..., dict], *arguments) -> dict:
    """Run `measure` in a new process and return its row, with memory, machine and date."""
    load = os.getloadavg()[0]
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        row = pool.submit(with_memory, measure, *arguments).result()
    row |= {
        "load_before": f"{load:.2f}",
        "machine": machine(),
        "cores": cores(),
        "versions": " ".join(
            [f"python {platform.python_version()}", *(f"{name} {version(name)}" for name in PACKAGES)]
        ),
        "date": datetime.now(UTC).date().isoformat(),
    }
    print({key: row[key] for key in ("what", "amount", "unit", "rate", "cpu_rate", "peak_mib")}, flush=True)
    return row


def with_memory(measure: Callable[..., dict], *arguments) -> dict:
    """The row of `measure`, with the peak resident set size of this process without its children."""
    row = measure(*arguments)
    # Not getrusage, which includes the memory of the parent when it started this process.
    (peak,) = (line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
    return row | {"peak_mib": int(peak) >> 10}


def prepared(domain: Domain, root: Path) -> tuple[Store, float, float]:
    """Prepare a new store. Returns it with the wall-clock and CPU seconds."""
    wall, cpu = time.perf_counter(), cpu_seconds()
    store = domain.prepare(root)
    return store, time.perf_counter() - wall, cpu_seconds() - cpu


def cpu_seconds() -> float:
    """CPU seconds of this process and its finished children."""
    return sum(os.times()[:4])


def measured(what: str, amount: float, unit: str, seconds: float, cpu: float) -> dict:
    """The columns common to all rows."""
    figures = {"amount": f"{amount:.6g}", "seconds": f"{seconds:.3f}", "cpu_seconds": f"{cpu:.3f}"}
    cpu_rate = f"{amount / cpu:.4g}" if cpu else ""  # 0 is possible: the system counts in hundredths of a second
    return {"what": what, **figures, "unit": unit, "rate": f"{amount / seconds:.4g}", "cpu_rate": cpu_rate}


def genome(fasta: Path, tokenizer: Literal["kmer6", "base"], soft_mask: bool) -> dict:
    """Measure a FASTA file with the records train, valid and test in Mbp/s."""
    named: dict[str, Any] = {split: [split] for split in SPLITS}
    domain = Genome(str(fasta), tokenizer=tokenizer, soft_mask=soft_mask, **named)
    with tempfile.TemporaryDirectory(dir=fasta.parent) as root:
        store, seconds, cpu = prepared(domain, Path(root))
        places = [name.rpartition(":")[2].split("-") for name in store.names]
    bases = sum(int(end) - int(begin) for begin, end in places)
    return measured(f"genome {tokenizer}{', soft_mask' if soft_mask else ''}", bases / 1e6, "Mbp", seconds, cpu)


def text(path: Path, cut: Literal["file", "line", "paragraph", "article"], gpt2: Path | None, runs: int) -> dict:
    """Measure documents in MB/s and relative to `encode_batch`, as medians of alternating runs."""
    tokens: dict[str, Any] = {"tokenizer_path": str(gpt2)} if gpt2 else {"tokenizer": "train"}
    fields = documents.Fields("text")
    found = [each for name, file in documents.find(path).items() for each in documents.read(name, file, fields, cut)]
    texts, size = [each.text for each in found], sum(len(each.raw) for each in found)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        store = Text(str(path), documents=cut, **tokens).prepare(root)  # trains the tokenizer once
        peer = tokenizers.Tokenizer.from_file(str(gpt2 or next((root / "text" / "tokenizers").iterdir())))
        ours, theirs = [], []
        for _ in range(runs):
            began = time.perf_counter()
            peer.encode_batch(texts)
            theirs.append(time.perf_counter() - began)
            shutil.rmtree(store.directory)
            ours.append(prepared(Text(str(path), documents=cut, **tokens), root)[1:])
    seconds, cpu = map(statistics.median, zip(*ours, strict=True))
    row = measured(f"text {'gpt2' if gpt2 else 'train'}", size / 1e6, "MB", seconds, cpu)
    return row | {"share_of_encode_batch": f"{statistics.median(theirs) / seconds:.3f}", "runs": runs}


def maestro(path: Path) -> dict:
    """Measure a release of MAESTRO in files/s."""
    with tempfile.TemporaryDirectory() as root:
        store, seconds, cpu = prepared(Maestro(str(path)), Path(root))
    return measured("maestro fine", len(store.splits), "files", seconds, cpu)


def write_genome(path: Path, size: int) -> None:
    """Write random bases: half in lower-case runs of hundreds, 1 % in runs of N, and 80 % in the record `train`."""
    random = np.random.default_rng(0)
    with open(path, "wb") as file:
        for split, share in zip(SPLITS, (0.8, 0.1, 0.1), strict=True):
            file.write(f">{split}\n".encode())
            for begin in range(0, left := int(size * share), BLOCK):
                letters = np.frombuffer(b"ACGT", np.uint8)[random.integers(0, 4, min(BLOCK, left - begin))]
                edges = np.cumsum(random.integers(50, 600, len(letters) // 300))
                lower = np.bincount(edges[edges < len(letters)], minlength=len(letters)).cumsum() % 2 == 1
                letters = np.where(lower, letters + 32, letters).astype(np.uint8)
                letters[: len(letters) // 100] = ord("N")
                for at in range(0, len(letters), LINE * 10_000):
                    rows = letters[at : at + LINE * 10_000]
                    whole = len(rows) // LINE
                    lines = np.full((whole, LINE + 1), ord("\n"), np.uint8)
                    lines[:, :LINE] = rows[: whole * LINE].reshape(-1, LINE)
                    file.write(lines.tobytes())
                    if rest := rows[whole * LINE :].tobytes():
                        file.write(rest + b"\n")


def write_pages(path: Path, lines: int) -> None:
    """Write lines of words made of syllables, with word frequencies that follow Zipf's law."""
    random = np.random.default_rng(0)
    syllables = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
    words = np.array(["".join(random.choice(syllables, random.integers(1, 5))) for _ in range(20_000)])
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(lines):
            ranks = np.minimum(random.zipf(1.2, 100) - 1, len(words) - 1)
            file.write(" ".join(words[ranks]) + ".\n")


def machine() -> str:
    """The name of the processor, or the architecture if the system does not report a name."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    main()
