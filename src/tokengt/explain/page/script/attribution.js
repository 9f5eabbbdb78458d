// What moved the prediction: one number per atom and bond, by one method or another.

class AttributionPanel {
  constructor(data, pick) {
    Object.assign(this, { data, pick, methods: data.attribution.methods });
    this.drawing = new GraphDrawing(data.graph, data.tokens, "The graph, coloured by what moved the prediction", (token) => this.say(token));
    this.words = html("div", {});
    this.list = html("div", {});
    this.scale = html("div", {});
    this.said = html("p", { class: "faint", "aria-live": "polite" }, "\u00a0");
    const named = this.methods.map(({ name }, value) => ({ value, name }));
    this.choice = choices("Method", named, (method) => pick({ method }));
    this.element = section(
      "attribution",
      "What moved the prediction",
      "Orange and filled raises it, blue and hollow lowers it; larger means more. The methods ask different questions and need not agree.",
      html("div", { class: "controls" }, this.choice.element),
      html(
        "div",
        { class: "beside wide-left" },
        html("figure", {}, this.drawing.svg, this.scale, html("figcaption", {}, this.said)),
        html("div", {}, this.words, this.list),
      ),
    );
    this.drawing.showNumbers(true);
  }

  draw({ method, target }) {
    this.choice.show(method);
    const { values, one_sided, sentence, unit } = this.methods[method];
    this.values = values[target] || values[0];
    const top = this.values.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
    this.unit = unit;
    const place = (value) => (top > 0 ? Math.abs(value) / top : 0);
    const ramp = (value) => (one_sided ? "marker" : value < 0 ? "lowers" : "raises");
    this.drawing.paint(this.values.map((value) => ({ ramp: ramp(value), place: place(value), text: this.text(value) })));
    this.drawing.select(this.token ?? 0);
    this.scale.replaceChildren(this.scaleOf(one_sided, top));
    this.words.replaceChildren(html("p", {}, sentence), ...this.completeness(method, target));
    this.list.replaceChildren(this.ranked(top, one_sided));
    this.say(this.token ?? null);
  }

  text(value) {
    return this.methods[this.method ?? 0].one_sided ? percent(value) : signed(value);
  }

  scaleOf(oneSided, top) {
    if (oneSided) return scaleBar([{ ramp: "marker" }], "0", number(top));
    return scaleBar([{ ramp: "lowers", reversed: true }, { ramp: "raises" }], `lowers by ${number(top)}`, `raises by ${number(top)}`);
  }

  completeness(method, target) {
    const { notes } = this.methods[method];
    return (notes[target] || notes[0] || []).map((note) => html("p", { class: "faint" }, note));
  }

  ranked(top, oneSided) {
    const best = [...this.values.keys()].sort((one, other) => Math.abs(this.values[other]) - Math.abs(this.values[one])).slice(0, 12);
    const rows = best.map((token) => ({
      name: this.data.tokens[token].name,
      share: top > 0 ? this.values[token] / top : 0,
      text: oneSided ? number(this.values[token]) : signed(this.values[token]),
      pick: token,
    }));
    return ranking("Tokens that moved the prediction most", rows, (token) => this.say(token), !oneSided);
  }

  say(token) {
    if (token === null) return;
    this.token = token;
    this.drawing.select(token);
    this.said.textContent = `${this.data.tokens[token].name}: ${signed(this.values[token])}${this.unit ? ` ${this.unit}` : ""}`;
  }
}
