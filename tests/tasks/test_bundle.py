"""bearings.load: a run and its export score and sample alike, as the tasks do."""

import csv
import json
import math
import re
import shutil
from functools import partial

import pytest
from conftest import REPOSITORY, composed
from training_support import configured

import bearings
from bearings.core.errors import UserError
from bearings.documentation.stub import stub
from bearings.domains.flip_flop import FlipFlop
from bearings.domains.genome import Genome
from bearings.session.configuration import build
from bearings.session.run_directory import RunDirectory
from bearings.session.session import Session

TEXT = "the cat sat on the mat\n" * 12


def trained(folder, name, domain, *overrides):
    """A run of two steps on the file of a domain, and its export."""
    plain = configured(folder, "trainer.steps=2", "trainer.validate_every=2", "task.samples=0", *overrides)
    plain["domain"] = composed(f"domain={name}")["domain"] | domain
    plain |= {"names": plain["names"] | {"domain": name}}
    del plain["content"]
    session = Session.of(plain)
    build(plain["task"], "task")(session)
    run = RunDirectory.of(session.config)
    given = run.config | {"run": str(run.path), "task": composed("task=export")["task"], "stores": plain["stores"]}
    build(given["task"], "task")(Session.of(given))
    return run


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    (folder / "my.txt").write_text("".join(f"{number} cats sat on the mat\n" for number in range(800)))
    domain = {"path": str(folder / "my.txt"), "tokenizer": "train", "vocabulary_size": 262}
    return trained(folder, "text", domain, "encoding=rope", "encoding.clock=medium", "evaluation.overlap=0.25")


def test_a_run_and_its_export_score_as_task_score(text, tmp_path):
    stores = text.path.parents[3] / "data"
    run, export = (
        bearings.load(text.path, stores=stores, device="cpu"),
        bearings.load(text.path / "export", device="cpu"),
    )
    assert (run.length, run.overlap) == (export.length, export.overlap) == (32, 0.25)
    file = tmp_path / "other.txt"
    file.write_text(TEXT)
    scores = [run.score(TEXT), run.score(file), run.score(str(file)), export.score(TEXT)]
    assert len({(each.nats, each.tokens) for each in scores}) == 1

    out = tmp_path / "scores.csv"
    task = composed("task=score", f"task.files={file}", f"task.out={out}")["task"]
    session = Session.of(text.config | {"run": str(text.path), "stores": str(stores), "task": task})
    build(task, "task")(session)
    (row,) = csv.DictReader(out.open())
    assert float(row["nats_per_token"]) == scores[0].nats_per_token
    assert float(row["bits_per_byte"]) == scores[0].bits_per_unit["byte"]
    assert int(row["tokens"]) == scores[0].tokens
    assert scores[0].units == {"byte": len(TEXT)}
    assert re.fullmatch(r"Score\(\d\.\d{4} nats/token, \d\.\d{4} bits/byte, \d+ tokens\)", repr(scores[0]))
    both = run.score([TEXT, file])
    assert (both.tokens, both.units) == (2 * scores[0].tokens, {"byte": 2 * len(TEXT)})
    assert both.nats == pytest.approx(2 * scores[0].nats)


def test_length_and_overlap_decide_what_is_context(text):
    bundle = bearings.load(text.path / "export", device="cpu")
    nats = {}
    for length, overlap in ((32, 0.25), (16, 0.25), (32, 0.75)):
        other = bearings.Bundle(bundle.model, bundle.domain, length, overlap)
        nats[length, overlap] = other.score(TEXT).nats
    assert len({*nats.values()}) == 3
    assert bundle.score(TEXT).nats == nats[32, 0.25]
    assert bundle.score(TEXT, length=16).nats == nats[16, 0.25]


def test_samples_follow_the_top_p_of_the_domain_unless_another_is_given(text, monkeypatch):
    bundle = bearings.load(text.path / "export", device="cpu")
    monkeypatch.setattr(type(bundle.domain), "top_p", 1e-9)  # the likeliest token only
    assert len({*bundle.sample(count=3, tokens=8)}) == 1
    assert len({*bundle.sample(count=3, tokens=8, top_p=1.0)}) == 3


def test_settings_that_are_defaults_of_other_encodings_stay(tmp_path):
    """362 is the default of NoPE's scaling_length."""
    settings = ("encoding.scaling=yarn", "encoding.scaling_factor=4", "encoding.scaling_length=362")
    (tmp_path / "my.txt").write_text("".join(f"{number} cats sat on the mat\n" for number in range(800)))
    domain = {"path": str(tmp_path / "my.txt"), "tokenizer": "bytes"}
    run = trained(tmp_path, "text", domain, "encoding=rope", *settings)
    for folder in (run.path, run.path / "export"):
        bundle = bearings.load(folder, stores=tmp_path / "data", device="cpu")
        assert bundle.model.encodings[0].trained_stretching.length == 362
    given = run.config | {"run": str(run.path), "task": composed("task=export", "task.format=hf")["task"]}
    build(given["task"], "task")(Session.of(given))
    exported = json.loads((run.path / "export-hf" / "config.json").read_text())
    assert exported["encoding_options"]["scaling_length"] == 362


def test_a_run_of_another_machine_needs_none_of_its_kernels(text, tmp_path):
    copy = shutil.copytree(text.path, tmp_path / "run")
    (copy / "config.yaml").write_text(
        (copy / "config.yaml").read_text().replace("implementation: auto", "implementation: cudnn")
    )
    assert RunDirectory.open(copy).config["encoding"]["implementation"] == "cudnn"
    stores = text.path.parents[3] / "data"
    here, there = (bearings.load(path, stores=stores, device="cpu") for path in (text.path, copy))
    assert here.score(TEXT).nats == there.score(TEXT).nats


def test_samples_are_what_the_domain_decodes(text, tmp_path):
    bundle = bearings.load(text.path / "export", device="cpu")
    sample = bundle.sample("the cat", tokens=12, seed=3)
    assert sample.startswith("the cat")
    assert sample == bundle.sample("the cat", tokens=12, seed=3) != bundle.sample("the cat", tokens=12, seed=4)
    several = bundle.sample(count=2, tokens=5, temperature=0)
    assert several[0] == several[1] == bundle.decode(bundle.encode(several[0]))
    (path,) = bundle.save(sample, tmp_path / "samples" / "first")
    assert path.read_text() == sample
    with pytest.raises(ValueError, match="temperature=-1"):
        bundle.sample(temperature=-1)
    with pytest.raises(UserError, match="an object of the type int is neither text nor a file"):
        bundle.sample(3)


@pytest.mark.parametrize(
    ("item", "message"),
    {
        "": "the text is empty",
        "missing.txt": "missing.txt cannot be read",
        "half \ud800": "an unpaired surrogate",
        (): "give at least one text or file",
        3: "an object of the type int is neither text nor a file: give a string, a pathlib.Path, or to score",
        b"the cat": "an object of the type bytes is neither",
        ("the cat", None): "an object of the type NoneType is neither",
    }.items(),
)
def test_what_cannot_be_scored_is_an_error(text, item, message):
    with pytest.raises(UserError, match=message):
        bearings.load(text.path / "export", device="cpu").score(item)


def test_a_bundle_of_a_model_in_memory():
    domain = Genome(tokenizer="base")
    model = bearings.Transformer(domain.vocabulary, bearings.encodings.PoPE, width=16, layers=1, heads=2)
    bundle = bearings.Bundle(model, domain, length=16)
    scored = bundle.score(" acgt\nnACG" * 9)
    assert scored.units == {"base": 63}
    assert scored.tokens == 72
    assert scored.nats_per_token == pytest.approx(math.log(domain.vocabulary), abs=0.5)
    assert set(bundle.sample("ACGT", tokens=8)) <= set("ACGTN")
    ends = [bundle.sample(start + 16 * "ACGT", tokens=8)[-8:] for start in ("A", "CCC")]  # the model sees 16 tokens
    assert ends[0] == ends[1]
    with pytest.raises(UserError, match="'J' is not a nucleotide"):
        bundle.score("ACGJ")
    with pytest.raises(UserError, match=r"chr1\.fa cannot be read"):
        bundle.score("chr1.fa")
    flip_flop = FlipFlop()
    with pytest.raises(UserError, match="scores answers"):
        bearings.Bundle(model, flip_flop).score("0")
    limited = partial(bearings.encodings.AbsoluteLearned, length=8)
    model = bearings.Transformer(domain.vocabulary, limited, width=16, layers=1, heads=2)
    with pytest.raises(ValueError, match=r"tokens=8: it must be below the encoding.s longest context, 8 tokens"):
        bearings.Bundle(model, domain).sample(tokens=8)


def test_a_folder_without_a_model_is_an_error(tmp_path):
    with pytest.raises(UserError, match=r"has no config\.yaml: give a folder of task=export"):
        bearings.load(tmp_path / "gone")


def test_a_device_that_pytorch_does_not_see_is_an_error(text):
    with pytest.raises(UserError, match=r"^device=cuda:99: .*: give cpu, or a device that PyTorch sees$"):
        bearings.load(text.path / "export", device="cuda:99")


def test_samples_and_contexts_of_no_tokens_are_refused(text):
    bundle = bearings.load(text.path / "export", device="cpu")
    for given in ({"tokens": 0}, {"count": 0}):
        with pytest.raises(ValueError, match="it must be at least 1"):
            bundle.sample(**given)
    for given in ({"tokens": 3.5}, {"tokens": "3"}):
        with pytest.raises(ValueError, match=r"tokens=.*: it must be an integer"):
            bundle.sample(**given)
    for length in (0, -3):
        with pytest.raises(ValueError, match=f"length={length}: it must be at least 1"):
            bundle.score(TEXT, length=length)


def test_an_extension_is_not_repeated(text, tmp_path):
    bundle = bearings.load(text.path / "export", device="cpu")
    for name in ("cat", "cat.txt"):
        assert bundle.save("a cat", tmp_path / name) == [tmp_path / "cat.txt"]
    assert bundle.save("a cat", tmp_path / "v1.5") == [tmp_path / "v1.5.txt"]


def test_bundles_of_values_out_of_range_are_refused(text):
    bundle = bearings.load(text.path / "export", device="cpu")
    for given in ({"length": 0}, {"length": 2.5}, {"overlap": 1.0}):
        with pytest.raises(ValueError, match=f"{next(iter(given))}=.*: it must be"):
            bearings.Bundle(bundle.model, bundle.domain, **given)
    model = bearings.Transformer(5, bearings.encodings.RoPE, width=16, layers=1, heads=2)
    with pytest.raises(ValueError, match=r"the model has 5 token ids and the domain .*: build the model with"):
        bearings.Bundle(model, bundle.domain)


def test_a_list_of_samples_is_not_saved_as_one(text, tmp_path):
    bundle = bearings.load(text.path / "export", device="cpu")
    with pytest.raises(UserError, match="a list of 2 samples: save each of them by itself"):
        bundle.save(["a cat", "a dog"], tmp_path / "cats")


def test_lazy_attributes():
    assert (REPOSITORY / "encodings" / "__init__.pyi").read_text() == stub(), "run python -m bearings.documentation"
    for line in (REPOSITORY / "encodings" / "__init__.pyi").read_text().splitlines()[2:]:
        module, name = re.fullmatch(r"from \.(\w+) import (\w+) as \2", line).groups()
        assert getattr(bearings.encodings, name).__module__ == f"bearings.encodings.{module}"
        assert name in dir(bearings.encodings)
    for name in bearings.__all__:
        assert getattr(bearings, name)
        assert name in dir(bearings)
    with pytest.raises(AttributeError, match=r"'bearings.encodings' has no attribute 'Rope': did you mean RoPE\?$"):
        bearings.encodings.Rope  # noqa: B018
    with pytest.raises(AttributeError, match="module 'bearings' has no attribute 'Load'"):
        bearings.Load  # noqa: B018


def blocks_of(page):
    text = (REPOSITORY / "docs" / "how-to" / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_the_examples_of_the_documentation_run(text, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.txt").write_text(TEXT)
    (tmp_path / "my-model").symlink_to(text.path / "export")
    first, second = blocks_of("python.md")
    assert len(first.splitlines()) == 10
    for block in (first, second):
        exec(block, {})  # noqa: S102 (an example of this documentation)
    out = capsys.readouterr().out
    assert (tmp_path / "samples" / "cat.txt").read_text().startswith("The cat")
    assert "torch.Size([2, 65, 257])" in out


def test_the_notebook_runs(capsys):
    notebook = json.loads((REPOSITORY / "docs" / "how-to" / "first-model.ipynb").read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(not cell.get("outputs") and not cell.get("execution_count") for cell in notebook["cells"])
    code = "\n".join(cells)
    assert "STEPS, LENGTH = 300, 64" in code
    exec(code.replace("STEPS, LENGTH = 300, 64", "STEPS, LENGTH = 2, 64"), {})  # noqa: S102 (as above)
    out = capsys.readouterr().out
    assert re.search(r"^NoPE Score\(.* bits/byte, 4,\d+ tokens\)$", out, re.MULTILINE)
    assert "The class" in out


def test_the_name_of_a_folder_is_not_scored_as_text(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "letters").mkdir()
    bundle = bearings.load(text.path / "export", device="cpu")
    for use in (bundle.score, bundle.sample):
        with pytest.raises(UserError, match=r"letters is not a regular file: give a .txt file"):
            use("letters")
