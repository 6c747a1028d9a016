"""The driver goes away under the sampler and comes back: it opens NVML anew, patiently, and says each thing once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest


def run(driver: Any, script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script], env=driver.environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_after_a_driver_restart_nvml_is_opened_again(driver: Any, reports: Callable[[], Any]) -> None:
    driver.set(count=1, epoch=1)
    driver.healthy_gpu(0, used=1)
    stream = reports()
    stream.next()
    driver.set(epoch=2, **{"0.used": 2})
    report = stream.until(lambda report: not report["available"])
    assert report["reason"] == "the NVIDIA driver ended the session (Uninitialized)"
    (gpu,) = report["gpus"]
    assert (gpu["uuid"], gpu["memory_used_bytes"], gpu["lost"]) == ("GPU-0", None, False)
    assert gpu["error"] == report["reason"], "a GPU seen before does not vanish without a word"
    stream.until(lambda report: report["available"] and report["gpus"][0]["memory_used_bytes"] == 2)
    assert driver.calls == ["init", "shutdown", "init"]


@pytest.mark.parametrize("code", [1, 9, 18])
def test_a_driver_that_goes_away_in_the_middle_of_a_sample_ends_the_session(
    driver: Any, reports: Callable[[], Any], code: int
) -> None:
    driver.set(count=2)
    driver.healthy_gpu(0)
    driver.healthy_gpu(1)
    stream = reports()
    stream.next()
    driver.gpu(1, power=f"!{code}")
    report = stream.until(lambda report: not report["available"])
    assert [gpu["index"] for gpu in report["gpus"]] == [0, 1]
    driver.healthy_gpu(1)
    stream.until(lambda report: report["available"] and len(report["gpus"]) == 2)


def test_attempts_to_open_nvml_become_rarer_up_to_one_a_minute(driver: Any) -> None:
    driver.set(init="!9")
    result = run(
        driver,
        "import os\n"
        "from trainer_entry.gpu.sampler import GpuSampler\n"
        "now, tries = 0, 0\n"
        "sampler = GpuSampler('node-7', clock=lambda: float(now))\n"
        "for now in range(250):\n"
        "    sampler.sample()\n"
        "    done = open(os.environ['FAKE_NVML_LOG']).read().count('init')\n"
        "    if done > tries: print(now)\n"
        "    tries = done\n",
    )
    assert [int(second) for second in result.stdout.split()] == [0, 1, 3, 7, 15, 31, 63, 123, 183, 243], result.stderr
    assert result.stderr.count("the NVIDIA driver is not loaded on this machine") == 1, "said once, not at each attempt"
    assert "GPU sampler on node-7" in result.stderr


def test_a_driver_that_answers_again_is_said_once(driver: Any) -> None:
    driver.set(count=1, epoch=1)
    driver.healthy_gpu(0)
    result = run(
        driver,
        "import os, pathlib\n"
        "from trainer_entry.gpu.sampler import GpuSampler\n"
        "now = 0.0\n"
        "control = pathlib.Path(os.environ['FAKE_NVML_CONTROL'])\n"
        "sampler = GpuSampler('node-7', clock=lambda: now)\n"
        "for now in range(0, 40, 5):\n"
        "    if now == 10: control.write_text(control.read_text().replace('epoch 1', 'epoch 2'))\n"
        "    print(sampler.sample().available)\n",
    )
    assert result.stdout.split() == ["True", "True", "False"] + ["True"] * 5, result.stderr
    assert result.stderr.count("the NVIDIA driver ended the session") == 1
    assert result.stderr.count("NVML answers again, driver 550.54.15") == 1
