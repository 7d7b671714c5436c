"""A vocabulary as GGUF's metadata has it, from a Hugging Face folder's tokenizer.json or from another GGUF file.

Of a folder only byte-level BPE is read, which most models have; a drafter needs the ids and never splits a text, so a
way of splitting that is not known here costs it nothing. Knows nothing of drafters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf.constants import GGUFValueType, TokenType

from luce.supervisor.conversion.reading import (
    DOWNLOAD_AGAIN,
    ConversionError,
    Fields,
    open_regular,
    read_json_file,
    shown,
)
from luce.supervisor.models.gguf_header import GgufEntry, GgufError, read_gguf_entries

TOKENIZER_NAME = "tokenizer.json"
TOKENS = "tokenizer.ggml.tokens"
MASK = "tokenizer.ggml.mask_token_id"

_CONFIG_NAME = "tokenizer_config.json"
_TEMPLATE_NAME = "chat_template.jinja"
_MAX_TOKENIZER_BYTES = 64 << 20
_MAX_SIDE_BYTES = 8 << 20
_MAX_TOKENS = 1 << 22
_NAME_GGUF = "name the target's GGUF file with --target"
_NOT_NEEDED = f"{DOWNLOAD_AGAIN}, or remove the file: the vocabulary comes from the target"

# The expressions by which texts are split, as tokenizer.json has them, and llama.cpp's names for them.
_SPLITTERS = {
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+": (
        "qwen2"
    ),
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+": "qwen35",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)"
    r"|\s+": "llama-bpe",
}
_SPECIAL = (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("sep", "seperator"), ("pad", "padding"))

_STRING, _ARRAY = GGUFValueType.STRING, GGUFValueType.ARRAY

Entries = dict[str, GgufEntry]


@dataclass(frozen=True, slots=True)
class Difference:
    """A token that has one text in a folder's vocabulary and another in that of `Entries`."""

    token: int
    text: str
    other: str


def entries_of_gguf(path: Path) -> Entries:
    """All that the file says of its vocabulary, as it stands there, less its mask token. Raises ConversionError."""
    try:
        entries = read_gguf_entries(path, "tokenizer.")
    except GgufError as error:
        raise ConversionError(path, "", str(error).removeprefix(f"{path}: "), "name another target") from error
    tokens = entries.get(TOKENS)
    if tokens is None or tokens.element is not _STRING or not tokens.value:
        raise ConversionError(path, TOKENS, "the target has no vocabulary", "name a target with one")
    return {key: entry for key, entry in entries.items() if key != MASK and entry.value != ()}


def n_tokens(entries: Entries) -> int:
    value = entries[TOKENS].value
    assert isinstance(value, tuple)
    return len(value)


def entries_of_folder(folder: Path, n_vocab: int) -> Entries:
    """Raises ConversionError. Ids up to `n_vocab` that the tokenizer does not name become unused tokens."""
    path = folder / TOKENIZER_NAME
    whole = Fields(path, read_json_file(path, _MAX_TOKENIZER_BYTES, _NAME_GGUF))
    model = whole.section("model")
    if not _is_byte_level(whole):
        raise whole.refusal("model", "only byte-level BPE is read from a folder", _NAME_GGUF)
    vocabulary = model.section("vocab")
    texts, types = _tokens(vocabulary, _added(whole, _NAME_GGUF), n_vocab)
    entries = {
        "tokenizer.ggml.model": GgufEntry(_STRING, None, b"gpt2"),
        "tokenizer.ggml.pre": GgufEntry(_STRING, None, _splitter(whole).encode()),
        TOKENS: GgufEntry(_ARRAY, _STRING, tuple(text.encode() for text in texts)),
        "tokenizer.ggml.token_type": GgufEntry(_ARRAY, GGUFValueType.INT32, tuple(int(kind) for kind in types)),
    }
    merges = _merges(model)
    if merges:
        entries["tokenizer.ggml.merges"] = GgufEntry(_ARRAY, _STRING, tuple(merges))
    entries |= _side_entries(folder, {text: token for token, text in enumerate(texts)})
    return entries


def first_difference(folder: Path, entries: Entries) -> Difference | None:
    """The lowest token whose text in the folder's tokenizer.json is not that in `entries`; None also where they cannot
    be compared. Raises ConversionError.

    Only what surely stands in both as it is counts: byte-level BPE, which converters to GGUF copy letter by letter, and
    of it the tokens that both have and call normal. Special and added tokens are rewritten by some converters and
    renamed by those who train models, and what fills a table up has texts of its own. Vocabularies of other kinds
    (SentencePiece, WordPiece) are spelt differently in the two formats and are not compared.
    """
    model = entries.get("tokenizer.ggml.model")
    path = folder / TOKENIZER_NAME
    if model is None or model.value != b"gpt2" or not path.exists():
        return None
    tokens, types = _values(entries, TOKENS), _values(entries, "tokenizer.ggml.token_type")
    for token, text in sorted(_normal_texts(path).items()):
        if token >= len(tokens) or (token < len(types) and types[token] != TokenType.NORMAL):
            continue
        other = tokens[token]
        # A lone surrogate is no Unicode, and so in no vocabulary of a GGUF file's.
        if isinstance(other, bytes) and text.encode(errors="surrogatepass") != other:
            return Difference(token, text, other.decode(errors="replace"))
    return None


def _values(entries: Entries, key: str) -> tuple[bool | int | float | bytes, ...]:
    entry = entries.get(key)
    return entry.value if entry is not None and isinstance(entry.value, tuple) else ()


def _normal_texts(path: Path) -> dict[int, str]:
    """By token; empty where the file holds no byte-level BPE."""
    whole = Fields(path, read_json_file(path, _MAX_TOKENIZER_BYTES, _NOT_NEEDED))
    if not _is_byte_level(whole):
        return {}
    vocabulary = whole.section("model").section("vocab")
    added = _added(whole, _NOT_NEEDED)
    texts: dict[int, str] = {}
    for text in vocabulary.values:
        token = vocabulary.count(text, 0, _MAX_TOKENS)
        if token not in added and texts.setdefault(token, text) != text:
            raise vocabulary.refusal(shown(text)[1:-1], f"token {token} is also {shown(texts[token])}", _NOT_NEEDED)
    return texts


def _is_byte_level(whole: Fields) -> bool:
    is_bpe = whole.section("model").optional("type", str) == "BPE"
    return is_bpe and any(part.get("type") == "ByteLevel" for part in _splitting_parts(whole))


def _added(whole: Fields, advice: str) -> dict[int, tuple[str, bool]]:
    """Id -> text, is it special."""
    added: dict[int, tuple[str, bool]] = {}
    for entry in whole.optional("added_tokens", list) or ():
        if not isinstance(entry, dict):
            raise whole.refusal("added_tokens", f"{shown(entry)} stands in it, objects were expected", advice)
        fields = Fields(whole.path, entry, "added_tokens.")
        text = fields.optional("content", str)
        if text is None:
            raise fields.refusal("content", "it is missing", advice)
        added[fields.count("id", 0, _MAX_TOKENS)] = (text, fields.optional("special", bool) is True)
    return added


def _tokens(vocabulary: Fields, added: dict[int, tuple[str, bool]], n_vocab: int) -> tuple[list[str], list[TokenType]]:
    if n_vocab > _MAX_TOKENS:
        raise vocabulary.refusal("", f"{n_vocab} tokens are more than any vocabulary has", _NAME_GGUF)
    texts: list[str | None] = [None] * n_vocab
    types = [TokenType.UNUSED] * n_vocab
    for text in vocabulary.values:
        token = vocabulary.count(text, 0, _MAX_TOKENS)
        _put(vocabulary, texts, token, text)
        types[token] = TokenType.NORMAL
    for token, (text, special) in added.items():
        _put(vocabulary, texts, token, text)
        types[token] = TokenType.CONTROL if special or _looks_special(text) else TokenType.USER_DEFINED
    return [f"[PAD{token}]" if text is None else text for token, text in enumerate(texts)], types


def _put(vocabulary: Fields, texts: list[str | None], token: int, text: str) -> None:
    if token >= len(texts):
        problem = f"token {token} is beyond the drafter's vocabulary of {len(texts)}"
        raise vocabulary.refusal(shown(text)[1:-1], problem, "name its own target")
    if texts[token] is not None and texts[token] != text:
        raise vocabulary.refusal(shown(text)[1:-1], f"token {token} is also {shown(texts[token])}", _NAME_GGUF)
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise vocabulary.refusal(shown(text)[1:-1], "its text is no Unicode", _NAME_GGUF)
    texts[token] = text


def _looks_special(text: str) -> bool:
    return (text.startswith("<|") and text.endswith("|>")) or text in ("<pad>", "<mask>")


def _splitting_parts(whole: Fields) -> list[dict[str, Any]]:
    """The pre-tokeniser, and those that it is made of."""
    part = whole.values.get("pre_tokenizer")
    inner = part.get("pretokenizers") if isinstance(part, dict) else None
    return [entry for entry in (part, *(inner if isinstance(inner, list) else ())) if isinstance(entry, dict)]


def _splitter(whole: Fields) -> str:
    for part in _splitting_parts(whole):
        pattern = part.get("pattern")
        expression = pattern.get("Regex") if isinstance(pattern, dict) else None
        if isinstance(expression, str) and expression in _SPLITTERS:
            return _SPLITTERS[expression]
    return "default"


def _merges(model: Fields) -> list[bytes]:
    merges = []
    for entry in model.optional("merges", list) or ():
        is_pair = isinstance(entry, list) and len(entry) == 2 and all(isinstance(part, str) for part in entry)
        text = " ".join(entry) if is_pair else entry
        if not isinstance(text, str):
            raise model.refusal("merges", f"{shown(entry)} stands in it, pairs were expected", _NAME_GGUF)
        try:
            merges.append(text.encode())
        except UnicodeEncodeError:
            raise model.refusal("merges", f"{shown(text)} is no Unicode", _NAME_GGUF) from None
    return merges


def _side_entries(folder: Path, ids: Mapping[str, int]) -> Entries:
    """What tokenizer_config.json and the chat template add, where the folder has them."""
    path = folder / _CONFIG_NAME
    fields = Fields(path, read_json_file(path, _MAX_SIDE_BYTES, _NAME_GGUF) if path.exists() else {})
    entries: Entries = {}
    for name, gguf_name in _SPECIAL:
        value = fields.values.get(f"{name}_token")
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str) and text in ids:
            entries[f"tokenizer.ggml.{gguf_name}_token_id"] = GgufEntry(GGUFValueType.UINT32, None, ids[text])
    for name in ("bos", "eos"):
        flag = fields.optional(f"add_{name}_token", bool)
        if flag is not None:
            entries[f"tokenizer.ggml.add_{name}_token"] = GgufEntry(GGUFValueType.BOOL, None, flag)
    template = _template(folder, fields)
    if template:
        entries["tokenizer.chat_template"] = GgufEntry(_STRING, None, template)
    return entries


def _template(folder: Path, fields: Fields) -> bytes | None:
    path = folder / _TEMPLATE_NAME
    if path.exists():
        with open_regular(path) as (file, _):
            return file.read(_MAX_SIDE_BYTES)
    value = fields.values.get("chat_template")
    return value.encode(errors="replace") if isinstance(value, str) else None
