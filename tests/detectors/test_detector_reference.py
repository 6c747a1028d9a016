"""The list of all detectors with their options: whole, explained, and as the code has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from exporter.detectors.described import described
from exporter.detectors.presets import PRESETS
from exporter.detectors.reference import markdown
from exporter.detectors.registry import NAMES

DOCUMENT = Path(__file__).parents[2] / "docs" / "detectors.md"


def test_the_document_is_what_the_code_prints() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == markdown(), (
        "python -m exporter.detectors.reference > docs/detectors.md"
    )


@pytest.mark.parametrize("detector", described("grpo"), ids=lambda detector: detector.name)
def test_every_option_is_explained_in_its_detectors_docstring(detector: object) -> None:
    unexplained = [option.name for option in detector.options if not option.meaning]  # type: ignore[attr-defined]
    assert unexplained == []


def test_the_document_names_every_detector_option_and_preset() -> None:
    text = markdown()
    assert [line.removeprefix("### ") for line in text.splitlines() if line.startswith("### ")] == list(NAMES)
    for detector in described("grpo"):
        section = text.partition(f"### {detector.name}\n")[2].partition("### ")[0]
        assert all(f"| `{option.name}` |" in section for option in detector.options)
    assert all(f"`{name}`" in text for name in PRESETS)


def test_each_value_says_where_it_comes_from() -> None:
    found = {one.name: one for one in described("manual", {"fixed_limits": {"kl_above": 0.5}, "surge": {"k": 4}})}
    limits = {option.name: (option.value, option.origin) for option in found["fixed_limits"].options}
    assert limits["kl_above"] == (0.5, "file")
    assert limits["kl_below"] == (0.01, "preset")
    assert limits["mfu_below"] == (None, "default")
    assert (found["surge"].enabled, found["surge"].origin) == (True, "file")
    assert (found["gradient_instability"].enabled, found["gradient_instability"].origin) == (False, "preset")
    assert (found["non_finite"].enabled, found["non_finite"].origin) == (True, "default")


def test_a_detector_for_which_nothing_is_set_is_idle() -> None:
    idle = [one.name for one in described("grpo") if one.idle]
    assert idle == ["fixed_limits"]
    assert not any(one.idle for one in described("manual"))
