"""What a server says of itself, as llama-server's own tests ask for it, and what llama-server has and this has not
(cases.py lists which)."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import gguf
import httpx2 as httpx
import pytest
from gguf.scripts.gguf_new_metadata import MetadataDetails, copy_with_new_metadata

from tests.http.conftest import MakeServer
from tests.http.llama_server.asking import CODE, refused, told
from tests.http.serving import Server
from tests.pictures import png

BOS = 8000
NOT_HERE = [
    ("GET", "/lora-adapters"), ("POST", "/lora-adapters"), ("GET", "/tools"), ("POST", "/tools"),
    ("GET", "/cors-proxy"), ("POST", "/predict"), ("POST", "/v1/systemone"), ("POST", "/models/load"),
    ("POST", "/models/unload"), ("POST", "/v1/audio/transcriptions"),
    ("POST", "/v1/chat/completions/control"),
]  # fmt: skip


@pytest.fixture(scope="module")
def eyes(test_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Of a server with a projector, and a folder for slots."""
    options = {
        "mmproj": test_models / "mmproj" / "llava.gguf",
        "slot_save_path": tmp_path_factory.mktemp("slots"),
        "lanes": 1,
    }
    running = Server(test_models / "qwen3.gguf", options)
    try:
        with httpx.Client(base_url=running.start().url, timeout=120) as connected:
            yield connected
    finally:
        running.stop()


@pytest.fixture(scope="module")
def parted(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Of a server over the packaged model in two files, whose vocabulary wants its BOS (BOS) before each text."""
    reader = gguf.GGUFReader(tiny_model)
    architecture = reader.get_field(gguf.Keys.General.ARCHITECTURE)
    assert architecture is not None
    n_first = len(reader.tensors) // 2 + 1
    folder = tmp_path_factory.mktemp("parts")
    writer = gguf.GGUFWriter(folder / "tiny.gguf", str(architecture.contents()), split_max_tensors=n_first)
    wants_bos = {
        gguf.Keys.Tokenizer.ADD_BOS: MetadataDetails(gguf.GGUFValueType.BOOL, True),
        gguf.Keys.Tokenizer.BOS_ID: MetadataDetails(gguf.GGUFValueType.UINT32, BOS),
    }
    copy_with_new_metadata(reader, writer, wants_bos, [])
    first, _ = sorted(folder.iterdir())
    running = Server(first, {"lanes": 1})
    try:
        with httpx.Client(base_url=running.start().url, timeout=120) as connected:
            yield connected
    finally:
        running.stop()


def test_a_model_in_parts_is_served(client: httpx.Client, parted: httpx.Client) -> None:
    ids = told(client, "/tokenize", content=CODE)["tokens"]
    asked = {"prompt": ids, "n_predict": 8, "temperature": 0}
    assert told(parted, "/completion", **asked)["content"] == told(client, "/completion", **asked)["content"]


def test_a_vocabularys_bos_comes_first_where_it_is_wanted(client: httpx.Client, parted: httpx.Client) -> None:
    ids = told(client, "/tokenize", content=CODE, add_special=True)["tokens"]
    assert told(parted, "/tokenize", content=CODE)["tokens"] == ids
    assert told(parted, "/tokenize", content=CODE, add_special=True)["tokens"] == [BOS, *ids]
    answer = told(parted, "/completion", prompt=CODE, n_predict=1)
    assert (answer["prompt"], answer["tokens_evaluated"]) == (CODE, 1 + len(ids))


def test_models_say_what_they_can(client: httpx.Client, eyes: httpx.Client) -> None:
    for path in ("/models", "/v1/models"):
        listed = client.get(path).json()
        assert [model["id"] for model in listed["data"]] == ["luce-tiny-Q8_0"]
        assert [model["name"] for model in listed["models"]] == ["luce-tiny-Q8_0"]
        assert [model["capabilities"] for model in listed["models"]] == [["completion"]]
        assert [model["capabilities"] for model in eyes.get(path).json()["models"]] == [["completion", "multimodal"]]


def test_props(client: httpx.Client, server: Server) -> None:
    props = client.get("/props").json()
    assert props["model_path"].endswith(".gguf")
    assert props["total_slots"] == server.config.lanes
    assert props["default_generation_settings"]["n_ctx"] == server.config.ctx
    assert props["default_generation_settings"]["params"]["seed"] == server.config.seed
    assert props["is_sleeping"] is False


def test_slots_are_idle_after_an_answer(client: httpx.Client) -> None:
    told(client, "/completion", prompt=CODE, n_predict=8)
    for slot in client.get("/slots").json():
        assert slot["is_processing"] is False
        assert "next_token" not in slot
        assert "params" not in slot


def test_tokens_of_prompts_and_answers_are_counted(client: httpx.Client) -> None:
    def counts() -> list[float]:
        text = client.get("/metrics").text
        names = ("luce_http_read_tokens_total", "luce_http_cached_tokens_total", "luce_http_generated_tokens_total")
        found = [re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE) for name in names]
        return [sum(map(float, values)) for values in found]

    before = counts()
    timings = [
        told(client, "/completion", prompt=CODE * 30, n_predict=n, ignore_eos=True)["timings"] for n in (1, 4, 16)
    ]
    n_prompt, n_cached, n_predicted = (after - was for after, was in zip(counts(), before, strict=True))
    assert n_predicted == 21 == sum(timing["predicted_n"] for timing in timings)
    assert n_cached == sum(timing["cache_n"] for timing in timings) > 0
    assert n_prompt == n_cached + sum(timing["prompt_n"] for timing in timings)


async def test_who_only_looks_wakes_nobody(make_server: MakeServer) -> None:
    """Nor does who counts tokens; llama-server wakes for that."""
    hello = {"messages": [{"role": "user", "content": "Hello"}]}
    async with make_server(sleep_idle_s=0.2) as server:
        with httpx.Client(base_url=server.url, timeout=120) as client:
            told(client, "/completion", prompt=CODE, n_predict=2)
            while not client.get("/props").json()["is_sleeping"]:
                pass
            for path in ("/health", "/models", "/slots", "/metrics"):
                assert client.get(path).status_code == 200
            assert told(client, "/tokenize", content="Hello")["tokens"]
            for path in ("/chat/completions/input_tokens", "/v1/messages/count_tokens"):
                assert told(client, path, model="any", **hello)["input_tokens"] > 0
            assert told(client, "/v1/responses/input_tokens", input="Hello")["input_tokens"] > 0
            assert client.get("/props").json()["is_sleeping"] is True
            assert told(client, "/completion", prompt=CODE, n_predict=1)["tokens_predicted"] == 1


@pytest.mark.parametrize(("method", "path"), NOT_HERE)
def test_what_is_not_here_says_so(client: httpx.Client, method: str, path: str) -> None:
    answer = client.request(method, path, json={} if method == "POST" else None)
    assert answer.status_code in {404, 405}
    assert answer.json()["error"]["message"]


def test_adapters_and_probabilities_after_sampling_are_refused(client: httpx.Client) -> None:
    assert refused(client, "/completion", prompt=CODE, lora=[{"id": 0, "scale": 0.5}])["param"] == "lora"
    asked = {"prompt": CODE, "n_probs": 10, "post_sampling_probs": True}
    assert refused(client, "/completion", **asked)["param"] == "post_sampling_probs"


def test_images_beside_a_text_are_refused_though_the_model_sees(eyes: httpx.Client) -> None:
    prompt = {"prompt_string": "What is this: <__media__>\n", "multimodal_data": ["AAAA"]}
    assert refused(eyes, "/completions", prompt=prompt)["param"] == "prompt"


def test_a_text_is_saved_where_the_model_sees(eyes: httpx.Client) -> None:
    """A text with an image is refused, in test_slots_with_images_are_refused."""
    prompt = list(range(5, 300))
    first = told(eyes, "/completion", prompt=prompt, n_predict=4, temperature=0, ignore_eos=True)
    saved = told(eyes, "/slots/0?action=save", filename="text.bin")
    assert saved["n_saved"] == len(prompt) + 3
    assert told(eyes, "/slots/0?action=restore", filename="text.bin")["n_restored"] == saved["n_saved"]
    again = told(eyes, "/completion", prompt=prompt, n_predict=4, temperature=0, ignore_eos=True)
    assert again["content"] == first["content"]
    assert again["timings"]["cache_n"] > 0


def test_slots_with_images_are_refused(eyes: httpx.Client) -> None:
    url = f"data:image/png;base64,{base64.b64encode(png(40, 30, 1)).decode()}"
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is this?"}]
    told(eyes, "/chat/completions", messages=[{"role": "user", "content": content}], max_tokens=2)
    assert refused(eyes, "/slots/0?action=save", filename="image.bin")["code"] == "token_out_of_range"


def test_erasing_a_slot_drops_nothing_that_is_cached(eyes: httpx.Client) -> None:
    asked = {"prompt": list(range(300, 600)), "n_predict": 4}
    told(eyes, "/completion", **asked)
    assert told(eyes, "/slots/0?action=erase")["n_erased"] > 300
    assert refused(eyes, "/slots/0?action=save", filename="erased.bin")["param"] == "id"
    assert told(eyes, "/completion", **asked)["timings"]["cache_n"] > 0


async def test_a_template_knows_the_day(make_server: MakeServer, llama_templates_dir: Path) -> None:
    template = llama_templates_dir / "meta-llama-Llama-3.3-70B-Instruct.jinja"
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "What is today?"}]}
    async with make_server(chat_template=template, lanes=1) as server:
        with httpx.Client(base_url=server.url, timeout=120) as client:
            before = datetime.now(UTC).astimezone()
            prompt = told(client, "/apply-template", **asked)["prompt"]
            after = datetime.now(UTC).astimezone()
            assert any(f"{day:%d %b %Y}" in prompt for day in (before, after))
            opening = "<|start_header_id|>assistant<|end_header_id|>"
            assert opening in prompt
            assert opening not in told(client, "/apply-template", **asked, add_generation_prompt=False)["prompt"]
