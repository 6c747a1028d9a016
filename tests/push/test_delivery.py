"""What is handed over arrives once and in order, as numbers, without waiting for anybody."""

from __future__ import annotations

import math
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from push_receiver import Receiver, until

from exporter.protocol import (
    Command,
    GpuReading,
    HooksReported,
    PushAnswer,
    Run,
    RunFinished,
    RunStarted,
)
from trainer_entry.push import PushClient

Connect = Callable[..., PushClient]


@pytest.fixture
def receiver() -> object:
    with Receiver() as running:
        yield running


def test_steps_arrive_once_and_in_order(receiver: Receiver, connect: Connect) -> None:
    client = connect(receiver.url)
    for step in range(1, 201):
        client.step(step, {"loss": float(step)})
    assert client.flush(10)
    assert [step.step for step in receiver.steps()] == list(range(1, 201))
    assert [step.metrics["loss"] for step in receiver.steps()] == [float(step) for step in range(1, 201)]


def test_batches_are_numbered_from_one_by_a_sender_of_its_own(receiver: Receiver, connect: Connect) -> None:
    first, second = connect(receiver.url), connect(receiver.url)
    for client in (first, second, first, second):
        client.step(1, {"loss": 1.0})
        assert client.flush(10)
    assert first.sender.id != second.sender.id
    for client in (first, second):
        numbers = [batch.seq for batch in receiver.batches if batch.sender.id == client.sender.id]
        assert numbers == list(range(1, len(numbers) + 1))


def test_a_finished_step_does_not_wait_for_the_next_heartbeat(receiver: Receiver, connect: Connect) -> None:
    client = connect(receiver.url, heartbeat_seconds=3600.0)
    client.step(1, {"loss": 1.0})
    until(lambda: len(receiver.steps()) == 1, "the first step")
    client.step(2, {"loss": 1.0})
    until(lambda: len(receiver.steps()) == 2, "the second step, long before the heartbeat")


def test_numpy_scalars_become_floats_and_what_is_no_number_is_left_out(receiver: Receiver, connect: Connect) -> None:
    client = connect(receiver.url)
    client.step(
        np.int64(7),
        {
            "float32": np.float32(0.5),
            "int64": np.int64(3),
            "zero_dimensions": np.array(2.0),
            "nan": np.float64("nan"),
            "infinite": -np.inf,
            "text": "0.5",
            "nothing": None,
            "vector": np.zeros(3),
            "table": {"a": 1.0},
        },
    )
    assert client.flush(10)
    (step,) = receiver.steps()
    assert step.step == 7
    assert set(step.metrics) == {"float32", "int64", "zero_dimensions", "nan", "infinite"}
    assert (step.metrics["float32"], step.metrics["int64"], step.metrics["zero_dimensions"]) == (0.5, 3.0, 2.0)
    assert math.isnan(float(step.metrics["nan"]))
    assert step.metrics["infinite"] == -math.inf


def test_metrics_are_those_of_the_moment_they_were_logged(receiver: Receiver, connect: Connect) -> None:
    client = connect(receiver.url)
    metrics = {"loss": 1.0}
    client.step(1, metrics)
    metrics["loss"] = 2.0
    assert client.flush(10)
    assert receiver.steps()[0].metrics == {"loss": 1.0}


def test_an_object_that_raises_when_read_loses_only_itself(receiver: Receiver, connect: Connect) -> None:
    class Hostile:
        def __float__(self) -> float:
            raise RuntimeError("no")

    client = connect(receiver.url)
    client.step(1, {"bad": Hostile(), "good": 1.0})
    assert client.flush(10)
    assert receiver.steps()[0].metrics == {"good": 1.0}


def test_text_that_is_no_unicode_loses_only_itself(receiver: Receiver, connect: Connect) -> None:
    told: list[str] = []
    client = connect(receiver.url, report=told.append)
    client.step(1, {"bad \udcff": 1.0, "good": 2.0})
    client.event(RunStarted(time=1.0, config={"path": "/data/\udcff"}))
    client.event(RunStarted(time=2.0, config={"path": "/data"}))
    client.step(2, {"good": 3.0})
    assert client.flush(10)
    assert [step.metrics for step in receiver.steps()] == [{"bad ?": 1.0, "good": 2.0}, {"good": 3.0}]
    assert [event.time for batch in receiver.batches for event in batch.events] == [2.0]
    assert client.status().dropped == 1
    assert len(told) == 1


def test_events_keep_their_place_between_steps(receiver: Receiver, connect: Connect) -> None:
    client = connect(receiver.url)
    client.event(RunStarted(time=1.0, config={"a.b": 1}))
    client.event(HooksReported(time=1.0, installed=["x"]))
    client.step(1, {"loss": 1.0})
    client.event(RunFinished(time=2.0, exit_code=0))
    assert client.close(10)
    kinds = [type(event) for batch in receiver.batches for event in batch.events]
    assert kinds == [RunStarted, HooksReported, RunFinished]


def test_what_was_handed_over_before_a_new_attempt_belongs_to_the_old_one(receiver: Receiver, connect: Connect) -> None:
    client = connect(receiver.url, "supervisor")
    client.step(1, {"loss": 1.0})
    client.set_run(Run(run_id="run", attempt=2))
    client.step(2, {"loss": 1.0})
    assert client.flush(10)
    attempts = {step.step: batch.run.attempt for batch in receiver.batches for step in batch.steps}
    assert attempts == {1: 1, 2: 2}


def test_the_heartbeat_says_which_phases_are_open_while_nothing_is_logged(receiver: Receiver, connect: Connect) -> None:
    client = connect(receiver.url, heartbeat_seconds=0.05)
    client.phases.step_source = lambda: 4
    outer = client.phases.begin("step")
    inner = client.phases.begin("gen")
    client.start()
    until(lambda: len([b for b in receiver.batches if b.phase]) >= 2, "two heartbeats")
    first, second = [batch.phase for batch in receiver.batches if batch.phase][:2]
    assert first is not None
    assert second is not None
    assert first.step == 4
    assert [phase.name for phase in first.open] == ["step", "gen"]
    assert second.open[0].seconds > first.open[0].seconds
    client.phases.end(inner)
    until(lambda: any(b.phase and [c.name for c in b.phase.closed] == ["gen"] for b in receiver.batches), "gen closed")
    client.phases.end(outer)
    until(lambda: bool(b := [b for b in receiver.batches if b.phase]) and not b[-1].phase.open, "nothing open")  # type: ignore[union-attr]


def test_a_flush_sends_the_phases_of_now_and_nothing_follows_the_end(receiver: Receiver, connect: Connect) -> None:
    client = connect(receiver.url, heartbeat_seconds=3600.0)
    client.phases.end(client.phases.begin("gen"))
    client.step(1, {"loss": 1.0})
    assert client.flush(10)
    assert any(b.phase and [phase.name for phase in b.phase.closed] == ["gen"] for b in receiver.batches)
    client.event(RunFinished(time=1.0))
    assert client.close(10)
    assert receiver.batches[-1].events == [RunFinished(time=1.0)]


def test_a_worker_sends_rollout_counts_when_they_change_and_nothing_else(receiver: Receiver, connect: Connect) -> None:
    client = connect(receiver.url, "worker", heartbeat_seconds=None)
    for _ in range(3):
        client.rollouts.started()
    client.rollouts.succeeded()
    client.rollouts.failed()
    client.start()
    until(lambda: len(receiver.batches) == 1, "the first counts")
    counts = receiver.batches[0].rollout
    assert counts is not None
    assert (counts.succeeded, counts.failed, counts.cancelled, counts.in_flight) == (1, 1, 0, 1)
    client.rollouts.cancelled()
    until(lambda: len(receiver.batches) == 2, "the counts that changed")
    assert all(batch.phase is None for batch in receiver.batches)


def test_gpu_readings_go_with_the_next_heartbeat_and_only_once(receiver: Receiver, connect: Connect) -> None:
    client = connect(receiver.url, "gpu", heartbeat_seconds=0.05)
    client.gpus([GpuReading(node="n", index=0, memory_used_bytes=1)])
    client.start()
    until(lambda: len(receiver.batches) >= 3, "three heartbeats")
    assert [len(batch.gpus) for batch in receiver.batches[:3]] == [1, 0, 0]


def test_a_command_in_an_answer_reaches_the_supervisor_and_its_error_does_not_stop_the_heartbeat(
    connect: Connect,
) -> None:
    taken: list[str] = []

    def take(command: Command) -> None:
        taken.append(command.id)
        raise RuntimeError("the supervisor is confused")

    command = Command(id="c1", run_id="run", attempt=1, action="rollback")
    with Receiver(answer=lambda batch: (200, PushAnswer(accepted_seq=batch.seq, command=command), {})) as receiver:
        connect(receiver.url, "supervisor", on_command=take, heartbeat_seconds=0.02).start()
        until(lambda: len(taken) >= 3, "the command, again and again until it is acknowledged")
    assert set(taken) == {"c1"}


def test_the_token_goes_as_bearer(receiver: Receiver, connect: Connect) -> None:
    client = connect(receiver.url, token="push-me")
    client.step(1, {"loss": 1.0})
    assert client.flush(10)
    assert receiver.authorizations == ["Bearer push-me"] * len(receiver.requests)


def test_a_process_with_nothing_to_send_starts_no_thread_and_opens_no_file(connect: Connect, tmp_path: Path) -> None:
    before = set(threading.enumerate())
    client = connect("http://127.0.0.1:9")
    client.phases.begin("step")
    client.rollouts.started()
    assert set(threading.enumerate()) == before
    assert list(tmp_path.iterdir()) == []


def test_a_forked_child_is_silent_and_leaves_the_parents_batches_alone(receiver: Receiver, connect: Connect) -> None:
    client = connect(receiver.url)
    client.step(1, {"loss": 1.0})
    assert client.flush(10)
    child = os.fork()
    if child == 0:
        client.step(666, {"loss": 1.0})
        client.close(timeout=0.5)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    client.step(2, {"loss": 1.0})
    assert client.close(10)
    assert [step.step for step in receiver.steps()] == [1, 2]


def test_a_fork_while_an_answer_is_awaited_does_not_hang_the_child(connect: Connect) -> None:
    asked, answer = threading.Event(), threading.Event()

    def wait(batch: object) -> None:
        asked.set()
        answer.wait(20)

    with Receiver(answer=wait) as receiver:
        client = connect(receiver.url)
        client.step(1, {"loss": 1.0})
        assert asked.wait(20)
        child = os.fork()
        if child == 0:
            client.close(timeout=0.5)
            os._exit(0)
        until(lambda: os.waitpid(child, os.WNOHANG)[0] == child, "the end of the child")
        answer.set()
        assert client.close(10)
        assert [step.step for step in receiver.steps()] == [1]


def test_an_idle_connection_that_the_exporter_closed_is_opened_again_without_loss(connect: Connect) -> None:
    with Receiver() as receiver:
        client = connect(receiver.url, heartbeat_seconds=3600.0)
        client.step(1, {"loss": 1.0})
        assert client.flush(10)
        port = receiver.port
    with Receiver(port) as receiver:
        client.step(2, {"loss": 1.0})
        assert client.flush(10)
        assert [step.step for step in receiver.steps()] == [2]


def test_nothing_listening_is_told_once_and_raises_nothing(connect: Connect) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    told: list[str] = []
    client = connect(f"http://127.0.0.1:{port}", report=told.append)
    for step in range(3):
        client.step(step, {"loss": 1.0})
        assert not client.flush(2)
    (sentence,) = told
    assert f"127.0.0.1:{port}" in sentence
    assert "disk" in sentence
