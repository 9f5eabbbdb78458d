// The drawing of a graph: lines and labels that stay, and marks behind them that say a number for every token.

class GraphDrawing {
  /**
   * @param onPick called with the token that a person clicks or goes to by the arrow keys; none: nothing is picked.
   * @param least how many bond lengths are seen at least, in width and in height.
   */
  constructor(graph, tokens, label, onPick = null, least = [9, 5.6]) {
    Object.assign(this, { graph, tokens, onPick, places: tokenPlaces(graph, tokens) });
    this.svg = shape("svg", {
      class: "graph",
      viewBox: viewOf(graph, this.places, least).join(" "),
      role: "group",
      "aria-label": label,
    });
    this.layers = ["marks", "lines", "rings", "labels", "numbers", "arcs", "picks"].map((name) =>
      shape("g", { class: name }),
    );
    this.svg.append(...this.layers);
    this.layer = Object.fromEntries(this.layers.map((layer) => [layer.getAttribute("class"), layer]));
    this.drawLines();
    this.layer.labels.append(...graph.nodes.flatMap((node, place) => nodeLabel(graph.kind, node, place)));
    this.marks = this.places.map((place) => markOf(place));
    this.layer.marks.append(...byDepth(this.marks, this.places));
    this.picks = onPick ? this.places.map((place, token) => this.pickOf(place, token)) : [];
    this.layer.picks.append(...byDepth(this.picks, this.places));
  }

  drawLines() {
    const { kind, nodes, lines } = this.graph;
    if (kind === "molecule") this.layer.lines.append(...lines.flatMap((line) => bondShapes(line, nodes)));
    else this.layer.lines.append(...lines.flatMap((line) => edgeShapes(line, nodes)));
    this.places.forEach((place, token) => {
      if (place.kind === "badge") this.layer.lines.append(badgeFrame(place));
      if (place.kind === "badge")
        this.layer.labels.append(shape("text", { x: place.x, y: place.y, class: "small" }, this.tokens[token].name));
      if (place.kind === "loop")
        this.layer.lines.append(shape("circle", { class: "edge", cx: place.x, cy: place.y, r: place.radius }));
      if (place.kind === "centre") this.layer.lines.append(...spokes(place));
    });
  }

  /** Small numbers beside the atoms, as the names of tokens have them. */
  showNumbers(shown) {
    this.layer.numbers.replaceChildren();
    if (!shown || this.graph.kind !== "molecule") return;
    this.layer.numbers.append(
      ...numberPlaces(this.graph).map(({ x, y }, place) => shape("text", { class: "number", x, y }, String(place))),
    );
  }

  /** Colour every token; each entry is {ramp, place, text}, place between 0 and 1. */
  paint(values) {
    values.forEach(({ ramp, place, text }, token) => {
      paintMark(this.marks[token], this.places[token], ramp, place);
      if (this.picks[token]) this.picks[token].setAttribute("aria-label", `${this.tokens[token].name}: ${text}`);
    });
  }

  /** Curves from one token to others, wider for more; each target is {token, place}. */
  drawArcs(from, targets) {
    this.layer.arcs.replaceChildren(
      ...targets
        .filter(({ token }) => token !== from)
        .map(({ token, place }) => arc(this.places[from], this.places[token], place)),
    );
  }

  select(token) {
    this.selected = token;
    this.layer.rings.replaceChildren(outline(this.places[token], "ring"));
    this.picks.forEach((pick, place) => {
      pick.setAttribute("tabindex", place === token ? "0" : "-1");
      pick.setAttribute("aria-pressed", String(place === token));
    });
  }

  pickOf(place, token) {
    const pick = outline(place, place.kind === "piece" ? "pick line" : "pick");
    pick.setAttribute("role", "button");
    pick.setAttribute("data-token", token);
    pick.append(shape("title", {}, this.tokens[token].name));
    pick.addEventListener("click", () => this.onPick(token));
    pick.addEventListener("keydown", (event) => this.onKey(event, token));
    return pick;
  }

  onKey(event, token) {
    if (event.key.startsWith("Arrow")) this.move(event, neighbour(this.places, token, event.key));
    else if (event.key === "Home") this.move(event, 0);
    else if (event.key === "End") this.move(event, this.tokens.length - 1);
    else if (event.key === "Enter" || event.key === " ") this.move(event, token);
  }

  move(event, token) {
    event.preventDefault();
    this.onPick(token);
    this.picks[token].focus();
  }
}

/** Lines under points, so that a point is hit where both are. */
function byDepth(elements, places) {
  const depth = { piece: 0, loop: 0, centre: 1, node: 2, badge: 2 };
  return elements
    .map((element, place) => [depth[places[place].kind], element])
    .sort((one, other) => one[0] - other[0])
    .map(([, element]) => element);
}

function markOf(place) {
  if (place.kind === "piece") return shape("path", { class: "mark" });
  if (place.kind === "badge") return badgeShape(place, "mark");
  return shape("circle", { class: "mark", cx: place.x, cy: place.y });
}

/** A mark in the colour of its number. Its size says the same, and a hollow mark that the number is negative. */
function paintMark(mark, place, ramp, value) {
  const hollow = ramp === "lowers" && value > 0;
  mark.style.fill = colour(ramp, hollow ? 0.35 * value : value);
  mark.style.stroke = hollow ? colour(ramp, 0.4 + 0.6 * value) : "none";
  if (place.kind === "piece") mark.setAttribute("d", band(place, value > 0 ? 0.08 + 0.11 * value : 0));
  else if (place.kind === "loop") mark.setAttribute("r", value > 0 ? place.radius : 0);
  else if (place.kind !== "badge") mark.setAttribute("r", value > 0 ? 0.22 + 0.2 * value : 0);
}

/** The outline of a piece of a line that is so wide to both sides. */
function band({ x1, y1, x2, y2 }, half) {
  const { ux, uy } = directionOf({ x: x1, y: y1 }, { x: x2, y: y2 });
  const [nx, ny] = [uy * half, -ux * half];
  return `M${x1 + nx} ${y1 + ny}L${x2 + nx} ${y2 + ny}L${x2 - nx} ${y2 - ny}L${x1 - nx} ${y1 - ny}Z`;
}

function badgeShape(place, name) {
  return shape("rect", {
    class: name,
    x: place.x - BADGE.width / 2,
    y: place.y - BADGE.height / 2,
    width: BADGE.width,
    height: BADGE.height,
    rx: 0.2,
  });
}

function badgeFrame(place) {
  const frame = badgeShape(place, "badge");
  frame.style.fill = "none";
  return frame;
}

/** The outline of a token: a ring around what is picked, or what is hit, which is smaller to leave room for bonds. */
function outline(place, name) {
  const radius = name === "ring" ? 0.42 : 0.3;
  if (place.kind === "piece")
    return shape("line", { class: name, x1: place.x1, y1: place.y1, x2: place.x2, y2: place.y2 });
  if (place.kind === "badge") return badgeShape(place, name);
  return shape("circle", { class: name, cx: place.x, cy: place.y, r: place.kind === "loop" ? place.radius : radius });
}

function spokes(place) {
  return [
    ...place.ends.map((end) => shape("line", { class: "spoke", x1: place.x, y1: place.y, x2: end.x, y2: end.y })),
    shape("rect", { class: "node", x: place.x - 0.14, y: place.y - 0.14, width: 0.28, height: 0.28, fill: "none" }),
  ];
}

/** A curve from one place to another, which leaves what is written at both of them readable. */
function arc(from, to, value) {
  const [start, end] = [arcEnd(from, to), arcEnd(to, from)];
  const [dx, dy] = [end.x - start.x, end.y - start.y];
  const [cx, cy] = [(start.x + end.x) / 2 - dy * 0.2, (start.y + end.y) / 2 + dx * 0.2];
  const path = shape("path", { class: "arc", d: `M${start.x} ${start.y}Q${cx} ${cy} ${end.x} ${end.y}` });
  path.style.strokeWidth = 0.02 + 0.08 * value;
  path.style.opacity = 0.35 + 0.5 * value;
  return path;
}

function arcEnd(place, other) {
  if (place.kind === "badge") return { x: place.x, y: place.y + (Math.sign(other.y - place.y) * BADGE.height) / 2 };
  if (place.kind !== "node") return place;
  const { ux, uy } = directionOf(place, other);
  return { x: place.x + 0.2 * ux, y: place.y + 0.2 * uy };
}
