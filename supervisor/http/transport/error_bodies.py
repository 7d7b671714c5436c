"""An ApiError in the words of either API, and which of them a request speaks.

A prompt that does not fit is told in the texts that agents look for: they compact their history then, and do nothing
of use otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from luce.supervisor.http.errors import ApiError, ErrorKind

LLAMA_CONTEXT_FULL = "exceed_context_size_error"


def openai_error(error: ApiError, *, path: str = "/v1/") -> dict[str, Any]:
    """Also what llama-server says of a prompt that does not fit, as fields of the same object; under the paths that are
    its own, not OpenAI's, `type` is its word too."""
    body: dict[str, Any] = {
        "message": error.text,
        "type": error.kind.openai_type,
        "param": error.param,
        "code": error.code,
    }
    if error.kind is ErrorKind.CONTEXT_FULL:
        body["code"] = "context_length_exceeded"
        if error.n_prompt is not None and error.n_ctx is not None:
            body["message"] = (
                f"This model's maximum context length is {error.n_ctx} tokens. "
                f"However, your messages resulted in {error.n_prompt} tokens, "
                "which exceeds the available context size. Please reduce the length of the messages."
            )
            body["n_prompt_tokens"] = error.n_prompt
            body["n_ctx"] = error.n_ctx
        if "/v1/" not in path:
            body["type"] = LLAMA_CONTEXT_FULL
    return {"error": body}


def anthropic_error(error: ApiError, request_id: str) -> dict[str, Any]:
    text = error.text
    if error.kind is ErrorKind.CONTEXT_FULL:
        text = "prompt is too long"
        if error.n_prompt is not None and error.n_ctx is not None:
            text = f"prompt is too long: {error.n_prompt} tokens > {error.n_ctx} maximum"
    return {
        "type": "error",
        "error": {"type": error.kind.anthropic_type, "message": text},
        "request_id": request_id,
    }


def speaks_anthropic(path: str, headers: Mapping[str, str]) -> bool:
    """By the path, which may begin with where the application is mounted; elsewhere by what their SDKs always send."""
    is_theirs = "/v1/messages" in path or path.endswith(("/messages", "/messages/count_tokens"))
    return is_theirs or "anthropic-version" in headers
