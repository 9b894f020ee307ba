"""Lines of a terminal: pieces of text with a style, cut to a width in cells."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from enum import Enum

from tenuto.cli.wording import printable


class Style(Enum):
    """How a piece looks; the value is the parameter of ANSI's SGR."""

    PLAIN = ""
    TITLE = "1"
    FAINT = "2"
    GOOD = "32"
    WARN = "33"
    BAD = "31"
    BAR = "36"


Piece = tuple[str, Style]
Line = tuple[Piece, ...]
Columns = tuple[tuple[str, int], ...]
"""(name, width) of each, the width negative for what stands at the right of its column."""

CUT = "…"
FULL, FREE = "█", "░"
_ASCII = str.maketrans({CUT: "~", FULL: "#", FREE: "-", "µ": "u"})


def width_of(text: str) -> int:
    """Cells that a text takes: two for wide letters, none for what stands over the one before."""
    return sum(_cells(letter) for letter in text)


def fit(text: str, width: int, *, is_right: bool = False) -> str:
    """A text in exactly `width` cells: cut, or with spaces behind it, or before it."""
    text = cut(text, width)
    room = " " * (width - width_of(text))
    return room + text if is_right else text + room


def cut(text: str, width: int) -> str:
    """At most `width` cells of a text, which has no letter left that moves the cursor."""
    text = printable(text)
    if width_of(text) <= width:
        return text
    kept, n_cells = "", 1
    for letter in text:
        n_cells += _cells(letter)
        if n_cells > width:
            break
        kept += letter
    return kept + CUT if width > 0 else ""


def cut_line(line: Line, width: int) -> Line:
    """At most `width` cells of a line, without spaces at its end."""
    pieces: list[Piece] = []
    for text, style in line:
        kept = cut(text, width)
        width -= width_of(kept)
        if kept:
            pieces.append((kept, style))
        if kept != printable(text):
            break
    while pieces and pieces[-1][0].isspace():
        pieces.pop()
    if pieces and pieces[-1][1] is not Style.BAR:
        pieces[-1] = (pieces[-1][0].rstrip(), pieces[-1][1])
    return tuple(pieces)


def plain(line: Line) -> str:
    """Without styles, and without letters that would move the cursor."""
    return printable("".join(text for text, _ in line)).rstrip()


def coloured(line: Line) -> str:
    """With ANSI's codes, and without letters that would move the cursor."""
    pieces = ((printable(text), style.value) for text, style in line)
    return "".join(f"\x1b[{code}m{text}\x1b[0m" if code else text for text, code in pieces)


def in_ascii(text: str) -> str:
    """For a terminal that has no other letters: those of ours by others, in as many cells."""
    return text.translate(_ASCII)


def kept(columns: Columns, first_to_go: Sequence[str], room: int) -> Columns:
    """Columns of a table for `room` cells: while they need more, one goes, in this order; what is left may be cut."""
    for name in first_to_go:
        if sum(abs(width) for _, width in columns) <= room:
            break
        columns = tuple(column for column in columns if column[0] != name)
    return columns


def row(cells: Sequence[tuple[str, int]], style: Style = Style.PLAIN) -> Line:
    """A row of a table: (text, width), negative for what stands at the right of its column."""
    texts = [fit(text, width) if width > 0 else " " + fit(text, -width - 1, is_right=True) for text, width in cells]
    return (("".join(texts), style),)


def bar(share: float, width: int) -> Line:
    """How full something is; all of it is drawn full only where there is no room left."""
    n_full = int(min(1.0, max(0.0, share)) * width)
    return ((FULL * n_full, Style.BAR), (FREE * (width - n_full), Style.FAINT))


def _cells(letter: str) -> int:
    if unicodedata.combining(letter):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1
