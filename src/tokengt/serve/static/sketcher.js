// The sketcher: tools, a canvas, and what clicks, drags and keys do with them. The molecule itself is in molecule.js.
import * as chem from "./molecule.js";
import { drawn, element } from "./sketch-drawing.js";

const ELEMENTS = ["C", "N", "O", "F", "P", "S", "Cl", "Br", "I"];
const NAMES = { C: "carbon", N: "nitrogen", O: "oxygen", F: "fluorine", P: "phosphorus", S: "sulfur", Cl: "chlorine", Br: "bromine", I: "iodine", B: "boron" };
const ORDERS = ["single", "double", "triple"];
const RINGS = {
  benzene: [6, true, "Benzene ring", "M11 3 18 7v8l-7 4-7-4V7z M11 6.2 15.3 8.6 M15.3 13.4 11 15.8 M6.6 8.6v4.8"],
  six: [6, false, "Ring of six", "M11 3 18 7v8l-7 4-7-4V7z"],
  five: [5, false, "Ring of five", "M11 3.5 18.5 9l-2.9 8.7H6.4L3.5 9z"],
  three: [3, false, "Ring of three", "M11 4 18 17H4z"],
};
const ICONS = {
  single: "M4 17 18 5",
  double: "M3 14.5 16 4 M6 18 19 7.5",
  triple: "M2.5 13 14 4 M4.8 16 17.2 6 M8 18.6 19.5 9.4",
  eraser: "M8 18h11 M5.5 15.5 13 4.5l6 4-6.2 9.5H8z M8.6 11 14.5 15",
  undo: "M8 4 4 8l4 4 M4 8h9a5 5 0 0 1 0 10H8",
  redo: "M14 4l4 4-4 4 M18 8H9a5 5 0 0 0 0 10h5",
  tidy: "M4 18 12 10 M14 4l1.2 2.8L18 8l-2.8 1.2L14 12l-1.2-2.8L10 8l2.8-1.2z",
  clear: "M5 5l12 12 M17 5 5 17",
};
const HISTORY = 200;
// The canvas shows at least so many lengths of a bond from top to bottom.
const LEAST_HEIGHT = 8.5;
// Drags shorter than this are clicks; directions are rounded to these steps.
const CLICK = 0.28;
const STEP = Math.PI / 12;

export class Sketcher extends EventTarget {
  // Fires "change" when the molecule has changed, and "tidy" when somebody wants it laid out anew.
  constructor(home) {
    super();
    this.molecule = chem.EMPTY;
    this.past = [];
    this.future = [];
    this.tool = "C";
    this.order = 1;
    this.cursor = 0;
    this.canvas = element("svg", {
      class: "canvas",
      tabindex: 0,
      role: "application",
      "aria-label": "Drawing of a molecule",
      "aria-describedby": "sketch-keys",
    });
    this.told = Object.assign(document.createElement("p"), { className: "unseen" });
    this.told.setAttribute("aria-live", "polite");
    home.append(this.tools(), this.canvas, this.told, keysHelp());
    this.canvas.addEventListener("pointerdown", (event) => this.press(event));
    this.canvas.addEventListener("pointermove", (event) => this.drag(event));
    this.canvas.addEventListener("pointerup", (event) => this.release(event));
    this.canvas.addEventListener("pointercancel", () => this.stopDrag());
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    this.draw();
  }

  // Put a molecule in place of the one that is there; undo brings that back.
  show(molecule) {
    this.become(molecule);
    this.cursor = 0;
    this.fit();
  }

  become(molecule) {
    if (molecule === this.molecule) return;
    this.past = [...this.past.slice(1 - HISTORY), this.molecule];
    this.future = [];
    this.molecule = molecule;
    this.changed();
  }

  undo() {
    if (!this.past.length) return;
    this.future = [this.molecule, ...this.future];
    this.molecule = this.past.pop();
    this.changed();
  }

  redo() {
    if (!this.future.length) return;
    this.past.push(this.molecule);
    this.molecule = this.future.shift();
    this.changed();
  }

  changed() {
    this.cursor = Math.max(0, Math.min(this.cursor, this.molecule.atoms.length - 1));
    this.draw();
    this.dispatchEvent(new Event("change"));
  }

  tools() {
    const bar = Object.assign(document.createElement("div"), { className: "tools" });
    bar.setAttribute("role", "toolbar");
    bar.setAttribute("aria-label", "Tools of the drawing");
    this.pressed = new Map();
    const group = (...buttons) => {
      const box = document.createElement("div");
      box.append(...buttons);
      bar.append(box);
    };
    group(...ELEMENTS.map((symbol) => this.choice(symbol, NAMES[symbol], symbol)));
    group(...ORDERS.map((name, place) => this.choice(place + 1, `Bonds are ${name}`, icon(ICONS[name]))));
    group(...Object.entries(RINGS).map(([name, [, , title, path]]) => this.choice(name, title, icon(path))));
    group(this.choice("plus", "Charge up", "+"), this.choice("minus", "Charge down", "−"), this.choice("eraser", "Delete", icon(ICONS.eraser)));
    this.undoButton = button("Undo", icon(ICONS.undo), () => this.undo());
    this.redoButton = button("Redo", icon(ICONS.redo), () => this.redo());
    const tidy = button("Tidy up", icon(ICONS.tidy), () => this.dispatchEvent(new Event("tidy")));
    group(this.undoButton, this.redoButton, tidy, button("Clear", icon(ICONS.clear), () => this.show(chem.EMPTY)));
    return bar;
  }

  choice(name, title, content) {
    const made = button(title, content, () => this.choose(name));
    this.pressed.set(name, made);
    this.mark();
    return made;
  }

  choose(name) {
    if (typeof name === "number") this.order = name;
    else this.tool = name;
    this.mark();
  }

  mark() {
    for (const [name, made] of this.pressed) made.setAttribute("aria-pressed", String(name === this.tool || name === this.order));
  }

  get pen() {
    return ELEMENTS.includes(this.tool) ? this.tool : "C";
  }

  // What a click does, by what it hits and the tool that is chosen.
  clickAtom(atom) {
    const molecule = this.molecule;
    const [size, aromatic] = RINGS[this.tool] ?? [];
    if (size) this.become(chem.ringOnAtom(molecule, atom, size, aromatic));
    else if (this.tool === "eraser") this.become(chem.removeAtom(molecule, atom));
    else if (this.tool === "plus" || this.tool === "minus") this.become(chem.addCharge(molecule, atom, this.tool === "plus" ? 1 : -1));
    else if (molecule.atoms[atom].element !== this.pen) this.become(chem.setElement(molecule, atom, this.pen));
    else this.become(chem.attach(molecule, atom, this.pen, this.order));
  }

  clickBond(bond) {
    const molecule = this.molecule;
    const [size, aromatic] = RINGS[this.tool] ?? [];
    if (size) this.become(chem.ringOnBond(molecule, bond, size, aromatic));
    else if (this.tool === "eraser") this.become(chem.removeBond(molecule, bond));
    else if (this.order > 1 && molecule.bonds[bond].order !== this.order) this.become(chem.setOrder(molecule, bond, this.order));
    else this.become(chem.nextOrder(molecule, bond));
  }

  clickPlace({ x, y }) {
    const [size, aromatic] = RINGS[this.tool] ?? [];
    if (size) this.become(chem.ringAround(this.molecule, x, y, size, aromatic));
    else if (ELEMENTS.includes(this.tool)) this.become(chem.addAtom(this.molecule, x, y, this.pen));
    this.cursor = this.molecule.atoms.length - 1;
    this.draw();
  }

  press(event) {
    const { atom, bond } = hit(event.target);
    this.held = { atom, bond, from: this.place(event), moved: false };
    this.canvas.setPointerCapture(event.pointerId);
    this.canvas.focus({ preventScroll: true });
    event.preventDefault();
  }

  drag(event) {
    if (!this.held) return;
    const there = this.place(event);
    const { from, atom } = this.held;
    if (Math.hypot(there.x - from.x, there.y - from.y) > CLICK) this.held.moved = true;
    if (!this.held.moved || atom === undefined || this.tool === "eraser") return;
    const end = this.aim(atom, there);
    const start = this.molecule.atoms[atom];
    this.rubber ??= this.canvas.appendChild(element("line", { class: "rubber" }));
    for (const [name, value] of Object.entries({ x1: start.x, y1: start.y, x2: end.x, y2: end.y })) this.rubber.setAttribute(name, value);
  }

  release(event) {
    const held = this.held;
    this.stopDrag();
    if (!held) return;
    if (held.moved && held.atom !== undefined && this.tool !== "eraser") {
      const end = this.aim(held.atom, this.place(event));
      if (end.atom !== undefined) this.become(chem.join(this.molecule, held.atom, end.atom, this.order));
      else this.become(chem.attach(this.molecule, held.atom, this.pen, this.order, end.angle));
    } else if (held.atom !== undefined) {
      this.cursor = held.atom;
      this.clickAtom(held.atom);
    } else if (held.bond !== undefined) this.clickBond(held.bond);
    else if (!held.moved) this.clickPlace(held.from);
  }

  stopDrag() {
    this.held = undefined;
    this.rubber?.remove();
    this.rubber = undefined;
  }

  // Where a bond that is dragged from an atom ends: at another atom, or one length away in a round direction.
  aim(atom, { x, y }) {
    const other = chem.atomAt(this.molecule, x, y);
    if (other >= 0 && other !== atom) return { ...this.molecule.atoms[other], atom: other };
    const start = this.molecule.atoms[atom];
    const angle = Math.round(Math.atan2(y - start.y, x - start.x) / STEP) * STEP;
    return { x: start.x + Math.cos(angle), y: start.y + Math.sin(angle), angle };
  }

  key(event) {
    const { molecule, cursor } = this;
    const some = molecule.atoms.length > 0;
    const letter = ELEMENTS.find((symbol) => symbol.toLowerCase() === { l: "cl", b: "br" }[event.key] || symbol.toLowerCase() === event.key);
    if (event.ctrlKey || event.metaKey) {
      if (event.key === "z") this.undo();
      else if (event.key === "y") this.redo();
      else return;
    } else if (event.key.startsWith("Arrow")) this.walk(event.key.slice(5));
    else if (event.key === "Enter") {
      if (!some) this.clickPlace(this.middle());
      else this.clickAtomByKey(cursor);
    } else if (letter) {
      if (some) this.become(chem.setElement(molecule, cursor, letter));
      else this.become(chem.addAtom(molecule, this.middle().x, this.middle().y, letter));
    } else if ("123".includes(event.key)) this.choose(Number(event.key));
    else if (some && (event.key === "+" || event.key === "-")) this.become(chem.addCharge(molecule, cursor, event.key === "+" ? 1 : -1));
    else if (some && (event.key === "Delete" || event.key === "Backspace")) this.become(chem.removeAtom(molecule, cursor));
    else return;
    event.preventDefault();
    this.tell();
  }

  // The keyboard has letters for elements, so that Enter always adds: a ring, or an atom that becomes the next cursor.
  clickAtomByKey(atom) {
    if (RINGS[this.tool] || this.tool === "eraser" || this.tool === "plus" || this.tool === "minus") {
      this.clickAtom(atom);
      return;
    }
    const before = this.molecule.atoms.length;
    this.become(chem.attach(this.molecule, atom, this.pen, this.order));
    if (this.molecule.atoms.length > before) this.cursor = before;
    this.draw();
  }

  walk(direction) {
    const here = this.molecule.atoms[this.cursor];
    if (!here) return;
    const [dx, dy] = { Left: [-1, 0], Right: [1, 0], Up: [0, -1], Down: [0, 1] }[direction];
    const cost = ({ x, y }) => {
      const [along, across] = [(x - here.x) * dx + (y - here.y) * dy, Math.abs((x - here.x) * dy) + Math.abs((y - here.y) * dx)];
      return along > 0.05 ? along + 2 * across : Infinity;
    };
    const costs = this.molecule.atoms.map(cost);
    const best = costs.indexOf(Math.min(...costs));
    if (costs[best] < Infinity) this.cursor = best;
    this.draw();
  }

  tell() {
    const atom = this.molecule.atoms[this.cursor];
    this.told.textContent = atom
      ? `${NAMES[atom.element] ?? atom.element} ${this.cursor + 1} of ${this.molecule.atoms.length}, ${chem.neighbours(this.molecule, this.cursor).length} bonds`
      : "nothing is drawn";
  }

  place(event) {
    const there = new DOMPoint(event.clientX, event.clientY).matrixTransform(this.canvas.getScreenCTM().inverse());
    return { x: there.x, y: there.y };
  }

  middle() {
    const { x, y, width, height } = this.canvas.viewBox.baseVal;
    return { x: x + width / 2, y: y + height / 2 };
  }

  // The part of the plane that is shown: it grows with the drawing, and keeps its place while it suffices.
  fit() {
    const { width, height } = this.canvas.getBoundingClientRect();
    const shape = width && height ? width / height : 2;
    let [tall, middle] = [LEAST_HEIGHT, { x: 0, y: 0 }];
    if (this.molecule.atoms.length) {
      const { left, right, top, bottom } = chem.box(this.molecule);
      tall = Math.max(LEAST_HEIGHT, bottom - top + 3, (right - left + 3) / shape);
      middle = { x: (left + right) / 2, y: (top + bottom) / 2 };
    }
    this.view = { x: middle.x - (tall * shape) / 2, y: middle.y - tall / 2, width: tall * shape, height: tall };
    this.draw();
  }

  holds() {
    if (!this.molecule.atoms.length) return true;
    const { left, right, top, bottom } = chem.box(this.molecule);
    const { x, y, width, height } = this.view;
    return left > x + 0.5 && right < x + width - 0.5 && top > y + 0.5 && bottom < y + height - 0.5;
  }

  draw() {
    const { width, height } = this.canvas.getBoundingClientRect();
    const shape = width && height ? width / height : 2;
    if (!this.view || Math.abs(this.view.width / this.view.height - shape) > 0.01 || !this.holds()) {
      this.fit();
      return;
    }
    const { x, y, width: wide, height: tall } = this.view;
    this.canvas.setAttribute("viewBox", `${x} ${y} ${wide} ${tall}`);
    const hint = element("text", { class: "hint", x: x + wide / 2, y: y + tall / 2 }, "Click to begin, or choose a ring");
    this.canvas.replaceChildren(...(this.molecule.atoms.length ? drawn(this.molecule, this.cursor) : [hint]));
    this.undoButton.disabled = !this.past.length;
    this.redoButton.disabled = !this.future.length;
  }
}

function hit(target) {
  const { atom, bond } = target.dataset ?? {};
  return { atom: atom === undefined ? undefined : Number(atom), bond: bond === undefined ? undefined : Number(bond) };
}

function icon(path) {
  return element("svg", { viewBox: "0 0 22 22", "aria-hidden": "true" }, element("path", { d: path }));
}

function button(title, content, act) {
  const made = Object.assign(document.createElement("button"), { type: "button", title });
  made.setAttribute("aria-label", title);
  made.append(content);
  made.addEventListener("click", act);
  return made;
}

function keysHelp() {
  const help = Object.assign(document.createElement("p"), { className: "keys", id: "sketch-keys" });
  const key = (name) => Object.assign(document.createElement("kbd"), { textContent: name });
  help.append(
    "With the keyboard: ", key("Enter"), " adds an atom, arrows walk, ", key("C"), " ", key("N"), " ", key("O"),
    " … change the element (", key("L"), " Cl, ", key("B"), " Br), ", key("1"), " ", key("2"), " ", key("3"),
    " choose the bond, ", key("+"), " ", key("−"), " the charge, ", key("Delete"), " removes, ", key("Ctrl Z"), " undoes.",
  );
  return help;
}
