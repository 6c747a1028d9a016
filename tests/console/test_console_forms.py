"""What changes something is only taken from a form of this console: by POST, with its token, from its own origin."""

from __future__ import annotations

import pytest
from console_visitor import Visitor
from exporter_process import ExporterProcess


@pytest.fixture
def visitor(guarded: ExporterProcess) -> Visitor:
    signed_in = Visitor(guarded.url)
    assert signed_in.sign_in().status == 303
    return signed_in


def still_signed_in(visitor: Visitor) -> bool:
    return visitor.get("/console/").status == 200


@pytest.mark.parametrize("token", ["", "x", "A" * 86])
def test_a_form_without_its_token_changes_nothing(visitor: Visitor, token: str) -> None:
    answer = visitor.post("/console/logout", {"csrf": token} if token else {})
    assert answer.status == 403
    assert "out of date" in answer.text
    assert still_signed_in(visitor)


def test_the_token_of_another_browser_changes_nothing(visitor: Visitor, guarded: ExporterProcess) -> None:
    stranger = Visitor(guarded.url)
    stranger.sign_in()
    token = stranger.get("/console/").form_token
    assert visitor.post("/console/logout", {"csrf": token}).status == 403
    assert still_signed_in(visitor)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "null"},
        {"Origin": "http://[broken"},
        {"Origin": "", "Sec_Fetch_Site": "cross-site"},
        {"Origin": "", "Sec_Fetch_Site": "same-site"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Origin": ""},
    ],
)
def test_a_form_from_elsewhere_changes_nothing_though_cookie_and_token_are_right(
    visitor: Visitor, headers: dict[str, str]
) -> None:
    token = visitor.get("/console/").form_token
    answer = visitor.post("/console/logout", {"csrf": token}, **headers)
    assert answer.status == 403
    assert "not sent by a page of this console" in answer.text
    assert still_signed_in(visitor)


def test_a_form_of_this_console_is_taken_with_either_header(visitor: Visitor) -> None:
    token = visitor.get("/console/").form_token
    answer = visitor.post("/console/logout", {"csrf": token}, Origin="", Sec_Fetch_Site="same-origin")
    assert answer.status == 303
    assert not still_signed_in(visitor)


def test_nothing_is_changed_by_get(visitor: Visitor) -> None:
    answer = visitor.get("/console/logout")
    assert answer.status == 405
    assert "only takes what a form of the console sends" in answer.text
    assert still_signed_in(visitor)


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        ("application/json", '{"csrf": "x"}', 415),
        ("multipart/form-data", "x", 415),
        ("application/x-www-form-urlencoded", "csrf=%ff", 400),
        ("application/x-www-form-urlencoded", "&".join(f"a{n}=b" for n in range(200)), 400),
        ("application/x-www-form-urlencoded", "a=" + "b" * 100_000, 413),
        ("application/x-www-form-urlencoded", "ü", 400),
    ],
)
def test_what_is_no_form_is_refused(visitor: Visitor, kind: str, body: str, status: int) -> None:
    answer = visitor.ask("POST", "/console/logout", body, {"Content-Type": kind, "Origin": visitor.url})
    assert answer.status == status
    assert still_signed_in(visitor)


def test_whoever_is_not_signed_in_any_more_is_told_that_nothing_was_done(guarded: ExporterProcess) -> None:
    visitor = Visitor(guarded.url)
    page = visitor.get("/console/login")
    answer = visitor.post("/console/incident/acknowledge", {"csrf": page.form_token, "id": "x", "who": "Ada"})
    assert answer.status == 401
    assert "Nothing was done" in answer.text


def test_a_form_that_is_too_large_is_told_so_in_words_of_forms(visitor: Visitor) -> None:
    fields = {"csrf": "x", "reason": "long " * 20_000}
    page = visitor.post("/console/login", fields)
    assert page.status == 413
    assert "write less" in page.text
    assert "steps" not in page.text
