"""What Anthropic's clients get from us only to send it back: signatures of thinking, and ids of tool uses.

Nothing is kept here: a signature carries the reasoning that a client asked not to be shown, so that the next turn has
it, also after a restart. Texts in, texts out; knows no requests.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import zlib

MAX_RESTORED_BYTES = 8 << 20  # of reasoning in all signatures of one request

_SHOWN = "luce1s."
_HIDDEN = "luce1h."
_PREFIX = "toolu_"
_ENCODED_PREFIX = "toolu_luce_"
_PLAIN_ID = re.compile(r"[A-Za-z0-9_-]{1,200}")


class TooMuchReasoningError(Exception):
    """The signatures of a request hold more than any conversation can."""


def signature_of_shown(reasoning: str) -> str:
    """For thinking that the client has as text."""
    return _SHOWN + hashlib.blake2s(reasoning.encode(errors="replace"), digest_size=16).hexdigest()


def signature_of_hidden(reasoning: str) -> str:
    """For thinking that the client did not want to see: it carries the text."""
    return _HIDDEN + base64.urlsafe_b64encode(zlib.compress(reasoning.encode(errors="replace"))).decode()


def reasoning_of(signature: str, limit_bytes: int) -> str:
    """The text that a signature of ours carries; "" for everybody else's. Raises TooMuchReasoningError."""
    if not signature.startswith(_HIDDEN):
        return ""
    inflater = zlib.decompressobj()
    try:
        packed = base64.urlsafe_b64decode(signature[len(_HIDDEN) :])
        # one byte above the limit tells too much from just enough; 0 would mean no limit at all
        text = inflater.decompress(packed, limit_bytes + 1)
        if len(text) > limit_bytes:
            raise TooMuchReasoningError
        return text.decode() if inflater.eof else ""
    except (binascii.Error, zlib.error, ValueError):
        return ""


def tool_use_id(call_id: str) -> str:
    """The id of a tool call as clients know it: of Anthropic's form, and `call_id_of` gives the call's own again."""
    if _PLAIN_ID.fullmatch(call_id) and not call_id.startswith("luce_"):
        return _PREFIX + call_id
    return _ENCODED_PREFIX + call_id.encode(errors="replace").hex()


def call_id_of(identifier: str) -> str:
    """A tool use's id as the model knows it. Ids that others made lose their `toolu_`, in calls and results alike."""
    if identifier.startswith(_ENCODED_PREFIX):
        try:
            return bytes.fromhex(identifier[len(_ENCODED_PREFIX) :]).decode()
        except ValueError:
            return identifier
    return identifier.removeprefix(_PREFIX)
