"""What is done to conversations: each alone, and that a longer conversation begins as the shorter one did."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luce.supervisor.http.answering.call_repair import read_calls
from luce.supervisor.http.answering.leading_calls import RepairedCall
from luce.supervisor.http.prompts.templates.fitted_template import fitted
from luce.supervisor.http.prompts.templates.role_order import without_marks
from luce.supervisor.http.prompts.templates.tool_history import call_id, in_call_order, with_call_ids
from luce.supervisor.http.prompts.templates.traits import STRICTEST, TemplateTraits
from tests.http.prompts.templates.conversations import CALLED, conversation, id_of

LIKE_MISTRAL = TemplateTraits(
    takes_results_alone=False,
    call_id_length=9,
    roles_behind_system=frozenset(),
    roles_without_system=frozenset(),
    alternates=True,
    opens_with_user=True,
)
ONE_CALL = TemplateTraits(takes_parallel_calls=False, takes_text_beside_calls=False)
NO_CALLS = TemplateTraits(shows_calls=False, takes_results_alone=False, takes_several_leading=False)
TRAITS = [TemplateTraits(), STRICTEST, LIKE_MISTRAL, ONE_CALL, NO_CALLS]


def roles(messages: Sequence[Mapping[str, Any]]) -> str:
    """Empty ones in brackets."""
    letters = {"system": "s", "user": "u", "assistant": "a", "tool": "r"}
    spelled = ["c" if message.get("tool_calls") else letters[message["role"]] for message in messages]
    is_empty = [message["content"] == "" and not message.get("tool_calls") for message in messages]
    return "".join(f"({role})" if empty else role for role, empty in zip(spelled, is_empty, strict=True))


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("ucru", "ucr(a)u"),
        ("ucrau", "ucrau"),
        ("au", "(u)au"),
        ("uaau", "uau"),
        ("uuau", "uau"),
        ("uacrau", "ucrau"),
        ("crau", "(u)crau"),
        ("ucrusau", "ucr(a)uau"),
        ("s", "s(u)"),
        ("ruau", "uau"),
        ("uarau", "uauau"),
        ("ucuau", "uc(a)uau"),
    ],
)
def test_user_and_assistant_take_turns(shape: str, expected: str) -> None:
    shown = fitted(conversation(shape), LIKE_MISTRAL)
    assert roles(shown) == expected


def test_parallel_calls_become_a_turn_each() -> None:
    messages = in_call_order(conversation("u3RrRau"))
    assert roles(messages) == "ucrrrau"
    shown = fitted(messages, ONE_CALL)
    assert roles(shown) == "ucrcrcrau"
    for made, result in zip(shown[1:7:2], shown[2:7:2], strict=True):
        assert [each["id"] for each in made["tool_calls"]] == [result["tool_call_id"]]


def test_a_call_without_a_result_keeps_its_place() -> None:
    messages = conversation("u3rr")
    del messages[2]  # the first call's
    shown = fitted(in_call_order(messages), ONE_CALL)
    assert roles(shown) == "uccrc"
    assert shown[3]["tool_call_id"] == shown[2]["tool_calls"][0]["id"] == id_of(11)


def test_words_beside_a_call_become_a_message() -> None:
    shown = fitted(conversation("wrau"), ONE_CALL)
    assert roles(shown) == "acrau"
    assert [message["content"] for message in shown[:2]] == ["Message 0 here.", ""]


def test_answers_without_marks() -> None:
    """The user's texts keep them: templates look at the model's alone."""
    text = "<|channel|>final<|message|>Yes."
    messages = [{"role": role, "content": text, "reasoning_content": text} for role in ("user", "assistant")]
    user, answer = without_marks(messages)
    assert user == messages[0]
    assert answer == {"role": "assistant"} | dict.fromkeys(
        ("content", "reasoning_content"), "< |channel|>final< |message|>Yes."
    )


def test_a_tool_history_in_words() -> None:
    shown = fitted(conversation("wr2rr"), STRICTEST)
    assert roles(shown) == "(u)auau"
    _, words, result, calls, results = (message["content"] for message in shown)
    text, call = words.split("\n", 1)
    assert text == "Message 0 here."
    place = RepairedCall(CALLED, '{"place": "Place 0 here."}')
    assert read_calls(call, {CALLED: {}}) == [place], "one that a model imitates is a call"
    assert result == "<tool_response>\nResult 0 here.\n</tool_response>"
    assert calls.count("<tool_call>") == results.count("<tool_response>") == 2


def test_results_come_in_the_order_of_their_calls() -> None:
    messages = conversation("u3RrRau")
    assert [message["tool_call_id"] for message in messages[2:5]] == [id_of(12), id_of(10), id_of(11)]
    ordered = in_call_order(messages)
    assert [message["tool_call_id"] for message in ordered[2:5]] == [id_of(10), id_of(11), id_of(12)]
    assert [*ordered[:2], *ordered[5:]] == [*messages[:2], *messages[5:]]


def test_results_come_before_what_the_user_says_beside_them() -> None:
    messages = conversation("u2rurau")
    assert roles(in_call_order(messages)) == "ucrruau"
    later = conversation("u2rarau")
    assert in_call_order(later) == later  # the assistant has answered in between


def test_results_without_an_id_are_those_of_the_calls_that_are_left() -> None:
    messages = conversation("u2rr")
    messages[2] = {**messages[2], "tool_call_id": ""}
    messages[3] = {**messages[3], "tool_call_id": id_of(10)}
    assert [message["content"] for message in in_call_order(messages)[2:]] == ["Result 11 here.", "Result 10 here."]


@given(st.text(max_size=60), st.integers(1, 40))
def test_ids_of_a_form(id_: str, length: int) -> None:
    made = call_id(id_, length)
    assert len(made) == length
    assert made.isascii()
    assert made.isalnum()
    assert call_id(made, length) == made == call_id(id_, length)


def test_ids_of_one_conversation_stay_apart_and_meet_their_results() -> None:
    messages = conversation("u3rrrcrau")
    shown = with_call_ids(messages, 9)
    ids = [each["id"] for message in shown for each in message.get("tool_calls", ())]
    assert len(set(ids)) == 4
    assert [message["tool_call_id"] for message in shown if message["role"] == "tool"] == ids
    assert with_call_ids(messages[:5], 9) == shown[:5]
    assert with_call_ids(shown, 9) == shown
    nameless = [{**message, "tool_call_id": None} if message["role"] == "tool" else message for message in messages]
    assert with_call_ids(nameless, 9) == shown


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    return conversation(draw(st.text("sdua3cwrR", min_size=1, max_size=12)))


@given(conversations())
def test_order_changes_nothing_else(messages: list[dict[str, Any]]) -> None:
    ordered = in_call_order(messages)
    assert sorted(map(json.dumps, ordered)) == sorted(map(json.dumps, messages))
    assert in_call_order(ordered) == ordered


@pytest.mark.parametrize("traits", TRAITS)
@given(messages=conversations(), n=st.integers(1, 12))
def test_a_longer_conversation_begins_as_the_shorter_one(
    messages: list[dict[str, Any]], n: int, traits: TemplateTraits
) -> None:
    """Where the assistant has answered. The last message may go on."""
    messages.insert(min(n, len(messages)), {"role": "assistant", "content": "The answer."})
    begin = fitted(in_call_order(messages[:n]), traits)
    whole = fitted(in_call_order(messages), traits)
    if not begin:
        return
    assert whole[: len(begin) - 1] == begin[:-1]
    assert whole[len(begin) - 1]["role"] == begin[-1]["role"]
    assert str(whole[len(begin) - 1]["content"]).startswith(begin[-1]["content"])


@pytest.mark.parametrize("traits", [STRICTEST, LIKE_MISTRAL])
@given(messages=conversations())
def test_turns_alternate_whatever_comes(messages: list[dict[str, Any]], traits: TemplateTraits) -> None:
    spoken = [each for each in fitted(in_call_order(messages), traits) if each["role"] in {"user", "assistant"}]
    speakers = [each["role"] for each in spoken if not each.get("tool_calls")]
    assert speakers[0] == "user"
    assert all(one != other for one, other in pairwise(speakers))
