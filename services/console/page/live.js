/* Workers and tenants, and how it went lately. */
const TENANT_SORTS = {
  blocks: (each) => -each.tiers.reduce((sum, part) => sum + part.used_blocks, 0),
  name: null,
  requests: (each) => -each.requests_per_s,
  "worst hit rate": (each) => (each.hit_rate === null ? 2 : each.hit_rate),
  waiting: (each) => -each.waiting_requests,
  evictions: (each) => -each.evicted_per_s,
};

const live = {
  view: null,

  set_up() {
    legend("tenant-legend", [["own", "within its guarantee"], ["borrowed", "borrowed"], ["lent", "lent to others"], ["idle", "guaranteed, idle"]]);
    $("tenant-sort").replaceChildren(...Object.keys(TENANT_SORTS).map((name) => el("option", { value: name }, `by ${name}`)));
    $("tenant-sort").addEventListener("change", () => live.show_tenants());
    $("tenant-filter").addEventListener("input", () => live.show_tenants());
  },

  show(view) {
    live.view = view;
    const since = view.window_s ? `over ${seconds(view.window_s)}` : "since the router's start";
    const trends = view.trends;
    const tile = (name, value, note, values, tone, most) => el("div", { class: "card tile" },
      el("h3", {}, name), el("b", {}, value), el("span", { class: "dim small" }, note), spark(values, tone, most));
    $("tiles").replaceChildren(
      tile("Hit rate", percent(view.hit_rate), since, trends.hit_rates, "own", 1),
      tile("Running", whole(view.running_requests), `${rate(view.requests_per_s)} requests/s`, trends.running, "cached"),
      tile("Waiting", whole(view.waiting_requests), "for room or their turn", trends.waiting, "queue"),
      tile("Evictions/s", rate(view.evicted_per_s), since, trends.evicted_per_s, "shared"));
    $("workers").replaceChildren(...view.workers.map(live.worker));
    live.show_tenants();
    $("left-out").textContent = view.tenants_left_out ? `and ${view.tenants_left_out} tenants more` : "";
  },

  worker(each) {
    const fact = (name, value) => el("span", {}, `${name} `, el("b", {}, value));
    const card = el("div", { class: "card", data: { worker: each.worker_id } },
      el("div", { class: "card-head" }, el("b", {}, text(each.worker_id)), el("span", { class: "dim small" }, text(each.model))));
    for (const tier of each.tiers) {
      card.append(el("div", { class: "meter" }, el("span", {}, text(tier.tier)),
        stacked([[tier.tier === "device" ? "cached" : tier.tier, tier.used_blocks]], tier.total_blocks),
        el("span", { class: "num" }, `${whole(tier.used_blocks)} / ${whole(tier.total_blocks)}`)));
    }
    card.append(el("div", { class: "facts" },
      fact("running", `${each.running_requests}/${each.max_running}`), fact("waiting", whole(each.waiting_requests)),
      fact("evicted/s", rate(each.evicted_per_s)), fact("preempted", whole(each.preemptions)),
      fact("prefill tok/s", each.prefill_tokens_per_s ? whole(each.prefill_tokens_per_s) : "–")));
    for (const mark of each.marks) card.append(el("p", { class: "error small" }, text(mark)));
    return card;
  },

  show_tenants() {
    if (!live.view) return;
    const totals = {};
    for (const worker of live.view.workers)
      for (const tier of worker.tiers) totals[tier.tier] = (totals[tier.tier] || 0) + tier.total_blocks;
    const wanted = $("tenant-filter").value.toLowerCase();
    const key = TENANT_SORTS[$("tenant-sort").value];
    const shown = live.view.tenants.filter((each) => each.name.toLowerCase().includes(wanted));
    shown.sort((a, b) => (key ? key(a) - key(b) : 0) || (a.name < b.name ? -1 : 1));
    const head = (name, kind) => el("th", { class: kind || "" }, name);
    document.querySelector("#tenants thead").replaceChildren(el("tr", {}, head("Tenant"), head("Tier"), head("Part of the tier"),
      head("Used", "num"), head("Guarantee", "num"), head("Lent", "num"), head("Pinned", "num"), head("Hits", "num"), head(""),
      head("Req/s", "num"), head("Waits", "num"), head("Evicted/s", "num")));
    document.querySelector("#tenants tbody").replaceChildren(...shown.flatMap((each) => live.tenant(each, totals)));
  },

  tenant(each, totals) {
    const number = (value) => el("td", { class: "num" }, value);
    return each.tiers.map((part, at) => {
      const own = Math.min(part.used_blocks, part.guaranteed_blocks);
      const borrowed = part.used_blocks - own;
      const lent = part.lent_blocks || 0;
      const idle = Math.max(0, part.guaranteed_blocks - own - lent);
      const parts = [["own", own], ["borrowed", borrowed], ["lent", lent], ["idle", idle]];
      const row = el("tr", { class: at ? "more" : "", data: { tenant: each.name, tier: part.tier } },
        el("td", { class: "name" }, at ? "" : text(each.name)), el("td", { class: "dim" }, text(part.tier)),
        el("td", { class: "part" }, stacked(parts, totals[part.tier] || 0)),
        number(whole(part.used_blocks)), number(whole(part.guaranteed_blocks)),
        number(part.lent_blocks === null ? "–" : whole(lent)), number(whole(part.pinned_blocks)));
      if (at) row.append(number(""), el("td"), number(""), number(""), number(""));
      else row.append(number(percent(each.hit_rate)), el("td", { class: "line" }, spark(each.hit_rates, "own", 1)),
        number(rate(each.requests_per_s)), number(whole(each.waiting_requests)), number(rate(each.evicted_per_s)));
      return row;
    });
  },
};
