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

Reports of `luce fieldtest` from users' machines and models. Each row leads to its full report. Written by
`scripts/make_field_page.py`.

{table}

| column | meaning |
|---|---|
| load | time from the start of `luce serve` until it answers, median |
| prompt/s, decoded/s | tokens per second of the longest prompt measured, and of the answer after it |
| at once/s | tokens per second of several simultaneous answers |
| agent reads | tokens that an agent's loop reads after its first turn / tokens that are new |
| first token | of that loop's last turn: warm / without a cache |
| drafts | speed with drafts / without, by kind of text; without a GPU by CPU time |
| exact | answers from the cache, in lanes and with drafts, compared with the same computed from the start, alone |

Figures of different rows depend on model, machine and the machine's other work; each report states all three.

## Send yours

    luce fieldtest --model m.gguf --note "nothing else ran"

1. Use the options that you serve with, and do not use the machine meanwhile. The command estimates the time.
2. Read the two files that it writes. They contain the model's file name, but no user or machine names, paths, addresses
   or serial numbers.
3. Open an issue on the project's tracker with the title `Field report: MODEL on GPU`, and attach both files.

Reports of cards with 8 to 24 GB are the most welcome. Reports cut short by Ctrl-C or `--minutes` are useful too. `luce
fieldtest --check FILE` validates a file; the schema is `supervisor/cli/fieldtest/fieldtest.schema.json`.

To accept a report, put both files into `docs/field` and run `scripts/make_field_page.py > docs/field/index.md`.
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
