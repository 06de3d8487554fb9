"""Exported models in `transformers`: the same logits and samples as here, for every encoding."""

import copy
import importlib
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import REPOSITORY, composed, with_encoding
from encodings_support import ENCODINGS, MECHANISMS, one_thread  # noqa: F401

from bearings.core.errors import UserError
from bearings.domains.clocks import Clock
from bearings.domains.text import Text
from bearings.huggingface.code import CATALOGUE, NAMES, OPTIONS, catalogue
from bearings.huggingface.flat import ROOT, flattened
from bearings.huggingface.folder import write_model, write_tokenizer
from bearings.lightning_modules.sampling import sample
from bearings.session.models import build_transformer
from bearings.session.overrides import choices_of

transformers = pytest.importorskip("transformers", minversion="5")
pytestmark = pytest.mark.usefixtures("one_thread")

V, LENGTH, NEW = 12, 14, 4
TIMES = Clock(np.arange(V) % 3 + 1, np.where(np.arange(V) % 5, -1, 2))
PADDING = (0, 5, 5)


@pytest.fixture(scope="module", autouse=True)
def modules(tmp_path_factory):
    """A folder for the code that `transformers` copies."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path_factory.mktemp("modules")))
        transformers.logging.disable_progress_bar()
        yield


@pytest.fixture(scope="module")
def kind(tmp_path_factory):
    """BearingsForCausalLM with the code of all encodings, so that it is imported only once."""
    classes = {name: each.__name__ for name, each in ENCODINGS.items()} | {"pattern": "LayerPattern"}
    plain = (ROOT / "huggingface" / "plain_options.py").read_text()
    folder = tmp_path_factory.mktemp("code")
    for name, source in flattened(
        "huggingface.modelling", NAMES, {CATALOGUE: catalogue(classes), OPTIONS: plain}
    ).items():
        (folder / name).write_text(source)
    find = transformers.dynamic_module_utils.get_class_from_dynamic_module
    return find("modeling_bearings.BearingsForCausalLM", str(folder))


def trained(name, model=(), vocabulary=V, **options):
    """A model whose weights are as large as a trained model's, and its configuration."""
    base = composed("experiment=debug", "model.layers=2", "model.width=16", "model.heads=2", "model.kv_heads=1")
    config = with_encoding({**base, "model": {**base["model"], **dict(model)}}, name, **options)
    transformer = build_transformer(config, vocabulary, clock=lambda: TIMES).eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in transformer.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return transformer, config


def exported(kind, folder, monkeypatch, name):
    """A model, and that of `kind` with its weights; code is not written, as `kind` has it."""
    monkeypatch.setattr("bearings.huggingface.code.flattened", lambda *_: {"configuration_bearings.py": ""})
    transformer, config = trained(name, **({"layers": ["rope", "nope"]} if name == "pattern" else {}))
    write_model(folder, transformer, config, 0, "hf", 0)
    return transformer, kind.from_pretrained(folder)


def drawn(rows=3):
    ids = torch.randint(1, V, (rows, LENGTH), generator=torch.Generator().manual_seed(0))
    ids[:, 0] = 0
    return ids


def padded(ids):
    """The first tokens of each row after padding, and the attention mask."""
    shifted = [torch.cat([row.new_zeros(n), row[: LENGTH - n]]) for n, row in zip(PADDING, ids, strict=True)]
    return torch.stack(shifted), (torch.arange(LENGTH) >= torch.tensor(PADDING).unsqueeze(1)).long()


@pytest.mark.parametrize("name", choices_of("encoding"))
@torch.no_grad()
def test_exported_models_give_the_same_logits(kind, tmp_path, monkeypatch, name):
    transformer, model = exported(kind, tmp_path, monkeypatch, name)
    ids = drawn()
    logits = transformer(ids)
    assert torch.equal(model(ids, use_cache=False).logits, logits)
    left, mask = padded(ids)
    whole = model(left, attention_mask=mask, use_cache=False).logits
    first = model(left[:, :-NEW], attention_mask=mask[:, :-NEW])
    order = torch.tensor([0, 2, 2])  # as in beam search, within rows of the same padding
    first.past_key_values.reorder_cache(order)
    rest = model(left[order, -NEW:], attention_mask=mask, past_key_values=first.past_key_values).logits
    for row, n in enumerate(PADDING):
        expected = logits[row, : LENGTH - n]
        assert torch.allclose(whole[row, n:], expected, atol=1e-5)
        assert torch.allclose(first.logits[row, n:], expected[:-NEW], atol=1e-5)
        assert torch.allclose(rest[row], logits[order[row], LENGTH - n - NEW : LENGTH - n], atol=1e-5)


@pytest.mark.parametrize("name", ["rope", "path_fox", "swan", "tpe"])
@torch.no_grad()
def test_exported_models_generate_the_same_samples(kind, tmp_path, monkeypatch, name):
    transformer, model = exported(kind, tmp_path, monkeypatch, name)
    ids = drawn()
    left, mask = padded(ids)
    given = {"attention_mask": mask, "max_new_tokens": NEW, "eos_token_id": None}
    greedy = model.generate(left, **given)
    for row, n in enumerate(PADDING):
        assert torch.equal(greedy[row, LENGTH:], sample(transformer, ids[[row], : LENGTH - n], NEW, temperature=0)[0])
    assert torch.equal(model.generate(left, prefill_chunk_size=2, **given), greedy)
    wider, wide = (torch.nn.functional.pad(each, (3, 0)) for each in (left, mask))
    for size in (None, 2):  # the first part is padding in every row
        again = model.generate(wider, prefill_chunk_size=size, **{**given, "attention_mask": wide})
        assert torch.equal(again[:, 3:], greedy)
    beams = [model.generate(left, num_beams=2, use_cache=use_cache, **given) for use_cache in (True, False)]
    assert torch.equal(*beams)
    assert model.generate(left, do_sample=True, num_return_sequences=2, **given).shape == (6, LENGTH + NEW)


@torch.no_grad()
def test_generation_continues_from_the_cache_of_an_earlier_one(kind, tmp_path, monkeypatch):
    _, model = exported(kind, tmp_path, monkeypatch, "path")
    left, mask = padded(drawn())
    given = {"max_new_tokens": NEW, "eos_token_id": None}
    begun = model.generate(left, attention_mask=mask, return_dict_in_generate=True, **given)
    name = "cache" if "cache" in begun else "past_key_values"
    longer = torch.nn.functional.pad(mask, (0, NEW), value=1)
    again = model.generate(begun.sequences, attention_mask=longer, **{name: begun[name]}, **given)
    whole = model.generate(left, attention_mask=mask, **{**given, "max_new_tokens": 2 * NEW})
    assert torch.equal(again, whole)


@pytest.mark.parametrize("name", ["rope", "path"])
@torch.no_grad()
def test_prompts_with_padding_give_the_same_logits_in_parts(kind, tmp_path, monkeypatch, name):
    """Also where a part ends within the padding of a row; then the rows of the cache change."""
    _, model = exported(kind, tmp_path, monkeypatch, name)
    left, mask = padded(drawn())
    whole = model(left, attention_mask=mask, use_cache=False).logits[mask.bool()]
    for sizes in ([5, 9], [2, 2, 10], [3, 4, 7], [6, 8]):
        cache, parts, end = None, [], 0
        for part in left.split(sizes, 1):
            end += part.shape[1]
            out = model(part, attention_mask=mask[:, :end], past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            parts.append(out.logits)
        assert torch.allclose(torch.cat(parts, 1)[mask.bool()], whole, atol=1e-5)
    with pytest.raises(ValueError, match="tokens that follow others in a cache cannot be padding"):
        model(left[:, :4], attention_mask=mask[:, :4], past_key_values=cache)


@torch.no_grad()
def test_tokens_in_a_cache_pass_through_the_model_once(kind, tmp_path, monkeypatch):
    """For rows of the same padding together; if the cache must grow, no more than three times on average."""
    _, model = exported(kind, tmp_path, monkeypatch, "rope")
    ids, passed, inner = drawn(), [], model.transformer.hidden

    def hidden(tokens, *rest, **named):
        passed.append(tokens.shape[1])
        return inner(tokens, *rest, **named)

    monkeypatch.setattr(model.transformer, "hidden", hidden)
    left, mask = padded(ids)
    cases = [(ids, torch.ones_like(ids), 1, {0}), (ids, torch.ones_like(ids), 2, {0}), (left, mask, 1, {*PADDING})]
    for tokens, kept, beams, paddings in cases:
        passed.clear()
        model.generate(tokens, attention_mask=kept, num_beams=beams, max_new_tokens=NEW, eos_token_id=None)
        assert sum(passed) == sum(LENGTH - n + NEW - 1 for n in paddings)
    passed.clear()
    cache = model(ids[:, :2]).past_key_values
    cache.capacity, cache.rows = 2, []
    for token in ids[:, 2:].split(1, 1):
        model(token, past_key_values=cache)
    assert LENGTH < sum(passed) <= 3 * LENGTH


@pytest.mark.parametrize("name", MECHANISMS)
@torch.no_grad()
def test_a_cache_grows_and_shrinks(kind, tmp_path, monkeypatch, name):
    transformer, model = exported(kind, tmp_path, monkeypatch, name)
    ids = drawn(2)
    cache = model(ids[:, :3]).past_key_values
    cache.capacity, cache.rows = 4, []
    logits = [model(part, past_key_values=cache).logits for part in ids[:, 3:].split(4, 1)]
    expected = transformer(ids)
    assert torch.allclose(torch.cat(logits, 1), expected[:, 3:], atol=1e-5)
    cache.crop(-4)
    assert torch.allclose(model(ids[:, -4:], past_key_values=cache).logits, expected[:, -4:], atol=1e-5)
    with pytest.raises(ValueError, match=r"crop\(4\): give the number .* as a negative one"):
        cache.crop(4)


def test_every_option_of_the_model_has_a_default(kind):
    assert kind(kind.config_class()).transformer.residual_in_fp32


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_every_exported_module_can_be_imported(kind):
    package = kind.__module__.rpartition(".")[0]
    files = [*Path(sys.modules[kind.__module__].__file__).parent.glob("*.py")]
    assert len(files) > 100
    for path in files:
        importlib.import_module(package if path.stem == "__init__" else f"{package}.{path.stem}")


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """A PoPE model, its export, and the model that AutoModelForCausalLM loads from it."""
    folder = tmp_path_factory.mktemp("exported") / "my-model (ü).v1"
    folder.mkdir()
    transformer, config = trained("pope")
    write_model(folder, transformer, config, 0, "hf", 0)
    return transformer, folder, transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)


def test_models_with_different_code_load_in_one_process(loaded, tmp_path):
    transformer, config = trained("fire")
    write_model(tmp_path, transformer, config, 0, "hf", 0)
    model, ids = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=True), drawn()
    assert torch.equal(model(ids, use_cache=False).logits, transformer(ids))
    assert torch.equal(loaded[2](ids, use_cache=False).logits, loaded[0](ids))


def test_saved_models_load_again(loaded, tmp_path):
    _, folder, model = loaded
    model.save_pretrained(tmp_path)
    assert {path.name for path in folder.iterdir()} <= {path.name for path in tmp_path.iterdir()}
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=True)
    assert torch.equal(model(drawn()).logits, again(drawn()).logits)
    assert again.transformer.head.weight is again.transformer.embedding.weight


def test_losses_and_gradients_are_those_of_labels(loaded):
    transformer, _, model = loaded
    ids = drawn()
    labels = ids.masked_fill(ids == 3, -100)
    loss = model(ids, labels=labels).loss
    expected = transformer.nats(ids[:, :-1], labels[:, 1:]) / (labels[:, 1:] != -100).sum()
    assert torch.allclose(loss, expected)
    gradients = []
    for checkpointing in (True, False):
        (model.gradient_checkpointing_enable if checkpointing else model.gradient_checkpointing_disable)()
        model.train().zero_grad()
        model(ids, labels=ids).loss.backward()
        gradients.append(model.get_input_embeddings().weight.grad)
    model.eval()
    assert torch.allclose(*gradients)
    assert torch.equal(model(ids, logits_to_keep=2).logits, model(ids).logits[:, -2:])


def test_the_first_token_after_padding_is_no_target(loaded):
    _, _, model = loaded
    ids = drawn()
    shifted, mask = padded(ids)
    loss = model(shifted, attention_mask=mask, labels=shifted.masked_fill(mask == 0, -100)).loss
    rows = [row[None, : LENGTH - n] for n, row in zip(PADDING, ids, strict=True)]
    nats = torch.stack([model(row, labels=row).loss * (row.shape[1] - 1) for row in rows])
    assert torch.allclose(loss, nats.sum() / sum(row.shape[1] - 1 for row in rows))


def test_bfloat16_keeps_the_same_parameters_in_float32(loaded):
    transformer, folder, _ = loaded
    load = transformers.AutoModelForCausalLM.from_pretrained
    model = load(folder, trust_remote_code=True, dtype=torch.bfloat16)
    same = copy.deepcopy(transformer).to(torch.bfloat16)
    dtypes = {name: tensor.dtype for name, tensor in same.state_dict().items()}
    assert torch.float32 in dtypes.values()
    assert {name: tensor.dtype for name, tensor in model.transformer.state_dict().items()} == dtypes


def test_new_models_have_initial_weights_by_seed(loaded):
    _, _, model = loaded
    made = []
    for _ in range(2):
        torch.manual_seed(1)
        made.append(transformers.AutoModelForCausalLM.from_config(model.config, trust_remote_code=True))
    weights = [each.transformer.blocks[0].attention.output.weight for each in made]
    assert torch.equal(*weights)
    assert 0.008 < float(weights[0].detach().std()) < 0.012  # 0.02 / sqrt(2 layers of 2 branches)


@pytest.mark.parametrize("options", [{"clock": "medium"}, {"drop_after": 0.5}])
@torch.no_grad()
def test_times_of_the_medium_and_dropped_positions_are_exported(kind, tmp_path, options):
    transformer, config = trained("rope", **options)
    before = transformer(drawn())
    if "drop_after" in options:
        for encoding in transformer.encodings:
            encoding.drop()
        assert not torch.allclose(before, transformer(drawn()))
    write_model(tmp_path, transformer, config, 0, "hf", 0)
    assert torch.equal(kind.from_pretrained(tmp_path)(drawn(), use_cache=False).logits, transformer(drawn()))


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"position_ids": torch.zeros(3, LENGTH)}, "position_ids: bearings models do not support it"),
        ({"past_key_values": "a cache"}, "=str: give the (cache|past_key_values) of an earlier output"),
        ({"cache": "a cache"}, "=str: give the (cache|past_key_values) of an earlier output"),
        ({"attention_mask": torch.ones(3, 1, 1, LENGTH)}, "give a mask of .batch, tokens."),
        ({"attention_mask": (torch.arange(LENGTH) != 5).expand(3, -1)}, "a 0 between tokens"),
        ({"attention_mask": (torch.arange(LENGTH) != 5).expand(3, -1), "use_cache": False}, "a 0 between tokens"),
        ({"attention_mask": (torch.arange(LENGTH) < 9).expand(3, -1), "use_cache": True}, "padding on the left"),
    ],
)
def test_what_is_not_supported_is_refused(loaded, given, reason):
    with pytest.raises(ValueError, match=reason):
        loaded[2](drawn(), **given)


def test_the_documented_example_runs(tmp_path, capsys):
    domain = Text(tokenizer="bytes")
    transformer, config = trained("rope", vocabulary=domain.vocabulary)
    write_model(tmp_path, transformer, config, domain.start, "hf", domain.start)
    assert write_tokenizer(tmp_path, domain, 64, domain.start)
    page = (REPOSITORY / "docs" / "how-to" / "export.md").read_text()
    (example,) = re.findall(r"^```python\n(from transformers.*?)^```", page, re.DOTALL | re.MULTILINE)
    exec(example.replace("my-hf-model", str(tmp_path)), {})  # noqa: S102 (an example of this documentation)
    assert "The sea" in capsys.readouterr().out


LLAMAS = [
    ({}, {}),
    ({"tie_embeddings": False, "head_dim": 6, "norm_epsilon": 0.01}, {"base": 500.0, "randomise": 64}),
    ({}, {"scaling": "interpolation", "scaling_factor": 4.0}),
    ({}, {"scaling": "ntk", "scaling_factor": 4.0}),
    ({}, {"scaling": "yarn", "scaling_factor": 4.0, "scaling_length": 8}),
    ({}, {"scaling": "llama3", "scaling_factor": 4.0, "scaling_length": 8}),
]


@pytest.mark.parametrize(("model", "options"), LLAMAS)
@torch.no_grad()
def test_rope_models_are_plain_llama(tmp_path, model, options):
    transformer, config = trained("rope", model, **options)
    write_model(tmp_path, transformer, config, 0, "llama", 0)
    llama = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    if options.get("scaling") == "yarn":  # the factor in older versions
        assert llama.config.max_position_embeddings / options["scaling_length"] == options["scaling_factor"]
    assert type(llama) is transformers.LlamaForCausalLM
    assert torch.allclose(llama(drawn()).logits, transformer(drawn()), atol=1e-5)


@pytest.mark.parametrize(
    ("name", "model", "options", "reason"),
    [
        ("pope", {}, {}, "Llama has RoPE only, and this model has PoPE"),
        ("local_global", {}, {}, "Llama has no sliding window, and this model has encoding.window=128"),
        (
            "pattern",
            {},
            {"layers": ["rope", {"rope": {"base": 500.0}}]},
            "all layers of Llama have the same frequencies",
        ),
        ("rope", {}, {"clock": "medium"}, "Llama counts tokens"),
        ("rope", {}, {"spacing": 2.0}, "encoding.spacing=2.0"),
        ("rope", {}, {"scaling": "power"}, "Llama has no encoding.scaling=power"),
        ("rope", {"mlp": "gelu"}, {}, "Llama has a gated MLP"),
        ("rope", {"heads": 3, "head_dim": 8}, {}, "16 and 3"),
    ],
)
def test_models_that_llama_cannot_express_are_refused(tmp_path, name, model, options, reason):
    transformer, config = trained(name, model, **options)
    with pytest.raises(UserError, match=f"task.format=llama: .*{reason}.*: use task.format=hf"):
        write_model(tmp_path, transformer, config, 0, "llama", 0)
    assert not [*tmp_path.iterdir()]
