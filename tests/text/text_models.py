"""Small vocabularies for the text tests, written as GGUF files without weights, and what several tests share."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import gguf

from luce.supervisor.text import (
    AnswerMessage,
    ContentDelta,
    Delta,
    ReasoningDelta,
    RenderedChat,
    TextModel,
    ToolCall,
    ToolCallDelta,
)
from luce.supervisor.text.library import MessageHandle

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>' }}{% endif %}"
)


def write_sentencepiece_model(path: Path, *, name: str = "plain", add_bos: bool = True) -> None:
    """A SentencePiece vocabulary (llama's kind: byte tokens, a space before each text) with user-defined tags.
    libllama gives special tokens strip attributes by the model's name ("phi-3")."""
    words = ["▁", "▁hello", "hello", "▁world", "▁think", "think", ">", "▁>", "/", "a", "b", "▁a", "▁b", "end", "im"]
    tokens = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)]
    tokens += [(f"<0x{byte:02X}>", BYTE) for byte in range(256)]
    tokens += [(word, NORMAL) for word in words]
    tokens += [("<|im_start|>", CONTROL), ("<|im_end|>", CONTROL), ("<|im_end|>x", CONTROL), ("<|endoftext|>", CONTROL)]
    tokens += [("<think>", USER_DEFINED), ("</think>", USER_DEFINED), ("▁▁▁▁", USER_DEFINED), ("<b>", USER_DEFINED)]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(name)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([text.encode() for text, _ in tokens])
    writer.add_token_scores([-float(index) for index in range(len(tokens))])
    writer.add_token_types([kind for _, kind in tokens])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(add_bos)
    writer.add_add_space_prefix(True)
    _finish(writer)


def write_idless_model(path: Path) -> None:
    """A model that takes and gives ids only."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("no_vocab")
    writer.add_vocab_size(100)
    _finish(writer)


def _finish(writer: gguf.GGUFWriter) -> None:
    writer.add_context_length(128)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def tool(name: str, /, **properties: str) -> dict[str, object]:
    """A function tool whose required parameters have the given JSON types."""
    schema = {
        key: {"type": kind, "items": {"type": "string"}} if kind == "array" else {"type": kind}
        for key, kind in properties.items()
    }
    parameters = {"type": "object", "properties": schema, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


def added_up(deltas: Iterable[Delta]) -> AnswerMessage:
    """The message that a client puts together. A tool call's name comes once."""
    reasoning, content = "", ""
    calls: list[list[str]] = []
    for delta in deltas:
        match delta:
            case ReasoningDelta(text):
                reasoning += text
            case ContentDelta(text):
                content += text
            case ToolCallDelta(index, id_, name, arguments):
                assert index <= len(calls)
                if index == len(calls):
                    assert name != ""
                    calls.append([id_, name, arguments])
                else:
                    assert name == ""
                    calls[index][0] += id_
                    calls[index][2] += arguments
    return AnswerMessage(content, reasoning, tuple(ToolCall(*call) for call in calls))


class Forgetful(TextModel):
    """Its messages go with the request, each time for somebody else: the library knows nothing of them again."""

    _salts = count()

    def render(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> RenderedChat:
        return super().render(list(map(dict, messages)), **options)

    def render_json(self, request: bytes, texts: bytes = b"", first: Sequence[MessageHandle] = ()) -> RenderedChat:
        assert not first
        values = json.loads(request)
        values["cache_salt"] = f"nobody {next(self._salts)}"
        n_tools = values.pop("tools_bytes", 0)
        values["tools"], texts = json.loads(texts[:n_tools] or b"null"), texts[n_tools:]
        messages = []
        for size in values.pop("message_bytes"):
            encoded, texts = texts[:size], texts[size:]
            head, newline, content = encoded.partition(b"\n")
            message = json.loads(head)
            messages.append({**message, "content": content.decode()} if newline else message)
        return super().render_json(json.dumps({**values, "messages": messages}).encode())
