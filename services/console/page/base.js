"use strict";
/* What all views share. Names come from others: they only ever become text nodes. */
const $ = (id) => document.getElementById(id);

function el(tag, props, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(props || {})) {
    if (name === "class") made.className = value;
    else if (name === "on") for (const [event, run] of Object.entries(value)) made.addEventListener(event, run);
    else if (name === "style") for (const [key, each] of Object.entries(value)) made.style.setProperty(key, each);
    else if (name === "data") Object.assign(made.dataset, value);
    else made.setAttribute(name, value);
  }
  made.append(...children.filter((each) => each !== null && each !== undefined));
  return made;
}

const text = (value) => String(value);
const whole = (value) => Math.round(value).toLocaleString("en");
const percent = (rate) => (rate === null ? "–" : `${Math.round(rate * 100)} %`);
const rate = (value) => (value === 0 ? "0" : value < 100 ? value.toFixed(1) : whole(value));

function seconds(value) {
  if (value === 0) return "0";
  if (value < 0.001) return `${Math.round(value * 1e6)} µs`;
  if (value < 1) return `${(value * 1e3).toFixed(value < 0.01 ? 1 : 0)} ms`;
  return value < 120 ? `${value.toFixed(value < 10 ? 2 : 1)} s` : `${Math.round(value / 60)} min`;
}

const colour = (name) => `var(--${name})`;

/* A line of values, a gap where there is none. */
function spark(values, name, most) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("viewBox", "0 0 100 30");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  const top = most || Math.max(1e-9, ...values.filter((each) => each !== null));
  const step = 100 / Math.max(1, values.length - 1);
  let run = [];
  const draw = () => {
    if (run.length === 1) run.push([run[0][0] + step / 2, run[0][1]]);
    if (!run.length) return;
    const points = run.map(([x, y]) => `${x.toFixed(2)},${y.toFixed(2)}`).join(" ");
    const fill = document.createElementNS(space, "polygon");
    fill.setAttribute("points", `${run[0][0]},30 ${points} ${run[run.length - 1][0]},30`);
    fill.setAttribute("class", "spark-fill");
    fill.style.setProperty("fill", colour(name));
    const line = document.createElementNS(space, "polyline");
    line.setAttribute("points", points);
    line.setAttribute("class", "spark");
    line.style.setProperty("stroke", colour(name));
    svg.append(fill, line);
    run = [];
  };
  values.forEach((value, at) => {
    if (value === null) draw();
    else run.push([at * step, 28 - 26 * Math.min(1, value / top)]);
  });
  draw();
  return svg;
}

/* Parts of a whole, [colour's name, number] each. */
function stacked(parts, total, more) {
  const bar = el("div", { class: `stacked ${more || ""}` });
  let left = 100;
  for (const [name, number] of parts) {
    const width = total > 0 && number > 0 ? Math.min(left, Math.max(0.8, (number / total) * 100)) : 0;
    left -= width;
    if (width > 0) bar.append(el("i", { style: { width: `${width}%`, background: colour(name) } }));
  }
  return bar;
}

function legend(where, entries) {
  $(where).replaceChildren(...entries.map(([name, what]) =>
    el("li", {}, el("i", { style: { background: colour(name) } }), what)));
}

class LoggedOut extends Error {}

async function ask(path, body) {
  const options = { headers: { "x-stemcache-console": "1" }, cache: "no-store", credentials: "same-origin" };
  if (body !== undefined) {
    options.method = "POST";
    options.headers["content-type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  const answer = await fetch(path, options);
  const told = await answer.json().catch(() => ({ error: `status ${answer.status}` }));
  if (answer.status === 401 && path !== "/api/login") throw new LoggedOut(told.error);
  if (!answer.ok) throw new Error(told.error);
  return told;
}
