// Where tokens lie on a drawing, in bond lengths: atoms are points, bonds pieces of lines, special tokens badges.

const BADGE = { width: 1.5, height: 0.62, gap: 0.25 };
const LOOP = 0.34;

/** One place per token: {kind, x, y} and, for a piece of a line, its two ends. */
function tokenPlaces(graph, tokens) {
  const sharing = sharers(tokens);
  const box = boundsOf(graph.nodes);
  let badges = 0;
  return tokens.map((token, place) => {
    if (token.kind === "special") return badgePlace(box, badges++);
    const ends = token.nodes.map((node) => graph.nodes[node]);
    if (token.kind === "node") return { kind: "node", x: ends[0].x, y: ends[0].y };
    if (ends.length === 2 && token.nodes[0] !== token.nodes[1]) return piecePlace(ends, sharing.get(place));
    if (ends.length === 2) return loopPlace(ends[0], box, sharing.get(place));
    return centrePlace(ends);
  });
}

function badgePlace(box, count) {
  const x = box.left + BADGE.width / 2 + count * (BADGE.width + BADGE.gap);
  return { kind: "badge", x, y: box.top - 1.15 };
}

/** Which tokens join the same two nodes: those that begin at the smaller one first, so that each lies at its start. */
function sharers(tokens) {
  const groups = new Map();
  tokens.forEach((token, place) => {
    if (token.kind === "special" || token.kind === "node") return;
    const key = [...token.nodes].sort((one, other) => one - other).join();
    groups.set(key, [...(groups.get(key) || []), place]);
  });
  const found = new Map();
  for (const group of groups.values()) {
    const ordered = [...group].sort((one, other) => tokens[one].nodes[0] - tokens[other].nodes[0] || one - other);
    const low = Math.min(...tokens[group[0]].nodes);
    ordered.forEach((token, place) => found.set(token, { place, count: ordered.length, low }));
    ordered.forEach((token) => (found.get(token).turned = tokens[token].nodes[0] !== low));
  }
  return found;
}

/** The part of a line that belongs to one of the tokens that share it. */
function piecePlace([begin, end], { place, count, turned }) {
  const [from, to] = turned ? [end, begin] : [begin, end];
  const at = (share) => ({ x: from.x + (to.x - from.x) * share, y: from.y + (to.y - from.y) * share });
  const [first, last, middle] = [at(place / count), at((place + 1) / count), at((place + 0.5) / count)];
  return { kind: "piece", x: middle.x, y: middle.y, x1: first.x, y1: first.y, x2: last.x, y2: last.y };
}

/** A loop leaves its node away from the middle of the drawing; several of them have different sizes. */
function loopPlace(node, box, { place }) {
  const [dx, dy] = [node.x - (box.left + box.right) / 2, node.y - (box.top + box.bottom) / 2];
  const length = Math.hypot(dx, dy);
  const [ux, uy] = length > 0.01 ? [dx / length, dy / length] : [0, -1];
  const radius = LOOP * (1 + 0.45 * place);
  return { kind: "loop", x: node.x + ux * radius, y: node.y + uy * radius, radius };
}

function centrePlace(ends) {
  const mean = (name) => ends.reduce((sum, end) => sum + end[name], 0) / Math.max(1, ends.length);
  return { kind: "centre", x: mean("x"), y: mean("y"), ends };
}

const QUARTERS = [Math.PI / 2, -Math.PI / 2, 0, Math.PI];
// Where hydrogens leave no room for a number. Beside a symbol they take both sides: a charge may be there.
const TAKEN = { right: [0, Math.PI], left: [0, Math.PI], above: [-Math.PI / 2], below: [Math.PI / 2] };

/** A place beside every node for its number: in the middle of the widest angle between its lines. */
function numberPlaces({ nodes, lines }) {
  const angles = nodes.map(() => []);
  for (const { begin, end } of lines) {
    const angle = Math.atan2(nodes[end].y - nodes[begin].y, nodes[end].x - nodes[begin].x);
    angles[begin].push(angle);
    angles[end].push(angle + Math.PI);
  }
  return nodes.map((node, place) => {
    // Hydrogens and charges take room beside the atom, and its number goes where they leave some.
    const beside = node.hydrogens || node.charge;
    const taken = node.hydrogens ? TAKEN[node.hydrogens_side] : [];
    const options = beside ? QUARTERS.filter((angle) => !taken.includes(angle)) : [];
    const angle = beside ? furthest(options, angles[place]) : widestGap(angles[place]);
    const away = node.written ? 0.5 : 0.4;
    return { x: node.x + away * Math.cos(angle), y: node.y + away * Math.sin(angle) };
  });
}

/** The one of some angles that is furthest from all others. */
function furthest(options, others) {
  const nearest = (angle) =>
    Math.min(...others.map((other) => Math.abs(Math.atan2(Math.sin(angle - other), Math.cos(angle - other)))), Math.PI);
  return options.reduce((best, angle) => (nearest(angle) > nearest(best) + 1e-6 ? angle : best));
}

/** The middle of the widest gap between angles. */
function widestGap(angles) {
  if (!angles.length) return Math.PI / 4;
  const turn = 2 * Math.PI;
  const sorted = angles.map((angle) => ((angle % turn) + turn) % turn).sort((one, other) => one - other);
  const gaps = sorted.map((angle, place) => [
    (place + 1 < sorted.length ? sorted[place + 1] : sorted[0] + turn) - angle,
    angle,
  ]);
  const [gap, angle] = gaps.reduce((best, next) => (next[0] > best[0] + 1e-6 ? next : best));
  return angle + gap / 2;
}

function boundsOf(points) {
  const [xs, ys] = [points.map((point) => point.x), points.map((point) => point.y)];
  if (!xs.length) return { left: 0, right: 0, top: 0, bottom: 0 };
  return { left: Math.min(...xs), right: Math.max(...xs), top: Math.min(...ys), bottom: Math.max(...ys) };
}

/** What is seen of the plane: all of the drawing, and never so little that a few atoms become huge. */
function viewOf(graph, places, [least, lowest]) {
  const { left, right, top, bottom } = boundsOf([...graph.nodes, ...places]);
  const [width, height] = [Math.max(right - left + 2, least), Math.max(bottom - top + 1.7, lowest)];
  return [(left + right - width) / 2, (top + bottom - height) / 2, width, height];
}

/** The nearest place in a direction (ArrowLeft and so on), or the same place if nothing lies there. */
function neighbour(places, from, key) {
  const [ux, uy] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[key];
  let [best, least] = [from, Infinity];
  places.forEach((place, token) => {
    const [dx, dy] = [place.x - places[from].x, place.y - places[from].y];
    const [along, aside] = [dx * ux + dy * uy, Math.abs(dx * uy - dy * ux)];
    const cost = along + 2 * aside;
    if (token !== from && along > 0.05 && aside < 1.5 * along + 0.02 && cost < least) [best, least] = [token, cost];
  });
  return best;
}
