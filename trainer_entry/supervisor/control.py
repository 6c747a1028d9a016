"""``control.sock``: how an operator and the rollback script reach the supervisor. One JSON line a request.

The answer is JSON lines: progress, and last one with ``final``. The socket is in a private directory, and a caller of
another user is refused. Requests are put into the supervisor's inbox; this module decides nothing.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Literal

import msgspec

from exporter.protocol import Changes, Rung
from trainer_entry.supervisor import exitcodes
from trainer_entry.supervisor.state import StateDir, StateError

MAX_LINE_BYTES = 256 * 1024
_READ_SECONDS = 10.0
_MAX_CONNECTIONS = 16
_CLOSE_SECONDS = 2.0
_AGAIN_SECONDS = 0.5


class ControlRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is asked. ``instance`` is set by the script that a supervisor itself runs: another one refuses it.

    ``for_rollback`` makes a stop one that a resume follows: quick, without a last save, and the supervisor stays.
    ``depth`` is how far a resume target is verified again. ``save_first`` makes it one that wants a last save.
    ``target`` of a stop is what the resume will start from: it is kept from being deleted meanwhile. ``changes`` add to
    what is in force, or are all there is with ``forget_changes``. ``rung`` chooses the script of a rollback.
    """

    op: Literal["status", "stop", "resume", "rollback"]
    request_id: str = ""
    target_step: int | None = None
    not_after_step: int | None = None
    target: str = ""
    reason: str = ""
    for_rollback: bool = False
    save_first: bool = False
    rung: Rung = "checkpoint"
    changes: Changes = Changes()
    forget_changes: bool = False
    depth: Literal["sizes", "content"] = "content"
    instance: str = ""


class ControlAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the answer. ``code`` is the exit code that the command line gives back."""

    detail: str
    state: str = ""
    final: bool = False
    code: int = 0
    status: dict[str, object] | None = None


class Conversation:
    """One request and the way back to whoever asked. ``answer`` never blocks and never raises."""

    def __init__(self, request: ControlRequest) -> None:
        self.request = request
        self._lines: queue.SimpleQueue[ControlAnswer] = queue.SimpleQueue()
        self.closed = False

    def answer(self, line: ControlAnswer) -> None:
        """Send a line; after a final one nothing more is sent."""
        if not self.closed:
            self.closed = line.final
            self._lines.put(line)

    def lines(self) -> Iterator[ControlAnswer]:
        """What was answered, up to the final line; for the connection's thread."""
        while True:
            line = self._lines.get()
            yield line
            if line.final:
                return


class ControlServer:
    """Listens until closed; each connection has a short-lived thread."""

    def __init__(self, state: StateDir, take: Callable[[Conversation], None]) -> None:
        self._state = state
        self._take = take
        self._closed = threading.Event()
        self._slots = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        self._lock = threading.Lock()
        self._open: dict[threading.Thread, Conversation | None] = {}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with contextlib.suppress(FileNotFoundError):
                state.socket_path.unlink()  # we hold the lock, so a socket that lies here is of a dead supervisor
            with _short_path(state) as path:
                self._socket.bind(path)
            os.chmod(state.socket_path, 0o600)
            self._socket.listen(8)
        except OSError as error:
            self._socket.close()
            raise StateError(f"The control socket {state.socket_path} cannot be made: {error.strerror}.") from error
        threading.Thread(target=self._accept, name="verl-sentinel-control", daemon=True).start()

    def close(self) -> None:
        """Stop listening and remove the socket. Whoever still waits is answered; that may take two seconds."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with self._lock:
            open_now = dict(self._open)
        for conversation in open_now.values():
            if conversation is not None:
                conversation.answer(ControlAnswer(detail="The supervisor ended.", final=True, code=exitcodes.REFUSED))
        deadline = time.monotonic() + _CLOSE_SECONDS
        for thread, conversation in open_now.items():
            if conversation is not None:  # one that has not sent its request yet is not waited for
                thread.join(max(0.0, deadline - time.monotonic()))
        with contextlib.suppress(FileNotFoundError):
            self._state.socket_path.unlink()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError:  # closed; or no descriptor is left for now, and the next one who asks must be heard again
                self._closed.wait(_AGAIN_SECONDS)
                continue
            if not self._slots.acquire(blocking=False):
                connection.close()
                continue
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            with self._lock:
                self._open[thread] = None
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, contextlib.suppress(OSError):
                connection.settimeout(_READ_SECONDS)
                credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
                if struct.unpack("3i", credentials)[1] not in (os.getuid(), 0):
                    return
                try:
                    asked = _read_line(connection)
                    if b"\\u0000" in asked:
                        raise ValueError("it holds a NUL character")
                    request = msgspec.json.decode(asked, type=ControlRequest)
                except (msgspec.DecodeError, ValueError, RecursionError) as error:
                    _write(connection, ControlAnswer(detail=f"The request is malformed: {error}", final=True, code=2))
                    return
                conversation = Conversation(request)
                with self._lock:
                    self._open[threading.current_thread()] = conversation
                self._take(conversation)
                for line in conversation.lines():
                    _write(connection, line)
        finally:
            with self._lock:
                del self._open[threading.current_thread()]
            self._slots.release()


class NoSupervisor(StateError):
    """Nobody listens on the control socket."""


def ask(state: StateDir, request: ControlRequest) -> Iterator[ControlAnswer]:
    """Send a request and yield the answers, the last of which is final. Raises NoSupervisor, StateError.

    A stop or a rollback takes as long as it takes; a status that does not come in seconds never will.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with connection:
        connection.settimeout(_READ_SECONDS if request.op == "status" else None)
        try:
            with _short_path(state) as path:
                connection.connect(path)
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise NoSupervisor(f"No supervisor is running for {state.path}.") from error
        except OSError as error:
            raise StateError(f"The control socket {state.socket_path} cannot be used: {error.strerror}.") from error
        try:
            connection.sendall(msgspec.json.encode(request) + b"\n")
            with connection.makefile("rb") as answers:
                for line in answers:
                    answer = msgspec.json.decode(line, type=ControlAnswer)
                    yield answer
                    if answer.final:
                        return
        except TimeoutError as error:
            raise StateError(f"The supervisor of {state.path} does not answer; it may be stopped or hung.") from error
        except (OSError, msgspec.DecodeError) as error:
            raise StateError(f"The supervisor of {state.path} broke off: {error}.") from error
    raise StateError(f"The supervisor of {state.path} ended before it answered.")


@contextlib.contextmanager
def _short_path(state: StateDir) -> Iterator[str]:
    """The socket's path through a descriptor: an address holds about 107 bytes, a state path any number."""
    descriptor = os.open(state.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{state.socket_path.name}"
    finally:
        os.close(descriptor)


def _read_line(connection: socket.socket) -> bytes:
    body = bytearray()
    while not body.endswith(b"\n"):
        if len(body) > MAX_LINE_BYTES:
            raise ValueError(f"it is longer than {MAX_LINE_BYTES} bytes")
        chunk = connection.recv(4096)
        if not chunk:
            raise ValueError("it is not one JSON line that ends in a newline")
        body += chunk
    return bytes(body)


def _write(connection: socket.socket, answer: ControlAnswer) -> None:
    connection.sendall(msgspec.json.encode(answer) + b"\n")
