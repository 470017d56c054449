// Elements, texts and numbers: what the other files of the page's script are made of. The files are one script; see
// `read_script` in page.py. It asks for nothing from the network, and writes what comes from a run as text, never as HTML.

const SVG = "http://www.w3.org/2000/svg";
const PRINT = {ink: "#17202a", muted: "#566371", grid: "#dbe1e7", card: "#ffffff", accent: "#0072b2"};
const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', Arial, sans-serif";
const MOST_SHOWN = 12, MOST_ENTRIES = 24, MOST_ROWS = 500, NEAR = 30;
const NUMBERS = JSON.parse(document.getElementById("numbers").textContent);

function make(tag, options = {}, ...inside) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (name === "text") element.textContent = value;
    else if (name === "on") for (const [event, act] of Object.entries(value)) element.addEventListener(event, act);
    else element.setAttribute(name, value);
  }
  element.append(...inside);
  return element;
}

function draw(tag, options, into) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(options)) {
    if (name === "style") element.style.cssText = value;
    else if (name === "text") element.textContent = value;
    else element.setAttribute(name, value);
  }
  into.append(element);
  return element;
}

function say(value, axis = {}) {
  if (value === null || value === undefined) return "-";
  if (typeof value === "string") return value;
  const name = nameOf(axis, value);
  if (name !== undefined) return name;
  const number = axis.percent ? 100 * value : value;
  return (Number.isInteger(number) ? number : Number(number.toPrecision(4))) + (axis.percent ? " %" : "");
}

// The name of the place on an axis, or of the nearest one of its cells.
function nameOf(axis, value) {
  if (!axis.names) return undefined;
  const exact = axis.names[String(Number(value.toPrecision(6)))];
  const near = exact ?? axis.names[Object.keys(axis.names).find((place) => Math.abs(Number(place) - value) < 0.5)];
  return near === undefined ? undefined : (axis.whole ?? "") + near;
}

// A place in words: with the label of its axis, unless its name says all.
function tell(axis, value, otherwise) {
  const text = typeof value === "number" ? say(value, axis) : value;
  return known(axis.whole) ? text : `${axis.label || otherwise} ${text}`.trim();
}

const known = (value) => value !== null && value !== undefined;
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

// One panel in the SVG of its figure: from numbers to places and back, as its axes stand now.
class Frame {
  constructor(panel, {box, ends}) {
    Object.assign(this, {panel, box});
    this.given = {x: ends.slice(0, 2), y: ends.slice(2, 4)};
    this.ends = {...this.given};
    this.log = {x: panel.x.log, y: panel.y.log};
  }
  place(side, value) {
    if (!known(value) || (this.log[side] && value <= 0)) return null;
    const f = this.log[side] ? Math.log10 : (v) => v;
    const [low, high] = this.ends[side].map(f), at = side === "x" ? 0 : 1;
    return this.box[at] + (f(value) - low) / (high - low) * (this.box[at + 2] - this.box[at]);
  }
  x(value) { return this.place("x", value); }
  y(value) { return this.place("y", value); }
  holds(x, y) {
    const [left, low, right, high] = this.box;
    return x >= left - 4 && x <= right + 4 && y <= low + 4 && y >= high - 4;
  }
}


// A field of a CSV file; a text that a spreadsheet would take for a formula gets an apostrophe.
function quote(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
}

function join(points, step = false) {
  let path = "", pen = "M", before = null;
  for (const [x, y] of points) {
    if (x === null || y === null || x === undefined || y === undefined) { pen = "M"; before = null; continue; }
    if (step && before !== null) path += `L${x.toFixed(2)} ${before.toFixed(2)}`;
    path += `${pen}${x.toFixed(2)} ${y.toFixed(2)}`;
    [pen, before] = ["L", y];
  }
  return path;
}

function listTicks(low, high, log) {
  const found = [];
  if (log) {
    const decades = Math.log10(high / low), steps = decades > 4 ? [1] : decades > 1.5 ? [1, 3] : [1, 2, 3, 5, 7];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
      for (const step of steps) found.push(Number((step * 10 ** power).toPrecision(3)));
    }
    const inside = found.filter((value) => value >= low && value <= high);
    if (inside.length > 2) return inside;
    found.length = 0;
  }
  const rough = (high - low) / 6, unit = 10 ** Math.floor(Math.log10(rough));
  const step = unit * [1, 2, 5, 10].find((factor) => factor * unit >= rough);
  for (let value = Math.ceil(low / step) * step; value <= high + 1e-9 * step; value += step) {
    found.push(Number(value.toPrecision(6)));
  }
  return found;
}

function save(blob, name) {
  const link = make("a", {href: URL.createObjectURL(blob), download: name});
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
