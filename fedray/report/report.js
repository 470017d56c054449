// Makes the figures of the page tools: values under the pointer or the arrow keys, legend entries that hide a line,
// logarithmic axes, downloads. The page is whole without it. It asks for nothing from the network, and writes what
// comes from a run as text only, never as HTML.
"use strict";
(() => {
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
  return String(Number(number.toPrecision(4))) + (axis.percent ? " %" : "");
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

// One panel in one of its SVGs: from numbers to places and back, as its axes stand now.
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

class Chart {
  constructor(figure, data) {
    Object.assign(this, {figure, data, hidden: new Set(), entries: new Map(), modes: new Set(), at: null});
    this.title = figure.querySelector("h3").textContent;
    this.views = Object.entries(data.views).map(([key, view]) => ({
      key, svg: figure.querySelector(`[data-view="${key}"] svg`),
      frames: view.frames.map((frame, i) => new Frame(data.panels[i], frame)),
    }));
    this.views.forEach((view) => this.listen(view));
    this.makeLegend();
    this.makeTools();
    this.tip = make("div", {class: "tip", "aria-hidden": "true"});
    this.live = make("div", {class: "unseen", "aria-live": "polite"});
    figure.append(this.tip, this.live);
  }

  find(view, id) { return document.getElementById(`${view.key}-${id}`); }

  shown(panel) { return panel.traces.filter((trace) => !this.hidden.has(trace.name) || !trace.legend); }

  // ---- the legend ----
  makeLegend() {
    const found = new Map();
    for (const panel of this.data.panels) {
      for (const trace of panel.traces) {
        if (trace.legend && trace.kind !== "cells" && !found.has(trace.name)) found.set(trace.name, trace);
      }
    }
    if (found.size < 2 || found.size > MOST_ENTRIES) return;
    this.entries = found;
    const row = make("div", {class: "legend", role: "group", "aria-label": "Lines of the figure: press to hide or show"});
    for (const [name, trace] of found) {
      const mark = make("i", {class: trace.kind === "line" ? "line" : trace.kind === "points" ? "dot" : "square"});
      mark.style.color = trace.color;
      const toggle = () => {
        const off = !this.hidden.delete(name);
        if (off) this.hidden.add(name);
        button.setAttribute("aria-pressed", String(!off));
        this.redraw();
      };
      const button = make("button", {type: "button", "aria-pressed": "true", on: {click: toggle}}, mark, name);
      row.append(button);
    }
    this.figure.querySelector("h3").after(row);
    for (const view of this.views) {
      this.data.panels.forEach((_, i) => this.find(view, `p${i}-legend`)?.classList.add("off"));
    }
  }

  // ---- the buttons below the figure ----
  makeTools() {
    const row = make("div", {class: "tools", role: "group", "aria-label": `Tools of the figure: ${this.title}`});
    const can = (side) => this.data.panels.some((panel) => panel.scales.includes(side));
    const outside = this.views[0].frames.some((frame) => frame.panel.scales && this.isCut(frame));
    const modes = [["x", "log x", can("x"), "Logarithmic horizontal axis"],
      ["y", "log y", can("y"), "Logarithmic vertical axis"],
      ["all", "whole axis", outside, "Show the values that lie outside of the axis, too"]];
    for (const [mode, text, possible, title] of modes) {
      if (!possible) continue;
      const flip = () => {
        const on = !this.modes.delete(mode);
        if (on) this.modes.add(mode);
        button.setAttribute("aria-pressed", String(on));
        this.redraw();
      };
      const button = make("button", {type: "button", "aria-pressed": "false", title, text, on: {click: flip}});
      row.append(button);
    }
    const rows = this.listRows();
    const every = Math.max(...this.data.panels.map((panel) => panel.every || 1), this.data.table?.every || 1);
    const some = every > 1 ? ` (every ${every}th number)` : "";
    const actions = [["SVG", "Download the figure as SVG", () => this.saveSvg()],
      ["PNG", "Download the figure as PNG", () => this.savePng()]];
    if (rows.length > 1) {
      actions.push(["CSV", `Download the numbers as CSV${some}`, () => this.saveCsv(rows)]);
    }
    for (const [text, title, act] of actions) {
      row.append(make("button", {type: "button", title, "aria-label": `${title}: ${this.title}`, text, on: {click: act}}));
    }
    if (rows.length > 1) {
      const flip = () => {
        const open = sheet.firstChild === null;
        sheet.replaceChildren(...(open ? [this.makeTable(rows)] : []));
        button.setAttribute("aria-expanded", String(open));
      };
      const button = make("button", {type: "button", "aria-expanded": "false", title: `The numbers as a table${some}`,
        text: "table", on: {click: flip}});
      const sheet = make("div", {class: "numbers", tabindex: "-1"});
      row.append(button);
      this.figure.append(row, sheet);
    } else this.figure.append(row);
  }

  isCut(frame) {
    return frame.panel.traces.some((trace) => ["x", "y"].some((side) => {
      const [low, high] = [...frame.given[side]].sort((a, b) => a - b);
      return trace[side].some((v) => known(v) && (v < low || v > high));
    }));
  }

  // ---- the numbers as rows: a header, then one row a value ----
  listRows() {
    if (this.data.table) return [this.data.table.head, ...this.data.table.rows];
    const panels = this.data.panels.filter((panel) => panel.traces.length);
    if (!panels.length) return [];
    const traces = panels.flatMap((panel) => panel.traces);
    const several = panels.length > 1, named = traces.some((trace) => trace.name);
    const band = traces.some((trace) => trace.low);
    const [{x, y}] = panels;
    const cells = traces.every((trace) => trace.kind === "cells");
    const bars = traces.filter((trace) => trace.kind === "bars");
    const flat = bars.length > 0 && bars.every((trace) => this.isLying(trace));
    const start = flat && bars.some((trace) => trace.x.some((v) => v !== 0));
    const value = several ? "value" : (flat && !cells ? x.label || "value" : y.label || "value");
    const head = [...(several ? ["panel"] : []), ...(named ? ["series"] : []),
      ...(cells ? [y.label || "row", x.label || "column", "value"]
        : flat
          ? [y.label || "row", ...(start ? ["start"] : []), x.label || "value"]
          : [x.label || "x", value, ...(band ? ["low", "high"] : [])])];
    const rows = [head];
    for (const panel of panels) {
      for (const trace of panel.traces) {
        const who = [...(several ? [panel.title || panel.y.label] : []), ...(named ? [trace.name] : [])];
        for (const row of this.listTrace(panel, trace, {band, start})) rows.push([...who, ...row]);
      }
    }
    return rows;
  }

  isLying(trace) {
    return trace.kind === "bars" && new Set(trace.h.map((h) => Number(h.toPrecision(3)))).size === 1
      && (new Set(trace.w.map((w) => Number(w.toPrecision(3)))).size > 1 || trace.x.every((x) => x === 0));
  }

  listTrace(panel, trace, {band, start}) {
    const text = (axis, value) => (known(value) ? nameOf(axis, value) ?? value : null);
    if (trace.kind === "cells") {
      return trace.cells.flatMap((row, i) => row.map((value, j) =>
        [text(panel.y, trace.y[i]), text(panel.x, trace.x[j]), value]));
    }
    if (trace.kind === "bars" && this.isLying(trace)) {
      return trace.x.map((x, i) => [this.sayMiddle(panel.y, trace.y[i], trace.h[i]), ...(start ? [x] : []), trace.w[i]]);
    }
    if (trace.kind === "bars") {
      return trace.x.map((x, i) => [this.sayMiddle(panel.x, x, trace.w[i]), trace.h[i], ...(band ? ["", ""] : [])]);
    }
    return trace.x.map((x, i) => [text(panel.x, x), text(panel.y, trace.y[i]),
      ...(band ? [trace.low?.[i] ?? "", trace.high?.[i] ?? ""] : [])]);
  }

  sayMiddle(axis, low, size) {
    const middle = Number((low + size / 2).toPrecision(5));
    return nameOf(axis, middle) ?? middle;
  }

  makeTable([head, ...rows]) {
    const body = make("tbody");
    for (const row of rows.slice(0, MOST_ROWS)) {
      body.append(make("tr", {}, ...row.map((v, i) => make("td", {text: say(v), "data-label": head[i]}))));
    }
    const table = make("table", {}, make("caption", {class: "unseen", text: `Numbers of the figure: ${this.title}`}),
      make("thead", {}, make("tr", {}, ...head.map((text) => make("th", {scope: "col", text})))), body);
    const all = rows.length > MOST_ROWS ? [make("p", {text: `The first ${MOST_ROWS} of ${rows.length} rows; the CSV file has all.`})] : [];
    return make("div", {class: "sheet", tabindex: "0", role: "region", "aria-label": `Numbers of the figure: ${this.title}`},
      table, ...all);
  }

  // ---- axes drawn anew ----
  redraw() {
    for (const view of this.views) {
      view.svg.querySelector(".anew")?.remove();
      const layer = draw("g", {class: "anew"}, view.svg);
      view.frames.forEach((frame, i) => this.redrawPanel(view, frame, i, layer));
    }
    this.leave();
  }

  redrawPanel(view, frame, index, layer) {
    const {panel} = frame, visible = new Set(this.shown(panel));
    const log = {x: this.modes.has("x") && panel.scales.includes("x"), y: this.modes.has("y") && panel.scales.includes("y")};
    const changed = {x: log.x, y: log.y || (this.modes.has("all") && panel.scales !== "")};
    changed.x ||= this.modes.has("all") && panel.scales !== "";
    const anew = changed.x || changed.y;
    frame.log = {x: panel.x.log || log.x, y: panel.y.log || log.y};
    for (const side of ["x", "y"]) {
      frame.ends[side] = changed[side] ? this.findEnds(frame, side, visible) : frame.given[side];
      for (const part of this.find(view, `p${index}${side}`)?.children ?? []) {
        part.classList.toggle("off", changed[side] && part.id !== `${view.key}-p${index}${side}-label`);
      }
    }
    for (const trace of panel.traces) {
      for (const id of trace.ids ?? [trace.id]) {
        for (const part of [this.find(view, id), this.find(view, `${id}-band`)]) {
          part?.classList.toggle("off", anew || !visible.has(trace));
        }
      }
    }
    if (!anew) return;
    for (const side of ["x", "y"]) if (changed[side]) this.drawTicks(frame, side, layer);
    const clip = `${view.key}-anew-${index}`, [left, low, right, high] = frame.box;
    const hole = draw("clipPath", {id: clip}, layer);
    draw("rect", {x: left, y: high, width: right - left, height: low - high}, hole);
    const inside = draw("g", {"clip-path": `url(#${clip})`}, layer);
    for (const trace of visible) this.drawTrace(view, frame, trace, inside);
  }

  findEnds(frame, side, visible) {
    const all = this.modes.has("all"), [first, last] = frame.given[side];
    const values = [...visible].flatMap((t) => [...t[side], ...(side === "y" ? [...(t.low ?? []), ...(t.high ?? [])] : [])])
      .filter((v) => known(v) && (!frame.log[side] || v > 0));
    if (!values.length) return frame.given[side];
    let low = Math.min(...values), high = Math.max(...values);
    if (!all && !(frame.log[side] && Math.min(first, last) <= 0)) return frame.given[side];
    if (!all) high = Math.max(first, last);
    const pad = frame.log[side] ? (high / low) ** 0.03 : (high - low || 1) * 0.04;
    [low, high] = frame.log[side] ? [low / pad, high * pad] : [low - pad, high + pad];
    return first <= last ? [low, high] : [high, low];
  }

  drawTicks(frame, side, layer) {
    const axis = frame.panel[side], [left, low, right, high] = frame.box, words = draw("g", {class: "ticks"}, layer);
    const look = {"font-size": "9.5", "font-family": FONT, style: "fill: var(--muted)"};
    for (const value of listTicks(...[...frame.ends[side]].sort((a, b) => a - b), frame.log[side])) {
      const at = frame.place(side, value);
      const line = side === "y" ? {x1: left, x2: right, y1: at, y2: at} : {x1: at, x2: at, y1: low, y2: low + 3};
      draw("line", {...line, style: "stroke: var(--grid); stroke-width: 0.7"}, words);
      const spot = side === "y" ? {x: left - 4, y: at + 3.2, "text-anchor": "end"} : {x: at, y: low + 14, "text-anchor": "middle"};
      draw("text", {...spot, ...look, text: say(value, axis)}, words);
    }
  }

  drawTrace(view, frame, trace, into) {
    const points = trace.x.map((x, i) => [frame.x(x), frame.y(trace.y[i]), i]);
    if (trace.low) {
      const ends = (side) => trace.x.map((x, i) => [frame.x(x), frame.y(trace[side][i]) ?? frame.box[1]]);
      const edge = [...ends("high"), ...ends("low").reverse()].filter(([x]) => x !== null);
      draw("path", {d: join(edge) + "z", style: `fill: ${trace.color}; opacity: 0.14`}, into);
    }
    if (trace.kind === "line") {
      const given = this.find(view, trace.id)?.querySelector("path")?.getAttribute("style") ?? `stroke: ${trace.color}`;
      draw("path", {d: join(points, trace.step), style: `${given}; fill: none`}, into);
    }
    if (trace.kind === "points" || points.length === 1) {
      for (const [x, y] of points) {
        if (x !== null && y !== null) draw("circle", {cx: x, cy: y, r: 2.6, style: `fill: ${trace.color}`}, into);
      }
    }
  }

  // ---- values under the pointer, and by arrow keys ----
  listen(view) {
    const holder = view.svg.parentElement;
    holder.setAttribute("tabindex", "0");
    if (this.data.panels.some((panel) => panel.traces.length)) {
      holder.setAttribute("role", "application");
      holder.setAttribute("aria-label", `${this.title}. Arrow keys read the values.`);
    }
    view.svg.addEventListener("pointermove", (event) => this.point(view, event));
    view.svg.addEventListener("pointerleave", () => this.leave());
    holder.addEventListener("blur", () => this.leave());
    holder.addEventListener("keydown", (event) => this.step(view, event));
  }

  point(view, event) {
    const matrix = view.svg.getScreenCTM();
    if (!matrix) return;
    const {x, y} = new DOMPoint(event.clientX, event.clientY).matrixTransform(matrix.inverse());
    const index = view.frames.findIndex((frame) => frame.holds(x, y));
    const found = index < 0 ? null : this.pick(view.frames[index], x, y);
    if (found) this.show(view, index, found);
    else this.leave();
  }

  // The places of a panel that can be read: values of a line side by side, or one dot, bar or cell.
  pick(frame, x, y) {
    let best = null;
    const offer = (distance, make) => { if (!best || distance < best.distance) best = {distance, make}; };
    for (const trace of this.shown(frame.panel)) {
      trace.x.forEach((value, i) => {
        if (trace.kind === "line") {
          const at = frame.x(value);
          if (at !== null) offer(Math.abs(at - x), () => ({lineAt: value}));
        } else if (trace.kind === "points") {
          const [px, py] = [frame.x(value), frame.y(trace.y[i])];
          const far = px === null || py === null ? Infinity : Math.hypot(px - x, py - y);
          if (far < NEAR) offer(far - NEAR, () => ({trace, i}));
        } else if (trace.kind === "bars") {
          const [x0, x1] = [frame.x(value), frame.x(value + trace.w[i])].sort((a, b) => a - b);
          const [y0, y1] = [frame.y(trace.y[i]), frame.y(trace.y[i] + trace.h[i])].sort((a, b) => a - b);
          if (x >= x0 - 1 && x <= x1 + 1 && y >= y0 - 1 && y <= y1 + 1) offer(0, () => ({trace, i}));
        }
      });
      if (trace.kind === "cells") {
        const nearest = (side, at) => trace[side].map((v) => Math.abs(frame.place(side, v) - at))
          .reduce((low, far, i, all) => (far < all[low] ? i : low), 0);
        const [i, j] = [nearest("y", y), nearest("x", x)];
        offer(0, () => ({trace, i, j}));
      }
    }
    return best && best.make();
  }

  // What is said of a place: a head line, and a row for each line or the one thing.
  describe({panel}, {lineAt, trace, i, j}) {
    if (lineAt === undefined && trace.kind === "cells") {
      const name = `${tell(panel.y, trace.y[i], "row")}, ${tell(panel.x, trace.x[j], "column")}`;
      return {head: name, rows: [{name: "", value: say(trace.cells[i][j])}]};
    }
    if (lineAt === undefined && trace.kind === "bars") {
      const flat = this.isLying(trace);
      const [along, size, across] = flat ? [panel.y, "w", panel.x] : [panel.x, "h", panel.y];
      const middle = flat ? this.sayMiddle(panel.y, trace.y[i], trace.h[i]) : this.sayMiddle(panel.x, trace.x[i], trace.w[i]);
      return {head: tell(along, middle, this.data.panels.at(-1)[flat ? "y" : "x"].label),
        rows: [{name: trace.name || across.label, color: trace.color, value: say(trace[size][i], across)}]};
    }
    if (lineAt === undefined) {
      const more = trace.low ? ` (${say(trace.low[i], panel.y)} to ${say(trace.high[i], panel.y)})` : "";
      return {head: tell(panel.x, trace.x[i], "x"),
        rows: [{name: trace.name || panel.y.label, color: trace.color, value: say(trace.y[i], panel.y) + more}]};
    }
    const rows = [];
    for (const line of this.shown(panel)) {
      const at = line.kind === "cells" || line.kind === "bars" ? -1 : line.x.indexOf(lineAt);
      if (at < 0 || !known(line.y[at])) continue;
      const spread = line.low && known(line.low[at]) && line.high[at] > line.low[at]
        ? ` (${say(line.low[at], panel.y)} to ${say(line.high[at], panel.y)})` : "";
      rows.push({name: line.name || panel.title || panel.y.label, color: line.color, at: line.y[at],
        value: say(line.y[at], panel.y) + spread});
    }
    rows.sort((a, b) => b.at - a.at);
    return {head: tell(panel.x, lineAt, this.data.panels.at(-1).x.label || "x"), rows};
  }

  show(view, index, found) {
    const frame = view.frames[index], {head, rows} = this.describe(frame, found);
    this.leave();
    this.at = {view, index, found};
    const layer = draw("g", {class: "cursor"}, view.svg), [left, low, , high] = frame.box;
    let x, y = high + 8;
    if (found.lineAt !== undefined) {
      x = frame.x(found.lineAt);
      draw("line", {x1: x, x2: x, y1: low, y2: high, style: "stroke: var(--muted); stroke-width: 0.8; stroke-dasharray: 3 2"}, layer);
      for (const row of rows) {
        const at = frame.y(row.at);
        if (at !== null && at <= low + 1 && at >= high - 1) {
          draw("circle", {cx: x, cy: at, r: 3, style: `fill: ${row.color}; stroke: var(--card); stroke-width: 1`}, layer);
        }
      }
    } else {
      const {trace, i, j} = found;
      x = frame.x(trace.kind === "cells" ? trace.x[j] : trace.kind === "bars" ? trace.x[i] + trace.w[i] / 2 : trace.x[i]);
      y = frame.y(trace.kind === "bars" ? trace.y[i] + trace.h[i] / 2 : trace.y[i]);
      if (trace.kind === "points") draw("circle", {cx: x, cy: y, r: 5, style: "fill: none; stroke: var(--ink); stroke-width: 1.4"}, layer);
    }
    const more = rows.length - MOST_SHOWN;
    this.tip.replaceChildren(make("b", {text: capital(head)}), ...rows.slice(0, MOST_SHOWN).map((row) => {
      const mark = make("i", {class: "square"});
      mark.style.color = row.color ?? "transparent";
      return make("div", {}, mark, make("span", {text: row.name}), make("em", {text: row.value}));
    }), ...(more > 0 ? [make("div", {text: `and ${more} more`})] : []));
    this.placeTip(view, x, y);
    return `${head}: ${rows.map((row) => `${row.name} ${row.value}`.trim()).join("; ")}`;
  }

  placeTip(view, x, y) {
    const matrix = view.svg.getScreenCTM(), own = this.figure.getBoundingClientRect();
    const spot = new DOMPoint(x, y).matrixTransform(matrix);
    this.tip.classList.add("shown");
    const {offsetWidth: wide, offsetHeight: tall} = this.tip;
    const right = spot.x - own.left + 14, left = spot.x - own.left - 14 - wide;
    const across = right + wide <= own.width - 4 ? right : left >= 4 ? left : Math.max(4, own.width - wide - 4);
    this.tip.style.left = `${across}px`;
    this.tip.style.top = `${Math.min(Math.max(4, spot.y - own.top - 10), Math.max(4, own.height - tall - 4))}px`;
  }

  leave() {
    this.at = null;
    this.tip?.classList.remove("shown");
    for (const view of this.views) view.svg.querySelector(".cursor")?.remove();
  }

  step(view, event) {
    const moves = {ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity};
    const panels = {ArrowDown: 1, ArrowUp: -1};
    if (event.key === "Escape") return this.leave();
    if (!(event.key in moves) && !(event.key in panels)) return;
    const index = Math.min(Math.max((this.at?.index ?? 0) + (panels[event.key] ?? 0), 0), view.frames.length - 1);
    const stops = this.listStops(view.frames[index]);
    if (!stops.length) return;
    event.preventDefault();
    const same = (a, b) => a.lineAt === b.lineAt && a.trace === b.trace && a.i === b.i && a.j === b.j;
    const now = this.at && this.at.index === index ? stops.findIndex((stop) => same(stop, this.at.found)) : -1;
    const next = now < 0 ? 0 : Math.min(Math.max(now + (moves[event.key] ?? 0), 0), stops.length - 1);
    this.live.textContent = this.show(view, index, stops[next]);
  }

  listStops(frame) {
    const {panel} = frame, stops = [];
    const inside = (x) => { const at = frame.x(x); return at !== null && at >= frame.box[0] - 1 && at <= frame.box[2] + 1; };
    const lines = this.shown(panel).filter((trace) => trace.kind === "line").flatMap((trace) => trace.x.filter(known));
    stops.push(...[...new Set(lines)].filter(inside).sort((a, b) => a - b).map((lineAt) => ({lineAt})));
    for (const trace of this.shown(panel)) {
      if (trace.kind === "cells") trace.cells.forEach((row, i) => row.forEach((_, j) => stops.push({trace, i, j})));
      if (trace.kind === "bars" || (trace.kind === "points" && !lines.length)) trace.x.forEach((_, i) => stops.push({trace, i}));
    }
    return stops;
  }

  // ---- downloads ----
  name(ending) {
    const words = `${document.querySelector("h1").textContent} ${this.data.name}`;
    return `${words.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 80)}.${ending}`;
  }

  writeSvg() {
    this.leave();
    const view = this.views.find(({svg}) => svg.getBoundingClientRect().width > 0) ?? this.views[0];
    const copy = view.svg.cloneNode(true), {width, height} = view.svg.viewBox.baseVal;
    copy.querySelectorAll(".off").forEach((part) => part.setAttribute("display", "none"));  // others may use what is in it
    copy.removeAttribute("style");
    const over = this.writeLegend(width, copy), tall = height + over;
    const sizes = {width: `${width}pt`, height: `${tall}pt`, viewBox: `0 ${-over} ${width} ${tall}`};
    Object.entries(sizes).forEach(([key, value]) => copy.setAttribute(key, value));
    const back = document.createElementNS(SVG, "rect"), title = document.createElementNS(SVG, "title");
    const look = document.createElementNS(SVG, "style");
    Object.entries({y: -over, width, height: tall, fill: PRINT.card}).forEach(([key, value]) => back.setAttribute(key, value));
    title.textContent = this.title;
    look.textContent = `text { font-family: ${FONT} !important; }`;
    copy.prepend(title, look, back);
    const text = new XMLSerializer().serializeToString(copy);
    return {width, height: tall, text: text.replace(/var\(--(\w+)\)/g, (whole, name) => PRINT[name] ?? whole)};
  }

  // The legend of what is shown, above the figure; how high it is. Without buttons the figure has its own.
  writeLegend(width, into) {
    const shown = [...this.entries].filter(([name]) => !this.hidden.has(name));
    if (!this.entries.size) return 0;
    const layer = draw("g", {}, into), step = 15;
    let [x, row] = [8, 0];
    const spots = shown.map(([name, trace]) => {
      const wide = 24 + 5.4 * name.length;
      if (x > 8 && x + wide > width) [x, row] = [8, row + 1];
      x += wide + 6;
      return {name, trace, x: x - wide - 6, row};
    });
    const over = step * (row + 1) + 4;
    for (const {name, trace, x: left, row: line} of spots) {
      const y = -over + step * line + 9;
      if (trace.kind === "line") draw("rect", {x: left, y: y - 1, width: 14, height: 2, fill: trace.color}, layer);
      else draw("rect", {x: left + 3, y: y - 4, width: 8, height: 8, rx: trace.kind === "points" ? 4 : 1, fill: trace.color}, layer);
      draw("text", {x: left + 18, y: y + 3.2, "font-size": 9.5, fill: PRINT.ink, text: name}, layer);
    }
    return over;
  }

  saveSvg() { save(new Blob([this.writeSvg().text], {type: "image/svg+xml"}), this.name("svg")); }

  savePng() {
    const {width, height, text} = this.writeSvg(), scale = Math.max(2, 1600 / width), image = new Image();
    image.addEventListener("load", () => {
      const canvas = make("canvas", {width: Math.round(width * scale), height: Math.round(height * scale)});
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob((blob) => save(blob, this.name("png")), "image/png");
    });
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  }

  saveCsv(rows) {
    const text = rows.map((row) => row.map(quote).join(",")).join("\r\n") + "\r\n";
    save(new Blob(["\ufeff" + text], {type: "text/csv;charset=utf-8"}), this.name("csv"));
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

for (const {panels} of Object.values(NUMBERS)) {
  for (const bars of panels.flatMap((panel) => panel.traces).filter((trace) => trace.kind === "bars")) {
    for (const side of ["y", "w", "h"]) {  // what all bars share is written once
      if (bars[side].length === 1) bars[side] = bars.x.map(() => bars[side][0]);
    }
  }
}
for (const figure of document.querySelectorAll("figure[data-key]")) {
  const data = NUMBERS[figure.dataset.key];
  if (data) new Chart(figure, {...data, name: figure.dataset.key});
}
document.documentElement.classList.add("scripted");
})();
