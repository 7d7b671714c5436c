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
    TokenLogprob,
    Usage,
)
from luce.supervisor.http.openai_completions.parse import ParsedCompletion
from luce.supervisor.http.openai_shared.shapes import (
    DONE,
    FINISH_REASONS,
    Envelope,
    added_usage,
    encode,
    finite,
    new_id,
    text_json,
    timing_fields,
    token_text,
    usage_fields,
)

KIND = "text_completion"
_GOES_ON = b',"logprobs":null,"finish_reason":null}'


class CompletionStream:
    """The events of all prompts' answers as chunks, each the bytes of a `data:` line and the blank line after it."""

    def __init__(self, parsed: ParsedCompletion, model: str) -> None:
        envelope = Envelope(KIND, model, new_id("cmpl"))
        n_choices = len(parsed.answer_requests) * parsed.n_each
        self._wish = parsed
        self._n_each = parsed.n_each
        self._head = b"data: " + envelope.head()
        self._end = b'],"usage":null}\n\n' if parsed.includes_usage else b"]}\n\n"
        self._goes_on = _GOES_ON + self._end
        self._begins = [self._head + b'{"index":%d,"text":' % choice for choice in range(n_choices)]
        self._offsets = [0] * n_choices
        self._echoes = [echo for echo in parsed.echoes for _ in range(parsed.n_each)]
        self._n_unfinished = n_choices
        self._last_finish = b""
        self._usages: dict[int, Usage] = {}

    def first(self) -> bytes:
        """Goes out before the prompts are read: what is echoed of them, or a chunk of no text."""
        echoed = [self._piece(choice, echo, ()) for choice, echo in enumerate(self._echoes)]
        return b"".join(echoed) or self.keep_alive()

    def keep_alive(self) -> bytes:
        """A chunk of no text."""
        return self._begins[0] + b'""' + self._goes_on

    def feed(self, prompt: int, event: AnswerEvent) -> bytes:
        """The chunks for an event of this prompt's answer; empty where it needs none."""
        match event:
            case ContentPiece():
                return self._piece(prompt * self._n_each + event.choice, event.text, event.logprobs)
            case ChoiceFinished():
                return self._finish_choice(prompt * self._n_each + event.choice, event)
            case AnswerFinished():
                self._usages[prompt] = event.usage
                return self._finish() if len(self._usages) == len(self._wish.answer_requests) else b""
            case _:
                return b""

    def _piece(self, choice: int, text: str, logprobs: Sequence[TokenLogprob]) -> bytes:
        if not text and not logprobs:
            return b""
        told = self._goes_on
        if logprobs:
            shape = encode(legacy_logprobs(logprobs, self._offsets[choice]))
            told = b',"logprobs":%b,"finish_reason":null}' % shape + self._end
        self._offsets[choice] += len(text)
        return self._begins[choice] + text_json(text) + told

    def _finish_choice(self, choice: int, event: ChoiceFinished) -> bytes:
        """The last one waits for the counts; and an answer that fails has then no finish at all."""
        reason = FINISH_REASONS[event.reason].encode()
        chunk = self._begins[choice] + b'"","logprobs":null,"finish_reason":"%b"}' % reason
        self._n_unfinished -= 1
        if self._n_unfinished == 0:
            self._last_finish = chunk
            return b""
        return chunk + self._end

    def _finish(self) -> bytes:
        usage = added_usage([self._usages[prompt] for prompt in sorted(self._usages)])
        timings = encode(timing_fields(usage))
        done = b"data: %b\n\n" % DONE
        if not self._wish.includes_usage:
            return self._last_finish + b'],"timings":%b}\n\n' % timings + done
        counts = self._head + b'],"usage":%b,"timings":%b}\n\n' % (encode(usage_fields(usage)), timings)
        return self._last_finish + self._end + counts + done


def whole_completion(
    answers: Sequence[tuple[Sequence[ChoiceFinished], Usage]], parsed: ParsedCompletion, model: str
) -> dict[str, Any]:
    usage = added_usage([usage for _, usage in answers])
    choices = [choice for choices, _ in answers for choice in choices]
    return Envelope(KIND, model, new_id("cmpl")).opening() | {
        "choices": [
            {
                "text": parsed.echoes[index // parsed.n_each] + choice.content,
                "index": index,
                "logprobs": legacy_logprobs(choice.logprobs, 0) if parsed.has_logprobs else None,
                "finish_reason": FINISH_REASONS[choice.reason],
            }
            for index, choice in enumerate(choices)
        ],
        "usage": usage_fields(usage),
        "timings": timing_fields(usage),
    }


def legacy_logprobs(logprobs: Sequence[TokenLogprob], offset: int) -> dict[str, Any]:
    """`offset`: characters of the answer before the first token."""
    tokens = [token_text(logprob.chosen) for logprob in logprobs]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    return {
        "tokens": tokens,
        "token_logprobs": [finite(logprob.chosen.logprob) for logprob in logprobs],
        "top_logprobs": [
            {token_text(other): finite(other.logprob) for other in reversed(logprob.likeliest)} for logprob in logprobs
        ],
        "text_offset": offsets,
    }
