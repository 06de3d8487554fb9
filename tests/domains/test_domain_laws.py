"""Tests that every domain with a configs/domain/NAME.yaml has to pass.

`tests/domains/test_NAME.py` may define `sample(folder)`, which writes a small source into the new `folder` and returns
an object with
    options: constructor arguments that make the domain read it,
    raw: what went in, by document name,
    same: (decoded document, raw) -> whether they are equal up to the declared quantisation,
    units: raw -> natural units by name, counted without the domain's help,
    source: one of the files written; without it, or with it damaged, the domain cannot be built.
Without `sample` the domain is built from its YAML's defaults, with no network, and what needs the raw data is skipped.
"""

import importlib
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import requests
from hydra.utils import instantiate
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from bearings.core.errors import UserError
from bearings.core.plain_yaml import as_yaml, read_yaml
from bearings.domains.base import Domain

REPOSITORY = Path(__file__).parents[2]
CONFIGS = {path.stem: path for path in sorted((REPOSITORY / "configs" / "domain").glob("*.yaml"))}


@pytest.fixture(scope="module", params=CONFIGS)
def case(request, tmp_path_factory):
    """A domain, its sample and its store. `make()` returns a new instance of the domain."""
    name = request.param
    config = OmegaConf.load(CONFIGS[name])
    folder = tmp_path_factory.mktemp(name)
    module = importlib.import_module(f"test_{name}") if (Path(__file__).parent / f"test_{name}.py").exists() else None
    sample = module.sample(folder / "source") if hasattr(module, "sample") else None

    def make() -> Domain:
        return instantiate(config, **(sample.options if sample else {}))

    def offline(*_, **__):
        raise requests.ConnectionError("tests use no network")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(requests, "get", offline)
        try:
            store = make().prepare(folder / "first")
        except UserError as error:
            if sample:
                raise
            pytest.skip(f"test_{name}.py has no sample(folder), and the defaults cannot be built here: {error}")
    return SimpleNamespace(name=name, make=make, domain=make(), sample=sample, store=store, folder=folder)


@pytest.fixture
def sample(case):
    if case.sample is None:
        pytest.skip(f"tests/domains/test_{case.name}.py has no sample(folder)")
    return case.sample


def test_domains_exist():
    assert "jsb" in CONFIGS


def test_name_matches_file(case):
    assert case.domain.name == case.name
    assert case.store.directory.parent.name == case.name


def test_documents_have_start_token_and_whole_periods(case):
    domain, store = case.domain, case.store
    assert store.manifest["vocabulary"] == domain.vocabulary
    for index in range(len(store.names)):
        document = store.document(index)
        assert document[0] == domain.start
        assert domain.start not in document[1:-1]
        assert (len(document) - 1) % domain.period == 0
        assert document.max() < domain.vocabulary


def test_decode_inverts_encode(case, sample):
    assert sorted(case.store.names) == sorted(sample.raw)
    for index, name in enumerate(case.store.names):
        assert sample.same(case.domain.decode(case.store.document(index)), sample.raw[name]), name


def test_units_match_independent_count(case, sample):
    for index, name in enumerate(case.store.names):
        counted = sample.units(sample.raw[name])
        assert dict(zip(case.domain.units, case.store.units[index], strict=True)) == pytest.approx(counted), name


def test_recorded_options_round_trip(case, tmp_path):
    (tmp_path / "content.yaml").write_text(as_yaml(case.domain.content()), encoding="utf-8")
    assert read_yaml(tmp_path / "content.yaml") == case.domain.content()


def test_units_are_sums_of_token_weights(case):
    for index in range(len(case.store.names)):
        document = case.store.document(index)
        weights = case.domain.unit_weights(document)
        assert set(weights) == set(case.domain.units)
        for unit, recorded in zip(case.domain.units, case.store.units[index], strict=True):
            assert weights[unit].shape == document.shape
            assert weights[unit][0] == 0
            assert weights[unit].min() >= 0
            assert weights[unit].sum() == pytest.approx(recorded)


def test_units_of_window_match_its_targets(case):
    domain, unit = case.domain, case.domain.units[0]
    for index in case.store.documents("train")[:5]:
        document = case.store.document(index)
        whole = domain.unit_weights(document)[unit]
        for begin in range(0, min(len(document) - 1, 20 * domain.period), domain.period):
            before = min(begin, domain.lookback)
            seen = domain.unit_weights(document[begin - before :])[unit]
            assert np.array_equal(seen[before + 1 :], whole[begin + 1 :])


def test_domain_and_store_can_be_pickled(case):
    domain, store = pickle.loads(pickle.dumps((case.domain, case.store)))  # noqa: S301 (its own bytes)
    assert domain.options() == case.domain.options()
    for index in store.documents("valid")[:2]:
        assert np.array_equal(store.document(index), case.store.document(index))
        assert store.names[index] == case.store.names[index]


def test_splits_share_no_cluster(case):
    parts = [set(case.store.clusters[case.store.documents(part)].tolist()) for part in case.domain.splits]
    assert all(parts)
    assert sum(map(len, parts)) == len(set.union(*parts))


def test_rebuild_is_byte_identical(case):
    again = case.make().prepare(case.folder / "second")
    assert again.directory.name == case.store.directory.name
    files = sorted(path.name for path in case.store.directory.iterdir())
    assert files == sorted(path.name for path in again.directory.iterdir())
    for name in files:
        assert (case.store.directory / name).read_bytes() == (again.directory / name).read_bytes(), name


def test_decode_and_render_accept_any_ids(case, tmp_path):
    domain = case.domain
    folder = tmp_path / "any"
    folder.mkdir()
    allowed = st.integers(-2, domain.vocabulary + 1) | st.integers(-(2**70), 2**70)

    @settings(max_examples=20, suppress_health_check=list(HealthCheck), database=None)
    @given(st.lists(allowed, max_size=50))
    def law(ids):
        written = domain.render(domain.decode(ids), folder / "ids")
        assert written
        assert all(path.is_file() for path in written)
        assert all(path.parent == folder and path.name.startswith("ids") for path in written)

    law()


def test_augment_preserves_length_dtype_start_and_units(case):
    domain, store = case.domain, case.store
    for index in store.documents("train")[:10]:
        window = np.array(store.document(index))
        kept = window.copy()
        for seed in range(10):
            seen = domain.augment(window, np.random.default_rng(seed))
            assert np.array_equal(seen, domain.augment(window, np.random.default_rng(seed)))
            assert (seen.shape, seen.dtype) == (window.shape, window.dtype)
            assert seen[0] == domain.start
            assert seen.max() < domain.vocabulary
            for unit, weights in domain.unit_weights(seen).items():
                assert weights.sum() == pytest.approx(domain.unit_weights(window)[unit].sum())
        assert np.array_equal(window, kept)


@pytest.mark.parametrize("damage", ["truncated", "empty", "binary", "folder", "missing"])
def test_damaged_source_raises_and_leaves_nothing(case, sample, tmp_path, damage):
    data = sample.source.read_bytes()
    everything = {path.name: path.read_bytes() for path in sample.source.parent.iterdir()}
    try:
        sample.source.unlink()
        if damage == "missing":
            shutil.rmtree(sample.source.parent)
        elif damage == "folder":
            shutil.rmtree(sample.source.parent)
            sample.source.mkdir(parents=True)
        else:
            wrong = {"truncated": data[: len(data) // 2], "empty": b"", "binary": b"\x89PNG\r\n\x1a\n" + bytes(99)}
            sample.source.write_bytes(wrong[damage])
        with pytest.raises(UserError) as caught:
            case.make().prepare(tmp_path)
    finally:
        shutil.rmtree(sample.source.parent, ignore_errors=True)
        sample.source.parent.mkdir()
        for name, content in everything.items():
            (sample.source.parent / name).write_bytes(content)
    line = str(caught.value)
    assert "\n" not in line
    assert str(sample.source if damage not in ("missing", "folder") else sample.source.parent) in line
    assert [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock"] == []
    assert [path for path in tmp_path.rglob("*") if path.is_dir()] in ([], [tmp_path / case.name])


SLOW = ("torch", "music21", "matplotlib.pyplot")
IMPORTS = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
    print(name, *(slow for slow in SLOW if slow in sys.modules))
"""


def test_no_domain_loads_torch_music21_or_pyplot():
    modules = [OmegaConf.load(path)._target_.rpartition(".")[0] for path in CONFIGS.values()]
    command = [sys.executable, "-c", f"SLOW = {SLOW!r}{IMPORTS}", *modules]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert found == modules
