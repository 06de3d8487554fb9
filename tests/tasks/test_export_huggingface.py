"""task=export format=hf and format=llama: files, model card, and use in a process without this project."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch
from pretrained_support import hugging_face_folder
from training_support import configured, go

from bearings.core.errors import UserError
from bearings.domains.flip_flop import FlipFlop
from bearings.domains.records import Records
from bearings.domains.text import Text
from bearings.huggingface.card import _use
from bearings.lightning_modules.sampling import sample
from bearings.session.run_directory import RunDirectory
from bearings.session.session import Session
from bearings.session.trust import trusting
from bearings.tasks.export import Export

# Modules that are None cannot be imported.
FRESH = """
import sys
sys.modules |= dict.fromkeys(["bearings", "hydra", "lightning", "omegaconf", "pydantic", "triton"])
import torch
from transformers import AutoModelForCausalLM

folder, ids, out, example = sys.argv[1], torch.load(sys.argv[2]), sys.argv[3], sys.argv[4]
model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
drawn = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, eos_token_id=None)
with torch.no_grad():
    scored = model(ids, labels=ids)
torch.save({"logits": scored.logits, "loss": scored.loss, "drawn": drawn}, out)
exec(example)  # of the model card
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("trained")
    return go(configured(place, "encoding=rope", "trainer.steps=8"))[0]


def export(run, **options):
    config = RunDirectory.open(run.path).config | {"run": str(run.path)}
    session = Session.of(config | {"task": configured(run.path, task="export")["task"]})
    Export(**options)(session)
    return session


def test_export_writes_a_model_card_with_facts_of_the_run(run, capsys):
    export(run, format="hf")
    folder = run.path / "export-hf"
    assert re.search(r"wrote \d+ files of code", capsys.readouterr().out)
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1  # whoever may read one may read the others
    card = (folder / "README.md").read_text()
    score = f"| test | {Records.load(run.records('test')).nats_per_token:.4f} |"
    for fact in (run.manifest["store"]["sha256"], "**RoPE**", "2104.09864", "trust_remote_code=True", score):
        assert fact in card
    for setting, value in {"encoding.base": 10000.0, "data.batch_size": 3, "optimizer.clip": 1.0}.items():
        assert f"| {setting} | `{value}` |" in card
    assert "This model has 12 token ids and no tokenizer" in card
    assert not (folder / "tokenizer.json").exists()
    config = json.loads((folder / "config.json").read_text())
    assert config["max_position_embeddings"] == 32
    assert config["encoding"] == "rope"


def test_scores_that_were_replaced_are_not_on_a_model_card(run, tmp_path):
    scores = run.records("test")
    before = scores.read_bytes()
    scores.write_bytes(run.records("valid").read_bytes())
    with pytest.raises(UserError, match=r"test\.npz has changed since the run wrote it"):
        export(run, format="hf", out=str(tmp_path))
    scores.write_bytes(before)


def test_export_replaces_its_own_files_only(run, tmp_path):
    (tmp_path / ".gitattributes").touch()  # of a clone of a repository on the Hub
    export(run, format="hf", out=str(tmp_path))
    (tmp_path / "bearings_old.py").touch()
    (tmp_path / "mine.txt").touch()
    export(run, format="hf", out=str(tmp_path))
    assert (tmp_path / "mine.txt").exists()
    assert not (tmp_path / "bearings_old.py").exists()
    for other in ("llama", "bearings"):
        with pytest.raises(UserError, match=r"holds an export with task\.format=hf: give an empty folder, or that of"):
            export(run, format=other, out=str(tmp_path))


def test_export_leaves_other_files_alone(run, tmp_path):
    (tmp_path / "bearings_analysis.py").write_text("mine")
    with pytest.raises(UserError, match=r"holds other files, such as bearings_analysis\.py: give an empty folder"):
        export(run, format="hf", out=str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["bearings_analysis.py"]
    export(run, format="llama", out=str(tmp_path / "llama"))
    assert sorted(path.name for path in (tmp_path / "llama").iterdir()) == [
        *("README.md", "config.json", "generation_config.json", "model.safetensors")
    ]
    assert "trust_remote_code" not in (tmp_path / "llama" / "README.md").read_text()


@pytest.mark.parametrize(("form", "config"), {"llama": {}, "hf": {"auto_map": {"AutoConfig": "other.Config"}}}.items())
def test_export_leaves_other_models_alone(run, tmp_path, form, config):
    files = {
        "README.md": "mine",
        "config.json": json.dumps({"model_type": "llama", **config}),
        "model.safetensors": "mine",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=r"holds other files, such as README\.md: give an empty folder"):
        export(run, format=form, out=str(tmp_path))
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == files


def test_a_failed_export_leaves_folders_as_they_were(run, tmp_path, monkeypatch):
    monkeypatch.setattr("bearings.huggingface.llama.RoPE", int)
    monkeypatch.chdir(tmp_path)
    for out in ("new", "."):  # the working directory cannot be removed
        with pytest.raises(UserError, match="Llama has RoPE only, and this model has RoPE"):
            export(run, format="llama", out=out)
    assert not any(tmp_path.iterdir())


def test_the_prompt_of_a_model_card_is_in_the_letters_of_the_data():
    domain = Text(tokenizer="alphabet", alphabet="(.)")
    (prompt,) = re.findall(r'tokenizer\("(.*)", return', _use(domain, "text", "hf", tokenizer=True))
    assert domain.fast_tokenizer().encode(prompt).ids == [3, 0, 1, 2]
    assert "`PROMPT` is a text in the form of the data below" in _use(FlipFlop(), "flip_flop", "hf", tokenizer=True)


@pytest.mark.parametrize("steps", [0, 8])
def test_the_model_card_names_the_pretrained_model(tmp_path, steps):
    hugging_face_folder(tmp_path / "tiny-llama")
    given = f"model.pretrained={tmp_path / 'tiny-llama'}"
    run, _ = go(configured(tmp_path, "encoding=rope", given, "model.dropout=0", f"trainer.steps={steps}"))
    export(run, format="hf")
    card = (run.path / "export-hf" / "README.md").read_text()
    assert "the pretrained model `tiny-llama` (sha256 of its files' digests: `" in card
    assert ("not trained further" in card) == ("## Training" not in card) == (steps == 0)
    assert ("`valid` selected the checkpoint" in card) == (f"| trainer.steps | `{steps}` |" in card) == (steps > 0)
    assert "trainer.match_steps" not in card
    assert "| test | " in card


@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
def test_a_fresh_process_loads_generates_and_scores(run, tmp_path):
    check_in_a_fresh_process(run, tmp_path)


def check_in_a_fresh_process(run, tmp_path):
    """Export to `tmp_path / "model"`, and compare logits, loss and samples with those of a process without bearings."""
    session = export(run, format="hf", out=str(tmp_path / "model"))
    ids = torch.arange(24).reshape(2, 12) % 11 + 1
    torch.save(ids, tmp_path / "ids.pt")
    (tmp_path / "fresh.py").write_text(FRESH)
    given = [tmp_path / name for name in ("fresh.py", "model", "ids.pt", "out.pt")]
    card = (given[1] / "README.md").read_text()
    (example,) = re.findall(r"## Use\n\n```python\n(.*?)^```", card, re.DOTALL | re.MULTILINE)
    done = subprocess.run(
        [sys.executable, "-I", *given, example.replace("FOLDER", str(given[1]))],
        env={**os.environ, "HF_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "tensor(" in done.stdout
    found = torch.load(given[-1])
    model = session.load(run.best, 12).eval()
    with torch.no_grad():
        logits, nats = model(ids), model.nats(ids[:, :-1], ids[:, 1:])
    assert torch.equal(found["logits"], logits)
    assert torch.allclose(found["loss"], nats / 22)
    assert torch.equal(found["drawn"][:, 12:], sample(model, ids, 6, temperature=0))


OWN = '''
"""An encoding of one's own package."""
from typing import Annotated
from pydantic import Field
from bearings.encodings.rope import RoPE

class Slow(RoPE):
    def __init__(
        self, width: int, heads: int, kv_heads: int, head_dim: int, speed: Annotated[float, Field(gt=0)] = 0.5
    ):
        super().__init__(width, heads, kv_heads, head_dim)
        self.speed = speed

    def encode_query(self, q, positions):
        return super().encode_query(q, positions * self.speed)

    def encode_key(self, k, positions):
        return super().encode_key(k, positions * self.speed)
'''


@pytest.fixture(scope="module")
def trained_with_own(tmp_path_factory):
    place = tmp_path_factory.mktemp("own")
    file = place / "packages" / "theirs" / "slow.py"
    file.parent.mkdir(parents=True)
    file.write_text(OWN)
    (file.parent / "helpers.py").write_text("SPEED = 0.5\n")
    config = configured(place, "trainer.steps=8")
    config["encoding"] = {"_target_": "theirs.slow.Slow", "speed": 0.25}
    with pytest.MonkeyPatch.context() as patch, trusting("theirs"):
        patch.syspath_prepend(file.parents[1])
        yield go(config)[0], file
    for name in [name for name in sys.modules if name.split(".")[0] == "theirs"]:
        del sys.modules[name]


@pytest.fixture
def own(trained_with_own):
    """A run with an encoding of another package, `OWN`, in a file to which tests may add."""
    yield trained_with_own
    trained_with_own[1].write_text(OWN)


@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
def test_an_encoding_of_another_package_is_copied(own, tmp_path):
    run, _ = own
    check_in_a_fresh_process(run, tmp_path)
    assert "class Slow(RoPE)" in (tmp_path / "model" / "bearings_encodings_theirs_slow.py").read_text()


@pytest.mark.parametrize(
    ("line", "message"),
    {
        "from .helpers import SPEED": r"imports from its own package \(`from \.helpers import SPEED`\), and only",
        "import theirs.helpers": r"its file imports from its own package \(`import theirs\.helpers`\)",
        "from bearings.encodings import NoPE": r"transformers: bearings\.encodings\.NoPE is not a module: import names",
        "import bearings.encodings.nope": r"transformers: `import bearings\.encodings\.nope` cannot be rewritten: use",
    }.items(),
)
def test_what_cannot_be_copied_is_named_in_one_line(own, tmp_path, line, message):
    run, file = own
    file.write_text(f"{OWN}\n{line}\n")
    with pytest.raises(UserError, match=message) as raised:
        export(run, format="hf", out=str(tmp_path / "model"))
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "model").exists()
