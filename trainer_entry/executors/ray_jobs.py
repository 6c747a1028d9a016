"""Ray Jobs: the attempt as a job of a Ray cluster. Used by the shadow, and by whoever ends a job that it left.

The job's name is its submission id, and Ray takes an id only once. So a submission can be repeated after a lost answer,
and a name that was called off is used up by an empty job: one that is still on its way is refused when it arrives.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from trainer_entry.executors.configuration import RaySettings
from trainer_entry.executors.interface import CannotAsk, ExecutorError, Job, JobState, Phase, Refused
from trainer_entry.executors.ray_log import LogTail

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 60.0
_OK = 200
_NOT_FOUND = 404
_NO_AGENT = (502, 503, 504)

_STATES: dict[str, Phase] = {
    "PENDING": "pending",
    "RUNNING": "running",
    "STOPPED": "stopped",
    "SUCCEEDED": "succeeded",
    "FAILED": "failed",
}
_T = TypeVar("_T")


class _NoSuchJob(Refused):
    """404."""


class RayJobs:
    """See :class:`trainer_entry.executors.interface.Executor`. Opens no connection before it is asked something."""

    name = "ray"

    def __init__(self, given: RaySettings) -> None:
        self._given = given
        self._tail: LogTail | None = None
        self._client: Any = None
        self._token = ""
        self.poll_seconds = given.poll_seconds

    def submit(self, job: Job) -> str:
        """Submit under the job's name; the same name again is the same job."""
        entrypoint = shlex.join(job.argv)
        environment = dict(self._given.runtime_env)
        if "working_dir" not in environment:
            entrypoint = f"cd {shlex.quote(job.cwd)} && exec {entrypoint}"
        environment["env_vars"] = {**environment.get("env_vars", {}), **job.environ}

        def send(client: Any) -> str:
            return str(
                client.submit_job(
                    entrypoint=entrypoint,
                    submission_id=job.name,
                    runtime_env=environment,
                    metadata=dict(job.labels),
                    **self._given.options,
                )
            )

        try:
            return self._ask(send)
        except Refused as refused:
            if "already exists" in str(refused):
                return job.name
            raise

    def find(self, name: str) -> list[str]:
        """The name is the id."""
        return [name] if self.state(name).state != "unknown" else []

    def state(self, job_id: str) -> JobState:
        """As Ray says; a job whose actors are still ending counts as running."""
        details = self._ask_of(lambda client: client.get_job_info(job_id))
        if details is None:
            return JobState("unknown", detail="Ray knows no such job (any more)")
        phase = _STATES.get(str(getattr(details.status, "value", details.status)), "running")
        code = getattr(details, "driver_exit_code", None)
        state = JobState(phase, _shell_code(phase, code), _first_line(details.message))
        if state.alive:
            return state
        left = self._actors_left(getattr(details, "job_id", None))
        if left:
            return JobState("running", None, f"{left} of its actors are still there")
        return state

    def stop(self, job_id: str, *, force: bool = False) -> None:
        """Ray sends SIGTERM, and SIGKILL after three seconds of its own, so ``force`` has nothing to add."""
        self._ask_of(lambda client: client.stop_job(job_id))

    def log(self, job_id: str, offset: int) -> bytes:
        """From Ray's stream of the job's log, which is opened at the first call and again when it breaks."""
        if self._tail is None or self._tail.offset != offset:
            self.close()
            self._tail = LogTail(self._given.address, job_id, self._headers(), self._ssl(), offset)
        return self._tail.take()

    def log_ended(self, job_id: str) -> bool:
        """When Ray has closed the stream."""
        return self._tail is not None and self._tail.ended

    def call_off(self, name: str, directory: Path, *, submitted: bool) -> None:
        """Use the name up, so that a submission under way is refused."""
        if not submitted and self.state(name).state == "unknown":
            try:
                self._ask(lambda client: client.submit_job(entrypoint="true", submission_id=name))
            except Refused as refused:
                if "already exists" not in str(refused):
                    raise

    def close(self) -> None:
        """End the stream of the log."""
        if self._tail is not None:
            self._tail.close()
            self._tail = None

    def _actors_left(self, ray_job: str | None) -> int:
        """How many actors of the job do not count as dead yet; 0 where this Ray does not list actors (404).

        Raises CannotAsk for any other answer: a dashboard that is busy is no proof that no actor holds a GPU.
        """
        if not ray_job or not re.fullmatch(r"[0-9a-f]{1,64}", ray_job):
            return 0
        query = f"filter_keys=job_id&filter_predicates=%3D&filter_values={ray_job}&limit=10000&timeout=20&detail=0"
        answer = self._ask_of(lambda client: client._do_request("GET", f"/api/v0/actors?{query}"))
        if answer is None or answer.status_code == _NOT_FOUND:
            return 0  # an older Ray, or one that was told not to show this
        why = f"answered with status {answer.status_code}"
        if answer.status_code == _OK:
            try:
                actors = json.loads(answer.content)["data"]["result"]["result"]
                return sum(1 for actor in actors if actor["state"] != "DEAD")
            except (ValueError, KeyError, TypeError):
                why = "gave an answer that is not understood"
        said = answer.content.decode("utf-8", "replace").strip()[:200] or "nothing"
        raise CannotAsk(
            f"Whether actors of the job are left cannot be told: the Ray cluster at {self._given.address} {why}: {said}"
        )

    def _ask(self, question: Callable[[Any], _T]) -> _T:
        """Put a question to the cluster, and its failures into sentences."""
        try:
            return question(self._connected())
        except ExecutorError:
            raise
        except Exception as error:  # noqa: BLE001 - Ray, requests and urllib3 raise what they like
            raise self._explained(error) from None

    def _ask_of(self, question: Callable[[Any], _T]) -> _T | None:
        """The same for a question about one job; None where the cluster knows no such job."""
        try:
            return self._ask(question)
        except _NoSuchJob:
            return None

    def _explained(self, error: Exception) -> ExecutorError:
        address, kind, text = self._given.address, type(error).__name__, str(error)
        if kind == "AuthenticationError":
            return CannotAsk(self._token_sentence(text))
        if isinstance(error, (ConnectionError, TimeoutError)) or kind in (
            "ConnectionError", "ConnectTimeout", "ReadTimeout", "Timeout", "SSLError", "ChunkedEncodingError",
        ):  # fmt: skip
            return CannotAsk(
                f"No Ray cluster answers at {address} ({kind}); start it, or correct address in the settings."
            )
        if (status := re.search(r"status code (\d{3})", text)) is not None:
            if int(status[1]) == _NOT_FOUND:
                return _NoSuchJob(f"The Ray cluster at {address} knows no such job or page: {_last_line(text)}")
            if int(status[1]) in _NO_AGENT or "No available agent" in text or "agent" in _last_line(text).lower():
                return CannotAsk(
                    f"The Ray cluster at {address} answers, but its job agent does not; look at dashboard_agent.log on "
                    f"its head node. It says: {_last_line(text)}"
                )
            return Refused(f"The Ray cluster at {address} refused: {_last_line(text)}")
        if isinstance(error, (ValueError, TypeError, FileNotFoundError, KeyError)):
            return Refused(f"Ray cannot take the job as the settings describe it: {_last_line(text)}")
        return CannotAsk(f"Ray cannot be asked at {address}: {kind}: {_last_line(text)}")

    def _token_sentence(self, text: str) -> str:
        address, file = self._given.address, self._given.token_file
        if file:
            return f"The Ray cluster at {address} refuses the token in {file}; put the cluster's own token there."
        if "401" in text or "required" in text:
            return f"The Ray cluster at {address} asks for a token; name the file that holds it as token_file."
        return f"The Ray cluster at {address} refuses the token that Ray found here; name another as token_file."

    def _connected(self) -> Any:
        """A client with the token of now: a token file may be replaced at any time."""
        token = self._read_token()
        if self._client is None or token != self._token:
            # Ray prefers these to the address that it is given.
            for variable in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
                os.environ.pop(variable, None)
            self._client = _client_class()(
                self._given.address, headers=self._headers(), verify=self._given.ca_file or True
            )
            self._token = token
        return self._client

    def _headers(self) -> dict[str, str]:
        token = self._read_token()
        return {"Authorization": f"Bearer {token}"} if token else {}

    def _read_token(self) -> str:
        if not self._given.token_file:
            return ""
        try:
            token = Path(self._given.token_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is not text"
            raise CannotAsk(f"The token file {self._given.token_file} cannot be read: {why}.") from None
        if not token or not token.isascii() or not token.isprintable():
            raise CannotAsk(f"The token file {self._given.token_file} holds no token: one line of plain characters.")
        return token

    def _ssl(self) -> ssl.SSLContext | None:
        return ssl.create_default_context(cafile=self._given.ca_file) if self._given.ca_file else None


def _client_class() -> Any:
    """Ray's client, with limits on how long it waits: its own has none, and a cut network would hold it for ever."""
    try:
        from ray.job_submission import JobSubmissionClient
    except ImportError as error:
        raise ExecutorError(
            f"Ray's job client is not installed here ({error}); install it with: pip install 'ray[default]'"
        ) from None

    class Client(JobSubmissionClient):  # type: ignore[misc]
        def _do_request(self, method: str, endpoint: str, **more: Any) -> Any:
            return super()._do_request(method, endpoint, **{"timeout": (CONNECT_SECONDS, ANSWER_SECONDS), **more})

    return Client


def _shell_code(phase: Phase, code: int | None) -> int | None:
    if phase == "succeeded":
        return 0
    if phase == "failed" and code is not None:
        return code if code >= 0 else 128 - code
    return None


def _first_line(text: object) -> str:
    line = str(text or "").strip().split("\n", 1)[0].split(", last available logs", 1)[0]
    return line[:200]


def _last_line(text: str) -> str:
    """Ray answers with a traceback: what it says is at its end."""
    lines = [line.strip() for line in text.splitlines() if line.strip(" .^~")]
    return (lines[-1] if lines else "nothing")[:300]
