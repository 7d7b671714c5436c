"""The fields of llama-server's and vLLM's clients, in each API, over the real engine: what they ask for is done, or
refused with their name."""

from __future__ import annotations

import json
import logging
from typing import Any

import httpx2 as httpx
import pytest

from luce.protocol import SamplerKind
from luce.supervisor.http import sampling_fields
from luce.supervisor.http.openai_completions.parse import CompletionBody, read_completion
from tests.http.serving import Server

WHO = "Who are you?"
DIGITS = "0123456789"
CODE = "def add(a, b):\n"


def ask(server: Server, path: str, **fields: Any) -> Any:
    answer = httpx.post(server.url + path, json=_body(path) | fields, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()


def _body(path: str) -> dict[str, Any]:
    match path:
        case "/v1/chat/completions" | "/v1/messages":
            return {"messages": [{"role": "user", "content": WHO}], "temperature": 0, "max_tokens": 64}
        case "/v1/responses":
            return {"input": WHO, "temperature": 0, "max_output_tokens": 64, "store": False}
        case _:
            return {"prompt": CODE, "temperature": 0, "max_tokens": 64}


def text_of(path: str, answer: Any) -> str:
    match path:
        case "/v1/chat/completions":
            text = answer["choices"][0]["message"]["content"]
        case "/v1/completions":
            text = answer["choices"][0]["text"]
        case "/completion":
            text = answer["content"]
        case "/v1/responses":
            text = "".join(part["text"] for item in answer["output"] for part in item["content"])
        case _:
            text = "".join(block["text"] for block in answer["content"])
    assert isinstance(text, str)
    return text


PATHS = ("/v1/chat/completions", "/v1/completions", "/completion", "/v1/responses", "/v1/messages")


@pytest.mark.parametrize("path", PATHS)
def test_stop_tokens_end_the_answer_and_are_none_of_its_text(server: Server, path: str) -> None:
    whole = text_of(path, ask(server, path))
    tokens = httpx.post(f"{server.url}/tokenize", json={"content": whole, "parse_special": False}).json()["tokens"]
    stop = next(token for number, token in enumerate(tokens) if number > 2 and token not in tokens[:number])
    begun = httpx.post(f"{server.url}/detokenize", json={"tokens": tokens[: tokens.index(stop)]}).json()["content"]
    assert text_of(path, ask(server, path, stop_token_ids=[stop])) == begun


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_least_number_of_tokens(server: Server, path: str) -> None:
    def n_tokens(**fields: Any) -> int:
        usage = ask(server, path, max_tokens=200, **fields)["usage"]
        return int(usage["completion_tokens" if path == "/v1/chat/completions" else "output_tokens"])

    n_by_itself = n_tokens()
    assert n_by_itself < 100
    assert n_tokens(min_tokens=n_by_itself + 7) >= n_by_itself + 7


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
@pytest.mark.parametrize(
    ("fields", "texts"),
    [
        ({"guided_choice": ['say "a\\b"\n', "nö"]}, ['say "a\\b"\n', "nö"]),
        ({"structured_outputs": {"choice": ["one"]}}, ["one"]),
        ({"guided_regex": r"(yes|no){1}[!?]\d"}, [a + b + n for a in ("yes", "no") for b in "!?" for n in DIGITS]),
        ({"guided_regex": r"^[\d]x$"}, [f"{n}x" for n in range(10)]),
        ({"guided_grammar": 'root ::= "ab"{2,2}'}, ["abab"]),
        ({"guided_json": {"const": 7}}, ["7"]),
        ({"guided_json": '{"const": 7}'}, ["7"]),
        ({"structured_outputs": {"json": {"enum": [1]}}}, ["1"]),
    ],
)  # fmt: skip
def test_guided_decoding(server: Server, path: str, fields: dict[str, Any], texts: list[str]) -> None:
    assert text_of(path, ask(server, path, **fields)).rstrip(" \n") in [text.rstrip(" \n") for text in texts]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"mirostat": 2}, "mirostat"),
        ({"adaptive_target": 0.5}, "adaptive_target"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"bad_words": ["x"]}, "bad_words"),
        ({"chat_template": "{{ messages[0].content }}"}, "chat_template"),
        ({"lora": [{"id": 0, "scale": 1}]}, "lora"),
        ({"samplers": ["top_k", "magic"]}, "samplers"),
        ({"samplers": "kz"}, "samplers"),
        ({"xtc_probability": 2}, "xtc_probability"),
        ({"typical_p": 0}, "typical_p"),
        ({"repeat_last_n": -2}, "repeat_last_n"),
        ({"dry_sequence_breakers": "x"}, "dry_sequence_breakers"),
        ({"stop_token_ids": [10**7]}, "stop_token_ids"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"presence_penalty": 3}, "presence_penalty"),
    ],
)
def test_what_cannot_be_had_is_refused_with_its_name(
    server: Server, path: str, fields: dict[str, Any], param: str
) -> None:
    answer = httpx.post(server.url + path, json=_body(path) | fields, timeout=120)
    assert answer.status_code == 400, answer.text
    assert param in answer.json()["error"]["message"]
    if path != "/v1/messages":
        assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_regex": "a(?=b)"}, "guided_regex"),
        ({"guided_choice": []}, None),
        ({"guided_choice": "one"}, "guided_choice"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": {}, "guided_regex": "a"}, "guided_regex"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
    ],
)
def test_guides_that_cannot_be_followed(server: Server, path: str, fields: dict[str, Any], param: str | None) -> None:
    answer = httpx.post(server.url + path, json=_body(path) | {"max_tokens": 4} | fields, timeout=120)
    if param is None:
        assert answer.status_code == 200, answer.text
    else:
        assert answer.status_code == 400, answer.text


@pytest.mark.parametrize("path", PATHS)
def test_links_of_the_chain_reach_the_engine(server: Server, path: str) -> None:
    """One answer with all of them, drawn with a seed, is the same each time and another one than without them."""
    fields = {"temperature": 2, "seed": 5, "top_k": 0, "top_p": 1, "min_p": 0}
    links = {
        "samplers": ["penalties", "dry", "top_n_sigma", "typ_p", "min_p", "xtc", "temperature"],
        "repeat_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2, "repeat_last_n": 32, "min_p": 0.01,
        "dry_multiplier": 0.8, "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": -1,
        "dry_sequence_breakers": ["\n"], "typical_p": 0.9, "top_n_sigma": 2, "xtc_probability": 0.9,
        "xtc_threshold": 0.01, "dynatemp_range": 0.3, "dynatemp_exponent": 1.2,
    }  # fmt: skip
    first = text_of(path, ask(server, path, **fields | links))
    assert text_of(path, ask(server, path, **fields | links)) == first
    assert text_of(path, ask(server, path, **fields)) != first


@pytest.mark.parametrize("path", PATHS)
def test_top_n_sigma_and_xtc_by_themselves(server: Server, path: str) -> None:
    drawing = {"temperature": 2, "seed": 5, "top_k": 0, "top_p": 1, "min_p": 0}
    limit = {"max_output_tokens" if path == "/v1/responses" else "max_tokens": 16}

    def text(**links: float) -> str:
        return text_of(path, ask(server, path, **drawing | limit | links))

    drawn, greedy = text(), text_of(path, ask(server, path, **limit))
    assert drawn != greedy
    assert text(top_n_sigma=1e-4) == greedy, "only the largest logit is left"
    assert text(xtc_probability=1, xtc_threshold=0.6) == drawn, "no token but one can be that likely: it is off"
    assert text(xtc_probability=1, xtc_threshold=0.01) not in {drawn, greedy}


class Words:
    n_vocab = 100

    def tokenize(self, text: str | bytes) -> list[int]:
        return [len(text)]

    def detokenize(self, tokens: Any, *, unparse_special: bool = False) -> bytes:
        return b"" if unparse_special else bytes(len(tokens))


def test_what_links_mean() -> None:
    body = CompletionBody(
        prompt="x", samplers="ekt", repeat_last_n=-1, dry_multiplier=0.5, dry_sequence_breakers=["", "\n"], typ_p=0.5,
        top_n_sigma=-1, stop_token_ids=[3, 3, 4], cache_prompt=False, t_max_predict_ms=1500, min_tokens=2,
    )  # fmt: skip
    (asked,) = read_completion(body, Words(), max_choices=1, headers={}, client="").answer_requests
    assert asked.sampling.order == (SamplerKind.PENALTIES, SamplerKind.TOP_K, SamplerKind.TEMPERATURE)
    assert asked.sampling.repeat_last_n == 2**31 - 1
    assert asked.sampling.dry_breakers == ("\n",)
    assert (asked.sampling.typical_p, asked.sampling.top_n_sigma) == (0.5, 0)
    assert (asked.stop_tokens, asked.reuse, asked.max_predict_s, asked.min_tokens) == ((3, 4), False, 1.5, 2)


def test_cache_prompt(server: Server) -> None:
    path = "/v1/chat/completions"
    for _ in range(2):
        usage = ask(server, path, cache_prompt=False)["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == 0
    assert ask(server, path)["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/completion"])
def test_timings_with_each_token(server: Server, path: str) -> None:
    body = _body(path) | {"stream": True, "max_tokens": 8}
    for wanted in (True, False):
        answer = httpx.post(server.url + path, json=body | {"timings_per_token": wanted}, timeout=120)
        chunks = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
        counts = [chunk["timings"]["predicted_n"] for chunk in chunks[:-1] if "timings" in chunk]
        assert bool(counts) == wanted
        assert counts == sorted(counts)


def test_a_time_limit_cuts_off_behind_a_line(server: Server) -> None:
    fields = {"grammar": r'root ::= "a" "\n" root', "max_tokens": 500}
    answer = ask(server, "/v1/completions", t_max_predict_ms=1, **fields)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] < 500
    assert "\n" in answer["choices"][0]["text"]


def test_what_does_nothing_is_told_once(
    server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling_fields, "_said", set())  # what other tests have sent to servers in this process
    with caplog.at_level(logging.INFO, "luce.http.fields"):
        for _ in range(2):
            ask(server, "/v1/chat/completions", id_slot=0, n_keep=5, max_tokens=1)
    assert caplog.text.count("n_keep") == 1
