// The map of all tokens: one row per token that attends, one column per token that is attended to.

class TokenMap {
  constructor(tokens, onPick, onPoint) {
    Object.assign(this, { tokens, onPick, onPoint, count: tokens.length, row: 0, column: 0 });
    this.canvas = html("canvas", {
      width: this.count,
      height: this.count,
      tabindex: "0",
      role: "img",
      "aria-describedby": "map-help",
      click: (event) => this.onPick(this.cellAt(event)[0]),
      mousemove: (event) => this.onPoint(...this.cellAt(event)),
      mouseleave: () => this.onPoint(this.row, null),
      keydown: (event) => this.onKey(event),
    });
    this.overlay = shape("svg", {
      viewBox: `0 0 ${this.count} ${this.count}`,
      preserveAspectRatio: "none",
      "aria-hidden": "true",
    });
    this.element = this.framed();
  }

  framed() {
    const groups = groupsOf(this.tokens);
    const named = (group) => (group.count / this.count > 0.07 ? group.name : "");
    const span = (group) => {
      const label = html("span", { title: group.name }, named(group));
      label.style.flex = `${group.count} 1 0`;
      return label;
    };
    for (const group of groups.slice(1)) {
      this.overlay.append(shape("line", { x1: group.first, x2: group.first, y1: 0, y2: this.count }));
      this.overlay.append(shape("line", { y1: group.first, y2: group.first, x1: 0, x2: this.count }));
    }
    this.highlight = shape("rect", {});
    this.overlay.append(this.highlight);
    return html(
      "div",
      { class: "map-frame" },
      html("div", { class: "groups-top", "aria-hidden": "true" }, ...groups.map(span)),
      html("div", { class: "groups-left", "aria-hidden": "true" }, ...groups.map(span)),
      html("div", { class: "map" }, this.canvas, this.overlay),
    );
  }

  /** Draw weights [tokens, tokens], each row up to its own largest weight or all rows up to the largest of all. */
  draw(weights, rowsAlike) {
    const { count } = this;
    const image = new ImageData(count, count);
    const table = pixels("map");
    const largest = weights.reduce((most, weight) => Math.max(most, weight), 0);
    for (let row = 0; row < count; row++) {
      const own = weights.subarray(row * count, (row + 1) * count);
      const top = rowsAlike ? largest : own.reduce((most, weight) => Math.max(most, weight), 0);
      for (let column = 0; column < count; column++) {
        const shade = top > 0 ? Math.round((255 * own[column]) / top) : 0;
        image.data.set(table.subarray(4 * shade, 4 * shade + 4), 4 * (row * count + column));
      }
    }
    this.canvas.getContext("2d").putImageData(image, 0, 0);
  }

  /** Frame the row of a token, or its column. */
  select(token, column = false) {
    this.row = token;
    const sizes = column ? [token, 0, 1, this.count] : [0, token, this.count, 1];
    ["x", "y", "width", "height"].forEach((name, place) => this.highlight.setAttribute(name, sizes[place]));
  }

  describe(sentence) {
    this.canvas.setAttribute("aria-label", sentence);
  }

  cellAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const cell = (share) => Math.min(this.count - 1, Math.max(0, Math.floor(share * this.count)));
    return [cell((event.clientY - box.top) / box.height), cell((event.clientX - box.left) / box.width)];
  }

  onKey(event) {
    const last = this.count - 1;
    const rows = { ArrowUp: Math.max(0, this.row - 1), ArrowDown: Math.min(last, this.row + 1), Home: 0, End: last };
    const columns = { ArrowLeft: Math.max(0, this.column - 1), ArrowRight: Math.min(last, this.column + 1) };
    if (event.key in rows) this.onPick(rows[event.key]);
    else if (event.key in columns) this.onPoint(this.row, (this.column = columns[event.key]), true);
    else return;
    event.preventDefault();
  }
}

/** Runs of tokens of one kind, as they follow each other. */
function groupsOf(tokens) {
  const names = { special: "special", node: "nodes", edge: "edges", tuple: "tuples", ...tokens.names };
  const groups = [];
  tokens.forEach(({ kind }, place) => {
    const last = groups[groups.length - 1];
    if (last && last.kind === kind) last.count += 1;
    else groups.push({ kind, name: names[kind], first: place, count: 1 });
  });
  return groups;
}
