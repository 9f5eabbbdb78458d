// How far heads look: the mean number of steps between a token and those it attends to, by depth.

class DistancePanel {
  constructor(data, pick) {
    const { graph, usual, usual_words, note } = data.distance;
    Object.assign(this, { pick, here: graph, usual, usualWords: usual_words });
    this.plot = this.plotted();
    this.element = section(
      "distance",
      "How far heads look",
      "Attention distance: the mean number of steps along edges between a token and the tokens it attends to, " +
        "special tokens left out. Click a dot to pick its head.",
      this.plot.element,
      this.legend(),
      note ? html("p", { class: "faint" }, note) : null,
      this.numbers(),
    );
  }

  draw(state) {
    this.state = state;
    this.plot.redraw();
  }

  plotted() {
    const all = [...(this.here || []), ...(this.usual || [])].flat();
    const layers = (this.here || this.usual).length;
    const ticks = Array.from({ length: layers }, (_, layer) => ({ at: layer, text: String(layer + 1) }));
    const axes = {
      x: { label: "layer", low: -0.5, high: layers - 0.5, ticks },
      y: { label: "steps", low: 0, high: Math.max(1, rangeOf(all).high) },
      label: this.words(),
    };
    return new Plot(axes, (plot) => this.marks(plot));
  }

  marks(plot) {
    const means = (rows) => rows.map((heads, layer) => [layer, meanOf(heads)]);
    if (this.usual) plot.line(means(this.usual), "mean of-others");
    if (this.here) plot.line(means(this.here), "mean");
    eachHead(this.usual, (hops, layer, head, x) => plot.diamond(x, hops, "others", headWords(layer, head, hops)));
    eachHead(this.here, (hops, layer, head, x) => {
      const picked = { "data-pick": `${layer},${head}`, click: () => this.pick({ layer, head }) };
      plot.dot(x, hops, "here", headWords(layer, head, hops), 5, picked);
    });
    eachHead(this.here || this.usual, (hops, layer, head, x) => {
      if (this.state && this.state.layer === layer && this.state.head === head) plot.dot(x, hops, "chosen", null, 9);
    });
  }

  legend() {
    const entries = [];
    if (this.here) entries.push([dotIcon("here"), "a head, for this graph; the line is the mean over heads"]);
    if (this.usual) entries.push([diamondIcon("others"), `a head, ${this.usualWords}; dashed: the mean over heads`]);
    return legend(...entries);
  }

  words() {
    const means = (this.here || this.usual).map((heads, layer) => `layer ${layer + 1} ${number(meanOf(heads))}`);
    return `Mean attention distance in steps: ${means.join(", ")}.`;
  }

  numbers() {
    const [first] = this.here || this.usual;
    const rows = (values, name) =>
      (values || []).map((heads, layer) => [`${layer + 1}${name}`, ...heads.map((hops) => number(hops))]);
    return numbersTable(
      ["layer", ...first.map((_, head) => `head ${head + 1}`)],
      [...rows(this.here, ""), ...rows(this.usual, " (validation)")],
    );
  }
}

/** Every head that has a distance, with its place on the axis of layers: heads of a layer stand side by side. */
function eachHead(rows, visit) {
  (rows || []).forEach((heads, layer) =>
    heads.forEach((hops, head) => {
      const aside = heads.length > 1 ? head / (heads.length - 1) - 0.5 : 0;
      if (hops !== null) visit(hops, layer, head, layer + 0.6 * aside);
    }),
  );
}

function headWords(layer, head, hops) {
  return `layer ${layer + 1}, head ${head + 1}: ${number(hops)} steps`;
}

function meanOf(values) {
  const known = values.filter((value) => value !== null);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
}
