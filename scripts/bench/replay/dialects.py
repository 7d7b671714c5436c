"""A request's body -> the conversation that the server makes of it, by the API's own reader. Knows no client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from luce.supervisor.http.anthropic.conversion import chat_prompt
from luce.supervisor.http.anthropic.shapes import MessagesRequest
from luce.supervisor.http.openai_chat.body import ChatBody
from luce.supervisor.http.openai_chat.parse import read_chat
from luce.supervisor.http.openai_responses.request import Caller, ResponsesBody, read_request
from luce.supervisor.http.prompts.answer_request import AnswerRequest, ChatPrompt
from luce.supervisor.text import TextModel


def prompt_of(path: str, body: Mapping[str, Any], model: TextModel) -> ChatPrompt:
    """Raises ApiError."""
    if path.startswith("/v1/messages"):
        return chat_prompt(MessagesRequest.model_validate(body))
    prompt = _openai_request(path, body, model).prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt


def _openai_request(path: str, body: Mapping[str, Any], model: TextModel) -> AnswerRequest:
    if path == "/v1/responses":
        read = ResponsesBody.model_validate(body)
        return read_request(read, [], model="luce", vocabulary=model, caller=Caller({})).answer_request
    return read_chat(ChatBody.model_validate(body), model, max_choices=1, headers={}, client="").answer_request
