"""report/index.html in a real headless Chromium: nothing is fetched, nothing fails, every image and sound is there."""

import io
import shutil
from pathlib import Path

import pretty_midi
import pytest
from hydra import compose, initialize_config_dir
from report_support import DELTA, make_run, mechanisms
from rich.console import Console

from bearings.session.command import Command
from bearings.session.configuration import CONFIGS, build, resolve

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
WIDTHS = {"desktop": (1280, 900), "phone": (390, 844)}


def chorale(stem):
    music = pretty_midi.PrettyMIDI()
    voice = pretty_midi.Instrument(0, name="soprano")
    voice.notes = [pretty_midi.Note(80, 60 + 2 * i, i / 2, i / 2 + 0.5) for i in range(8)]
    music.instruments.append(voice)
    music.write(str(stem.with_suffix(".mid")))


@pytest.fixture(scope="module")
def page_file(tmp_path_factory) -> Path:
    """A page with music, DNA, text that would break it if it were not escaped, and a run that failed."""
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


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        try:
            # Debian's Chromium where there is one; else the one that playwright brings.
            found = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        except playwright.Error as error:
            pytest.skip(f"no Chromium can be started: {str(error).splitlines()[0]}")
        yield found
        found.close()


@pytest.fixture(params=WIDTHS)
def page(request, browser, page_file):
    width, height = WIDTHS[request.param]
    opened = browser.new_page(viewport={"width": width, "height": height})
    opened.trouble, opened.requests = [], []
    opened.on("console", lambda message: opened.trouble.append(message.text))
    opened.on("pageerror", lambda error: opened.trouble.append(str(error)))
    opened.on("requestfailed", lambda failed: opened.trouble.append(failed.url[:80]))
    opened.on("request", lambda made: made.url.startswith("data:") or opened.requests.append(made.url))
    opened.goto(page_file.as_uri())
    opened.wait_for_load_state("networkidle")
    yield opened
    opened.close()


def test_no_errors_no_network_every_image_shown_and_no_sideways_scrolling(page, page_file):
    assert page.trouble == []
    assert page.requests == [page_file.as_uri()]
    images = page.evaluate("[...document.images].map(i => [i.complete && i.naturalWidth > 0, i.width > 50, !!i.alt])")
    assert len(images) == 14  # 11 plots and 3 piano rolls
    assert all(all(each) for each in images)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_music_sounds_and_other_media_read_as_they_are(page):
    sounds = page.evaluate("[...document.querySelectorAll('audio')].map(a => [a.readyState > 0, a.duration, a.error])")
    assert len(sounds) == 3
    for ready, seconds, error in sounds:
        assert ready
        assert error is None
        assert seconds == pytest.approx(5, abs=0.3)  # four of music, one to fade
    assert page.locator(".sample .A").count() == 3 * 1200 * 2 // 10
    assert page.get_by_text('throw "text"').count() == 1
    assert page.get_by_text("the first 1200 of 2000 bases").count() == 3
    assert page.get_by_text("step 20 of 20").count() == 1


def test_a_click_on_a_heading_sorts(page):
    table = page.locator("table.sortable").first
    column = [cell.strip() for cell in table.locator("th").all_inner_texts()].index("nats/token")

    def figures():
        return [float(cell) for cell in table.locator(f"tbody td:nth-child({column + 1})").all_inner_texts()]

    head = table.locator("th").nth(column)
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert figures() == sorted(figures())
    head.locator("button").press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    assert figures() == sorted(figures(), reverse=True)


def test_manifests_open(page):
    assert page.locator("details").count() == 19  # the unfinished run has one too
    page.locator("summary").first.click()
    assert '"sha256"' in page.locator("details pre").first.inner_text()
