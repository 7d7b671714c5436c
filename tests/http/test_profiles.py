"""One server under several names: what each answers with where its requests do not say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from gguf import GGUFWriter

from luce.protocol import SamplingArgs
from luce.supervisor import ConfigError
from luce.supervisor.http.answer_defaults import AnswerDefaults, ModelDefaults
from luce.supervisor.http.prompts.answer_request import AnswerRequest, ChatPrompt, TextPrompt
from luce.supervisor.http.settings import ServeSettings
from tests.http.conftest import MakeServer

HELLO = [{"role": "user", "content": "Hello"}]


def apply(defaults: ModelDefaults, model: str = "", **fields: Any) -> AnswerRequest:
    return defaults.apply(
        AnswerRequest(prompt=ChatPrompt(messages=HELLO, **fields.pop("prompt", {})), model=model, **fields)
    )


def test_whose_defaults_come_first() -> None:
    settings = ServeSettings(top_k=5, profiles={"cold": AnswerDefaults(temperature=0.1, top_p=0.5)})
    defaults = ModelDefaults(settings, settings.profiles, AnswerDefaults(top_k=7, top_p=0.9, repeat_penalty=1.1))
    found = apply(defaults, "cold").sampling
    assert (found.temperature, found.top_p, found.top_k, found.min_p) == (0.1, 0.5, 5, 0.05)
    assert found.repeat_penalty == 1.1
    found = apply(defaults, "any", sampling=SamplingArgs(temperature=0, top_k=1)).sampling
    assert (found.temperature, found.top_p, found.top_k) == (0, 0.9, 1)
    plain = ModelDefaults(ServeSettings(), {}).of("")
    assert (plain.temperature, plain.top_p, plain.top_k, plain.min_p) == (0.8, 0.95, 40, 0.05)


def test_a_forced_temperature_is_everybodys() -> None:
    settings = ServeSettings(force_temperature=0.6)
    defaults = ModelDefaults(settings, {})
    assert apply(defaults, sampling=SamplingArgs(temperature=1.5)).sampling.temperature == 0.6
    text = defaults.apply(AnswerRequest(prompt=TextPrompt(content="x"), sampling=SamplingArgs(temperature=0)))
    assert text.sampling.temperature == 0.6


def test_reasoning() -> None:
    profiles = {
        "fast": AnswerDefaults(reasoning="off"),
        "think": AnswerDefaults(reasoning="on", reasoning_budget=9, reasoning_effort="high"),
    }
    defaults = ModelDefaults(ServeSettings(template_arguments={"a": 1, "b": 1}), profiles)

    def thinking(model: str, **prompt: Any) -> bool | None:
        made = apply(defaults, model, prompt=prompt).prompt
        assert isinstance(made, ChatPrompt)
        return made.thinking

    assert thinking("luce") is None
    assert thinking("fast") is False
    assert thinking("think") is True
    assert thinking("fast", thinking=True) is True, "a request that asks for it gets it"
    assert thinking("fast", thinking=True, thinking_is_optional=True) is False, "a habit is no wish"
    assert thinking("luce", thinking=True, thinking_is_optional=True) is True
    made = apply(defaults, "think", prompt={"thinking_budget": 3, "template_arguments": {"b": 2}}).prompt
    assert isinstance(made, ChatPrompt)
    assert (made.thinking_budget, made.effort, made.template_arguments) == (3, "high", {"a": 1, "b": 2})


def test_what_a_models_file_says(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"

    def found(**values: float) -> AnswerDefaults:
        writer = GGUFWriter(path, "llama")
        for key, value in values.items():
            name = f"general.sampling.{key}"
            if isinstance(value, int):
                writer.add_int32(name, value)
            else:
                writer.add_float32(name, value)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        return AnswerDefaults.of_file(path)

    said = found(temp=0.5, top_k=20, penalty_last_n=-1)
    assert said == AnswerDefaults(temperature=0.5, top_k=20, repeat_last_n=2**31 - 1)
    assert found() == found(temp=-1.0) == found(top_k=-5) == AnswerDefaults(), "nonsense is nobody's default"
    path.write_bytes(b"GGUF")
    assert AnswerDefaults.of_file(path) == AnswerDefaults()


@pytest.mark.parametrize("fields", [{"temperature": -1}, {"top_p": 0}, {"repeat_penalty": 0}, {"min_p": 2}])
def test_what_cannot_be(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(fields))):
        AnswerDefaults(**fields)


async def test_one_server_under_three_names(make_server: MakeServer, llama_templates_dir: Path) -> None:
    """Claude Code's habit, `thinking: adaptive`, does not turn the fast one into the thinking one."""
    profiles = {
        "luce-think": AnswerDefaults(reasoning="on"),
        "luce-fast": AnswerDefaults(reasoning="off", temperature=0),
    }
    template = llama_templates_dir / "Qwen-Qwen3-0.6B.jinja"
    async with (
        make_server(aliases=("luce",), profiles=profiles, chat_template=template) as server,
        httpx.AsyncClient(base_url=server.url, timeout=120) as client,
    ):
        listed = (await client.get("/v1/models")).json()
        assert [model["id"] for model in listed["data"]] == ["luce", "luce-think", "luce-fast"]
        lengths: dict[str, set[int]] = {}
        for name in ("luce", "luce-think", "luce-fast"):
            body = {"model": name, "messages": HELLO}
            counted = await client.post("/v1/chat/completions/input_tokens", json=body)
            adaptive = await client.post("/v1/messages/count_tokens", json=body | {"thinking": {"type": "adaptive"}})
            shown = await client.post("/apply-template", json=body)
            assert ("</think>" in shown.json()["prompt"]) == (name == "luce-fast")
            lengths[name] = {answer.json()["input_tokens"] for answer in (counted, adaptive)}
        assert lengths["luce"] == lengths["luce-think"]
        assert len(lengths["luce-fast"]) == 1
        assert lengths["luce-fast"] != lengths["luce"], "its prompt says that nothing is to be thought"
        prompt: dict[str, object] = {"model": "luce-fast", "prompt": "def f(", "max_tokens": 12}
        texts = [(await client.post("/v1/completions", json=prompt)).json()["choices"][0]["text"] for _ in range(2)]
        assert texts[0] == texts[1], "greedy, without a word of the request"
