"""The native library luce_text (native/llama/text/luce_text.h): where it is, and its functions for ctypes.

The only module that knows C types: results come out as bytes, ids and parsed JSON, errors as exceptions, and all memory
is handed back. Functions may be called from any thread; ctypes lets other threads run meanwhile.
"""

from __future__ import annotations

import ctypes
import json
import os
import threading
from array import array
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from luce.supervisor.engine.locate import NotInstalledError, find_text_library
from luce.supervisor.text.errors import (
    BadRequestError,
    ClosedError,
    ModelLoadError,
    NoVocabularyError,
    SchemaError,
    TemplateError,
    TextError,
)

LIBRARY_VARIABLE = "LUCE_TEXT_LIBRARY"
ABI_VERSION = 9

_ERRORS: dict[int, type[TextError]] = {
    1: BadRequestError,
    2: ModelLoadError,
    3: NoVocabularyError,
    4: TemplateError,
    5: SchemaError,
    6: TextError,
}

_decode_json = json.JSONDecoder().raw_decode  # json.loads also looks for what never stands around it here

_HANDLE = ctypes.c_void_p
_OUT = ctypes.POINTER(ctypes.c_void_p)
_OUT_SIZE = ctypes.POINTER(ctypes.c_size_t)
_OUT_COUNT = ctypes.POINTER(ctypes.c_uint64)
_SIZE = ctypes.c_size_t
_TEXT = ctypes.c_char_p

# Each returns a status and takes the place for an error message as its last argument.
_CALLS: dict[str, list[Any]] = {
    "model_open": [_TEXT, _TEXT, _OUT],
    "model_info": [_HANDLE, _OUT],
    "template_info": [_HANDLE, _OUT],
    "attributes": [_HANDLE, _OUT, _OUT_SIZE],
    "tokenize": [_HANDLE, _TEXT, _SIZE, ctypes.c_int, ctypes.c_int, _OUT, _OUT_SIZE],
    "piece": [_HANDLE, ctypes.c_int32, ctypes.c_int, _OUT, _OUT_SIZE],
    "detokenize": [_HANDLE, ctypes.POINTER(ctypes.c_int32), _SIZE, ctypes.c_int, ctypes.c_int, _OUT, _OUT_SIZE],
    "message_open": [_TEXT, _SIZE, _OUT],
    "render": [_HANDLE, _HANDLE, _SIZE, _TEXT, _SIZE, _TEXT, _SIZE, _OUT, _OUT],
    "chat_prompt": [_HANDLE, _OUT, _OUT_SIZE],
    "chat_tokens": [_HANDLE, _OUT, _OUT_SIZE],
    "chat_marks": [_HANDLE, _OUT, _OUT_SIZE],
    "schema_to_grammar": [_TEXT, _SIZE, _OUT],
    "parser_open": [_HANDLE, ctypes.c_int, _OUT],
    "parser_feed_token": [_HANDLE, ctypes.c_int32, _OUT],
    "parser_feed_tokens": [_HANDLE, ctypes.POINTER(ctypes.c_int32), _SIZE, _OUT],
    "parser_feed_text": [_HANDLE, _TEXT, _SIZE, _OUT],
    "parser_message": [_HANDLE, _OUT],
    "parser_finish": [_HANDLE, ctypes.c_int, _OUT],
    "parser_work": [_HANDLE, _OUT_COUNT, _OUT_COUNT],
}
_CLOSERS = ("model_close", "message_close", "chat_close", "parser_close", "free")


class Library:
    """luce_text, loaded."""

    def __init__(self, path: Path) -> None:
        try:
            self._library = ctypes.CDLL(str(path))
            self._library.luce_text_abi_version.restype = ctypes.c_int32
            version = self._library.luce_text_abi_version()
        except (OSError, AttributeError) as error:
            raise NotInstalledError(f"{path} cannot be loaded as luce_text: {error}") from error
        if version != ABI_VERSION:
            raise NotInstalledError(
                f"{path} is luce_text {version}, but {ABI_VERSION} is needed: install them together"
            )
        self._calls: dict[str, Any] = {}
        for name, arguments in _CALLS.items():
            self._calls[name] = function = self._function(name)
            function.argtypes = [*arguments, _OUT]
            function.restype = ctypes.c_int
        for name in _CLOSERS:
            self._calls[name] = function = self._function(name)
            function.argtypes = [_HANDLE]
            function.restype = None

    def _function(self, name: str) -> Any:
        # Not by index: that makes a new function each time, without the types.
        return getattr(self._library, f"luce_text_{name}")

    def call(self, name: str, *arguments: Any) -> None:
        """One call; a failed one raises the exception that its status stands for."""
        message = ctypes.c_void_p()
        status = self._calls[name](*arguments, ctypes.byref(message))
        if status != 0:
            self._raise(status, message)

    def _raise(self, status: int, message: ctypes.c_void_p) -> NoReturn:
        text = self._take(message).decode(errors="replace")
        raise _ERRORS.get(status, TextError)(text)

    def close(self, name: str, handle: int) -> None:
        self._function(f"{name}_close")(handle)

    def handle_of(self, name: str, *arguments: Any) -> int:
        """A call whose one result is a handle."""
        out = ctypes.c_void_p()
        self.call(name, *arguments, ctypes.byref(out))
        assert out.value is not None
        return out.value

    def json_of(self, name: str, *arguments: Any) -> Any:
        """A call whose one result is JSON."""
        value, _ = _decode_json(self.text_of(name, *arguments).decode())
        return value

    def text_of(self, name: str, *arguments: Any) -> bytes:
        """A call whose one result is a text. Each token of an answer makes one."""
        out, message = ctypes.c_void_p(), ctypes.c_void_p()
        status = self._calls[name](*arguments, ctypes.byref(out), ctypes.byref(message))
        if status != 0:
            self._raise(status, message)
        text = ctypes.string_at(out)
        self._calls["free"](out)
        return text

    def bytes_of(self, name: str, *arguments: Any) -> bytes:
        """A call whose one result is a string of any bytes."""
        out, size = ctypes.c_void_p(), ctypes.c_size_t()
        self.call(name, *arguments, ctypes.byref(out), ctypes.byref(size))
        try:
            return ctypes.string_at(out, size.value)
        finally:
            self._library.luce_text_free(out)

    def ids_of(self, name: str, *arguments: Any) -> array[int]:
        """A call whose one result is a list of 32-bit numbers (ids; attribute bits fit as well)."""
        return self._numbers_of("i", name, *arguments)

    def _numbers_of(self, typecode: str, name: str, *arguments: Any) -> array[int]:
        out, size = ctypes.c_void_p(), ctypes.c_size_t()
        self.call(name, *arguments, ctypes.byref(out), ctypes.byref(size))
        try:
            return array(typecode, ctypes.string_at(out, size.value * array(typecode).itemsize))
        finally:
            self._library.luce_text_free(out)

    def rendered(self, chat: int) -> tuple[bytes, array[int], array[int]]:
        """The prompt, its ids, and its marks' numbers."""
        out, size = ctypes.c_void_p(), ctypes.c_size_t()
        self.call("chat_prompt", chat, ctypes.byref(out), ctypes.byref(size))
        prompt = ctypes.string_at(out, size.value)
        self.call("chat_tokens", chat, ctypes.byref(out), ctypes.byref(size))
        ids = array("i", ctypes.string_at(out, size.value * 4))
        return prompt, ids, self._numbers_of("q", "chat_marks", chat)

    def render(self, model: int, messages: Sequence[MessageHandle], request: bytes, texts: bytes) -> tuple[int, Any]:
        """`messages`: which come before the request's."""
        chat, rendered = ctypes.c_void_p(), ctypes.c_void_p()
        first = array("Q", [message.handle for message in messages])
        data = (first.buffer_info()[0], len(first), request, len(request), texts, len(texts))
        self.call("render", model, *data, ctypes.byref(chat), ctypes.byref(rendered))
        assert chat.value is not None
        return chat.value, json.loads(self._take(rendered))

    def work(self, parser: int) -> tuple[int, int]:
        fed, parsed = ctypes.c_uint64(), ctypes.c_uint64()
        self.call("parser_work", parser, ctypes.byref(fed), ctypes.byref(parsed))
        return fed.value, parsed.value

    def _take(self, memory: ctypes.c_void_p) -> bytes:
        if memory.value is None:
            return b""
        try:
            return ctypes.string_at(memory)
        finally:
            self._library.luce_text_free(memory)


@cache
def _load(path: Path) -> Library:
    return Library(path)


def load_library() -> Library:
    """The library that LUCE_TEXT_LIBRARY names, else the installed one; loaded once a process."""
    override = os.environ.get(LIBRARY_VARIABLE, "")
    return _load(Path(override) if override != "" else find_text_library())


def c_ids(ids: Sequence[int]) -> ctypes.Array[ctypes.c_int32]:
    """Token ids for a call."""
    for token in ids:
        if not -(2**31) <= token < 2**31:
            raise BadRequestError(f"token id {token} is no 32-bit number")
    return (ctypes.c_int32 * len(ids))(*ids)


def encode_text(text: str) -> bytes:
    """UTF-8 for a call. Half a surrogate pair is no text."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise BadRequestError(f"the text is not Unicode: {error}") from error


def c_id(token: int) -> int:
    if not -(2**31) <= token < 2**31:
        raise BadRequestError(f"token id {token} is no 32-bit number")
    return token


class MessageHandle:
    """A message that the library has read, for as long as somebody has it."""

    __slots__ = ("_library", "handle")

    def __init__(self, library: Library, encoded: bytes) -> None:
        self.handle = library.handle_of("message_open", encoded, len(encoded))
        self._library = library

    def __del__(self) -> None:
        # Only after a constructor that failed half-way is there nothing to close.
        if hasattr(self, "_library"):
            self._library.close("message", self.handle)


class NativeHandle:
    """A handle of the library: closed once, kept open while a call in another thread uses it."""

    kind: ClassVar[str]

    def __init__(self, library: Library, handle: int) -> None:
        self.library = library
        self._handle: int | None = handle
        self._n_users = 0
        self._is_closed = False
        self._lock = threading.Lock()

    def __enter__(self) -> int:
        with self._lock:
            if self._is_closed or self._handle is None:
                raise ClosedError(f"the {self.kind} is closed")
            self._n_users += 1
            return self._handle

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._n_users -= 1
            self._free_if_unused()

    def close(self) -> None:
        """Further use raises ClosedError; what runs in other threads ends in order. Closing twice is fine."""
        with self._lock:
            self._is_closed = True
            self._free_if_unused()

    def _free_if_unused(self) -> None:
        if self._is_closed and self._n_users == 0 and self._handle is not None:
            self.library.close(self.kind, self._handle)
            self._handle = None

    def __del__(self) -> None:
        # Only after a constructor that failed half-way is there nothing to close.
        if hasattr(self, "_lock"):
            self.close()


class ModelHandle(NativeHandle):
    kind = "model"


class ChatHandle(NativeHandle):
    kind = "chat"


class ParserHandle(NativeHandle):
    kind = "parser"
