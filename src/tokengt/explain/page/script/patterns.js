// What kind of operation each head is: shares of its attention in the patterns of equivariant layers.

class PatternsPanel {
  constructor(data, pick) {
    Object.assign(this, { data, pick, columns: data.patterns.columns, shares: data.patterns.shares });
    this.holder = html("div", { class: "scrolled", tabindex: "0", role: "region", "aria-label": "Shares of patterns, one row per head" });
    this.title = html("h3", {});
    this.grid = html("div", {});
    this.element = section(
      "patterns",
      "What each head does",
      data.patterns.lead,
      html("h3", {}, "Every head, by its strongest pattern"),
      html("div", { class: "scrolled" }, this.grid),
      this.title,
      this.holder,
      scaleBar([{ ramp: "map" }], "0 %", "100 % of a head's attention"),
      html("h3", {}, "What the patterns are"),
      html("dl", { class: "patterns" }, ...this.columns.map(({ name, sentence }) => html("div", {}, html("dt", {}, name), html("dd", {}, sentence)))),
    );
  }

  draw(state) {
    this.title.textContent = `Heads of layer ${state.layer + 1}, share of attention by pattern`;
    this.grid.replaceChildren(this.overview(state));
    this.holder.replaceChildren(this.table(state));
  }

  /** One cell per head, with the letter of its strongest pattern and the shade of that share. */
  overview(state) {
    const heads = this.shares[0].length;
    const grid = html("div", { class: "heads", role: "grid", "aria-label": "Heads by their strongest pattern" });
    grid.style.gridTemplateColumns = `auto repeat(${heads}, minmax(0, ${heads > 12 ? 28 : 76}px))`;
    this.shares.forEach((row, layer) => {
      grid.append(html("span", {}, `layer ${layer + 1}`));
      row.forEach((shares, head) => grid.append(this.cell(state, shares, layer, head, heads > 12)));
    });
    return grid;
  }

  cell(state, shares, layer, head, narrow) {
    const known = shares.map((share) => share ?? 0);
    const best = known.indexOf(Math.max(...known));
    const chosen = state.layer === layer && state.head === head;
    const { name, short } = this.columns[best];
    const label = `layer ${layer + 1}, head ${head + 1}: ${name}, ${percent(known[best])}`;
    const cell = html(
      "button",
      { type: "button", role: "gridcell", title: label, "aria-label": label, "aria-selected": String(chosen), tabindex: chosen || (state.head === MEAN && layer === state.layer && head === 0) ? "0" : "-1", click: () => this.pick({ layer, head }), keydown: (event) => this.onKey(event, layer, head) },
      narrow ? short.slice(0, 2) : short,
    );
    cell.style.background = colour("map", known[best]);
    cell.style.color = inkOn("map", known[best]);
    return cell;
  }

  onKey(event, layer, head) {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (!(event.key in moves)) return;
    event.preventDefault();
    const [layers, heads] = [this.shares.length, this.shares[0].length];
    const [down, right] = moves[event.key];
    const next = { layer: Math.min(layers - 1, Math.max(0, layer + down)), head: Math.min(heads - 1, Math.max(0, head + right)) };
    Promise.resolve(this.pick(next)).then(() => this.grid.querySelector('[aria-selected="true"]')?.focus());
  }

  table(state) {
    const head = html("tr", {}, html("th", { scope: "col" }, "head"), ...this.columns.map(({ name, sentence }) => html("th", { scope: "col", class: "slanted", title: sentence }, html("span", {}, name))));
    const rows = this.shares[state.layer].map((shares, place) => this.row(state, shares, place));
    return html("table", { class: "heat" }, html("thead", {}, head), html("tbody", {}, ...rows));
  }

  row(state, shares, head) {
    const cells = shares.map((share) => {
      const cell = html("td", {}, share === null ? "–" : (100 * share).toFixed(0));
      cell.style.background = colour("map", share ?? 0);
      cell.style.color = inkOn("map", share ?? 0);
      return cell;
    });
    return html("tr", { "data-pick": head, "aria-selected": String(state.head === head), click: () => this.pick({ head }) }, html("th", { scope: "row" }, `${head + 1}`), ...cells);
  }
}
