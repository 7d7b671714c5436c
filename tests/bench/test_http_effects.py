"""Habits of coding agents, played over HTTP: a turn reads little more than what is new in it (the short form of
scripts/bench/replay/http_effects.py; all of them with --full)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from luce.supervisor.text import TextModel
from scripts.bench.replay.held_back import held_back
from scripts.bench.replay.http_clients import AS_GIVEN, CLIENTS, Message, Said, Spelling
from scripts.bench.replay.http_effects import REASONING_TOKENS, Player, Row, Turn, measure, row, table
from scripts.bench.replay.http_others import OTHERS
from scripts.bench.replay.http_scenarios import EFFECTS, Effect
from tests.http.serving import Server

MOST = 1.1
SEED = 20261126
FAMILIES = ("", "qwen3", "gemma4")
"""The packaged model (with recurrent state), without any, with sliding windows."""


class Side:
    """What the program starts as a process."""

    def __init__(self, model: Path, folder: Path, template: Path | None) -> None:
        self._model = model
        self._options = {"disk_cache": folder, "ctx": 16384, "pool": 32768, "reasoning_budget": REASONING_TOKENS}
        if template is not None:
            self._options["chat_template"] = template
        self._server = Server(model, dict(self._options)).start()

    def url(self) -> str:
        return self._server.url

    def restart(self) -> None:
        self.close()
        self._server = Server(self._model, dict(self._options)).start()

    def close(self) -> None:
        self._server.stop()


def played(
    model: Path, folder: Path, template: Path | None, effects: Sequence[Effect], clients: Sequence[str]
) -> list[Turn]:
    side = Side(model, folder, template)
    try:
        with TextModel(model, chat_template=None if template is None else template.read_text()) as text:
            return measure(side, text, effects, clients)
    finally:
        side.close()


MORE_HABITS = [("pi", "restart-respelled"), ("opencode", "edited")]


@pytest.mark.parametrize(
    ("client", "name"),
    [("pi", "all-spellings"), *(pytest.param(*one, marks=pytest.mark.full_only) for one in MORE_HABITS)],
)
def test_a_habit_costs_what_is_new(tiny_model: Path, tmp_path: Path, client: str, name: str) -> None:
    turns = played(tiny_model, tmp_path, None, [effect for effect in EFFECTS if effect.name == name], [client])
    told = row(turns)
    assert told is not None
    assert told.ratio <= MOST, turns


@pytest.mark.parametrize("reasons", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_all_habits_of_all_clients(
    tiny_model: Path,
    test_models: Path,
    llama_templates_dir: Path,
    tmp_path: Path,
    family: str,
    reasons: bool,
    full: bool,
) -> None:
    if not full:
        pytest.skip("some habits only; all with --full")
    model = test_models / f"{family}.gguf" if family else tiny_model
    template = llama_templates_dir / "Qwen3.5-4B.jinja" if reasons else None
    effects = [effect for effect in EFFECTS if effect.reasons == reasons]
    turns = played(model, tmp_path, template, effects, list(CLIENTS))
    print("\n".join(table(turns, None)))
    told = row(turns)
    assert told is not None
    assert told.ratio <= MOST


@pytest.mark.parametrize("family", FAMILIES)
def test_sessions_of_clients_that_no_rule_was_fitted_to(
    tiny_model: Path, test_models: Path, tmp_path: Path, family: str, full: bool
) -> None:
    if not full:
        pytest.skip("with --full")
    model = test_models / f"{family}.gguf" if family else tiny_model
    turns = played(model, tmp_path, None, held_back(SEED), list(OTHERS))
    print("\n".join(table(turns, None)))
    for name in OTHERS:
        told = row(turns, client=name)
        assert told is not None
        assert told.ratio <= MOST, name


@pytest.fixture(scope="module")
def text(tiny_model: Path) -> Iterator[TextModel]:
    with TextModel(tiny_model) as model:
        yield model


@pytest.mark.parametrize("name", list(CLIENTS))
def test_answers_are_sent_back_in_another_spelling(text: TextModel, name: str) -> None:
    client = CLIENTS[name](name)
    said = Said("Yes. ", calls=[("id", "look_into", '{"depth": 1.0, "hidden": true}')])
    messages = [Message("assistant", said=said), Message("tool", ["found"])]
    head = client.begun("Is it there?", "/home/ada", 1)
    sent = [
        client.prompt(client.body(head, messages, spelling, calls=False, limit=4), text).messages
        for spelling in (AS_GIVEN, Spelling(arguments=True, trim=True, ids=True, split=True))
    ]
    assert len(sent[0]) == len(sent[1])
    assert sent[0][:-2] == sent[1][:-2]
    calls = [messages[-2]["tool_calls"][0] for messages in sent]
    assert calls[0]["id"] != calls[1]["id"]
    assert calls[0]["function"]["arguments"] != calls[1]["function"]["arguments"]
    for conversation in sent:
        assert conversation[-1]["tool_call_id"] == conversation[-2]["tool_calls"][0]["id"]
    assert "Is it there?" in str(sent[0])


@pytest.mark.parametrize(
    ("name", "grows"), [("aider", False), ("cline", True), ("goose", False), ("openhands", True), ("roo", True)]
)
def test_other_clients_keep_or_move_earlier_text(text: TextModel, name: str, grows: bool) -> None:
    client = OTHERS[name](name)
    head = client.begun("Is it there?", "/home/ada", 1)
    asked = [Message("assistant", said=Said("Yes.")), Message("user", ["And that?"])]
    first, second = (
        client.prompt(client.body(head, messages, AS_GIVEN, calls=False, limit=4), text).messages
        for messages in (asked, asked * 2)
    )
    assert "Is it there?" in str(first)
    assert "And that?" in str(first[-1])
    assert (second[: len(first)] == first) == grows


def test_new_is_what_no_earlier_prompt_had(text: TextModel) -> None:
    """The answers are given here; nobody is asked."""
    player = Player(CLIENTS["pi"]("pi"), text, lambda: "", lambda: None)
    usage = {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}
    player._post = lambda body: {"choices": [{"message": {"content": "Yes."}}], "usage": usage}  # type: ignore[method-assign]  # noqa: ARG005
    talk = player.begin("Is it there?")
    for _ in range(2):
        talk.ask()
        talk.hear("user", "And there?")
    talk.messages[1].texts = ["Or there?"]
    talk.ask(again=True)
    whole, second, edited = (turn.n_ideal for turn in player.turns)
    assert [turn.n_read for turn in player.turns] == [5, 5, 5]
    assert whole > 100
    assert 5 <= second <= 15
    assert second < edited <= 30
    assert row(player.turns) == Row(3, (whole + second + edited) / 3, 5.0)
