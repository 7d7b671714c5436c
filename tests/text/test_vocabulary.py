"""Tokenising and detokenising: golden ids, byte-exact round trips, other kinds of vocabulary, errors, threads."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from luce.supervisor.text import (
    BadRequestError,
    ClosedError,
    ModelLoadError,
    NoVocabularyError,
    TemplateError,
    TextModel,
)

from .text_models import write_idless_model, write_sentencepiece_model

EDGE_TEXTS = [
    "",
    " ",
    "\n",
    "\r\n\t  \n\n\n",
    "\0",
    "a\0b",
    "naïve café — “quotes” …",
    "日本語のテキスト",
    "👩‍👩‍👧‍👦 🏳️‍🌈",
    "e\u0301 \u200b \ufeff \u202e",
    "1234567890 3.14159 0x1F",
    "    def f(x):\n\treturn x\n",
    "<|im_start|>",
    "<|im_end|",
    "<think></think>",
    "x" * 5000,
    " " * 300,
]


def test_golden_prompts(model: TextModel, golden: list[Any]) -> None:
    """The reference's tokenizer (Hugging Face) gave these ids."""
    assert golden
    for case in golden:
        assert model.tokenize(case.prompt, parse_special=True) == list(case.prompt_ids)


def test_info(model: TextModel) -> None:
    info = model.info
    assert (info.kind, info.n_vocab, info.has_text, info.architecture) == ("bpe", 8192, True, "qwen35")
    assert info.n_ctx_train == 8192
    names = {token.text: token for token in info.special}
    assert names["<|im_end|>"].kind == "control"
    assert names["<tool_call>"].kind == "user_defined"
    assert info.eos in info.eog
    assert names["<|im_end|>"].id in info.eog
    assert info.add_bos is False
    assert info.has_template
    kinds = model.token_kinds
    assert len(kinds) == 8192
    assert kinds[names["<|im_end|>"].id] == "control"
    assert kinds[0] == "normal"


def test_template_info(model: TextModel) -> None:
    assert "<|im_start|>" in model.template.source
    assert model.template.capabilities["supports_tools"]


@pytest.mark.parametrize("text", EDGE_TEXTS)
def test_text_survives(model: TextModel, text: str) -> None:
    ids = model.tokenize(text)
    assert model.detokenize(ids, unparse_special=True) == text.encode()
    assert b"".join(model.piece(token, special=True) for token in ids) == text.encode()


def test_random_bytes_survive(model: TextModel, full: bool) -> None:
    """Any UTF-8 text, and through the incremental detokeniser too."""
    rng = random.Random(20240607)
    ranges = [(32, 127), (0xA0, 0x500), (0x4E00, 0x9FFF), (0x1F600, 0x1F610), (10, 11)]
    for _ in range(5000 if full else 150):
        text = "".join(chr(rng.randrange(*rng.choice(ranges))) for _ in range(rng.randrange(1, 60)))
        ids = model.tokenize(text)
        assert model.detokenize(ids, unparse_special=True) == text.encode()
        detokenizer = model.detokenizer(special=True)
        assert "".join(map(detokenizer.feed, ids)) + detokenizer.finish() == text


def test_invalid_utf8_never_crashes(model: TextModel) -> None:
    """libllama refuses some of it and replaces the rest."""
    rng = random.Random(7)
    n_refused = 0
    for _ in range(300):
        data = rng.randbytes(rng.randrange(1, 40))
        try:
            assert all(0 <= token < model.n_vocab for token in model.tokenize(data))
        except BadRequestError:
            n_refused += 1
    assert n_refused < 300


def test_special_spellings_are_parsed_only_on_demand(model: TextModel) -> None:
    assert len(model.tokenize("<|im_end|>", parse_special=True)) == 1
    ids = model.tokenize("<|im_end|>")
    assert len(ids) > 1
    assert model.detokenize(ids) == b"<|im_end|>"
    end = model.tokenize("<|im_end|>", parse_special=True)[0]
    assert model.piece(end) == b""
    assert model.piece(end, special=True) == b"<|im_end|>"


@pytest.mark.parametrize("token", [-1, 8192, 2**31, -(2**40)])
def test_ids_outside_the_vocabulary(model: TextModel, token: int) -> None:
    with pytest.raises(BadRequestError, match="token id"):
        model.piece(token)
    with pytest.raises(BadRequestError, match="token id"):
        model.detokenize([0, token])


def test_half_a_surrogate_pair_is_no_text(model: TextModel) -> None:
    with pytest.raises(BadRequestError):
        model.tokenize("\ud83d")


def test_sentencepiece_vocabulary(tmp_path: Path) -> None:
    write_sentencepiece_model(tmp_path / "spm.gguf")
    with TextModel(tmp_path / "spm.gguf") as model:
        assert model.info.kind == "spm"
        ids = model.tokenize("hello world é", add_special=True)
        assert ids[0] == model.info.bos
        assert model.detokenize(ids, remove_special=True).decode().strip() == "hello world é"
        first_half, second_half = model.tokenize("é")[-2:]
        detokenizer = model.detokenizer()
        assert (detokenizer.feed(first_half), detokenizer.feed(second_half)) == ("", "é")


def test_model_with_ids_only(tmp_path: Path) -> None:
    write_idless_model(tmp_path / "ids.gguf")
    with TextModel(tmp_path / "ids.gguf") as model:
        assert (model.n_vocab, model.info.has_text, model.info.eog) == (100, False, frozenset())
        for use in (
            lambda: model.tokenize("x"),
            lambda: model.piece(1),
            lambda: model.detokenize([1]),
            lambda: model.template,
            lambda: model.render([{"role": "user", "content": "x"}]),
            lambda: model.token_kinds,
        ):
            with pytest.raises(NoVocabularyError, match="ids only"):
                use()


def test_files_that_are_no_models(tmp_path: Path, tiny_model: Path) -> None:
    (tmp_path / "empty.gguf").write_bytes(b"")
    (tmp_path / "text.gguf").write_text("hello")
    (tmp_path / "cut.gguf").write_bytes(tiny_model.read_bytes()[:100_000])
    for name in ("missing.gguf", "empty.gguf", "text.gguf", "cut.gguf", "."):
        with pytest.raises(ModelLoadError):
            TextModel(tmp_path / name)
    with pytest.raises(ModelLoadError, match="zero byte"):
        TextModel("a\0b")


def test_template_override_that_does_not_parse(tiny_model: Path) -> None:
    for template in (
        "{% for",
        "{{ 'x",
        "{% if true %}",
        "{{ " + "(" * 9999,
        "{% if 1 %}" * 9999,
        "{{ " + "not " * 9999,
    ):
        with pytest.raises(TemplateError):
            TextModel(tiny_model, chat_template=template)


def test_closed_model(tiny_model: Path) -> None:
    model = TextModel(tiny_model)
    model.close()
    model.close()
    with pytest.raises(ClosedError, match="model is closed"):
        model.tokenize("x")


def test_many_threads_share_one_model(model: TextModel, golden: list[Any]) -> None:
    def work(seed: int) -> bool:
        rng = random.Random(seed)
        for _ in range(50):
            case = rng.choice(golden)
            if model.tokenize(case.prompt, parse_special=True) != list(case.prompt_ids):
                return False
            if model.detokenize(case.tokens, unparse_special=True).decode(errors="replace") is None:
                return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(16)))


def test_closing_while_other_threads_use_it(tiny_model: Path) -> None:
    """Calls that run end in order, later ones are refused: never a crash."""
    for _ in range(5):
        model = TextModel(tiny_model)
        started = threading.Barrier(5)

        def use(model: TextModel = model, started: threading.Barrier = started) -> None:
            started.wait()
            try:
                while True:
                    model.tokenize("some text " * 200)
            except ClosedError:
                pass

        threads = [threading.Thread(target=use) for _ in range(4)]
        for thread in threads:
            thread.start()
        started.wait()
        model.close()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()
