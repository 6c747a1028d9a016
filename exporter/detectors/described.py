"""What every detector is set to, where that comes from, and what it means. Called by ``verl-sentinel detectors`` and by
:mod:`exporter.detectors.reference`.

Defaults are read from the constructors and meanings from the docstrings, so that there is one place for each. In a
docstring, after its first paragraph, an option is explained as ````name`` (unit): text.``, several that belong together
as ````k``, ``n``: text.``; the unit may be left out where there is none or the name ends with it. Text that is "as in"
another detector, in backticks, is what that one says of the option.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from exporter.detectors.presets import ENABLED, in_effect, preset_named
from exporter.detectors.registry import LIVE_DETECTORS, STEP_DETECTORS, DetectorPlan, option_names

Origin = Literal["default", "preset", "file"]

_UNITS = ("seconds", "steps", "tokens", "requests", "failures")
"""Last words of option names that are units."""
_NAMES = r"``\w+``(?:(?:, and |, | and | of )``\w+``)*"
_EXPLAINED = re.compile(
    rf"(?P<names>{_NAMES})(?: \((?P<unit>[^)]*)\))?: (?P<text>.*?)(?=\s*{_NAMES}(?: \([^)]*\))?: |$)"
)


@dataclass(frozen=True, slots=True)
class Option:
    """One option of one detector."""

    name: str
    unit: str
    """Empty where it has none."""
    meaning: str
    """Empty where the docstring does not say."""
    default: Any
    value: Any
    origin: Origin


@dataclass(frozen=True, slots=True)
class Described:
    """One detector."""

    name: str
    judges: Literal["steps", "moments"]
    """Finished steps, or the moment between steps."""
    meaning: str
    enabled: bool
    origin: Origin
    """Of ``enabled``."""
    idle: bool
    """Enabled, and not built all the same: with these options there is nothing for it to do."""
    options: tuple[Option, ...]


def described(preset: str, options: Mapping[str, Mapping[str, Any]] | None = None) -> tuple[Described, ...]:
    """Every detector, in the order in which they run. Raises ``ValueError`` as :class:`DetectorPlan` does.

    >>> surge = next(one for one in described("grpo", {"surge": {"k": 4}}) if one.name == "surge")
    >>> k = next(option for option in surge.options if option.name == "k")
    >>> k.value, k.default, k.origin, k.meaning
    (4, 3, 'file', 'high steps of the last n that make a page')
    """
    chosen = options or {}
    built = {detector.name for detector in DetectorPlan(chosen, preset=preset)().all()}
    together = in_effect(preset, chosen)
    by_preset = {name: difference.options for name, difference in preset_named(preset).differences.items()}

    def one(name: str, kind: Callable[..., Any], judges: Literal["steps", "moments"]) -> Described:
        mine, theirs = chosen.get(name, {}), by_preset.get(name, {})
        effective = together.get(name, {})
        enabled: bool = effective.get(ENABLED, True)
        parameters = inspect.signature(kind).parameters
        meaning, explained = explanations(kind)
        explained = {option: _referred(option, words) for option, words in explained.items()}

        def origin(option: str) -> Origin:
            return "file" if option in mine else "preset" if option in theirs else "default"

        return Described(
            name=name,
            judges=judges,
            meaning=meaning,
            enabled=enabled,
            # What the preset left off is on because the file names the detector, with whatever option.
            origin="file" if enabled and theirs.get(ENABLED) is False else origin(ENABLED),
            idle=enabled and name not in built,
            options=tuple(
                Option(
                    name=option,
                    unit=explained.get(option, ("", ""))[0],
                    meaning=explained.get(option, ("", ""))[1],
                    default=parameters[option].default,
                    value=effective.get(option, parameters[option].default),
                    origin=origin(option),
                )
                for option in option_names(kind)
                if option != ENABLED
            ),
        )

    return tuple(one(name, kind, judges) for kinds, judges in _KINDS for name, kind in kinds.items())


_KINDS: tuple[tuple[Mapping[str, Callable[..., Any]], Literal["steps", "moments"]], ...] = (
    (STEP_DETECTORS, "steps"),
    (LIVE_DETECTORS, "moments"),
)


def _referred(option: str, words: tuple[str, str]) -> tuple[str, str]:
    """What a detector says of an option; of one that is as in another detector, what that one says."""
    unit, meaning = words
    other = re.fullmatch(r"as in ``(\w+)``", meaning)
    kind = {**STEP_DETECTORS, **LIVE_DETECTORS}.get(other[1]) if other else None
    return words if kind is None else explanations(kind)[1].get(option, (unit, ""))


def explanations(kind: Callable[..., Any]) -> tuple[str, dict[str, tuple[str, str]]]:
    """From a detector's docstring: its first paragraph, and unit and meaning by option.

    An option that is only mentioned, in the first paragraph or where another is explained, is referred to that.

    >>> class Example:
    ...     '''Something is wrong.
    ...
    ...     ``limit_seconds``: what is
    ...     too long. ``low``, ``high`` (nats): the range: no
    ...     page inside.
    ...
    ...     >>> Example()
    ...     '''
    >>> explanations(Example)
    ('Something is wrong.', {'limit_seconds': ('seconds', 'what is too long'), 'low': ('nats', 'the range: no page \
inside'), 'high': ('nats', 'the range: no page inside')})
    """
    paragraphs = [" ".join(part.split()) for part in inspect.cleandoc(kind.__doc__ or "").split("\n\n")]
    found: dict[str, tuple[str, str]] = {}
    # Of a detector with few options the first paragraph may say it all.
    mentioned = {name: ("", "see above") for name in re.findall(r"``(\w+)``", paragraphs[0])}
    for paragraph in paragraphs[1:]:
        if paragraph.startswith(">>>"):
            break
        for match in _EXPLAINED.finditer(paragraph):
            names = re.findall(r"``(\w+)``", match["names"])
            for name in names:
                unit = match["unit"] or next((word for word in _UNITS if f"_{name}".endswith(f"_{word}")), "")
                found[name] = (unit, match["text"].strip().removesuffix("."))
            for name in re.findall(r"``(\w+)``", match["text"]):
                mentioned.setdefault(name, ("", f"see ``{names[0]}``"))
    return paragraphs[0], mentioned | found


def shown(value: Any) -> str:
    """A value as it is written into the configuration file.

    >>> shown(None), shown(True), shown(0.5), shown({"kl": 0.1}), shown("warning")
    ('null', 'true', '0.5', '{"kl": 0.1}', 'warning')
    """
    return value if isinstance(value, str) else json.dumps(value)
