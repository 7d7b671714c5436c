"""ChatBody: the fields of a chat completion's body that mean something here, and their types.

What lies deeper (messages, tools) is read by hand, for errors that name the place; the schemas beside them are for the
OpenAPI document. Unknown fields are tolerated.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import StrictBool, WithJsonSchema

from luce.supervisor.http.openai_chat.messages import ROLES
from luce.supervisor.http.openai_shared.fields import GeneratingBody, Whole

_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
_CALL = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "arguments": {"type": "string"}},
            "required": ["name", "arguments"],
        },
    },
    "required": ["id", "type", "function"],
}
_MESSAGE = {
    "type": "object",
    "properties": {
        "role": {"enum": list(ROLES)},
        "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": _PART}, {"type": "null"}]},
        "name": {"type": "string"},
        "reasoning_content": {"type": "string"},
        "tool_calls": {"type": "array", "items": _CALL},
        "tool_call_id": {"type": "string"},
    },
    "required": ["role"],
}
_FUNCTION = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "description": {"type": "string"},
        "parameters": {"type": "object"},
    },
    "required": ["name"],
}
_TOOL = {
    "type": "object",
    "properties": {"type": {"const": "function"}, "function": _FUNCTION},
    "required": ["type", "function"],
}
_TOOL_CHOICE = {"anyOf": [{"enum": ["auto", "none", "required"]}, {"type": "object"}]}
_RESPONSE_FORMAT = {
    "type": "object",
    "properties": {"type": {"enum": ["text", "json_object", "json_schema"]}, "json_schema": {"type": "object"}},
    "required": ["type"],
}

Messages = Annotated[Any, WithJsonSchema({"type": "array", "minItems": 1, "items": _MESSAGE})]
Tools = Annotated[Any, WithJsonSchema({"type": "array", "items": _TOOL})]
Functions = Annotated[Any, WithJsonSchema({"type": "array", "items": _FUNCTION})]
ToolChoice = Annotated[Any, WithJsonSchema(_TOOL_CHOICE)]
ResponseFormat = Annotated[Any, WithJsonSchema(_RESPONSE_FORMAT)]
Schema = Annotated[Any, WithJsonSchema({"type": "object"})]


class ChatBody(GeneratingBody):
    messages: Messages
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: StrictBool | None = None
    functions: Functions | None = None
    function_call: ToolChoice | None = None
    response_format: ResponseFormat | None = None
    json_schema: Schema | None = None
    """llama-server's way to ask for JSON of a schema."""
    grammar: str | None = None
    """llama-server's: GBNF that the answer follows."""
    logprobs: StrictBool | None = None
    top_logprobs: Whole | None = None
    max_completion_tokens: Whole | None = None
    modalities: Any = None
    reasoning_effort: str | None = None
    reasoning: Any = None
    """OpenRouter's {"effort", "enabled", "max_tokens"}."""
    thinking: Any = None
    """{"type": "enabled" | "disabled", "budget_tokens"}, as several vendors' APIs have it."""
    enable_thinking: StrictBool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    thinking_budget_tokens: Whole | None = None
    reasoning_budget_tokens: Whole | None = None
    reasoning_budget: Whole | None = None
    thinking_budget: Whole | None = None
    thinking_token_budget: Whole | None = None
    add_generation_prompt: StrictBool | None = None
    continue_final_message: Any = None
    """true, false, or which part of the message goes on (content, reasoning_content)."""
    return_progress: StrictBool | None = None
    verbose: Any = None
    """true is llama-server's wish to see the prompt; others have words of their own here."""
