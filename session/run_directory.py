"""A run's directory: its name follows from the configuration, and its manifest records how the run was made."""

import errno
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ..core.checked_files import digest_of, why
from ..core.errors import LONGEST_LINE, DivergedError, HeldError, InterruptedRunError, UserError, one_line
from ..core.packed_paths import AnyPath, PackedPath
from ..core.plain_yaml import as_yaml
from ..core.whole_files import write_text
from .identity import identity, unseeded_digest
from .manifest import manifest_text, read_manifest
from .overrides import as_typed
from .provenance import code_state
from .run_config import GROUPS, read_config, written
from .run_files import refuse_strange_files
from .trust import refuse_untrusted

RUN_NAME = re.compile(r"([^.].*-[0-9a-f]{8})-s\d+")
# Settings that are files on the machine that made the run, by group.
PLACES = {"domain": ("path", "bed", "tokenizer_path"), "model": ("pretrained",)}


class RunDirectory:
    """Paths and records of one run.

    Attributes:
        path: `runs/<domain>/<encoding>/<model>-<hash>-s<seed>`, or the directory given as `run=`.
        config: the resolved configuration.
    """

    def __init__(self, path: AnyPath, config: Mapping):
        self.path, self.config = path, config

    @classmethod
    def of(cls, config: Mapping) -> "RunDirectory":
        """The directory for `config`. Raises UserError if it holds a run with a different configuration."""
        names = config["names"]
        folder = f"{names['model']}-{unseeded_digest(config)[:8]}-s{config['seed']}"
        path = Path(config["run"] or Path(config["runs"]) / names["domain"] / names["encoding"] / folder)
        run = cls(path, config)
        if run.config_file.exists():
            changed = changes(identity(cls.open(path).config), identity(config))
            settings = [key for key in changed if not key.startswith("content.")]  # the others are digests of data
            how, resume = "from other data", ""
            if settings:
                was, now = map(as_typed, changed[settings[0]])
                how = f"with another configuration ({settings[0]}={was}, not {now})"
                resume = f"to resume it, repeat the settings of its command, which are in {run.config_file}; otherwise "
            if changed:
                raise UserError(
                    f"{path} was made {how}: {resume}leave out run= for an automatic directory, or name a new one"
                )
        return run

    @classmethod
    def open(cls, path: str | AnyPath | None) -> "RunDirectory":
        """An existing run, in a folder or in a packed study.

        Raises:
            UserError: there is no run, or its configuration cannot be read or is not trusted; see also
                `refuse_strange_files`.
        """
        if path is None:
            raise UserError("run=null: this task needs run=DIRECTORY, the directory of a run of task=train")
        if not isinstance(path, PackedPath):
            path = Path(path)
            refuse_strange_files(path)
        try:
            config = read_config(path / "config.yaml")
            for group in GROUPS:
                refuse_untrusted(config[group]["_target_"], group)
        except UserError as error:
            raise UserError(f"run={path}: config.yaml: {error}") from error
        except FileNotFoundError as error:
            raise UserError(
                f"run={path}: {error.filename} does not exist: give the directory of a run of task=train"
            ) from error
        except KeyError as error:
            if (path / "model.safetensors").exists():
                raise UserError(
                    f"run={path}: this folder holds an exported model, which only bearings.load opens: give the "
                    "directory of its run"
                ) from error
            raise UserError(
                f"run={path}: config.yaml has no {error}, so it is cut off or another version wrote it: copy or train "
                "the run again"
            ) from error
        except NotADirectoryError as error:
            raise UserError(f"run={path} is a file: give the directory of a run of task=train") from error
        except (OSError, ValueError) as error:
            raise UserError(
                f"run={path}: config.yaml cannot be read ({one_line(error)}): copy the run again, or delete this file "
                "and rerun the command that trained the run to write it again"
            ) from error
        return cls(path, config)

    @property
    def config_file(self) -> Path:
        return self.path / "config.yaml"

    @property
    def best(self) -> Path:
        return self.path / "checkpoints" / "best.ckpt"

    @property
    def last(self) -> Path:
        return self.path / "checkpoints" / "last.ckpt"

    @property
    def previous(self) -> Path:
        """The checkpoint before the last."""
        return self.path / "checkpoints" / "previous.ckpt"

    def records(self, split: str) -> Path:
        return self.path / "nll" / f"{split}.npz"

    def baselines(self, split: str) -> Path:
        """Folder of the baselines' records, one file per baseline."""
        return self.path / "baselines" / split

    def extrapolation(self, split: str) -> Path:
        """Nats of `split` by context length and position, from task=extrapolate."""
        return self.path / "extrapolation" / f"{split}.csv"

    @property
    def benchmarks(self) -> Path:
        """Folder of per-item results, one file per benchmark; see `session.item_files`."""
        return self.path / "benchmarks"

    @property
    def sample_metrics(self) -> Path:
        """Folder of the metrics of samples and of the test split, a file for each setting of task=generate."""
        return self.path / "sample_metrics"

    @property
    def mechanisms(self) -> Path:
        """Folder of the attention and learned parameters of the trained model, from task=mechanisms."""
        return self.path / "mechanisms"

    def other_seeds(self, split: str) -> list[Path]:
        """Records of `split` for every seed of this configuration, including this run's, but not copies of runs."""
        named = RUN_NAME.fullmatch(self.path.name)
        if not named:
            return [file for file in [self.records(split)] if file.is_file()]
        files = self.path.parent.glob(f"{named[1]}-s*/nll/{split}.npz")
        return sorted(file for file in files if RUN_NAME.fullmatch(file.parent.parent.name) and file.is_file())

    @property
    def manifest(self) -> dict:
        """The run's manifest; empty before the run starts. Raises UserError if it cannot be read."""
        file = self.path / "manifest.json"
        try:
            return read_manifest(file) if file.exists() else {}
        except (ValueError, MemoryError) as error:
            raise UserError(f"{file} is damaged ({why(error)}): delete {self.path} and train the run again") from error

    @property
    def data(self) -> dict:
        """The manifest of the data that the run was trained on. Raises UserError if training never started."""
        if (found := self.manifest.get("store")) is None:
            raise UserError(f"{self.path}: manifest.json lists no data, so training never started: train the run first")
        return found

    def write_manifest(self, **facts: Any) -> None:
        """Add entries to manifest.json. Raises UserError if it was deleted after training began."""
        with self._changed_manifest() as manifest:
            manifest |= facts

    def seal(self, *files: Path) -> None:
        """Record digests of `files` in the manifest, for `check_unchanged`."""
        with self._changed_manifest() as manifest:
            digests = {str(file.relative_to(self.path)): digest_of(file) for file in files}
            manifest.setdefault("files", {}).update(digests)

    @contextmanager
    def replacing(self, *files: Path) -> Iterator[None]:
        """`seal` files that are written in this context. An interruption leaves no digests, rather than wrong ones."""
        with self._changed_manifest() as manifest:
            for file in files:
                manifest.get("files", {}).pop(str(file.relative_to(self.path)), None)
        yield
        self.seal(*files)

    @contextmanager
    def _changed_manifest(self, begun: bool = True) -> Iterator[dict]:
        """The manifest, which is written when the context ends; other processes wait until then."""
        with self._manifest_locked():
            manifest = self.manifest
            if begun and "store" not in manifest:  # which `begin_session` has written
                raise UserError(
                    f"{self.path / 'manifest.json'} was deleted: rerun the command that trained the run to write it "
                    "again"
                )
            yield manifest
            write_text(self.path / "manifest.json", manifest_text(manifest))

    def _manifest_locked(self) -> FileLock:
        if not self.path.is_dir():  # taking the lock would recreate a deleted directory
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.path))
        return FileLock(self.path / ".manifest.lock")

    def check_unchanged(self, *files: Path, manifest: Mapping | None = None) -> None:
        """Raise UserError if any of the files exists but no longer matches its digest in the manifest.

        Args:
            manifest: the run's manifest if it has been read.
        """
        recorded = (self.manifest if manifest is None else manifest).get("files", {}) if files else {}
        for file in files:
            before = recorded.get(str(file.relative_to(self.path)))
            try:
                found = digest_of(file) if before is not None and file.exists() else before
            except ValueError as error:
                raise UserError(f"{file}: {error}: copy the run again") from error
            if found is not None and found != before:
                raise UserError(
                    f"{file} has changed since the run wrote it (sha256 {found[:12]}, not {str(before)[:12]}): copy "
                    f"the run again, or delete {self.path} and train it again"
                )

    def refuse_impossible_place(self) -> None:
        """Raise OSError if the directory does not exist and cannot be created."""
        there = next(place for place in (self.path, *self.path.absolute().parents) if os.path.lexists(place))
        wrong = errno.EEXIST if there.is_symlink() else errno.ENOTDIR
        if not there.is_dir():
            raise OSError(wrong, os.strerror(wrong), str(there))
        if there != self.path and not os.access(there, os.W_OK | os.X_OK):
            wrong = errno.EROFS if os.statvfs(there).f_flag & os.ST_RDONLY else errno.EACCES
            raise OSError(wrong, os.strerror(wrong), str(there))

    @contextmanager
    def claimed(self, checkpoint_bytes: float) -> Iterator[None]:
        """Create the directory and lock it for this process.

        Raises:
            HeldError: another process has locked it.
            UserError: there is too little space for the checkpoints, or the directory is deleted during training; see
                also `refuse_strange_files`.
        """
        try:
            for folder in (self.path, self.best.parent, self.records("test").parent):
                folder.mkdir(parents=True, exist_ok=True)
            refuse_strange_files(self.path)
            lock = FileLock(self.path / ".lock", timeout=0)
            free, needed = shutil.disk_usage(self.path).free, 5 * checkpoint_bytes
            if free < needed:
                space = math.floor(free / 2**20), math.ceil(needed / 2**20)  # so that they are never the same
                raise UserError(
                    f"{self.path}: {space[0]} MiB are free, but the checkpoints need {space[1]} MiB: free some space, "
                    "or choose another folder with runs=DIRECTORY"
                )
            with lock:
                self.keep_config()
                try:
                    yield
                except FileNotFoundError as error:
                    if self.config_file.exists():
                        raise
                    raise UserError(
                        f"{self.path} was deleted or moved during training: rerun the same command to train it again"
                    ) from error
        except Timeout as error:
            raise HeldError(f"{self.path}: another process is training this run: wait for it or stop it") from error

    def keep_config(self) -> None:
        """Write config.yaml if it does not exist."""
        if not self.config_file.exists():
            write_text(self.config_file, as_yaml(written(self.config)))

    @contextmanager
    def failure_recorded(self) -> Iterator[None]:
        """If an error ends the run, record it in the manifest as `failed`. A requested stop is not an error.

        If training diverged, which a study counts as a result, `diverged` is the step.
        """
        try:
            yield
        except InterruptedRunError:
            raise
        except Exception as error:
            step = error.step if isinstance(error, DivergedError) else None
            with suppress(OSError, UserError):  # the error may be a full disk, or a deleted manifest
                self.write_manifest(failed=one_line(error, LONGEST_LINE), diverged=step)
            raise

    def check_data(self, store_manifest: Mapping) -> None:
        """Raise UserError if the run was started with data that differ from the store's."""
        before = self.manifest.get("store", {})
        for key in ("sha256", "vocabulary", "units", "groups", "splits", "documents"):
            if key in before and before[key] != store_manifest[key]:
                then, now = (str(each[key])[:12] for each in (before, store_manifest))
                raise UserError(
                    f"{self.path} was started with other data (store {key} {then}, now {now}): restore the old data, "
                    "or delete the run"
                )

    def checked_best(self) -> Path:
        """The best checkpoint. Raises UserError if it differs from the one that the finished run recorded."""
        self.check_unchanged(self.best)
        return self.best

    def trained(self) -> "RunDirectory":
        """This run. Raises UserError if it has records but no checkpoints."""
        if not self.best.parent.exists():
            raise UserError(
                f"run={self.path}: this folder holds results only, no checkpoint: train the run again with the "
                "settings in its config.yaml"
            )
        return self

    def writable(self) -> "RunDirectory":
        """This run. Raises UserError if no results can be written to it, before a task computes them."""
        if not all(os.access(folder, os.W_OK | os.X_OK) for folder in (self.path, *self.path.glob("*/"))):
            raise UserError(
                f"run={self.path}: results cannot be written to this folder: change its permissions, or copy it and "
                "give the copy"
            )
        return self

    def unfinished(self) -> str | None:
        """A note that training has not finished; None if it has."""
        if self.manifest.get("finished"):
            return None
        return f"{self.path} is not finished; using its best checkpoint so far"

    def changed_source(self) -> str | None:
        """A note that the code has changed since the run's last session; None if it has not, or if that is unknown."""
        sessions = self.manifest.get("sessions")
        before = sessions[-1].get("code") if sessions else None
        if not before or not before["commit"]:
            return None
        now = code_state(self.config)
        if before == now or not now["commit"]:
            return None
        return f"the source has changed since this run was last trained: from {_version(before)} to {_version(now)}"

    def note_score(self, split: str) -> None:
        """Record when `split` was scored again, and with which version of the code."""
        scored = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "code": code_state(self.config)}
        with self._changed_manifest() as manifest:
            manifest.setdefault("scored", {})[split] = scored

    def begin_session(self, store_manifest: Mapping, model: Mapping, session: Mapping) -> None:
        """Record the configuration, the data, the model and the new training session."""
        facts = {"config": written(self.config), "store": dict(store_manifest), "model": dict(model)}
        with self._changed_manifest(begun=False) as manifest:
            sessions = [*manifest.get("sessions", []), dict(session)]
            manifest |= {**facts, "sessions": sessions, "failed": None, "diverged": None, "files": {}}

    def note_start(self, step: int) -> None:
        """Record that the last session trains from `step` on, and drop sessions whose steps are all repeated."""
        with self._changed_manifest() as manifest:
            *earlier, last = manifest["sessions"]
            kept = [each for each in earlier if each.get("from_step", 0) < step]
            manifest["sessions"] = [*kept, {**last, "from_step": step}]

    def note_beside(self, others: int) -> None:
        """Record that `others` processes have trained on the same device during the last session."""
        with self._changed_manifest() as manifest:
            manifest["sessions"][-1]["beside"] = others


def without_folders(value: Any) -> Any:
    """File names without their folders."""
    if isinstance(value, list):
        return [without_folders(each) for each in value]
    return value and Path(value).name


def leaves(tree: Mapping, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every value that is not a mapping, with its dotted key."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def changes(there: Mapping, here: Mapping) -> dict[str, tuple[Any, Any]]:
    """The values of both, by dotted key, where they differ; None for one that is missing."""
    one, other = dict(leaves(there)), dict(leaves(here))
    keys = sorted(one.keys() | other.keys())
    return {key: (one.get(key), other.get(key)) for key in keys if one.get(key) != other.get(key)}


def _version(code: Mapping) -> str:
    return f"{code['commit'][:10]} with changes {code['dirty']}" if code["dirty"] else code["commit"][:10]
