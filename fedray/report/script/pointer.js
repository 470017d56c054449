// Values under the pointer, and by arrow keys.
const VALUES_UNDER_THE_POINTER = {
  listen() {
    if (!this.data.panels.some((panel) => panel.traces.length)) return;
    const holder = this.svg.parentElement;
    holder.setAttribute("tabindex", "0");
    holder.setAttribute("role", "application");
    holder.setAttribute("aria-label", `${this.title}. Arrow keys read the values.`);
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => this.leave());
    holder.addEventListener("blur", () => this.leave());
    holder.addEventListener("keydown", (event) => this.step(event));
  },

  point(event) {
    const matrix = this.svg.getScreenCTM();
    if (!matrix) return;
    const {x, y} = new DOMPoint(event.clientX, event.clientY).matrixTransform(matrix.inverse());
    const index = this.frames.findIndex((frame) => frame.holds(x, y));
    const found = index < 0 ? null : this.pick(this.frames[index], x, y);
    if (found) this.show(index, found);
    else this.leave();
  },

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
  },

  // What is said of a place: a head line, and a row for each line or the one thing.
  describe({panel}, {lineAt, trace, i, j}) {
    if (lineAt === undefined && trace.kind === "cells") {
      const name = `${tell(panel.y, trace.y[i], "row")}, ${tell(panel.x, trace.x[j], "column")}`;
      return {head: name, rows: [{name: "", value: say(trace.cells[i][j], trace)}]};
    }
    if (lineAt === undefined && trace.kind === "bars") {
      const [along, size, across] = trace.lying ? [panel.y, "w", panel.x] : [panel.x, "h", panel.y];
      return {head: tell(along, trace.at[i], "x"),
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
      rows.push({name: line.name || panel.title, color: line.color, at: line.y[at],
        value: say(line.y[at], panel.y) + spread});
    }
    rows.sort((a, b) => b.at - a.at);
    return {head: tell(panel.x, lineAt, "x"), rows};
  },

  show(index, found) {
    const frame = this.frames[index], {head, rows} = this.describe(frame, found);
    this.leave();
    this.at = {index, found};
    const layer = draw("g", {class: "cursor"}, this.svg), [left, low, , high] = frame.box;
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
    this.placeTip(x, y);
    return `${head}: ${rows.map((row) => `${row.name} ${row.value}`.trim()).join("; ")}`;
  },

  placeTip(x, y) {
    const matrix = this.svg.getScreenCTM(), own = this.figure.getBoundingClientRect();
    const spot = new DOMPoint(x, y).matrixTransform(matrix);
    this.tip.classList.add("shown");
    const {offsetWidth: wide, offsetHeight: tall} = this.tip;
    const right = spot.x - own.left + 14, left = spot.x - own.left - 14 - wide;
    const across = right + wide <= own.width - 4 ? right : left >= 4 ? left : Math.max(4, own.width - wide - 4);
    this.tip.style.left = `${across}px`;
    this.tip.style.top = `${Math.min(Math.max(4, spot.y - own.top - 10), Math.max(4, own.height - tall - 4))}px`;
  },

  leave() {
    this.at = null;
    this.tip?.classList.remove("shown");
    this.svg.querySelector(".cursor")?.remove();
  },

  step(event) {
    const moves = {ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity};
    const panels = {ArrowDown: 1, ArrowUp: -1};
    if (event.key === "Escape") return this.leave();
    if (!(event.key in moves) && !(event.key in panels)) return;
    const turned = this.at ? this.at.index + (panels[event.key] ?? 0) : 0;
    const index = Math.min(Math.max(turned, 0), this.frames.length - 1);
    const stops = this.listStops(this.frames[index]);
    if (!stops.length) return;
    event.preventDefault();
    const same = (a, b) => a.lineAt === b.lineAt && a.trace === b.trace && a.i === b.i && a.j === b.j;
    const now = this.at && this.at.index === index ? stops.findIndex((stop) => same(stop, this.at.found)) : -1;
    const first = event.key === "End" ? stops.length - 1 : 0;
    const next = now < 0 ? first : Math.min(Math.max(now + (moves[event.key] ?? 0), 0), stops.length - 1);
    this.live.textContent = this.show(index, stops[next]);
  },

  // What the keys visit: lines and the dots beside them from left to right, then bars and cells in their order.
  listStops(frame) {
    const traces = this.shown(frame.panel), stops = [];
    const inside = ({x}) => { const at = frame.x(x); return at !== null && at >= frame.box[0] - 1 && at <= frame.box[2] + 1; };
    const lines = new Set(traces.filter((trace) => trace.kind === "line").flatMap((trace) => trace.x));
    const along = [...lines].map((x) => ({x, stop: {lineAt: x}}));
    for (const trace of traces) {
      if (trace.kind === "cells") trace.cells.forEach((row, i) => row.forEach((_, j) => stops.push({trace, i, j})));
      if (trace.kind === "bars") trace.x.forEach((_, i) => stops.push({trace, i}));
      if (trace.kind === "points") {
        trace.x.forEach((x, i) => { if (!lines.has(x) && frame.y(trace.y[i]) !== null) along.push({x, stop: {trace, i}}); });
      }
    }
    return [...along.filter(inside).sort((a, b) => a.x - b.x).map(({stop}) => stop), ...stops];
  },
};
