"""Image markers: what stands for an image in the texts of messages, so that templates see one piece of text.

A marker names its image by content, so that whatever remembers texts tells images apart, and holds a number that nobody
who writes messages knows: what looks like a marker in a text of theirs is text. Pure.
"""

from __future__ import annotations

import re
import secrets

MARKER_PREFIX = f"<__image_{secrets.token_hex(8)}_"
_END = "__>"
_NAME = 64  # hexadecimal digits of a SHA-256
MARKER_BYTES = len(MARKER_PREFIX) + _NAME + len(_END)
IMAGE_PIECE = b"\0" * MARKER_BYTES

_MARKER = re.compile(f"{re.escape(MARKER_PREFIX)}([0-9a-f]{{{_NAME}}}){re.escape(_END)}")


def image_marker(name: str) -> str:
    """`name`: the SHA-256 of the image's file."""
    return f"{MARKER_PREFIX}{name}{_END}"


def is_image_marker(text: str) -> bool:
    return _MARKER.fullmatch(text) is not None


def images_in(prompt: str) -> list[str]:
    """The names of the images that a rendered prompt holds, in order."""
    return _MARKER.findall(prompt)
