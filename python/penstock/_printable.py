"""Text from elsewhere as a terminal may have it.

Every Error of this package is made of it, and commands print through it; penstock/core/printable.h
is the same in C++.
"""

_STEERING = (
    *((0x00, 0x08), (0x0B, 0x1F)),  # C0, without tabs and line feeds.
    (0x7F, 0x9F),  # DEL and C1.
    (0x2028, 0x2029),  # Separators of lines and paragraphs.
    (0x202A, 0x202E),  # Embeddings and overrides of direction.
    (0x2066, 0x2069),  # Isolates.
    (0xD800, 0xDFFF),  # Halves of characters: bytes of file names that are no UTF-8.
)
_SPELT_OUT = {
    code: f"\\u{code:04x}" for first, last in _STEERING for code in range(first, last + 1)
}


def printable(text: str) -> str:
    """Spells out what would steer a terminal: "\\u001b" of an escape."""
    return text.translate(_SPELT_OUT)
