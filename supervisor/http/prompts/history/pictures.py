"""Pictures as clients spell them: OpenAI's URLs, Anthropic's sources, MCP's data.

What lies at other URLs than `data:` is not fetched: a server that did could be sent to any address that it can reach.
Pure.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from luce.supervisor.http.prompts.message_images import MessageImage, Unreadable

KINDS = frozenset({"image_url", "input_image", "image", "output_image", "computer_screenshot"})

_CODE = "invalid_image_url"


def picture_of(part: Mapping[str, Any], place: str, *, is_new: bool) -> MessageImage:
    """REQUIRES: the part's type is one of KINDS. `place`, `is_new`: as MessageImage's."""
    return MessageImage(_file_of(part), place, is_new=is_new)


def _file_of(part: Mapping[str, Any]) -> bytes | Unreadable:
    if "source" in part:
        return _of_source(part["source"])
    if isinstance(data := part.get("data"), str):
        return _decoded(data, ".data")
    key = "image_url" if "image_url" in part or "image" not in part else "image"
    value = part.get(key)
    return _of_url(value.get("url") if isinstance(value, dict) else value, f".{key}")


def _of_source(source: Any) -> bytes | Unreadable:
    if not isinstance(source, dict):
        return _fault("the source is missing", ".source")
    if source.get("type") != "base64":
        return _fault("this server fetches no images: send their base64", ".source.type")
    return _decoded(source.get("data"), ".source.data")


def _of_url(url: Any, below: str) -> bytes | Unreadable:
    if not isinstance(url, str):
        return _fault("the URL is missing", below)
    scheme, _, rest = url.partition(":")
    kind, comma, text = rest.partition(",")
    if scheme.lower() != "data" or not comma:
        return _fault("this server fetches no URLs: send the image as a data: URL (base64)", below)
    if not kind.lower().endswith(";base64"):
        return _fault("a data: URL of an image is base64", below)
    return _decoded(text, below)


def _decoded(text: Any, below: str) -> bytes | Unreadable:
    """Also of URLs' alphabet, and without padding: many encoders leave it out."""
    if not isinstance(text, str):
        return _fault("the base64 is missing", below)
    letters = "".join(text.split()).rstrip("=").translate({ord("-"): "+", ord("_"): "/"})
    try:
        return base64.b64decode(letters + "=" * (-len(letters) % 4), validate=True)
    except (binascii.Error, ValueError):
        return _fault("it is no base64", below)


def _fault(why: str, below: str) -> Unreadable:
    return Unreadable("image", why, below=below, code=_CODE)
