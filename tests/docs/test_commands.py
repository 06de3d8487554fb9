"""Every command in README and docs runs at debug size, or names what it needs and at least composes."""

import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pretty_midi
import pytest
from commands import REASONS, Command, commands
from conftest import REPOSITORY, composed
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from pretrained_support import hugging_face_folder
from report_support import undrawn  # noqa: F401
from training_support import without_drawing

from bearings.core.errors import UserError
from bearings.session import cli
from bearings.tasks import train

DEBUG = (
    *("trainer.steps=2", "trainer.validate_every=2", "trainer.checkpoint_every=2", "trainer.log_every=1"),
    *("trainer.accelerator=cpu", "optimizer.warmup_steps=0", "data.length=64", "data.batch_size=2", "data.workers=0"),
    *("model.width=16", "model.layers=1", "model.heads=1", "model.head_dim=16"),
)
SHELL = ("source", "cd", "git", "torchrun", "srun", "sbatch")  # not executed; the last three contain a command of ours
COMMANDS = list({each.text: each for each in commands()}.values())


def settings(text: str) -> list[str] | None:
    """Arguments of `main.py` in a command; None if it runs something else."""
    if found := re.search(r"(?:main\.py|^bearings)( .*|$)", text):
        return shlex.split(found[1].strip().rstrip('"'))
    if found := re.match(r"make run(?: ARGS=\"(.*)\")?$", text):
        return shlex.split(found[1] or "")
    return None


def value(arguments: list[str], key: str, default: str = "") -> str:
    return next((each.partition("=")[2] for each in arguments[::-1] if each.startswith(f"{key}=")), default)


def test_markers_give_known_reasons():
    unknown = {f"{each.place}: {reason}" for each in COMMANDS for reason in each.needs if reason not in REASONS}
    assert unknown == set(), f"allowed after needs: {', '.join(sorted(REASONS))}"


@pytest.mark.parametrize(
    "command", [each for each in COMMANDS if settings(each.text) is None], ids=lambda each: each.text
)
def test_other_programs_exist(command: Command):
    program, *arguments = shlex.split(command.text.replace("…", ""))
    if program == "make":
        targets = re.findall(r"^(\w+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
        assert {each for each in arguments if "=" not in each} <= {*targets}
    elif program == "pip" and (extra := re.search(r"\[(\w+)\]", command.text)):
        assert (
            extra[1] in tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        )
    elif program == "python" and arguments[0] == "-m":
        assert importlib.util.find_spec(arguments[1]), command.place
    else:
        assert program in SHELL or shutil.which(program), command.place


def first_of_sweep(arguments: list[str]) -> list[str]:
    """The arguments with the first value of each list that a sweep goes through."""
    overrides = [each for each in arguments if not each.startswith("-")]
    if len(overrides) == len(arguments):
        return arguments
    parsed = OverridesParser.create().parse_overrides(overrides)
    sweeps = {
        each.input_line: f"{each.key_or_group}={next(iter(each.sweep_string_iterator()))}"
        for each in parsed
        if each.is_sweep_override()
    }
    return [sweeps.get(each, each) for each in arguments]


def is_executed(command: Command) -> bool:
    """Whether a test executes it: it is not marked, downloads nothing and rewrites no kept study."""
    arguments = settings(command.text) or []
    downloads = value(arguments, "domain") in ("maestro", "openwebtext", "genome") and not value(
        arguments, "domain.path"
    )
    return not (command.needs or downloads or value(arguments, "study") == "all")


COMPOSED = [
    each
    for each in COMMANDS
    if not is_executed(each) and settings(each.text) is not None and "the example" not in each.needs
]


@pytest.mark.parametrize("command", COMPOSED, ids=lambda each: each.text)
def test_commands_that_are_not_executed_compose(command: Command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hugging_face_folder(tmp_path / "SmolLM2-135M")
    arguments = first_of_sweep(settings(command.text) or [])
    composed(*(each for each in arguments if not each.startswith(("-", "hydra", "run="))))


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """A folder with the files that the documentation names as the reader's own."""
    folder = tmp_path_factory.mktemp("documentation")
    random = np.random.default_rng(0)
    voices = [[[int(72 - 7 * voice + step // 4 % 5) for voice in range(4)] for step in range(48)] for _ in range(3)]
    splits = {"train": voices, "valid": [voices[0][4:]], "test": [voices[0][8:]]}
    (folder / "Jsb16thSeparated.json").write_text(json.dumps(splits))
    (folder / "my-midi").mkdir()
    for number in range(8):
        music, piano = pretty_midi.PrettyMIDI(), pretty_midi.Instrument(0)
        starts = np.cumsum(random.integers(1, 4, 30)) / 4
        pitches = random.integers(50, 80, 30)
        piano.notes = [
            pretty_midi.Note(80, int(pitch), at, at + 0.25) for at, pitch in zip(starts, pitches, strict=True)
        ]
        music.instruments.append(piano)
        music.write(str(folder / "my-midi" / f"{number}.mid"))
    chorale = pretty_midi.PrettyMIDI()
    for voice, name in enumerate(("Soprano", "Alto", "Tenor", "Bass")):
        singer = pretty_midi.Instrument(0, name=name)
        singer.notes = [pretty_midi.Note(80, 72 - 7 * voice, at / 2, at / 2 + 0.5) for at in range(8)]
        chorale.instruments.append(singer)
    chorale.write(str(folder / "my.mid"))
    bases = ["".join(random.choice([*"ACGT"], 6_000)) for _ in range(3)]
    (folder / "genome.fa").write_text(f">chr\n{bases[0]}\n")
    rows = [f"chr\t{at}\t{bases[0][at - 1]}\t{'CA'[bases[0][at - 1] == 'C']}\t{at % 2}" for at in range(1000, 1030)]
    (folder / "variants.tsv").write_text("\n".join(["chrom\tpos\tref\talt\tlabel", *rows]))
    (folder / "genomes.fa").write_text(
        "".join(f">chr{name}\n{text}\n" for name, text in zip("ABC", bases, strict=True))
    )
    acids = ["".join(random.choice([*"ACDEFGHIKLMNPQRSTVWY"], 80)) for _ in range(120)]
    fasta = "".join(f">{number}\n{text}\n" for number, text in enumerate(acids))
    (folder / "proteins.fa").write_text(fasta, newline="\r\n")  # as on Windows
    (folder / "my-protein.txt").write_text(acids[0])
    rows = [f"{number // 3}\t{text}\n" for number, text in enumerate(acids)]
    (folder / "clustered.tsv").write_text("".join(["cluster\tsequence\n", *rows]))
    genes = ["".join(random.choice([*"ACGT"], 80)) for _ in range(200)]
    (folder / "promoters.csv").write_text("gene,dna\n" + "".join(f"{n},{text}\n" for n, text in enumerate(genes)))
    (folder / "reviews.csv").write_text(
        "author,review\n" + "".join(f"{n},It is {text}.\n" for n, text in enumerate(genes))
    )
    (folder / "my-text").mkdir()
    for number in range(40):
        words = " ".join(random.choice(["the", "cat", "sat", "on", "a", "mat"], 60))
        (folder / "my-text" / f"{number}.txt").write_text(f"{words} {number}\n")
    (folder / "my.txt").write_text("\n".join(" ".join(random.choice(["one", "two", "three"], 40)) for _ in range(200)))
    (folder / "my-study").mkdir()
    (folder / "my-study" / "study.yaml").write_text(
        "question: Which?\nruns:\n  - experiment=debug encoding=rope,pope\n"
    )
    (folder / "studies").symlink_to(REPOSITORY / "studies")
    return folder


NAMED = {
    **{"STUDY": "my-study", "studies/jsb": "studies/maestro_60k", "studies/zoo_": "studies/"},  # smaller ones
    "my-chorale.mid": "my.mid",
    "tokenizer=train": "tokenizer=train domain.vocabulary_size=280",
}
BRIEF = {
    "train": ["task.samples=1", "task.tokens=40"],
    "generate": ["task.tokens=20", "task.samples=1", "trainer.accelerator=cpu"],
    "extrapolate": ["task.contexts=[32,64]", "trainer.accelerator=cpu"],
    "evaluate": ["trainer.accelerator=cpu"],
    "score": ["trainer.accelerator=cpu"],
    "variants": ["trainer.accelerator=cpu"],
    "study": ["task.dry=true"],
}


def adapted(arguments: list[str], run: str) -> list[str]:
    """Arguments with the test's files, and with so few steps of so small a model that they take a second."""
    if {"--help", "--cfg"} & {*arguments}:
        return arguments
    text = " ".join(first_of_sweep(arguments))
    assert all((REPOSITORY / study).is_dir() for study in re.findall(r"studies/\w+", text)), text
    for name, own in {**NAMED, "DIRECTORY": run}.items():
        text = text.replace(name, own)
    if "chrA" in text:
        text = text.replace("genome.fa", "genomes.fa")
    found, task = text.split(), value(arguments, "task", "train")
    if task in ("train", "tune", "check", "prepare"):
        found += DEBUG if not value(found, "match") else ["trainer.accelerator=cpu"]
        if value(found, "domain", "jsb") == "jsb" and value(found, "experiment") != "midi":
            found += ["domain.source=separated16", "domain.path=Jsb16thSeparated.json"]
    return found + BRIEF.get(task, [])


def main(arguments: list[str]) -> None:
    GlobalHydra.instance().clear()
    try:
        cli.main(arguments)
    except SystemExit as end:
        if end.code:
            raise


def trained(folder: Path) -> set[str]:
    return {str(path.parent.relative_to(folder)) for path in folder.glob("runs/*/*/*/manifest.json")}


FILES = sorted({each.place.partition(":")[0] for each in COMMANDS})
DRAWN = {"README.md", "docs/how-to/studies.md"}  # others without plots, which take most of the time of reports
SHARED = ["encoding=rope", "seed=100"]  # no command of a page has this seed


@pytest.mark.parametrize("file", FILES)
def test_commands_run(file, workspace, monkeypatch, capsys, request):
    """The commands of a page in their order. DIRECTORY is the run that the page trained last, or one of rope on jsb."""
    monkeypatch.chdir(workspace)
    monkeypatch.setattr(sys, "argv", ["main.py"])
    if file not in DRAWN:
        request.getfixturevalue("undrawn")
        monkeypatch.setattr(train, "plot_losses", without_drawing)
    todo = [each for each in COMMANDS if each.place.partition(":")[0] == file and is_executed(each)]
    run = ""
    for command in todo:
        arguments = settings(command.text)
        if arguments is None:
            if command.text.startswith("awk "):
                subprocess.run(["bash", "-c", command.text], check=True)
            continue
        if "run=DIRECTORY" in arguments and not run:
            main(adapted(SHARED, ""))
            (run,) = (each for each in trained(workspace) if each.endswith("-s100"))
        before = trained(workspace)
        try:
            main(adapted(arguments, run))
        except (SystemExit, UserError) as error:
            pytest.fail(f"{command.place}: {command.text}: {error}\n{capsys.readouterr().err}")
        run = next(iter(sorted(trained(workspace) - before)), run)


def test_every_file_of_a_run_is_described(workspace, monkeypatch):
    monkeypatch.chdir(workspace)
    monkeypatch.setattr(sys, "argv", ["main.py"])
    main(adapted(SHARED, ""))
    (run,) = workspace.glob("runs/jsb/rope/*-s100")
    text = (REPOSITORY / "docs" / "reference" / "run-directory.md").read_text(encoding="utf-8")
    names = [path.name + "/" * path.is_dir() for path in run.iterdir() if not path.name.startswith(".")]
    assert [name for name in names if f"| `{name}" not in text] == []
