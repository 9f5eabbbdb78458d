// The page: what is picked, and who has to be told.

const data = JSON.parse(document.getElementById("data").textContent);
const PANELS = [
  ["attention", "Attention", AttentionPanel],
  ["attribution", "What moved the prediction", AttributionPanel],
  ["distance", "How far heads look", DistancePanel],
  ["patterns", "What each head does", PatternsPanel],
];
data.tokens.names = { node: data.words.nodes, edge: data.words.edges, special: "special" };

let state = {
  layer: data.attention.missing ? 0 : data.attention.layers - 1,
  head: MEAN,
  token: data.token,
  direction: "from",
  alike: false,
  method: 0,
  target: data.prediction.shown,
  turn: 0,
};
const panels = [];
const cards = data.prediction.rows.map((row, target) => card(row, target));

/** Change what is picked and draw everything that shows it. */
async function pick(change) {
  state = { ...state, ...change, turn: state.turn + 1 };
  cards.forEach(({ show }) => show(state.target));
  await Promise.all(panels.map((panel) => panel.draw(state)));
}

/** One prediction; where several are explained, with a button that shows its explanation. */
function card({ name, text, spread, interval }, target) {
  const explained =
    !data.attribution.missing && data.attribution.outputs.length > 1 && data.attribution.outputs.includes(target);
  const button = explained ? html("button", { type: "button", click: () => pick({ target }) }, "explain") : null;
  const value = html("b", {}, text, spread ? html("span", { class: "spread" }, ` ± ${spread}`) : null);
  const bounds = interval ? html("span", { class: "interval" }, interval) : null;
  const element = html("li", {}, html("span", { class: "name" }, name), value, bounds, button);
  const show = (shown) => {
    if (!explained) return;
    element.setAttribute("data-shown", String(shown === target));
    button.setAttribute("aria-pressed", String(shown === target));
  };
  return { element, show };
}

function drawTop() {
  const facts = data.facts.flatMap((fact, place) => (place ? [" · ", fact] : [fact]));
  document
    .getElementById("top")
    .replaceChildren(
      html("h1", {}, data.title),
      html("p", { class: "facts" }, ...facts),
      html("ul", { class: "predictions" }, ...cards.map(({ element }) => element)),
      data.prediction.warning ? html("p", { class: "notice" }, data.prediction.warning) : "",
      data.prediction.note ? html("p", { class: "facts" }, data.prediction.note) : "",
      partsOf(PANELS),
    );
}

drawTop();
panels.push(...buildPanels(PANELS, data, pick));
onScheme(() => pick({}));
pick({});
// For whoever wants the numbers: in the console, tokengt.weights.of(layer, head) and tokengt.data.
window.tokengt = { data, pick, state: () => state, weights: data.attention.missing ? null : panels[0].weights };
