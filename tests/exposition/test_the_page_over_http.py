"""``/metrics`` of a real exporter: both formats, with gzip, while pushes go on."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from exporter_process import ExporterProcess, push, running
from pages import OPENMETRICS, samples

from exporter.protocol import ClosedPhase, PhaseReport, Step


@pytest.fixture(scope="module")
def exporter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExporterProcess]:
    folder: Path = tmp_path_factory.mktemp("exporter")
    with running(folder) as exporter:
        yield exporter


def log_step(exporter: ExporterProcess, run: str, step: int) -> None:
    metrics = {"actor/grad_norm": 0.5, "timing_s/step": 2.0, "timing_s/gen": 1.5, "perf/total_num_tokens": 100.0}
    push(exporter, run=run, seq=step, steps=[Step(step=step, metrics=metrics)])


def test_every_format_and_coding_is_told_and_parses(exporter: ExporterProcess) -> None:
    log_step(exporter, "formats", 1)
    for accept, openmetrics in (("text/plain", False), (OPENMETRICS, True)):
        for coding in ("identity", "gzip"):
            answer = exporter.get("/metrics", Accept=accept, **{"Accept-Encoding": coding})
            assert answer.status == 200
            assert answer.headers["content-type"].startswith(
                "application/openmetrics-text" if openmetrics else "text/plain; version=0.0.4"
            )
            assert answer.headers.get("content-encoding", "identity") == coding
            assert "Accept-Encoding" in answer.headers["vary"]
            body = gzip.decompress(answer.body) if coding == "gzip" else answer.body
            found = samples(body.decode(), openmetrics=openmetrics)
            assert found["verl_grad_norm", (("run", "formats"),)] == 0.5


def test_phases_and_time_spent_come_from_what_the_trainer_logs(exporter: ExporterProcess) -> None:
    for step in range(1, 4):
        log_step(exporter, "phases", step)
    push(
        exporter,
        run="phases",
        seq=4,
        phase=PhaseReport(step=4, closed=[ClosedPhase(name="gen", seconds=9.0)]),
    )
    found = samples(exporter.get("/metrics").body.decode())
    # Of the two sources one counts: the trainer's own timers.
    assert found["verl_phase_duration_seconds_count", (("phase", "gen"), ("run", "phases"))] == 3
    assert found["verl_phase_duration_seconds_sum", (("phase", "gen"), ("run", "phases"))] == 4.5
    spent = {dict(labels)["spent"] for name, labels in found if name == "verl_run_time_seconds_total"}
    assert spent == {"productive", "restart", "stall", "replay", "other"}
    assert found["verl_run_time_seconds_total", (("run", "phases"), ("spent", "productive"))] == 6.0


def test_scrapes_beside_pushes_are_whole(exporter: ExporterProcess) -> None:
    pages: list[bytes] = []

    def scrape() -> None:
        for _ in range(10):
            pages.append(exporter.get("/metrics", Accept=OPENMETRICS).body)

    scraping = [threading.Thread(target=scrape) for _ in range(3)]
    for thread in scraping:
        thread.start()
    for step in range(1, 40):
        log_step(exporter, f"busy-{step % 4}", step)
    for thread in scraping:
        thread.join()
    assert len(pages) == 30
    for page in pages:
        assert samples(page.decode(), openmetrics=True)["verl_sentinel_ready", ()] == 1
