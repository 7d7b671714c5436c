"""What an AnswerRequest asks of the engine: a GenerateRequest for each of its choices. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from luce.protocol import (
    MAX_LOGPROBS,
    LocalProtocolError,
    PinSpan,
    ReadingArgs,
    SamplingArgs,
    check_sampling,
)
from luce.supervisor.http.errors import ApiError, ErrorKind
from luce.supervisor.http.prompts.answer_request import AnswerRequest
from luce.supervisor.http.prompts.pinned_ranges import pinned_spans
from luce.supervisor.http.prompts.reading_ranges import Span, bounded
from luce.supervisor.http.prompts.rendering import Rendered
from luce.supervisor.http.settings import ServeSettings
from luce.supervisor.requests import MAX_SEED, GenerateRequest, PromptImage, TextSalt, fields_of


def engine_request(
    answer_request: AnswerRequest,
    rendered: Rendered,
    index: int,
    settings: ServeSettings,
    *,
    max_tokens: int,
    n_vocab: int,
    salt: TextSalt | None,
    seed: int | None = None,
    images: Sequence[PromptImage] = (),
) -> GenerateRequest:
    """Of choice number `index`; `seed` is that of requests that bring none. Raises ApiError where the engine would
    refuse it."""
    _check_bias(answer_request.sampling, n_vocab)
    _check_texts(rendered)
    pins = pinned_spans(answer_request.pins, answer_request.prompt, rendered.turns, len(rendered.ids))
    own_seed = answer_request.sampling.seed
    chosen = replace(answer_request.sampling, seed=_seed(seed if own_seed is None else own_seed, index))
    try:
        check_sampling(chosen)  # the engine reads numbers strictly; once the answer has begun it is late to hear of it
        return GenerateRequest(
            **fields_of(chosen, SamplingArgs),
            prompt_ids=rendered.ids,
            max_tokens=max_tokens,
            stop_tokens=tuple(answer_request.stop_tokens),
            min_tokens=min(answer_request.min_tokens, max_tokens),
            ignore_eos=answer_request.ignore_eos,
            n_logprobs=_n_logprobs(answer_request.n_logprobs),
            n_prompt_logprobs=answer_request.n_prompt_logprobs if index == 0 else None,
            constraint=rendered.constraint,
            boundaries=rendered.boundaries,
            marks=rendered.marks,
            turn=rendered.user_end,
            pin=pins,
            reading=_reading(answer_request.reading, rendered, pins) if rendered.in_parts else answer_request.reading,
            images=images,
            reuse=answer_request.reuse,
            salt=salt,
            client=answer_request.client,
            session=f"{answer_request.client}\n{answer_request.session}"
            if answer_request.session
            else "",  # clients' sessions are their own
            timeout_s=settings.request_timeout_s,
        )
    except (LocalProtocolError, ValueError, TypeError, OverflowError) as error:
        raise ApiError(ErrorKind.INVALID, "bad_sampling", f"the request cannot be sampled so: {error}") from error


def _reading(asked: ReadingArgs, rendered: Rendered, pins: Sequence[Span]) -> ReadingArgs:
    """What is pinned is wanted in sight, so it is read."""
    keep = bounded([*rendered.reading.keep, *pins])
    return replace(
        asked,
        keep=tuple(PinSpan(begin, end) for begin, end in keep),
        blocks=tuple(PinSpan(begin, end) for begin, end in rendered.reading.blocks),
    )


def _n_logprobs(wanted: int | None) -> int:
    """The engine gives the chosen token's only beside at least one of the likeliest."""
    if wanted is None:
        return 0
    if not 0 <= wanted <= MAX_LOGPROBS:
        text = f"{wanted} likeliest tokens are asked for: there may be 0 to {MAX_LOGPROBS}"
        raise ApiError(ErrorKind.INVALID, "bad_logprobs", text, param="top_logprobs")
    return max(wanted, 1)


def _check_bias(sampling: SamplingArgs, n_vocab: int) -> None:
    for token, _ in sampling.logit_bias:
        if not 0 <= token < n_vocab:
            text = f"logit_bias names token {token}, but ids are 0 to {n_vocab - 1}"
            raise ApiError(ErrorKind.INVALID, "token_out_of_range", text, param="logit_bias")


def _check_texts(rendered: Rendered) -> None:
    """The engine takes any text but one with a NUL."""
    for text in (rendered.constraint.grammar, rendered.constraint.generation_prompt):
        if text is not None and "\0" in text:
            raise ApiError(ErrorKind.INVALID, "bad_text", "a grammar, and a message to go on from, cannot hold a NUL")


def _seed(seed: int | None, index: int) -> int | None:
    """Choice 0 has the seed itself, the others one that follows from it; without one each gets its own."""
    if seed is None:
        return None
    seed %= MAX_SEED + 1
    if index == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
