"""task=generate: no piece takes the place of one that was drawn in another way."""

import errno
import io
import os
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import Letters
from rich.console import Console
from training_support import configured, go

from bearings.domains.base import Measures
from bearings.domains.flip_flop import FlipFlop
from bearings.domains.jsb import JSB
from bearings.domains.maestro import Maestro
from bearings.reporting.sample_metrics import read_metrics
from bearings.session.run_directory import RunDirectory
from bearings.session.session import Session
from bearings.tasks.generate import Generate, render_samples, write_answers


def test_what_is_drawn_in_another_way_has_another_name(tmp_path, monkeypatch):
    def sample(model, prompt, tokens, seed, **settings):
        return torch.full((len(prompt), tokens), 3 + seed)  # drawing takes seconds, and is tested elsewhere

    monkeypatch.setattr("bearings.tasks.generate.sample", sample)
    run, _ = go(configured(tmp_path, "encoding=rope", "trainer.steps=8", "task.samples=0"))
    session = Session.of(RunDirectory.open(run.path).config | {"run": str(run.path)})
    for folder, text in (("p1", "abc"), ("p2", "bcd")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.txt").write_text(text)
    ways = [
        *({}, {"samples": 3}, {"tokens": 16}, {"temperature": 0.9}, {"temperature": 0.90000001}),
        *({"top_k": 1}, {"top_p": 1.0}, {"sampling_seed": 1}),
        *({"prompt": str(tmp_path / folder / "a.txt")} for folder in ("p1", "p2")),
    ]
    there = {}
    for way in ways:
        Generate(**way)(session)
        found = {path.name: path.read_text() for path in (run.path / "samples").iterdir()}
        assert len(found) == len(there) + way.get("samples", 2) + ("prompt" in way)  # the prompt is kept too
        assert there.items() <= found.items()
        there = found
    assert {"seed0-0.txt", "seed0-1.txt", "seed0-samples3-2.txt", "seed0-top_k1-0.txt"} <= there.keys()
    assert there["seed1-0.txt"] == there["seed0-0.txt"].replace("c", "d")
    (tmp_path / f"{83 * '長'}.txt").write_text("abc")  # 253 bytes
    Generate(samples=1, tokens=20, temperature=0.7, top_k=3, prompt=str(tmp_path / f"{83 * '長'}.txt"))(session)
    long = {path.name for path in (run.path / "samples").iterdir()} - there.keys()
    assert {name.partition("長")[0] for name in long} == {"seed0-samples1-tokens20-temperature0.7-top_k3-"}
    there |= {name: (run.path / "samples" / name).read_text() for name in long}
    Generate(samples=2, tokens=512, temperature=1)(session)
    assert there == {path.name: path.read_text() for path in (run.path / "samples").iterdir()}


def test_samples_follow_the_domains_own_top_p_unless_a_task_names_another(tmp_path, monkeypatch):
    assert JSB.top_p == Maestro.top_p == 0.9
    monkeypatch.setattr(Letters, "top_p", 0.5)
    run, printed = go(configured(tmp_path, "encoding=rope", "trainer.steps=8"))
    assert "tokens: temperature 1, top_p 0.5" in printed
    session = Session.of(RunDirectory.open(run.path).config | {"run": str(run.path)})
    session.console, drawn = Console(file=io.StringIO(), width=200), []

    def sample(model, prompt, tokens, top_p, **settings):
        drawn.append(top_p)
        return torch.full((len(prompt), tokens), 3)  # drawing takes seconds, and is tested elsewhere

    monkeypatch.setattr("bearings.tasks.generate.sample", sample)
    Generate(top_p=0.5)(session)
    Generate()(session)
    Generate(top_p=1.0)(session)
    names = {path.name for path in (run.path / "samples").glob("seed0*-0.txt")}
    assert names == {"seed0-top_p0.5-0.txt", "seed0-top_p1.0-0.txt"}
    printed = [line for line in session.console.file.getvalue().splitlines() if line.startswith("drawing")]
    assert [line.rpartition(" ")[2] for line in printed] == ["0.5", "0.5", "1"]
    assert drawn == [0.5, 0.5, 1.0]


def test_samples_that_are_all_the_same_are_not_a_surprise(tmp_path):
    run, _ = go(configured(tmp_path, "encoding=rope", "trainer.steps=8", "task.samples=0"))
    session = Session.of(RunDirectory.open(run.path).config | {"run": str(run.path)})
    for settings, expected in (({"temperature": 0}, True), ({"top_k": 1}, True), ({}, False)):
        session.console = Console(file=io.StringIO(), width=200)
        Generate(samples=3, tokens=32, **settings)(session)
        assert ("all samples are the same; " in session.console.file.getvalue()) == expected


def test_the_terminal_shows_the_continuation_of_a_prompt(tmp_path, monkeypatch):
    drawn = torch.tensor([1, 2, 3, 4]).repeat(20)
    monkeypatch.setattr("bearings.tasks.generate.sample", lambda model, prompt, tokens, **_: drawn.expand(2, -1))
    run, _ = go(configured(tmp_path, "encoding=rope", "trainer.steps=8", "task.samples=0"))
    session = Session.of(RunDirectory.open(run.path).config | {"run": str(run.path)})
    session.console = Console(file=io.StringIO(), width=200)
    (tmp_path / "prompt.txt").write_text(40 * "jihgfedc")  # longer than what the terminal shows
    Generate(prompt=str(tmp_path / "prompt.txt"), tokens=80)(session)
    printed = session.console.file.getvalue()
    (first, *lines) = printed.partition("-0.txt, after the prompt\n")[2].splitlines()
    assert [first, *lines] == [18 * "abcd", 2 * "abcd"]
    assert "jihg" not in printed


def test_a_prompt_that_does_not_exist_is_refused_before_the_model_is_loaded(tmp_path):
    with pytest.raises(ValueError, match=r"prompt=.*missing\.txt: the file does not exist"):
        Generate(prompt=str(tmp_path / "missing.txt"))


def test_the_model_sees_no_more_of_a_prompt_than_it_was_trained_with(tmp_path, monkeypatch):
    seen = []

    def sample(model, prompt, tokens, **settings):
        seen.append(prompt.shape)
        return torch.full((len(prompt), tokens), 3)

    monkeypatch.setattr("bearings.tasks.generate.sample", sample)
    run, _ = go(configured(tmp_path, "encoding=rope", "trainer.steps=2", "data.length=32", "task.samples=0"))
    session = Session.of(RunDirectory.open(run.path).config | {"run": str(run.path)})
    for letters in (31, 400):
        session.console = Console(file=io.StringIO(), width=200)
        (tmp_path / "prompt.txt").write_text(letters * "a")
        Generate(samples=1, tokens=8, prompt=str(tmp_path / "prompt.txt"))(session)
        (written,) = run.path.glob("samples/*-0.txt")
        assert written.read_text().endswith("?" + letters * "a" + 8 * "c")
        written.unlink()
        line = "the model sees the last 32 of the prompt's 401 tokens, because of data.length=32\n"
        assert (line in session.console.file.getvalue()) == (letters == 400)
    assert seen == [(1, 32)] * 2


def test_samples_are_measured_like_test_pieces_of_the_same_length(tmp_path, monkeypatch):
    sizes = []

    class Counted(Letters):
        measures = Measures({"share_of_b": "share of b"}, "8 letters", "position, letters", 8.0, "Counted.")

        def measure(self, ids):
            sizes.append(len(ids))
            letters = np.array([i for i in ids if i])
            return (letters[: len(letters) // 8 * 8] == 2).reshape(-1, 8).mean(1, keepdims=True)

    run, _ = go(configured(tmp_path, "encoding=rope", "trainer.steps=2", "task.samples=0"))
    session = Session.of(RunDirectory.open(run.path).config | {"run": str(run.path)})
    vars(session)["domain"] = Counted()
    session.console = Console(file=io.StringIO(), width=200)
    Generate(samples=3, tokens=24)(session)
    assert max(sizes) == 25
    rows, store = read_metrics(run.sample_metrics / "seed0-samples3-tokens24.csv"), session.store()
    assert [row["segment"] for row in rows if row["origin"] == "sample"] == [0, 1, 2] * 3
    whole = [min(24, len(store.document(i)) - 1) // 8 for i in store.documents("test")]
    assert len([row for row in rows if row["origin"] == "test"]) == sum(whole)
    first = [row["share_of_b"] for row in rows if row["piece"] == store.names[store.documents("test")[0]]]
    assert first == Counted().measure(store.document(store.documents("test")[0])[:25])[:, 0].tolist()
    assert "share of b" in session.console.file.getvalue()
    Generate(samples=1, tokens=4)(session)
    assert "not measured: the samples are shorter than 8 letters" in session.console.file.getvalue()


@pytest.mark.parametrize("asks", [False, True])
def test_samples_of_an_unfinished_run_are_not_among_those_of_the_finished_one(tmp_path, asks, monkeypatch):
    run, _ = go(configured(tmp_path, "encoding=rope", "trainer.steps=2", "task.samples=0"))
    session = Session.of(RunDirectory.open(run.path).config | {"run": str(run.path)})
    session.console = Console(file=io.StringIO(), width=200)
    monkeypatch.setattr(Letters, "solved", 0.9 if asks else None)
    run.write_manifest(finished=None)
    Generate(samples=1, tokens=8)(session)
    assert not (run.path / "samples").exists()
    names = {"answered-0.txt", "example-0.txt"} if asks else {"seed0-samples1-tokens8-0.txt"}
    assert {path.name for path in (run.path / "samples-unfinished").iterdir()} == names
    run.write_manifest(finished="now")
    Generate(samples=1, tokens=8)(session)
    assert {path.name for path in (run.path / "samples").iterdir()} == names


def test_the_answers_of_an_example_become_those_of_the_model(tmp_path):
    domain = FlipFlop(train=1, valid=3, test=3, sparse=1, dense=1, length=32)
    store = domain.prepare(tmp_path)
    session = SimpleNamespace(domain=domain, settings=SimpleNamespace(device=torch.device("cpu"), precision="32-true"))

    def model(tokens):
        return torch.nn.functional.one_hot((tokens + 1) % domain.vocabulary).float()

    files = {path.stem: domain.encode_file(path) for path in write_answers(session, model, store, 2, tmp_path / "to")}
    assert len(files) == 4
    for number, index in enumerate(store.documents("test")[:2]):
        example, answered = (files[f"{name}-{number}"] for name in ("example", "answered"))
        assert np.array_equal(example, store.document(index))
        asked = np.flatnonzero(domain.answers(example))
        assert np.array_equal(answered[asked], example[asked - 1] + 1)
        assert np.array_equal(np.delete(answered, asked), np.delete(example, asked))


def test_a_full_disk_is_named_after_the_folder_of_samples(tmp_path):
    class Full:
        decode = staticmethod(list)

        def render(self, item, stem):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match=str(tmp_path / "samples")):
        render_samples(Full(), [[1]], tmp_path / "samples", "sample")
