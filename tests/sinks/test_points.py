"""Points are made from an entry alone, the same every time, and are legal whatever was pushed."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sink_scene import batch

from exporter.protocol import (
    AttemptExited,
    AttemptStarted,
    CheckpointChecked,
    CheckpointCopied,
    CheckpointPruned,
    CheckpointSaved,
    CommandProgress,
    GpuReading,
    GradientHistogram,
    HookMissing,
    HooksReported,
    RolloutCounts,
    RunFinished,
    RunStarted,
    SettingApplied,
    Step,
    WeightsSynced,
)
from exporter.service.entries import batch_entry
from exporter.service.exposition.families import FAMILIES, SIGNALS
from exporter.service.sinks.points import FIELDS_PER_LINE, Lines
from exporter.service.stored import Entry

RULES = Path(__file__).resolve().parents[2] / "rules" / "prometheus"
AT = 1_700_000_000.123456
MS = 1_000_000

NAME = r"(?:[^\\ ,=\n]|\\.)+"
FIELD = rf'{NAME}=(?:[^\s,"]+|"(?:[^"\\]|\\.)*")'
LINE = re.compile(rf"[a-z_]+(?:,{NAME}={NAME})* {FIELD}(?:,{FIELD})* \d+")


def lines(position: int = 7, at: float = AT, **fields: Any) -> list[str]:
    return [line.decode() for line in Lines().of(entry(position, at, **fields))]


def entry(position: int = 7, at: float = AT, **fields: Any) -> Entry:
    return replace(batch_entry(batch(**fields), at), position=position)


def fields_of(line: str) -> dict[str, str]:
    """For lines without anything escaped."""
    return dict(field.split("=") for field in line.split(" ")[1].split(","))


def test_a_step_is_one_point_under_the_names_of_verl_and_one_of_signals() -> None:
    step, signal = lines(steps=[Step(step=3, metrics={"actor/loss": 0.5, "perf/max_memory_reserved_gb": 2.0})])
    assert step == (
        "verl_step,attempt=1,cohort=c,experiment=e,project=p,run=r"
        f" step=3.0,non_finite=0.0,actor/loss=0.5,perf/max_memory_reserved_gb=2.0 {1_700_000_000_123 * MS + 7}"
    )
    assert fields_of(signal) == {"step": "3.0", "loss": "0.5", "gpu_memory": repr(2.0 * 1024**3)}


def test_what_is_not_finite_is_counted_in_its_step_and_named_beside_it() -> None:
    found = lines(steps=[Step(step=3, metrics={"a": math.nan, "b": math.inf, "c": "-Infinity", "d": 1.0})])
    assert fields_of(found[0]) == {"step": "3.0", "non_finite": "3.0", "d": "1.0"}
    odd = [line for line in found if line.startswith("verl_non_finite,")]
    assert [re.search(r"kind=([^,]+),metric=([^,]+)", line).groups() for line in odd] == [  # type: ignore[union-attr]
        ("nan", "a"),
        ("inf", "b"),
        ("-inf", "c"),
    ]


def test_the_steps_of_one_push_lie_a_millisecond_apart_and_end_at_its_arrival() -> None:
    found = lines(steps=[Step(step=n, metrics={"x": 1.0}) for n in range(1, 1001)])
    stamps = [int(line.rsplit(" ", 1)[1]) for line in found]
    assert stamps[-1] == 1_700_000_000_123 * MS + 7
    assert {after - before for before, after in itertools.pairwise(stamps)} == {MS}


def test_two_pushes_of_the_same_moment_have_different_timestamps() -> None:
    one, other = (lines(position=p, steps=[Step(step=1, metrics={"x": 1.0})])[0] for p in (1, 2))
    assert one.rsplit(" ", 1)[1] != other.rsplit(" ", 1)[1]


def test_a_clock_that_is_wrong_by_hours_moves_no_point() -> None:
    right = lines(steps=[Step(step=1, metrics={"x": 1.0}, time=AT)], sent_at=AT)
    wrong = lines(steps=[Step(step=1, metrics={"x": 1.0}, time=AT - 5 * 3600)], sent_at=AT + 7 * 3600)
    assert [line.rsplit(" ", 1)[1] for line in right] == [line.rsplit(" ", 1)[1] for line in wrong]
    assert fields_of(wrong[0])["logged_at"] == repr(AT - 5 * 3600)


@pytest.mark.parametrize("time", [math.nan, math.inf, -1.0, 0.0])
def test_a_time_that_says_nothing_is_left_out(time: float) -> None:
    assert "logged_at" not in lines(steps=[Step(step=1, metrics={"x": 1.0}, time=time)])[0]


def test_metrics_that_are_called_like_fields_of_ours_are_kept_beside_them() -> None:
    (line,) = lines(steps=[Step(step=3, metrics={"step": 9.0, "time": 8.0, "non_finite": 7.0, "": 6.0})])
    assert fields_of(line) == {
        "step": "3.0",
        "non_finite": "0.0",
        "step_": "9.0",
        "time_": "8.0",
        "non_finite_": "7.0",
        "_": "6.0",
    }


def test_a_point_with_many_fields_goes_in_several_lines_of_one_timestamp() -> None:
    found = lines(steps=[Step(step=3, metrics={f"m/{i}": float(i) for i in range(2 * FIELDS_PER_LINE)})])
    assert len(found) == 3
    assert len({(line.split(" ")[0], line.rsplit(" ", 1)[1]) for line in found}) == 1
    joined = {name: value for line in found for name, value in fields_of(line).items()}
    assert {f"m/{i}": repr(float(i)) for i in range(2 * FIELDS_PER_LINE)}.items() <= joined.items()


def test_every_number_is_a_float_so_that_no_field_changes_its_type() -> None:
    events = [
        RunStarted(time=1.0, config={"a": 1}),
        HooksReported(time=1.0, installed=["a"], missing=[HookMissing(name="b", reason="c")]),
        CheckpointSaved(time=1.0, step=1, path="p", verified=True),
        CheckpointCopied(time=1.0, step=1, tier="snapshot", name="n", bytes=5, stored_bytes=1, seconds=2.0),
        CheckpointChecked(time=1.0, step=1, depth="drill", ok=False, seconds=3.0, reason="torn"),
        CheckpointPruned(time=1.0, step=1, bytes=5),
        GradientHistogram(time=1.0, step=1, file="f", layers=2, norm=math.inf, largest_norm=math.nan),
        SettingApplied(time=1.0, name="lr", wanted=1e-6, restored=1e-5, found=1e-5, ok=False),
        WeightsSynced(time=1.0, step=1, seconds=2.0),
        RunFinished(time=1.0, exit_code=None),
        AttemptStarted(time=1.0, pid=4),
        AttemptExited(time=1.0, exit_code=1, signal=9),
        CommandProgress(time=1.0, command_id="c", state="stopped", target_step=4),
    ]
    found = lines(events=events, gpus=[GpuReading(node="n", index=1, memory_used_bytes=5, lost=True)])
    assert len(found) == len(events) + 1
    for line in found:
        for value in re.findall(r"=([^,= ]+)(?=[, ])", line.partition(" ")[2]):
            assert value.startswith('"') or float(value) is not None
            assert not re.fullmatch(r"-?\d+[iu]|true|false", value)


def test_the_last_output_of_a_trainer_and_its_configuration_stay_here() -> None:
    secret = "password=hunter2"
    found = lines(
        events=[
            RunStarted(time=1.0, config={"key": secret}),
            AttemptExited(time=1.0, exit_code=1, last_output=[secret]),
        ]
    )
    assert secret not in "".join(found)


def test_a_setting_that_was_read_back_shows_its_numbers_and_no_other_value() -> None:
    (line,) = lines(events=[SettingApplied(time=1.0, name="optim.lr", wanted=1e-6, found="hunter2", ok=False)])
    assert "hunter2" not in line
    assert fields_of(line) == {"count": "1", "ok": "0", "wanted": "1e-06", "text": '"optim.lr"'}


def names_in_prometheus() -> set[str]:
    """Every name that a Prometheus which scrapes the exporter has, and may send on to where the sink writes."""
    parts = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}
    exported = {family.name + part for family in FAMILIES for part in parts.get(family.kind, ())}
    recorded = {
        rule["record"]
        for path in RULES.glob("*.rules.yml")
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
        if "record" in rule
    }
    assert recorded
    return exported | recorded | {family.name for family in FAMILIES} | {family.sample for family in FAMILIES}


def test_no_point_has_a_name_that_prometheus_has_too(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = names_in_prometheus()
    # A trainer may call its metrics whatever it likes: here, what remains of a taken name behind any measurement.
    step = {"actor/loss": 0.5, "odd": math.nan}
    for name in taken:
        parts = name.split("_")
        step.update({"_".join(parts[at:]): 1.0 for at in range(1, len(parts))})
    monkeypatch.setattr("exporter.service.sinks.points.canonical", lambda raw, trainer: dict.fromkeys(SIGNALS, 1.0))
    reading = GpuReading(
        node="n", index=1, memory_used_bytes=1, memory_total_bytes=1, utilization_ratio=1, power_watts=1,
        temperature_celsius=1,
    )  # fmt: skip
    events = [
        HooksReported(time=1.0, installed=["a"]),
        CheckpointSaved(time=1.0, step=1, path="p", verified=True),
        CheckpointCopied(time=1.0, step=1, tier="snapshot", name="n", bytes=5, stored_bytes=1, seconds=2.0),
        CheckpointChecked(time=1.0, step=1, depth="drill", ok=False, seconds=3.0, reason="torn"),
        CheckpointPruned(time=1.0, step=1, bytes=5),
        GradientHistogram(time=1.0, step=1, file="f", layers=2, norm=math.inf, largest_norm=math.nan),
        SettingApplied(time=1.0, name="lr", wanted=1e-6, restored=1e-5, found=1e-5, ok=False),
        WeightsSynced(time=1.0, step=1, seconds=2.0),
        RunFinished(time=1.0, exit_code=0),
        AttemptStarted(time=1.0, pid=4, resume_step=1),
        AttemptExited(time=1.0, exit_code=1, signal=9, seconds=1.0),
        CommandProgress(time=1.0, command_id="c", state="stopped", target_step=4),
    ]
    found = lines(
        steps=[Step(step=1, metrics=step, time=AT)], gpus=[reading], events=events, rollout=RolloutCounts(succeeded=1)
    )
    named = {
        f"{line.split(',')[0]}_{field.split('=')[0]}"
        for line in found
        for field in re.findall(r"[^, =]+=(?:\"[^\"]*\"|[^,\" ]+)", line.partition(" ")[2])
    }
    assert {"verl_step_actor/loss", "verl_signal_loss", "verl_gpu_reading_power_watts", "verl_event_count"} <= named
    assert not named & taken


def test_a_metric_whose_name_prometheus_would_take_for_another_keeps_its_signal() -> None:
    step, signal = lines(steps=[Step(step=3, metrics={"tokens": 1.0, "perf/total_num_tokens": 8.0})])
    assert fields_of(step)["tokens_"] == "1.0"
    assert fields_of(signal)["tokens"] == "8.0"


names = st.text(max_size=30)
numbers = st.floats(allow_nan=True, allow_infinity=True)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    run=names.filter(bool),
    steps=st.lists(st.tuples(st.integers(0, 2**53), st.dictionaries(names, numbers, max_size=8)), max_size=4),
    path=names,
)
def test_whatever_is_pushed_every_line_is_whole_and_the_same_every_time(
    run: str, steps: list[tuple[int, dict[str, float]]], path: str
) -> None:
    pushed = entry(
        run=run,
        steps=[Step(step=number, metrics=metrics) for number, metrics in steps],
        events=[CheckpointSaved(time=1.0, step=1, path=path, verified=False)],
    )
    encode = Lines()
    first = encode.of(pushed)
    assert encode.of(pushed) == first == Lines().of(pushed)
    for line in first:
        text = line.decode()
        assert "\n" not in text
        assert LINE.fullmatch(text), text
