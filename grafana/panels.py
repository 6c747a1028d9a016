"""The panels of the dashboards, in few words: each function gives one panel of Grafana with our colours and manners.

Called by the modules of the dashboards. Only kinds of panels and options that every Grafana from 10 to 13 has are used.
Every panel says what it shows, what is healthy and what to do; :mod:`grafana.boards` puts it into its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from grafana_foundation_sdk.builders import bargauge, common, heatmap, stat, statetimeline, text, timeseries
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.builders import prometheus as prometheus_query
from grafana_foundation_sdk.models import common as options
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models import heatmap as heat
from grafana_foundation_sdk.models import text as text_model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat, QueryEditorMode

from grafana.queries import STATES, Query

BLUE: Final = "blue"
"""What was measured."""
GREY: Final = "#8e8e8e"
"""What was expected, and what was a week ago."""
GREEN: Final = "green"
ORANGE: Final = "orange"
"""A warning."""
RED: Final = "red"
"""Critical."""
PURPLE: Final = "purple"
"""Something is being done about it."""

DATASOURCE: Final = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
BRIDGED_MS: Final = 120_000.0
"""A line goes on over so much time without a sample: a few missed scrapes are no gap, a silent run is one."""

Step = tuple[float | None, str]
"""From which value on (None: from below), in which colour."""
ONE_IS_BAD: Final[tuple[Step, ...]] = ((None, GREEN), (1, RED))
ONE_IS_ODD: Final[tuple[Step, ...]] = ((None, GREEN), (1, ORANGE))
PLAIN: Final[tuple[Step, ...]] = ((None, BLUE),)
SHARE_IS_GOOD: Final[tuple[Step, ...]] = ((None, RED), (0.7, ORANGE), (0.9, GREEN))

_STATE_COLOURS: Final = (BLUE, GREEN, RED, ORANGE, PURPLE, "dark-red", GREY, "#5a5a5a")
STATE_WORDS: Final = {
    str(number): (state.replace("_", " "), colour)
    for number, (state, colour) in enumerate(zip(STATES, _STATE_COLOURS, strict=True), 1)
}
"""The numbers of :func:`grafana.queries.state_numbers`, in words and colours."""

NOT_HEARD: Final = "exporter not heard"
"""What stands in place of a number that only an exporter that is ready can say."""
EXPORTER_STATES: Final = {"0": ("down", RED), "1": ("not ready", RED), "2": ("ready", GREEN)}
"""The numbers of :func:`grafana.queries.exporter_state`."""
OVER_TIME_STATES: Final = {"0": ("not heard", "#3a3a3a"), **STATE_WORDS}
"""Of a state over time, which would go on to the right edge without a state that ends it."""

NOTHING_OPEN: Final = "nothing is open"
"""What stands in the column of severities of a table of incidents where there is none."""
SEVERITIES: Final = {
    "critical": ("critical", RED),
    "warning": ("warning", ORANGE),
    NOTHING_OPEN: (NOTHING_OPEN, GREEN),
}


def thresholds(steps: Sequence[Step]) -> build.ThresholdsConfig:
    """Colours by value."""
    return (
        build.ThresholdsConfig()
        .mode(model.ThresholdsMode.ABSOLUTE)
        .steps([model.Threshold(value=value, color=colour) for value, colour in steps])
    )


def words(meanings: Mapping[str, tuple[str, str]]) -> list[model.ValueMapping]:
    """Values that are shown as a word in a colour."""
    results = {
        value: model.ValueMappingResult(text=word, color=colour, index=index)
        for index, (value, (word, colour)) in enumerate(meanings.items())
    }
    return [model.ValueMap(options=results)]


def nothing(text: str, colour: str) -> model.ValueMapping:
    """What stands in place of a number that is not there. Without it Grafana colours it as the lowest threshold."""
    result = model.ValueMappingResult(text=text, color=colour)
    options = model.DashboardSpecialValueMapOptions(match=model.SpecialValueMatch.NULL_AND_NAN, result=result)
    return model.SpecialValueMap(options=options)


def targets(queries: Sequence[Query]) -> list[prometheus_query.Dataquery]:
    """Queries A, B, C … in their order."""
    built = []
    for letter, query in zip("ABCDEFGHIJKLMNOP", queries, strict=False):
        one = (
            prometheus_query.Dataquery()
            .expr(query.expr)
            .ref_id(letter)
            .datasource(DATASOURCE)
            .editor_mode(QueryEditorMode.CODE)
            .format(PromQueryFormat(query.format))
            .legend_format(query.legend or "__auto")
        )
        one = one.instant() if query.instant else one.range()
        built.append(one.interval(query.interval) if query.interval else one)
    return built


def fixed(colour: str) -> dict[str, str]:
    """The value of an override's ``color``."""
    return {"mode": "fixed", "fixedColor": colour}


def look(panel: Any, name: str, **properties: Any) -> None:
    """Override how the series or column ``name`` looks."""
    panel.override_by_name(
        name, [model.DynamicConfigValue(id_val=key, value=value) for key, value in properties.items()]
    )


def lines(
    title: str,
    description: str,
    *queries: Query,
    unit: str,
    minimum: float | None = None,
    maximum: float | None = None,
    decimals: int | None = None,
    stacked: bool = False,
    fill: int = 0,
    calcs: Sequence[str] = ("lastNotNull",),
    steps: Sequence[Step] = (),
    colours: Mapping[str, str] | None = None,
    dashed: Sequence[str] = (),
    band: tuple[str, str] | None = None,
    soft_minimum: float | None = None,
    log: bool = False,
    bars: bool = False,
    no_value: str = "",
) -> model.Panel:
    """Values over time.

    Args:
        colours: of series by their name; the others get the palette's.
        dashed: names of the series that are drawn with dashes.
        band: names of the series between which is filled grey, the lower first.
        steps: limits, drawn as dashed lines.
    """
    panel = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .unit(unit)
        .targets(list(targets(queries)))
        .draw_style(options.GraphDrawStyle.BARS if bars else options.GraphDrawStyle.LINE)
        .line_width(0 if bars else 2)
        .fill_opacity(70 if bars else 40 if stacked else fill)
        .show_points(options.VisibilityMode.AUTO)
        .span_nulls(BRIDGED_MS)
        .color_scheme(build.FieldColor().mode(model.FieldColorModeId.PALETTE_CLASSIC))
        .tooltip(common.VizTooltipOptions().mode(options.TooltipDisplayMode.MULTI).sort(options.SortOrder.DESCENDING))
        .legend(
            common.VizLegendOptions()
            .show_legend(True)
            .display_mode(options.LegendDisplayMode.LIST)
            .placement(options.LegendPlacement.BOTTOM)
            .calcs(list(calcs))
        )
    )
    if minimum is not None:
        panel.min(minimum)
    if maximum is not None:
        panel.max(maximum)
    if soft_minimum is not None:
        panel.axis_soft_min(soft_minimum)
    if decimals is not None:
        panel.decimals(decimals)
    if no_value:
        panel.no_value(no_value)
    if log:
        panel.scale_distribution(common.ScaleDistributionConfig().type(options.ScaleDistribution.LOG).log(10))
    if stacked:
        panel.stacking(common.StackingConfig().mode(options.StackingMode.NORMAL).group("A"))
    if steps:
        panel.thresholds(thresholds(steps))
        panel.thresholds_style(common.GraphThresholdsStyleConfig().mode(options.GraphTresholdsStyleMode.DASHED))
    for name, colour in (colours or {}).items():
        look(panel, name, color=fixed(colour))
    for name in dashed:
        look(panel, name, **{"custom.lineStyle": {"fill": "dash", "dash": [8, 6]}, "custom.lineWidth": 1})
    if band is not None:
        _fill_between(panel, *band)
    return panel.build()


def _fill_between(panel: timeseries.Panel, lower: str, upper: str) -> None:
    edge = {"color": fixed(GREY), "custom.lineWidth": 1, "custom.showPoints": "never"}
    look(panel, lower, **edge, **{"custom.fillOpacity": 0})
    look(panel, upper, **edge, **{"custom.fillBelowTo": lower, "custom.fillOpacity": 18})


def number(
    title: str,
    description: str,
    query: Query,
    *,
    unit: str,
    decimals: int | None = None,
    steps: Sequence[Step] = PLAIN,
    meanings: Mapping[str, tuple[str, str]] | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    spark: bool = False,
    no_value: str = "–",
    no_colour: str = GREY,
    link: model.DashboardLink | None = None,
) -> model.Panel:
    """One number, large, as it is now; ``spark`` draws its past behind it.

    The newest number of a past would stay when there is none any more: NaN follows it, and the last value counts.
    """
    expr = f"max({query.expr}) or vector(NaN)" if spark else query.expr
    panel = (
        stat.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .unit(unit)
        .no_value(no_value)
        .targets(list(targets([replace(query, expr=expr, instant=not spark)])))
        .mappings([*(words(meanings) if meanings else []), nothing(no_value, no_colour)])
        .thresholds(thresholds(steps))
        .color_scheme(build.FieldColor().mode(model.FieldColorModeId.THRESHOLDS))
        .graph_mode(options.BigValueGraphMode.AREA if spark else options.BigValueGraphMode.NONE)
        .color_mode(options.BigValueColorMode.VALUE)
        .justify_mode(options.BigValueJustifyMode.AUTO)
        .text_mode(options.BigValueTextMode.VALUE)
        .orientation(options.VizOrientation.AUTO)
        .reduce_options(common.ReduceDataOptions().values(False).calcs(["last"]).fields(""))
    )
    if decimals is not None:
        panel.decimals(decimals)
    if minimum is not None:
        panel.min(minimum)
    if maximum is not None:
        panel.max(maximum)
    if link is not None:
        panel.data_links([Built(link)])
    return panel.build()


def states(
    title: str,
    description: str,
    *queries: Query,
    unit: str = "none",
    meanings: Mapping[str, tuple[str, str]],
    height: float = 0.85,
) -> model.Panel:
    """What state something was in, as coloured stretches over time."""
    panel = (
        statetimeline.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .unit(unit)
        .targets(list(targets(queries)))
        .mappings(words(meanings))
        .color_scheme(build.FieldColor().mode(model.FieldColorModeId.THRESHOLDS))
        .thresholds(thresholds(((None, GREY),)))
        .show_value(options.VisibilityMode.AUTO)
        .merge_values(True)
        .row_height(height)
        .line_width(0)
        .fill_opacity(80)
        .align_value(options.TimelineValueAlignment.LEFT)
        .tooltip(common.VizTooltipOptions().mode(options.TooltipDisplayMode.SINGLE).sort(options.SortOrder.NONE))
        .legend(
            common.VizLegendOptions()
            .show_legend(True)
            .display_mode(options.LegendDisplayMode.LIST)
            .placement(options.LegendPlacement.BOTTOM)
            .calcs([])
        )
    )
    return panel.build()


def heat_map(title: str, description: str, query: Query, *, unit: str) -> model.Panel:
    """A histogram over time; the query gives buckets with the label ``le``."""
    panel = (
        heatmap.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .unit("short")
        .targets(list(targets([query])))
        .calculate(False)
        .color(
            heatmap.HeatmapColorOptions()
            .mode(heat.HeatmapColorMode.SCHEME)
            .scheme("Blues")
            .scale(heat.HeatmapColorScale.EXPONENTIAL)
            .exponent(0.5)
            .fill("dark-blue")
            .steps(64)
            .reverse(False)
        )
        .cell_gap(1)
        .y_axis(heatmap.YAxisConfig().unit(unit).decimals(1).axis_placement(options.AxisPlacement.LEFT))
        .rows_frame(heatmap.RowsHeatmapOptions().layout(options.HeatmapCellLayout.AUTO))
        .filter_values(heatmap.FilterValueRange().le(1e-9))
        .show_value(options.VisibilityMode.NEVER)
        .show_legend()
        .show_tooltip()
    )
    return panel.build()


def bars(
    title: str,
    description: str,
    *queries: Query,
    unit: str,
    minimum: float | None = 0,
    maximum: float | None = None,
    decimals: int | None = None,
    steps: Sequence[Step] = PLAIN,
    no_value: str = "",
) -> model.Panel:
    """One bar for each series, as it is now."""
    panel = (
        bargauge.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .unit(unit)
        .targets(list(targets(queries)))
        .display_mode(options.BarGaugeDisplayMode.BASIC)
        .orientation(options.VizOrientation.HORIZONTAL)
        .show_unfilled(True)
        .min_viz_width(0)
        .min_viz_height(14)
        .color_scheme(build.FieldColor().mode(model.FieldColorModeId.THRESHOLDS))
        .thresholds(thresholds(steps))
        .reduce_options(common.ReduceDataOptions().values(False).calcs(["lastNotNull"]).fields(""))
    )
    if minimum is not None:
        panel.min(minimum)
    if maximum is not None:
        panel.max(maximum)
    if decimals is not None:
        panel.decimals(decimals)
    if no_value:
        panel.no_value(no_value)
    return panel.build()


def words_of(title: str, description: str, content: str) -> model.Panel:
    """A few lines of Markdown."""
    panel = (
        text.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .unit("none")
        .mode(text_model.TextMode.MARKDOWN)
        .content(content)
    )
    return panel.build()


@dataclass
class Built:
    """Something that is built already, for the places of the SDK that want a builder."""

    built: Any

    def build(self) -> Any:
        return self.built


def link(title: str, url: str, *, new_tab: bool = False) -> model.DashboardLink:
    """A link of a value or a column. ``url`` may hold variables, each with its format."""
    return build.DashboardLink(title).url(url).target_blank(new_tab).build()
