"""What a request wants vectors of: texts, lists of token ids, or llama-server's objects, as one list of inputs.

Must not know what becomes of them.
"""

from __future__ import annotations

from array import array
from typing import Any, Protocol

from luce.supervisor.embedding.model import packed
from luce.supervisor.http.errors import ApiError
from luce.supervisor.http.openai_shared.fields import refusal

MAX_INPUTS = 2048  # OpenAI's
_WHAT = "expected a string, an array of strings, an array of token ids, or an array of arrays of token ids"


class Tokenizer(Protocol):
    @property
    def n_vocab(self) -> int: ...

    def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = False) -> list[int]: ...


def read_inputs(value: Any, param: str, text: Tokenizer) -> list[array[int]]:
    """The ids of each. Raises ApiError, and TextError where one cannot be tokenised."""
    inputs = value if are_several(value) else [value]
    if not inputs:
        raise refusal(param, f"Invalid '{param}': it cannot be an empty array.", "empty_array")
    if len(inputs) > MAX_INPUTS:
        raise too_many(param, len(inputs))
    places = [param] if inputs is not value else [f"{param}[{number}]" for number in range(len(inputs))]
    return [_ids(item, place, param, text) for item, place in zip(inputs, places, strict=True)]


def too_many(param: str, n: int) -> ApiError:
    told = f"Invalid '{param}': array too long. Expected at most {MAX_INPUTS} items, but got {n} instead."
    return refusal(param, told, "array_above_max_length")


def are_several(value: Any) -> bool:
    """A list of texts, of lists or of objects; else one input: with llama-server also texts and ids mixed."""
    if not isinstance(value, list):
        return False
    return all(isinstance(item, str) for item in value) or any(isinstance(item, (list, dict)) for item in value)


def _ids(value: Any, place: str, param: str, text: Tokenizer) -> array[int]:
    if isinstance(value, dict):
        value = _text_of(value, place, param)
    if isinstance(value, str):
        ids = text.tokenize(value, add_special=True, parse_special=True)
    elif isinstance(value, list):
        ids = _mixed(value, place, param, text)
    else:
        raise refusal(param, f"Invalid type for '{place}': {_WHAT}.", "invalid_type")
    if not ids:
        raise refusal(param, f"Invalid '{place}': it is empty, so that there is nothing to read.", "empty_input")
    return packed(ids)


def _mixed(items: list[Any], place: str, param: str, text: Tokenizer) -> list[int]:
    if not items:
        raise refusal(param, f"Invalid '{place}': a list of token ids cannot be empty.", "empty_array")
    ids: list[int] = []
    for number, item in enumerate(items):
        if isinstance(item, str):
            ids += text.tokenize(item, add_special=number == 0, parse_special=True)
        elif isinstance(item, bool) or not isinstance(item, int):
            raise refusal(param, f"Invalid type for '{place}[{number}]': {_WHAT}.", "invalid_type")
        elif not 0 <= item < text.n_vocab:
            told = f"Invalid '{place}[{number}]': token {item} is not from 0 to {text.n_vocab - 1}."
            raise refusal(param, told, "token_out_of_range")
        else:
            ids.append(item)
    return ids


def _text_of(value: dict[str, Any], place: str, param: str) -> str:
    """Of `{"prompt_string": …}` or `{"content": [{"type": "text", "text": …}]}`."""
    prompt = value.get("prompt_string")
    if isinstance(prompt, str) and not value.get("multimodal_data"):
        return prompt
    content = value.get("content")
    if isinstance(content, list) and content:
        texts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
        if len(texts) == len(content) and all(isinstance(part, str) for part in texts):
            return "".join(map(str, texts))
    told = f"Invalid '{place}': an object has a 'prompt_string', or 'content' with parts of type 'text' only."
    raise refusal(param, told, "unsupported_content")
