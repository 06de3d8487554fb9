"""task=export run=DIRECTORY: a trained model as files to share, and the way back from them."""

import os
import shutil
import tempfile
from functools import partial
from pathlib import Path

import yaml
from safetensors import SafetensorError
from safetensors.torch import save_model

from bearings.checked_files import DAMAGE, digest_of
from bearings.errors import UserError
from bearings.lightning_modules.transformer import Transformer
from bearings.tasks.house import House, build_transformer
from bearings.tasks.run_directory import RunDirectory, decisive, write_text
from bearings.tasks.weights import load_weights

WEIGHTS, CONFIG = "model.safetensors", "config.yaml"


class Export:
    """Write the best checkpoint's weights and what is needed to build the model, and to encode for it.

    Args:
        out: folder that gets the files; null for `<run>/export`.
    """

    needs_run = True

    def __init__(self, out: str | None = None):
        self.out = out and Path(os.path.expanduser(out))
        if self.out and self.out.exists() and not self.out.is_dir():
            raise ValueError(f"out={out}: it is a file: name a folder")

    def __call__(self, house: House) -> None:
        run = RunDirectory.open(house.config["run"]).trained()
        store = run.manifest.get("store")
        if store is None:
            raise UserError(f"{run.path}: manifest.json names no data, so that the run never began: train it first")
        transformer = house.load(run.checked_best(), store["vocabulary"])
        folder = self.out or run.path / "export"
        if is_run(folder):
            raise UserError(f"task.out={folder}: it is a run, whose {CONFIG} would be lost: name another folder")
        folder.mkdir(parents=True, exist_ok=True)
        # First, for it may not be there; the weights last, so that none are without what belongs to them.
        shared = house.domain.share(Path(house.config["stores"]), house.config["content"], folder)
        kept = {key: house.config[key] for key in ("names", "domain", "model", "content", "seed")}
        kept["encoding"] = decisive("encoding", house.config["encoding"])  # whatever computes it elsewhere
        with tempfile.TemporaryDirectory(prefix=f".{WEIGHTS}.", dir=folder) as making:
            temporary = Path(making) / WEIGHTS
            save_model(transformer.cpu(), str(temporary))
            kept |= {
                "vocabulary": store["vocabulary"],
                "store": store["sha256"],
                "weights_sha256": digest_of(temporary),
            }
            write_text(folder / CONFIG, yaml.safe_dump(kept, sort_keys=False))
            shutil.copymode(folder / CONFIG, temporary)  # safetensors lets nobody else read its files
            temporary.replace(folder / WEIGHTS)
        for path in (folder / WEIGHTS, folder / CONFIG, *shared):
            house.console.print(f"wrote {path}", soft_wrap=True)
        if unfinished := run.unfinished():
            house.console.print(unfinished, soft_wrap=True)


def is_run(folder: Path) -> bool:
    """Whether `folder` is a run's directory, which holds a `config.yaml` too."""
    return (folder / "manifest.json").exists()


def load_exported(folder: str | Path) -> Transformer:
    """The Transformer in a folder that task=export wrote, in evaluation mode, on the CPU, in float32.

    Raises:
        UserError: a file is missing, damaged, or of another version, or the folder is a run's; names it.
    """
    folder = Path(folder)
    if is_run(folder):
        raise UserError(
            f"{folder} is a run, not an export: load {folder / 'export'}, which "
            f"`python main.py task=export run={folder}` writes"
        )
    try:
        for file in (folder / CONFIG, folder / WEIGHTS):
            if file.exists() and not file.is_file():  # from a FIFO a read never returns
                raise OSError(f"{file.name} is no regular file")
        config = yaml.safe_load((folder / CONFIG).read_text())
        build_it = partial(build_transformer, config, config["vocabulary"])
        transformer = load_weights(build_it, folder / WEIGHTS, config.get("weights_sha256"))
    except (*DAMAGE, yaml.YAMLError, SafetensorError) as error:
        raise UserError(
            f"{folder} holds no model that can be read ({' '.join(str(error).split())[:200]}): "
            f"task=export writes {WEIGHTS} and {CONFIG}"
        ) from error
    return transformer.eval()
