"""A post-mortem comes by itself when a recovery ends, whoever dies meanwhile; by API, by command and in the console."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_process import cli
from decision_scene import RUN, BrokenRun, Person, broken, watching
from exporter_process import ExporterProcess, wait_for


@pytest.fixture(scope="module")
def exporter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExporterProcess]:
    with watching(tmp_path_factory.mktemp("postmortems"), "auto") as running:
        yield running


@pytest.fixture
def made(exporter: ExporterProcess, request: pytest.FixtureRequest) -> BrokenRun:
    """A run of the test's own that has just failed."""
    return broken(exporter, f"{RUN} {request.node.name}")


def finished(made: BrokenRun) -> str:
    """The id of a recovery that has succeeded."""
    recovery = made.recovery()
    made.carry_to(recovery, "verifying")
    made.train(21, 24, sender="trainer-2")
    wait_for(lambda: made.api(f"/api/v1/recoveries/{recovery}")["stage"] == "succeeded", made.exporter)
    return recovery


def text_of(exporter: ExporterProcess, recovery: str) -> str:
    """The text, once it has its picture."""

    def text() -> str:
        answer = exporter.get(f"/api/v1/recoveries/{recovery}/postmortem", Authorization="Bearer ope")
        found = answer.body.decode() if answer.status == 200 else ""
        return found if "signals.png" in found else ""

    return str(wait_for(text, exporter))


def test_it_is_written_when_the_recovery_has_ended_and_not_before(exporter: ExporterProcess, made: BrokenRun) -> None:
    recovery = made.recovery()
    early = exporter.get(f"/api/v1/recoveries/{recovery}/postmortem", Authorization="Bearer ope")
    assert (early.status, "when the recovery has ended" in early.reason) == (404, True)
    assert finished(made) == recovery
    text = text_of(exporter, recovery)
    assert "succeeded: Attempt 2 has pushed" in text
    assert "![Signals around the failure and the recovery](signals.png)" in text
    picture = exporter.get(f"/api/v1/recoveries/{recovery}/postmortem/signals.png", Authorization="Bearer ope")
    assert picture.body.startswith(b"\x89PNG")


def test_nobody_reads_it_without_the_scope_and_no_other_file(exporter: ExporterProcess, made: BrokenRun) -> None:
    recovery = finished(made)
    text_of(exporter, recovery)
    path = f"/api/v1/recoveries/{recovery}/postmortem"
    assert exporter.get(path).status == 401
    assert exporter.get(path, Authorization="Bearer pu").status == 403
    for name in ("material.msgpack", "stamp", "%2e%2e%2f%2e%2e%2flock", "signals.png.partial"):
        assert exporter.get(f"{path}/{name}", Authorization="Bearer ope").status == 404
    for other in ("..", "%2e%2e", "a%2fb", "no-such"):
        assert exporter.get(f"/api/v1/recoveries/{other}/postmortem", Authorization="Bearer ope").status == 404


def test_an_exporter_that_was_killed_before_it_was_written_writes_it_after_its_start(tmp_path: Path) -> None:
    with watching(tmp_path, "auto") as exporter:
        recovery = finished(broken(exporter))
        exporter.kill()
        for folder in tmp_path.rglob("postmortems/*"):
            for file in folder.iterdir():
                file.unlink()
            folder.rmdir()
        exporter.start()
        assert "succeeded: Attempt 2 has pushed" in text_of(exporter, recovery)


def test_what_a_person_decides_afterwards_is_in_it(exporter: ExporterProcess, made: BrokenRun) -> None:
    recovery = made.recovery()
    made.carry_to(recovery, "stopping")
    made.report(recovery, "failed", running=False, detail="the disk is gone")
    wait_for(lambda: made.api(f"/api/v1/recoveries/{recovery}")["stage"] == "failed", exporter)
    text_of(exporter, recovery)
    answer = exporter.post(
        f"/api/v1/recoveries/{recovery}/acknowledge", {"who": "the night shift"}, Authorization="Bearer ope"
    )
    assert answer.status == 200
    wait_for(lambda: "the night shift acknowledged it" in text_of(exporter, recovery), exporter)
    assert "signals.png" in text_of(exporter, recovery), "the steps of the first time are not lost"


def test_the_command_prints_it_or_writes_it_with_its_picture(
    exporter: ExporterProcess, made: BrokenRun, tmp_path: Path
) -> None:
    recovery = finished(made)
    text = text_of(exporter, recovery)
    code, said = cli(exporter, "postmortem", recovery)
    assert (code, said.strip()) == (0, text.strip())
    out = tmp_path / "out"
    code, said = cli(exporter, "postmortem", recovery, "--out", str(out))
    assert (code, sorted(one.name for one in out.iterdir())) == (0, ["postmortem.md", "signals.png"])
    code, said = cli(exporter, "postmortem", "no-such")
    assert (code, "There is no post-mortem of recovery no-such" in said) == (1, True)


def test_the_console_links_to_it_and_shows_it_with_nothing_of_the_runs_name_at_work(
    exporter: ExporterProcess, made: BrokenRun
) -> None:
    recovery = finished(made)
    text_of(exporter, recovery)
    person = Person(exporter.url, "night shift")
    assert 'id="to-postmortem"' in person.get("/console/recovery", id=recovery).text
    page = person.get("/console/postmortem", id=recovery)
    assert (page.status, page.has(RUN)) == (200, True)
    assert "<script>alert" not in page.text
    assert re.findall(r'<img src="([^"]+)"', page.text) == [
        f"/console/postmortem/file?id={recovery}&amp;name=signals.png"
    ]
    assert person.get("/console/postmortem/file", id=recovery, name="postmortem.md").text.startswith("# Post-mortem")
    assert Person(exporter.url).get("/console/postmortem", id=recovery).url.startswith(f"{exporter.url}/console/login")
