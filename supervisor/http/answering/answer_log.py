"""AnswerLog: the answers that were given, in a file beside the disk cache, so that a server that was started anew knows
them.

Pages outlive a restart on disk, but the ids that a model wrote and how it spelled its messages would be lost: the next
prompt of a conversation would be another text from its first answer on. One line an answer, with a checksum: what was
cut off or damaged is passed over, never fatal. Ids are good for one vocabulary, so its digest is in the file's name.
Knows turns, messages and ids; not what is done with them.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from luce.supervisor.http.prompts.token_replay_cache import Turn
from luce.supervisor.text import TextModel

logger = logging.getLogger("luce.http.answering")

_N_SAMPLED_TOKENS = 1024


@dataclass(frozen=True)
class LoggedAnswer:
    turn: Turn | None
    """None: the template has no marks by which its ids would be found again."""
    tokens: Sequence[int]
    stop: str | None = None
    place: bytes | None = None
    """Of the message in its conversation, and the message; None where the answer is known by its ids alone."""
    message: Mapping[str, Any] | None = None
    continues: bool = False
    """The message goes on from the one before it."""

    def to_line(self) -> bytes:
        turn = self.turn
        values = {
            "turn": None if turn is None else turn.place.hex(),
            "head": "" if turn is None else turn.head.decode("latin-1"),
            "head_ids": () if turn is None else turn.head_ids,
            "tokens": list(self.tokens),
            "stop": self.stop,
            "place": None if self.place is None else self.place.hex(),
            "message": self.message,
            "continues": self.continues,
        }
        text = json.dumps(values, separators=(",", ":")).encode()
        return _checksum(text) + b" " + text + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> LoggedAnswer | None:
        """None: the line is not whole."""
        checksum, _, text = line.rstrip(b"\n").partition(b" ")
        if checksum != _checksum(text):
            return None
        values = json.loads(text)
        turn = None
        if values["turn"] is not None:
            turn = Turn(bytes.fromhex(values["turn"]), values["head"].encode("latin-1"), tuple(values["head_ids"]))
        place = None if values["place"] is None else bytes.fromhex(values["place"])
        continues = values.get("continues", False)  # earlier versions wrote none of these
        return cls(turn, values["tokens"], values["stop"], place, values["message"], continues)


class AnswerLog:
    """Of one folder and vocabulary. Several servers may share it; a full or broken disk only ends the writing."""

    def __init__(self, folder: Path, model: TextModel, max_bytes: int) -> None:
        """`max_bytes` of the file; once it is full it becomes the older one, which the next full one replaces."""
        self._path = folder / f"answers-{_digest(model)}.log"
        self._older = self._path.with_suffix(".old.log")
        self._max_bytes = max_bytes
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="answer-log")
        self._writes = True

    def read(self) -> Iterator[LoggedAnswer]:
        """What is known of earlier servers, the latest last."""
        for path in (self._older, self._path):
            try:
                with path.open("rb") as file:
                    for line in file:
                        if (answer := LoggedAnswer.from_line(line)) is not None:
                            yield answer
            except FileNotFoundError:
                continue
            except OSError as error:
                logger.warning("answers of earlier servers cannot be read: %s", error)

    def append(self, answer: LoggedAnswer) -> None:
        """Soon, in a thread of its own."""
        self._writer.submit(self._append, answer)

    def wait(self) -> None:
        """Until all that was given is written."""
        self._writer.submit(lambda: None).result()

    def _append(self, answer: LoggedAnswer) -> None:
        if not self._writes:
            return
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(self._path, "ab", buffering=0, opener=_only_ours) as file:
                line = answer.to_line()
                # A line that was cut off must not spoil the next one.
                file.write(line if file.tell() == 0 else b"\n" + line)
                is_full = file.tell() >= self._max_bytes
            if is_full:
                self._path.replace(self._older)
        except OSError as error:
            self._writes = False
            logger.warning("answers are no longer written to %s: %s", self._path, error)


def _only_ours(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _checksum(text: bytes) -> bytes:
    return blake2b(text, digest_size=8).hexdigest().encode()


def _digest(model: TextModel) -> str:
    info = model.info
    digest = blake2b(f"{info.kind} {info.n_vocab} {sorted(info.eog)}".encode(), digest_size=8)
    for token in range(0, info.n_vocab, max(1, info.n_vocab // _N_SAMPLED_TOKENS)):
        digest.update(model.piece(token, special=True) + b"\0")
    for special in info.special:
        digest.update(f"{special.id} {special.text}\0".encode())
    return digest.hexdigest()
