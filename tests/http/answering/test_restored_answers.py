"""Answers that a client spells otherwise, in the prompts that templates make of them: the model's own ids, where the
template shows all that the answer says, and nowhere else."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from luce.supervisor.http.answering.call_repair import CallHold
from luce.supervisor.http.prompts.answer_request import ChatPrompt
from luce.supervisor.http.prompts.answer_spellings import AnswerSpellings
from luce.supervisor.http.prompts.rendering import Rendered, Renderer
from luce.supervisor.http.prompts.token_replay_cache import TokenReplayCache
from luce.supervisor.http.settings import ServeSettings
from luce.supervisor.text import AnswerParser, TextModel
from tests.http.answering.answering_fixtures import READ, assistant, chat, read, running, serve
from tests.http.prompts.test_answer_spellings import respelled

Message = dict[str, Any]

HELLO: Message = {"role": "user", "content": "Hello"}
MORE: Message = {"role": "user", "content": "More"}
OWN = ""
QWEN3, QWEN35 = "Qwen-Qwen3-0.6B", "Qwen3.5-4B"
WITHOUT_CALLS = "without calls"
PLAIN_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def models(tiny_model: Path, llama_templates_dir: Path) -> Iterator[dict[str, TextModel]]:
    """The tiny model with its own template and with those of models that reason."""
    opened = {OWN: TextModel(tiny_model), WITHOUT_CALLS: TextModel(tiny_model, chat_template=PLAIN_TEMPLATE)}
    for name in (QWEN3, QWEN35):
        template = (llama_templates_dir / f"{name}.jinja").read_text()
        opened[name] = TextModel(tiny_model, chat_template=template)
    yield opened
    for model in opened.values():
        model.close()


class Server:
    """What of one a conversation's prompts need."""

    def __init__(self, model: TextModel, tools: tuple[Message, ...] = (READ,)) -> None:
        self.model = model
        self.known = TokenReplayCache(model, 1 << 22)
        self.spellings = AnswerSpellings(1 << 22)
        self.renderer = Renderer(model, self.known, self.spellings)
        self.tools = tools

    def render(self, *messages: Message, client: str = "", marks_calls: bool = True) -> Rendered:
        """Checks what always holds. `marks_calls`: all its calls are in the template's own format."""
        rendered = self.renderer.render(ChatPrompt(messages=messages, tools=self.tools), client, client)
        special = {token.id for token in self.model.info.special}
        assert rendered.chat is not None
        own = [t for t in rendered.ids if t in special]
        templates = [t for t in rendered.chat.tokens if t in special]
        rest = iter(templates)
        assert own == templates if marks_calls else all(t in rest for t in own)
        return rendered

    def answer(self, text: str, *messages: Message, client: str = "") -> tuple[Message, tuple[int, ...]]:
        """The model writes `text` after the messages: what the client gets, and the text in memory."""
        rendered = self.render(*messages, client=client)
        ids = in_pieces(self.model, text)
        assert rendered.chat is not None
        assert rendered.turn is not None
        assert rendered.place is not None
        parser = AnswerParser(rendered.chat)
        for token in ids:
            parser.feed(token)
        said = parser.finish(truncated=False).message
        calls = [
            {"id": f"ours_{n}", "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for n, call in enumerate(said.tool_calls)
        ]
        message: Message = {"role": "assistant", "content": said.content}
        message |= {"reasoning_content": said.reasoning} if said.reasoning else {}
        message |= {"tool_calls": calls} if calls else {}
        given = self.spellings.keep(rendered.place, message)
        self.known.keep(rendered.turn, [*ids, min(self.model.info.eog)], None, given)
        return message, (*rendered.ids, *ids)


def in_pieces(model: TextModel, text: str) -> list[int]:
    """Special tokens where the text spells them, and all others as small as no tokeniser cuts them."""
    ids = []
    special = {token.id for token in model.info.special}
    for token in model.tokenize(text, parse_special=True):
        one = model.piece(token, special=True)
        ids += (
            [token] if token in special else [each for n in range(len(one)) for each in model.tokenize(one[n : n + 1])]
        )
    return ids


def begins_with(rendered: Rendered, memory: tuple[int, ...]) -> bool:
    return tuple(rendered.ids[: len(memory)]) == memory


CALL = '<tool_call>\n{"name":"read_file", "arguments":{"path":"README.md","n":1.0}}\n</tool_call>'


def test_a_call_is_rendered_as_the_model_wrote_it(models: dict[str, TextModel]) -> None:
    """The template writes it with other spaces, whatever the client does."""
    server = Server(models[OWN])
    message, memory = server.answer("I look. \n\n" + CALL, HELLO)
    (call,) = message["tool_calls"]
    theirs = {
        "id": "x",
        "type": "function",
        "function": {**call["function"], "arguments": '{"n": 1, "path": "README.md"}'},
    }
    result = {"role": "tool", "tool_call_id": "x", "content": "Text."}
    spelled = {"role": "assistant", "content": "I look.", "tool_calls": [theirs]}
    rendered = server.render(HELLO, spelled, result)
    assert begins_with(rendered, memory)
    assert rendered.n_restored == 1
    own = server.render(HELLO, message, {**result, "tool_call_id": "ours_0"})
    assert own.ids == rendered.ids
    assert server.render(HELLO, {**spelled, "content": "I looked."}, result).n_restored == 0
    second, more = server.answer("Done. ", HELLO, spelled, result)
    assert begins_with(server.render(HELLO, spelled, result, {**second, "content": "Done."}, MORE), more)


@pytest.mark.parametrize("name", [OWN, QWEN3, WITHOUT_CALLS])
@pytest.mark.parametrize("around", ["{}", "\n```json\n{}\n```"])
def test_a_call_beside_the_format_stays_as_the_model_wrote_it(
    models: dict[str, TextModel], name: str, around: str
) -> None:
    """The template shows it in its own format, or the server in words where the template has none."""
    server = Server(models[name])
    written = around.format('{"name":"read_file", "arguments":{"path":"README.md"}}')
    hold = CallHold([READ], 1)
    ids = in_pieces(server.model, written)
    n_read = next(n for n, token in enumerate(ids, 1) if hold.feed(server.model.piece(token).decode())[0])
    rendered = server.render(HELLO)
    assert rendered.turn is not None
    assert rendered.place is not None
    function = {"name": "read_file", "arguments": '{"path": "README.md"}'}
    call = {"id": "a", "type": "function", "function": function}
    message: Message = {"role": "assistant", "content": "", "tool_calls": [call]}
    server.known.keep(rendered.turn, ids[:n_read], None, server.spellings.keep(rendered.place, message))
    result = {"role": "tool", "tool_call_id": "a", "content": "Text."}
    following = server.render(HELLO, {**message, "content": None}, result, marks_calls=False)
    assert begins_with(following, (*rendered.ids, *ids[:n_read]))
    other = {**call, "function": {**function, "arguments": '{"path": "docs/index.md"}'}}
    assert server.render(HELLO, {**message, "tool_calls": [other]}, result).n_restored == 0


@pytest.mark.parametrize("name", [QWEN3, QWEN35])
def test_reasoning_comes_back_where_the_template_shows_it(models: dict[str, TextModel], name: str) -> None:
    """As long as the chain of calls goes on; once the user asks anew it is stripped, as if the client had sent it."""
    server = Server(models[name])
    opening = "" if name == QWEN35 else "<think>\n"
    call = CALL if name == QWEN3 else (
        "<tool_call>\n<function=read_file>\n<parameter=path>\nREADME.md\n</parameter>\n</function>\n</tool_call>"
    )  # fmt: skip
    message, memory = server.answer(f"{opening}Hm. I look.\n</think>\n\n" + call, HELLO)
    assert message["reasoning_content"].strip() == "Hm. I look."
    result = {"role": "tool", "tool_call_id": "ours_0", "content": "Text."}
    bare = {**message, "reasoning_content": ""}
    rendered = server.render(HELLO, bare, result)
    assert begins_with(rendered, memory)
    assert rendered.n_restored == 1
    stripped = server.render(HELLO, bare, result, MORE)
    assert stripped.ids == server.render(HELLO, message, result, MORE).ids
    assert stripped.chat is not None
    assert "Hm. I look." not in stripped.chat.prompt
    assert stripped.n_restored == 0


def whole(message: Message) -> Message:
    content = message["content"]
    texts = [content] if isinstance(content, str) else [part["text"] for part in content]
    return {**message, "content": "".join(texts)}


@pytest.mark.parametrize("name", [OWN, QWEN3])
def test_answers_from_elsewhere_stay_as_they_came_first(models: dict[str, TextModel], name: str) -> None:
    """Of a conversation that another server has begun."""
    rng = random.Random(3)
    server = Server(models[name])
    theirs: list[Message] = [HELLO]
    memory: tuple[int, ...] = ()
    for turn in range(6):
        function = {"name": "read_file", "arguments": json.dumps({"path": f"{turn}é", "n": 1.0})}
        call = {"id": f"t{turn}", "type": "function", "function": function}
        content: Any = [{"type": "text", "text": text} for text in ("I look", f" at {turn}. ")]
        answer: Message = {"role": "assistant", "content": content, "tool_calls": [call]}
        theirs += [answer, {"role": "tool", "tool_call_id": call["id"], "content": "Text."}]
        rendered = server.render(*theirs)
        assert begins_with(rendered, memory)
        assert rendered.n_restored == 0
        assert rendered.chat is not None
        memory = tuple(rendered.ids[: rendered.boundaries[-1]])
        held = [message if message["role"] != "assistant" else whole(message) for message in theirs]
        theirs = [respelled(message, rng) if message["role"] == "assistant" else message for message in held]
        ids = [message["tool_calls"][0]["id"] for message in theirs if message["role"] == "assistant"]
        results = [message for message in theirs if message["role"] == "tool"]
        for message, id_ in zip(results, ids, strict=True):
            message["tool_call_id"] = id_


def test_other_clients_get_nothing_of_it(models: dict[str, TextModel]) -> None:
    server = Server(models[QWEN3], ())
    message, memory = server.answer("<think>\nSecret.\n</think>\n\nYes.", HELLO, client="a")
    bare = {**message, "reasoning_content": ""}
    for client, is_known in (("a", True), ("b", False)):
        rendered = server.render(HELLO, bare, client=client)
        assert rendered.chat is not None
        assert ("Secret." in rendered.chat.prompt) == is_known
        assert begins_with(rendered, memory) == is_known


def test_special_tokens_come_from_the_template_only(models: dict[str, TextModel]) -> None:
    """A model may write any token; those of the frame are not for messages to bring along."""
    model = models[OWN]
    server = Server(model, ())
    rendered = server.render(HELLO)
    assert rendered.turn is not None
    assert rendered.place is not None
    given = server.spellings.keep(rendered.place, {"role": "assistant", "content": "Yes. "})
    start = model.tokenize("<|im_start|>", parse_special=True)
    server.known.keep(rendered.turn, [*start, *model.tokenize("Yes. ")], None, given)
    after = server.render(HELLO, {"role": "assistant", "content": "Yes."}, MORE)
    assert after.n_restored == 0
    assert list(after.ids).count(start[0]) == 4


def test_special_tokens_that_the_model_spelled_by_letters_stay_so(models: dict[str, TextModel]) -> None:
    """As it does under a grammar, which knows letters only: its ids are the ones in memory."""
    model = models[OWN]
    server = Server(model)
    rendered = server.render(HELLO)
    assert rendered.chat is not None
    assert rendered.turn is not None
    assert rendered.place is not None
    opening, rest = model.tokenize("<tool_call>", parse_special=True), CALL.removeprefix("<tool_call>")
    ids = [*opening, *model.tokenize(rest.removesuffix("</tool_call>")), *model.tokenize("</tool_call>")]
    parser = AnswerParser(rendered.chat)
    for token in ids:
        parser.feed(token)
    (call,) = parser.finish(truncated=False).message.tool_calls
    function = {"name": call.name, "arguments": call.arguments}
    message = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "ours", "type": "function", "function": function}],
    }
    given = server.spellings.keep(rendered.place, message)
    server.known.keep(rendered.turn, ids, None, given)
    prompt = ChatPrompt(
        messages=[HELLO, message, {"role": "tool", "tool_call_id": "ours", "content": "Text."}], tools=server.tools
    )
    after = server.renderer.render(prompt)
    assert begins_with(after, (*rendered.ids, *ids))
    assert after.n_restored == 1


def test_bytes_that_are_no_text_are_known_again(models: dict[str, TextModel]) -> None:
    """An answer may be cut off within a character; the client has a replacement for it."""
    model = models[OWN]
    server = Server(model)
    rendered = server.render(HELLO)
    assert rendered.turn is not None
    assert rendered.place is not None
    ids = model.tokenize("So \U0001f40e")[:-1]
    assert b"".join(model.piece(token) for token in ids).decode(errors="ignore") == "So "
    message = {"role": "assistant", "content": "So \ufffd"}
    given = server.spellings.keep(rendered.place, message)
    server.known.keep(rendered.turn, ids, None, given)
    after = server.render(HELLO, message, MORE)
    assert begins_with(after, (*rendered.ids, *ids))


def test_ids_that_say_more_than_the_message_are_not_put_in(models: dict[str, TextModel]) -> None:
    model = models[OWN]
    server = Server(model)
    rendered = server.render(HELLO)
    assert rendered.turn is not None
    assert rendered.place is not None
    given = server.spellings.keep(rendered.place, {"role": "assistant", "content": "Yes. "})
    server.known.keep(rendered.turn, model.tokenize("Yes, and no. Yes. No."), None, given)
    assert server.render(HELLO, {"role": "assistant", "content": "Yes."}, MORE).n_restored == 0


@pytest.mark.parametrize("name", [OWN, QWEN3])
def test_conversations_of_any_spelling_go_on_from_memory(models: dict[str, TextModel], name: str) -> None:
    rng = random.Random(5)
    for _ in range(12):
        server = Server(models[name])
        theirs: list[Message] = [HELLO]
        for turn in range(4):
            words = "".join(
                rng.choice(["a", " b", "é", "\n", "{", '"', " <", "日"]) for _ in range(rng.randrange(1, 8))
            )
            text = "x" + words + rng.choice(["", " ", "\n\n"])
            arguments = {"path": rng.choice(["é", "a/b", "\n"]), "n": rng.choice([1, 2.5, 10**20])}
            spelled = json.dumps({"name": "read_file", "arguments": arguments}, separators=(",", ": "))
            text += f"<tool_call>\n{spelled}\n</tool_call>"
            message, memory = server.answer(text, *theirs)
            shown = respelled(message, rng)
            theirs += [shown, {"role": "tool", "tool_call_id": shown["tool_calls"][0]["id"], "content": str(turn)}]
            rendered = server.render(*theirs)
            assert begins_with(rendered, memory), (theirs, rendered.chat and rendered.chat.prompt)


@pytest.mark.asyncio
@pytest.mark.parametrize("restores", [True, False])
async def test_the_engine_goes_on_from_an_answer_that_was_trimmed(tiny_model: Path, restores: bool) -> None:
    async with running(tiny_model, settings=ServeSettings(restores_answers=restores)) as answering:
        ask = chat("Is the sea wide? " * 20, prompt={"grammar": r'root ::= "Yes.\n\n\n\n"'})
        async with answering.answerer.open(ask) as opened:
            answer = await read(opened)
            n_tokens = len(opened._streams[0].choice.tokens)
        assert answer.choice.content == "Yes.\n\n\n\n"
        trimmed = [*ask.prompt.messages, assistant("Yes."), MORE]  # type: ignore[union-attr]
        served = await serve(answering.answerer, replace(ask, prompt=ChatPrompt(messages=trimmed)))
        assert served.usage.extension()["restored_answers"] == restores
        assert (served.usage.n_cached >= answer.usage.n_prompt + n_tokens - 2) == restores
