// Where the errors are: by the size of graphs and by element.

class ErrorsPanel {
  constructor(data) {
    Object.assign(this, { data, holder: html("div", { class: "beside" }) });
    this.element = section(
      "errors",
      "Where it is wrong",
      "Bars are means over rows, lines their 95 % intervals; the numbers say how many rows each bar has.",
      this.holder,
    );
  }

  draw({ target }) {
    if (this.shown === target) return;
    this.shown = target;
    const own = this.data.targets[target];
    const size = `${this.data.words.nodes} of the ${this.data.words.graph}`;
    const parts = [groupBars(own.by_size, size, own.error_words)];
    if (own.by_element.length) parts.push(groupBars(own.by_element, "molecules with the element", own.error_words));
    this.holder.replaceChildren(...parts);
  }
}

function groupBars(groups, what, measure) {
  const shown = groups.slice(0, 16);
  const ends = shown.map(({ error, half_width }) => error + (half_width ?? 0));
  const ticks = shown.map(({ name }, place) => ({ at: place, text: name.replace(" to ", "\u2013") }));
  const label = `${measure} by ${what}`;
  const plot = new Plot(
    {
      x: { label: what, low: -0.6, high: shown.length - 0.4, ticks },
      y: { label: measure, low: 0, high: 1.08 * Math.max(1e-9, ...ends) },
      height: 280,
      label,
    },
    (drawn) => {
      shown.forEach(({ name, rows, error, half_width }, place) => {
        drawn.bar(place - 0.38, place + 0.38, error, "here", `${name}: ${number(error)} over ${rows} rows`);
        if (half_width !== null) drawn.whisker(place, Math.max(0, error - half_width), error + half_width);
      });
    },
  );
  const rows = groups.map(({ name, rows: count, error, half_width }) => [
    name,
    String(count),
    `${number(error)} ± ${number(half_width, 2)}`,
  ]);
  return html("figure", {}, plot.element, numbersTable([what, "rows", measure], rows));
}
