"""On a small machine the work beside training rests; what somebody waits for does not."""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from trainer_entry.checkpoints import CheckpointError, hashing, keeper
from trainer_entry.checkpoints.resting import CORES, LONGEST_SECONDS, Rest, share
from trainer_entry.checkpoints.tiers.pace import Pace


class Clock:
    """CPU seconds of a process, and how long it has rested."""

    def __init__(self) -> None:
        self.cpu = 5.0
        self.rested = 0.0

    def rest(self, of_time: float) -> Rest:
        return Rest(of_time, sleep=self._sleep, cpu=lambda: self.cpu)

    def _sleep(self, seconds: float) -> None:
        assert 0.0 < seconds <= LONGEST_SECONDS
        self.rested += seconds


@pytest.mark.parametrize("of_time", [0.125, 0.25, 0.5])
@pytest.mark.parametrize("pieces", [(0.01,) * 100, (0.0, 0.2, 0.01)])
def test_of_the_time_it_takes_its_share_whatever_the_pieces(of_time: float, pieces: Sequence[float]) -> None:
    clock = Clock()
    pace = Pace(rest=clock.rest(of_time))
    for seconds in pieces:
        clock.cpu += seconds
        pace.took(1 << 20)
    assert sum(pieces) / (sum(pieces) + clock.rested) == pytest.approx(of_time)


def test_where_there_are_many_cores_nothing_rests() -> None:
    clock = Clock()
    rest = clock.rest(share(CORES))
    clock.cpu += 100.0
    rest.after_a_piece()
    assert clock.rested == 0.0


def test_no_rest_is_so_long_that_somebody_who_stops_it_waits() -> None:
    clock = Clock()
    rest = clock.rest(0.1)
    clock.cpu += 1000.0
    rest.after_a_piece()
    assert clock.rested == LONGEST_SECONDS


def test_a_rest_ends_when_training_does_and_none_follows() -> None:
    cpu = Clock()
    rest = Rest(0.001, cpu=lambda: cpu.cpu)
    resting = threading.Thread(target=lambda: [rest.after_a_piece() for _ in range(1000)])
    cpu.cpu += 1000.0
    resting.start()
    rest.end()
    resting.join(60.0)
    assert not resting.is_alive()


@pytest.mark.parametrize("over", [True, False])
def test_the_process_that_hashes_is_told_when_training_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, over: bool
) -> None:
    """Another program in its place answers once nothing trains any more, or after a moment that something does."""
    program = tmp_path / "python"
    program.write_text(
        "#!/bin/sh\nif timeout 3 cat; then said=over; else said=trains; fi\n"
        'printf \'{"sentence": "%s", "problem": "content"}\' $said\n'
    )
    program.chmod(0o755)
    monkeypatch.setattr(hashing.sys, "executable", str(program))
    ended = threading.Event()
    if over:
        ended.set()
    with pytest.raises(CheckpointError, match="over" if over else "trains"):
        hashing.hash_elsewhere(str(tmp_path), 1, threading.Event(), ended)


@pytest.mark.parametrize("rests", [True, False])
def test_a_keeper_rests_where_it_is_started_beside_training_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rests: bool
) -> None:
    made: list[Any] = []
    monkeypatch.setattr(keeper, "work", lambda *words: made.append(words[-1]) or 0)
    monkeypatch.setattr(keeper, "idle_priority", lambda: None)
    monkeypatch.setattr(keeper, "first_to_go", lambda: None)
    monkeypatch.setattr(keeper.threading.Thread, "start", lambda thread: None)
    monkeypatch.setattr(keeper.signal, "signal", lambda *words: None)
    started: list[list[str]] = []
    monkeypatch.setattr(keeper.subprocess, "Popen", lambda words, **how: started.append(words))
    policy = tmp_path / "policy.yml"
    policy.write_text(f"snapshot: {{place: {tmp_path}/snapshots}}\n")
    keeper.start(str(tmp_path), "r", str(policy), rests=rests)
    assert keeper.main(started[0][started[0].index("trainer_entry.checkpoints.keeper") + 1 :]) == 0
    assert isinstance(made[0], Rest) == rests


def test_the_process_that_hashes_rests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces: list[int] = []
    monkeypatch.setattr(hashing, "idle_priority", lambda: None)
    monkeypatch.setattr(hashing, "end_with_parent", lambda parent: None)
    monkeypatch.setattr(hashing.Rest, "after_a_piece", lambda rest: pieces.append(1))
    monkeypatch.setattr(sys, "stdin", open(os.devnull))  # noqa: SIM115 - its number is what is used
    answer = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(sys, "stdout", answer)
    actor = tmp_path / "global_step_1" / "actor"
    actor.mkdir(parents=True)
    for kind in ("model", "optim", "extra_state"):
        (actor / f"{kind}_world_size_1_rank_0.pt").write_bytes(b"w" * 9_000_000)
    (actor.parent / "data.pt").write_bytes(b"d")
    assert hashing.main([str(actor.parent), "1", "1"]) == 0
    assert len(pieces) >= 6, "a rest after each buffer, not after each file"
