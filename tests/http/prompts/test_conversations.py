"""Messages that came before are not read again, and yet each prompt is the one that a server without memory makes of
the same messages and answers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from luce.supervisor.http.errors import ApiError
from luce.supervisor.http.prompts.answer_request import ChatPrompt
from luce.supervisor.http.prompts.answer_spellings import AnswerSpellings
from luce.supervisor.http.prompts.conversations import Conversations, exact_key
from luce.supervisor.http.prompts.message_images import MessageImage, image_part
from luce.supervisor.http.prompts.rendering import Rendered, Renderer
from luce.supervisor.http.prompts.token_replay_cache import TokenReplayCache
from luce.supervisor.text import TextError, TextModel
from tests.text.text_models import Forgetful

Message = dict[str, Any]

KEPT_BYTES = 1 << 20
IMAGE = MessageImage(b"an image's file")


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Iterator[TextModel]:
    with TextModel(tiny_model) as opened:
        yield opened


@pytest.fixture(scope="module")
def forgetful(tiny_model: Path) -> Iterator[TextModel]:
    with Forgetful(tiny_model) as opened:
        yield opened


class Server:
    def __init__(self, model: TextModel) -> None:
        self.model = model
        self.known = TokenReplayCache(model, KEPT_BYTES)
        self.spellings = AnswerSpellings(KEPT_BYTES)
        self.renderer = Renderer(model, self.known, self.spellings)

    def render(self, prompt: ChatPrompt, owner: str, client: str) -> Rendered | str:
        """Or why not: templates refuse arguments that are no JSON."""
        try:
            rendered = self.renderer.render(prompt, owner, client, {IMAGE.name: (5, 6, 7)})
        except (TextError, ApiError) as error:
            return str(error)
        rendered.close()
        return rendered

    def keep(self, rendered: Rendered, answer: Message, ids: Sequence[int]) -> None:
        assert rendered.turn is not None
        assert rendered.place is not None
        given = self.spellings.keep(rendered.place, answer, continues=rendered.continues)
        self.known.keep(rendered.turn, ids, None, given)


class ServerWithoutRecords(Server):
    """It knows the same answers."""

    def render(self, prompt: ChatPrompt, owner: str, client: str) -> Rendered | str:
        self.spellings._conversations = Conversations(0)
        for here in self.known._answers.values():
            for answer in here:
                answer.shown_as = answer.unlike = None
        return super().render(prompt, owner, client)


def told(rendered: Rendered | str) -> tuple[Any, ...]:
    if isinstance(rendered, str):
        return (rendered,)
    assert rendered.chat is not None
    values = replace(rendered, chat=None, ids=list(rendered.ids))
    return values, rendered.chat.prompt, rendered.chat.marks, list(rendered.chat.tokens)


# Texts that spell special tokens, or a part of one at an end, are marked in the prompt.
TEXTS = st.sampled_from(
    ["", "Hello", " Hello\n", "é 日", "</think>", "a <|im_end|> b", "<|im_", "end|>", "<system-reminder>x"]
)
PARTS = st.lists(TEXTS.map(lambda text: {"type": "text", "text": text}) | st.just(image_part(IMAGE)), max_size=3)
VALUES = st.sampled_from(['{"a": 1, "b": true}', '{"b":true,"a":1.0}', '{"a": true}', "{}", "no JSON", ""])
ARGUMENTS = VALUES | st.sampled_from([{"a": 1}, {"a": True}, {"a": 1.0}, {"b": 1, "a": 2}, {"a": 2, "b": 1}])


def call_of(arguments: object) -> Message:
    return {"id": "t", "type": "function", "function": {"name": "read_file", "arguments": arguments}}


ANSWERS = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": TEXTS | st.none()},
    optional={
        "reasoning_content": TEXTS,
        "tool_calls": st.lists(ARGUMENTS.map(call_of), min_size=1, max_size=1),
        "has_cleared_reasoning": st.booleans(),
    },
)
OTHERS = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "system", "developer"]), "content": TEXTS | PARTS}
) | st.fixed_dictionaries({"role": st.just("tool"), "content": TEXTS, "tool_call_id": st.just("t")})
MESSAGES = OTHERS | ANSWERS | st.just({"role": "system", "content": "x-anthropic-billing-header: 1"})


def tools_of(default: object) -> Sequence[Message]:
    parameters = {"type": "object", "properties": {"a": {"type": "integer", "default": default}}}
    return [{"type": "function", "function": {"name": "read_file", "parameters": parameters}}]


@dataclass(frozen=True)
class Step:
    kept: int
    """Messages of the step before that stay, counted modulo how many there are and two more: as often all do."""
    changed: int | None
    """One of them that becomes the first of the new ones."""
    new: Sequence[Message]
    tools: Sequence[Message]
    owner: str
    client: str
    continues: bool
    answer: Message | None
    """What the model writes then."""


STEPS = st.builds(
    Step,
    kept=st.integers(0, 40),
    changed=st.none() | st.none() | st.integers(0, 40),
    new=st.lists(MESSAGES, min_size=1, max_size=3),
    tools=st.sampled_from([(), tools_of(1), tools_of(True), tools_of(2)]),
    owner=st.sampled_from(["", "", "other"]),
    client=st.sampled_from(["", "", "other"]),
    continues=st.booleans(),
    answer=st.none() | ANSWERS,
)


def after(before: Sequence[Message], step: Step) -> list[Message]:
    messages = [*before[: min(step.kept % (len(before) + 2), len(before))]]
    if step.changed is not None and messages:
        messages[step.changed % len(messages)] = step.new[0]
    messages += step.new
    return messages if any(message["role"] == "user" for message in messages) else [*messages, HELLO]


HELLO: Message = {"role": "user", "content": "Hello"}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=st.lists(STEPS, min_size=2, max_size=6))
def test_prompts_are_those_of_a_server_without_records(
    model: TextModel, forgetful: TextModel, steps: Sequence[Step]
) -> None:
    ours, fresh = Server(model), ServerWithoutRecords(forgetful)
    messages: list[Message] = []
    for step in steps:
        messages = after(messages, step)
        goes_on = step.continues and messages[-1]["role"] == "assistant" and "tool_calls" not in messages[-1]
        prompt = ChatPrompt(messages=messages, tools=step.tools, continues_last=goes_on)
        rendered = ours.render(prompt, step.owner, step.client)
        expected = fresh.render(prompt, step.owner, step.client)
        assert told(rendered) == told(expected)
        if isinstance(rendered, str) or isinstance(expected, str):
            messages = []
            continue
        if step.answer is None:
            continue
        answer = as_given(step.answer)
        ids = written(model, answer)
        for server, asked in ((ours, rendered), (fresh, expected)):
            server.keep(asked, answer, ids)
        messages = [*messages, step.answer]  # as the client spells it


def as_given(answer: Message) -> Message:
    """Servers give texts."""
    given = {"role": "assistant", "content": (answer["content"] or "").strip() + " "}
    if "reasoning_content" in answer:
        given["reasoning_content"] = answer["reasoning_content"]
    for call in answer.get("tool_calls", ()):
        arguments = call["function"]["arguments"]
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        given["tool_calls"] = [{**call_of(text), "id": "ours"}]
    return given


def written(model: TextModel, answer: Mapping[str, Any]) -> list[int]:
    """By a model that spells calls in its own way, and the text by letters."""
    ids = [token for letter in answer["content"] for token in model.tokenize(letter)]
    for call in answer.get("tool_calls", ()):
        text = f'\n<tool_call>\n{{"name":"read_file","arguments":{call["function"]["arguments"]}}}\n</tool_call>'
        ids += model.tokenize(text, parse_special=True)
    return ids or model.tokenize("x")


def test_keys_tell_apart_what_python_takes_for_equal() -> None:
    def with_arguments(arguments: object) -> Message:
        return {"role": "assistant", "content": None, "tool_calls": [call_of(arguments)]}

    alike = [{"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": True, "b": 2}, {"a": 1.0, "b": 2}, '{"a": 1, "b": 2}']
    assert len({exact_key(with_arguments(arguments)) for arguments in alike}) == len(alike)
    assert exact_key({"role": "user", "content": b"Hello".decode()}) == exact_key(HELLO), "another object"
    image = {"role": "user", "content": [image_part(IMAGE)]}
    same = {"role": "user", "content": [image_part(MessageImage(IMAGE.file(), "another place"))]}
    spelled = {"role": "user", "content": [{"type": "image", "image": IMAGE.name}]}
    assert exact_key(image) == exact_key(same) != exact_key(spelled)
    assert exact_key({"role": "user", "content": object()}) is None


def test_the_longest_unused_conversations_leave() -> None:
    def read(name: str) -> int:
        keys = [b"head", name.encode(), b"tail"]
        before, n_known = known.find(b"", keys)
        known.keep(b"", keys, [name] * len(keys), before, is_next=n_known == len(keys))
        return n_known

    known: Conversations[str] = Conversations(1 << 30)
    read("a")
    known = Conversations(known.n_bytes * 2)
    assert [read(name) for name in "abab"] == [0, 1, 3, 3]
    assert read("c") == 1, "all begin with it"
    assert known.n_bytes == known._max_bytes
    assert [known.find(b"", [b"head", name])[1] for name in (b"a", b"b", b"c")] == [1, 2, 2]
    assert known.find(b"other", [b"head"]) == (None, 0)


CALLED: Message = {"role": "assistant", "content": "I look.", "tool_calls": [call_of('{"a": 1}')]}


def restored(server: Server, *messages: Message, **options: Any) -> tuple[int, str]:
    """How many answers of ours the prompt has, and its text."""
    prompt = ChatPrompt(messages=messages, tools=options.get("tools", tools_of(1)))
    rendered = server.render(prompt, "", options.get("client", ""))
    assert isinstance(rendered, Rendered)
    assert rendered.chat is not None
    return rendered.n_restored, rendered.chat.prompt


def keep_answer(server: Server, answer: Message, **options: Any) -> None:
    prompt = ChatPrompt(messages=[HELLO], tools=options.get("tools", tools_of(1)))
    rendered = server.render(prompt, "", options.get("client", ""))
    assert isinstance(rendered, Rendered)
    server.keep(rendered, answer, written(server.model, answer))


def test_an_answer_that_is_known_later_takes_the_place_of_what_was_read(model: TextModel) -> None:
    server = Server(model)
    spelled = {**CALLED, "content": "I look.\n"}
    assert restored(server, HELLO, spelled) == restored(server, HELLO, spelled)
    keep_answer(server, CALLED)
    assert restored(server, HELLO, spelled)[0] == 1


def test_defaults_of_other_tools_and_other_clients_are_read_anew(model: TextModel) -> None:
    server = Server(model)
    keep_answer(server, CALLED)
    bare = {**CALLED, "tool_calls": [call_of("{}")]}
    assert restored(server, HELLO, bare)[0] == 1
    assert restored(server, HELLO, bare, client="other")[0] == 0
    assert restored(server, HELLO, bare, tools=tools_of(2))[0] == 0


def test_arguments_that_python_takes_for_equal_are_read_anew(model: TextModel) -> None:
    server = Server(model)
    prompts = {
        restored(server, HELLO, {**CALLED, "tool_calls": [call_of(arguments)]})[1]
        for arguments in ({"a": 1, "b": 2}, {"a": True, "b": 2}, {"b": 2, "a": 1})
    }
    assert len(prompts) == 3


def test_a_turn_that_the_template_shows_otherwise_is_compared_anew(model: TextModel) -> None:
    server = Server(model)
    answer = {**CALLED, "content": "I look. "}
    keep_answer(server, answer)
    result: Message = {"role": "tool", "tool_call_id": "t", "content": "Text."}
    assert restored(server, HELLO, CALLED, result)[0] == 1
    (here,) = server.known._answers.values()
    turn, n_ids = here[0].shown_as or ((0, b""), 0)
    assert n_ids > 0
    here[0].shown_as = ((turn[0], turn[1][::-1]), 1)  # of another turn
    assert restored(server, HELLO, CALLED, result)[0] == 1
    assert here[0].shown_as == (turn, n_ids)


def test_only_the_turn_that_was_no_answer_is_not_compared_again(model: TextModel) -> None:
    server = Server(model)
    answer = {**CALLED, "content": "I look. "}
    keep_answer(server, answer)
    (here,) = server.known._answers.values()
    result: Message = {"role": "tool", "tool_call_id": "t", "content": "Text."}
    assert restored(server, HELLO, CALLED, result)[0] == 1
    shown, _ = here[0].shown_as or ((0, b""), 0)
    here[0].shown_as, here[0].unlike = None, shown
    assert restored(server, HELLO, CALLED, result)[0] == 0
    here[0].unlike = (shown[0], shown[1][::-1])
    assert restored(server, HELLO, CALLED, result)[0] == 1
