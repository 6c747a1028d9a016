"""``verl-sentinel runs`` against a running exporter: what it shows, exports and forgets, and what may go wrong."""

from __future__ import annotations

import http.server
import json
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_process import PROGRAM, cli, cli_bytes, exported
from exporter_process import ExporterProcess, push, running

from exporter.protocol import AttemptExited, AttemptStarted, CheckpointSaved, RunFinished, RunStarted, Step

RUN = "team a/über [bold]%2F"
"""Everything that a path, a terminal or a table may trip over."""


@pytest.fixture(scope="module")
def exporter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExporterProcess]:
    """An exporter with a run that was rolled back from step 8 to step 3, and one that has ended."""
    with running(tmp_path_factory.mktemp("runs")) as exporter:
        push(exporter, run=RUN, sender="sup", role="supervisor", seq=1, events=[AttemptStarted(time=0.0, pid=1)])
        config = {"trainer.note": "\x1b]0;owned\x07\x1b[31m", "trainer.epochs": 3}
        push(exporter, run=RUN, seq=1, events=[RunStarted(time=0.0, config=config)])
        for step in range(1, 9):
            saved = [CheckpointSaved(time=0.0, step=step, path=f"/c/\x1b[2Jglobal_step_{step}", verified=True)]
            push(exporter, run=RUN, seq=1 + step, events=saved if step % 3 == 0 else [], steps=[steps_of(step)])
        exited = AttemptExited(time=0.0, exit_code=1, seconds=9.0, last_output=["boom \x1b[5m"])
        push(exporter, run=RUN, sender="sup", role="supervisor", seq=2, events=[exited])
        started = AttemptStarted(time=0.0, pid=2, resume_step=3)
        push(exporter, run=RUN, attempt=2, sender="sup", role="supervisor", seq=3, events=[started])
        for step in range(4, 7):
            push(exporter, run=RUN, attempt=2, sender="t2", seq=step, steps=[steps_of(step, loss=9.0)])
        push(exporter, run="ended", seq=1, steps=[steps_of(1)], events=[RunFinished(time=0.0, exit_code=0)])
        yield exporter


def steps_of(step: int, loss: Any = 0.5) -> Step:
    return Step(step=step, metrics={"actor/loss": loss, "critic/kl": "NaN", "timing_s/step": 2.0})


def test_runs_alone_is_runs_list(exporter: ExporterProcess) -> None:
    assert cli(exporter, "runs")[0] == 0
    heads = {cli(exporter, *words)[1].splitlines()[0] for words in (("runs",), ("runs", "list"))}
    assert len(heads) == 1
    assert json.loads(cli(exporter, "runs", "--json")[1]).keys() == {"runs"}


def test_an_option_before_the_command_is_not_lost_without_a_word(exporter: ExporterProcess) -> None:
    code, shown = cli(exporter, "runs", "--json", "list")
    assert (code, shown.count("--json comes after the command: verl-sentinel runs list")) == (2, 1)


def test_show_tells_state_attempts_checkpoints_incidents_and_signals(exporter: ExporterProcess) -> None:
    code, shown = cli(exporter, "runs", "show", RUN)
    assert code == 0
    assert shown.startswith(f"Run {RUN}\n")
    assert "running, attempt 2, step 6" in shown
    assert {"Attempts", "Checkpoints", "Incidents:"} <= set(shown.split())
    assert "/c/\\x1b[2Jglobal_step_6" in shown
    assert any(line.split() == ["2", "3"] for line in shown.splitlines()), "attempt 2 was resumed from step 3"
    assert any(line.split() == ["loss", "9"] for line in shown.splitlines())
    assert any(line.split() == ["step_time", "2", "seconds"] for line in shown.splitlines())


@pytest.mark.parametrize("columns", ["80", "200"])
def test_nothing_that_a_sender_named_reaches_the_terminal_as_a_command(exporter: ExporterProcess, columns: str) -> None:
    master, slave = pty.openpty()
    environment = {**os.environ, "VERL_SENTINEL_URL": exporter.url, "COLUMNS": columns, "TERM": "dumb"}
    command = [*PROGRAM, "runs", "show", RUN, "--all"]
    process = subprocess.Popen(command, stdout=slave, stderr=slave, stdin=slave, env=environment)
    os.close(slave)
    shown = b""
    while True:
        try:
            chunk = os.read(master, 65536)
        except OSError:
            break
        if not chunk:
            break
        shown += chunk
    os.close(master)
    assert process.wait(60) == 0
    assert b"\x1b" not in shown.replace(b"\x1b[0m", b"").replace(b"\x1b[1m", b"")
    assert b"\x07" not in shown
    assert b"\\x1b]0;owned\\x07" in shown.replace(b"\r\n", b"").replace(b" ", b"") or columns == "80"


def test_show_of_a_run_that_is_not_known(exporter: ExporterProcess) -> None:
    code, shown = cli(exporter, "runs", "show", "nope")
    assert (code, "No run 'nope' has ever pushed" in shown) == (1, True)


def test_export_is_the_final_history_in_verls_own_form(exporter: ExporterProcess, tmp_path: Path) -> None:
    code, shown = cli(exporter, "runs", "export", RUN)
    assert code == 0
    lines = [json.loads(line) for line in shown.splitlines()]
    assert [(line["step"], line["data"]["actor/loss"]) for line in lines] == [
        (1, 0.5), (2, 0.5), (3, 0.5), (4, 9.0), (5, 9.0), (6, 9.0),
    ]  # fmt: skip
    assert all(line.keys() == {"step", "data"} and line["data"]["critic/kl"] is None for line in lines)
    assert cli(exporter, "runs", "export", RUN, "-o", str(tmp_path / "out.jsonl")) == (0, "")
    assert (tmp_path / "out.jsonl").read_text() == shown


def test_export_of_all_attempts_of_one_and_as_csv(exporter: ExporterProcess) -> None:
    everything = cli(exporter, "runs", "export", RUN, "--all-attempts")[1].splitlines()
    assert [json.loads(line)["attempt"] for line in everything] == [1] * 8 + [2] * 3
    assert len(cli(exporter, "runs", "export", RUN, "--attempt", "1")[1].splitlines()) == 8
    assert cli(exporter, "runs", "export", RUN, "--attempt", "2", "--format", "csv")[1].splitlines() == [
        "step,actor/loss,critic/kl,timing_s/step",
        "4,9.0,NaN,2.0",
        "5,9.0,NaN,2.0",
        "6,9.0,NaN,2.0",
    ]


def test_an_export_to_a_full_disk_says_so_and_leaves_no_file(exporter: ExporterProcess, tmp_path: Path) -> None:
    assert cli(exporter, "runs", "export", RUN, "-o", "/dev/full") == (
        1,
        "verl-sentinel: /dev/full cannot be written: No space left on device.\n",
    )
    (tmp_path / "kept.jsonl").write_text("as it was")
    # A file-size limit fails the write to a regular file in the way in which a full disk does.
    limited = "ulimit -f 0; trap '' XFSZ; exec \"$@\""
    command = ["bash", "-c", limited, "-", *PROGRAM, "runs", "export", RUN, "-o", str(tmp_path / "kept.jsonl")]
    environment = {**os.environ, "VERL_SENTINEL_URL": exporter.url, "PYTHONDONTWRITEBYTECODE": "1"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert result.returncode == 1
    assert result.stderr.endswith("kept.jsonl cannot be written: File too large.\n")
    assert [path.name for path in tmp_path.iterdir()] == ["kept.jsonl"]
    assert (tmp_path / "kept.jsonl").read_text() == "as it was"


def test_an_export_to_where_nothing_can_be_written(exporter: ExporterProcess, tmp_path: Path) -> None:
    code, shown = cli(exporter, "runs", "export", RUN, "-o", str(tmp_path / "no" / "where"))
    assert (code, "cannot be written: No such file or directory" in shown) == (1, True)


def test_a_reader_that_has_enough_ends_an_export_quietly(exporter: ExporterProcess) -> None:
    words = " ".join(f"'{word}'" for word in (*PROGRAM, "runs", "export", RUN))
    command = ["bash", "-c", f"for i in 1 2 3; do {words}; done | true; exit ${{PIPESTATUS[0]}}"]
    environment = {**os.environ, "VERL_SENTINEL_URL": exporter.url}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert result.stderr == ""


class _BreaksOff(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/jsonl")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b'10\r\n{"step": 1, "dat')

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


def test_an_answer_that_breaks_off_leaves_no_file_behind(tmp_path: Path) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), _BreaksOff) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        code, shown = cli(None, "runs", "export", "x", "-o", str(tmp_path / "out"), VERL_SENTINEL_URL=url)
    assert code == 1
    assert f"verl-sentinel: The exporter at {url} broke off its answer." in shown
    assert list(tmp_path.iterdir()) == []


def test_the_token_is_not_carried_to_where_an_answer_points(tmp_path: Path) -> None:
    asked: list[str] = []

    class Redirects(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(302)
            self.send_header("Location", f"http://127.0.0.1:{self.server.server_port}/elsewhere")  # type: ignore[attr-defined]
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), Redirects) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        code, shown = cli(None, "runs", VERL_SENTINEL_URL=f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
    assert (code, asked) == (1, ["/api/v1/runs"])
    assert "refused: it answered 302 Found." in shown


def test_forget_asks_and_without_a_person_wants_it_said(exporter: ExporterProcess) -> None:
    code, shown = cli(exporter, "runs", "forget", "ended")
    assert (code, "say so with --yes" in shown) == (2, True)
    assert cli(exporter, "runs", "show", "ended")[0] == 0


def test_a_run_that_is_running_is_not_forgotten(exporter: ExporterProcess) -> None:
    code, shown = cli(exporter, "runs", "forget", RUN, "--yes")
    assert (code, "is running" in shown) == (1, True)
    assert len(exported(exporter, "team%20a%2F%C3%BCber%20%5Bbold%5D%252F")) == 6


def test_what_is_forgotten_is_gone(exporter: ExporterProcess) -> None:
    push(exporter, run="gone", seq=1, steps=[steps_of(1)], events=[RunFinished(time=0.0, exit_code=0)])
    assert cli(exporter, "runs", "forget", "gone", "--yes") == (0, "Run gone is forgotten.\n")
    for command in ("show", "export"):
        assert cli(exporter, "runs", command, "gone")[0] == 1
    assert cli(exporter, "runs", "forget", "gone", "--yes")[0] == 1


def test_an_exporter_at_an_address_with_https_is_asked_by_the_users_own_authority(exporter: ExporterProcess) -> None:
    code, shown = cli(None, "runs", VERL_SENTINEL_URL="https://127.0.0.1:1", VERL_SENTINEL_CA_FILE="/nowhere.pem")
    assert code == 2
    assert "The certificates in /nowhere.pem (VERL_SENTINEL_CA_FILE) cannot be used: " in shown


def test_the_version_is_told(exporter: ExporterProcess) -> None:
    from importlib.metadata import version

    assert cli(None, "--version") == (0, f"verl-sentinel {version('verl-sentinel')}\n")
    assert cli_bytes(None, "--help").returncode == 0


@pytest.mark.parametrize("words", [["--version"], ["runs", "--help"]])
def test_the_module_takes_the_same_commands_as_the_program(words: list[str]) -> None:
    command, environment = [sys.executable, "-m", "exporter", *words], {**os.environ, "COLUMNS": "300"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=True)
    assert result.stdout == cli(None, *words)[1]
