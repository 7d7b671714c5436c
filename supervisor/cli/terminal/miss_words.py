"""Why not more of a prompt came from memory, in the words of the window (window/static/explain.js). Pure."""

from __future__ import annotations

_WORDS = {
    "no_tail": "more of it is remembered, but this model goes on only from a checkpoint, and none stands there yet",
    "evicted": "more was known once, and had to make room for others",
    "identity": "what is on disk belongs to another model or other cache types",
    "off": "nothing was looked for: the request, or the server's options, said so",
}


def miss_reason(miss: str) -> str:
    """`miss`: as `usage.luce.cache_miss` says it. Empty where there was no more to find; a word of a newer server stays
    as it is."""
    if miss in {"", "none"}:
        return ""
    word, _, position = miss.partition(":")
    if word == "differs_at" and position.isascii() and position.isdigit():
        return f"from token {int(position):,} on the text differs from all that is remembered"
    return _WORDS.get(word, miss)
