// The predictions as a table: fifty rows at a time, pictures beside molecules, spread and intervals beside values.
import { parseCsv } from "./csv.js";

const PAGE = 50;

// What the columns of an answer mean: those of the rows themselves, values with what stands beside them, and the reason.
export function columnsOf(header, run) {
  const meant = [...run.columns, ...run.beside.columns];
  const own = header.length - meant.length - 1;
  const places = new Map(meant.map((name, place) => [name, own + place]));
  const values = run.columns
    .filter((name) => !name.startsWith("std_"))
    .map((name) => {
      const target = name.replace(/^(predicted|probability)_/, "");
      const [spread, low, high] = ["std", "low", "high"].map((kind) => places.get(`${kind}_${target}`));
      return { name: header[places.get(name)], place: places.get(name), spread, low, high };
    });
  const [unlike, similarity, distance] = ["unlike_training", "similarity", "distance"].map((name) => places.get(name));
  return { own: header.slice(0, own), values, unlike, similarity, distance, reason: header.length - 1 };
}

// Four digits are what a model is worth reading to, and two of a spread; classes are words.
export const shown = (text) => rounded(text, 4);
const spreadOf = (text) => rounded(text, 2);

function rounded(text, digits) {
  const number = Number(text);
  if (text === "" || !Number.isFinite(number)) return text;
  const size = Math.abs(number);
  const far = size !== 0 && (size < 1e-3 || size >= 1e6);
  const written = far ? number.toExponential(digits - 1) : String(Number(number.toPrecision(digits)));
  return written.replaceAll("-", "−");
}

export class Results {
  constructor(home, run, explain) {
    this.home = home;
    this.run = run;
    this.explain = explain;
    this.find("#earlier").addEventListener("click", () => this.turn(-PAGE));
    this.find("#later").addEventListener("click", () => this.turn(PAGE));
    this.dark = matchMedia("(prefers-color-scheme: dark)");
    this.dark.addEventListener("change", () => this.rows && this.draw());
  }

  find(selector) {
    return this.home.querySelector(selector);
  }

  show(csv, name) {
    [this.header, ...this.rows] = parseCsv(csv);
    this.columns = columnsOf(this.header, this.run);
    this.smiles = this.run.input === "molecules" ? this.columns.own.findIndex((column) => looksLikeSmiles(column, this.run)) : -1;
    this.first = 0;
    const bad = this.rows.filter((row) => row[this.columns.reason]).length;
    const count = (n) => `${n.toLocaleString("en")} row${n === 1 ? "" : "s"}`;
    this.find("#summary").textContent = `${count(this.rows.length)}${bad ? `, ${bad.toLocaleString("en")} without a prediction` : ""}${this.run.spread ? "; ± is the spread between draws and models, which is not calibrated" : ""}${this.intervals()}`;
    const link = this.find("#download");
    URL.revokeObjectURL(link.href);
    link.href = URL.createObjectURL(new Blob([csv], { type: "text/csv" }));
    link.download = name;
    this.draw();
    this.home.hidden = false;
  }

  // What the bounds below a value mean; nothing where the run has none.
  intervals() {
    const share = this.run.beside.interval;
    return share === null ? "" : `; below each value, the interval that is to hold ${Math.round(100 * share)}% of true values, of inputs like those of training`;
  }

  turn(step) {
    this.first = Math.max(0, Math.min(this.first + step, this.rows.length - 1));
    this.draw();
  }

  draw() {
    const visible = this.rows.slice(this.first, this.first + PAGE);
    const reasons = visible.some((row) => row[this.columns.reason]);
    const warned = visible.some((row) => row[this.columns.unlike] === "yes");
    const heads = [
      ...(this.smiles >= 0 ? [""] : []),
      ...this.columns.own,
      ...this.columns.values.map(({ name }) => name.replace(/^predicted_/, "")),
      ...(warned ? ["training data"] : []),
      ...(reasons ? ["reason"] : []),
      "",
    ];
    const line = document.createElement("tr");
    line.append(...heads.map((text) => cell("th", text, "", { scope: "col" })));
    this.find("thead").replaceChildren(line);
    this.find("tbody").replaceChildren(...visible.map((row, place) => this.row(row, this.first + place, reasons, warned)));
    this.find("#pager").hidden = this.rows.length <= PAGE;
    this.find("#shown-rows").textContent = `rows ${this.first + 1} to ${this.first + visible.length} of ${this.rows.length.toLocaleString("en")}`;
    this.find("#earlier").disabled = this.first === 0;
    this.find("#later").disabled = this.first + PAGE >= this.rows.length;
  }

  row(row, place, reasons, warned) {
    const { own, values, reason } = this.columns;
    const line = document.createElement("tr");
    const smiles = this.smiles >= 0 ? row[this.smiles] : "";
    const works = !row[reason];
    if (this.smiles >= 0) line.append(this.picture(works ? smiles : ""));
    own.forEach((name, column) => {
      line.append(cell("td", row[column], `own${column === this.smiles ? " smiles" : ""}${row[column] ? "" : " blank"}`, { "data-label": name }));
    });
    for (const { name, place: column, spread, low, high } of values) {
      const made = cell("td", shown(row[column]), `value${row[column] ? "" : " blank"}`, { "data-label": name.replace(/^predicted_/, ""), title: row[column] });
      if (spread !== undefined && row[spread]) made.append(Object.assign(document.createElement("span"), { className: "spread", textContent: ` ± ${spreadOf(row[spread])}` }));
      if (low !== undefined && row[low]) made.append(Object.assign(document.createElement("span"), { className: "interval", textContent: `${shown(row[low])} to ${shown(row[high])}` }));
      line.append(made);
    }
    if (warned) line.append(this.warning(row));
    if (reasons) line.append(cell("td", row[reason], `reason${row[reason] ? "" : " blank"}`, { "data-label": "reason" }));
    const action = cell("td", "", "action");
    if (works) {
      const button = Object.assign(document.createElement("button"), { type: "button", textContent: "Explain" });
      button.setAttribute("aria-label", `Explain row ${place + 1}`);
      button.addEventListener("click", () => this.explain(this.asked(row), button));
      action.append(button);
    }
    line.append(action);
    return line;
  }

  // Whether a row is like nothing that the run was trained on; how near the nearest is, for whoever points at it.
  warning(row) {
    const { unlike, similarity, distance } = this.columns;
    const told = row[unlike] === "yes" ? "unlike anything trained on" : "";
    const near = [["similarity", row[similarity]], ["distance", row[distance]]].filter(([, text]) => text);
    return cell("td", told, `unlike${told ? "" : " blank"}`, { "data-label": "training data", title: near.map(([name, text]) => `${name} ${shown(text)}`).join(", ") });
  }

  // What of a row is to be explained: a molecule with its descriptors, or a graph and which of its nodes or edges.
  asked(row) {
    if (this.smiles < 0) return { graph: Number(row[0]), ...(this.columns.own.length > 1 ? { item: Number(row[1]) } : {}) };
    const numbers = this.run.descriptors.map((name) => Number(row[this.header.indexOf(name)]));
    return { smiles: row[this.smiles], ...(numbers.length ? { descriptors: numbers } : {}) };
  }

  picture(smiles) {
    const made = cell("td", "", "picture");
    if (!smiles) return made;
    const image = Object.assign(document.createElement("img"), { loading: "lazy", alt: `Structure of ${smiles}`, width: 150, height: 100 });
    image.src = `api/picture?smiles=${encodeURIComponent(smiles)}${this.dark.matches ? "&dark=true" : ""}`;
    image.addEventListener("error", () => image.remove());
    made.append(image);
    return made;
  }
}

function looksLikeSmiles(column, run) {
  return column === run.text_column || column.toLowerCase() === "smiles";
}

function cell(name, text, kind, attributes = {}) {
  const made = Object.assign(document.createElement(name), { className: kind, textContent: text });
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}
