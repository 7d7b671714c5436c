"""Field reports as files and pages: what is a report and what is none, what must not stand in one, and what the page in
docs/field is made of. No engine."""

from __future__ import annotations

import getpass
import json
import socket
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from luce.supervisor.cli.fieldtest.machine import look_at_machine
from luce.supervisor.cli.fieldtest.markdown import overview, page
from luce.supervisor.cli.fieldtest.privacy import cleaned, told_options
from luce.supervisor.cli.fieldtest.report import Gpu, ReportError, read_report, schema
from luce.supervisor.cli.fieldtest.volume import VOLUMES, volume_within
from scripts.make_field_page import FOLDER, field_page, schema_text
from tests.cli.fieldtest.reports import REPORT, report


def set_to(*place: str | int, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(it: Any) -> None:
        for name in place[:-1]:
            it = it[name]
        it[place[-1]] = value

    return change


def test_a_report_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(report().to_json())
    assert read_report(path) == report()
    jsonschema_rs.validate(schema(), json.loads(path.read_bytes()))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (set_to("format", value=2), "format"),
        (set_to("machine", "host", value="pc"), "machine.host"),
        (set_to("model", "file", value="/home/joe/m.gguf"), "model.file"),
        (set_to("model", "file", value="c:\\models\\m.gguf"), "model.file"),
        (set_to("model", "header_sha256", value="?"), "model.header_sha256"),
        (set_to("notes", value=["two\nlines"]), "notes.0"),
        (set_to("notes", value=["x" * 1001]), "notes.0"),
        (set_to("minutes", value="12"), "minutes"),
        (set_to("minutes", value=-1.0), "minutes"),
        (set_to("service", "load_s", value=[True]), "service.load_s.0"),
        (set_to("agent", 0, "n_read", value=1.5), "agent.0.n_read"),
        (set_to("drafts", 0, "ratio", value=[1.0]), "drafts.0.ratio"),
        (set_to("parts", "agent", "state", value="perhaps"), "parts.agent.state"),
    ],
)
def test_what_is_no_report_is_refused_with_its_place(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], said: str
) -> None:
    broken = deepcopy(REPORT)
    change(broken)
    path = tmp_path / "report.json"
    path.write_text(json.dumps(broken))
    with pytest.raises(ReportError, match=said):
        read_report(path)
    assert not jsonschema_rs.is_valid(schema(), broken)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "the file"),
        (b"[]", "the file"),
        (b"\xff\xfe{}", "the file"),
        (b"[" * 100_000, "the file"),
        (json.dumps(REPORT).replace("12.5", "NaN").encode(), "the file|minutes"),
        (json.dumps(REPORT).replace("2026-11-27", "2026-13-27").encode(), "day"),
        (b" " * (1 << 20) + b"{}", "no report is so long"),
    ],
)
def test_files_of_strangers_are_refused(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(data)
    with pytest.raises(ReportError, match=said):
        read_report(path)


def test_a_file_that_is_not_there_is_no_report(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="No such file"):
        read_report(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("the engine failed: /home/joe/m.gguf: no such file", "the engine failed: …: no such file"),
        ("see ~/models/m.gguf, or ./m.gguf", "see …, or …"),
        ("there is no server at http://10.0.0.7:8080 (refused)", "there is no server at … (refused)"),
        ("workers gpu-box.lan:50052 and 10.0.0.7", "workers … and …"),
        ("kv q8_0/q8_0, token 5: 3 of 4\nread / alone", "kv q8_0/q8_0, token 5: 3 of 4 read / alone"),
        (f"{getpass.getuser()} at {socket.gethostname()}", "… at …"),
    ],
)
def test_texts_name_no_places_and_nobody(text: str, said: str) -> None:
    assert cleaned(text) == said


def test_options_keep_numbers_and_words_of_ours_alone() -> None:
    given = [
        "--lanes", "16", "--mtp", "--cache-type-k", "q8_0", "--kv-offload", "auto", "--draft", "/home/joe/d.gguf",
        "--rpc", "gpu-box:50052", "--disk-cache", "cache",
    ]  # fmt: skip
    assert told_options(given) == [
        "--lanes 16", "--mtp", "--cache-type-k q8_0", "--kv-offload auto", "--draft …", "--rpc …", "--disk-cache …",
    ]  # fmt: skip


def test_the_volume_is_the_largest_that_fits() -> None:
    seconds = {volume: 100.0 * 10**-i for i, volume in enumerate(VOLUMES)}
    assert [volume_within(limit, seconds.__getitem__).name for limit in (200, 50, 5, 0)] == [
        "large", "middle", "small", "small",
    ]  # fmt: skip


def test_a_page_has_every_part() -> None:
    shown = page(report())
    for said in (
        "# Some-Model.Q4_K_M.gguf on A card / two names",
        "| drafts | failed: the server is gone |",
        "| 303 / 300 (1.01) |",
        "500 ms / 2,500 ms",
        "| edit | 90.0 | 60.0 | 1.50 (1.40 .. 1.60) | 1.40 (1.30 .. 1.50) | 80 of 100 | same |",
        "2.0 s of 3 starts",
        "| cache type k | q8_0 |",
    ):
        assert said in shown
    assert "[Some-Model.Q4_K_M.gguf](it.md)" in overview([("it.md", report())])


def test_a_report_that_was_cut_at_once_has_a_page() -> None:
    nothing = {"exactness": [], "agent": [], "drafts": [], "ended": "told to stop"}
    service: dict[str, Any] = {"load_s": [], "process_bytes": None, "gpu_bytes": None, "depths": [], "lanes": []}
    cut = type(report()).model_validate({**REPORT, **nothing, "service": service})
    assert "## Drafts" not in page(cut)
    assert "cut" in overview([("it.md", cut)])


def test_the_pages_and_the_schema_are_made_of_the_reports() -> None:
    assert schema_text() == json.dumps(schema(), indent=1) + "\n", (
        "run scripts/make_field_page.py --schema > supervisor/cli/fieldtest/fieldtest.schema.json"
    )
    assert (FOLDER / "index.md").read_text("utf-8") == field_page(), (
        "run scripts/make_field_page.py > docs/field/index.md"
    )
    pages = {path.stem for path in FOLDER.glob("*.md")} - {"index"}
    assert pages == {path.stem for path in FOLDER.glob("*.json")}
    for path in FOLDER.glob("*.json"):
        assert path.with_suffix(".md").read_text("utf-8") == page(read_report(path))


def test_the_machine_is_what_luced_and_the_system_say() -> None:
    machine = look_at_machine(
        [
            "luced 0.1.0",
            "device kind=gpu name=CUDA0 total_bytes=25769803776 free_bytes=25000000000 A card of 24 GB",
            "device kind=accel name=BLAS total_bytes=0 free_bytes=0 OpenBLAS",
            "device kind=cpu name=CPU total_bytes=1 free_bytes=1 A processor, 16 cores",
        ]
    )
    assert machine.gpus == [Gpu(name="A card of 24 GB", memory_bytes=24 << 30)]
    assert machine.cpu == "A processor, 16 cores"
    assert machine.n_cpus > 0
