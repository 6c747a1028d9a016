"""The registry: every detector by name, wrong names refused with the nearest right one, state kept together."""

from __future__ import annotations

import json
import re

import pytest
from streams import healthy, watch

from exporter.detectors.base import LiveDetector, StepDetector
from exporter.detectors.registry import LIVE_DETECTORS, NAMES, STEP_DETECTORS, build_detectors, option_names


def test_without_options_every_detector_is_built_once_under_its_own_name() -> None:
    detectors = build_detectors()
    assert [d.name for d in detectors.all()] == [name for name in NAMES if name != "fixed_limits"]
    assert all(isinstance(d, StepDetector) for d in detectors.step)
    assert all(isinstance(d, LiveDetector) for d in detectors.live)


def test_enabled_false_leaves_a_detector_out() -> None:
    left = [d.name for d in build_detectors({"surge": {"enabled": False}}).all()]
    assert left == [d.name for d in build_detectors().all() if d.name != "surge"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"surg": {}}, "unknown detector 'surg': did you mean 'surge'"),
        ({"surge": {"facter": 2.0}}, "unknown option of detector surge 'facter': did you mean 'factor'"),
        ({"silent_run": {"limit": 5}}, "did you mean 'limit_seconds'"),
        ({"surge": {"enabled": "no"}}, "enabled is 'no'"),
        ({"surge": {"enabled": False, "factor": 0.5}}, "factor is 0.5"),
        ({"surge": 3}, "options are 3"),
        ({"surge": {"floors": 3}}, "detector surge: its options {'floors': 3"),
        ({"surge": {"budget": 3}}, "unknown option of detector surge 'budget'"),
        ({"qqqq": {}}, "unknown detector 'qqqq': Known: non_finite"),
    ],
)
def test_what_is_wrong_is_refused_with_a_sentence(options: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        build_detectors(options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
def test_every_default_is_a_value_that_the_detector_accepts(name: str) -> None:
    kind = {**STEP_DETECTORS, **LIVE_DETECTORS}[name]
    assert kind().name == name
    assert option_names(kind)[0] == "enabled"


def test_the_state_of_the_set_survives_json() -> None:
    steps = healthy(80)
    detectors, again = build_detectors(), build_detectors()
    watch(detectors.step, steps[:50])
    again.load_state_dict(json.loads(json.dumps(detectors.state_dict(), allow_nan=False)))
    faulty = [(step, signals | {"grad_norm": 50.0}) for step, signals in steps[50:]]
    expected = watch(detectors.step, faulty)
    assert expected
    assert watch(again.step, faulty) == expected


def test_a_state_without_some_detector_starts_that_one_fresh() -> None:
    build_detectors().load_state_dict({})
