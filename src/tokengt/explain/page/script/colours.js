// Colours for numbers. Blue and orange are told apart by those who do not tell red from green.

const RAMPS = {
  light: {
    // Behind the ink of a drawing: pale enough for what is written on it.
    marker: ["#ffffff00", "#d3e5fa", "#8fc0f2", "#4f97e0"],
    map: ["#ffffff", "#cfe1f5", "#7fb0dc", "#2f6fb3", "#0f3563"],
    raises: ["#ffffff00", "#fde3c4", "#f9b973", "#ee8a2b"],
    lowers: ["#ffffff00", "#d3e5fa", "#8fc0f2", "#4f97e0"],
  },
  dark: {
    marker: ["#171a1f00", "#1d3a5f", "#27599a", "#3179cc"],
    map: ["#171a1f", "#1c3a60", "#2a67ae", "#6fb1ee", "#eaf5ff"],
    raises: ["#171a1f00", "#55330f", "#8f5414", "#c87718"],
    lowers: ["#171a1f00", "#1d3a5f", "#27599a", "#3179cc"],
  },
};

function scheme() {
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

/** Red, green, blue and opacity of a place between 0 and 1 on a ramp. */
function channels(ramp, place) {
  const stops = RAMPS[scheme()][ramp];
  const scaled = Math.min(Math.max(place, 0), 1) * (stops.length - 1);
  const first = Math.min(Math.floor(scaled), stops.length - 2);
  const [low, high] = [parsed(stops[first]), parsed(stops[first + 1])];
  return low.map((value, channel) => value + (high[channel] - value) * (scaled - first));
}

function parsed(colour) {
  const digits = colour.slice(1).padEnd(8, "f");
  return [0, 2, 4, 6].map((start) => parseInt(digits.slice(start, start + 2), 16));
}

function colour(ramp, place) {
  const [red, green, blue, opacity] = channels(ramp, place);
  return `rgb(${Math.round(red)} ${Math.round(green)} ${Math.round(blue)} / ${(opacity / 255).toFixed(3)})`;
}

/** Black or white, whichever is read more easily on a place of the map's ramp. */
function inkOn(ramp, place) {
  const [red, green, blue] = channels(ramp, place);
  return 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? "#14181d" : "#ffffff";
}

/** The same ramp as 256 pixels, for maps of many thousand cells. */
function pixels(ramp) {
  const table = new Uint8ClampedArray(4 * 256);
  for (let step = 0; step < 256; step++) table.set(channels(ramp, step / 255), 4 * step);
  return table;
}

/** A bar of colours with words at its ends. */
function scaleBar(ramps, low, high) {
  const canvas = html("canvas", { width: 256, height: 1, "aria-hidden": "true" });
  const draw = () => {
    const context = canvas.getContext("2d");
    const share = 256 / ramps.length;
    for (let x = 0; x < 256; x++) {
      const part = Math.min(Math.floor(x / share), ramps.length - 1);
      const place = (x - part * share) / share;
      context.clearRect(x, 0, 1, 1);
      context.fillStyle = colour(ramps[part].ramp, ramps[part].reversed ? 1 - place : place);
      context.fillRect(x, 0, 1, 1);
    }
  };
  draw();
  onScheme(draw);
  return html("div", { class: "scale" }, html("span", {}, low), canvas, html("span", {}, high));
}
