"""TextModel: a model file opened for its text side. Any number of threads may use one; close it when done.

Knows nothing of engines: no weights are loaded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, Self

from luce.supervisor.text.chat import ChatMessage, RenderedChat, request_json
from luce.supervisor.text.detokenizer import Detokenizer
from luce.supervisor.text.errors import ModelLoadError, TemplateError
from luce.supervisor.text.image_markers import IMAGE_PIECE
from luce.supervisor.text.library import (
    ChatHandle,
    MessageHandle,
    ModelHandle,
    c_id,
    c_ids,
    encode_text,
    load_library,
)
from luce.supervisor.text.vocabulary import TokenKind, VocabularyInfo, token_kind


@dataclass(frozen=True)
class TemplateInfo:
    """A model's chat template and what it can do."""

    source: str
    capabilities: Mapping[str, bool]
    supports_thinking: bool


class TextModel:
    """A model's vocabulary and chat template.

    `chat_template` takes the place of the model's own. Raises ModelLoadError or TemplateError.
    """

    def __init__(self, path: str | os.PathLike[str], *, chat_template: str | None = None) -> None:
        name = os.fsencode(path)
        if b"\0" in name:
            raise ModelLoadError("a file name cannot hold a zero byte")
        template = None if chat_template is None else encode_text(chat_template)
        if template is not None and b"\0" in template:
            raise TemplateError("a chat template cannot hold a zero byte")
        library = load_library()
        self._model = ModelHandle(library, library.handle_of("model_open", name, template))
        self._library = library
        self._pieces: dict[tuple[int, bool], bytes] = {}
        with self._model as handle:
            self.info = VocabularyInfo.from_json(library.json_of("model_info", handle))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Frees the model once calls in other threads have returned. Rendered chats and parsers go on."""
        self._model.close()

    @property
    def n_vocab(self) -> int:
        return self.info.n_vocab

    def tokenize(self, text: str | bytes, *, add_special: bool = False, parse_special: bool = False) -> list[int]:
        """The ids of a text, as llama_tokenize gives them. `add_special`: with BOS and EOS where the model wants them;
        `parse_special`: spellings of control tokens become those tokens."""
        data = encode_text(text) if isinstance(text, str) else text
        with self._model as handle:
            ids = self._library.ids_of("tokenize", handle, data, len(data), int(add_special), int(parse_special))
        return list(ids)

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The bytes of one token, perhaps a part of a UTF-8 sequence. Control tokens are empty unless `special`. Raises
        BadRequestError for what is no token."""
        known = self._pieces.get((token, special))
        if known is None:
            with self._model as handle:
                known = self._library.bytes_of("piece", handle, c_id(token), int(special))
            self._pieces[token, special] = known
        return known

    def prompt_piece(self, token: int) -> bytes:
        """The bytes of one id of a rendered prompt; one that stands for an image has as many as its marker there."""
        return IMAGE_PIECE if token >= self.n_vocab else self.piece(token, special=True)

    def detokenize(
        self, tokens: Sequence[int], *, remove_special: bool = False, unparse_special: bool = False
    ) -> bytes:
        """The bytes of a list of tokens. `unparse_special`: control tokens as their spelling."""
        ids = c_ids(tokens)
        with self._model as handle:
            return self._library.bytes_of(
                "detokenize", handle, ids, len(ids), int(remove_special), int(unparse_special)
            )

    def detokenizer(self, *, special: bool = False) -> Detokenizer:
        """A new incremental detokeniser."""
        return Detokenizer(partial(self.piece, special=special))

    @cached_property
    def token_kinds(self) -> tuple[TokenKind, ...]:
        """The kind of every token."""
        with self._model as handle:
            return tuple(token_kind(bits & 0xFFFFFFFF) for bits in self._library.ids_of("attributes", handle))

    @cached_property
    def template(self) -> TemplateInfo:
        """Raises TemplateError if the template cannot be used."""
        with self._model as handle:
            values = self._library.json_of("template_info", handle)
        return TemplateInfo(values["source"], values["capabilities"], values["supports_thinking"])

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] = "auto",
        parallel_tool_calls: bool = True,
        json_schema: Mapping[str, Any] | None = None,
        grammar: str | None = None,
        enable_thinking: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool | Literal["content", "reasoning_content"] = False,
        reasoning_format: Literal["auto", "none", "deepseek", "deepseek-legacy"] = "auto",
        has_images: bool = False,
        cache_salt: str = "",
    ) -> RenderedChat:
        """Renders the model's chat template (request_json documents the arguments). Raises BadRequestError,
        TemplateError, SchemaError."""
        known = list(_known(messages))
        request, texts = request_json(
            messages[len(known) :],
            tools=tools,
            tool_choice=tool_choice,
            parallel_tool_calls=parallel_tool_calls,
            json_schema=json_schema,
            grammar=grammar,
            enable_thinking=enable_thinking,
            chat_template_kwargs=chat_template_kwargs,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            reasoning_format=reasoning_format,
            has_images=has_images,
            cache_salt=cache_salt,
        )
        return self.render_json(request, texts, [message.handle for message in known])

    def render_json(self, request: bytes, texts: bytes = b"", first: Sequence[MessageHandle] = ()) -> RenderedChat:
        """The same for a request that is JSON already, and texts beside it (luce_text.h describes them). `first`:
        messages that come before those of the request."""
        with self._model as handle:
            chat, values = self._library.render(handle, first, request, texts)
        rendered = ChatHandle(self._library, chat)
        with rendered as handle:
            prompt, tokens, marks = self._library.rendered(handle)
        return RenderedChat.from_json(values, prompt, tokens, marks, rendered)


def _known(messages: Sequence[Mapping[str, Any]]) -> Iterator[ChatMessage]:
    """Those that may have been read before, up to the first that is none."""
    for message in messages:
        if not isinstance(message, ChatMessage):
            return
        yield message
