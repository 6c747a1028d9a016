"""The work and the memory of a scrape are those of the series that there are now, whatever has been before."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

from exporter_scene import Scene
from pages import exposition, samples

from exporter.detectors.registry import build_detectors
from exporter.protocol import ClosedPhase, GpuReading, OpenPhase, PhaseReport, RunFinished


def calls(work: Callable[[], object]) -> int:
    """Function calls, of Python and of C, that ``work`` makes."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def log_steps(scene: Scene, first: int, last: int) -> None:
    for step in range(first, last + 1):
        scene.now += 1.0
        closed = [ClosedPhase(name="gen", seconds=1.0)]
        scene.step(step, grad=1.0 + step % 3, loss=0.5, time=1.0)
        scene.push(phase=PhaseReport(step=step, closed=closed))


def test_the_work_does_not_grow_with_the_steps(tmp_path: Any) -> None:
    scene = Scene(tmp_path, detectors=build_detectors)
    shown = exposition(scene)
    log_steps(scene, 1, 150)
    shown.render()
    log_steps(scene, 151, 152)
    few = calls(shown.render)
    log_steps(scene, 153, 1200)
    shown.render()
    log_steps(scene, 1201, 1202)
    many = calls(shown.render)
    scene.close()
    # Not to the call: the process has its own number of open files, whose listing is in both.
    assert abs(many - few) <= 0.02 * few


def test_labels_that_come_and_go_leave_no_memory_behind(scene: Scene) -> None:
    shown = exposition(scene)

    def another(number: int) -> None:
        scene.now += 200.0
        scene.push(
            attempt=number,
            phase=PhaseReport(step=1, open=[OpenPhase(name=f"phase-{number}", seconds=1.0)]),
            gpus=[
                GpuReading(node=f"node-{number}", index=i, uuid=f"GPU-{number}-{i}", power_watts=1.0) for i in (0, 1)
            ],
        )
        shown.render()

    def held() -> int:
        found = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/service/exposition/*")])
        return sum(trace.size for trace in found.traces)

    tracemalloc.start()
    try:
        for number in range(1, 150):
            another(number)
        early = held()
        for number in range(150, 600):
            another(number)
        late = held()
    finally:
        tracemalloc.stop()
    # What is dropped is dropped now and then; kept for ever, these 450 rounds would be half a megabyte.
    assert late < early + 60_000


def test_the_cache_of_a_run_that_left_is_dropped(scene: Scene) -> None:
    shown = exposition(scene)
    scene.step(1, run="gone")
    scene.push(run="gone", events=[RunFinished(time=0.0, exit_code=0)])
    scene.step(1, run="here")
    assert ("verl_training_step", (("run", "gone"),)) in samples(shown.render().body.decode())
    scene.now += 1000.0
    page = samples(shown.render().body.decode())
    assert not [key for key in page if ("run", "gone") in key[1]]
    assert ("verl_training_step", (("run", "here"),)) in page


def test_a_run_of_the_same_name_that_began_anew_is_not_shown_with_what_the_old_one_had(scene: Scene) -> None:
    shown = exposition(scene)
    scene.step(1, time=5.0)
    shown.render()
    scene.core.roster.forget("r")
    scene.step(1, time=50.0)
    page = samples(shown.render().body.decode())
    assert page["verl_training_step_duration_seconds_sum", (("run", "r"),)] == 50.0
