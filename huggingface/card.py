"""The model card of an export: how to load the model, and facts from the run's manifest."""

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..core.about import About
from ..core.options import options_of
from ..domains.base import Domain
from ..domains.records import Records
from ..domains.text import Text
from ..domains.unit_labels import unit_label
from ..encodings.pattern import PATTERNS
from ..lightning_modules.transformer import Transformer
from ..session.identity import decisive, portable
from ..session.run_directory import RunDirectory
from ..session.settings import declared
from .sizes import sizes_of

TAG = "- bearings\n"  # in the card of every export
USE = """\
```python
import torch
from transformers import AutoModelForCausalLM{tokenizer}

model = AutoModelForCausalLM.from_pretrained("FOLDER"{trust})
{inputs}
with torch.no_grad():
    loss = model(**inputs, labels=inputs["input_ids"]).loss  # mean nats per token
print(loss, {show})
```
"""
TEXT = """\
tokenizer = AutoTokenizer.from_pretrained("FOLDER"{trust})
inputs = tokenizer(PROMPT, return_tensors="pt")
out = model.generate(**inputs, max_new_tokens=50, do_sample=True{top_p})"""
IDS = """\
ids = torch.tensor([[{start}]])  # the start token; see the section on token ids
inputs = {{"input_ids": ids, "attention_mask": torch.ones_like(ids)}}
out = model.generate(**inputs, max_new_tokens=50, do_sample=True{top_p})
inputs = {{"input_ids": out, "attention_mask": torch.ones_like(out)}}"""
PROMPTS = {"genome": "ACGTACGTACGTACGT", "text": "The", "openwebtext": "The"}


def card(
    run: RunDirectory, domain: Domain, transformer: Transformer, config: Mapping[str, Any], form: str, tokenizer: bool
) -> str:
    """README.md in Markdown.

    Args:
        run: the run that trained the model.
        domain, transformer, config: its domain, model and configuration.
        form: hf or llama.
        tokenizer: whether the export has a tokenizer.
    """
    names, manifest = config["names"], run.manifest
    about = PATTERNS.get(names["encoding"]) or _about(transformer)
    title = about.name if about else names["encoding"]
    parts = [
        _front_matter(names, tokenizer),
        f"# {title} on {names['domain']}\n",
        f"{_origin(transformer, config)}\n",
        f"Positional encoding: {_described(about, title)}.\n",
        "## Use\n",
        _use(domain, names["domain"], form, tokenizer),
        "## Model\n",
        _table(("setting", "value"), [*_sizes(transformer, config), *_settings("encoding", config)]),
        "## Data\n",
        _paragraph(domain) + "\n",
        _table(("split", "documents"), [(name, f"{n:,}") for name, n in manifest["store"]["documents"].items()]),
        f"The data have the sha256 `{manifest['store']['sha256']}` after tokenization, from these settings:\n",
        f"```json\n{json.dumps(config['content'], indent=2)}\n```\n",
    ]
    trained = config["trainer"]["steps"] > 0
    if trained:
        settings = [*_settings("data", config), *_settings("optimizer", config), *_steps(config)]
        parts += ["## Training\n", _table(("setting", "value"), settings), f"{_code(manifest)}\n"]
    parts += ["## Results\n", _results(run, domain, trained)]
    if not tokenizer:
        parts += ["## Token ids\n", _token_ids(domain, config)]
    return "\n".join(parts).rstrip() + "\n"


def _origin(transformer: Transformer, config: Mapping[str, Any]) -> str:
    """What the model is, and the pretrained model that it started from or still is."""
    what = f"A Transformer decoder with {transformer.parameter_count():,} parameters"
    toolkit = "bearings, a toolkit that compares positional encodings"
    if (given := config.get("pretrained")) is None:
        return f"{what}, trained with {toolkit}. The data are described below."
    original = f"`{given['name']}` (sha256 of its files' digests: `{given['sha256']}`)"
    terms = "Its licence and its authors' terms apply."
    if not config["trainer"]["steps"]:
        return f"{what}: the pretrained model {original}, not trained further, as read by {toolkit}. {terms}"
    return f"{what}: the pretrained model {original}, trained further on the data below with {toolkit}. {terms}"


def _front_matter(names: Mapping[str, str], tokenizer: bool) -> str:
    task = "pipeline_tag: text-generation\n" if tokenizer else ""
    tags = "".join(f"- {tag}\n" for tag in ("positional-encoding", names["encoding"], names["domain"]))
    return f"---\nlibrary_name: transformers\n{task}tags:\n{TAG}{tags}---\n"


def _about(transformer: Transformer) -> About | None:
    kinds = {type(encoding) for encoding in transformer.encodings}
    return next(iter(kinds)).about if len(kinds) == 1 else None


def _described(about: About | None, title: str) -> str:
    if about is None:
        return f"{title}, as listed below"
    paper = (
        f" ({about.paper.authors} {about.paper.year}, [{about.paper.title}]({about.paper.url}))" if about.paper else ""
    )
    return f"**{about.name}**: {about.summary}{paper}"


def _use(domain: Domain, name: str, form: str, tokenizer: bool) -> str:
    top_p = "" if domain.top_p is None else f", top_p={domain.top_p}"
    trust = "" if form == "llama" else ", trust_remote_code=True"
    code = USE.format(
        tokenizer=", AutoTokenizer" if tokenizer else "",
        trust=trust,
        inputs=(TEXT if tokenizer else IDS).format(top_p=top_p, start=domain.start, trust=trust),
        show="tokenizer.decode(out[0], skip_special_tokens=True)" if tokenizer else "out",
    )
    prompt = PROMPTS.get(name)
    if isinstance(domain, Text) and domain.alphabet:
        prompt = domain.alphabet[:3]  # other letters may have no token
    code = code if prompt is None else code.replace("PROMPT", json.dumps(prompt, ensure_ascii=False))
    notes = [
        "`FOLDER` is this folder, or the name of the repository.",
        "The tokenizer begins each text with the start token, as in training, and pads on the left."
        if tokenizer
        else f"Sequences begin with the start token {domain.start}, as in training.",
    ]
    if "PROMPT" in code:
        notes.insert(1, "`PROMPT` is a text in the form of the data below.")
    if form == "hf":
        notes.append(
            "`trust_remote_code=True` runs the Python files of this folder, which need only PyTorch, NumPy and "
            "transformers 5; Triton is used on CUDA GPUs if it is installed."
        )
    return code + "\n" + " ".join(notes) + "\n"


def _sizes(transformer: Transformer, config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in sizes_of(transformer, config["model"]).items():
        yield key, f"`{json.dumps(value)}`"


def _settings(group: str, config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The settings of a group that affect results."""
    for key, value in decisive(group, config[group]).items():
        if not key.startswith("_"):
            yield f"{group}.{key}", f"`{json.dumps(value)}`"


def _steps(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    stages = [key for key in ("anneal_steps", "match_steps", "distil_steps") if config["trainer"].get(key)]
    for key in ("steps", *stages, "precision"):
        yield f"trainer.{key}", f"`{json.dumps(config['trainer'][key])}`"
    yield "seed", f"`{config['seed']}`"


def _paragraph(domain: Domain) -> str:
    """The beginning of the domain's documentation."""
    return " ".join((inspect.getdoc(type(domain)) or domain.name).split("\n\n")[0].split())


def _code(manifest: Mapping[str, Any]) -> str:
    code = (manifest.get("sessions") or [{}])[-1].get("code") or {}
    if not code.get("commit"):
        return "The commit of bearings that trained the model is not recorded."
    changed = f", with local changes {code['dirty']}" if code.get("dirty") else ""
    return f"Trained with commit `{code['commit']}` of bearings{changed}."


def _results(run: RunDirectory, domain: Domain, trained: bool) -> str:
    rows, units = [], []
    for split in run.manifest["store"]["splits"][1:]:
        path = run.records(split)
        if path.exists():
            run.check_unchanged(path)
            records = Records.load(path)
            units = [unit_label(domain.name, unit) for unit in records.unit_names]
            bits = [f"{value:.4f}" for value in records.bits_per_unit.values()]
            rows.append((split, f"{records.nats_per_token:.4f}", *bits))
    if not rows:
        return "No split has been scored.\n"
    scored = _table(("split", "nats per token", *(f"bits per {unit}" for unit in units)), rows)
    selected = " `valid` selected the checkpoint." if trained else ""
    return f"{scored}\nEach target of a split is scored once.{selected}\n"


def _token_ids(domain: Domain, config: Mapping[str, Any]) -> str:
    target = config["domain"]["_target_"]
    module, _, name = target.rpartition(".")
    documented = inspect.getdoc(type(domain)) or ""
    text = documented.split("\nArgs:")[0].rstrip()
    known = options_of(declared(target, "domain"))
    given = portable("domain", config["domain"]).items()
    options = ", ".join(f"{key}={value!r}" for key, value in given if key in known and value != known[key].default)
    return (
        f"This model has {domain.vocabulary} token ids and no tokenizer, as its data are not text. {name} of bearings "
        f"encodes and decodes them; {domain.start} is the start token.\n\n"
        f"```python\nfrom {module} import {name}\n\ndomain = {name}({options})\n"
        "ids = domain.encode_file(PATH)  # begins with the start token\n"
        "domain.render(domain.decode(ids), STEM)  # writes STEM and an extension\n```\n\n"
        f"```text\n{text}\n```\n"
    )


def _table(heads: Sequence[str], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |" for row in lines) + "\n"
