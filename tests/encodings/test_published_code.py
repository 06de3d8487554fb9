"""Encodings compared with outputs of their authors' code, which tests/fixtures/record_published.py recorded."""

import math

import pytest
import torch
from encodings_support import ENCODINGS
from fixtures.recorders.common import attend as attend_scores
from fixtures.recorders.common import inputs, scores_of, wave
from published_support import (
    EXACT,
    FLOAT32,
    HEADS,
    WIDTH,
    assign,
    bias_of,
    by_distance,
    expect,
    make,
    output_of,
    recorded,
)
from torch import Tensor
from torch.nn import functional

from bearings.encodings.base import Context
from bearings.encodings.families.digits import contrastive, transfer
from bearings.kernels.stretching import Stretch
from bearings.lightning_modules.blocks import CarryingAttention, CarryingBlock, SwiGLU
from bearings.lightning_modules.fused_stream import Stream


@pytest.mark.parametrize(("heads", "case"), recorded("alibi")["heads"].items())
def test_alibi(heads, case):
    bias = by_distance(bias_of(make("alibi", int(heads))))
    slopes = torch.tensor(case["slopes"], dtype=torch.float64)
    torch.testing.assert_close(bias, -torch.arange(8) * slopes.unsqueeze(1), **EXACT)
    expect(bias, case["bloom"], **FLOAT32)
    expect(bias, case["mpt"], **FLOAT32)


@pytest.mark.parametrize("case", recorded("t5")["cases"], ids=lambda case: f"{case['buckets']}-{case['max_distance']}")
def test_t5(case):
    tokens, buckets = len(case["bucket"]), case["buckets"]
    encoding = make("t5", head_dim=tokens, buckets=buckets, max_distance=case["max_distance"])
    table = wave(HEADS, buckets, step=0.9)
    found = by_distance(bias_of(assign(encoding, biases=table)))
    torch.testing.assert_close(found, table[:, case["bucket"]] - table[:, :1], **EXACT)


def test_kerple():
    case = recorded("kerple")
    p, a = (torch.tensor(case[name], dtype=torch.float64) for name in "pa")
    log = assign(make("kerple_log", head_dim=12), p=softplus_inverse(p), a=softplus_inverse(a))
    expect(by_distance(bias_of(log)), case["kerple_log"], **EXACT)
    # The authors' a is the factor and p the exponent, which is 2 sigmoid(a) here.
    power = assign(make("kerple_power", head_dim=12), p=softplus_inverse(a), a=(p / 2).logit())
    expect(by_distance(bias_of(power)), case["kerple_power"], **EXACT)


def softplus_inverse(positive: Tensor) -> Tensor:
    """The parameter of which 0.01 + softplus is `positive`."""
    return (positive - 0.01).expm1().log()


@pytest.mark.parametrize("case", recorded("sandwich")["cases"], ids=lambda case: f"{case['heads']} heads")
def test_sandwich(case):
    tokens = len(case["bias"][0])
    encoding = make("sandwich", case["heads"], tokens, sinusoids=case["sinusoids"])
    expect(by_distance(bias_of(encoding)), case["bias"], **FLOAT32)


def test_fire():
    case = recorded("fire")
    bias = torch.tensor(case["bias"], dtype=torch.float64)
    encoding = make("fire", head_dim=bias.shape[-1], threshold=case["threshold"], hidden=case["hidden"])
    assert (encoding.c.item(), encoding.multiplier.item()) == pytest.approx(tuple(case["initial"].values()))
    assign(
        encoding,
        c=case["c"],
        multiplier=case["multiplier"],
        hidden_weight=wave(3, step=0.9),
        hidden_bias=wave(3, step=1.9),
        output_weight=wave(HEADS, 3, step=2.3),
        output_bias=wave(HEADS, step=2.9),
    )
    relative = (bias - bias.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)).tril()
    torch.testing.assert_close(bias_of(encoding).tril().nan_to_num(neginf=0.0), relative, **FLOAT32)


def test_shaw():
    case = recorded("shaw")
    encoding = make("shaw", max_distance=case["clip"])
    # The authors' table begins with the largest distance.
    assign(encoding, embeddings=wave(case["clip"] + 1, 8, step=0.9).flip(0))
    expect(output_of(encoding), case["output"], **EXACT)


@pytest.mark.parametrize("case", recorded("irpe")["cases"], ids=lambda case: str(case["last_bucket"]))
def test_irpe(case):
    options = {name: case[name] for name in ("exact", "last_bucket", "max_distance")}
    tokens, table = len(case["bucket"]), wave(case["last_bucket"] + 1, 8, step=0.9)
    q, k, v = inputs(tokens, HEADS, 8)
    distances = (torch.arange(tokens).unsqueeze(1) - torch.arange(tokens)).clamp(min=0)
    scores = scores_of(q, k) + torch.einsum(
        "thd,tsd->hts", q[0], table[torch.tensor(case["bucket"])[distances]]
    ) / math.sqrt(8)
    found = output_of(assign(make("irpe", **options), embeddings=table), tokens)
    torch.testing.assert_close(found, attend_scores(scores, v), **EXACT)


@pytest.mark.parametrize("on", ["queries", "both"])
def test_irpe_on_queries(on):
    case = recorded("irpe")
    sizes = dict(zip(("exact", "last_bucket", "max_distance"), case["sizes"], strict=True))
    encoding = make("irpe", on=on, **sizes)
    for name, parameter in encoding.named_parameters():
        assign(encoding, **{name: wave(*parameter.shape, step=0.9 if name == "embeddings" else 1.9)})
    expect(output_of(encoding), case["outputs"][on], **EXACT)


def test_cope():
    case = recorded("cope")
    encoding = assign(make("cope", positions=case["positions"]), embeddings=wave(case["positions"], 8, step=0.9))
    expect(output_of(encoding), case["output"], **EXACT)


@pytest.mark.parametrize("case", recorded("dape")["cases"], ids=lambda case: f"kernel {case['kernel']}")
def test_dape(case):
    shared, kernel = recorded("dape"), case["kernel"]
    encoding = make("dape", kernel=kernel, hidden=shared["hidden"])
    for each, layer in enumerate(("hidden", "output")):
        for kind, step in (("weight", 0.9), ("bias", 1.3)):
            name = f"{layer}_{kind}"
            assign(encoding, **{name: wave(*encoding.get_parameter(name).shape, step=step + each)})
    p, a = (softplus_inverse(torch.tensor(shared[name], dtype=torch.float64)) for name in "pa")
    found = output_of(assign(encoding, **{"bias.p": p, "bias.a": a}))
    expect(found[: len(case["output"])], case["output"], **EXACT)


def test_urpe():
    """Its tables are of distances, of which each has its own bucket here."""
    tables = {"biases": wave(HEADS, 8, step=0.9), "multipliers": wave(HEADS, 8, step=1.9)}
    encoding = make("urpe")
    padding = encoding.biases.shape[1] - 8
    assign(encoding, **{name: functional.pad(table, (0, padding)) for name, table in tables.items()})
    expect(output_of(encoding), recorded("urpe")["output"], **EXACT)


def test_bam():
    """Biases of the last query relative to its own key."""
    case = recorded("bam")
    encoding = assign(make("bam", location=True), **{name: case[name] for name in ("alpha", "beta", "theta")})
    bias = torch.tensor(case["bias"], dtype=torch.float64)
    relative = (bias - bias.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)).tril()
    torch.testing.assert_close(bias_of(encoding).tril().nan_to_num(neginf=0.0), relative, **FLOAT32)


@pytest.mark.parametrize("case", recorded("grape_additive")["cases"], ids=lambda case: case["gate"])
def test_grape_additive(case):
    encoding, steps = make("grape_additive", gate=case["gate"]), {"scale": 0.9}
    steps |= {"key_direction": 1.9} if encoding.key_direction is not None else {}
    steps |= {"query_direction": 2.3} if encoding.query_direction is not None else {}
    values = {name: wave(*encoding.get_parameter(name).shape, step=step) for name, step in steps.items()}
    expect(output_of(assign(encoding, **values)), case["output"], **FLOAT32)


def test_grape_path():
    case = recorded("grape_path")
    encoding = make("grape_path", probe_channels=case["probe_channels"])
    assign(encoding, **{"projection.weight": wave(*encoding.projection.weight.shape, step=0.9)})
    expect(output_of(encoding), case["output"], **FLOAT32)


def test_grape_multiplicative():
    case, encoding = recorded("grape_multiplicative"), make("grape_multiplicative")
    expect(encoding.step.bias.detach(), case["initial"][0], **FLOAT32)
    expect(encoding.log_frequencies.detach(), case["initial"][1], **FLOAT32)
    assert not encoding.step.weight.any()
    assign(encoding, **{"log_frequencies": wave(4, step=0.9), "step.weight": wave(1, WIDTH, step=1.9)})
    order = [*range(4, 8), *range(4)]  # the code turns pairs in the other direction
    expect(output_of(encoding, order=order), case["output"], **FLOAT32)


def test_cable_is_fox():
    """-softplus(w x + b) is the logarithm of FoX's gate with weights -w and bias -b."""
    weights = {"weight": -wave(HEADS, WIDTH, step=0.9), "bias": -wave(HEADS, step=1.9)}
    encoding = assign(make("fox"), **{f"gate.projection.{name}": value for name, value in weights.items()})
    # The code does not divide dot products by the root of D.
    expect(output_of(encoding, factor=math.sqrt(8)), recorded("cable")["output"], **FLOAT32)


def test_stick_breaking():
    expect(output_of(make("stick_breaking")), recorded("stick_breaking")["output"], **FLOAT32)


def test_xpos():
    case = recorded("xpos")
    expect(output_of(make("xpos", scale_base=case["scale_base"])), case["output"], **FLOAT32)


def test_partial_rope():
    case = recorded("partial_rope")
    # The code pairs channels 0 to 3 with 4 to 7.
    order = [*range(4), *range(8, 12), *range(4, 8), *range(12, 16)]
    encoding = make("partial_rope", head_dim=16, base=case["base"], share=case["share"])
    expect(output_of(encoding, order=order), case["output"], **FLOAT32)


@pytest.mark.parametrize("case", recorded("p_rope")["cases"], ids=lambda case: f"{case['share']} of {case['head_dim']}")
def test_p_rope(case):
    encoding = make("p_rope", head_dim=case["head_dim"], share=case["share"])
    expect(torch.tensor(encoding.frequencies(), dtype=torch.float64), case["frequencies"], rtol=1e-6, atol=0.0)


def test_comrope():
    case = recorded("comrope")
    encoding = assign(make("comrope"), log_frequencies=torch.tensor(case["frequencies"], dtype=torch.float64).log())
    expect(output_of(encoding), case["output"], **EXACT)


def test_fope():
    case = recorded("fope")
    encoding = make("fope", trained_length=case["length"])
    encoding.sines.copy_(wave(*case["coefficients"], step=0.9))
    encoding.cosines.copy_(wave(*case["coefficients"], step=1.9))
    # The code multiplies q and k of pairs without a frequency by 1 + i, which doubles their share of the score.
    doubled = torch.tensor([1.0, 1.0, 2.0, 2.0]).double().repeat(2)
    expect(output_of(encoding, factor=doubled), case["output"], **FLOAT32)


def test_rope_pp():
    """The code's form of equal cache: 2 query heads serve 4 attention heads."""
    expect(output_of(make("rope_pp")), recorded("rope_pp")["output"], **FLOAT32)


def test_selective_rope():
    case = recorded("selective_rope")
    encoding = make("selective_rope", base=case["base"], rank=case["rank"])
    assign(
        encoding,
        **{"down.weight": wave(4, WIDTH, step=0.9), "up.weight": wave(8, 4, step=1.9)},
        taps=wave(8, 4, step=2.3).flip(1).T.contiguous(),  # the authors' last tap weighs the newest token
    )
    expect(output_of(encoding), case["output"], **FLOAT32)


def test_repo():
    case = recorded("repo")
    encoding = make("repo", base=case["base"])
    assign(
        encoding,
        **{"gate.weight": wave(2, WIDTH, step=0.9), "content.weight": wave(2, WIDTH, step=1.9)},
        **{"position.weight": wave(HEADS, 2, step=2.3)},
    )
    expect(output_of(encoding), case["output"], **FLOAT32)


@pytest.mark.parametrize(("source", "base"), [("transformers", 1e4), ("fairseq", 1e4 ** (8 / 7))])
def test_sinusoidal(source, base):
    """fairseq divides the exponents by C/2 - 1, not by C/2, which is another base."""
    encoding = make("absolute_sinusoidal", scale="raw", base=base)
    found = encoding.input_encoding()(torch.zeros(1, 8, WIDTH).double(), Context.of(encoding, torch.zeros(1, 8)))
    expect(found[0], recorded("sinusoidal")[source], **FLOAT32)


def test_tpe():
    case, encoding = recorded("tpe"), make("tpe")
    average = encoding.input_encoding().double()
    assert average.decay_logits.tolist() == case["initial"]["log_decay"]
    gains = (wave(WIDTH, step=0.9) * wave(WIDTH, step=1.9)).view(HEADS, -1).sum(1)  # q . k in the code
    assign(
        average,
        **{"decay_logits": case["decay_logits"], "gain": gains, "output.weight": wave(WIDTH, WIDTH, step=2.3)},
    )
    with torch.no_grad():
        found = average(wave(1, 8, WIDTH, step=0.3), Context.of(encoding, torch.zeros(1, 8)))
    expect(found[0], case["output"], **FLOAT32)


@pytest.mark.parametrize(
    "case", recorded("giraffe")["cases"], ids=lambda case: f"{case.get('truncate', 'power')}-{case['head_dim']}"
)
def test_giraffe(case):
    length = case.get("truncate", 1024)
    stretch = Stretch("truncated" if "truncate" in case else "power", 1.0, length)
    found = torch.tensor(stretch.frequencies(case["head_dim"] // 2, 1e4, length), dtype=torch.float64)
    expect(found, case["frequencies"], rtol=1e-6, atol=0.0)


def test_lm_infinite():
    case = recorded("lm_infinite")
    encoding = make("rope", base=case["base"])
    encoding.stretch(Stretch("lm_infinite", 1.0, case["window"], first=case["first"]))
    expect(output_of(encoding, case["tokens"]), case["output"], **FLOAT32)


def test_transformer_xl():
    encoding = assign(
        make("transformer_xl"),
        content_bias=wave(HEADS, 8, step=1.9),
        position_bias=wave(HEADS, 8, step=2.3),
        projection=wave(HEADS, 8, 8, step=0.9),
    )
    expect(output_of(encoding), recorded("transformer_xl")["output"], **FLOAT32)


def test_rcmha():
    """The convolution; the code shares it between heads, and its last tap weighs the newest token."""
    encoding = make("rcmha")
    taps = wave(8, 1, 3, step=0.31)[:, 0].flip(1).T
    assign(encoding, taps=taps.expand(3, -1, -1), biases=wave(8, step=0.42).expand(3, -1))
    x = wave(1, 8, HEADS, 8, step=0.7)
    q, k, v = encoding.convolved(x, x, x, Context.of(encoding, x))
    for found in (q, k, v):
        expect(found[0], recorded("rcmha")["output"], **EXACT)


@pytest.mark.parametrize("case", recorded("spe")["cases"], ids=lambda case: f"{case['sines']} sines")
def test_spe(case):
    encoding, positions = make("spe", head_dim=4, sines=case["sines"]), torch.arange(8)
    given = {name: torch.tensor(case[name]) for name in ("offsets", "gains", "gate")}
    assign(encoding, frequencies=torch.tensor(case["freqs"]), **given)
    q, k, _ = inputs(4, HEADS, 4)
    first = positions[:4]
    products = scores_of(encoding.encode_query(q, first), encoding.encode_key(k, first))
    # The code's are means over 100,000 draws.
    expect(products * (encoding.score_dim / 4) ** 0.5, case["products"], rtol=0.0, atol=0.02)
    encoding.gate = None
    query, key = (encoding.factors(positions, offsets, torch.float64) for offsets in (encoding.offsets, None))
    matrices = 2 * case["sines"] * torch.einsum("thcn,shcn->hcts", query, key)
    expect(matrices, case["matrices"], **FLOAT32)


def test_seqpe():
    case, width = recorded("seqpe"), 8
    encoder = ENCODINGS["seqpe"](width, 2, 2, 4).shared_module().double().eval()
    layer = ["qkv.weight", "qkv.bias", "attended.weight", "attended.bias"]
    layer += [f"{norm}_norm.{part}" for norm in ("attention", "mlp") for part in ("weight", "bias")]
    layer += ["up.weight", "up.bias", "down.weight", "down.bias"]
    names = ["summary", "place", "digit.weight", *(f"layers.{number}.{name}" for number in (0, 1) for name in layer)]
    names += ["norm.weight", "norm.bias", "output.weight", "output.bias"]
    for number, (name, shape) in enumerate(zip(names, case["parameters"].values(), strict=True)):
        value = wave(*shape, step=0.31 + 0.11 * number)
        transposed = name.startswith("layers.") and value.ndim == 2  # GPT-2's layers hold transposed matrices
        assign(encoder, **{name: value.T if transposed else value})
    with torch.no_grad():
        expect(encoder.encode(torch.tensor(case["positions"])), case["vectors"], **FLOAT32)
    others = torch.arange(2, 6) - 5 * functional.one_hot(torch.tensor(case["labels"]), 4)  # the nearest is at 1 or less
    e, compared = wave(3, width, step=0.7), wave(12, width, step=1.1).view(3, 4, width)
    nearest = torch.where(others < 2, 1, others)
    expect(contrastive(e, compared, torch.zeros(3).long(), nearest), case["contrastive"], **EXACT)
    trained = wave(6, width, step=1.3)[torch.tensor(case["chosen"])]
    heads = (x.view(2, 4, 2, 4) for x in (wave(8, width, step=1.7), trained))
    expect(transfer(*heads), case["transfer"], **EXACT)


def test_positional_attention():
    encoding = make("positional_attention", head_dim=WIDTH, positions="learned", length=8)
    weights, biases = wave(2 * HEADS * WIDTH, WIDTH, step=0.31), wave(2 * HEADS * WIDTH, step=0.42)
    for place, name in enumerate(("query", "key")):  # the code's rows are grouped by head
        weight, bias = (x.view(HEADS, 2, WIDTH, -1)[:, place].flatten(0, 1) for x in (weights, biases))
        assign(encoding, **{f"{name}.weight": weight, f"{name}.bias": bias})
    vectors = assign(encoding.shared_module().double(), **{"table.weight": wave(8, WIDTH, step=0.9)})
    _, _, v = inputs(8, HEADS, WIDTH)
    with torch.no_grad():
        found = encoding(v, v, v, v, Context.of(encoding, v).sharing(vectors))
    expect(found[0], recorded("positional_attention")["output"], **EXACT)


def test_tape():
    """Two blocks with all their layers. The code sums the rows of its H x H matrix: one factor for each head."""
    case = recorded("tape")
    x, passed = wave(1, 8, WIDTH, step=0.3), None
    for layer in range(2):
        encoding = make("tape", base=case["base"])
        block = CarryingBlock(WIDTH, CarryingAttention(WIDTH, encoding), SwiGLU(WIDTH, 24), 0.0, 1e-6).double()
        given = {
            name: 0.4 * wave(*shape, step=0.31 + 0.11 * number + layer)
            for number, (name, shape) in enumerate(case["parameters"].items())
        }
        q, k, v, output, gate, up, down, *update, factor = given.values()
        assign(block, **{"attention.qkv.weight": torch.cat([q, k, v]), "attention.output.weight": output})
        assign(block, **{"mlp.gate_up.weight": torch.cat([gate, up]), "mlp.down.weight": down})
        names = "up", "gate.weight", "down", "factor"
        assign(encoding.update, **dict(zip(names, (*update, factor.sum(1)), strict=True)))
        with torch.no_grad():
            stream = block(Stream(x, None, passed), Context.of(encoding, x))
        x, passed = stream.x + stream.branch, stream.carried
        if layer == 0:
            expect(passed[0].unflatten(-1, (2, -1)).movedim(-2, 0), case["passed"], **FLOAT32)
    expect(x[0], case["output"], **FLOAT32)
