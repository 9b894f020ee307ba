"""The documentation as it was built by `make docs`: what stands in build/docs."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

SITE = Path(__file__).resolve().parent.parent / "build" / "docs"
NOT_PAGES = ("search",)  # made by the theme, without a source
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)

pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(not (SITE / "llms.txt").is_file(), reason="run `make docs` before"),
]


def pages(ending: str) -> list[Path]:
    """All pages, without their ending; copies of files that pages link to are none."""
    found = (path.relative_to(SITE).with_suffix("") for path in SITE.rglob(f"*{ending}"))
    return sorted(page for page in found if page.parts[0] not in ("files", "_static", *NOT_PAGES))


class Loaded(HTMLParser):
    """What a browser fetches to show a page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "link" and given.get("rel") not in ("alternate", "next", "prev", "index", "search"):
            self.found.append(given["href"] or "")
        elif tag != "a" and given.get("src"):
            self.found.append(given["src"] or "")


def test_every_page_has_its_markdown_beside_it():
    assert pages(".md") == pages(".html")
    assert len(pages(".md")) > 20


def test_llms_txt_begins_as_the_convention_says_and_lists_every_page_once():
    text = (SITE / "llms.txt").read_text("utf-8")
    assert re.match(r"# tenuto\n\n> \S.+\.\n\n", text)
    listed = re.findall(r"^- \[.+?\]\((\S+)\.md\)(?:: \S.*)?$", text, re.MULTILINE)
    assert sorted(Path(name) for name in listed) == pages(".md")
    assert "## Optional" in text


def test_llms_full_txt_has_every_page():
    full = (SITE / "llms-full.txt").read_text("utf-8")
    assert [page for page in pages(".md") if (SITE / f"{page}.md").read_text("utf-8") not in full] == []


def test_links_between_markdown_pages_lead_somewhere():
    lost = []
    for page in (SITE / f"{name}.md" for name in pages(".md")):
        links = LINK.findall(FENCE.sub("", page.read_text("utf-8")))
        lost += [f"{page.name}: {link}" for link in links if not (page.parent / link).is_file()]
    assert lost == []


def test_no_markdown_page_has_what_only_the_build_understands():
    assert [page for page in pages(".md") if "```{" in (SITE / f"{page}.md").read_text("utf-8")] == []


def test_showing_a_page_takes_nothing_from_the_network():
    for page in SITE.rglob("*.html"):
        for name in Loaded(page).found:
            assert (page.parent / name.partition("?")[0]).is_file(), f"{page.name} loads {name}"
    for sheet in SITE.rglob("*.css"):
        assert not re.search(r"@import|url\(['\"]?(?:https?:)?//", sheet.read_text("utf-8")), sheet
