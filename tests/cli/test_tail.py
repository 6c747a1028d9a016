"""A file that another process writes: appended to, truncated in place, replaced, copied over, removed."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from exporter.follow.tail import MAX_LINE_BYTES, FileUnreadable, Packed, Tail


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.jsonl"


def texts(tail: Tail) -> list[bytes | None]:
    return [line.text for line in tail.lines(1 << 30)]


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_lines_come_once_and_whole(path: Path) -> None:
    tail = Tail(path)
    assert tail.look() == "missing"
    append(path, b"one\ntw")
    assert (tail.look(), texts(tail)) == ("new", [b"one"])
    assert (tail.look(), texts(tail), tail.rest()) == ("same", [], b"tw")
    append(path, b"o\nthree\n")
    assert (tail.look(), texts(tail), tail.rest()) == ("same", [b"two", b"three"], b"")


def test_a_file_truncated_in_place_is_new(path: Path) -> None:
    append(path, b"one\ntwo\n")
    tail = Tail(path)
    tail.look()
    texts(tail)
    with path.open("wb", buffering=0) as file:
        assert tail.look() == "new"
        assert texts(tail) == []
        file.write(b"three\n")
        assert (tail.look(), texts(tail)) == ("same", [b"three"])


@pytest.mark.parametrize("new", [b"ONE\nTWO\n", b"one\ntwO\n", b"ONE\nTWO\nand more than there was\n", b"x\n"])
def test_a_file_truncated_and_written_again_between_two_looks_is_new(path: Path, new: bytes) -> None:
    append(path, b"one\ntwo\n")
    tail = Tail(path)
    tail.look()
    texts(tail)
    path.write_bytes(new)
    assert (tail.look(), texts(tail)) == ("new", new.splitlines())


def test_what_was_written_before_a_file_was_moved_away_is_read_before_the_new_one(path: Path) -> None:
    append(path, b"one\n")
    tail = Tail(path)
    tail.look()
    texts(tail)
    append(path, b"two\n")
    path.rename(path.with_suffix(".1"))
    append(path, b"three\n")
    assert (tail.look(), texts(tail)) == ("same", [b"two"])
    assert (tail.look(), texts(tail)) == ("new", [b"three"])


def test_a_copy_in_the_files_place_is_the_same_file(path: Path) -> None:
    append(path, b"one\ntwo")
    tail = Tail(path)
    tail.look()
    texts(tail)
    copy = path.with_suffix(".copy")
    copy.write_bytes(b"one\ntwo\nthree\n")
    os.replace(copy, path)
    assert (tail.look(), texts(tail)) == ("same", [b"two", b"three"])


def test_a_file_that_is_removed_and_comes_back_is_new(path: Path) -> None:
    append(path, b"one\n")
    tail = Tail(path)
    tail.look()
    texts(tail)
    path.unlink()
    assert (tail.look(), texts(tail)) == ("gone", [])
    append(path, b"two\n")
    assert (tail.look(), texts(tail)) == ("new", [b"two"])


def test_a_line_without_end_is_not_kept_in_memory(path: Path) -> None:
    append(path, b"one\n" + b"x" * (MAX_LINE_BYTES + 10))
    tail = Tail(path)
    tail.look()
    assert texts(tail) == [b"one"]
    assert tail.rest() == b""
    append(path, b"x" * (2 * MAX_LINE_BYTES) + b"\ntwo\n")
    assert (tail.look(), texts(tail)) == ("same", [None, b"two"])


def test_reading_goes_on_at_a_place_that_was_kept(path: Path) -> None:
    append(path, b"one\ntwo\nthree\n")
    tail = Tail(path)
    tail.look()
    place = list(tail.lines(1 << 30))[1]
    again = Tail(path)
    assert again.start_at(place.end, place.anchor)
    assert (again.look(), texts(again)) == ("same", [b"three"])


@pytest.mark.parametrize("content", [b"", b"one\n", b"one\ntwO\nthree\n", b"\n\n\n\n\n\n\n\n\n"])
def test_a_place_in_another_file_is_refused(path: Path, content: bytes) -> None:
    append(path, b"one\ntwo\nthree\n")
    tail = Tail(path)
    tail.look()
    place = list(tail.lines(1 << 30))[1]
    path.write_bytes(content)
    assert not Tail(path).start_at(place.end, place.anchor)


def test_what_is_no_file_is_told_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(FileUnreadable, match="is not a regular file"):
        Tail(tmp_path).look()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileUnreadable, match="is not a regular file"):
        Tail(tmp_path / "pipe").look()


def test_a_packed_file_is_read_whole_or_told_to_be_broken(tmp_path: Path) -> None:
    packed = gzip.compress(b"one\ntwo\n" * 1000)
    (tmp_path / "a.gz").write_bytes(packed)
    tail = Packed(tmp_path / "a.gz")
    assert (tail.look(), len(texts(tail))) == ("new", 2000)
    for broken in (packed[:-20], b"not packed at all\n"):
        (tmp_path / "b.gz").write_bytes(broken)
        tail = Packed(tmp_path / "b.gz")
        tail.look()
        with pytest.raises(FileUnreadable, match="is not a whole gzip file"):
            texts(tail)
