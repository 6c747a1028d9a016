// What is drawn into a chart besides its lines. Shapes differ, not colours alone: a finding that is critical is a
// square, a warning a triangle, a checkpoint a dot (hollow where it is not verified), a restart a dashed line.

const SIZE = 4;

export function drawMarks(u, data, chart, colour, layer) {
  const { ctx, bbox } = u;
  const ratio = devicePixelRatio || 1;
  const bottom = bbox.top + bbox.height;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top - 6 * ratio, bbox.width, bbox.height + 12 * ratio);
  ctx.clip();
  const at = (row) => u.valToPos(row, "x", true);
  if (layer === "under") {
    for (const finding of data.findings) {
      if (finding.signal !== chart.signal || finding.from === null || finding.row === null) continue;
      const end = finding.to ?? finding.row;
      ctx.fillStyle = colour(finding.severity === "critical" ? "--bad-shade" : "--warn-shade");
      ctx.fillRect(at(finding.from), bbox.top, Math.max(2 * ratio, at(end) - at(finding.from)), bbox.height);
    }
  } else {
    for (const [row] of data.starts) {
      if (row > 0) line(ctx, at(row - 0.5), bbox.top, bottom, colour("--quiet"), ratio, [4 * ratio, 4 * ratio]);
    }
    for (const [row, , verified] of data.saves) {
      if (row !== null) dot(ctx, at(row), bottom - SIZE * ratio, SIZE * 0.75 * ratio, colour("--good"), verified, ratio);
    }
    for (const finding of data.findings) {
      if (finding.row === null || finding.severity === "info") continue;
      const own = finding.signal === chart.signal;
      const critical = finding.severity === "critical";
      if (!own && !critical) continue;
      ctx.globalAlpha = own ? 1 : 0.45;
      const tone = colour(critical ? "--bad" : "--warn");
      line(ctx, at(finding.row), bbox.top, bottom, tone, ratio, own ? [] : [1 * ratio, 3 * ratio]);
      if (own) shape(ctx, at(finding.row), bbox.top, SIZE * ratio, tone, critical);
      ctx.globalAlpha = 1;
    }
    for (const [row] of chart.lost) cross(ctx, at(row), bbox.top + SIZE * ratio, SIZE * ratio, colour("--bad"), ratio);
  }
  ctx.restore();
}

// Areas on top of each other: the data are sums, so each area reaches down to the one before it.
export function drawStack(layers, axes, colour, zoomed, told) {
  const series = [{}];
  const bands = [];
  for (let n = 0; n < layers; n++) {
    const tone = () => colour(`--stack-${n % 12}`);
    series.push({ stroke: tone, fill: n === 0 ? tone : undefined, width: 1, points: { show: false } });
    if (n > 0) bands.push({ series: [n + 1, n], fill: tone });
  }
  return {
    legend: { show: false },
    padding: [8, 8, 0, 0],
    cursor: { y: false, points: { show: false }, drag: { x: true, y: false, setScale: false }, sync: { key: "run" } },
    scales: { x: { time: false }, y: { range: (u, min, max) => [0, (max ?? 1) * 1.05 || 1] } },
    axes: axes((value) => `${value}`),
    series,
    bands,
    hooks: { setCursor: [(u) => told(u.cursor.idx)], setSelect: [zoomed] },
  };
}

function line(ctx, x, top, bottom, tone, ratio, dash) {
  ctx.strokeStyle = tone;
  ctx.lineWidth = ratio;
  ctx.setLineDash(dash);
  ctx.beginPath();
  ctx.moveTo(x, top);
  ctx.lineTo(x, bottom);
  ctx.stroke();
  ctx.setLineDash([]);
}

function dot(ctx, x, y, radius, tone, filled, ratio) {
  ctx.setLineDash([]);
  ctx.fillStyle = ctx.strokeStyle = tone;
  ctx.lineWidth = 1.5 * ratio;
  ctx.beginPath();
  ctx.arc(x, y, radius, 0, 2 * Math.PI);
  if (filled) ctx.fill();
  else ctx.stroke();
}

function shape(ctx, x, y, size, tone, square) {
  ctx.fillStyle = tone;
  ctx.beginPath();
  if (square) ctx.rect(x - size, y - size, 2 * size, 2 * size);
  else {
    ctx.moveTo(x, y - size);
    ctx.lineTo(x + size, y + size);
    ctx.lineTo(x - size, y + size);
    ctx.closePath();
  }
  ctx.fill();
}

function cross(ctx, x, y, size, tone, ratio) {
  ctx.setLineDash([]);
  ctx.strokeStyle = tone;
  ctx.lineWidth = 1.5 * ratio;
  ctx.beginPath();
  ctx.moveTo(x - size, y - size);
  ctx.lineTo(x + size, y + size);
  ctx.moveTo(x + size, y - size);
  ctx.lineTo(x - size, y + size);
  ctx.stroke();
}
