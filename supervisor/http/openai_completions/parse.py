"""From a legacy completion's body to the AnswerRequests that are meant by it, one a prompt.

Prompts are texts or token ids. Must not know where answers come from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import StrictBool, WithJsonSchema

from luce.supervisor.http.admin.openapi import NUMBER, TEXT, listed
from luce.supervisor.http.openai_shared.constraints import (
    ConstrainedFields,
    read_constraint,
    read_response_format,
)
from luce.supervisor.http.openai_shared.fields import (
    MAX_TOP_LOGPROBS,
    GeneratingBody,
    Vocabulary,
    expect,
    read_max_tokens,
    read_prompt_logprobs,
    read_sampling,
    read_session,
    read_stops,
    refusal,
    whole,
)
from luce.supervisor.http.prompts.answer_request import AnswerRequest, TextPrompt
from luce.supervisor.http.prompts.infill import Infill
from luce.supervisor.http.prompts.pinned_ranges import read_pins
from luce.supervisor.http.reading_fields import read_reading
from luce.supervisor.http.sampling_fields import Whole, read_ending

DEFAULT_MAX_TOKENS = 16  # OpenAI's
MAX_PROMPTS = 128

_IDS = listed(NUMBER, minItems=1)
_PROMPT = {"anyOf": [TEXT, listed(TEXT, minItems=1), _IDS, listed(_IDS, minItems=1)]}


class CompletionBody(GeneratingBody, ConstrainedFields):
    prompt: Annotated[Any, WithJsonSchema(_PROMPT)]
    suffix: str | None = None
    echo: StrictBool | None = None
    logprobs: Whole | None = None
    best_of: Whole | None = None
    json_schema: Any = None
    response_format: Any = None
    """As in chat completions; vLLM takes it here too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedCompletion:
    answer_requests: Sequence[AnswerRequest]
    """One for each prompt; the choices are numbered through."""
    echoes: Sequence[str]
    """Before each prompt's answers: its own text, if it was asked for, or nothing."""
    streams: bool
    includes_usage: bool
    n_prompt_logprobs: int | None = None
    """vLLM's `prompt_logprobs`, beside those that an echo has."""
    shows_timings: bool = False
    """llama-server's `timings_per_token`."""

    @property
    def n_each(self) -> int:
        return self.answer_requests[0].n

    @property
    def has_logprobs(self) -> bool:
        return self.answer_requests[0].n_logprobs is not None

    @property
    def n_echoed_logprobs(self) -> int | None:
        """The likeliest beside each token of what is echoed; None: nothing is, or without logprobs."""
        prompt = self.answer_requests[0].prompt
        return self.answer_requests[0].n_logprobs if isinstance(prompt, TextPrompt) and prompt.echo else None


def read_completion(
    body: CompletionBody,
    text: Vocabulary,
    *,
    max_choices: int,
    headers: Mapping[str, str],
    client: str,
) -> ParsedCompletion:
    """Raises ApiError, and TextError where a prompt's text cannot be tokenised."""
    n = whole(body.n, "n", 1, max_choices) or 1
    best_of = whole(body.best_of, "best_of", 1, max_choices)
    if best_of not in (None, n):
        raise refusal("best_of", "'best_of' can only be the same as 'n': all choices are given.", "unsupported_value")
    n_logprobs = whole(body.logprobs, "logprobs", 0, MAX_TOP_LOGPROBS)
    n_prompt_logprobs = read_prompt_logprobs(body)
    n_wanted = [n for n in (n_prompt_logprobs, n_logprobs if body.echo else None) if n is not None]
    schema, param, is_strict = read_response_format(body.response_format, body.json_schema)
    constraint = read_constraint(schema, param, body, is_strict=is_strict)
    limit = read_max_tokens({"max_tokens": body.max_tokens, "n_predict": body.n_predict})
    has_limit = body.max_tokens is not None or body.n_predict is not None
    sampling, stops, session = read_sampling(body, text), read_stops(body.stop), read_session(body, headers)
    ending, reading = read_ending(body, text.n_vocab), read_reading(body, headers)
    infill = Infill(after=body.suffix) if body.suffix else None
    prompts, pins = read_prompts(body.prompt, text), read_pins(body.pin, "span")
    answer_requests = [
        AnswerRequest(
            prompt=TextPrompt(
                content=prompt,
                infill=infill,
                echo=body.echo is True,
                json_schema=constraint.schema,
                json_schema_is_strict=constraint.is_strict,
                grammar=constraint.grammar,
            ),
            model=body.model or "",
            max_tokens=limit if has_limit else DEFAULT_MAX_TOKENS,
            stops=stops,
            sampling=sampling,
            n=n,
            n_logprobs=n_logprobs,
            n_prompt_logprobs=max(n_wanted, default=None),
            ignore_eos=body.ignore_eos is True,
            **ending,
            pins=pins,
            reading=reading,
            session=session,
            client=client,
        )
        for prompt in prompts
    ]
    echoes = [prompt_text(answer_request, text) if body.echo else "" for answer_request in answer_requests]
    return ParsedCompletion(
        answer_requests=answer_requests,
        echoes=echoes,
        streams=body.stream is True,
        includes_usage=body.includes_usage,
        n_prompt_logprobs=n_prompt_logprobs,
        shows_timings=body.timings_per_token is True,
    )


def prompt_text(answer_request: AnswerRequest, text: Vocabulary) -> str:
    assert isinstance(answer_request.prompt, TextPrompt)
    content = answer_request.prompt.content
    if isinstance(content, str):
        return content
    return text.detokenize(content, unparse_special=True).decode("utf-8", "replace")


def read_prompts(value: Any, text: Vocabulary) -> list[str | tuple[int, ...]]:
    """A text, ids, or a list of either; with llama-server a list may also mix texts and ids of one prompt."""
    are_several = isinstance(value, list) and (
        any(isinstance(item, (list, dict)) for item in value)
        or (bool(value) and all(isinstance(item, str) for item in value))
    )
    prompts = value if are_several else [value]
    if len(prompts) > MAX_PROMPTS:
        raise refusal("prompt", f"Invalid 'prompt': at most {MAX_PROMPTS} prompts, got {len(prompts)}.")
    return [_read_prompt(prompt, text) for prompt in prompts]


def _read_prompt(prompt: Any, text: Vocabulary) -> str | tuple[int, ...]:
    if isinstance(prompt, dict):
        if prompt.get("multimodal_data"):
            raise refusal("prompt", "image and audio input is not supported by this model.", "unsupported_content")
        prompt = prompt.get("prompt_string")
    if isinstance(prompt, str):
        return prompt
    expect(prompt, list, "prompt", "a string, token ids, or a list")
    if not prompt:
        raise refusal("prompt", "Invalid 'prompt': a list of token ids cannot be empty.", "empty_array")
    ids: list[int] = []
    for item in prompt:
        if isinstance(item, str):
            ids += text.tokenize(item)
            continue
        if isinstance(item, bool) or not isinstance(item, int):
            raise refusal("prompt", "Invalid type for 'prompt': a token is a whole number.", "invalid_type")
        if not 0 <= item < text.n_vocab:
            raise refusal("prompt", f"Invalid 'prompt': token {item} is not from 0 to {text.n_vocab - 1}.")
        ids.append(item)
    return tuple(ids)
