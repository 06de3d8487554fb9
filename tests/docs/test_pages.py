"""The documentation mentions every encoding, task, domain, experiment, option, folder and study."""

import importlib
import io
import re
from contextlib import contextmanager

import matplotlib.pyplot as plt
import pytest
from conftest import REPOSITORY

pytest.importorskip(
    "latex2mathml", reason="the packages of the documentation are not installed: pip install -e '.[docs]'"
)

from bearings.core.about import MECHANISMS
from bearings.core.options import options_of
from bearings.documentation import encodings, facts, gallery, graph, pictures
from bearings.documentation.api import public
from bearings.documentation.components import write_components
from bearings.documentation.markdown import paragraph
from bearings.documentation.studies import PAGE_OF, overview, summarised, write_studies
from bearings.session.overrides import choices_of
from bearings.session.settings import GIVEN, OWN, Settings, declared, target_of
from bearings.studying.catalogue import studies

DOCS = REPOSITORY / "docs"


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    """The generated reference pages."""
    written = {}

    @contextmanager
    def opened(path, mode):
        with io.StringIO() as file:
            yield file
            written[path] = file.getvalue()

    write_components(opened)
    return written


def test_readme_has_the_table_of_encodings():
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert encodings.readme_with_table(readme) == readme, "run python -m bearings.documentation"


def test_every_encoding_is_documented():
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert {*facts.documented()} == {*choices_of("encoding")}
    table = readme.partition(encodings.BEGIN)[2].partition(encodings.END)[0]
    assert [name for name in choices_of("encoding") if f"`{name}`" not in table] == []
    assert {*encodings.SENTENCES} == {*MECHANISMS}


def test_table_has_parameters_cost_and_properties():
    rows = dict(
        re.findall(
            r"^\| `(\w+)` \|.*?((?: \| [^|]*){3}) \|$",
            encodings.summary_table(map(facts.documented().get, ("rope", "absolute_learned", "fox"))),
            re.MULTILINE,
        )
    )
    assert rows == {
        "rope": " | 0 | 1.00 | relative, window, medium, scaling, LM-Infinite",
        "absolute_learned": " | 1,048,576 (once) | 1.00 | window",  # 2,048 positions of width 512
        "fox": " | 4,104 | 1.00 | relative, window",  # 8 gates of width 512, and their biases
    }


def test_facts_name_only_options_of_the_encoding():
    for name, each in facts.documented().items():
        named = re.findall(r"`encoding\.(\w+)`", str(encodings._facts(each)))
        assert {*named} <= {*each.options}, name


@pytest.mark.parametrize("name", ["carope", "alibi", "shaw", "legendre", "tpe", "swan"])
def test_pictures_can_be_drawn(name):
    figure = pictures.picture_of(facts.documented()[name]).draw("#000000")
    assert all(panel.has_data() for panel in figure.axes)
    plt.close(figure)


@pytest.mark.parametrize(("name", "uniform"), {"cope": True, "nope": True, "rope": False, "rcmha": False}.items())
def test_caption_of_equal_weights_says_so(name, uniform):
    caption = pictures.picture_of(facts.documented()[name]).caption
    assert caption.endswith(pictures.ALIKE) == uniform


@pytest.mark.parametrize(
    ("group", "page"),
    {"task": "tasks", "domain": "domain-options", "experiment": "experiments", "model": "options"}.items(),
)
def test_every_choice_is_documented(pages, group, page):
    heading = "### model={}\n" if group == "model" else "## {}\n"
    missing = [name for name in choices_of(group) if heading.format(name) not in pages[f"reference/{page}.md"]]
    assert missing == []


def test_every_option_is_documented(pages):
    components = [("task", declared(target_of("task", name), "task"), "tasks") for name in choices_of("task")]
    components += [
        ("domain", declared(target_of("domain", name), "domain"), "domain-options") for name in choices_of("domain")
    ]
    components += [(group, kind, "options") for group, kind in OWN.items()] + [("", Settings, "options")]
    for group, kind, page in components:
        for name in options_of(kind):
            key = f"{group}.{name}" if group else name
            assert name in GIVEN.get(group, ()) or f"| `{key}` |" in pages[f"reference/{page}.md"], key


def test_every_domain_is_described():
    text = (DOCS / "reference" / "domains.md").read_text(encoding="utf-8")
    assert [name for name in choices_of("domain") if f"| `{name}` |" not in text] == []


def test_encodings_that_methods_equal_exist():
    text = (DOCS / "reference" / "literature.md").read_text(encoding="utf-8")
    named = {*re.findall(r"`(?:encoding=)?([a-z_]+)[` ]", text)} - {"jsb", "longrope"}
    assert named - {*choices_of("encoding")} == set()


def test_encodings_without_windows_are_named():
    without = {name for name, each in facts.documented().items() if "window" not in each.properties}
    page = (DOCS / "how-to" / "windows.md").read_text(encoding="utf-8")
    assert {*re.findall("`(.+?)`", re.findall("All encodings except (.+?) support it", page, re.DOTALL)[0])} == without


def test_every_folder_is_described():
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    folders = [folder for row in graph.layers() for folder in row]
    assert [folder for folder in folders if f"| `{folder}/` |" not in text or folder not in graph.PURPOSE] == []


def test_every_study_with_records_has_a_page_and_a_link():
    kept = [name for name in studies() if (REPOSITORY / "studies" / name / "runs.parquet").exists()]
    assert summarised() == kept
    assert [name for name in kept if f"[{name}]({name}.md)" not in overview()[1]] == []
    assert {*gallery.SHOWN.values()} <= {*kept}


def test_a_planned_study_is_on_the_site_without_a_link(tmp_path, monkeypatch):
    """mkdocs would refuse the link to its study.yaml."""
    (tmp_path / "README.md").write_text("# Studies\n\nText.\n\n## Planned studies\n\n- [new](new/study.yaml): Why?\n")
    monkeypatch.setattr("bearings.documentation.studies.PAGE", tmp_path / "README.md")
    assert overview() == ("Text.\n\n", "## Planned studies\n\n- `new`: Why?\n")


def test_links_to_studies_work_in_the_repository_and_on_the_site():
    text = (DOCS / "results" / "index.md").read_text(encoding="utf-8")
    linked = PAGE_OF.findall(text)
    assert [name for name in linked if not (REPOSITORY / "studies" / name / "README.md").exists()] == []
    defined = {*re.findall(r"^\[(\w+)\]: ", text, re.MULTILINE)}
    assert defined == {*linked} == {*re.findall(r"\[(\w+)\](?![:(])", text)} - {"toc"}
    written = {}

    @contextmanager
    def opened(path, mode):
        with io.StringIO() if mode == "w" else io.BytesIO() as file:
            yield file
            written[path] = file.getvalue()

    write_studies(opened)
    assert [name for name in linked if f"[{name}]: {name}.md" not in written["results/index.md"]] == []
    assert "make docs" not in written["results/index.md"]
    pages = "\n".join(text for path, text in written.items() if path.endswith(".md"))
    pictures = {f"results/{name}" for name in re.findall(r"\]\(([^)]+\.svg)\)", pages)}
    assert pictures == {path for path in written if path.endswith(".svg")}


def test_every_page_is_in_the_navigation():
    nav = (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    names = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")]
    assert [name for name in names if name not in nav and not name.startswith("results/")] == []


def test_the_api_reference_names_what_exists():
    for name in public():
        module, _, attribute = name.rpartition(".")
        assert getattr(importlib.import_module(module), attribute).__doc__, name


def test_equations_and_code_in_a_paragraph():
    text = paragraph("At $t$ use `a<b`.")
    assert text.startswith("<p>At <math")
    assert text.endswith("</math> use <code>a&lt;b</code>.</p>\n")
