"""Biases that tokens compute, GRAPE's group actions, stick-breaking and linear attention: special cases."""

import math

import pytest
import torch
from cumulative_support import path_potentials
from distance_support import alibi_slopes
from encodings_support import HEADS, KV_HEADS, WIDTH, attend, make_documents, make_encoding, make_inputs, one_thread  # noqa: F401
from torch import Tensor

from bearings.kernels import reference
from bearings.kernels.attention.kernelized import feature_sums, kernelized_attention
from bearings.kernels.attention.rows import attend_rows
from bearings.kernels.documents import Documents

pytestmark = pytest.mark.usefixtures("one_thread")
EXACT = {"rtol": 0.0, "atol": 1e-12}
LENGTH = 37


@pytest.fixture(scope="module")
def inputs():
    return make_inputs(LENGTH)


def filled(name, value: float = 0.0, options: dict | None = None, **values):
    """An encoding with these values of its parameters, and `value` for all others."""
    encoding = make_encoding(name, **(options or {}))
    with torch.no_grad():
        for parameter_name, parameter in encoding.named_parameters():
            parameter.copy_(torch.as_tensor(values.get(parameter_name, value), dtype=torch.float64))
    return encoding


def initial(name, **options):
    encoding = make_encoding(name, **options)
    with torch.no_grad():
        encoding.reset_parameters()
    return encoding


@torch.no_grad()
def check(encoding, inputs, expected, **tolerance):
    torch.testing.assert_close(attend(encoding, inputs), expected, **(tolerance or EXACT))


def with_slopes(inputs, factor: float = 1.0) -> Tensor:
    """ALiBi with its slopes times a factor."""
    gates = -factor * torch.tensor(alibi_slopes(HEADS), dtype=torch.float64).expand(len(inputs.q), LENGTH, HEADS)
    return reference.fox_attention(*inputs[1:], gates)


def lifted_attention(inputs, generators: Tensor) -> Tensor:
    """Additive GRAPE: attention of queries [q, 1, 0] and keys [k, 0, 1] under unipotent matrices.

    Token u acts by the transposed inverse of exp(generators[b, t, u, h] E) for the query t, with the nilpotent
    E = e_{D+2} e_{D+1}^T, on the keys before it.
    """
    _, q, k, v = inputs
    batch, length, heads, _ = q.shape
    nilpotent = torch.zeros(2, 2, dtype=torch.float64)
    nilpotent[1, 0] = 1.0
    actions = torch.matrix_exp((-generators[..., None, None] * nilpotent).contiguous()).mT
    extra = torch.zeros(batch, heads, length, length, dtype=torch.float64)
    for t in range(length):
        product = torch.eye(2, dtype=torch.float64).expand(batch, heads, 2, 2)
        for s in range(t, -1, -1):
            extra[:, :, t, s] = (product @ torch.tensor([0.0, 1.0]).double())[..., 0]  # [1, 0] . product [0, 1]
            product = product @ actions[:, t, s]
    return reference.attend(reference.dots(q, k), q, v, None, extra)


def test_additive_group_action_contains_alibi_and_fox():
    inputs = make_inputs(9)
    slopes = torch.tensor(alibi_slopes(HEADS), dtype=torch.float64)
    constant = slopes.expand(2, 9, 9, HEADS)
    check(make_encoding("alibi"), inputs, lifted_attention(inputs, constant))
    fox = make_encoding("fox")
    log_gates = fox.gate.projection(inputs.x).sigmoid().log().detach()
    check(fox, inputs, lifted_attention(inputs, -log_gates.unsqueeze(1).expand(-1, 9, -1, -1)))
    path = make_encoding("grape_path")
    check(path, inputs, lifted_attention(inputs, -path_potentials(path, inputs.x).permute(0, 2, 3, 1).detach()))


@pytest.mark.parametrize(("gate", "factor"), [("none", 1.0), ("query", math.log(2)), ("both", 2 * math.log(2))])
def test_additive_grape_with_constant_gates_is_alibi(inputs, gate, factor):
    """The softplus of 0 is ln 2. Without gates the model starts as ALiBi."""
    directions = {f"{side}_direction": 0.0 for side in ("query", "key")}
    encoding = filled("grape_additive", options={"gate": gate}, scale=math.log(math.expm1(1)), **directions)
    check(encoding, inputs, with_slopes(inputs, factor))
    assert torch.equal(initial("grape_additive", gate=gate).scale, encoding.scale)


def test_path_grape_without_content_is_alibi(inputs):
    check(filled("grape_path"), inputs, with_slopes(inputs, math.log(2)))


@pytest.mark.parametrize("name", ["grape_multiplicative", "comrope"])
@pytest.mark.parametrize("orthogonal", [True, False], ids=["commuting", "not commuting"])
def test_rank_2_generators_are_learned_frequencies(name, orthogonal):
    """exp(t L) of any sum of generators omega (a b^T - b a^T) is GRAPE-M in another basis of queries and keys.

    LieRE and STRING use such exponentials too.
    """
    inputs, size = make_inputs(9), 16
    draw = torch.Generator().manual_seed(0)
    vectors = torch.randn(2, size // 2, size, generator=draw, dtype=torch.float64) / 4
    if orthogonal:
        vectors = torch.linalg.qr(vectors.flatten(0, 1).T)[0].T.unflatten(0, (2, -1))
    a, b = vectors
    generator = torch.einsum("cx,cy->xy", a, b) - torch.einsum("cx,cy->xy", b, a)
    values, basis = torch.linalg.eigh(1j * generator)
    frequencies, plane = values[values > 0], basis[:, values > 0] * 2**0.5
    basis = torch.cat([plane.real, plane.imag], 1)  # orthonormal; pairs are half-split
    options = {"contextual": False} if name == "grape_multiplicative" else {}
    logarithms = frequencies.log()
    encoding = filled(
        name, options=options, log_frequencies=logarithms.expand(KV_HEADS, -1) if not options else logarithms
    )
    turns = torch.matrix_exp(-torch.arange(9)[:, None, None].double() * generator)
    turned = [torch.einsum("tdc,bthd->bthc", turns, each) for each in (inputs.q, inputs.k)]
    in_basis = inputs._replace(q=inputs.q @ basis, k=inputs.k @ basis)
    check(encoding, in_basis, reference.nope_attention(*turned, inputs.v), rtol=0, atol=1e-9)


def test_multiplicative_grape_with_equal_steps_is_rope_and_comrope(inputs):
    """It starts as RoPE without steps. It is ComRoPE with the same frequencies in each head."""
    encoding = initial("grape_multiplicative")
    assert encoding.steps(inputs.x).unique().item() == pytest.approx(0.39372, abs=1e-5)
    rope = reference.rope_attention(*inputs[1:], torch.arange(LENGTH))
    check(initial("grape_multiplicative", contextual=False), inputs, rope, rtol=0, atol=1e-6)  # float32 tables
    with torch.no_grad():
        encoding.step.bias.fill_(1e4)  # steps of 1
    check(encoding, inputs, rope, rtol=0, atol=1e-6)
    plain, comrope = make_encoding("grape_multiplicative", contextual=False), make_encoding("comrope")
    with torch.no_grad():
        comrope.log_frequencies.copy_(plain.log_frequencies.expand(KV_HEADS, -1))
        check(plain, inputs, attend(comrope, inputs))


@pytest.mark.parametrize(("beta", "slope"), [(0.0, 0.0), (1.0, 1.0)], ids=["NoPE", "ALiBi"])
def test_bam_contains_nope_and_alibi(inputs, beta, slope):
    alpha = torch.tensor(alibi_slopes(HEADS)).double().log().unsqueeze(1)
    check(filled("bam", alpha=alpha, beta=beta), inputs, with_slopes(inputs, slope))


def test_bam_starts_as_nope_and_its_gradient_is_finite_at_the_location():
    encoding = initial("bam", location=True)
    encoding.bias(torch.arange(3)).square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in encoding.parameters())
    assert torch.equal(encoding.bias(torch.arange(5)), torch.full((HEADS, 5), -1.0).double())


def test_stick_breaking_is_exact_for_certain_shares():
    """Shares of 0 and 1 to within float32: the nearest key with a share of 1 gets all of the weight."""
    encoding, size = make_encoding("stick_breaking", dtype=torch.float32), 16
    logits = torch.full((8, 8), -400.0)
    logits[torch.arange(8), torch.arange(8) // 2] = 400.0
    q = torch.zeros(1, 8, HEADS, size)
    q[0, :, :, :8] = logits.unsqueeze(1) * 4  # the scale is 1/4
    k, v = torch.zeros(1, 8, KV_HEADS, size), torch.zeros(1, 8, KV_HEADS, size)
    k[0, torch.arange(8), :, torch.arange(8)] = v[0, torch.arange(8), :, torch.arange(8)] = 1.0
    q.requires_grad_()
    weights = attend(encoding, (torch.zeros(1, 8, WIDTH), q, k, v))
    expected = torch.eye(8)[torch.arange(8) // 2]
    expected[0] = torch.eye(8)[0]
    torch.testing.assert_close(weights[0, :, 0, :8].detach(), expected)
    weights.square().sum().backward()
    assert q.grad.isfinite().all()


@pytest.mark.parametrize("pieces", [[LENGTH], [5, 1, 20, 11], [3, 30, 4]], ids=str)
@pytest.mark.parametrize(("chunk", "reach"), [(8, 5), (8, 8), (4, 1), (64, 7)])
def test_chunks_of_linear_attention(pieces, chunk, reach):
    draw = torch.Generator().manual_seed(0)
    shapes = (2, LENGTH, HEADS, 6), (2, LENGTH, KV_HEADS, 6), (2, LENGTH, KV_HEADS, 16), (HEADS, reach)
    q, k, v, factors = (torch.rand(shape, generator=draw, dtype=torch.float64) for shape in shapes)
    ids = make_documents(pieces) if len(pieces) > 1 else None
    runs = None if ids is None else torch.nn.functional.pad((ids[:, 1:] != ids[:, :-1]).cumsum(1), (1, 0))
    found = kernelized_attention(q, k, v, factors, None if ids is None else Documents.of(ids), chunk=chunk)
    torch.testing.assert_close(found, reference.kernelized_attention(q, k, v, factors, runs), **EXACT)
    if ids is None:
        past = LENGTH - 3 - reach + 1  # the last three queries, with `reach` - 1 keys and the sums before them
        sums = feature_sums(k[:, :past], v[:, :past])
        last = kernelized_attention(q[:, -3:], k[:, past:], v[:, past:], factors, sums=sums, chunk=chunk)
        torch.testing.assert_close(last, found[:, -3:], **EXACT)


def test_linear_attention_is_softmax_attention_with_other_scores(inputs):
    encoding = make_encoding("kernelized_rpe")
    with torch.no_grad():
        q, k = encoding.features(inputs.q), encoding.features(inputs.k)
        biases = encoding.biases[:, :LENGTH].unsqueeze(1)
        expected = attend_rows(q, k, inputs.v, lambda block: block.dots().log() + block.by_distance(biases))
        check(encoding, inputs, expected)


def test_random_features_approximate_the_exponential(inputs):
    """The error falls with the root of the number of features."""
    unit = [each / each.norm(dim=-1, keepdim=True) for each in (inputs.q, inputs.k)]
    expected = attend_rows(*unit, inputs.v, lambda block: block.dots())
    errors = []
    for features in (16, 1600):
        encoding = initial("kernelized_rpe", features=features)
        with torch.no_grad():
            errors.append((attend(encoding, inputs) - expected).square().mean().sqrt())
    assert errors[1] < errors[0] / 5
