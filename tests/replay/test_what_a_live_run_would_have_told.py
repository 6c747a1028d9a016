"""What metrics do not say can be given, and reaches the detectors as it would have from a live run."""

from __future__ import annotations

from pathlib import Path

import past_files as files
import pytest
from in_this_process import answered

from exporter.detectors.base import StepSample, Verdict
from exporter.detectors.registry import DetectorSet
from exporter.detectors.setup import RunSetup
from exporter.incidents import Rules
from exporter.replay.past_run import PastRun
from exporter.replay.replaying import Keys, Replay
from exporter.replay.settings import Known, judging

GIB = 1024.0**3


class Noting:
    """Says nothing, and keeps what it was shown."""

    name = "noting"

    def __init__(self, samples: list[StepSample]) -> None:
        self._samples = samples

    def observe(self, sample: StepSample) -> list[Verdict]:
        self._samples.append(sample)
        return []

    def resumed(self, step: int, attempt: int) -> None: ...

    def state_dict(self) -> dict[str, object]:
        return {}

    def load_state_dict(self, state: object) -> None: ...


def setups_of(path: Path, form: str, setup: RunSetup) -> list[RunSetup]:
    """What a detector was told with each step."""
    samples: list[StepSample] = []
    replay = Replay(
        0, path, form, lambda: PastRun(lambda: DetectorSet((Noting(samples),), ()), Rules(), setup), Keys(), print
    )
    assert not list(replay.sayings())
    return [sample.setup for sample in samples]


def test_every_option_is_in_its_unit_and_reaches_the_detectors(tmp_path: Path) -> None:
    setup = Known(
        max_steps=90, max_response_length=512, lr=1e-6, lr_warmup_steps=10, gpu_memory_gb=80.0, host_memory_gb=0.5
    ).setup()
    assert (setup.total_steps, setup.max_response_length) == (90, 512)
    assert (setup.gpu_memory_bytes, setup.host_memory_bytes) == (80 * GIB, GIB / 2)
    assert setup.lr is not None
    assert [setup.lr.logged_with(step) for step in (5, 10, 50)] == [5e-7, 1e-6, 1e-6]
    path = files.written(tmp_path / "run", files.jsonl(files.healthy(1, 3)))
    assert setups_of(path, "jsonl", setup) == [setup] * 3


def test_without_an_option_nothing_is_known(tmp_path: Path) -> None:
    path = files.written(tmp_path / "run", files.jsonl(files.healthy(1, 3)))
    assert setups_of(path, "jsonl", Known().setup()) == [RunSetup()] * 3


def test_a_console_log_and_a_trainers_state_tell_the_last_step_themselves(tmp_path: Path) -> None:
    console = b"(TaskRunner pid=77) Total training steps: 435\n" + files.console(files.healthy(1, 3))
    log = files.written(tmp_path / "log", console)
    state = files.written(tmp_path / "trainer_state.json", files.trainer_state(files.healthy(1, 3)))
    assert [s.total_steps for s in setups_of(log, "console", RunSetup())] == [435] * 3
    assert [s.total_steps for s in setups_of(state, "trainer-state", RunSetup())] == [60] * 3
    assert [s.total_steps for s in setups_of(log, "console", RunSetup(total_steps=7))] == [7] * 3


TRAINER = """
data: {max_response_length: 1024}
trainer: {total_training_steps: 200}
actor_rollout_ref:
  actor:
    use_kl_loss: true
    optim: {lr: 1e-6, lr_warmup_steps: 10}
"""


def test_the_trainers_own_configuration_is_read_and_an_option_goes_before_it(tmp_path: Path) -> None:
    file = files.written(tmp_path / "config.yaml", TRAINER.encode())
    setup = Known(trainer_config=file).setup()
    assert (setup.total_steps, setup.max_response_length, setup.uses_kl) == (200, 1024, True)
    assert setup.lr is not None
    assert setup.lr.logged_with(10) == 1e-6
    assert Known(trainer_config=file, max_steps=50).setup().total_steps == 50


def test_the_configuration_that_wandb_keeps_is_read(tmp_path: Path) -> None:
    text = "wandb_version: 1\ndata:\n  value: {max_response_length: 1024}\n_wandb:\n  value: {}\n"
    file = files.written(tmp_path / "config.yaml", text.encode())
    assert Known(trainer_config=file).setup().max_response_length == 1024


@pytest.mark.parametrize(
    "text",
    ["", "a", "- 1", "a: [", "a: &x {b: *x}", "\t", "a: 1\n" * 3 + "? [1]: 2", "x: !!python/object:os.system {}"],
)
def test_what_is_no_configuration_is_refused_or_says_nothing(text: str, tmp_path: Path) -> None:
    file = files.written(tmp_path / "config.yaml", text.encode())
    answer = answered(tmp_path / "none", "--trainer-config", file)
    assert (answer.code, answer.out) == (2, "")
    assert str(file) in answer.err or f"{tmp_path / 'none'} cannot be read" in answer.err


@pytest.mark.parametrize("value", ["0", "-3", "nan", "inf", "1e400", "x", ""])
@pytest.mark.parametrize(
    "option", ["--gpu-memory-gb", "--host-memory-gb", "--max-steps", "--max-response-length", "--lr"]
)
def test_a_number_that_is_none_is_refused(option: str, value: str, tmp_path: Path) -> None:
    answer = answered(tmp_path / "none", f"{option}={value}")
    assert (answer.code, answer.out) == (2, "")
    assert option in answer.err


def test_a_warm_up_without_a_rate_is_refused(tmp_path: Path) -> None:
    assert "needs --lr" in answered(tmp_path / "none", "--lr-warmup-steps", "3").err


def test_a_learning_rate_that_is_not_as_given_is_found(tmp_path: Path) -> None:
    path = files.written(tmp_path / "run", files.jsonl(files.healthy(1, 60)))
    right, wrong = answered(path, "--lr", "1e-5"), answered(path, "--lr", "2e-5")
    assert "learning_rate" not in {verdict["detector"] for verdict in right.verdicts}
    assert "learning_rate" in {verdict["detector"] for verdict in wrong.verdicts}


def leaking(last: int) -> files.Steps:
    """Memory of the GPU grows by a quarter of a GB a step, from 40."""
    return [
        (step, metrics | {"perf/max_memory_reserved_gb": 40.0 + 0.25 * step + files.wave(step, 0.05)})
        for step, metrics in files.healthy(1, last)
    ]


def test_memory_that_runs_out_is_foreseen_where_its_size_is_given(tmp_path: Path) -> None:
    path = files.written(tmp_path / "run.gz", files.jsonl(leaking(120)))
    pages = answered(path, "--gpu-memory-gb", "80").pages
    forecasts = [page["forecast"] for page in pages if page["signal"] == "gpu_memory" and page["forecast"]]
    assert forecasts
    assert forecasts[0]["limit"] <= 80 * GIB


def test_a_preset_goes_before_that_of_the_file(tmp_path: Path) -> None:
    file = files.written(
        tmp_path / "exporter.yml", b"detection: {preset: manual}\nincidents: {resolve_after_steps: 3}\n"
    )
    run = files.written(tmp_path / "run", files.jsonl(files.growing_gradient()))
    by_file = {verdict["detector"] for verdict in answered(run, "--config", file).verdicts}
    by_option = {verdict["detector"] for verdict in answered(run, "--config", file, "--preset", "grpo").verdicts}
    assert "surge" not in by_file
    assert "surge" in by_option
    assert judging(file, None).rules == Rules(resolve_after_steps=3)


def test_a_wrong_preset_is_refused_with_the_nearest_right_one(tmp_path: Path) -> None:
    run = files.written(tmp_path / "run", files.jsonl(files.healthy()))
    file = files.written(tmp_path / "exporter.yml", b"detection: {preset: manuel}\n")
    for options, right in ((("--preset", "gpro"), "'grpo'"), (("--config", str(file)), "'manual'")):
        answer = answered(run, *options)
        assert (answer.code, answer.out) == (2, "")
        assert f"did you mean {right}" in answer.err
