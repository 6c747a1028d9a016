"""What counts: episodes, pages per 1,000 healthy steps, recall within the deadline, delay, and errors of forecasts.

Called by the benchmark on the walks of one contender.

- *Episode*: steps of one severity that lie within 20 steps of each other are one, all detectors together. A step that
  pages is no warning, too.
- *Caught*: within the deadline the least that has to be said of the kind was said, and the same run without the fault
  did not say it there: if it paged, nothing is credited, and a warning is credited only where its source was silent.
- *Forecast error*: at half way to the limit, the difference between the steps foreseen and those there are, by the
  latter. No forecast by then counts as missing.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from bench.detection.cases import CONTROL, KIND, Outcome, Walk
from bench.detection.faults import SEVERITIES
from exporter.detectors.base import Severity

APART: Final = 20
"""Steps within which two findings are one episode."""
PAGE: Final = int(Severity.CRITICAL)
WARN: Final = int(Severity.WARNING)

Table = dict[str, Any]


def episodes(steps: Iterable[int], apart: int = APART) -> list[int]:
    """First steps of the episodes.

    >>> episodes([5, 6, 26, 47, 3])
    [3, 47]
    """
    firsts: list[int] = []
    last = -math.inf
    for step in sorted(steps):
        if step - last > apart:
            firsts.append(step)
        last = step
    return firsts


def healthy(walks: Sequence[Walk]) -> Table:
    """False alarms on the healthy steps of some runs."""
    steps = sum(walk.steps for walk in walks)
    pages = paging = warnings = pages_each = warnings_each = 0
    sources: Counter[str] = Counter()
    for walk in walks:
        worst: dict[int, int] = {}
        by_source: dict[tuple[int, str], list[int]] = {}
        for index, severity, source in walk.said:
            worst[index] = max(worst.get(index, 0), severity)
            by_source.setdefault((severity, source), []).append(index)
        paged = [index for index, severity in worst.items() if severity == PAGE]
        paging += len(paged)
        pages += len(episodes(paged))
        warnings += len(episodes(index for index, severity in worst.items() if severity == WARN))
        for (severity, source), indices in by_source.items():
            count = len(episodes(indices))
            pages_each += count * (severity == PAGE)
            warnings_each += count * (severity == WARN)
            if severity >= WARN:
                sources[f"{Severity(severity).label} {source}"] += count
    thousand = steps / 1000 or math.nan
    return {
        "runs": len(walks),
        "steps": steps,
        "pages": pages,
        "steps_that_page": paging,
        "warnings": warnings,
        "pages_per_1000": round(pages / thousand, 3),
        "warnings_per_1000": round(warnings / thousand, 3),
        "pages_each_source_per_1000": round(pages_each / thousand, 3),
        "warnings_each_source_per_1000": round(warnings_each / thousand, 3),
        "by_source": dict(sources.most_common()),
    }


def alarms(walks: Iterable[Walk]) -> list[Table]:
    """Every page and warning on healthy steps, by source: where its episodes begin."""
    found = []
    for walk in walks:
        by_source: dict[tuple[int, str], list[int]] = {}
        for index, severity, source in walk.said:
            if severity >= WARN:
                by_source.setdefault((severity, source), []).append(index)
        for (severity, source), indices in sorted(by_source.items()):
            label = Severity(severity).label
            found.append({"run": walk.run, "severity": label, "source": source, "at": episodes(indices)})
    return found


def heard(outcome: Outcome) -> bool:
    """Whether what had to be said was said in time, even if the healthy run was told the same."""
    deadline, least = KIND[outcome.case.kind].deadline, int(KIND[outcome.case.kind].expects[outcome.case.severity])
    return any(t <= deadline[outcome.case.severity] and severity >= least for t, severity, _ in outcome.said)


def caught(outcome: Outcome, said: Sequence[tuple[int, int, str]]) -> int | None:
    """The delay in steps (0: on the first changed one) with which a fault was caught, None where it was not.

    ``said``: what was said of the healthy run.
    """
    case = outcome.case
    kind = KIND[case.kind]
    deadline, least = kind.deadline[case.severity], int(kind.expects[case.severity])
    window = range(case.place, case.place + deadline)
    twin = [(severity, source) for index, severity, source in said if index in window]
    for time, severity, source in outcome.said:
        if time > deadline or severity < least:
            continue
        already = (
            any(s == PAGE for s, _ in twin) if severity == PAGE else any(s >= WARN and source == o for s, o in twin)
        )
        if not already:
            return time - 1
    return None


def recall(walks: Sequence[Walk]) -> Table:
    """By kind and severity: tries, caught, median delay; and over all kinds the shares that the bars are about."""
    delays: dict[tuple[str, int], list[int | None]] = {}
    for walk in walks:
        for outcome in walk.outcomes:
            if outcome.case.severity >= 0:
                key = (outcome.case.kind, outcome.case.severity)
                delays.setdefault(key, []).append(caught(outcome, walk.said))
    kinds: dict[str, Table] = {}
    for name in KIND:
        row = {label: _share(delays[name, s]) for s, label in enumerate(SEVERITIES) if (name, s) in delays}
        if row:
            kinds[name] = row | {"all": _share([d for s in range(3) for d in delays.get((name, s), [])])}
    mild = [d for (_, severity), found in delays.items() if severity == 0 for d in found]
    grave = [d for (_, severity), found in delays.items() if severity > 0 for d in found]
    any_way = [heard(outcome) for walk in walks for outcome in walk.outcomes if outcome.case.severity >= 0]
    return {
        "moderate_and_severe": _share(grave),
        "mild": _share(mild),
        "said_also_without_fault": round(sum(any_way) / len(any_way), 4) if any_way else None,
        "by_kind": kinds,
    }


def _share(delays: Sequence[int | None]) -> Table:
    hit = [delay for delay in delays if delay is not None]
    return {
        "tries": len(delays),
        "caught": len(hit),
        "share": round(len(hit) / len(delays), 4) if delays else None,
        "median_delay": statistics.median(hit) if hit else None,
    }


def misses(walks: Iterable[Walk]) -> list[Table]:
    """Every fault that was not caught in time, with what was said instead."""
    found = []
    for walk in walks:
        for outcome in walk.outcomes:
            case = outcome.case
            if case.severity >= 0 and caught(outcome, walk.said) is None:
                found.append(
                    {
                        "run": walk.run,
                        "kind": case.kind,
                        "severity": SEVERITIES[case.severity],
                        "place": case.place,
                        "said": [(t, Severity(s).label, source) for t, s, source in outcome.said],
                    }
                )
    return found


def controls(walks: Iterable[Walk]) -> Table:
    """By control: tries, tries with a page, and who paged.

    A page that its source gave to the untouched run there is a false one of that run, and counted as such.
    """
    table: dict[str, Table] = {}
    for walk in walks:
        for outcome in walk.outcomes:
            if outcome.case.severity >= 0:
                continue
            row = table.setdefault(
                outcome.case.kind, {"tries": 0, "pages": 0, "warnings": 0, "by_source": {}, "at": []}
            )
            row["tries"] += 1
            lasts = range(outcome.case.place - 60, outcome.case.place + CONTROL[outcome.case.kind].steps)
            usual = {source for index, severity, source in walk.said if severity == PAGE and index in lasts}
            paged = sorted({source for _, severity, source in outcome.said if severity == PAGE} - usual)
            row["pages"] += bool(paged)
            row["warnings"] += not paged and any(severity == WARN for _, severity, _ in outcome.said)
            for source in paged:
                row["by_source"][source] = row["by_source"].get(source, 0) + 1
            if paged:
                row["at"].append((walk.run, outcome.case.place, outcome.case.seed))
    return {name: table[name] for name in CONTROL if name in table}


def forecasts(walks: Iterable[Walk]) -> Table:
    """By kind of leak: tries, those without a forecast at half way, and the error of the others, median and 95 %."""
    errors: dict[str, list[float | None]] = {}
    for walk in walks:
        for outcome in walk.outcomes:
            case = outcome.case
            kind = KIND.get(case.kind)
            if case.severity < 0 or kind is None or kind.reaches is None:
                continue
            half = outcome.reached // 2
            left = outcome.reached - half
            foreseen = [steps for time, steps in outcome.forecasts if time == half]
            errors.setdefault(case.kind, []).append(abs(foreseen[0] - left) / left if foreseen else None)
    return {name: _errors(found) for name, found in errors.items()}


def _errors(found: Sequence[float | None]) -> Table:
    known = sorted(error for error in found if error is not None)
    return {
        "tries": len(found),
        "missing": len(found) - len(known),
        "median_error": round(statistics.median(known), 4) if known else None,
        "p95_error": round(known[math.ceil(0.95 * len(known)) - 1], 4) if known else None,
        "within_15_percent": round(sum(error <= 0.15 for error in known) / len(found), 4) if found else None,
    }


def faults(walks: Iterable[Walk]) -> dict[str, int]:
    """Exceptions, by whose they were."""
    count: Counter[str] = Counter()
    for walk in walks:
        count.update(walk.faults)
        for outcome in walk.outcomes:
            count.update(outcome.faults)
    return {name: number for name, number in count.items() if number}


def _only_generated(recall: Mapping[str, Any], judged: str) -> tuple[float | None, float | None]:
    """Share of the moderate and severe, and of the mild faults of kinds that no run of ``judged`` can have."""
    here = recall.get(judged, {}).get("by_kind", {})
    rows = [row for name, row in recall.get("generated", {}).get("by_kind", {}).items() if name not in here]
    shares = []
    for labels in (SEVERITIES[1:], SEVERITIES[:1]):
        chosen = [row[label] for row in rows for label in labels if label in row]
        tries = sum(share["tries"] for share in chosen)
        shares.append(round(sum(share["caught"] for share in chosen) / tries, 4) if tries else None)
    return shares[0], shares[1]


def bars(result: Mapping[str, Any], judged: str) -> list[Table]:
    """The bars, on the runs of the split ``judged``; for kinds of fault they cannot have, on the generated ones."""
    calm, found = result["healthy"].get(judged, {}), result["recall"].get(judged, {})
    rows: list[Table] = []

    def bar(name: str, value: float | None, bound: float, *, least: bool = False) -> None:
        if value is not None:
            rows.append(
                {"bar": name, "value": value, "bound": bound, "met": value >= bound if least else value <= bound}
            )

    bar("pages per 1,000 healthy steps", calm.get("pages_per_1000"), 0.1)
    bar("warnings per 1,000 healthy steps", calm.get("warnings_per_1000"), 2.0)
    bar("moderate and severe faults paged in time", found.get("moderate_and_severe", {}).get("share"), 0.95, least=True)
    bar("mild faults warned of in time", found.get("mild", {}).get("share"), 0.8, least=True)
    grave, mild = _only_generated(result["recall"], judged)
    bar("the same, of kinds that only the generated runs can have", grave, 0.95, least=True)
    bar("mild ones of these kinds", mild, 0.8, least=True)
    for name, row in result["controls"].items():
        bar(f"pages on {row['tries']} times: {name}", row["pages"], 0)
    for name, row in result["forecasts"].get(judged, {}).items():
        error = row["p95_error"] if not row["missing"] else math.inf
        bar(f"error of the forecast, 95 %: {name}", error, 0.15)
    bar("exceptions", sum(result["faults"].values()), 0)
    bar("microseconds a step", result["microseconds_per_step"], 200.0)
    return rows
