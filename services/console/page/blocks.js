/* A worker's blocks: a sequence's or cached prefix's logical blocks and where each lies, and every block of the device. */
const TIERS = ["device", "host", "disk"];
const STATES = ["free", "cached", "writing", "held", "shared"];
const STATE_NAMES = ["free", "cached", "being written", "held by one", "held by several"];
const COMMITTED = 1, BRANCHED = 2, PINNED = 4, REUSED = 8, LOADED = 16, COPIED = 32, RESERVED = 64;
const TENANT_HUES = [160, 210, 35, 275, 350, 95, 190, 55, 310, 130, 240, 15];
const FLASH_MS = 1400;

const blocks = {
  map: null, chosen: null, is_own_choice: false, last: null, before: null, flashes: new Map(), emphasised: -1, frame: 0, grid: null,

  set_up() {
    legend("table-legend", [["held", "device, held by one"], ["shared", "device, held by several (×n)"], ["cached", "device, cached"],
      ["writing", "being written"], ["host", "host memory"], ["disk", "disk"]]);
    for (const id of ["block-worker", "pool-colour"]) $(id).addEventListener("change", () => { blocks.before = null; app.look(); });
    $("pool").addEventListener("pointermove", (event) => blocks.point(event));
    $("pool").addEventListener("pointerleave", () => { blocks.emphasised = -1; blocks.draw_soon(); });
    new ResizeObserver(() => blocks.draw_soon()).observe($("pool"));
  },

  workers(view) {
    const select = $("block-worker");
    const names = view.workers.map((each) => each.worker_id);
    if (JSON.stringify(names) === select.dataset.names) return;
    const before = select.value;
    select.dataset.names = JSON.stringify(names);
    select.replaceChildren(...names.map((name) => el("option", { value: name }, text(name))));
    if (names.includes(before)) select.value = before;
  },

  async look() {
    if (!$("block-run").checked && blocks.map) return;
    const worker = $("block-worker").value;
    if (!worker) return;
    const wanted = blocks.chosen && blocks.chosen.request ? blocks.chosen.request : "";
    const query = new URLSearchParams({ worker, request: wanted });
    const map = await ask(`/api/blocks?${query}`);
    if (worker !== $("block-worker").value) return;
    const bytes = (packed) => Uint8Array.from(atob(packed), (each) => each.charCodeAt(0));
    map.states = bytes(map.states);
    map.owners = bytes(map.owners);
    map.generations = new Uint16Array(bytes(map.generations).buffer);
    map.worker = worker;
    blocks.show(map);
  },

  show(map) {
    const before = blocks.map && blocks.map.incarnation === map.incarnation ? blocks.map : null;
    if (before) {
      const now = performance.now();
      for (let at = 0; at < map.states.length; at++)
        if (map.generations[at] !== before.generations[at] || map.states[at] !== before.states[at]) blocks.flashes.set(at, now);
    }
    blocks.map = map;
    $("block-note").textContent = `${whole(map.num_blocks)} blocks of ${map.block_size} tokens${map.is_complete ? "" : " · not all is shown"}`;
    blocks.show_list();
    blocks.show_table();
    blocks.show_pool();
  },

  key(kind, each) {
    if (kind === "sequence") return { kind, request: each.request_id, tenant: blocks.map.tenants[each.tenant], sample: each.samples[0] };
    const end = each.table[each.table.length - 1];
    const first = each.table[0];
    return { kind, tenant: blocks.map.tenants[each.tenant], first: `${first[0]}:${first[1]}:${first[3]}`, end: `${end[0]}:${end[1]}:${end[3]}` };
  },

  same(a, b) {
    if (!a || !b || a.kind !== b.kind || a.tenant !== b.tenant) return false;
    return a.kind === "sequence" ? a.request === b.request && a.sample === b.sample : a.end === b.end;
  },

  choose(key) {
    blocks.chosen = key;
    blocks.is_own_choice = true;
    blocks.last = null;
    if (blocks.map) blocks.show(blocks.map);
  },

  /* A cached prefix whose end was evicted is still the one that begins so. */
  found() {
    const { map, chosen } = blocks;
    const all = [...map.sequences.map((each) => ["sequence", each]), ...map.lines.map((each) => ["line", each])];
    const fitting = all.find(([kind, each]) => blocks.same(blocks.key(kind, each), chosen))
      || (chosen && chosen.kind === "line" ? all.find(([kind, each]) => kind === "line" && blocks.key(kind, each).first === chosen.first) : null);
    return fitting || (blocks.is_own_choice ? null : all[0]) || null;
  },

  show_list() {
    const { map } = blocks;
    const chosen = blocks.found();
    const item = (kind, each, title, tag, tone, parts, total) => el("button", {
      class: "item", "aria-pressed": text(chosen !== null && chosen[1] === each), data: { kind, request: each.request_id || "" },
      on: { click: () => blocks.choose(blocks.key(kind, each)) } },
      el("span", { class: "top" }, el("b", {}, title), el("span", { class: `tag ${tone}` }, tag)),
      el("span", { class: "dim small" }, text(map.tenants[each.tenant])), stacked(parts, total));
    const sequences = map.sequences.map((each) => {
      const sample = each.samples.length === 1 && each.samples[0] > 0 ? ` #${each.samples[0]}` : "";
      const parts = [["cached", each.num_cached], ["held", each.num_computed - each.num_cached]];
      return item("sequence", each, `${each.request_id || "(caller gone)"}${sample}`, each.state, each.state, parts, each.num_tokens);
    });
    const lines = map.lines.map((each) => {
      const counts = [0, 0, 0];
      for (const [tier] of each.table) counts[tier]++;
      const parts = [["cached", counts[0]], ["host", counts[1]], ["disk", counts[2]]];
      return item("line", each, `${each.table.length} blocks`, `${whole(each.table.length * map.block_size)} tokens`, "", parts, each.table.length);
    });
    const none = (what) => [el("p", { class: "empty" }, what)];
    $("sequences").replaceChildren(...(sequences.length ? sequences : none("nothing runs or waits")));
    $("lines").replaceChildren(...(lines.length ? lines : none("nothing is cached that nobody holds")));
  },

  show_table() {
    const chosen = blocks.found();
    if (!chosen) {
      blocks.show_ended();
      return;
    }
    const [kind, each] = chosen;
    blocks.chosen = blocks.key(kind, each);
    blocks.last = chosen;
    const tenant = text(blocks.map.tenants[each.tenant]);
    $("chosen-title").textContent = kind === "sequence" ? `${each.request_id || "a request"} of ${tenant}` : `A cached prefix of ${tenant}`;
    $("chosen-note").textContent = kind === "sequence"
      ? `${each.state}: ${whole(each.num_computed)} of ${whole(each.num_tokens)} tokens computed, ${whole(each.num_cached)} of its ${whole(each.prompt_tokens)} prompt tokens reused`
      : `${each.table.length} blocks that a request could reuse`;
    const known = blocks.before && blocks.same(blocks.before.key, blocks.chosen) ? blocks.before.cells : null;
    $("table").replaceChildren(...each.table.map((cell, at) => blocks.cell(cell, at, each.copied_from, known)));
    blocks.before = { key: blocks.chosen, cells: new Set(each.table.map((cell) => `${cell[0]}:${cell[1]}:${cell[3]}`)) };
  },

  /* Its blocks as they were last, and what has become of each since. */
  show_ended() {
    const { map, last } = blocks;
    if (!last) {
      $("chosen-title").textContent = "Logical blocks";
      $("chosen-note").textContent = blocks.chosen ? "it has ended, or is gone from every tier: choose another one" : "nothing runs and nothing is cached here";
      $("table").replaceChildren();
      return;
    }
    const counts = { cached: 0, free: 0, gone: 0, held: 0 };
    const cells = last[1].table.map((cell, at) => {
      const [tier, number, , uid] = cell;
      const state = tier || number >= map.states.length ? -1 : map.states[number];
      const is_same = !tier && map.generations[number] === uid % 65536;
      const now = tier ? "gone" : !is_same ? "gone" : state === 0 ? "free" : state === 1 ? "cached" : "held";
      counts[now]++;
      const what = { gone: "others'", free: "returned", cached: "cached", held: "in use" }[now];
      return el("div", { class: `cell ${now === "gone" || now === "free" ? "reserved" : ""}`, role: "listitem", style: { "--kind": colour(now === "gone" ? "idle" : now) },
        title: `logical block ${at} lay in ${TIERS[tier]} ${number}: ${what}`, data: { at, tier: TIERS[tier], number, uid, now } },
        el("span", { class: "at" }, `${at} → ${tier ? TIERS[tier] : ""}`), el("span", { class: "where" }, `#${number}`), el("span", { class: "how" }, what));
    });
    $("chosen-note").textContent = `it has ended: ${counts.cached} of its ${cells.length} blocks are still cached here, ${counts.held} are in use again, ${counts.free} were returned, ${counts.gone} were given to others`;
    $("table").replaceChildren(...cells);
  },

  cell([tier, number, holders, uid, marks], at, copied_from, known) {
    const kind = tier ? TIERS[tier] : holders > 1 ? "shared" : holders === 0 ? "cached" : marks & COMMITTED ? "held" : "writing";
    const how = [];
    if (marks & COPIED) how.push(copied_from === null || copied_from === undefined ? "copy" : `copy of ${copied_from}`);
    if (marks & LOADED) how.push("loaded");
    else if (marks & REUSED) how.push("reused");
    if (marks & PINNED) how.push("pinned");
    if (marks & RESERVED) how.push("reserved");
    if (marks & BRANCHED) how.push("branches");
    const fresh = known && !known.has(`${tier}:${number}:${uid}`) ? "fresh" : "";
    return el("div", {
      class: `cell ${marks & RESERVED ? "reserved" : ""} ${fresh}`, role: "listitem", style: { "--kind": colour(kind) },
      title: `logical block ${at}: ${TIERS[tier]} ${number}, ${holders} ${holders === 1 ? "holder" : "holders"}`,
      data: { at, tier: TIERS[tier], number, holders, uid, marks, kind },
      on: tier ? {} : { pointerenter: () => { blocks.emphasised = number; blocks.draw_soon(); }, pointerleave: () => { blocks.emphasised = -1; blocks.draw_soon(); } } },
      el("span", { class: "at" }, `${at} → ${tier ? TIERS[tier] : ""}`), holders > 1 ? el("span", { class: "who" }, `×${holders}`) : null,
      el("span", { class: "where" }, `#${number}`), el("span", { class: "how" }, how.join(", ") || "\u00a0"));
  },

  show_pool() {
    const { map } = blocks;
    const counts = [0, 0, 0, 0, 0];
    for (const state of map.states) counts[state]++;
    const cut = map.states.length < map.num_blocks ? `, the first ${whole(map.states.length)} of ${whole(map.num_blocks)}` : "";
    $("pool-note").textContent = `${whole(counts[0])} free${cut}`;
    if ($("pool-colour").value === "tenant") {
      $("pool-legend").replaceChildren(...map.pool_tenants.map((place, at) =>
        el("li", {}, el("i", { style: { background: blocks.tenant_colour(at) } }), text(map.tenants[place]))));
    } else {
      legend("pool-legend", STATES.map((name, at) => [name, `${STATE_NAMES[at]} ${whole(counts[at])}`]));
    }
    const pool = $("pool");
    pool.dataset.states = Array.from(map.states).join("");
    blocks.draw_soon();
  },

  tenant_colour(at) {
    return `hsl(${TENANT_HUES[at % TENANT_HUES.length]} 55% ${at < TENANT_HUES.length ? 52 : 38}%)`;
  },

  draw_soon() {
    if (!blocks.frame) blocks.frame = requestAnimationFrame(() => { blocks.frame = 0; blocks.draw(); });
  },

  draw() {
    const { map } = blocks;
    const canvas = $("pool");
    const width = canvas.clientWidth;
    if (!map || !width) return;
    const number = map.states.length;
    const columns = Math.max(1, Math.floor(width / Math.max(5, Math.min(20, Math.sqrt((width * 300) / Math.max(1, number))))));
    const size = width / columns;
    const rows = Math.ceil(number / columns);
    const ratio = window.devicePixelRatio || 1;
    canvas.style.setProperty("height", `${rows * size}px`);
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(rows * size * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(rows * size * ratio);
    }
    blocks.grid = { size, columns, number };
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, rows * size);
    const style = getComputedStyle(document.documentElement);
    const tones = STATES.map((name) => style.getPropertyValue(`--${name}`));
    const ink = style.getPropertyValue("--text");
    const by_tenant = $("pool-colour").value === "tenant";
    const chosen = blocks.found();
    const mine = new Set(chosen ? chosen[1].table.filter(([tier]) => tier === 0).map(([, place]) => place) : []);
    const gap = size > 9 ? 2 : 1;
    const now = performance.now();
    let alive = false;
    for (let at = 0; at < number; at++) {
      const x = (at % columns) * size, y = Math.floor(at / columns) * size;
      const state = map.states[at];
      pen.globalAlpha = state === 1 && !by_tenant ? 0.75 : by_tenant && state === 1 ? 0.5 : 1;
      pen.fillStyle = by_tenant && state ? blocks.tenant_colour(map.owners[at]) : tones[state];
      pen.fillRect(x, y, size - gap, size - gap);
      const began = blocks.flashes.get(at);
      if (began !== undefined) {
        const left = 1 - (now - began) / FLASH_MS;
        if (left > 0) {
          alive = true;
          pen.globalAlpha = left * 0.8;
          pen.fillStyle = ink;
          pen.fillRect(x, y, size - gap, size - gap);
        } else blocks.flashes.delete(at);
      }
      if (mine.has(at) || at === blocks.emphasised) {
        pen.globalAlpha = 1;
        pen.strokeStyle = ink;
        pen.lineWidth = at === blocks.emphasised ? 3 : 1.5;
        pen.strokeRect(x + 0.5, y + 0.5, size - gap - 1, size - gap - 1);
      }
    }
    pen.globalAlpha = 1;
    if (alive) blocks.draw_soon();
  },

  point(event) {
    if (!blocks.grid) return;
    const { size, columns, number } = blocks.grid;
    const at = Math.floor(event.offsetY / size) * columns + Math.floor(event.offsetX / size);
    if (at < 0 || at >= number) return;
    const { map } = blocks;
    const state = map.states[at];
    const owner = map.owners[at] < map.pool_tenants.length ? map.tenants[map.pool_tenants[map.owners[at]]] : "another tenant";
    $("pool-tip").textContent = `block ${at}: ${STATE_NAMES[state]}${state ? `, of ${owner}` : ""}`;
  },
};
