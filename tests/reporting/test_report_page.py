"""report/index.html in headless Chromium: accessible, readable at two widths, without network or errors."""

import io
import re
from itertools import pairwise
from pathlib import Path

import pretty_midi
import pytest
from axe import violations
from hydra import compose, initialize_config_dir
from report_support import DELTA, make_run, mechanisms
from rich.console import Console

from bearings.session.command import Command
from bearings.session.configuration import build, resolve
from bearings.session.settings import CONFIGS

WIDTHS = {"desktop": (1280, 900), "phone": (390, 844)}


def chorale(stem):
    music = pretty_midi.PrettyMIDI()
    voice = pretty_midi.Instrument(0, name="soprano")
    voice.notes = [pretty_midi.Note(80, 60 + 2 * i, i / 2, i / 2 + 0.5) for i in range(8)]
    music.instruments.append(voice)
    music.write(str(stem.with_suffix(".mid")))


@pytest.fixture(scope="module")
def page_file(tmp_path_factory) -> Path:
    """A page with music, DNA, text that must be escaped, and an unfinished run."""
    folder = tmp_path_factory.mktemp("report")
    for encoding in ("rope", "pope", "path"):
        for seed in (0, 1, 2):
            path = make_run(folder / "runs", encoding, seed)
            chorale(path / "samples" / "sample-0")
            make_run(folder / "runs", encoding, seed, domain="genome", units=("base",))
    for path in folder.glob("runs/*/pope/*"):
        mechanisms(
            path, "delta", ("layer", "head", "element", "delta"), [(0, 0, i, i / 2 - 7) for i in range(16)], DELTA
        )
    for path in folder.glob("runs/genome/*/*"):
        (path / "samples" / "sample-0.fa").write_text(">sample-0\n" + "ACGTNACGTT" * 200 + "\n")
    (path,) = folder.glob("runs/genome/path/*-s0")
    (path / "samples" / "sample-1.txt").write_text('</pre><script>throw "text"</script> & < >')
    make_run(folder / "runs", "nope", 0, finished=False)
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        overrides = ["task=report", f"runs={folder / 'runs'}", f"task.out={folder / 'report'}"]
        plain = resolve(compose("config", overrides=overrides))
    plain["names"] = {"domain": "jsb", "encoding": "pope", "model": "small"}
    build(plain["task"], "task")(Command(plain, Console(file=io.StringIO())))
    return folder / "report" / "index.html"


@pytest.fixture(params=[("desktop", "light"), ("desktop", "dark"), ("phone", "light")], ids="-".join)
def page(request, browser, page_file):
    name, scheme = request.param
    width, height = WIDTHS[name]
    opened = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    opened.trouble, opened.requests, opened.is_phone = [], [], name == "phone"
    opened.on("console", lambda message: opened.trouble.append(message.text))
    opened.on("pageerror", lambda error: opened.trouble.append(str(error)))
    opened.on("requestfailed", lambda failed: opened.trouble.append(failed.url[:80]))
    opened.on("request", lambda made: made.url.startswith("data:") or opened.requests.append(made.url))
    opened.goto(page_file.as_uri())
    opened.wait_for_load_state("networkidle")
    yield opened
    opened.close()


def test_page_needs_no_network_and_never_scrolls_sideways(page, page_file):
    assert page.trouble == []
    assert page.requests == [page_file.as_uri()]
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    images = page.evaluate("[...document.images].map(i => [i.complete && i.naturalWidth > 0, i.width > 50, !!i.alt])")
    assert len(images) == 12  # 11 plots and a piano roll, which is the same for all models
    assert all(all(each) for each in images)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_page_is_accessible(page):
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert violations(page) == []
    levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3')].map(each => +each.tagName[1])")
    assert levels[:2] == [1, 2]
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_results_come_first(page):
    assert page.locator("h2").first.inner_text() == "Results"
    answers = page.locator("dl.answers")
    assert answers.locator("dt").all_inner_texts() == ["genome", "jsb"]
    assert re.search(r"pope is lower than rope by 5\.\d % \(4\.\d to 5\.\d\), 3 seeds", answers.inner_text())


def test_difference_interval_and_verdict_are_visible(page):
    row = page.locator("section", has=page.locator("#jsb")).locator("tbody tr").first
    for key in ("difference", "difference_interval", "verdict"):
        box = row.locator(f".{key}").bounding_box()
        assert 0 <= box["x"] < box["x"] + box["width"] <= page.viewport_size["width"]


def test_samples_show_music_bases_and_text(page):
    assert page.locator("details.sample[open]").count() == 2  # the first of each domain
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    sounds = page.evaluate("[...document.querySelectorAll('audio')].map(a => [a.readyState > 0, a.duration, a.error])")
    assert len(sounds) == 1
    for ready, seconds, error in sounds:
        assert ready
        assert error is None
        assert seconds == pytest.approx(5, abs=0.3)  # four of music, one to fade
    assert page.locator(".sample .A").count() == 1200 * 2 // 10
    assert page.get_by_text('throw "text"').count() == 1
    assert page.get_by_text("the first 1200 of 2000 bases").count() == 1
    assert page.get_by_text("Identical: sample-0.fa (pope, seed 0), sample-0.fa (rope, seed 0).").count() == 1
    assert page.get_by_text("step 20 of 20").count() == 1


def test_headings_sort_a_table(page):
    if page.is_phone:
        assert not page.locator("thead").first.is_visible()  # rows are cards there
        return
    table = page.locator("table.sortable").first
    column = [cell.strip() for cell in table.locator("thead th").all_inner_texts()].index("nats/token")

    def figures():
        return [float(cell) for cell in table.locator("tbody td.nats_per_token").all_inner_texts()]

    head = table.locator("thead th").nth(column)
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert figures() == sorted(figures())
    head.locator("button").press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    assert figures() == sorted(figures(), reverse=True)


def test_manifests_open_with_the_keyboard(page):
    manifests = page.locator("section", has=page.locator("#manifests"))
    assert manifests.locator("details details").count() == 19  # the unfinished run has one too
    manifests.locator("summary").nth(0).press("Enter")
    manifests.locator("summary").nth(1).press("Enter")
    assert '"sha256"' in manifests.locator("pre").first.inner_text()
