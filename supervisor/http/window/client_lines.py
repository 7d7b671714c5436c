"""What to put into each client so that it talks to this server: lines to copy. Pure text.

The formats are the clients' own (scripts/clients/ runs each of them).
"""

from __future__ import annotations

import json

NO_KEY = "none"  # clients insist on some key; without keys of ours any will do


def client_lines(url: str, model: str, key: str | None, *, n_ctx: int | None) -> dict[str, str]:
    """What each client takes, by its name. `n_ctx`: None where it is not known; nothing is said of it then."""
    said = NO_KEY if key is None else key
    return {
        "Claude Code": _claude_code(url, model, said, n_ctx),
        "Codex, in ~/.codex/config.toml": _codex(url, model, key),
        "opencode, in opencode.json (then: opencode --model luce/" + model + ")": _opencode(url, model, said, n_ctx),
        "pi, in ~/.pi/agent/models.json (then: pi --provider luce --model " + model + ")": _pi(url, model, said, n_ctx),
        "Open WebUI": f"OPENAI_API_BASE_URL={url}/v1 OPENAI_API_KEY={said} open-webui serve",
        "OpenAI SDKs": f"export OPENAI_BASE_URL={url}/v1 OPENAI_API_KEY={said}",
        "Anthropic SDKs": f"export ANTHROPIC_BASE_URL={url} ANTHROPIC_API_KEY={said}",
        "luce chat, in a terminal": ("" if key is None else f"LUCE_API_KEY={said} ") + f"luce chat --url {url}",
    }


def _claude_code(url: str, model: str, key: str, n_ctx: int | None) -> str:
    """It takes a model that it does not know for one of 200,000 tokens."""
    server = f"ANTHROPIC_BASE_URL={url} ANTHROPIC_AUTH_TOKEN={key}"
    limit = "" if n_ctx is None else f" CLAUDE_CODE_MAX_CONTEXT_TOKENS={n_ctx}"
    return f"{server}{limit} claude --model {model}"


def _codex(url: str, model: str, key: str | None) -> str:
    lines = [
        f"model = {json.dumps(model)}",
        'model_provider = "luce"',
        "[model_providers.luce]",
        'name = "luce"',
        f'base_url = "{url}/v1"',
        'wire_api = "responses"',
    ]
    if key is not None:
        lines.append(f'env_key = "LUCE_API_KEY"   # and in the environment: LUCE_API_KEY={key}')
    return "\n".join(lines)


def _opencode(url: str, model: str, key: str, n_ctx: int | None) -> str:
    limit = {} if n_ctx is None else {"limit": {"context": n_ctx, "output": _most_output(n_ctx)}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{url}/v1", "apiKey": key},
        "models": {model: {"tool_call": True, **limit}},
    }
    return json.dumps({"provider": {"luce": provider}})


def _pi(url: str, model: str, key: str, n_ctx: int | None) -> str:
    limit = {} if n_ctx is None else {"contextWindow": n_ctx, "maxTokens": _most_output(n_ctx)}
    entry = {"id": model, "input": ["text"], **limit}
    provider = {"baseUrl": f"{url}/v1", "api": "openai-completions", "apiKey": key, "models": [entry]}
    return json.dumps({"providers": {"luce": provider}})


def _most_output(n_ctx: int) -> int:
    """What clients set aside for an answer when they look whether a conversation has to be compacted."""
    return min(n_ctx // 4, 32_000)
