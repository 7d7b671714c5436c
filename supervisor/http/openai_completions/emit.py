"""A legacy completion's answer in OpenAI's shapes: the chunks of a stream, or one object.

Pure: events in, bytes out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from luce.supervisor.http.answering.answer_events import (
    AnswerEvent,
    AnswerFinished,
    ChoiceFinished,
    ContentPiece,
    PromptLogprobs,
    TokenLogprob,
    Usage,
)
from luce.supervisor.http.openai_completions.legacy_logprobs import LegacyLogprobs, cut, echoed
from luce.supervisor.http.openai_completions.parse import ParsedCompletion
from luce.supervisor.http.openai_shared.shapes import (
    FINISH_REASONS,
    ChunkStream,
    Envelope,
    added_usage,
    encode,
    new_id,
    prompt_logprobs,
    text_json,
    timing_fields,
    usage_fields,
)

KIND = "text_completion"


class CompletionStream(ChunkStream):
    """The events of all prompts' answers as chunks, each the bytes of a `data:` line and the blank line after it."""

    def __init__(self, parsed: ParsedCompletion, model: str) -> None:
        n_choices = len(parsed.answer_requests) * parsed.n_each
        envelope = Envelope(KIND, model, new_id("cmpl"))
        times = parsed.shows_timings
        super().__init__(envelope, b"text", b'""', n_choices, counts=parsed.includes_usage, times=times)
        self._wish = parsed
        self._n_each = parsed.n_each
        self._logprobs = [LegacyLogprobs() for _ in range(n_choices)]
        self._echoes = [echo for echo in parsed.echoes for _ in range(parsed.n_each)]
        self._usages: dict[int, Usage] = {}

    def first(self) -> bytes:
        """Goes out before the prompts are read: what is echoed of them, unless its logprobs go with it, or a chunk of
        no text."""
        if self._wish.n_echoed_logprobs is not None:
            return self.keep_alive()
        chunks = [self._piece(choice, echo, ()) for choice, echo in enumerate(self._echoes)]
        return b"".join(chunks) or self.keep_alive()

    def feed(self, prompt: int, event: AnswerEvent) -> bytes:
        """The chunks for an event of this prompt's answer; empty where it needs none."""
        match event:
            case ContentPiece():
                return self._timed(self._piece(prompt * self._n_each + event.choice, event.text, event.logprobs))
            case PromptLogprobs():
                return self._echo(prompt, event)
            case ChoiceFinished():
                return self._finish_choice(prompt * self._n_each + event.choice, FINISH_REASONS[event.reason])
            case AnswerFinished():
                self._usages[prompt] = event.usage
                if len(self._usages) < len(self._wish.answer_requests):
                    return b""
                return self._finish(added_usage([self._usages[prompt] for prompt in sorted(self._usages)]))
            case _:
                return b""

    def _echo(self, prompt: int, scored: PromptLogprobs) -> bytes:
        n_likeliest = self._wish.n_echoed_logprobs
        if n_likeliest is None:
            return b""
        text = self._wish.echoes[prompt]
        tokens = echoed(scored, text, n_likeliest)
        first = prompt * self._n_each
        return b"".join(self._piece(choice, text, tokens) for choice in range(first, first + self._n_each))

    def _piece(self, choice: int, text: str, logprobs: Sequence[TokenLogprob]) -> bytes:
        if not text and not logprobs:
            return b""
        told = self._goes_on
        if logprobs:
            shape = encode(self._logprobs[choice].told(logprobs))
            told = b',"logprobs":%b,"finish_reason":null}' % shape + self._end
        return self._begins[choice] + text_json(text) + told


def whole_completion(
    answers: Sequence[tuple[Sequence[ChoiceFinished], Usage]], parsed: ParsedCompletion, model: str
) -> dict[str, Any]:
    usage = added_usage([usage for _, usage in answers])
    choices = [choice for choices, _ in answers for choice in choices]
    return Envelope(KIND, model, new_id("cmpl")).opening() | {
        "choices": [
            _whole_choice(index, choice, parsed.echoes[index // parsed.n_each], parsed)
            for index, choice in enumerate(choices)
        ],
        "usage": usage_fields(usage),
        "timings": timing_fields(usage),
        **usage.told_of_schemas(),
    }


def _whole_choice(index: int, choice: ChoiceFinished, echo: str, parsed: ParsedCompletion) -> dict[str, Any]:
    logprobs, scored = choice.logprobs, choice.prompt_logprobs
    if scored is not None and parsed.n_echoed_logprobs is not None:
        logprobs = [*echoed(scored, echo, parsed.n_echoed_logprobs), *logprobs]
    told: dict[str, Any] = {
        "text": echo + choice.content,
        "index": index,
        "logprobs": LegacyLogprobs().told(logprobs) if parsed.has_logprobs else None,
        "finish_reason": FINISH_REASONS[choice.reason],
    }
    if scored is not None and (n_likeliest := parsed.n_prompt_logprobs) is not None:
        told["prompt_logprobs"] = prompt_logprobs(cut(scored, n_likeliest))
    return told
