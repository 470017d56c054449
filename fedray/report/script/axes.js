// Axes drawn anew.
const AXES_DRAWN_ANEW = {
  redraw() {
    this.svg.querySelector(".anew")?.remove();
    const layer = draw("g", {class: "anew"}, this.svg);
    this.frames.forEach((frame, i) => this.redrawPanel(frame, i, layer));
    this.leave();
  },

  redrawPanel(frame, index, layer) {
    const {panel} = frame, visible = new Set(this.shown(panel));
    const log = {x: this.modes.has("x") && panel.scales.includes("x"), y: this.modes.has("y") && panel.scales.includes("y")};
    const changed = {x: log.x, y: log.y || (this.modes.has("all") && panel.scales !== "")};
    changed.x ||= this.modes.has("all") && panel.scales !== "";
    const anew = changed.x || changed.y;
    frame.log = {x: panel.x.log || log.x, y: panel.y.log || log.y};
    for (const side of ["x", "y"]) {
      frame.ends[side] = changed[side] ? this.findEnds(frame, side, visible) : frame.given[side];
      for (const part of this.find(`p${index}${side}`)?.children ?? []) {
        part.classList.toggle("off", changed[side] && part.id !== `${this.key}-p${index}${side}-label`);
      }
    }
    for (const trace of panel.traces) {
      for (const part of [this.find(trace.id), this.find(`${trace.id}-band`)]) {
        part?.classList.toggle("off", anew || !visible.has(trace));
      }
    }
    if (!anew) return;
    for (const side of ["x", "y"]) if (changed[side]) this.drawTicks(frame, side, layer);
    const clip = `${this.key}-anew-${index}`, [left, low, right, high] = frame.box;
    const hole = draw("clipPath", {id: clip}, layer);
    draw("rect", {x: left, y: high, width: right - left, height: low - high}, hole);
    const inside = draw("g", {"clip-path": `url(#${clip})`}, layer);
    for (const trace of visible) this.drawTrace(frame, trace, inside);
  },

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
  },

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
  },

  drawTrace(frame, trace, into) {
    const points = trace.x.map((x, i) => [frame.x(x), frame.y(trace.y[i]), i]);
    if (trace.low) {
      const ends = (side) => trace.x.map((x, i) => [frame.x(x), frame.y(trace[side][i]) ?? frame.box[1]]);
      const edge = [...ends("high"), ...ends("low").reverse()].filter(([x]) => x !== null);
      draw("path", {d: join(edge) + "z", style: `fill: ${trace.color}; opacity: 0.14`}, into);
    }
    if (trace.kind === "line") {
      const given = this.find(trace.id)?.querySelector("path")?.getAttribute("style") ?? `stroke: ${trace.color}`;
      draw("path", {d: join(points, trace.step), style: `${given}; fill: none`}, into);
    }
    if (trace.kind === "points" || points.length === 1) {
      for (const [x, y] of points) {
        if (x !== null && y !== null) draw("circle", {cx: x, cy: y, r: 2.6, style: `fill: ${trace.color}`}, into);
      }
    }
  },
};
