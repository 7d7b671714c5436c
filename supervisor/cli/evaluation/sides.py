"""Who answers the questions of an evaluation: a server under a name, by the chat completions of OpenAI's API. Knows
HTTP as ServerClient has it; judges nothing.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from luce.supervisor.cli.server_client import CHAT_PATH, Answer, ServerClient, ServerError
from luce.supervisor.evaluating.question import Call, Question, Reply
from luce.supervisor.evaluating.run import Answered, NoRoomError

_NO_ROOM = frozenset({400, 413, 422})
_BUSY = frozenset({429, 503})
_N_TRIES, _PAUSE_S = 5, 2.0
_THOUGHT = re.compile(r"\A\s*<think>.*?(?:</think>|\Z)\s*", re.DOTALL)
_FEW, _MANY = 1, 4  # times that a sample stands in the two prompts which tell how many characters a token has
_USUAL_CHARS_PER_TOKEN = 4.0
_N_PROBE_WORDS, _N_PROBE_ANSWER = 64, 16


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds for a token of a prompt, and of an answer."""

    read_s: float
    write_s: float


class ServerSide:
    def __init__(self, name: str, server: ServerClient, model: str, n_thinking: int) -> None:
        """`n_thinking`: tokens that an answer may have before it begins."""
        self.name = name
        self._server = server
        self._model = model
        self._n_thinking = n_thinking

    def answer(self, question: Question) -> Answered:
        """Raises NoRoomError or ServerError."""
        n_most = question.max_tokens + self._n_thinking
        body: dict[str, Any] = {"messages": list(question.messages), "max_tokens": n_most}
        if question.tools:
            body["tools"] = list(question.tools)
        try:
            answer = self._asked(body)
        except ServerError as error:
            if error.status in _NO_ROOM:
                raise NoRoomError(str(error)) from None
            raise
        calls = tuple(Call(call.name, call.arguments) for call in answer.calls)
        reply = Reply(_THOUGHT.sub("", answer.content), calls)
        return Answered(reply, _count(answer.usage, "prompt_tokens"), _count(answer.usage, "completion_tokens"))

    def chars_per_token(self, sample: str) -> float:
        """Of such a text, by the server's count of two prompts. Raises ServerError."""
        texts = [" ".join([sample] * n) for n in (_FEW, _MANY)]
        counts = []
        for text in texts:
            answer = self._asked({"messages": [{"role": "user", "content": text}], "max_tokens": 1})
            counts.append(_count(answer.usage, "prompt_tokens"))
        n_tokens = counts[1] - counts[0]
        return (len(texts[1]) - len(texts[0])) / n_tokens if n_tokens > 0 else _USUAL_CHARS_PER_TOKEN

    def pace(self) -> Pace:
        """By a short prompt that nobody has sent before, and a short answer. Raises ServerError."""
        words = " ".join(secrets.token_hex(2) for _ in range(_N_PROBE_WORDS))
        read, read_s = self._timed(words, 1)
        written, written_s = self._timed("Count from 1 to 100.", _N_PROBE_ANSWER)
        read_s /= max(_count(read.usage, "prompt_tokens"), 1)
        n_written = max(_count(written.usage, "completion_tokens"), 1)
        return Pace(read_s, max(written_s - read_s * _count(written.usage, "prompt_tokens"), 0) / n_written)

    def _timed(self, text: str, n: int) -> tuple[Answer, float]:
        began_s = time.monotonic()
        answer = self._asked({"messages": [{"role": "user", "content": text}], "max_tokens": n})
        return answer, time.monotonic() - began_s

    def _asked(self, body: Mapping[str, Any]) -> Answer:
        """A server that is busy is asked again."""
        for tries_left in reversed(range(_N_TRIES)):
            answer = Answer()
            try:
                with closing(
                    self._server.stream(CHAT_PATH, {"model": self._model, "temperature": 0, **body}, answer)
                ) as pieces:
                    for _ in pieces:
                        pass
            except ServerError as error:
                if error.status not in _BUSY or tries_left == 0:
                    raise
                time.sleep(_PAUSE_S)
                continue
            break
        return answer


def _count(usage: Mapping[str, Any], key: str) -> int:
    count = usage.get(key)
    return count if isinstance(count, int) else 0
