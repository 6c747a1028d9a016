"""Each hook on a stand-in for the part of verl that it wraps: verl does what it did, and what happened arrives."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import io
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from push_receiver import Receiver, until

from exporter.protocol import CheckpointSaved, HooksReported, RunFinished, RunStarted, WeightsSynced
from trainer_entry.configuration import flatten
from trainer_entry.plugin.hooks.base import LEGACY, SFT, V1
from trainer_entry.plugin.hooks.checkpoints import Checkpoints
from trainer_entry.plugin.hooks.clean_stop import CleanStop
from trainer_entry.plugin.hooks.fit import FIT_TARGETS
from trainer_entry.plugin.hooks.phases import Phases
from trainer_entry.plugin.hooks.rollouts import Rollouts
from trainer_entry.plugin.hooks.run_end import RunEnd
from trainer_entry.plugin.hooks.step_metrics import StepMetrics
from trainer_entry.plugin.hooks.weight_sync import WeightSync
from trainer_entry.plugin.memory import METRIC
from trainer_entry.plugin.runtime import Runtime
from trainer_entry.plugin.wrapping import Target
from trainer_entry.settings import Settings


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def runtime(receiver: Receiver, tmp_path: Path, told: list[str]) -> Iterator[Runtime]:
    made = Runtime(Settings(url=receiver.url, run_id="r", state_dir=tmp_path), "0.9.1", report=told.append)
    yield made
    made.finish(RunFinished(time=0.0))


@pytest.fixture
def training(runtime: Runtime) -> Runtime:
    """A process that has opened its tracking."""
    runtime.open_trainer("p", "e", {"trainer": {"default_local_dir": "c"}})
    return runtime


def module_with(**attributes: Any) -> Any:
    module = ModuleType("stand_in")
    for name, value in attributes.items():
        setattr(module, name, value)
    return module


class Tracking:
    """verl's signature, with a list in the place of the backends."""

    def __init__(self, project_name: str, experiment_name: str, default_backend: Any = "console", config: Any = None):
        if default_backend == "wrong":
            raise AssertionError("wrong is not supported")
        self.lines: list[Any] = []
        self._finished = False

    def log(self, data: Any, step: int, backend: Any = None) -> str:
        self.lines.append((step, data, backend))
        return "logged"

    def finish(self, exit_code: int = 0) -> None:
        self._finished = True


def tracking_module(runtime: Runtime) -> Any:
    module = module_with(Tracking=type("Tracking", (Tracking,), dict(vars(Tracking))))
    hook = StepMetrics(runtime)
    for target in hook.targets:
        hook.install(module, target)
    return module


def test_opening_the_tracking_sends_the_configuration_flat_and_without_secrets(
    runtime: Runtime, receiver: Receiver
) -> None:
    config = {"trainer": {"logger": ["console"], "nnodes": 1, "none": None}, "wandb": {"api_key": "hush"}, "lr": 1e-6}
    tracking_module(runtime).Tracking("p", experiment_name="e", config=config)
    until(lambda: bool(receiver.events(RunStarted)), "the start")
    (event,) = receiver.events(RunStarted)
    assert isinstance(event, RunStarted)
    limit = event.config.pop("verl_sentinel.run_memory_limit_bytes")  # of this machine, which the plugin adds
    assert isinstance(limit, int)
    assert event.config == {
        "trainer.logger": '["console"]',
        "trainer.nnodes": 1,
        "trainer.none": None,
        "wandb.api_key": "(hidden)",
        "lr": 1e-6,
    }
    run = receiver.batches[0].run
    assert (run.run_id, run.project, run.experiment, run.verl_version) == ("r", "p", "e", "0.9.1")


def test_every_step_reaches_both_verls_backends_and_the_exporter(runtime: Runtime, receiver: Receiver) -> None:
    tracking = tracking_module(runtime).Tracking("p", "e")
    assert tracking.log(data={"a": np.float32(0.5), "text": "x"}, step=1) == "logged"
    assert tracking.log({"b": float("nan")}, np.int64(2), backend="console") == "logged"
    until(lambda: len(receiver.steps()) == 2, "both steps")
    # What the run holds of the host's memory comes beside them, from when it was first looked at.
    verls = [(step.step, sorted(step.metrics.keys() - {METRIC})) for step in receiver.steps()]
    assert verls == [(1, ["a"]), (2, ["b"])]
    assert tracking.lines[0] == (1, {"a": np.float32(0.5), "text": "x"}, None)
    assert tracking.lines[1][2] == "console"


@pytest.mark.parametrize("data", [None, 7, [1.0], object()])
def test_logging_what_is_no_mapping_is_verls_business_and_told_once(
    runtime: Runtime, told: list[str], data: Any
) -> None:
    tracking = tracking_module(runtime).Tracking("p", "e")
    for _ in range(3):
        assert tracking.log(data, 1) == "logged"
    assert len([sentence for sentence in told if "step_metrics" in sentence]) == 1
    assert runtime.failures["step_metrics"] == 3


def test_a_failure_of_ours_that_nobody_can_be_told_of_stays_away_from_training(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gone = io.StringIO()
    gone.close()
    monkeypatch.setattr(sys, "stderr", gone)
    runtime = Runtime(Settings(url="http://127.0.0.1:9", run_id="run", state_dir=tmp_path), "0.9.1")
    assert runtime.guarded("step_metrics", lambda: 1 / 0) is None
    assert runtime.failures == {"step_metrics": 1}


def test_verls_own_errors_pass_unchanged(runtime: Runtime) -> None:
    with pytest.raises(AssertionError, match="wrong is not supported"):
        tracking_module(runtime).Tracking("p", "e", "wrong")


def test_a_configuration_of_any_size_is_cut(runtime: Runtime) -> None:
    flat = flatten({"long": "x" * 10_000, "many": {str(i): i for i in range(10_000)}, "big": 2**70, "odd": {1, 2}})
    assert len(flat) <= 4000
    assert len(str(flat["long"])) == 500
    assert isinstance(flatten({"big": 2**70})["big"], float)
    assert isinstance(flatten({"odd": object()})["odd"], str)


def timer_module(runtime: Runtime) -> Any:
    @contextlib.contextmanager
    def marked_timer(name: str, timing_raw: dict[str, float], color: Any = None) -> Iterator[None]:
        yield
        timing_raw[name] = 1.0

    module = module_with(marked_timer=marked_timer)
    hook = Phases(runtime)
    hook.install(module, hook.targets[0])
    return module


def test_a_timer_opens_a_phase_and_still_times(training: Runtime) -> None:
    timers, timing = timer_module(training), {}
    client = training.client
    assert client is not None
    with timers.marked_timer("step", timing), timers.marked_timer("gen", timing, color="red"):
        report = client.phases.report()
        assert report is not None
        assert [phase.name for phase in report.open] == ["step", "gen"]
    assert set(timing) == {"step", "gen"}
    report = client.phases.report()
    assert report is not None
    assert (report.open, [phase.name for phase in report.closed]) == ([], ["gen", "step"])


def test_a_phase_that_raises_is_closed_and_the_error_passes(training: Runtime) -> None:
    timers = timer_module(training)
    with pytest.raises(ZeroDivisionError), timers.marked_timer("gen", {}):
        raise ZeroDivisionError
    assert training.client is not None
    report = training.client.phases.report()
    assert report is not None
    assert report.open == []


def test_a_process_that_is_not_the_trainer_gets_verls_own_timer_back(runtime: Runtime) -> None:
    before = threading.active_count()
    with timer_module(runtime).marked_timer("gen", {}) as nothing:
        assert nothing is None
    assert threading.active_count() == before
    assert runtime.client is None


def test_modules_that_imported_the_timer_by_name_before_the_plugin_get_the_wrapped_one(
    training: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    def marked_timer(name: str) -> Any:
        return contextlib.nullcontext()

    profiler, early = module_with(marked_timer=marked_timer), module_with(marked_timer=marked_timer)
    monkeypatch.setitem(sys.modules, "verl.early", early)
    hook = Phases(training)
    hook.install(profiler, hook.targets[0])
    assert early.marked_timer is profiler.marked_timer is not marked_timer


def test_sft_has_the_optimizer_step_and_the_time_between_as_phases(training: Runtime) -> None:
    module = module_with(FSDPEngine=type("FSDPEngine", (), {"optimizer_step": lambda engine: 0.25}))
    hook = Phases(training)
    hook.install(module, hook.targets[1])
    training.enter_fit(SimpleNamespace(resume_global_step=3), SFT)
    assert [module.FSDPEngine().optimizer_step() for _ in range(2)] == [0.25, 0.25]
    assert training.client is not None
    report = training.client.phases.report()
    assert report is not None
    assert report.step == 4
    assert [phase.name for phase in report.open] == ["step"]
    assert [phase.name for phase in report.closed] == ["optimizer_step", "optimizer_step", "step"]


def checkpoint_of(folder: Path, step: int) -> None:
    actor = folder / f"global_step_{step}" / "actor"
    actor.mkdir(parents=True)
    for kind in ("model", "optim", "extra_state"):
        (actor / f"{kind}_world_size_1_rank_0.pt").write_bytes(b"x" * 100)
    (actor / "fsdp_config.json").write_text('{"FSDP_version": 2, "world_size": 1}')
    (folder / f"global_step_{step}" / "data.pt").write_bytes(b"d")


class Section(dict[str, Any]):
    """A configuration section: attributes and ``get``."""

    __getattr__ = dict.__getitem__


def ppo_trainer(folder: Path, step: int, **checkpoint: Any) -> Any:
    actor = Section(checkpoint=Section(checkpoint))
    config = Section(trainer=Section(default_local_dir=str(folder)), actor_rollout_ref=Section(actor=actor))
    return SimpleNamespace(config=config, global_steps=step)


def saving(runtime: Runtime, save: Any) -> Any:
    runtime.logged(5, {"actor/loss": np.float32(0.5), "text": "x"})
    module = module_with(PPOTrainer=type("PPOTrainer", (), {"_save_checkpoint": save}))
    hook = Checkpoints(runtime)
    hook.install(module, hook.targets[0])
    return module.PPOTrainer._save_checkpoint


def saved_events(receiver: Receiver) -> list[CheckpointSaved]:
    until(lambda: bool(receiver.events(CheckpointSaved)), "the checkpoint")
    return [event for event in receiver.events(CheckpointSaved) if isinstance(event, CheckpointSaved)]


def test_a_save_gets_its_manifest_and_is_reported_verified(
    training: Runtime, receiver: Receiver, tmp_path: Path
) -> None:
    save = saving(training, lambda trainer: checkpoint_of(tmp_path, trainer.global_steps))
    save(ppo_trainer(tmp_path, 5))
    (event,) = saved_events(receiver)
    assert (event.step, event.path, event.verified) == (5, str(tmp_path / "global_step_5"), True)
    assert event.bytes > 300
    assert (tmp_path / "global_step_5" / "verl_sentinel_manifest.json").is_file()


def test_an_incomplete_save_is_reported_with_the_reason(training: Runtime, receiver: Receiver, tmp_path: Path) -> None:
    def save(trainer: Any) -> None:
        checkpoint_of(tmp_path, 5)
        (tmp_path / "global_step_5" / "data.pt").unlink()

    saving(training, save)(ppo_trainer(tmp_path, 5))
    (event,) = saved_events(receiver)
    assert not event.verified
    assert "data.pt" in event.reason


def test_a_save_that_goes_on_in_the_background_is_not_called_verified(
    training: Runtime, receiver: Receiver, tmp_path: Path
) -> None:
    save = saving(training, lambda trainer: checkpoint_of(tmp_path, 5))
    save(ppo_trainer(tmp_path, 5, async_save=True))
    (event,) = saved_events(receiver)
    assert not event.verified
    assert "async_save" in event.reason


def test_a_save_that_raises_raises_and_an_older_manifest_of_its_directory_is_gone(
    training: Runtime, receiver: Receiver, tmp_path: Path
) -> None:
    saving(training, lambda trainer: checkpoint_of(tmp_path, 5))(ppo_trainer(tmp_path, 5))
    saved_events(receiver)

    def fail(trainer: Any) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        saving(training, fail)(ppo_trainer(tmp_path, 5))
    assert not (tmp_path / "global_step_5" / "verl_sentinel_manifest.json").exists()
    assert len(receiver.events(CheckpointSaved)) == 1


class Client:
    """verl's rollout client, answering as told."""

    config = Section(trainer=Section(project_name="p", experiment_name="e", default_local_dir="c"))

    async def generate(self, outcome: Any) -> Any:
        await asyncio.sleep(0)
        if isinstance(outcome, BaseException):
            raise outcome
        return SimpleNamespace(stop_reason=outcome)


def test_rollout_requests_are_counted_by_outcome_and_pass_unchanged(runtime: Runtime, receiver: Receiver) -> None:
    module = module_with(LLMServerClient=type("LLMServerClient", (Client,), {"generate": Client.generate}))
    hook = Rollouts(runtime)
    hook.install(module, hook.targets[0])
    client = module.LLMServerClient()
    assert inspect.iscoroutinefunction(client.generate)

    async def ask() -> list[Any]:
        outcomes = ["stop", "length", "abort", ValueError("server"), asyncio.CancelledError()]
        return await asyncio.gather(*(client.generate(outcome) for outcome in outcomes), return_exceptions=True)

    answers = asyncio.run(ask())
    assert [type(answer).__name__ for answer in answers[3:]] == ["ValueError", "CancelledError"]
    until(lambda: any(b.rollout and b.rollout.succeeded for b in receiver.batches), "the counts")
    counts = receiver.batches[-1].rollout
    assert counts is not None
    assert (counts.succeeded, counts.failed, counts.cancelled, counts.in_flight) == (2, 1, 2, 0)
    assert receiver.batches[-1].sender.role == "worker"
    assert runtime.client is None, "a worker is not the trainer"
    assert runtime._worker_client is not None
    runtime._worker_client.close(1)


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_a_weight_sync_is_timed_whatever_it_is(training: Runtime, receiver: Receiver, kind: str) -> None:
    def plain(manager: Any, global_steps: Any = None) -> str:
        return "synced"

    async def coroutine(manager: Any, global_steps: Any = None) -> str:
        return "synced"

    function = plain if kind == "plain" else coroutine
    module = module_with(CheckpointEngineManager=type("M", (), {"update_weights": function}))
    hook = WeightSync(training)
    hook.install(module, hook.targets[0])
    result = module.CheckpointEngineManager().update_weights(global_steps=4)
    assert (asyncio.run(result) if kind == "coroutine" else result) == "synced"
    until(lambda: bool(receiver.events(WeightsSynced)), "the sync")
    (event,) = receiver.events(WeightsSynced)
    assert isinstance(event, WeightsSynced)
    assert event.step == 4


def test_a_weight_sync_behind_auto_await_is_awaited_by_whom_it_was_before(training: Runtime) -> None:
    """verl's decorator decides by its caller's frame; ours must not become that caller."""
    ray_utils = pytest.importorskip("verl.utils.ray_utils")

    async def update_weights(manager: Any, global_steps: Any = None) -> str:
        return "synced"

    module = module_with(M=type("M", (), {"update_weights": ray_utils.auto_await(update_weights)}))
    hook = WeightSync(training)
    hook.install(module, Target("stand_in", "M.update_weights"))

    async def awaits() -> Any:
        return await module.M().update_weights(1)

    assert module.M().update_weights(1) == "synced"
    assert asyncio.run(awaits()) == "synced"


def looping(runtime: Runtime, kind: str, body: Any, *hooks: Any) -> Any:
    target = next(target for target in FIT_TARGETS if kind in target.trainers)
    name = target.attribute.split(".")[0]
    module = module_with(**{name: type(name, (), {"fit": body})})
    for hook in hooks or (CleanStop(runtime), RunEnd(runtime)):
        hook.install(module, target)
    return getattr(module, name)()


def test_the_end_of_the_loop_is_the_end_of_the_run(training: Runtime, receiver: Receiver) -> None:
    trainer = looping(training, V1, lambda trainer: "done")
    assert trainer.fit() == "done"
    (event,) = receiver.events(RunFinished)
    assert event.exit_code == 0  # type: ignore[attr-defined]
    assert training.client is None


def test_a_loop_that_raises_ends_the_run_with_code_1_and_raises(training: Runtime, receiver: Receiver) -> None:
    def fail(trainer: Any) -> None:
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        looping(training, LEGACY, fail).fit()
    (event,) = receiver.events(RunFinished)
    assert event.exit_code == 1  # type: ignore[attr-defined]


@pytest.mark.timeout(60)
def test_the_end_does_not_wait_for_an_exporter_that_is_gone(runtime: Runtime, receiver: Receiver) -> None:
    receiver.close()
    runtime.open_trainer("p", "e", {})
    looping(runtime, V1, lambda trainer: None).fit()


def test_a_stop_request_for_this_attempt_moves_the_finish_line_to_the_next_step(
    training: Runtime, tmp_path: Path, told: list[str]
) -> None:
    moved = threading.Event()

    def loop(trainer: Any) -> None:
        trainer.global_steps, trainer.total_training_steps = 7, 100
        (tmp_path / "stop-request").write_text(json.dumps({"attempt": 1}))
        until(lambda: trainer.total_training_steps != 100, "the finish line")
        moved.set()
        assert trainer.total_training_steps == 8

    looping(training, V1, loop).fit()
    assert moved.is_set()
    assert "training ends after step 8" in told[-1]


@pytest.mark.parametrize(("save", "save_freq"), [(False, -1), (True, 5)])
def test_a_stop_before_a_rollback_saves_nothing_more(
    training: Runtime, tmp_path: Path, save: bool, save_freq: int
) -> None:
    config = SimpleNamespace(trainer=SimpleNamespace(save_freq=5))

    def loop(trainer: Any) -> None:
        trainer.config, trainer.global_steps, trainer.total_training_steps = config, 7, 100
        (tmp_path / "stop-request").write_text(json.dumps({"attempt": 1, "save": save}))
        until(lambda: trainer.total_training_steps != 100, "the finish line")

    looping(training, V1, loop).fit()
    assert config.trainer.save_freq == save_freq


def test_without_a_known_loop_a_clean_stop_is_not_promised(training: Runtime) -> None:
    assert "training loop" in CleanStop(training).unavailable()
    training.enter_fit(SimpleNamespace(global_steps=0), V1)
    assert CleanStop(training).unavailable() == ""


@pytest.mark.parametrize("request_", ['{"attempt": 2}', '{"attempt": "1"}', "[]", "{", "", "1" * 10_000])
def test_any_other_stop_request_changes_nothing(training: Runtime, tmp_path: Path, request_: str) -> None:
    (tmp_path / "stop-request").write_text(request_)
    polled = threading.Event()

    class Watched(CleanStop):
        def unavailable(self) -> str:
            if polled_once.is_set():
                polled.set()
            polled_once.set()
            return ""

    polled_once = threading.Event()

    def loop(trainer: Any) -> None:
        trainer.global_steps, trainer.total_training_steps = 7, 100
        assert polled.wait(20)
        assert trainer.total_training_steps == 100

    looping(training, V1, loop, Watched(training)).fit()


def test_the_report_reaches_a_person_and_the_exporter(runtime: Runtime, receiver: Receiver, told: list[str]) -> None:
    from trainer_entry.plugin.activation import Plugin

    plugin = Plugin(runtime, (StepMetrics,))
    module = tracking_module(runtime)
    module.Tracking("p", "e")
    assert any("of 1 hooks in place, verl 0.9.1" in sentence for sentence in told)
    until(lambda: bool(receiver.events(HooksReported)), "the report")
    assert plugin.runtime is runtime
