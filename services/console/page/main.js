/* Who is in, which view is shown, and when it asks for news. */
const EVERY_MS = { live: 2000, blocks: 1000, requests: 2000 };

const app = {
  view: "live", timer: 0, is_asking: false, turn: 0,

  set_up() {
    const kept = localStorage.getItem("stemcache-theme");
    app.theme(kept || (matchMedia("(prefers-color-scheme: light)").matches ? "light" : "dark"));
    live.set_up();
    blocks.set_up();
    requests.set_up();
    for (const tab of document.querySelectorAll("nav button")) tab.addEventListener("click", () => app.choose(tab.dataset.view));
    $("theme").addEventListener("click", () => {
      const other = document.documentElement.dataset.theme === "light" ? "dark" : "light";
      localStorage.setItem("stemcache-theme", other);
      app.theme(other);
    });
    $("login-form").addEventListener("submit", (event) => { event.preventDefault(); app.log_in(); });
    $("logout").addEventListener("click", () => ask("/api/logout", {}).catch(() => undefined).then(() => app.out("")));
    document.addEventListener("visibilitychange", () => { if (!document.hidden) app.look(); });
    app.choose(["live", "blocks", "requests"].includes(location.hash.slice(1)) ? location.hash.slice(1) : "live");
  },

  theme(name) {
    document.documentElement.dataset.theme = name;
    blocks.draw_soon();
  },

  choose(view) {
    app.view = view;
    history.replaceState(null, "", `#${view}`);
    for (const tab of document.querySelectorAll("nav button")) tab.setAttribute("aria-selected", String(tab.dataset.view === view));
    for (const name of Object.keys(EVERY_MS)) $(`view-${name}`).hidden = name !== view;
    app.look();
  },

  show_blocks(worker, record) {
    if (![...$("block-worker").options].some((each) => each.value === worker)) return;
    $("block-worker").value = worker;
    if (record.status === "") blocks.choose({ kind: "sequence", request: record.request_id, tenant: record.tenant, sample: 0 });
    app.choose("blocks");
  },

  /* One look at a time; what is asked for meanwhile is looked at next. */
  async look() {
    clearTimeout(app.timer);
    app.turn++;
    if (app.is_asking) return;
    app.is_asking = true;
    const turn = app.turn;
    try {
      await app.look_once();
    } catch (error) {
      app.failed(error);
    } finally {
      app.is_asking = false;
    }
    if (turn !== app.turn) app.look();
    else if (!$("console").hidden && !document.hidden) app.timer = setTimeout(() => app.look(), EVERY_MS[app.view]);
  },

  async look_once() {
    const view = await ask("/api/live");
    $("login").hidden = true;
    $("console").hidden = false;
    $("version").textContent = view.version;
    blocks.workers(view);
    if (app.view === "live") live.show(view);
    if (app.view === "blocks") await blocks.look();
    if (app.view === "requests") await requests.look();
    app.marks(view.marks, view.marks.length ? "look here" : "well");
  },

  marks(marks, pulse) {
    $("marks").replaceChildren(...marks.map((mark) => el("p", {}, text(mark))));
    $("pulse").textContent = pulse;
    $("pulse").className = `pill ${marks.length ? "bad" : "good"}`;
  },

  failed(error) {
    if (error instanceof LoggedOut) app.out(error.message === "log in first" ? "" : error.message);
    else {
      app.marks([error.message || "the router does not answer"], "no news");
      app.timer = setTimeout(() => app.look(), EVERY_MS[app.view]);
    }
  },

  async log_in() {
    const field = $("key");
    $("login-error").textContent = "";
    try {
      await ask("/api/login", { key: field.value.trim() });
      field.value = "";
      app.look();
    } catch (error) {
      field.value = "";
      field.focus();
      $("login-error").textContent = error.message;
    }
  },

  out(why) {
    clearTimeout(app.timer);
    blocks.is_own_choice = false;
    blocks.map = blocks.chosen = blocks.last = blocks.before = requests.chosen = requests.told = live.view = null;
    requests.all = [];
    $("detail").hidden = true;
    for (const id of ["tiles", "workers", "sequences", "lines", "table", "detail", "marks"]) $(id).replaceChildren();
    for (const body of document.querySelectorAll("tbody")) body.replaceChildren();
    $("console").hidden = true;
    $("login").hidden = false;
    $("login-error").textContent = why;
    $("key").focus();
  },
};

app.set_up();
