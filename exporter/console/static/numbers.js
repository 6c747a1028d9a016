// Numbers as the pages of the server spell them.

const LANGUAGE = document.documentElement.lang;
const SECONDS = { style: "unit", unit: "second", unitDisplay: "narrow", maximumSignificantDigits: 4 };
const seconds = new Intl.NumberFormat(LANGUAGE, SECONDS);
const PREFIXES = ["", "Ki", "Mi", "Gi", "Ti", "Pi"];

export function shown(value, unit) {
  if (value === null || value === undefined) return "–";
  if (unit === "bytes") return bytes(value);
  if (unit === "seconds") return seconds.format(value);
  const size = Math.abs(value);
  if (size >= 1000) return new Intl.NumberFormat("en", { maximumFractionDigits: 0 }).format(value);
  if (size && size < 1e-3) return value.toExponential(2).replace(/\.?0+e/, "e");
  return String(Number(value.toPrecision(4)));
}

function bytes(value) {
  let place = 0;
  while (Math.abs(value) >= 1024 && place < PREFIXES.length - 1) {
    value /= 1024;
    place += 1;
  }
  return place ? `${value.toFixed(1)} ${PREFIXES[place]}B` : `${value.toFixed(0)} B`;
}
