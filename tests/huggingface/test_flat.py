"""The code of exported models: files that import only each other and what `transformers` needs too."""

import ast
import re
import sys

import pytest
from encodings_support import ENCODINGS

from bearings.huggingface.code import CATALOGUE, NAMES, OPTIONS, catalogue
from bearings.huggingface.flat import flattened
from bearings.huggingface.names import MODEL
from bearings.lightning_modules.options import ModelOptions

PACKAGES = {"torch", "numpy", "transformers"}


@pytest.fixture(scope="module")
def code():
    """The code of a model with all encodings."""
    classes = {name: kind.__name__ for name, kind in ENCODINGS.items()} | {"pattern": "LayerPattern"}
    return flattened("huggingface.modelling", NAMES, {CATALOGUE: catalogue(classes), OPTIONS: "class Options: ...\n"})


def test_files_import_only_each_other_and_required_packages(code):
    for name, source in code.items():
        tree = ast.parse(source)
        optional = {each for node in ast.walk(tree) if isinstance(node, ast.Try) for each in ast.walk(node)}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.level:
                assert node.level == 1
                modules = [node.module] if node.module else [alias.name for alias in node.names]
                assert {f"{module}.py" for module in modules} <= code.keys(), name
            elif isinstance(node, ast.Import | ast.ImportFrom) and node not in optional:
                modules = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
                assert {module.split(".")[0] for module in modules} <= PACKAGES | sys.stdlib_module_names, name
        assert "Annotated[" not in source
        assert '"bearings::' not in source


def test_exported_models_do_not_need_several_processes(code):
    """Some builds of PyTorch have no `torch.distributed`."""
    assert not [name for name, source in code.items() if re.search(r"import.*\bdistributed\b", source)]


def test_comments_and_code_stay(code):
    source = code["bearings_encodings_rope.py"]
    assert "# 1 after `drop`, so that checkpoints contain it" in source
    assert "from .bearings_encodings_options_rotation import RoPEOptions\n" in source
    assert "from .bearings_core_about import About, Paper\n" in source


@pytest.mark.parametrize(
    ("source", "reason"),
    {
        "from ...core.about import About": "leads out of this project",
        "from . import path": "copies only modules of which some file imports names",
    }.items(),
)
def test_imports_without_a_flat_form_are_refused(source, reason):
    with pytest.raises(ValueError, match=reason):
        flattened("encodings.rope", {}, {"encodings.rope": source, "encodings.path": ""})


def test_every_option_of_the_model_is_exported():
    assert MODEL.keys() == set(ModelOptions.__dataclass_fields__) - {"pretrained"}  # where the training began
