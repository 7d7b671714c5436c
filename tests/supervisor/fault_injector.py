"""A program that stands in for luced: it runs the real one and meddles with what passes between it and its supervisor.

Started with luced's own arguments; LUCED_BEHIND names the real program. Signals and variables say what it does:

    SIGUSR1            a line of garbage on stdout, at any point of the stream
    SIGUSR2            close stdout
    SIGRTMIN           close stdin's real reader: commands go nowhere, and the write end breaks
    SIGRTMIN+1         close the token fd
    SIGRTMIN+2         half a record of garbage on the token fd
    SIGRTMIN+3         the engine dies as ggml does when CUDA has no memory left
    SIGRTMIN+4         the engine says that its pool has become 768 tokens, and is killed
    SIGRTMIN+5         the same, but it dies as with SIGRTMIN+3
    MEDDLER_POISON     a token id: the engine crashes of a prompt that holds it
    MEDDLER_BUSY       a token id: the first MEDDLER_REFUSALS prompts that hold it are answered `busy`
    MEDDLER_AFTER      … but only after so many tokens that came since
    MEDDLER_STARTS     a file that counts starts; the first MEDDLER_FAILS of them fail
    MEDDLER_LOST       a word: a reply line that begins with it is swallowed, once: MEDDLER_MARK is a file that says so
    MEDDLER_DELAYS     seconds, comma separated: how long the engine does nothing at all at the first pings
    MEDDLER_LOADS      seconds for which a model that comes back is loaded, and nothing else heard of the engine
    MEDDLER_SLOTS      say that there are so many slots and pages, and answer for them; MEDDLER_REFUSE: fail snapshots;
                       "none": say nothing of pages, as an older engine
    MEDDLER_LOG        a file that gets every command line
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

ENVIRON = os.environ
POISON = ENVIRON.get("MEDDLER_POISON")
AFTER = int(ENVIRON.get("MEDDLER_AFTER", "0"))
LOG = ENVIRON.get("MEDDLER_LOG")
LOST = ENVIRON.get("MEDDLER_LOST", "").encode()
SLOTS = ENVIRON.get("MEDDLER_SLOTS")
delays = [float(word) for word in ENVIRON.get("MEDDLER_DELAYS", "").split(",") if word]
LOADS_S = float(ENVIRON.get("MEDDLER_LOADS", "0"))
LOST_MARK = Path(ENVIRON.get("MEDDLER_MARK", "/"))
BUSY = ENVIRON.get("MEDDLER_BUSY")
counts = {"tokens": 0, "dies at": -1, "refusals": int(ENVIRON.get("MEDDLER_REFUSALS", "0"))}
stdout_lock = threading.Lock()


def count_start() -> None:
    if "MEDDLER_STARTS" not in ENVIRON:
        return
    path = Path(ENVIRON["MEDDLER_STARTS"])
    n_starts = int(path.read_text()) if path.exists() else 0
    path.write_text(str(n_starts + 1))
    if n_starts < int(ENVIRON.get("MEDDLER_FAILS", "0")):
        print("err start_failed not this time", flush=True)
        sys.exit(2)


def say(data: bytes) -> None:
    with stdout_lock, contextlib.suppress(OSError):  # it may be closed by now
        os.write(1, data)


def die() -> None:
    child.kill()
    os.kill(os.getpid(), signal.SIGKILL)


def crash() -> None:
    child.kill()
    signal.signal(signal.SIGABRT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGABRT)


def refuse(line: bytes) -> bool:
    if BUSY is None or counts["refusals"] == 0 or not re.search(rb"[=,]%s[,\s]" % BUSY.encode(), line):
        return False
    counts["refusals"] -= 1
    say(b"err busy id=%s not now\n" % re.search(rb" id=(\d+)", line)[1])  # type: ignore[index]
    return True


def die_for_want_of_memory() -> None:
    say(b"[daemon] out_of_memory reason=CUDA%20error:%20out%20of%20memory\n")
    die()


def die_with_a_smaller_pool(last: Callable[[], None]) -> None:
    say(b"[pool] tokens=768\n")
    last()


def answer_for_slots(line: bytes) -> bytes | None:
    """The line as the real engine may see it; nothing if it is not for it."""
    free = re.match(rb"free id=(\d+) slot=(\d+)", line)
    if free is not None:
        say(b"[snap] id=%s freed slot=%s\n" % free.groups())
        return None
    request = re.search(rb" id=(\d+)", line)
    points = re.search(rb" snap=([0-9:,]+)", line)
    if points is not None and request is not None:
        for point in points[1].split(b","):
            position, slot = point.split(b":")
            if "MEDDLER_REFUSE" in ENVIRON:
                say(b"[snap] failed id=%s slot=%s no_room\n" % (request[1], slot))
            else:
                say(b"[snap] inline id=%s slot=%s cur_pos=%s\n" % (request[1], slot, position))
    return re.sub(rb" (snap|marks)=[0-9:,]+", b"", line)


def pump_commands() -> None:
    assert child.stdin is not None
    for line in sys.stdin.buffer:
        if LOG is not None:
            with Path(LOG).open("ab") as log:
                log.write(line)
        if POISON is not None and re.search(rb"[=,]%s[,\s]" % POISON.encode(), line):
            if AFTER == 0:
                crash()
            counts["dies at"] = counts["tokens"] + AFTER
        if line.startswith(b"ping") and delays:
            child.send_signal(signal.SIGSTOP)
            time.sleep(delays.pop(0))
            child.send_signal(signal.SIGCONT)
        if line.startswith(b"unpark"):
            end_s = time.monotonic() + LOADS_S
            while time.monotonic() < end_s:
                say(b"[daemon] loading percent=50\n")
                time.sleep(0.02)
        passed = answer_for_slots(line) if SLOTS is not None else line
        if refuse(line):
            continue
        if passed is not None:
            child.stdin.write(passed)
            child.stdin.flush()
    child.stdin.close()


def pump_replies() -> None:
    assert child.stdout is not None
    for line in child.stdout:
        if LOST and line.startswith(LOST) and not LOST_MARK.exists():
            LOST_MARK.touch()
            continue
        if SLOTS is not None and line.startswith(b"[daemon] ready"):
            line = re.sub(rb" (slots|host|page_bytes|tail_bytes)=\d+", b"", line).rstrip()  # noqa: PLW2901
            if SLOTS == "none":
                line += b" slots=0 host=0\n"  # noqa: PLW2901
            else:
                line += b" slots=%s host=100000000 page_bytes=1000 tail_bytes=500\n" % SLOTS.encode()  # noqa: PLW2901
        say(line)


def pump_tokens(source: int, target: int) -> None:
    while data := os.read(source, 65536):
        try:
            os.write(target, data)
        except OSError:
            die()
        counts["tokens"] += len(data) // 8
        if 0 <= counts["dies at"] <= counts["tokens"]:
            die()


count_start()
argv = sys.argv[1:]
stream_fd = int(argv[argv.index("--stream-fd") + 1])
read_end, write_end = os.pipe()
argv[argv.index("--stream-fd") + 1] = str(write_end)
child = subprocess.Popen(
    [ENVIRON["LUCED_BEHIND"], *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(write_end,)
)
os.close(write_end)


def close_stdin() -> None:
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)


actions = {
    signal.SIGUSR1: lambda: say(b"\x00garbage ok id=1 \xff\n"),
    signal.SIGUSR2: lambda: os.close(1),
    signal.SIGRTMIN: close_stdin,
    signal.SIGRTMIN + 1: lambda: os.close(stream_fd),
    signal.SIGRTMIN + 2: lambda: os.write(stream_fd, b"\x01\xff\xff"),
    signal.SIGRTMIN + 3: die_for_want_of_memory,
    signal.SIGRTMIN + 4: lambda: die_with_a_smaller_pool(die),
    signal.SIGRTMIN + 5: lambda: die_with_a_smaller_pool(die_for_want_of_memory),
}
for number, action in actions.items():
    signal.signal(number, lambda *_, action=action: action())
signal.signal(signal.SIGTERM, lambda *_: child.terminate())
threading.Thread(target=pump_commands, daemon=True).start()
outward = [
    threading.Thread(target=pump_replies, daemon=True),
    threading.Thread(target=pump_tokens, args=(read_end, stream_fd), daemon=True),
]
for pump in outward:
    pump.start()
code = child.wait()
for pump in outward:  # what it has said last is still on its way through them
    pump.join(timeout=60)
os._exit(code if code >= 0 else 70)
