"""`luce serve` as a process: what it says, what it refuses, how it ends. Real sockets, real signals."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import click
import psutil
import pytest

from luce.supervisor.cli.serve import known_flags
from luce.supervisor.config.loading import known_options, read_configuration
from tests.cli.conftest import TIMEOUT_S, Run
from tests.kv_events.subscriber import replayed

ROOT = Path(__file__).resolve().parents[2]
READY = re.compile(rb"^luce serve is ready: (\S+) at (\S+)", re.MULTILINE)

Serving = Callable[..., Any]


class Process:
    def __init__(self, popen: subprocess.Popen[bytes], banner: bytes) -> None:
        self.popen = popen
        self.banner = banner.decode()
        found = READY.search(banner)
        assert found is not None
        self.model, self.url = found[1].decode(), found[2].decode()

    def get(self, path: str, key: str | None = None) -> tuple[int, bytes]:
        asked = urllib.request.Request(self.url + path)  # noqa: S310
        if key is not None:
            asked.add_header("Authorization", f"Bearer {key}")
        try:
            with urllib.request.urlopen(asked, timeout=TIMEOUT_S) as answer:  # noqa: S310
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def chat(self, text: str) -> dict[str, Any]:
        message = {"role": "user", "content": text}
        body = json.dumps({"messages": [message], "max_tokens": 32, "temperature": 0}).encode()
        asked = urllib.request.Request(  # noqa: S310
            self.url + "/v1/chat/completions", data=body, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(asked, timeout=TIMEOUT_S) as answer:  # noqa: S310
            return json.loads(answer.read())  # type: ignore[no-any-return]

    def end(self, number: int) -> int:
        self.popen.send_signal(number)
        return self.popen.wait(TIMEOUT_S)


@pytest.fixture
def serving(bin_dir: Path, tmp_path: Path) -> Serving:
    """with serving("--lanes", "2", LUCE_PORT="0") as process: …"""

    @contextmanager
    def start(*arguments: str, **variables: str) -> Iterator[Process]:
        command = [str(bin_dir / "luce"), "serve", "--threads", "1", "--no-warmup", "--ctx", "1024", *arguments]
        if "--port" not in arguments and "LUCE_PORT" not in variables and "--config" not in arguments:
            command += ["--port", "0"]
        with (
            (tmp_path / "stderr").open("wb") as stderr,
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=stderr, stdin=subprocess.DEVNULL, env={**clean(), **variables}
            ) as popen,
        ):
            try:
                yield Process(popen, read_banner(popen, tmp_path / "stderr"))
            finally:
                popen.kill()

    return start


def clean() -> dict[str, str]:
    """Without options; which build is tested stays."""
    kept = {"LUCE_CHECK_ANSWERS", "LUCE_DAEMON_BINARY", "LUCE_TEXT_LIBRARY"}
    return {name: text for name, text in os.environ.items() if not name.startswith("LUCE_") or name in kept}


def read_banner(popen: subprocess.Popen[bytes], stderr: Path) -> bytes:
    assert popen.stdout is not None
    lines = []
    for line in popen.stdout:
        lines.append(line)
        if b"Ctrl-C stops" in line:
            return b"".join(lines)
    raise AssertionError(f"it is not ready: {b''.join(lines)!r}\n{stderr.read_text()}")


def test_the_packaged_model_is_served_and_ends_with_its_engine(serving: Serving, tmp_path: Path) -> None:
    with serving() as process:
        assert process.model == "luce-tiny-Q8_0"
        assert process.url.startswith("http://127.0.0.1:")
        assert "This is the packaged model, which knows little. --model FILE.gguf serves another one" in process.banner
        assert process.get("/health")[0] == 200
        assert "Luce" in process.chat("Who are you?")["choices"][0]["message"]["content"]
        (engine,) = [child for child in psutil.Process(process.popen.pid).children() if child.name() == "luced"]
        assert process.end(signal.SIGTERM) == 0
        assert not psutil.pid_exists(engine.pid)
    assert "loading luce-tiny-Q8_0.gguf" in (tmp_path / "stderr").read_text()
    assert "stopped" in (tmp_path / "stderr").read_text()


def test_one_that_is_to_stop_says_so_before_it_takes_no_more_and_routers_hear_what_it_holds(
    serving: Serving, short_folder: Path
) -> None:
    replay = f"ipc://{short_folder}/replay"
    events = ["--kv-events", f"ipc://{short_folder}/events", "--kv-events-replay", replay]
    with serving("--shutdown-delay", "600", *events, LUCE_KV_EVENTS_TOPIC="kv@pod@m") as process:
        assert process.get("/livez")[0] == process.get("/readyz")[0] == 200
        process.popen.send_signal(signal.SIGTERM)
        while process.get("/readyz")[0] == 200:
            pass
        assert process.get("/readyz") == (503, b'{"status": "stopping"}')
        assert process.get("/livez")[0] == 200
        assert process.chat("Who are you? " * 30)["choices"][0]["message"]["content"], "it is still served"
        stored = [event for event in replayed(replay) if event[0] == "BlockStored"]
        assert stored
        assert all(size == 64 and len(ids) == 64 * len(hashes) for _, hashes, _, ids, size, *_ in stored)
        process.popen.send_signal(signal.SIGTERM)
        assert process.popen.wait(TIMEOUT_S) == 0


def test_ctrl_c_ends_it_in_order(serving: Serving) -> None:
    with serving("--host", "0.0.0.0", "--open-to-all") as process:  # noqa: S104  others may use it: that is wanted
        assert "WARNING" not in process.banner
        assert process.end(signal.SIGINT) == 0


def test_a_hangup_stops_it_too(serving: Serving) -> None:
    with serving("--host", "0.0.0.0") as process:  # noqa: S104  others may use it: that is told
        for part in ("WARNING", "everyone who reaches 0.0.0.0", "--api-key KEY", "--api-keys FILE", "--open-to-all"):
            assert part in process.banner
        (engine,) = psutil.Process(process.popen.pid).children()
        assert process.end(signal.SIGHUP) == 128 + signal.SIGHUP
        assert not psutil.pid_exists(engine.pid)


def test_a_unix_socket_is_served_and_goes(serving: Serving, tmp_path: Path) -> None:
    path = tmp_path / "luce.sock"
    with serving("--host", f"unix:{path}", "--socket-mode", "660") as process:
        assert process.url == f"unix:{path}"
        assert "WARNING" not in process.banner
        assert f"curl --unix-socket {path} http://localhost/v1/models" in process.banner
        assert path.stat().st_mode & 0o777 == 0o660
        with closing(socket.socket(socket.AF_UNIX)) as client:
            client.connect(str(path))
            client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert client.recv(1 << 16).startswith(b"HTTP/1.1 200")
        assert process.end(signal.SIGTERM) == 0
    assert not path.exists()


def test_without_any_engine_it_ends_and_says_so(bin_dir: Path, luced: Path, tmp_path: Path) -> None:
    once = tmp_path / "luced-once"  # starts well the first time, and never again
    once.write_text(f'#!/bin/sh\nmkdir "{tmp_path}/started" 2>/dev/null || exit 3\nexec "{luced}" "$@"\n')
    once.chmod(0o755)
    (tmp_path / "luce.toml").write_text(f'port = 0\nbinary = "{once}"\nrestart_limit = 2\nrestart_delay = 0.01\n')
    command = [str(bin_dir / "luce"), "serve", "--threads", "1", "--no-warmup", "--config", str(tmp_path / "luce.toml")]
    with (
        (tmp_path / "log").open("w+b") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL, env=clean()) as popen,
    ):
        try:
            read_banner(popen, tmp_path / "log")
            (engine,) = psutil.Process(popen.pid).children()
            engine.kill()
            assert popen.wait(TIMEOUT_S) == 70
            assert "no engine is left" in (tmp_path / "log").read_text()
        finally:
            popen.kill()


def test_how_far_loading_is_can_be_watched(bin_dir: Path, luced: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    slow = tmp_path / "luced-slow"
    slow.write_text(f'#!/bin/sh\necho "[daemon] loading percent=53"\ncat "{tmp_path}/go"\nexec "{luced}" "$@"\n')
    slow.chmod(0o755)
    (tmp_path / "luce.toml").write_text(f'port = 0\nbinary = "{slow}"\n')
    command = [str(bin_dir / "luce"), "serve", "--threads", "1", "--no-warmup", "--config", str(tmp_path / "luce.toml")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    with subprocess.Popen(command, env=clean(), **pipes) as popen:  # type: ignore[call-overload]
        try:
            said = b""
            while b"loading luce-tiny-Q8_0.gguf: 50 %" not in said:
                line = popen.stderr.readline()
                assert line != b"", said
                said += line
            (tmp_path / "go").write_text("")
            assert any(b"Ctrl-C stops" in line for line in popen.stdout)
            popen.terminate()
            assert popen.wait(TIMEOUT_S) == 0
        finally:
            popen.kill()


def test_flags_environment_and_file_together(serving: Serving, tmp_path: Path) -> None:
    (tmp_path / "luce.toml").write_text('port = 0\nalias = ["from-the-file"]\nlanes = 1\nslots = 7\n')
    with serving(
        "--config", str(tmp_path / "luce.toml"), "--lanes", "3", LUCE_LANES="2", LUCE_ALIAS="mine,other"
    ) as it:
        assert it.model == "mine"
        (engine,) = json.loads(it.get("/status.json")[1])["engines"]
        assert (engine["lanes"], engine["slots"]) == (3, 7)


def test_an_embedding_model_by_a_variable(serving: Serving, test_models: Path) -> None:
    path = str(test_models / "embeddings" / "bert.gguf")
    with serving("--embedding-ctx", "200", LUCE_EMBEDDING_MODEL=path) as process:
        listed = json.loads(process.get("/v1/models")[1])["data"]
        assert [(model["id"], model["max_input_tokens"]) for model in listed][1:] == [("bert", 200)]
        assert process.end(signal.SIGTERM) == 0


def test_the_banner_is_for_every_client(serving: Serving) -> None:
    with serving("--alias", "m", LUCE_API_KEY="secret") as process:
        banner, url = process.banner, process.url
        assert "secret" not in banner, "stdout is no terminal: it may be a journal"
        assert f"ANTHROPIC_BASE_URL={url} ANTHROPIC_AUTH_TOKEN=YOUR_KEY CLAUDE_CODE_MAX_CONTEXT_TOKENS=" in banner
        assert re.search(r"CLAUDE_CODE_MAX_CONTEXT_TOKENS=\d+ claude --model m$", banner, re.MULTILINE)
        assert f"OPENAI_BASE_URL={url}/v1" in banner
        for client in ("Claude Code", "Codex", "opencode", "pi", "Open WebUI", "OpenAI SDKs", "Anthropic SDKs"):
            assert re.search(rf"^{client}", banner, re.MULTILINE), client
        assert process.get("/v1/models")[0] == 401
        assert process.get("/v1/models", "wrong")[0] == 401
        assert process.get("/v1/models", "secret")[0] == 200


def test_what_the_banner_shows_is_what_clients_read() -> None:
    from luce.supervisor.http.window.client_lines import client_lines

    lines = client_lines("http://h:1", 'm"x', "k", n_ctx=32768)
    by_name = {name.split(",", 1)[0]: text for name, text in lines.items()}
    codex = tomllib.loads(by_name["Codex"])
    assert codex["model"] == 'm"x'
    assert codex["model_providers"][codex["model_provider"]]["base_url"] == "http://h:1/v1"
    opencode = json.loads(by_name["opencode"])["provider"]["luce"]
    assert opencode["options"] == {"baseURL": "http://h:1/v1", "apiKey": "k"}
    assert opencode["models"]['m"x']["limit"]["context"] == 32768
    pi = json.loads(by_name["pi"])["providers"]["luce"]
    unknown = client_lines("http://h:1", "m", "k", n_ctx=None).values()
    assert not [text for text in unknown if "CONTEXT" in text or "limit" in text or "contextWindow" in text]
    assert (pi["baseUrl"], pi["models"][0]["id"], pi["models"][0]["contextWindow"]) == ("http://h:1/v1", 'm"x', 32768)


def page(name: str, section: str | None = None) -> str:
    """A page of docs/, or one section of it."""
    text = (ROOT / "docs" / name).read_text()
    return text if section is None else text.split(f"\n## {section}\n", 1)[1].split("\n## ", 1)[0]


def test_the_page_names_every_option_without_a_flag() -> None:
    table = page("configuration.md", "Options without a flag")
    rows = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    flags = known_flags()
    assert named == {option.name for option in known_options(flags).values() if option.field not in flags}


def test_every_flag_teaches() -> None:
    from luce.supervisor.cli.serve import command
    from luce.supervisor.cli.terminal.chat import command as chat
    from luce.supervisor.cli.watching.top import command as top

    for option in (*command.params, *chat.params, *top.params):
        assert isinstance(option, click.Option)
        assert len(option.help or "") >= 20, option.opts


def test_the_file_on_the_page_is_one(tmp_path: Path) -> None:
    example = re.search(r"^```toml\n(# luce\.toml\n.*?)^```$", page("configuration.md"), re.MULTILINE | re.DOTALL)
    assert example is not None
    file = tmp_path / "luce.toml"
    file.write_text(example[1])
    (tmp_path / "keys").write_text("secret\n")
    configuration = read_configuration(known_flags(), {}, {}, file)
    config = configuration.supervisor_config(model=configuration["model"])
    assert (config.host_cache, config.engine_configs()[0].environment) == (16 << 30, {"CUDA_VISIBLE_DEVICES": "0"})
    assert configuration.serve_settings().api_keys == ("secret",)


def test_the_requests_on_the_page_are_answered(serving: Serving) -> None:
    with serving() as process:
        asked = re.findall(r"^    curl http://127\.0\.0\.1:8080(\S+)(?: -d '(.*)')?$", page("agents.md"), re.MULTILINE)
        assert [path for path, _ in asked] == ["/v1/chat/completions", "/v1/messages", "/health"]
        for path, body in asked:
            # As curl does it, content type included.
            request = urllib.request.Request(process.url + path, data=body.encode() or None)  # noqa: S310
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
                assert answer.status == 200


def test_a_port_in_use_is_said_before_anything_is_loaded(run: Run) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        result = run("luce", "serve", "--port", str(other.getsockname()[1]), env=clean())
    assert result.returncode == 2
    assert b"it is in use" in result.stderr
    assert b"loading" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--host", "no.such.host.invalid", "--api-key", "k"], 64, "there is no such address"),
        (["--host", ""], 64, "--host is empty"),
        (["--host", "192.0.2.1", "--api-key", "k"], 2, "this machine has no such address"),
        (["--host", "unix:/etc/hostname"], 2, "is no socket"),
        (["--host", "/no/such/luce.sock"], 2, "there is no such folder"),
        (["--socket-mode", "rw"], 64, "--socket-mode"),
        (["--ssl-cert-file", "/no/such.pem"], 64, "/no/such.pem: No such file"),
        (["--ssl-cert-file", "/etc/hostname"], 64, "no certificate and its key"),
        (["--ssl-key-file", "/etc/hostname"], 64, "--ssl-key-file"),
        (["--slot-save-path", "/no/such"], 64, "make it first"),
        (["--kv-events", "5557"], 64, "tcp://HOST:PORT or ipc://PATH"),
        (["--kv-events", "tcp://192.0.2.1:1"], 64, "kv_events: tcp://192.0.2.1:1: "),
        (["--kv-events-replay", "tcp://127.0.0.1:0"], 64, "of no use without kv_events"),
        (["--sleep-idle", "0"], 64, "--sleep-idle"),
        (["--port", "65536"], 64, "--port"),
        (["--keep-alive", "0"], 64, "--keep-alive"),
        (["--keep-alive", "11"], 64, "--keep-alive"),
        (["--keep-alive", "nan"], 64, "--keep-alive"),
        (["--queue-timeout", "inf"], 64, "say none"),
        (["--api-key", ""], 64, "an API key is empty"),
        (["--api-key-file", "/no/such"], 64, "/no/such: No such file"),
        (["--draft", "/no/such.gguf"], 2, "there is no such file"),
        (["--draft", "/etc/hostname"], 2, "is no GGUF file"),
        (["--draft-max", "65"], 64, "--draft-max"),
        (["--model", "/no/such.gguf"], 2, "there is no such file"),
        (["--embedding-model", "/no/such.gguf"], 2, "--embedding-model /no/such.gguf: there is no such file"),
        (["--rerank-model", "/etc"], 2, "--rerank-model /etc is a folder"),
        (["--embedding-pooling", "mean"], 64, "--embedding-pooling"),
        (["--embedding-pooling", "rank", "--embedding-model", "/etc/hostname"], 64, "--embedding-pooling"),
        (["--embedding-ctx", "100"], 64, "--embedding-ctx"),
        (["--model", "/etc/hostname"], 2, "/etc/hostname"),
        (["--config", "/no/such.toml"], 64, "/no/such.toml: No such file"),
        (["--chat-template", "/no/such.jinja"], 64, "/no/such.jinja"),
        (["--lanes", "100000"], 64, "--lanes"),
        (["surplus"], 64, "surplus"),
    ],
)
def test_what_cannot_be_is_refused(run: Run, arguments: list[str], code: int, said: str) -> None:
    result = run("luce", "serve", "--port", "0", *arguments, env=clean())
    assert (result.returncode, result.stdout) == (code, b"")
    assert said in " ".join(result.stderr.decode().split())  # click breaks its lines


def test_what_is_wrong_in_environment_and_file_is_refused(run: Run, tmp_path: Path) -> None:
    by_variable = run("luce", "serve", env={**clean(), "LUCE_KEEP_ALIVE": "soon"})
    assert (by_variable.returncode, by_variable.stdout) == (64, b"")
    assert b"LUCE_KEEP_ALIVE=soon" in by_variable.stderr
    (tmp_path / "luce.toml").write_text("prot = 1\n")
    by_file = run("luce", "serve", env={**clean(), "LUCE_CONFIG": str(tmp_path / "luce.toml")})
    assert by_file.returncode == 64
    assert b"did you mean port?" in by_file.stderr


def test_the_configuration_can_be_looked_at_without_serving(run: Run) -> None:
    result = run("luce", "serve", "--port", "1", "--print-config", env={**clean(), "LUCE_API_KEY": "secret"})
    assert result.returncode == 0, result.stderr
    assert re.search(rb"^port = 1 +# --port$", result.stdout, re.MULTILINE)
    assert b"secret" not in result.stdout
    shown = tomllib.loads(result.stdout.decode())
    assert (shown["host"], shown["max_queue"]) == ("127.0.0.1", 256)
    refused = run("luce", "serve", "--draft-max", "x", "--print-config", env=clean())
    assert refused.returncode == 64


def test_nobody_has_to_read_the_banner(bin_dir: Path, tmp_path: Path) -> None:
    command = [str(bin_dir / "luce"), "serve", "--threads", "1", "--no-warmup", "--ctx", "1024", "--port", "0"]
    read, write = os.pipe()
    os.close(read)
    with (
        (tmp_path / "log").open("w+b") as log,
        subprocess.Popen(command, stdout=write, stderr=log, stdin=subprocess.DEVNULL, env=clean()) as popen,
    ):
        os.close(write)
        try:
            wait_until_listening(popen)
            popen.send_signal(signal.SIGTERM)
            assert popen.wait(TIMEOUT_S) == 0, (tmp_path / "log").read_text()
        finally:
            popen.kill()


def wait_until_listening(popen: subprocess.Popen[bytes]) -> None:
    process = psutil.Process(popen.pid)
    while popen.poll() is None:
        if any(each.status == psutil.CONN_LISTEN for each in process.net_connections("tcp")):
            return
        with suppress(subprocess.TimeoutExpired):
            popen.wait(0.1)  # it ends, or there is another look
