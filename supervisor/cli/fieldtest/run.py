"""FieldRun: one field test, step by step within its time. What was found by its end stays, however it ends. Knows no
flags and shows no table.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from importlib import metadata
from pathlib import Path

import click

from luce.supervisor.checking.subject import QUICK
from luce.supervisor.checking.subject import Volume as CheckVolume
from luce.supervisor.checking.workload import Pace, Scope, Work
from luce.supervisor.cli import inspect_plan
from luce.supervisor.cli.checking.run import opened_subject, probe
from luce.supervisor.cli.entry import Failure, say
from luce.supervisor.cli.fieldtest import agent, drafting, exactness, speeds
from luce.supervisor.cli.fieldtest.agent import AgentPart
from luce.supervisor.cli.fieldtest.drafting import DraftsPart
from luce.supervisor.cli.fieldtest.exactness import ExactnessPart, exactness_work
from luce.supervisor.cli.fieldtest.machine import look_at_machine, luced_says
from luce.supervisor.cli.fieldtest.model_file import look_at_model
from luce.supervisor.cli.fieldtest.privacy import cleaned, told_options
from luce.supervisor.cli.fieldtest.report import Engine, FieldReport, Part, State
from luce.supervisor.cli.fieldtest.serving import Serving
from luce.supervisor.cli.fieldtest.speeds import SpeedsPart
from luce.supervisor.cli.fieldtest.step import LeftOutError, Step
from luce.supervisor.cli.fieldtest.volume import VOLUMES, Volume, volume_within
from luce.supervisor.cli.progress import progress
from luce.supervisor.cli.server_client import ServerError
from luce.supervisor.cli.time_left import TimeLeft, in_words
from luce.supervisor.cli.time_limit import TimeIsUp, time_limit
from luce.supervisor.config import DaemonConfig

_SURE = 0.7  # of the time: what is expected to take more may well be cut
_PARTS = (exactness.PART, speeds.PART, agent.PART, drafting.PART)


class FieldRun:
    TOLD_TO_STOP = "told to stop"

    def __init__(
        self, binary: Path, config: DaemonConfig, arguments: Sequence[str], minutes: float, volume: str | None
    ) -> None:
        """`arguments`: the engine's options as they were given; `volume`: by name, None: as fits. Raises Failure."""
        self._binary = binary
        self._config = config
        self._arguments = arguments
        self._minutes = minutes
        self._wanted = volume
        self._began_s = time.monotonic()
        self._said = luced_says(binary)
        self._machine = look_at_machine(self._said)
        self._model = look_at_model(config.model)
        self._states: dict[str, Part] = {}
        self._n_open: Counter[str] = Counter(_PARTS)
        """Steps that are to be taken yet, of each part."""
        self._volume = VOLUMES[-1]
        self._noise: float | None = None
        """In logits; None: not measured yet."""
        self._engine: dict[str, str] = {}
        self._serving = Serving(arguments)
        self._make_parts()
        self.ended = ""
        """Why it ended before all was measured."""
        self.n_done = 0

    def _make_parts(self) -> None:
        self._speeds = SpeedsPart(self._serving, self._volume)
        self._agent = AgentPart(self._serving, self._volume)
        self._drafts = self._drafts_part(self._volume)
        self._exactness: ExactnessPart | None = None

    def _drafts_part(self, volume: Volume) -> DraftsPart:
        return DraftsPart(self._serving, volume, has_gpu=bool(self._machine.gpus))

    def _left_s(self) -> float:
        return max(60 * self._minutes - (time.monotonic() - self._began_s), 0)

    def go(self) -> None:
        """Until all is measured, the time is up or somebody stops it. Raises Failure where nothing can be measured."""
        try:
            with self._serving:
                self._measure()
        except TimeIsUp:
            self.ended = f"the time is up (--minutes {self._minutes:g})"
        except KeyboardInterrupt:
            self.ended = self.TOLD_TO_STOP

    def _measure(self) -> None:
        pace = self._probe()
        self._volume = next((volume for volume in VOLUMES if volume.name == self._wanted), None) or volume_within(
            _SURE * self._left_s(), lambda volume: pace.seconds(self._work(volume))
        )
        self._make_parts()
        with ExitStack() as stack:
            volume = replace(_check_volume(self._volume), noise=self._noise)
            subject, reach = stack.enter_context(opened_subject(self._binary, self._config, volume))
            self._exactness = ExactnessPart(subject, self._scope(volume, reach.lengths, reach.ctx), self._left_s)
            steps = [*self._exactness.steps(), *self._speeds.steps(), *self._agent.steps()]
            if self._config.draft_max == 0:
                self._leave(drafting.PART, "left out", "--draft-max 0: nothing is drafted")
            else:
                steps += self._drafts.steps()
            self._take(steps, pace)

    def _probe(self) -> Pace:
        """Raises Failure or TimeIsUp."""

        async def measure() -> Pace:
            try:
                async with asyncio.timeout(self._left_s()):
                    pace, self._noise, ready = await probe(subject)
            except TimeoutError:
                raise TimeIsUp from None
            self._engine = {name: ready[name] for name in ("arch", "kv") if name in ready}
            return pace

        with opened_subject(self._binary, self._config, _check_volume(VOLUMES[-1])) as (subject, _):
            return asyncio.run(measure())

    def _scope(self, volume: CheckVolume, lengths: Sequence[int], ctx: int) -> Scope:
        config = self._config
        has_drafts = config.draft_max != 0
        return Scope(volume, lengths, ctx, has_drafts and (config.draft is not None or config.mtp), has_drafts)

    def _work(self, volume: Volume) -> Work:
        check_volume = _check_volume(volume)
        work = exactness_work(self._scope(check_volume, check_volume.lengths, max(check_volume.lengths)))
        parts = (SpeedsPart(self._serving, volume), AgentPart(self._serving, volume), self._drafts_part(volume))
        return sum((step.work for part in parts for step in part.steps()), work)

    def _take(self, steps: Sequence[Step], pace: Pace) -> None:
        left = TimeLeft([pace.seconds(step.work) for step in steps])
        cut = f"; --minutes {self._minutes:g} ends it before" if left.left_s > self._left_s() else ""
        say(f"luce fieldtest: about {in_words(left.left_s)} ({self._volume.name} volume, {len(steps)} steps){cut}")
        self._n_open = Counter(step.part for step in steps)
        with progress("starting", len(steps)) as advance:
            for step in steps:
                began_s = time.monotonic()
                found = self._taken(step)
                self._n_open[step.part] -= 1
                left.end_step(time.monotonic() - began_s)
                more = f", about {in_words(left.left_s)} left" if left.left_s > 0 else ""
                advance(f"{step.part}: {step.text}: {found}{more}")

    def _taken(self, step: Step) -> str:
        """A part that cannot go on is left; the next one begins."""
        if step.part in self._states:
            return self._states[step.part].state
        has_own_limit = step.part == exactness.PART
        try:
            with time_limit(None if has_own_limit else self._left_s()):
                found = step.do()
        except LeftOutError as error:
            return self._leave(step.part, "left out", str(error))
        except ServerError as error:
            return self._leave(step.part, "failed", str(error))
        except click.exceptions.Exit as ended:
            return self._leave(step.part, "failed", f"the server did not start (exit status {ended.exit_code})")
        self.n_done += 1
        return found

    def _leave(self, part: str, state: State, why: str) -> str:
        self._states[part] = Part(state=state, why=cleaned(why))
        return f"{state}: {why}"

    def report(self, notes: Sequence[str]) -> FieldReport:
        """Of what was found. Raises pydantic.ValidationError: that would be a mistake of ours."""
        return FieldReport(
            format=1,
            day=datetime.now().astimezone().date().isoformat(),
            minutes=round((time.monotonic() - self._began_s) / 60, 1),
            volume=self._volume.name,
            ended=self.ended,
            notes=[cleaned(note) for note in notes],
            machine=self._machine,
            model=self._model,
            engine=self._engine_report(),
            parts={part: self._state_of(part) for part in _PARTS},
            exactness=[] if self._exactness is None else self._exactness.rows(),
            service=self._speeds.rows(),
            agent=self._agent.rows(),
            drafts=self._drafts.rows(),
        )

    def _state_of(self, part: str) -> Part:
        if part in self._states:
            return self._states[part]
        if self._n_open[part] > 0:
            return Part(state="cut", why=self.ended)
        left_out = self._speeds.left_out if part == speeds.PART else []
        return Part(state="done", why=cleaned("; ".join(left_out)))

    def _engine_report(self) -> Engine:
        told = dict(line.split(" ", 1) for line in self._said if " " in line)
        served = {name: str(value) for name, value in self._speeds.engine.items() if value is not None}
        return Engine(
            version=metadata.version("luce-daemon"),
            llama_cpp=told.get("llama.cpp", ""),
            options=[option for option in told_options(self._arguments) if not option.startswith("--model ")],
            said=self._engine | served,
            plan=self._plan(),
        )

    def _plan(self) -> dict[str, int | str] | None:
        if not self._machine.gpus:
            return None
        try:
            plan = inspect_plan.make_plan(self._config.model, None, self._arguments)
        except Failure as error:
            say(f"luce fieldtest: no plan: {error.message}")
            return None
        return {name: getattr(plan, name) for name in plan.__annotations__}


def _check_volume(volume: Volume) -> CheckVolume:
    return replace(QUICK, lengths=volume.exact_lengths, n_answer=volume.n_exact_answer)
