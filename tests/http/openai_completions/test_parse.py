"""Legacy completions: prompts of every shape, what is refused, and the chunks of several prompts' answers."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from openai.types import Completion

from luce.supervisor.http.answering.answer_events import (
    AnswerFinished,
    ContentPiece,
    FinishReason,
    Logprob,
    PromptLogprobs,
    TokenLogprob,
)
from luce.supervisor.http.errors import ApiError
from luce.supervisor.http.openai_completions.emit import CompletionStream, whole_completion
from luce.supervisor.http.openai_completions.parse import CompletionBody, ParsedCompletion, read_completion
from luce.supervisor.http.prompts.answer_request import TextPrompt
from luce.supervisor.http.transport.body import check
from tests.http.openai_chat.test_emit import USAGE, finished, payloads
from tests.http.openai_chat.test_parse import Letters


def read(prompt: Any = "ab", **fields: Any) -> ParsedCompletion:
    body = check({"prompt": prompt, **fields}, CompletionBody)
    return read_completion(body, Letters(), max_choices=4, headers={}, client="me")


def contents(prompt: Any) -> list[Any]:
    prompts = [ask.prompt for ask in read(prompt).answer_requests]
    assert all(isinstance(one, TextPrompt) for one in prompts)
    return [one.content for one in prompts if isinstance(one, TextPrompt)]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", ["ab"]),
        ("", [""]),
        (["ab", "c"], ["ab", "c"]),
        ([1, 2], [(1, 2)]),
        ([[1], [2, 3]], [(1,), (2, 3)]),
        ([[1], "ab"], [(1,), "ab"]),
        ([1, "ab", 2], [(1, 97, 98, 2)]),
        ({"prompt_string": "ab"}, ["ab"]),
        ([[1], {"prompt_string": "ab"}], [(1,), "ab"]),
    ],
)
def test_prompts(prompt: Any, expected: list[Any]) -> None:
    assert contents(prompt) == expected


@pytest.mark.parametrize(
    ("prompt", "code"),
    [
        ([], "empty_array"),
        ([[]], "empty_array"),
        (5, "invalid_type"),
        ([1.5], "invalid_type"),
        ([True], "invalid_type"),
        ([None], "invalid_type"),
        ({"x": 1}, "invalid_type"),
        ([-1], "invalid_value"),
        ([128], "invalid_value"),
        (["a"] * 129, "invalid_value"),
        ({"prompt_string": "<__media__>", "multimodal_data": ["aGk="]}, "unsupported_content"),
    ],
)
def test_bad_prompts(prompt: Any, code: str) -> None:
    with pytest.raises(ApiError) as caught:
        read(prompt)
    assert caught.value.code == code
    assert caught.value.param == "prompt"


def test_limits() -> None:
    assert read().answer_requests[0].max_tokens == 16
    assert read(max_tokens=None).answer_requests[0].max_tokens == 16
    assert read(max_tokens=0).answer_requests[0].max_tokens == 0
    assert read(max_tokens=-1).answer_requests[0].max_tokens is None
    assert read(n_predict=4).answer_requests[0].max_tokens == 4
    assert read(n=2, best_of=2).answer_requests[0].n == 2


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"best_of": 2}, "best_of"),
        ({"n": 2, "best_of": 1}, "best_of"),
        ({"n": 0}, "n"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"temperature": 9}, "temperature"),
        ({"suffix": 5}, "suffix"),
        ({"grammar": "root ::= x", "json_schema": {}}, "grammar"),
        ({"json_schema": [1]}, "json_schema"),
    ],
)
def test_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        read(**fields)
    assert caught.value.param == param


def test_which_prompts_are_scored() -> None:
    def wanted(**fields: Any) -> int | None:
        return read(**fields).answer_requests[0].n_prompt_logprobs

    assert wanted() is wanted(logprobs=2) is wanted(echo=True) is None
    assert wanted(echo=True, logprobs=0) == wanted(prompt_logprobs=0) == 0
    assert wanted(echo=True, logprobs=2, prompt_logprobs=3) == 3


def test_the_sampled_token_is_among_the_best_whatever_it_is() -> None:
    told = TokenLogprob(Logprob(3, b"y", -3.0), (Logprob(1, b"He", -0.25),))
    answer = whole_completion([([finished(content="y", logprobs=[told])], USAGE)], read(logprobs=1), "m")
    assert answer["choices"][0]["logprobs"]["top_logprobs"] == [{"He": -0.25, "y": -3.0}]


def test_tokens_join_to_a_text_with_characters_of_several_tokens() -> None:
    spelled = "é日".encode()
    told = [TokenLogprob(Logprob(byte, bytes([byte]), -1.0)) for byte in spelled]
    answer = whole_completion([([finished(content="é日", logprobs=told)], USAGE)], read(logprobs=0), "m")
    logprobs = answer["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["", "é", "", "", "日"]
    assert logprobs["text_offset"] == [0, 0, 1, 1, 1]


def test_what_a_server_puts_before_a_prompt_is_not_echoed() -> None:
    scored = PromptLogprobs(
        (
            TokenLogprob(Logprob(1, b"<s>", math.nan)),
            TokenLogprob(Logprob(2, b" a", -1.0), (Logprob(9, b"z", -0.5),)),
        )
    )
    whole = finished(content="", logprobs=[], prompt_logprobs=scored)
    answer = whole_completion([([whole], USAGE)], read("a", echo=True, logprobs=1), "m")
    choice = answer["choices"][0]
    assert choice["text"] == "a"
    assert choice["logprobs"] == {
        "tokens": ["", "a"],
        "token_logprobs": [None, -1.0],
        "top_logprobs": [None, {"z": -0.5, "a": -1.0}],
        "text_offset": [0, 0],
    }


def test_constraints() -> None:
    asked = read(grammar="root ::= x").answer_requests[0].prompt
    assert isinstance(asked, TextPrompt)
    assert (asked.grammar, asked.json_schema) == ("root ::= x", None)
    asked = read(grammar="", json_schema={}).answer_requests[0].prompt
    assert isinstance(asked, TextPrompt)
    assert (asked.grammar, asked.json_schema) == (None, {})


def test_stream_of_several_prompts() -> None:
    parsed = read(["a", "b"], n=2, stream=True, stream_options={"include_usage": True}, echo=True)
    stream = CompletionStream(parsed, "m")
    data = stream.first()
    for prompt in (1, 0):
        data += stream.feed(prompt, ContentPiece(1, "x")) + stream.feed(prompt, finished(1))
        data += stream.feed(prompt, finished(0, FinishReason.LENGTH)) + stream.feed(prompt, AnswerFinished(USAGE))
    *texts, done = payloads(data)
    assert done == "[DONE]"
    *chunks, usage = [json.loads(text) for text in texts]
    Completion.model_validate(usage, strict=True)
    for chunk in chunks:  # OpenAI's own streams have finish_reason null, which the SDK's type does not
        choice = {**chunk["choices"][0], "finish_reason": chunk["choices"][0]["finish_reason"] or "stop"}
        Completion.model_validate({**chunk, "choices": [choice]}, strict=True)
    told = [(c["choices"][0]["index"], c["choices"][0]["text"], c["choices"][0]["finish_reason"]) for c in chunks]
    assert told == [
        (0, "a", None),
        (1, "a", None),
        (2, "b", None),
        (3, "b", None),
        (3, "x", None),
        (3, "", "stop"),
        (2, "", "length"),
        (1, "x", None),
        (1, "", "stop"),
        (0, "", "length"),
    ]
    assert usage["choices"] == []
    assert usage["usage"]["prompt_tokens"] == 2 * USAGE.n_prompt
    assert usage["usage"]["completion_tokens"] == 2 * USAGE.n_generated


def test_first_chunk_has_no_text() -> None:
    (text,) = payloads(CompletionStream(read(), "m").first())
    assert json.loads(text)["choices"] == [{"index": 0, "text": "", "logprobs": None, "finish_reason": None}]


def test_logprobs() -> None:
    told = [
        TokenLogprob(Logprob(1, b"He", -0.25), (Logprob(1, b"He", -0.25), Logprob(2, b"x", -2.0))),
        TokenLogprob(Logprob(3, b"y", -1.0)),
    ]
    parsed = read(logprobs=2)
    answer = whole_completion([([finished(content="Hey", logprobs=told)], USAGE)], parsed, "m")
    Completion.model_validate(answer, strict=True)
    assert answer["choices"][0]["logprobs"] == {
        "tokens": ["He", "y"],
        "token_logprobs": [-0.25, -1.0],
        "top_logprobs": [{"x": -2.0, "He": -0.25}, {"y": -1.0}],
        "text_offset": [0, 2],
    }
    stream = CompletionStream(parsed, "m")
    offsets = [
        json.loads(payloads(stream.feed(0, ContentPiece(0, piece, (one,))))[0])["choices"][0]["logprobs"]["text_offset"]
        for piece, one in zip(("He", "y"), told, strict=True)
    ]
    assert offsets == [[0], [2]]
