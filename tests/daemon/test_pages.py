"""What `pages` tells of pages as they come and go, line by line."""

from __future__ import annotations

from pathlib import Path

from luce.protocol import PagesLine, PlainOk
from luce.supervisor.prefix_cache.page_changes import PageChange, Tier, parse_change
from tests.daemon.conftest import Start
from tests.daemon_driver import DaemonDriver, gen_line

PROMPT = tuple(2 + i * 7 % 8000 for i in range(200))
N_PAGES = 200 // 64


def generate(daemon: DaemonDriver) -> None:
    """Its reply comes with the lines of pages around it."""
    daemon.send(gen_line(7, 1, PROMPT))
    assert len(daemon.tokens_until_end()) == 1


def told_until_pong(daemon: DaemonDriver) -> dict[bytes, PageChange]:
    """The last word on each page, of what came before the answer to a ping and after it, up to that to a second one."""
    changes: dict[bytes, PageChange] = {}
    for word in ("one", "two"):
        daemon.send(f"ping {word}")
        while not str(reply := daemon.next_reply()).startswith("Pong"):
            if isinstance(reply, PagesLine):
                for change in map(parse_change, reply.pages):
                    text = change.text or (changes[change.name].text if change.name in changes else None)
                    changes[change.name] = PageChange(change.name, change.tiers, text)
    return changes


def test_pages_come_and_go_and_silence_is_silence(start: Start) -> None:
    daemon = start("--ctx", "512")
    daemon.send("pages id=1")
    assert daemon.next_reply() == PlainOk(1)
    assert daemon.next_reply() == PagesLine(begins_anew=True)
    generate(daemon)
    changes = told_until_pong(daemon)
    assert len(changes) == N_PAGES
    texts = [change.text for change in changes.values() if change.text is not None]
    assert tuple(token for text in texts for token in text.tokens) == PROMPT[: 64 * N_PAGES]
    assert [text.parent for text in texts] == [None, *list(changes)[:-1]]
    assert all(Tier.DEVICE in change.tiers for change in changes.values())
    daemon.send("clear id=2")
    gone = told_until_pong(daemon)
    assert set(gone) == set(changes)
    assert not any(change.tiers for change in gone.values())
    daemon.send("pages id=3 on=0")
    assert daemon.next_reply() == PlainOk(3)
    generate(daemon)
    assert told_until_pong(daemon) == {}
    daemon.send("pages id=4")
    assert set(told_until_pong(daemon)) == set(changes), "what there is comes first"


def test_what_lies_on_disk_is_told_once_a_text_finds_it(start: Start, tmp_path: Path) -> None:
    disk = ("--ctx", "512", "--disk-cache", str(tmp_path / "cache"))
    first = start(*disk)
    generate(first)
    first.next_ok()
    assert first.close() == 0
    daemon = start(*disk)
    daemon.send("pages id=1")
    assert told_until_pong(daemon) == {}
    generate(daemon)
    changes = told_until_pong(daemon)
    assert len(changes) == N_PAGES
    assert all(change.tiers >= {Tier.DEVICE, Tier.DISK} and change.text for change in changes.values())
    daemon.send("clear id=2 disk=1")
    assert not any(change.tiers for change in told_until_pong(daemon).values())
