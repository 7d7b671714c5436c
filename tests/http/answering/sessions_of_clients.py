"""First requests of new sessions, in the shapes in which four coding agents send them: where the tools and the long
text stand is theirs, and so is where a folder, a day and an id come in. Shorter than theirs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from luce.supervisor.http.anthropic.conversion import request_of_messages
from luce.supervisor.http.anthropic.shapes import MessagesRequest
from luce.supervisor.http.openai_chat.body import ChatBody
from luce.supervisor.http.openai_chat.parse import read_chat
from luce.supervisor.http.openai_responses.request import Caller, ResponsesBody, read_request
from luce.supervisor.http.prompts.answer_request import AnswerRequest
from luce.supervisor.text import TextModel

Body = Mapping[str, Any]


def rules(name: str, n: int) -> str:
    return " ".join(f"{name} {i}: be kind to file number {i * 37 % 101}." for i in range(n))


def tools(name: str) -> list[tuple[str, str, dict[str, Any]]]:
    schema = {"type": "object", "properties": {"file_path": {"type": "string"}}, "required": ["file_path"]}
    return [(f"{name}_{i}", rules(f"tool {name} {i}", 6), schema) for i in range(6)]


def claude_code(number: int, folder: str) -> Body:
    munged = folder.replace("/", "-")
    about = f"# Memory\nYour memory is at `/home/ada/.claude/projects/{munged}/memory/`. It exists already.\n"
    surroundings = f"# Environment\n - Primary working directory: {folder}\n - Is a git repository: false\n"
    return {
        "model": "luce",
        "max_tokens": 4,
        "tools": [
            {"name": name, "description": text, "input_schema": schema} for name, text, schema in tools("claude")
        ],
        "system": [
            {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.328.{number}; cc_entrypoint=cli;"},
            {"type": "text", "text": "You are a coding agent."},
            {"type": "text", "text": rules("policy", 40) + "\n" + about + rules("habit", 20)},
        ],
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "<system-reminder>\n" + rules("hint", 4) + "\n</system-reminder>\n"},
                    {"type": "text", "text": f"Look at file {number}"},
                ],
            },
            {"role": "system", "content": surroundings + rules("skill", 20) + "\nToday's date is 2026-11-24."},
        ],
    }


def codex(number: int, folder: str) -> Body:
    surroundings = (
        f"<environment_context>\n  <cwd>{folder}</cwd>\n  <shell>bash</shell>\n"
        f"  <current_date>2026-11-24</current_date>\n  <root>{folder}</root>\n"
        f"{rules('note', 8)}\n</environment_context>"
    )
    return {
        "model": "luce",
        "max_output_tokens": 4,
        "store": False,
        "prompt_cache_key": f"0199f1a2-0000-7000-8000-{number:012d}",
        "tools": [
            {"type": "function", "name": name, "description": text, "parameters": schema}
            for name, text, schema in tools("codex")
        ],
        "input": [
            {"role": "developer", "content": [{"type": "input_text", "text": rules("rule", 60)}]},
            {
                "role": "developer",
                "content": [
                    {"type": "input_text", "text": "<skills>\n" + rules("skill", 12) + "\n</skills>"},
                    {"type": "input_text", "text": rules("permission", 5)},
                ],
            },
            {"role": "user", "content": [{"type": "input_text", "text": surroundings}]},
            {"role": "user", "content": [{"type": "input_text", "text": f"Look at file {number}"}]},
        ],
    }


def opencode(number: int, folder: str) -> Body:
    surroundings = f"<env>\n  Working directory: {folder}\n  Platform: linux\n  Today's date: Tue Nov 24 2026\n</env>\n"
    return {
        "model": "luce",
        "max_tokens": 4,
        "tools": [
            {"type": "function", "function": {"name": name, "description": text, "parameters": schema}}
            for name, text, schema in tools("opencode")
        ],
        "messages": [
            {"role": "system", "content": rules("example", 50) + "\n" + surroundings + rules("agent", 10)},
            {"role": "user", "content": f'"Look at file {number}"\n' + rules("please", 4)},
        ],
    }


def pi(number: int, folder: str) -> Body:
    help_at = "/opt/node/lib/node_modules/pi"
    manual = "".join(f"- {name}: {help_at}/{name}\n" for name in ("README.md", "docs", "examples"))
    text = f"{rules('guide', 15)}\n{manual}Current date: 2026-11-24\nCurrent working directory: {folder}"
    return {
        "model": "luce",
        "max_completion_tokens": 4,
        "store": False,
        "tools": [
            {"type": "function", "function": {"name": name, "description": text, "parameters": schema}}
            for name, text, schema in tools("pi")[:4]
        ],
        "messages": [
            {"role": "system", "content": text},
            {"role": "user", "content": [{"type": "text", "text": f"Look at file {number}. " + rules("please", 12)}]},
        ],
    }


SHAPES: Mapping[str, tuple[str, Callable[[int, str], Body]]] = {
    "claude_code": ("/v1/messages", claude_code),
    "codex": ("/v1/responses", codex),
    "opencode": ("/v1/chat/completions", opencode),
    "pi": ("/v1/chat/completions", pi),
}


def asked(client: str, body: Body, model: TextModel) -> AnswerRequest:
    """What the server makes of the body."""
    if client == "claude_code":
        return request_of_messages(MessagesRequest.model_validate(body))
    if client == "codex":
        wanted = ResponsesBody.model_validate(body)
        return read_request(wanted, [], model="luce", vocabulary=model, caller=Caller({})).answer_request
    return read_chat(ChatBody.model_validate(body), model, max_choices=1, headers={}, client="").answer_request


def n_cached(usage: Mapping[str, Any]) -> int:
    """As the three APIs tell it."""
    if "cache_read_input_tokens" in usage:
        return int(usage["cache_read_input_tokens"])
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    return int(details.get("cached_tokens", 0))
