"""Attention and learnt quantities that are plotted agree with what the encoding computes."""

import csv
import json

import pytest
import torch
from encodings_support import ENCODINGS
from training_support import configured, go

from bearings.core.legend_records import as_facts, legends_of
from bearings.encodings.nope import NoPE
from bearings.lightning_modules.portraits import look_inside, mass_by_distance, probabilities, sample_of
from bearings.lightning_modules.transformer import Transformer
from bearings.reporting.mechanisms import read_mechanism
from bearings.session.run_directory import RunDirectory
from bearings.session.session import Session
from bearings.tasks.mechanisms import Mechanisms


def test_probabilities_of_nope_are_the_softmax_of_its_scores():
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 21, 2, 8, dtype=torch.float64) for _ in range(3))
    got = probabilities(NoPE(16, 2, 2, 8), v.flatten(2), q, k, v)
    scores = torch.einsum("bthd,bshd->bhts", q, k)[0] * 8**-0.5
    scores = scores.masked_fill(~torch.ones(21, 21, dtype=torch.bool).tril(), float("-inf"))
    torch.testing.assert_close(got, scores.softmax(-1).float())


@pytest.mark.parametrize("name", ENCODINGS)
def test_attention_of_every_encoding_sums_to_one_and_never_looks_ahead(name):
    kind = ENCODINGS[name]
    model = Transformer(11, kind, width=32, layers=2, heads=2, kv_heads=1).eval()
    tokens = torch.randint(11, (3, 37))
    attention, portraits = look_inside(model, tokens)
    assert len(attention) == len(portraits) == 2
    heads = model.encodings[0].heads
    for layer in attention:
        assert layer.shape == (heads, 37, 37)
        torch.testing.assert_close(layer.sum(-1), torch.ones(heads, 37), atol=1e-4, rtol=0)
        assert layer.triu(1).abs().max() == 0
        shares = torch.stack([share for _, _, share in mass_by_distance(layer)])
        torch.testing.assert_close(shares.sum(0), torch.ones(heads), atol=1e-4, rtol=0)
    for portrait in portraits:
        for each in portrait.values():
            assert each.values.ndim == 2
            assert torch.isfinite(each.values).all()
            elements = each.legend.elements
            assert elements or each.values.shape[1] == tokens.numel()
            assert all(len(known) == each.values.shape[1] for known in (elements.facts.values() if elements else ()))
        legends = {name: each.legend for name, each in portrait.items()}
        assert legends_of({"portraits": json.loads(json.dumps(as_facts(legends)))}) == legends
    # The hooks are gone, and the model computes what it did.
    assert not any(encoding._forward_hooks for encoding in model.encodings)


def test_mass_by_distance():
    length = 16
    attention = torch.zeros(1, length, length)
    for query in range(length):
        attention[0, query, max(query - 5, 0)] = 1
    shares = {(low, high): share.item() for low, high, share in mass_by_distance(attention)}
    assert list(shares) == [(0, 0), (1, 1), (2, 3), (4, 7), (8, 15)]
    assert shares[4, 7] == 1
    assert sum(shares.values()) == 1


def test_sample_has_the_longest_documents(store):
    tokens = sample_of(store, "valid", 20)
    assert tokens.shape == (4, 20)
    sizes = sorted((len(store.document(i)) for i in store.documents("valid")), reverse=True)
    assert sample_of(store, "valid", 4096).shape == (4, sizes[3])


def test_training_writes_the_mechanisms_of_its_encoding(tmp_path):
    written = {"pope": {"attention", "delta"}, "path_fox": {"attention", "beta", "forget_gate"}}
    for encoding, names in written.items():
        run, _ = go(configured(tmp_path, f"encoding={encoding}", "trainer.steps=8"))
        assert {path.stem for path in run.mechanisms.glob("*.csv")} == names
        legends = legends_of(run.manifest)
        assert legends.keys() == names - {"attention"}
        for path in run.mechanisms.glob("*.csv"):
            read_mechanism(path, legends.get(path.stem))
            with open(path, newline="") as file:
                rows = list(csv.DictReader(file))
            assert rows
            if path.stem == "delta":
                assert set(rows[0]) == {"layer", "head", "element", "delta"}
            if path.stem == "beta":
                assert all(0 <= float(row["q05"]) <= float(row["q95"]) <= 2 for row in rows)


def test_mechanisms_of_an_unfinished_run_are_marked(tmp_path, capsys):
    run, _ = go(configured(tmp_path, "encoding=rope", "trainer.steps=8"))
    session = Session.of(RunDirectory.open(run.path).config | {"run": str(run.path)})
    for finished in (True, None):
        run.write_manifest(finished=finished)
        Mechanisms()(session)
        assert ("is not finished" in capsys.readouterr().out) is (finished is None)
