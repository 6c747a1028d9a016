"""What leaves for services whose hosts are fixed outside ones. Only the transport under apprise's ``requests`` is
replaced: everything above it is apprise's own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote_plus

import pytest
import requests

from exporter.notify.message import message_of, notification
from exporter.notify.services import SERVICES, WrongUrl, check_url, send

HOSTILE = "<at id=all></at>*_[x](http://evil) @all `code`"
LINK = "[Console](http://127.0.0.1:9464/console/run?id=r)"
Sent = list[tuple[str, Any]]


def body(run: str = "r", **changes: Any) -> bytes:
    annotations = {
        "summary": f"Run {run}: grad_norm is NaN",
        "action": "Roll back.",
        "description": f"Loss 3.5 of {run}.",
        "findings": "2 in all.",
        "console_url": "http://127.0.0.1:9464/console/run?id=r",
        "dashboard_url": "http://127.0.0.1:3000/d/verl-run?var-run=(r)",
        "runbook_url": "javascript:alert(1)",
    }
    alert = {
        "status": "firing",
        "labels": {"alertname": "VerlNonFinite", "severity": "critical", "run": run},
        "annotations": {**annotations, **changes},
        "startsAt": "2026-11-30T22:15:03Z",
        "fingerprint": "1",
    }
    webhook = {
        "version": "4",
        "groupKey": "g",
        "externalURL": "http://alertmanager.test/",
        "alerts": [alert] * changes.pop("times", 1),
    }
    return json.dumps(webhook).encode()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    """Address and JSON of everything that would have left; it is answered as a success of any of these services."""
    found: Sent = []

    def answer(_: object, request: requests.PreparedRequest, **__: object) -> requests.Response:
        found.append((str(request.url), json.loads(request.body or b"{}")))
        response = requests.Response()
        response.status_code = 200
        response._content = b'{"errcode": 0, "code": 0, "ok": true}' if "slack" not in str(request.url) else b"ok"
        return response

    monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", answer)
    return found


def test_feishu_gets_a_card_with_the_title_in_its_colour_and_links(sent: Sent) -> None:
    assert send("feishu://the-bots-token", message_of(notification(body()))) == ""
    ((url, posted),) = sent
    assert url == "https://open.feishu.cn/open-apis/bot/v2/hook/the-bots-token/"
    card = posted["card"]
    assert card["header"] == {
        "title": {"tag": "plain_text", "content": "🔴 CRITICAL Run r: grad_norm is NaN"},
        "template": "red",
    }
    (element,) = card["elements"]
    assert element["text"]["tag"] == "lark_md"
    text = element["text"]["content"]
    assert "**Do:** Roll back." in text
    assert LINK in text
    assert "[Dashboard](http://127.0.0.1:3000/d/verl-run?var-run=%28r%29)" in text
    assert "javascript" not in text


def test_feishu_gets_plain_text_where_its_address_says_so(sent: Sent) -> None:
    assert send("feishu://the-bots-token?format=text", message_of(notification(body()))) == ""
    ((_, posted),) = sent
    assert posted["msg_type"] == "text"
    assert "Do: Roll back." in posted["content"]["text"]
    assert "Console: http://127.0.0.1:9464/console/run?id=r" in posted["content"]["text"]


def test_dingtalk_gets_markdown_that_is_signed_with_its_secret(sent: Sent) -> None:
    assert send("dingtalk://thesecret@thetoken", message_of(notification(body()))) == ""
    ((url, posted),) = sent
    assert url.startswith("https://oapi.dingtalk.com/robot/send?access_token=thetoken&")
    assert "sign=" in url
    assert "thesecret" not in url
    assert posted["msgtype"] == "markdown"
    assert "CRITICAL Run r" in posted["markdown"]["title"]
    assert LINK in posted["markdown"]["text"]
    assert not posted.get("at", {}).get("isAtAll")


@pytest.mark.parametrize(
    "url",
    ["wecombot://the-key", "https://qyapi.weixin.qq.com/cgi-bin/webhook/send?key=the-key"],
    ids=["apprise", "copied"],
)
def test_wecoms_group_bot_gets_text_of_at_most_2048_bytes(sent: Sent, url: str) -> None:
    long = dict.fromkeys(("description", "findings", "action"), "训练" * 3000)
    assert send(url, message_of(notification(body("训练" * 100, **long)))) == ""
    ((address, posted),) = sent
    assert address == "https://qyapi.weixin.qq.com/cgi-bin/webhook/send?key=the-key"
    text = posted["text"]["content"]
    assert 1000 < len(text.encode()) <= 2048
    assert "Console: http://127.0.0.1:9464/console/run?id=r" in text, "the links are what must not be cut off"


@pytest.mark.parametrize("url", ["wecombot://the-key", "feishu://the-bots-token", "dingtalk://thesecret@thetoken"])
@pytest.mark.parametrize(
    "run",
    ["训练" * 48, "训练" * 128, "a" * 150, "b" * 255],
    ids=["chinese", "very-long-chinese", "letters", "more-letters"],
)
def test_a_long_name_of_a_run_pushes_nothing_out_of_the_message(sent: Sent, url: str, run: str) -> None:
    run = f"7b-{run[6:]}-v2"
    summary = f"Run {run}: grad_norm is NaN or infinite"
    address = f"https://sentinel.corp.example.com/console/run?id={quote_plus(run)}"
    assert send(url, message_of(notification(body(run, summary=summary, console_url=address)))) == ""
    ((_, posted),) = sent
    text = json.dumps(posted, ensure_ascii=False)
    title, _, rest = text.partition("grad_norm is NaN or infinite")
    assert "CRITICAL Run 7b-" in title
    assert f"{run[-15:]}: " in title
    assert "Roll back." in rest
    assert address in rest or "https://sentinel.corp.example.com/console/" in rest
    assert address in rest or len(address) > 1200, "the run itself, unless its address is as long as the message"


@pytest.mark.parametrize(
    "url",
    [
        "feishu://the-bots-token", "lark://the-bots-token", "dingtalk://thesecret@thetoken", "wecombot://the-key",
        "https://hooks.slack.com/services/T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ",
        "discord://4174216298/JHMHI8qBe7bk2ZwO5U711o3dV_js",
    ],
    ids=lambda url: url.partition("://")[0],
)  # fmt: skip
def test_a_hostile_run_makes_no_link_no_tag_and_calls_nobody(sent: Sent, url: str) -> None:
    more = dict.fromkeys(("action", "description", "findings"), HOSTILE)
    assert send(url, message_of(notification(body(HOSTILE, **more)))) == ""
    posted = json.dumps([body for _, body in sent], ensure_ascii=False)
    assert "evil" in posted
    assert "http://evil" not in posted
    assert "](http:// evil" not in posted
    assert "<at" not in posted
    assert "@all" not in posted


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b'{"code": 19001, "msg": "param invalid: incoming webhook access token invalid"}', "code=19001"),
        (b"", "error=403"),
    ],
)
def test_why_a_service_refused_is_told_without_the_address(
    monkeypatch: pytest.MonkeyPatch, answer: bytes, why: str
) -> None:
    def refuse(_: object, request: requests.PreparedRequest, **__: object) -> requests.Response:
        response = requests.Response()
        response.status_code = 200 if answer else 403
        response._content = answer
        return response

    monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", refuse)
    told = send("feishu://the-bots-token", message_of(notification(body())))
    assert why in told
    assert "the-bots-token" not in told


def test_a_service_that_cannot_be_reached_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> requests.Response:
        raise requests.ConnectionError("the-bots-token could not be resolved")

    monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", fail)
    told = send("feishu://the-bots-token", message_of(notification(body())))
    assert told == "A Connection error occurred sending Feishu notification"


@pytest.mark.parametrize("scheme", sorted(SERVICES))
def test_apprise_knows_every_service_that_is_let_through(scheme: str) -> None:
    from apprise import Apprise
    from apprise.manager_plugins import NotificationManager

    Apprise.instantiate("json://localhost")
    assert scheme in NotificationManager().schemas()


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd", "syslog://", "dbus://", "gnome://", "windows://", "macosx://", "smpp://u:p@h/1/2",
        "apprise://localhost/token", "vapid://a@b.c/d", "fcm://p/t/?keyfile=/etc/passwd", "config://x", "",
        "no scheme at all", "https://example.org/hook", "http://example.org/hook",
        "json://localhost/?template=/etc/passwd", "mailto://u:p@example.org?pgp=sign&pgpprv=/etc/passwd",
        "discord://a/b?TEMPLATE=http://evil", "slack://a/b/c?+template=/x", "tgram://1:a/2?template=/x",
    ],
)  # fmt: skip
def test_what_is_no_service_or_would_read_a_file_or_page_is_refused(url: str, sent: Sent) -> None:
    with pytest.raises(WrongUrl):
        check_url(url)
    assert send(url, message_of(notification(body()))).startswith("its address ")
    assert not sent


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("feishu://s3cr3t token", "is not what apprise expects for Feishu (feishu://)"),
        ("dingtalk://s3cr3t-token", "is not what apprise expects for DingTalk (dingtalk://)"),
        ("https://open.feishu.cn/open-apis/bot/v2/hook/s3cr3t", "such as feishu://TOKEN"),
        ("s3cr3t", "has the scheme of no service"),
        ("s3cr3t://x", "starts with s3cr3t://, which is no service"),
    ],
)
def test_a_wrong_address_is_explained_without_its_secret(url: str, told: str) -> None:
    with pytest.raises(WrongUrl) as error:
        check_url(url)
    assert told in str(error.value)
    assert url.startswith("s3cr3t://") or "s3cr3t" not in str(error.value)


@pytest.mark.parametrize("most", [100, 500, 2000])
@pytest.mark.parametrize("make", [lambda m, n: m.text(n), lambda m, n: m.markdown(n)], ids=["text", "markdown"])
def test_a_body_fits_in_whatever_it_has_to(most: int, make: Callable[[Any, int], str]) -> None:
    message = message_of(notification(body("训练" * 20, findings="é" * 5000)))
    text = make(message, most)
    assert (
        0
        < len(text.encode())
        <= max(most - len(message.title(make(message, 10**6) == message.markdown(10**6)).encode()), 3)
    )
    links = re.findall(r"https?://[^\s)]+", text)
    assert all(link.endswith(("?id=r", "%28r%29", "%22%7D")) for link in links), "a link that is cut leads nowhere"
