"""Pages of the built site in Chromium: no errors, no network, no sideways scrolling, accessible. Needs `make docs`."""

import pytest
from axe import violations
from conftest import REPOSITORY

SITE = REPOSITORY / "site"
PAGES = sorted(path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html") if path.name != "404.html")
CHECKED = (
    "index.html",
    "encodings/index.html",
    "encodings/pope.html",
    "results/index.html",
    "gallery.html",
    "reference/api/operators.html",
)

ABORTED = "ERR_ABORTED"  # by going to the next page

pytestmark = pytest.mark.skipif(not PAGES, reason="the site is not built: run make docs")


BROKEN_IMAGES = """async () => {
    const shown = [...document.images].filter(image => image.offsetParent);
    const decoded = image => (image.loading = "eager", image.decode().then(() => null, () => image.src));
    return (await Promise.all(shown.map(decoded))).filter(Boolean);
}"""


def test_pages_load_offline_and_fit_a_phone(browser):
    page, trouble = browser.new_page(viewport={"width": 390, "height": 844}), []
    page.on("pageerror", lambda error: trouble.append(f"{page.url}: {error}"))
    page.on("requestfailed", lambda failed: ABORTED in failed.failure or trouble.append(f"{page.url}: {failed.url}"))
    page.on("request", lambda made: made.url.startswith(("file:", "data:", "blob:")) or trouble.append(made.url))
    of_encodings = [name for name in PAGES if name.startswith("encodings/")]  # one template
    for name in [name for name in PAGES if name not in of_encodings[1::4] + of_encodings[2::4] + of_encodings[3::4]]:
        page.goto((SITE / name).as_uri())
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            trouble.append(f"{name} scrolls sideways")
        trouble.extend(page.evaluate(BROKEN_IMAGES))
    assert trouble == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", [name for name in CHECKED if name in PAGES])
def test_pages_are_accessible(browser, name, scheme):
    page = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme=scheme)
    page.goto((SITE / name).as_uri())
    assert violations(page) == []
    page.close()
