"""AnswerRequest: what a client wants, in no dialect's words. Each dialect's parser makes one.

Messages and tools keep the shapes of OpenAI's chat completions, because chat templates are written for those.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from luce.protocol import ReadingArgs, SamplingArgs
from luce.supervisor.http.prompts.context_edits import ContextEdit
from luce.supervisor.http.prompts.infill import Infill

ToolChoice = Literal["auto", "none", "required"]
Pin = Literal["system"] | int | tuple[int, int]
"""A part of the prompt: its system prompt; a message, by its number; positions of its ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt:
    """A conversation that the model's template renders."""

    messages: Sequence[Mapping[str, Any]]
    """role: system, developer, user, assistant, tool; content: text, or parts of type "text" and "image"
    (message_images.py); assistant messages may
    have reasoning_content and tool_calls [{"id", "type": "function", "function": {"name", "arguments": JSON text}}];
    tool messages have tool_call_id."""
    tools: Sequence[Mapping[str, Any]] = ()
    """[{"type": "function", "function": {"name", "description", "parameters", "strict"}}]; others have been left out.
    `strict`: what of the parameters cannot be enforced is refused."""
    tool_choice: ToolChoice | str = "auto"
    """Or `function:NAME`: this tool has to be called."""
    parallel_tool_calls: bool | None = None
    """None: where the template shows several calls of one message."""
    max_tool_calls: int | None = None
    """So many, and a further one ends the answer."""
    json_schema: Mapping[str, Any] | None = None
    """The answer is JSON of this schema; {} is any JSON object. Where tools may be called, it is that or calls."""
    json_schema_is_strict: bool = False
    """What of it cannot be enforced is refused."""
    grammar: str | None = None
    """GBNF of the whole answer as the model writes it, calls included."""
    thinking: bool | None = None
    """Whether the model should reason first; None: as its template does by itself."""
    thinking_is_optional: bool = False
    """It is no more than the client's habit: the server's own default comes before it."""
    thinking_budget: int | None = None
    """Tokens of reasoning, at least 0, after which its end is forced; None: without bounds."""
    effort: str | None = None
    """low, medium, high, …: handed to templates that know it (reasoning_effort)."""
    preserve_thinking: Literal["on", "off", "auto"] = "auto"
    """Whether a template that can do either shows the reasoning of earlier turns; auto: where its makers advise it."""
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    continues_last: bool = False
    """The last message is the assistant's and the answer goes on from it."""
    edits: Sequence[ContextEdit] = ()
    """What is cleared of older messages where it is long."""
    drops_oldest: bool = False
    """Where it is longer than the context, what came first is left out."""
    opens_answer: bool = True
    """Whether the prompt ends with what the template puts before an answer."""

    @property
    def may_call(self) -> bool:
        return bool(self.tools) and self.tool_choice != "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPrompt:
    """A text or ids that the model goes on from, without a template."""

    content: str | Sequence[int]
    infill: Infill | None = None
    """What comes is to stand between `content` and another text."""
    echo: bool = False
    json_schema: Mapping[str, Any] | None = None
    """What comes is JSON of this schema; {} is any JSON object."""
    json_schema_is_strict: bool = False
    """What of it cannot be enforced is refused."""
    grammar: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRequest:
    prompt: ChatPrompt | TextPrompt
    model: str = ""
    """By which name the client asks for it: some have defaults of their own."""
    max_tokens: int | None = None
    """At least 0; None: as many as there is room for. Clamped to the room that the prompt leaves."""
    min_tokens: int = 0
    """Before so many, no token is chosen that would end the answer."""
    max_predict_s: float | None = None
    """From the first token to the end of a line after which the answer is cut off."""
    stops: Sequence[str] = ()
    stop_tokens: Sequence[int] = ()
    sampling: SamplingArgs = field(default_factory=SamplingArgs)
    """How tokens are chosen; None in it: the server's default."""
    n: int = 1
    """Answers that are wanted; they share the prompt, and sample with seeds of their own."""
    n_logprobs: int | None = None
    """None: no logprobs; 0: the chosen token's only; above: so many of the likeliest beside it."""
    n_prompt_logprobs: int | None = None
    """The same of the prompt's own tokens."""
    ignore_eos: bool = False
    reuse: bool = True
    """Whether the prompt's prefix may come from memory."""
    pins: Sequence[Pin] = ()
    """What the model is to see all the time, where texts may outgrow the engine's pool; elsewhere it sees all."""
    reading: ReadingArgs = field(default_factory=ReadingArgs)
    """How much of the prompt is read; None in it: as the engines were started. It names no positions."""
    session: str = ""
    """What tells this client's conversations apart, if it said (metadata.user_id, prompt_cache_key, a header)."""
    max_context: int | None = None
    """Tokens that prompt and answer may have together; None: as many as the engine's context."""
    client: str = ""
    """Who asks, by API key: the engine's time is shared fairly among clients, cached prefixes only if allowed."""

    def window(self, n_ctx: int | None) -> int | None:
        """Tokens that prompt and answer may have together in a context of `n_ctx`; None: nobody knows yet."""
        return min((n for n in (n_ctx, self.max_context) if n is not None), default=None)
