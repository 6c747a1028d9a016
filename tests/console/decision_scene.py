"""A running exporter with a run that broke, its supervisor played by the test, and a person with a browser's ways."""

from __future__ import annotations

import html
import http.cookiejar
import math
import re
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "exporter"))

from exporter_process import ExporterProcess, running, wait_for
from exporter_scene import batch

from exporter.protocol import (
    AttemptExited,
    AttemptStarted,
    CheckpointSaved,
    CommandProgress,
    PushAnswer,
    RunStarted,
    Step,
    encode,
)

CONFIG = """
tokens:
  operate:
    - value: ope
  push:
    - value: pu
recovery:
  mode: {mode}
  trigger: direct
  cooldown_seconds: 1
links: {{grafana: "http://grafana.example:3000/g"}}
"""
RUN = "ppo/7b <script>alert(1)</script> 跑"
SETTINGS = {
    "trainer.resume_mode": "auto",
    "trainer.resume_from_path": None,
    "actor_rollout_ref.actor.optim.lr": 1e-6,
    "trainer.total_training_steps": 200,
}


@contextmanager
def watching(folder: Path, mode: str, *, config: str = CONFIG) -> Iterator[ExporterProcess]:
    """An exporter with tokens, in that mode."""
    (folder / "exporter.yml").write_text(config.format(mode=mode))
    with running(folder, "--config", str(folder / "exporter.yml")) as exporter:
        yield exporter


def broken(exporter: ExporterProcess, run: str = RUN) -> BrokenRun:
    """A run that has just failed, and the recovery that came of it."""
    made = BrokenRun(exporter, run)
    made.start()
    made.break_down()
    made.recovery()
    return made


@dataclass
class Page:
    """One answer, and what a person finds on it."""

    status: int
    url: str
    text: str
    headers: Any

    @property
    def token(self) -> str:
        found = re.search(r'name="csrf" value="([^"]+)"', self.text)
        assert found is not None, self.text
        return found[1]

    def form(self) -> dict[str, str]:
        """The hidden fields of the page's own form, that with an id."""
        part = self.text[self.text.index(' id="decision"') :] if ' id="decision"' in self.text else self.text
        part = part.partition("</form>")[0]
        fields = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', part)
        return {name: html.unescape(value) for name, value in fields}

    def stage(self) -> str:
        found = re.search(r'id="stage".*?data-stage="([a-z_]+)"', self.text, re.S)
        assert found is not None, self.text
        return found[1]

    def has(self, text: str) -> bool:
        return text in html.unescape(self.text)


class Person:
    """A browser without scripts: cookies, redirects, the headers that browsers send with a form."""

    def __init__(self, url: str, who: str = "", token: str = "ope") -> None:
        self.url, self.who = url, who
        handlers = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), handlers)
        if who:
            page = self.get("/console/login")
            self.post("/console/login", {"who": who, "token": token, "csrf": page.token, "next": ""})

    def get(self, path: str, **query: str) -> Page:
        return self._ask(self.url + path + ("?" + urllib.parse.urlencode(query) if query else ""), None, {})

    def post(self, path: str, form: dict[str, str], **headers: str) -> Page:
        given = {
            "Origin": self.url,
            "Sec-Fetch-Site": "same-origin",
            **{k.replace("_", "-"): v for k, v in headers.items()},
        }
        given = {name: value for name, value in given.items() if value}
        return self._ask(self.url + path, urllib.parse.urlencode(form).encode(), given)

    def _ask(self, url: str, body: bytes | None, headers: dict[str, str]) -> Page:
        request = urllib.request.Request(url, data=body, headers={"Accept": "text/html", **headers})
        try:
            with self._opener.open(request, timeout=60) as answer:
                return Page(answer.status, answer.url, answer.read().decode(), answer.headers)
        except urllib.error.HTTPError as error:
            return Page(error.code, error.url or url, error.read().decode(), error.headers)

    def question(self, recovery: str, decision: str) -> Page:
        """The page that says what will happen."""
        return self.get("/console/recovery/decide", id=recovery, do=decision)

    def decide(self, recovery: str, decision: str, **changed: str) -> Page:
        """Ask, and confirm."""
        return self.post("/console/recovery/decide", {**self.question(recovery, decision).form(), **changed})


@dataclass
class BrokenRun:
    """A run whose KL and gradient run away at step 31 of 36, with checkpoints at 10, 20 and 30 and a supervisor."""

    exporter: ExporterProcess
    run: str = RUN
    attempt: int = 1
    _seq: dict[str, int] = field(default_factory=dict)

    def push(self, sender: str = "trainer-1", *, attempt: int = 0, **fields: Any) -> PushAnswer:
        seq = self._seq[sender] = self._seq.get(sender, 0) + 1
        body = encode(batch(run=self.run, attempt=attempt or self.attempt, sender=sender, seq=seq, **fields))
        answer = self.exporter.post("/api/v1/push", body, Authorization="Bearer pu")
        assert answer.status == 200, answer.body
        return msgspec.msgpack.decode(answer.body, type=PushAnswer)

    def supervisor(self, *events: Any, attempt: int = 0) -> PushAnswer:
        return self.push("sup", role="supervisor", events=list(events), attempt=attempt)

    def train(
        self, first: int, last: int, *, broken_at: int = 10_000, sender: str = "trainer-1", attempt: int = 0
    ) -> None:
        steps = []
        for step in range(first, last + 1):
            wave = math.sin(step * 1.7)
            bad = step >= broken_at
            metrics: dict[str, Any] = {
                "actor/grad_norm": 0.9 + 0.1 * wave if not bad else "Infinity",
                "actor/loss": 0.2 + 0.01 * wave if not bad else "NaN",
                "actor/kl_loss": 0.01 + 0.002 * wave + (2.0 * (step - broken_at + 1) if bad else 0.0),
                "critic/rewards/mean": 0.4 + 0.003 * step + 0.02 * wave - (0.3 if bad else 0.0),
                "timing_s/step": 1.5 + 0.1 * wave,
            }
            steps.append(Step(step=step, metrics=metrics))
        self.push(sender, attempt=attempt, steps=steps)

    def start(self) -> None:
        self.supervisor(AttemptStarted(time=0.0, pid=1, resume_step=0))
        self.push(events=[RunStarted(time=0.0, config=SETTINGS)])
        for first in (1, 11, 21):
            self.train(first, first + 9)
            path = f"/ckpt/{first}/global_step_{first + 9}"
            self.push(events=[CheckpointSaved(time=0.0, step=first + 9, path=path, verified=True)])

    def break_down(self) -> None:
        self.train(31, 36, broken_at=32)

    def report(
        self, command: str, state: str, *, running: bool | None = None, attempt: int = 0, **more: Any
    ) -> PushAnswer:
        progress = CommandProgress(time=0.0, command_id=command, state=state, running=running, **more)  # type: ignore[arg-type]
        return self.supervisor(progress, attempt=attempt)

    def carry_to(self, command: str, stage: str) -> None:
        """Play the supervisor up to that stage."""
        order = ["commanded", "stopping", "starting", "verifying"]
        wanted = order.index(stage)
        assert self.supervisor().command is not None
        self.report(command, "accepted", running=True)
        if wanted >= 1:
            self.report(command, "stopping", running=True)
        if wanted >= 2:
            self.supervisor(AttemptExited(time=0.0, exit_code=None, signal=15, expected=True))
            self.report(command, "stopped", running=False)
            self.report(command, "starting", running=False, target_step=20, target_path="/ckpt/11/global_step_20")
        if wanted >= 3:
            self.attempt = 2
            started = AttemptStarted(time=0.0, pid=2, resume_step=20, command_id=command)
            self.supervisor(started)
            self.report(command, "started", running=True)
            self.report(command, "succeeded", running=True)

    def recovery(self) -> str:
        """The id of the newest recovery of this run, as soon as there is one."""

        def newest() -> str:
            found = self.api("/api/v1/recoveries")["recoveries"]
            return next((it["id"] for it in found if it["run_id"] == self.run), "")

        return str(wait_for(newest, self.exporter))

    def incident(self) -> str:
        """The id of the worst open incident."""
        found = [it for it in self.api("/api/v1/incidents")["incidents"] if it["run_id"] == self.run]
        return str(max(found, key=lambda it: (it["severity"] == "critical", it["confidence"]))["id"])

    def api(self, path: str) -> Any:
        return self.exporter.get(path, Authorization="Bearer ope").json

    def audit(self) -> list[Any]:
        return [line for line in self.api("/api/v1/audit?limit=1000")["audit"] if line["run_id"] == self.run]
