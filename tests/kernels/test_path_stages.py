"""Each stage of the PaTH kernels compared with its float64 model, in one pass over three chunks."""

from functools import partial
from importlib import import_module
from math import log2

import pytest
import torch

from bearings.kernels.path import model

pytest.importorskip("triton")
call, diagonal, far, forward, near, prepare, pull, sizes, unprepare = (
    import_module(f"bearings.kernels.path.{name}")
    for name in ("call", "diagonal", "far", "forward", "near", "prepare", "pull", "sizes", "unprepare")
)
gates_of = import_module("bearings.kernels.attention.gates").gates_of

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BLOCKS, LENGTH, HEADS, DIM = 2, 384, 2, 16
SCHEME, SCALE = model.Scheme(64, BLOCKS), DIM**-0.5
SCORE = SCALE * log2(torch.e)  # factor of queries in the kernels
STAGES = ("prepare", "forward", "pull", "pairs", "far_queries", "far_keys", "near_queries", "diagonal", "near_keys")
STAGES += ("gather", "descend", "unprepare")
# On a GPU, float32 products have 22 instead of 24 bits (three tf32 products).
CLOSE = 8e-6 if torch.cuda.is_available() else 2e-6
draw = partial(torch.randn, dtype=torch.float64, device=DEVICE)


def slots(kept: dict) -> torch.Tensor:
    """Tensors of the model by block and level in the layout of the kernels, `[rows, n, levels, R / 2, 64, D]`."""
    sample = next(iter(kept.values()))
    rows = sample.flatten(0, -3).shape[0]
    chunks = LENGTH // SCHEME.chunk
    out = sample.new_empty(rows, chunks, SCHEME.levels, BLOCKS // 2, 64, DIM)
    for (block, level), x in kept.items():
        inside = block % BLOCKS
        place = inside >> (level + 1) << level | inside & ((1 << level) - 1)
        out[:, block // BLOCKS, level, place] = x.flatten(0, -3)
    return out


def tree(levels: list[torch.Tensor]) -> torch.Tensor:
    """Matrices of nodes, one tensor per level, in the layout of the kernels, `[N, n, nodes, D, D]`."""
    chunks = LENGTH // SCHEME.chunk
    return torch.cat([x.unflatten(1, (chunks, -1)) for x in levels], 2)


@pytest.fixture(scope="module")
def stages() -> dict[str, list[tuple[torch.Tensor, torch.Tensor]]]:
    """For each stage, pairs of computed and expected tensors."""
    torch.manual_seed(0)
    q, k, v, w = draw(1, HEADS, LENGTH, DIM), draw(1, LENGTH, DIM), draw(1, LENGTH, DIM), draw(1, LENGTH, DIM)
    w, beta = w / w.norm(dim=-1, keepdim=True), 1.9 * torch.rand(1, LENGTH, dtype=torch.float64, device=DEVICE)
    c, dout = (draw(1, HEADS, LENGTH) + 2).sigmoid().log().cumsum(2), draw(1, HEADS, LENGTH, DIM)
    wanted = expected(q, k, v, w, beta, c, dout)
    found = computed(q, k, v, w, beta, c, dout)
    return {name: list(zip(found[name], wanted[name], strict=True)) for name in wanted}


def expected(q, k, v, w, beta, c, dout) -> dict[str, list]:
    out, lse, logits, saved = model.attention(q, k, v, w, beta, SCALE, SCHEME, c)
    p = saved.prepared
    weights = (logits - lse.unsqueeze(-1)).exp()
    delta = (dout * out).sum(-1)
    ds = weights * (dout @ v.unsqueeze(1).mT - delta.unsqueeze(-1))
    dc, ds = -ds.sum(-2), ds * SCALE
    own = torch.stack([x.mT @ y for x, y in zip(blocks_of(weights), dout.split(64, 2), strict=True)], 2)
    dq_bar, dk_bar, dproduct = model.far(ds, saved, SCHEME)
    dseen, dq_start = model.near_queries(ds, dq_bar, saved, SCHEME)
    dkeys, dk_end = model.near_keys(ds, dk_bar, saved, SCHEME)
    gathered = model.gather(dseen, dkeys, saved, SCHEME)
    dq, dk, dw, du, dz = model.diagonal(ds, dq_start, q, k, w, saved, SCHEME)
    descended = [x.clone() for x in gathered]
    dstep = model.descend(saved.nodes, [*descended, dproduct], SCHEME)
    last = model.prepare_backward(k, w, beta, p, dk, dw, du, dz, dk_end, dstep, SCHEME)
    rows = [x.flatten(0, 1) for x in (saved.q_bar, dq_bar, dq_start)]
    return {
        "prepare": [
            *(x.flatten(1, 2) for x in (p.u, p.z, p.inverse)), tree(saved.nodes), slots(saved.keys), saved.k_bar,
        ],
        "forward": [out.transpose(1, 2), lse.flatten(0, 1) * log2(torch.e)],
        "pull": [slots(saved.seen) * SCORE, rows[0] * SCORE, delta.flatten(0, 1)],
        "pairs": [torch.stack([saved.between[pair] for pair in sorted(saved.between)], 1)],
        "far_queries": [rows[1] / SCALE, dproduct],
        "far_keys": [dk_bar],
        "near_queries": [slots(dseen) / SCALE, rows[2] / SCALE],
        "diagonal": [dq.flatten(2, 3).transpose(1, 2), *(x.flatten(1, 2) for x in (dw, dk, dz, du)), own.flatten(2, 3)],
        "near_keys": [slots(dkeys), dk_end.flatten(1, 2), (weights.mT @ dout).sum(1), dc.flatten(0, 1)],
        "gather": [tree(gathered)],
        "descend": [tree(descended)],
        "unprepare": list(last),
    }  # fmt: skip


def blocks_of(weights: torch.Tensor) -> list[torch.Tensor]:
    """The blocks on the diagonal of `[N, G, T, T]`."""
    return [weights[:, :, i : i + 64, i : i + 64] for i in range(0, LENGTH, 64)]


def computed(q, k, v, w, beta, c, dout) -> dict[str, list]:
    """Results of the stages of `backward` for one sequence, without padded channels."""
    q, dout, sums = (x.transpose(1, 2) for x in (q, dout, c))
    k, v, w, beta = (x.unsqueeze(2) for x in (k, v, w, beta))
    q, k, v, w, beta, dout = (x.float().contiguous() for x in (q, k, v, w, beta, dout))
    size = sizes.sizes_of(q, k, v, BLOCKS)
    given = call.Call(q, k, v, w, beta, SCALE, size, *gates_of(sums, size.padded))
    found = {}

    def keep(name: str, *tensors: torch.Tensor) -> None:
        found[name] = [x.double().clone() for x in tensors]

    def narrow(x: torch.Tensor) -> torch.Tensor:
        return x[..., :DIM]

    p = prepare.prepare(k, w, beta, size, True)
    keep("prepare", narrow(p.u), p.z, p.inverse, narrow(p.nodes[..., :DIM, :]), narrow(p.keys), narrow(p.k_bar))
    out, lse, _ = forward.forward(given, p)
    keep("forward", out, lse)
    (seen, q_bar), up = pull.pull(given, p, None, out, dout, lse)
    keep("pull", narrow(seen), narrow(q_bar), up.delta)
    m = prepare.pairs_of(p.nodes, size, q.dtype)
    keep("pairs", narrow(m[..., :DIM, :]))
    dc, dv, dq = torch.zeros_like(up.delta), torch.empty_like(v), torch.empty_like(q)
    dq_bar, dproduct = far.far_queries(given, up, p, m, q_bar)
    keep("far_queries", narrow(dq_bar), narrow(dproduct[..., :DIM, :]))
    dk_bar = far.far_keys(given, up, p, m, q_bar, dv, dc)
    keep("far_keys", narrow(dk_bar))
    dseen = near.near_queries(given, up, p, seen, dq_bar)
    keep("near_queries", narrow(dseen), narrow(dq_bar))
    shares, dv_own = diagonal.diagonal(given, up, p, dq_bar, dq, dc)
    summed = (x.sum(0, keepdim=True) for x in (narrow(shares.dw), narrow(shares.dk), shares.dz, narrow(dq_bar)))
    keep("diagonal", dq, *summed, narrow(dv_own).unsqueeze(0))
    dkeys = near.near_keys(given, up, p, seen, dv_own, dk_bar, dv, dc)
    keep("near_keys", narrow(dkeys), narrow(dk_bar), dv.squeeze(2), dc)
    dnodes = unprepare.empty_dnodes(q, size)
    unprepare.gather(given, dnodes, seen, dseen, right=False)
    unprepare.gather(given, dnodes, dkeys, p.keys, right=True)
    keep("gather", narrow(dnodes[..., :DIM, :]))
    unprepare.descend(size, p.nodes, dnodes, dproduct)
    keep("descend", narrow(dnodes[..., :DIM, :]))
    dk, dw, dbeta = (torch.empty_like(x) for x in (k, w, beta))
    unprepare.unprepare(given, p, dnodes, dk_bar, dq_bar, shares, dk, dw, dbeta)
    keep("unprepare", *(x.squeeze(2) for x in (dk, dw, dbeta)))
    return found


@pytest.mark.parametrize("stage", STAGES)
def test_stage_matches_model(stage, stages):
    for found, wanted in stages[stage]:
        assert found.shape == wanted.shape
        assert (found - wanted).norm() < CLOSE * wanted.norm()


def test_gradients_descend_through_several_levels():
    """From chunks of four blocks to pairs to blocks."""
    torch.manual_seed(0)
    q = torch.empty(1, 512, 1, 64, device=DEVICE)
    size, scheme = sizes.sizes_of(q, q, q, 4), model.Scheme(64, 4)
    nodes = model.nodes_of(draw(1, 8, 64, 64) / 8, scheme)
    dnodes = [torch.randn_like(x) for x in nodes]

    def in_chunks(levels: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat([x.unflatten(1, (2, -1)) for x in levels], 2)

    found = in_chunks(dnodes[:-1]).float()
    unprepare.descend(size, in_chunks(nodes).float(), found, dnodes[-1].float())
    model.descend(nodes, dnodes, scheme)
    wanted = in_chunks(dnodes[:-1])
    assert (found - wanted).norm() < CLOSE * wanted.norm()
