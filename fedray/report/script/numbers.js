// The numbers as rows: a header, then one row a value.
const NUMBERS_AS_ROWS = {
  listRows() {
    const panels = this.data.panels.filter((panel) => panel.traces.length);
    if (!panels.length) return [];
    const traces = panels.flatMap((panel) => panel.traces);
    const several = panels.length > 1, named = traces.some((trace) => trace.name);
    const band = traces.some((trace) => trace.low);
    const [{x, y}] = panels;
    const across = panels.every((panel) => panel.x.label === x.label) ? x.label : "";
    const cells = traces.every((trace) => trace.kind === "cells");
    const lying = traces.some((trace) => trace.lying);
    const start = traces.some((trace) => trace.lying && trace.x.some((v) => v !== 0));
    const head = [...(several ? ["panel"] : []), ...(named ? ["series"] : []),
      ...(cells ? [y.label || "row", across || "column", "value"]
        : lying
          ? [y.label || "row", ...(start ? ["start"] : []), across || "value"]
          : [across || "x", several ? "value" : y.label || "value", ...(band ? ["low", "high"] : [])])];
    const rows = [head];
    for (const panel of panels) {
      for (const trace of panel.traces) {
        const who = [...(several ? [panel.title] : []), ...(named ? [trace.name] : [])];
        for (const row of this.listTrace(panel, trace, {band, start})) rows.push([...who, ...row]);
      }
    }
    return rows;
  },

  listTrace(panel, trace, {band, start}) {
    const text = (axis, value) => (known(value) ? nameOf(axis, value) ?? value : null);
    if (trace.kind === "cells") {
      return trace.cells.flatMap((row, i) => row.map((value, j) =>
        [text(panel.y, trace.y[i]), text(panel.x, trace.x[j]), value]));
    }
    if (trace.lying) {
      return trace.at.map((at, i) => [text(panel.y, at), ...(start ? [trace.x[i]] : []), trace.w[i]]);
    }
    if (trace.kind === "bars") {
      return trace.at.map((at, i) => [text(panel.x, at), trace.h[i], ...(band ? ["", ""] : [])]);
    }
    return trace.x.map((x, i) => [text(panel.x, x), text(panel.y, trace.y[i]),
      ...(band ? [trace.low?.[i] ?? "", trace.high?.[i] ?? ""] : [])]);
  },

  makeTable([head, ...rows]) {
    const body = make("tbody");
    for (const row of rows.slice(0, MOST_ROWS)) {
      body.append(make("tr", {}, ...row.map((v) => make("td", {text: say(v)}))));
    }
    const table = make("table", {}, make("caption", {class: "unseen", text: `Numbers of the figure: ${this.title}`}),
      make("thead", {}, make("tr", {}, ...head.map((text) => make("th", {scope: "col", text})))), body);
    const all = rows.length > MOST_ROWS ? [make("p", {text: `The first ${MOST_ROWS} of ${rows.length} rows; the CSV file has all.`})] : [];
    return make("div", {class: "sheet", tabindex: "0", role: "region", "aria-label": `Numbers of the figure: ${this.title}`},
      table, ...all);
  },
};
