"""Ids of answers in later prompts: the text stays the same to the byte, special tokens stay where they are."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from luce.supervisor.http.prompts.token_replay_cache import SplicedPrompt, TokenReplayCache
from luce.supervisor.text import TextModel

HELLO = {"role": "user", "content": "Hello"}
MORE = {"role": "user", "content": "More"}


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Iterator[TextModel]:
    with TextModel(tiny_model) as opened:
        yield opened


def letters(model: TextModel, text: str) -> list[int]:
    """A text in the smallest tokens, as no tokeniser cuts it."""
    return [token for letter in text for token in model.tokenize(letter)]


def answered(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def splice(model: TextModel, known: TokenReplayCache, *messages: dict[str, Any], client: str = "") -> SplicedPrompt:
    """Checks what always holds."""
    chat = model.render(messages)
    spliced = known.splice(chat, client)
    assert model.detokenize(spliced.ids, unparse_special=True) == chat.prompt.encode()
    special = {token.id for token in model.info.special}
    assert [t for t in spliced.ids if t in special] == [t for t in chat.tokens if t in special]
    starts = [chat.prompt.encode()[mark.byte :] for mark in chat.marks]
    for position in spliced.boundaries:
        rest = model.detokenize(spliced.ids[position:], unparse_special=True)
        assert rest in starts
    return spliced


def keep(model: TextModel, known: TokenReplayCache, ids: list[int], *messages: dict[str, Any], **options: Any) -> None:
    turn = splice(model, known, *messages).turn
    assert turn is not None
    known.keep(turn, ids, **options)


def test_an_answer_comes_back_with_its_ids(model: TextModel) -> None:
    known = TokenReplayCache(model, 1 << 20)
    text = "The sea is wide.\nAnd deep: é日!"
    ids = letters(model, text)
    assert ids != model.tokenize(text)
    before = splice(model, known, HELLO).ids
    keep(model, known, [*ids, *sorted(model.info.eog)[:1]], HELLO)
    spliced = splice(model, known, HELLO, answered(text), MORE)
    assert list(spliced.ids[: len(before) + len(ids)]) == [*before, *ids]
    assert spliced.n_spliced == 1
    keep(model, known, letters(model, "Yes."), HELLO, answered(text), MORE)
    third = splice(model, known, HELLO, answered(text), MORE, answered("Yes."), HELLO)
    assert list(third.ids[: len(spliced.ids) + 4]) == [*spliced.ids, *letters(model, "Yes.")]
    assert third.n_spliced == 2


def test_only_the_same_text_in_the_same_place(model: TextModel) -> None:
    known = TokenReplayCache(model, 1 << 20)
    keep(model, known, letters(model, "The sea is wide."), HELLO)
    for messages in (
        (HELLO, answered("The sea is wide!"), MORE),
        (HELLO, answered("the sea is wide."), MORE),
        (MORE, answered("The sea is wide."), MORE),
        ({"role": "system", "content": "x"}, HELLO, answered("The sea is wide."), MORE),
    ):
        spliced = splice(model, known, *messages)
        assert spliced.n_spliced == 0
        assert spliced.ids == model.render(messages).tokens
    assert splice(model, known, HELLO, answered("The sea is wide."), MORE, client="b").n_spliced == 0
    assert splice(model, known, HELLO, answered("The sea is wide."), MORE).n_spliced == 1


def test_a_special_token_is_never_put_where_a_text_spells_it(model: TextModel) -> None:
    known = TokenReplayCache(model, 1 << 20)
    start = model.tokenize("<|im_start|>", parse_special=True)
    assert len(start) == 1
    keep(model, known, [*letters(model, "a "), *start, *letters(model, " b")], HELLO)
    spliced = splice(model, known, HELLO, answered("a <|im_start|> b"), MORE)
    assert spliced.n_spliced == 0
    spelled = letters(model, "a <|im_start|> b")
    keep(model, known, spelled, HELLO)
    assert splice(model, known, HELLO, answered("a <|im_start|> b"), MORE).n_spliced == 1


def test_what_a_stop_string_cut_off_is_left_out(model: TextModel) -> None:
    known = TokenReplayCache(model, 1 << 20)
    keep(model, known, letters(model, "One, two, STOP and"), HELLO, stop="STOP")
    assert splice(model, known, HELLO, answered("One, two, "), MORE).n_spliced == 1


def test_the_oldest_leave_when_there_is_no_room(model: TextModel) -> None:
    known = TokenReplayCache(model, 20_000)
    for number in range(200):
        keep(model, known, letters(model, f"The answer {number}."), {"role": "user", "content": str(number)})
        assert known.n_bytes <= 20_000
    user, answer = {"role": "user", "content": "0"}, answered("The answer 0.")
    assert splice(model, known, user, answer, MORE).n_spliced == 0
    user, answer = {"role": "user", "content": "199"}, answered("The answer 199.")
    assert splice(model, known, user, answer, MORE).n_spliced == 1
    nothing = TokenReplayCache(model, 0)
    keep(model, nothing, letters(model, "a"), HELLO)
    assert nothing.n_bytes == 0


def test_random_conversations_keep_their_text(model: TextModel) -> None:
    rng = random.Random(11)
    known = TokenReplayCache(model, 1 << 20)
    alphabet = ["<|im_end|>", "a", " b", "é", "日", "\n", "  ", "</tool_call>", "<|", "im_end", "0", "'s"]
    n_spliced = 0
    for _ in range(60):
        messages: list[dict[str, Any]] = [HELLO]
        for _ in range(4):
            text = "x" + "".join(rng.choice(alphabet) for _ in range(rng.randrange(0, 12)))
            ids = letters(model, text) if rng.random() < 0.7 else model.tokenize(text)
            keep(model, known, ids, *messages)
            messages += [answered(text), MORE]
            n_spliced += splice(model, known, *messages).n_spliced
    assert n_spliced > 100
