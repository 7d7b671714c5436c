"""The chat in a real Chromium, over a real server: a branch, stop, reload, an engine that is killed, a long
conversation, calls, what is read from files. One server for all; each test has a browser's context of its own."""

from __future__ import annotations

import json
import os
import re
import signal
from typing import TYPE_CHECKING, Any

import pytest

from luce.supervisor.http.streams.resumable_answer import STREAM_SESSIONS
from tests.http.serving import Server
from tests.http.window.breaking_proxy import breaking_proxy
from tests.http.window.browsing import browser, counts, is_seen, opened, shows
from tests.http.window.held_answers import in_mid_answer, server

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser, Locator, Page, Request

__all__ = ["browser", "server"]  # fixtures

N_NUMBERS = 400
NUMBERS = {"type": "array", "items": {"type": "integer"}, "minItems": N_NUMBERS, "maxItems": N_NUMBERS}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]},
    },
}
N_MANY = 2000


@pytest.fixture
def page(browser: Browser, server: Server) -> Any:
    with opened(browser, f"{server.url}/") as page:
        page.wait_for_selector(".welcome")
        yield page


def say(page: Page, text: str) -> None:
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")


def set_up(page: Page, **values: str) -> None:
    """Of the conversation, in the dialog."""
    page.click("#show-settings")
    for name, value in values.items():
        where = page.locator(f"#settings [name={name}]")
        if where.evaluate("field => field.tagName") == "SELECT":
            where.select_option(value)
        else:
            where.fill(value)
    page.click("#settings button.main")


def give(page: Page, where: str, name: str, kind: str, content: bytes) -> None:
    file: Any = {"name": name, "mimeType": kind, "buffer": content}
    page.set_input_files(where, files=[file])


def messages(page: Page, role: str = "assistant") -> Locator:
    return page.locator(f".message.{role}:not(.live)")


def figures(page: Page) -> Locator:
    return page.locator(".message .figures")


def test_an_answer_says_what_it_took_and_a_second_goes_on_from_it(page: Page) -> None:
    say(page, "Who are you?")
    counts(figures(page), 1)
    shows(figures(page).first, re.compile(r"first token after .* · \d+ of \d+ prompt tokens cached"))
    say(page, "What is 7 + 5?")
    counts(figures(page), 2)
    shows(figures(page).last, re.compile(r"tokens/s .* [1-9]\d* of \d+ prompt tokens cached \([1-9]\d* %\)"))
    assert "12" in (messages(page).last.locator(".body").text_content() or "")
    shows(page.locator("#notice"), "The answer is complete")


def test_an_edit_is_a_branch_and_both_stay_over_a_reload(page: Page) -> None:
    set_up(page, temperature="0", max_tokens="8")
    say(page, "What is 1 + 1?")
    counts(figures(page), 1)
    messages(page, "user").get_by_role("button", name="Edit").click()
    page.locator(".message textarea").fill("What is 2 + 2?")
    page.get_by_role("button", name="Send as a branch").click()
    counts(figures(page), 1)
    shows(messages(page, "user").locator(".branches"), re.compile("branch 2 of 2"))
    shows(messages(page, "user").locator(".body"), "What is 2 + 2?")
    second = messages(page).locator(".body").text_content()
    page.reload()
    shows(messages(page, "user").locator(".body"), "What is 2 + 2?")
    assert messages(page).locator(".body").text_content() == second
    page.get_by_role("button", name="Previous branch").click()
    shows(messages(page, "user").locator(".body"), "What is 1 + 1?")
    shows(messages(page, "user").locator(".branches"), re.compile("branch 1 of 2"))
    messages(page).get_by_role("button", name="Regenerate").click()
    shows(messages(page).locator(".branches"), re.compile("branch 2 of 2"))


def test_an_answer_can_be_stopped_and_gone_on_with(page: Page, server: Server) -> None:
    set_up(page, schema=json.dumps(NUMBERS))
    with in_mid_answer(server, page, lambda: say(page, "Numbers")):
        page.press("#prompt", "Escape")
        counts(page.locator(".message.live"), 0)
    shows(messages(page).locator("footer span"), "stopped")
    stopped = messages(page).locator(".body").text_content() or ""
    set_up(page, schema="", max_tokens="4")
    messages(page).get_by_role("button", name="Go on").click()
    counts(figures(page), 1)
    counts(messages(page), 1)
    gone_on = messages(page).locator(".body").text_content() or ""
    assert gone_on.startswith(stopped.rstrip())
    assert len(gone_on) > len(stopped.rstrip())


def test_a_reload_in_mid_answer_takes_it_up_again(page: Page, server: Server) -> None:
    set_up(page, schema=json.dumps(NUMBERS))
    with in_mid_answer(server, page, lambda: say(page, "Numbers")):  # noqa: SIM117  the request's end is the outer block
        with page.expect_request(re.compile(r"v1/stream\?conv_id=")) as asked:
            page.reload()
    counts(figures(page), 1)
    assert asked.value.method == "GET"
    assert len(json.loads(messages(page).locator(".body").text_content() or "")) == N_NUMBERS
    shows(figures(page), re.compile("tokens/s"))


def test_an_answer_goes_on_over_a_proxy_that_is_restarted(browser: Browser, server: Server) -> None:
    with breaking_proxy(server.url) as proxy, opened(browser, f"{proxy.url}/") as page:
        set_up(page, schema=json.dumps(NUMBERS))
        with in_mid_answer(server, page, lambda: say(page, "Numbers")):
            proxy.down()
            shows(page.locator(".message.live .told"), re.compile("The connection broke"))
            proxy.up()
        counts(figures(page), 1)
        assert len(json.loads(messages(page).locator(".body").text_content() or "")) == N_NUMBERS
        counts(page.locator("#log .failure"), 0)


def test_an_answer_that_is_stopped_ends_on_the_server_and_one_that_is_lost_can_be_gone_on_with(
    page: Page, server: Server
) -> None:
    set_up(page, schema=json.dumps(NUMBERS))
    sessions = server.app[STREAM_SESSIONS]
    asked: list[Request] = []
    page.on("request", lambda request: asked.append(request) if request.url.endswith("/completions") else None)
    with in_mid_answer(server, page, lambda: say(page, "Numbers")):
        name = asked[-1].headers["x-conversation-id"]
        assert sessions.find("", name) is not None
        with page.expect_response(lambda answer: answer.request.method == "DELETE"):
            page.click("#stop")
        counts(page.locator(".message.live"), 0)
        assert sessions.find("", name) is None

    async def lose() -> None:
        await sessions.close()

    with in_mid_answer(server, page, messages(page).get_by_role("button", name="Regenerate").click):
        server.call(lose)
        shows(messages(page).locator("footer span"), "cut off")
    set_up(page, schema="", max_tokens="4")
    messages(page).get_by_role("button", name="Go on").click()
    counts(figures(page), 1)


def test_an_answer_goes_on_when_its_engine_is_killed(page: Page, server: Server) -> None:
    set_up(page, schema=json.dumps(NUMBERS))
    with in_mid_answer(server, page, lambda: say(page, "Numbers")):
        (pid,) = server.supervisor.engine_pids()
        os.kill(pid, signal.SIGKILL)
    counts(figures(page), 1)
    shows(figures(page), re.compile("continued after the loss of 1 engine"))
    assert len(json.loads(messages(page).locator(".body").text_content() or "")) == N_NUMBERS
    counts(page.locator("#log .failure"), 0)


def test_calls_are_cards_that_people_answer(page: Page) -> None:
    set_up(page, tools=json.dumps([WEATHER]), tool_choice="required", max_tokens="64")
    say(page, "What is the weather in Rome?")
    page.get_by_label("What get_weather gives").wait_for()  # the call is whole
    shows(page.locator(".call strong").first, "Calls get_weather")
    assert json.loads(page.locator(".call code").first.text_content() or "") == {"city": "Rome"}
    set_up(page, tool_choice="none")
    page.get_by_label("What get_weather gives").fill("sunny")
    page.get_by_role("button", name="Send the result").click()
    shows(messages(page, "tool").locator(".body"), "sunny")
    counts(figures(page), 2)


def test_settings_that_are_no_json_are_refused_at_once(page: Page) -> None:
    page.click("#show-settings")
    page.fill("#settings [name=schema]", "{")
    page.click("#settings button.main")
    shows(page.locator("#settings .failure"), re.compile("^schema: .*JSON"))
    page.press("#settings [name=schema]", "Escape")
    is_seen(page.locator("#settings"), False)


def test_no_text_becomes_part_of_the_page(page: Page) -> None:
    hostile = "<img src=x onerror=alert(1)><script>alert(2)</script> ![a](https://elsewhere.example/x.png)"
    hostile += "\n\n[link](javascript:alert(3)) <https://elsewhere.example/>\n\n```python\n<b>x = 1</b>\n```\n"
    give(page, "#import-file", "a.md", "text/markdown", f"<!-- luce: assistant -->\n## A\n\n{hostile}".encode())
    body = messages(page).locator(".body")
    counts(body.locator("img, script, b"), 0)
    counts(body.locator(".hljs-number"), 1)
    links = body.locator("a").evaluate_all("links => links.map(link => [link.href, link.rel, link.target])")
    assert links
    assert all(href.startswith("https:") and "noopener" in rel and target for href, rel, target in links)


def test_two_thousand_messages_are_read_and_the_newest_are_shown(page: Page) -> None:
    many = [
        {"id": str(i), "parent": str(i - 1) if i else None, "role": ("user", "assistant")[i % 2], "content": f"**{i}**"}
        for i in range(N_MANY)
    ]
    text = json.dumps({"format": "luce-conversation-1", "conversation": {"title": "Many"}, "messages": many})
    give(page, "#import-file", "many.json", "application/json", text.encode())
    shows(page.locator(".message .body").last, str(N_MANY - 1))
    counts(page.locator(".message"), 60)
    page.click("#earlier")
    counts(page.locator(".message"), 260)
    say(page, "What is 7 + 5?")  # far more than the context has room for: said, and nothing is lost
    shows(page.locator(".message .failure"), re.compile("token"))
    page.reload()
    shows(messages(page, "user").last.locator(".body"), "What is 7 + 5?")


def test_a_conversation_leaves_as_a_file_and_comes_back(page: Page, tmp_path: Path) -> None:
    say(page, "Who are you?")
    counts(figures(page), 1)
    said = messages(page).locator(".body").text_content()
    for number, kind in enumerate(("json", "markdown"), start=2):
        with page.expect_download() as saved:
            page.click(f"#export-{kind}")
        path = tmp_path / saved.value.suggested_filename
        saved.value.save_as(path)
        page.set_input_files("#import-file", path)
        counts(page.locator("#conversation-list li"), number)
        shows(messages(page).locator(".body"), said or "")
    give(page, "#import-file", "x.json", "", b'{"a": 1}')
    shows(page.locator("#log .failure"), re.compile("x.json cannot be read: .* not a conversation"))


def test_a_file_goes_with_a_message(page: Page) -> None:
    give(page, "#attach-file", "f.txt", "text/plain", b"one ``` two")
    shows(page.locator("#attached .attachment"), re.compile("f.txt"))
    give(page, "#attach-file", "p.png", "image/png", b"\x89PNG")
    shows(page.locator("#attached .failure"), re.compile("p.png: this model cannot read images"))
    with page.expect_request(re.compile("chat/completions")) as asked:
        say(page, "What is in it?")
    (content,) = [message["content"] for message in json.loads(asked.value.post_data or "")["messages"]]
    assert content == "f.txt\n````\none ``` two\n````\n\nWhat is in it?"
    counts(figures(page), 1)
