"""The spool is bounded, survives damage, and belongs to one living process at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_entry.push.outbox import Outbox
from trainer_entry.push.spool import Spool, SpoolBusy, orphans


def drain(box: Spool | Outbox) -> list[bytes]:
    found = []
    while (payload := box.peek()) is not None:
        found.append(payload)
        box.ack()
    return found


def leave(directory: Path, sender: str, payloads: list[bytes], max_bytes: int = 1 << 20) -> Path:
    """What a dead process leaves behind; returns its first segment."""
    spool = Spool(directory, sender, max_bytes=max_bytes)
    for payload in payloads:
        spool.append(payload)
    spool.abandon()
    return min(directory.glob(f"{sender}.*.spool"))


@given(st.lists(st.one_of(st.binary(max_size=300), st.none()), max_size=40))
def test_first_in_first_out_however_writing_and_sending_alternate(
    tmp_path_factory: pytest.TempPathFactory, actions: list[bytes | None]
) -> None:
    expected: list[bytes] = []
    with Spool(tmp_path_factory.mktemp("spool"), "s", max_bytes=1 << 20) as spool:
        for action in actions:
            if action is not None:
                spool.append(action)
                expected.append(action)
            elif expected:
                assert spool.peek() == expected.pop(0)
                spool.ack()
        assert drain(spool) == expected


def test_the_bound_in_bytes_drops_the_oldest_and_counts_them(tmp_path: Path) -> None:
    payloads = [bytes([number]) * 90 for number in range(100)]
    with Spool(tmp_path, "s", max_bytes=2000) as spool:
        for payload in payloads:
            spool.append(payload)
            assert spool.size <= 2000
            assert sum(path.stat().st_size for path in tmp_path.glob("*.spool")) <= 2000
        left = drain(spool)
        assert left == payloads[-len(left) :]
        assert spool.dropped == 100 - len(left)
        assert len(left) >= 10


def test_a_drained_spool_leaves_no_file(tmp_path: Path) -> None:
    with Spool(tmp_path, "s", max_bytes=1000) as spool:
        for number in range(20):
            spool.append(bytes([number]) * 100)
        drain(spool)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("cut", [1, 8, 50])
def test_a_frame_that_was_torn_by_a_kill_ends_the_segment_and_the_rest_is_sent(tmp_path: Path, cut: int) -> None:
    segment = leave(tmp_path, "dead", [b"a" * 50, b"b" * 50])
    segment.write_bytes(segment.read_bytes()[:-cut])
    with Spool(tmp_path, "dead", max_bytes=1000, adopted=True) as spool:
        assert drain(spool) == [b"a" * 50]
        assert spool.dropped == 1


def test_a_damaged_byte_never_becomes_a_batch(tmp_path: Path) -> None:
    segment = leave(tmp_path, "dead", [b"a" * 50, b"b" * 50])
    content = bytearray(segment.read_bytes())
    content[20] ^= 1
    segment.write_bytes(content)
    with Spool(tmp_path, "dead", max_bytes=1000, adopted=True) as spool:
        assert drain(spool) == []
        assert spool.dropped == 1


def test_a_length_that_claims_the_whole_memory_is_not_believed(tmp_path: Path) -> None:
    segment = leave(tmp_path, "dead", [b"a"])
    segment.write_bytes(b"\xff\xff\xff\xff" + segment.read_bytes())
    with Spool(tmp_path, "dead", max_bytes=1000, adopted=True) as spool:
        assert drain(spool) == []


def test_one_living_owner_at_a_time(tmp_path: Path) -> None:
    with Spool(tmp_path, "s", max_bytes=1000) as spool:
        spool.append(b"mine")
        with pytest.raises(SpoolBusy):
            Spool(tmp_path, "s", max_bytes=1000, adopted=True)


def test_a_link_in_the_spool_directory_is_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"do not touch")
    directory = tmp_path / "spool"
    directory.mkdir()
    (directory / "evil.000001.spool").symlink_to(secret)
    outbox = Outbox(directory, "me", warn=lambda cause, sentence: None)
    outbox.adopt_orphans()
    assert outbox.empty
    outbox.close()
    assert secret.read_bytes() == b"do not touch"


def test_orphans_are_sent_before_our_own_oldest_first(tmp_path: Path) -> None:
    import os

    for age, sender in ((300, "older"), (100, "newer")):
        segment = leave(tmp_path, sender, [sender.encode()])
        os.utime(segment, (segment.stat().st_mtime - age,) * 2)
    assert orphans(tmp_path) == ["older", "newer"]
    outbox = Outbox(tmp_path, "me", warn=lambda cause, sentence: None)
    outbox.append(b"me")
    assert outbox.adopt_orphans() == 2
    assert drain(outbox) == [b"older", b"newer", b"me"]
    outbox.close()


def test_memory_is_bounded_where_there_is_no_disk() -> None:
    told: list[str] = []
    outbox = Outbox(None, "me", memory_bytes=1000, warn=lambda cause, sentence: told.append(sentence))
    for number in range(50):
        outbox.append(bytes([number]) * 100)
    assert drain(outbox) == [bytes([number]) * 100 for number in range(40, 50)]
    assert outbox.dropped == 40
    assert "dropped" in told[0]
