"""Each view for those who hear it or have no mouse: Chromium's own tree of roles and names, what is announced, where
the focus goes, and everything that can be done by keyboard alone. --full asks axe-core as well, in light and dark."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import httpx2 as httpx
import pytest

from tests.http.serving import Server
from tests.http.window.browsing import browser, counts, go_to, has_focus, opened, shows
from tests.http.window.held_answers import in_mid_answer, server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

__all__ = ["browser", "server"]  # fixtures

VIEWS = {"chat": ".message .figures", "memory": ".text", "now": ".requests [data-id]", "connect": "pre"}
CONTROLS = {
    "button", "checkbox", "combobox", "DisclosureTriangle", "link", "menuitem", "radio", "searchbox", "slider",
    "spinbutton", "switch", "tab", "textbox",
}  # fmt: skip
IMAGES = {"Canvas", "figure", "graphics-document", "image", "img"}
MOST_STOPS = 120
NUMBERS = {"type": "array", "items": {"type": "integer"}, "minItems": 500}
"""An answer that takes long."""
FOCUS = """() => {
  const one = document.activeElement, style = getComputedStyle(one);
  if (one === document.body) return null;
  const all = window.focused_before ??= [];
  if (!all.includes(one)) all.push(one);
  const box = one.getBoundingClientRect();
  const shown = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2 && box.width > 0;
  return { at: all.indexOf(one), shown, name: one.id || one.ariaLabel || one.textContent };
}"""
FOCUSABLE = "a[href], button:enabled, input, textarea, select, summary, [tabindex='0']"
LISTEN = """() => {
  window.announced = [];
  const note = region => { if (region.textContent) window.announced.push(region.textContent); };
  for (const region of document.querySelectorAll('[role=status], [role=alert]')) {
    new MutationObserver(() => note(region)).observe(region, { childList: true, characterData: true, subtree: true });
  }
}"""
NOTE_CHOOSER = """() => {
  document.getElementById('attach-file').onclick = event => { event.preventDefault(); window.chosen = true; };
}"""
SOURCE = """# One

Text, `code` and [a link](https://example.com/).

| a | b |
|---|---|
| 1 | 2 |

> so

```python
class A:
    def f(x):  # two
        return '1' + 2
```
"""
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


@dataclass(frozen=True)
class Node:
    role: str
    name: str
    level: int | None


def nodes_of(page: Page) -> list[Node]:
    """As a screen reader is given them, in order."""
    devtools = page.context.new_cdp_session(page)
    devtools.send("Accessibility.enable")
    told: list[dict[str, Any]] = devtools.send("Accessibility.getFullAXTree")["nodes"]
    devtools.detach()
    found = []
    for node in told:
        if node["ignored"]:
            continue
        level = [each["value"]["value"] for each in node.get("properties", ()) if each["name"] == "level"]
        role, name = node.get("role", {}).get("value", ""), node.get("name", {}).get("value", "")
        found.append(Node(role, name.strip(), level[0] if level else None))
    return found


def say(page: Page, text: str) -> None:
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")


def imported() -> bytes:
    """A conversation with all that a message can have."""
    call = {"id": "c", "name": "get_weather", "arguments": '{"city": "Rome"}'}
    messages = [
        {"id": "a", "parent": None, "role": "user", "content": "Hello"},
        {"id": "b", "parent": "a", "role": "assistant", "content": SOURCE, "reasoning": "So I think."},
        {"id": "b2", "parent": "a", "role": "assistant", "content": "Another one"},
        {"id": "c", "parent": "b2", "role": "user", "content": "And now?"},
        {"id": "d", "parent": "c", "role": "assistant", "content": SOURCE, "reasoning": "So.", "calls": [call],
         "state": "done"},
    ]  # fmt: skip
    conversation = {"title": "All", "leaf": "d"}
    return json.dumps({"format": "luce-conversation-1", "conversation": conversation, "messages": messages}).encode()


@pytest.fixture(scope="module")
def used(server: Server) -> Server:
    """One that has something to show in each view."""
    body = {"messages": [{"role": "user", "content": "Tell me of light. " * 40}], "max_tokens": 4}
    for _ in range(2):
        httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=120).raise_for_status()
    return server


def open_view(page: Page, view: str) -> None:
    if page.evaluate("location.hash") != f"#{view}":
        go_to(page, view)
    page.locator(f"#{view} {VIEWS[view]}").first.wait_for()


@pytest.fixture(scope="module")
def talked(browser: Browser, used: Server) -> Iterator[Page]:
    with opened(browser, f"{used.url}/") as page:
        page.wait_for_selector(".welcome")
        say(page, "Who are you?")
        counts(page.locator(".message .figures"), 1)
        yield page


@pytest.mark.parametrize("view", VIEWS)
def test_all_has_a_role_and_a_name(talked: Page, view: str) -> None:
    open_view(talked, view)
    nodes = nodes_of(talked)
    controls = [node for node in nodes if node.role in CONTROLS]
    assert len(controls) > len(VIEWS)
    assert [node for node in controls if not node.name] == []
    assert [node for node in nodes if node.role in IMAGES and not node.name] == []
    levels = [node.level or 0 for node in nodes if node.role == "heading"]
    assert (levels[0], levels.count(1)) == (1, 1), levels
    assert all(later <= now + 1 for now, later in pairwise(levels)), levels
    roles = [node.role for node in nodes]
    assert [roles.count(role) for role in ("banner", "navigation", "main")] == [1, 1, 1]
    unnamed = [node.role for node in nodes if node.role in {"navigation", "region", "complementary"} and not node.name]
    assert unnamed == []


@pytest.mark.parametrize("view", VIEWS)
def test_the_focus_is_seen_and_goes_everywhere_and_on(talked: Page, view: str) -> None:
    open_view(talked, view)
    # From what stays when a view is drawn anew: the first stop is known again by its element.
    talked.evaluate("() => { document.getElementById('skip').focus(); window.focused_before = []; }")
    stops: list[int] = []
    for _ in range(MOST_STOPS):
        talked.keyboard.press("Tab")
        focus = talked.evaluate(FOCUS)
        if focus is None:
            continue  # it has left the page, and comes back at its beginning
        if len(stops) > 1 and focus["at"] == stops[0]:
            break
        assert focus["shown"], f"nobody sees that the focus is at {focus['name']!r}"
        assert focus["at"] == len(stops), f"{focus['name']!r} holds the focus"
        stops.append(focus["at"])
    wanted = talked.locator(FOCUSABLE).locator("visible=true").count()
    assert len(stops) >= wanted


def reach(page: Page, wanted: Locator) -> None:
    """By Tab alone, from where the focus is."""
    wanted.wait_for()
    for _ in range(MOST_STOPS):
        if wanted.evaluate("one => one === document.activeElement"):
            return
        page.keyboard.press("Tab")
    pytest.fail(f"no Tab leads to {wanted}")


def press(page: Page, where: Locator, key: str = "Enter") -> None:
    reach(page, where)
    page.keyboard.press(key)


def named(page: Page, name: str) -> Locator:
    return page.locator("main:not([hidden]), dialog[open]").get_by_role("button", name=name).first


def test_a_conversation_by_keyboard_alone(browser: Browser, used: Server) -> None:
    with opened(browser, f"{used.url}/", viewport={"width": 500, "height": 800}) as page:
        page.wait_for_selector(".welcome")
        page.on("dialog", lambda dialog: dialog.accept())
        keyboard = page.keyboard
        press(page, page.locator("#skip"))
        has_focus(page.locator("#prompt"))
        # A dialog: in, and out again to where it was opened.
        press(page, named(page, "Settings"))
        reach(page, page.locator("#settings [name=schema]"))
        keyboard.type(json.dumps(NUMBERS))
        press(page, named(page, "Keep"))
        has_focus(page.locator("#show-settings"))
        # Sent, and stopped.
        reach(page, page.locator("#prompt"))
        keyboard.type("What is light?")
        with in_mid_answer(used, page, lambda: keyboard.press("Enter")):
            press(page, page.locator("#stop"))
            counts(page.locator(".message.live"), 0)
        press(page, named(page, "Settings"))
        reach(page, page.locator("#settings [name=max_tokens]"))
        keyboard.type("4")
        reach(page, page.locator("#settings [name=schema]"))
        keyboard.press("Control+A")
        keyboard.press("Delete")
        press(page, named(page, "Keep"))
        # Changed, sent as a branch, and back.
        press(page, page.locator(".message.user").get_by_role("button", name="Edit"))
        keyboard.type("Now: ")
        press(page, named(page, "Send as a branch"))
        counts(page.locator(".message .figures"), 1)
        has_focus(page.locator("#log"))  # not lost with the button
        press(page, named(page, "Previous branch"))
        shows(page.locator(".branches").first, re.compile("branch 1 of 2"))
        has_focus(named(page, "Next branch"))
        press(page, named(page, "Regenerate"))
        shows(page.locator(".message.assistant .branches"), re.compile("branch 2 of 2"))
        # A file goes along, and not.
        page.evaluate(NOTE_CHOOSER)
        press(page, named(page, "Attach"))
        assert page.evaluate("window.chosen"), "the browser's own dialog for files would be open"
        page.set_input_files("#attach-file", {"name": "a.txt", "mimeType": "text/plain", "buffer": b"light"})
        press(page, named(page, "Leave out a.txt"))
        has_focus(page.locator("#attach"))
        # The list: opened, left, and one forgotten.
        press(page, page.locator("#show-conversations"))
        keyboard.press("Escape")
        has_focus(page.locator("#show-conversations"))
        keyboard.press("Enter")
        press(page, named(page, "Delete What is light?"))
        counts(page.locator("#conversation-list li"), 0)


def test_the_other_views_by_keyboard_alone(browser: Browser, used: Server) -> None:
    with opened(browser, f"{used.url}/#memory") as page:
        page.on("dialog", lambda dialog: dialog.accept())
        page.wait_for_selector(".text")
        for name in ("Unpin", "Pin"):
            press(page, page.locator("[data-act^=hold]").last)
            shows(page.locator("[data-act^=hold]").last, name)
            has_focus(page.locator("[data-act^=hold]").last)  # it is where it was
        n_texts = page.locator(".text").count()
        press(page, page.locator("[data-act^=forget]").last)
        counts(page.locator(".text"), n_texts - 1)
        has_focus(page.locator("#memory h1"))
        press(page, page.locator("nav a[data-view=now]"))
        # A screen reader says the view. The browser tells the page of its new address behind the key press.
        has_focus(page.locator("#now"))
        press(page, page.locator(".requests button").first)
        shows(page.locator(".requests .why:visible"), re.compile("Most of the time"))
        press(page, page.locator("nav a[data-view=connect]"))
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        press(page, named(page, "Copy the lines for"))
        shows(named(page, "Copy the lines for"), "Copied")


def test_what_happens_is_announced_in_whatever_view(browser: Browser, used: Server) -> None:
    def said(page: Page, what: str) -> None:
        page.wait_for_function("what => window.announced.some(said => said.startsWith(what))", arg=what)
        page.evaluate("() => { window.announced = []; }")

    with opened(browser, f"{used.url}/") as page:
        page.wait_for_selector(".welcome")
        page.evaluate(LISTEN)
        say(page, "Who are you?")
        said(page, "The answer is complete")
        page.click("#show-settings")
        temperature = page.locator("#settings [name=temperature]")
        for wrong in ("warm", "5.1", "-1"):
            temperature.fill(wrong)
            assert temperature.evaluate("input => input.validationMessage") == "A number from 0 to 5"
        temperature.fill("0")
        assert temperature.evaluate("input => input.validity.valid")
        page.fill("#settings [name=schema]", json.dumps(NUMBERS))
        page.click("#settings button.main")
        with in_mid_answer(used, page, lambda: say(page, "Numbers")):
            said(page, "The model is answering")
            page.keyboard.press("Escape")
            said(page, "The answer is stopped")
        say(page, "so " * 6000)  # far more than the context has
        page.click("nav a[data-view=connect]")
        said(page, "The answer failed: ")
        assert len([node for node in nodes_of(page) if node.role == "status"]) == 1, "what has happened"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 400])
def test_axe_finds_nothing(browser: Browser, used: Server, full: bool, scheme: Any, width: int) -> None:
    if not full:
        pytest.skip("left out: --full runs it")
    pytest.importorskip("axe_playwright_python", reason="left out: needs axe-playwright-python")
    axe = files("axe_playwright_python").joinpath("axe.min.js").read_text()
    found: list[str] = []
    with opened(browser, f"{used.url}/", color_scheme=scheme, viewport={"width": width, "height": 900}) as page:
        page.wait_for_selector(".welcome")
        page.evaluate(axe)

        def look(where: str) -> None:
            told = page.evaluate("rules => axe.run(document, { runOnly: rules })", RULES)
            for wrong in told["violations"]:
                found.extend(
                    f"{where}: {wrong['id']}: {node['html']} {node['failureSummary']}" for node in wrong["nodes"]
                )

        look("empty")
        file: Any = {"name": "all.json", "mimeType": "application/json", "buffer": imported()}
        page.set_input_files("#import-file", files=[file])
        counts(page.locator(".call textarea"), 1)
        page.locator(".reasoning summary").first.click()
        look("conversation")
        page.locator(".message.user").first.get_by_role("button", name="Edit").click()
        look("editor")
        page.click("#show-settings")
        page.fill("#settings [name=schema]", "{")
        page.click("#settings button.main")
        look("settings")
        page.keyboard.press("Escape")
        for view in ("memory", "now", "connect"):
            open_view(page, view)
            if view == "now":
                page.locator(".requests button").first.press("Enter")
                page.wait_for_selector(".chart canvas")
            look(view)
    assert found == []
