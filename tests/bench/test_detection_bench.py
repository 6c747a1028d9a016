"""The bench of detection injects what it says, counts as it says, and prints what it promises."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from bench.detection import cases, measuring, scoring
from bench.detection.__main__ import main
from bench.detection.baselines import Manual, SixSigma
from bench.detection.cases import CONTROL, KIND, Case, Outcome, Walk
from bench.detection.contenders import Ours
from bench.detection.controls import CONTROLS
from bench.detection.faults import KINDS, SEVERITIES, applies
from bench.detection.generators import PROFILES, made_runs, make
from bench.detection.patch import Patch
from bench.detection.runs import HELD_OUT, TUNED, HealthyRun, Step
from exporter.detectors.base import Severity
from exporter.detectors.setup import RunSetup
from exporter.signals import GIB, canonical

PAGE, WARN = int(Severity.CRITICAL), int(Severity.WARNING)
PLACE = 200


@pytest.fixture(scope="module")
def run() -> HealthyRun:
    """A generated run that logs nearly everything."""
    return make(PROFILES[0])


def injected(run: HealthyRun, kind: str, severity: int) -> list[Step]:
    return cases.changed(run, Case(kind, severity, PLACE, 0))


def column(steps: list[Step], key: str) -> list[float]:
    return [metrics[key] for _, metrics in steps if key in metrics]


def test_there_are_kinds_and_controls_enough_and_each_has_its_reason() -> None:
    assert len(KINDS) >= 18
    assert len({kind.name for kind in KINDS}) == len(KINDS)
    assert all(kind.why for kind in KINDS)
    assert len(CONTROLS) >= 12
    assert not set(TUNED) & set(HELD_OUT)


@pytest.mark.parametrize("kind", KIND)
def test_a_fault_changes_its_run_and_neither_the_healthy_one_nor_what_came_before(kind: str) -> None:
    """In every severity, in a run that it fits."""
    for run in made_runs():
        case = Case(kind, 1, PLACE, 0)
        patch = Patch(run.steps[:PLACE], [], run.setup, random.Random(0))
        if not applies(KIND[kind], patch):
            continue
        before = json.dumps(run.steps)
        for severity in range(len(SEVERITIES)):
            found = injected(run, kind, severity)
            length = KIND[kind].reaches or KIND[kind].deadline
            assert len(found) == length[severity]
            assert json.dumps(found) != json.dumps(run.steps[PLACE : PLACE + len(found)])
            assert all(isinstance(value, float) for _, metrics in found for value in metrics.values())
        assert json.dumps(run.steps) == before
        assert json.dumps(injected(run, kind, 1)) == json.dumps(cases.changed(run, case))
        return
    pytest.fail(f"no generated run can have the fault {kind}")


def test_a_gradient_that_explodes_moves_its_own_signals_and_leaves_the_others_alone(run: HealthyRun) -> None:
    found, healthy = injected(run, "gradient_explosion", 1), run.steps[PLACE : PLACE + 9]
    for key in ("actor/entropy", "critic/score/mean", "response_length/mean", "timing_s/step", "actor/lr"):
        assert column(found, key) == column(healthy, key)
    ratios = [a / b for a, b in zip(column(found, "actor/grad_norm"), column(healthy, "actor/grad_norm"), strict=True)]
    assert ratios == pytest.approx([50 ** min(time / 6, 1.0) for time in range(1, 10)])


@pytest.mark.parametrize("kind", ["pg_clipfrac", "clip_ratio"])
def test_ratios_stay_ratios(run: HealthyRun, kind: str) -> None:
    name, key = {
        "pg_clipfrac": ("clipfrac_saturated", "actor/pg_clipfrac"),
        "clip_ratio": ("answers_cut", "response_length/clip_ratio"),
    }[kind]
    values = column(injected(run, name, 2), key)
    assert max(values) > 0.6
    assert all(0.0 <= value <= 1.0 for value in values)


def test_a_step_that_takes_longer_has_its_throughput_fall_by_as_much(run: HealthyRun) -> None:
    found, healthy = injected(run, "slow_generation", 1), run.steps[PLACE : PLACE + 15]
    for (_, after), (_, before) in zip(found, healthy, strict=True):
        longer = after["timing_s/step"] - before["timing_s/step"]
        assert longer == pytest.approx(after["timing_s/gen"] - before["timing_s/gen"])
        assert after["perf/throughput"] * after["timing_s/step"] == pytest.approx(
            before["perf/throughput"] * before["timing_s/step"]
        )


def test_a_leak_reaches_the_limit_when_it_says(run: HealthyRun) -> None:
    limit = (run.setup.gpu_memory_bytes or 0.0) / GIB
    for severity, over in enumerate((300, 150, 60)):
        case = Case("gpu_memory_leak", severity, PLACE, 0)
        steps = cases.changed(run, case)
        assert cases.arrival(run, case, steps) == pytest.approx(over, abs=over * 0.02)
        assert column(steps, "perf/max_memory_reserved_gb")[-1] == pytest.approx(limit, rel=0.02)


def test_a_resume_goes_back_and_comes_again(run: HealthyRun) -> None:
    steps = [step for step, _ in cases.changed(run, Case("resume", -1, PLACE, 3))]
    assert steps[0] <= run.steps[PLACE - 1][0]
    assert steps == list(range(steps[0], steps[0] + len(steps)))


@pytest.mark.parametrize("name", CONTROL)
def test_a_control_changes_only_its_own_copy(run: HealthyRun, name: str) -> None:
    before = json.dumps(run.steps)
    changed = cases.changed(run, Case(name, -1, 0 if CONTROL[name].whole else PLACE, 0))
    assert changed
    assert json.dumps(run.steps) == before


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_generated_runs_are_reproducible_finite_and_known_to_the_table_of_signals(profile: Any) -> None:
    one, again, other = make(profile, 1), make(profile, 1), make(profile, 2)
    assert one.steps == again.steps
    assert one.steps != other.steps
    assert all(math.isfinite(value) for _, metrics in one.steps for value in metrics.values())
    assert {"loss", "grad_norm", "lr", "gpu_memory"} <= set(canonical(one.steps[5][1]))


# What counts


def walked(said: list[tuple[int, int, str]], outcomes: list[Outcome] | None = None, steps: int = 1000) -> Walk:
    return Walk("made", "generated", steps, said, outcomes or [], {})


def outcome(kind: str, severity: int, said: list[tuple[int, int, str]]) -> Outcome:
    return Outcome("made", "generated", Case(kind, severity, 100, 0), said)


def test_findings_within_20_steps_are_one_episode_whoever_says_them() -> None:
    calm = scoring.healthy([walked([(10, PAGE, "a"), (25, PAGE, "b"), (45, PAGE, "a"), (66, PAGE, "a")])])
    assert (calm["pages"], calm["pages_per_1000"], calm["steps_that_page"]) == (2, 2.0, 4)
    assert calm["pages_each_source_per_1000"] == 4.0


def test_a_step_that_pages_is_no_warning_as_well() -> None:
    calm = scoring.healthy([walked([(10, PAGE, "a"), (10, WARN, "b"), (500, WARN, "b")])])
    assert (calm["pages"], calm["warnings"]) == (1, 1)


@pytest.mark.parametrize(
    ("said", "healthy", "delay"),
    [
        ([(1, PAGE, "a")], [], 0),
        ([(4, PAGE, "a")], [], 3),
        ([(11, PAGE, "a")], [], None),  # after the deadline
        ([(4, WARN, "a")], [], None),  # not enough for a moderate fault
        ([(4, PAGE, "a")], [(103, PAGE, "b")], None),  # the healthy run paged there, too
        ([(4, PAGE, "a")], [(99, PAGE, "a")], 3),  # that was before
        ([(4, PAGE, "a")], [(103, WARN, "a")], 3),
    ],
)
def test_a_moderate_fault_counts_when_it_pages_in_time_where_the_healthy_run_does_not(
    said: list[tuple[int, int, str]], healthy: list[tuple[int, int, str]], delay: int | None
) -> None:
    assert KIND["loss_surge"].deadline[1] == 10
    assert scoring.caught(outcome("loss_surge", 1, said), healthy) == delay


def test_a_mild_fault_is_warned_of_only_by_who_was_silent_without_it() -> None:
    mild = outcome("loss_surge", 0, [(3, WARN, "a"), (5, WARN, "b")])
    assert scoring.caught(mild, []) == 2
    assert scoring.caught(mild, [(104, WARN, "a")]) == 4
    assert scoring.caught(mild, [(104, WARN, "a"), (105, WARN, "b")]) is None


def test_shares_and_delays_are_over_all_tries_of_a_kind() -> None:
    found = [outcome("loss_surge", 1, [(time, PAGE, "a")]) for time in (1, 3, 40)]
    recall = scoring.recall([walked([], found)])
    expected = {"tries": 3, "caught": 2, "share": 0.6667, "median_delay": 1.0}
    assert recall["by_kind"]["loss_surge"]["moderate"] == expected
    assert recall["moderate_and_severe"] == expected
    assert recall["mild"]["tries"] == 0


def test_a_forecast_is_judged_at_half_way_and_a_missing_one_is_counted() -> None:
    good = outcome("gpu_memory_leak", 2, [])
    good.reached, good.forecasts = 60, [(10, 500.0), (30, 33.0), (31, 1.0)]
    silent = outcome("gpu_memory_leak", 2, [])
    silent.reached = 60
    row = scoring.forecasts([walked([], [good, silent])])["gpu_memory_leak"]
    assert (row["tries"], row["missing"], row["median_error"]) == (2, 1, 0.1)


def test_a_page_on_a_control_counts_unless_the_untouched_run_was_paged_there_by_the_same() -> None:
    said = [(3, PAGE, "a"), (4, WARN, "b")]
    tries = [Outcome("made", "generated", Case("resume", -1, place, 0), said) for place in (100, 500)]
    row = scoring.controls([walked([(110, PAGE, "a")], tries)])["resume"]
    assert (row["tries"], row["pages"], row["warnings"], row["by_source"]) == (2, 1, 1, {"a": 1})


def test_a_missed_bar_is_named() -> None:
    result = {
        "healthy": {"held_out": {"pages_per_1000": 0.2, "warnings_per_1000": 1.0}},
        "recall": {"held_out": {"moderate_and_severe": {"share": 0.96}, "mild": {"share": 0.79}}},
        "controls": {"resume": {"tries": 100, "pages": 1}},
        "forecasts": {"held_out": {"gpu_memory_leak": {"p95_error": 0.1, "missing": 1}}},
        "faults": {},
        "microseconds_per_step": 100.0,
    }
    missed = [row["bar"] for row in scoring.bars(result, "held_out") if not row["met"]]
    assert missed == [
        "pages per 1,000 healthy steps",
        "mild faults warned of in time",
        "pages on 100 times: resume",
        "error of the forecast, 95 %: gpu_memory_leak",
    ]


# Who is asked


@pytest.mark.parametrize("contender", [Ours, Manual, SixSigma])
def test_a_copy_of_a_watch_goes_its_own_way(run: HealthyRun, contender: Callable[[], Any]) -> None:
    watch = contender().start(run.setup)
    for step, metrics in run.steps[:60]:
        watch.take(step, metrics)
    fork = watch.fork()
    bad = {**run.steps[60][1], "actor/loss": math.nan, "actor/pg_loss": math.nan, "actor/grad_norm": 1e9}
    assert any(one.severity is Severity.CRITICAL for one in fork.take(61, bad))
    left = contender().start(run.setup)
    for step, metrics in run.steps[:60]:
        left.take(step, metrics)
    assert [(s.severity, s.source) for s in watch.take(*run.steps[60])] == [
        (s.severity, s.source) for s in left.take(*run.steps[60])
    ]


def test_the_manual_pages_at_its_own_thresholds() -> None:
    watch = Manual().start(RunSetup(gpu_memory_bytes=80 * GIB))
    usual = {"timing_s/step": 20.0, "actor/kl_loss": 0.05, "actor/pg_loss": 0.1, "perf/max_memory_reserved_gb": 60.0}
    assert [watch.take(step, usual) for step in range(1, 21)] == [[]] * 20
    assert [s.source for s in watch.take(21, usual | {"actor/kl_loss": 0.001})] == ["KL"]
    assert [s.source for s in watch.take(22, usual | {"perf/max_memory_reserved_gb": 77.0})] == ["memory"]
    assert [s.source for s in watch.take(23, usual | {"actor/pg_loss": 1.2})] == ["loss"]
    slow = usual | {"timing_s/step": 31.0}
    assert [[s.source for s in watch.take(step, slow)] for step in (24, 25, 26)] == [[], [], ["three slow steps"]]


def test_a_package_that_is_not_installed_is_said_and_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring.importlib.util, "find_spec", lambda name: None)
    result = measuring.measure(
        contenders=["rlwatch", "trainpulse"],
        kinds=["nan_loss"],
        controls=[],
        size=measuring.Size(places=1, tries=0, most_steps=450, real=0, made=1),
        jobs=1,
        seed=0,
    )
    assert result["contenders"] == {
        "rlwatch": {"name": "rlwatch 0.5.1", "installed": False},
        "trainpulse": {"name": "trainpulse 0.4.0", "installed": False},
    }


def test_the_quick_bench_prints_one_json_object_and_its_exit_code_says_whether_bars_are_met(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = measuring.Size(places=1, tries=3, most_steps=450, real=0, made=2)
    monkeypatch.setattr(measuring.Size, "quick", lambda: small)
    arguments = ["--quick", "--jobs", "1", "--only", "ours,six_sigma", "--kinds", "nan_loss,gpu_memory_leak"]
    code = main([*arguments, "--controls", "gaps", "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert printed["benchmark"] == "detection"
    assert printed["targets_met"] == (code == 0)
    assert sorted(printed["missed"]) == sorted(row["bar"] for row in printed["bars"] if not row["met"])
    assert printed["judged_on"] == "generated"
    for name in ("ours", "six_sigma"):
        one = printed["contenders"][name]
        assert one["healthy"]["generated"]["steps"] == 900
        assert set(one["recall"]["generated"]["by_kind"]) == {"nan_loss", "gpu_memory_leak"}
        assert one["controls"]["gaps"]["tries"] == 3
        assert one["microseconds_per_step"] > 0
    ours = printed["contenders"]["ours"]
    assert ours["recall"]["generated"]["by_kind"]["nan_loss"]["severe"]["share"] == 1.0
    assert ours["forecasts"]["generated"]["gpu_memory_leak"]["tries"] == 6

    main([*arguments, "--no-controls"])
    told = capsys.readouterr().out
    for words in ("The real runs are not here", "mean + 6 sigma", "gpu_memory_leak", "microseconds a step"):
        assert words in told


def test_an_unknown_kind_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["--kinds", "nan_los"])
    assert refused.value.code == 2
    told = capsys.readouterr().err
    assert "'nan_los' is none of" in told
    assert "nan_loss" in told
