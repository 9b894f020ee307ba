"""Every page as Markdown beside its HTML, and llms.txt (llmstxt.org) at the root of the site.

A page that is plain Markdown is given as it is; one that is put together by the build (`{...}` fences) as the builder
`markdown` wrote it, just before, into the folder `markdown` beside the site's.
"""

import os
import re
import shutil
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
FILES = "files"  # where the site has what Markdown pages link to and is no page
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)")
SENTENCE = re.compile(r"(.+?)(?:[.:]\s*$|\.\s|$)", re.DOTALL)
OPTIONAL = "Decisions"  # the section that a reader in a hurry can leave out, by the convention


def is_put_together(text: str) -> bool:
    """Whether a page has directives, which only the build understands."""
    return "```{" in text


def find_outside(text: str, page: Path) -> dict[str, Path]:
    """Links of a page to files outside docs/, and to pictures: as they stand in its text, and where they lead."""
    targets = {link: (page.parent / link).resolve() for link in LINK.findall(text)}
    return {
        link: path
        for link, path in targets.items()
        if path.is_file() and not (path.is_relative_to(DOCS) and path.suffix == ".md")
    }


def publish_source(page: Path, site: Path) -> str:
    """The text of a plain page for the site, with the files that it links to."""
    text = page.read_text("utf-8")
    for link, path in find_outside(text, page).items():
        copy = site / FILES / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
        here = site / page.parent.relative_to(DOCS)
        text = text.replace(f"]({link}", f"]({os.path.relpath(copy, here)}")
    return text


def sections(app: Sphinx) -> dict[str, list[str]]:
    """The navigation: names of pages by caption."""
    trees = app.env.get_doctree(app.config.root_doc).findall(addnodes.toctree)
    return {tree["caption"]: [page for _, page in tree["entries"]] for tree in trees}


def describe(app: Sphinx, page: str) -> str:
    """The first sentence of a page that begins with one, else nothing."""
    section = next(iter(app.env.get_doctree(page).findall(nodes.section)))
    first = next((child for child in section[1:] if not isinstance(child, nodes.Invisible)), None)
    found = SENTENCE.match(first.astext()) if isinstance(first, nodes.paragraph) else None
    return " ".join(found[1].split()) if found else ""


def write_index(app: Sphinx, site: Path) -> list[str]:
    """llms.txt; the pages in its order."""
    root = app.config.root_doc
    lines = [f"# {app.config.project}", "", f"> {describe(app, root)}.", ""]
    lines += [f"- [{app.env.titles[root].astext()}]({root}.md)", ""]
    pages = [root]
    for caption, names in sections(app).items():
        lines += [f"## {'Optional' if caption == OPTIONAL else caption}", ""]
        for name in names:
            about = describe(app, name) if caption != OPTIONAL else ""
            lines.append(f"- [{app.env.titles[name].astext()}]({name}.md)" + (f": {about}" if about else ""))
        lines.append("")
        pages += names
    (site / "llms.txt").write_text("\n".join(lines), "utf-8")
    return pages


def publish(app: Sphinx, error: Exception | None) -> None:
    """Writes all of it, behind the HTML."""
    if error or app.builder.name != "html":
        return
    site, texts = Path(app.outdir), {}
    for name in app.env.found_docs:
        page = Path(app.env.doc2path(name))
        if is_put_together(page.read_text("utf-8")):
            texts[name] = (site.parent / "markdown" / f"{name}.md").read_text("utf-8")
        else:
            texts[name] = publish_source(page, site)
        (site / f"{name}.md").write_text(texts[name], "utf-8")
    order = write_index(app, site)
    (site / "llms-full.txt").write_text("\n".join(texts[name] for name in order), "utf-8")


def link_source(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    """Tells machines of the Markdown beside a page."""
    if doctree is not None:
        name = page.rpartition("/")[2]
        context["metatags"] += f'<link rel="alternate" type="text/markdown" href="{name}.md">\n'


def move_links(app: Sphinx, path: Path, parent: str, content: list[str]) -> None:
    """Links of the README, which stands one folder above, where its parts are shown."""
    del app, path, parent
    content[0] = LINK.sub(lambda link: os.path.relpath(ROOT / link[1], DOCS), content[0])


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("build-finished", publish)
    app.connect("html-page-context", link_source)
    app.connect("include-read", move_links)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
