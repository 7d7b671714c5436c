"""EngineInfo: what an engine has said of itself in its ready line, as numbers.

Read from the handshake rather than assumed: capacities are the daemon's, and an older one has fewer of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from luce.protocol import ReadyLine


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """None where the engine does not say."""

    model: str
    identity: str
    lanes: int
    ctx: int | None
    n_vocab: int | None
    pool: int  # cells
    slots: int
    host_bytes: int
    disk_bytes: int = 0  # that files may take
    page_tokens: int
    page_bytes: int | None  # said by engines that keep pages: only they take marks
    tail_bytes: int
    reuses: bool  # whether it goes on from prefixes that it knows
    kvflash: int | None = None  # tokens of a pool that texts may outgrow; None: a text has to fit the pool
    kvflash_least: int | None = None  # the smallest such pool that works
    has_images: bool = False  # prompts may hold images
    n_embedding: int | None = None  # values of a vector; None: it gives tokens, no vectors
    gives_logits: bool = False  # of a reranker: its scores are logits, not probabilities
    speculation: str = "none"  # where its drafts come from: ngram, ngram+dflash, …

    @classmethod
    def of(cls, ready: ReadyLine) -> Self:
        fields = dict(ready.fields)

        def number(name: str) -> int | None:
            value = fields.get(name, "")
            return int(value) if value.isascii() and value.isdigit() else None

        return cls(
            model=fields.get("model", ""),
            identity=fields.get("identity", ""),
            lanes=max(number("lanes") or 1, 1),
            ctx=number("ctx"),
            n_vocab=number("vocab"),
            pool=number("pool") or 0,
            slots=number("slots") or 0,
            host_bytes=number("host") or 0,
            disk_bytes=number("disk") or 0,
            page_tokens=max(number("page") or 64, 1),
            page_bytes=number("page_bytes"),
            tail_bytes=number("tail_bytes") or 0,
            reuses="page_bytes" in fields and fields.get("prefix_cache") != "off",
            kvflash=number("kvflash"),
            kvflash_least=number("kvflash_least"),
            has_images=fields.get("images") == "1",
            n_embedding=number("embedding"),
            gives_logits=fields.get("scores") == "logit",
            speculation=fields.get("spec", "none"),
        )

    @property
    def slot_bytes(self) -> int:
        """What slots may hold: half of the host's memory, or of the pool where there is none. The engine needs the
        other half to choose by itself: it knows better who comes back.

        Where running texts outgrow the pool they need host memory too, and fail where slots have all of it: slots leave
        them at least room for the longest text."""
        if self.kvflash is not None and self.page_bytes is not None:
            longest_bytes = -(-(self.ctx or 0) // self.page_tokens) * self.page_bytes
            return max(min(self.host_bytes // 2, self.host_bytes - longest_bytes), 0)
        if self.host_bytes > 0 or self.page_bytes is None:
            return self.host_bytes // 2
        return self.pool // self.page_tokens // 2 * self.page_bytes

    @property
    def smaller_pool(self) -> int | None:
        """What the pool is to be after a death for want of memory: a quarter less, in whole pages, but what the engine
        needs at the least. None: it cannot be smaller, or texts have to fit it.

        A device that has no memory left for a computation ends the engine (ggml's CUDA pool does), which could only
        start again and come to the same. Where texts may be longer than the pool, a smaller one leaves more."""
        if self.kvflash is None or self.kvflash_least is None or self.kvflash <= self.kvflash_least:
            return None
        n_less = (self.kvflash - self.kvflash // 4) // self.page_tokens * self.page_tokens
        return max(n_less, self.kvflash_least)
