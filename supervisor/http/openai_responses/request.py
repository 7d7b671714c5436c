"""A request body of the Responses API, as an AnswerRequest and as what its response says back. Pure.

Unknown fields are tolerated; what cannot be had here (conversations, prompt templates) is refused in
words. With `truncation: auto` a conversation that is too long loses what came first; agents compact better.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import StrictBool, WithJsonSchema

from luce.supervisor.http.admin.openapi import NAME, TEXT, listed, record
from luce.supervisor.http.openai_responses.events import ResponseForm
from luce.supervisor.http.openai_responses.items import messages_of
from luce.supervisor.http.openai_responses.tools import Tools, choose, read_tools
from luce.supervisor.http.openai_shared.constraints import ConstrainedFields, read_constraint
from luce.supervisor.http.openai_shared.fields import (
    MAX_TOP_LOGPROBS,
    GeneratingBody,
    Vocabulary,
    read_sampling,
    read_session,
    read_stops,
    refusal,
    whole,
)
from luce.supervisor.http.prompts.answer_request import AnswerRequest, ChatPrompt
from luce.supervisor.http.prompts.pinned_ranges import read_pins
from luce.supervisor.http.reading_fields import read_reading
from luce.supervisor.http.sampling_fields import INT32_MAX, Whole, read_ending

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
LOGPROBS = "message.output_text.logprobs"
PACKED_REASONING = "reasoning.encrypted_content"

_PART = record({"type": {"enum": ["input_text", "output_text"]}, "text": TEXT})
_CONTENT = {"anyOf": [TEXT, listed(_PART)]}
_MESSAGE = record(
    {"role": {"enum": ["user", "assistant", "system", "developer"]}, "content": _CONTENT}, type={"const": "message"}
)
_CALL = record({"type": {"const": "function_call"}, "call_id": NAME, "name": NAME, "arguments": TEXT})
_OUTPUT = record({"type": {"const": "function_call_output"}, "call_id": NAME, "output": _CONTENT})
_ITEMS = listed({"anyOf": [_MESSAGE, _CALL, _OUTPUT]})
_Input = Annotated[Any, WithJsonSchema({"anyOf": [TEXT, _ITEMS]})]


class ResponsesBody(GeneratingBody, ConstrainedFields):
    input: _Input = None
    instructions: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: StrictBool | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    max_output_tokens: Whole | None = None
    max_tool_calls: Whole | None = None
    top_logprobs: Whole | None = None
    include: list[str] | None = None
    store: StrictBool | None = None
    background: StrictBool | None = None
    conversation: Any = None
    prompt: Any = None
    previous_response_id: str | None = None
    truncation: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_progress: StrictBool | None = None


@dataclass(frozen=True, slots=True)
class Caller:
    """What is known of a request besides its body."""

    headers: Mapping[str, str]
    client: str = ""


@dataclass(frozen=True, slots=True)
class ParsedResponses:
    answer_request: AnswerRequest
    form: ResponseForm
    items: Sequence[Any]
    """What this request adds to the conversation."""


def read_request(
    body: ResponsesBody, earlier: Sequence[Any], *, model: str, vocabulary: Vocabulary, caller: Caller
) -> ParsedResponses:
    """`earlier` is the conversation up to previous_response_id. Raises ApiError."""
    _refuse_what_is_not_here(body)
    items = _read_items(body)
    tools, choice = choose(read_tools(body.tools), body.tool_choice)
    n_logprobs = _read_logprobs(body)
    schema, is_strict = _read_format(body.text)
    constraint = read_constraint(schema, "text.format", body, is_strict=is_strict)
    arguments = dict(body.chat_template_kwargs or {})
    thinking, budget, effort = _read_reasoning(body.reasoning, arguments.pop("enable_thinking", None))
    messages = messages_of(items, earlier)
    if body.instructions:
        messages.insert(0, {"role": "system", "content": body.instructions})
    if not messages:
        raise refusal("input", "input: there is nothing to answer")
    prompt = ChatPrompt(
        messages=messages,
        tools=tools.definitions,
        tool_choice=choice,
        parallel_tool_calls=body.parallel_tool_calls,
        max_tool_calls=whole(body.max_tool_calls, "max_tool_calls", 1, INT32_MAX),
        json_schema=constraint.schema,
        json_schema_is_strict=constraint.is_strict,
        grammar=constraint.grammar,
        thinking=thinking,
        thinking_budget=budget,
        effort=effort,
        template_arguments=arguments,
        drops_oldest=body.truncation == "auto",
    )
    answer_request = AnswerRequest(
        prompt=prompt,
        model=body.model or "",
        max_tokens=whole(body.max_output_tokens, "max_output_tokens", 0, INT32_MAX),
        stops=read_stops(body.stop),
        sampling=read_sampling(body, vocabulary),
        n_logprobs=n_logprobs,
        ignore_eos=body.ignore_eos is True,
        **read_ending(body, vocabulary.n_vocab),
        pins=read_pins(body.pin, "system"),
        reading=read_reading(body, caller.headers),
        session=read_session(body, caller.headers),
        client=caller.client,
    )
    return ParsedResponses(answer_request, _form(body, model, tools, with_logprobs=n_logprobs is not None), items)


def _refuse_what_is_not_here(body: ResponsesBody) -> None:
    if body.background and body.store is False:
        raise refusal("background", "background: a response that is not stored cannot be asked for later")
    if body.conversation is not None:
        text = "conversation: conversations are not kept here. Send the items, or previous_response_id"
        raise refusal("conversation", text, "unsupported_parameter")
    if body.prompt is not None:
        raise refusal("prompt", "prompt: there are no prompt templates here. Send input", "unsupported_parameter")
    if body.truncation not in {None, "auto", "disabled"}:
        raise refusal("truncation", "truncation must be auto or disabled")
    metadata = body.metadata
    if metadata is not None and not (
        isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())
    ):
        raise refusal("metadata", "metadata must be an object of texts")


def _read_items(body: ResponsesBody) -> list[Any]:
    if body.input is None:
        if body.previous_response_id is None and not body.instructions:
            raise refusal("input", "input: a text or a list of items is missing", "missing_required_parameter")
        return []
    if isinstance(body.input, str):
        content = [{"type": "input_text", "text": body.input}]
        return [{"type": "message", "role": "user", "content": content}]
    if not isinstance(body.input, list):
        raise refusal("input", "input must be a text or a list of items", "invalid_type")
    return body.input


def _read_logprobs(body: ResponsesBody) -> int | None:
    n_likeliest = whole(body.top_logprobs, "top_logprobs", 0, MAX_TOP_LOGPROBS) or 0
    return n_likeliest if n_likeliest or LOGPROBS in (body.include or ()) else None


def _read_reasoning(reasoning: Mapping[str, Any] | None, switch: object) -> tuple[bool | None, int | None, str | None]:
    """Whether to think, for how many tokens, and how hard. `max_tokens` and `enabled` are OpenRouter's; the switch is
    llama-server's."""
    reasoning = reasoning or {}
    effort, budget, enabled = (reasoning.get(name) for name in ("effort", "max_tokens", "enabled"))
    if effort is not None and effort not in EFFORTS:
        raise refusal("reasoning.effort", f"reasoning.effort must be one of {', '.join(EFFORTS)}")
    if budget is not None and (not isinstance(budget, int) or isinstance(budget, bool) or not 0 <= budget <= INT32_MAX):
        raise refusal("reasoning.max_tokens", "reasoning.max_tokens must be a whole number that is not negative")
    if effort == "none" or enabled is False or switch is False:
        return False, None, None
    return (True if enabled is True or switch is True else None), budget, effort


def _read_format(text: Mapping[str, Any] | None) -> tuple[Mapping[str, Any] | None, bool]:
    """The schema, and whether it is strict."""
    form = (text or {}).get("format")
    if form is None:
        return None, False
    if not isinstance(form, dict):
        raise refusal("text.format", "text.format must be an object", "invalid_type")
    match form.get("type"):
        case "text":
            return None, False
        case "json_object":
            return {}, False
        case "json_schema":
            nested = form.get("json_schema")  # as chat completions have it
            named = nested if isinstance(nested, dict) else form
            schema = named.get("schema")
            if not isinstance(schema, dict):
                raise refusal("text.format.schema", "text.format.schema: a JSON schema is missing")
            return schema, named.get("strict") is True
        case _:
            raise refusal("text.format.type", "text.format.type must be text, json_object or json_schema")


def _form(body: ResponsesBody, model: str, tools: Tools, *, with_logprobs: bool) -> ResponseForm:
    return ResponseForm(
        _echo(body, model),
        tools,
        with_logprobs=with_logprobs,
        packs_reasoning=PACKED_REASONING in (body.include or ()),
        with_progress=body.return_progress is True,
        with_timings=body.timings_per_token is True,
    )


def _echo(body: ResponsesBody, model: str) -> dict[str, Any]:
    extra = body.model_extra or {}
    text = body.text or {}
    reasoning = body.reasoning or {}
    return {
        "model": model,
        "background": body.background is True,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": _text(extra.get("prompt_cache_key")),
        "reasoning": {"effort": reasoning.get("effort"), "summary": None},
        "safety_identifier": _text(extra.get("safety_identifier")),
        "service_tier": "default",
        "store": body.store is not False,
        "temperature": body.temperature,
        "text": {"format": _echo_format(text.get("format")), "verbosity": _text(text.get("verbosity")) or "medium"},
        "tool_choice": "auto" if body.tool_choice is None else body.tool_choice,
        "tools": [_echo_tool(tool) for tool in body.tools or ()],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": body.top_p,
        "truncation": body.truncation or "disabled",
        "user": _text(body.user),
    }


def _echo_format(form: Any) -> Mapping[str, Any]:
    if not isinstance(form, dict):
        return {"type": "text"}
    if form.get("type") != "json_schema":
        return form
    nested = form.get("json_schema")
    flat = {key: value for key, value in form.items() if key != "json_schema"}
    return {"name": "answer", "strict": False} | flat | (nested if isinstance(nested, dict) else {})


def _echo_tool(tool: dict[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "function":
        return tool
    inner = tool.get("function")
    flat = {"type": "function"} | inner if isinstance(inner, dict) else tool
    return {"description": None, "parameters": None, "strict": False} | flat


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
