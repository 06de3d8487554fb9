"""Choice of an operator's implementation, and errors for unsupported inputs."""

import re

import numpy as np
import pytest
import torch
from conftest import Letters
from encodings_support import attend, make_encoding, make_inputs, one_thread  # noqa: F401
from fused_support import DEVICE, GPU, poisoned_memory  # noqa: F401
from training_support import configured, go

from bearings.kernels import choice
from bearings.kernels.attention.nope import nope_attention

pytest.importorskip("triton")
PLAIN = choice.Needs(64, 64, 64)
pytestmark = pytest.mark.usefixtures("one_thread", "poisoned_memory")


@pytest.mark.parametrize(
    ("implementation", "dtype", "head_dim", "message"),
    [
        (
            "triton",
            torch.float32,
            16,
            "the tensors are not on a CUDA device; use implementation=",
        ),
        *(
            (name, torch.bfloat16, 16, f"implementation={name}: the tensors are not on a CUDA device")
            for name in choice.LIBRARIES
        ),
        ("fast", torch.float32, 16, "implementation=.?fast.?: it (must be one of|should be) "),
    ],
)
def test_requested_implementation_has_no_fallback(monkeypatch, implementation, dtype, head_dim, message):
    monkeypatch.setattr(choice, "INTERPRETED", False)
    q = torch.zeros(1, 4, 2, head_dim, dtype=dtype)
    with pytest.raises(ValueError, match=message):
        nope_attention(q, q, q, implementation=implementation)
    with pytest.raises(ValueError, match=message):
        make_encoding("nope", implementation=implementation).plan(q.device, dtype, 4, False)


@pytest.mark.parametrize(
    ("dtype", "head_dim", "message"),
    [
        (torch.float64, 16, "Triton kernels support float32, float16 and bfloat16, not float64"),
        (torch.float32, 24, "head_dim 16, 32, 48, 64, 96, 128, not 24"),
    ],
)
def test_inputs_that_triton_rejects(dtype, head_dim, message):
    q = torch.zeros(1, 4, 2, head_dim, dtype=dtype, device=DEVICE)
    with pytest.raises(ValueError, match=message):
        nope_attention(q, q, q, implementation="triton")


def test_the_channels_that_triton_rejects_are_named():
    q, v = torch.zeros(1, 4, 2, 64, device=DEVICE), torch.zeros(1, 4, 2, 40, device=DEVICE)
    with pytest.raises(ValueError, match="support value_dim 16, 32, 48, 64, 96, 128, not 40"):
        nope_attention(q, q, v, implementation="triton")


LIMITED = {
    "cudnn": "is not used with packed documents or windows",
    "fa4": "FlashAttention-4 needs a bound on the number of documents (`most` of `Documents.of`)",
}


@pytest.mark.parametrize("name", choice.LIBRARIES)
def test_inputs_that_libraries_reject(name):
    device, half = torch.device("cuda"), torch.float16
    for given, message in (
        ({"needs": PLAIN._replace(gates=True)}, "does not support gates"),
        ({"documents": True, "bounded": False}, LIMITED[name]),
        ({"dtype": torch.float32}, "supports float16 and bfloat16, not float32"),
        ({"queries": 3}, "whole sequences, not 3 of 8 tokens"),
        ({"queries": 1}, "whole sequences, not 1 of 8 tokens"),
    ):
        settings = {"dtype": half, "needs": PLAIN, "queries": 8, "keys": 8, **given}
        if GPU:
            with pytest.raises(ValueError, match=re.escape(message)):
                choice.choose(name, device, **settings)
        else:
            assert message in choice._against_library(name, device, **{"documents": False, "bounded": True, **settings})


def test_flash_attention_4_needs_the_tested_version(hopper, monkeypatch):
    def chosen(installed, capability=(9, 0)):
        monkeypatch.setattr(choice, "capability_of", lambda device: capability)
        monkeypatch.setattr(choice, "FA4_HERE", installed)
        return choice.choose("fa4", torch.device("cuda"), torch.bfloat16, PLAIN, 8, 8)

    plan = chosen(choice.FA4)
    assert (plan.implementation, plan.gradient) == ("fa4", "fa4")
    for installed, capability, message in (
        (None, (9, 0), f"flash-attn-4 is not installed .pip install .flash-attn-4.cu13.=={choice.FA4}.."),
        ("4.0.0b1", (9, 0), f"flash-attn-4 4.0.0b1 is installed, but only {choice.FA4} is supported"),
        (choice.FA4, (10, 0), "compute capability 9.0 only"),
    ):
        with pytest.raises(ValueError, match=f"implementation=fa4: .*{message}.*; use implementation=auto or torch"):
            chosen(installed, capability)


@pytest.mark.parametrize(("scores", "values"), [(48, 48), (16, 16), (64, 32)])
def test_flash_attention_4_is_refused_for_untested_channels(hopper, monkeypatch, scores, values):
    monkeypatch.setattr(choice, "FA4_HERE", choice.FA4)
    needs, given = choice.Needs(values, scores, values), (torch.device("cuda"), torch.bfloat16)
    message = (
        f"implementation=fa4: FlashAttention-4 is not used with {scores} score and {values} value channels .only 32/32"
    )
    with pytest.raises(ValueError, match=message):
        choice.choose("fa4", *given, needs, 2048, 2048)
    assert choice.choose("auto", *given, needs, 2048, 2048).implementation == "cudnn"


@pytest.mark.parametrize(
    ("needs", "length", "taken"),
    [
        (PLAIN, 1024, "fa4"),
        (PLAIN, 1023, "cudnn"),
        (PLAIN._replace(score_dim=128), 1024, "fa4"),
        (choice.Needs(128, 128, 128), 1024, "fa4"),
        (choice.Needs(128, 256, 128), 4096, "fa4"),
        (choice.Needs(96, 192, 96), 4096, "cudnn"),
        (PLAIN._replace(gates=True), 4096, "triton"),
    ],
)
def test_auto_takes_flash_attention_4_where_it_is_faster(hopper, monkeypatch, needs, length, taken):
    def plan():
        return choice.choose("auto", torch.device("cuda"), torch.bfloat16, needs, length, length)

    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: False)
    monkeypatch.setattr(choice, "FA4_HERE", choice.FA4)
    assert plan().implementation == plan().gradient == taken
    monkeypatch.setattr(choice, "FA4_HERE", None)
    without = plan()
    assert without.implementation == taken.replace("fa4", "cudnn")
    assert ("would be faster, but the package flash-attn-4 is not installed" in without.reason) == (taken == "fa4")
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    assert plan().gradient == "triton"  # without the package


@pytest.mark.parametrize(("channels", "queries"), [(64, 1023), (96, 1024)])
def test_flash_attention_4_continues_sequences_only_as_tested(hopper, monkeypatch, channels, queries):
    monkeypatch.setattr(choice, "FA4_HERE", choice.FA4)
    given = torch.device("cuda"), torch.bfloat16, choice.Needs(channels, channels, channels), queries, 2048
    assert choice.choose("auto", *given).implementation == "triton"
    with pytest.raises(ValueError, match=f"FlashAttention-4 needs whole sequences, not {queries} of 2048 tokens"):
        choice.choose("fa4", *given)


def test_auto_takes_the_deterministic_gradients_of_flash_attention_4_where_they_are_faster(hopper, monkeypatch):
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    monkeypatch.setattr(choice, "FA4_HERE", choice.FA4)
    for needs, length, taken in (
        (PLAIN, 1024, "fa4"),
        (PLAIN, 1023, "triton"),
        (choice.Needs(64, 128, 64), 1024, "triton"),
    ):
        plan = choice.choose("auto", torch.device("cuda"), torch.bfloat16, needs, length, length)
        assert plan.gradient == taken


@pytest.mark.parametrize("deterministic", [False, True])
def test_auto_takes_flash_attention_4_for_documents_and_windows_where_that_is_faster(
    hopper, monkeypatch, deterministic
):
    def plan(length, **limits):
        return choice.choose("auto", torch.device("cuda"), torch.bfloat16, PLAIN, length, length, **limits)

    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: deterministic)
    monkeypatch.setattr(choice, "FA4_HERE", choice.FA4)
    limited = {"documents": True, "bounded": True}
    monkeypatch.setattr(choice, "FA4_FASTER", {})
    assert plan(512, **limited).implementation == "triton"
    monkeypatch.setattr(choice, "FA4_FASTER", {(True, deterministic): {(64, 64): 512}})
    assert [plan(length, **limited).implementation for length in (511, 512)] == ["triton", "fa4"]
    assert ("not deterministic" in plan(512, **limited).reason) != deterministic
    unbounded = plan(512, documents=True, bounded=False)
    assert str(unbounded) == "triton, because cuDNN attention is not used with packed documents or windows"
    monkeypatch.setattr(choice, "FA4_HERE", None)
    missing = plan(512, **limited)
    assert missing.gradient == "triton"
    assert "; FlashAttention-4 would be faster, but the package flash-attn-4 is not installed" in missing.reason
    monkeypatch.setattr(choice, "FA4_FASTER", {(False, True): {(64, 64): 512}})
    assert plan(512).gradient == ("triton" if deterministic else "cudnn")
    assert ("would be faster" in plan(512).reason) == deterministic


@pytest.fixture(name="hopper")
def h100(monkeypatch):
    """Simulates a GPU of compute capability 9.0."""
    monkeypatch.setattr(choice, "CUDNN", True)
    monkeypatch.setattr(choice, "INTERPRETED", False)
    monkeypatch.setattr(choice, "capability_of", lambda device: (9, 0))


def test_cudnn_supports_wide_heads_only_on_hopper(hopper, monkeypatch):
    device, dtype = torch.device("cuda"), torch.bfloat16
    for capability, polar, taken in (((9, 0), True, "cudnn"), ((10, 0), False, "cudnn"), ((10, 0), True, "triton")):
        monkeypatch.setattr(choice, "capability_of", lambda device, c=capability: c)
        needs = choice.Needs(128, 256 if polar else 128, 128)
        assert choice.choose("auto", device, dtype, needs, 8, 8).implementation == taken


@pytest.mark.parametrize(
    ("width", "size", "taken"),
    [
        *((128, 64, "cudnn"), (256, 128, "cudnn"), (192, 64, "triton"), (384, 128, "torch"), (72, 64, "torch")),
        *((128, 24, "torch"), (48, 24, "torch")),
        *((64, 128, "triton"), (96, 192, "torch"), (32, 128, "torch"), (24, 48, "torch")),
    ],
)
def test_scores_and_values_with_different_numbers_of_channels(hopper, width, size, taken):
    needs = choice.Needs(width, width, size)
    assert choice.choose("auto", torch.device("cuda"), torch.bfloat16, needs, 8, 8).implementation == taken


@pytest.mark.parametrize(("cached", "length", "taken"), [(None, 9, "triton"), (0, 9, "triton"), (0, 8, "cudnn")])
def test_cudnn_is_not_used_beyond_a_window(hopper, cached, length, taken):
    encoding = make_encoding("rope", head_dim=64, window=8)
    plan = encoding.plan(torch.device("cuda"), torch.bfloat16, length, cached=cached)
    assert plan.implementation == taken


def test_cudnn_uses_torch_for_single_tokens(hopper):
    def taken(implementation, dtype, queries, keys):
        return choice.choose(implementation, torch.device("cuda"), dtype, PLAIN, queries, keys).implementation

    half = torch.bfloat16
    assert [taken("cudnn", half, length, length) for length in (1, 2, 100)] == ["torch", "cudnn", "cudnn"]
    assert [taken("auto", half, length, length) for length in (1, 2)] == ["triton", "cudnn"]
    with pytest.raises(ValueError, match="supports float16 and bfloat16, not float32"):
        taken("cudnn", torch.float32, 1, 1)
    for documents, gates in ((True, False), (False, True)):
        with pytest.raises(ValueError, match="implementation=cudnn"):
            choice.choose("cudnn", torch.device("cuda"), half, PLAIN._replace(gates=gates), 1, 1, documents)


class Short(Letters):
    """Letters with additional documents of one letter, which are scored by attention over one token."""

    name = "short"

    def build(self, writer):
        super().build(writer)
        for split in ("train", "valid", "test"):
            writer.add(f"short {split}", split, f"short {split}", np.array([0, 3]), {"letter": 1})


@pytest.mark.parametrize(("encoding", "library"), [("rope", "cudnn"), ("pope", "cudnn"), ("rope", "fa4")])
def test_run_of_a_library_trains_scores_single_tokens_and_samples(hopper, tmp_path, monkeypatch, encoding, library):
    chosen, named = set(), choice.choose
    monkeypatch.setattr(choice, "FA4_HERE", choice.FA4)
    monkeypatch.setattr(choice, "FA4_CHANNELS", ((16, 16),))

    def on_hopper(implementation, device, dtype, needs, queries, keys, *limits):
        found = named(implementation, torch.device("cuda"), dtype, needs, queries, keys, *limits)
        chosen.add((found.implementation, "whole" if queries == keys > 1 else "one" if keys == 1 else "cached"))
        return found

    monkeypatch.setattr("bearings.encodings.base.choose", on_hopper)
    # PyTorch computes what the simulated GPU would.
    monkeypatch.setattr(f"bearings.kernels.attention.{encoding}.fused_attention", lambda *given, **named: None)
    half = ("trainer.precision=bf16-mixed", "evaluation.tokens_per_batch=1", "trainer.steps=2", "trainer.compile=false")
    plain = configured(tmp_path, f"encoding={encoding}", f"encoding.implementation={library}", *half)
    run, printed = go(plain | {"domain": {"_target_": "test_choice.Short"}})
    assert run.manifest["finished"]
    assert [*(run.path / "samples").glob("*.txt")]
    assert chosen == {(library, "whole"), ("torch", "one"), ("triton", "one"), ("triton", "cached")}
    plan = run.manifest["sessions"][0]["attention"]
    assert plan.startswith(
        f"{library}, because it was requested; decoding: triton, because {choice.LIBRARIES[library]}"
    )
    assert plan in " ".join(printed.split())


def test_packed_run_knows_the_number_of_documents(hopper, tmp_path, monkeypatch):
    named, seen = choice.choose, []
    monkeypatch.setattr(choice, "FA4_HERE", choice.FA4)
    monkeypatch.setattr(choice, "FA4_CHANNELS", ((16, 16),))
    monkeypatch.setattr(
        "bearings.encodings.base.choose", lambda name, device, *given: named(name, torch.device("cuda"), *given)
    )

    def attention(q, k, v, scale, documents, plan, *others):
        seen.append((plan.implementation, documents))  # and PyTorch computes what the simulated GPU would

    monkeypatch.setattr("bearings.kernels.attention.rope.fused_attention", attention)
    half = ("trainer.precision=bf16-mixed", "trainer.steps=2", "trainer.compile=false", "trainer.micro_batch=2")
    go(configured(tmp_path, "encoding=rope", "encoding.implementation=fa4", "data.packed=true", *half))
    packed = [documents for name, documents in seen if name == "fa4" and documents is not None]
    assert packed
    assert all(documents.cu_seqlens[-1] == documents.positions.numel() for documents in packed)


@pytest.mark.parametrize(
    ("dtype", "head_dim", "capability", "taken"),
    [
        (torch.bfloat16, 128, (8, 9), "triton"),
        (torch.float32, 64, (12, 0), "triton"),
        (torch.float32, 128, (9, 0), "triton"),
        *((torch.float32, 128, capability, "torch") for capability in ((8, 0), (8, 9), (10, 0), (12, 0))),
    ],
)
def test_path_is_refused_where_its_kernels_do_not_fit(hopper, monkeypatch, dtype, head_dim, capability, taken):
    monkeypatch.setattr(choice, "capability_of", lambda device: capability)
    plan = chosen_for_path("auto", torch.device("cuda"), dtype, head_dim)
    assert plan.implementation == taken
    if taken == "torch":
        message = "PaTH kernels in float32 with more than 64 channels need compute capability 9.0"
        assert plan.reason == message
        with pytest.raises(ValueError, match=f"implementation=triton: {message}; use implementation=auto or torch"):
            chosen_for_path("triton", torch.device("cuda"), dtype, head_dim)


def test_old_gpus_use_torch(hopper, monkeypatch):
    monkeypatch.setattr(choice, "capability_of", lambda device: (7, 5))
    plan = choice.choose("auto", torch.device("cuda"), torch.float16, PLAIN, 8, 8)
    assert (plan.implementation, plan.reason) == ("torch", "Triton kernels need compute capability 8.0 or newer")


def test_auto_chooses_torch_on_cpu():
    taken = choice.choose("auto", torch.device("cpu"), torch.float32, PLAIN, 8, 8)
    assert taken.implementation == "torch"
    assert taken.reason == "the Triton interpreter is for tests only" or taken.reason.endswith("not on a CUDA device")


@pytest.mark.parametrize("encoding", ["rope", "pope"])
def test_subclass_with_custom_q_and_k_is_respected(encoding):
    from encodings_support import ENCODINGS

    kind = ENCODINGS[encoding]

    class Slower(kind):
        def encode_query(self, q, positions):
            return super().encode_query(q, positions / 4)

        def encode_key(self, k, positions):
            return super().encode_key(k, positions / 4)

    inputs = make_inputs(9, dtype=torch.float32)
    torch.manual_seed(0)
    plain = kind(12, 4, 2, 16)
    slower = Slower(12, 4, 2, 16)
    slower.load_state_dict(plain.state_dict())
    whole = attend(slower, inputs)
    assert not torch.allclose(whole, attend(plain, inputs), atol=1e-3)
    state = slower.new_state(2, 9, inputs.k)
    parts = [attend(slower, inputs.part(a, b), state) for a, b in ((0, 5), (5, 6), (6, 9))]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-4, atol=1e-5)


def chosen_for_path(implementation, device, dtype, head_dim, value_dim=None):
    needs = choice.Needs(head_dim, head_dim, value_dim or head_dim, reflections=True)
    return choice.choose(implementation, device, dtype, needs, 8, 8)


def test_requested_implementation_of_path_has_no_fallback():
    cpu = torch.device("cpu")
    with pytest.raises(ValueError, match="implementation=cudnn: cuDNN attention does not support Householder"):
        chosen_for_path("cudnn", cpu, torch.float32, 64)
    with pytest.raises(ValueError, match="value_dim up to 128, not 160; use implementation=auto or torch"):
        chosen_for_path("triton", DEVICE, torch.float16, 64, 160)
    with pytest.raises(ValueError, match="not float64"):
        chosen_for_path("triton", DEVICE, torch.float64, 64)
    assert chosen_for_path("auto", cpu, torch.float64, 64).implementation == "torch"
    assert chosen_for_path("auto", DEVICE, torch.float16, 64, 160).implementation == "torch"
    assert chosen_for_path("auto", DEVICE, torch.float32, 128).implementation == ("triton" if GPU else "torch")
    assert chosen_for_path("triton", DEVICE, torch.float32, 128).implementation == "triton"
    assert "it was requested" in str(chosen_for_path("torch", DEVICE, torch.float16, 64))
