"""Writes luced's side of supervisor/config/options.json: make_option_table.py TABLE OUTPUT.

What it writes is included once, by native/daemon/setup/options.cpp, where the setters are declared that it uses. It
must not know what an option does.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

# How an option's value is set, by its kind; a path and a type of cache are texts to luced.
SETTERS = {
    "bytes": "bytes(&Options::{native})",
    "cache_type": "text(&Options::{native})",
    "factor": "real(&Options::{native}, false)",
    "folder": "text(&Options::{native})",
    "number": "number<std::int32_t>(&Options::{native}, {least}, {most})",
    "path": "text(&Options::{native})",
    "positive": "real(&Options::{native}, true)",
    "switch": "flag(&Options::{native})",
    "text": "text(&Options::{native})",
    "tokens": "tokens(&Options::{native}, {least}, {most})",
    "uint64": "number<std::uint64_t>(&Options::{native}, {least}, {most}u)",
}


def setter_of(option: dict[str, Any]) -> str:
    if "setter" in option:
        return str(option["setter"])
    if option["kind"] == "choice":
        choices = ", ".join(f'{{"{name}", {value}}}' for name, value in option["choices"].items())
        first = next(iter(option["choices"].values()))
        kind = "bool" if first in {"true", "false"} else first.partition("::")[0]
        return f"choice<{kind}>(&Options::{option['native']}, {{{choices}}})"
    return SETTERS[option["kind"]].format(**option)


def row_of(option: dict[str, Any]) -> str:
    older = [f"--{alias}" for alias in option.get("aliases", [])]
    text = option.get("native_help", option["help"]) + "".join(f" Older name: {name}." for name in older)
    takes, text = (json.dumps(part, ensure_ascii=False) for part in (option.get("takes", ""), text))
    aliases = ", ".join(map(json.dumps, older))
    return f'    {{"--{option["name"]}", {takes}, {text}, {setter_of(option)}, {{{aliases}}}}},\n'


def gone_row_of(option: dict[str, Any]) -> str:
    name, takes, why = (json.dumps(option.get(key, "")) for key in ("name", "takes", "why"))
    return f'    {{"--" {name}, {takes}, {why}}},\n'


def main() -> None:
    table, output = map(Path, sys.argv[1:])
    read = json.loads(table.read_text("utf-8"))
    rows, gone = "".join(map(row_of, read["options"])), "".join(map(gone_row_of, read["gone"]))
    output.parent.mkdir(parents=True, exist_ok=True)
    specs = f"std::vector<OptionSpec> all_specs() {{\n    return {{\n{rows}    }};\n}}\n"
    specs += f"constexpr GoneOption kGone[] = {{\n{gone}}};\n"
    output.write_text(f"// From {table.name}: change that.\n{specs}", "utf-8")


if __name__ == "__main__":
    main()
