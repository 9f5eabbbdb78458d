// How the training went: loss and validation metric by epoch.

class CurvesPanel {
  constructor(data) {
    this.models = data.curves.models;
    const losses = this.models.flatMap(({ train_loss, valid_loss }) => [...train_loss, ...valid_loss]);
    const metrics = this.models.flatMap(({ metric }) => metric);
    const epochs = rangeOf(
      this.models.flatMap((model) => model.epochs),
      0.02,
    );
    const x = { label: "epoch", ...epochs };
    const loss = new Plot({ x, y: { label: "loss per label", ...rangeOf(losses) }, label: "Loss by epoch" }, (plot) =>
      this.drawLosses(plot),
    );
    const metric = new Plot(
      {
        x,
        y: { label: `validation ${data.metric}`, ...rangeOf(metrics) },
        label: `Validation ${data.metric} by epoch`,
      },
      (plot) => this.drawMetric(plot),
    );
    this.element = section(
      "curves",
      "Training",
      "Loss and the validation metric, epoch by epoch.",
      html("div", { class: "beside" }, loss.element, metric.element),
      legend([lineIcon("mean"), "training part"], [lineIcon("mean of-others"), "validation part"]),
      numbersTable(["epoch", "training loss", "validation loss", `validation ${data.metric}`], this.rows()),
    );
  }

  draw() {}

  drawLosses(plot) {
    for (const { epochs, train_loss, valid_loss } of this.models) {
      plot.line(
        epochs.map((epoch, place) => [epoch, train_loss[place]]),
        "mean",
      );
      plot.line(
        epochs.map((epoch, place) => [epoch, valid_loss[place]]),
        "mean of-others",
      );
    }
  }

  drawMetric(plot) {
    for (const { epochs, metric } of this.models)
      plot.line(
        epochs.map((epoch, place) => [epoch, metric[place]]),
        "mean of-others",
      );
  }

  rows() {
    const several = this.models.length > 1;
    return this.models.flatMap(({ name, epochs, train_loss, valid_loss, metric }) =>
      epochs.map((epoch, place) => [
        several ? `${name} ${epoch}` : String(epoch),
        number(train_loss[place]),
        number(valid_loss[place]),
        number(metric[place]),
      ]),
    );
  }
}
