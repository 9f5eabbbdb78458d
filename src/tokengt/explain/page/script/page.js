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
  token: 0,
  direction: "from",
  alike: false,
  method: 0,
  target: 0,
  turn: 0,
};
const panels = [];

/** Change what is picked and draw everything that shows it. */
async function pick(change) {
  state = { ...state, ...change, turn: state.turn + 1 };
  drawTop();
  await Promise.all(panels.map((panel) => panel.draw(state)));
}

function drawTop() {
  const { prediction } = data;
  const several = prediction.rows.length > 1 && !data.attribution.missing;
  const rows = prediction.rows.map(({ name, text, spread }, target) =>
    html(
      "li",
      { "data-shown": String(several && target === state.target) },
      html("span", { class: "name" }, name),
      html("b", {}, text, spread ? html("span", { class: "spread" }, ` ± ${spread}`) : null),
      several ? html("button", { type: "button", "aria-pressed": String(target === state.target), click: () => pick({ target }) }, "explain this") : null,
    ),
  );
  document.getElementById("top").replaceChildren(
    html("h1", {}, data.title),
    html("p", { class: "facts" }, ...data.facts.flatMap((fact, place) => (place ? [" · ", fact] : [fact]))),
    html("ul", { class: "predictions" }, ...rows),
    prediction.note ? html("p", { class: "facts" }, prediction.note) : null,
    html("nav", { "aria-label": "Parts of this page" }, ...PANELS.map(([id, title]) => html("a", { href: `#${id}` }, title))),
  );
}

function build() {
  const main = document.getElementById("main");
  for (const [id, title, Panel] of PANELS) {
    if (data[id].missing) main.append(missing(id, title, data[id].missing));
    else {
      panels.push(new Panel(data, pick));
      main.append(panels[panels.length - 1].element);
    }
  }
  document.getElementById("bottom").replaceChildren(...data.notes.map((note) => html("p", {}, note)));
}

build();
onScheme(() => pick({}));
pick({});
// For whoever wants the numbers: in the console, tokengt.weights.of(layer, head) and tokengt.data.
window.tokengt = { data, pick, state: () => state, weights: data.attention.missing ? null : panels[0].weights };
