"""Critical Xid events count from the start of the sampler on and stay with their GPU; without them nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from test_gpu_readings import once_json

from exporter.protocol import GpuReading
from trainer_entry.gpu.__main__ import table
from trainer_entry.gpu.sampler import GpuSampler, Sample


def xids(report: dict[str, Any]) -> list[tuple[int | None, int | None]]:
    """Number and newest code of each GPU."""
    return [(gpu["xid_errors"], gpu["last_xid"]) for gpu in report["gpus"]]


def test_events_count_from_the_start_of_the_sampler_and_the_newest_code_is_told(
    driver: Any, reports: Callable[[], Any]
) -> None:
    driver.set(count=2)
    driver.healthy_gpu(0, events=1, xids=5, xid=31)  # these were before
    driver.healthy_gpu(1, events=1)
    stream = reports()
    assert xids(stream.next()) == [(0, 0), (0, 0)]
    driver.gpu(0, xids=6, xid=13)
    stream.until(lambda report: xids(report) == [(1, 13), (0, 0)])
    driver.gpu(0, xids=8, xid=48)
    stream.until(lambda report: xids(report) == [(3, 48), (0, 0)])
    assert xids(stream.next()) == [(3, 48), (0, 0)], "each counts once"


def test_a_gpu_that_fell_off_the_bus_still_tells_by_which_event(driver: Any, reports: Callable[[], Any]) -> None:
    driver.set(count=2)
    for index in range(2):
        driver.healthy_gpu(index, events=1)
    stream = reports()
    stream.next()
    driver.gpu(1, handle="!15", xids=1, xid=79)
    lost = stream.until(lambda report: report["gpus"][1]["lost"] and report["gpus"][1]["xid_errors"] == 1)
    assert xids(lost) == [(0, 0), (1, 79)]
    driver.gpu(1, wait="!15")
    assert xids(stream.next()) == [(0, 0), (1, 79)]


def test_the_count_goes_on_after_the_driver_was_restarted(driver: Any, reports: Callable[[], Any]) -> None:
    driver.set(count=1, epoch=1)
    driver.healthy_gpu(0, events=1, xids=0)
    stream = reports()
    stream.next()
    driver.gpu(0, xids=1, xid=94)
    stream.until(lambda report: xids(report) == [(1, 94)])
    driver.set(epoch=2)
    stream.until(lambda report: not report["available"] and xids(report) == [(1, 94)])
    stream.until(lambda report: report["available"])
    driver.gpu(0, xids=2, xid=95)
    stream.until(lambda report: xids(report) == [(2, 95)])


@pytest.mark.parametrize("answer", [None, "!2", "!3", "!4", "!999"])
def test_a_gpu_that_does_not_report_events_changes_nothing_else(driver: Any, answer: str | None) -> None:
    driver.set(count=2)
    driver.healthy_gpu(0, events=answer)
    driver.healthy_gpu(1, events=1)
    report = once_json(driver)
    assert xids(report) == [(None, None), (0, 0)]
    for gpu in report["gpus"]:
        assert (gpu["memory_used_bytes"], gpu["utilization_ratio"], gpu["error"]) == (1_000_000, 0.57, "")


def test_a_driver_without_events_is_read_as_before(old_driver: Any) -> None:
    old_driver.set(count=1)
    old_driver.healthy_gpu(0, events=1)
    report = once_json(old_driver)
    assert xids(report) == [(None, None)]
    assert report["gpus"][0]["temperature_celsius"] == 41.0


def test_a_wait_that_fails_is_no_event_and_no_error(driver: Any) -> None:
    driver.set(count=1)
    driver.healthy_gpu(0, events=1, wait="!999")
    report = once_json(driver)
    assert xids(report) == [(0, 0)]
    assert report["gpus"][0]["error"] == ""


def test_what_was_registered_is_given_back(driver: Any) -> None:
    driver.set(count=3)
    for index, events in enumerate((1, None, 1)):
        driver.healthy_gpu(index, events=events)
    once_json(driver)
    calls = driver.all_calls
    assert calls.count("events") == 3, "one set a GPU, however often it is sampled"
    assert calls.count("freed") == 3
    assert calls[-1] == "shutdown"


def test_the_table_names_them_where_there_are_some() -> None:
    sample = Sample(
        available=True,
        readings=[GpuReading(node="n", index=i, name="H200", xid_errors=2 * i, last_xid=79 * i) for i in range(2)],
    )
    *_, healthy, broken = table(GpuSampler("n"), sample, None).splitlines()
    assert "Xid" not in healthy
    assert broken.endswith("H200, 2 critical Xid event(s), the newest 79")
