"""The sampler on the real pynvml over a mocked driver: what it says of healthy, lost, poor and vanished GPUs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainer_entry.gpu.actor import has_nvml
from trainer_entry.gpu.sampler import GONE

GIB = 2**30
VALUES = ("memory_used_bytes", "memory_total_bytes", "utilization_ratio", "power_watts", "temperature_celsius")


def once(driver: Any, *arguments: str, code: str = "") -> subprocess.CompletedProcess[str]:
    start = ["-c", code] if code else ["-m", "trainer_entry.gpu"]
    return subprocess.run(
        [sys.executable, *start, "--once", *arguments],
        env=driver.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def once_json(driver: Any, code: str = "") -> dict[str, Any]:
    result = once(driver, "--json", code=code)
    assert result.returncode == 0, result.stderr
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def test_every_value_of_every_gpu_is_read_in_base_units(driver: Any) -> None:
    driver.set(count=2)
    driver.healthy_gpu(0, used=20 * GIB, total=140 * GIB, gpu=57, power=350_125, temperature=41)
    driver.healthy_gpu(1, name="NVIDIA L4", used=0, total=24 * GIB, gpu=0, power=16_000, temperature=30)
    answer = once_json(driver)
    assert answer["available"] is True
    assert answer["driver_version"] == "550.54.15"
    assert answer["sample_microseconds"] > 0
    first, second = answer["gpus"]
    assert (first["index"], first["uuid"], first["name"]) == (0, "GPU-0", "NVIDIA H200")
    assert [first[value] for value in VALUES] == [20 * GIB, 140 * GIB, 0.57, 350.125, 41.0]
    assert (second["index"], second["uuid"], second["name"]) == (1, "GPU-1", "NVIDIA L4")
    assert [second[value] for value in VALUES] == [0, 24 * GIB, 0.0, 16.0, 30.0]
    assert not first["lost"]
    assert not first["error"]


def test_growing_memory_shows_from_sample_to_sample(driver: Any, reports: Callable[[], Any]) -> None:
    driver.set(count=1)
    driver.healthy_gpu(0, used=GIB)
    stream = reports()
    for gib in (1, 2, 5, 90):
        driver.gpu(0, used=gib * GIB)
        stream.until(lambda report, gib=gib: report["gpus"][0]["memory_used_bytes"] == gib * GIB)
    assert driver.calls == ["init"], "one session serves all samples"


def test_a_lost_gpu_says_so_in_the_drivers_words_and_hides_none_of_the_others(
    driver: Any, reports: Callable[[], Any]
) -> None:
    driver.set(count=3)
    for index in range(3):
        driver.healthy_gpu(index)
    stream = reports()
    assert not any(gpu["lost"] for gpu in stream.next()["gpus"])
    driver.gpu(1, used="!15", gpu="!15", power="!15", temperature="!15", uuid="!15", name="!15")
    report = stream.until(lambda report: report["gpus"][1]["lost"])
    assert report["gpus"][1]["error"] == "GPU is lost"
    assert report["gpus"][1]["uuid"] == "GPU-1", "which GPU it is was known before"
    assert all(report["gpus"][1][value] is None for value in VALUES)
    assert [gpu["memory_used_bytes"] for gpu in report["gpus"]] == [1_000_000, None, 1_000_000]


@pytest.mark.parametrize(("code", "words"), [(15, "GPU is lost"), (16, "GPU requires restart")])
def test_a_gpu_that_was_lost_before_the_start_is_reported_lost(driver: Any, code: int, words: str) -> None:
    driver.set(count=2)
    driver.gpu(0, handle=f"!{code}")
    driver.healthy_gpu(1)
    lost, healthy = once_json(driver)["gpus"]
    assert (lost["index"], lost["lost"], lost["error"]) == (0, True, words)
    assert (healthy["index"], healthy["lost"], healthy["uuid"]) == (1, False, "GPU-1")


def test_a_gpu_that_is_repaired_gets_its_values_back(driver: Any, reports: Callable[[], Any]) -> None:
    driver.set(count=1)
    driver.gpu(0, handle="!16")
    stream = reports()
    assert stream.next()["gpus"][0]["lost"]
    driver.healthy_gpu(0)
    report = stream.until(lambda report: not report["gpus"][0]["lost"])
    assert len(report["gpus"]) == 1
    assert report["gpus"][0]["uuid"] == "GPU-0"


@pytest.mark.parametrize("answer", [None, "!3", "!4", "!13"])
def test_a_value_that_is_not_supported_is_absent_and_not_zero(driver: Any, answer: str | None) -> None:
    driver.set(count=1)
    driver.healthy_gpu(0, power=answer, gpu=answer)
    (gpu,) = once_json(driver)["gpus"]
    assert gpu["power_watts"] is None
    assert gpu["utilization_ratio"] is None
    assert gpu["memory_used_bytes"] == 1_000_000
    assert not gpu["error"]


def test_a_gpu_that_fails_for_another_reason_carries_the_drivers_words_but_is_not_called_lost(driver: Any) -> None:
    driver.set(count=2)
    driver.healthy_gpu(0, used="!999", total="!999", gpu="!999", power="!999", temperature="!999")
    driver.healthy_gpu(1, handle="!4242")
    failed, unknown = once_json(driver)["gpus"]
    assert (failed["lost"], failed["error"], failed["uuid"]) == (False, "Unknown Error", "GPU-0")
    assert (unknown["lost"], unknown["error"]) == (False, "Words of the driver")


def test_memory_used_leaves_out_what_the_driver_keeps_for_itself_as_nvidia_smi_does(driver: Any) -> None:
    driver.set(count=1)
    driver.healthy_gpu(0, used=5000, reserved=700)
    assert once_json(driver)["gpus"][0]["memory_used_bytes"] == 5000


def test_a_driver_without_the_newer_calls_is_read_by_the_older_ones(old_driver: Any) -> None:
    old_driver.set(count=1)
    old_driver.healthy_gpu(0, used=5000, reserved=700, temperature=66)
    (gpu,) = once_json(old_driver)["gpus"]
    assert gpu["memory_used_bytes"] == 5700
    assert gpu["temperature_celsius"] == 66.0
    assert not gpu["error"]


def test_a_machine_with_a_driver_and_no_gpu_has_no_readings(driver: Any) -> None:
    answer = once_json(driver)
    assert answer["available"] is True
    assert answer["gpus"] == []


def test_a_driver_without_version_is_no_error(driver: Any) -> None:
    driver.set(driver="!3", count=1)
    driver.healthy_gpu(0)
    assert once_json(driver)["driver_version"] == ""
    assert "driver unknown, 1 GPU(s)" in once(driver).stdout


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (9, "the NVIDIA driver is not loaded on this machine"),
        (18, "restart the processes of this node"),
        (999, "the NVIDIA driver refused to open NVML (Unknown Error)"),
    ],
)
def test_a_driver_that_does_not_open_is_a_sentence_and_exit_code_0(driver: Any, code: int, sentence: str) -> None:
    driver.set(init=f"!{code}")
    answer = once_json(driver)
    assert answer["available"] is False
    assert sentence in answer["reason"]
    assert answer["gpus"] == []
    assert answer["sample_microseconds"] is None


def test_a_library_that_cannot_be_loaded_is_a_sentence_and_exit_code_0(driver: Any, tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_text("not a library")  # found first, also on a machine that has a real one
    driver.library_dir = tmp_path
    assert "libnvidia-ml.so.1 was not found" in once_json(driver)["reason"]


def test_without_pynvml_it_says_what_to_install(driver: Any) -> None:
    hidden = "import sys; sys.modules['pynvml'] = None\nfrom trainer_entry.gpu.__main__ import main; sys.exit(main())"
    assert "pip install nvidia-ml-py" in once_json(driver, code=hidden)["reason"]


def test_the_table_shows_what_is_there_and_what_is_not(driver: Any) -> None:
    driver.set(count=2)
    driver.healthy_gpu(0, used=70 * GIB, total=140 * GIB, power=None)
    driver.gpu(1, handle="!15")
    head, _, healthy, lost = once(driver).stdout.splitlines()
    assert "driver 550.54.15, 2 GPU(s), one sample takes" in head
    assert healthy.split() == ["0", "70.0", "GiB", "/", "140.0", "GiB", "57", "%", "-", "41", "°C", "NVIDIA", "H200"]
    assert "LOST: GPU is lost" in lost


def test_an_interval_that_makes_no_sense_is_refused(driver: Any) -> None:
    result = once(driver, "--seconds", "nan")
    assert result.returncode == 2
    assert "--seconds is nan; it must be above 0" in result.stderr


def test_a_gpu_that_the_driver_no_longer_lists_is_reported_lost_under_its_own_index(
    driver: Any, reports: Callable[[], Any]
) -> None:
    driver.set(count=3, epoch=1)
    for index, uuid in enumerate(["GPU-a", "GPU-b", "GPU-c"]):
        driver.healthy_gpu(index, uuid, used=index)
    stream = reports()
    assert [gpu["uuid"] for gpu in stream.next()["gpus"]] == ["GPU-a", "GPU-b", "GPU-c"]
    driver.set(count=2, epoch=2, **{"1.uuid": "GPU-c", "1.used": 2})  # restarted without b: c is now listed second
    report = stream.until(lambda report: report["available"] and any(gpu["lost"] for gpu in report["gpus"]))
    assert [(gpu["index"], gpu["uuid"], gpu["memory_used_bytes"]) for gpu in report["gpus"]] == [
        (0, "GPU-a", 0),
        (1, "GPU-b", None),
        (2, "GPU-c", 2),
    ]
    assert (report["gpus"][1]["lost"], report["gpus"][1]["error"]) == (True, GONE)


@pytest.mark.skipif(not has_nvml(), reason="no NVIDIA driver library on this machine, so no real GPU to read")
def test_the_real_gpus_of_this_machine_are_read() -> None:
    command = [sys.executable, "-m", "trainer_entry.gpu", "--once", "--json"]
    answer = json.loads(subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout)
    if not answer["available"]:
        pytest.skip(f"the driver library is here but not to be used: {answer['reason']}")
    assert answer["driver_version"]
    for gpu in answer["gpus"]:
        assert gpu["uuid"]
        assert gpu["lost"] or 0 <= (gpu["memory_used_bytes"] or 0) <= (gpu["memory_total_bytes"] or 0)
