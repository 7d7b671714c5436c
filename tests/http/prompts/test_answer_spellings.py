"""Answers that come back in a client's own spelling: found where they mean the same, in the same conversation only."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from luce.supervisor.http.prompts.answer_spellings import AnswerSpellings, SpelledConversation
from luce.supervisor.http.prompts.context_edits import ContextEdit, cleared

Message = dict[str, Any]

HELLO: Message = {"role": "user", "content": "Hello"}
MORE: Message = {"role": "user", "content": "More"}


def call(name: str, arguments: str, id_: str) -> Message:
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def assistant(content: Any, *calls: Message, reasoning: str = "") -> Message:
    message: Message = {"role": "assistant", "content": content}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = list(calls)
    return message


def result(id_: str, content: str = "Done.") -> Message:
    return {"role": "tool", "tool_call_id": id_, "content": content}


GIVEN = assistant(
    "I look.\n",
    call("read", '{"path":"a/é","n":1.0}', "ours_1"),
    call("list", "{}", "ours_2"),
    reasoning="Hm. A file.\n",
)


def after(*messages: Message, given: Message = GIVEN) -> AnswerSpellings:
    """What is known once an answer to the messages was given."""
    spellings = AnswerSpellings(1 << 20)
    spellings.keep(spellings.read(messages).place, given)
    return spellings


def n_found(read: SpelledConversation) -> int:
    return sum(answer is not None for answer, _ in read.answers)


@pytest.mark.parametrize(
    "spelled",
    [
        GIVEN,
        assistant("I look.", *GIVEN["tool_calls"], reasoning="Hm. A file."),
        assistant("I look.", *GIVEN["tool_calls"]),  # no reasoning
        assistant([{"type": "text", "text": "I "}, {"type": "text", "text": "look."}], *GIVEN["tool_calls"]),
        assistant("I look.", call("read", '{ "n": 1, "path": "a/\\u00e9" }', "x"), call("list", " {} ", "y")),
    ],
)
def test_an_answer_is_restored(spelled: Message) -> None:
    spellings = after(HELLO)
    read = spellings.read([HELLO, spelled, MORE])
    assert read.messages == [HELLO, GIVEN, MORE]
    assert [(answer is not None, differs) for answer, differs in read.answers] == [(True, spelled is not GIVEN)]


@pytest.mark.parametrize(
    "other",
    [
        assistant("I looked.", *GIVEN["tool_calls"]),
        assistant("I  look.", *GIVEN["tool_calls"]),
        assistant(None, *GIVEN["tool_calls"]),
        assistant("I look."),
        assistant("I look.", GIVEN["tool_calls"][0]),
        assistant("I look.", *reversed(GIVEN["tool_calls"])),
        assistant("I look.", *GIVEN["tool_calls"], reasoning="Hm. Another file."),
        assistant("I look.", call("read", '{"path":"a/é","n":1.5}', "ours_1"), GIVEN["tool_calls"][1]),
        assistant("I look.", call("read", '{"path":"a/é","n":"1"}', "ours_1"), GIVEN["tool_calls"][1]),
        assistant("I look.", call("write", '{"path":"a/é","n":1}', "ours_1"), GIVEN["tool_calls"][1]),
        {"role": "user", "content": GIVEN["content"]},
    ],
)
def test_what_means_something_else_stays_as_it_is(other: Message) -> None:
    read = after(HELLO).read([HELLO, other, MORE])
    assert n_found(read) == 0
    shown = read.messages[1]
    assert (shown["content"], shown.get("tool_calls"), shown.get("reasoning_content")) == (
        other["content"] or "",
        other.get("tool_calls"),
        other.get("reasoning_content"),
    )


EDIT = {
    "type": "function",
    "function": {
        "name": "edit",
        "parameters": {"type": "object", "properties": {"all": {"default": False}, "n": {"default": 1}, "path": {}}},
    },
}


@pytest.mark.parametrize(
    ("given", "spelled", "is_restored"),
    [
        ('{"path":"a"}', '{"all":false,"path":"a"}', True),
        ('{"path":"a"}', '{"n": 1.0, "all":false,"path":"a"}', True),
        ('{"path":"a","n":1}', '{"path":"a","all":false}', True),
        ('{"path":"a"}', '{"all":true,"path":"a"}', False),
        ('{"path":"a"}', '{"all":0,"path":"a"}', False),
        ('{"path":"a","all":true}', '{"path":"a"}', False),
    ],
)
def test_arguments_may_be_filled_in_with_their_defaults(given: str, spelled: str, *, is_restored: bool) -> None:
    answer = assistant("", call("edit", given, "ours"))
    spellings = after(HELLO, given=answer)
    sent = [HELLO, assistant("", call("edit", spelled, "ours")), MORE]
    assert (spellings.read(sent, tools=[EDIT]).messages[1] == answer) == is_restored
    assert n_found(after(HELLO, given=answer).read(sent)) == 0  # nobody knows the defaults


def test_only_in_the_same_conversation_of_the_same_client() -> None:
    spellings = AnswerSpellings(1 << 20)
    spellings.keep(spellings.read([HELLO], "a").place, GIVEN)
    spelled = assistant("I look.", *GIVEN["tool_calls"])
    assert n_found(spellings.read([HELLO, spelled], "a")) == 1
    assert n_found(spellings.read([HELLO, spelled], "b")) == 0
    assert n_found(spellings.read([HELLO, spelled])) == 0
    assert n_found(spellings.read([MORE, spelled], "a")) == 0
    assert n_found(spellings.read([{"role": "system", "content": "x"}, HELLO, spelled], "a")) == 0
    assert n_found(spellings.read([HELLO, MORE, spelled], "a")) == 0


def test_an_earlier_spelling_changes_no_later_place() -> None:
    """And results go to the calls that they are of, by whatever ids."""
    spellings = after(HELLO)
    ours = [HELLO, GIVEN, result("ours_1", "One"), result("ours_2", "Two")]
    second = assistant("That is all.", reasoning="It is.")
    spellings.keep(spellings.read(ours).place, second)
    renamed = assistant(
        "I look.", *(call(**one["function"], id_=f"x{at}") for at, one in enumerate(GIVEN["tool_calls"]))
    )
    theirs = [HELLO, renamed, result("x0", "One"), result("x1", "Two")]
    assert spellings.read(theirs).messages == ours
    read = spellings.read([*theirs, assistant("That is all."), MORE])
    assert read.messages == [*ours, second, MORE]
    crossed = [HELLO, renamed, result("x1", "One"), result("x0", "Two"), assistant("That is all.")]
    assert n_found(spellings.read(crossed)) == 1, "the results are those of other calls"


def test_the_latest_of_answers_that_say_the_same() -> None:
    spellings = AnswerSpellings(1 << 20)
    place = spellings.read([HELLO]).place
    for number in range(40):
        spellings.keep(place, assistant("Yes.", reasoning=f"Thought {number}."))
    assert spellings.read([HELLO, assistant("Yes.")]).messages[1]["reasoning_content"] == "Thought 39."
    spelled = assistant("Yes. ", reasoning="Thought 30.")
    assert spellings.read([HELLO, spelled]).messages[1] == assistant("Yes.", reasoning="Thought 30.")
    assert n_found(spellings.read([HELLO, assistant("Yes.", reasoning="Thought 1.")])) == 0, "16 are kept"


def test_reasoning_that_was_cleared_does_not_come_back() -> None:
    """Unlike one that the client left out."""
    spelled = assistant("I look.", *GIVEN["tool_calls"], reasoning="Hm. A file.")
    left, n_cleared = cleared(ContextEdit(clears="thinking", keep=0), [HELLO, spelled, MORE])
    assert n_cleared == 1
    bare = {key: value for key, value in GIVEN.items() if key != "reasoning_content"}
    assert after(HELLO).read(left).messages == [HELLO, bare, MORE]
    unknown = AnswerSpellings(0).read(left).messages[1]
    assert unknown == {**bare, "content": "I look."}


def test_the_last_one_stays_if_the_answer_goes_on_from_it() -> None:
    read = after(HELLO, given=assistant("Yes. ")).read([HELLO, assistant("Yes.")], keeps_last=True)
    assert read.messages[1]["content"] == "Yes."


def test_the_oldest_leave_when_there_is_no_room() -> None:
    spellings = AnswerSpellings(20_000)
    asks = [[{"role": "user", "content": str(number)}] for number in range(200)]
    for ask in asks:
        spellings.keep(spellings.read(ask).place, GIVEN)
        assert spellings.n_bytes <= 20_000
    spelled = assistant("I look.", *GIVEN["tool_calls"])
    assert n_found(spellings.read([*asks[0], spelled])) == 0
    assert n_found(spellings.read([*asks[-1], spelled])) == 1
    nothing = AnswerSpellings(0)
    nothing.keep(nothing.read([HELLO]).place, GIVEN)
    assert nothing.n_bytes == 0


def respelled(message: Message, rng: random.Random) -> Message:
    """As a client may send it back that parses everything and writes it anew."""
    content = rng.choice([message["content"], message["content"].strip(), message["content"] + "\n"])
    if not content.strip() and rng.random() < 0.5:
        content = None
    elif rng.random() < 0.3:
        at = rng.randrange(len(content) + 1)
        content = [{"type": "text", "text": content[:at]}, {"type": "text", "text": content[at:]}]
    calls = []
    for made in message.get("tool_calls", ()):
        members = list(json.loads(made["function"]["arguments"]).items())
        rng.shuffle(members)
        arguments = json.dumps(dict(members), ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, 2]))
        calls.append(call(made["function"]["name"], arguments, f"call_{rng.randrange(10**9)}"))
    reasoning = message.get("reasoning_content", "") if rng.random() < 0.5 else ""
    return assistant(content, *calls, reasoning=reasoning)


def random_answer(rng: random.Random) -> Message:
    words = ["a", "b", " ", "\n", '{"x":1}', "é", "</think>", "<|im_end|>"]
    texts = ["".join(rng.choice(words) for _ in range(rng.randrange(1, 5))) for _ in range(3)]
    values = [1, 2.5, "x", "é\n", [1, {"b": None}], True, 1234567890123456789]
    calls = [
        call(rng.choice("fg"), json.dumps({key: rng.choice(values) for key in "abc"}), f"ours_{rng.randrange(10**9)}")
        for _ in range(rng.randrange(3))
    ]
    reasoning = texts[1] if rng.random() < 0.7 else ""
    return assistant(texts[0], *calls, reasoning=reasoning)


def test_conversations_of_any_spelling_are_the_one_that_was_held() -> None:
    rng = random.Random(7)
    for _ in range(150):
        spellings = AnswerSpellings(1 << 22)
        ours: list[Message] = [HELLO]
        theirs: list[Message] = [HELLO]
        for _ in range(5):
            read = spellings.read(theirs)
            assert read.messages == ours
            answer = random_answer(rng)
            spellings.keep(read.place, answer)
            shown = respelled(answer, rng)
            ours.append(answer)
            theirs.append(shown)
            for one, other in zip(answer.get("tool_calls", ()), shown.get("tool_calls", ()), strict=True):
                content = f"{rng.random()}"
                ours.append(result(one["id"], content))
                theirs.append(result(other["id"], content))
            ours.append(MORE)
            theirs.append(MORE)
