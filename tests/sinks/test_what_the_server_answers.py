"""What the InfluxDB sink makes of each answer: points left out, waiting, a person told, and never a token told."""

from __future__ import annotations

import json
import logging
import re
import shutil
import socket
import ssl
import subprocess
import time
from pathlib import Path

import pytest
from influx_stand_in import InfluxStandIn, Said, Write
from sink_scene import Scene
from victoria import wait_for

from exporter.service.sinks.influx import CURSOR_FILE_NAME, InfluxSink, Pace

TOKEN = "s3cret-t0ken=="
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="the program openssl is not installed")


def caught_up(sink: InfluxSink, last: int) -> None:
    wait_for("all is sent", lambda: sink.needs_from() > last)


def self_signed(folder: Path) -> tuple[Path, Path]:
    """Certificate and key for 127.0.0.1; the certificate is its own authority."""
    certificate, key = folder / "cert.pem", folder / "key.pem"
    command = [
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
        "-subj", "/CN=influxdb", "-addext", "subjectAltName=IP:127.0.0.1",
        "-keyout", str(key), "-out", str(certificate),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return certificate, key


def steps_taken(influx: InfluxStandIn) -> set[int]:
    """Steps whose metrics the server has."""
    lines = [line for line in influx.taken if line.startswith("verl_step,")]
    return {int(float(field.removeprefix("step="))) for line in lines for field in [line.split(" ")[1].split(",")[0]]}


def test_points_that_are_refused_are_left_out_alone_and_the_others_are_written(
    scene: Scene, influx: InfluxStandIn, caplog: pytest.LogCaptureFixture
) -> None:
    def answer(write: Write) -> Said:
        bad = any("poison" in line for line in write.lines)
        return Said(400, "unable to parse poison") if bad else Said()

    influx.answer = answer
    for number in range(1, 201):
        scene.step(number, **({"poison": 1.0} if number in (17, 18, 120) else {"loss": 0.5}))
    sink = scene.sink(influx.url)
    sink.start()
    caught_up(sink, 200)
    for number in range(201, 211):
        scene.step(number, poison=1.0)
    last = scene.step(211).position
    caught_up(sink, last)
    sink.stop()
    assert steps_taken(influx) == {*range(1, 201), 211} - {17, 18, 120}
    health = sink.health()
    assert (health.rejected_points, health.up, health.failed_writes, health.dropped_entries) == (13, True, 0, 0)
    assert len([r for r in caplog.records if "refuses points" in r.message]) == 1


def test_a_partial_write_is_counted_and_not_sent_again(scene: Scene, influx: InfluxStandIn) -> None:
    message = "failure writing points to database: partial write: field type conflict: input field dropped=2"
    influx.answer = lambda write: Said(422, message)
    for number in range(1, 6):
        scene.step(number)
    sink = scene.sink(influx.url)
    sink.start()
    caught_up(sink, 5)
    sink.stop()
    assert (sink.health().written_points, sink.health().rejected_points) == (8, 2)
    assert len(influx.writes) == 1


def test_a_server_that_refuses_everything_costs_a_bounded_number_of_requests(
    scene: Scene, influx: InfluxStandIn
) -> None:
    influx.answer = lambda write: Said(400, "no")
    for number in range(1, 401):
        scene.step(number)
    sink = scene.sink(influx.url)
    sink.start()
    caught_up(sink, 400)
    sink.stop()
    assert sink.health().rejected_points == 800
    assert len(influx.writes) < 800


@pytest.mark.parametrize("said", ["too large", "<html>413 Request Entity Too Large</html>"])
def test_a_request_that_is_too_large_is_halved(scene: Scene, influx: InfluxStandIn, said: str) -> None:
    influx.answer = lambda write: Said(413, said) if len(write.lines) > 10 else Said()
    for number in range(1, 101):
        scene.step(number)
    sink = scene.sink(influx.url)
    sink.start()
    caught_up(sink, 100)
    sink.stop()
    assert steps_taken(influx) == set(range(1, 101))
    assert sink.health().rejected_points == 0


@pytest.mark.parametrize(
    ("status", "message", "told"),
    [
        (200, "<html><title>Sign in</title></html>", "<html><title>Sign in</title></html>"),
        (200, "", "nothing"),
        (200, "you are not signed in", "you are not signed in"),
        (201, "created", "created"),
        (202, "accepted", "accepted"),
    ],
)
def test_what_only_looks_like_success_is_told_and_loses_nothing(
    scene: Scene, influx: InfluxStandIn, caplog: pytest.LogCaptureFixture, status: int, message: str, told: str
) -> None:
    influx.answer = lambda write: Said(status, message)
    last = scene.step(1).position
    sink = scene.sink(influx.url)
    sink.start()
    wait_for("it is told", lambda: not sink.health().up and sink.health().failed_writes >= 2)
    error = sink.health().last_error
    assert f"answered {status}" in error
    assert told in error
    assert "not 204" in error
    assert "check url" in error
    assert error in caplog.text
    assert (sink.health().lag_entries, sink.health().written_points, sink.needs_from()) == (1, 0, 1)
    influx.answer = lambda write: Said()
    caught_up(sink, last)
    sink.stop()
    assert steps_taken(influx) == {1}


def test_an_answer_that_is_no_text_is_told_and_loses_nothing(scene: Scene, influx: InfluxStandIn) -> None:
    influx.answer = lambda write: Said(200, "<html>\udcff\udcfe</html>")
    last = scene.step(1).position
    sink = scene.sink(influx.url)
    sink.start()
    wait_for("it is told", lambda: "answered what no InfluxDB answers" in sink.health().last_error)
    influx.answer = lambda write: Said()
    caught_up(sink, last)
    sink.stop()
    assert steps_taken(influx) == {1}


@needs_openssl
def test_a_certificate_that_is_not_trusted_is_told_with_the_setting_that_mends_it(scene: Scene, tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    influx = InfluxStandIn(context)
    try:
        last = scene.step(1).position
        sink = scene.sink(influx.url)
        sink.start()
        wait_for("it is told", lambda: not sink.health().up)
        sink.stop(timeout=0.0)
        assert "CERTIFICATE_VERIFY_FAILED" in sink.health().last_error
        assert "name the authority's PEM file in influxdb.ca_file" in sink.health().last_error
        trusting = scene.sink(influx.url, ca_file=str(certificate))
        trusting.start()
        caught_up(trusting, last)
        trusting.stop()
        assert steps_taken(influx) == {1}
    finally:
        influx.close()


@pytest.mark.parametrize("status", [401, 403, 404, 302, 400])
def test_a_refusal_that_a_person_has_to_mend_is_told_and_loses_nothing(
    scene: Scene, influx: InfluxStandIn, status: int
) -> None:
    message = "<html>Bad Request</html>" if status == 400 else "unauthorized access"
    influx.answer = lambda write: Said(status, message)
    last = scene.step(1).position
    sink = scene.sink(influx.url)
    sink.start()
    wait_for("it is told", lambda: not sink.health().up and sink.health().failed_writes >= 2)
    assert str(status) in sink.health().last_error
    assert sink.health().lag_entries == 1
    influx.answer = lambda write: Said()
    caught_up(sink, last)
    sink.stop()
    assert steps_taken(influx) == {1}
    assert (sink.health().up, sink.health().last_error, sink.health().rejected_points) == (True, "", 0)


def test_a_new_token_in_the_file_is_used_without_a_restart_and_no_token_is_ever_told(
    scene: Scene, influx: InfluxStandIn, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    def answer(write: Write) -> Said:
        right = write.authorization == f"Token {TOKEN}new"
        return Said() if right else Said(401, f"no such token: {write.authorization}", {"X-Seen": write.authorization})

    influx.answer = answer
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}old\n")
    last = scene.step(1).position
    sink = scene.sink(influx.url, token={"file": str(file)})
    sink.start()
    wait_for("it is refused", lambda: "401" in sink.health().last_error)
    told = sink.health()
    assert "no such token: Token ***" in told.last_error
    file.unlink()
    wait_for("the file is missed", lambda: "cannot be read" in sink.health().last_error)
    file.write_text(f"{TOKEN}new\n")
    caught_up(sink, last)
    sink.stop()
    assert influx.writes[-1].authorization == f"Token {TOKEN}new"
    assert TOKEN not in caplog.text + repr(told) + repr(sink.health())
    assert TOKEN not in (tmp_path / CURSOR_FILE_NAME).read_text()


def test_the_token_may_come_from_the_environment_and_org_and_bucket_are_those_set(
    scene: Scene, influx: InfluxStandIn
) -> None:
    last = scene.step(1).position
    environment = {"INFLUX_TOKEN": TOKEN}
    sink = scene.sink(
        influx.url, token={"env": "INFLUX_TOKEN"}, environment=environment, org="our org", bucket="verl/raw", gzip=True
    )
    sink.start()
    caught_up(sink, last)
    sink.stop()
    assert influx.writes[0].authorization == f"Token {TOKEN}"
    assert set(influx.writes[0].query.split("&")) == {"org=our+org", "bucket=verl%2Fraw", "precision=ns"}


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_server_in_trouble_is_asked_again_until_it_takes_it(scene: Scene, influx: InfluxStandIn, status: int) -> None:
    influx.answer = lambda write: Said(status, "busy") if len(influx.writes) < 5 else Said()
    last = scene.step(1).position
    sink = scene.sink(influx.url)
    sink.start()
    caught_up(sink, last)
    sink.stop()
    assert steps_taken(influx) == {1}
    assert sink.health().failed_writes == 4


def test_the_log_says_once_that_a_server_takes_data_again_and_how_far_behind_it_is(
    scene: Scene, influx: InfluxStandIn, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "exporter.sinks")
    now = time.time()
    sink = scene.sink(influx.url, clock=lambda: now)

    def said() -> list[str]:
        return [record.getMessage() for record in caplog.records if "works again" in record.getMessage()]

    caught_up_to = scene.step(1, at=now - 5).position
    sink.start()
    caught_up(sink, caught_up_to)
    assert said() == [], "it never was away"
    for outage in (1, 2):
        influx.answer = lambda write: Said(503, "away")
        last = [scene.step(number, at=now - 90) for number in range(2, 32)][-1].position
        wait_for("the whole lag is told", lambda: not sink.health().up and sink.health().lag_entries == 30)
        influx.answer = lambda write: Said()
        caught_up(sink, last)
        wait_for("it is up", lambda: sink.health().up)
        scene.step(40)
        caught_up(sink, last + 1)
        assert len(said()) == outage
        found = re.fullmatch(
            r"The sink influxdb works again after (\d+) failed tries\. It is behind by 30 entries of the journal, "
            r"the oldest of them 90 s old\.",
            said()[-1],
        )
        assert found is not None, said()
        assert int(found.group(1)) >= 1
    sink.stop()


def test_a_server_that_says_when_to_come_back_is_not_asked_before(scene: Scene, influx: InfluxStandIn) -> None:
    asked: list[float] = []

    def answer(write: Write) -> Said:
        asked.append(time.monotonic())
        return Said(503, "later", {"Retry-After": "1"}) if len(asked) == 1 else Said()

    influx.answer = answer
    last = scene.step(1).position
    sink = scene.sink(influx.url)
    sink.start()
    caught_up(sink, last)
    sink.stop()
    assert asked[1] - asked[0] >= 1.0


def test_waiting_grows_and_is_bounded(scene: Scene, tmp_path: Path) -> None:
    sink = scene.sink("http://127.0.0.1:1", pace=Pace(first_retry=1.0, longest_retry=60.0))
    waits = [sink._failure(OSError("away")) for _ in range(200)]
    assert waits[:8] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0], "with no jitter: half of 1, 2, 4 … at most 60"
    assert set(waits[8:]) == {30.0}


def test_a_server_that_accepts_and_never_answers_does_not_hold_up_the_end(scene: Scene) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        scene.step(1)
        sink = scene.sink(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_seconds=300)
        sink.start()
        wait_for("it has read the journal", lambda: sink.health().lag_entries == 1)
        sink.stop(timeout=0.2)
    assert sink.needs_from() == 1


def test_stopping_sends_what_is_there(scene: Scene, influx: InfluxStandIn) -> None:
    sink = scene.sink(influx.url, pace=Pace(poll=300.0))
    sink.start()
    wait_for("it waits for something new", lambda: sink._position == 0)
    for number in range(1, 301):
        scene.step(number)
    sink.stop(timeout=30)
    assert steps_taken(influx) == set(range(1, 301))
    assert json.loads((scene.folder / CURSOR_FILE_NAME).read_text())["position"] == 300


def test_the_next_start_goes_on_where_the_last_one_ended(scene: Scene, influx: InfluxStandIn) -> None:
    for _ in range(3):
        first = scene.step(1).position
        sink = scene.sink(influx.url)
        sink.start()
        caught_up(sink, first)
        sink.stop()
    assert len([line for line in influx.taken if line.startswith("verl_step,")]) == 3


def test_another_server_and_a_damaged_place_begin_with_what_the_journal_still_has(
    scene: Scene, influx: InfluxStandIn
) -> None:
    for number in (1, 2, 3):
        scene.step(number)
    for damage in (None, b"", b"\x00\xff", b'{"position": -4, "target": "x"}', b"[]"):
        if damage is not None:
            (scene.folder / CURSOR_FILE_NAME).write_bytes(damage)
        influx.taken.clear()
        sink = scene.sink(influx.url)
        sink.start()
        caught_up(sink, 3)
        sink.stop()
        assert steps_taken(influx) == {1, 2, 3}
    influx.taken.clear()
    sink = scene.sink(influx.url, bucket="another")
    sink.start()
    caught_up(sink, 3)
    sink.stop()
    assert steps_taken(influx) == {1, 2, 3}
