"""Every page of the console, as a browser without scripts gets it: what it shows, how it is escaped, its headers."""

from __future__ import annotations

import re
import urllib.parse
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest
from console_fleet import HOSTILE, Fleet
from console_visitor import Page, Visitor
from exporter_process import ExporterProcess, running, wait_for

from exporter.service.journal import FILE_NAME

RUN = "grpo-qwen2.5-7b/seed-1"
BAD = "grpo-qwen2.5-7b/seed-2"


def run_path(run_id: str) -> str:
    return f"/console/run?id={urllib.parse.quote(run_id, safe='')}"


PAGES = {
    "runs": "/console/",
    "run": run_path(RUN),
    "hostile run": run_path(HOSTILE),
    "no run": run_path("nobody"),
    "recoveries": "/console/recoveries",
    "audit": "/console/audit",
    "runbooks": "/runbooks/",
    "runbook": "/runbooks/VerlNonFinite.md",
    "nothing": "/console/nothing",
}


class Markup(HTMLParser):
    """Collects what the Content-Security-Policy would forbid, ids, headings, labels."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.inline: list[str] = []
        self.ids: list[str] = []
        self.levels: list[int] = []
        self.landmarks: set[str] = set()
        self.language = ""
        self._script = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.inline += [f"{tag} {name}" for name in given if name == "style" or name.startswith("on")]
        if tag == "style" or (tag == "script" and not given.get("src")):
            self.inline.append(tag)
        if "id" in given:
            self.ids.append(str(given["id"]))
        if re.fullmatch(r"h[1-6]", tag):
            self.levels.append(int(tag[1]))
        if tag in ("header", "main", "footer", "nav"):
            self.landmarks.add(tag)
        if tag == "html":
            self.language = str(given.get("lang"))


@pytest.fixture(scope="module")
def visitor(console: ExporterProcess) -> Visitor:
    return Visitor(console.url)


@pytest.mark.parametrize("path", PAGES.values(), ids=PAGES.keys())
def test_every_page_is_closed_to_what_is_not_its_own(visitor: Visitor, path: str) -> None:
    page = visitor.get(path)
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert page.headers["x-frame-options"] == "DENY"
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["referrer-policy"] == "same-origin"
    assert page.headers["cache-control"] == "no-store"
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert Markup(page.text).inline == []


@pytest.mark.parametrize("path", PAGES.values(), ids=PAGES.keys())
def test_every_page_can_be_found_through_by_ear(visitor: Visitor, path: str) -> None:
    markup = Markup(visitor.get(path).text)
    assert markup.landmarks >= {"header", "main", "footer", "nav"}
    assert markup.levels.count(1) == 1
    assert all(after - before <= 1 for before, after in zip(markup.levels, markup.levels[1:], strict=False))
    assert len(markup.ids) == len(set(markup.ids))
    assert markup.language == "en"


def test_a_hostile_run_id_is_text_everywhere_and_its_links_work(visitor: Visitor) -> None:
    listed = visitor.get("/console/")
    assert "<script>alert" not in listed.text
    assert "<b>code</b>" not in listed.text
    link = next(link for link in listed.links() if "script" in link and "/console/run?" in link)
    page = visitor.get(link)
    assert (page.status, page.heading) == (200, HOSTILE)
    assert "<script>alert" not in page.text
    for path in ("/console/series", "/console/steps"):
        answer = visitor.get(f"{path}?id={urllib.parse.quote(HOSTILE, safe='')}")
        assert answer.status == 200
    searched = visitor.get(f"/console/?q={urllib.parse.quote(HOSTILE)}")
    assert "<script>alert" not in searched.text
    assert "Runs" in searched.heading
    assert unescape(re.findall(r'name="q"[^>]* value="([^"]*)"', searched.text)[0]) == HOSTILE


@pytest.mark.parametrize("query", ["?page=999999999999", "?page=-1", "?sort=nothing", "?state=%00", "?project=%FF&q=%"])
def test_a_list_takes_any_address(visitor: Visitor, query: str) -> None:
    assert visitor.get(f"/console/{query}").status == 200


def test_the_list_says_what_each_run_needs(visitor: Visitor, console: ExporterProcess) -> None:
    def listed() -> Page | None:
        page = visitor.get("/console/?sort=run")
        # Both come with the next look at the runs, a second after what was pushed.
        return page if "state-failed" in page.text and "CUDA out of memory" in page.text else None

    page = wait_for(listed, console)
    rows = {unescape(re.findall(r'class="id" href="[^"]*">([^<]*)<', row)[0]): row for row in rows_of(page)}
    assert "Finished" in rows["sft-warmup"]
    assert "Failed" in rows["grpo-qwen2.5-32b-oom"]
    assert "Starting" in rows["just-started"]
    assert "CUDA out of memory" in rows["grpo-qwen2.5-32b-oom"]
    assert "Critical" in rows[BAD]
    assert re.search(r"260.*/ 400", rows[RUN], re.DOTALL)
    assert "attempt 2" in rows["dapo-14b-restarted"]
    assert "/console/incident?id=" in rows[BAD]


def rows_of(page: Page) -> list[str]:
    return re.findall(r"<tr role=\"row\".*?</tr>", page.text.partition("<tbody")[2], re.DOTALL)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("q=SEED-2", {BAD}),
        ("state=finished", {"sft-warmup"}),
        ("project=%3Cb%3Ecode%3C%2Fb%3E", {HOSTILE}),
        ("q=qwen&state=failed", {"grpo-qwen2.5-32b-oom"}),
        ("q=nothing+like+it", set()),
    ],
)
def test_the_list_is_filtered_by_text_project_and_state(visitor: Visitor, query: str, expected: set[str]) -> None:
    page = visitor.get(f"/console/?{query}")
    found = {unescape(name) for name in re.findall(r'class="id" href="[^"]*">([^<]*)<', page.text)}
    assert found == expected


def test_the_list_is_sorted_and_what_is_not_known_comes_last(visitor: Visitor) -> None:
    def names(query: str) -> list[str]:
        page = visitor.get(f"/console/?{query}")
        return [unescape(name) for name in re.findall(r'class="id" href="[^"]*">([^<]*)<', page.text)]

    by_step, downward = names("sort=step"), names("sort=step&dir=desc")
    assert by_step[-1] == downward[-1] == "just-started"
    assert by_step[:-1] == downward[:-1][::-1]
    assert by_step[0] == HOSTILE


def test_a_run_says_what_is_wrong_and_what_to_try(visitor: Visitor) -> None:
    page = visitor.get(run_path(BAD))
    assert "What to try first" in page.text
    assert re.search(r"optim\.lr", page.text)
    assert "/console/incident?id=" in page.text
    good = visitor.get(run_path(RUN))
    assert "no space left on device" in good.text
    assert "GPU" in good.text
    assert "NVIDIA H100" in good.text
    assert "actor_rollout_ref.actor.optim.lr" in good.text
    assert "KL to the reference" in good.text


def test_the_steps_of_a_run_can_be_had_as_a_file(visitor: Visitor) -> None:
    page = visitor.get(f"/console/steps?id={urllib.parse.quote(RUN, safe='')}&format=csv")
    assert page.status == 200
    assert page.headers["content-disposition"] == 'attachment; filename="steps.csv"'
    assert len(page.text.splitlines()) == 261
    assert visitor.get(f"/console/steps?id={urllib.parse.quote(RUN, safe='')}&format=exe").status == 400


def test_grafana_is_linked_where_there_is_one(tmp_path: Path, visitor: Visitor) -> None:
    assert "Grafana" not in visitor.get(run_path(RUN)).text
    file = tmp_path / "exporter.yml"
    file.write_text("links: {grafana: 'https://grafana.example.org/x/'}\n")
    with running(tmp_path, "--config", str(file)) as exporter:
        Fleet(exporter.url).push("a/b?c")
        page = Visitor(exporter.url).get(run_path("a/b?c"))
        assert "https://grafana.example.org/x/d/verl-run?var-run=a%2Fb%3Fc" in page.links()


def test_runbooks_need_no_sign_in_and_link_to_each_other(guarded: ExporterProcess) -> None:
    visitor = Visitor(guarded.url)
    listed = visitor.get("/runbooks/")
    assert listed.status == 200
    assert "Sign out" not in listed.text
    page = visitor.get("/runbooks/VerlNonFinite.md")
    assert page.heading == "VerlNonFinite"
    assert "<h2>What it means</h2>" in page.text
    assert visitor.get("/runbooks/VerlNonFinite").status == 200
    for name in ("Nothing.md", "..%2Fprometheus%2Fx.md", "%2e%2e%2f%2e%2e%2fREADME.md"):
        assert visitor.get(f"/runbooks/{name}").status == 404


def test_every_link_of_the_list_of_runbooks_leads_to_one(visitor: Visitor) -> None:
    links = [link for link in visitor.get("/runbooks/").links() if link.endswith(".md")]
    assert len(links) > 20
    for link in links:
        assert visitor.get(link).status == 200


@pytest.mark.parametrize(
    ("path", "accept", "expected"),
    [
        ("/console/run?id=nobody", "text/html", "text/html; charset=utf-8"),
        ("/console/run?id=nobody", "application/json", "application/json"),
        ("/console/nothing", "*/*", "application/json"),
        ("/console/nothing", "text/html", "text/html; charset=utf-8"),
    ],
)
def test_an_error_is_a_page_for_a_browser_and_data_for_everything_else(
    visitor: Visitor, path: str, accept: str, expected: str
) -> None:
    answer = visitor.get(path, Accept=accept)
    assert answer.status == 404
    assert answer.headers["content-type"] == expected
    assert "nobody" in answer.text or "nothing" in answer.text


def test_while_the_journal_cannot_be_read_the_page_says_so(tmp_path: Path) -> None:
    (tmp_path / "data" / FILE_NAME).mkdir(parents=True)
    exporter = ExporterProcess(tmp_path, ("--data-dir", str(tmp_path / "data")))
    try:
        exporter.start(until_ready=False)
        page = wait_for(lambda: Visitor(exporter.url).get("/console/"), exporter)
        assert page.status == 503
        assert int(page.headers["retry-after"]) > 0
        assert page.heading == "Not ready yet"
        assert "Try again" in page.text
        assert Visitor(exporter.url).get("/runbooks/").status == 200
    finally:
        exporter.kill()


def test_files_have_an_address_for_each_content_and_are_kept_for_ever(visitor: Visitor) -> None:
    page = visitor.get("/console/")
    files = re.findall(r'(?:href|src)="(/console/static/[^"]+)"', page.text)
    assert {file.rpartition(".")[2] for file in files} == {"css", "js", "svg"}
    for file in files:
        answer = visitor.get(file)
        assert answer.status == 200
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    folder = files[0].rpartition("/")[0]
    for name in ("nothing.js", "..%2Fpages.py", "uPlot.LICENSE", "%2Fetc%2Fpasswd"):
        assert visitor.get(f"{folder}/{name}").status == 404
    assert visitor.get("/console/static/0000000000000000/console.css").status == 404


def test_a_thousand_runs_are_listed_by_the_hundred(tmp_path: Path) -> None:
    with running(tmp_path) as exporter:
        fleet = Fleet(exporter.url)
        for number in range(1000):
            metrics = {"critic/score/mean": number / 1000, "timing_s/step": 30.0}
            fleet.push(f"run-{number:04d}", steps=[{"step": number, "metrics": metrics}])
        visitor = Visitor(exporter.url)
        first = visitor.get("/console/?sort=run")
        assert "1,000" in first.text or "1000 runs" in first.text
        assert len(rows_of(first)) == 100
        last = visitor.get("/console/?sort=run&page=10")
        assert "run-0999" in last.text
        assert "Page 10 of 10" in last.text
        assert 'rel="next"' not in last.text
        best = visitor.get("/console/?sort=reward&dir=desc")
        assert "run-0999" in rows_of(best)[0]
        assert len(rows_of(visitor.get("/console/?q=run-012"))) == 10


def test_a_page_is_compressed_where_the_browser_takes_it(console: ExporterProcess) -> None:
    plain = console.get("/console/", Accept="text/html")
    packed = console.get("/console/", Accept="text/html", **{"Accept-Encoding": "gzip"})
    assert plain.headers["content-encoding"] is None
    assert packed.headers["content-encoding"] == "gzip"
    assert len(packed.body) < len(plain.body) / 2
