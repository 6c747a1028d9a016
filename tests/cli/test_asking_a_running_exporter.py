"""``verl-sentinel`` against a running exporter: what it shows, what it decides, and what it says when it cannot."""

from __future__ import annotations

import getpass
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_process import cli
from exporter_process import ExporterProcess, running, wait_for
from exporter_scene import batch

from exporter.cli.asking import user
from exporter.protocol import AttemptStarted, CheckpointSaved, Step, encode

CONFIG = """
tokens:
  operate:
    - value: ope
recovery:
  mode: approve
  trigger: direct
"""


@pytest.fixture(scope="module")
def exporter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExporterProcess]:
    """An exporter with a run that broke at step 6 and has a verified checkpoint at step 2."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "config.yml").write_text(CONFIG)
    with running(folder, "--config", str(folder / "config.yml")) as exporter:
        push(exporter, sender="sup", role="supervisor", seq=1, events=[AttemptStarted(time=0.0, pid=1)])
        for step in range(1, 9):
            loss: Any = 0.5 if step < 6 else "NaN"
            push(exporter, seq=step, steps=[Step(step=step, metrics={"actor/loss": loss, "actor/grad_norm": loss})])
            saved = [CheckpointSaved(time=0.0, step=step, path=f"/c/global_step_{step}", verified=True)]
            push(exporter, seq=100 + step, events=saved if step == 2 else [])
        yield exporter


def push(exporter: ExporterProcess, **fields: Any) -> None:
    answer = exporter.post("/api/v1/push", encode(batch(run="grpo[bold]", **fields)))
    assert answer.status == 200, answer.body


def test_a_policy_is_explained_for_a_run_as_it_is_now(exporter: ExporterProcess) -> None:
    code, shown = cli(exporter, "policy", "explain", "--run", "grpo[bold]")
    assert code == 0
    for words in ("Ladder", "What may trigger", "non_finite on loss", "evidence", "recoveries left in the budget"):
        assert words in shown
    code, shown = cli(exporter, "policy", "explain", "--run", "gone")
    assert (code, "No run gone has ever pushed" in shown) == (1, True)


def test_a_recovery_is_shown_with_its_rung_and_how_it_was_decided(exporter: ExporterProcess) -> None:
    wait_for(lambda: "awaiting" in cli(exporter, "recoveries", "list")[1], exporter)
    listed = cli(exporter, "recoveries", "list")[1]
    recovery = next(line.split()[0] for line in listed.splitlines() if "awaiting" in line)
    code, shown = cli(exporter, "recoveries", "show", recovery)
    assert code == 0
    assert "rung         checkpoint" in shown
    for words in ("How it was decided", "assessment", "What will be different", "trainer.resume_from_path"):
        assert words in shown


def test_runs_and_incidents_are_listed(exporter: ExporterProcess) -> None:
    code, shown = cli(exporter, "runs")
    assert code == 0
    assert "grpo[bold]" in shown, "what senders name is no markup"
    code, shown = cli(exporter, "incidents")
    assert code == 0
    assert "grpo[bold]:non_finite:" in shown


def test_incidents_that_belong_together_are_under_one_headline(exporter: ExporterProcess) -> None:
    shown = cli(exporter, "incidents")[1].splitlines()
    heads = [index for index, line in enumerate(shown) if line.startswith("Run grpo[bold], attempt 1, ")]
    (head,) = heads
    assert shown[head + 1].startswith("  critical since step 5: loss is NaN ")
    assert shown[head + 1].endswith("; then grad_norm (6); 2 findings on 2 signals, confidence 1.00")
    assert any(line.startswith("  likely cause: ") for line in shown)
    assert sum(line.startswith("grpo[bold]:") for line in shown[head:]) >= 2
    answer = exporter.get("/api/v1/incidents", Authorization="Bearer ope").json
    (situation,) = answer["situations"]
    assert {one["incident"] for one in situation["findings"]} == {it["id"] for it in answer["incidents"]}
    assert exporter.get("/api/v1/runs/grpo%5Bbold%5D", Authorization="Bearer ope").json["situations"] == [situation]


def test_what_belongs_together_is_acknowledged_together(tmp_path: Path) -> None:
    with running(tmp_path) as exporter:
        for step in (1, 2):
            push(exporter, seq=step, steps=[Step(step=step, metrics={"actor/loss": "NaN", "actor/grad_norm": "NaN"})])
        first, second = sorted(it["id"] for it in exporter.get("/api/v1/incidents").json["incidents"])
        code, shown = cli(exporter, "acknowledge", second, "--together", "--who", "ada")
        assert (code, shown) == (0, f"Incident {second} is acknowledged.\nIncident {first} is acknowledged.\n")
        assert "attempt 1, acknowledged, " in cli(exporter, "incidents")[1]
        code, shown = cli(exporter, "acknowledge", "nope", "--together")
        assert (code, "There is no incident nope." in shown) == (1, True)


def test_a_recovery_is_listed_shown_approved_once_and_audited(exporter: ExporterProcess) -> None:
    def waiting() -> str:
        found = exporter.get("/api/v1/recoveries", Authorization="Bearer ope").json["recoveries"]
        return next((r["id"] for r in found if r["stage"] == "awaiting_approval"), "")

    recovery = wait_for(waiting, exporter)
    assert recovery in cli(exporter, "recoveries", "list")[1]
    assert '"planned_target_step": 2' in cli(exporter, "recoveries", "show", recovery, "--json")[1]
    shown = cli(exporter, "recoveries", "show", recovery)[1]
    for line in ("  stage        awaiting approval", "trainer.resume_mode", "not reported", "resume_path", "target"):
        assert line in shown
    code, shown = cli(exporter, "recoveries", "approve", recovery, "--who", "ada")
    assert (code, shown) == (0, f"Recovery {recovery} of run grpo[bold] is commanded.\n")
    code, shown = cli(exporter, "recoveries", "refuse", recovery)
    assert code == 1
    assert "is commanded; this is only possible while it is awaiting approval." in shown
    code, shown = cli(exporter, "recoveries", "abort", recovery, "--who", "bob")
    assert (code, shown) == (
        0,
        f"Recovery {recovery} of run grpo[bold] is aborted. bob aborted it while it was commanded. "
        "The supervisor had not been told of it yet, so nothing was done to the run.\n",
    )
    assert cli(exporter, "recoveries", "abort", recovery, "--who", "eve")[0] == 0
    assert "ada" in cli(exporter, "audit", "--json")[1]


def test_an_incident_is_acknowledged_by_name(exporter: ExporterProcess) -> None:
    incidents = exporter.get("/api/v1/incidents", Authorization="Bearer ope").json["incidents"]
    code, shown = cli(exporter, "acknowledge", incidents[0]["id"], "--who", "ada")
    assert code == 0
    assert incidents[0]["id"] in shown
    assert cli(exporter, "acknowledge", "nope")[1] == (
        f"verl-sentinel: The exporter at {exporter.url} refused: There is no incident nope.\n"
    )


@pytest.mark.parametrize(
    ("arguments", "environment", "sentence"),
    [
        (("runs",), {"VERL_SENTINEL_TOKEN": "wrong"}, "refused: The token is not one of those that are set"),
        (("runs",), {"VERL_SENTINEL_URL": "http://127.0.0.1:1"}, "cannot be asked: [Errno 111] Connection refused"),
        (
            ("runs",),
            {"VERL_SENTINEL_URL": "localhost:9"},
            "an address that starts with http:// or https:// is expected",
        ),
        (
            ("runs",),
            {"VERL_SENTINEL_TOKEN": "", "VERL_SENTINEL_TOKEN_FILE": "/nowhere"},
            "The token file /nowhere (VERL_SENTINEL_TOKEN_FILE) cannot be read",
        ),
        (("recoveries", "show", "none"), {}, "There is no recovery none."),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(
    exporter: ExporterProcess, arguments: tuple[str, ...], environment: dict[str, str], sentence: str
) -> None:
    token = environment.get("VERL_SENTINEL_TOKEN", "ope")
    environment = {name: value for name, value in environment.items() if name != "VERL_SENTINEL_TOKEN"}
    target = None if "VERL_SENTINEL_URL" in environment else exporter
    code, shown = cli(target, *arguments, token=token, **environment)
    assert code in (1, 2)
    assert shown.startswith("verl-sentinel: ")
    assert sentence in shown


@pytest.mark.parametrize(
    ("reply", "sentence"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "cannot be asked: SSH-2.0-OpenSSH_9.2. Is it running, and is --url right?"),
        (b"HTTP/1.0 200 OK\r\n\r\n[1]", "is not a verl-sentinel exporter. Is --url right?"),
        (b'HTTP/1.0 200 OK\r\n\r\n{"status": "success"}', "is not a verl-sentinel exporter. Is --url right?"),
    ],
)
def test_whatever_else_answers_at_the_address_is_told_in_a_sentence(reply: bytes, sentence: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(10_000)
                connection.sendall(reply)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        code, shown = cli(None, "runs", VERL_SENTINEL_URL=f"http://127.0.0.1:{server.getsockname()[1]}")
        thread.join(10)
    assert code == 1
    assert sentence in shown


def test_a_token_that_no_header_can_carry_is_refused_and_not_shown(exporter: ExporterProcess) -> None:
    code, shown = cli(exporter, "runs", token="hunter2\nx")
    assert (code, "hunter2" in shown) == (2, False)
    assert "VERL_SENTINEL_TOKEN holds a token with spaces, line ends or characters outside ASCII." in shown


def test_a_user_without_a_name_is_asked_for_one(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr(getpass, "getuser", nobody)
    with pytest.raises(SystemExit):
        user()
    assert "say who decides with --who" in capsys.readouterr().err


def test_a_proxy_is_not_asked_for_an_exporter_on_this_machine(exporter: ExporterProcess) -> None:
    nobody = {"http_proxy": "http://127.0.0.1:1", "no_proxy": "", "NO_PROXY": ""}
    assert cli(exporter, "runs", **nobody)[0] == 0


def test_the_token_may_come_from_a_file(exporter: ExporterProcess, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("ope\n")
    assert cli(exporter, "runs", token="", VERL_SENTINEL_TOKEN_FILE=str(tmp_path / "token"))[0] == 0


def test_help_does_not_load_the_server() -> None:
    heavy = ("litestar", "uvicorn", "yaml", "rich.table")
    check = f"import sys, exporter.cli.program; print([m for m in {heavy} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_ids_are_shown_whole_in_a_narrow_terminal_and_in_a_pipe(exporter: ExporterProcess) -> None:
    for width in ("80", None):
        environment = {**os.environ, "VERL_SENTINEL_TOKEN": "ope", "VERL_SENTINEL_URL": exporter.url}
        environment.pop("COLUMNS", None)
        if width is not None:
            environment["COLUMNS"] = width
        command = [sys.executable, "-m", "exporter", "incidents", "--all"]
        shown = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=True).stdout
        assert "grpo[bold]:non_finite:grad_norm:1 " in shown
        assert "…" not in shown
        table = shown[shown.index("\nincident ") :].strip()
        assert table.count("since") == 2, "nothing of the sentence is cut off"
        if width is None:
            assert len(table.splitlines()) == 3, "a heading, and a line for each incident"


@pytest.mark.parametrize(("absent", "arguments"), [("typer", ["runs"]), ("typer", []), ("litestar", ["serve"])])
@pytest.mark.parametrize("entry", ["verl_sentinel", "exporter"])
def test_without_the_extra_the_program_names_it(entry: str, absent: str, arguments: list[str]) -> None:
    code = f"import sys; sys.modules[{absent!r}] = None; from exporter.__main__ import {entry}; {entry}()"
    command = [sys.executable, "-c", code, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert result.stderr.startswith(f"verl-sentinel: {absent} is not installed")
    assert "pip install 'verl-sentinel[exporter]'" in result.stderr
    assert "Traceback" not in result.stderr
