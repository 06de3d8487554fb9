"""task=generate: no piece takes the place of one that was drawn in another way."""

import io

import torch
from conftest import Letters
from rich.console import Console
from training_support import configured, go

from bearings.domains.jsb import JSB
from bearings.domains.maestro import Maestro
from bearings.session.run_directory import RunDirectory
from bearings.session.session import Session
from bearings.tasks.generate import Generate


def test_what_is_drawn_in_another_way_has_another_name(tmp_path, monkeypatch):
    def sample(model, prompt, tokens, **settings):
        return torch.full((len(prompt), tokens), 3)  # drawing takes seconds, and is tested elsewhere

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
    Generate(samples=2, tokens=512, temperature=1)(session)
    assert there == {path.name: path.read_text() for path in (run.path / "samples").iterdir()}


def test_samples_follow_the_domains_own_top_p_unless_a_task_names_another(tmp_path, monkeypatch):
    assert JSB.top_p == Maestro.top_p == 0.9
    monkeypatch.setattr(Letters, "top_p", 0.5)
    run, printed = go(configured(tmp_path, "encoding=rope", "trainer.steps=8"))
    assert "tokens: temperature 1, top_p 0.5" in printed
    session = Session.of(RunDirectory.open(run.path).config | {"run": str(run.path)})
    session.console = Console(file=io.StringIO(), width=200)
    Generate(top_p=0.5)(session)
    Generate()(session)
    Generate(top_p=1.0)(session)
    names = {path.name for path in (run.path / "samples").glob("seed0*-0.txt")}
    assert names == {"seed0-top_p0.5-0.txt", "seed0-top_p1.0-0.txt"}
    printed = [line for line in session.console.file.getvalue().splitlines() if line.startswith("drawing")]
    assert [line.rpartition(" ")[2] for line in printed] == ["0.5", "0.5", "1"]
