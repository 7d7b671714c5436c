"""One run of `luce check`: the engine is looked at, how long all will take is said, the checks run, within a time if
one was given. What was found by then stays, however it ends. Knows no flags and shows no table.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from luce.supervisor.cli.entry import EXIT_BAD_ARGS, EXIT_OK, EXIT_START_FAILED, Failure, say
from luce.supervisor.cli.model_files import text_model
from luce.supervisor.cli.time_left import TimeLeft, in_words

if TYPE_CHECKING:
    from luce.supervisor.checking.checks import Check
    from luce.supervisor.checking.finding import Finding
    from luce.supervisor.checking.subject import Reach, Subject, Volume
    from luce.supervisor.checking.workload import Pace
    from luce.supervisor.config import DaemonConfig

_LONG_S = 600.0


class CheckRun:
    def __init__(self, binary: Path, config: DaemonConfig, volume: Volume, checks: Sequence[Check]) -> None:
        self.found: list[Finding] = []
        self.ready: dict[str, str] = {}
        """What the engine says of itself."""
        self.noise = volume.noise
        """None: it has not been measured yet."""
        self.ended = ""
        """Why it ended before all was checked."""
        self._binary = binary
        self._config = config
        self._volume = volume
        self._checks = checks
        self._n_done = 0

    async def check_within(self, minutes: float | None, advance: Callable[[str], None]) -> int:
        """None: as long as it takes. Raises Failure."""
        try:
            async with asyncio.timeout(None if minutes is None else 60 * minutes) as limit:
                await self._check(minutes, advance)
        except TimeoutError:
            if not limit.expired():
                raise
            self.ended = f"the time is up (--minutes {minutes:g})"
        return EXIT_OK

    def all_found(self) -> list[Finding]:
        """With a line for each check that is missing."""
        from luce.supervisor.checking.finding import left_out

        missing = self._checks[self._n_done :] if self.ended else ()
        begun = {finding.check for finding in self.found}
        how = {True: "not finished", False: "not begun"}
        return self.found + [left_out(one.name, "", f"{how[one.name in begun]}: {self.ended}") for one in missing]

    async def _check(self, minutes: float | None, advance: Callable[[str], None]) -> None:
        from luce.supervisor.checking.checks import run_checks
        from luce.supervisor.checking.finding import left_out

        with opened_subject(self._binary, self._config, self._volume) as (probed, reach):
            pace, self.noise, ready = await probe(probed)
            self.ready.update(ready)
            subject = replace(probed, noise=self.noise)
            left = self._expect(reach, pace, minutes)
            self.found += [left_out("lengths", f"{length:,} tokens", reach.why) for length in reach.beyond]
            began_s = time.monotonic()

            def on_check(check: Check, of_it: Sequence[Finding]) -> None:
                nonlocal began_s
                self._n_done += 1
                left.end_step(time.monotonic() - began_s)
                began_s = time.monotonic()
                more = f", about {in_words(left.left_s)} left" if left.left_s > 0 else ""
                advance(_summary(check, of_it) + more)

            await run_checks(subject, self._checks, self.found, on_check)

    def _expect(self, reach: Reach, pace: Pace, minutes: float | None) -> TimeLeft:
        """Says how long it will take."""
        from luce.supervisor.checking.workload import Scope, works_of

        config = self._config
        has_drafts = config.draft_max != 0
        has_drafter = has_drafts and (config.draft is not None or config.mtp)
        scope = Scope(self._volume, reach.lengths, reach.ctx, has_drafter, has_drafts)
        works = works_of([check.name for check in self._checks], scope)
        left = TimeLeft([pace.seconds(work) for work in works])
        speeds = f"{1 / pace.read_s:,.0f} tokens/s read, {1 / pace.write_s:,.0f} written, {pace.start_s:.1f} s a start"
        speeds += f", noise {self.noise:.2f} logits"
        advice = ""
        if minutes is not None and left.left_s > 60 * minutes:
            advice = f"; --minutes {minutes:g} ends it before all is checked"
        elif minutes is None and left.left_s > _LONG_S:
            advice = "; --quick, --only or --minutes N take less"
        say(f"luce check: about {in_words(left.left_s)} on this machine ({speeds}){advice}")
        return left


@contextmanager
def opened_subject(binary: Path, config: DaemonConfig, volume: Volume) -> Iterator[tuple[Subject, Reach]]:
    """What is checked, and how far; without noise where the volume has none: `probe` measures it. Raises Failure."""
    from luce.supervisor.checking.engines import EngineStarter
    from luce.supervisor.checking.subject import Subject, reach_of
    from luce.supervisor.checking.texts import Texts

    with text_model(config.model) as model, _folder(config) as folder:
        pool = config.kvflash if isinstance(config.kvflash, int) else config.pool
        reach = reach_of(volume, ctx=config.ctx, n_trained=_trained_with(config.model), pool=pool)
        if not reach.lengths:
            raise Failure(f"no length of --lengths can be checked: {reach.why}", EXIT_BAD_ARGS)
        starter = EngineStarter(binary, config, say)
        texts = Texts(model if model.info.has_text else None, model.n_vocab)
        noise = 0.0 if volume.noise is None else volume.noise
        yield Subject(starter, texts, volume, reach.ctx, reach.lengths, Path(folder), noise), reach


async def probe(subject: Subject) -> tuple[Pace, float, dict[str, str]]:
    """How fast the engine starts, reads and writes; the noise, in logits; what the engine says of itself. Raises
    Failure."""
    from luce.supervisor.checking.engines import COLD, Question
    from luce.supervisor.checking.noise import measure_noise
    from luce.supervisor.checking.workload import N_PROBE, N_PROBE_ANSWER, Pace
    from luce.supervisor.engine.process import StartError

    text = subject.texts.of_length(min(N_PROBE, subject.lengths[0]))[0].ids
    noise = subject.volume.noise
    began_s = time.monotonic()
    try:
        async with subject.starter.engine(ctx=subject.ctx, disk_cache=None) as engine:
            start_s = time.monotonic() - began_s
            final = (await engine.ask(Question(text, n=N_PROBE_ANSWER, memory=COLD))).final
            ready = engine.ready
        noise = await measure_noise(subject.starter, text) if noise is None else noise
    except StartError as error:
        code = EXIT_BAD_ARGS if error.exit_code == EXIT_BAD_ARGS else EXIT_START_FAILED
        raise Failure(str(error), code) from None
    return Pace(start_s, final.prefill_s / final.n_prompt, final.decode_s / (N_PROBE_ANSWER - 1)), noise, ready


def _trained_with(model: Path) -> int:
    """Tokens of the longest text; 0 if the file does not say."""
    from luce.supervisor.models.gguf_header import GgufError, read_gguf_header
    from luce.supervisor.models.model_memory import model_memory

    try:
        return model_memory(read_gguf_header(model)).n_context_trained
    except GgufError as error:
        raise Failure(f"--model {model}: {error}", EXIT_START_FAILED) from None


def _folder(config: DaemonConfig) -> tempfile.TemporaryDirectory[str]:
    """Where the disk check may write: in the folder of --disk-cache, if that is there."""
    folder = config.disk_cache
    beside = folder if folder is not None and folder.is_dir() else None
    return tempfile.TemporaryDirectory(prefix="luce-check-", dir=beside)


def _summary(check: Check, found: Sequence[Finding]) -> str:
    from luce.supervisor.checking.finding import Verdict

    verdicts = Counter(finding.verdict for finding in found)
    told = ", ".join(f"{verdicts[verdict]} {verdict}" for verdict in Verdict if verdicts[verdict])
    return f"{check.name}: {told} ({sum(finding.seconds for finding in found):.1f} s)"
