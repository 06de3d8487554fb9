"""Commands to run after training, ready to copy."""

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from omegaconf import OmegaConf

from ..core.errors import UserError
from ..lightning_modules.outline import outlined
from .identity import STAGES, identity
from .matching import matched, unmatched
from .models import build_transformer
from .overrides import as_setting, as_value, choices_of, key_of
from .run_directory import RunDirectory, leaves
from .session import Session
from .settings import file_of

PREFERRED = ("rope", "pope", "path")  # encodings to compare with, before the others
OF_ONE_RUN = ("encoding", "run", "task", "encodings")  # settings that do not carry over to a run with another encoding


def next_steps(session: Session, run: RunDirectory) -> dict[str, list[str]]:
    """Useful commands after a run, as lists of arguments, by purpose."""
    overrides = [*map(_as_written, session.overrides or ())]
    reports = [each for each in overrides if key_of(each) in ("runs", "trust")]
    if session.config["run"] is not None:  # runs with other encodings will be in the usual folder
        reports.append(f"task.directories=[{as_value(run.path)},{as_value(session.config['runs'])}]")
    more, asked = "generate more samples", "task.sampling_seed=1"
    if session.domain.solved is not None:
        more, asked = "show more answers", "task.samples=8"
    return {
        **_another_run(session, overrides),
        "compare the finished runs": ["task=report", *reports],
        more: [
            *("task=generate", as_setting("run", run.path), asked),
            *(each for each in overrides if key_of(each) in ("stores", "trust")),
        ],
    }


def _as_written(setting: str) -> str:
    """A setting without the `++` that `with_new_keys` adds; the user wrote that of `encodings`, which needs it."""
    return setting if key_of(setting).startswith("encodings.") else setting.removeprefix("++")


def _another_run(session: Session, overrides: Sequence[str]) -> dict[str, list[str]]:
    """The same command with another encoding, or with another seed once every encoding has such a run."""
    names, own = session.config["names"], session.own_files
    flags = [] if own is None else [f"--config-dir={_from_here(own)}"]
    runs = Path(session.config["runs"]) / names["domain"]
    others = [name for name in dict.fromkeys((*PREFERRED, *choices_of("encoding"))) if name != names["encoding"]]
    lacking = (name for name in others if not _has_run(runs / name, session.config))
    if new := next((name for name in lacking if _is_possible(name, session.config)), None):
        shared = [each for each in overrides if key_of(each).split(".")[0] not in OF_ONE_RUN]
        if "task=convert" in overrides and new != "rope":  # the pretrained model has RoPE already
            shared.append("task=convert")
        return {"train another encoding with the same settings": [*flags, f"encoding={new}", *shared]}
    seed, kept = session.config["seed"] + 1, [each for each in overrides if key_of(each) not in ("seed", "run")]
    return {"train with another seed": [*flags, *kept, f"seed={seed}"]}


def _has_run(folder: Path, config: Mapping) -> bool:
    """Whether `folder` has a run whose settings differ from `config` in the encoding only."""
    wanted = _shared(config)
    for file in folder.glob("*/config.yaml"):
        try:
            if _shared(RunDirectory.open(file.parent).config) == wanted:
                return True
        except UserError:  # damaged, or from another version
            continue
    return False


def _is_possible(encoding: str, config: Mapping) -> bool:
    """Whether a model with `config` can have another encoding: `match` excludes some, and long contexts others."""
    other = {**unmatched(config), "encoding": OmegaConf.to_container(file_of("encoding", encoding))}
    try:
        with outlined():
            longest = build_transformer(matched(other), vocabulary=2).longest
    except UserError:
        return False
    return longest is None or longest >= config["data"]["length"]


def _shared(config: Mapping) -> dict:
    """Settings that must be equal in two runs with different encodings, by dotted key."""
    found = dict(leaves(identity(unmatched(config))))
    return {key: value for key, value in found.items() if key.split(".")[0] != "encoding" and key not in STAGES}


def print_next_steps(session: Session, run: RunDirectory) -> None:
    """Print the commands, if the run was started by a command, not by a sweep."""
    if session.overrides is None:
        return
    session.console.print("\nnext steps")
    for purpose, arguments in next_steps(session, run).items():
        session.console.print(f"  {purpose}:")
        session.console.print(f"    {program()} {shlex.join(arguments)}")


def program() -> str:
    """This program as typed in the current folder: `python main.py`, `.venv/bin/python main.py` or `bearings`."""
    script = sys.argv[0]
    if shutil.which(Path(script).name) == os.path.abspath(script):
        return Path(script).name
    python = "python" if shutil.which("python") == sys.executable else _from_here(sys.executable)
    return shlex.join([python, *(["-m", "bearings"] if Path(script).name == "__main__.py" else [_from_here(script)])])


def _from_here(path: str) -> str:
    """`path` relative to the current folder if it is below it."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative
