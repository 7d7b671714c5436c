"""Prompts that ask for seven kinds of answers, made of this repository's own files, as a model's chat template renders
them; for a model without a template as a plain text to continue. It must not know an engine or a clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from luce.supervisor.text import TextModel
from scripts.bench.harness import ROOT

KINDS = ("edit a file", "repeat a function", "chat", "summary", "tool calls", "JSON", "translation")
COPYING = ("edit a file", "repeat a function")
"""Most of the answer stands in the prompt."""

Message = Mapping[str, Any]


@dataclass(frozen=True)
class Question:
    kind: str
    messages: tuple[Message, ...]
    tools: tuple[Message, ...] = ()
    opening: str = ""
    """How an answer begins, for a model that only continues texts."""


@dataclass(frozen=True)
class Prompt:
    name: str
    """Kind and number."""
    kind: str
    ids: tuple[int, ...]


def load_prompts(model: Path, n_each: int) -> list[Prompt]:
    """The first n_each (at most two) of each kind."""
    with TextModel(model) as text_model:
        return [
            Prompt(f"{kind} {number}", kind, render(text_model, question))
            for kind in KINDS
            for number, question in enumerate(questions(kind)[:n_each], 1)
        ]


def render(model: TextModel, question: Question) -> tuple[int, ...]:
    if not model.info.has_template:
        return tuple(model.tokenize(as_text(question), add_special=True))
    chat = model.render(question.messages, tools=question.tools or None)
    chat.close()
    return tuple(chat.tokens)


def as_text(question: Question) -> str:
    """The same as a document whose next part is the answer."""
    parts = [str(message.get("content") or message.get("tool_calls")) for message in question.messages]
    if question.tools:
        parts.insert(0, f"Tools: {question.tools}")
    return "\n\n".join([*parts, f"Answer:\n\n{question.opening}"])


def questions(kind: str) -> list[Question]:
    makers = {
        "edit a file": _edits, "repeat a function": _repeats, "chat": _chats, "summary": _summaries,
        "tool calls": _tool_calls, "JSON": _json, "translation": _translations,
    }  # fmt: skip
    return makers[kind]()


def _ask(kind: str, text: str, opening: str = "") -> Question:
    return Question(kind, ({"role": "user", "content": text},), (), opening)


def _read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def _section(path: str, heading: str) -> str:
    """What stands below a heading, up to the next one."""
    return _read(path).split(f"\n{heading}\n", 1)[1].split("\n## ", 1)[0].strip()


def _edits() -> list[Question]:
    renames = [
        ("supervisor/engine/token_records.py", "`_rest` to `_left_over`"),
        ("supervisor/cli/time_limit.py", "`seconds` to `limit_s`"),
    ]
    return [
        _ask(
            "edit a file",
            f"Rename {rename} in this file, change nothing else, and answer with the whole file:\n"
            f"```python\n{_read(path)}```",
            "```python\n",
        )
        for path, rename in renames
    ]


def _repeats() -> list[Question]:
    functions = [
        ("python", "scripts/bench/replay/dialects.py", "prompt_of"),
        ("cpp", "native/speculation/ngram/answer_memory.cpp", "AnswerMemory::add"),
    ]
    return [
        _ask(
            "repeat a function",
            f"```{language}\n{_read(path)}```\nRepeat the function `{name}` of this file exactly as it is.",
            f"```{language}\n",
        )
        for language, path, name in functions
    ]


def _chats() -> list[Question]:
    return [
        _ask("chat", "What is the difference between a process and a thread? When would I use which?"),
        _ask("chat", "Tell me how a bicycle stays upright while it is moving."),
    ]


def _summaries() -> list[Question]:
    texts = [
        _section("docs/memory.md", "## Pages and checkpoints"),
        _section("docs/speculation.md", "## Sources of drafts"),
    ]
    return [_ask("summary", f"{text}\n\nSummarise this text in five sentences.") for text in texts]


def _json() -> list[Question]:
    tables = [_section("README.md", "## Figures"), _section("docs/GLOSSARY.md", "## Speculation")]
    ask = "Write the rows of this table as a JSON array of objects with the keys"
    return [
        _ask("JSON", f"{table}\n\n{ask} {keys}.", "```json\n[")
        for table, keys in zip(tables, ['"what", "figure", "against"', '"term", "meaning"'], strict=True)
    ]


def _translations() -> list[Question]:
    text = _section("README.md", "## Install")
    steps = _section("docs/speculation.md", "## Models with recurrent state")
    return [
        _ask("translation", f"Translate into {to}:\n\n{part}") for to, part in (("German", text), ("French", steps))
    ]


def _tool(name: str, about: str, *arguments: str) -> Message:
    properties = {argument: {"type": "string"} for argument in arguments}
    schema = {"type": "object", "properties": properties, "required": list(arguments)}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": schema}}


def _called(number: int, name: str, arguments: str, result: str) -> tuple[Message, Message]:
    call = {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
    return (
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"call_{number}", "content": result},
    )


def _tool_calls() -> list[Question]:
    tools = (
        _tool("list_files", "List the files of a folder", "folder"),
        _tool("read_file", "Read a text file", "path"),
        _tool("replace_text", "Replace a text in a file by another one", "path", "old", "new"),
    )
    path = "supervisor/models/cache_folder.py"
    user = {"role": "user", "content": f"Read {path}, then rename the constant _NAME in it to _FOLDER_NAME."}
    first = _called(1, "list_files", '{"folder": "supervisor/models"}', "__init__.py\ncache_folder.py\n")
    second = _called(2, "read_file", f'{{"path": "{path}"}}', _read(path))
    histories: Sequence[tuple[Message, ...]] = ((user, *first), (user, *first, *second))
    return [Question("tool calls", messages, tools) for messages in histories]
