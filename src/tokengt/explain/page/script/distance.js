// How far heads look: the mean number of steps between a token and those it attends to, by depth.

const FRAME = { left: 46, right: 14, top: 14, bottom: 40, height: 300 };

class DistancePanel {
  constructor(data, pick) {
    Object.assign(this, { data, pick, here: data.distance.graph, others: data.distance.validation });
    this.svg = shape("svg", { class: "chart", role: "img", "aria-label": this.words() });
    const holder = html("div", {}, this.svg);
    this.element = section(
      "distance",
      "How far heads look",
      "Attention distance: the mean number of steps, along edges, between a token and the tokens it attends to. Special tokens do not count. Click a dot to pick its head.",
      holder,
      this.legend(),
      data.distance.note ? html("p", { class: "faint" }, data.distance.note) : null,
      html("details", {}, html("summary", {}, "The numbers"), html("div", { class: "scrolled", tabindex: "0" }, this.table())),
    );
    onWidth(holder, (width) => {
      this.width = width;
      this.redraw();
    });
  }

  draw(state) {
    this.state = state;
    this.redraw();
  }

  redraw() {
    if (!this.width) return;
    const layers = this.here.length;
    const all = [...this.here.flat(), ...(this.others || []).flat()].filter((hops) => hops !== null);
    const top = Math.max(1, Math.ceil(Math.max(0, ...all) * 1.05));
    const x = (layer, share) => FRAME.left + ((layer + 0.5 + 0.6 * (share - 0.5)) / layers) * (this.width - FRAME.left - FRAME.right);
    const y = (hops) => FRAME.top + (1 - hops / top) * (FRAME.height - FRAME.top - FRAME.bottom);
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${FRAME.height}`);
    this.svg.replaceChildren(...this.axes(x, y, top), ...this.means(x, y), ...this.dots(x, y));
  }

  axes(x, y, top) {
    const lines = [];
    const every = Math.ceil(top / 6);
    for (let hops = 0; hops <= top; hops += every) {
      lines.push(shape("line", { class: "axis", x1: FRAME.left, x2: this.width - FRAME.right, y1: y(hops), y2: y(hops) }));
      lines.push(shape("text", { x: FRAME.left - 8, y: y(hops) + 4, "text-anchor": "end" }, String(hops)));
    }
    this.here.forEach((_, layer) => lines.push(shape("text", { x: x(layer, 0.5), y: FRAME.height - 22, "text-anchor": "middle" }, String(layer + 1))));
    lines.push(shape("text", { x: (FRAME.left + this.width) / 2, y: FRAME.height - 5, "text-anchor": "middle" }, "layer"));
    lines.push(shape("text", { x: 12, y: FRAME.height / 2 - 10, "text-anchor": "middle", transform: `rotate(-90 12 ${FRAME.height / 2 - 10})` }, "steps"));
    return lines;
  }

  means(x, y) {
    const path = (rows, name) => {
      const points = rows.map((heads, layer) => [layer, meanOf(heads)]).filter(([, hops]) => hops !== null);
      return shape("polyline", { class: name, points: points.map(([layer, hops]) => `${x(layer, 0.5)},${y(hops)}`).join(" ") });
    };
    return [path(this.here, "mean"), ...(this.others ? [path(this.others, "mean of-others")] : [])];
  }

  dots(x, y) {
    const found = [];
    this.here.forEach((heads, layer) =>
      heads.forEach((hops, head) => {
        const at = x(layer, heads.length > 1 ? head / (heads.length - 1) : 0.5);
        const other = this.others ? this.others[layer][head] : null;
        if (other !== null) found.push(diamond(at, y(other)));
        if (hops === null) return;
        const chosen = this.state && this.state.layer === layer && this.state.head === head;
        const title = shape("title", {}, `layer ${layer + 1}, head ${head + 1}: ${number(hops)} steps`);
        found.push(shape("circle", { class: "here", cx: at, cy: y(hops), r: 5, "data-pick": `${layer},${head}`, click: () => this.pick({ layer, head }) }, title));
        if (chosen) found.push(shape("circle", { class: "chosen", cx: at, cy: y(hops), r: 9 }));
      }),
    );
    return found;
  }

  legend() {
    const key = (icon, text) => html("li", {}, shape("svg", { viewBox: "0 0 16 12", "aria-hidden": "true" }, icon), text);
    const here = shape("g", { class: "chart" }, shape("circle", { class: "here", cx: 8, cy: 6, r: 5 }));
    const others = shape("g", { class: "chart" }, diamond(8, 6));
    return html(
      "ul",
      { class: "legend" },
      key(here, "a head, for this graph; the line is the mean over heads"),
      this.others ? key(others, `the same head, mean over ${this.data.distance.validation_graphs} graphs of the validation part; dashed: the mean over heads`) : null,
    );
  }

  words() {
    const means = this.here.map((heads, layer) => `layer ${layer + 1} ${number(meanOf(heads))}`);
    return `Mean attention distance in steps: ${means.join(", ")}.`;
  }

  table() {
    const heads = this.here.length ? this.here[0].length : 0;
    const head = html("tr", {}, html("th", { scope: "col" }, "layer"), ...Array.from({ length: heads }, (_, place) => html("th", { scope: "col" }, `head ${place + 1}`)));
    const rows = (values, name) => values.map((row, layer) => html("tr", {}, html("th", { scope: "row" }, `${layer + 1}${name}`), ...row.map((hops) => html("td", {}, number(hops)))));
    return html("table", { class: "plain" }, html("thead", {}, head), html("tbody", {}, ...rows(this.here, ""), ...(this.others ? rows(this.others, " (validation)") : [])));
  }
}

function diamond(x, y) {
  return shape("path", { class: "others", d: `M${x} ${y - 5}L${x + 5} ${y}L${x} ${y + 5}L${x - 5} ${y}Z` });
}

function meanOf(values) {
  const known = values.filter((value) => value !== null);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
}
