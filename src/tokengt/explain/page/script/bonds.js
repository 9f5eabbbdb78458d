// How bonds and atoms look on paper.

const APART = 0.15;
// Bonds end before what is written at an atom.
const ROOM = 0.27;
// How far above or below a symbol its hydrogens are written.
const LINE = 0.4;
// The circle of a node that is no atom.
const NODE = 0.26;

function bondShapes(bond, nodes) {
  const [begin, end] = [nodes[bond.begin], nodes[bond.end]];
  const line = { ...shortened(begin, end), ...directionOf(begin, end) };
  if (bond.style === "wedge") return [wedge(line)];
  if (bond.style === "hash") return hashes(line);
  if (bond.style === "wavy") return [wave(line)];
  if (bond.style === "double") return doubled(line, bond.side, null);
  if (bond.style === "aromatic") return doubled(line, bond.side || 1, "0.12 0.1");
  if (bond.style === "triple") return [straight(line, 0), straight(line, APART * 0.9), straight(line, -APART * 0.9)];
  return [straight(line, 0, 0, bond.style === "dative" ? "0.12 0.1" : null)];
}

function edgeShapes(edge, nodes) {
  if (edge.begin === edge.end) return [];
  const [begin, end] = [nodes[edge.begin], nodes[edge.end]];
  const { ux, uy } = directionOf(begin, end);
  const ends = { x1: begin.x + ux * NODE, y1: begin.y + uy * NODE, x2: end.x - ux * NODE, y2: end.y - uy * NODE };
  return [shape("line", { class: "edge", ...ends })];
}

function directionOf(begin, end) {
  const length = Math.hypot(end.x - begin.x, end.y - begin.y) || 1;
  // The normal points to the left of the way from begin to end, on a screen whose y grows downwards.
  return { ux: (end.x - begin.x) / length, uy: (end.y - begin.y) / length };
}

function shortened(begin, end) {
  const { ux, uy } = directionOf(begin, end);
  const [first, last] = [begin.written ? ROOM : 0, end.written ? ROOM : 0];
  return { x1: begin.x + ux * first, y1: begin.y + uy * first, x2: end.x - ux * last, y2: end.y - uy * last };
}

/** A line beside the bond's own: so far to its left, and shorter by so much at both ends. */
function straight(line, aside, inset = 0, dashes = null) {
  const [nx, ny] = [line.uy * aside, -line.ux * aside];
  return shape("line", {
    class: "bond",
    x1: line.x1 + nx + line.ux * inset,
    y1: line.y1 + ny + line.uy * inset,
    x2: line.x2 + nx - line.ux * inset,
    y2: line.y2 + ny - line.uy * inset,
    "stroke-dasharray": dashes,
  });
}

function doubled(line, side, dashes) {
  if (side === 0) return [straight(line, APART / 2, 0, dashes), straight(line, -APART / 2)];
  return [straight(line, 0), straight(line, side * APART, 0.12, dashes)];
}

function wedge({ x1, y1, x2, y2, ux, uy }) {
  const [nx, ny] = [uy * 0.11, -ux * 0.11];
  return shape("path", { class: "wedge", d: `M${x1} ${y1}L${x2 + nx} ${y2 + ny}L${x2 - nx} ${y2 - ny}Z` });
}

function hashes({ x1, y1, x2, y2, ux, uy }) {
  const count = 7;
  return Array.from({ length: count }, (_, place) => {
    const [share, half] = [(place + 0.5) / count, (0.13 * (place + 1)) / count];
    const [x, y] = [x1 + (x2 - x1) * share, y1 + (y2 - y1) * share];
    return shape("line", { class: "bond", x1: x + uy * half, y1: y - ux * half, x2: x - uy * half, y2: y + ux * half });
  });
}

function wave({ x1, y1, x2, y2, ux, uy }) {
  const waves = 4;
  let path = `M${x1} ${y1}`;
  for (let place = 1; place <= waves; place++) {
    const [middle, end] = [(place - 0.5) / waves, place / waves];
    const aside = place % 2 ? 0.2 : -0.2;
    const at = (share) => [x1 + (x2 - x1) * share, y1 + (y2 - y1) * share];
    const [[cx, cy], [x, y]] = [at(middle), at(end)];
    path += `Q${cx + uy * aside} ${cy - ux * aside} ${x} ${y}`;
  }
  return shape("path", { class: "bond", d: path });
}

/** The name of an atom with its hydrogens and charge, or the number of a node in its circle. */
function nodeLabel(kind, node, place) {
  if (kind !== "molecule") {
    const label = shape("text", { x: node.x, y: node.y, class: "small" }, String(place));
    return [shape("circle", { class: "node", cx: node.x, cy: node.y, r: NODE, "fill-opacity": 0 }), label];
  }
  if (!node.written) return [];
  const texts = [shape("text", { x: node.x, y: node.y }, node.symbol)];
  if (node.hydrogens) texts.push(hydrogens(node));
  if (node.charge) texts.push(charge(node));
  if (node.isotope) texts.push(shape("text", { class: "small left", ...corner(node, -1, -1) }, String(node.isotope)));
  return texts;
}

/** Half of the width of an atom's symbol. */
const halfOf = (node) => 0.16 * node.symbol.length;

/** A place beside a symbol, to the left (-1) or right (1) and above (-1) or below (1) of it. */
function corner(node, along, down) {
  return { x: node.x + along * halfOf(node), y: node.y + 0.2 * down };
}

function hydrogens({ hydrogens: count, hydrogens_side: side, ...node }) {
  const several = count > 1 ? [shape("tspan", { class: "below", dy: 0.12, "font-size": 0.28 }, String(count))] : [];
  const places = {
    right: { class: "right", x: node.x + halfOf(node), y: node.y },
    left: { class: "left", x: node.x - halfOf(node), y: node.y },
    above: { x: node.x, y: node.y - LINE },
    below: { x: node.x, y: node.y + LINE },
  };
  return shape("text", places[side], "H", ...several);
}

/** A charge stands where no bond leaves, behind hydrogens that stand there too. */
function charge(node) {
  const [vertical, horizontal] = node.charge_corner.split(" ");
  const at = corner(node, horizontal === "left" ? -1 : 1, vertical === "lower" ? 1 : -1);
  if (node.hydrogens && node.hydrogens_side === horizontal) at.x += node.hydrogens > 1 ? 0.46 : 0.32;
  return shape("text", { class: `small ${horizontal}`, ...at }, chargeText(node.charge));
}

function chargeText(charge) {
  return `${Math.abs(charge) > 1 ? Math.abs(charge) : ""}${charge > 0 ? "+" : "\u2212"}`;
}
