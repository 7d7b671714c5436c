"""A request to `/v1/messages` as an AnswerRequest: its options, tools, and who asks. Pure.

The messages are conversation's. Knows neither HTTP nor how an AnswerRequest is answered.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from luce.protocol import SamplingArgs
from luce.supervisor.http.anthropic.content import invalid, log_left_out
from luce.supervisor.http.anthropic.conversation import Conversation, read_conversation
from luce.supervisor.http.anthropic.shapes import (
    ContextManagement,
    CountTokensRequest,
    EditAmount,
    MessagesRequest,
    Tool,
    ToolChoice,
)
from luce.supervisor.http.prompts.answer_request import AnswerRequest, ChatPrompt
from luce.supervisor.http.prompts.context_edits import ContextEdit
from luce.supervisor.http.prompts.pinned_ranges import read_pins
from luce.supervisor.http.reading_fields import read_reading
from luce.supervisor.http.sampling_fields import add_links, note_ignored, read_ending

MAX_STOPS = 256
DEFAULT_TRIGGER_TOKENS = 100_000
DEFAULT_KEPT_USES = 3
_MAX_SESSION = 256


def request_of_messages(
    body: MessagesRequest,
    *,
    client: str = "",
    session: str = "",
    n_vocab: int = 2**31,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> AnswerRequest:
    """`session` is a header's; what the body says of it, and of what other headers do, goes first. Raises ApiError."""
    return AnswerRequest(
        prompt=chat_prompt(body),
        model=body.model,
        max_tokens=body.max_tokens,
        stops=_stops(body.stop_sequences or ()),
        sampling=_sampling(body),
        **read_ending(body, n_vocab),
        pins=read_pins(body.pin, "system"),
        reading=read_reading(body, headers),
        session=_short(_session_in(body) or session),
        client=client,
    )


def request_of_count(body: CountTokensRequest, *, client: str = "") -> AnswerRequest:
    """Only its prompt counts. Raises ApiError."""
    return AnswerRequest(prompt=chat_prompt(body), model=body.model, client=client)


def chat_prompt(body: CountTokensRequest) -> ChatPrompt:
    conversation = read_conversation(body.messages, body.system)
    tools = _offered([*(body.tools or ()), *conversation.added_tools])
    thinking, budget = _thinking(body, conversation)
    output = body.output_config
    output_format = (output.format if output is not None else None) or body.output_format
    choice = body.tool_choice
    if body.grammar and output_format is not None:
        raise invalid("grammar", "it cannot be used together with a schema of the output")
    return ChatPrompt(
        messages=conversation.messages,
        tools=tools,
        tool_choice=_tool_choice(body, tools),
        parallel_tool_calls=_takes_parallel_calls(choice),
        json_schema=output_format.json_schema if output_format is not None else None,
        json_schema_is_strict=output_format is not None and output_format.strict is True,
        grammar=body.grammar or None,
        thinking=thinking,
        thinking_is_optional=body.thinking is not None and body.thinking.type == "adaptive",
        thinking_budget=budget,
        effort=output.effort if output is not None else None,
        template_arguments=body.chat_template_kwargs or {},
        continues_last=conversation.continues_last,
        edits=_edits(body.context_management),
    )


def _edits(management: ContextManagement | None) -> list[ContextEdit]:
    """Anthropic's defaults where the client does not say. Edits of other kinds are theirs alone."""
    edits = []
    for edit in (management.edits if management is not None else None) or ():
        kept = edit.keep.value if isinstance(edit.keep, EditAmount) else None
        if edit.type.startswith("clear_thinking") and edit.keep != "all":
            edits.append(ContextEdit(clears="thinking", keep=1 if kept is None else kept))
        elif edit.type.startswith("clear_tool_uses"):
            trigger = edit.trigger
            counts_uses = trigger is not None and trigger.type == "tool_uses"
            value = trigger.value if trigger is not None else DEFAULT_TRIGGER_TOKENS
            edits.append(
                ContextEdit(
                    clears="tool_uses",
                    keep=DEFAULT_KEPT_USES if kept is None else kept,
                    trigger_tokens=None if counts_uses else value,
                    trigger_tool_uses=value if counts_uses else None,
                    at_least_tokens=edit.clear_at_least.value if edit.clear_at_least is not None else 0,
                    excluded_tools=frozenset(edit.exclude_tools or ()),
                    clears_inputs=edit.clear_tool_inputs is True,
                )
            )
        elif not edit.type.startswith("clear_thinking"):
            log_left_out("context edits", edit.type)
    return edits


def hides_thinking(body: CountTokensRequest) -> bool:
    """Whether the client wants signatures in place of the reasoning."""
    return body.thinking is not None and body.thinking.display == "omitted"


def _thinking(body: CountTokensRequest, conversation: Conversation) -> tuple[bool | None, int | None]:
    """Without a word from the client a model thinks as its template does, but for an answer that is begun already."""
    config = body.thinking
    if config is None:
        return (False if conversation.continues_last else None), None
    if config.type == "enabled" and config.budget_tokens is None:
        raise invalid("thinking.enabled.budget_tokens", "Field required")
    return config.type != "disabled", config.budget_tokens if config.type == "enabled" else None


def _offered(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """The tools that the client carries out itself. The others live on Anthropic's servers."""
    offered: dict[str, dict[str, Any]] = {}
    for index, tool in enumerate(tools):
        if tool.input_schema is None:
            if tool.type in {None, "custom"}:
                raise invalid(f"tools.{index}.custom.input_schema", "Field required")
            log_left_out("tools", tool.type or "")
            continue
        if not tool.name:
            raise invalid(f"tools.{index}.custom.name", "Field required")
        if tool.name in offered:
            raise invalid("tools", f"Tool names must be unique, but {tool.name[:128]!r} comes twice")
        function: dict[str, Any] = {
            "name": tool.name,
            "description": tool.description or "",
            "parameters": tool.input_schema,
        }
        if tool.strict:
            function["strict"] = True
        offered[tool.name] = {"type": "function", "function": function}
    return list(offered.values())


def _takes_parallel_calls(choice: ToolChoice | None) -> bool | None:
    """None: the client does not say."""
    if choice is None or choice.disable_parallel_tool_use is None:
        return None
    return not choice.disable_parallel_tool_use


def _tool_choice(body: CountTokensRequest, offered: Sequence[dict[str, Any]]) -> str:
    choice = body.tool_choice
    match choice.type if choice is not None else "auto":
        case "any":
            if not offered:
                raise invalid("tool_choice", "there is no tool that the model could call")
            return "required"
        case "tool":
            name = choice.name if choice is not None else None
            if name is None:
                raise invalid("tool_choice.tool.name", "Field required")
            if all(tool["function"]["name"] != name for tool in offered):
                raise invalid("tool_choice.tool", f"Tool {name[:128]!r} not found among the tools that can be offered")
            return f"function:{name}"
        case "none":
            return "none"
        case _:
            return "auto"


def _stops(sequences: Sequence[str]) -> tuple[str, ...]:
    if len(sequences) > MAX_STOPS:
        raise invalid("stop_sequences", f"there may be {MAX_STOPS} of them, not {len(sequences)}")
    for index, sequence in enumerate(sequences):
        if not sequence:
            raise invalid(f"stop_sequences.{index}", "it must not be empty")
    return tuple(sequences)


def _sampling(body: MessagesRequest) -> SamplingArgs:
    note_ignored(body)
    chosen = SamplingArgs(temperature=body.temperature, top_p=body.top_p, top_k=body.top_k, seed=body.seed)
    if body.top_p == 0:  # a share of nothing holds the likeliest token alone
        chosen = SamplingArgs(temperature=body.temperature, top_k=1, seed=body.seed)
    return add_links(chosen, body)


def _session_in(body: MessagesRequest) -> str:
    """Claude Code puts JSON with a session_id into metadata.user_id; others what they like."""
    user_id = body.metadata.user_id if body.metadata is not None else None
    if not user_id:
        return ""
    try:
        values = json.loads(user_id) if user_id.startswith("{") and len(user_id) <= 4096 else None
    except (ValueError, RecursionError):
        values = None
    session = values.get("session_id") if isinstance(values, dict) else None
    return session if isinstance(session, str) and session else user_id


def _short(session: str) -> str:
    if len(session) <= _MAX_SESSION:
        return session
    return hashlib.blake2s(session.encode(errors="replace")).hexdigest()
