"""How `make docs` builds the documentation: from docs/ and the docstrings, without a network.

A new page takes a line in index.md; a module of the reference takes a file like the others in reference/.
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_extensions"), str(HERE.parent / "src")]

project = "tenuto"
copyright = "the tenuto authors"  # noqa: A001
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_markdown_builder", "names", "llms"]
exclude_patterns = ["_extensions"]
smartquotes = False
highlight_language = "text"  # where a fence names none

# Markdown pages: links to headings by their text, as GitHub makes them.
myst_heading_anchors = 4

# Docstrings. `names` links what stands in backquotes; an engine need not be there.
default_role = "py:name"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
autodoc_mock_imports = ["torch", "vllm", "triton"]
autodoc_type_aliases = {"Slots": "Slots"}
add_module_names = False
python_maximum_signature_line_length = 110
markdown_anchor_signatures = False

# Every reference has a target, but for those to other projects and to what is said to be private.
nitpicky = True
nitpick_ignore_regex = [
    (r"py:.*", r"(numpy|np|npt|torch|msgspec|collections|enum|pathlib|logging|threading|ctypes|hypothesis)\..*"),
    (r"py:.*", r"tenuto\.(.*\.)?_\w+"),
]
nitpick_ignore = [
    ("py:class", "Slots"),
    ("py:obj", "Device.mark"),
    ("py:obj", "PagedKV"),
    ("py:class", "tenuto.advisor.index.WorkerIndex"),
    ("py:class", "tenuto.advisor.placement.View"),
    ("py:class", "tenuto.events.routers.enginestream.EngineEndpoints"),
    ("py:class", "tenuto.library.core.CacheCore"),
    ("py:class", "tenuto.library.sequence.TokenSequence"),
    ("py:class", "tenuto.memory.formats.KvFormat"),
    ("py:class", "tenuto.memory.mapping.Mapping"),
    ("py:class", "tenuto.memory.registration.Registrations"),
    ("py:class", "tenuto.tiers.disk.runtime.device.Device"),
    ("py:class", "tenuto.tiers.disk.runtime.folders.FolderRuntime"),
    ("py:class", "tenuto.transfers.lanes.device.Landing"),
    ("py:class", "types.Annotated"),
    ("py:class", "0.001"),
    ("py:class", "0.01"),
    ("py:class", "0.1"),
]

html_theme = "furo"
html_title = "tenuto"
html_copy_source = False
html_show_sphinx = False
html_use_index = False
html_domain_indices = False
