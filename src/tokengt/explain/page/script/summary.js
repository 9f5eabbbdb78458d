// The page on a whole run: what is picked, and who has to be told.

const data = JSON.parse(document.getElementById("data").textContent);
const PANELS = [
  ["curves", "Training", CurvesPanel],
  ["predictions", "Predictions and labels", PredictionsPanel],
  ["errors", "Where it is wrong", ErrorsPanel],
  ["wrong", "The worst predictions", WrongPanel],
  ["substructures", "Substructures that move predictions", SubstructuresPanel],
  ["distance", "How far heads look", DistancePanel],
  ["patterns", "What each head does", PatternsPanel],
];
let state = { target: 0, layer: 0, head: MEAN };
const panels = [];

function pick(change) {
  state = { ...state, ...change };
  panels.forEach((panel) => panel.draw(state));
}

function measureCard({ name, value }) {
  return html("li", {}, html("span", { class: "name" }, name), html("b", {}, number(value, 4)));
}

function drawTop() {
  const [first] = data.targets;
  document
    .getElementById("top")
    .replaceChildren(
      html("h1", {}, data.title),
      html("ul", { class: "facts" }, ...data.facts.map((fact) => html("li", {}, fact))),
      html("ul", { class: "predictions", "aria-label": first.name }, ...first.measures.map(measureCard)),
      partsOf(PANELS),
    );
}

drawTop();
panels.push(...buildPanels(PANELS, data, pick));
onScheme(() => {
  panels.forEach((panel) => (panel.shown = null));
  pick({});
});
pick({});
window.tokengt = { data, pick, state: () => state };
