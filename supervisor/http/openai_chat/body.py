"""ChatBody: the fields of a chat completion's body that mean something here, and their types.

What lies deeper (messages, tools) is read by hand, for errors that name the place; the schemas beside them are for the
OpenAPI document. Unknown fields are tolerated.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import StrictBool, WithJsonSchema

from luce.supervisor.http.admin.openapi import NAME, TEXT, listed, record
from luce.supervisor.http.openai_chat.messages import ROLES
from luce.supervisor.http.openai_shared.constraints import ConstrainedFields
from luce.supervisor.http.openai_shared.fields import GeneratingBody
from luce.supervisor.http.sampling_fields import Whole

_PART = record({"type": {"const": "text"}, "text": TEXT})
_CALLED = record({"name": TEXT, "arguments": TEXT})
_CALL = record({"id": TEXT, "type": {"const": "function"}, "function": _CALLED})
_MESSAGE = record(
    {"role": {"enum": list(ROLES)}},
    content={"anyOf": [TEXT, listed(_PART), {"type": "null"}]},
    name=TEXT,
    reasoning_content=TEXT,
    tool_calls=listed(_CALL),
    tool_call_id=TEXT,
)
_FUNCTION = record({"name": NAME}, description=TEXT, parameters={"type": "object"})
_TOOL = record({"type": {"const": "function"}, "function": _FUNCTION})
_TOOL_CHOICE = {"anyOf": [{"enum": ["auto", "none", "required"]}, {"type": "object"}]}
_FORMATS = ["text", "json_object", "json_schema"]
_RESPONSE_FORMAT = record({"type": {"enum": _FORMATS}}, json_schema={"type": "object"})

Messages = Annotated[Any, WithJsonSchema(listed(_MESSAGE, minItems=1))]
Tools = Annotated[Any, WithJsonSchema(listed(_TOOL))]
Functions = Annotated[Any, WithJsonSchema(listed(_FUNCTION))]
ToolChoice = Annotated[Any, WithJsonSchema(_TOOL_CHOICE)]
ResponseFormat = Annotated[Any, WithJsonSchema(_RESPONSE_FORMAT)]
Schema = Annotated[Any, WithJsonSchema({"type": "object"})]


class ChatBody(GeneratingBody, ConstrainedFields):
    messages: Messages
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: StrictBool | None = None
    functions: Functions | None = None
    function_call: ToolChoice | None = None
    response_format: ResponseFormat | None = None
    json_schema: Schema | None = None
    """llama-server's way to ask for JSON of a schema."""
    max_tool_calls: Whole | None = None
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
