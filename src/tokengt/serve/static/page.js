// The page: what its forms ask the server for, and where the answers go.
import { ask, sentence } from "./api.js";
import { Results } from "./results.js";
import { Sketcher } from "./sketcher.js";
import { Tabs } from "./tabs.js";

const EXAMPLES = ["CC(=O)Oc1ccccc1C(=O)O aspirin", "CN1C=NC2=C1C(=O)N(C(=O)N2C)C caffeine", "CC(C)Cc1ccc(cc1)C(C)C(=O)O ibuprofen", "C1CCCC a ring that is never closed"];
const TYPES = { csv: "text/csv", tsv: "text/tab-separated-values", smi: "text/plain", txt: "text/plain", sdf: "chemical/x-mdl-sdfile" };
const find = (id) => document.getElementById(id);

class Page {
  constructor(run) {
    this.run = run;
    this.tabs = new Tabs(document.querySelector("[role=tablist]"));
    this.results = new Results(find("results"), run, (what, button) => this.explain(what, button));
    this.sketcher = new Sketcher(find("sketcher"));
    this.describe();
    this.forms();
    this.sketch();
    this.dropping();
  }

  describe() {
    const { run } = this;
    const what = run.targets.join(", ");
    find("title").textContent = `Predict ${what.length > 80 ? `${run.targets.length} targets` : what}`;
    document.title = `${find("title").textContent} · tokengt`;
    const models = run.models > 1 ? `${run.models} models` : "one model";
    find("about").textContent = `A run of ${models} on ${run.data}: ${run.model}.`;
    for (const tab of document.querySelectorAll("[role=tab]")) tab.hidden = ![run.input, "both"].includes(tab.dataset.for);
    const graphs = run.input === "graphs";
    find("drop-kinds").textContent = graphs ? "JSON of networkx.node_link_data, one graph or a list of them" : `CSV, TSV, a list of SMILES, or SDF; at most ${run.limits.rows.toLocaleString("en")} rows`;
    find("file").accept = graphs ? ".json" : ".csv,.tsv,.smi,.txt,.sdf";
    find("column-line").hidden = graphs;
    this.tabs.choose(graphs ? "tab-graph" : run.file_only ? "tab-file" : "tab-type");
    if (run.nothing_fits) {
      find("refusal").textContent = sentence(run.nothing_fits);
      find("refusal").hidden = false;
    }
    for (const notice of document.querySelectorAll(".file-only")) {
      notice.textContent = run.file_only ? sentence(run.file_only) : "";
      notice.hidden = !run.file_only;
    }
    const refused = Boolean(run.file_only || run.nothing_fits);
    for (const control of document.querySelectorAll("#panel-type button.main, #predict-drawing")) control.disabled = refused;
    for (const control of document.querySelectorAll("#panel-graph button.main, #file, #again")) control.disabled = Boolean(run.nothing_fits);
  }

  forms() {
    find("panel-type").addEventListener("submit", (event) => {
      event.preventDefault();
      this.predictList(find("smiles").value);
    });
    find("smiles").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) find("panel-type").requestSubmit();
    });
    find("examples").addEventListener("click", () => {
      find("smiles").value = EXAMPLES.join("\n");
    });
    find("to-sketch").addEventListener("click", () => this.drawTyped());
    find("panel-graph").addEventListener("submit", (event) => {
      event.preventDefault();
      this.predictGraphs(find("graphs").value, "predictions.csv");
    });
    find("panel-file").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.file) this.predictFile(this.file);
    });
  }

  // One piece of work at a time: a new one replaces it. What it does, and what went wrong, is told in a section.
  async work(doing, act, section = "ask") {
    this.working?.abort();
    const working = (this.working = new AbortController());
    for (const each of ["ask", "results"]) this.tell(each, "");
    this.tell(section, doing, "busy");
    try {
      await act(working.signal);
      if (this.working === working) this.tell(section, "");
    } catch (error) {
      if (this.working === working) this.tell(section, error.message, "problem");
    }
  }

  tell(section, text, kind = "") {
    const [status, problem] = [".status", ".problem"].map((part) => find(section).querySelector(part));
    status.textContent = kind === "problem" ? "" : text;
    status.classList.toggle("busy", kind === "busy");
    problem.textContent = kind === "problem" ? text : "";
    problem.hidden = kind !== "problem";
  }

  // What the run can tell beside predictions is always asked for.
  get beside() {
    const { interval, neighbours } = this.run.beside;
    return { ...(interval === null ? {} : { interval }), ...(neighbours ? { neighbours } : {}) };
  }

  async predictTable(body, type, name, how = {}) {
    await this.work("Predicting …", async (signal) => {
      const query = new URLSearchParams({ ...how, ...this.beside });
      const answer = await ask(`api/table?${query}`, { body, type, accept: "text/csv", signal });
      this.graphs = undefined;
      this.finish(await answer.text(), name);
    });
  }

  predictList(text) {
    if (!text.trim()) {
      find("smiles").focus();
      this.tell("ask", "Type a SMILES first, such as CCO.");
      return;
    }
    this.predictTable(`${text}\n`, "text/plain", "predictions.csv");
  }

  async predictGraphs(text, name) {
    await this.work("Predicting …", async (signal) => {
      let graphs;
      try {
        graphs = JSON.parse(text);
      } catch (error) {
        throw new Error(sentence(`this is not JSON: ${error.message}`));
      }
      graphs = Array.isArray(graphs) ? graphs : [graphs];
      const answer = await ask("api/predict", { body: { graphs, alone: true, ...this.beside }, accept: "text/csv", signal });
      this.graphs = graphs;
      this.finish(await answer.text(), name);
    });
  }

  async predictFile(file) {
    this.file = file;
    find("drop-what").textContent = file.name;
    find("again").hidden = false;
    if (file.size > this.run.limits.body) {
      const most = `${(this.run.limits.body / 2 ** 20).toLocaleString("en", { maximumFractionDigits: 1 })} MiB`;
      await this.work("", () => Promise.reject(new Error(`${file.name} is larger than ${most}; use tokengt predict for it.`)));
      return;
    }
    const name = `${file.name.replace(/\.[^.]*$/, "")}-predictions.csv`;
    if (this.run.input === "graphs") {
      await this.predictGraphs(await file.text(), name);
      return;
    }
    const ending = file.name.split(".").pop().toLowerCase();
    if (!TYPES[ending]) {
      await this.work("", () => Promise.reject(new Error(`${file.name} ends in .${ending}; expected one of .${Object.keys(TYPES).join(", .")}.`)));
      return;
    }
    const column = find("column").value.trim();
    await this.predictTable(await file.arrayBuffer(), TYPES[ending], name, column ? { smiles: column } : {});
  }

  finish(csv, name) {
    find("explanation").hidden = true;
    this.results.show(csv, name);
    find("results").focus({ preventScroll: true });
    find("results").scrollIntoView({ behavior: "smooth", block: "start" });
  }

  async explain(what, button) {
    button.disabled = true;
    await this.work("Explaining …", async (signal) => {
      const body = what.smiles === undefined ? { ...what, graph: this.graphs[what.graph - 1] } : what;
      const { page } = await (await ask("api/explain", { body, signal })).json();
      find("explained").textContent = what.smiles ?? `graph ${what.graph}${what.item === undefined ? "" : `, ${this.run.level} ${what.item}`}`;
      find("frame").src = page;
      find("apart").href = page;
      find("explanation").hidden = false;
      find("explanation").focus({ preventScroll: true });
      find("explanation").scrollIntoView({ behavior: "smooth", block: "start" });
    }, "results");
    button.disabled = false;
  }

  sketch() {
    this.drawn = "";
    this.sketcher.addEventListener("change", () => this.writeDrawing());
    this.sketcher.addEventListener("tidy", () => this.drawn && this.layOut(this.drawn));
    find("predict-drawing").addEventListener("click", () => this.withDrawing((smiles) => this.predictList(smiles)));
    find("add-drawing").addEventListener("click", () =>
      this.withDrawing((smiles) => {
        const list = find("smiles");
        list.value = list.value.trim() ? `${list.value.trimEnd()}\n${smiles}\n` : `${smiles}\n`;
        this.tell("ask", `${smiles} is the last line of the list now.`);
      }),
    );
  }

  // The SMILES of what is drawn, written by the server; of several questions on their way only the last one counts.
  async writeDrawing() {
    this.writing?.abort();
    const writing = (this.writing = new AbortController());
    const output = find("drawn");
    this.drawn = "";
    if (!this.sketcher.molecule.atoms.length) {
      output.textContent = "nothing is drawn yet";
      output.className = "";
      return;
    }
    try {
      this.written = ask("api/sketch", { body: this.sketcher.molecule, signal: writing.signal }).then((answer) => answer.json());
      const { smiles } = await this.written;
      if (this.writing !== writing) return;
      this.drawn = smiles;
      output.textContent = smiles;
      output.className = "";
    } catch (error) {
      if (this.writing !== writing) return;
      output.textContent = error.message;
      output.className = "wrong";
    }
  }

  async withDrawing(act) {
    await this.written?.catch(() => undefined);
    await Promise.resolve();
    if (this.drawn) act(this.drawn);
    else this.tell("ask", "There is no molecule in the drawing.");
  }

  async drawTyped() {
    const typed = find("smiles").value.trim().split(/\s+/)[0];
    if (!typed) {
      find("smiles").focus();
      return;
    }
    if (await this.layOut(typed)) {
      this.tabs.choose("tab-draw");
      find("tab-draw").focus();
      this.sketcher.fit();
    }
  }

  async layOut(smiles) {
    let done = false;
    await this.work("Drawing …", async (signal) => {
      const { atoms, bonds, stereo_left_out: stereo } = await (await ask("api/layout", { body: { smiles }, signal })).json();
      this.sketcher.show({ atoms, bonds });
      done = true;
      if (stereo) throw new Error("The drawing has no stereochemistry: that of the SMILES is left out.");
    });
    return done;
  }

  dropping() {
    const drop = find("drop");
    find("file").addEventListener("change", (event) => event.target.files[0] && this.predictFile(event.target.files[0]));
    for (const name of ["dragenter", "dragover"]) {
      document.addEventListener(name, (event) => {
        if (![...(event.dataTransfer?.types ?? [])].includes("Files")) return;
        event.preventDefault();
        drop.classList.add("over");
      });
    }
    document.addEventListener("dragleave", (event) => event.relatedTarget ?? drop.classList.remove("over"));
    document.addEventListener("drop", (event) => {
      const [file] = event.dataTransfer?.files ?? [];
      drop.classList.remove("over");
      if (!file) return;
      event.preventDefault();
      this.tabs.choose("tab-file");
      this.predictFile(file);
    });
  }
}

try {
  globalThis.page = new Page(await (await ask("api/run")).json());
  document.documentElement.dataset.ready = "true";
} catch (error) {
  find("refusal").textContent = error.message;
  find("refusal").hidden = false;
}
