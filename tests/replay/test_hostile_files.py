"""Files that are cut, spoilt, huge or something else: a sentence, and never an exception."""

from __future__ import annotations

import contextlib
import gzip
import os
import random
import struct
from collections.abc import Callable
from pathlib import Path

import past_files as files
import pytest
from replay_process import Replaying

from exporter.follow.parsing import Garbage
from exporter.replay.recognised import READERS, format_of
from exporter.replay.rows import FileUnusable, Row

WRITERS: dict[str, Callable[[files.Steps], bytes]] = {
    "jsonl": files.jsonl,
    "console": files.console,
    "csv": lambda steps: files.wandb_chart({"run": steps}),
    "tensorboard": files.event_file,
    "trainer-state": files.trainer_state,
}

NO_LOGS = {
    "empty": b"",
    "blank": b"\n \n\n",
    "prose": b"This is a note about a run.\nIt went well.\n",
    "zeros": bytes(100_000),
    "noise": random.Random(4).randbytes(100_000),
    "other JSON": b'{"a": 1}\n{"b": 2}\n',
    "other CSV": b"a,b\n1,2\n",
    "one long line": b"x" * 9_000_000,
    "cut gzip": gzip.compress(b"step,loss\n" * 5)[:9],
    "no gzip": b"\x1f\x8bnot packed at all",
}


@pytest.mark.parametrize("content", NO_LOGS.values(), ids=NO_LOGS)
def test_a_file_of_no_known_form_is_refused_with_a_sentence(content: bytes, tmp_path: Path, replay: Replaying) -> None:
    (tmp_path / "file").write_bytes(content)
    answer = replay(tmp_path / "file")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(f"verl-sentinel: {tmp_path / 'file'} ")
    assert answer.err.rstrip().endswith(".")


@pytest.mark.parametrize("form", READERS)
@pytest.mark.parametrize("content", NO_LOGS.values(), ids=NO_LOGS)
def test_no_content_makes_a_reader_fail(content: bytes, form: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content)
    found: list[object] = []
    with contextlib.suppress(FileUnusable):
        found += READERS[form](tmp_path / "file")
    assert all(isinstance(one, Garbage) for one in found)


@pytest.mark.parametrize("form", WRITERS)
def test_a_file_that_is_cut_anywhere_gives_the_steps_before(form: str, tmp_path: Path) -> None:
    whole = WRITERS[form](files.healthy(1, 12))
    path = tmp_path / "file"
    before = -1
    for end in range(0, len(whole) + 1, 7):
        path.write_bytes(whole[:end])
        try:
            steps = len({one.step for one in READERS[form](path) if isinstance(one, Row)})
        except FileUnusable:
            steps = 0
        assert steps >= before or form == "csv"  # CSV cannot tell a step that was cut from a smaller one
        before = steps
    path.write_bytes(whole)
    assert {one.step for one in READERS[form](path) if isinstance(one, Row)} == set(range(1, 13))


@pytest.mark.parametrize("form", WRITERS)
def test_a_packed_file_that_is_cut_gives_the_steps_before(form: str, tmp_path: Path, replay: Replaying) -> None:
    packed = gzip.compress(WRITERS[form](files.healthy(1, 2000)), mtime=0)
    (tmp_path / "file").write_bytes(packed[: len(packed) // 2])
    answer = replay(tmp_path / "file", "--format", form)
    if form == "trainer-state":  # one JSON value: half of it is none
        assert answer.code == 2
    else:
        assert answer.code == 0
        assert "cut off" in answer.err


@pytest.mark.parametrize("form", WRITERS)
def test_any_byte_may_be_wrong(form: str, tmp_path: Path) -> None:
    whole = WRITERS[form](files.healthy(1, 6))
    chance = random.Random(7)
    path = tmp_path / "file"
    for _ in range(300):
        spoilt = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            spoilt[chance.randrange(len(spoilt))] = chance.randrange(256)
        path.write_bytes(spoilt)
        found: list[Row | Garbage] = []
        with contextlib.suppress(FileUnusable):
            format_of(path)
            found += READERS[form](path)
        assert all(isinstance(one, Garbage) or one.step >= 0 for one in found)


def test_lines_that_are_cut_mixed_or_huge_are_left_out_and_told_of(tmp_path: Path, replay: Replaying) -> None:
    lines = files.jsonl(files.growing_gradient()).splitlines(keepends=True)
    lines[3:3] = [b'{"step": 4, "da\n', b"\xff\xfe\x00\n", b'{"step": 4, "data": "' + b"x" * 5_000_000 + b'"}\n']
    answer = replay(files.written(tmp_path / "file", b"".join(lines)))
    assert answer.code == 0
    assert answer.pages
    assert "Left out: 3 lines or records" in answer.err
    assert answer.err.count("is left out") == 1


def test_a_console_log_in_which_words_are_mixed_keeps_the_rest_of_a_line(tmp_path: Path, replay: Replaying) -> None:
    log = files.console(files.growing_gradient()).replace(b" - train/lr:", b" - (WorkerDict pid=8) lo - train/lr:")
    answer = replay(files.written(tmp_path / "file", log))
    assert answer.pages
    assert "60 values that are no numbers" in answer.err


def test_a_quote_that_is_never_closed_does_not_take_the_memory(tmp_path: Path) -> None:
    text = b'Step,loss\n1,0.5\n2,"0.5\n' + b"3,0.5\n" * 400_000
    path = files.written(tmp_path / "file", text)
    found = list(READERS["csv"](path))
    assert [one.step for one in found[:1] if isinstance(one, Row)] == [1]
    assert any(isinstance(one, Garbage) for one in found)


def test_a_record_that_claims_to_be_huge_is_passed_over(tmp_path: Path, replay: Replaying) -> None:
    length = struct.pack("<Q", 17 * 1024 * 1024)
    huge = length + struct.pack("<I", files.masked_crc32c(length)) + bytes(17 * 1024 * 1024 + 4)
    content = files.event_file(files.healthy(1, 20)) + huge + files.event_file(files.healthy(21, 30))
    answer = replay(files.written(tmp_path / "file", content))
    assert answer.code == 0
    assert "30 steps" in answer.err
    assert "Left out: 1 lines or records" in answer.err


def test_pictures_and_histograms_in_an_event_file_are_no_scalars(tmp_path: Path, replay: Replaying) -> None:
    vector = b"\x08\x01" + files.framed(5, struct.pack("<3f", 1.0, 2.0, 3.0))
    other = [
        files.framed(1, b"picture") + files.framed(4, b"\x08\x01\x10\x01"),
        files.framed(1, b"weights") + files.framed(5, b"\x09" + bytes(8)),
        files.framed(1, b"vector") + files.framed(8, vector),
        files.framed(1, b"text") + files.framed(8, b"\x08\x07" + files.framed(8, b"words")),
    ]
    content = b"".join(
        files.event_file([(step, metrics)]) + files.event(step, other) for step, metrics in files.healthy(1, 20)
    )
    answer = replay(files.written(tmp_path / "file", content))
    assert answer.code == 0
    assert "20 steps" in answer.err
    assert "known here" not in answer.err


def test_a_file_that_is_not_there_is_refused(tmp_path: Path, replay: Replaying) -> None:
    answer = replay(tmp_path / "none")
    assert answer.code == 2
    assert "No such file" in answer.err


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, replay: Replaying) -> None:
    os.mkfifo(tmp_path / "pipe")
    answer = replay(tmp_path / "pipe")
    assert answer.code == 2
    assert "not a regular file" in answer.err


def test_a_folder_without_event_files_is_refused(tmp_path: Path, replay: Replaying) -> None:
    answer = replay(tmp_path)
    assert answer.code == 2
    assert "no event file" in answer.err


def test_a_file_without_a_step_in_the_form_that_was_named_is_refused(tmp_path: Path, replay: Replaying) -> None:
    path = files.written(tmp_path / "file", files.jsonl(files.healthy()))
    answer = replay(path, "--format", "console")
    assert answer.code == 2
    assert "no step that could be read as console" in answer.err


def test_a_file_that_cannot_be_used_is_refused_before_anything_is_said(tmp_path: Path, replay: Replaying) -> None:
    bad = files.written(tmp_path / "bad", files.jsonl(files.growing_gradient()))
    answer = replay(bad, tmp_path / "none")
    assert (answer.code, answer.out) == (2, "")
