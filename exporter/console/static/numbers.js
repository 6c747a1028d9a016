// Numbers as the pages of the server spell them.

const PREFIXES = ["", "Ki", "Mi", "Gi", "Ti", "Pi"];

export function shown(value, unit) {
  if (value === null || value === undefined) return "–";
  if (unit === "bytes") return bytes(value);
  const size = Math.abs(value);
  let text;
  if (size >= 1000) text = new Intl.NumberFormat("en", { maximumFractionDigits: 0 }).format(value);
  else if (size && size < 1e-3) text = value.toExponential(2).replace(/\.?0+e/, "e");
  else text = String(Number(value.toPrecision(4)));
  return unit === "seconds" ? `${text} s` : text;
}

function bytes(value) {
  let place = 0;
  while (Math.abs(value) >= 1024 && place < PREFIXES.length - 1) {
    value /= 1024;
    place += 1;
  }
  return place ? `${value.toFixed(1)} ${PREFIXES[place]}B` : `${value.toFixed(0)} B`;
}
