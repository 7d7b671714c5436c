"""Why not more of a prompt came from memory, in the words of the window (window/static/explain.js). Pure."""

from __future__ import annotations

_WORDS = {
    "no_tail": "more is cached, but this model can continue only from a checkpoint, and there is none yet",
    "evicted": "more had been cached and was evicted",
    "identity": "the disk cache belongs to another model or other cache types",
    "off": "the request or the server's options disabled the cache",
}


def miss_reason(miss: str) -> str:
    """`miss`: as `usage.luce.cache_miss` says it. Empty where there was no more to find; a word of a newer server stays
    as it is."""
    if miss in {"", "none"}:
        return ""
    word, _, position = miss.partition(":")
    if word == "differs_at" and position.isascii() and position.isdigit():
        return f"first difference at token {int(position):,}"
    return _WORDS.get(word, miss)
