"""Prints the page of all field reports, and the schema of one: make_field_page.py > docs/field/index.md,
make_field_page.py --schema > supervisor/cli/fieldtest/fieldtest.schema.json.

Each report of docs/field/*.json is a row; its own page lies beside it. Tests hold both files equal to what this prints.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from luce.supervisor.cli.fieldtest.markdown import overview
from luce.supervisor.cli.fieldtest.report import FieldReport, read_report

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "field"

PAGE = """# Field reports

Written by `scripts/make_field_page.py`. What luce-daemon does on machines of its users, with models of their choice,
measured by `luce fieldtest`. Each row leads to its whole report.

{table}

| column | says |
|---|---|
| load | from the start of `luce serve` until it answers, median |
| prompt/s, decoded/s | tokens a second of the longest prompt that was measured, and of the answer behind it |
| at once/s | tokens a second of several answers together |
| agent reads | tokens that an agent's loop reads behind its first turn, against those that are new |
| first token | of that loop's last turn: warm, and of the same prompt of which nothing is known |
| drafts | how many times faster than without, by kind of text; without a GPU by processor time |
| exact | checks of answers from memory, in lanes and with drafts against the same read from the start, alone |

Figures of different rows differ by model, machine and what else the machine did: a report says all three.

## Send yours

    luce fieldtest --model m.gguf --note "nothing else ran"

1. Give it the options that you serve with, and leave the machine alone meanwhile: it says how long.
2. Read the two files that it writes. They have the model's file name, and no name of a user or machine, no path, no
   address and no serial number.
3. Open an issue on the project's tracker with the title `Field report: MODEL on GPU`, and attach both files.

Reports of cards with 8 to 24 GB are what we lack most. A report that Ctrl-C or `--minutes` has cut says so and is of
use too. `luce fieldtest --check FILE` says whether a file is whole; the schema is
`supervisor/cli/fieldtest/fieldtest.schema.json`.

Whoever takes a report in puts both files into `docs/field` and runs
`scripts/make_field_page.py > docs/field/index.md`.
"""


def reports() -> list[tuple[str, FieldReport]]:
    """With the names of their pages; newest first."""
    found = [(path.with_suffix(".md").name, read_report(path)) for path in sorted(FOLDER.glob("*.json"))]
    return sorted(found, key=lambda one: one[1].day, reverse=True)


def field_page() -> str:
    return PAGE.format(table=overview(reports()))


def schema_text() -> str:
    return json.dumps(FieldReport.model_json_schema(), indent=1) + "\n"


if __name__ == "__main__":
    sys.stdout.write(schema_text() if sys.argv[1:] == ["--schema"] else field_page())
