"""ReadingPolicy: which prompts may be read in parts, and what an engine is told of it. Pure.

Whether a prompt is read in parts in the end only its engine knows: it has seen how much of it is in memory. What goes
with reading whole alone (slots, images, the length of the context) is settled here before. It must not know texts.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache

from luce.protocol import Reading, ReadingArgs
from luce.supervisor.config import DaemonConfig
from luce.supervisor.requests import GenerateRequest

DEFAULT_FROM = 16_384
"""As luced has it (--prefill-from)."""

_LOG = logging.getLogger("luce.scheduling")


@dataclass(frozen=True, slots=True)
class ReadingPolicy:
    """As the engines were started: what holds where a request says nothing."""

    prefill: Reading = Reading.FULL
    n_from: int = DEFAULT_FROM

    @classmethod
    def of(cls, config: DaemonConfig) -> ReadingPolicy:
        return cls(
            Reading.FULL if config.prefill is None else Reading(config.prefill),
            DEFAULT_FROM if config.prefill_from is None else config.prefill_from,
        )

    def parts_from(self, asked: ReadingArgs, n_ctx: int | None) -> int | None:
        """From so many tokens on a prompt may be read in parts; None: each is read whole."""
        match asked.prefill or self.prefill:
            case Reading.FULL:
                return None
            case Reading.SPARSE:
                return 0
            case Reading.AUTO:
                # What does not fit whole is read in parts, however little of it is new.
                n_from = self.n_from if asked.n_from is None else asked.n_from
                return n_from if n_ctx is None else min(n_from, n_ctx)

    def may_read_parts(self, request: GenerateRequest, n_prompt: int, n_ctx: int | None) -> bool:
        n_first = self.parts_from(request.reading, n_ctx)
        is_whole = bool(request.images) or request.n_prompt_logprobs is not None
        return n_first is not None and n_prompt >= n_first and not is_whole

    def told(self, request: GenerateRequest, *, in_parts: bool) -> ReadingArgs:
        """What the engine gets: nothing where it reads whole by itself. `in_parts`: it may."""
        asked = request.reading
        if in_parts:
            return asked
        if request.images and asked.prefill is Reading.SPARSE:
            _say_once()
        return ReadingArgs() if self.prefill is Reading.FULL else ReadingArgs(prefill=Reading.FULL)


@cache
def _say_once() -> None:
    _LOG.info("prompts with images are read in full, even if a request asks for sparse prefill")
