"""Fuzzes a real exporter: schemathesis on its OpenAPI document, and bodies that are damaged on the way.

    python tests/http/fuzz.py --requests 10000 [--seed 1]

Prints what was sent and answered, and ends with 1 where something is wrong: an answer of 5xx (but 503 with Retry-After,
which says that the journal cannot be written), one that the document does not describe, a traceback in the log, or
memory that grows beyond the bound. ``tests/http/test_fuzz.py`` runs a short form.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis
import msgspec
import requests
import schemathesis
from backports import zstd
from hypothesis import HealthCheck, Phase, given
from schemathesis import GenerationMode
from schemathesis.core.failures import FailureGroup

sys.path.insert(0, str(Path(__file__).parents[1] / "exporter"))

from exporter_process import PUSH, ExporterProcess, running

DESCRIBED = [
    getattr(schemathesis.checks, name)
    for name in (
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_headers_conformance",
        "response_schema_conformance",
        "allow_header_conformance",
    )
]
RUNS = 40
"""Different runs that are pushed to, so that pushes are not all refused for want of room."""
PUSH_SHARE = 0.6
DAMAGED = 3
"""Times that each body is sent again, damaged: to make a new one takes far longer than to send it."""
GROWTH_BYTES = 200 * 1024 * 1024
"""Most that the exporter may grow by from the first tenth of the requests to the last. The runs and what is kept of
each are bounded, and a run that is full of odd things is larger than one of a trainer."""
OPEN_ENDED = 200
"""Most faults that are listed."""


@schemathesis.serializer("application/msgpack", "application/x-msgpack")
def _msgpack(_: schemathesis.SerializationContext, value: Any) -> bytes:
    try:
        return msgspec.msgpack.encode(value)
    except (OverflowError, UnicodeEncodeError):  # what msgpack cannot say
        return json.dumps(value).encode()


@dataclass
class Report:
    """What was sent, and what was wrong."""

    sent: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    """By operation and status."""
    wrong: list[str] = field(default_factory=list)
    rss_before: int = 0
    rss_after: int = 0
    seconds: float = 0.0

    @property
    def by_status(self) -> dict[str, int]:
        counts: Counter[str] = Counter()
        for key, count in self.answers.items():
            counts[key.rpartition(" ")[2]] += count
        return dict(sorted(counts.items()))


class Fuzzer:
    """Sends to one exporter. The same seed sends the same requests."""

    def __init__(self, exporter: ExporterProcess, count: int, seed: int) -> None:
        self.exporter = exporter
        self.count = count
        self.report = Report()
        self._random = random.Random(seed)
        self._seed = seed
        self._session = requests.Session()
        self._document = schemathesis.openapi.from_dict(exporter.get("/schema/openapi.json").json)
        self._warm_at = max(1, count // 10)

    def run(self) -> Report:
        began = time.monotonic()
        operations = [found.ok() for found in self._document.get_all_operations()]
        others = [it for it in operations if it.path != PUSH]
        for operation in operations:
            share = PUSH_SHARE if operation.path == PUSH else (1 - PUSH_SHARE) / len(others)
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                self._operation(operation, mode, self.count * share / 2)
        push = next(it for it in operations if it.path == PUSH)
        while self.report.sent < self.count:  # where nothing is asked for, nothing wrong can be said
            self._operation(push, GenerationMode.POSITIVE, self.count - self.report.sent)
            self._seed += 1
        self._finish()
        self.report.seconds = time.monotonic() - began
        return self.report

    def _operation(self, operation: Any, mode: GenerationMode, requests_: float) -> None:
        strategy = operation.as_strategy(generation_mode=mode)
        each_is = 1 + (DAMAGED if operation.body else 0)
        examples = max(3, round(requests_ / each_is))

        @hypothesis.seed(self._seed)
        @hypothesis.settings(
            max_examples=examples,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=strategy)
        def each(case: schemathesis.Case) -> None:
            self._send(case)

        try:
            each()
        except hypothesis.errors.Unsatisfiable:
            assert mode is GenerationMode.NEGATIVE  # nothing wrong can be said where nothing is asked for

    def _send(self, case: schemathesis.Case) -> None:
        if case.path == PUSH and isinstance(case.body, dict) and self._random.random() < 0.9:
            case.body = mended(case.body)
            self._among_few(case.body)
        request = requests.Request(**case.as_transport_kwargs(base_url=self.exporter.url))
        answer = self._exchange(case, self._session.prepare_request(request))
        if answer is not None:
            self._as_described(case, answer)
        for _ in range(DAMAGED):
            prepared = self._session.prepare_request(request)
            body = prepared.body.encode() if isinstance(prepared.body, str) else prepared.body
            if isinstance(body, bytes):
                self._change(prepared, body)
                self._exchange(case, prepared)

    def _exchange(self, case: schemathesis.Case, prepared: requests.PreparedRequest) -> requests.Response | None:
        name = f"{case.method.upper()} {case.path}"
        try:
            answer = self._session.send(prepared, timeout=60, allow_redirects=False)
        except requests.RequestException as error:
            self._wrong(f"{name}: no answer: {type(error).__name__}: {error}")
            return None
        self.report.sent += 1
        self.report.answers[f"{name} {answer.status_code}"] += 1
        self._judge(name, case, answer)
        if self.report.sent == self._warm_at:
            self.report.rss_before = resident_bytes(self.exporter.pid)
        return answer

    def _as_described(self, case: schemathesis.Case, answer: requests.Response) -> None:
        """What the document says of the answer's type and content is so."""
        try:
            case.validate_response(answer, checks=DESCRIBED)
        except FailureGroup as failures:
            for failure in failures.exceptions:
                self._wrong(f"{case.method.upper()} {case.path} answered {answer.status_code}: {failure}")

    def _among_few(self, body: dict[str, Any]) -> None:
        """Batches of a few runs and senders, in their sequence, so that most are new to the exporter."""
        if isinstance(body.get("run"), dict):
            body["run"]["run_id"] = f"run-{self._random.randrange(RUNS)}"
        if isinstance(body.get("sender"), dict):
            body["sender"]["id"] = f"sender-{self._random.randrange(3)}"
        if isinstance(body.get("seq"), int) and self._random.random() < 0.8:
            body["seq"] = self.report.sent + 1

    def _change(self, prepared: requests.PreparedRequest, body: bytes) -> None:
        """Compress the body, damage it, cut it off, or say that it is what it is not."""
        choose = self._random
        changes: list[Callable[[bytes], bytes]] = [
            gzip.compress,
            zstd.compress,
            lambda text: bytes(byte ^ (choose.random() < 0.02) << choose.randrange(8) for byte in text),
            lambda text: text[: choose.randrange(len(text) + 1)],
            lambda text: text + choose.randbytes(choose.randrange(1, 40)),
            lambda text: choose.randbytes(choose.randrange(200)),
            lambda text: text[: (at := choose.randrange(len(text) + 1))] + choose.randbytes(4) + text[at:],
        ]
        for change in choose.sample(changes, choose.randrange(1, 4)):
            body = change(body)
        prepared.headers.pop("Content-Length", None)
        prepared.body = body
        prepared.headers["Content-Length"] = str(len(body))
        if choose.random() < 0.6:
            prepared.headers["Content-Encoding"] = choose.choice(["gzip", "zstd", "identity", "br"])
        if choose.random() < 0.3:
            kinds = ["application/json", "application/msgpack", "application/x-msgpack", "text/plain", ""]
            prepared.headers["Content-Type"] = choose.choice(kinds)

    def _judge(self, name: str, case: schemathesis.Case, answer: requests.Response) -> None:
        status = answer.status_code
        if status >= 500 and not (status == 503 and "Retry-After" in answer.headers):
            self._wrong(f"{name} answered {status}: {answer.text[:300]}; body {case.body!r:.300}")
            return
        if status >= 400:
            try:
                error = json.loads(answer.content)
                told = error["error"] and error["reason"].endswith(".")
            except (ValueError, KeyError, AttributeError, TypeError):
                told = "application/msgpack" in answer.headers.get("Content-Type", "")
            if not told:
                self._wrong(f"{name} answered {status} with what is no error: {answer.content[:200]!r}")
        if str(status) not in case.operation.definition.raw["responses"] and status != 405:
            self._wrong(f"{name} answered {status}, which the document does not say: {answer.text[:200]}")

    def _finish(self) -> None:
        self.report.rss_after = resident_bytes(self.exporter.pid)
        growth = self.report.rss_after - self.report.rss_before
        if growth > GROWTH_BYTES:
            self._wrong(f"the exporter grew by {growth / 2**20:.0f} MiB")
        if self.exporter.get("/readyz").status != 200:
            self._wrong(f"it is not ready any more: {self.exporter.get('/readyz').body!r}")
        if "Traceback" in self.exporter.log:
            self._wrong(f"a traceback in the log:\n{self.exporter.log[-3000:]}")
        faults = {name: value for name, value in self.exporter.metrics().items() if "fault" in name and value}
        if faults:
            self._wrong(f"faults are counted: {faults}")

    def _wrong(self, what: str) -> None:
        if len(self.report.wrong) < OPEN_ENDED:
            self.report.wrong.append(what)


def mended(value: Any) -> Any:
    """What schemathesis takes for an integer or a printable name, as one."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, str):
        return "".join(character if character.isprintable() else "x" for character in value)
    if isinstance(value, list):
        return [mended(item) for item in value]
    if isinstance(value, dict):
        return {mended(key): mended(item) for key, item in value.items()}
    return value


def resident_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


def fuzz(folder: Path, count: int, seed: int) -> Report:
    """Start an exporter in ``folder``, send ``count`` requests or a few more, and say what was wrong."""
    config = folder / "config.yml"
    config.write_text(f"limits: {{runs: {2 * RUNS}, requests_per_second: 100000}}\n")
    with running(folder, "--config", str(config)) as exporter:
        return Fuzzer(exporter, count, seed).run()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    given_ = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = fuzz(Path(folder), given_.requests, given_.seed)
    print(f"{report.sent} requests in {report.seconds:.0f} s, answered {report.by_status}")
    print(f"resident memory {report.rss_before / 2**20:.0f} MiB, at the end {report.rss_after / 2**20:.0f} MiB")
    for what in report.wrong:
        print(f"WRONG: {what}")
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
