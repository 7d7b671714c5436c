"""A new session of a known program starts warm: it reads what differs from the sessions before, and little more,
whatever the program, the kind of memory and the order of a prompt; after a restart, too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from luce.supervisor.http.prompts.rendering import Renderer
from luce.supervisor.text import TextModel
from tests.http.answering.sessions_of_clients import SHAPES, Body, asked, n_cached
from tests.http.serving import CALL_S, Server

FAMILIES = ("qwen35", "gemma4", "qwen3")
"""With recurrent state, with sliding windows, with neither."""

FOLDERS = ("/home/ada/work/alpha", "/home/ada/work/beta-service", "/home/ada/notes")
MOST = 1.1  # of the tokens behind the first difference

TOOLS_FIRST = """\
{%- if tools %}<|im_start|>system
# Tools
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def post(server: Server, path: str, body: Body) -> dict[str, Any]:
    """The answer's usage."""
    answer = httpx.post(server.url + path, json=body, timeout=CALL_S)
    answer.raise_for_status()
    usage: dict[str, Any] = answer.json()["usage"]
    return usage


def n_shared(text: Sequence[int], earlier: Sequence[Sequence[int]]) -> int:
    """Tokens up to which one of the earlier texts agrees."""
    differ = (next((n for n, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), 0) for other in earlier)
    return max(differ, default=0)


class Machine:
    """A server that can be started anew over the same disk."""

    def __init__(self, model: Path, folder: Path, template: str | None) -> None:
        self.model = TextModel(model, chat_template=template)
        self.renderer = Renderer(self.model)
        self._options: dict[str, Any] = {"disk_cache": folder / "cache", "lanes": 1, "ubatch": 256}
        if template is not None:
            self._options["chat_template"] = folder / "template.jinja"
            self._options["chat_template"].write_text(template)
        self._path = model
        self.server = Server(model, dict(self._options)).start()

    def restart(self) -> None:
        self.server.stop()
        self.server = Server(self._path, dict(self._options)).start()

    def close(self) -> None:
        self.server.stop()
        self.model.close()


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(
    ("family", "template"), [*((family, None) for family in FAMILIES), ("qwen35", TOOLS_FIRST), ("qwen3", TOOLS_FIRST)]
)
def test_a_new_session_reads_what_differs(
    test_models: Path, tmp_path: Path, family: str, template: str | None, restarts: bool, full: bool
) -> None:
    if (restarts == (template is not None) or family == "qwen3") and not full:
        pytest.skip("each prompt's order in one way, with state and with windows; all with --full")
    machine = Machine(test_models / f"{family}.gguf", tmp_path, template)
    told = []
    earlier: dict[str, list[Sequence[int]]] = {client: [] for client in SHAPES}
    try:
        for number, folder in enumerate(FOLDERS if full else FOLDERS[:2]):
            if restarts and number > 0:
                machine.restart()
            for client, (path, shape) in SHAPES.items():
                body = shape(number, folder)
                ids = machine.renderer.render(asked(client, body, machine.model).prompt).ids
                usage = post(machine.server, path, body)
                shared = n_shared(ids, earlier[client])
                earlier[client].append(ids)
                n_read, n_behind = len(ids) - n_cached(usage), len(ids) - shared
                told.append((client, number + 1, len(ids), shared, n_read, n_behind, usage["luce"]["cache_miss"]))
                print(*told[-1])
    finally:
        machine.close()
    assert [entry for entry in told if entry[4] > MOST * entry[5]] == []
