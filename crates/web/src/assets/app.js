// What the pages cannot do by themselves: live output and events, search while one types, keys,
// and steering. Text from runs only ever becomes text nodes.
"use strict";

const $ = (selector, within = document) => within.querySelector(selector);
const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];
const pageToken = $('meta[name="retake-page-token"]')?.content ?? "";

function notice(text, bad = false, lasting = false) {
  const box = $("#notice");
  const line = document.createElement("p");
  line.textContent = text;
  line.classList.toggle("bad", bad);
  box.replaceChildren(line);
  if (!lasting) setTimeout(() => line.remove(), 6000);
  return line;
}

async function ask(address, options = {}) {
  const answer = await fetch(address, { credentials: "same-origin", ...options }).catch((error) => {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer; is `retake ui` still running?");
  });
  const type = answer.headers.get("content-type") ?? "";
  const body = type.startsWith("application/json") ? await answer.json() : await answer.text();
  if (!answer.ok) throw new Error(body?.error?.message ?? `the server answered ${answer.status}`);
  return body;
}

const post = (address, body) =>
  ask(address, {
    method: "POST",
    headers: { "content-type": "application/json", "x-retake-page-token": pageToken },
    body: JSON.stringify(body ?? {}),
  });

// ---- parts of a page that are fetched anew --------------------------------------------------

async function fetchPage(address, signal) {
  const text = await ask(address, { signal, headers: { accept: "text/html" } });
  return new DOMParser().parseFromString(text, "text/html");
}

// Where the focus is, as a selector that finds the same place in a new version of the page.
function focusedPlace() {
  const part = document.activeElement;
  const row = part.closest("[data-id]"), fold = part.closest("summary")?.parentElement.id;
  if (fold) return `#${CSS.escape(fold)} > summary`;
  const href = part.getAttribute("href");
  if (href === null) return null;
  return `${row ? `[data-id="${CSS.escape(row.dataset.id)}"] ` : ""}a[href="${CSS.escape(href)}"]`;
}

function swap(fresh, selector) {
  for (const old of $$(selector)) {
    const now = fresh.getElementById(old.id);
    if (!now || old.contains(document.activeElement) && document.activeElement.matches("input")) continue;
    if (old.innerHTML === now.innerHTML) continue;
    const chosen = $(".chosen", old)?.dataset.id;
    const unfolded = $$("details[open][id]", old).map((part) => part.id);
    const focused = old.contains(document.activeElement) ? focusedPlace() : null;
    old.replaceChildren(...document.importNode(now, true).childNodes);
    for (const name of now.getAttributeNames()) if (name.startsWith("data-")) old.setAttribute(name, now.getAttribute(name));
    for (const id of unfolded) document.getElementById(id)?.setAttribute("open", "");
    if (chosen) $(`[data-id="${CSS.escape(chosen)}"]`, old)?.classList.add("chosen");
    if (focused) $(focused, old)?.focus({ preventScroll: true });
  }
  enable();
}

let refreshing = null;
let again = false;
function refresh() {
  // However much happens at once, one request is under way and one may follow.
  if (refreshing) { again = true; return refreshing; }
  refreshing = fetchPage(location.href)
    .then((fresh) => swap(fresh, "[data-live]"))
    .catch(() => {})
    .finally(() => {
      refreshing = null;
      if (again) { again = false; setTimeout(refresh, 300); }
    });
  return refreshing;
}

for (const part of $$("[data-every]")) {
  setInterval(() => { if (!document.hidden) refresh(); }, 1000 * Number(part.dataset.every));
}

// ---- events, from where they were heard last ------------------------------------------------

// Connections are few (six for all tabs), so a page that nobody sees has none.
function listen(address, from, handlers, behind) {
  let source = null, last = from, over = false, warned = null;
  const open = () => {
    if (source || over || document.hidden) return;
    const mark = address.includes("?") ? "&" : "?";
    source = new EventSource(last === null ? address : `${address}${mark}from=${encodeURIComponent(last)}`);
    source.onopen = () => { warned?.remove(); warned = null; document.body.dataset.live = "1"; };
    source.onerror = () => {
      document.body.dataset.live = "";
      warned ??= notice("The server does not answer. Trying again…", true, true);
      // A refused answer ends an EventSource for good; a new one goes on from the same place.
      if (source?.readyState === EventSource.CLOSED) { close(); setTimeout(open, 1500); }
    };
    for (const [name, handler] of Object.entries(handlers)) {
      source.addEventListener(name, (event) => {
        if (event.lastEventId) last = event.lastEventId;
        handler(JSON.parse(event.data));
      });
    }
    for (const name of ["end", "gone"]) source.addEventListener(name, () => { over = true; close(); });
    // More was written than a page can show: it goes on from the end, a few times a second.
    source.addEventListener("behind", async (event) => {
      close();
      last = await behind(JSON.parse(event.data));
      setTimeout(open, 250);
    });
  };
  const close = () => { source?.close(); source = null; };
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("pagehide", close);
  addEventListener("pageshow", open);
  open();
  return { stop: () => { over = true; close(); } };
}

// ---- a loop ---------------------------------------------------------------------------------

const loop = $("#loop");
if (loop && !loop.dataset.ended) {
  const feed = $("#feed");
  if (feed) feed.scrollTop = feed.scrollHeight;
  let fedRun = null;
  listen(`/api/v1/loops/${loop.dataset.loop}/events`, loop.dataset.last, {
    event: refresh,
    change: refresh,
    end: () => refresh().then(() => { $("#actions")?.remove(); }),
    gone: (said) => notice(said.message, true, true),
    trouble: (said) => notice(said.message, true),
    feed: ({ run, lines }) => {
      if (!feed) return;
      const follow = feed.scrollHeight - feed.scrollTop - feed.clientHeight < 40;
      if (fedRun !== null && fedRun !== run) feed.replaceChildren();
      fedRun = run;
      for (const line of lines) {
        const item = document.createElement("li");
        item.className = line.kind;
        paint(line.spans ?? [["", line.text]], item);
        feed.append(item);
      }
      while (feed.children.length > 300) feed.firstChild.remove();
      if (follow) feed.scrollTop = feed.scrollHeight;
    },
  });
}

// ---- what changes something -----------------------------------------------------------------

function enable() {
  for (const part of $$(".actions[hidden], button:is([data-post], [data-copy], [data-again], [data-agent])[hidden]")) part.hidden = false;
}
enable();

async function act(body) {
  try {
    const { done } = await post($("#actions").dataset.actions, body);
    notice(done);
  } catch (error) { notice(error.message, true); }
  refresh();
}

document.addEventListener("click", async (event) => {
  const action = event.target.closest("button[data-action]");
  if (action) {
    action.disabled = true;
    const { action: name, agent } = action.dataset;
    return act(agent ? { action: name, agent } : { action: name });
  }
  const copy = event.target.closest("button[data-copy]");
  if (copy) {
    const text = $(copy.dataset.copy).textContent;
    try { await navigator.clipboard.writeText(text); notice(`Copied: ${text}`); }
    catch { notice("The browser does not let the page copy; select the text instead.", true); }
    return;
  }
  const again = event.target.closest("button[data-again]");
  if (again) {
    again.disabled = true;
    try { location.href = `/runs/${(await post(again.dataset.again)).id}`; }
    catch (error) { notice(error.message, true, true); again.disabled = false; }
    return;
  }
  const button = event.target.closest("button[data-post]");
  if (button) {
    button.disabled = true;
    try { const said = await post(button.dataset.post); if (said?.done) notice(said.done); } catch (error) { notice(error.message, true); }
    refresh();
  }
});
document.addEventListener("submit", (event) => {
  if (event.target.id !== "tell") return;
  event.preventDefault();
  const field = event.target.elements.message;
  const agent = event.target.elements.agent?.value;
  act({ action: "tell", message: field.value, ...(agent && { agent }) });
  field.value = "";
  field.blur();
});

// ---- keys -----------------------------------------------------------------------------------

function choose(step) {
  const rows = $$("#rows > *, [data-rows] > *");
  if (!rows.length) return;
  const at = rows.findIndex((row) => row.classList.contains("chosen"));
  rows[at]?.classList.remove("chosen");
  const now = rows[Math.min(rows.length - 1, Math.max(0, at + step))];
  now.classList.add("chosen");
  now.scrollIntoView({ block: "nearest" });
  // So that Enter, and who listens to the page, are there too.
  $("a", now)?.focus({ preventScroll: true });
}

let firstKey = null, firstTimer = null;
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if ($("#help").open && event.key !== "?") return;
  const pages = { o: "/", r: "/runs", t: "/tests", l: "/loops" };
  // `g` before the letter of a page may be left out.
  const after = firstKey === "g";
  clearTimeout(firstTimer);
  firstKey = null;
  if (after && pages[event.key]) { event.preventDefault(); location.href = pages[event.key]; return; }
  const say = (name, detail) => dispatchEvent(new CustomEvent(name, { detail }));
  switch (event.key) {
    case "/": $("#search")?.focus(); $("#search")?.select(); break;
    case "j": choose(1); break;
    case "k": choose(-1); break;
    case "Enter": {
      const link = event.target === document.body ? $(":is(#rows, [data-rows]) > .chosen a") : null;
      if (!link) return;
      link.click();
      break;
    }
    case "?": $("#help").open ? $("#help").close() : $("#help").showModal(); break;
    case "f": $("#inside input")?.focus(); break;
    case "n": say("retake:find", { back: false }); break;
    case "N": say("retake:find", { back: true }); break;
    case "e": say("retake:errors", { back: false }); break;
    case "E": say("retake:errors", { back: true }); break;
    case "g":
      firstKey = "g";
      firstTimer = setTimeout(() => { firstKey = null; say("retake:move", { end: false }); }, 400);
      break;
    case "G": say("retake:move", { end: true }); break;
    default:
      if (!pages[event.key]) return;
      location.href = pages[event.key];
  }
  event.preventDefault();
});
