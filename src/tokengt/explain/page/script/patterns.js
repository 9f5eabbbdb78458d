// What kind of operation each head is: shares of its attention in the patterns of equivariant layers.

const COUNTS = [
  {
    value: "shares",
    name: "share",
    words:
      "The share of a pattern is how much of a head's attention is that pattern exactly, evenly over its tokens; " +
      "shares of a head sum to 100.",
  },
  {
    value: "mass",
    name: "amount",
    words:
      "The amount is how much attention falls on the tokens of a pattern, evenly or not; amounts of a head sum to 100.",
  },
  {
    value: "on_rows",
    name: "where possible",
    words:
      "The share over those tokens alone that have a token of the pattern to attend to: " +
      "a head that is one pattern has 100 there.",
  },
];
// Pixels that the longest role takes when it is written out.
const WORD = 56;
// One sign per role, for heads that have less room.
const ROLES = { self: "S", neighbour: "N", global: "G", special: "[ ]" };

class PatternsPanel {
  constructor(data, pick) {
    Object.assign(this, { data: data.patterns, words: data.words, pick, count: "shares", graph: 0 });
    this.holder = html("div", {
      class: "scrolled",
      tabindex: "0",
      role: "region",
      "aria-label": "Shares of patterns, one row per head",
    });
    this.readHolder = html("div", {
      class: "scrolled",
      tabindex: "0",
      role: "region",
      "aria-label": "What [graph] reads, one row per head",
    });
    this.title = html("h3", {});
    this.grid = html("div", { class: "scrolled" });
    this.meaning = html("p", { class: "faint" });
    this.controls = this.controlsOf();
    this.element = this.laidOut();
    onWidth(this.grid, () => this.state && this.draw(this.state));
  }

  controlsOf() {
    const graphs = this.data.graphs.map(({ name }, value) => ({ value, name }));
    const redraw = (change) => {
      Object.assign(this, change);
      this.draw(this.state);
    };
    const counts = choices("Count", COUNTS, (count) => redraw({ count }));
    const which = graphs.length > 1 ? choices("Of", graphs, (graph) => redraw({ graph })) : null;
    return { counts, which };
  }

  laidOut() {
    const { counts, which } = this.controls;
    return section(
      "patterns",
      "What each head does",
      `A layer that treats all ${this.words.nodes} alike can do few things: pass on what a token knows to itself, ` +
        `to tokens that share ${this.words.one_node} with it, or to all others. ` +
        "Here each head's attention is compared with these patterns.",
      html("div", { class: "controls" }, which ? which.element : null, counts.element),
      this.meaning,
      html("div", { class: "beside" }, html("div", {}, ...this.overviewParts()), html("div", {}, ...this.tableParts())),
      html("details", {}, html("summary", {}, "What the patterns are"), patternWords(this.data.columns)),
    );
  }

  overviewParts() {
    const read = this.data.read_columns.length
      ? [html("h3", {}, "What [graph] reads, in percent"), this.readHolder]
      : [];
    return [
      html("h3", {}, "Every head, by its strongest pattern"),
      this.grid,
      legendOfRoles(this.data.columns),
      ...read,
    ];
  }

  tableParts() {
    return [this.title, this.holder, scaleBar([{ ramp: "map" }], "0", "100 % of a head's attention")];
  }

  draw(state) {
    this.state = state;
    this.controls.counts.show(this.count);
    if (this.controls.which) this.controls.which.show(this.graph);
    this.meaning.textContent = COUNTS.find(({ value }) => value === this.count).words;
    const values = this.data.graphs[this.graph];
    this.title.textContent = `Heads of layer ${state.layer + 1}, in percent`;
    this.grid.replaceChildren(this.overview(values[this.count]));
    this.holder.replaceChildren(this.table(this.data.columns, values[this.count][state.layer]));
    this.readHolder.replaceChildren(this.table(this.data.read_columns, values.read[state.layer]));
  }

  /** One cell per head, with the role of its strongest pattern and the shade of that share. */
  overview(values) {
    const heads = values[0].length;
    const narrow = this.grid.clientWidth < heads * (WORD + 3) + WORD;
    const grid = html("div", { class: "heads", role: "grid", "aria-label": "Heads by their strongest pattern" });
    grid.style.gridTemplateColumns = `auto repeat(${heads}, minmax(${narrow ? 15 : WORD}px, 1fr))`;
    values.forEach((row, layer) => {
      const cells = row.map((shares, head) => this.cell(shares, layer, head, narrow));
      grid.append(html("div", { role: "row" }, html("span", { role: "rowheader" }, `layer ${layer + 1}`), ...cells));
    });
    return grid;
  }

  cell(shares, layer, head, narrow) {
    const { state, pick } = this;
    const { columns } = this.data;
    const known = shares.map((share, column) => (columns[column].role === "left over" ? 0 : (share ?? 0)));
    const best = known.indexOf(Math.max(...known));
    const { name, role } = columns[best];
    const chosen = state.layer === layer && state.head === head;
    const reached = chosen || (state.head === MEAN && state.layer === layer && head === 0);
    const label = `layer ${layer + 1}, head ${head + 1}: ${name}, ${percent(known[best])}`;
    const attributes = {
      type: "button",
      role: "gridcell",
      title: label,
      "aria-label": label,
      "aria-selected": String(chosen),
      tabindex: reached ? "0" : "-1",
      click: () => pick({ layer, head }),
      keydown: (event) => this.onKey(event, layer, head),
    };
    const cell = html("button", attributes, narrow ? ROLES[role] : role === "special" ? name : role);
    cell.style.background = colour("map", known[best]);
    cell.style.color = inkOn("map", known[best]);
    return cell;
  }

  async onKey(event, layer, head) {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (!(event.key in moves)) return;
    event.preventDefault();
    const values = this.data.graphs[0].shares;
    const within = (place, count) => Math.min(count - 1, Math.max(0, place));
    const [down, right] = moves[event.key];
    await this.pick({ layer: within(layer + down, values.length), head: within(head + right, values[0].length) });
    this.grid.querySelector('[aria-selected="true"]')?.focus();
  }

  /** One row per head and one column per pattern. */
  table(columns, heads) {
    const names = columns.map(({ name, sentence }) => slanted(name, sentence, columns));
    const rows = heads.map((shares, head) => this.row(shares, head));
    return html(
      "table",
      { class: "heat" },
      html("thead", {}, html("tr", {}, html("th", { scope: "col" }, "head"), ...names)),
      html("tbody", {}, ...rows),
    );
  }

  row(shares, head) {
    const chosen = String(this.state.head === head);
    const name = html("th", { scope: "row" }, `${head + 1}`);
    return html(
      "tr",
      { "data-pick": head, "aria-selected": chosen, click: () => this.pick({ head }) },
      name,
      ...shares.map((share) => shadedCell(share)),
    );
  }
}

function legendOfRoles(columns) {
  const words = {
    self: "self: the token itself",
    neighbour: "neighbour: tokens that share a node with it",
    global: "global: all other tokens",
    special: "a special token",
  };
  const roles = [...new Set(columns.map(({ role }) => role))].filter((role) => role !== "left over");
  return html(
    "ul",
    { class: "legend" },
    ...roles.map((role) => html("li", {}, html("b", {}, ROLES[role]), ` ${words[role]}`)),
  );
}

function patternWords(columns) {
  return html(
    "dl",
    { class: "patterns" },
    ...columns.map(({ name, sentence }) => html("div", {}, html("dt", {}, name), html("dd", {}, sentence))),
  );
}
