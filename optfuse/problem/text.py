"""What names and other texts of an instance may hold."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

#: Characters of a name, a graph node or a module path, at most.
LONGEST = 4096


def bad_text(text: str, what: str) -> Iterator[str]:
    """What makes a name unfit for a message of one line."""
    if len(text) > LONGEST:
        yield f"{what} has {len(text)} characters; at most {LONGEST} are read: {shortened(text)}"
    if text.isprintable():
        return
    if is_half_a_pair(text):
        yield f"{what} holds half a surrogate pair, which is no text: {shortened(text)}"
    bad = next((c for c in text if unicodedata.category(c) in ("Cc", "Zl", "Zp")), None)
    if bad is not None:
        yield f"{what} holds the control character {bad!a}: {shortened(text)}"


def is_half_a_pair(text: str) -> bool:
    """Whether a text holds half a surrogate pair: JSON can say it, and no file or terminal takes it."""
    return not text.isascii() and any(unicodedata.category(c) == "Cs" for c in text)


def shortened(text: str) -> str:
    """A text in ASCII, for a message of one line."""
    shown = ascii(text)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
