"""The fields that OpenAI's two generating endpoints have in common, llama-server's and vLLM's beside them: their types,
their ranges, and what they mean for an AnswerRequest.

Must not know messages, prompts or answers. Types are pydantic's affair; ranges are checked here, in OpenAI's words.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StrictBool, WithJsonSchema

from luce.protocol import SamplingArgs
from luce.supervisor.http.admin.openapi import TEXT, listed
from luce.supervisor.http.errors import ApiError, ErrorKind
from luce.supervisor.http.reading_fields import ReadingFields
from luce.supervisor.http.sampling_fields import INT32_MAX, Real, SamplingFields, Whole, add_links, note_ignored

MAX_STOPS = 64
MAX_STOP_CHARACTERS = 4096
MAX_BIASES = 1024
MAX_TOP_LOGPROBS = 20
MAX_SESSION_CHARACTERS = 512
LEAST_TOP_P = 1e-6  # the engine's is above 0; OpenAI's 0 is the likeliest token only

SESSION_FIELDS = ("prompt_cache_key", "session_id", "conversation_id", "chat_id")
SESSION_HEADERS = ("X-Session-Id", "Session-Id", "session_id", "X-Conversation-Id", "X-OpenWebUI-Chat-Id")


Texts = Annotated[Any, WithJsonSchema({"anyOf": [TEXT, listed(TEXT)]})]
Biases = Annotated[
    Any, WithJsonSchema({"anyOf": [{"type": "object", "additionalProperties": {"type": "number"}}, {"type": "array"}]})
]


_T = TypeVar("_T")


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="allow")

    include_usage: StrictBool | None = None


class GeneratingBody(SamplingFields, ReadingFields):
    """What both bodies have. Unknown fields are tolerated; null is the same as absent."""

    model_config = ConfigDict(extra="allow")
    most_temperature: ClassVar[float] = 2  # OpenAI's

    model: str | None = Field(default=None, max_length=512)
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    n: Whole | None = None
    stop: Texts | None = None
    seed: Whole | None = None
    temperature: Real | None = None
    top_p: Real | None = None
    top_k: Whole | None = None
    logit_bias: Biases | None = None
    max_tokens: Whole | None = None
    n_predict: Whole | None = None
    ignore_eos: StrictBool | None = None
    prompt_logprobs: Whole | None = None
    """vLLM's: of each of the prompt's own tokens so many of the likeliest beside it."""
    pin: Any = None
    timings_per_token: StrictBool | None = None
    user: Any = None
    metadata: Any = None

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage is True


class Vocabulary(Protocol):
    """What of the text layer biases and prompts of ids need."""

    @property
    def n_vocab(self) -> int: ...

    def tokenize(self, text: str | bytes) -> list[int]: ...

    def detokenize(self, tokens: Sequence[int], *, unparse_special: bool = False) -> bytes: ...


def refusal(param: str | None, text: str, code: str = "invalid_value") -> ApiError:
    return ApiError(ErrorKind.INVALID, code, text, param=param)


def expect(value: Any, kind: type[_T], param: str, what: str) -> _T:
    """`value`, if it is of this type; else what OpenAI says to such a one."""
    if not isinstance(value, kind):
        raise refusal(param, f"Invalid type for '{param}': expected {what}.", "invalid_type")
    return value


def whole(value: int | None, param: str, least: int, most: int) -> int | None:
    """`value`, if it lies in the range; else what OpenAI says to such a one."""
    if value is None or least <= value <= most:
        return value
    raise _out_of_range("integer", value, param, least, most)


def real(value: float | None, param: str, least: float, most: float) -> float | None:
    if value is None or least <= value <= most:
        return value
    raise _out_of_range("decimal", value, param, least, most)


def _out_of_range(kind: str, value: float, param: str, least: float, most: float) -> ApiError:
    if value < least:
        side, code, bound = "below minimum", "below_min", f">= {least}"
    else:
        side, code, bound = "above maximum", "above_max", f"<= {most}"
    text = f"Invalid '{param}': {kind} {side} value. Expected a value {bound}, but got {value} instead."
    return refusal(param, text, f"{kind}_{code}_value")


def read_prompt_logprobs(body: GeneratingBody) -> int | None:
    """vLLM refuses them for streams too: no chunk has a place for them."""
    n_likeliest = whole(body.prompt_logprobs, "prompt_logprobs", 0, MAX_TOP_LOGPROBS)
    if n_likeliest is not None and body.stream:
        text = "'prompt_logprobs' are not available with 'stream': completions have 'echo' with 'logprobs' for that."
        raise refusal("prompt_logprobs", text, "unsupported_value")
    return n_likeliest


def read_sampling(body: GeneratingBody, text: Vocabulary) -> SamplingArgs:
    """A `temperature` that is not given stays None: what the server samples with is one decision for all dialects."""
    top_p = real(body.top_p, "top_p", 0, 1)
    top_k = whole(body.top_k, "top_k", -1, INT32_MAX)
    chosen = SamplingArgs(
        temperature=real(body.temperature, "temperature", 0, body.most_temperature),
        top_p=None if top_p is None else max(top_p, LEAST_TOP_P),
        top_k=None if top_k is None else max(top_k, 0),  # -1 is vLLM's word for off
        seed=_read_seed(body.seed),
        logit_bias=_read_biases(body.logit_bias, text),
    )
    note_ignored(body)
    return add_links(chosen, body)


def _read_seed(seed: int | None) -> int | None:
    """OpenAI's are signed, the engine's are not; -1 is llama-server's word for a fresh one."""
    if seed is None or seed == -1:
        return None
    whole(seed, "seed", -(2**63), 2**64 - 1)
    return seed % 2**64


def _read_biases(value: Any, text: Vocabulary) -> tuple[tuple[int, float], ...]:
    """{"id": bias}, or llama-server's [[id or text, bias or false], …], whose texts bias each of their tokens. Ids that
    the vocabulary lacks are left out: clients carry biases for other models along."""
    if value is None:
        return ()
    if isinstance(value, dict):
        pairs: Iterable[Any] = value.items()
    elif isinstance(value, list):
        pairs = value
    else:
        raise refusal(
            "logit_bias", "Invalid 'logit_bias': expected an object of token ids and numbers.", "invalid_type"
        )
    biases: dict[int, float] = {}
    for pair in pairs:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise refusal("logit_bias", "Invalid 'logit_bias': expected pairs of a token and its bias.", "invalid_type")
        bias = _bias(pair[1])
        biases.update((token, bias) for token in _tokens_of(pair[0], text) if 0 <= token < text.n_vocab)
        if len(biases) > MAX_BIASES:
            raise refusal("logit_bias", f"Invalid 'logit_bias': at most {MAX_BIASES} tokens can be biased.")
    return tuple(biases.items())


def _bias(value: Any) -> float:
    if value is False:
        return -math.inf
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise refusal("logit_bias", "Invalid 'logit_bias': a bias must be a number.", "invalid_type")
    checked = real(value, "logit_bias", -100, 100)
    assert checked is not None
    return float(checked)


def _tokens_of(key: Any, text: Vocabulary) -> list[int]:
    if isinstance(key, str):
        digits = key.strip()
        if digits.isascii() and digits.isdigit() and len(digits) <= 10:
            return [int(digits)]
        return text.tokenize(key)
    if isinstance(key, int) and not isinstance(key, bool):
        return [key]
    raise refusal("logit_bias", "Invalid 'logit_bias': a token is its id, or a text.", "invalid_type")


def read_stops(value: Any) -> tuple[str, ...]:
    """A text or a list of them; empty ones stop nothing."""
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise refusal("stop", "Invalid 'stop': expected a string or a list of strings.", "invalid_type")
    if len(stops) > MAX_STOPS:
        raise refusal("stop", f"Invalid 'stop': at most {MAX_STOPS} stop strings, got {len(stops)}.")
    if any(len(stop) > MAX_STOP_CHARACTERS for stop in stops):
        raise refusal("stop", f"Invalid 'stop': a stop string has at most {MAX_STOP_CHARACTERS} characters.")
    return tuple(stop for stop in stops if stop)


def read_max_tokens(limits: Mapping[str, int | None]) -> int | None:
    """The first limit that is given; -1 is llama-server's word for none. None: as many as fit."""
    for param, limit in limits.items():
        if limit is not None:
            whole(limit, param, -1, 2**63 - 1)
            return None if limit == -1 else limit
    return None


def read_session(body: GeneratingBody, headers: Mapping[str, str]) -> str:
    """What tells a client's conversations apart: what names a conversation first, what names a person last."""
    extra = body.model_extra or {}
    metadata = body.metadata if isinstance(body.metadata, dict) else {}
    candidates = (
        *(extra.get(name) for name in SESSION_FIELDS),
        *(headers.get(name) for name in SESSION_HEADERS),
        metadata.get("session_id"),
        metadata.get("user_id"),
        body.user,
    )
    for candidate in candidates:
        if isinstance(candidate, str) and candidate:
            return candidate[:MAX_SESSION_CHARACTERS]
    return ""
