// Pieces of molecules that move predictions most.

class SubstructuresPanel {
  constructor(data) {
    Object.assign(this, { data, holder: html("ul", { class: "cards" }) });
    const { looked_at } = data.substructures;
    this.menu =
      data.outputs.length > 1
        ? menu(
            "Prediction",
            data.outputs.map((name, value) => ({ value, name })),
            (output) => this.show(output),
          )
        : null;
    this.element = section(
      "substructures",
      "Substructures that move predictions",
      "Rings, functional groups and chains, each left out of the molecules that have it: the prediction minus the " +
        "prediction without the piece, mean over these molecules with its 95 % interval. " +
        `${looked_at} molecules were looked at. ` +
        "A molecule without a piece is none that the model was trained on: read large numbers with care.",
      this.menu ? html("div", { class: "controls" }, this.menu.element) : null,
      this.holder,
    );
    this.show(0);
  }

  draw() {}

  show(output) {
    if (this.menu) this.menu.show(output);
    const pieces = [...this.data.substructures.pieces].sort(
      (one, other) => Math.abs(other.change[output]) - Math.abs(one.change[output]),
    );
    const top = Math.max(...pieces.map(({ change }) => Math.abs(change[output])), 1e-12);
    this.holder.replaceChildren(...pieces.map((piece) => this.card(piece, output, top)));
  }

  card({ smiles, molecules, change, half_width, picture }, output, top) {
    const value = change[output];
    const width = half_width[output];
    const bar = html(
      "span",
      { class: "bar", "aria-hidden": "true" },
      twoSidedBar(value / top),
      html("i", { class: "middle" }),
    );
    return html(
      "li",
      {},
      picture ? smallPicture(picture, `${smiles} drawn`) : null,
      html("code", {}, smiles),
      bar,
      html("span", {}, `${signed(value)}${width === null ? "" : ` ± ${number(width, 2)}`}`),
      html("span", { class: "faint" }, `${molecules} molecules`),
    );
  }
}
