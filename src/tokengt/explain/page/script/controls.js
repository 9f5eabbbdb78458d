// What a person turns: choices, sliders, and the lists of numbers beside a picture.

// The head that stands for the mean over all of them.
const MEAN = -1;

/** A choice of one out of a few, all of them visible. */
function choices(label, options, onChoose) {
  const buttons = options.map(({ value, name }) =>
    html("button", { type: "button", "data-value": value, click: () => onChoose(value) }, name),
  );
  const element = html(
    "div",
    { class: "control" },
    html("span", {}, label),
    html("div", { class: "choices", role: "group", "aria-label": label }, ...buttons),
  );
  const show = (value) =>
    buttons.forEach((button, place) => button.setAttribute("aria-pressed", String(options[place].value === value)));
  return { element, show };
}

/** A choice of one out of many. */
function menu(label, options, onChoose) {
  const select = html(
    "select",
    { change: () => onChoose(options[select.selectedIndex].value) },
    ...options.map(({ name }) => html("option", {}, name)),
  );
  const element = html("label", { class: "control" }, html("span", {}, label), select);
  return { element, show: (value) => (select.selectedIndex = options.findIndex((option) => option.value === value)) };
}

/** A number from 0 to count - 1, which a person counts from 1. */
function slider(label, count, onChoose) {
  const output = html("output", {});
  const input = html("input", {
    type: "range",
    min: 1,
    max: count,
    step: 1,
    input: () => onChoose(Number(input.value) - 1),
  });
  const element = html("label", { class: "control" }, html("span", {}, `${label} `, output), input);
  const show = (value) => {
    input.value = value + 1;
    output.textContent = `${value + 1} of ${count}`;
  };
  return { element, show };
}

function checkbox(label, checked, onChoose) {
  const input = html("input", { type: "checkbox", checked, change: () => onChoose(input.checked) });
  return html("label", {}, input, ` ${label}`);
}

/** A table of names with bars; rows are {name, share, text, ramp, pick}, share between -1 and 1. */
function ranking(caption, rows, onPick, twoSided = false) {
  return html(
    "table",
    { class: "ranking" },
    html("caption", { class: "unseen" }, caption),
    html("tbody", {}, ...rows.map((row) => rankingRow(row, onPick, twoSided))),
  );
}

function rankingRow(row, onPick, twoSided) {
  const bar = twoSided ? twoSidedBar(row.share) : oneSidedBar(row.share);
  return html(
    "tr",
    { "data-pick": row.pick, click: () => onPick && onPick(row.pick) },
    html("th", { scope: "row" }, row.name),
    html(
      "td",
      {},
      html("span", { class: "bar", "aria-hidden": "true" }, bar, twoSided ? html("i", { class: "middle" }) : null),
    ),
    html("td", { class: "value" }, row.text),
  );
}

/** A bar from the left, of a share between 0 and 1. */
function oneSidedBar(share) {
  const bar = html("i", {});
  Object.assign(bar.style, { left: "0", width: `${100 * share}%`, background: "var(--lowers)" });
  return bar;
}

/** A bar from the middle to the right or to the left, of a share between -1 and 1. */
function twoSidedBar(share) {
  const bar = html("i", {});
  const length = 50 * Math.abs(share);
  Object.assign(bar.style, {
    left: `${share < 0 ? 50 - length : 50}%`,
    width: `${length}%`,
    background: share < 0 ? "var(--lowers)" : "var(--raises)",
  });
  return bar;
}

/** A cell of a table with a share between 0 and 1 in percent, and its shade; null for what is not known. */
function shadedCell(share, title = null) {
  const cell = html("td", { title }, share === null ? "–" : (100 * share).toFixed(0));
  cell.style.background = colour("map", share ?? 0);
  cell.style.color = inkOn("map", share ?? 0);
  return cell;
}

/** The head of a narrow column: its name is written upwards, and all of them have room for the longest. */
function slanted(name, sentence, columns) {
  const head = html("th", { scope: "col", class: "slanted", title: sentence }, html("span", {}, name));
  head.style.height = `${24 + 5.6 * Math.max(...columns.map((column) => column.name.length))}px`;
  return head;
}

/** A section of the page with its heading and a sentence on what it shows. */
function section(id, title, lead, ...children) {
  return html(
    "section",
    { id, "aria-labelledby": `${id}-title` },
    html("h2", { id: `${id}-title` }, title),
    html("p", { class: "faint" }, lead),
    ...children,
  );
}

function missing(id, title, reason) {
  return html(
    "section",
    { id, "aria-labelledby": `${id}-title`, "data-missing": "true" },
    html("h2", { id: `${id}-title` }, title),
    html("p", { class: "notice" }, reason.endsWith(".") ? reason : `${reason}.`),
  );
}

/** Links to all panels of a page. */
function partsOf(kinds) {
  const links = kinds.map(([id, title]) => html("a", { href: `#${id}` }, title));
  return html("nav", { "aria-label": "Parts of this page" }, ...links);
}

/** All panels of a page, in their order; what is missing says why. */
function buildPanels(kinds, data, pick) {
  const built = [];
  const main = document.getElementById("main");
  for (const [id, title, Panel] of kinds) {
    const reason = data[id]?.missing;
    if (reason) main.append(missing(id, title, reason));
    else {
      built.push(new Panel(data, pick));
      main.append(built[built.length - 1].element);
    }
  }
  document.getElementById("bottom").replaceChildren(...data.notes.map((note) => html("p", {}, note)));
  return built;
}
