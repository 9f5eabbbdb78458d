// What moved the prediction: one number per atom and bond, by one method or another.

class AttributionPanel {
  constructor(data, pick) {
    Object.assign(this, { data, methods: data.attribution.methods, token: null });
    this.drawing = new GraphDrawing(
      data.graph,
      data.tokens,
      "The graph, coloured by what moved the prediction",
      (token) => this.say(token),
    );
    this.drawing.showNumbers(true);
    [this.words, this.list, this.scale] = [html("div", {}), html("div", {}), html("div", {})];
    this.said = html("p", { class: "faint", "aria-live": "polite" }, "\u00a0");
    const named = this.methods.map(({ name }, value) => ({ value, name }));
    this.choice = choices("Method", named, (method) => pick({ method }));
    this.element = section(
      "attribution",
      "What moved the prediction",
      "Orange and filled raises it, blue and hollow lowers it; larger means more. " +
        "The methods ask different questions and need not agree.",
      html("div", { class: "controls" }, this.choice.element),
      ...data.attribution.notes.map((note) => html("p", { class: "notice" }, note)),
      html(
        "div",
        { class: "beside wide-left" },
        html("figure", {}, this.drawing.svg, html("div", { class: "under" }, this.scale, this.said)),
        html("div", {}, this.words, this.list),
      ),
    );
  }

  draw({ method, target }) {
    const { values, one_sided, sentence, notes } = this.methods[method];
    // What attention alone says is the same for every output.
    const output = values[target] ? target : values.findIndex((each) => each !== null);
    Object.assign(this, { values: values[output], oneSided: one_sided });
    this.choice.show(method);
    const top = this.values.reduce((most, value) => Math.max(most, Math.abs(value ?? 0)), 0);
    const ramp = (value) => (one_sided ? "marker" : value < 0 ? "lowers" : "raises");
    const painted = (value) => ({
      ramp: ramp(value),
      place: top > 0 ? Math.abs(value ?? 0) / top : 0,
      text: this.text(value),
    });
    this.drawing.paint(this.values.map(painted));
    this.scale.replaceChildren(this.scaleOf(top));
    this.words.replaceChildren(
      html("p", {}, sentence),
      ...notes[output].map((note) => html("p", { class: "faint" }, note)),
    );
    this.list.replaceChildren(this.ranked(top));
    this.say(this.token ?? this.strongest());
  }

  text(value) {
    return this.oneSided ? number(value) : signed(value);
  }

  strongest() {
    return this.values.reduce(
      (best, value, token) => (Math.abs(value ?? 0) > Math.abs(this.values[best] ?? 0) ? token : best),
      0,
    );
  }

  scaleOf(top) {
    if (this.oneSided) return scaleBar([{ ramp: "marker" }], "0", number(top));
    return scaleBar(
      [{ ramp: "lowers", reversed: true }, { ramp: "raises" }],
      `lowers by ${number(top)}`,
      `raises by ${number(top)}`,
    );
  }

  ranked(top) {
    const size = (token) => Math.abs(this.values[token] ?? 0);
    const best = [...this.values.keys()].sort((one, other) => size(other) - size(one)).slice(0, 12);
    const rows = best.map((token) => ({
      name: this.data.tokens[token].name,
      share: top > 0 ? (this.values[token] ?? 0) / top : 0,
      text: this.text(this.values[token]),
      pick: token,
    }));
    return ranking("Tokens that moved the prediction most", rows, (token) => this.say(token), !this.oneSided);
  }

  say(token) {
    this.token = token;
    this.drawing.select(token);
    this.said.textContent = `${this.data.tokens[token].name}: ${this.text(this.values[token])}`;
  }
}
