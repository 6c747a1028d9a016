"""What counts as a metric's value on the wire, in msgpack and in JSON, and what is refused (docs/input.md)."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest
from exporter_scene import Scene

from exporter import protocol
from exporter.protocol import JSON, Batch, Step, decode_batch, encode, numbers

PATH = r"\$\.steps\[0\]\.metrics\[\.\.\.\]"


BATCH = {"protocol": 1, "run": {"run_id": "r"}, "sender": {"id": "t"}, "seq": 1}


def in_json(value: str) -> Batch:
    body = json.dumps({**BATCH, "steps": [{"step": 1, "metrics": {"m": "VALUE"}}]})
    return decode_batch(body.replace('"VALUE"', value).encode(), JSON)


def in_msgpack(value: Any) -> Batch:
    return decode_batch(msgspec.msgpack.encode({**BATCH, "steps": [{"step": 1, "metrics": {"m": value}}]}))


def value_of(batch: Batch) -> float:
    return numbers(batch.steps[0].metrics)["m"]


@pytest.mark.parametrize(
    ("spelled", "value"),
    [
        ("0.5", 0.5),
        ("3", 3.0),
        ("-0.0", 0.0),
        ("9007199254740993", 2.0**53),
        ("18446744073709551615", 2.0**64),
        ('"Infinity"', math.inf),
        ('"-Infinity"', -math.inf),
        ('"NaN"', math.nan),
        ("null", math.nan),
    ],
)
def test_what_is_a_number_in_json(spelled: str, value: float) -> None:
    found = value_of(in_json(spelled))
    assert type(found) is float
    assert found == value or (math.isnan(found) and math.isnan(value))


@pytest.mark.parametrize("value", [0.5, 3, 2**63, math.inf, -math.inf, math.nan, None, "NaN", "Infinity"])
def test_what_is_a_number_in_msgpack(value: Any) -> None:
    assert type(value_of(in_msgpack(value))) is float


@pytest.mark.parametrize("value", ["0.5", "nan", "", True, [1.0], {"a": 1.0}])
def test_what_is_none_is_refused_with_its_path_in_both(value: Any) -> None:
    for refused in (lambda: in_json(json.dumps(value)), lambda: in_msgpack(value)):
        with pytest.raises(msgspec.ValidationError, match=PATH):
            refused()


@pytest.mark.parametrize("spelled", ["1" + "0" * 400, "1e400", "-1e400"])
def test_a_number_beyond_float64_is_refused(spelled: str) -> None:
    with pytest.raises(msgspec.ValidationError, match="out of range"):
        in_json(spelled)


@pytest.mark.parametrize("spelled", ["NaN", "Infinity"])
def test_a_bare_nan_is_no_json(spelled: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        in_json(spelled)


def test_null_is_nan_for_the_detectors_too(scene: Scene) -> None:
    scene.push(steps=[Step(step=1, metrics={"actor/grad_norm": None, "actor/loss": 1.0})])
    signals = scene.run().state.signals
    assert math.isnan(signals["grad_norm"])
    assert signals["loss"] == 1.0
    scene.restart()
    assert math.isnan(scene.run().state.signals["grad_norm"])


def test_a_metric_that_comes_and_goes_keeps_its_newest_value(scene: Scene) -> None:
    scene.step(1, grad=1.0, loss=2.0)
    scene.step(2, grad=1.5)
    assert scene.run().state.signals == {"grad_norm": 1.5, "loss": 2.0}
    assert dict(scene.run().detectors.step[0].seen[-1].signals) == {"grad_norm": 1.5}


def test_a_step_without_metrics_is_no_training_step(scene: Scene) -> None:
    scene.push(steps=[Step(step=1, metrics={})])
    assert scene.run().state.steps_total == 0
    scene.step(1)
    assert scene.run().state.current == 1


def test_floats_are_not_copied_and_everything_else_becomes_a_float() -> None:
    floats = {"a": 1.0, "b": math.nan}
    assert numbers(floats) is floats  # type: ignore[comparison-overlap]
    assert numbers({"a": 1.0, "b": "Infinity", "c": None})["b"] == math.inf
    assert decode_batch(encode(in_msgpack(None))).steps[0].metrics == {"m": None}
    assert protocol.number("-Infinity") == -math.inf
