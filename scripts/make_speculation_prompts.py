#!/usr/bin/env python3
"""Write the prompt sets under tests/data/speculation: what speculation is measured and tested with.

Five sets of 32 conversations in the packaged model's range: copying code, editing it, writing it, chat and prose, and
tool calls with recall. Everything is made up here from templates and a fixed seed: the same files each time. It must
not know a tokenizer or an engine.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "tests" / "data" / "speculation"
N_PROMPTS = 32
SEED = 5

Message = dict[str, Any]
Record = dict[str, Any]

THINGS = ("order", "invoice", "ticket", "parcel", "meter", "sensor", "batch", "ledger", "route", "label", "basket",
          "engine", "packet", "worker", "window", "record")  # fmt: skip
VERBS = ("load", "check", "merge", "split", "count", "price", "close", "pick", "sort", "send", "scale", "trim")
VALUES = ("total", "amount", "size", "weight", "limit", "level", "score", "length", "offset", "rate")
FRESH = ("result", "answer", "outcome", "number", "figure", "extent", "sum_of_all", "reading", "current", "found")
SHORT = ("i", "k", "n", "x", "item", "entry", "value", "part")

# A word in capitals is a name that the seed chooses; NUM is a number.
FUNCTIONS = (
    """\
def VERB_THING(ITEMs, VALUE=NUM):
    for ITEM in ITEMs:
        if ITEM > NUM:
            VALUE += ITEM
    return VALUE
""",
    """\
def VERB_THING(path, encoding='utf-8'):
    VALUE = []
    with open(path, encoding=encoding) as file:
        for line in file:
            line = line.strip()
            if line and not line.startswith('#'):
                VALUE.append(line)
    return VALUE
""",
    """\
def VERB_THING(VALUE, lowest=NUM, highest=NUM2):
    if VALUE < lowest:
        raise ValueError(f'THING: {VALUE} is below {lowest}')
    if VALUE > highest:
        raise ValueError(f'THING: {VALUE} is above {highest}')
    return VALUE
""",
    """\
def VERB_THING(left, right):
    VALUE = []
    i = 0
    j = 0
    while i < len(left) and j < len(right):
        if left[i] <= right[j]:
            VALUE.append(left[i])
            i += 1
        else:
            VALUE.append(right[j])
            j += 1
    VALUE.extend(left[i:])
    VALUE.extend(right[j:])
    return VALUE
""",
    """\
def VERB_THING(words):
    VALUE = {}
    for word in words:
        key = word.lower()
        VALUE[key] = VALUE.get(key, 0) + 1
    return sorted(VALUE.items(), key=lambda pair: pair[1], reverse=True)
""",
    """\
def VERB_THING(ITEMs, needle):
    low = 0
    high = len(ITEMs) - 1
    while low <= high:
        VALUE = (low + high) // 2
        if ITEMs[VALUE] == needle:
            return VALUE
        if ITEMs[VALUE] < needle:
            low = VALUE + 1
        else:
            high = VALUE - 1
    return None
""",
    """\
def VERB_THING(rows, columns, fill=NUM):
    VALUE = []
    for row in range(rows):
        VALUE.append([fill] * columns)
        VALUE[row][row % columns] = NUM2
    return VALUE
""",
    """\
def VERB_THING(text, width=NUM2):
    lines = []
    VALUE = ''
    for word in text.split():
        if len(VALUE) + len(word) + 1 > width:
            lines.append(VALUE)
            VALUE = word
        else:
            VALUE = f'{VALUE} {word}'.strip()
    if VALUE:
        lines.append(VALUE)
    return lines
""",
    """\
def VERB_THING(values):
    if not values:
        return 0.0
    VALUE = sum(values) / len(values)
    spread = sum((ITEM - VALUE) ** 2 for ITEM in values)
    return spread / len(values)
""",
    """\
def VERB_THING(tree, depth=0):
    VALUE = depth
    for ITEM in tree.get('children', []):
        VALUE = max(VALUE, VERB_THING(ITEM, depth + 1))
    return VALUE
""",
    """\
def VERB_THING(settings):
    VALUE = int(settings.get('THING', NUM))
    name = settings.get('name', 'THING')
    if VALUE <= 0:
        print(f'{name} has no VALUE, using NUM')
        VALUE = NUM
    return name, VALUE
""",
    """\
def VERB_THING(a, b):
    while b:
        a, b = b, a % b
    VALUE = abs(a)
    return VALUE if VALUE > NUM else NUM
""",
)

CLASSES = (
    """\
class THINGCLASS:
    def __init__(self, name, limit=NUM):
        self.name = name
        self.limit = limit
        self.ITEMs = []

    def add(self, ITEM):
        if len(self.ITEMs) >= self.limit:
            raise ValueError(f'{self.name} holds {self.limit} ITEMs already')
        self.ITEMs.append(ITEM)
        return len(self.ITEMs)

    def clear(self):
        self.ITEMs = []
""",
    """\
class THINGCLASS:
    def __init__(self, VALUE=NUM):
        self.VALUE = VALUE
        self.history = []

    def VERB(self, change):
        self.history.append(self.VALUE)
        self.VALUE += change
        return self.VALUE

    def undo(self):
        if self.history:
            self.VALUE = self.history.pop()
        return self.VALUE

    def __repr__(self):
        return f'THINGCLASS({self.VALUE})'
""",
    """\
class THINGCLASS:
    def __init__(self):
        self.first = None
        self.last = None
        self.VALUE = 0

    def is_empty(self):
        return self.VALUE == 0

    def push(self, ITEM):
        if self.last is None:
            self.first = ITEM
        self.last = ITEM
        self.VALUE += 1
""",
    """\
class THINGCLASSError(Exception):
    pass


class THINGCLASS:
    def __init__(self, host, port=NUM2):
        self.host = host
        self.port = port
        self.is_open = False

    def open(self):
        if self.is_open:
            raise THINGCLASSError('already open')
        self.is_open = True

    def close(self):
        self.is_open = False
""",
)

# What is to be written: what a function begins with. The model goes on from here.
BEGINNINGS = (
    'def VERB_THING(ITEMs):\n    """Return the VALUE of all ITEMs, or 0 if there are none."""\n',
    'def VERB_THING(path):\n    """Read the THING file and return its lines as a list."""\n',
    'def VERB_THING(VALUE, limit=NUM):\n    """Check that the VALUE is not above the limit.\n\n    Raises ValueError.\n    """\n',  # noqa: E501
    'def VERB_THING(left, right):\n    """Merge two sorted lists of THINGs into one."""\n    merged = []\n',
    'def VERB_THING(text):\n    """Count how often each word of the text comes."""\n    counts = {}\n    for word in',
    'def is_THING(name):\n    """Whether the name is that of a THING."""\n    if not name:\n        return False\n',
    'def VERB_THING(host, port=NUM2):\n    """Open a connection to the THING and send it a greeting."""\n',
    'class THINGCLASS:\n    """A THING with a VALUE."""\n\n    def __init__(self, VALUE):\n        self.VALUE = VALUE\n\n    def VERB(self',  # noqa: E501
    'import os\nimport sys\n\n\ndef VERB_THING(folder):\n    """Return all files below the folder that end with .THING."""\n',  # noqa: E501
    'def test_VERB_THING():\n    """The THING has the right VALUE."""\n    THING = THINGCLASS(NUM)\n    assert THING.',
)

QUESTIONS = (
    "Who are you?", "Hello!", "Thank you!", "What is recursion?", "What is a list in Python?",
    "Explain what a class is in Python.", "Explain what a test is for.", "Count from 1 to 20.",
    "Which is larger, 8 or 3?",
)  # fmt: skip
OPPOSITES = ("hot", "open", "big", "fast", "old", "light")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
COUNTRIES = ("France", "Italy", "Spain", "Japan", "Egypt", "Austria")
# Beginnings of prose that the model is to go on with.
PROSE = (
    "# Introduction\n\nThis package", "# Installation\n\nTo install the THING tools, you",
    "# Usage\n\nThe THING module", "## Changes\n\n- The THING", "The THING is",
    "This document explains how the THING", "A THING can be used to",
    "# Frequently asked questions\n\n## Why does the THING", "The purpose of this library is to",
    "Before you VERB the THING, make sure that", "# License\n\nThis software", "# Contributing\n\nIf you want to VERB",
    "The following table shows the VALUE of each THING.", "Note that the VALUE",
    "# Configuration\n\nThe file THING.ini has", "In the first step the THING is",
)  # fmt: skip

SENTENCES = (
    "The ferry left the harbour before noon.", "Snow lay on the northern slopes.", "The baker opened his shop early.",
    "A lamp burned in the upper window.", "The children counted the wagons.", "Two horses stood by the gate.",
    "The river was high after the storm.", "An old clock struck in the hall.", "The gardener cut the long hedge.",
    "Nobody had read the letter yet.",
)  # fmt: skip
COLOURS = ("green", "blue", "black", "white", "red", "grey", "brown", "silver")
ANIMALS = ("owl", "whale", "cat", "horse", "heron", "badger", "falcon", "otter")
FILES = ("src/app.py", "src/main.py", "README.md", "tests/test_app.py", "config.json", "setup.py", "docs/index.md",
         "src/models/order.py")  # fmt: skip
QUERIES = ("TODO", "def main", "import os", "class Order", "raise ValueError", "timeout", "password", "retry")


def tool(name: str, description: str, argument: str) -> Message:
    parameters = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = (
    tool("read_file", "Read a file", "path"),
    tool("search", "Search the project", "query"),
    tool("run_command", "Run a shell command", "command"),
)


def fill(template: str, rng: random.Random) -> str:
    """The template with names and numbers in place of the words in capitals, each word the same name throughout."""
    thing = rng.choice(THINGS)
    names = {
        "THINGCLASS": thing.capitalize(), "THING": thing, "VERB": rng.choice(VERBS), "VALUE": rng.choice(VALUES),
        "ITEM": rng.choice(SHORT), "NUM2": str(rng.randrange(20, 99)), "NUM": str(rng.randrange(1, 20)),
    }  # fmt: skip
    pattern = "|".join(names)  # the longer of two that begin alike stands first
    return re.sub(pattern, lambda match: names[match[0]], template)


def snippet(rng: random.Random, n_parts: int) -> str:
    """So many functions and classes, no template twice."""
    parts = rng.sample((*FUNCTIONS, *CLASSES), n_parts)
    return "\n\n".join(fill(part, rng) for part in parts)


def fenced(code: str) -> str:
    return f"```python\n{code.rstrip()}\n```"


def user(content: str) -> Message:
    return {"role": "user", "content": content}


def to_continue(question: str, prefix: str) -> list[Message]:
    """An answer that has begun already: the model goes on in the middle of it."""
    return [user(question), {"role": "assistant", "content": prefix}]


def copying(rng: random.Random, number: int) -> Record:
    return {"messages": [user(f"Repeat this code exactly:\n{fenced(snippet(rng, 1 + number % 3))}")]}


def editing(rng: random.Random, number: int) -> Record:
    code = snippet(rng, 1 + number % 2)
    if number % 8 == 7:
        digits = rng.choice(re.findall(r"\b\d+\b", code))
        order = f"Replace {digits} by {int(digits) + 100} in this code:"
    else:
        known = [name for name in (*VALUES, "line", "word", "low", "name", "path") if re.search(rf"\b{name}\b", code)]
        old = rng.choice(known or ["self"])
        order = f"Rename the variable {old} to {rng.choice(FRESH)} in this code:"
    return {"messages": [user(f"{order}\n{fenced(code)}")]}


def writing(rng: random.Random, number: int) -> Record:
    prefix = fill(BEGINNINGS[number % len(BEGINNINGS)], rng)
    question = f"Complete this function:\n{fenced(prefix)}"
    if number % 2:  # the answer's repetition of what was given is left out: all that comes is new
        return {"messages": to_continue("Write this function in Python.", f"```python\n{prefix}")}
    return {"messages": [user(question)]}


def chatting(rng: random.Random, number: int) -> Record:
    if number % 2:
        question = rng.choice(("Write a README for this project.", "Write the next section of the manual."))
        return {"messages": to_continue(question, fill(PROSE[number // 2 % len(PROSE)], rng))}
    i = number // 2
    asked = (
        *QUESTIONS, f"What is the opposite of {rng.choice(OPPOSITES)}?", f"What day comes after {rng.choice(DAYS)}?",
        f"What is the capital of {rng.choice(COUNTRIES)}?", f"What is {rng.randrange(2, 40)} + {rng.randrange(2, 40)}?",
        f"Sum up this text: {' '.join(rng.sample(SENTENCES, 5))}",
        f"Explain in a few sentences what this text is about, and what you think of it: {' '.join(rng.sample(SENTENCES, 7))}",  # noqa: E501
    )  # fmt: skip
    messages = [user(asked[i % len(asked)])]
    if i % 4 == 3:  # a longer conversation
        earlier = {"role": "assistant", "content": "I am Luce Tiny, a small test model."}
        messages = [user("Who are you?"), earlier, *messages]
    return {"messages": messages}


def calling(rng: random.Random, number: int) -> Record:
    if number % 2:
        return {"messages": [user(recall_question(rng))]}
    asked = rng.choice((
        f"Read the file {rng.choice(FILES)}", f"Search for {rng.choice(QUERIES)}", f"Open the file {rng.choice(FILES)}",
    ))  # fmt: skip
    messages = [user(asked)]
    if number % 4 == 2:  # a call with its result lies behind
        path = rng.choice(FILES)
        call = {"name": "read_file", "arguments": json.dumps({"path": path})}
        messages = [
            user(f"Read the file {path}"),
            {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]},
            {"role": "tool", "content": snippet(rng, 1)},
            *messages,
        ]
    return {"messages": messages, "tools": list(TOOLS)}


def recall_question(rng: random.Random) -> str:
    """Codes hidden in a text, and a question for one of them."""
    owners = [
        f"{colour} {animal}" for colour, animal in zip(rng.sample(COLOURS, 3), rng.sample(ANIMALS, 3), strict=True)
    ]
    text = [rng.choice(SENTENCES) for _ in range(rng.randrange(12, 30))]
    for owner in owners:
        text.insert(rng.randrange(len(text)), f"The access code of the {owner} is {rng.randrange(10000, 99999)}.")
    return f"{' '.join(text)}\nWhat is the access code of the {rng.choice(owners)}?"


SETS: dict[str, Callable[[random.Random, int], Record]] = {
    "copy": copying, "edit": editing, "code": writing, "chat": chatting, "tools": calling,
}  # fmt: skip


def make_set(name: str) -> list[Record]:
    rng = random.Random(f"{SEED} {name}")
    records: list[Record] = []
    seen = set[str]()
    while len(records) < N_PROMPTS:
        record = SETS[name](rng, len(records))
        text = json.dumps(record)
        if text not in seen:  # short questions come again
            seen.add(text)
            records.append({"id": f"{name}-{len(records) + 1:02}", **record})
    return records


def main(arguments: Sequence[str]) -> None:
    folder = Path(arguments[0]) if arguments else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for name in SETS:
        lines = [json.dumps(record, ensure_ascii=False) for record in make_set(name)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
