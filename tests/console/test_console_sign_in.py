"""The sign-in to the console: who gets in, what the cookie is good for, and when it ends."""

from __future__ import annotations

import os
import urllib.parse
from http.cookies import SimpleCookie
from pathlib import Path

import pytest
from console_fleet import Fleet
from console_visitor import TOKEN, Visitor, guarded_configuration
from exporter_process import ExporterProcess, running, wait_for

from exporter.console.sessions import IDLE_SECONDS, MOST_SESSIONS, Sessions
from exporter.console.signing_in import safe_next


def test_a_page_leads_to_the_sign_in_and_the_sign_in_to_the_page(guarded: ExporterProcess) -> None:
    visitor = Visitor(guarded.url)
    asked = visitor.get("/console/run?id=a%2Fb")
    assert asked.status == 303
    assert asked.location == "/console/login?next=%2Fconsole%2Frun%3Fid%3Da%252Fb"
    form = visitor.get(asked.location)
    assert form.status == 200
    assert 'name="next" value="/console/run?id=a%2Fb"' in form.text
    signed_in = visitor.sign_in(after="/console/run?id=a%2Fb")
    assert (signed_in.status, signed_in.location) == (303, "/console/run?id=a%2Fb")
    page = visitor.get(signed_in.location)
    assert (page.status, page.heading) == (200, "a/b")
    assert "Ada" in page.text


@pytest.mark.parametrize("token", ["", "mistyped", TOKEN[:-1], TOKEN + "x", "ключ"])
def test_a_wrong_token_is_told_and_opens_nothing(guarded: ExporterProcess, token: str) -> None:
    visitor = Visitor(guarded.url)
    answer = visitor.sign_in(token=token)
    assert answer.status == 401
    assert "not a token of scope operate" in answer.text
    assert token == "" or token not in answer.text
    assert visitor.get("/console/").status == 303


def test_a_token_of_another_scope_is_told_so(guarded: ExporterProcess) -> None:
    answer = Visitor(guarded.url).sign_in(token="push-token-of-the-test")
    assert answer.status == 403
    assert "good for something else" in answer.text


@pytest.mark.parametrize("who", ["", "   ", "a\x00b", "x" * 201])
def test_whoever_signs_in_has_a_name_that_can_stand_in_the_audit_log(guarded: ExporterProcess, who: str) -> None:
    visitor = Visitor(guarded.url)
    answer = visitor.sign_in(who=who)
    assert answer.status == 400
    assert "Say who you are" in answer.text
    assert visitor.get("/console/").status == 303


def test_guessing_is_slowed_down_and_a_right_token_is_let_in_all_the_same(tmp_path: Path) -> None:
    with running(tmp_path, "--config", str(guarded_configuration(tmp_path))) as exporter:
        visitor = Visitor(exporter.url)
        answers = [visitor.sign_in(token=f"guess-{number}") for number in range(35)]
        assert [answer.status for answer in answers].count(429) > 0
        assert {answer.status for answer in answers} == {401, 429}
        assert all(answer.headers["Retry-After"] for answer in answers if answer.status == 429)
        assert visitor.sign_in().status == 303


def test_the_cookie_is_good_for_the_console_alone_and_no_script_sees_it(guarded: ExporterProcess) -> None:
    visitor = Visitor(guarded.url)
    answer = visitor.sign_in()
    morsel = SimpleCookie(answer.headers["set-cookie"])["verl_console"]
    assert morsel["path"] == "/"
    assert morsel["httponly"]
    assert morsel["samesite"].lower() == "strict"
    assert not morsel["secure"]
    assert len(morsel.value) >= 40
    assert guarded.get("/api/v1/runs", Cookie=f"verl_console={morsel.value}").status == 401
    assert guarded.get("/api/v1/runs/a%2Fb", Cookie=f"verl_console={morsel.value}").status == 401


@pytest.mark.parametrize("path", ["/runbooks/", "/runbooks/VerlSurge.md", "/runbooks/NoSuch.md"])
def test_a_page_that_is_open_to_all_takes_nobodys_session_away(guarded: ExporterProcess, path: str) -> None:
    visitor = Visitor(guarded.url)
    visitor.sign_in()
    # By a link in a message: the browser keeps the strict cookie back, and takes whatever cookie is given.
    from_elsewhere = Visitor(guarded.url).get(path, Sec_Fetch_Site="cross-site")
    assert "set-cookie" not in from_elsewhere.headers
    # From the console: whoever is signed in is so there, too.
    assert "Sign out" in visitor.get(path).text
    assert visitor.get("/console/").status == 200


def test_signing_in_makes_a_new_cookie_so_that_a_planted_one_is_worth_nothing(guarded: ExporterProcess) -> None:
    victim = Visitor(guarded.url)
    victim.get("/console/login")
    planted = victim.cookies["verl_console"]
    assert victim.sign_in().status == 303
    assert victim.cookies["verl_console"] != planted
    assert Visitor(guarded.url, {"verl_console": planted}).get("/console/").status == 303


def test_behind_a_proxy_that_speaks_tls_the_cookie_is_secure_and_bound_to_its_path(tmp_path: Path) -> None:
    more = "links: {console: 'https://ops.example.org/verl'}\n"
    with running(tmp_path, "--config", str(guarded_configuration(tmp_path, more))) as exporter:
        visitor = Visitor(exporter.url)
        form = visitor.get("/console/login")
        fields = {"csrf": form.form_token, "who": "Ada", "token": TOKEN, "next": "/console/"}
        answer = visitor.post("/console/login", fields, Origin="https://ops.example.org")
        assert (answer.status, answer.location) == (303, "/verl/console/")
        morsel = SimpleCookie(answer.headers["set-cookie"])["verl_console"]
        assert morsel["secure"]
        assert morsel["path"] == "/verl/"
        page = visitor.get("/console/")
        assert page.status == 200
        assert all(link.startswith("/verl/") or link.startswith("#") for link in page.links())


@pytest.mark.parametrize(
    "elsewhere",
    [
        "https://evil.example/",
        "//evil.example/console/",
        "/\\evil.example",
        "/console/\\..\\evil",
        "/console//evil.example",
        "/console/..//evil.example",
        "javascript:alert(1)",
        "/metrics",
        "/console/\r\nSet-Cookie: a=b",
        "/console/" + "x" * 5000,
    ],
)
def test_the_sign_in_leads_nowhere_else(guarded: ExporterProcess, elsewhere: str) -> None:
    assert safe_next(elsewhere) == "/console/"
    visitor = Visitor(guarded.url)
    answer = visitor.sign_in(after=elsewhere)
    assert (answer.status, answer.location) == (303, "/console/")
    assert "set-cookie: a=b" not in str(answer.headers).lower()


def test_a_session_ends_when_its_token_is_taken_out_of_the_file(tmp_path: Path) -> None:
    with running(tmp_path, "--config", str(guarded_configuration(tmp_path))) as exporter:
        visitor, other = Visitor(exporter.url), Visitor(exporter.url)
        (tmp_path / "operate").write_text(f"{TOKEN}\nanother-token-of-the-test\n")
        wait_for(lambda: other.sign_in(token="another-token-of-the-test").status == 303, exporter)
        assert visitor.sign_in().status == 303
        (tmp_path / "new").write_text("another-token-of-the-test\n")
        (tmp_path / "new").chmod(0o600)
        os.replace(tmp_path / "new", tmp_path / "operate")
        wait_for(lambda: visitor.get("/console/").status == 303, exporter)
        assert other.get("/console/").status == 200


def test_signing_out_ends_the_session_on_the_server(guarded: ExporterProcess) -> None:
    visitor = Visitor(guarded.url)
    visitor.sign_in()
    kept = dict(visitor.cookies)
    page = visitor.get("/console/")
    answer = visitor.post("/console/logout", {"csrf": page.form_token})
    assert (answer.status, answer.location) == (303, "/console/login")
    assert visitor.get("/console/").status == 303
    assert Visitor(guarded.url, kept).get("/console/").status == 303


def test_without_tokens_there_is_no_sign_in_and_only_local_names_are_let_in(console: ExporterProcess) -> None:
    visitor = Visitor(console.url)
    assert visitor.get("/console/").status == 200
    assert visitor.get("/console/login").location == "/console/"
    refused = visitor.get("/console/", Host="rebound.example.org")
    assert refused.status == 403
    assert "only localhost may ask" in refused.text


def test_a_link_from_elsewhere_gets_past_the_cookie_that_the_browser_keeps_back(guarded: ExporterProcess) -> None:
    """The cookie is SameSite=Strict, so a click in a message comes without it; our own page asks again."""
    page = Visitor(guarded.url).get("/console/run?id=%22%3E<x", Sec_Fetch_Site="cross-site")
    assert page.status == 200
    assert '<meta http-equiv="refresh" content="0; url=/console/run?id=%22%3E&lt;x">' in page.text


@pytest.mark.parametrize("path", ["//console/run?id=x", "///console/?q=1"])
def test_a_path_with_slashes_too_many_leads_to_no_other_machine(guarded: ExporterProcess, path: str) -> None:
    """``//console/run`` in a link is the machine ``console``."""
    fresh = Visitor(guarded.url)
    arrival = fresh.get(path, Sec_Fetch_Site="cross-site")
    sign_in = fresh.get(path)
    fresh.sign_in()
    inside = fresh.get(path)
    for page in (arrival, sign_in, inside):
        assert '="//' not in page.text
        assert "url=//" not in page.text
        assert "//console" not in urllib.parse.unquote(page.headers.get("location", ""))


def test_a_script_is_told_that_nobody_is_signed_in(guarded: ExporterProcess) -> None:
    visitor = Visitor(guarded.url)
    for headers in ({"X_Console_Live": "1"}, {"Accept": "application/json"}):
        answer = visitor.get("/console/series?id=a%2Fb", **headers)
        assert answer.status == 401
        assert '"error":"session"' in answer.text


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_sessions_end_when_they_are_idle_and_are_bounded() -> None:
    clock = Clock()
    tokens = [b"one"]
    sessions = Sessions(lambda: tuple(tokens), monotonic=clock)
    used, idle = sessions.open(b"one", "Ada"), sessions.open(b"one", "Bo")
    clock.now += IDLE_SECONDS - 1
    assert sessions.find(used) is not None
    assert sessions.find(idle, used=False) is not None
    clock.now += 2
    assert sessions.find(idle) is None
    assert sessions.find(used) is not None
    for _ in range(MOST_SESSIONS):
        sessions.open(b"one", "Cy")
    assert len(sessions) == MOST_SESSIONS
    assert sessions.find(used) is None
    newest = sessions.open(b"one", "Di")
    tokens[:] = [b"two"]
    assert sessions.find(newest) is None


def test_a_form_token_is_good_for_one_browser_and_never_the_same_text() -> None:
    sessions = Sessions(lambda: ())
    one, again = sessions.form_token("a"), sessions.form_token("a")
    assert one != again
    assert sessions.is_form_token(one, "a")
    assert sessions.is_form_token(again, "a")
    for token, cookie in (
        (one, "b"),
        (one, ""),
        ("", "a"),
        (one[:-4], "a"),
        ("ü", "a"),
        (one + "A", "a"),
        ("A" * 86, "a"),
    ):
        assert not sessions.is_form_token(token, cookie)


def test_a_push_is_taken_beside_the_console(guarded: ExporterProcess) -> None:
    Fleet(guarded.url, "push-token-of-the-test").push("beside")
