"""Images in prompts of a real daemon: found again by content wherever texts are kept, never mixed up, encoded once, and
harmless whatever their files hold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from luce.protocol import ErrorCode, GenerateOk, ImageDescribed
from tests.daemon.conftest import Start
from tests.daemon.exactness import ask, done, refused, status_of
from tests.daemon_driver import Answer, DaemonDriver, gen_line, random_prompt
from tests.pictures import HOSTILE, png

ARGUMENTS = ["--ctx", "1024", "--pool", "1024", "--lanes", "2", "--host-cache", "64M"]
HEAD, TAIL = random_prompt(70, seed=1), random_prompt(30, seed=2)
FAMILIES = [("qwen3", "llava"), ("gemma4", "gemma3"), ("qwen35", "qwen3vl")]
"""One whose rows are read like tokens, one with a sliding window whose rows see each other, and one with recurrent
state that sees them in two dimensions (M-RoPE)."""
N = 12


class Pictures:
    """Files, and what stands in prompts for them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ids: dict[Path, tuple[int, ...]] = {}

    def path(self, seed: int) -> Path:
        path = self._folder / f"{seed}.png"
        if not path.exists():
            path.write_bytes(png(40, 30, seed))
        return path

    def ids(self, daemon: DaemonDriver, seed: int) -> tuple[int, ...]:
        path = self.path(seed)
        if path not in self._ids:
            reply = done(daemon, f"image id=900 path={path}")
            assert isinstance(reply, ImageDescribed)
            self._ids[path] = reply.ids
        return self._ids[path]

    def line(
        self, daemon: DaemonDriver, parts: Sequence[int | Sequence[int]], extra: str = "", request_id: int = 1
    ) -> str:
        """A generation; a number stands for the picture of this seed."""
        prompt: list[int] = []
        images = []
        for part in parts:
            if isinstance(part, int):
                images.append(f"{len(prompt)}:{self.path(part)}")
                prompt += self.ids(daemon, part)
            else:
                prompt += part
        return gen_line(request_id, N, prompt, f"images={','.join(images)} {extra}")

    def generate(self, daemon: DaemonDriver, *parts: int | Sequence[int], extra: str = "") -> Answer:
        daemon.send(self.line(daemon, parts, extra))
        return daemon.collect(1)[1]


@pytest.fixture
def pictures(tmp_path: Path) -> Pictures:
    folder = tmp_path / "pictures"
    folder.mkdir()
    return Pictures(folder)


def arguments(test_models: Path, projector: str) -> list[str]:
    return [*ARGUMENTS, "--mmproj", str(test_models / "mmproj" / f"{projector}.gguf")]


def reused(answer: Answer) -> int:
    assert answer.reply is not None
    return answer.reply.n_reused  # type: ignore[union-attr]


@pytest.mark.parametrize(("family", "projector"), FAMILIES)
def test_the_same_image_is_known_again_and_others_are_not(
    start: Start, test_models: Path, pictures: Pictures, family: str, projector: str
) -> None:
    model = test_models / f"{family}.gguf"
    daemon = start(*arguments(test_models, projector), model=model)
    first = pictures.generate(daemon, HEAD, 1, TAIL)
    other = pictures.generate(daemon, HEAD, 2, TAIL)
    again = pictures.generate(daemon, HEAD, 1, TAIL)
    assert first.tokens == again.tokens != other.tokens
    n_prompt = len(HEAD) + len(pictures.ids(daemon, 1)) + len(TAIL)
    assert (reused(first), reused(again)) == (0, n_prompt)
    assert reused(other) < n_prompt - len(TAIL)
    assert status_of(daemon)["images_encoded"] == "2"
    # In the middle of a conversation that has an image before and goes on after it.
    longer = (HEAD, 1, TAIL, first.tokens, 2, TAIL)
    in_the_middle = pictures.generate(daemon, *longer)
    assert reused(in_the_middle) >= n_prompt
    assert pictures.generate(daemon, *longer, extra="reuse=0").tokens == in_the_middle.tokens
    fresh = start(*arguments(test_models, projector), model=model)
    assert pictures.generate(fresh, *longer).tokens == in_the_middle.tokens
    assert fresh.close() == daemon.close() == 0


@pytest.mark.parametrize(("family", "projector"), FAMILIES)
def test_a_prefix_that_ends_within_an_image_goes_on_there(
    start: Start, test_models: Path, pictures: Pictures, family: str, projector: str
) -> None:
    daemon = start(*arguments(test_models, projector), model=test_models / f"{family}.gguf")
    whole = pictures.generate(daemon, HEAD, 1, TAIL, extra="reuse=0")
    cut = len(HEAD) + len(pictures.ids(daemon, 1)) // 2
    extra = f"snap={cut}:0"
    pictures.generate(daemon, HEAD, 1, TAIL, extra=f"reuse=0 marks={cut} {extra}")
    assert pictures.generate(daemon, HEAD, 1, TAIL).tokens == whole.tokens
    assert daemon.close() == 0


@pytest.mark.parametrize(("family", "projector"), FAMILIES)
def test_texts_with_images_come_back_from_disk_and_from_a_snapshot_without_the_projector_at_work(
    start: Start, test_models: Path, pictures: Pictures, tmp_path: Path, family: str, projector: str
) -> None:
    model = test_models / f"{family}.gguf"
    options = [*arguments(test_models, projector), "--disk-cache", str(tmp_path / "disk")]
    daemon = start(*options, model=model)
    prompt_end = len(HEAD) + len(pictures.ids(daemon, 1)) + len(TAIL)
    first = pictures.generate(daemon, HEAD, 1, TAIL)
    done(daemon, "snapshot id=4 slot=0 of=1")
    longer = pictures.generate(daemon, HEAD, 1, TAIL, first.tokens, TAIL)
    done(daemon, f"save id=5 slot=0 path={tmp_path / 'text.snap'}")
    assert daemon.close() == 0

    daemon = start(*options, model=model)
    again = pictures.generate(daemon, HEAD, 1, TAIL)
    assert again.tokens == first.tokens
    assert reused(again) == prompt_end
    assert status_of(daemon)["images_encoded"] == "0"
    assert daemon.close() == 0

    daemon = start(*arguments(test_models, projector), model=model)
    done(daemon, f"load id=6 slot=3 path={tmp_path / 'text.snap'}")
    restored = pictures.generate(daemon, HEAD, 1, TAIL, first.tokens, TAIL, extra="restore=3")
    assert restored.tokens == longer.tokens
    assert reused(restored) > prompt_end
    assert status_of(daemon)["images_encoded"] == "0"
    assert daemon.close() == 0


def test_drafts_behind_an_image_change_nothing(start: Start, test_models: Path, pictures: Pictures) -> None:
    daemon = start(*arguments(test_models, "qwen3vl"), "--draft-adaptive", "off", model=test_models / "qwen35.gguf")
    first = pictures.generate(daemon, HEAD, 1, TAIL, extra="reuse=0")
    again = pictures.generate(daemon, HEAD, 1, TAIL, extra="reuse=0")  # drafted from the first answer
    assert isinstance(again.reply, GenerateOk)
    assert again.reply.speculation is not None
    assert again.reply.speculation.n_accepted > 0
    assert again.tokens == first.tokens
    assert daemon.close() == 0


def test_what_has_left_memory_is_read_again_without_encoding_again(
    start: Start, test_models: Path, pictures: Pictures
) -> None:
    daemon = start(*arguments(test_models, "llava"), model=test_models / "qwen3.gguf")
    first = pictures.generate(daemon, HEAD, 1, TAIL)
    done(daemon, "clear id=7")
    again = pictures.generate(daemon, HEAD, 1, TAIL)
    assert (again.tokens, reused(again)) == (first.tokens, 0)
    assert status_of(daemon)["images_encoded"] == "1"
    done(daemon, "park id=8")
    assert refused(daemon, f"image id=9 path={pictures.path(77)}") is ErrorCode.PARKED
    done(daemon, "unpark id=10")
    other = pictures.generate(daemon, HEAD, 2, TAIL)
    assert other.tokens != first.tokens
    assert daemon.close() == 0


def test_text_and_images_run_together(start: Start, test_models: Path, pictures: Pictures) -> None:
    daemon = start(*arguments(test_models, "gemma3"), model=test_models / "gemma4.gguf")
    alone = {1: pictures.generate(daemon, HEAD, 1, TAIL).tokens, 2: daemon.generate(TAIL, N).tokens}
    done(daemon, "clear id=7")
    for _ in range(3):
        daemon.send(pictures.line(daemon, (HEAD, 1, TAIL), "reuse=0", request_id=1), gen_line(2, N, TAIL, "reuse=0"))
        together = daemon.collect(2)
        assert {number: answer.tokens for number, answer in together.items()} == alone
    # One that waits for its image, or is encoded, can be cancelled.
    daemon.send(pictures.line(daemon, (HEAD, 9, TAIL), request_id=4), "cancel id=4")
    assert len(daemon.collect(1)[4].tokens) <= N
    assert status_of(daemon)["lanes_busy"] == "0"
    assert daemon.close() == 0


def test_ids_alone_are_no_image(start: Start, test_models: Path, pictures: Pictures) -> None:
    daemon = start(*arguments(test_models, "llava"), model=test_models / "qwen3.gguf")
    ids = pictures.ids(daemon, 1)
    assert refused_generation(daemon, gen_line(1, N, ids)) is ErrorCode.TOKEN_OUT_OF_RANGE
    wrong = [gen_line(1, N, ids, f"images=0:{pictures.path(2)}"), gen_line(1, N, HEAD, f"images=0:{pictures.path(1)}")]
    wrong.append(gen_line(1, N, [*ids, 5], f"images=1:{pictures.path(1)}"))
    wrong.append(gen_line(1, N, ids, f"images=0:{pictures.path(1)},50:{pictures.path(1)}"))
    for line in wrong:
        assert refused_generation(daemon, line) is ErrorCode.BAD_ARGS
    assert daemon.close() == 0


def refused_generation(daemon: DaemonDriver, line: str) -> ErrorCode | str:
    code = refused(daemon, line)
    assert daemon.tokens_until_end() == []
    return code


def test_files_that_are_no_images_are_refused(
    start: Start, test_models: Path, pictures: Pictures, tmp_path: Path
) -> None:
    daemon = start(*arguments(test_models, "llava"), model=test_models / "qwen3.gguf")
    before_kb = daemon.resident_kb()
    for number, (name, data) in enumerate(HOSTILE.items()):
        path = tmp_path / f"hostile-{number}"
        path.write_bytes(data)
        assert refused(daemon, f"image id=1 path={path}") is ErrorCode.BAD_IMAGE, name
        assert refused_generation(daemon, gen_line(1, N, [5], f"images=0:{path}")) is ErrorCode.BAD_IMAGE, name
    assert daemon.resident_kb() - before_kb < 100_000
    assert refused(daemon, f"image id=1 path={tmp_path}/none") is ErrorCode.NO_SUCH_FILE
    assert refused(daemon, f"image id=1 path={tmp_path}") is not None
    assert pictures.generate(daemon, HEAD, 1, TAIL).tokens
    assert daemon.close() == 0


def test_without_a_projector_images_are_unsupported(start: Start, pictures: Pictures) -> None:
    daemon = start(*ARGUMENTS)
    assert refused(daemon, f"image id=1 path={pictures.path(1)}") is ErrorCode.UNSUPPORTED
    assert refused_generation(daemon, gen_line(1, N, [5], f"images=0:{pictures.path(1)}")) is ErrorCode.UNSUPPORTED
    assert ask(daemon, "ping") is not None
    assert daemon.close() == 0
