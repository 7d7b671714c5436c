"""What Anthropic's clients send to `/v1/messages`, as pydantic reads it, and for the OpenAPI document what they get.

Fields that are not named here are tolerated. Content blocks stay dictionaries: what becomes of each kind is
conversion's to say. Knows nothing of what a request turns into.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from luce.supervisor.http.admin.openapi import NUMBER, TEXT, listed, record
from luce.supervisor.http.reading_fields import ReadingFields
from luce.supervisor.http.sampling_fields import SamplingFields, Whole

MAX_INT32 = 2**31 - 1

Count = Annotated[Whole, Field(ge=0, le=MAX_INT32)]


def _text_or_blocks(value: object) -> object:
    if isinstance(value, str) or (isinstance(value, list) and all(isinstance(block, dict) for block in value)):
        return value
    raise PydanticCustomError("content", "Input should be a string or a list of content blocks")


_CONTENT = {"anyOf": [TEXT, listed(record({"type": TEXT}))]}
Blocks = list[dict[str, Any]]
Content = Annotated[str | Blocks, BeforeValidator(_text_or_blocks), WithJsonSchema(_CONTENT)]


class Shape(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


class InputMessage(Shape):
    """What is in it is conversation's to check: of earlier messages everything is taken."""

    role: Annotated[Any, WithJsonSchema({"enum": ["user", "assistant", "system"]})] = None
    content: Annotated[Any, WithJsonSchema(_CONTENT)] = ""
    clear_at: Any = None


class Tool(Shape):
    """Without an input_schema it is one that Anthropic's own servers carry out or define."""

    name: str | None = None
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChoice(Shape):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(Shape):
    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Count | None = None
    display: str | None = None


class OutputFormat(Shape):
    type: Literal["json_schema"]
    json_schema: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class OutputConfig(Shape):
    effort: str | None = None
    format: OutputFormat | None = None


class Metadata(Shape):
    user_id: str | None = None


class EditAmount(Shape):
    type: str
    value: Count


class Edit(Shape):
    type: str
    trigger: EditAmount | None = None
    keep: EditAmount | Literal["all"] | None = None
    clear_at_least: EditAmount | None = None
    exclude_tools: list[str] | None = None
    clear_tool_inputs: bool | None = None


class ContextManagement(Shape):
    edits: list[Edit] | None = None


class CountTokensRequest(Shape):
    """What a prompt is made of."""

    model: str = ""
    messages: list[InputMessage]
    system: Content | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None  # where output_config.format was before
    context_management: ContextManagement | None = None
    chat_template_kwargs: dict[str, Any] | None = None  # not Anthropic's: handed to the template as they are
    grammar: str | None = None  # not Anthropic's either


class MessagesRequest(CountTokensRequest, SamplingFields, ReadingFields):
    """The fields of SamplingFields and ReadingFields are not Anthropic's."""

    model_config = ConfigDict(extra="allow", strict=True)

    max_tokens: Count
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    top_k: Count | None = None
    seed: Annotated[Whole, Field(ge=0, lt=2**64)] | None = None  # not Anthropic's
    metadata: Metadata | None = None
    pin: Any = None  # not Anthropic's


_BLOCK = {
    "anyOf": [
        record({"type": {"const": "text"}, "text": TEXT}),
        record({"type": {"const": "thinking"}, "thinking": TEXT, "signature": TEXT}),
        record({"type": {"const": "tool_use"}, "id": TEXT, "name": TEXT, "input": {"type": "object"}}),
    ]
}
# The prompt's length is input_tokens + cache_creation_input_tokens + cache_read_input_tokens.
_COUNTS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
MESSAGE = record(
    {
        "id": TEXT,
        "type": {"const": "message"},
        "role": {"const": "assistant"},
        "model": TEXT,
        "content": listed(_BLOCK),
        "stop_reason": {"enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use"]},
        "stop_sequence": {"type": ["string", "null"]},
        "usage": record(dict.fromkeys(_COUNTS, NUMBER)),
    }
)
TOKEN_COUNT = record({"input_tokens": NUMBER})
