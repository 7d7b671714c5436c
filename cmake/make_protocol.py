"""Writes what is made of protocol/commands.json: make_protocol.py TABLE OUTPUT, where OUTPUT's name says what.

The build makes `command_table.inc`, which native/wire/command_parser.cpp includes once, where the names are declared
that it uses, and `records.h`, the records for C++. Checked in are `records.py`, the records for Python, and the rows of
the sampling in `PROTOCOL.md`: without arguments it writes these two. It must not know what a command does.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

PROTOCOL = Path(__file__).resolve().parents[1] / "protocol"
CHECKED_IN = [PROTOCOL / name for name in ("commands.json", "records.py", "PROTOCOL.md")]

# How a value is read, by its name in the table.
READERS = {
    "count": "parse_count(v)",
    "flag": "parse_flag(v)",
    "grammar": "parse_grammar(v)",
    "images": "parse_images(v)",
    "int32": "parse_int32(v, -kMaxInt32 - 1, kMaxInt32)",
    "logit_bias": "parse_logit_bias(v)",
    "logprobs": "parse_int32(v, 0, kMaxLogprobs)",
    "marks": "parse_marks(v)",
    "not_negative": "parse_real(v, kNotNegative)",
    "path": "parse_path(v)",
    "pins": "parse_pins(v)",
    "positive": "parse_real(v, kPositive)",
    "positive_probability": "parse_real(v, kPositiveProbability)",
    "probability": "parse_real(v, kProbability)",
    "prompt": "parse_prompt(v)",
    "reading": "parse_reading(v)",
    "real": "parse_real(v, kAnyReal)",
    "samplers": "parse_samplers(v)",
    "slots": "parse_slots(v)",
    "snapshots": "parse_snapshots(v)",
    "text": "parse_text(v)",
    "texts": "parse_texts(v)",
    "token_alternatives": "parse_token_alternatives(v)",
    "tokens": "parse_tokens(v)",
    "triggers": "parse_triggers(v)",
    "uint64": "parse_uint64(v)",
    "weights": "parse_weights(v)",
}


# C++'s type, Python's type and PROTOCOL.md's words for a value of a record.
TYPES = {
    "count": ("std::int32_t", "int", ">= 0"),
    "large": ("std::int64_t", "int", ">= 0"),
    "logit_bias": ("std::vector<std::pair<Token, float>>", "tuple[tuple[int, float], ...]", "`<id>:<bias>,…`"),
    "not_negative": ("float", "float", ">= 0"),
    "positive": ("float", "float", "above 0"),
    "positive_probability": ("float", "float", "above 0, at most 1"),
    "probability": ("float", "float", "0 .. 1"),
    "rate": ("double", "float", ">= 0"),
    "real": ("float", "float", "any"),
    "samplers": ("std::vector<SamplerKind>", "tuple[SamplerKind, ...]", "{SamplerKind}, each at most once"),
    "seconds": ("double", "float", ">= 0"),
    "stop": ("StopReason", "StopReason", "{StopReason}"),
    "text": ("std::string", "str", "text"),
    "texts": ("std::vector<std::string>", "tuple[str, ...]", "`<text>,…`"),
    "uint64": ("std::uint64_t", "int", "0 .. 2^64-1"),
}

Row = dict[str, Any]


def field_of(row: Row) -> str:
    return str(row["field"] if "field" in row else row["key"])


def rows_of(verb: Row, table: Row) -> list[Row]:
    """The keys of a verb, with those of a record in its place."""
    records = {record["record"]: record["fields"] for record in table["records"]}
    rows: list[Row] = []
    for row in verb["keys"]:
        inner = records[row["record"]] if "record" in row else []
        rows += [{**one, "field": f"{row['field']}.{field_of(one)}"} for one in inner] or [row]
    return rows


def key_row(command: str, row: Row) -> str:
    value = f"store(c.{field_of(row)}, {READERS[row['value']]})"
    if "or_file" in row:
        value = f"v.starts_with('@') ? store(c.{row['or_file']}, parse_file(v)) : {value}"
    required = str(row.get("required", False)).lower()
    return f'    {{"{row["key"]}", {required}, []({command}& c, std::string_view v) {{ return {value}; }}}},\n'


def array(name: str, item: str, rows: list[str]) -> str:
    return f"template <>\nconstexpr std::array {name} = std::to_array<{item}>({{\n{''.join(rows)}}});\n" if rows else ""


def keys_of(verb: Row, table: Row) -> str:
    command = verb["command"]
    rows = [key_row(command, row) for row in rows_of(verb, table)]
    return array(f"kKeys<{command}>", f"NamedKey<{command}>", rows)


def places_of(verb: Row, verbs: list[Row]) -> str:
    """The numbers that a form by place begins with; each is read as the key of its name."""
    if parser_of(verb) != f"by_place<{verb['command']}>":
        return ""
    (keys,) = (other["keys"] for other in verbs if other["command"] == verb["command"] and "keys" in other)
    counts = {row["key"] for row in keys if row["value"] == "count"}
    rows = [f'    "{place}",\n' for place in verb["places"] if place in counts]
    return array(f"kPlaces<{verb['command']}>", "std::string_view", rows)


def parser_of(verb: Row) -> str:
    """Regular commands have a parser by their form, the others one of their own."""
    name, command = verb["verb"], verb["command"]
    if command in {"Ping", "Quit"}:
        return f"parse_{command.lower()}"
    if "keys" in verb:
        return f"by_first_word<{command}>" if "places" in verb else f"by_name<{command}>"
    return f"parse_{name.lower()}" if command == "Generate" else f"by_place<{command}>"


def verb_row(verb: Row) -> str:
    # In a form by place, a word that begins with id= is a piece of a path, or the word to echo.
    flags = (str(flag).lower() for flag in (verb.get("generates", False), "keys" in verb))
    return f'    {{"{verb["verb"]}", {parser_of(verb)}, {", ".join(flags)}}},\n'


def command_table(table: Row) -> str:
    verbs = table["verbs"]
    keys = "".join([keys_of(verb, table) for verb in verbs if "keys" in verb] + [places_of(v, verbs) for v in verbs])
    return f"{keys}constexpr Verb kVerbs[] = {{\n{''.join(map(verb_row, verbs))}}};\n"


# C++'s records


def cpp_enum(enum: Row) -> str:
    name, values = enum["enum"], enum["values"]
    quoted = ", ".join(f'"{value}"' for value in values)
    return (
        f"// {enum['about']}\nenum class {name} {{ {', '.join(values)} }};\n"
        f"inline constexpr std::string_view k{name}Names[] = {{{quoted}}};\n"
        f"inline std::string_view name_of({name} value) {{ return k{name}Names[static_cast<int>(value)]; }}\n"
    )


def cpp_default(row: Row, enums: dict[str, list[str]]) -> str:
    """Empty: the type's own."""
    kind, default = TYPES[row["value"]][0], row.get("default")
    if isinstance(default, str) and default in enums:
        return ", ".join(f"{default}::{value}" for value in enums[default])
    if isinstance(default, str):
        return f"{kind}::{default}" if kind in enums else json.dumps(default)
    if isinstance(default, list):
        return ", ".join(f"std::string({json.dumps(text)})" for text in default)
    return "" if default is None else f"{float(default)}F" if kind == "float" else str(default)


def cpp_field(row: Row, enums: dict[str, list[str]], *, has_unset: bool) -> str:
    kind = row.get("record") or TYPES[row["value"]][0]
    is_optional = row.get("optional", False) or (has_unset and "default" not in row)
    kind = f"std::optional<{kind}>" if is_optional else kind
    default = "" if "record" in row else cpp_default(row, enums)
    return f"    {kind} {field_of(row)}{{{default}}};  // {row['about']}\n"


def cpp_record(record: Row, enums: dict[str, list[str]]) -> str:
    name, rows = record["record"], record["fields"]
    fields = "".join(cpp_field(row, enums, has_unset=record.get("unset", False)) for row in rows)
    visits = "".join(
        f'    visit(Field{{"{field_of(row)}", "{row.get("key", "")}", "{row.get("value", "")}"}}, r.{field_of(row)});\n'
        for row in rows
    )
    sums = "".join(f"    a.{field_of(row)} += b.{field_of(row)};\n" for row in rows)
    adds = f"inline {name}& operator+=({name}& a, const {name}& b) {{\n{sums}    return a;\n}}\n"
    return (
        f"// {record['about']}\nstruct {name} {{\n{fields}}};\n{adds if 'mixin' in record else ''}"
        f"// Calls visit(Field, value) for each field, in their order.\ntemplate <typename R, typename Visit>\n"
        f"    requires std::same_as<std::remove_const_t<R>, {name}>\n"
        f"void visit_fields(R& r, Visit&& visit) {{\n{visits}}}\n"
    )


def cpp_records(table: Row) -> str:
    enums = {enum["enum"]: enum["values"] for enum in table["enums"]}
    types = [*map(cpp_enum, table["enums"]), *(cpp_record(record, enums) for record in table["records"])]
    return (
        "#pragma once\n\n#include <concepts>\n#include <cstdint>\n#include <optional>\n#include <string>\n"
        "#include <string_view>\n#include <type_traits>\n#include <utility>\n#include <vector>\n\n"
        '#include "base/token.h"\n\nnamespace luce::records {\n\n'
        "// A field's name, its key on the wire, and what kind of value it is there.\n"
        "struct Field {\n    std::string_view name;\n    std::string_view key;\n    std::string_view value;\n};\n\n"
        + "\n".join(types)
        + "\n}  // namespace luce::records\n"
    )


# Python's records, and PROTOCOL.md's rows


def python_enum(enum: Row) -> str:
    values = "".join(f'    {value.upper()} = "{value}"\n' for value in enum["values"])
    return f'class {enum["enum"]}(StrEnum):\n    """{enum["about"]}"""\n\n{values}'


def python_field(row: Row, *, has_unset: bool) -> str:
    kind, default = row.get("record") or TYPES[row["value"]][1], row.get("default", 0)
    if has_unset and default == []:
        value = "()"
    elif has_unset or row.get("optional", False):
        kind, value = f"{kind} | None", "None"
    else:
        by_kind = {"float": f"{float(default)}" if kind == "float" else "", "str": f'"{default}"', "int": str(default)}
        value = by_kind.get(kind) or f"{kind}.{str(default).upper()}"
    return f"    {field_of(row)}: {kind} = {value}\n{python_comment(row['about'])}"


def python_comment(about: str) -> str:
    return f'    """{about[0].upper()}{about[1:]}."""\n'.replace("\\", "\\\\")


def python_record(record: Row) -> str:
    base = f"({record['mixin']})" if "mixin" in record else ""
    fields = "".join(python_field(row, has_unset=record.get("unset", False)) for row in record["fields"])
    about = "\n    ".join(textwrap.wrap(f'"""{record["about"]}', 116)) + '"""'
    return f"@dataclass(frozen=True, slots=True)\nclass {record['record']}{base}:\n    {about}\n\n{fields}"


def python_records(table: Row) -> str:
    mixins = ", ".join(sorted(record["mixin"] for record in table["records"] if "mixin" in record))
    types = [*map(python_enum, table["enums"]), *map(python_record, table["records"])]
    return (
        '"""The records of commands.json. Made of it by cmake/make_protocol.py: change that."""\n\n'
        "from __future__ import annotations\n\nfrom dataclasses import dataclass\nfrom enum import StrEnum\n\n"
        f"from .ratios import {mixins}\n\n\n" + "\n\n".join(types)
    )


def document_row(row: Row, enums: dict[str, list[str]]) -> str:
    names = {enum: ", ".join(f"`{value}`" for value in values) for enum, values in enums.items()}
    takes = row.get("takes") or TYPES[row["value"]][2].format(**names)
    return f"| `{row['key']}` | {takes} | {row['about']} |\n"


def document(table: Row, text: str) -> str:
    """PROTOCOL.md with new rows for the sampling: those that are there stand between `prompt` and `stop`."""
    enums = {enum["enum"]: enum["values"] for enum in table["enums"]}
    (sampling,) = (record for record in table["records"] if record["record"] == "SamplingArgs")
    rows = "".join(document_row(row, enums) for row in sampling["fields"])
    before, prompt, after = re.split(r"(^\| `prompt` \|[^\n]*\n)", text, maxsplit=1, flags=re.MULTILINE)
    return before + prompt + rows + after[after.index("| `stop` |") :]


def made(table: Row, output: Path) -> str:
    match output.name:
        case "records.py":
            return python_records(table)
        case "PROTOCOL.md":
            return document(table, (PROTOCOL / output.name).read_text("utf-8"))
        case "records.h":
            return f"// From commands.json: change that.\n{cpp_records(table)}"
        case _:
            return f"// From commands.json: change that.\n{command_table(table)}"


def main() -> None:
    source, *outputs = map(Path, sys.argv[1:] or CHECKED_IN)
    table = json.loads(source.read_text("utf-8"))
    for output in outputs:
        text = made(table, output)
        if not output.exists() or output.read_text("utf-8") != text:  # so that what is the same is not compiled anew
            output.parent.mkdir(parents=True, exist_ok=True)
            output.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
