"""What the answers of OpenAI's two generating endpoints have in common: ids, usage, timings, logprobs, text as JSON.

Pure: values in, bytes, dictionaries or a response out. Must not know what was asked.
"""

from __future__ import annotations

import json
import math
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from json.encoder import encode_basestring_ascii
from typing import Any

from aiohttp import web

from luce.supervisor.http.admin.openapi import COUNT, NUMBER, TEXT, listed, record
from luce.supervisor.http.answering.answer_events import FinishReason, Logprob, TokenLogprob, Usage, added
from luce.supervisor.http.errors import ApiError
from luce.supervisor.http.transport.error_bodies import openai_error

SYSTEM_FINGERPRINT = "b11549-luce"  # the pinned llama.cpp build, as llama-server names it, with what is around it
LEAST_LOGPROB = -9999.0  # OpenAI's word for a token that cannot come: JSON has no infinity
DONE = b"[DONE]"
"""The end of a stream that was served to its end; no other has it."""

FINISH_REASONS = {
    FinishReason.STOP: "stop",
    FinishReason.STOP_TEXT: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.TOOL_CALLS: "tool_calls",
}


@dataclass(frozen=True, slots=True)
class Envelope:
    """What is the same in every object of one answer."""

    kind: str
    model: str
    id: str
    created: int = field(default_factory=lambda: int(time.time()))

    def opening(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": self.kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": SYSTEM_FINGERPRINT,
        }

    def head(self) -> bytes:
        """The prefix of every chunk, up to and without its first choice."""
        return encode(self.opening())[:-1] + b',"choices":['


def new_id(prefix: str) -> str:
    return f"{prefix}-{secrets.token_hex(12)}"


def text_json(text: str) -> bytes:
    """A JSON string, ASCII only: the line separators of Unicode break readers of event streams that split at them."""
    return encode_basestring_ascii(text).encode("ascii")


def encode(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")


def json_response(value: object) -> web.Response:
    return web.Response(body=encode(value), content_type="application/json")


def error_event(error: ApiError) -> bytes:
    """The end of a stream that could not be served to its end: no finish_reason and no [DONE] go with it."""
    return b"data: %b\n\n" % encode(openai_error(error))


class TokenClock:
    """Times for llama-server's `timings_per_token`, as they are seen from here."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._first: float | None = None
        self._n_tokens = 0
        self.n_prompt = 0

    def elapsed_ms(self) -> float:
        return round((time.monotonic() - self._started) * 1e3, 3)

    def reading(self, n_done: int) -> dict[str, float]:
        """So much of the prompt has been read, and there is no token yet."""
        return _times(n_done, time.monotonic() - self._started, 0, 0.0)

    def token(self, n: int = 1) -> dict[str, float]:
        """So many more have come."""
        now = time.monotonic()
        self._first = now if self._first is None else self._first
        self._n_tokens += n
        return _times(self.n_prompt, self._first - self._started, self._n_tokens, now - self._first)


def _times(n_prompt: int, prompt_s: float, n_tokens: int, decode_s: float) -> dict[str, float]:
    return {
        "prompt_n": n_prompt,
        "prompt_ms": round(prompt_s * 1e3, 3),
        "prompt_per_second": round(_ratio(n_prompt, prompt_s), 3),
        "predicted_n": n_tokens,
        "predicted_ms": round(decode_s * 1e3, 3),
        "predicted_per_second": round(_ratio(max(n_tokens - 1, 0), decode_s), 3),
    }


class ChunkStream:
    """What the streams of both have in common. What is the same in all chunks is made once. The last finish waits for
    the counts that go with it; and an answer that fails has then no finish at all."""

    def __init__(
        self, envelope: Envelope, content: bytes, empty: bytes, n_choices: int, *, counts: bool, times: bool = False
    ) -> None:
        """`content`: the field of a choice that grows, and `empty` what it is where nothing has come; `counts`: the
        client wants the usage, in a chunk of its own; `times`: and llama-server's timings in each piece's."""
        self._clock = TokenClock() if times else None
        self._empty = empty
        self._counts = counts
        self._head = b"data: " + envelope.head()
        self._end = b'],"usage":null}\n\n' if counts else b"]}\n\n"
        self._goes_on = b',"logprobs":null,"finish_reason":null}' + self._end
        self._begins = [self._head + b'{"index":%d,"%b":' % (choice, content) for choice in range(n_choices)]
        self._unfinished = set(range(n_choices))
        self._last_finish = b""

    def keep_alive(self) -> bytes:
        """A chunk of nothing: clients that pass over comments count it."""
        return self._begins[min(self._unfinished, default=0)] + self._empty + self._goes_on

    def _timed(self, chunk: bytes) -> bytes:
        if self._clock is None or not chunk:
            return chunk
        return chunk[: -len(b"}\n\n")] + b',"timings":%b}\n\n' % encode(self._clock.token())

    def _finish_choice(self, choice: int, reason: str) -> bytes:
        self._unfinished.discard(choice)
        end = b',"logprobs":null,"finish_reason":"%b"}' % reason.encode()
        chunk = self._begins[choice] + self._empty + end
        if not self._unfinished:
            self._last_finish = chunk
            return b""
        return chunk + self._end

    def _finish(self, usage: Usage) -> bytes:
        timings, done = encode(timing_fields(usage)), b"data: %b\n\n" % DONE
        if not self._counts:
            return self._last_finish + b'],"timings":%b}\n\n' % timings + done
        counts = self._head + b'],"usage":%b,"timings":%b}\n\n' % (encode(usage_fields(usage)), timings)
        return self._last_finish + self._end + counts + done


def usage_fields(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.n_prompt,
        "completion_tokens": usage.n_generated,
        "total_tokens": usage.n_prompt + usage.n_generated,
        "prompt_tokens_details": {"cached_tokens": usage.n_cached, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": usage.n_reasoning, "audio_tokens": 0},
        "luce": usage.extension(),
    }


def timing_fields(usage: Usage) -> dict[str, Any]:
    """llama-server's `timings`, for clients that show them."""
    n_read = usage.n_seen - usage.n_cached
    n_steps = max(usage.n_generated - 1, 0)  # the first token costs none: it comes with the last of the prompt
    drafted: dict[str, Any] = {}
    if usage.speculation is not None and usage.speculation.n_drafted > 0:
        drafted = {"draft_n": usage.speculation.n_drafted, "draft_n_accepted": usage.speculation.n_accepted}
    return {
        "cache_n": usage.n_cached,
        "prompt_n": n_read,
        "prompt_ms": usage.prefill_s * 1e3,
        "prompt_per_token_ms": _ratio(usage.prefill_s * 1e3, n_read),
        "prompt_per_second": _ratio(n_read, usage.prefill_s),
        "predicted_n": usage.n_generated,
        "predicted_ms": usage.decode_s * 1e3,
        "predicted_per_token_ms": _ratio(usage.decode_s * 1e3, n_steps),
        "predicted_per_second": _ratio(n_steps, usage.decode_s),
        **drafted,
    }


def added_usage(usages: Sequence[Usage]) -> Usage:
    """What several requests took together: tokens add up; the cache's words and the times are the first one's and the
    longest."""
    first = usages[0]
    if len(usages) == 1:
        return first
    return Usage(
        n_prompt=sum(usage.n_prompt for usage in usages),
        n_cached=sum(usage.n_cached for usage in usages),
        cache_tier=first.cache_tier,
        cache_miss=first.cache_miss,
        n_generated=sum(usage.n_generated for usage in usages),
        n_reasoning=sum(usage.n_reasoning for usage in usages),
        queue_s=max(usage.queue_s for usage in usages),
        prefill_s=max(usage.prefill_s for usage in usages),
        decode_s=max(usage.decode_s for usage in usages),
        n_resumes=sum(usage.n_resumes for usage in usages),
        n_read=None if all(usage.n_read is None for usage in usages) else sum(usage.n_seen for usage in usages),
        schema_notes=first.schema_notes,
        speculation=added(usage.speculation for usage in usages),
        experts=added(usage.experts for usage in usages),
    )


def answer_schema(of_choice: Mapping[str, Any]) -> dict[str, Any]:
    """JSON schema of an answer that is not streamed, for the OpenAPI document; `of_choice`: what its choices have."""
    choice = record(
        {
            "index": COUNT,
            "logprobs": {"type": ["object", "null"]},
            "finish_reason": {"enum": ["stop", "length", "tool_calls", "function_call"]},
            **of_choice,
        }
    )
    counts = dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), COUNT)
    return record(
        {
            "id": TEXT,
            "object": TEXT,
            "created": NUMBER,
            "model": TEXT,
            "choices": listed(choice, minItems=1),
            "usage": record(counts),
        }
    )


def token_text(logprob: Logprob) -> str:
    return logprob.bytes.decode("utf-8", "replace")


def finite(logprob: float) -> float | None:
    """As JSON has it; None for that of a prompt's first token."""
    if math.isnan(logprob):
        return None
    return logprob if math.isfinite(logprob) else LEAST_LOGPROB


def best_of(entry: TokenLogprob) -> Sequence[Logprob]:
    """The likeliest, and the chosen token behind them where it is none of them. Nothing if none were asked for."""
    if not entry.likeliest or any(other.token == entry.chosen.token for other in entry.likeliest):
        return entry.likeliest
    return [*entry.likeliest, entry.chosen]


def prompt_logprobs(tokens: Sequence[TokenLogprob]) -> list[dict[str, Any] | None]:
    """vLLM's field: for each token of the prompt an object by ids, null for the first. `rank` is null where the token
    is none of the best that were asked for."""
    return [None if math.isnan(token.chosen.logprob) else _ranked(token) for token in tokens]


def _ranked(token: TokenLogprob) -> dict[str, Any]:
    ranks = {entry.token: rank for rank, entry in enumerate(token.likeliest, 1)}
    return {
        str(entry.token): {
            "logprob": finite(entry.logprob),
            "rank": ranks.get(entry.token),
            "decoded_token": token_text(entry),
        }
        for entry in (token.chosen, *token.likeliest)
    }


def chat_logprobs(logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
    return {"content": [_chat_logprob(logprob) for logprob in logprobs], "refusal": None}


def _chat_logprob(logprob: TokenLogprob) -> dict[str, Any]:
    return _entry(logprob.chosen) | {"top_logprobs": [_entry(other) for other in best_of(logprob)]}


def _entry(logprob: Logprob) -> dict[str, Any]:
    return {
        "id": logprob.token,
        "token": token_text(logprob),
        "logprob": finite(logprob.logprob),
        "bytes": list(logprob.bytes),
    }


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator > 0 else 0.0
