/* The last requests, where the time of each went, and why it went and reused as it did. */
const PHASES = ["route", "queue", "load", "prefill", "decode"];

const requests = {
  all: [], chosen: null, told: null,

  set_up() {
    legend("phase-legend", PHASES.map((name) => [name, name]));
    $("request-filter").addEventListener("input", () => requests.show());
  },

  async look() {
    requests.all = await ask("/api/requests");
    requests.show();
    const { chosen } = requests;
    if (chosen && (!requests.told || requests.told.record.status === "")) await requests.explain();
  },

  phases(each) {
    const load = Math.min(each.swap_s, each.queue_s);
    return { route: each.route_s, queue: each.queue_s - load, load, prefill: each.prefill_s, decode: each.decode_s };
  },

  async explain() {
    const { tenant, request_id } = requests.chosen;
    requests.told = await ask(`/api/request?${new URLSearchParams({ tenant, id: request_id })}`);
    requests.show_detail();
  },

  choose(each) {
    requests.chosen = each;
    requests.told = null;
    requests.show();
    requests.explain().then(() => $("detail").scrollIntoView({ block: "nearest" })).catch(app.failed);
  },

  show() {
    const wanted = $("request-filter").value.toLowerCase();
    const shown = requests.all.filter((each) => `${each.tenant} ${each.request_id}`.toLowerCase().includes(wanted));
    const longest = Math.max(1e-6, ...shown.map((each) => Object.values(requests.phases(each)).reduce((a, b) => a + b, 0)));
    const head = (name, kind) => el("th", { class: kind || "" }, name);
    document.querySelector("#requests thead").replaceChildren(el("tr", {}, head("Came"), head("Tenant"), head("Request"), head("Worker"),
      head("Prompt", "num"), head("Reused", "num"), head("Made", "num"), head("Where the time went"), head("Took", "num"), head("Status")));
    const rows = shown.map((each) => requests.row(each, longest));
    document.querySelector("#requests tbody").replaceChildren(...(rows.length ? rows
      : [el("tr", {}, el("td", { class: "dim", colspan: 10 }, "this router has run no such request yet"))]));
  },

  row(each, longest) {
    const phases = requests.phases(each);
    const took = Object.values(phases).reduce((a, b) => a + b, 0);
    const is_chosen = requests.chosen && requests.chosen.tenant === each.tenant && requests.chosen.request_id === each.request_id;
    const number = (value) => el("td", { class: "num" }, value);
    const status = each.status || "running";
    return el("tr", { class: "pick", tabindex: 0, "aria-selected": text(Boolean(is_chosen)), data: { request: each.request_id },
      on: { click: () => requests.choose(each), keydown: (event) => { if (event.key === "Enter") requests.choose(each); } } },
      el("td", { class: "dim" }, new Date(each.receive_unix_s * 1000).toLocaleTimeString("en-GB")),
      el("td", { class: "name" }, text(each.tenant)), el("td", { class: "mono" }, each.request_id.length > 22 ? `${each.request_id.slice(0, 21)}…` : text(each.request_id)),
      el("td", {}, text(each.worker)), number(whole(each.prompt_tokens)),
      number(each.prompt_tokens ? `${whole(each.cached_tokens)} · ${percent(each.cached_tokens / each.prompt_tokens)}` : "–"),
      number(whole(each.completion_tokens)), el("td", { class: "part" }, stacked(PHASES.map((name) => [name, phases[name]]), longest)),
      number(took ? seconds(took) : "–"), el("td", {}, el("span", { class: `pill ${status === "OK" ? "good" : status === "running" ? "" : "bad"}` }, text(status))));
  },

  show_detail() {
    const { told } = requests;
    const { record } = told;
    const phases = requests.phases(record);
    const total = Object.values(phases).reduce((a, b) => a + b, 0);
    const panel = $("detail");
    panel.hidden = false;
    let at = 0;
    const lanes = PHASES.map((name) => {
      const left = total ? (at / total) * 100 : 0;
      at += phases[name];
      const width = total ? (phases[name] / total) * 100 : 0;
      const bar = phases[name] > 0 ? el("i", { style: { left: `${left}%`, width: `${width}%`, background: colour(name) } }) : null;
      return el("div", { class: "lane", data: { phase: name } }, el("span", { class: "dim" }, name), el("div", { class: "track" }, bar),
        el("span", { class: "num" }, seconds(phases[name])));
    });
    const sentence = (name, what) => el("p", { class: "sentence" }, el("b", {}, `${name} `), text(what));
    const setbacks = record.preemptions
      ? sentence("Preempted", `${record.preemptions} times, ${seconds(record.preempted_s)} in all; ${whole(record.recomputed_tokens)} tokens computed again`) : null;
    const told_of = [el("div", { class: "detail-head" }, el("b", { class: "mono" }, text(record.request_id)), el("span", { class: "dim" }, `of ${record.tenant}`),
      el("span", { class: "tag" }, text(told.miss.replaceAll("_", " "))), el("span", { class: "grow" }),
      told.worker ? el("button", { on: { click: () => app.show_blocks(told.worker, record) } }, "Show blocks") : null,
      el("button", { class: "quiet", on: { click: () => { requests.chosen = null; panel.hidden = true; requests.show(); } } }, "Close")),
      ...lanes, sentence("Route.", told.route), sentence("Reuse.", told.reuse), setbacks, requests.terms(told.terms)];
    panel.replaceChildren(...told_of.filter((each) => each !== null));
  },

  terms(terms) {
    if (terms.length < 2) return null;
    const head = (name) => el("th", { class: "num" }, name);
    const number = (value) => el("td", { class: "num" }, value);
    return el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, el("th", {}, "Candidate"), head("Expected there"), head("Queue"),
      head("To compute"), head("For others"), head("Cost"))), el("tbody", {}, ...terms.map((each) => el("tr", {}, el("td", {}, text(each.worker_id)),
      number(`${whole(each.matched_tokens)} tokens`), number(seconds(each.queue_s)), number(seconds(each.prefill_s)),
      number(seconds(each.recompute_s)), number(seconds(each.cost)))))));
  },
};
