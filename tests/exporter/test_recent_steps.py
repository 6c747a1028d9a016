"""The newest steps of a run come back as they were given: all of them, in order, NaN as NaN and absent as absent."""

from __future__ import annotations

import math
import struct

from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.service.recent import RECENT_STEPS, RecentSteps

ODD_NAN = struct.unpack("<d", struct.pack("<Q", 0x7FF8_5665_726C_0001))[0]
"""The NaN that stands for "absent" inside: a sender may send the very same bits."""

SIGNALS = st.dictionaries(st.sampled_from("abcdefgh"), st.floats() | st.just(ODD_NAN), max_size=8)
PARTS = st.lists(st.tuples(st.booleans(), SIGNALS), max_size=60)


def plain(recent: RecentSteps) -> list[tuple[int, int, float, dict[str, str]]]:
    return [(row.step, row.attempt, row.at, {k: repr(v) for k, v in row.signals.items()}) for row in recent]


@given(PARTS)
@settings(max_examples=200, deadline=None)
def test_any_steps_come_back_as_they_were_given(parts: list[tuple[bool, dict[str, float]]]) -> None:
    recent, expected = RecentSteps(), []
    for number, (new, signals) in enumerate(parts):
        if new:
            recent.append(number, 1, float(number), signals)
            expected.append((number, 1, float(number), {k: repr(v) for k, v in signals.items()}))
        else:
            recent.update_last(signals)
            if expected:
                expected[-1][3].update({k: repr(v) for k, v in signals.items()})
    assert plain(recent) == expected
    assert len(recent) == len(expected)


def test_only_the_newest_are_kept_and_the_order_is_that_of_arrival() -> None:
    recent = RecentSteps()
    for step in range(3 * RECENT_STEPS + 5):
        recent.append(step, 1 + step // 300, step * 2.0, {"loss": step / 7, **({"val": 1.0} if step % 10 == 0 else {})})
    rows = list(recent)
    assert [row.step for row in rows] == list(range(2 * RECENT_STEPS + 5, 3 * RECENT_STEPS + 5))
    assert all(row.signals["loss"] == row.step / 7 and row.attempt == 1 + row.step // 300 for row in rows)
    assert all(("val" in row.signals) == (row.step % 10 == 0) for row in rows)


def test_a_later_part_changes_the_newest_step_also_when_the_ring_has_gone_round() -> None:
    recent = RecentSteps()
    for step in range(RECENT_STEPS + 3):
        recent.append(step, 1, 0.0, {"loss": 1.0})
    recent.update_last({"kl": math.inf})
    rows = list(recent)
    assert rows[-1].signals == {"loss": 1.0, "kl": math.inf}
    assert all(row.signals == {"loss": 1.0} for row in rows[:-1])


def test_a_copy_by_bytes_is_the_same() -> None:
    """What a snapshot does with it."""
    recent = RecentSteps()
    recent.append(1, 1, 1.0, {"loss": math.nan})
    recent.append(2, 1, 2.0, {"kl": 1.0})

    again = RecentSteps()
    again.load_state_dict(recent.state_dict())
    assert plain(again) == plain(recent)
    again.append(3, 1, 3.0, {"loss": 0.5})
    assert [row.signals.keys() for row in again] == [{"loss"}, {"kl"}, {"loss"}]
