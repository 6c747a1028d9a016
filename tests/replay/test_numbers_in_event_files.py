"""A scalar of an event file is read however a writer has put it down."""

from __future__ import annotations

import math
import struct

import past_files as files
import pytest

from exporter.replay.event_records import HEADER_BYTES, Malformed, scalars

PLAIN = files.framed(1, b"loss")


def tensor(kind: int, *fields: bytes) -> bytes:
    return PLAIN + files.framed(8, bytes((0x08, kind)) + files.framed(2, b"") + b"".join(fields))


NUMBERS = {
    "plain": PLAIN + b"\x15" + struct.pack("<f", -2.0),
    "metadata first": PLAIN + files.framed(9, files.framed(1, b"x")) + b"\x15" + struct.pack("<f", -2.0),
    "float": tensor(1, files.framed(5, struct.pack("<f", -2.0))),
    "float, not packed": tensor(1, b"\x2d" + struct.pack("<f", -2.0)),
    "float content": tensor(1, files.framed(4, struct.pack("<f", -2.0))),
    "double": tensor(2, files.framed(6, struct.pack("<d", -2.0))),
    "double content": tensor(2, files.framed(4, struct.pack("<d", -2.0))),
    "int": tensor(3, files.framed(7, files.varint(2**64 - 2))),
    "int, not packed": tensor(3, b"\x38" + files.varint(2**64 - 2)),
    "long": tensor(9, files.framed(10, files.varint(2**64 - 2))),
    "long content": tensor(9, files.framed(4, struct.pack("<q", -2))),
}
NONE = {
    "two floats": tensor(1, files.framed(5, struct.pack("<2f", 1.0, 2.0))),
    "content of two": tensor(1, files.framed(4, struct.pack("<2f", 1.0, 2.0))),
    "text": tensor(7, files.framed(8, b"words")),
    "no number": tensor(1),
    "no name": b"\x15" + struct.pack("<f", 1.0),
}


def content(value: bytes, step: int = 300) -> bytes:
    return files.event(step, [value])[HEADER_BYTES:-4]


@pytest.mark.parametrize("value", NUMBERS.values(), ids=NUMBERS)
def test_a_number_is_read(value: bytes) -> None:
    found = scalars(content(value))
    assert (found.step, found.time, found.values) == (300, 1.7e9 + 300, (("loss", -2.0),))


@pytest.mark.parametrize("value", NONE.values(), ids=NONE)
def test_what_is_no_single_number_is_none(value: bytes) -> None:
    assert scalars(content(value)).values == ()


@pytest.mark.parametrize("tag", ["B", "aB\n", "x" * 127, "x" * 128, "x" * 300, "über", "a\x15bcde"])
@pytest.mark.parametrize("write", [files.simple, files.tensor])
def test_any_name_is_read(tag: str, write: object) -> None:
    for number in (0.5, math.inf, 2.0**-20):
        value = write(tag, number)  # type: ignore[operator]
        assert scalars(content(value, step=0)).values == ((tag, number),)


def test_several_values_of_one_event_are_all_read() -> None:
    event = files.event(7, [files.simple("a", 1.0), files.simple("b", 2.0)])[HEADER_BYTES:-4]
    assert scalars(event).values == (("a", 1.0), ("b", 2.0))


@pytest.mark.parametrize("bad", [b"\x09abc", b"\xff" * 12, b"\x2a\x7f", b"\x0b", b"\x0a\x01a"])
def test_bytes_that_are_no_event_are_said_to_be_none(bad: bytes) -> None:
    with pytest.raises(Malformed):
        scalars(bad)
