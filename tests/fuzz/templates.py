"""The originals that mutants are made of: tiny runs, exports, stores, studies and data files, made once."""

import csv
import gzip
import io
import json
import os
import shutil
import signal
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np

SMALL = (
    *("experiment=debug", "model.width=16", "model.layers=1", "model.heads=2", "trainer.validate_every=4"),
    *("trainer.checkpoint_every=1", "trainer.accelerator=cpu", "trainer.precision=32-true", "data.length=32"),
    *("data.workers=0", "task.samples=0", "trainer.steps=4"),
)
SPLITS = {"train": ["a"], "valid": ["b"], "test": ["c"]}


def command(*arguments: str) -> None:
    """What `python main.py` does, in this process. Raises SystemExit where it ends with an error."""
    from bearings.session import cli

    sys.argv = ["main.py", *arguments]
    cli.main()


def chorales(path: Path) -> None:
    random = np.random.default_rng(0)

    def voices(steps: int) -> list:
        walk = np.cumsum(random.integers(-2, 3, (steps, 4)), 0)
        return np.clip(walk + np.array([70, 62, 55, 48]), 36, 81).tolist()

    pieces = {"train": 6, "valid": 3, "test": 4}
    path.write_text(
        json.dumps({split: [voices(int(random.integers(16, 30))) for _ in range(n)] for split, n in pieces.items()})
    )


def training_command(*more: str) -> list[str]:
    return [*SMALL, "domain=jsb", "domain.source=separated16", "domain.path=chorales.json", *more]


def make_runs(root: Path) -> None:
    """Folders `study` and `trained` in `root`, by the commands that a person would give."""
    runs, stores = "runs=made/runs", "stores=made/data"
    for encoding in ("pope", "rope"):
        command(*training_command(f"encoding={encoding}", runs, stores))
    (run,) = Path("made/runs/jsb/pope").iterdir()
    command("task=extrapolate", f"run={run}", stores, "trainer.accelerator=cpu")
    for name in ("tensorboard", "plots", "samples", ".lock"):
        for made in (root / "made").rglob(name):
            shutil.rmtree(made) if made.is_dir() else made.unlink()

    without_times(root)
    kept = shutil.ignore_patterns("checkpoints", "*.lock")
    shutil.copytree(root / "made" / "runs", root / "study" / "runs", ignore=kept)
    shutil.copy(Path(__file__).parent / "study.yaml", root / "study")
    run = run.relative_to("made")
    shutil.copytree(root / "made" / run, root / "trained" / run, ignore=shutil.ignore_patterns("nll"))
    shutil.copytree(root / "made" / "data", root / "trained" / "data")


def without_times(root: Path) -> None:
    """Make what the runs keep the same whenever and wherever they were made, so that a mutant can be made again."""
    from bearings.session.run_directory import RunDirectory

    for path in (root / "made").rglob("*-s0/manifest.json"):
        run, metrics = RunDirectory.open(path.parent), path.with_name("metrics.csv")
        session = {
            "began": "2030-01-01T00:00:00+00:00",
            "device": "a device",
            "code": {"commit": "0" * 40, "dirty": None},
        }
        run.write_manifest(sessions=[each | session for each in run.manifest["sessions"]])
        with open(metrics, newline="") as file:
            rows = [*csv.DictReader(file)]
        with open(metrics, "w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            for number, row in enumerate(rows):
                measured = {name: f"{number + 1}.5" for name in ("tokens_per_s", "data_wait") if row[name]}
                writer.writerow({**row, **measured})
        run.seal(metrics)


def make_stopped(root: Path) -> None:
    """A run that was asked to stop after two of its four steps."""
    from bearings.lightning_modules.callbacks import ProgressLine

    inner = ProgressLine.on_train_batch_end

    def end(self, trainer, *rest):
        inner(self, trainer, *rest)
        if trainer.global_step == 2:
            os.kill(os.getpid(), signal.SIGINT)

    ProgressLine.on_train_batch_end = end
    try:
        command(*training_command("encoding=pope", "run=stopped/run", "stores=stopped/data"))
    except SystemExit:
        pass
    finally:
        ProgressLine.on_train_batch_end = inner


def make_export(root: Path) -> None:
    """An export with its tokenizer."""
    random = np.random.default_rng(1)
    words = ["the", "sea", "öl", "音楽", "naïve", "and", "1234", "don't", "salt"]
    text = "".join(" ".join(random.choice(words, 12)) + ".\n" for _ in range(60))
    (root / "text.txt").write_text(text)
    place = "run=texts/run", "stores=texts/data"
    learnt = ("domain=text", "domain.tokenizer=train", "domain.vocabulary_size=270", "domain.documents=line")
    fractions = "domain.valid_fraction=0.2", "domain.test_fraction=0.2"
    command(*SMALL, *learnt, *fractions, "domain.path=text.txt", "encoding=rope", *place)
    command("task=export", *place, "task.out=export", "trainer.accelerator=cpu")


def make_data(root: Path) -> None:
    """One folder for each kind of data file, and two token stores."""
    from genome_support import draw, fasta, two_bit
    from jsb_support import musicxml, random_grid
    from jsb_support import runs as held
    from maestro_support import content, midi_of, music, rows_of, write_table
    from text_support import jsonl, pages, parquet, zst

    from bearings.domains.genome import Genome
    from bearings.domains.jsb import JSB

    def folder(name: str) -> Path:
        (root / name).mkdir()
        return root / name

    random = np.random.default_rng(2)
    shutil.copy(root / "chorales.json", folder("chorales"))
    tokens = JSB().encode(np.array(json.loads((root / "chorales.json").read_text())["train"][0]))
    JSB().decode(tokens).write(str(folder("midi-jsb") / "a.mid"))
    (folder("midi-maestro") / "a.mid").write_bytes(content(midi_of(music(0, 30))))

    records = {name: draw(random, 400, "ACGTacgtNR") for name in "abc"}
    (folder("fasta") / "a.fa").write_text(fasta(records))
    (folder("fasta-gz") / "a.fa.gz").write_bytes(gzip.compress(fasta(records).encode(), mtime=0))
    (folder("two-bit") / "a.2bit").write_bytes(
        two_bit({name: each.replace("R", "A") for name, each in records.items()})
    )
    (folder("bed") / "a.fa").write_text(fasta(records))
    parts = {"a": "train", "b": "valid", "c": "test"}
    (root / "bed" / "a.bed").write_text(
        "".join(f"{name}\t{at}\t{at + 90}\t{part}\n" for name, part in parts.items() for at in (0, 100))
    )

    texts = pages(40)
    for name, data in {
        "jsonl": jsonl(texts),
        "jsonl.gz": gzip.compress(jsonl(texts), mtime=0),
        "jsonl.zst": zst(jsonl(texts)),
    }.items():
        (folder(name.replace(".", "-")) / f"a.{name}").write_bytes(data)
    (folder("txt") / "a.txt").write_bytes("\n\n".join(texts).encode())
    parquet(folder("parquet") / "a.parquet", texts)
    tree = folder("folder") / "texts"
    (tree / "deep").mkdir(parents=True)
    (tree / "a.txt").write_text("\n".join(texts[:20]))
    (tree / "deep" / "b.jsonl").write_bytes(jsonl(texts[20:30]))
    (tree / "deep" / "c.txt.gz").write_bytes(gzip.compress("\n".join(texts[30:]).encode(), mtime=0))

    scores = folder("musicxml") / "scores"
    scores.mkdir()
    for number in range(4):
        grid = random_grid(random, 24)
        voices = {name: held(grid[:, i]) for i, name in enumerate(("Soprano", "Alto", "Tenor", "Bass"))}
        (scores / f"piece{number}.xml").write_text(musicxml(voices))

    release = folder("maestro") / "maestro-v3.0.0"
    (release / "2004").mkdir(parents=True)
    names = [f"piece{number}.midi" for number in range(6)]
    for number, name in enumerate(names):
        (release / "2004" / name).write_bytes(content(midi_of(music(number, 8))))
    write_table(release, rows_of(names, ["train"] * 4 + ["validation", "test"]))
    with zipfile.ZipFile(folder("maestro-zip") / "a.zip", "w") as file:
        for path in sorted(release.rglob("*.*")):
            file.writestr(
                zipfile.ZipInfo(str(path.relative_to(release.parent))), path.read_bytes(), zipfile.ZIP_DEFLATED
            )
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as file:
        for path in sorted(release.rglob("*.*")):
            info = tarfile.TarInfo(str(path.relative_to(release.parent)))
            info.size = path.stat().st_size
            file.addfile(info, io.BytesIO(path.read_bytes()))
    (folder("maestro-tar") / "a.tar.gz").write_bytes(gzip.compress(packed.getvalue(), mtime=0))
    learn_tokenizer(folder("tokenizer") / "tokenizer.json", texts)

    JSB("separated16", str(root / "chorales.json")).prepare(root / "store-jsb" / "data")
    Genome(str(root / "fasta" / "a.fa"), chunk=50, tokenizer="base", soft_mask=True, **SPLITS).prepare(
        root / "store-genome" / "data"
    )


def learn_tokenizer(path: Path, texts) -> None:
    from bearings.domains.tokenization import BPE

    BPE.train(texts, 262).write(path)
