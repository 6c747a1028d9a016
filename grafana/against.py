"""Runs every query of the dashboards on a real Prometheus and says which gave nothing. ``python -m grafana --against``.

What may be empty, and why, is in ``empty_without.yml``; the rest has to give data. Needs no SDK: it reads the JSON.
"""

from __future__ import annotations

import json
import math
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from grafana.expanding import Chosen, Times, expanded, seconds_of

HERE: Final = Path(__file__).parent
_LABEL_VALUES: Final = re.compile(r"label_values\((.+),\s*(\w+)\)")
_QUERY_RESULT: Final = re.compile(r"query_result\((.+)\)")
_direct: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Asked:
    """One query, and what came of it."""

    dashboard: str
    kind: str
    """``panel``, ``variable`` or ``annotation``."""
    title: str
    query: str
    """Its letter; empty for a variable and an annotation."""
    expr: str
    series: int
    """With at least one number."""
    error: str = ""
    excuse: str = ""
    """What the run would have to have."""

    @property
    def sound(self) -> bool:
        return not self.error and (self.series > 0 or bool(self.excuse))


def dashboards() -> list[dict[str, Any]]:
    """All that are checked in."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted((HERE / "dashboards").glob("*.json"))]


def may_be_empty() -> dict[str, dict[str, Any]]:
    """``empty_without.yml``: by what is missing, the reason and what is empty then."""
    found: dict[str, dict[str, Any]] = yaml.safe_load((HERE / "empty_without.yml").read_text(encoding="utf-8"))
    return found


def _excuses(without: Iterable[str]) -> dict[tuple[str, str, str], str]:
    """By dashboard, title and letter (``*`` for all), the word."""
    found = {}
    for word in without:
        for uid, titles in may_be_empty()[word]["empty"].items():
            for title, letters in titles.items():
                for letter in letters:
                    found[uid, title, letter] = word
    return found


class Prometheus:
    """The HTTP API of one."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    def get(self, path: str, **parameters: str | float) -> list[Any]:
        """The data of an answer; ``ValueError`` has Prometheus' own words, ``ConnectionError`` a sentence."""
        body = urllib.parse.urlencode(parameters)
        try:
            with _direct.open(f"{self._url}/api/v1/{path}?{body}", timeout=60) as answer:
                data = json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise ValueError(error.read().decode(errors="replace")[:500]) from None
        except OSError as error:
            raise ConnectionError(f"{self._url} does not answer: {error}") from None
        return data["result"] if isinstance(data, dict) else data  # type: ignore[no-any-return]

    def values(self, query: str, pattern: str, times: Times) -> list[str]:
        """Values that a variable may have; ``pattern`` takes them out of the text that Grafana makes of a result."""
        result, found = _QUERY_RESULT.fullmatch(query), _LABEL_VALUES.fullmatch(query)
        if result is not None:
            rows = self.get("query", query=result.group(1), time=times.end)
            # Grafana's own form of a row: the labels as they are, the value, the time in milliseconds.
            labels = [",".join(f'{name}="{value}"' for name, value in one["metric"].items()) for one in rows]
            texts = [
                f"{{{one}}} {row['value'][1]} {times.end * 1000:.0f}" for one, row in zip(labels, rows, strict=True)
            ]
            return [match.group(1) for match in (re.search(pattern.strip("/"), text) for text in texts) if match]
        if found is None:
            raise ValueError(f"{query!r} is neither label_values(series, label) nor query_result(query).")
        begin = times.end - times.seconds
        match = {"match[]": found.group(1)}
        return [str(one) for one in self.get(f"label/{found.group(2)}/values", start=begin, end=times.end, **match)]

    def series(self, expr: str, times: Times, *, instant: bool) -> int:
        """How many series have a number."""
        if instant:
            return sum(not math.isnan(float(one["value"][1])) for one in self.get("query", query=expr, time=times.end))
        step = times.interval
        # The last point is now: of a run that began a minute ago, a grid from the beginning might miss all.
        begin = times.end - int(times.seconds / step) * step
        found = self.get("query_range", query=expr, start=begin, end=times.end, step=step)
        return sum(any(not math.isnan(float(value)) for _, value in one["values"]) for one in found)


def ask(url: str, *, run: str = "", without: Iterable[str] | None = None, end: float | None = None) -> list[Asked]:
    """Every query of every dashboard.

    Args:
        run: the run that is chosen where one is; the first without it.
        without: what the runs there do not have, of the words in ``empty_without.yml``; None: all of them.
        end: end of the time range, Unix seconds; now without it.
    """
    excuses = _excuses(may_be_empty() if without is None else without)
    prometheus = Prometheus(url)
    end = time.time() if end is None else end
    return [asked for one in dashboards() for asked in _of_dashboard(one, prometheus, run, excuses, end)]


def _of_dashboard(
    dashboard: Mapping[str, Any],
    prometheus: Prometheus,
    run: str,
    excuses: Mapping[tuple[str, str, str], str],
    end: float,
) -> Iterator[Asked]:
    uid = dashboard["uid"]
    seconds = seconds_of(dashboard["time"]["from"])
    times = Times(end, seconds)
    chosen: dict[str, Chosen] = {}

    def asked(kind: str, title: str, letter: str, expr: str, how: Any) -> Asked:
        excuse = excuses.get((uid, title, letter)) or excuses.get((uid, title, "*")) or ""
        try:
            return Asked(uid, kind, title, letter, expr, how(), excuse=excuse)
        except (ValueError, KeyError) as error:
            return Asked(uid, kind, title, letter, expr, 0, error=str(error), excuse=excuse)

    for variable in dashboard["templating"]["list"]:
        name = variable["name"]
        if variable["type"] != "query":
            value = variable["current"]["value"] if variable["type"] == "interval" else variable["query"]
            chosen[name] = Chosen([value])
            continue
        query = expanded(variable["query"]["query"], chosen, times)
        values: list[str] = []

        def look(query: str = query, pattern: str = variable.get("regex", ""), values: list[str] = values) -> int:
            values.extend(prometheus.values(query, pattern, times))
            return len(values)

        yield asked("variable", name, "", query, look)
        values.sort(reverse=variable["sort"] == 2)
        if variable["includeAll"]:
            chosen[name] = Chosen(values, variable["allValue"])
        else:
            chosen[name] = Chosen([run if name == "run" and run else values[0] if values else ""])
    for panel in _panels(dashboard["panels"]):
        for target in panel.get("targets", []):
            least = max(times.least, seconds_of(target.get("interval", "1s")))
            of_target = Times(end, seconds, least)
            expr = expanded(target["expr"], chosen, of_target)

            def count(expr: str = expr, instant: bool = target["instant"], when: Times = of_target) -> int:
                return prometheus.series(expr, when, instant=instant)

            yield asked("panel", panel["title"], target["refId"], expr, count)
    for annotation in dashboard["annotations"]["list"]:
        expr = expanded(annotation["expr"], chosen, times)

        def marks(expr: str = expr) -> int:
            return prometheus.series(expr, times, instant=False)

        yield asked("annotation", annotation["name"], "", expr, marks)


def _panels(panels: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for panel in panels:
        yield from (_panels(panel["panels"]) if panel["type"] == "row" else [panel])


def report(url: str, *, run: str = "", without: str = "", as_json: bool = False) -> int:
    """Ask and print; 1 where something is empty without an excuse, or Prometheus refused a query."""
    try:
        found = ask(url, run=run, without=without.split(",") if without else None)
    except KeyError as error:
        print(f"--without does not know {error}; known are {', '.join(may_be_empty())}.")
        return 2
    except ConnectionError as error:
        print(error)
        return 2
    if as_json:
        print(json.dumps({"queries": [asdict(one) for one in found], "sound": all(one.sound for one in found)}))
    else:
        for one in found:
            said = one.error or (f"{one.series} series" if one.series else "EMPTY" if not one.excuse else "empty")
            why = f" (without {one.excuse})" if one.excuse and not one.series else ""
            print(f"{one.dashboard:18} {one.kind:10} {one.title} {one.query}: {said}{why}")
        print(f"{sum(one.sound for one in found)} of {len(found)} queries are as they should be.")
    return 0 if all(one.sound for one in found) else 1
