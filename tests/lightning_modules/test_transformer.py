"""The Transformer: sizes, initial weights shared across encodings (law 9), caching, what is decayed."""

import math
from functools import partial

import pytest
import torch
from transformer_support import SMALL, shipped

from bearings.encodings import base
from bearings.encodings.base import Encoding
from bearings.encodings.contract.context import Context
from bearings.encodings.contract.module import INIT_STD
from bearings.encodings.path import PaTH
from bearings.encodings.pattern import LayerPattern
from bearings.kernels.attention import dispatch
from bearings.kernels.documents import Documents
from bearings.kernels.path import attention as path_attention
from bearings.lightning_modules.blocks import EPSILON, Block
from bearings.lightning_modules.initialisation import derive_seed
from bearings.lightning_modules.language_model import LanguageModel
from bearings.lightning_modules.transformer import Transformer
from bearings.session.overrides import choices_of

every_encoding = pytest.mark.parametrize("encoding", [pytest.param(shipped(n), id=n) for n in choices_of("encoding")])


@pytest.mark.parametrize("encoding", ["rope", Encoding(32, 4, 2, 16)])
def test_an_encoding_must_be_a_class(encoding):
    with pytest.raises(TypeError, match=r"^encoding: give a class, such as .* of the type (str|Encoding)$"):
        Transformer(encoding=encoding, **SMALL)


def test_tokens_must_have_two_dimensions():
    with pytest.raises(ValueError, match=r"the shape is \[5\], but it should be \[B, T\]"):
        Transformer(encoding=Encoding, **SMALL)(torch.arange(5))


class Narrow(Encoding):
    """Returns two channels without setting `score_dim`."""

    def encode_key(self, k, positions):
        return k[..., :2]


def test_encoded_queries_and_keys_must_have_the_declared_shape():
    model = Transformer(encoding=Narrow, **SMALL)
    wanted = r"Narrow\.encode_key returned the shape \[1, 5, 2, 2\], but it should be \[1, 5, 2, 16\]"
    with pytest.raises(ValueError, match=wanted):
        model(torch.zeros(1, 5, dtype=torch.long))


@every_encoding
def test_shared_parameters_start_identical_for_all_encodings(encoding):
    plain = dict(Transformer(encoding=Encoding, seed=5, **SMALL).named_parameters())
    model = Transformer(encoding=encoding, seed=5, **SMALL)
    other = dict(model.named_parameters())
    assert plain.keys() <= other.keys()
    for name, parameter in plain.items():
        if model.encodings[0].heads_per_query > 1 and name.endswith("attention.output.weight"):
            continue  # it projects more heads
        if not model.encodings[0].reads_content and name.endswith("attention.qkv.weight"):
            parameter = parameter[-len(other[name]) :]  # values only
        assert torch.equal(parameter, other[name]), name
    assert all("encoding" in name or name.startswith(("inputs.", "shared.")) for name in other.keys() - plain.keys())


@every_encoding
def test_parameters_follow_the_seed_separate(encoding):
    def state(seed):
        torch.rand(3)
        return torch.cat([p.flatten() for p in Transformer(encoding=encoding, seed=seed, **SMALL).parameters()])

    before = torch.get_rng_state()
    Transformer(encoding=encoding, seed=1, **SMALL)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(state(1), state(1))
    assert not torch.equal(state(1), state(2))


@every_encoding
def test_layers_start_differently(encoding):
    model = Transformer(encoding=encoding, **SMALL)
    first, second = (block.attention.qkv.weight for block in model.blocks)
    assert not torch.equal(first, second)


@every_encoding
def test_cached_passes_equal_the_full_pass(encoding):
    model = Transformer(encoding=encoding, **SMALL).double().eval()
    tokens = torch.randint(11, (2, 90))
    full = model(tokens)
    state = model.new_state(2, 90)
    pieces = [model(piece, state) for piece in tokens.split([30, 1, 1, 17, 1, 40], 1)]
    assert torch.allclose(torch.cat(pieces, 1), full, rtol=0, atol=1e-9)


@every_encoding
def test_packed_documents_give_what_each_gives_separate(encoding):
    model = Transformer(encoding=encoding, **SMALL).double().eval()
    tokens = torch.randint(11, (1, 50))
    documents = torch.tensor([[0] * 20 + [1] * 7 + [2] * 23])
    together = model(tokens, documents=documents)
    separate = torch.cat([model(piece) for piece in tokens.split([20, 7, 23], 1)], 1)
    assert torch.allclose(together, separate, rtol=0, atol=1e-9)
    assert torch.equal(model(tokens, documents=Documents.of(documents, 5)), together)


@every_encoding
def test_only_matrices_that_may_be_are_decayed(encoding):
    model = Transformer(encoding=encoding, **SMALL)
    optimizer = LanguageModel(model, seed=0, steps=1, weight_decay=0.3).configure_optimizers()
    decayed = {id(p) for group in optimizer.param_groups if group["weight_decay"] for p in group["params"]}
    spared = {id(p) for group in optimizer.param_groups if not group["weight_decay"] for p in group["params"]}
    assert decayed | spared == {id(p) for p in model.parameters()}
    assert not decayed & spared
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith(("bias", "delta")):
            assert id(parameter) in spared, name
        elif name.split(".")[-2] in ("embedding", "qkv", "output", "gate_up", "down"):
            assert id(parameter) in decayed, name


class Misspelt(Encoding):
    no_weight_decay = ("dleta",)

    def __init__(self, *sizes, **named):
        super().__init__(*sizes, **named)
        self.delta = torch.nn.Parameter(torch.zeros(3))


def test_a_misspelt_name_of_a_parameter_that_is_not_decayed_is_refused():
    with pytest.raises(ValueError, match="no_weight_decay=dleta: Misspelt has no such parameter; it has delta"):
        LanguageModel(Transformer(encoding=Misspelt, **SMALL), seed=0, steps=1)


def test_parameters_that_options_leave_out_need_no_name_of_their_own():
    model = Transformer(encoding=partial(PaTH, convolution=0), **SMALL)
    LanguageModel(model, seed=0, steps=1).configure_optimizers()


@pytest.mark.parametrize("mlp", ["gelu", "swiglu"])
@pytest.mark.parametrize("tied", [True, False])
def test_parameter_count_by_hand(mlp, tied):
    model = Transformer(encoding=Encoding, mlp=mlp, tie_embeddings=tied, **SMALL)
    attention = 32 * 64 + 2 * 32 * 32 + 64 * 32
    hidden = {"gelu": 2 * 32 * 128, "swiglu": 3 * 32 * 96}[mlp]
    expected = 2 * (attention + hidden + 2 * 32) + 32 + 11 * 32 * (1 if tied else 2)
    assert model.parameter_count() == expected


def test_initial_loss_is_that_of_guessing():
    model = Transformer(encoding=Encoding, **SMALL).eval()
    tokens = torch.randint(11, (8, 33), generator=torch.Generator().manual_seed(0))
    loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    assert loss.item() == pytest.approx(math.log(11), abs=0.05)


def test_compiled_blocks_take_rows_of_any_number_and_length():
    model = Transformer(encoding=shipped("rope"), **{**SMALL, "layers": 1}).train()  # blocks are compiled one by one
    torch.compiler.reset()
    model.compile_parts(backend="aot_eager")
    for shape in ((8, 48), (4, 22), (1, 60), (8, 1), (1, 1)):
        tokens = torch.randint(11, shape)
        compiled = model.nats(tokens, tokens)
        compiled.backward()
        with torch.compiler.set_stance("force_eager"):
            torch.testing.assert_close(compiled, model.nats(tokens, tokens))
    torch.compiler.reset()


@torch.no_grad()
def test_compiled_blocks_continue_a_state_in_one_graph():
    model = Transformer(encoding=shipped("rope"), **{**SMALL, "layers": 1}).eval()
    tokens = torch.randint(11, (2, 12))
    logits = model(tokens)
    torch.compiler.reset()
    model.compile_parts(fullgraph=True, backend="aot_eager")
    state = model.new_state(*tokens.shape)
    parts = [model(part, state) for part in tokens.split([7, 1, 1, 3], 1)]
    torch.compiler.reset()
    torch.testing.assert_close(torch.cat(parts, 1), logits)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_fused_stream_computes_what_plain_blocks_do(training, checkpointing):
    model = Transformer(encoding=Encoding, dropout=0.2, checkpointing=checkpointing, **SMALL).train(training)
    tokens = torch.randint(11, (2, 9))
    torch.manual_seed(0)
    fused = model.hidden(tokens)
    torch.manual_seed(0)
    x = model.dropout(model.embedding(tokens))
    context = Context.of(model.encodings[0], x)
    for block in model.blocks:
        x = Block.forward(block, x, context)
    plain = torch.nn.functional.rms_norm(x, (32,), model.norm.weight, EPSILON)
    assert torch.equal(fused, plain)


def test_passes_with_a_state_use_it_in_training_with_checkpointing():
    model = Transformer(encoding=Encoding, checkpointing=True, **SMALL).train()
    tokens = torch.randint(11, (2, 9))
    state = model.new_state(2, 9)
    parts = [model(part, state) for part in tokens.split([5, 4], 1)]
    torch.testing.assert_close(torch.cat(parts, 1), model(tokens))
    assert state.length == 9


@pytest.mark.parametrize(("precise", "dtype"), [(True, torch.float32), (False, torch.bfloat16)])
@every_encoding
def test_dtype_of_the_residual_stream_in_mixed_precision(encoding, precise, dtype):
    model, seen = Transformer(encoding=encoding, residual_in_fp32=precise, **SMALL), []
    for block in model.blocks:
        block.register_forward_hook(lambda block, given, out: seen.append(out.x.dtype))
    tokens = torch.randint(11, (2, 9))
    with torch.autocast("cpu", torch.bfloat16):
        nats = model.nats(tokens, tokens)
    nats.backward()
    assert seen == [dtype] * len(model.blocks)
    seen.clear()
    assert abs(nats - model.nats(tokens, tokens)) < 0.02 * nats
    assert seen == [torch.float32] * len(model.blocks)


@every_encoding
def test_a_pass_plans_and_finds_documents_once_for_layers_of_a_kind(encoding, monkeypatch):
    calls = []
    for where, name in ((base, "choose"), (dispatch, "choose"), (path_attention, "choose"), (Documents, "of")):
        real = getattr(where, name)
        monkeypatch.setattr(where, name, lambda *a, real=real, name=name, **k: calls.append(name) or real(*a, **k))
    model = Transformer(encoding=encoding, **{**SMALL, "layers": 3})
    tokens = torch.randint(11, (2, 9))
    model.nats(tokens, tokens, torch.arange(9).expand(2, 9) // 5).backward()
    kinds = len({each.kind for each in model.encodings})
    assert sorted(calls) == ["choose"] * kinds + ["of"]
    state = model.new_state(2, 9)
    for piece in tokens.split([7, 1, 1], 1):
        calls.clear()
        model(piece, state)
        assert calls == ["choose"] * kinds


def test_layers_differ_in_a_pattern():
    layers = [{"rope": {"window": 9}}, {"fox": {}}, "nope"]
    model = Transformer(encoding=partial(LayerPattern, layers=layers), **{**SMALL, "layers": 5}).double().eval()
    assert [type(each).__name__ for each in model.encodings] == ["RoPE", "FoX", "NoPE", "RoPE", "FoX"]
    assert [each.window for each in model.encodings] == [9, None, None, 9, None]
    tokens = torch.randint(11, (2, 40))
    full, state = model(tokens), model.new_state(2, 40)
    pieces = [model(piece, state) for piece in tokens.split([20, 1, 1, 18], 1)]
    assert torch.allclose(torch.cat(pieces, 1), full, rtol=0, atol=1e-9)
    changed = tokens.clone()
    changed[:, 0] = (changed[:, 0] + 1) % 11
    assert not torch.equal(model(changed)[:, -1], full[:, -1])  # layers without a window pass it on


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (["rope", "rpoe"], "layers: rpoe: unknown encoding; allowed: .*fox, .*rope"),
        ([{"rope": {"base": -1}}], "layers: rope: base=-1"),
        ([{"rope": {"bias": 1}}], "layers: rope: .*bias"),
        ([{"rope": {}, "nope": {}}], "an entry has one encoding"),
        ([], "layers"),
    ],
)
def test_wrong_patterns_raise(layers, message):
    with pytest.raises(ValueError, match=message):
        Transformer(encoding=partial(LayerPattern, layers=layers), **{**SMALL, "layers": 2})


def test_fused_projections_start_as_separate_layers_of_their_names_would():
    model = Transformer(encoding=Encoding, seed=5, **SMALL)
    for fused in ("blocks.1.attention.qkv", "blocks.0.mlp.gate_up"):
        parent = fused.rpartition(".")[0]
        for name, rows in model.get_submodule(fused).parts().items():
            torch.manual_seed(derive_seed(5, f"{parent}.{name}"))
            assert torch.equal(rows, torch.empty(rows.shape).normal_(std=INIT_STD)), name
    assert list(model.blocks[0].attention.qkv.parts()) == ["query", "key", "value"]
    assert list(model.blocks[0].mlp.gate_up.parts()) == ["gate", "up"]


def linears_and_embeddings(model):
    return {n: m for n, m in model.named_modules() if isinstance(m, torch.nn.Linear | torch.nn.Embedding)}


@every_encoding
@pytest.mark.parametrize("mlp", ["swiglu", "gelu"])
def test_every_linear_and_embedding_runs_as_a_module_in_training_and_in_evaluation(encoding, mlp):
    model = Transformer(encoding=encoding, mlp=mlp, **SMALL)
    ran = []
    for name, module in linears_and_embeddings(model).items():
        module.register_forward_hook(lambda *_, name=name: ran.append(name))
    tokens = torch.randint(11, (1, 9))
    for call in (model.nats, model.token_nats, lambda tokens, _: model(tokens)):
        ran.clear()
        call(tokens, tokens)
        assert sorted(ran) == sorted(linears_and_embeddings(model))
        model.eval()


class Adapter(torch.nn.Module):
    """A layer and a small change to what it gives, as LoRA makes it."""

    def __init__(self, base):
        super().__init__()
        self.base, self.scale = base, torch.nn.Parameter(torch.tensor(0.1))

    def forward(self, x):
        out = self.base(x)
        return out + self.scale * out.cos()


@every_encoding
def test_adapters_act_and_train_wherever_they_are_put(encoding):
    model = Transformer(encoding=encoding, tie_embeddings=False, **SMALL).train()
    adapted = {name: module for name, module in linears_and_embeddings(model).items() if "encoding." not in name}
    for name, module in adapted.items():
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, Adapter(module))
    tokens = torch.randint(11, (2, 9))
    nats = model.nats(tokens, tokens)
    nats.backward()
    adapters = {name: module for name, module in model.named_modules() if isinstance(module, Adapter)}
    assert len(adapters) == len(adapted) >= 2 * 4 + 2
    assert not [name for name, adapter in adapters.items() if not adapter.scale.grad]
    torch.testing.assert_close(nats, model.eval().token_nats(tokens, tokens).nats.sum(), rtol=1e-4, atol=1e-4)


def test_the_function_does_not_depend_on_the_dtype():
    model = Transformer(encoding=Encoding, **SMALL)
    with torch.no_grad():
        model.embedding.weight.mul_(1e-2)  # so small that the norm's epsilon matters
    tokens = torch.randint(11, (2, 9))
    single = model(tokens)
    torch.testing.assert_close(single.double(), model.double()(tokens), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"width": 33, "head_dim": None}, "width=33"),
        ({"kv_heads": 3}, "kv_heads=3"),
        ({"heads": 0}, "heads=0"),
        ({"dropout": 1.0}, "dropout=1.0"),
        ({"head_dim": 0}, "head_dim=0"),
    ],
)
def test_sizes_that_do_not_fit_are_named(wrong, named):
    with pytest.raises(ValueError, match=named):
        Transformer(encoding=partial(Encoding), **{**SMALL, **wrong})


@pytest.mark.parametrize("tied", [False, True])
def test_gradients_of_the_embedding_and_of_the_output_layer_are_those_of_plain_operations(tied):
    model = Transformer(encoding=Encoding, tie_embeddings=tied, **SMALL)
    tokens, targets = torch.randint(11, (2, 2, 9))
    found = []
    for nats in (
        model.nats(tokens, targets),
        torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), reduction="sum"),
    ):
        model.zero_grad()
        nats.backward()
        found.append([model.embedding.weight.grad, model.head.weight.grad])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
