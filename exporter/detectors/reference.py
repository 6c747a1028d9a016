"""``python -m exporter.detectors.reference > docs/detectors.md``: every detector with every option, as Markdown.

A test holds the file to what this prints.
"""

from __future__ import annotations

from collections.abc import Iterator

from exporter.detectors.calibration import Budget
from exporter.detectors.described import Described, described, shown
from exporter.detectors.presets import DEFAULT_PRESET, PRESETS

_JUDGES = {"steps": "finished steps", "moments": "the moment, once a second"}


def markdown() -> str:
    """The document."""
    return "\n".join([*_head(), *_presets(), *_detectors()]) + "\n"


def _head() -> Iterator[str]:
    yield f"""# Detectors and their options

This file is printed by `python -m exporter.detectors.reference`. How the detectors work is in
[detection.md](detection.md).

Two sections of the exporter's configuration are about detection. All of it can be left out:

```yaml
detection:
  preset: {DEFAULT_PRESET}          # {", ".join(PRESETS)}
  pages_per_week: {Budget().pages_per_week}   # false pages that a week of a healthy run may cost
detectors:              # options by detector; they go before those of the preset
  silent_run: {{limit_seconds: 300}}
  gradient_instability: {{enabled: false}}
```

`verl-sentinel detectors` shows what is in effect and where each value comes from; `--config FILE` and `--preset NAME`
say of what, `--output json` prints it for programs. A wrong name is refused at the start, with the nearest right one.

`pages_per_week` is shared out among the detectors that calibrate their thresholds on the run itself: the smaller it is,
the more of an effect they wait for beyond what their options ask for. What is no effect by these options is no page
however large the budget.

Every detector has the option `enabled`. A detector that a preset leaves off is on again once the file names it, unless
with `enabled: false`. `null` is off, or not set. Steps that an option counts are steps of the trainer.
"""


def _presets() -> Iterator[str]:
    yield """## Presets

A detector of a signal that a run does not log says nothing. So an exporter that watches runs of several kinds needs no
preset for each: the default does no harm to any of them, and another one sharpens what it is for.
"""
    for name, preset in PRESETS.items():
        yield f"`{name}`{' (the default)' if name == DEFAULT_PRESET else ''}: {preset.meaning}\n"
        if not preset.differences:
            continue
        yield "| detectors | options | why |"
        yield "|---|---|---|"
        alike: dict[tuple[str, str], list[str]] = {}
        for detector, difference in preset.differences.items():
            options = ", ".join(f"`{option}: {shown(value)}`" for option, value in difference.options.items())
            alike.setdefault((options, difference.why), []).append(f"`{detector}`")
        for (options, why), detectors in alike.items():
            yield f"| {', '.join(detectors)} | {options} | {_cell(why)} |"
        yield ""


def _detectors() -> Iterator[str]:
    by_preset = {name: {one.name: one for one in described(name)} for name in PRESETS}
    yield "## Detectors"
    for one in by_preset[DEFAULT_PRESET].values():
        yield f"\n### {one.name}\n"
        off = [f"`{name}`" for name, all_of in by_preset.items() if not all_of[one.name].enabled]
        yield f"{_cell(one.meaning)} Judges {_JUDGES[one.judges]}.{f' Off in {_and(off)}.' if off else ''}"
        if not one.options:
            continue
        yield "\n| option | default | unit | meaning | presets |"
        yield "|---|---|---|---|---|"
        for index, option in enumerate(one.options):
            cells = (
                f"`{option.name}`",
                f"`{shown(option.default)}`",
                option.unit,
                option.meaning,
                ", ".join(_elsewhere(by_preset, one, index)),
            )
            yield f"| {' | '.join(map(_cell, cells))} |"


def _elsewhere(by_preset: dict[str, dict[str, Described]], one: Described, index: int) -> Iterator[str]:
    """What presets set the option to."""
    for name, all_of in by_preset.items():
        option = all_of[one.name].options[index]
        if option.origin == "preset":
            yield f"`{name}`: {shown(option.value)}"


def _and(words: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("``", "`")


if __name__ == "__main__":
    print(markdown(), end="")
