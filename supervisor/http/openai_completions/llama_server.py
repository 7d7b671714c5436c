"""Legacy completions in llama-server's own words, for clients that speak those: what is asked beside the
AnswerRequests, and what the answers look like.

Pure. An answer is one object a choice, or a stream of them without [DONE]. Must not know where answers come from.

What differs from llama-server (docs/http.md): probabilities are those before sampling (post_sampling_probs is
refused); a prompt comes back as the text that was sent, without the BOS before it; `cache` of prompt_progress is what
had been read when it was first told, because what was in the cache is known at the end only; there is no sampler named
infill, which would join tokens that spell the same.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictStr

from luce.supervisor.http.admin.openapi import COUNT, NUMBER, TEXT, listed, record
from luce.supervisor.http.answering.answer_events import (
    AnswerEvent,
    AnswerFinished,
    ChoiceFinished,
    ContentPiece,
    FinishReason,
    Progress,
    TokenLogprob,
    Usage,
)
from luce.supervisor.http.openai_completions.parse import CompletionBody, ParsedCompletion
from luce.supervisor.http.openai_shared.fields import MAX_TOP_LOGPROBS, refusal, whole
from luce.supervisor.http.openai_shared.shapes import TokenClock, chat_logprobs, encode, timing_fields
from luce.supervisor.http.prompts.infill import Infill
from luce.supervisor.http.sampling_fields import Whole
from luce.supervisor.http.transport.sse import COMMENT

MAX_EXTRA_FILES = 1024
MAX_RESPONSE_FIELDS = 64

_OBJECT = record(
    {},
    index=COUNT,
    content=TEXT,
    tokens=listed(COUNT),
    id_slot=NUMBER,
    stop={"const": True},
    model=TEXT,
    tokens_predicted=COUNT,
    tokens_evaluated=COUNT,
    generation_settings={"type": "object"},
    prompt=TEXT,
    has_new_line={"type": "boolean"},
    truncated={"type": "boolean"},
    stop_type={"enum": ["eos", "word", "limit"]},
    stopping_word=TEXT,
    tokens_cached=COUNT,
    timings={"type": "object"},
    completion_probabilities=listed({"type": "object"}),
)
ANSWER = {"anyOf": [_OBJECT, listed(_OBJECT)]}
"""JSON schema of an answer that is not streamed. Nothing in it is certain: `response_fields` says what it has."""

STOP_TYPES = {
    FinishReason.STOP: "eos",
    FinishReason.TOOL_CALLS: "eos",
    FinishReason.STOP_TEXT: "word",
    FinishReason.LENGTH: "limit",
}


class LlamaCompletionBody(CompletionBody):
    most_temperature: ClassVar[float] = 100  # llama-server knows no bounds, and its clients' sliders go beyond OpenAI's

    n_probs: Whole | None = None
    return_tokens: StrictBool | None = None
    return_progress: StrictBool | None = None
    post_sampling_probs: Any = None
    response_fields: list[StrictStr] = Field(default_factory=list, max_length=MAX_RESPONSE_FIELDS)

    def as_openai(self) -> CompletionBody:
        """The same in OpenAI's words: no limit is as many as fit, and logprobs are how ids of tokens are learnt."""
        n_probs = whole(self.n_probs, "n_probs", 0, MAX_TOP_LOGPROBS)
        if n_probs and self.post_sampling_probs is True:
            why = "'post_sampling_probs' is not supported: 'n_probs' tells probabilities before sampling."
            raise refusal("post_sampling_probs", why, "unsupported_value")
        if self.prompt_logprobs is not None:
            why = "'prompt_logprobs' has no place in this answer: /v1/completions tells them."
            raise refusal("prompt_logprobs", why, "unsupported_value")
        limit = self.n_predict if self.n_predict is not None else self.max_tokens
        words = {
            "n_predict": -1 if limit is None else limit,
            "max_tokens": None,
            "logprobs": self.logprobs if n_probs is None else n_probs,
            "echo": None,
        }
        asked = self.model_copy(update=words)
        asked.logprobs = asked.logprobs or 0
        return asked


class ExtraFile(BaseModel):
    """A further file, which tells the model more."""

    model_config = ConfigDict(extra="allow")

    text: StrictStr
    filename: StrictStr = "tmp"


class InfillBody(LlamaCompletionBody):
    """What stands before a gap and behind it. `prompt` is what is in it already."""

    prompt: StrictStr = ""
    input_prefix: StrictStr
    input_suffix: StrictStr
    n_indent: Whole | None = None
    """Editors' plugins send it with each request. It does nothing here."""
    input_extra: list[ExtraFile] = Field(default_factory=list, max_length=MAX_EXTRA_FILES)

    def as_openai(self) -> CompletionBody:
        asked = super().as_openai()
        asked.prompt, asked.suffix = self.input_prefix, None
        if isinstance(self.samplers, list):
            asked.samplers = [name for name in self.samplers if name != "infill"]
        return asked

    def infill(self, n_ctx: int | None, n_answer: int | None) -> Infill:
        """`n_ctx`: of prompt and answer. An answer without a limit gets a quarter of it."""
        kept = None if n_ctx is None else min(n_ctx // 4 if n_answer is None else n_answer, n_ctx // 2)
        return Infill(
            after=self.input_suffix,
            middle=self.prompt,
            files=[(file.filename, file.text) for file in self.input_extra],
            n_most=None if n_ctx is None or kept is None else n_ctx - max(kept, 1),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaForm:
    """How the answers are written."""

    parsed: ParsedCompletion
    model: str
    n_ctx: int | None
    prompts: Sequence[str]
    """As texts."""
    settings: Mapping[str, Any]
    """What the answers are made with (generation_settings.py)."""
    shows_probabilities: bool
    shows_tokens: bool
    shows_progress: bool
    fields: Sequence[str] = ()
    """Of the last object, as paths (`timings/prompt_n`); none: all."""


def read_llama(
    body: LlamaCompletionBody,
    parsed: ParsedCompletion,
    *,
    model: str,
    prompts: Sequence[str],
    settings: Mapping[str, Any],
    n_ctx: int | None,
) -> LlamaForm:
    """`parsed` is what `body.as_openai()` asks for."""
    return LlamaForm(
        parsed=parsed,
        model=model,
        n_ctx=n_ctx,
        prompts=prompts,
        settings=settings,
        shows_probabilities=bool(body.n_probs or body.logprobs),
        shows_tokens=body.return_tokens is True,
        shows_progress=body.return_progress is True,
        fields=body.response_fields or (),
    )


class LlamaStream:
    """The events of all prompts' answers as llama-server's."""

    def __init__(self, llama: LlamaForm) -> None:
        n_choices = len(llama.parsed.answer_requests) * llama.parsed.n_each
        self._llama = llama
        self._n_generated = [0] * n_choices
        self._n_first_read: dict[int, int] = {}
        self._clocks = [TokenClock() for _ in range(n_choices)]
        self._finished: dict[int, list[ChoiceFinished]] = {}

    def first(self) -> bytes:
        return COMMENT

    def keep_alive(self) -> bytes:
        return COMMENT

    def feed(self, prompt: int, event: AnswerEvent) -> bytes:
        match event:
            case Progress():
                return self._progress(prompt, event)
            case ContentPiece():
                index = prompt * self._llama.parsed.n_each + event.choice
                pieces = _token_by_token(event) if self._llama.shows_probabilities else [event]
                return b"".join(_event(self._piece(index, piece)) for piece in pieces)
            case ChoiceFinished():
                self._finished.setdefault(prompt, []).append(event)
                return b""
            case AnswerFinished():
                ended = self._finished.pop(prompt, [])
                return b"".join(
                    _event(_object(self._llama, prompt, choice, event.usage, shows_text=False)) for choice in ended
                )
            case _:
                return b""

    def _progress(self, prompt: int, event: Progress) -> bytes:
        """Comes before the first token, whether anybody wants to see it or not."""
        n_each = self._llama.parsed.n_each
        index = prompt * n_each
        for clock in self._clocks[index : index + n_each]:
            clock.n_prompt = event.n_total
        if not self._llama.shows_progress:
            return b""
        n_first = self._n_first_read.setdefault(prompt, event.n_done)
        told = self._opening(index, ContentPiece(0, ""))
        told["prompt_progress"] = {"total": event.n_total, "cache": n_first, "processed": event.n_done}
        if self._llama.parsed.shows_timings:
            told["timings"] = self._clocks[index].reading(event.n_done)
        return _event(told)

    def _piece(self, index: int, piece: ContentPiece) -> dict[str, Any]:
        self._n_generated[index] += len(piece.logprobs)
        told = self._opening(index, piece)
        if self._llama.shows_probabilities:
            told["completion_probabilities"] = chat_logprobs(piece.logprobs)["content"]
        if self._llama.parsed.shows_timings:
            told["timings"] = self._clocks[index].token(len(piece.logprobs))
        return told

    def _opening(self, index: int, piece: ContentPiece) -> dict[str, Any]:
        return {
            "index": index,
            "content": piece.text,
            "tokens": _tokens(piece.logprobs),
            "stop": False,
            "id_slot": -1,
            "tokens_predicted": self._n_generated[index],
            "tokens_evaluated": self._clocks[index].n_prompt,
        }


def whole_llama(answers: Sequence[tuple[Sequence[ChoiceFinished], Usage]], llama: LlamaForm) -> Any:
    """One object, or a list where there are several."""
    told = [
        _object(llama, prompt, choice, usage, shows_text=True)
        for prompt, (choices, usage) in enumerate(answers)
        for choice in choices
    ]
    return told[0] if len(told) == 1 else told


def _object(llama: LlamaForm, prompt: int, choice: ChoiceFinished, usage: Usage, *, shows_text: bool) -> dict[str, Any]:
    usage = choice.usage or usage
    told: dict[str, Any] = {
        "index": prompt * llama.parsed.n_each + choice.choice,
        "content": choice.content if shows_text else "",
        "tokens": _tokens(choice.logprobs) if llama.shows_tokens and shows_text else [],
        "id_slot": -1,
        "stop": True,
        "model": llama.model,
        "tokens_predicted": usage.n_generated,
        "tokens_evaluated": usage.n_prompt,
        "generation_settings": llama.settings,
        "prompt": llama.prompts[prompt],
        "has_new_line": "\n" in choice.content,
        "truncated": choice.reason is FinishReason.LENGTH and usage.fills(llama.n_ctx),
        "stop_type": STOP_TYPES[choice.reason],
        "stopping_word": choice.stop_text or "",
        "tokens_cached": usage.n_cached,
        "timings": timing_fields(usage),
        "luce": usage.extension(),
    }
    if llama.shows_probabilities and shows_text:
        told["completion_probabilities"] = chat_logprobs(choice.logprobs)["content"]
    return _named(told, llama.fields) if llama.fields else told


def _named(told: dict[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """What is there of these, by their paths."""
    found: dict[str, Any] = {}
    for path in paths:
        value: Any = told
        for name in path.split("/"):
            if not isinstance(value, dict) or name not in value:
                break
            value = value[name]
        else:
            found[path] = value
    return found


def _token_by_token(piece: ContentPiece) -> Sequence[ContentPiece]:
    """One piece a token, as clients expect of probabilities; whole where the tokens do not spell its text."""
    decode = getincrementaldecoder("utf-8")("replace").decode
    texts = [decode(logprob.chosen.bytes) for logprob in piece.logprobs]
    if len(texts) < 2 or "".join(texts) != piece.text:
        return [piece]
    return [ContentPiece(piece.choice, text, [logprob]) for text, logprob in zip(texts, piece.logprobs, strict=True)]


def _tokens(logprobs: Sequence[TokenLogprob]) -> list[int]:
    return [logprob.chosen.token for logprob in logprobs]


def _event(value: Any) -> bytes:
    return b"data: %b\n\n" % encode(value)
