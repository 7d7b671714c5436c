"""Images as OpenAI's endpoints have them: `data:` URLs. What lies at other URLs is not fetched: a server that did could
be sent to any address that it can reach.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

from luce.supervisor.http.errors import ApiError
from luce.supervisor.http.openai_shared.fields import refusal
from luce.supervisor.http.prompts.message_images import MessageImage


def read_image(value: Any, param: str, otherwise: str | ApiError) -> MessageImage:
    """`value`: of `image_url`, a URL or an object that holds one. What is wrong with it matters only to a model that
    reads images."""
    url = value.get("url") if isinstance(value, dict) else value
    if not isinstance(url, str):
        return MessageImage(refusal(param, f"Missing required parameter: '{param}'.", "invalid_image_url"), otherwise)
    scheme, _, rest = url.partition(":")
    kind, comma, text = rest.partition(",")
    if scheme.lower() != "data" or not comma:
        told = f"Invalid '{param}': this server fetches no URLs. Send the image as a data: URL (base64)."
        return MessageImage(refusal(param, told, "invalid_image_url"), otherwise)
    if not kind.lower().endswith(";base64"):
        told = f"Invalid '{param}': a data: URL of an image is base64."
        return MessageImage(refusal(param, told, "invalid_image_url"), otherwise)
    try:
        return MessageImage(base64.b64decode("".join(text.split()), validate=True), otherwise)
    except (binascii.Error, ValueError):
        return MessageImage(refusal(param, f"Invalid '{param}': it is no base64.", "invalid_image_url"), otherwise)
