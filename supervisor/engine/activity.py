"""Activity: what a process is doing, by /proc. Knows nothing of engines."""

from __future__ import annotations

from pathlib import Path

from luce.supervisor.engine.watchdog import ProcessActivity

_AT_WORK = "RD"  # computing or about to, or waiting for a disk


class Activity:
    def __init__(self, pid: int) -> None:
        self._folder = Path(f"/proc/{pid}")
        self._cpu_ticks = -1
        self.stopped = False

    def look(self) -> ProcessActivity:
        """Since the last look."""
        try:
            fields = _fields(self._folder)
        except OSError:
            return ProcessActivity(stopped=False, busy=False)
        state, cpu_ticks = fields[0], int(fields[11]) + int(fields[12])
        busy = state in _AT_WORK or cpu_ticks != self._cpu_ticks or self._has_thread_at_work()
        self._cpu_ticks = cpu_ticks
        self.stopped = state in "Tt"
        return ProcessActivity(stopped=self.stopped, busy=busy)

    def _has_thread_at_work(self) -> bool:
        """On a crowded machine a thread may wait for a core for seconds, and all others for it."""
        for thread in self._folder.glob("task/*"):
            try:
                if _fields(thread)[0] in _AT_WORK:
                    return True
            except OSError:  # it has just ended
                continue
        return False


def _fields(folder: Path) -> list[str]:
    """Those behind the name, from the state on. Raises OSError."""
    return (folder / "stat").read_text().rpartition(")")[2].split()
