"""A driver to be played with: the mock NVML library, built once, and what it is told to answer."""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).with_name("fake_nvml.c")
DEADLINE_SECONDS = 30.0


class FakeDriver:
    """One mocked driver: the folder of its library, and the file that scripts its answers."""

    def __init__(self, library_dir: Path, folder: Path) -> None:
        self.library_dir = library_dir
        self._control = folder / "control"
        self._log = folder / "calls"
        self._answers: dict[str, str] = {}
        self.set(driver="550.54.15", count=0)

    def set(self, **answers: object) -> None:
        """Change answers; `init="!9"` makes a call fail with error code 9, None removes one (not supported)."""
        for key, value in answers.items():
            self._answers.pop(key, None)
            if value is not None:
                self._answers[key] = str(value)
        fresh = self._control.with_suffix(".new")
        fresh.write_text("".join(f"{key} {value}\n" for key, value in self._answers.items()))
        fresh.replace(self._control)  # at once: the library reads it at every call

    def gpu(self, index: int, **answers: object) -> None:
        """Change answers of the GPU that the driver lists at `index`."""
        self.set(**{f"{index}.{key}": value for key, value in answers.items()})

    def healthy_gpu(self, index: int, uuid: str = "", **answers: object) -> None:
        """A GPU that answers all that is asked; `answers` replace some of it."""
        usual: dict[str, object] = {
            "name": "NVIDIA H200",
            "uuid": uuid or f"GPU-{index}",
            "handle": None,
            "total": 150_754_820_096,
            "used": 1_000_000,
            "reserved": 600,
            "gpu": 57,
            "power": 350_125,
            "temperature": 41,
        }
        self.gpu(index, **(usual | answers))

    @property
    def environment(self) -> dict[str, str]:
        """For a process that shall see this driver."""
        return os.environ | {
            "LD_LIBRARY_PATH": str(self.library_dir),
            "FAKE_NVML_CONTROL": str(self._control),
            "FAKE_NVML_LOG": str(self._log),
            "PYTHONUNBUFFERED": "1",
        }

    @property
    def calls(self) -> list[str]:
        """`init` and `shutdown`, in order."""
        return [call for call in self.all_calls if call in ("init", "shutdown")]

    @property
    def all_calls(self) -> list[str]:
        """With `events` and `freed` besides: an event set was made, and given back."""
        return self._log.read_text().split() if self._log.exists() else []


class Reports:
    """`python -m trainer_entry.gpu --json` running against the mock, report by report."""

    def __init__(self, driver: FakeDriver) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "trainer_entry.gpu", "--json", "--seconds", "0.02"],
            env=driver.environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)

    def until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first report from now on that is as wanted."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        last: object = "no report at all"
        while time.monotonic() < deadline:
            try:
                last = report = json.loads(self._lines.get(timeout=0.5))
            except queue.Empty:
                assert self._process.poll() is None, f"the sampler ended with {self._process.returncode}; last: {last}"
                continue
            if wanted(report):
                return report  # type: ignore[no-any-return]
        raise AssertionError(f"no such report in {DEADLINE_SECONDS:g} s; the last one: {last}")

    def next(self) -> dict[str, Any]:
        return self.until(lambda report: True)

    def end(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=DEADLINE_SECONDS)


def build(folder: Path, *flags: str) -> Path:
    """Compile the mock into `folder`, under the name that pynvml loads; returns the folder."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler (cc, gcc or clang) on this machine to build the mock NVML library with")
    command = [compiler, "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", *flags]
    result = subprocess.run(
        [*command, "-o", str(folder / "libnvidia-ml.so.1"), str(SOURCE)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, f"the mock NVML library does not compile:\n{result.stderr}"
    return folder


@pytest.fixture(scope="session")
def library_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def make_driver(library_dir: Path) -> Callable[[Path], FakeDriver]:
    """Makes a driver whose script lies in the folder given, for tests that share one."""
    return lambda folder: FakeDriver(library_dir, folder)


@pytest.fixture
def driver(library_dir: Path, tmp_path: Path) -> FakeDriver:
    return FakeDriver(library_dir, tmp_path)


@pytest.fixture
def old_driver(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> FakeDriver:
    return FakeDriver(build(tmp_path_factory.mktemp("old_nvml"), "-DOLD_DRIVER"), tmp_path)


@pytest.fixture
def reports(driver: FakeDriver) -> Iterator[Callable[[], Reports]]:
    """Starts the stream of reports, once the driver is set up; ends it after the test."""
    started: list[Reports] = []

    def start() -> Reports:
        started.append(Reports(driver))
        return started[-1]

    yield start
    for stream in started:
        stream.end()
