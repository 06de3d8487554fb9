"""Conversion of a RoPE model: an exact start, no jumps, frozen weights, and bit-exact resumption."""

import io

import pytest
import torch
from pretrained_support import STORIES, TINY, hugging_face_folder, model_of
from rich.console import Console
from training_support import configured, go, interrupt_after, weights

from bearings.core.errors import InterruptedRunError, UserError
from bearings.domains.pretrained_tokenizer import Pretrained
from bearings.encodings.pattern import class_of
from bearings.lightning_modules.callbacks import Validation
from bearings.lightning_modules.conversion import Conversion, distilled, frozen, matched
from bearings.lightning_modules.pretrained import load_pretrained
from bearings.lightning_modules.transformer import Transformer
from bearings.pretrained.formats import opened
from bearings.session.configuration import build
from bearings.session.run_directory import RunDirectory
from bearings.session.session import Session
from bearings.session.weights import read_torch_file
from bearings.tasks.check import Check

EXACT = ("path", "path_fox", "fox", "nope")
TEXT = "Once upon a time, there was a little girl named Lily. She loved to play outside in the park with her dog Max. "


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pretrained") / "tiny"
    hugging_face_folder(folder)
    return folder


def converted(checkpoint, name, anneal=10):
    """The original model, the student, and the conversion between them."""
    original = model_of(checkpoint)
    student = Transformer(checkpoint.vocabulary, class_of(name), **checkpoint.sizes).eval()
    load_pretrained(student, checkpoint)
    return original, student, Conversion(original.encodings[0], frozen(model_of(checkpoint)), anneal, 0, 0)


@pytest.mark.parametrize("name", EXACT)
def test_first_step_equals_the_original_bit_for_bit(tiny, name):
    original, student, conversion = converted(opened(tiny), name)
    tokens, strength = torch.arange(60).view(2, 30) % 12, torch.ones((), dtype=torch.float64)
    untouched = student(tokens)
    conversion.apply(student, strength, 0)
    assert torch.equal(student(tokens), original(tokens))
    conversion.apply(student, strength, 10)
    assert torch.equal(student(tokens), untouched)


@pytest.mark.parametrize("scaling", [None, {"rope_type": "yarn", "factor": 8.0}])
@pytest.mark.parametrize("name", EXACT)
def test_annealing_leads_from_the_original_to_the_encoding(tmp_path, name, scaling):
    """By the encoding's own operators, in float64, which training uses from the second step on."""
    hugging_face_folder(tmp_path / "tiny", {**TINY, "max_position_embeddings": 8, "rope_scaling": scaling})
    original, student, conversion = converted(opened(tmp_path / "tiny"), name, anneal=10**12)
    tokens, strength = torch.arange(80).view(2, 40) % 12, torch.ones((), dtype=torch.float64)
    untouched = student.double()(tokens)
    for step, expected, error in ((0, original.double()(tokens), 1e-12), (10**12 - 1, untouched, 1e-9)):
        conversion.apply(student, strength, step)
        for block in student.blocks:
            block.attention.exact = False
        torch.testing.assert_close(student(tokens), expected, rtol=error, atol=error)


@pytest.mark.data(STORIES)
@pytest.mark.parametrize("name", EXACT)
def test_loss_is_continuous_while_the_rotation_is_annealed(name):
    """Without training, the change of a step shrinks with the step, also from the exact start."""
    checkpoint, tokenizer = opened(STORIES), Pretrained.read(STORIES)
    original, student, conversion = converted(checkpoint, name, 4096)
    ids = torch.tensor([[tokenizer.start, *tokenizer._ids(TEXT)]])
    strength = torch.ones((), dtype=torch.float64)

    def loss(step):
        conversion.apply(student, strength, step)
        return student.nats(ids[:, :-1], ids[:, 1:]).item() / (ids.shape[1] - 1)

    with torch.no_grad():
        start = loss(0)
        assert start == original.nats(ids[:, :-1], ids[:, 1:]).item() / (ids.shape[1] - 1)
        assert abs(loss(1) - start) < 0.005
        for step in (1024, 2048, 3072, 4095):
            assert abs(loss(step + 1) - loss(step)) < 0.02


def test_matching_trains_attention_only(tiny):
    _, student, conversion = converted(opened(tiny), "pope")
    tokens = torch.arange(60).view(2, 30) % 12
    matched(student, conversion.teacher, tokens, torch.ones_like(tokens, dtype=torch.bool)).backward()
    trained = {name for name, each in student.named_parameters() if each.grad is not None}
    assert trained == {name for name, _ in student.named_parameters() if ".attention." in name}
    assert all(each.grad is None for each in conversion.teacher.parameters())


@pytest.mark.parametrize("name", ["seqpe", "positional_attention"])
def test_matching_uses_modules_that_layers_share(tiny, name):
    _, student, conversion = converted(opened(tiny), name)
    tokens = torch.arange(20).view(2, 10) % 12
    matched(student, conversion.teacher, tokens, torch.ones_like(tokens, dtype=torch.bool)).backward()
    assert any(parameter.grad is not None for module in student.position_modules for parameter in module.parameters())


def test_losses_of_the_teacher_itself_are_zero(tiny):
    original = model_of(opened(tiny))
    tokens, documents = torch.arange(60).view(2, 30) % 12, (torch.arange(30) > 12).long().expand(2, 30)
    for loss in (matched, distilled):
        assert loss(original, frozen(model_of(opened(tiny))), tokens, tokens >= 0, documents) == 0
    other = model_of(opened(tiny))
    with torch.no_grad():
        other.norm.weight *= 2
    ours, theirs = (model(tokens).log_softmax(-1) for model in (original, other))
    expected = (theirs.exp() * (theirs - ours)).sum(-1)
    counted = tokens % 3 > 0
    torch.testing.assert_close(distilled(original, frozen(other), tokens, counted), expected[counted].sum())


def conversion_run(tmp_path, tiny, name, *overrides, **trainer):
    given = f"encoding={name}", f"model.pretrained={tiny}", "model.dropout=0", "trainer.steps=12", *overrides
    plain = configured(tmp_path, *given)
    plain["task"] = {"_target_": "bearings.tasks.convert.Convert", "samples": 0}
    plain["trainer"] |= trainer
    plain["names"]["encoding"] = name
    return build(plain["task"], "task").configured(plain)


@pytest.mark.parametrize("name", ["path", "pope"])
def test_resumed_conversion_equals_an_uninterrupted_one(tmp_path, tiny, monkeypatch, capsys, name):
    whole, _ = go(conversion_run(tmp_path / "whole", tiny, name))
    text = capsys.readouterr().out
    cut = conversion_run(tmp_path / "cut", tiny, name)
    for stop in (1, 2, 4, 8):  # before the encoding is applied, and within each stage
        with monkeypatch.context() as patch:
            interrupt_after(patch, stop)
            with pytest.raises(InterruptedRunError):
                go(cut)
        checkpoint = read_torch_file(RunDirectory.of(Session.of(cut).config).last)
        moments = checkpoint["optimizer_states"][0]["state"].keys()  # which a sharded run requires
        assert moments == checkpoint["state_dict"].keys() - {"transformer.head.weight"}
    resumed, _ = go(cut)
    for checkpoint in ("last", "best"):
        ours, theirs = weights(whole, checkpoint), weights(resumed, checkpoint)
        assert all(torch.equal(ours[key], theirs[key]) for key in ours.keys() | theirs.keys())
    if name == "pope":
        assert "step 3: training on the predictions" in text
        assert "step 6: training on next tokens" in text


def test_stages_follow_from_the_options_and_layers_of_the_encoding(tmp_path, tiny):
    def stages(*given):
        trainer = conversion_run(tmp_path, tiny, *given)["trainer"]
        return [trainer[key] for key in ("anneal_steps", "match_steps", "distil_steps")]

    assert stages("nope") == stages("pattern", "encoding.layers=[path,nope]") == [6, 0, 0]
    assert stages("nope", "encoding.length_scaling=log") == [0, 3, 3]
    assert stages("pattern", "encoding.layers=[path,pope]") == [0, 3, 3]


def test_frozen_weights_stay_in_a_run(tmp_path, tiny):
    run, _ = go(conversion_run(tmp_path, tiny, "pope", match_steps=12, distil_steps=0))
    original, last = model_of(opened(tiny)).state_dict(), weights(run, "last")
    same = {name for name, each in original.items() if torch.equal(each, last[f"transformer.{name}"])}
    assert same == {name for name in original if ".attention." not in name}


def test_conversions_that_are_impossible_are_refused(tmp_path, tiny):
    with pytest.raises(UserError, match="anneal_steps=6: encoding=pope has an effect from the start"):
        go(conversion_run(tmp_path, tiny, "pope", anneal_steps=6))
    with pytest.raises(UserError, match="encoding=rope: the pretrained model has it already"):
        conversion_run(tmp_path, tiny, "rope")
    with pytest.raises(UserError, match=r"match_steps=2: it needs model\.pretrained"):
        go(configured(tmp_path, "trainer.match_steps=2"))
    with pytest.raises(UserError, match="match=params: it would resize the MLP, whose weights are those of"):
        go(conversion_run(tmp_path, tiny, "nope") | {"match": "params"})
    for stage in ("match_steps", "distil_steps"):
        steps = {"match_steps": 0, "distil_steps": 0, stage: 2}
        with pytest.raises(UserError, match=rf"trainer\.{stage}=2: it needs trainer\.strategy=ddp"):
            go(conversion_run(tmp_path, tiny, "pope", **steps, strategy="fsdp", devices=3))
    with pytest.raises(UserError, match="steps=0: nothing would be trained"):
        go(configured(tmp_path, "trainer.steps=0"))


def stopped(*args, **options):
    raise UserError("killed after its validation")


def test_zero_steps_evaluate_the_pretrained_model(tmp_path, tiny, monkeypatch):
    plain = configured(tmp_path, "encoding=rope", f"model.pretrained={tiny}", "trainer.steps=0", "task.samples=0")
    with monkeypatch.context() as patch:
        patch.setattr(Validation, "_save", stopped)
        with pytest.raises(UserError, match="killed after its validation"):
            go(plain)
    run, _ = go(plain)
    assert (run.path / "metrics.csv").read_text().count("\n0,") == 1
    original, best = model_of(opened(tiny)).state_dict(), weights(run)
    assert run.manifest["finished"]
    session = Session.of(run.config)
    session.console = Console(file=io.StringIO())
    Check()(session)  # without a learning rate to show
    assert "(finished)" in session.console.file.getvalue()
    assert all(torch.equal(each, best[f"transformer.{name}"]) for name, each in original.items())
