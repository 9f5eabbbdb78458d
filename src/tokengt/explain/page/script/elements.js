// Making elements. All text that comes from a person goes through textContent, which no browser reads as markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element of HTML; children are elements or text, and null is left out. */
function html(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** An element of SVG. */
function shape(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

/** A number in a few digits, with a real minus sign. */
function number(value, digits = 3) {
  if (value === null || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  const text =
    size !== 0 && (size < 1e-3 || size >= 1e5)
      ? value.toExponential(digits - 1)
      : String(Number(value.toPrecision(digits)));
  return text.replaceAll("-", "\u2212");
}

/** A number that says which way it goes. */
function signed(value, digits = 3) {
  if (value === null) return "–";
  return (value > 0 ? "+" : "") + number(value, digits);
}

function percent(share) {
  if (!Number.isFinite(share)) return "–";
  const value = 100 * share;
  const digits = value !== 0 && value < 0.095 ? 2 : value < 9.95 ? 1 : 0;
  return `${value.toFixed(digits)}\u00a0%`;
}

/** Say something to whoever cannot see what has changed. */
function announce(sentence) {
  document.getElementById("announcer").textContent = sentence;
}

/** Call a function with the width of an element now and whenever it changes. */
function onWidth(element, draw) {
  let known = 0;
  const measure = () => {
    const width = Math.floor(element.clientWidth);
    if (width > 0 && width !== known) draw((known = width));
  };
  new ResizeObserver(measure).observe(element);
  measure();
}

/** Call a function whenever the browser changes between light and dark. */
function onScheme(draw) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
}
