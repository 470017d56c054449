// Downloads.
const DOWNLOADS = {
  name(ending) {
    const words = `${document.querySelector("h1").textContent} ${this.key}`;
    return `${words.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 80)}.${ending}`;
  },

  writeSvg() {
    this.leave();
    const copy = this.svg.cloneNode(true), {width, height} = this.svg.viewBox.baseVal;
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
  },

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
  },

  saveSvg() { save(new Blob([this.writeSvg().text], {type: "image/svg+xml"}), this.name("svg")); },

  savePng() {
    const {width, height, text} = this.writeSvg(), scale = Math.max(2, 1600 / width), image = new Image();
    image.addEventListener("load", () => {
      const canvas = make("canvas", {width: Math.round(width * scale), height: Math.round(height * scale)});
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob((blob) => save(blob, this.name("png")), "image/png");
    });
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  },

  saveCsv(rows) {
    const text = rows.map((row) => row.map(quote).join(",")).join("\r\n") + "\r\n";
    save(new Blob(["\ufeff" + text], {type: "text/csv;charset=utf-8"}), this.name("csv"));
  },
};
