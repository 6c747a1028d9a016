// The charts of a run: uPlot, with the band that was expected, findings, checkpoints and restarts as marks.

import { drawMarks, drawStack } from "./marks.js";
import { shown } from "./numbers.js";

const host = document.getElementById("charts");
const state = document.getElementById("chart-state");
const phaseHost = document.getElementById("phases");
const names = JSON.parse(host.dataset.names);
const texts = JSON.parse(host.dataset.texts);
const figures = new Map();
const HEIGHT = 170;
const NEWEST = 200;
let version = "";
let data = null;
let newestOnly = false;
let zoom = null;
let busy = false;

state.textContent = texts.loading;
// The table is for who has no charts.
document.getElementById("newest").open = false;
host.before(rangeSwitch());
await load("recent");
await load();
document.addEventListener("live", () => load());
// Paper is light whatever the screen is.
for (const medium of ["(prefers-color-scheme: dark)", "print"]) {
  matchMedia(medium).addEventListener("change", () => {
    for (const { plot } of figures.values()) plot?.redraw();
  });
}

async function load(span = "") {
  if (busy) return;
  busy = true;
  const query = `&points=${Math.min(2000, Math.max(200, Math.round(host.clientWidth)))}&known=${encodeURIComponent(version)}`;
  try {
    const answer = await fetch(`${host.dataset.source}${query}${span ? `&span=${span}` : ""}`, {
      headers: { "X-Console-Live": "1" },
      cache: "no-store",
    });
    if (!answer.ok) throw new Error(String(answer.status));
    const fresh = await answer.json();
    if (!fresh.unchanged) {
      if (!span) version = fresh.version;
      data = fresh;
      draw();
    }
  } catch {
    if (!data) state.textContent = texts.failed;
  } finally {
    busy = false;
  }
}

function draw() {
  if (!data.rows) state.textContent = texts.none;
  else if (!data.version) state.textContent = texts.recent;
  else if (data.charts.some((chart) => chart.lower?.some((value) => value !== null)))
    state.textContent = texts.judged.replace("{step}", stepAt(data.judged_from));
  else state.textContent = texts.unjudged;
  const wanted = new Set(data.charts.map((chart) => chart.signal));
  for (const [signal, figure] of figures) {
    if (signal !== "phases" && !wanted.has(signal)) {
      figure.element.remove();
      figures.delete(signal);
    }
  }
  for (const chart of data.charts) drawChart(chart);
  drawPhases();
}

function drawChart(chart) {
  const figure = figures.get(chart.signal) ?? newFigure(chart.signal, names[chart.signal] ?? chart.signal, host);
  figure.chart = chart;
  const values = chart.lower
    ? [chart.rows, chart.values, chart.lower, chart.upper, chart.expected]
    : [chart.rows, chart.values, [], [], []].map((column) => (column.length ? column : chart.rows.map(() => null)));
  plot(figure, values, (figure) => options(figure, chart));
  const newest = chart.values.at(-1);
  figure.value.textContent = newest === undefined ? "" : shown(newest, chart.unit);
  const own = data.findings.filter((finding) => finding.signal === chart.signal);
  listFindings(figure, own);
  const about = own.length ? `; ${own.length} × ${texts[own.at(-1).severity]}` : "";
  figure.plotHost.setAttribute("aria-label", `${figure.title}: ${texts.newest} ${figure.value.textContent}${about}`);
}

function plot(figure, values, make) {
  if (!figure.plot) {
    figure.plot = new uPlot({ ...make(figure), width: figure.plotHost.clientWidth, height: HEIGHT }, values, figure.plotHost);
    new ResizeObserver(() => figure.plot.setSize({ width: figure.plotHost.clientWidth, height: HEIGHT })).observe(figure.plotHost);
    figure.plotHost.addEventListener("dblclick", () => zoomTo(null));
  } else {
    figure.plot.setData(values);
  }
  figure.plot.setScale("x", span());
}

// All charts show the same steps.
function zoomTo(range) {
  zoom = range;
  for (const { plot } of figures.values()) plot?.setScale("x", span());
}

function zoomed(u) {
  const { left, width } = u.select;
  if (width < 4) return;
  zoomTo({ min: u.posToVal(left, "x"), max: u.posToVal(left + width, "x") });
  u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
}

function span() {
  if (zoom) return zoom;
  const last = Math.max(1, data.rows - 1);
  return { min: newestOnly ? Math.max(0, last - NEWEST) : 0, max: last };
}

function options(figure, chart) {
  const unit = chart.unit;
  return {
    legend: { show: false },
    padding: [8, 8, 0, 0],
    cursor: { y: false, points: { size: 6 }, drag: { x: true, y: false, setScale: false }, sync: { key: "run" } },
    scales: { x: { time: false }, y: { range: (u, min, max) => padded(min, max) } },
    axes: axes((value) => shown(value, unit)),
    series: [
      {},
      { stroke: () => colour("--series"), width: 1.5, spanGaps: true, points: { show: chart.rows.length < 40, size: 4, fill: () => colour("--series") } },
      { stroke: "transparent", spanGaps: true, points: { show: false } },
      { stroke: "transparent", spanGaps: true, points: { show: false } },
      { stroke: () => colour("--expected"), width: 1, dash: [3, 3], spanGaps: true, points: { show: false } },
    ],
    bands: [{ series: [3, 2], fill: () => colour("--band") }],
    hooks: {
      drawClear: [(u) => drawMarks(u, data, figure.chart, colour, "under")],
      draw: [(u) => drawMarks(u, data, figure.chart, colour, "over")],
      setCursor: [(u) => tell(figure, u.cursor.idx)],
      setSelect: [zoomed],
    },
  };
}

function axes(format) {
  const axis = { stroke: () => colour("--quiet"), font: "11px system-ui, sans-serif", grid: { stroke: () => colour("--grid"), width: 1 }, ticks: { show: false } };
  return [
    { ...axis, size: 24, space: 70, values: (u, ticks) => ticks.map((row) => (Number.isInteger(row) ? stepAt(row) : "")) },
    { ...axis, size: 52, values: (u, ticks) => ticks.map(format) },
  ];
}

function padded(min, max) {
  if (min === null || max === null) return [0, 1];
  const room = (max - min) * 0.08 || Math.abs(max) * 0.1 || 1;
  return [min - room, max + room];
}

function stepAt(row) {
  const { rows, steps } = data.axis;
  if (row === null || row < 0 || row >= data.rows) return "";
  let low = 0;
  let high = rows.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (rows[middle] <= row) low = middle;
    else high = middle - 1;
  }
  const start = data.starts.filter((one) => one[0] <= row).at(-1);
  // Between two rows that are known steps count up, unless the trainer was started again there.
  const base = start && start[0] > rows[low] ? [start[0], start[2]] : [rows[low], steps[low]];
  return String(base[1] + row - base[0]);
}

function tell(figure, index) {
  const { chart } = figure;
  if (index === null || index === undefined || !chart.rows.length) {
    figure.told.textContent = "";
    return;
  }
  const parts = [`${texts.step} ${chart.steps[index]}`, shown(chart.values[index], chart.unit)];
  if (chart.lower && chart.lower[index] !== null)
    parts.push(`${texts.expected} ${shown(chart.lower[index], chart.unit)} … ${shown(chart.upper[index], chart.unit)}`);
  const start = data.starts.filter((one) => one[0] <= chart.rows[index]).at(-1);
  if (start && data.starts.length > 1) parts.push(`${texts.attempt} ${start[1]}`);
  figure.told.textContent = parts.join(" · ");
}

function drawPhases() {
  const phases = data.phases;
  if (!phases) return;
  const figure = figures.get("phases") ?? newFigure("phases", texts.phases, phaseHost);
  figure.phases = phases;
  const parts = [...phases.values, phases.rest].filter((part) => part.some((value) => value > 0));
  const labels = [...phases.names.map((name) => names[name] ?? name), texts.rest].filter((_, n) => [...phases.values, phases.rest][n].some((value) => value > 0));
  const sums = [];
  for (const part of parts) sums.push(part.map((value, n) => (value ?? 0) + (sums.at(-1)?.[n] ?? 0)));
  if (figure.plot && figure.layers !== parts.length) {
    figure.plot.destroy();
    figure.plot = null;
  }
  figure.layers = parts.length;
  plot(figure, [phases.rows, ...sums], () => drawStack(parts.length, axes, colour, zoomed, (index) => tellPhases(figure, index)));
  figure.told.replaceChildren(
    ...labels.map((label, n) => {
      const key = document.createElement("span");
      key.className = `key stack-${n % 12}`;
      const item = document.createElement("span");
      item.append(key, `${label} `);
      const value = document.createElement("strong");
      item.append(value);
      return item;
    }),
  );
  figure.parts = parts;
  tellPhases(figure, phases.rows.length - 1);
  figure.plotHost.setAttribute("aria-label", texts.phases);
}

function tellPhases(figure, index) {
  if (index === null || index === undefined || !figure.parts) return;
  [...figure.told.querySelectorAll("strong")].forEach((value, n) => {
    value.textContent = shown(figure.parts[n][index], "seconds");
  });
}

function newFigure(signal, title, parent) {
  const element = document.createElement("figure");
  const caption = document.createElement("figcaption");
  const name = document.createElement("span");
  const value = document.createElement("strong");
  const told = document.createElement("p");
  const plotHost = document.createElement("div");
  const found = document.createElement("ul");
  element.className = "chart";
  name.textContent = title;
  told.className = signal === "phases" ? "told keys" : "told";
  plotHost.className = "plot";
  plotHost.tabIndex = 0;
  plotHost.setAttribute("role", "img");
  found.className = "found";
  caption.append(name, " ", value);
  element.append(caption, plotHost, told, found);
  parent.append(element);
  const figure = { element, title, value, told, plotHost, found, plot: null };
  plotHost.addEventListener("keydown", (event) => walk(figure, event));
  figures.set(signal, figure);
  return figure;
}

// With the arrow keys from value to value.
function walk(figure, event) {
  const move = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
  if (!move || !figure.plot) return;
  event.preventDefault();
  const rows = figure.plot.data[0];
  const from = figure.plot.cursor.idx ?? rows.length - 1;
  const index = Math.min(rows.length - 1, Math.max(0, from + move));
  figure.plot.setCursor({ left: figure.plot.valToPos(rows[index], "x"), top: 10 });
}

function listFindings(figure, findings) {
  figure.found.replaceChildren(
    ...findings.slice(-3).reverse().map((finding) => {
      const item = document.createElement("li");
      const link = document.createElement("a");
      link.href = `${host.dataset.incident}?id=${encodeURIComponent(finding.incident)}`;
      link.textContent = `${texts[finding.severity]} · ${finding.detector} · ${texts.since} ${finding.onset}`;
      item.className = `mark-${finding.severity}${finding.open ? "" : " over"}`;
      item.append(link);
      return item;
    }),
  );
}

function rangeSwitch() {
  const group = document.createElement("div");
  group.className = "range";
  group.setAttribute("role", "group");
  group.setAttribute("aria-label", texts.range);
  for (const [text, newest] of [[texts.all, false], [texts.newest_steps, true]]) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = text;
    button.setAttribute("aria-pressed", String(newest === newestOnly));
    button.addEventListener("click", () => {
      newestOnly = newest;
      for (const other of group.children) other.setAttribute("aria-pressed", String(other === button));
      zoomTo(null);
    });
    group.append(button);
  }
  return group;
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
