"""Whatever a label or a value is, prometheus-client's own parsers read back what was meant, in both formats."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import pytest
from exporter_scene import Scene
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pages import OPENMETRICS, exposition, samples, text, value

from exporter.protocol import GpuReading, RolloutCounts
from exporter.service.exposition import families as f
from exporter.service.exposition.text import Page, number, numbers

NASTY = [
    "\\",
    '"',
    "\n",
    "\\n",
    "\\\\",
    ",",
    "=",
    "{",
    "}",
    "#",
    " ",
    "\t",
    "é",
    "\u2028",
    "\U0001f600",
    "# EOF",
    'a"b',
]
labels = st.text(st.one_of(st.sampled_from("".join(NASTY)), st.characters(exclude_categories=["Cs"])), max_size=30)
floats = st.one_of(
    st.floats(),
    st.integers(-(2**53), 2**53),
    st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0, 5e-324, 1.7976931348623157e308, 1e16, 123456789.0]),
)


def same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


@given(signal=labels, severity=labels, amount=floats)
@example(signal='\\"\n', severity="\\", amount=math.nan)
def test_labels_and_values_come_back_in_both_formats(signal: str, severity: str, amount: float) -> None:
    for openmetrics in (False, True):
        page = Page()
        page.put(f.INCIDENT_OPEN, amount, "run-1", "surge", signal, severity)
        (((name, pairs), found),) = samples(page.body(openmetrics=openmetrics).decode(), openmetrics).items()
        assert name == "verl_incident_open"
        assert dict(pairs) == {"run": "run-1", "detector": "surge", "signal": signal, "severity": severity}
        assert same(found, float(amount))


@given(st.lists(floats))
def test_a_number_is_spelled_so_that_it_comes_back_bit_for_bit(values: list[float]) -> None:
    spelled = numbers(values)
    assert spelled == [number(value) for value in values]
    for given_value, text_of in zip(values, spelled, strict=True):
        if math.isfinite(given_value):
            assert struct.pack("<d", float(text_of)) == struct.pack("<d", float(given_value))
        else:
            assert text_of in ("NaN", "+Inf", "-Inf")
            assert same(float(text_of), given_value)


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(str.isprintable)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    runs=st.lists(names, min_size=1, max_size=3, unique=True),
    node=names,
    grads=st.lists(st.floats(), min_size=1, max_size=4),
    seconds=st.floats(),
    watts=st.floats(),
)
def test_any_run_is_shown_alike_in_both_formats(
    tmp_path_factory: pytest.TempPathFactory,
    runs: list[str],
    node: str,
    grads: list[float],
    seconds: float,
    watts: float,
) -> None:
    scene = Scene(tmp_path_factory.mktemp("run"))
    for run in runs:
        for step, grad in enumerate(grads, start=1):
            scene.step(step, run=run, grad=grad, time=seconds)
        reading = GpuReading(node=node, index=0, uuid="", power_watts=watts)
        scene.push(run=run, gpus=[reading], rollout=RolloutCounts(succeeded=1))
    shown = exposition(scene)
    classic = samples(shown.render().body.decode())
    new = samples(shown.render(OPENMETRICS).body.decode(), openmetrics=True)
    scene.close()
    volatile = ("process_", "verl_sentinel_scrape_")
    left, right = (
        {key: repr(v) for key, v in page.items() if not key[0].startswith(volatile)} for page in (classic, new)
    )
    assert left == right
    for run in runs:
        assert same(classic["verl_grad_norm", (("run", run),)], grads[-1])
        where = (("index", "0"), ("node", node), ("run", run), ("uuid", ""))
        assert same(classic["verl_gpu_power_watts", where], watts)


def test_a_lone_surrogate_costs_that_character_and_not_the_page() -> None:
    page = Page()
    page.put(f.PHASE_OPEN, 1.0, "a\ud800b", "gen")
    assert samples(page.body(openmetrics=False).decode()) == {
        ("verl_phase_open_seconds", (("phase", "gen"), ("run", "a?b"))): 1.0
    }


def test_buckets_add_up_and_the_last_one_is_the_count(scene: Scene) -> None:
    for step, seconds in enumerate((0.05, 0.1, 0.3, 45.0, 9000.0), start=1):
        scene.step(step, time=seconds)
    page = text(scene)
    name = "verl_training_step_duration_seconds"
    counts = [v for (n, _), v in samples(page).items() if n == f"{name}_bucket"]
    assert counts == sorted(counts)
    assert value(page, f"{name}_bucket", le="0.1") == 2
    assert value(page, f"{name}_bucket", le="7200.0") == 4
    assert value(page, f"{name}_bucket", le="+Inf") == value(page, f"{name}_count") == 5
    assert value(page, f"{name}_sum") == pytest.approx(9045.45)


def test_a_step_time_that_is_no_duration_leaves_the_histogram_readable(scene: Scene, tmp_path: Path) -> None:
    for step, seconds in enumerate((1.0, math.nan, math.inf, -3.0), start=1):
        scene.step(step, time=seconds)
    page = exposition(scene).render(OPENMETRICS).body.decode()
    found = samples(page, openmetrics=True)
    assert found["verl_training_step_duration_seconds_sum", (("run", "r"),)] == 1.0
