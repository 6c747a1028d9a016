"""The GPUs of a run, by node: memory and its forecast, work, heat, faults, and those that are slower than the rest."""

from __future__ import annotations

from grafana.boards import Board, Line, Row, even, nodes, one_run, project
from grafana.panels import BLUE, GREEN, GREY, NOT_HEARD, ONE_IS_BAD, ORANGE, RED, Step, bars, lines, number
from grafana.queries import NODE, RUN, Query, newest, or_row, or_zero, while_heard
from grafana.tables import Label, Value, rows

_GPUS = f"{RUN}, {NODE}"
_EACH = ("node", "index", "uuid")
_FULL: tuple[Step, ...] = ((None, GREEN), (0.9, ORANGE), (0.95, RED))
_HOT: tuple[Step, ...] = ((None, GREEN), (80, ORANGE), (90, RED))
_FILLED = f"verl_gpu_memory_used_bytes{{{_GPUS}}} / (verl_gpu_memory_total_bytes{{{_GPUS}}} > 0)"
# A line through the first minutes of a run leads anywhere: only GPUs that were read a quarter of an hour ago have one.
_FILLED_IN_AN_HOUR = (
    f"(predict_linear(verl_gpu_memory_used_bytes{{{_GPUS}}}[30m], 3600)"
    f" and verl_gpu_memory_used_bytes{{{_GPUS}}} offset 15m)"
    f" / (verl_gpu_memory_total_bytes{{{_GPUS}}} > 0)"
)
_BUSY = f"max by (run, node, index) (avg_over_time(verl_gpu_utilization_ratio{{{_GPUS}}}[15m]))"


def each(metric: str) -> str:
    """A reading of each GPU."""
    return newest(metric, *_EACH, where=_GPUS)


def _now() -> Line:
    return even(
        4,
        number(
            "GPUs",
            "GPUs that were read within the last two minutes. 0: the trainer has none, or its plugin does not read "
            "them.",
            Query(or_zero(f"count({each('verl_gpu_lost')})")),
            unit="none",
            decimals=0,
            no_value=NOT_HEARD,
        ),
        number(
            "Lost GPUs",
            "GPUs that the driver calls off the bus or in need of a reset. Healthy: 0. Otherwise: take the node out "
            "and resume from the newest checkpoint. –: none is read.",
            Query(f"sum({each('verl_gpu_lost')})"),
            unit="none",
            decimals=0,
            steps=ONE_IS_BAD,
        ),
        number(
            "Xid errors",
            "Critical Xid events since the sampler began. Healthy: 0. The table below says which GPU and which code. "
            "–: no driver tells them.",
            Query(f"sum({each('verl_gpu_xid_errors_total')})"),
            unit="none",
            decimals=0,
            steps=ONE_IS_BAD,
        ),
        number(
            "Fullest memory",
            "Memory in use on the fullest GPU. Orange from 90 %, red from 95 %: the next long batch may not fit.",
            Query(f"max({_FILLED})"),
            unit="percentunit",
            decimals=0,
            minimum=0,
            maximum=1,
            steps=_FULL,
            spark=True,
        ),
        number(
            "Mean utilisation",
            "Mean share of time in which the GPUs were busy. Healthy: it swings with the phases and its mean is high. "
            "Below 10 % for minutes: the GPUs wait for something.",
            Query(f"avg({each('verl_gpu_utilization_ratio')})"),
            unit="percentunit",
            decimals=0,
            minimum=0,
            maximum=1,
            steps=((None, RED), (0.1, ORANGE), (0.3, GREEN)),
            spark=True,
        ),
        number(
            "Hottest",
            "Temperature of the hottest GPU. Orange from 80 °C, red from 90 °C: it slows itself down.",
            Query(f"max({each('verl_gpu_temperature_celsius')})"),
            unit="celsius",
            decimals=0,
            steps=_HOT,
            spark=True,
        ),
    )


def _memory() -> Line:
    return even(
        9,
        lines(
            "Memory, by node",
            "Memory in use on the fullest GPU of each node. Healthy: flat. A slow climb is a leak or fragmentation.",
            Query(f"max by (node) ({_FILLED})", "{{node}}"),
            unit="percentunit",
            minimum=0,
            maximum=1,
            decimals=0,
            steps=_FULL,
            calcs=["lastNotNull", "max"],
        ),
        lines(
            "Memory, forecast",
            "The fullest GPU now, and where the fullest will be in an hour if the last half hour goes on; from the "
            "run's first quarter of an hour on. Healthy: "
            "both below 90 %. Above 100 %: it will run out; save and lower the batch before it does.",
            Query(f"max({_FILLED})", "now"),
            Query(f"clamp_min(max({_FILLED_IN_AN_HOUR}), 0)", "in an hour"),
            unit="percentunit",
            minimum=0,
            decimals=0,
            steps=_FULL,
            colours={"now": BLUE, "in an hour": GREY},
            dashed=["in an hour"],
        ),
        bars(
            "Time to the limit",
            "Seconds until a signal of the run reaches its limit if nothing changes, as a detector foresees it: memory "
            "of GPUs or of the host that fills, a KL or a step time that climbs. Healthy: nothing is foreseen. Below "
            "an hour: save, and make room.",
            Query(f"min by (signal) (verl_forecast_seconds_to_limit{{{RUN}}})", "{{signal}}", instant=True),
            unit="s",
            decimals=0,
            steps=((None, RED), (3600, ORANGE), (86400, GREEN)),
            no_value="Nothing is foreseen, or the exporter is not heard.",
        ),
        lines(
            "Memory as the trainer sees it",
            "Peak that torch reserved and that tensors took on a GPU, and memory in use on the trainer's host. "
            "Healthy: flat. A gap that grows between reserved and taken is fragmentation. 0 without a GPU.",
            Query(newest("verl_actor_gpu_memory_bytes"), "reserved"),
            Query(newest("verl_actor_gpu_memory_allocated_bytes"), "tensors"),
            Query(newest("verl_host_memory_used_bytes"), "host"),
            unit="bytes",
            minimum=0,
        ),
    )


def _work() -> Line:
    return even(
        9,
        lines(
            "Utilisation, by node",
            "Mean share of time in which the GPUs of each node were busy. Healthy: all nodes alike. One below the "
            "others holds them up or waits alone.",
            Query(f"avg by (node) ({each('verl_gpu_utilization_ratio')})", "{{node}}"),
            unit="percentunit",
            minimum=0,
            maximum=1,
            decimals=0,
            calcs=["lastNotNull", "mean"],
        ),
        lines(
            "Power, by node",
            "Power draw of the GPUs of each node. Healthy: follows utilisation. Full utilisation at low power is a "
            "GPU that spins in a collective and waits.",
            Query(f"sum by (node) ({each('verl_gpu_power_watts')})", "{{node}}"),
            unit="watt",
            minimum=0,
            decimals=0,
            calcs=["lastNotNull", "max"],
        ),
        lines(
            "Temperature, by node",
            "Temperature of the hottest GPU of each node. Healthy: below 80 °C. From 90 °C on a GPU slows itself down "
            "and with it the run.",
            Query(f"max by (node) ({each('verl_gpu_temperature_celsius')})", "{{node}}"),
            unit="celsius",
            minimum=0,
            decimals=0,
            steps=_HOT,
            calcs=["lastNotNull", "max"],
        ),
    )


def _faults() -> Line:
    xids = f"max by ({', '.join(_EACH)}) (verl_gpu_xid_errors_total{{{_GPUS}}})"
    last = f"max by ({', '.join(_EACH)}) (verl_gpu_last_xid{{{_GPUS}}})"
    table = rows(
        "GPUs with Xid errors",
        "GPUs whose driver reported critical Xid events, with the newest code: 79 is off the bus, 48 and 94 are "
        "memory. Healthy: one row that says that there is none. Otherwise: take the node out and have it checked.",
        [Label("node", "Node"), Label("index", "GPU", 70)],
        [
            Value(or_row(f"{xids} > 0", "node", "none", f"max({xids})"), "Events", "none", 0, 90, ONE_IS_BAD),
            Value(f"{last} > 0", "Newest code", "none", 0, 120),
        ],
        sort=("Events", True),
        no_value="No driver tells Xid events.",
        hidden=["uuid"],
    )
    behind: tuple[Step, ...] = ((None, RED), (-0.3, ORANGE), (-0.1, GREEN))
    return even(
        9,
        bars(
            "Stragglers",
            "The ten GPUs that were least busy in 15 minutes, against the median of the run. Healthy: all around 0. "
            "One far below is slow or waits; one far above while others wait is the slow one. The detectors of "
            "stragglers judge by the step.",
            Query(
                while_heard(f"bottomk(10, {_BUSY} - on (run) group_left () quantile by (run) (0.5, {_BUSY}))"),
                "{{node}} GPU {{index}}",
                instant=True,
            ),
            unit="percentunit",
            minimum=-1,
            maximum=1,
            decimals=0,
            steps=behind,
            no_value="No GPU is read.",
        ),
        table,
        lines(
            "Xid errors over time",
            "Critical Xid events since the sampler began, by node. Healthy: 0. A step upwards is an event.",
            Query(
                f"sum by (node) (max by ({', '.join(_EACH)}) (verl_gpu_xid_errors_total{{{_GPUS}}}))",
                "{{node}}",
            ),
            unit="none",
            minimum=0,
            decimals=0,
            no_value="No driver tells Xid events.",
        ),
    )


def _each() -> Line:
    def of(metric: str) -> str:
        return f"max by ({', '.join(_EACH)}) ({metric}{{{_GPUS}}})"

    used = f"{of('verl_gpu_memory_used_bytes')} / ({of('verl_gpu_memory_total_bytes')} > 0)"
    table = rows(
        "Each GPU",
        "The newest reading of every GPU of the chosen nodes. Sort by a column to find the odd one.",
        [Label("node", "Node"), Label("index", "GPU", 70), Label("uuid", "UUID", 330)],
        [
            Value(used, "Memory", "percentunit", 0, 130, _FULL, bar=(0, 1)),
            Value(of("verl_gpu_utilization_ratio"), "Busy", "percentunit", 0, 130, ((None, BLUE),), bar=(0, 1)),
            Value(of("verl_gpu_power_watts"), "Power", "watt", 0, 90),
            Value(of("verl_gpu_temperature_celsius"), "Temperature", "celsius", 0, 110, _HOT),
            Value(of("verl_gpu_lost"), "Lost", "none", 0, 70, ONE_IS_BAD),
        ],
        sort=("Memory", True),
        no_value="No GPU is read.",
    )
    return Line(14, [(table, 24)])


def board() -> Board:
    """The dashboard for memory that fills, for heat, and for the slow one among many."""
    return Board(
        uid="verl-gpus",
        title="verl GPUs",
        description="Memory with its forecast, utilisation, power, temperature, Xid errors and stragglers, by node.",
        since="now-6h",
        refresh="30s",
        variables=[project(), one_run(), nodes()],
        rows=[
            Row("Now", [_now()]),
            Row("Memory", [_memory()]),
            Row("Work and heat", [_work()]),
            Row("Faults and stragglers", [_faults()]),
            Row("Each GPU", [_each()], collapsed=True),
        ],
    )
