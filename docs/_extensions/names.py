"""Names in docstrings and signatures lead to where they are documented.

Docstrings write names in single backquotes. One in capitals and small letters (`StoreError`, `Pool.match`) has to be
documented, in whatever module; any other is code.
"""

import ast
import builtins
import inspect
import re
from collections.abc import Iterator
from enum import Enum
from pydoc import locate
from typing import Any

from docutils import nodes
from msgspec import Struct
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.domains.python import PyXRefRole
from sphinx.environment import BuildEnvironment
from sphinx.ext.autodoc.mock import mock
from sphinx.pycode import ModuleAnalyzer
from sphinx_markdown_builder.translator import MarkdownTranslator

LONG = 100
CLASS = re.compile(r"[A-Z]\w*[a-z]\w*(\.\w+)*")


class Name(PyXRefRole):
    """What stands in single backquotes in a docstring."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """A reference to a class or what is in it, or code."""
        if CLASS.fullmatch(self.text) and not hasattr(builtins, self.text):
            return super().run()
        return [nodes.literal(self.rawtext, self.text)], []

    def process_link(
        self, env: BuildEnvironment, refnode: nodes.Element, has_explicit_title: bool, title: str, target: str
    ) -> tuple[str, str]:
        """Looked for in all modules, the own one first."""
        title, target = super().process_link(env, refnode, has_explicit_title, title, target)
        refnode["reftype"] = "obj"
        refnode["refspecific"] = True
        return title, target


def find_elsewhere(
    app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, contnode: nodes.TextElement
) -> nodes.Node | None:
    """A type is documented where users import it from, and named by where it is defined."""
    if node.get("refdomain") != "py":
        return None
    domain, target = env.domains.python_domain, node["reftarget"]
    last = target.rpartition(".")[2]
    same = [name for name in domain.objects if name.rpartition(".")[2] == last and not domain.objects[name].aliased]
    if "." in target:
        with mock(app.config.autodoc_mock_imports):
            same = [name for name in same if locate(name) is locate(target) is not None]
    if len(same) != 1:
        return None
    return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", same[0], node, contnode)


def choose_members(app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """The values of an enumeration are shown even without a text; the fields of a tuple stand in its signature."""
    if isinstance(obj, Enum):
        return False
    return True if type(obj).__name__ == "_tuplegetter" else None


def reword_class(cls: type, signature: str | None) -> str | None:
    """`(Protocol)`, not a constructor that nobody calls; settings with their defaults alone."""
    if getattr(cls, "_is_protocol", False):
        return "(Protocol)"
    if issubclass(cls, Enum):
        return "(Enum)"
    if issubclass(cls, Struct):
        fields = inspect.signature(cls)
        return str(fields.replace(parameters=[f.replace(annotation=f.empty) for f in fields.parameters.values()]))
    return signature


def reword_signature(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None] | None:
    """What a reader needs of a signature, in words that parse; of a contract's test, nothing."""
    if name.rpartition(".")[2].startswith("test_"):
        return "", None
    if what == "class" and isinstance(obj, type):
        signature = reword_class(obj, signature)
    if signature is None:
        return None
    signature = signature.replace("<factory>", "...")
    return re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", signature), returns


def find_texts(imported: ast.ImportFrom) -> Iterator[tuple[tuple[str, str], list[str]]]:
    """The texts of what is imported, without values that are too long to read."""
    texts = ModuleAnalyzer.for_module(imported.module).find_attr_docs()
    for key in (("", alias.name) for alias in imported.names):
        if key in texts:
            is_long = len(repr(locate(f"{imported.module}.{key[1]}"))) > LONG
            yield key, texts[key] + [":meta hide-value:"] * is_long


def adopt_texts(app: Sphinx, env: BuildEnvironment, pages: list[str]) -> None:
    """Constants and types that a package hands on have their texts elsewhere; Sphinx looks in the package alone."""
    for page in sorted(name for name in pages if name.startswith("reference/")):
        for package in re.findall(r"automodule:: (\S+)", env.doc2path(page).read_text("utf-8")):
            with mock(app.config.autodoc_mock_imports):
                own = ModuleAnalyzer.for_module(package)
                own.analyze()
                for node in ast.parse(own.code).body:
                    if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("tenuto."):
                        own.attr_docs |= dict(find_texts(node))


def shorten_contents(app: Sphinx, env: BuildEnvironment) -> None:
    """The contents of a page have its classes, not what is in them: that is long to read, and slow to build."""
    for contents in env.tocs.values():
        for entry in list(contents.findall(nodes.list_item)):
            link = next(iter(entry.findall(nodes.reference)))
            if link["anchorname"].startswith("#tenuto."):
                entry[:] = [child for child in entry if not isinstance(child, nodes.bullet_list)]


class Translator(MarkdownTranslator):
    """Of sphinx-markdown-builder, with the star before arguments that have to be named."""

    def visit_abbreviation(self, node: nodes.Element) -> None:
        """Its text alone."""

    def depart_abbreviation(self, node: nodes.Element) -> None:
        """Nothing to close."""


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_role_to_domain("py", "name", Name())
    app.connect("env-before-read-docs", adopt_texts)
    app.connect("env-updated", shorten_contents)
    app.connect("missing-reference", find_elsewhere)
    app.connect("autodoc-skip-member", choose_members)
    app.connect("autodoc-process-signature", reword_signature)
    app.set_translator("markdown", Translator, override=True)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
