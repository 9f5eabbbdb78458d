// Predictions against labels, and whether the model knows how sure it may be.

class PredictionsPanel {
  constructor(data, pick) {
    Object.assign(this, { data, holder: html("div", { class: "beside" }) });
    const options = data.targets.map(({ name }, value) => ({ value, name }));
    this.menu = options.length > 1 ? menu("Target", options, (target) => pick({ target })) : null;
    this.element = section(
      "predictions",
      "Predictions and labels",
      {
        regression: "One dot per row; on the line, a prediction equals its label.",
        binary: "How many true and false positives any threshold would give.",
        multiclass: "How often each class was taken for each other; in percent of the true class.",
      }[data.task],
      this.menu ? html("div", { class: "controls" }, this.menu.element) : null,
      this.holder,
    );
  }

  draw({ target }) {
    if (this.menu) this.menu.show(target);
    if (this.shown === target) return;
    this.shown = target;
    const own = this.data.targets[target];
    const picture = { regression: parity, binary: rocCurve, multiclass: confusionTable }[this.data.task](
      own,
      this.data.classes,
    );
    this.holder.replaceChildren(
      html("figure", {}, picture, html("figcaption", {}, this.words(own))),
      html("figure", {}, calibrationPlot(own, this.data.task)),
    );
  }

  words({ name, rows, measures, left_out }) {
    const numbers = measures.map((measure) => `${measure.name} ${number(measure.value)}`).join(", ");
    const undrawn = left_out ? ` ${left_out.toLocaleString("en")} of them are not drawn.` : "";
    return `${name}: ${numbers} over ${rows.toLocaleString("en")} rows.${undrawn}`;
  }
}

function parity({ labels, predicted, spread, name }) {
  const range = rangeOf([...labels, ...predicted]);
  const label = `Predicted against measured ${name}, ${labels.length} dots`;
  return new Plot(
    { x: { label: `measured ${name}`, ...range }, y: { label: "predicted", ...range }, square: true, label },
    (plot) => {
      plot.line(
        [
          [range.low, range.low],
          [range.high, range.high],
        ],
        "mean of-others",
      );
      labels.forEach((measured, place) => {
        const value = predicted[place];
        if (spread) plot.whisker(measured, value - spread[place], value + spread[place]);
        plot.dot(
          measured,
          value,
          "here",
          `measured ${number(measured)}, predicted ${number(value)}`,
          labels.length > 800 ? 2.5 : 4,
        );
      });
    },
  ).element;
}

function rocCurve({ roc, name }) {
  if (!roc) return html("p", { class: "notice" }, "All labels are of one class: there is no curve to draw.");
  const whole = { low: 0, high: 1 };
  const label = `ROC curve of ${name}`;
  return new Plot(
    {
      x: { label: "false positive rate", ...whole },
      y: { label: "true positive rate", ...whole },
      square: true,
      label,
    },
    (plot) => {
      plot.line(
        [
          [0, 0],
          [1, 1],
        ],
        "mean of-others",
      );
      plot.line(
        roc[0].map((rate, place) => [rate, roc[1][place]]),
        "mean",
      );
    },
  ).element;
}

function confusionTable({ confusion }, classes) {
  const head = html(
    "tr",
    {},
    html("th", {}, "true class"),
    ...classes.map((name) =>
      slanted(
        name,
        `predicted as ${name}`,
        classes.map((each) => ({ name: each })),
      ),
    ),
  );
  const rows = confusion.map((counts, place) => {
    const total = counts.reduce((sum, count) => sum + count, 0);
    const cells = counts.map((count) => shadedCell(total ? count / total : null, `${count} of ${total}`));
    return html("tr", {}, html("th", { scope: "row" }, `${classes[place]} (${total})`), ...cells);
  });
  const table = html("table", { class: "heat" }, html("thead", {}, head), html("tbody", {}, ...rows));
  return html("div", { class: "scrolled", tabindex: "0", role: "region", "aria-label": "Confusion of classes" }, table);
}

/** Claimed shares against found ones; on the line, the model is as sure as it may be. */
function calibrationPlot({ calibration }, task) {
  if (calibration.missing)
    return html("div", {}, html("h3", {}, "Calibration"), html("p", { class: "notice" }, calibration.missing));
  const { points, error } = calibration;
  const names =
    task === "regression"
      ? ["share of labels an interval should hold", "share it holds"]
      : ["predicted probability", "how often it was so"];
  const whole = { low: 0, high: 1 };
  const plot = new Plot(
    { x: { label: names[0], ...whole }, y: { label: names[1], ...whole }, square: true, label: "Calibration curve" },
    (drawn) => {
      drawn.line(
        [
          [0, 0],
          [1, 1],
        ],
        "mean of-others",
      );
      drawn.line(
        points.map(({ claimed, found }) => [claimed, found]),
        "mean",
      );
      for (const { claimed, found, rows } of points)
        drawn.dot(claimed, found, "here", `claimed ${percent(claimed)}, found ${percent(found)}, ${rows} rows`);
    },
  );
  const below =
    task === "regression"
      ? "Intervals are those of a normal distribution with the spread over draws; below the line, they are too narrow."
      : "Below the line, the model is surer than it may be.";
  const rows = points.map(({ claimed, found, rows: count }) => [percent(claimed), percent(found), String(count)]);
  return html(
    "div",
    {},
    plot.element,
    html("p", { class: "faint" }, `Calibration: off by ${percent(error)} on average. ${below}`),
    numbersTable(["claimed", "found", "rows"], rows),
  );
}
