"""From a chat completion's body to the AnswerRequest that is meant by it, and to how its answer is to be written.

Must not know where answers come from. Every refusal names the field that it is about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from luce.supervisor.http.openai_chat.body import ChatBody
from luce.supervisor.http.openai_chat.messages import read_messages
from luce.supervisor.http.openai_chat.thinking import read_thinking
from luce.supervisor.http.openai_chat.tools import read_toolbox
from luce.supervisor.http.openai_shared.constraints import read_constraint, read_response_format
from luce.supervisor.http.openai_shared.fields import (
    MAX_TOP_LOGPROBS,
    Vocabulary,
    read_max_tokens,
    read_prompt_logprobs,
    read_sampling,
    read_session,
    read_stops,
    refusal,
    whole,
)
from luce.supervisor.http.prompts.answer_request import AnswerRequest, ChatPrompt
from luce.supervisor.http.prompts.history.turns import is_begun_answer
from luce.supervisor.http.prompts.pinned_ranges import read_pins
from luce.supervisor.http.reading_fields import read_reading
from luce.supervisor.http.sampling_fields import INT32_MAX, read_ending


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRequest:
    answer_request: AnswerRequest
    streams: bool
    includes_usage: bool
    is_legacy: bool
    """Calls go back as `function_call`."""
    shows_progress: bool
    """llama-server's `return_progress`."""
    shows_timings: bool = False
    """Its `timings_per_token`."""
    shows_prompt: bool = False
    """Its `verbose`."""


def read_chat(
    body: ChatBody, text: Vocabulary, *, max_choices: int, headers: Mapping[str, str], client: str
) -> ParsedRequest:
    """Raises ApiError."""
    _check_modalities(body.modalities)
    messages = read_messages(body.messages)
    toolbox = read_toolbox(body.tools, body.tool_choice, body.functions, body.function_call)
    schema, param, is_strict = read_response_format(body.response_format, body.json_schema)
    constraint = read_constraint(schema, param, body, is_strict=is_strict)
    thinking = read_thinking(body)
    continues_last = _continues_last(body, messages)
    prompt = ChatPrompt(
        messages=messages,
        tools=toolbox.tools,
        tool_choice=toolbox.choice,
        parallel_tool_calls=False if toolbox.is_legacy else body.parallel_tool_calls,
        max_tool_calls=whole(body.max_tool_calls, "max_tool_calls", 1, INT32_MAX),
        json_schema=constraint.schema,
        json_schema_is_strict=constraint.is_strict,
        grammar=constraint.grammar,
        thinking=thinking.thinking,
        thinking_budget=thinking.budget,
        effort=thinking.effort,
        template_arguments=thinking.template_arguments,
        continues_last=continues_last,
        opens_answer=continues_last or body.add_generation_prompt is not False,
    )
    answer_request = AnswerRequest(
        prompt=prompt,
        model=body.model or "",
        max_tokens=read_max_tokens(
            {
                "max_completion_tokens": body.max_completion_tokens,
                "max_tokens": body.max_tokens,
                "n_predict": body.n_predict,
            }
        ),
        stops=read_stops(body.stop),
        sampling=read_sampling(body, text),
        n=whole(body.n, "n", 1, max_choices) or 1,
        n_logprobs=_read_logprobs(body),
        n_prompt_logprobs=read_prompt_logprobs(body),
        ignore_eos=body.ignore_eos is True,
        **read_ending(body, text.n_vocab),
        pins=read_pins(body.pin, "system", "message"),
        reading=read_reading(body, headers),
        session=read_session(body, headers),
        client=client,
    )
    return ParsedRequest(
        answer_request=answer_request,
        streams=body.stream is True,
        includes_usage=body.includes_usage,
        is_legacy=toolbox.is_legacy,
        shows_progress=body.return_progress is True,
        shows_timings=body.timings_per_token is True,
        shows_prompt=body.verbose is True,
    )


def _check_modalities(value: Any) -> None:
    if value is not None and value != ["text"]:
        text = "This model answers in text only: 'modalities' can be [\"text\"]."
        raise refusal("modalities", text, "unsupported_content")


def _continues_last(body: ChatBody, messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the answer goes on from the last message. An assistant's is gone on from unless the client says
    otherwise, as with llama-server; vLLM's clients say `continue_final_message`."""
    wanted = body.continue_final_message
    if wanted is not None and not isinstance(wanted, bool) and wanted not in ("content", "reasoning_content", "auto"):
        raise refusal("continue_final_message", "Invalid 'continue_final_message': expected a boolean.", "invalid_type")
    is_wanted = wanted not in (None, False)
    if is_wanted and body.add_generation_prompt is True:
        text = "'add_generation_prompt' and 'continue_final_message' cannot both be true."
        raise refusal("continue_final_message", text)
    if not is_begun_answer(messages):
        if is_wanted and body.messages[-1].get("role") != "assistant":
            raise refusal("continue_final_message", "'continue_final_message' needs an assistant's message to be last.")
        return False
    return is_wanted or not (wanted is False or body.add_generation_prompt is True)


def _read_logprobs(body: ChatBody) -> int | None:
    n_likeliest = whole(body.top_logprobs, "top_logprobs", 0, MAX_TOP_LOGPROBS)
    if body.logprobs is True:
        return n_likeliest or 0
    if n_likeliest:
        raise refusal("top_logprobs", "'top_logprobs' needs 'logprobs' to be true.")
    return None
