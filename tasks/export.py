"""task=export run=DIRECTORY: write a trained model as files to share, and load them again."""

import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_model

from ..core.checked_files import DAMAGE, digest_of
from ..core.errors import UserError, one_line
from ..core.options import as_path
from ..core.plain_yaml import as_yaml
from ..core.whole_files import full_disk_named, write_text
from ..domains.base import Domain
from ..huggingface.card import TAG
from ..huggingface.folder import CARD, write_folder
from ..huggingface.folder import CONFIG as HF_CONFIG
from ..lightning_modules.outline import outlined
from ..lightning_modules.transformer import Transformer
from ..session.configuration import build, refuse_problems
from ..session.identity import portable
from ..session.models import build_transformer
from ..session.run_config import read_config, written
from ..session.run_directory import RunDirectory
from ..session.session import Session
from ..session.task import Task
from ..session.trust import trusting
from ..session.weights import load_weights
from .options import ExportOptions

WEIGHTS, CONFIG = "model.safetensors", "config.yaml"
CODE = ("bearings_*.py", "configuration_bearings.py", "modeling_bearings.py")  # names of the code of format=hf
OPTIONAL = ("tokenizer.json", "tokenizer_config.json")  # files that not every export has
GROUPS = ("domain", "encoding", "model")
MOST_HEADER = 100 << 20  # maximum header size of a safetensors file, by its specification


@dataclass(frozen=True)
class Exported:
    """A model and its domain, loaded from the files of task=export.

    Attributes:
        model: maps ids `[B, T]` to logits `[B, T, V]`; in evaluation mode, on the CPU, in float32.
        domain: encodes files and decodes ids.
        scoring: `length` and `overlap` of the windows with which the run was scored; empty for older exports.
    """

    model: Transformer
    domain: Domain
    scoring: Mapping[str, Any]


class Export(Task):
    """Export the best checkpoint: its weights, and the files needed to build the model and to encode its input.

    Args:
        options: fields of `ExportOptions`.
    """

    needs = "run"

    def __init__(self, **options: Any):
        given = ExportOptions(**options)
        self.format, self.out = given.format, as_path(given.out) if given.out else None
        if self.out and self.out.exists() and not self.out.is_dir():
            raise ValueError(f"out={given.out} is a file: give a folder")

    def __call__(self, session: Session) -> None:
        run = RunDirectory.open(session.config["run"]).trained()
        store = run.data
        folder = self.out or run.path / ("export" if self.format == "bearings" else f"export-{self.format}")
        if is_run(folder):
            raise UserError(f"task.out={folder} is a run, and its {CONFIG} would be overwritten: give another folder")
        there = [path.name for path in folder.glob("*") if not path.name.startswith(".")] if folder.exists() else []
        if there and (found := format_of(folder)) != self.format:
            what = f"an export with task.format={found}" if found else f"other files, such as {min(there)}"
            raise UserError(f"task.out={folder} holds {what}: give an empty folder, or that of an earlier export")
        new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        try:
            files = self._written(session, run, store, folder)
        finally:
            if new and not any(folder.iterdir()):
                folder.rmdir()
        shown = [name for name in files if not any(fnmatch(name, pattern) for pattern in CODE)]
        for name in shown:
            session.console.print(f"wrote {folder / name}")
        if len(shown) < len(files):
            session.console.print(f"wrote {len(files) - len(shown)} files of code, *bearings*.py")
        if unfinished := run.unfinished():
            session.console.print(unfinished)

    def _written(self, session: Session, run: RunDirectory, store: Mapping[str, Any], folder: Path) -> list[str]:
        """Write all files to `folder`, each completely, and return their names."""
        with tempfile.TemporaryDirectory(prefix=f".{WEIGHTS}.", dir=folder) as making:
            shared = session.domain.share(Path(session.config["stores"]), session.config["content"], Path(making))
            session.domain.use_shared(Path(making))
            transformer = session.load(run.checked_best(), store["vocabulary"]).cpu()
            with os_errors(folder):
                if self.format == "bearings":
                    _write(Path(making), session, transformer, store, shared)
                else:
                    write_folder(Path(making), run, session.domain, transformer, session.config, self.format)
            files = sorted(Path(making).iterdir(), key=lambda path: (path.name == WEIGHTS, path.name))
            shutil.copymode(files[0], files[-1])  # safetensors creates files that only the owner can read
            old = {path.name for pattern in (*CODE, *OPTIONAL) for path in folder.glob(pattern)}
            for name in old - {path.name for path in files}:
                (folder / name).unlink()
            for path in files:  # the weights last, so that they never exist without the rest
                path.replace(folder / path.name)
        return [path.name for path in files]


@contextmanager
def os_errors(folder: Path) -> Iterator[None]:
    """Name `folder` if the disk is full, and raise errors that safetensors gets from the system as OSError."""
    try:
        with full_disk_named(folder):
            yield
    except SafetensorError as error:
        if number := re.search(r"\(os error (\d+)\)", str(error)):
            raise OSError(int(number[1]), os.strerror(int(number[1])), str(folder)) from error
        raise


def _write(
    folder: Path, session: Session, transformer: Transformer, store: Mapping[str, Any], shared: Sequence[Path]
) -> None:
    """Write config.yaml and the weights next to the files that the domain shares."""
    kept = {key: session.config[key] for key in ("names", *GROUPS, "content", "seed")}
    kept["encoding"] = portable("encoding", session.config["encoding"])
    save_model(transformer, str(folder / WEIGHTS))
    digests = {file.name: digest_of(file) for file in (folder / WEIGHTS, *shared)}
    kept |= {"vocabulary": store["vocabulary"], "store": store["sha256"], "files": digests}
    kept |= {"length": session.data.length, "overlap": session.evaluation.overlap}
    write_text(folder / CONFIG, as_yaml(written(kept)))


def format_of(folder: Path) -> str | None:
    """The format of the export in `folder`; None if there is none, or only a model that bearings has not exported."""
    if (folder / CONFIG).exists() and (folder / WEIGHTS).exists():
        return "bearings"
    try:
        card, settings = ((folder / name).read_text(encoding="utf-8") for name in (CARD, HF_CONFIG))
    except (OSError, ValueError):
        return None
    if TAG not in card:  # a model from elsewhere, which must not be overwritten
        return None
    return "hf" if '"auto_map"' in settings else "llama"


def is_run(folder: Path) -> bool:
    """Whether `folder` is a run's directory; it contains a `config.yaml` too."""
    return (folder / "manifest.json").exists()


def _refuse_changes(folder: Path, digests: Mapping[str, str]) -> None:
    for name, digest in digests.items():
        if (found := digest_of(folder / Path(name).name)) != digest:
            raise UserError(
                f"{folder / name} has changed since it was exported (sha256 {found[:12]}, not {digest[:12]}): copy it "
                "again, or rerun task=export"
            )


def load_exported(folder: str | Path, trust: str | Iterable[str] = ()) -> Exported:
    """Load the model and the domain from a folder of task=export.

    Args:
        folder: the folder.
        trust: packages outside this project whose classes the folder's configuration may name. Their code is run.

    Raises:
        UserError: a file is missing, damaged or from another version; the folder is a run; or a class is from a package
            that is not in `trust`.
    """
    folder = Path(folder)
    if is_run(folder):
        raise UserError(
            f"{folder} is a run, not an export: load {folder / 'export'}, which "
            f"`python main.py task=export run={folder}` writes"
        )
    try:
        config = read_config(folder / CONFIG, GROUPS)
        with trusting(trust):
            refuse_problems(config)
            domain = build(config["domain"], "domain")
            build_it = partial(build_transformer, config, config["vocabulary"])
            with outlined():
                outline = build_it()
            most = 4 * sum(weights.numel() for weights in outline.parameters()) + MOST_HEADER
            if (size := (folder / WEIGHTS).stat().st_size) > most:
                raise ValueError(f"{WEIGHTS} has {size:,} bytes; a model of this size needs at most {most:,}")
            _refuse_changes(folder, config.get("files", {}))
            domain.use_shared(folder)
            transformer = load_weights(outline, partial(build_it, clock=domain.clock), folder / WEIGHTS)
    except (*DAMAGE, SafetensorError) as error:
        raise UserError(
            f"{folder} contains no readable model ({one_line(error)}): give a folder of task=export, with {WEIGHTS} "
            f"and {CONFIG}"
        ) from error
    return Exported(transformer.eval(), domain, {key: config[key] for key in ("length", "overlap") if key in config})
