// Who attends to whom: the drawing and the map of one layer and head, and of the token that a person has picked.

// So many curves are drawn, and so many rows listed, at most.
const SHOWN = 8;

class AttentionPanel {
  constructor(data, pick) {
    this.data = data;
    this.pick = pick;
    this.weights = new Weights(data.attention);
    this.drawing = new GraphDrawing(data.graph, data.tokens, "The graph; pick an atom or a bond", (token) =>
      pick({ token }),
    );
    this.map = new TokenMap(
      data.tokens,
      (token) => pick({ token }),
      (row, column, said) => this.point(row, column, said),
    );
    this.list = html("div", { "aria-live": "polite" });
    this.sentence = html("p", {});
    this.pointed = html("p", { class: "faint", id: "pointed" }, "\u00a0");
    this.element = this.laidOut();
  }

  laidOut() {
    const { data } = this;
    const { levels, mean_only } = data.attention;
    const rounded = `Weights are kept in steps of 1/${levels} of the largest weight of their row.`;
    this.scale = html("div", {});
    this.controls = this.controlsOf();
    return section(
      "attention",
      "Attention",
      `Pick a layer and a head, then ${data.words.either} on the drawing or a row of the map. Curves lead to the ` +
        `${SHOWN} tokens that get most of its attention; darker and larger means more.`,
      mean_only
        ? html("p", { class: "notice" }, "The graph is so large that the page keeps the mean over heads alone.")
        : null,
      html("div", { class: "controls" }, ...Object.values(this.controls).map(({ element }) => element)),
      html(
        "div",
        { class: "beside" },
        html("div", {}, html("figure", {}, this.drawing.svg, this.underDrawing()), this.sentence, this.list),
        html(
          "figure",
          {},
          this.map.element,
          html(
            "figcaption",
            {},
            this.pointed,
            html(
              "span",
              { id: "map-help" },
              "One row per token that attends, one column per token attended to. Click a row, or use the arrow keys. " +
                rounded,
            ),
          ),
        ),
      ),
    );
  }

  underDrawing() {
    const numbers = checkbox("numbers of atoms", true, (shown) => this.drawing.showNumbers(shown));
    this.drawing.showNumbers(true);
    return html("div", { class: "under" }, this.scale, this.data.graph.kind === "molecule" ? numbers : null);
  }

  controlsOf() {
    const { layers, heads, mean_only } = this.data.attention;
    const mean = { value: MEAN, name: "mean over heads" };
    const single = mean_only
      ? []
      : Array.from({ length: heads }, (_, head) => ({ value: head, name: `head ${head + 1}` }));
    const directions = [
      { value: "from", name: "it attends to" },
      { value: "to", name: "attends to it" },
    ];
    const scales = [
      { value: false, name: "each row" },
      { value: true, name: "all rows alike" },
    ];
    return {
      layer: slider("Layer", layers, (layer) => this.pick({ layer })),
      head: menu("Head", [mean, ...single], (head) => this.pick({ head })),
      direction: choices("Show what", directions, (direction) => this.pick({ direction })),
      alike: choices("Shade the map by", scales, (alike) => this.pick({ alike })),
    };
  }

  async draw(state) {
    const weights = await this.weights.of(state.layer, state.head);
    // Someone may have turned a knob while a layer was unpacked.
    if (this.state && this.state.turn > state.turn) return;
    this.state = state;
    this.current = weights;
    for (const [name, control] of Object.entries(this.controls)) control.show(state[name]);
    if (this.data.attention.mean_only) this.controls.head.show(MEAN);
    this.map.draw(weights, state.alike);
    this.map.select(state.token, state.direction === "to");
    this.drawRow(state, this.rowOf(state));
  }

  /** The weights from the picked token to all others, or from all others to it. */
  rowOf({ token, direction }) {
    const count = this.data.tokens.length;
    if (direction === "from") return this.current.subarray(token * count, (token + 1) * count);
    return Float32Array.from({ length: count }, (_, row) => this.current[row * count + token]);
  }

  drawRow(state, row) {
    const top = row.reduce((most, weight) => Math.max(most, weight), 0);
    const place = (weight) => (top > 0 ? weight / top : 0);
    this.drawing.paint(Array.from(row, (weight) => ({ ramp: "marker", place: place(weight), text: percent(weight) })));
    this.drawing.select(state.token);
    const best = [...row.keys()].sort((one, other) => row[other] - row[one]).slice(0, SHOWN);
    this.drawing.drawArcs(
      state.token,
      best.filter((token) => row[token] > 0).map((token) => ({ token, place: place(row[token]) })),
    );
    this.scale.replaceChildren(scaleBar([{ ramp: "marker" }], "0", `${percent(top)} of the attention`));
    this.list.replaceChildren(this.ranked(best, row, top));
    this.sentence.textContent = this.words(state, row);
    this.map.describe(this.sentence.textContent);
    this.point(state.token, null);
  }

  ranked(best, row, top) {
    const rows = best.map((token) => ({
      name: this.data.tokens[token].name,
      share: top > 0 ? row[token] / top : 0,
      text: percent(row[token]),
      pick: token,
    }));
    return ranking("Tokens with most attention", rows, (token) => this.pick({ token }));
  }

  words(state, row) {
    const { tokens, words } = this.data;
    const sums = { special: 0, node: 0, edge: 0, tuple: 0 };
    row.forEach((weight, token) => (sums[tokens[token].kind] += weight));
    const mean = state.head === MEAN || this.data.attention.mean_only;
    const head = mean ? "on average over its heads" : `in head ${state.head + 1}`;
    const where = `In layer ${state.layer + 1}, ${head}, ${tokens[state.token].name}`;
    if (state.direction === "to")
      return `${where} is attended to by the tokens below; each share is of the attention that they have to give.`;
    const parts = [
      [sums.node, words.nodes],
      [sums.edge + sums.tuple, words.edges],
      [sums.special, "special tokens"],
    ];
    return `${where} gives ${parts
      .filter(([sum]) => sum > 0)
      .map(([sum, name]) => `${percent(sum)} to ${name}`)
      .join(", ")}.`;
  }

  /** What lies under the pointer of the map. */
  point(row, column, said = false) {
    const { tokens } = this.data;
    const count = tokens.length;
    const text =
      column === null
        ? "\u00a0"
        : `${tokens[row].name} \u2192 ${tokens[column].name}: ${percent(this.current[row * count + column])}`;
    this.pointed.textContent = text;
    if (said) announce(text);
  }
}
