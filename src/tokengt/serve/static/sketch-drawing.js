// A molecule as SVG: lines for bonds, letters for atoms other than plain carbon, and places to click on.
import { crowdedSide, hydrogens, neighbours } from "./molecule.js";

const SVG = "http://www.w3.org/2000/svg";
// Bonds end so far before a letter, and the second line of a double bond is so far from the first.
const GAP = 0.3;
const APART = 0.16;
const SUBSCRIPTS = "₀₁₂₃₄₅₆₇₈₉";

export function element(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// The label of an atom, in parts to be written side by side; null for a carbon that is only a corner.
export function label(molecule, atom) {
  const { element: symbol, charge } = molecule.atoms[atom];
  const plain = symbol === "C" && !charge && neighbours(molecule, atom).length;
  if (plain) return null;
  const count = Math.max(0, hydrogens(molecule, atom) ?? 0);
  const written = count ? `H${count > 1 ? [...String(count)].map((digit) => SUBSCRIPTS[digit]).join("") : ""}` : "";
  const sign = charge ? `${Math.abs(charge) > 1 ? Math.abs(charge) : ""}${charge > 0 ? "+" : "−"}` : "";
  return { symbol, written, sign };
}

// Everything of the drawing, as a list of SVG elements; ``cursor`` is the atom that the keyboard acts on.
export function drawn(molecule, cursor) {
  const labels = molecule.atoms.map((_, atom) => label(molecule, atom));
  const parts = [];
  molecule.bonds.forEach((bond, place) => {
    parts.push(...bondLines(molecule, place, labels));
    const [a, b] = [molecule.atoms[bond.start], molecule.atoms[bond.end]];
    parts.push(element("line", { class: "hit", "data-bond": place, x1: a.x, y1: a.y, x2: b.x, y2: b.y }));
  });
  molecule.atoms.forEach((atom, place) => {
    if (labels[place]) parts.push(atomText(molecule, place, labels[place]));
    if ((hydrogens(molecule, place) ?? 0) < 0) {
      parts.push(element("circle", { class: "over", cx: atom.x, cy: atom.y, r: 0.36 }));
    }
    parts.push(element("circle", { class: "hit", "data-atom": place, cx: atom.x, cy: atom.y, r: 0.34 }));
  });
  if (molecule.atoms[cursor]) {
    const { x, y } = molecule.atoms[cursor];
    parts.push(element("circle", { class: "cursor", cx: x, cy: y, r: 0.42 }));
  }
  return parts;
}

function bondLines(molecule, place, labels) {
  const { start, end, order } = molecule.bonds[place];
  const [a, b] = [molecule.atoms[start], molecule.atoms[end]];
  const length = Math.hypot(b.x - a.x, b.y - a.y) || 1;
  const along = [(b.x - a.x) / length, (b.y - a.y) / length];
  const across = [-along[1], along[0]];
  const line = (shift, inset = 0) => {
    const from = (labels[start] ? GAP : 0) + inset;
    const to = length - (labels[end] ? GAP : 0) - inset;
    const at = (distance) => [a.x + along[0] * distance + across[0] * shift, a.y + along[1] * distance + across[1] * shift];
    const [[x1, y1], [x2, y2]] = [at(from), at(Math.max(to, from))];
    return element("line", { x1, y1, x2, y2 });
  };
  if (order === 1) return [line(0)];
  if (order === 3) return [line(0), line(APART, 0.04), line(-APART, 0.04)];
  const side = Math.sign(crowdedSide(molecule, place));
  return side ? [line(0), line(side * APART, 0.11)] : [line(APART / 2), line(-APART / 2)];
}

function atomText(molecule, place, { symbol, written, sign }) {
  const { x, y } = molecule.atoms[place];
  // Hydrogens are written on the side without bonds.
  const others = neighbours(molecule, place).map((other) => molecule.atoms[other].x - x);
  const left = others.length && others.every((shift) => shift > -0.2) && others.some((shift) => shift > 0.2);
  const text = element("text", { class: symbol, x, y });
  const letters = element("tspan", {}, symbol);
  const small = sign ? [element("tspan", { class: "small", dy: -0.16 }, sign)] : [];
  text.append(...(left ? [written, letters, ...small] : [letters, written, ...small]));
  // The symbol itself stands on the atom: what is beside it moves the middle of the text away.
  const beside = 0.28 * [...written].length;
  text.setAttribute("x", x + (left ? -beside / 2 : beside / 2) + (sign ? 0.1 : 0));
  return text;
}
