"""Attention and learned quantities that are plotted agree with what the encoding computes."""

import csv
import itertools
import json
import math
from copy import deepcopy
from dataclasses import asdict
from functools import partial

import pytest
import torch
from encodings_support import ENCODINGS
from training_support import configured, go, weights

from bearings.core.errors import UserError
from bearings.core.legend_records import legends_of
from bearings.core.legends import Legend
from bearings.domains.indirect_indexing import IndirectIndexing
from bearings.encodings.base import Portrait
from bearings.encodings.nope import NoPE
from bearings.encodings.rope import RoPE
from bearings.kernels.loss.cross_entropy import IGNORED
from bearings.lightning_modules.attention_maps import (
    mass_by_distance,
    mass_by_position,
    nearer_preferred,
    order_kept,
    rolled_out,
    swapped,
    uniform_attention,
)
from bearings.lightning_modules.bands import loss_by_band
from bearings.lightning_modules.portraits import look_inside, look_with_keys_moved, probabilities, sample_of
from bearings.lightning_modules.transformer import Transformer
from bearings.reporting.mechanism_files import NATS, SHARES, read_mechanism
from bearings.session.run_directory import RunDirectory
from bearings.session.session import Session
from bearings.tasks.mechanisms import Mechanisms, attention_rows, band_rows, consistency_rows


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
    attention, portraits = look_inside(model, tokens, lambda encoding, attention: attention.mean(0))
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
        facts = {name: asdict(legend) for name, legend in legends.items()}
        assert legends_of({"portraits": json.loads(json.dumps(facts))}) == legends
    assert not legends.keys() & {*SHARES, *NATS}
    # The hooks are gone, and the model computes what it did.
    assert not any(encoding._forward_hooks for encoding in model.encodings)


def test_masses_are_those_of_queries_in_the_second_half():
    attention = torch.eye(16)
    attention[8:] = torch.eye(16)[3]
    shares = {(low, high): share.item() for low, high, share in mass_by_distance(attention.unsqueeze(0))}
    assert shares == {(0, 0): 0, (1, 1): 0, (2, 3): 0, (4, 7): 3 / 8, (8, 15): 5 / 8}
    shares = [(each.mass.item(), each.uniform) for each in mass_by_position(attention.unsqueeze(0), attention)]
    assert shares == [(0, 0), (0, 0), (1, 1), (0, 0), (0, 0)]


def test_mass_by_position_of_uniform_attention_is_uniform():
    uniform = uniform_attention(16, None, torch.device("cpu"))
    shares = [*mass_by_position(uniform.unsqueeze(0), uniform)]
    assert [(each.low, each.high) for each in shares] == [(0, 0), (1, 1), (2, 3), (4, 7), (8, 15)]
    assert [each.mass.item() for each in shares] == pytest.approx([each.uniform for each in shares])
    assert sum(each.uniform for each in shares) == pytest.approx(1)
    assert uniform_attention(5, 2, torch.device("cpu"))[4].tolist() == [0, 0, 0, 0.5, 0.5]


def test_rollout_of_uniform_attention_moves_to_the_first_token():
    uniform, rollout, shares = uniform_attention(32, None, torch.device("cpu")), torch.eye(32), []
    for _ in range(4):
        rollout = rolled_out(uniform, rollout)
        torch.testing.assert_close(rollout.sum(-1), torch.ones(32))
        shares.append(next(mass_by_position(rollout.unsqueeze(0), uniform)).mass.item())
    assert shares == sorted(shares)
    assert shares[-1] > 3 * shares[0]


def test_heads_that_distinguish_positions_only_or_tokens_only():
    torch.manual_seed(0)
    distance = torch.arange(24)[:, None] - torch.arange(24)
    ahead = (distance < 0, float("-inf"))
    by_position = (-distance.float()).masked_fill(*ahead).softmax(-1).expand(1, 1, 24, 24)
    relevance = torch.randn(24)

    def by_token(index):
        keys = relevance if index is None else relevance[index]
        return keys.expand(24, 24).masked_fill(*ahead).softmax(-1).expand(1, 1, 24, 24)

    def none(index):
        return torch.zeros(24, 24).masked_fill(*ahead).softmax(-1).expand(1, 1, 24, 24)

    def outcomes(found):
        return {(each.low, each.high): each.share.item() for each in found}

    assert outcomes(nearer_preferred(by_position, None)) == {(1, 1): 1, (2, 3): 1, (4, 7): 1, (8, 11): 1}
    assert outcomes(nearer_preferred(none(None), 9)) == {(1, 1): 0.5, (2, 3): 0.5, (4, 4): 0.5}
    tokens = torch.arange(24).unsqueeze(0)
    assert outcomes(order_kept(lambda index: by_position, tokens, None)) == {(1, 1): 0, (4, 4): 0}
    assert outcomes(order_kept(by_token, tokens, 20)) == {(1, 1): 1, (4, 4): 1}
    assert outcomes(order_kept(by_token, tokens % 4, 20)) == {(1, 1): 1}
    assert outcomes(order_kept(none, tokens, 3)) == {}
    assert 0.2 < outcomes(nearer_preferred(by_token(None), None))[2, 3] < 0.8


def test_comparisons_of_keys_are_averages_over_rows_and_queries():
    torch.manual_seed(0)
    tokens = torch.randint(3, (2, 19))
    before, near, far = torch.randint(4, (3, 2, 3, 19, 19)).float()  # small integers, some of them equal
    maps = iter([before, near, far])  # after swaps of keys 1 and 4 apart

    def share(compared, outcome):
        return [sum(outcome(b, h, *each) for b, *each in compared) / len(compared) for h in range(3)]

    def nearer(b, h, t, d):
        return 0.5 + 0.5 * float((before[b, h, t, t - d] - before[b, h, t, t - 2 * d]).sign())

    for found in nearer_preferred(before, 17):
        compared = itertools.product(range(2), range(19), range(found.low, found.high + 1))
        compared = [(b, t, d) for b, t, d in compared if 2 * d <= t]
        assert found.share.tolist() == pytest.approx(share(compared, nearer))
    kept = [*order_kept(lambda index: next(maps), tokens, 16)]
    assert [each.low for each in kept] == [1, 4]
    for found, after in zip(kept, (near, far), strict=True):
        gap = found.low
        firsts = [early for early in range(19 - gap) if early // gap % 2 == 0]
        compared = [(b, t, e) for b in range(2) for e in firsts for t in range(e + gap + 1, min(19, e + 16))]
        compared = [(b, t, e) for b, t, e in compared if tokens[b, e] != tokens[b, e + gap]]

        def same(b, h, t, e, after=after, gap=gap):
            first, then = before[b, h, t, e] - before[b, h, t, e + gap], after[b, h, t, e + gap] - after[b, h, t, e]
            return 0.5 + 0.5 * float(first.sign() * then.sign())

        assert found.share.tolist() == pytest.approx(share(compared, same))


def test_swapped_exchanges_pairs():
    assert swapped(7, 2).tolist() == [2, 3, 0, 1, 6, 5, 4]
    assert swapped(3, 1).tolist() == [1, 0, 2]


@pytest.mark.parametrize("name", ENCODINGS)
def test_measurements_of_every_encoding(name):
    """Keys move for all encodings that read them, and all rotations have bands that change the loss."""
    torch.manual_seed(0)
    kind = ENCODINGS[name]
    model = Transformer(11, kind, width=32, layers=1, heads=2, kv_heads=1).eval()
    tokens = torch.randint(11, (2, 16))
    before = model.token_nats(tokens[:, :-1], tokens[:, 1:]).nats
    (kept,) = look_with_keys_moved(model, tokens, lambda encoding, attention: [*order_kept(attention, tokens, None)])
    encoding = model.encodings[0]
    assert (kept is None) is not encoding.reads_content
    for each in kept or ():
        assert ((each.share >= 0) & (each.share <= 1)).all()
    bands, spectrum = loss_by_band(model, tokens[:, :-1], tokens[:, 1:]), encoding.spectrum()
    assert (not bands) is (spectrum is None)
    if spectrum is not None:
        assert sum(band.elements for band in bands) == (spectrum != 0).sum()
        assert all(band.low < band.high for band in bands)
        assert all(band.removed != band.plain for band in bands)
        assert bands[0].unrotated != bands[0].plain
    torch.testing.assert_close(model.token_nats(tokens[:, :-1], tokens[:, 1:]).nats, before, atol=0, rtol=0)


@pytest.mark.parametrize("name", ["rope", "pope", "comrope"])
def test_without_all_bands_attention_has_no_positions(name):
    torch.manual_seed(0)
    encoding = ENCODINGS[name](16, 2, 1, 8)
    q, k, v = (torch.randn(1, 9, heads, 8) for heads in (2, 1, 1))
    encoding.unturned = torch.ones_like(encoding.spectrum(), dtype=torch.bool)
    weights = probabilities(encoding, v.new_zeros(1, 9, 16), q[:, :1].expand_as(q), k[:, :1].expand_as(k), v)
    torch.testing.assert_close(weights, uniform_attention(9, None, v.device).expand(2, 9, 9))
    encoding.unturned = None
    assert (
        probabilities(encoding, v.new_zeros(1, 9, 16), q[:, :1].expand_as(q), k[:, :1].expand_as(k), v)[0, -1].std()
        > 0.001
    )


def test_sample_has_the_longest_documents(store):
    tokens, targets = sample_of(store, "valid", 20)
    assert tokens.shape == (4, 20)
    assert torch.equal(targets[:, :-1], tokens[:, 1:])
    sizes = sorted((len(store.document(i)) for i in store.documents("valid")), reverse=True)
    assert sample_of(store, "valid", 4096)[0].shape == (4, sizes[3] - 1)


def test_bands_average_over_the_targets_that_are_scored(tmp_path):
    """In a task, the rest of an example is context, which the model is not trained to predict; the answer is last."""
    domain = IndirectIndexing(train=1, valid=40, test=1, shortest=40)
    tokens, targets = sample_of(domain.prepare(tmp_path), "valid", domain.longest)
    assert ((targets != IGNORED).sum(-1) == 1).all()
    torch.manual_seed(0)
    model = Transformer(domain.vocabulary, ENCODINGS["rope"], width=16, layers=1, heads=2).eval()
    nats = model.token_nats(tokens, targets).nats[targets != IGNORED]
    bands = loss_by_band(model, tokens, targets)
    assert [band.plain for band in bands] == pytest.approx([float(nats.mean())] * len(bands))
    assert loss_by_band(model, tokens, torch.full_like(targets, IGNORED)) == []


@torch.no_grad()
def test_bands_are_the_pairs_with_their_wavelengths():
    """Frequencies of 0 do not rotate, and the weights of queries that are 0 compare nothing."""
    torch.manual_seed(0)
    model = Transformer(11, ENCODINGS["comrope"], width=32, layers=2, heads=4, kv_heads=2).eval()
    tokens = torch.randint(11, (2, 24))
    wavelengths = torch.tensor([[[2.0, 4.1, 3.9, 62.0], [15.0, 17.0, 5.0, 3.0]], [[9.0, 65.0, 70.0, 2.5]] * 2])
    for encoding, each in zip(model.encodings, wavelengths, strict=True):
        encoding.log_frequencies.copy_((2 * math.pi / each).log())
    for block in model.blocks:
        block.attention.qkv.weight *= 20
    bands = loss_by_band(model, tokens[:, :-1], tokens[:, 1:])
    assert [(band.low, band.high) for band in bands] == [(1, 4), (4, 16), (16, 64), (64, 256)]
    for band in bands:
        here = (wavelengths >= band.low) & (wavelengths < band.high)
        assert band.elements == here.sum()
        still, silent = deepcopy(model), deepcopy(model)
        for layer, marks in enumerate(here):
            still.encodings[layer].log_frequencies[marks] = float("-inf")
            queries = silent.blocks[layer].attention.qkv.parts()["query"]
            # By key head, query head in its group, half of the channels, and pair.
            queries.view(2, 2, 2, 4, 32).masked_fill_(marks[:, None, None, :, None], 0)
        expected = [
            float(other.token_nats(tokens[:, :-1], tokens[:, 1:]).nats.mean()) for other in (model, still, silent)
        ]
        assert [band.plain, band.unrotated, band.removed] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", ["rope", "pope"])
def test_without_its_only_band_attention_is_uniform(name):
    torch.manual_seed(0)
    model, uniform = (
        Transformer(11, kind, width=32, layers=1, heads=4) for kind in (partial(ENCODINGS[name], base=2.0), NoPE)
    )
    uniform.load_state_dict(model.state_dict(), strict=False)
    torch.nn.init.zeros_(uniform.blocks[0].attention.qkv.parts()["query"])
    tokens = torch.randint(11, (2, 24))
    (band,) = loss_by_band(model, tokens[:, :-1], tokens[:, 1:])
    assert band.removed == pytest.approx(float(uniform.token_nats(tokens[:, :-1], tokens[:, 1:]).nats.mean()), rel=1e-6)


@torch.no_grad()
def test_rows_of_files_are_the_measurements_of_their_layer_and_head():
    torch.manual_seed(0)
    model = Transformer(11, partial(ENCODINGS["rope"], window=9), width=32, layers=2, heads=2).eval()
    for block in model.blocks:
        block.attention.qkv.weight *= 20
    tokens, eye = torch.randint(11, (3, 16)), torch.eye(16)
    files, _ = attention_rows(model, tokens)
    files["consistency"] = consistency_rows(model, tokens)
    files["bands"] = band_rows(model, tokens[:, :-1], tokens[:, 1:])
    maps, _ = look_inside(model, tokens, lambda encoding, attention: attention)
    kept = look_with_keys_moved(
        model, tokens[:1], lambda encoding, attention: [*order_kept(attention, tokens[:1], encoding.window)]
    )
    uniform = uniform_attention(16, 9, tokens.device)
    measured = {"attention": {}, "positions": {}, "locality": {}, "consistency": {}}
    for layer, attention in enumerate(maps):
        shares = {
            "attention": mass_by_distance(attention.mean(0)),
            "positions": (each[:3] for each in mass_by_position(attention.mean(0), uniform)),
            "locality": nearer_preferred(attention, 9),
            "consistency": kept[layer],
        }
        for name, found in shares.items():
            measured[name] |= {
                (layer, head, low, high): float(share[head]) for low, high, share in found for head in (0, 1)
            }
    for name, expected in measured.items():
        column = "mass" if name in ("attention", "positions") else "share"
        rows = {(row["layer"], row["head"], row["low"], row["high"]): float(row[column]) for row in files[name]}
        assert rows == pytest.approx(expected, abs=1e-5)
    first, second = (each.mean(1) / 2 + eye / 2 for each in maps)
    plain = torch.linalg.matrix_power(uniform / 2 + eye / 2, 2)
    rollout = [*mass_by_position((second @ first).mean(0, keepdim=True), plain)]
    for column, expected in {
        "mass": [float(each.mass) for each in rollout],
        "uniform": [e.uniform for e in rollout],
    }.items():
        assert [float(row[column]) for row in files["rollout"]] == pytest.approx(expected, abs=1e-5)
    assert [(row["low"], row["high"]) for row in files["rollout"]] == [(each.low, each.high) for each in rollout]
    alike = [each.uniform for each in mass_by_position(maps[0].mean(0), uniform) for _ in range(2)]
    assert [float(row["uniform"]) for row in files["positions"]] == pytest.approx(2 * alike, abs=1e-5)
    for row, band in zip(files["bands"], loss_by_band(model, tokens[:, :-1], tokens[:, 1:]), strict=True):
        assert {key: float(value) for key, value in row.items()} == pytest.approx(band._asdict(), abs=1e-6)


def test_training_writes_the_mechanisms_of_its_encoding(tmp_path, monkeypatch):
    splits = []

    def sampled(store, split, length):
        splits.append(split)
        return sample_of(store, split, length)

    monkeypatch.setattr("bearings.tasks.mechanisms.sample_of", sampled)
    measured = {"attention", "positions", "rollout", "locality", "consistency"}
    written = {"pope": {*measured, "bands", "delta"}, "path_fox": {*measured, "beta", "forget_gate"}}
    for encoding, names in written.items():
        run, _ = go(configured(tmp_path, f"encoding={encoding}", "trainer.steps=8"))
        assert {path.stem for path in run.mechanisms.glob("*.csv")} == names
        legends = legends_of(run.manifest)
        assert legends.keys() == names - {*SHARES, *NATS}
        for path in run.mechanisms.glob("*.csv"):
            read_mechanism(path, legends.get(path.stem))
            with open(path, newline="") as file:
                rows = list(csv.DictReader(file))
            assert rows
            if path.stem == "delta":
                assert set(rows[0]) == {"layer", "head", "element", "delta"}
                trained = weights(run)
                learned = [each.flatten() for key, each in sorted(trained.items()) if key.endswith(".delta")]
                assert [float(row["delta"]) for row in rows] == pytest.approx(torch.cat(learned).tolist(), abs=1e-5)
            if path.stem == "beta":
                assert all(0 <= float(row["q05"]) <= float(row["q95"]) <= 2 for row in rows)
    assert splits == ["valid"] * 2


def test_layers_with_different_portraits_of_one_name_have_files_of_their_own(tmp_path):
    """In number or kind of elements, or in the frequencies of these."""
    layers = "encoding.layers=[spe,t5,{pope:{base:100}},carope,{kernelized_rpe:{max_distance:9}},pope,spe]"
    run, _ = go(configured(tmp_path, "encoding=pattern", layers, "model.layers=7", "trainer.steps=8"))
    legends, found = legends_of(run.manifest), {}
    for name in legends:
        read = read_mechanism(run.mechanisms / f"{name}.csv", legends[name])
        found[name] = sorted({*read["layer"].tolist()})
    expected = {"bias": [1], "bias-2": [4], "delta": [2], "delta-2": [5], "frequency": [0, 6], "frequency-2": [3]}
    assert found == expected
    theta = [legends[name].elements.facts["theta"][1] for name in ("delta", "delta-2")]
    head_dim = len(legends["delta"].elements.facts["theta"])
    assert theta == pytest.approx([100 ** (-1 / head_dim), 10000 ** (-1 / head_dim)])


def test_task_mechanisms(tmp_path, capsys, monkeypatch):
    run, _ = go(configured(tmp_path, "encoding=rope", "trainer.steps=8"))
    session = Session.of(RunDirectory.open(run.path).config | {"run": str(run.path)})
    monkeypatch.setattr("bearings.core.progress.EVERY", 1e-3)
    capsys.readouterr()
    for finished in (True, None):
        run.write_manifest(finished=finished)
        Mechanisms()(session)
        out, errors = capsys.readouterr()
        assert ("is not finished" in out) is (finished is None)
        assert "measuring attention: " in out
        assert not errors
    monkeypatch.setattr(RoPE, "portrait", lambda _, x: {"positions": Portrait(x[0].T, Legend("x"))})
    with pytest.raises(UserError, match="RoPE: its portrait positions has the name of a measurement: rename it"):
        Mechanisms()(session)
