"""Shared fixtures: a small domain with a prepared store, and settings of the test session."""

import os

# Two workers with one thread per core each slow each other down several times.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import gc
import shutil
import signal
import tempfile
from copy import deepcopy
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from faster import make_hydra_faster, make_interpreter_faster
from hydra import initialize_config_dir
from hypothesis import HealthCheck, settings
from omegaconf import OmegaConf

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # set before kernels are imported, so that they run on the CPU

from bearings.domains.base import Domain
from bearings.domains.store import SPLITS, Store
from bearings.kernels.attention import dispatch
from bearings.lightning_modules.language_model import LanguageModel
from bearings.session.configuration import resolve
from bearings.session.settings import CONFIGS, file_of
from bearings.session.trust import trusting
from bearings.studying.composing import Composer

# Shells start background processes with SIGINT ignored, but some tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine must not fail a test.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

make_hydra_faster()
if "TRITON_INTERPRET" in os.environ and find_spec("triton"):
    make_interpreter_faster()

REPOSITORY = Path(__file__).parent.parent
DATA = Path(os.environ.get("BEARINGS_DATA", REPOSITORY.parent / "shared" / "data"))


COMPOSER = Composer()


@cache
def _composed(choices):
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return resolve(COMPOSER.composed(choices)[0])


def composed(*choices):
    """The configuration of a command with these settings, cached because Hydra takes a quarter of a second."""
    return deepcopy(_composed(choices))


def with_encoding(config, name, **options):
    """A configuration with another encoding, as `encoding=NAME` would give it, without the time that Hydra takes."""
    given = OmegaConf.to_container(
        OmegaConf.create({"data": config["data"], "encoding": file_of("encoding", name)}), resolve=True
    )
    return deepcopy(config) | {"encoding": {**given["encoding"], **options}}


def nats_of(logits, targets):
    """The result of a model's `token_nats`, from logits `[B, T, V]`."""
    nats = torch.nn.functional.cross_entropy(logits.mT, targets, ignore_index=-100, reduction="none")
    return nats, logits.argmax(-1) == targets


class Bigram(torch.nn.Module):
    """Logits depend only on the last token, so that windows and context do not change scores."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(12, 12, generator=torch.Generator().manual_seed(0)))

    def token_nats(self, tokens, targets):
        return nats_of(self.table[tokens], targets)


class Letters(Domain):
    """Documents of 2 to 60 letters, in which each letter is mostly followed by the next one in the alphabet."""

    name, units, vocabulary = "letters", ("letter",), 12

    def options(self):
        return {}

    def build(self, writer):
        random = np.random.default_rng(0)
        for number in range(60):
            jumps = random.random(random.integers(2, 61)) < 0.1
            letters = 1 + np.cumsum(1 + jumps * random.integers(1, 11, len(jumps))) % 11
            tokens = np.concatenate([[0], letters])
            split = SPLITS[(0, 0, 0, 1, 2)[number % 5]]
            writer.add(f"letters {number}", split, f"cluster {number}", tokens, {"letter": len(letters)})

    def unit_weights(self, tokens):
        return {"letter": (np.arange(len(tokens)) > 0).astype(float)}

    def encode_file(self, path):
        return np.array([0, *(ord(letter) - 96 for letter in path.read_text())])

    def decode(self, ids):
        return "".join(chr(96 + i) if 0 < i < 12 else "?" for i in ids)

    def render(self, item, stem):
        path = stem.with_name(stem.name + ".txt")
        path.write_text(item)
        return [path]


@pytest.fixture(scope="session", autouse=True)
def temporary_folder(tmp_path_factory):
    """A folder for temporary files in which runs of other workers, which use the same CPU, are not noticed."""
    tmp_path_factory.getbasetemp()  # outside the folder, because it is kept
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", place)
        patch.setattr(tempfile, "tempdir", place)
        yield


def pytest_collection_finish(session):
    """Exempt imported modules and collected tests from garbage collection, which they slow down, and collect less."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)


def pytest_collection_modifyitems(config, items):
    """Skip tests for which GPUs or files are missing, and slow tests unless -m is given."""
    gpus = torch.cuda.device_count()
    for item in items:
        for marker in item.iter_markers("gpu"):
            if gpus < (needed := marker.args[0] if marker.args else 1):
                item.add_marker(pytest.mark.skip(reason=f"{gpus} of {needed} GPUs are available"))
        for marker in item.iter_markers("data"):
            for path in marker.args:
                if not path.exists():
                    item.add_marker(pytest.mark.skip(reason=f"{path} is absent; set BEARINGS_DATA to its data folder"))
        if item.get_closest_marker("slow") and not config.option.markexpr:
            item.add_marker(pytest.mark.skip(reason="takes minutes; run it with -m slow"))


@pytest.fixture(autouse=True, scope="session")
def trusted():
    """Trust the modules of the tests' own domains."""
    with trusting(["conftest", "test_choice"]):
        yield


@pytest.fixture(autouse=True)
def fresh_plans():
    """Forget chosen implementations, because tests simulate GPUs."""
    dispatch._chosen.cache_clear()


@pytest.fixture(autouse=True)
def returned_memory():
    """Return cached memory of the GPU after a test that took much, because processes of pytest-xdist share the GPU."""
    yield
    if torch.cuda.is_initialized() and torch.cuda.memory_reserved() > 2**30:
        torch.cuda.empty_cache()


@pytest.fixture(scope="session")
def letters() -> Letters:
    return Letters()


@pytest.fixture(scope="session")
def store(letters, tmp_path_factory) -> Store:
    return letters.prepare(tmp_path_factory.mktemp("stores"))


def recorded_losses(monkeypatch):
    """All training losses by step, unrounded."""
    seen = {}
    inner = LanguageModel.training_step

    def step(self, batch, batch_idx):
        now = self.global_step
        inner(self, batch, batch_idx)
        seen[now] = self.loss.item()

    monkeypatch.setattr(LanguageModel, "training_step", step)
    return seen


losses = pytest.fixture(recorded_losses, name="losses")


@pytest.fixture(scope="module")
def browser():
    """Chromium: Debian's if it is installed, otherwise Playwright's own."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as started:
        try:
            found = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        except playwright.Error as error:
            pytest.skip(f"Chromium does not start: {str(error).splitlines()[0]}")
        yield found
        found.close()
