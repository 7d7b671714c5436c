"""How much a chat completion's client wants the model to reason: one meaning for the many fields that ask for it.

OpenAI's is `reasoning_effort`; llama-server, vLLM and vendors' APIs have switches and budgets of their own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from luce.supervisor.http.openai_chat.body import ChatBody
from luce.supervisor.http.openai_shared.fields import expect, refusal, whole

BUDGETS = (
    "thinking_budget_tokens",
    "reasoning_budget_tokens",
    "reasoning_budget",
    "thinking_budget",
    "thinking_token_budget",
)
_EFFORT = re.compile(r"[a-z][a-z_-]{0,31}")


@dataclass(frozen=True, slots=True)
class ThinkingOptions:
    thinking: bool | None = None
    budget: int | None = None
    effort: str | None = None
    template_arguments: dict[str, Any] = field(default_factory=dict)


def read_thinking(body: ChatBody) -> ThinkingOptions:
    arguments = dict(body.chat_template_kwargs or {})
    switch = arguments.pop("enable_thinking", None)
    if switch is not None and not isinstance(switch, bool):
        param = "chat_template_kwargs.enable_thinking"
        raise refusal(param, f"Invalid type for '{param}': expected a boolean.", "invalid_type")
    thinking = switch if switch is not None else body.enable_thinking
    budget = _read_budget(body)
    effort: Any = body.reasoning_effort
    vendor, router = _object(body.thinking, "thinking"), _object(body.reasoning, "reasoning")
    if thinking is None and vendor.get("type") in ("enabled", "disabled"):
        thinking = vendor["type"] == "enabled"
    if thinking is None and isinstance(router.get("enabled"), bool):
        thinking = router["enabled"]
    if budget is None:
        budget = _number(vendor.get("budget_tokens"), "thinking.budget_tokens")
    if budget is None:
        budget = _number(router.get("max_tokens"), "reasoning.max_tokens")
    if effort is None:
        effort = router.get("effort")
    if effort is not None and (not isinstance(effort, str) or _EFFORT.fullmatch(effort) is None):
        text = "Invalid 'reasoning_effort': expected a word such as 'none', 'low', 'medium' or 'high'."
        raise refusal("reasoning_effort", text)
    if effort == "none":
        thinking, effort = False, None
    return ThinkingOptions(thinking, budget, effort, arguments)


def _read_budget(body: ChatBody) -> int | None:
    """-1 is llama-server's word for no bounds."""
    for param in BUDGETS:
        value: int | None = getattr(body, param)
        if value is not None:
            return _number(value, param)
    return None


def _number(value: Any, param: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise refusal(param, f"Invalid type for '{param}': expected an integer.", "invalid_type")
    whole(value, param, -1, 2**31 - 1)
    return None if value == -1 else value


def _object(value: Any, param: str) -> dict[str, Any]:
    """`true` and `false` are taken as the switch alone."""
    if value is None:
        return {}
    if isinstance(value, bool):
        return {"type": "enabled" if value else "disabled", "enabled": value}
    return expect(value, dict, param, "an object")
