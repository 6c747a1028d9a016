"""Tokens: rotated without a restart, never shown; failed attempts are limited, and lock out nobody with a right one."""

from __future__ import annotations

import base64
import logging
import os
import re
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
from exporter_process import PUSH, ExporterProcess, running, wait_for
from exporter_scene import batch

from exporter.app.access import FAILURE_SECONDS, FAILURES, MAX_ADDRESSES, Access, Failures, _network
from exporter.app.tokens import LiveTokens
from exporter.config import ConfigError, Tokens, TokenSource
from exporter.protocol import encode
from exporter.service.admission import Refused

SECRETS = {"push": "psh-7f3a9c1e5b", "alert": "alr-2d8e4f6a0c", "operate": "ope-9b1c3d5e7f"}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def live(folder: Path, clock: Clock, **files: str) -> LiveTokens:
    for name, text in files.items():
        (folder / name).write_text(text)
    sources = {name: (TokenSource(file=str(folder / name)),) for name in files}
    return LiveTokens(Tokens(**sources), {}, monotonic=clock)


def lets_in(access: Access, token: str, scope: Any = "push", peer: str = "10.0.0.1") -> int:
    """The status, 200 where it may pass."""
    try:
        access.check({"authorization": f"Bearer {token}"}, peer, scope)
    except Refused as refused:
        return refused.status
    return 200


def test_a_rotated_file_is_taken_within_a_second_and_the_old_token_stops(tmp_path: Path) -> None:
    clock = Clock()
    access = Access(live(tmp_path, clock, push="old"), monotonic=clock)
    assert lets_in(access, "old") == 200
    (tmp_path / "push").write_text("old\nnew\n")
    clock.now += 1
    assert (lets_in(access, "old"), lets_in(access, "new")) == (200, 200)
    (tmp_path / "new").write_text("new\n")
    os.replace(tmp_path / "new", tmp_path / "push")
    clock.now += 1
    assert (lets_in(access, "old"), lets_in(access, "new")) == (401, 200)
    assert access.tokens.reloads == 2


def test_a_link_that_is_turned_to_another_file_is_a_rotation(tmp_path: Path) -> None:
    clock = Clock()
    for name in ("a", "b"):
        (tmp_path / f"token-{name}").write_text(name * 8)
    (tmp_path / "push").symlink_to(tmp_path / "token-a")
    access = Access(LiveTokens(Tokens(push=(TokenSource(file=str(tmp_path / "push")),)), {}, monotonic=clock))
    (tmp_path / "turned").symlink_to(tmp_path / "token-b")
    os.replace(tmp_path / "turned", tmp_path / "push")
    clock.now += 1
    assert (lets_in(access, "a" * 8), lets_in(access, "b" * 8)) == (401, 200)


@pytest.mark.parametrize("spoil", ["", "# nothing\n", "two words\n", "\xff", None])
def test_a_file_that_becomes_useless_leaves_the_old_tokens_in_force_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, spoil: str | None
) -> None:
    clock = Clock()
    tokens = live(tmp_path, clock, push="first-token", alert="other-token")
    failures: list[int] = []
    tokens.failed = lambda: failures.append(1)
    access = Access(tokens, monotonic=clock)
    if spoil is None:
        (tmp_path / "push").unlink()
    else:
        (tmp_path / "push").write_bytes(spoil.encode("latin-1"))
    with caplog.at_level(logging.ERROR):
        for _ in range(5):
            clock.now += 1
            assert lets_in(access, "first-token") == 200
    assert failures == [1]
    assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == 1
    assert "tokens.push: the file" in tokens.reload_error
    assert "The tokens that were read before stay in force." in caplog.text
    assert "first-token" not in caplog.text + tokens.reload_error
    (tmp_path / "push").write_text("second-token")
    clock.now += 1
    assert (lets_in(access, "first-token"), lets_in(access, "second-token")) == (401, 200)
    assert tokens.reload_error == ""


def test_a_source_that_cannot_be_read_at_the_start_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokens\.push: the file .* cannot be read"):
        LiveTokens(Tokens(push=(TokenSource(file=str(tmp_path / "none")),)), {})


def test_failed_attempts_are_limited_by_address_and_a_right_token_is_let_in_all_the_same(tmp_path: Path) -> None:
    clock = Clock()
    access = Access(live(tmp_path, clock, push="right", operate="other"), monotonic=clock)
    assert [lets_in(access, "wrong") for _ in range(FAILURES + 2)] == [401] * FAILURES + [429] * 2
    assert lets_in(access, "other") == 429
    assert lets_in(access, "right") == 200
    assert lets_in(access, "wrong", peer="10.0.0.2") == 401
    clock.now += FAILURE_SECONDS / FAILURES
    assert [lets_in(access, "wrong") for _ in range(2)] == [401, 429]
    clock.now += FAILURE_SECONDS
    assert lets_in(access, "wrong") == 401


def test_the_table_of_addresses_is_bounded() -> None:
    failures = Failures(Clock())
    for number in range(MAX_ADDRESSES + 100):
        failures.note(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", "push")
    assert len(failures._buckets) == MAX_ADDRESSES


@pytest.mark.parametrize(
    ("peer", "counted_as"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("::1", "::/64"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("", "an unknown address"),
    ],
)
def test_all_addresses_that_one_machine_has_count_as_one(peer: str, counted_as: str) -> None:
    assert _network(peer) == counted_as


def test_failures_are_told_in_the_log_once_a_minute_with_their_number(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    failures = Failures(clock)
    with caplog.at_level(logging.WARNING):
        for number in range(200):
            failures.note(f"10.0.0.{number}", "push")
        clock.now += 60
        failures.note("10.0.1.1", "alert")
    assert len(caplog.records) == 2
    assert "200, the newest from 10.0.1.1 for scope alert" in caplog.records[1].getMessage()


def with_tokens(folder: Path) -> tuple[str, ...]:
    """Arguments of an exporter with a token file for each scope."""
    lines = []
    for scope, secret in SECRETS.items():
        (folder / scope).write_text(f"{secret}\n")
        lines.append(f"  {scope}: [{{file: {folder / scope}}}]\n")
    (folder / "config.yml").write_text(f"tokens:\n{''.join(lines)}")
    return ("--config", str(folder / "config.yml"))


def status(exporter: ExporterProcess, token: str, seq: int = 1) -> int:
    return exporter.post(PUSH, encode(batch(seq=seq)), Authorization=f"Bearer {token}").status


def test_tokens_are_rotated_while_the_exporter_runs(tmp_path: Path) -> None:
    with running(tmp_path, *with_tokens(tmp_path)) as exporter:
        assert status(exporter, SECRETS["push"]) == 200
        (tmp_path / "push").write_text("psh-new\n")
        wait_for(lambda: status(exporter, "psh-new") == 200, exporter)
        assert status(exporter, SECRETS["push"]) in (401, 429)
        (tmp_path / "push").write_text("psh-newer\n")
        os.kill(exporter.pid, signal.SIGHUP)
        wait_for(lambda: status(exporter, "psh-newer") == 200, exporter)
        assert status(exporter, "psh-new") in (401, 429)


def raw(exporter: ExporterProcess, request: bytes) -> bytes:
    host, port = exporter.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def test_no_token_is_ever_in_the_log_an_error_or_the_metrics(tmp_path: Path) -> None:
    guesses = [f"guess-{number:08x}" for number in range(60)]
    with running(tmp_path, *with_tokens(tmp_path)) as exporter:
        answers: list[bytes] = []
        for secret in (*SECRETS.values(), *guesses):
            basic = base64.b64encode(f"user:{secret}".encode()).decode()
            for headers in (
                {"Authorization": f"Bearer {secret}x"},
                {"Authorization": f"Basic {basic}"},
                {"Authorization": secret},
                {"Authorization": f"Bearer {secret} {secret}"},
                {"X-Token": secret},
                {"Cookie": f"token={secret}"},
            ):
                answers.append(exporter.post(PUSH, b"x", **headers).body)
                answers.append(exporter.get("/api/v1/runs", **headers).body)
            for path in (f"/metrics?token={secret}", f"/api/v1/audit?limit={secret}", f"/nowhere?token={secret}"):
                answers.append(exporter.get(path, Authorization=f"Bearer {SECRETS['operate']}").body)
            answers.append(exporter.post("/api/v1/alerts", b"{}", Authorization=f"Bearer {secret}\tx").body)
            answers.append(raw(exporter, b"POST /api/v1/push HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a\r\n"
                                         + secret.encode() + b"\r\n\r\n"))  # fmt: skip
            answers.append(raw(exporter, b"GET /x HTTP/9.9\r\nAuthorization: Bearer " + secret.encode() + b"\r\n\r\n"))
        (tmp_path / "push").write_text(f"{SECRETS['push']} spoilt\n")
        os.kill(exporter.pid, signal.SIGHUP)
        wait_for(lambda: "stay in force" in exporter.log, exporter)
        assert exporter.get("/metrics").status == 200
        metrics = exporter.get("/metrics").body
        assert b'verl_sentinel_reload_failures_total{what="tokens"} 1' in metrics
        readiness = exporter.get("/readyz").body
        exporter.stop()
        everything = b"\n".join([*answers, metrics, readiness, exporter.log.encode()])
    for secret in (*SECRETS.values(), *guesses):
        assert secret.encode() not in everything
        assert base64.b64encode(secret.encode())[:12] not in everything
    assert "Traceback" not in exporter.log
    assert len(exporter.log.splitlines()) < 30, "the log is no place for what strangers send"
    assert re.search(rb'verl_sentinel_rejected_total\{reason="token"\} [1-9]', metrics)
    assert re.search(rb'verl_sentinel_rejected_total\{reason="too_many_failures"\} [1-9]', metrics)


HOSTILE = [
    "../../../../tmp/escaped", "/etc/passwd", "; touch pwned", "$(touch pwned)", "`touch pwned`", "| touch pwned",
    "-rf", "..", ".", "con:", "a" * 256, "%2e%2e%2f", "' OR 1=1 --", '"} evil_metric 1', "name\\", "{{7*7}}", "%s%n",
]  # fmt: skip
NOT_PRINTABLE = [
    "nul\x00byte",
    "line\nend",
    '"}\nevil_metric 1',
    "right\u202eleft",
    "zero\u200bwidth",
    "a" * 257,
    "",
    "\ufeffbom",
]


def test_a_name_that_was_pushed_never_becomes_a_path_or_a_command(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    with running(inside, environment={"TMPDIR": str(inside)}) as exporter:
        before = {path for path in tmp_path.rglob("*")}
        for number, name in enumerate(HOSTILE):
            pushed = batch(run=name, sender=name, role="trainer", seq=number + 1)
            assert exporter.post(PUSH, encode(pushed)).status == 200, name
        for name in NOT_PRINTABLE:
            assert exporter.post(PUSH, encode(batch(run=name))).status == 400
            assert exporter.post(PUSH, encode(batch(sender=name))).status == 400
        shown = {run["run_id"] for run in exporter.get("/api/v1/runs").json["runs"]}
        assert shown == set(HOSTILE)
        lines = exporter.get("/metrics").body.decode().splitlines()
        assert not any(line.startswith("evil_metric") for line in lines)
        exporter.stop()
        made = {path.relative_to(tmp_path) for path in set(tmp_path.rglob("*")) - before}
    assert all(re.fullmatch(r"inside/data(/[a-z0-9.-]+)?|inside/exporter\.log", str(path)) for path in made), made
    assert not Path("/tmp/escaped").exists()


LONG = {"push": "psh-7f3a9c1e5b2d8e4f", "operate": "ope-9b1c3d5e7f6a0c2d"}


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def protected(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o600)


def reading(folder: Path, clock: Clock, *names: str) -> LiveTokens:
    return LiveTokens(Tokens(**{name: (TokenSource(file=str(folder / name)),) for name in names}), {}, monotonic=clock)


def test_strong_tokens_of_their_own_in_files_of_their_own_are_taken_in_silence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    protected(tmp_path, **LONG)
    reading(tmp_path, Clock(), *LONG)
    assert warnings(caplog) == []


def test_a_short_token_is_told_once_at_the_start_and_again_when_it_comes_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    protected(tmp_path, push="hunter2", operate=LONG["operate"])
    tokens = reading(tmp_path, clock, *LONG)
    sentence = (
        f"tokens.push: the file {tmp_path / 'push'} holds a token of fewer than 16 characters, which can be guessed: "
        "make one with head -c 32 /dev/urandom | base64."
    )
    assert warnings(caplog) == [sentence]
    for text, told in (("hunter2\n# the same\n", 1), (LONG["push"], 1), ("letmein", 2), ("letmein\nagain", 3)):
        (tmp_path / "push").write_text(text)
        clock.now += 1
        tokens.look()
        assert len(warnings(caplog)) == told
    assert "holds 2 tokens of fewer than 16 characters" in warnings(caplog)[-1]
    assert not any(word in caplog.text for word in ("hunter2", "letmein", "again:"))
    LiveTokens(Tokens(alert=(TokenSource(value="short"), TokenSource(env="T"))), {"T": "brief"}, monotonic=clock)
    assert [it.split(" holds")[0] for it in warnings(caplog)[-2:]] == [
        "tokens.alert: its value",
        "tokens.alert: the environment variable T",
    ]


def test_a_token_of_two_scopes_is_told_at_the_start_and_on_reload(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    protected(tmp_path, push=LONG["push"], operate=LONG["push"])
    tokens = reading(tmp_path, clock, *LONG)
    told = (
        "The same token is in tokens.push and tokens.operate: who has it may do all that these scopes allow. Give "
        "each its own."
    )
    assert warnings(caplog) == [told]
    for operate, count in ((LONG["operate"], 1), (f"{LONG['operate']}\n{LONG['push']}\n", 2)):
        (tmp_path / "operate").write_text(operate)
        clock.now += 1
        tokens.look()
        assert warnings(caplog) == [told] * count
    assert LONG["push"] not in caplog.text


@pytest.mark.parametrize(
    ("mode", "readers"),
    [(0o644, "every user of this machine"), (0o604, "every user of this machine"), (0o640, "its group"), (0o400, "")],
)
def test_a_file_that_others_can_read_is_told_also_when_it_becomes_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, readers: str
) -> None:
    clock = Clock()
    protected(tmp_path, **LONG)
    tokens = reading(tmp_path, clock, *LONG)
    (tmp_path / "push").chmod(mode)
    clock.now += 1
    tokens.look()
    told = f"tokens.push: the file {tmp_path / 'push'} can be read by {readers}, and its tokens with it."
    assert warnings(caplog) == ([told] if readers else [])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_roots_that_the_exporter_reads_by_its_group_is_as_it_should_be(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    protected(tmp_path, **LONG)
    os.chown(tmp_path / "push", 1, os.getegid())
    (tmp_path / "push").chmod(0o640)
    reading(tmp_path, Clock(), *LONG)
    assert warnings(caplog) == []


def test_the_exporter_starts_with_weak_tokens_and_its_log_says_so(tmp_path: Path) -> None:
    (tmp_path / "config.yml").write_text("tokens:\n  push: [{value: abc}]\n  operate: [{value: abc}]\n")
    with running(tmp_path, "--config", str(tmp_path / "config.yml")) as exporter:
        assert exporter.log.count("holds a token of fewer than 16 characters") == 2
        assert exporter.log.count("The same token is in tokens.push and tokens.operate") == 1
        assert "abc" not in exporter.log
