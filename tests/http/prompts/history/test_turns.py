"""Which messages are sent now, who said the earlier ones, and what is no answer."""

from __future__ import annotations

from typing import Any

import pytest

from luce.supervisor.http.prompts.history.turns import drop_empty_end, new_messages, role_of

ROLES = ("system", "user", "assistant", "tool")


@pytest.mark.parametrize(
    ("letters", "expected"),
    [
        ("u", [0]),
        ("suau", [3]),
        ("uu", [1]),  # the first was refused when it was sent
        ("uat", [2]),
        ("uatt", [3]),
        ("ua", [0]),  # a model wrote the answer
        ("uaua", [2]),
        ("uaaa", [0]),
        ("us", [0, 1]),
        ("usa", [0, 1]),
        ("uauss", [2, 3, 4]),
        ("uas", [2]),
        ("ss", [1]),
        ("a", [0]),
        ("u?", [1]),
        ("", []),
    ],
)
def test_what_is_sent_now(letters: str, expected: list[int]) -> None:
    names = {"s": "system", "u": "user", "a": "assistant", "t": "tool", "?": None}
    assert list(new_messages([names[letter] for letter in letters])) == expected


@pytest.mark.parametrize(
    ("message", "role"),
    [
        ({"role": "user"}, "user"),
        ({"role": "Assistant"}, "assistant"),
        ({"role": "model"}, "assistant"),
        ({"role": "human"}, "user"),
        ({"role": "function"}, "tool"),
        ({"role": "wizard"}, "user"),
        ({"role": ["user"]}, "user"),
        ({}, "user"),
        ({"tool_calls": [1]}, "assistant"),
        ({"tool_call_id": "a"}, "tool"),
    ],
)
def test_who_said_an_earlier_message(message: dict[str, Any], role: str) -> None:
    assert role_of(message, ROLES) == role


def test_an_answer_of_nothing_is_dropped_at_the_end_alone() -> None:
    empty: dict[str, Any] = {"role": "assistant", "content": ""}
    user = {"role": "user", "content": ""}
    for last in (empty, {**empty, "content": []}, {**empty, "content": [{"type": "text", "text": ""}]}):
        messages = [user, empty, user, last]
        drop_empty_end(messages)
        assert messages == [user, empty, user]
    for kept in ({**empty, "content": " "}, {**empty, "reasoning_content": "hm"}, {**empty, "tool_calls": [{}]}, user):
        messages = [user, kept]
        drop_empty_end(messages)
        assert messages == [user, kept]
    alone = [empty]
    drop_empty_end(alone)
    assert alone == [empty]
