"""Variables and intervals are filled in as Grafana does it."""

from __future__ import annotations

import pytest

from grafana.expanding import Chosen, Times, expanded, seconds_of

MONTH = 30 * 86400


@pytest.mark.parametrize(
    ("chosen", "written"),
    [
        (Chosen(["a"]), "a"),
        (Chosen(["a.b", "c|d"]), r"(a\.b|c\|d)"),
        (Chosen(["a", "b"], ".*"), ".*"),
        (Chosen([""]), ""),
    ],
)
def test_a_choice_is_one_expression(chosen: Chosen, written: str) -> None:
    assert expanded("x{run=~`${run:regex}`}", {"run": chosen}, Times(0, 60)) == f"x{{run=~`{written}`}}"


def test_a_variable_in_a_value_is_filled_in_as_a_newer_grafana_does_it() -> None:
    """Which is why docs/dashboards.md names it; a dollar before anything else stays one."""
    written = expanded("x{run=~`${run:regex}`}", {"run": Chosen(["a$run"])}, Times(0, 60))
    assert written == r"x{run=~`a\a$run`}"
    assert expanded("${run:regex}", {"run": Chosen(["a$5 $b ${run}"])}, Times(0, 60)) == r"a\$5 \$b \$\{run\}"


def test_an_address_goes_in_as_it_is() -> None:
    console = {"console": Chosen(["https://a.example/x?y"])}
    assert expanded("${console:raw}/console/", console, Times(0, 60)) == "https://a.example/x?y/console/"


@pytest.mark.parametrize(
    ("seconds", "least", "interval", "rate_interval"),
    [(60, 1, 1, 60), (60, 15, 15, 60), (6 * 3600, 15, 21, 60), (86400, 15, 86, 101), (MONTH, 60, 2592, 2607)],
)
def test_intervals_grow_with_the_range_and_hold_four_scrapes(
    seconds: int, least: int, interval: int, rate_interval: int
) -> None:
    times = Times(0, seconds, least)
    assert (times.interval, times.rate_interval) == (interval, rate_interval)
    assert expanded("[$__interval][$__rate_interval][$__range]", {}, times) == (
        f"[{interval}s][{rate_interval}s][{seconds}s]"
    )


def test_a_variable_that_nobody_defined_and_a_format_that_is_not_used_are_errors() -> None:
    with pytest.raises(KeyError, match="rnu"):
        expanded("x{run=~`${rnu:regex}`}", {"run": Chosen(["a"])}, Times(0, 60))
    with pytest.raises(ValueError, match="'csv'"):
        expanded("${run:csv}", {"run": Chosen(["a"])}, Times(0, 60))


def test_spans_of_time() -> None:
    assert [seconds_of(text) for text in ("now-6h", "now-7d", "15s", "1m", "1w")] == [21600, 604800, 15, 60, 604800]
