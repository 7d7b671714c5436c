"""What is known of earlier bodies changes nothing of what a body is."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from luce.supervisor.http.errors import ApiError
from luce.supervisor.http.transport.json_body import Mended, parse_object
from luce.supervisor.http.transport.known_bodies import KnownBodies, KnownMessage

LONG = "a long text, so that the body is worth looking at. " * 500


def turns(rng: random.Random, name: str) -> Iterator[str]:
    """Bodies as clients send them: they grow, are edited, retried and forked, with what is around them in any place."""
    separators = rng.choice([(",", ":"), (", ", ": ")])
    indent = rng.choice([None, None, 1])
    messages: list[Any] = [{"role": "system", "content": rng.choice("abc") + LONG}]
    for number in range(8):
        messages.append(rng.choice([
            {"role": "user", "content": f'Say {rng.randrange(3)} é\u2028\U0001f600"\\n'},
            {"content": [{"type": "text", "text": "]},{"}], "role": "assistant", "n": [1, -2.5e3, None, True]},
            {"role": "tool", "tool_call_id": "x", "content": "", "input": [], "messages": [{}]},
            rng.randrange(20), "text", [], None,
        ]))  # fmt: skip
        if rng.random() < 0.3:
            messages[rng.randrange(len(messages))] = {"role": "user", "content": f"edited {rng.randrange(3)}"}
        if rng.random() < 0.2:
            del messages[rng.randrange(1, len(messages) + 1) :]
        around = [("model", "m"), ("stream", True), ("tools", [{"messages": [1]}, "input"]), ("seed", number)]
        around.insert(rng.randrange(5), (name, messages))
        yield json.dumps(dict(around), separators=separators, indent=indent, ensure_ascii=rng.random() < 0.5)


@pytest.mark.parametrize("seed", range(20))
def test_a_body_is_what_it_would_be_by_itself(seed: int) -> None:
    rng = random.Random(seed)
    known = KnownBodies()
    conversations = [turns(rng, name) for name in ("messages", "input", "messages", "other")]
    for turn in range(8):
        for text in map(next, conversations):
            for _ in range(2):
                assert parse_object(text.encode(), known) == json.loads(text), (seed, turn)


def test_messages_that_come_again_are_the_same_objects_for_nobody_else() -> None:
    known = KnownBodies()
    bodies = [
        {"messages": [{"role": "user", "content": LONG}] * n_messages, "seed": n_messages} for n_messages in (2, 5)
    ]
    first, second = (parse_object(json.dumps(body).encode(), known, "a")["messages"] for body in bodies)
    assert all(isinstance(message, KnownMessage) for message in second)
    assert all(map(lambda a, b: a is b, first, second))
    (other,) = [parse_object(json.dumps(bodies[0]).encode(), known, "b")["messages"]]
    assert other == first
    assert other[0] is not first[0]


@pytest.mark.parametrize(
    "ending",
    ["]", "}", "]}}", ",]}", "5]}", ".5]}", "null]}", '], "seed": NaN}', ', "\\ud80"]}', ""],
)
def test_what_is_wrong_behind_known_messages_is_refused_as_without(ending: str) -> None:
    known = KnownBodies()
    begun = json.dumps({"messages": [{"role": "user", "content": LONG}]}).removesuffix("]}")
    parse_object(f"{begun}]}}".encode(), known)
    told = []
    for bodies in (known, None):
        with pytest.raises(ApiError) as caught:
            parse_object(f"{begun}{ending}".encode(), bodies)
        told.append((caught.value.code, caught.value.text))
    assert told[0] == told[1]


@pytest.mark.parametrize(
    "ending",
    [
        ', {"role": "a", "role": "b"}]}',
        '], "messages": []}',
        '], "messages": [{"role": "b"}, {"role": "c"}]}',
        '], "seed": 1, "seed": 2}',
        ', {"n": [NaN, 1e999, -Infinity]}]}',
        ', {"n": "\\ud800 \\ud83d\\ude00"}, {}]}',
        f', {{"n": {"9" * 30}}}, {{"n": {"9" * 5000}}}, {{}}]}}',
        ', {"n": ' + "[" * 200 + "]" * 200 + "}]}",
        ', {"n": ' + "[" * 3000 + "]" * 3000 + "}]}",
    ],
)
def test_what_is_put_right_behind_known_messages_is_so_each_time(ending: str) -> None:
    known = KnownBodies()
    begun = json.dumps({"messages": [{"role": "user", "content": LONG}]}).removesuffix("]}")
    parse_object(f"{begun}]}}".encode(), known)
    data = f"{begun}{ending}".encode()
    mended: set[Mended] = set()
    alone = parse_object(data, mended=mended)
    again: set[Mended] = set()
    for _ in range(3):
        assert parse_object(data, known, mended=again) == alone
    assert again == mended
    assert parse_object(f"{begun}]}}".encode(), known) == parse_object(f"{begun}]}}".encode())


def test_messages_that_were_put_right_are_known_too() -> None:
    known = KnownBodies()
    cut = {"role": "tool", "content": f"{LONG} \ud83d"}
    bodies = [json.dumps({"messages": [cut] * n_messages}).encode() for n_messages in (2, 5)]
    first, second = (parse_object(body, known)["messages"] for body in bodies)
    assert first[0]["content"] == f"{LONG} \ufffd"
    assert all(map(lambda a, b: a is b, first, second))
