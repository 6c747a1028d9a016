"""What people get from Alertmanager with ``rules/alertmanager.yml``: real Alertmanager, services that are stand-ins."""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from alertmanager_stage import PASSWORD, PROGRAM, ROUTING_KEY, TOKEN, Stage, alert, stage
from fake_services import FakeService, Request, part, wait_for

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(PROGRAM is None, reason="prometheus-alertmanager is not installed"),
]

HOSTILE = '<script>alert(1)</script>*_`[x](http://evil)<!channel>\\"{{ . }} 训练'
TEAM_A, TEAM_B = "example-team-a", "example-team-b"


@pytest.fixture(scope="module")
def exporter() -> Iterator[FakeService]:
    with FakeService() as exporter:
        yield exporter


@pytest.fixture(scope="module")
def shown(exporter: FakeService, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """In office hours."""
    with stage(tmp_path_factory.mktemp("alertmanager"), exporter.url) as found:
        yield found


def slack_of(found: Stage, *words: str) -> dict[str, Any]:
    """The first Slack message with these words."""
    (first, *_) = wait_for(f"Slack hears {words}", lambda: found.services.got(*words, path="/slack"))
    (attachment,) = first.json["attachments"]
    return dict(attachment)


def wecom_of(found: Stage, *words: str) -> str:
    (first, *_) = wait_for(f"WeCom hears {words}", lambda: found.services.got(*words, path="/wecom/message"))
    assert first.json["msgtype"] == "markdown"
    return str(first.json["markdown"]["content"])


def pagerduty_of(found: Stage, *words: str) -> dict[str, Any]:
    (first, *_) = wait_for(f"PagerDuty hears {words}", lambda: found.services.got(*words, path="/pagerduty"))
    return dict(first.json)


def test_a_page_says_on_every_service_what_it_is_what_to_do_the_numbers_and_where_to_look(shown: Stage) -> None:
    shown.post(alert("VerlNonFinite", "critical", "run-page", detector="non_finite", signal="grad_norm"))
    slack = slack_of(shown, "run-page")
    assert slack["title"] == "🔴 CRITICAL Run run-page: grad_norm is NaN or infinite"
    assert slack["title_link"] == "http://127.0.0.1:9464/console/run?id=run-page"
    assert slack["color"] == "danger"
    (mail, *_) = wait_for("mail", lambda: shown.mail.got("run-page"))
    assert mail["subject"] == slack["title"]
    assert mail["to"] == "verl-oncall@example.org"
    wecom, page = wecom_of(shown, "run-page"), pagerduty_of(shown, "run-page")
    assert page["payload"]["summary"] == slack["title"]
    assert (page["event_action"], page["payload"]["severity"], page["payload"]["class"]) == (
        "trigger",
        "critical",
        "VerlNonFinite",
    )
    details = page["payload"]["custom_details"]
    assert details["what to do"] == "Roll back to the newest verified checkpoint."
    texts = (slack["text"], part(mail, "plain"), part(mail, "html"), wecom, "\n".join(details.values()))
    for text in texts:
        assert "Roll back to the newest verified checkpoint." in text
        assert "Newest step 128. Loss 3.5." in text
        assert "grad_norm since step 120 (non_finite)" in text
        for link in ("console/run?id=run-page", "d/verl-run?var-run=run-page", "runbooks/VerlNonFinite.md"):
            assert link in text
    for text in (slack["text"], part(mail, "plain"), details["links"]):
        assert "https://alertmanager.test/am/#/silences/new?filter=%7Brun%3D%22run-page%22%7D" in text


def test_secrets_come_from_their_files(shown: Stage) -> None:
    shown.post(alert("VerlSurge", "critical", "run-secret", action="rollback"))
    assert pagerduty_of(shown, "run-secret")["routing_key"] == ROUTING_KEY
    wait_for("mail", lambda: shown.mail.got("run-secret"))
    assert PASSWORD in shown.mail.passwords
    assert slack_of(shown, "run-secret")


def test_what_may_trigger_a_recovery_goes_to_the_exporter_with_its_token_and_to_people(
    shown: Stage, exporter: FakeService
) -> None:
    labels = {"alertname": "VerlSurge", "severity": "critical", "run": "run-rollback", "action": "rollback"}
    shown.post({**alert("VerlSurge", "critical", "run-rollback"), "labels": labels})
    (webhook, *_) = wait_for("the webhook", lambda: exporter.got("run-rollback", path="/api/v1/alerts"))
    assert webhook.headers["authorization"] == f"Bearer {TOKEN}"
    assert webhook.json["alerts"][0]["labels"] == labels
    assert slack_of(shown, "run-rollback")


def test_alerts_of_one_run_are_one_message_and_those_of_another_run_another(shown: Stage) -> None:
    shown.post(
        alert("VerlNonFinite", "critical", "run-many", summary="Run run-many: first"),
        alert("VerlSurge", "critical", "run-many", summary="Run run-many: second"),
        alert("VerlSurge", "critical", "run-other", summary="Run run-other: third"),
    )
    slack = slack_of(shown, "run-many: first", "run-many: second")
    assert "(2 alerts)" in slack["title"]
    assert "run-other" not in slack["text"]
    assert "run-many" not in slack_of(shown, "run-other")["text"]
    assert "second" in wecom_of(shown, "run-many: first")
    assert pagerduty_of(shown, "run-many: first", "run-many: second")


def test_the_end_of_an_alert_is_told_too(shown: Stage) -> None:
    shown.post(alert("VerlNonFinite", "critical", "run-over"))
    slack_of(shown, "run-over")
    shown.post(alert("VerlNonFinite", "critical", "run-over", ended=True))
    slack = slack_of(shown, "run-over", "RESOLVED")
    assert slack["title"] == "✅ RESOLVED Run run-over: grad_norm is NaN or infinite"
    assert slack["color"] == "good"
    assert "Over since" in slack["text"]
    assert "Silence" not in slack["text"]
    assert "Over since" in wecom_of(shown, "run-over", "RESOLVED")
    (resolved,) = wait_for("PagerDuty", lambda: shown.services.got("run-over", '"resolve"', path="/pagerduty"))
    assert resolved.json["dedup_key"] == pagerduty_of(shown, "run-over")["dedup_key"]
    (mail,) = wait_for("mail", lambda: shown.mail.got("RESOLVED", "run-over"))
    assert "Over since" in part(mail, "plain")
    assert "over since" in part(mail, "html")


def test_a_run_with_a_hostile_name_makes_no_link_no_tag_and_calls_nobody(shown: Stage) -> None:
    more = dict.fromkeys(("action", "description", "findings"), f"{HOSTILE}\n# {HOSTILE}")
    shown.post(alert("VerlNonFinite", "critical", HOSTILE, **more))
    slack = slack_of(shown, "script", "evil")
    for text in (slack["title"], slack["text"], slack["fallback"]):
        assert "<script" not in text
        assert "<!channel" not in text
        assert "http://evil" not in text
    # What is a link begins with an address of ours.
    links = [piece.partition("|")[0] for piece in slack["text"].split("<")[1:]]
    assert {link.split("/")[2] for link in links} == {"127.0.0.1:9464", "127.0.0.1:3000", "alertmanager.test"}
    wecom = wecom_of(shown, "script", "evil")
    assert wecom.count("<") == wecom.count("<font ") + wecom.count("</font>") == 2
    assert "](http://evil" not in wecom
    assert "http://evil" not in wecom
    (mail, *_) = wait_for("mail", lambda: shown.mail.got("evil"))
    assert "\n" not in mail["subject"]
    html = part(mail, "html")
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert "http://evil" not in html
    assert "http://evil" not in part(mail, "plain")
    page = pagerduty_of(shown, "script", "evil")
    assert "http://evil" not in page["payload"]["summary"]
    assert "\n" not in page["payload"]["summary"]
    assert "训练" in page["payload"]["group"]


def test_only_addresses_of_the_web_become_links(shown: Stage) -> None:
    bad = {
        "console_url": "javascript:alert(1)",
        "dashboard_url": "http://x|<!here>",
        "runbook_url": 'http://a"onload=b',
    }
    shown.post(alert("VerlNonFinite", "critical", "run-links", **bad))
    slack = slack_of(shown, "run-links")
    assert "Console" not in slack["text"]
    assert "Dashboard" not in slack["text"]
    assert "Runbook" not in slack["text"]
    assert slack["title_link"] == "https://alertmanager.test/am"
    (mail, *_) = wait_for("mail", lambda: shown.mail.got("run-links"))
    assert "javascript" not in part(mail, "html")
    assert "onload" not in part(mail, "html")


@pytest.mark.parametrize("letter", ["x", "训", "<", "&"], ids=["ascii", "chinese", "tags", "ampersands"])
def test_a_message_is_bounded_however_much_an_alert_says(shown: Stage, letter: str) -> None:
    run = f"long-{ord(letter)}-" + letter * 250
    alerts = [
        alert(
            f"Verl{n}",
            "critical",
            run,
            **dict.fromkeys(("summary", "action", "description", "findings"), f"{n} " + letter * 9_000),
        )
        for n in range(30)
    ]
    shown.post(*alerts)
    name = f"long-{ord(letter)}-"
    assert len(wecom_of(shown, name).encode()) <= 2048
    slack = slack_of(shown, name, "and more")
    assert len(slack["title"]) < 1000
    assert len(slack["text"]) < 40_000
    assert len(pagerduty_of(shown, name)["payload"]["summary"]) <= 1024
    (mail, *_) = wait_for("mail", lambda: shown.mail.got(name))
    assert len(part(mail, "html")) < 200_000


LONG = {
    "chinese": "训练" * 43 + "七组候选",
    "very-long-chinese": "模型" * 118 + "七组候选",
    "letters": "a" * 130 + "-seed-17",
    "four-bytes": "🚀" * 230,
    "escapes": "\\E" * 30 + "$1${2}(.*)\\Q: " * 3 + "\\",
    "tags": "<>*`&" * 45,
}


@pytest.mark.parametrize("name", LONG)
def test_a_long_name_of_a_run_pushes_nothing_out_of_the_message(shown: Stage, name: str) -> None:
    run = f"l-{name[:6]}-{LONG[name]}-e"
    begin = f"Run l-{name[:6]}-"
    links = {
        "console_url": f"https://sentinel.corp.example.com/console/run?id={urllib.parse.quote_plus(run)}",
        "dashboard_url": f"https://grafana.corp.example.com/d/verl-run?var-run={urllib.parse.quote_plus(run)}",
        "runbook_url": "https://sentinel.corp.example.com/runbooks/VerlKLDivergence.md",
    }
    # All the texts as long as they can be, too: they must not push the link out either.
    long = dict.fromkeys(("description", "findings"), "训练" * 500)
    shown.post(alert("VerlKLDivergence", "critical", run, detector="kl", **links, **long))
    slack, page, wecom = slack_of(shown, begin), pagerduty_of(shown, begin), wecom_of(shown, begin)
    (mail, *_) = wait_for("mail", lambda: shown.mail.got(begin))
    for title in (slack["title"], page["payload"]["summary"], mail["subject"], wecom.partition("\n")[0].rstrip("*")):
        assert "🔴 CRITICAL" in title
        assert begin in title
        assert title.endswith("-e: grad_norm is NaN or infinite"), title
        assert len(title) < 150
    for text in (slack["text"], page["payload"]["custom_details"]["links"], part(mail, "plain")):
        assert links["console_url"] in text
    assert slack["title_link"] == links["console_url"]
    assert len(wecom.encode()) <= 2048
    assert "Do: Roll back to the newest verified checkpoint." in wecom
    # Where the run's own address has no room in 2,048 bytes, that of the list of runs.
    short = len(links["console_url"]) <= 1250
    assert f"[Console]({links['console_url'] if short else 'https://sentinel.corp.example.com/console/'})" in wecom


def test_pagerduty_has_the_numbers_of_the_page_among_others_and_how_many_they_are(
    exporter: FakeService, tmp_path: Path
) -> None:
    """A receiver may have pages and tickets of a run in one message: the ticket comes first by its name."""
    with stage(tmp_path, exporter.url, one_route=True) as there:
        run = "run-mixed"
        there.post(
            alert("VerlA", "warning", run, description="Numbers of a ticket.", findings="Found: a ticket."),
            alert("VerlB", "warning", run, description="Numbers of a ticket.", findings="Found: a ticket."),
            alert("VerlZ", "critical", run, description="Numbers of the page.", findings="Found: the page."),
        )
        page = pagerduty_of(there, "(3 alerts)", "Numbers of the page")["payload"]
        assert page["severity"] == "critical"
        assert page["class"] == "VerlZ"
        details = page["custom_details"]
        assert details["numbers"] == "Numbers of the page."
        assert details["findings"] == "Found: the page."
        assert details["others"] == '2 more: see "alerts"'
        assert details["alerts"].count("Run run-mixed: ") == 3
        slack = slack_of(there, "(3 alerts)")
        assert slack["title"].startswith("🔴 CRITICAL")
        assert slack["color"] == "danger"
        # When the page is over, the message is about what still fires.
        there.post(alert("VerlZ", "critical", run, ended=True))
        assert slack_of(there, "(2 alerts)")["title"].startswith("🟡 WARNING")
        details = pagerduty_of(there, "(2 alerts)")["payload"]["custom_details"]
        assert (details["numbers"], details["others"]) == ("Numbers of a ticket.", '1 more: see "alerts"')


def test_a_ticket_goes_to_people_in_office_hours(shown: Stage) -> None:
    shown.post(alert("VerlSurge", "warning", "run-ticket"))
    slack = slack_of(shown, "run-ticket")
    assert slack["title"].startswith("🟡 WARNING ")
    assert slack["color"] == "warning"


def services_that_heard(found: Stage, exporter: FakeService, word: str) -> Callable[[], set[str]]:
    def heard() -> set[str]:
        requests: list[Request] = found.services.got(word)
        names = {it.path.strip("/").partition("/")[0] for it in requests}
        names |= {it.path.removeprefix("/api/v1/") for it in exporter.got(word)}
        return names | ({"mail"} if found.mail.got(word) else set())

    return heard


@pytest.mark.parametrize(
    ("severity", "team", "expected"),
    [
        ("critical", TEAM_A, {"pagerduty"}),
        ("critical", TEAM_B, {"notify", "mail"}),
        ("warning", TEAM_A, {"slack"}),
        ("warning", TEAM_B, {"notify?target=wecom"}),
        ("critical", "nobody's", {"slack", "mail", "pagerduty", "wecom"}),
    ],
)
def test_a_team_hears_of_its_runs_where_it_said_and_nobody_else_does(
    shown: Stage, exporter: FakeService, severity: str, team: str, expected: set[str]
) -> None:
    run = f"run-of-{team}-{severity}"
    heard = services_that_heard(shown, exporter, run)
    shown.post(alert("VerlSurge", severity, run, team=team))
    wait_for(f"{expected} hear of it", lambda: heard() >= expected)
    # A later page of the same run has gone the same way by the time that it is heard everywhere.
    shown.post(alert("VerlSurge", severity, run, team=team, ended=True))
    wait_for("its end", lambda: len([it for it in (*shown.services.got(run), *exporter.got(run))]) >= 2)
    assert heard() == expected


def test_the_watchdog_goes_to_the_dead_mans_switch_alone(shown: Stage, exporter: FakeService) -> None:
    heard = services_that_heard(shown, exporter, "Watchdog")
    shown.post(alert("Watchdog", "none"))
    wait_for("the switch hears of it", heard)
    assert heard() == {"switch"}


def test_a_page_silences_the_tickets_of_its_run_and_of_no_other(shown: Stage) -> None:
    shown.post(alert("VerlRecoveryFailed", "critical", "run-inhibits"))
    slack_of(shown, "run-inhibits")
    shown.post(
        alert("VerlSurge", "warning", "run-inhibits", summary="Run run-inhibits: a ticket"),
        alert("VerlSurge", "warning", "run-speaks", summary="Run run-speaks: a ticket"),
    )
    wait_for("the ticket is silenced", lambda: shown.inhibited(severity="warning", run="run-inhibits"))
    slack_of(shown, "run-speaks: a ticket")
    assert not shown.services.got("run-inhibits: a ticket")


def test_a_silent_run_silences_what_follows_from_it_but_neither_its_recovery_nor_the_webhook(
    shown: Stage, exporter: FakeService
) -> None:
    run = "run-silent"
    shown.post(alert("VerlRunSilent", "critical", run))
    slack_of(shown, run)
    rollback = alert("VerlPhaseStalled", "critical", run, summary=f"{run}: may roll back")
    rollback["labels"]["action"] = "rollback"
    shown.post(
        alert("VerlRolloutSuccessRateLow", "critical", run, summary=f"{run}: follows, a page"),
        alert("VerlCheckpointStale", "warning", run, summary=f"{run}: follows, a ticket"),
        alert("VerlRecoveryAwaitingApproval", "critical", run, summary=f"{run}: asks a person"),
        alert("VerlKLDrift", "critical", run, summary=f"{run}: another page"),
        rollback,
    )
    wait_for("the page is silenced", lambda: shown.inhibited(alertname="VerlRolloutSuccessRateLow", run=run))
    wait_for("the ticket is silenced", lambda: shown.inhibited(alertname="VerlCheckpointStale", run=run))
    slack_of(shown, "asks a person")
    slack_of(shown, "may roll back")
    slack_of(shown, "another page")
    wait_for("the webhook", lambda: exporter.got("may roll back", path="/api/v1/alerts"))
    assert not shown.services.got("follows, a")


@pytest.mark.parametrize("ticket", ["VerlTrainerExited", "VerlRunSilent"])
@pytest.mark.parametrize("page", ["VerlKLDrift", "VerlRolloutSuccessRateLow", "VerlTrainingStepSlowdown"])
def test_no_ticket_silences_a_page_however_they_meet(shown: Stage, ticket: str, page: str) -> None:
    run = f"run-both-{ticket}-{page}"
    shown.post(
        alert(ticket, "warning", run, detector="d", summary=f"{run}: a ticket"),
        alert(page, "critical", run, summary=f"{run}: a page"),
    )
    slack_of(shown, f"{run}: a page")
    slack_of(shown, f"{run}: a ticket")


def test_a_cause_is_heard_beside_the_page_that_it_explains(shown: Stage) -> None:
    run = "run-with-a-cause"
    names = ("VerlGPUXidErrors", "VerlGPUHot", "VerlGPULost", "VerlMemoryExhaustion", "VerlRecoveryBudgetSpent")
    shown.post(alert("VerlTrainerExited", "critical", run, detector="trainer_exited"))
    slack_of(shown, run)
    shown.post(
        *(alert(name, "warning", run, summary=f"{run}: this is {name}") for name in names),
        alert("VerlCheckpointStale", "warning", run, summary=f"{run}: follows"),
    )
    for name in names:
        wait_for(name, lambda name=name: shown.services.got(f"{run}: this is {name}", path="/pagerduty"))  # type: ignore[misc]
    wait_for("what follows is silenced", lambda: shown.inhibited(alertname="VerlCheckpointStale", run=run))
    assert not shown.services.got(f"{run}: follows")


def test_an_exporter_that_is_down_silences_what_follows_from_that(shown: Stage) -> None:
    at = {"instance": "exporter:9464", "cluster": "down"}
    shown.post(alert("VerlExporterDown", "critical", **at))
    slack_of(shown, "VerlExporterDown")
    shown.post(
        alert("VerlExporterNotReady", "critical", summary="follows: not ready", **at),
        alert("VerlSinkLagging", "warning", summary="follows: sink", sink="influxdb", **at),
        alert(
            "VerlAlertmanagerNotifyFailing",
            "warning",
            summary="follows: webhook",
            integration="webhook",
            cluster="down",
        ),
        alert("VerlGoodputLow", "warning", "run-of-another", summary="its own: a run", cluster="down"),
        alert("VerlJournalFailing", "warning", summary="its own: the reason", **at),
        alert(
            "VerlAlertmanagerNotifyFailing", "warning", summary="its own: slack", integration="slack", cluster="down"
        ),
        alert(
            "VerlExporterNotReady", "critical", summary="its own: other exporter", instance="other:9464", cluster="down"
        ),
    )
    for labels in (
        {"alertname": "VerlExporterNotReady", "instance": "exporter:9464"},
        {"alertname": "VerlSinkLagging"},
        {"alertname": "VerlAlertmanagerNotifyFailing", "integration": "webhook"},
    ):
        wait_for(f"{labels} is silenced", lambda labels=labels: shown.inhibited(cluster="down", **labels))  # type: ignore[misc]
    slack_of(shown, "its own: slack")
    slack_of(shown, "its own: other exporter")
    slack_of(shown, "its own: a run")
    slack_of(shown, "its own: the reason")
    assert not shown.services.got("follows: ")


def test_outside_of_office_hours_pages_are_heard_and_tickets_are_not(
    exporter: FakeService, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with stage(tmp_path_factory.mktemp("at-night"), exporter.url, muted=True) as night:
        tickets = [
            alert("VerlSurge", "warning", f"night-ticket-{n}", team=team) for n, team in enumerate(("", TEAM_A, TEAM_B))
        ]
        night.post(*tickets)
        wait_for("all three are muted", lambda: night.log.count("route is within mute time") >= 3)
        night.post(
            alert("VerlSurge", "critical", "night-page"),
            alert("VerlSurge", "critical", "night-page-a", team=TEAM_A),
            alert("VerlSurge", "critical", "night-page-b", team=TEAM_B),
        )
        slack_of(night, "night-page")
        pagerduty_of(night, "night-page-a")
        wait_for("team b hears of its page", lambda: exporter.got("night-page-b", path="/api/v1/notify"))
        assert not night.services.got("night-ticket")
        assert not night.mail.got("night-ticket")
        assert not exporter.got("night-ticket")


@pytest.mark.parametrize(("hour", "heard"), [(13, True), (2, False)], ids=["at-noon", "at-night"])
def test_nights_are_those_of_the_time_zone_that_tz_names(tmp_path: Path, hour: int, heard: bool) -> None:
    east = (hour - datetime.now(timezone.utc).hour + 12) % 24 - 12
    zone = f"Etc/GMT{-east:+d}"  # whose sign is the other way round
    with FakeService() as exporter, stage(tmp_path, exporter.url, muted=None, zone=zone) as there:
        there.post(alert("VerlSurge", "warning", "run-somewhere"))
        if heard:
            slack_of(there, "run-somewhere")
        else:
            wait_for("it is muted", lambda: "route is within mute time" in there.log)
            assert not there.services.got("run-somewhere")


def test_no_message_failed_for_a_fault_of_a_template(shown: Stage) -> None:
    shown.post(alert("VerlSurge", "critical", "run-last"))
    slack_of(shown, "run-last")
    assert "template" not in [line for line in shown.log.splitlines() if "level=error" in line]
    assert not [line for line in shown.log.splitlines() if "template" in line and "level=error" in line]
