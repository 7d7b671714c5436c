"""The fields of a request's body that say how tokens are chosen, in llama-server's and vLLM's words, the same in every
dialect: their types, their ranges, what they mean for the engine, and which of them cannot be had here.

Must not know messages, prompts or answers. Every refusal names its field.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, StrictBool, WithJsonSchema

from luce.protocol import SamplerKind, SamplingArgs
from luce.supervisor.http.admin.openapi import TEXT, listed
from luce.supervisor.http.errors import ApiError, ErrorKind

_log = logging.getLogger("luce.http.fields")
_said: set[str] = set()

INT32_MAX = 2**31 - 1
MAX_BREAKERS = 16
MAX_STOP_TOKENS = 256


def _number(value: object) -> object:
    if isinstance(value, (bool, str, bytes)):
        raise ValueError("it must be a number")  # noqa: TRY004  pydantic takes ValueErrors
    return value


def _whole_number(value: object) -> object:
    """Some clients write 2.0 for 2, also to models that are strict."""
    number = _number(value)
    return int(number) if isinstance(number, float) and number.is_integer() else number


Whole = Annotated[int, BeforeValidator(_whole_number), WithJsonSchema({"type": "integer"})]
Real = Annotated[float, BeforeValidator(_number), WithJsonSchema({"type": "number"})]
_Texts = Annotated[Any, WithJsonSchema(listed(TEXT))]

_NAMES = {
    **{kind.value: kind for kind in SamplerKind},
    "top-k": SamplerKind.TOP_K, "topk": SamplerKind.TOP_K, "top-p": SamplerKind.TOP_P, "topp": SamplerKind.TOP_P,
    "nucleus": SamplerKind.TOP_P, "min-p": SamplerKind.MIN_P, "minp": SamplerKind.MIN_P, "typ": SamplerKind.TYP_P,
    "typ-p": SamplerKind.TYP_P, "typical_p": SamplerKind.TYP_P, "temp": SamplerKind.TEMPERATURE,
    "top-n-sigma": SamplerKind.TOP_N_SIGMA,
}  # fmt: skip
_LETTERS = {
    "e": SamplerKind.PENALTIES, "d": SamplerKind.DRY, "s": SamplerKind.TOP_N_SIGMA, "k": SamplerKind.TOP_K,
    "y": SamplerKind.TYP_P, "p": SamplerKind.TOP_P, "m": SamplerKind.MIN_P, "x": SamplerKind.XTC,
    "t": SamplerKind.TEMPERATURE,
}  # fmt: skip

_NOT_HERE: Mapping[str, tuple[frozenset[Any], str]] = {
    "mirostat": (frozenset({0}), "its state could not be taken up again when an engine is lost"),
    "adaptive_target": (frozenset({-1}), "its state could not be taken up again when an engine is lost"),
    "min_keep": (frozenset({0}), "cut-offs keep at least one token"),
    "use_beam_search": (frozenset({False}), "tokens are sampled"),
    "allowed_token_ids": (frozenset(), "use 'grammar' or 'logit_bias'"),
    "bad_words": (frozenset(), "use 'logit_bias'"),
    "logits_processors": (frozenset(), "use 'logit_bias'"),
    "chat_template": (frozenset({""}), "start the server with --chat-template FILE"),
    "prompt_logprobs": (frozenset(), "completions and chat completions tell them"),
    "truncate_prompt_tokens": (frozenset({-1}), "prompts are not cut off"),
    "include_stop_str_in_output": (frozenset({False}), "answers end before the stop string"),
    "guided_whitespace_pattern": (frozenset(), "write it into 'grammar'"),
    "lora": (frozenset(), "no adapters are loaded"),
    "n_indent": (frozenset({0}), "use 'grammar'"),
}
"""Fields that would change the answer: the values that ask for nothing, and what to do instead."""

IGNORED = frozenset(
    {
        "add_special_tokens", "adaptive_decay", "backend_sampling", "best_of", "cache_salt", "documents", "echo",
        "guided_decoding_backend", "id_slot", "length_penalty", "mirostat_eta", "mirostat_tau", "mm_processor_kwargs",
        "n_discard", "n_keep", "prediction", "priority", "skip_special_tokens", "slot_id",
        "spaces_between_special_tokens",
    }
)  # fmt: skip
"""What is accepted and does nothing (docs/http.md lists it). `best_of` and `echo` of chats; completions have them."""


class SamplingFields(BaseModel):
    model_config = ConfigDict(extra="allow")

    min_p: Real | None = None
    repeat_penalty: Real | None = None
    repetition_penalty: Real | None = None
    presence_penalty: Real | None = None
    frequency_penalty: Real | None = None
    repeat_last_n: Whole | None = None
    dry_multiplier: Real | None = None
    dry_base: Real | None = None
    dry_allowed_length: Whole | None = None
    dry_penalty_last_n: Whole | None = None
    dry_sequence_breakers: _Texts | None = None
    typical_p: Real | None = None
    typ_p: Real | None = None
    top_n_sigma: Real | None = None
    xtc_probability: Real | None = None
    xtc_threshold: Real | None = None
    dynatemp_range: Real | None = None
    dynatemp_exponent: Real | None = None
    samplers: Any = None
    min_tokens: Whole | None = None
    stop_token_ids: Any = None
    cache_prompt: StrictBool | None = None
    t_max_predict_ms: Whole | None = None


def refuse(param: str, text: str, code: str = "invalid_value") -> ApiError:
    return ApiError(ErrorKind.INVALID, code, f"Invalid '{param}': {text}", param=param)


def note_ignored(body: BaseModel) -> None:
    """Says once of each further field of a body that it does nothing. Raises ApiError for one that would change the
    answer and cannot be had here."""
    extra = body.model_extra or {}
    for name in extra.keys() & _NOT_HERE.keys():
        value, (neutral, instead) = extra[name], _NOT_HERE[name]
        if value not in (None, [], {}) and not (_is_plain(value) and value in neutral):
            raise refuse(name, f"it is not supported: {instead}.", "unsupported_parameter")
    unsaid = (extra.keys() & IGNORED) - _said
    if unsaid:
        _said.update(unsaid)
        _log.info("accepted request fields without effect: %s", ", ".join(sorted(unsaid)))


def _is_plain(value: Any) -> bool:
    return isinstance(value, bool | int | float | str)


def add_links(sampling: SamplingArgs, body: SamplingFields) -> SamplingArgs:
    """`sampling` with all that these fields say. Raises ApiError."""
    penalty = "repeat_penalty" if body.repeat_penalty is not None else "repetition_penalty"
    typical = "typical_p" if body.typical_p is not None else "typ_p"
    breakers = body.dry_sequence_breakers
    if breakers is not None and not (isinstance(breakers, list) and all(isinstance(one, str) for one in breakers)):
        raise refuse("dry_sequence_breakers", "expected a list of texts.", "invalid_type")
    if breakers is not None and len(breakers) > MAX_BREAKERS:
        raise refuse("dry_sequence_breakers", f"at most {MAX_BREAKERS} of them.")
    return replace(
        sampling,
        min_p=_real(body, "min_p", 0, 1),
        repeat_penalty=_above(body, penalty, 0, 100),
        presence_penalty=_real(body, "presence_penalty", -2, 2),
        frequency_penalty=_real(body, "frequency_penalty", -2, 2),
        repeat_last_n=_window(body, "repeat_last_n"),
        dry_multiplier=_real(body, "dry_multiplier", 0, 100),
        dry_base=_above(body, "dry_base", 0, 100),
        dry_allowed_length=_whole(body, "dry_allowed_length", 0, INT32_MAX),
        dry_last_n=_window(body, "dry_penalty_last_n"),
        dry_breakers=None if breakers is None else tuple(one for one in breakers if one),
        typical_p=_above(body, typical, 0, 1),
        top_n_sigma=_off_below(_real(body, "top_n_sigma", -1, 1000)),
        xtc_probability=_real(body, "xtc_probability", 0, 1),
        xtc_threshold=_real(body, "xtc_threshold", 0, 1),
        dynatemp_range=_real(body, "dynatemp_range", 0, 100),
        dynatemp_exponent=_above(body, "dynatemp_exponent", 0, 100),
        order=_order(body.samplers),
    )


def read_ending(body: SamplingFields, n_vocab: int) -> dict[str, Any]:
    """What an AnswerRequest is to know of when it ends, and whether its prompt may come from memory, by field."""
    return {
        "min_tokens": _whole(body, "min_tokens", 0, INT32_MAX) or 0,
        "max_predict_s": _time_limit_s(body),
        "stop_tokens": _stop_tokens(body, n_vocab),
        "reuse": body.cache_prompt is not False,
    }


def _time_limit_s(body: SamplingFields) -> float | None:
    """0 and less are llama-server's words for none."""
    limit = _whole(body, "t_max_predict_ms", -1, INT32_MAX)
    return limit / 1000 if limit is not None and limit > 0 else None


def _stop_tokens(body: SamplingFields, n_vocab: int) -> tuple[int, ...]:
    ids = body.stop_token_ids
    if ids is None:
        return ()
    if not isinstance(ids, list) or any(isinstance(one, bool) or not isinstance(one, int) for one in ids):
        raise refuse("stop_token_ids", "expected a list of token ids.", "invalid_type")
    if len(ids) > MAX_STOP_TOKENS:
        raise refuse("stop_token_ids", f"at most {MAX_STOP_TOKENS} of them.")
    if any(not 0 <= one < n_vocab for one in ids):
        raise refuse("stop_token_ids", f"ids are 0 to {n_vocab - 1}.")
    return tuple(dict.fromkeys(ids))


def _order(value: Any) -> tuple[SamplerKind, ...] | None:
    """A list of names, or llama-server's text of letters; what is named twice counts once."""
    if value is None:
        return None
    names, known = (list(value), _LETTERS) if isinstance(value, str) else (value, _NAMES)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise refuse("samplers", "expected a list of names, or a text of their letters.", "invalid_type")
    kinds = []
    for name in names:
        kind = known.get(name if known is _LETTERS else name.lower())
        if kind is None:
            raise refuse("samplers", f"there is no sampler '{name:.40}': {', '.join(known)} are known.")
        kinds.append(kind)
    return tuple(dict.fromkeys(kinds))


def _window(body: SamplingFields, name: str) -> int | None:
    """-1 is llama-server's word for the whole context."""
    value = _whole(body, name, -1, INT32_MAX)
    return INT32_MAX if value == -1 else value


def _off_below(value: float | None) -> float | None:
    return None if value is None else max(value, 0.0)


def _real(body: SamplingFields, name: str, least: float, most: float) -> float | None:
    value: float | None = getattr(body, name)
    if value is not None and not least <= value <= most:
        raise _out_of_range("decimal", name, value, least, most)
    return value


def _above(body: SamplingFields, name: str, least: float, most: float) -> float | None:
    value: float | None = getattr(body, name)
    if value is not None and not least < value <= most:
        raise refuse(name, f"it must be above {least:g} and at most {most:g}.")
    return value


def _whole(body: SamplingFields, name: str, least: int, most: int) -> int | None:
    value: int | None = getattr(body, name)
    if value is not None and not least <= value <= most:
        raise _out_of_range("integer", name, value, least, most)
    return value


def _out_of_range(kind: str, name: str, value: float, least: float, most: float) -> ApiError:
    side, code, bound = ("below minimum", "below_min", f">= {least}") if value < least else (
        "above maximum", "above_max", f"<= {most}"
    )  # fmt: skip
    text = f"{kind} {side} value. Expected a value {bound}, but got {value} instead."
    return refuse(name, text, f"{kind}_{code}_value")
