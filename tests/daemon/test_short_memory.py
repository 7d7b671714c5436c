"""A daemon that is refused memory while it runs: with `--kv-offload` it ends, for a supervisor to start it with a
smaller pool; without, the request fails. The refusals are real: the daemon's address space is limited from
outside. On a CPU, whose memory is the system's; native/tests/device/short_memory_test.cpp has a device's memory, and
tests/supervisor/test_engine_status.py engines that die of it."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from luce.protocol import Err, ErrorCode, PoolSize, Unparked
from tests.daemon.conftest import Start
from tests.daemon.exactness import ask, done, generate, status_of
from tests.daemon_driver import DaemonDriver, DaemonEnded, gen_line, random_prompt

ARGUMENTS = ("--lanes", "2", "--ubatch", "512", "--ctx", "8192", "--host-cache", "200M")
SMALL_BYTES = 4 << 20
N_HUGE = 6_000_000  # tokens of a prompt that takes more than that to read and less than a line may have
BOUNDED = (*ARGUMENTS, "--kv-offload", "8192", "--kv-offload-policy", "lru")


def taken_bytes(daemon: DaemonDriver) -> int:
    n_pages = int(Path(f"/proc/{pid_of(daemon)}/statm").read_text().split()[0])
    return n_pages * resource.getpagesize()


def pid_of(daemon: DaemonDriver) -> int:
    assert daemon.ready is not None
    return int(dict(daemon.ready.fields)["pid"])


def served(daemon: DaemonDriver, prompt: list[int]) -> list[int]:
    told = generate(daemon, prompt)
    assert told.ok.n_generated == len(told.tokens)
    return told.tokens


@contextmanager
def at_most(daemon: DaemonDriver, n_bytes: int) -> Iterator[None]:
    """Of address space: whatever the daemon asks for beyond that it does not get."""
    pid = pid_of(daemon)
    before = resource.prlimit(pid, resource.RLIMIT_AS)
    resource.prlimit(pid, resource.RLIMIT_AS, (n_bytes, before[1]))
    yield
    with suppress(ProcessLookupError):
        resource.prlimit(pid, resource.RLIMIT_AS, before)


def test_a_refusal_that_ggml_cannot_take_ends_a_daemon_whose_pool_could_be_smaller(
    start: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its supervisor starts the next one with a smaller pool."""
    daemon = start(*BOUNDED)
    generate(daemon, random_prompt(50, seed=9))
    # Slices of 512 tokens need more beside them than the first one of 50 did.
    with at_most(daemon, taken_bytes(daemon) + SMALL_BYTES), pytest.raises(DaemonEnded):
        generate(daemon, random_prompt(2000, seed=2))
    assert daemon.wait() == 70
    assert "out of memory" in capfd.readouterr().err


def test_without_a_bounded_pool_the_request_fails(start: Start) -> None:
    daemon = start(*ARGUMENTS, "--pool", "8192")
    generate(daemon, random_prompt(50, seed=9))
    # Enough for what the daemon itself notes down, by far not for the computation's buffers.
    with at_most(daemon, taken_bytes(daemon) + SMALL_BYTES):
        assert generate(daemon, random_prompt(2000, seed=2)).code == ErrorCode.OUT_OF_MEMORY
    assert status_of(daemon)["pool"] == "8192"
    assert served(daemon, random_prompt(2000, seed=2))


def huge_line(_: Path) -> str:
    return "gen id=7 n=4 prompt=" + ",".join(["5"] * N_HUGE)


def huge_file(tmp_path: Path) -> str:
    path = tmp_path / "huge.bin"
    path.write_bytes(bytes(4 * N_HUGE))
    return gen_line(7, 4, path)


@pytest.mark.parametrize("huge", [huge_line, huge_file])
def test_a_prompt_that_does_not_fit_into_memory_is_refused(
    start: Start, tmp_path: Path, huge: Callable[[Path], str]
) -> None:
    daemon = start("--ctx", str(2 * N_HUGE), "--kv-offload", "4096", "--kv-offload-policy", "lru")
    assert served(daemon, random_prompt(50, seed=9))
    line = huge(tmp_path)
    # A line is read before it is understood.
    with at_most(daemon, taken_bytes(daemon) + SMALL_BYTES + 3 * len(line)):
        daemon.send(line)
        said = daemon.next_reply()
    assert isinstance(said, Err)
    assert (said.id, said.code) == (7, ErrorCode.OUT_OF_MEMORY)
    if huge is huge_file:  # what was understood as a request has a stream, and its end
        assert daemon.tokens_until_end() == []
    assert served(daemon, random_prompt(50, seed=9))


def test_unpark_takes_a_smaller_pool_where_there_is_less_memory(start: Start, gpu: bool) -> None:
    if gpu:
        pytest.skip("CUDA does not start again in an address space that leaves the model less than it had")
    daemon = start(*ARGUMENTS, "--kv-offload", "65536", "--kv-offload-policy", "lru")
    prompt = random_prompt(2000, seed=2)
    before = generate(daemon, prompt)
    done(daemon, "park")
    done(daemon, "unpark")
    assert status_of(daemon)["pool"] == "65536"
    n_bytes = taken_bytes(daemon)
    done(daemon, "park")
    with at_most(daemon, n_bytes - (8 << 20)):
        said = ask(daemon, "unpark")
        assert isinstance(said, PoolSize)
        assert isinstance(daemon.next_reply(), Unparked)
    fields = status_of(daemon)
    assert said.n_tokens == int(fields["pool"])
    assert 960 <= int(fields["pool"]) < 65536
    after = generate(daemon, prompt)
    assert after.ok.n_reused >= len(prompt) - 1
    assert after.tokens == before.tokens
