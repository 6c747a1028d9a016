"""``POST /api/v1/notify`` on a real exporter, which delivers to real servers by apprise."""

from __future__ import annotations

import concurrent.futures
import json
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from exporter_process import Answer, ExporterProcess, running
from fake_services import FakeMail, FakeService, part, wait_for

SECRET = "s3cr3t-in-the-address"
NOTIFY, TEST = "/api/v1/notify", "/api/v1/notify/test"
HOSTILE = "<script>*_[x](http://evil)"
FAILING, OK = 500, 200
Start = Callable[..., AbstractContextManager[ExporterProcess]]


@dataclass
class Site:
    """An exporter with targets: ``ops``, ``team-a`` and ``team-b`` are at ``service``, ``bad`` at ``other``, ``both``
    at both of them, ``mail`` at ``post``."""

    exporter: ExporterProcess
    service: FakeService
    other: FakeService
    post: FakeMail

    def notify(self, targets: str, *alerts: dict[str, Any]) -> Answer:
        return self.exporter.post(f"{NOTIFY}?target={targets}", webhook(*alerts))

    def count(self, target: str, outcome: str) -> float:
        return self.exporter.metrics()[f'verl_sentinel_notifications_total{{target="{target}",outcome="{outcome}"}}']


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    with FakeService() as service, FakeService() as other, FakeMail() as post:
        mail = f"mailto://user:{SECRET}@127.0.0.1:{post.port}/?from=sentinel@example.org&to=oncall@example.org&mode=insecure"
        targets = {name: [{"value": json_url(service, name)}] for name in ("ops", "team-a", "team-b")}
        targets |= {"bad": [{"value": json_url(other, "bad")}], "mail": [{"value": mail}]}
        targets |= {"both": [{"value": json_url(service, "both")}, {"value": json_url(other, "both")}]}
        (folder / "c.yml").write_text(json.dumps({"notify": {"targets": targets, "timeout_seconds": 30}}))
        with running(folder, "--config", str(folder / "c.yml")) as exporter:
            yield Site(exporter, service, other, post)


@pytest.fixture
def run(request: pytest.FixtureRequest) -> str:
    """A name that no other test has."""
    return f"run-of-{re.sub(r'[^a-z0-9]+', '-', request.node.name.lower())[:60]}-{uuid4().hex[:8]}"


def webhook(*alerts: dict[str, Any], group: str = '{}:{run="r"}') -> dict[str, Any]:
    """As Alertmanager sends it."""
    return {
        "version": "4",
        "groupKey": group,
        "truncatedAlerts": 0,
        "status": "firing",
        "receiver": "chat",
        "groupLabels": {},
        "commonLabels": {},
        "commonAnnotations": {},
        "externalURL": "http://alertmanager.test",
        "alerts": list(alerts) or [one()],
    }


def one(
    run: str = "r", *, name: str = "VerlNonFinite", status: str = "firing", severity: str = "critical", **notes: str
) -> dict[str, Any]:
    return {
        "status": status,
        "labels": {"alertname": name, "severity": severity, "run": run},
        "annotations": {
            "summary": f"Run {run}: grad_norm is NaN or infinite",
            "action": "Roll back.",
            "description": "Loss 3.5.",
            "findings": "2 in all.",
            "console_url": "http://127.0.0.1:9464/console/run?id=r",
            "runbook_url": "http://127.0.0.1:9464/runbooks/VerlNonFinite.md",
            **notes,
        },
        "startsAt": "2026-11-30T22:15:03.123Z",
        "endsAt": "0001-01-01T00:00:00Z" if status == "firing" else "2026-11-30T23:15:03Z",
        "generatorURL": "http://prometheus/graph",
        "fingerprint": f"{abs(hash((run, name))):016x}",
    }


def json_url(service: FakeService, path: str = "") -> str:
    return f"json://user:{SECRET}@{service.host}/{path}"


def test_a_page_is_a_message_that_says_what_to_do_and_where_to_look(site: Site, run: str) -> None:
    before = site.count("ops", "delivered")
    answer = site.notify("ops", one(run))
    assert (answer.status, answer.json) == (200, {"targets": [{"target": "ops", "outcome": "delivered"}]})
    (request,) = site.service.got(run)
    message = request.json
    # Of a long name the title has the beginning and the end.
    assert message["title"] == f"🔴 CRITICAL Run {run[:24]}…{run[-15:]}: grad_norm is NaN or infinite"
    assert message["type"] == "failure"
    for text in (f"Run: {run}", "Do: Roll back.", "Loss 3.5.", "2 in all.", "Since 2026-11-30 22:15 UTC"):
        assert text in message["message"]
    assert "Console: http://127.0.0.1:9464/console/run?id=r\n" in message["message"]
    assert f"http://alertmanager.test/#/silences/new?filter=%7Brun%3D%22{run}%22%7D" in message["message"]
    assert site.count("ops", "delivered") == before + 1
    assert site.count("ops", "failed") == 0


@pytest.mark.parametrize(
    ("changes", "mark", "kind"),
    [
        ({"severity": "warning"}, "🟡 WARNING", "warning"),
        ({"severity": "none"}, "ℹ️ INFO", "info"),  # noqa: RUF001
        ({"status": "resolved"}, "✅ RESOLVED", "success"),
    ],
)
def test_the_severity_is_in_the_title_and_is_apprises(
    site: Site, run: str, changes: dict[str, str], mark: str, kind: str
) -> None:
    assert site.notify("ops", one(run, **changes)).status == 200
    (request,) = site.service.got(run)
    assert request.json["title"].startswith(mark)
    assert request.json["type"] == kind
    assert ("Over since 2026-11-30 23:15 UTC" in request.json["message"]) == (kind == "success")


def test_several_alerts_are_one_message_the_worst_first(site: Site, run: str) -> None:
    alerts = [one(run, name=f"Verl{n}", severity="warning", summary=f"ticket {n}") for n in range(12)]
    site.notify("ops", *alerts, one(run, name="VerlWorst", summary="the page"))
    (request,) = site.service.got(run)
    assert request.json["title"] == "🔴 CRITICAL the page (13 alerts)"
    assert "ticket 3" in request.json["message"]
    assert "… and 5 more" in request.json["message"]


def test_a_target_is_chosen_by_the_query_and_without_it_all_are(site: Site, run: str) -> None:
    assert site.notify("team-b", one(run)).status == 200
    assert [it.path for it in site.service.got(run)] == ["/team-b"]
    assert site.exporter.post(NOTIFY, webhook(one(run))).status == 200
    assert {it.path for it in site.service.got(run)} == {"/ops", "/team-a", "/team-b", "/both"}
    assert len(site.service.got(run, path="/team-b")) == 1
    assert site.post.got(run)
    unknown = site.notify("nobody", one(run))
    assert unknown.status == 404
    assert unknown.reason == "There is no target 'nobody': ops, team-a, team-b, bad, mail, both are there."


def test_what_a_target_has_taken_is_not_sent_it_again_when_another_failed(site: Site, run: str) -> None:
    failed, delivered = site.count("bad", "failed"), site.count("bad", "delivered")
    alert = webhook(one(run))
    site.other.status = FAILING
    try:
        first = site.exporter.post(NOTIFY, alert)
        assert first.status == 502
        assert int(first.headers["Retry-After"]) > 0
        assert "Target bad did not take the message: " in first.reason
        assert "500" in first.reason
        assert first.reason.endswith(" ops, team-a, team-b, mail took it, and will not be sent it twice.")
        assert site.exporter.post(NOTIFY, alert).status == 502
    finally:
        site.other.status = OK
    last = site.exporter.post(NOTIFY, alert)
    assert last.status == 200
    known = dict.fromkeys(("mail", "ops", "team-a", "team-b"), "known")
    assert {it["target"]: it["outcome"] for it in last.json["targets"]} == {
        **known,
        "bad": "delivered",
        "both": "delivered",
    }
    assert len(site.service.got(run, path="/ops")) == len(site.post.got(run)) == 1
    assert len(site.service.got(run, path="/both")) == 1, "of two addresses of one target, too, only one was open"
    assert len(site.other.got(run, path="/bad")) == 3
    assert (site.count("bad", "failed"), site.count("bad", "delivered")) == (failed + 2, delivered + 1)


def test_a_message_that_changed_is_sent(site: Site, run: str) -> None:
    other = one(run, name="VerlSurge")
    for alerts in ([one(run)], [one(run), other], [one(run, status="resolved"), other]):
        assert site.notify("ops", *alerts).json["targets"][0]["outcome"] == "delivered"
        assert site.notify("ops", *alerts).json["targets"][0]["outcome"] == "known"
    assert len(site.service.got(run)) == 3


def test_e_mail_arrives_with_what_the_alert_says_and_nothing_that_a_run_s_name_does(site: Site, run: str) -> None:
    answer = site.notify("mail", one(run + HOSTILE))
    assert answer.status == 200, answer.body
    (message,) = site.post.got(run)
    assert "CRITICAL" in message["subject"]
    assert "oncall@example.org" in message["to"]
    text = part(message, "plain")
    assert "Roll back." in text
    assert "http://evil" not in text
    assert "<script" not in part(message, "html")


@pytest.mark.parametrize("name", [HOSTILE, "@all @here", "a\nb\x00c", "训练/一"])
def test_a_hostile_run_makes_no_link_and_calls_nobody(site: Site, run: str, name: str) -> None:
    name = f"{run} {name}"
    assert site.notify("ops", one(name, description=name, findings=name, action=name)).status == 200
    (request,) = site.service.got(run)
    text = request.json["title"] + request.json["message"]
    assert "http://evil" not in text
    assert "](" not in text
    assert "@" not in text
    assert "\x00" not in text
    assert "\n" not in request.json["title"]


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({}, "$"),
        ({**webhook(), "version": "5"}, "$.version"),
        ({**webhook(), "alerts": []}, "$.alerts"),
        ({**webhook(), "alerts": [one()] * 1001}, "$.alerts"),
        ({**webhook(), "alerts": [{**one(), "status": "unheard"}]}, "$.alerts[0].status"),
        ({**webhook(), "alerts": [{**one(), "labels": {"run": 3}}]}, "$.alerts[0].labels[...]"),
    ],
)
def test_a_body_that_is_no_webhook_is_refused_with_its_place(site: Site, body: dict[str, Any], where: str) -> None:
    answer = site.exporter.post(NOTIFY, body)
    assert (answer.status, answer.json["where"]) == (400, where)


def test_a_body_that_is_large_or_of_another_type_is_refused(site: Site) -> None:
    assert site.exporter.post(NOTIFY, {**webhook(), "more": "x" * 2**20}).status == 413
    assert site.exporter.post(NOTIFY, b"{}", Content_Type="text/plain").status == 415
    assert site.exporter.post(NOTIFY, b"[" * 100_000, Content_Type="application/json").status == 400


def test_a_test_message_says_who_asked_and_is_sent_each_time(site: Site, run: str) -> None:
    for _ in range(2):
        assert site.exporter.post(TEST, {"who": run, "target": "team-a"}).status == 200
    first, second = site.service.got(run)
    assert first.path == second.path == "/team-a"
    assert "TEST" in first.json["title"]
    assert f"{run} asked for it" in first.json["message"]
    assert site.exporter.post(TEST, {"who": "\n"}).status == 400
    assert site.exporter.post(TEST, {"who": "ada", "target": "c"}).status == 404


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Starts an exporter with other targets."""

    def with_targets(
        targets: dict[str, Any], *, timeout: float = 30, **more: Any
    ) -> AbstractContextManager[ExporterProcess]:
        config = {"notify": {"targets": targets, "timeout_seconds": timeout}, **more}
        (tmp_path / "config.yml").write_text(json.dumps(config))
        return running(tmp_path, "--config", str(tmp_path / "config.yml"))

    return with_targets


def test_a_service_that_does_not_answer_holds_nobody_up_and_its_message_is_not_doubled(
    start: Start, service: FakeService
) -> None:
    service.held.clear()
    # Apprise's own limit is above ours, so that ours is what ends the wait.
    with start({"slow": [{"value": f"{json_url(service)}?rto=600&cto=600"}]}, timeout=1) as exporter:
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            answers: list[Answer] = list(pool.map(lambda _: exporter.post(NOTIFY, webhook()), range(3)))
        assert {answer.status for answer in answers} == {503}
        assert all("had not answered after 1 s" in answer.reason for answer in answers)
        assert exporter.get("/readyz").status == 200
        assert len(service.requests) == 1, "the second and the third wait for the first"
        service.held.set()
        delivered = 'verl_sentinel_notifications_total{target="slow",outcome="delivered"}'
        wait_for("it is delivered", lambda: exporter.metrics()[delivered] == 1)
        assert exporter.post(NOTIFY, webhook()).json["targets"][0]["outcome"] == "known"
        assert len(service.requests) == 1
        # The exporter does not wait for a service at its own end either: it would for ten minutes.
        service.held.clear()
        assert exporter.post(NOTIFY, webhook(group="another")).status == 503
        assert exporter.stop() == 0


def test_addresses_come_from_files_and_variables_and_a_new_one_is_used_without_a_restart(
    start: Start, service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "address"
    file.write_text(f"# ours\n{json_url(service, 'of-file')}\n\n{json_url(service, 'of-file-too')}\n")
    monkeypatch.setenv("OF_VARIABLE", json_url(service, "of-variable"))
    with start({"ops": [{"file": str(file)}, {"env": "OF_VARIABLE"}]}) as exporter:
        assert exporter.post(NOTIFY, webhook()).status == 200
        assert [it.path for it in service.requests] == ["/of-file", "/of-file-too", "/of-variable"]
        file.write_text(json_url(service, "rotated"))
        assert exporter.post(NOTIFY, webhook(group="next")).status == 200
        assert [it.path for it in service.requests[3:]] == ["/rotated", "/of-variable"]
        file.unlink()
        gone = exporter.post(NOTIFY, webhook(group="gone"))
        assert gone.status == 502
        assert f"the file {file} cannot be read: No such file or directory" in gone.reason


def test_no_secret_of_an_address_is_in_an_answer_a_metric_or_the_log(
    start: Start, service: FakeService, mail: FakeMail
) -> None:
    service.status, mail.refuses = FAILING, True
    urls = [
        json_url(service, f"{SECRET}/path?x={SECRET}"),
        f"json://{SECRET}.invalid/{SECRET}",
        f"mailto://user:{SECRET}@127.0.0.1:{mail.port}/?from=a@example.org&to={SECRET}@example.org&mode=insecure",
    ]
    with start({f"t{n}": [{"value": url}] for n, url in enumerate(urls)}) as exporter:
        answer = exporter.post(NOTIFY, webhook())
        assert answer.status == 502
        assert all(f"Target t{n} did not take" in answer.reason for n in range(3))
        assert all(f"Target t{n} does not take messages" in exporter.log for n in range(3))
        everything = answer.body.decode() + exporter.log + exporter.get("/metrics").body.decode()
        assert SECRET not in everything


def test_without_a_target_it_says_where_to_name_one_and_it_wants_the_right_token(start: Start) -> None:
    tokens = {scope: [{"value": f"{scope}-token-of-the-test"}] for scope in ("push", "alert", "operate")}
    with start({}, tokens=tokens) as exporter:
        for path, right, body in ((NOTIFY, "alert", webhook()), (TEST, "operate", {"who": "ada"})):
            assert exporter.post(path, body).status == 401
            for scope in tokens:
                answer = exporter.post(path, body, Authorization=f"Bearer {scope}-token-of-the-test")
                assert answer.status == (404 if scope == right else 403)
        answer = exporter.post(NOTIFY, webhook(), Authorization="Bearer alert-token-of-the-test")
        assert answer.json["where"] == "notify.targets"
        assert "section notify" in answer.reason
