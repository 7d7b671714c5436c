"""AnswerEvents: what comes back for an AnswerRequest, in no dialect's words, in the order in which it forms.

Plain values. A dialect turns them into its own events; it must not know where they come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from luce.protocol import ExpertReads, Speculation
from luce.supervisor.http.prompts.context_edits import AppliedEdit
from luce.supervisor.http.prompts.enforced_schemas import AppliedNote

_Part = TypeVar("_Part", Speculation, ExpertReads)


class FinishReason(StrEnum):
    STOP = "stop"  # the model ended its answer
    STOP_TEXT = "stop_text"  # a stop string came
    LENGTH = "length"  # max_tokens, or the context is full
    TOOL_CALLS = "tool_calls"  # it ended with at least one whole tool call


@dataclass(frozen=True, slots=True)
class Logprob:
    """A token, as bytes, and the natural logarithm of its probability."""

    token: int
    bytes: bytes
    logprob: float
    """nan: nothing comes before it, so that it has none."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token of a text; `likeliest` at its place, best first, if they were asked for."""

    chosen: Logprob
    likeliest: Sequence[Logprob] = ()


@dataclass(frozen=True, slots=True)
class Progress:
    """So much of the prompt has been read (tokens). Comes before everything else, if at all."""

    n_done: int
    n_total: int


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """The prompt's tokens, all of them. Comes before anything of the answer, where it was asked for."""

    tokens: Sequence[TokenLogprob]


@dataclass(frozen=True, slots=True)
class ReasoningPiece:
    choice: int
    text: str


@dataclass(frozen=True, slots=True)
class ContentPiece:
    """`logprobs`: of tokens whose last shown byte has come; their bytes, cut to what is shown, join to the content.
    `text` may be empty where only they come."""

    choice: int
    text: str
    logprobs: Sequence[TokenLogprob] = ()


@dataclass(frozen=True, slots=True)
class ToolCallPiece:
    """More of tool call number `index` (from 0). The first piece of each has its id and name, later ones have not; ids
    are made here where the model writes none."""

    choice: int
    index: int
    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class FinishedToolCall:
    id: str
    name: str
    arguments: str
    """JSON text; cut off where the answer was, if its reason is LENGTH or the model broke off."""
    n_before: int | None = None
    """Characters of the content that stand before it; None: all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceFinished:
    """A choice is complete: no piece of it follows. The whole of it, for those who do not stream."""

    choice: int
    reason: FinishReason
    stop_text: str | None
    """The stop string that came."""
    content: str
    reasoning: str
    tool_calls: Sequence[FinishedToolCall]
    logprobs: Sequence[TokenLogprob]
    """The content's, as its pieces have them."""
    prompt_logprobs: PromptLogprobs | None = None
    usage: Usage | None = None
    """What it took by itself; None: nobody has counted it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What one choice took, or all of an answer together. Times in seconds."""

    n_prompt: int
    n_cached: int
    """Of the prompt: tokens that did not have to be computed."""
    cache_tier: str
    """Where they lay: resident, host, disk, none."""
    cache_miss: str
    """Why it were not more: none, no_tail, evicted, differs_at:N, identity, off (luce.protocol)."""
    n_generated: int
    n_reasoning: int
    """Of these, tokens of reasoning."""
    queue_s: float
    prefill_s: float
    decode_s: float
    n_resumes: int
    """Engines that were lost under it."""
    n_read: int | None = None
    """Of the prompt, where only parts of it were read; None: all of it was."""
    n_restored: int = 0
    """Earlier answers that the client spelled otherwise, and that were in the prompt as the model wrote them."""
    is_live_summary: bool = False
    """Answered from the conversation that it summarises, behind that one's own head."""
    speculation: Speculation | None = None
    """None: the engine does not speculate, or had no step to take."""
    experts: ExpertReads | None = None
    """None: the model is no mixture in two memories."""
    edits: Sequence[AppliedEdit] = ()
    """What was cleared of the prompt's older messages."""
    schema_notes: Sequence[AppliedNote] = ()
    """What of the request's schemas did not hold the answer."""
    n_loops: int = 0
    """Choices that were ended because they went round in circles."""
    key: str | None = None
    """The name of the API key that asked; None: it has none."""

    @property
    def n_seen(self) -> int:
        """Of the prompt: tokens that the model has seen, cached ones among them."""
        return self.n_prompt if self.n_read is None else self.n_read

    def fills(self, n_ctx: int | None) -> bool:
        """Whether the context is full behind the answer."""
        return n_ctx is not None and self.n_seen + self.n_generated >= n_ctx

    def extension(self) -> dict[str, Any]:
        """What no API has a field for, under the same names in each dialect's usage, as `luce`: why the cache did not
        serve more of the prompt, where the time went, what speculation did and where experts were read."""
        return {
            "cache_tier": self.cache_tier,
            "cache_miss": self.cache_miss,
            "restored_answers": self.n_restored,
            "compaction": "live" if self.is_live_summary else None,
            "prefill": "full" if self.n_read is None else "sparse",
            "read_tokens": self.n_read,
            "queue_s": round(self.queue_s, 6),
            "prefill_s": round(self.prefill_s, 6),
            "decode_s": round(self.decode_s, 6),
            "resumes": self.n_resumes,
            "loop": self.n_loops > 0,
            "key": self.key,
            "speculation": None if self.speculation is None else speculation_fields(self.speculation),
            "experts": None if self.experts is None else expert_fields(self.experts),
            "schema_notes": [note.as_json() for note in self.schema_notes],
        }

    def told_of_schemas(self) -> dict[str, Any]:
        """The same notes where an answer that is not streamed has them, for clients that do not look at its usage."""
        return {"luce": {"schema_notes": [note.as_json() for note in self.schema_notes]}} if self.schema_notes else {}


def speculation_fields(speculation: Speculation) -> dict[str, Any]:
    """What was not measured is null."""
    return {
        "drafted": speculation.n_drafted,
        "accepted": speculation.n_accepted,
        "acceptance": _rounded(speculation.acceptance),
        "steps": speculation.n_steps,
        "speculated_steps": speculation.n_speculated_steps,
        "speculated_share": _rounded(speculation.speculated_share),
        "tokens_per_step": _rounded(speculation.tokens_per_step),
        "draft_s": round(speculation.draft_s, 6),
        "verify_s": round(speculation.verify_s, 6),
    }


def expert_fields(experts: ExpertReads) -> dict[str, Any]:
    return {"hits": experts.n_hits, "misses": experts.n_misses, "hit_share": _rounded(experts.hit_share)}


def _rounded(ratio: float | None) -> float | None:
    return None if ratio is None else round(ratio, 4)


def added(parts: Iterable[_Part | None]) -> _Part | None:
    """What several took together; None where there is none of any."""
    known = [part for part in parts if part is not None]
    return sum(known[1:], start=known[0]) if known else None


@dataclass(frozen=True, slots=True)
class AnswerFinished:
    """The last event. Without it the answer was not served to its end, and an error was raised."""

    usage: Usage


Piece = ReasoningPiece | ContentPiece | ToolCallPiece
AnswerEvent = Progress | PromptLogprobs | Piece | ChoiceFinished | AnswerFinished
