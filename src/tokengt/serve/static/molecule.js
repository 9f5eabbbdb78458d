// A drawn molecule: atoms {element, charge, x, y} and bonds {start, end, order}. A bond is 1 long, y points down.
// Every function returns a new molecule and leaves the old one as it is, so that undoing is keeping the old ones.

export const EMPTY = { atoms: [], bonds: [] };
// How many bonds an element has, hydrogens included: the least number that its drawn bonds fit into.
const VALENCES = { B: [3], C: [4], N: [3, 5], O: [2], F: [1], Si: [4], P: [3, 5], S: [2, 4, 6], Cl: [1], Br: [1], I: [1, 3, 5] };
// Closer than this is the same place.
const NEAR = 0.3;

export function addAtom(molecule, x, y, element = "C") {
  return { atoms: [...molecule.atoms, { element, charge: 0, x, y }], bonds: molecule.bonds };
}

export function join(molecule, start, end, order = 1) {
  if (start === end) return molecule;
  const place = bondBetween(molecule, start, end);
  if (place >= 0) return setOrder(molecule, place, order);
  return { atoms: molecule.atoms, bonds: [...molecule.bonds, { start, end, order }] };
}

// A new atom bonded to this one, where there is most room; or at a place that was pointed to.
export function attach(molecule, atom, element = "C", order = 1, angle = freeAngle(molecule, atom)) {
  const { x, y } = molecule.atoms[atom];
  const there = [x + Math.cos(angle), y + Math.sin(angle)];
  const found = atomAt(molecule, ...there);
  if (found >= 0) return join(molecule, atom, found, order);
  return join(addAtom(molecule, ...there, element), atom, molecule.atoms.length, order);
}

export function setElement(molecule, atom, element) {
  return changed(molecule, atom, { element });
}

export function addCharge(molecule, atom, step) {
  const charge = Math.max(-4, Math.min(4, molecule.atoms[atom].charge + step));
  return changed(molecule, atom, { charge });
}

export function setOrder(molecule, bond, order) {
  return { atoms: molecule.atoms, bonds: molecule.bonds.map((each, place) => (place === bond ? { ...each, order } : each)) };
}

// Single, double, triple, single.
export function nextOrder(molecule, bond) {
  return setOrder(molecule, bond, (molecule.bonds[bond].order % 3) + 1);
}

export function removeAtom(molecule, atom) {
  const after = (place) => (place > atom ? place - 1 : place);
  return {
    atoms: molecule.atoms.filter((_, place) => place !== atom),
    bonds: molecule.bonds
      .filter(({ start, end }) => start !== atom && end !== atom)
      .map((bond) => ({ ...bond, start: after(bond.start), end: after(bond.end) })),
  };
}

export function removeBond(molecule, bond) {
  return { atoms: molecule.atoms, bonds: molecule.bonds.filter((_, place) => place !== bond) };
}

// A ring of so many atoms: around a place, on an atom (which becomes part of it), or on a bond (which both rings share).
export function ringAround(molecule, x, y, size, aromatic) {
  const radius = ringRadius(size);
  const corners = ringCorners(x, y, radius, -Math.PI / 2, size);
  return ringOf(molecule, corners, aromatic);
}

export function ringOnAtom(molecule, atom, size, aromatic) {
  const { x, y } = molecule.atoms[atom];
  const angle = freeAngle(molecule, atom);
  const radius = ringRadius(size);
  const centre = [x + radius * Math.cos(angle), y + radius * Math.sin(angle)];
  return ringOf(molecule, ringCorners(...centre, radius, angle + Math.PI, size), aromatic);
}

export function ringOnBond(molecule, bond, size, aromatic) {
  const { start, end } = molecule.bonds[bond];
  const [a, b] = [molecule.atoms[start], molecule.atoms[end]];
  const length = Math.hypot(b.x - a.x, b.y - a.y) || 1;
  const normal = [-(b.y - a.y) / length, (b.x - a.x) / length];
  const side = crowdedSide(molecule, bond) > 0 ? -1 : 1;
  const height = side * (length / 2 / Math.tan(Math.PI / size));
  const centre = [(a.x + b.x) / 2 + normal[0] * height, (a.y + b.y) / 2 + normal[1] * height];
  const radius = length / 2 / Math.sin(Math.PI / size);
  const from = Math.atan2(a.y - centre[1], a.x - centre[0]);
  const turn = side > 0 ? -1 : 1;
  return ringOf(molecule, ringCorners(...centre, radius, from, size, turn), aromatic);
}

// The corners become atoms, those that are there already are used; in an aromatic ring every other bond is double.
function ringOf(molecule, corners, aromatic) {
  const places = [];
  let grown = molecule;
  for (const [x, y] of corners) {
    let place = atomAt(grown, x, y);
    if (place < 0) {
      place = grown.atoms.length;
      grown = addAtom(grown, x, y);
    }
    places.push(place);
  }
  const sides = places.map((place, corner) => [place, places[(corner + 1) % places.length]]);
  // Which half of the bonds is double: the half in which no atom would get a second double bond.
  const taken = (atom) => molecule.bonds.some((bond) => bond.order > 1 && (bond.start === atom || bond.end === atom));
  const clashes = [0, 1].map((half) => sides.filter(([a, b], side) => side % 2 === half && (taken(a) || taken(b))).length);
  const doubled = clashes[0] <= clashes[1] ? 0 : 1;
  sides.forEach(([a, b], side) => {
    if (bondBetween(grown, a, b) >= 0) return;
    const double = aromatic && side % 2 === doubled && !taken(a) && !taken(b);
    grown = join(grown, a, b, double ? 2 : 1);
  });
  return grown;
}

function ringRadius(size) {
  return 0.5 / Math.sin(Math.PI / size);
}

function ringCorners(x, y, radius, from, size, turn = 1) {
  return Array.from({ length: size }, (_, corner) => {
    const angle = from + (turn * 2 * Math.PI * corner) / size;
    return [x + radius * Math.cos(angle), y + radius * Math.sin(angle)];
  });
}

export function neighbours(molecule, atom) {
  return molecule.bonds.flatMap(({ start, end }) => (start === atom ? [end] : end === atom ? [start] : []));
}

export function bondBetween(molecule, a, b) {
  return molecule.bonds.findIndex(({ start, end }) => (start === a && end === b) || (start === b && end === a));
}

export function atomAt(molecule, x, y) {
  return molecule.atoms.findIndex((atom) => Math.hypot(atom.x - x, atom.y - y) < NEAR);
}

// Where a new bond of an atom goes: 120 degrees from a single neighbour, and otherwise the middle of the widest gap.
export function freeAngle(molecule, atom) {
  const { x, y } = molecule.atoms[atom];
  const angles = neighbours(molecule, atom)
    .map((other) => Math.atan2(molecule.atoms[other].y - y, molecule.atoms[other].x - x))
    .sort((a, b) => a - b);
  if (!angles.length) return -Math.PI / 6;
  if (angles.length === 1) {
    const options = [angles[0] + (2 * Math.PI) / 3, angles[0] - (2 * Math.PI) / 3];
    const room = (angle) => crowd(molecule, x + Math.cos(angle), y + Math.sin(angle));
    return room(options[0]) <= room(options[1]) ? options[0] : options[1];
  }
  const gaps = angles.map((angle, place) => {
    const next = place + 1 < angles.length ? angles[place + 1] : angles[0] + 2 * Math.PI;
    return [next - angle, angle];
  });
  const [gap, from] = gaps.reduce((widest, each) => (each[0] > widest[0] + 1e-6 ? each : widest));
  return from + gap / 2;
}

// How near other atoms are to a place; zig-zag chains come from asking this on both sides of an atom.
function crowd(molecule, x, y) {
  return molecule.atoms.reduce((sum, atom) => sum + 1 / (0.1 + Math.hypot(atom.x - x, atom.y - y) ** 2), 0);
}

// On which side of a bond its neighbours lie: above 0 for the left when one looks from its start, 0 for neither.
export function crowdedSide(molecule, bond) {
  const { start, end } = molecule.bonds[bond];
  const [a, b] = [molecule.atoms[start], molecule.atoms[end]];
  const others = [...neighbours(molecule, start), ...neighbours(molecule, end)].filter((atom) => atom !== start && atom !== end);
  const sides = others.map((atom) => {
    const other = molecule.atoms[atom];
    return Math.sign((b.x - a.x) * (other.y - a.y) - (b.y - a.y) * (other.x - a.x));
  });
  return sides.reduce((sum, side) => sum + side, 0);
}

// Hydrogens that an atom's bonds leave room for; below 0 where it has more bonds than it can have, null if not known.
export function hydrogens(molecule, atom) {
  const { element, charge } = molecule.atoms[atom];
  const known = VALENCES[element];
  if (!known) return null;
  const bonds = molecule.bonds.reduce((sum, { start, end, order }) => sum + (start === atom || end === atom ? order : 0), 0);
  // A charge takes a bond from carbon and boron's neighbours lose one, while N+ and O+ gain one, and N- and O- lose one.
  const shift = element === "C" || element === "Si" ? -Math.abs(charge) : element === "B" ? -charge : charge;
  const room = known.map((valence) => valence + shift).find((valence) => valence >= bonds);
  return room === undefined ? known[known.length - 1] + shift - bonds : room - bonds;
}

export function box(molecule) {
  const xs = molecule.atoms.map(({ x }) => x);
  const ys = molecule.atoms.map(({ y }) => y);
  return { left: Math.min(...xs), right: Math.max(...xs), top: Math.min(...ys), bottom: Math.max(...ys) };
}

function changed(molecule, atom, change) {
  return { atoms: molecule.atoms.map((each, place) => (place === atom ? { ...each, ...change } : each)), bonds: molecule.bonds };
}
