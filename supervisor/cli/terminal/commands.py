"""What can be typed after a slash in a chat: names, what they take, what they do in a word. Data, and its help."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    takes: str
    does: str


FILE, BRANCH = "FILE", "[NAME [N]]"

COMMANDS = {
    "help": Command("", "show these commands"),
    "file": Command(FILE, "send a text file with your next message"),
    "branch": Command(BRANCH, "show the branches; go to one; make one, of the first N turns or of all"),
    "retry": Command("", "have the last message answered again"),
    "reset": Command("", "forget this branch; the system message stays"),
    "system": Command("[TEXT]", "set the system message; without TEXT, show it"),
    "save": Command(FILE, "write this branch as JSON"),
    "load": Command(FILE, "go on from a conversation that was saved"),
    "quit": Command("", "leave (so does Ctrl-D)"),
}


def help_text() -> str:
    shown = {f"/{name} {command.takes}".rstrip(): command.does for name, command in COMMANDS.items()}
    width = max(map(len, shown))
    lines = [f"{left:<{width}}  {does}" for left, does in shown.items()]
    lines += [
        "Enter sends; Alt-Enter, or a backslash before Enter, begins another line; Ctrl-X Ctrl-E opens your editor.",
        "Tab completes; the arrow keys and Ctrl-R go through what you have typed; Ctrl-C stops an answer.",
        "A message that begins with a slash is written with two.",
    ]
    return "\n".join(lines)
