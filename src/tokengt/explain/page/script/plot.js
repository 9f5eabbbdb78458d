// Plots with two axes, drawn anew whenever their width changes, so that letters keep their size.

const MARGIN = { left: 58, right: 14, top: 12, bottom: 44 };

class Plot {
  /**
   * @param x, y {label, low, high, ticks}; ticks are worked out where there are none, {at, text} where there are.
   * @param draw called with the plot to add marks by its functions line, dot and so on.
   */
  constructor({ x, y, height = 300, label, square = false }, draw) {
    Object.assign(this, { x, y, height, square, draw });
    this.svg = shape("svg", { class: "chart", role: "img", "aria-label": label });
    this.element = html("div", { class: square ? "plot square" : "plot" }, this.svg);
    onWidth(this.element, (width) => {
      this.width = width;
      this.redraw();
    });
  }

  redraw() {
    if (!this.width) return;
    const height = this.square ? this.width : this.height;
    this.inside = {
      left: MARGIN.left,
      right: this.width - MARGIN.right,
      top: MARGIN.top,
      bottom: height - MARGIN.bottom,
    };
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${height}`);
    this.svg.replaceChildren(...this.frame(height));
    this.draw(this);
  }

  /** Where a number of the x axis lies, in pixels. */
  px(value) {
    const { left, right } = this.inside;
    return left + ((value - this.x.low) / (this.x.high - this.x.low)) * (right - left);
  }

  py(value) {
    const { top, bottom } = this.inside;
    return bottom - ((value - this.y.low) / (this.y.high - this.y.low)) * (bottom - top);
  }

  frame(height) {
    const { left, right, top, bottom } = this.inside;
    const middle = (top + bottom) / 2;
    const rows = (this.y.ticks || ticksOf(this.y.low, this.y.high, 5)).flatMap(({ at, text }) => [
      shape("line", { class: "axis", x1: left, x2: right, y1: this.py(at), y2: this.py(at) }),
      shape("text", { x: left - 8, y: this.py(at) + 4, "text-anchor": "end" }, text),
    ]);
    const along = this.x.ticks || ticksOf(this.x.low, this.x.high, Math.max(2, Math.floor((right - left) / 90)));
    const columns = fitting(along, right - left).map(({ at, text }) =>
      shape("text", { x: this.px(at), y: bottom + 18, "text-anchor": "middle" }, text),
    );
    return [
      ...rows,
      ...columns,
      shape("text", { class: "label", x: (left + right) / 2, y: height - 6, "text-anchor": "middle" }, this.x.label),
      shape(
        "text",
        { class: "label", x: 13, y: middle, "text-anchor": "middle", transform: `rotate(-90 13 ${middle})` },
        this.y.label,
      ),
    ];
  }

  add(element) {
    this.svg.append(element);
    return element;
  }

  /** A line through points [x, y]; a point without a number breaks it. */
  line(points, name) {
    let path = "";
    let drawing = false;
    for (const [x, y] of points) {
      if (x === null || y === null) drawing = false;
      else {
        path += `${drawing ? "L" : "M"}${this.px(x).toFixed(1)} ${this.py(y).toFixed(1)}`;
        drawing = true;
      }
    }
    return this.add(shape("path", { class: name, d: path }));
  }

  dot(x, y, name, title, radius = 4, attributes = {}) {
    const words = title ? [shape("title", {}, title)] : [];
    return this.add(
      shape("circle", { class: name, cx: this.px(x), cy: this.py(y), r: radius, ...attributes }, ...words),
    );
  }

  diamond(x, y, name, title) {
    const [cx, cy] = [this.px(x), this.py(y)];
    const words = title ? [shape("title", {}, title)] : [];
    return this.add(shape("path", { class: name, d: diamondPath(cx, cy, 5) }, ...words));
  }

  /** A vertical bar of a range of x, and a whisker of an interval. */
  bar(from, to, value, name, title) {
    const [x, y] = [this.px(from), this.py(Math.max(value, 0))];
    const height = Math.abs(this.py(value) - this.py(0));
    return this.add(
      shape("rect", { class: name, x, y, width: this.px(to) - x, height, rx: 2 }, shape("title", {}, title)),
    );
  }

  whisker(x, low, high) {
    this.add(shape("line", { class: "whisker", x1: this.px(x), x2: this.px(x), y1: this.py(low), y2: this.py(high) }));
  }
}

function diamondPath(x, y, size) {
  return `M${x} ${y - size}L${x + size} ${y}L${x} ${y + size}L${x - size} ${y}Z`;
}

/** Round numbers between two ends, about so many. */
function ticksOf(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough - 1e-12);
  const found = [];
  for (let place = Math.ceil(low / step - 1e-9); place * step <= high + step * 1e-9; place++) {
    found.push({ at: place * step, text: number(place * step, 6) });
  }
  return found;
}

/** Every tick, or every other one and so on, where their words would run into each other. */
function fitting(ticks, width) {
  const longest = Math.max(...ticks.map(({ text }) => text.length), 1);
  const every = Math.ceil((ticks.length * (7 * longest + 8)) / width);
  return ticks.filter((_, place) => place % every === 0);
}

/** A range that holds all numbers, with some air. */
function rangeOf(values, air = 0.05) {
  const known = values.filter((value) => value !== null && Number.isFinite(value));
  if (!known.length) return { low: 0, high: 1 };
  const [low, high] = [
    known.reduce((one, other) => Math.min(one, other)),
    known.reduce((one, other) => Math.max(one, other)),
  ];
  const margin = (high - low || Math.abs(high) || 1) * air;
  return { low: low - margin, high: high + margin };
}

/** What the signs of a plot mean. */
function legend(...entries) {
  const items = entries.map(([icon, text]) =>
    html("li", {}, shape("svg", { viewBox: "0 0 16 12", class: "chart", "aria-hidden": "true" }, icon), text),
  );
  return html("ul", { class: "legend" }, ...items);
}

const dotIcon = (name) => shape("circle", { class: name, cx: 8, cy: 6, r: 5 });
const diamondIcon = (name) => shape("path", { class: name, d: diamondPath(8, 6, 5) });
const lineIcon = (name) => shape("path", { class: name, d: "M0 6L16 6" });

/** The numbers behind a picture, for whoever would rather read them. */
function numbersTable(head, rows) {
  const table = html(
    "table",
    { class: "plain" },
    html("thead", {}, html("tr", {}, ...head.map((name) => html("th", { scope: "col" }, name)))),
    html(
      "tbody",
      {},
      ...rows.map(([name, ...cells]) =>
        html("tr", {}, html("th", { scope: "row" }, name), ...cells.map((cell) => html("td", {}, cell))),
      ),
    ),
  );
  return html(
    "details",
    {},
    html("summary", {}, "The numbers"),
    html("div", { class: "scrolled", tabindex: "0", role: "region", "aria-label": "Numbers" }, table),
  );
}
