// A figure of the page with its legend, its buttons and its values; then all of them.
class Chart {
  constructor(figure, data) {
    Object.assign(this, {figure, data, hidden: new Set(), entries: new Map(), modes: new Set(), at: null});
    this.title = figure.querySelector("h3").textContent;
    [this.key, this.svg] = [figure.dataset.key, figure.querySelector("svg")];
    this.frames = data.frames.map((frame, i) => new Frame(data.panels[i], frame));
    this.listen();
    this.makeLegend();
    this.makeTools();
    this.tip = make("div", {class: "tip", "aria-hidden": "true"});
    this.live = make("div", {class: "unseen", "aria-live": "polite"});
    figure.append(this.tip, this.live);
  }

  find(id) { return document.getElementById(`${this.key}-${id}`); }

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
    this.data.panels.forEach((_, i) => this.find(`p${i}-legend`)?.classList.add("off"));
  }

  // ---- the buttons below the figure ----
  makeTools() {
    const row = make("div", {class: "tools", role: "group", "aria-label": `Tools of the figure: ${this.title}`});
    const can = (side) => this.data.panels.some((panel) => panel.scales.includes(side));
    const outside = this.frames.some((frame) => frame.panel.scales && this.isCut(frame));
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
    const every = Math.max(...this.data.panels.map((panel) => panel.every || 1));
    const some = every > 1 ? ` (1 of ${every} numbers)` : "";
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
}

Object.assign(Chart.prototype, NUMBERS_AS_ROWS, AXES_DRAWN_ANEW, VALUES_UNDER_THE_POINTER, DOWNLOADS);

for (const {panels} of Object.values(NUMBERS)) {
  for (const bars of panels.flatMap((panel) => panel.traces).filter((trace) => trace.kind === "bars")) {
    for (const side of ["y", "w", "h"]) {  // what all bars share is written once
      if (bars[side].length === 1) bars[side] = bars.x.map(() => bars[side][0]);
    }
  }
}
for (const figure of document.querySelectorAll("figure[data-key]")) {
  const data = NUMBERS[figure.dataset.key];
  if (data) new Chart(figure, data);
}
