// The rows with the largest errors, drawn.

class WrongPanel {
  constructor(data) {
    Object.assign(this, { data, holder: html("ul", { class: "cards" }) });
    this.element = section(
      "wrong",
      "The worst predictions",
      "Rows of the file with the largest errors. Look for what they have in common, and for labels that are wrong.",
      this.holder,
    );
  }

  draw({ target }) {
    if (this.shown === target) return;
    this.shown = target;
    const { wrong, name } = this.data.targets[target];
    this.holder.replaceChildren(...wrong.map((row) => this.card(row, name)));
  }

  card({ name, label, prediction, error, picture }, target) {
    return html(
      "li",
      {},
      picture ? smallPicture(picture, `${name} drawn`) : html("p", { class: "faint" }, "too large to draw"),
      html("b", {}, name),
      html("span", {}, `${target}: ${label}`),
      html("span", {}, `predicted: ${prediction}`),
      this.data.task === "regression" ? html("span", { class: "faint" }, `off by ${number(error)}`) : null,
    );
  }
}

/** A graph without anything to pick; marked nodes are filled. */
function smallPicture(picture, label) {
  const tokens = picture.nodes.map((_, node) => ({ name: String(node), kind: "node", nodes: [node] }));
  const drawing = new GraphDrawing(picture, tokens, label, null, [5, 4]);
  drawing.svg.setAttribute("role", "img");
  drawing.paint(tokens.map((_, node) => ({ ramp: "raises", place: picture.marked.includes(node) ? 1 : 0, text: "" })));
  return drawing.svg;
}
