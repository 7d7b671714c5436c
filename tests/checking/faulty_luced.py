"""A luced with one fault: `faulty_luced.py FAULT LUCED ARGUMENTS…` runs the real one and changes what passes between it
and its client. What a broken engine would do, without a line for it in the engine.

Knows the protocol's lines and records; of the checks only what each fault is to make them see.
"""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

DAMAGED = slice(64, 128)  # positions of a prompt that a damaged memory has otherwise
WRONG_AT = 5  # of an answer's tokens
N_SEEDS = 40  # of each side of the sampling check, in the tests
RECORD = struct.Struct("<ii")
END = -1


class Fault:
    """Everything passes as it is; each fault below changes something."""

    def __init__(self, arguments: list[str]) -> None:
        self.arguments = arguments
        self.running: dict[int, str] = {}
        """Requests that have begun and not ended, with their lines."""

    def option(self, name: str) -> str | None:
        return self.arguments[self.arguments.index(name) + 1] if name in self.arguments else None

    def set_option(self, name: str, value: str) -> None:
        if name in self.arguments:
            self.arguments[self.arguments.index(name) + 1] = value
        else:
            self.arguments += [name, value]

    @property
    def has_drafts(self) -> bool:
        return self.option("--draft-max") != "0"

    def on_command(self, line: str) -> str:
        return line

    def on_reply(self, line: str) -> str:
        return line

    def on_token(self, request: int, index: int, token: int) -> int | None:
        """None: it is lost."""
        return token + 1 if index == WRONG_AT and self.is_wrong(request) else token

    def is_wrong(self, request: int) -> bool:  # noqa: ARG002
        return False


class DamagedMemory(Fault):
    """What is remembered is another text in one place: of requests that are not read from the start."""

    def is_hit(self, line: str) -> bool:
        return "reuse=0" not in line

    def on_command(self, line: str) -> str:
        if not line.startswith("gen ") or not self.is_hit(line):
            return line

        def damage(match: re.Match[str]) -> str:
            ids = match[1].split(",")
            ids[DAMAGED] = reversed(ids[DAMAGED])
            return f" prompt={','.join(ids)}"

        return re.sub(r" prompt=([0-9,]+)", damage, line)


class DamagedSnapshot(DamagedMemory):
    def is_hit(self, line: str) -> bool:
        return " restore=" in line or " snap=" in line


class DamagedOnDisk(DamagedMemory):
    def is_hit(self, line: str) -> bool:  # noqa: ARG002
        return "--disk-cache" in self.arguments


class DamagedInPool(DamagedMemory):
    def is_hit(self, line: str) -> bool:  # noqa: ARG002
        return "--kv-offload" in self.arguments


class NothingReused(Fault):
    def on_command(self, line: str) -> str:
        return f"{line} reuse=0" if line.startswith("gen ") and "reuse=" not in line else line


class SnapshotIgnored(Fault):
    def on_command(self, line: str) -> str:
        return re.sub(r" restore=[0-9]+", "", line)


class WrongAfterPark(Fault):
    is_parked_once = False

    def on_command(self, line: str) -> str:
        self.is_parked_once |= line.startswith("unpark ")
        return line

    def is_wrong(self, request: int) -> bool:  # noqa: ARG002
        return self.is_parked_once


class DamagedFiles(Fault):
    """A byte in the middle of each file of the disk cache, before the engine starts."""

    def __init__(self, arguments: list[str]) -> None:
        super().__init__(arguments)
        folder = self.option("--disk-cache")
        for path in Path(folder).rglob("*") if folder is not None else ():
            if path.is_file() and path.stat().st_size > 0:
                data = bytearray(path.read_bytes())
                data[len(data) // 2] ^= 0xFF
                path.write_bytes(data)


class LostToken(Fault):
    """Of the second of two requests that run at once."""

    def on_token(self, request: int, index: int, token: int) -> int | None:
        is_second = len(self.running) > 1 and request == max(self.running)
        return None if is_second and index == WRONG_AT else token


class RoomyPool(Fault):
    def __init__(self, arguments: list[str]) -> None:
        super().__init__(arguments)
        pool = self.option("--pool")
        if pool is not None:
            self.set_option("--pool", str(4 * int(pool)))


class WrongInLanes(Fault):
    def is_wrong(self, request: int) -> bool:  # noqa: ARG002
        return len(self.running) > 1


class OneLane(Fault):
    def __init__(self, arguments: list[str]) -> None:
        super().__init__(arguments)
        self.set_option("--lanes", "1")

    def on_reply(self, line: str) -> str:
        return line.replace(" lanes=1 ", " lanes=4 ")


class WrongDrafts(Fault):
    def is_wrong(self, request: int) -> bool:  # noqa: ARG002
        return self.has_drafts


class NoDrafts(Fault):
    def __init__(self, arguments: list[str]) -> None:
        super().__init__(arguments)
        self.set_option("--draft-max", "0")


class OtherSeeds(Fault):
    def on_command(self, line: str) -> str:
        return re.sub(r" seed=([0-9]+)", lambda m: f" seed={int(m[1]) + 5000}", line) if self.has_drafts else line


class OtherDistribution(Fault):
    """As if a draft were always right: the likeliest token comes. Of the seeds that only one side has; the same ones
    give what they should."""

    def on_command(self, line: str) -> str:
        seed = re.search(r" seed=([0-9]+)", line)
        return line.replace(" top_k=40", " top_k=1") if seed and int(seed[1]) >= N_SEEDS else line


class EmptyAnswers(Fault):
    """From the second turn on, of requests that go on with what is remembered."""

    n_asked = 0

    def on_command(self, line: str) -> str:
        if not line.startswith("gen ") or "reuse=0" in line or " restore=" in line:
            return line
        self.n_asked += 1
        return re.sub(r" n=[0-9]+", " n=0", line) if self.n_asked > 1 else line


class NoNumbers(Fault):
    """Logits that are none, as luced tells them."""

    def on_reply(self, line: str) -> str:
        return re.sub(r"^(\[lp\] id=[0-9]+ i=5 [0-9]+):[^,]+", r"\1:-inf", line)


class CoarseCache(Fault):
    """4 bits in the cache of an engine that says it has 8."""

    def __init__(self, arguments: list[str]) -> None:
        super().__init__(arguments)
        self.is_hit = self.option("--cache-type-k") != "f16"
        if self.is_hit:
            self.set_option("--cache-type-k", "q4_0")
            self.set_option("--cache-type-v", "q4_0")

    def on_reply(self, line: str) -> str:
        return line.replace(" kv=q4_0/q4_0 ", " kv=q8_0/q8_0 ") if self.is_hit else line


class DamagedCache(DamagedMemory):
    """What is read into a cache that is not f16 is another text in one place."""

    def is_hit(self, line: str) -> bool:  # noqa: ARG002
        return self.option("--cache-type-k") != "f16"


class Relay:
    """The three pipes between client and luced, each with its thread."""

    def __init__(self, fault: Fault, luced: str) -> None:
        self._fault = fault
        self._lock = threading.Lock()
        token_read, token_write = os.pipe()
        self._to_client = os.fdopen(int(fault.option("--stream-fd") or -1), "wb", buffering=0)
        self._tokens = os.fdopen(token_read, "rb")
        fault.set_option("--stream-fd", str(token_write))
        self.child = subprocess.Popen(
            [luced, *fault.arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(token_write,)
        )
        os.close(token_write)

    def run(self) -> int:
        threading.Thread(target=self._relay_commands, daemon=True).start()
        threads = [threading.Thread(target=relay) for relay in (self._relay_replies, self._relay_tokens)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self.child.wait()

    def _relay_commands(self) -> None:
        assert self.child.stdin is not None
        for data in sys.stdin.buffer:
            line = data.decode().rstrip("\n")
            with self._lock:
                changed = self._fault.on_command(line)
                match = re.match(r"gen (?:.* )?id=([0-9]+)", changed)
                if match is not None:
                    self._fault.running[int(match[1])] = changed
            self.child.stdin.write(f"{changed}\n".encode())
            self.child.stdin.flush()
        self.child.stdin.close()

    def _relay_replies(self) -> None:
        assert self.child.stdout is not None
        for data in self.child.stdout:
            sys.stdout.buffer.write(self._fault.on_reply(data.decode()).encode())
            sys.stdout.buffer.flush()
        sys.stdout.buffer.close()

    def _relay_tokens(self) -> None:
        n_tokens: Counter[int] = Counter()
        while record := self._tokens.read(RECORD.size):
            request, value = RECORD.unpack(record)
            with self._lock:
                if value == END:
                    self._fault.running.pop(request, None)
                    n_tokens[request] = 0
                    token: int | None = value
                else:
                    token = self._fault.on_token(request, n_tokens[request], value)
                    n_tokens[request] += 1
            if token is not None:
                self._to_client.write(RECORD.pack(request, token))
        self._to_client.close()


FAULTS = {fault.__name__: fault for fault in Fault.__subclasses__() + DamagedMemory.__subclasses__()}


def main() -> int:
    _, name, luced, *arguments = sys.argv
    return Relay(FAULTS[name](arguments), luced).run()


if __name__ == "__main__":
    sys.exit(main())
