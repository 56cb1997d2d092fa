// Formats numbers for people.

const UNITS = [[1e-6, "µs"], [1e-3, "ms"], [1, "s"], [60, "min"], [3600, "h"]];

// At most three digits.
export function number(value) {
  if (value == null || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 100_000) return value.toExponential(1);
  if (size >= 100) return value.toFixed(0);
  if (size >= 10) return value.toFixed(1);
  return size < 0.005 ? "0.00" : value.toFixed(2);
}

export function time(seconds) {
  if (seconds == null || Number.isNaN(seconds)) return "–";
  if (seconds < 1e-6) return "0 s";
  let [size, unit] = UNITS[0];
  for (const [next, name] of UNITS) if (seconds >= next) [size, unit] = [next, name];
  const value = seconds / size;
  return `${value >= 9.95 ? value.toFixed(0) : value.toFixed(1)} ${unit}`;
}

export function percent(part) {
  if (part == null || Number.isNaN(part)) return "–";
  const value = 100 * part;
  return value > 0 && value < 0.95 ? "<1 %" : `${value.toFixed(0)} %`;
}

export function count(n, one, many) {
  return `${n} ${n === 1 ? one : many}`;
}

// A level or a cost with its unit.
export function amount(value, unit) {
  if (value == null) return "–";
  return unit === "cpu" ? `${number(value)} s` : number(value);
}

export function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function element(name, classes = "", text = "") {
  const made = document.createElement(name);
  if (classes) made.className = classes;
  if (text) made.textContent = text;
  return made;
}
