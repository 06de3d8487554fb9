"""task=export run=DIRECTORY: write a trained model as files to share, and load them again."""

import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_model

from ..core.checked_files import DAMAGE, digest_of
from ..core.errors import UserError, one_line
from ..core.plain_yaml import as_yaml
from ..domains.base import Domain
from ..lightning_modules.outline import outlined
from ..lightning_modules.transformer import Transformer
from ..session.configuration import build, refuse_problems
from ..session.identity import decisive
from ..session.run_config import read_config, written
from ..session.run_directory import RunDirectory, write_text
from ..session.session import Session, build_transformer
from ..session.task import Task
from ..session.trust import trusting
from ..session.weights import load_weights
from .options import ExportOptions

WEIGHTS, CONFIG = "model.safetensors", "config.yaml"
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
        out = ExportOptions(**options).out
        self.out = Path(os.path.expanduser(out)) if out else None
        if self.out and self.out.exists() and not self.out.is_dir():
            raise ValueError(f"out={out} is a file: give a folder")

    def __call__(self, session: Session) -> None:
        run = RunDirectory.open(session.config["run"]).trained()
        store = run.data
        transformer = session.load(run.checked_best(), store["vocabulary"])
        folder = self.out or run.path / "export"
        if is_run(folder):
            raise UserError(f"task.out={folder} is a run, and its {CONFIG} would be overwritten: give another folder")
        folder.mkdir(parents=True, exist_ok=True)
        # The domain's files first, as they may be missing; the weights last, so that they never exist without the rest.
        shared = session.domain.share(Path(session.config["stores"]), session.config["content"], folder)
        kept = {key: session.config[key] for key in ("names", *GROUPS, "content", "seed")}
        kept["encoding"] = decisive("encoding", session.config["encoding"])  # not what depends on the machine
        with tempfile.TemporaryDirectory(prefix=f".{WEIGHTS}.", dir=folder) as making:
            temporary = Path(making) / WEIGHTS
            save_model(transformer.cpu(), str(temporary))
            digests = {file.name: digest_of(file) for file in (temporary, *shared)}
            kept |= {"vocabulary": store["vocabulary"], "store": store["sha256"], "files": digests}
            kept |= {"length": session.data.length, "overlap": session.evaluation.overlap}
            write_text(folder / CONFIG, as_yaml(written(kept)))
            shutil.copymode(folder / CONFIG, temporary)  # safetensors creates files that only the owner can read
            temporary.replace(folder / WEIGHTS)
        for path in (folder / WEIGHTS, folder / CONFIG, *shared):
            session.console.print(f"wrote {path}", soft_wrap=True)
        if unfinished := run.unfinished():
            session.console.print(unfinished, soft_wrap=True)


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
