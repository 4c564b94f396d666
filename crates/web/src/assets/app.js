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

function swap(fresh, selector) {
  for (const old of $$(selector)) {
    const now = fresh.getElementById(old.id);
    if (!now || old.contains(document.activeElement) && document.activeElement.matches("input")) continue;
    if (old.innerHTML === now.innerHTML) continue;
    const chosen = $(".chosen", old)?.dataset.id;
    const unfolded = $$("details[open][id]", old).map((part) => part.id);
    old.replaceChildren(...document.importNode(now, true).childNodes);
    for (const name of now.getAttributeNames()) if (name.startsWith("data-")) old.setAttribute(name, now.getAttribute(name));
    for (const id of unfolded) document.getElementById(id)?.setAttribute("open", "");
    if (chosen) $(`[data-id="${CSS.escape(chosen)}"]`, old)?.classList.add("chosen");
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

// ---- the output of a run --------------------------------------------------------------------

const KEPT = 4; // windows of 64 KiB that a pane keeps; the rest is fetched again when scrolled to
const sizeOf = (bytes) => {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (bytes >= 1000 && at + 1 < units.length) { bytes /= 1024; at += 1; }
  return `${at === 0 || bytes >= 100 ? Math.round(bytes) : bytes.toPrecision(3)} ${units[at]}`;
};

// Only letters of ASCII have two cases, as where the server looks.
const fold = (text) => text.replace(/[A-Z]/g, (letter) => letter.toLowerCase());

// Text in styles.
function paint(spans, into) {
  for (const [classes, text] of spans) {
    let to = into;
    if (classes) { to = document.createElement("span"); to.className = classes; into.append(to); }
    to.append(text);
  }
}

class Pane {
  constructor(element, run) {
    this.element = element;
    this.run = run;
    this.stream = element.dataset.stream;
    this.log = $(".log", element);
    this.extent = $(".extent", element);
    this.length = Number(element.dataset.length);
    this.offsets = element.dataset.offsets;
    this.needle = "";
    this.busy = false;
    const first = $("pre", this.log);
    this.blocks = [{ node: first, start: Number(element.dataset.start), end: Number(element.dataset.end) }];
    this.controls();
    this.log.addEventListener("scroll", () => this.scrolled(), { passive: true });
    // The end is what one wants to see first, unless something was looked for.
    const mark = $("mark", this.log);
    if (mark) { mark.classList.add("here"); this.log.scrollTop = mark.offsetTop - this.log.clientHeight / 3; }
    else if (!location.search.match(/[?&](out|err|all)=/)) this.log.scrollTop = this.log.scrollHeight;
    this.told();
  }

  get start() { return this.blocks[0].start; }
  get end() { return this.blocks.at(-1).end; }
  get atEnd() { return this.end >= this.length; }
  get atBottom() { return this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 40; }
  get following() { return this.atEnd && this.atBottom; }

  controls() {
    const moves = $(".moves", this.element);
    const button = (name, title, act) => {
      const made = document.createElement("button");
      made.className = "small";
      made.textContent = name;
      made.title = title;
      made.setAttribute("aria-label", `${title} of ${this.stream}`);
      made.addEventListener("click", act);
      return made;
    };
    this.slider = document.createElement("input");
    Object.assign(this.slider, { type: "range", min: 0, max: 1000, value: 1000, title: "Place in the output" });
    this.slider.setAttribute("aria-label", `Place in ${this.stream}`);
    this.slider.addEventListener("change", () => this.go({ near: Math.floor(this.length * this.slider.value / 1000) }));
    moves.replaceChildren(this.slider, button("⇤", "Beginning", () => this.first()), button("⇥", "End", () => this.last()));
    this.moves = moves;
  }

  told() {
    const all = this.start === 0 && this.atEnd;
    const shown = sizeOf(this.end - this.start), length = sizeOf(this.length);
    if (all) this.extent.textContent = length;
    else if (this.start === 0) this.extent.textContent = `the first ${shown} of ${length}`;
    else if (this.atEnd) this.extent.textContent = `the last ${shown} of ${length}`;
    else this.extent.textContent = `${shown} at ${(100 * this.start / this.length).toFixed(1)} % of ${length}`;
    this.slider.hidden = all;
    if (document.activeElement !== this.slider && this.length > 0) {
      this.slider.value = Math.round(1000 * (this.atEnd && this.following ? 1 : this.start / this.length));
    }
    if (this.length > 0) $(".empty", this.log)?.remove();
  }

  render(pieces, into) {
    for (const piece of pieces) {
      let to = into;
      if (this.stream === "merged") {
        to = document.createElement("span");
        to.className = `piece ${piece.stream}`;
        if (piece.atMs !== undefined) to.title = `${piece.stream} after ${piece.atMs} ms`;
        into.append(to);
      }
      paint(piece.spans, to);
    }
    this.mark(into);
  }

  // Marks what was looked for, whatever styles it has; each match has its number.
  mark(within) {
    if (!this.needle) return;
    const texts = [];
    let all = "";
    const walk = document.createTreeWalker(within, NodeFilter.SHOW_TEXT);
    for (let text; (text = walk.nextNode());) { texts.push({ text, at: all.length }); all += text.data; }
    const folded = fold(all), found = [];
    for (let at = 0; (at = folded.indexOf(this.needle, at)) >= 0; at += this.needle.length) found.push(at);
    // From the end, so that what is still to be marked stays where it was.
    let last = texts.length - 1;
    for (let match = found.length - 1; match >= 0; match -= 1) {
      const start = found[match], end = start + this.needle.length;
      while (last > 0 && texts[last].at >= end) last -= 1;
      for (let one = last; one >= 0; one -= 1) {
        const { text, at } = texts[one];
        const from = Math.max(start, at) - at, to = Math.min(end - at, text.data.length);
        if (to > from) {
          const mark = document.createElement("mark");
          mark.dataset.match = match;
          const part = text.splitText(from);
          part.splitText(to - from);
          part.replaceWith(mark);
          mark.append(part);
        }
        if (at <= start) break;
      }
    }
  }

  async window(where) {
    const words = new URLSearchParams({ stream: this.stream, spans: "1", ...where });
    return ask(`/api/v1/runs/${this.run}/logs?${words}`);
  }

  block(window) {
    const node = document.createElement("pre");
    this.render(window.pieces, node);
    this.length = window.length;
    return { node, start: window.offset, end: window.end };
  }

  async go(where, followed = false) {
    if (this.busy) return;
    this.busy = true;
    try {
      const window = await this.window(where);
      if (followed && !this.atBottom) {
        // Meanwhile someone began to read further up.
        this.length = window.length;
        this.busy = false;
        return this.told();
      }
      const block = this.block(window);
      this.log.replaceChildren(block.node);
      this.blocks = [block];
      this.offsets = window.offsets.join(".");
      this.log.scrollTop = where.tail || this.atEnd && where.near === undefined && where.offset === undefined ? this.log.scrollHeight : 0;
      this.told();
      if (!followed) this.name(where.tail ? null : this.start);
    } catch (error) { notice(error.message, true); }
    this.busy = false;
    this.scrolled();
  }

  // The address leads back to here; without a place it leads to the end.
  name(place) {
    const address = new URL(location.href);
    const key = { stdout: "out", stderr: "err", merged: "all" }[this.stream];
    if (place === null) address.searchParams.delete(key); else address.searchParams.set(key, place);
    history.replaceState(null, "", address);
  }

  first() { return this.go({ offset: 0 }); }
  last() { return this.go({ tail: 1 }); }
  follow() { return this.go({ tail: 1 }, true); }

  async scrolled() {
    if (this.busy) return;
    const { scrollTop, clientHeight, scrollHeight } = this.log;
    const down = scrollHeight - scrollTop - clientHeight < 1500 && !this.atEnd;
    const up = !down && scrollTop < 1500 && this.start > 0;
    if (!down && !up) return;
    this.busy = true;
    try {
      if (down) {
        const window = await this.window({ offset: this.end });
        const block = this.block(window);
        this.log.append(block.node);
        this.blocks.push(block);
        this.offsets = window.offsets.join(".");
        if (this.blocks.length > KEPT) {
          const height = this.log.scrollHeight, top = this.log.scrollTop;
          this.blocks.shift().node.remove();
          this.log.scrollTop = top - (height - this.log.scrollHeight);
        }
      } else {
        const block = this.block(await this.window({ before: this.start }));
        const height = this.log.scrollHeight, top = this.log.scrollTop;
        this.log.prepend(block.node);
        this.blocks.unshift(block);
        this.log.scrollTop = top + this.log.scrollHeight - height;
        if (this.blocks.length > KEPT) this.blocks.pop().node.remove();
      }
      this.told();
    } catch (error) { notice(error.message, true); }
    this.busy = false;
    // More may be needed still, once this is laid out.
    requestAnimationFrame(() => this.scrolled());
  }

  // What was written just now. Shown where the end is shown; else only counted.
  grew(pieces, from, offsets, place) {
    const was = this.following;
    const merged = this.stream === "merged";
    const length = merged ? offsets[0] + offsets[1] : offsets[place];
    if (length <= this.end) return;
    const joins = merged ? this.offsets === from.join(".") : this.end === from[place];
    // Who reads further up must not get an endless page below.
    const room = was || this.end - this.start < KEPT * 65536;
    this.length = Math.max(this.length, length);
    if (joins && room && !this.busy) {
      const last = this.blocks.at(-1);
      const added = document.createDocumentFragment();
      this.render(pieces, added);
      last.node.append(added);
      last.end = length;
      this.offsets = offsets.join(".");
      if (last.end - last.start > 65536) {
        const node = document.createElement("pre");
        this.log.append(node);
        this.blocks.push({ node, start: last.end, end: last.end });
        if (this.blocks.length > KEPT && was) this.blocks.shift().node.remove();
      }
      if (was) this.log.scrollTop = this.log.scrollHeight;
    } else if (was) this.follow();
    this.told();
  }

  // So much was written that only its length is told.
  async jump(length) {
    const was = this.following;
    this.length = Math.max(this.length, length);
    if (was) await this.follow(); else this.told();
  }

  async find(text, from, goesOn) {
    this.needle = fold(text);
    for (let offset = from; goesOn(offset, this.length);) {
      const words = new URLSearchParams({ stream: this.stream, text, offset });
      const place = await ask(`/api/v1/runs/${this.run}/find?${words}`);
      if (place.found) return place.found;
      if (place.lookedTo >= place.length) return null;
      offset = place.lookedTo;
    }
    return null;
  }

  async show(text, [start]) {
    await this.go({ near: Math.max(0, start - 2048) });
    // The window begins a little before the match, with others perhaps.
    const shown = this.blocks[0].node;
    const words = new URLSearchParams({ stream: this.stream, text, offset: start, since: this.start });
    const { before } = await ask(`/api/v1/runs/${this.run}/find?${words}`);
    const mark = $(`mark[data-match="${before}"]`, shown) ?? $("mark", shown);
    if (!mark) return;
    for (const part of $$(`mark[data-match="${mark.dataset.match}"]`, shown)) part.classList.add("here");
    this.log.scrollTop = mark.offsetTop - this.log.clientHeight / 3;
  }
}

const output = $("#output");
if (output) {
  const run = output.dataset.run;
  const panes = $$(".pane", output).map((pane) => new Pane(pane, run));
  const by = Object.fromEntries(panes.map((pane) => [pane.stream, pane]));
  const offsets = () => {
    if (by.merged) return by.merged.offsets;
    return `${by.stdout.end}.${by.stderr.end}`;
  };
  if (output.dataset.running) {
    listen(`/api/v1/runs/${run}/events?spans=1&latest=1`, offsets(), {
      output: ({ pieces, from, offsets }) => {
        if (by.merged) return by.merged.grew(pieces, from, offsets);
        for (const [place, stream] of ["stdout", "stderr"].entries()) {
          const own = pieces.filter((piece) => piece.stream === stream);
          if (own.length) by[stream].grew(own, from, offsets, place);
        }
      },
      end: () => { output.dataset.running = ""; refresh(); },
      gone: (said) => notice(said.message, true, true),
      trouble: (said) => notice(said.message, true),
    }, async ({ lengths }) => {
      if (by.merged) {
        await by.merged.jump(lengths[0] + lengths[1]);
        return by.merged.atEnd ? by.merged.offsets : lengths.join(".");
      }
      await Promise.all([by.stdout.jump(lengths[0]), by.stderr.jump(lengths[1])]);
      const heard = (pane, length) => (pane.atEnd ? pane.end : length);
      return `${heard(by.stdout, lengths[0])}.${heard(by.stderr, lengths[1])}`;
    });
  }
  const inside = $("#inside");
  let next = null, looks = 0;
  const search = async (fromStart) => {
    const text = inside.elements.find.value;
    if (!text) return;
    // A new search ends the one that still looks.
    const own = ++looks;
    const goesOn = (offset, length) => {
      if (own === looks) $("#found").textContent = offset > 0 ? `looking, ${Math.floor(100 * offset / length)} %` : "looking…";
      return own === looks;
    };
    if (fromStart || next?.text !== text) next = { text, pane: 0, from: 0 };
    try {
      for (; next.pane < panes.length; next = { text, pane: next.pane + 1, from: 0 }) {
        const pane = panes[next.pane];
        const found = await pane.find(text, next.from, goesOn);
        if (own !== looks) return;
        if (found) {
          next.from = found[1];
          await pane.show(text, found);
          $("#found").textContent = `in ${pane.stream}, ${sizeOf(found[0])} in`;
          const address = new URL(location.href);
          address.searchParams.set("find", text);
          history.replaceState(null, "", address);
          return;
        }
      }
      $("#found").textContent = "no more";
      next = null;
    } catch (error) { $("#found").textContent = ""; notice(error.message, true); }
  };
  inside.addEventListener("submit", (event) => { event.preventDefault(); search(false); });
  addEventListener("retake:find", (event) => search(event.detail.first));
  addEventListener("retake:move", (event) => panes.forEach((pane) => (event.detail.end ? pane.last() : pane.first())));
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
  for (const part of $$(".actions[hidden], button:is([data-post], [data-copy], [data-again])[hidden]")) part.hidden = false;
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
  if (action) { action.disabled = true; return act({ action: action.dataset.action }); }
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
    try { await post(button.dataset.post); } catch (error) { notice(error.message, true); }
    refresh();
  }
});
document.addEventListener("submit", (event) => {
  if (event.target.id !== "tell") return;
  event.preventDefault();
  const field = event.target.elements.message;
  act({ action: "tell", message: field.value });
  field.value = "";
  field.blur();
});

// ---- keys -----------------------------------------------------------------------------------

function choose(step) {
  const rows = $$("#rows > *");
  if (!rows.length) return;
  const at = rows.findIndex((row) => row.classList.contains("chosen"));
  rows[at]?.classList.remove("chosen");
  const now = rows[Math.min(rows.length - 1, Math.max(0, at + step))];
  now.classList.add("chosen");
  now.scrollIntoView({ block: "nearest" });
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if ($("#help").open && event.key !== "?") return;
  const pages = { o: "/", r: "/runs", t: "/tests", l: "/loops" };
  const say = (name, detail) => dispatchEvent(new CustomEvent(name, { detail }));
  switch (event.key) {
    case "/": $("#search")?.focus(); $("#search")?.select(); break;
    case "j": choose(1); break;
    case "k": choose(-1); break;
    case "Enter": {
      const link = event.target === document.body ? $("#rows > .chosen a") : null;
      if (!link) return;
      link.click();
      break;
    }
    case "?": $("#help").open ? $("#help").close() : $("#help").showModal(); break;
    case "f": $("#inside input")?.focus(); break;
    case "n": say("retake:find", { first: false }); break;
    case "N": say("retake:find", { first: true }); break;
    case "g": say("retake:move", { end: false }); break;
    case "G": say("retake:move", { end: true }); break;
    default:
      if (!pages[event.key]) return;
      location.href = pages[event.key];
  }
  event.preventDefault();
});
