"""Shows a demo run in the terminal: steps, signals, and what happens. Plain lines where the output is no terminal.

Called by :mod:`demo.run`, which hands it what it has observed; nothing is looked up here.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

SHOWN_SIGNALS = ("reward", "entropy", "grad_norm", "kl", "ppo_kl", "response_length", "step_time")
"""Signals that get a line of their own, in this order, where the run has them."""

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 48


def sparkline(values: Sequence[float], width: int = _WIDTH) -> str:
    """The last ``width`` values as bars; ``×`` for what is not finite.

    >>> sparkline([1.0, 2.0, 3.0, float("nan")])
    '▁▅█×'
    """
    recent = list(values)[-width:]
    finite = [value for value in recent if math.isfinite(value)]
    if not finite:
        return "×" * len(recent)
    low, high = min(finite), max(finite)
    span = (high - low) or 1.0
    top = len(_BARS) - 1
    return "".join(
        _BARS[math.floor((value - low) / span * top + 0.5)] if math.isfinite(value) else "×" for value in recent
    )


@dataclass
class Observed:
    """What the display shows; filled by the observer as it polls the exporter."""

    run_id: str = ""
    attempt: int = 0
    step: int = 0
    total_steps: int = 0
    phase: str = ""
    state: str = "starting"
    signals: dict[str, deque[float]] = field(default_factory=dict)
    events: list[tuple[float, str, str]] = field(default_factory=list)
    """(seconds since the start of the demo, style, sentence)"""

    def take_step(self, step: int, signals: Mapping[str, float]) -> None:
        """Add one step's canonical signals; a step that goes backwards is a resume and just goes on."""
        self.step = step
        for name in SHOWN_SIGNALS:
            if name in signals:
                self.signals.setdefault(name, deque(maxlen=400)).append(signals[name])


class Display:
    """Live view in a terminal, one line an event (and every tenth step) elsewhere; used as a context manager.

    Args:
        observed: what to show; read, never written, except by :meth:`event`.
        title: scenario and what it does.
    """

    def __init__(self, observed: Observed, title: str, console: Console | None = None) -> None:
        self._observed = observed
        self._title = title
        self.console = console or Console(highlight=False)
        self._started = time.monotonic()
        self._live = (
            Live(get_renderable=self._render, console=self.console, refresh_per_second=4, transient=False)
            if self.console.is_terminal
            else None
        )
        self._last_plain_step = (0, 0)

    def __enter__(self) -> Display:
        if self._live is not None:
            self._live.start()
        else:
            self.console.print(self._title)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def elapsed(self) -> float:
        return time.monotonic() - self._started

    def event(self, sentence: str, style: str = "") -> None:
        """Note that something happened."""
        at = self.elapsed()
        self._observed.events.append((at, style, sentence))
        if self._live is None:
            self.console.print(Text(f"{at:6.1f} s  {sentence}"))

    def stepped(self) -> None:
        """Tell a log reader how far the run is; the live view shows it anyway."""
        seen = self._observed
        if self._live is None and seen.step % 10 == 0 and (seen.attempt, seen.step) != self._last_plain_step:
            self._last_plain_step = (seen.attempt, seen.step)
            numbers = "  ".join(f"{name} {values[-1]:.3g}" for name, values in seen.signals.items() if values)
            self.console.print(Text(f"{self.elapsed():6.1f} s  step {seen.step}  {numbers}"))

    def _render(self) -> RenderableType:
        seen = self._observed
        head = Text.assemble(
            (f"{self.elapsed():5.0f} s  ", "dim"),
            f"attempt {seen.attempt or '-'}   step ",
            (str(seen.step), "bold"),
            f"   {seen.phase or seen.state}",
        )
        table = Table.grid(padding=(0, 2))
        table.add_column(style="cyan")
        table.add_column(justify="right")
        table.add_column(no_wrap=True)
        for name in SHOWN_SIGNALS:
            values = seen.signals.get(name)
            if values:
                table.add_row(name, f"{values[-1]:.4g}", sparkline(values))
        if not seen.signals:
            table.add_row("", "", Text("the trainer is starting (model, workers, rollout server) …", style="dim"))
        events = Table.grid(padding=(0, 2))
        events.add_column(justify="right", style="dim", no_wrap=True)
        events.add_column()
        for at, style, sentence in seen.events[-10:]:
            events.add_row(f"{at:.1f} s", Text.from_markup(escape(sentence), style=style))
        return Panel(Group(head, Text(), table, Text(), events), title=self._title, title_align="left")
