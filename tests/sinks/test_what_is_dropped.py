"""How far behind the InfluxDB sink may be, and that everything it gives up is counted and nothing else is."""

from __future__ import annotations

import logging

import pytest
from influx_stand_in import InfluxStandIn, Said
from sink_scene import Scene
from test_what_the_server_answers import caught_up, steps_taken
from victoria import wait_for

from exporter.protocol import OpenPhase, PhaseReport
from exporter.service.stored import Entry

HOUR = 3600.0
NOW = 1.7e9


def beat(scene: Scene, at: float | None = None) -> int:
    phase = PhaseReport(step=1, open=[OpenPhase(name="gen", seconds=1.0)])
    entry = scene.push(at=at, phase=phase)
    assert entry.kind == "beat"
    return entry.position


def test_what_is_older_than_the_bound_is_dropped_while_the_server_is_away(scene: Scene, influx: InfluxStandIn) -> None:
    now = [NOW]
    sink = scene.sink(influx.url, max_lag_hours=1.0, clock=lambda: now[0])
    scene.step(1, at=NOW)
    sink.start()
    caught_up(sink, 1)
    influx.answer = lambda write: Said(503, "away")
    for number in range(2, 12):
        beat(scene, at=NOW)
        scene.step(number, at=NOW + number * 60)
    wait_for("it notices", lambda: not sink.health().up)
    assert sink.health().dropped_entries == 0
    assert sink.health().lag_seconds == 0, "the clock has not moved"
    now[0] = NOW + HOUR + 6.5 * 60
    wait_for("the first five are given up", lambda: sink.health().dropped_entries == 5)
    assert sink.health().lag_seconds == pytest.approx(HOUR - 30)
    influx.answer = lambda write: Said()
    last = scene.step(12, at=now[0]).position
    caught_up(sink, last)
    sink.stop()
    assert steps_taken(influx) == {1, *range(7, 13)}
    assert (sink.health().dropped_entries, sink.health().lag_seconds) == (5, 0)


def test_the_first_start_sends_what_is_within_the_bound_and_calls_nothing_dropped(
    scene: Scene, influx: InfluxStandIn
) -> None:
    for number in range(1, 6):
        scene.step(number, at=NOW - 2 * HOUR)
    for number in range(6, 11):
        scene.step(number, at=NOW)
    sink = scene.sink(influx.url, max_lag_hours=1.0, max_lag_entries=8, clock=lambda: NOW)
    sink.start()
    caught_up(sink, 10)
    sink.stop()
    assert steps_taken(influx) == set(range(6, 11))
    assert sink.health().dropped_entries == 0


def test_what_the_journal_has_moved_is_counted_and_its_other_gaps_are_not(scene: Scene, influx: InfluxStandIn) -> None:
    scene.step(1)
    sink = scene.sink(influx.url)
    sink.start()
    caught_up(sink, 1)
    sink.stop()

    for number in range(2, 6):
        scene.step(number)
    scene.step(6, run="forgotten")
    beat(scene)
    last = scene.step(8).position
    scene.journal.forget(["forgotten"])
    scene.journal.delete(0, 3, batches=True)
    scene.source.moved = 3
    sink = scene.sink(influx.url)
    sink.start()
    caught_up(sink, last)
    sink.stop()
    assert steps_taken(influx) == {1, 4, 5, 8}
    assert sink.health().dropped_entries == 2, "steps 2 and 3"


def test_a_journal_that_was_moved_whole_or_is_another_one_is_no_trouble(scene: Scene, influx: InfluxStandIn) -> None:
    for number in range(1, 6):
        scene.step(number)
    sink = scene.sink(influx.url)
    sink.start()
    caught_up(sink, 5)
    scene.journal.delete(0, 5, batches=True)
    scene.source.moved = 5
    last = scene.step(6).position
    caught_up(sink, last)
    sink.stop()
    assert steps_taken(influx) == set(range(1, 7))
    assert sink.health().dropped_entries == 0


def test_an_entry_that_cannot_be_read_is_left_out_and_counted_once(
    scene: Scene, influx: InfluxStandIn, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    influx.answer = lambda write: Said(503, "away") if len(influx.writes) < 4 else Said()
    scene.step(1)
    scene.journal.append([Entry("batch", NOW, "r", b"\xc1 no msgpack", "s", 99)])
    last = scene.step(3).position
    sink = scene.sink(influx.url, max_lag_hours=24 * 366, clock=lambda: NOW)
    sink.start()
    caught_up(sink, last)
    sink.stop()
    assert steps_taken(influx) == {1, 3}
    assert sink.health().dropped_entries == 1
    assert len([r for r in caplog.records if "cannot be sent" in r.message]) == 1


def test_a_journal_that_cannot_be_read_is_told_and_tried_again(
    scene: Scene, influx: InfluxStandIn, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "exporter.sinks")
    path = scene.journal.path
    scene.step(1)
    scene.journal.close()
    hidden = path.with_name("hidden")
    path.rename(hidden)
    sink = scene.sink(influx.url)
    sink.start()
    wait_for("it is told", lambda: not sink.health().up)
    assert str(path) in sink.health().last_error
    hidden.rename(path)
    caught_up(sink, 1)
    sink.stop()
    assert sink.health().up
    assert len([r for r in caplog.records if "works again" in r.message and "behind by 1 " in r.message]) == 1


def test_heartbeats_make_no_points_and_no_lag(scene: Scene, influx: InfluxStandIn) -> None:
    for _ in range(50):
        last = beat(scene)
    sink = scene.sink(influx.url)
    sink.start()
    caught_up(sink, last)
    sink.stop()
    assert influx.writes == []
    assert (sink.health().lag_entries, sink.health().written_points, sink.health().up) == (0, 0, True)
