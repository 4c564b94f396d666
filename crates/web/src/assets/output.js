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

const timeOf = (ms) => `+${Math.floor(ms / 1000)}.${String(ms % 1000).padStart(3, "0")}`;

// A window as a list of lines; the browser counts them.
class Block {
  constructor(node, start, end) {
    Object.assign(this, { node, start, end, open: null });
    const last = node.lastElementChild;
    if (last && !last.textContent.endsWith("\n")) this.open = { item: last, stream: last.classList.contains("e") ? "stderr" : "stdout" };
  }

  static of(window) {
    const block = new Block(document.createElement("ol"), window.offset, window.end);
    block.node.className = "lines";
    block.number(window.line === null ? null : window.line + (window.begun ? 1 : 0));
    block.add(window.pieces, window.stream === "merged", window.begun);
    return block;
  }

  get numbered() { return !this.node.classList.contains("unnumbered"); }
  get begun() { return Boolean(this.node.firstElementChild?.classList.contains("cont")); }

  number(first) {
    this.node.classList.toggle("unnumbered", first === null);
    if (first !== null) this.node.start = first;
  }

  // Adds what was written; gives the lines that are new.
  add(pieces, merged, begun = false) {
    const added = [];
    for (const { stream, spans, atMs } of pieces) {
      for (const [classes, text] of spans) {
        for (let rest = text; rest;) {
          if (!this.open) {
            const item = document.createElement("li");
            if (merged && stream === "stderr") item.classList.add("e");
            if (begun) { item.classList.add("cont"); begun = false; }
            if (atMs !== undefined) item.dataset.t = timeOf(atMs);
            this.node.append(item);
            added.push(item);
            this.open = { item, stream };
          }
          const end = rest.indexOf("\n") + 1 || rest.length;
          let to = this.open.item;
          if (merged && stream !== this.open.stream) {
            to = to.appendChild(document.createElement("span"));
            to.className = `piece ${stream}`;
          }
          paint([[classes, rest.slice(0, end)]], to);
          if (rest[end - 1] === "\n") this.open = null;
          rest = rest.slice(end);
        }
      }
    }
    return added;
  }

  // The number of one of its lines.
  lineOf(item) {
    if (!this.numbered || item.classList.contains("cont")) return null;
    return this.node.start + [...this.node.children].indexOf(item) - (this.begun ? 1 : 0);
  }

  itemOf(line) {
    if (!this.numbered) return null;
    const at = line - this.node.start + (this.begun ? 1 : 0);
    return at >= (this.begun ? 1 : 0) ? this.node.children[at] ?? null : null;
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
    this.times = $("#output").classList.contains("times");
    this.needle = "";
    this.busy = false;
    this.blocks = [new Block($("ol", this.log), Number(element.dataset.start), Number(element.dataset.end))];
    this.controls();
    this.log.addEventListener("scroll", () => this.scrolled(), { passive: true });
    // The end is what one wants to see first, unless something was looked for.
    const place = $("mark, .sel", this.log);
    if (place) {
      if (place.matches("mark")) place.classList.add("here");
      this.reveal(place);
    } else if (!location.search.match(/[?&](out|err|all)=/)) this.log.scrollTop = this.log.scrollHeight;
    this.told();
    this.count();
  }

  get start() { return this.blocks[0].start; }
  get end() { return this.blocks.at(-1).end; }
  get atEnd() { return this.end >= this.length; }
  get atBottom() { return this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 40; }
  get following() { return this.atEnd && this.atBottom; }
  get merged() { return this.stream === "merged"; }

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

  // Numbers for the lines of windows that had none: the server counts, a part of the output at a time.
  async count() {
    if (this.counting) return;
    this.counting = true;
    try {
      for (let block; (block = this.blocks.find((one) => !one.numbered && one.end > one.start));) {
        const words = new URLSearchParams({ stream: this.stream, offset: block.start });
        const { line, countedTo } = await ask(`/api/v1/runs/${this.run}/line?${words}`);
        if (line !== null) block.number(line + (block.begun ? 1 : 0));
        else if (countedTo >= block.start) break;
      }
    } catch { /* Without numbers the output can be read as well. */ }
    this.counting = false;
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
    const words = new URLSearchParams({ stream: this.stream, spans: "1", ...(this.times ? { times: 1 } : {}), ...where });
    return ask(`/api/v1/runs/${this.run}/logs?${words}`);
  }

  block(window) {
    const block = Block.of(window);
    this.mark(block.node);
    this.length = window.length;
    return block;
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
      chosenLines.show();
      if (!followed) this.name(where.tail ? null : this.start);
    } catch (error) { notice(error.message, true); }
    this.busy = false;
    this.count();
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
      chosenLines.show();
    } catch (error) { notice(error.message, true); }
    this.busy = false;
    this.count();
    // More may be needed still, once this is laid out.
    requestAnimationFrame(() => this.scrolled());
  }

  // What was written just now. Shown where the end is shown; else only counted.
  grew(pieces, from, offsets, place) {
    const was = this.following;
    const length = this.merged ? offsets[0] + offsets[1] : offsets[place];
    if (length <= this.end) return;
    const joins = this.merged ? this.offsets === from.join(".") : this.end === from[place];
    // Who reads further up must not get an endless page below.
    const room = was || this.end - this.start < KEPT * 65536;
    this.length = Math.max(this.length, length);
    if (joins && room && !this.busy) {
      const last = this.blocks.at(-1);
      for (const item of last.add(pieces, this.merged)) this.mark(item);
      last.end = length;
      this.offsets = offsets.join(".");
      // The next window begins with a line, if that ends soon.
      const size = last.end - last.start;
      if (size > 65536 && (!last.open || size > 131072)) {
        const next = new Block(document.createElement("ol"), last.end, last.end);
        next.node.className = "lines";
        const lines = last.node.children.length - (last.begun ? 1 : 0);
        next.number(last.numbered && !last.open ? last.node.start + lines : null);
        this.log.append(next.node);
        this.blocks.push(next);
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

  // Shows a match: text, or a line that reports an error.
  async show(search, [start]) {
    this.needle = search.text ? fold(search.text) : "";
    await this.go({ near: Math.max(0, start - 2048) });
    // The window begins a little before the match, with others perhaps.
    const shown = this.blocks[0].node;
    const words = new URLSearchParams({ ...search.words, stream: this.stream, offset: start, since: this.start });
    const { before } = await ask(`/api/v1/runs/${this.run}/find?${words}`);
    const mark = search.text ? $(`mark[data-match="${before}"]`, shown) ?? $("mark", shown) : await this.errorItem(start);
    if (!mark) return;
    for (const old of $$(".here", this.log)) old.classList.remove("here");
    const parts = search.text ? $$(`mark[data-match="${mark.dataset.match}"]`, shown) : [mark];
    for (const part of parts) part.classList.add("here");
    this.reveal(mark);
  }

  // Scrolls so that something has a few lines above it.
  reveal(part) {
    const above = part.getBoundingClientRect().top - this.log.getBoundingClientRect().top;
    this.log.scrollTop += above - this.log.clientHeight / 3;
  }

  async errorItem(start) {
    const words = new URLSearchParams({ stream: this.stream, offset: start });
    const { line } = await ask(`/api/v1/runs/${this.run}/line?${words}`);
    await this.count();
    return line === null ? null : this.blocks[0].itemOf(line);
  }
}

// ---- lines that are chosen -------------------------------------------------------------------

const chosenLines = {
  pane: null, first: 0, last: 0, panes: [],
  choose(pane, line, extend) {
    if (extend && this.pane === pane) [this.first, this.last] = [Math.min(this.anchor, line), Math.max(this.anchor, line)];
    else Object.assign(this, { pane, anchor: line, first: line, last: line });
    this.tell();
  },
  tell() {
    const address = new URL(location.href);
    for (const { stream } of this.panes) address.searchParams.delete(stream);
    const text = this.first === this.last ? `${this.first}` : `${this.first}-${this.last}`;
    if (this.pane) address.searchParams.set(this.pane.stream, text);
    address.hash = this.pane ? "line" : "";
    history.replaceState(null, "", address);
    this.show();
  },
  show() {
    const bar = $("#chosen");
    if (!bar) return;
    for (const item of $$(".log .sel")) item.classList.remove("sel");
    bar.hidden = !this.pane;
    if (!this.pane) return;
    const many = this.last > this.first;
    $("span", bar).textContent = `${many ? "Lines" : "Line"} ${this.first}${many ? `–${this.last}` : ""} of ${this.pane.stream}`;
    for (const item of this.items()) item.classList.add("sel");
  },
  items() {
    const found = [];
    for (const block of this.pane?.blocks ?? []) {
      if (!block.numbered) continue;
      const from = Math.max(this.first, block.node.start), to = Math.min(this.last, block.node.start + block.node.children.length);
      for (let line = from; line <= to; line += 1) { const item = block.itemOf(line); if (item) found.push(item); }
    }
    return found;
  },
};

const output = $("#output");
if (output) {
  const run = output.dataset.run;
  const panes = $$(".pane", output).map((pane) => new Pane(pane, run));
  const by = Object.fromEntries(panes.map((pane) => [pane.stream, pane]));
  chosenLines.panes = panes;
  for (const pane of panes) {
    const [first, last] = (new URLSearchParams(location.search).get(pane.stream) ?? "").split("-").map(Number);
    if (first > 0) { Object.assign(chosenLines, { pane, anchor: first, first: Math.min(first, last || first), last: Math.max(first, last || first) }); chosenLines.show(); }
    // The numbers beside the lines.
    pane.log.addEventListener("click", (event) => {
      const item = event.target.closest(".lines > li");
      if (!item || event.clientX - item.getBoundingClientRect().left > parseFloat(getComputedStyle(item).paddingLeft)) return;
      const line = pane.blocks.find((block) => block.node === item.parentElement)?.lineOf(item);
      if (line) chosenLines.choose(pane, line, event.shiftKey);
    });
  }
  $("#chosen").addEventListener("click", async (event) => {
    const what = event.target.dataset.lines;
    if (!what) return;
    if (what === "none") { chosenLines.pane = null; return chosenLines.tell(); }
    const text = what === "link" ? location.href : chosenLines.items().map((item) => item.textContent).join("");
    try { await navigator.clipboard.writeText(text); notice(what === "link" ? "Copied the link" : "Copied the lines that are loaded"); }
    catch { notice("The browser does not let the page copy; select the text instead.", true); }
  });
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
  findIn(panes, run);
}

// ---- find, over all of the output ------------------------------------------------------------

function findIn(panes, run) {
  const inside = $("#inside"), said = $("#found");
  const address = (what, words) => `/api/v1/runs/${run}/${what}?${new URLSearchParams(words)}`;
  let at = null, looks = 0, counts = 0, total = null;

  // How often it occurs, counted a part at a time; the sums tell which match is the present one.
  const countAll = async (search) => {
    const own = ++counts;
    total = { key: search.key, parts: [], done: false };
    for (const [index, pane] of panes.entries()) {
      for (let offset = 0; offset < pane.length;) {
        const { matches, lookedTo } = await ask(address("count", { ...search.words, stream: pane.stream, offset }));
        if (own !== counts) return;
        total.parts.push({ index, from: offset, to: lookedTo, matches });
        if (lookedTo <= offset) break;
        offset = lookedTo;
        tell(search);
      }
    }
    total.done = true;
    tell(search);
  };
  const ordinal = async (search, { index, found }) => {
    let before = 0;
    for (const part of total?.key === search.key ? total.parts : []) {
      if (part.index < index || part.index === index && part.to <= found[0]) before += part.matches;
      else if (part.index === index && part.from <= found[0]) {
        const words = { ...search.words, stream: panes[index].stream, offset: part.from, until: found[0] };
        return before + (await ask(address("count", words))).matches + 1;
      }
    }
    return null;
  };
  const tell = async (search) => {
    if (at?.key !== search.key || !at.found) return;
    const present = at, number = await ordinal(search, at).catch(() => null);
    if (at !== present) return;
    const sum = total.parts.reduce((all, part) => all + part.matches, 0);
    said.textContent = `${number ?? "…"} of ${sum}${total.done ? "" : "+"} in ${panes[at.index].stream}`;
  };

  // The next place in a direction, from pane to pane; a search over 1 GiB asks many times.
  const look = async (search, back) => {
    const own = ++looks;
    const step = back ? -1 : 1;
    let index = at?.key === search.key && at.found ? at.index : back ? panes.length - 1 : 0;
    let offset = at?.key === search.key && at.found ? at.found[back ? 0 : 1] : back ? panes[index].length : 0;
    for (; index >= 0 && index < panes.length; index += step, offset = back ? panes[index]?.length : 0) {
      for (;;) {
        const place = await ask(address("find", { ...search.words, stream: panes[index].stream, offset, ...(back ? { back: 1 } : {}) }));
        if (own !== looks) return null;
        if (place.found) return { key: search.key, index, found: place.found };
        if (back ? place.lookedTo <= 0 : place.lookedTo >= place.length) break;
        offset = place.lookedTo;
        said.textContent = `looking, ${Math.floor(100 * (back ? 1 - offset / place.length : offset / place.length))} %`;
      }
    }
    return { key: search.key, index: 0, found: null };
  };
  const run_search = async (search, back) => {
    said.textContent = "looking…";
    try {
      const had = at?.key === search.key && at.found;
      const place = await look(search, back);
      if (!place) return;
      if (!place.found) {
        said.textContent = had ? "no more" : search.text ? "not found" : "no line reports an error";
        at = null;
        return;
      }
      at = place;
      await panes[place.index].show(search, place.found);
      if (search.text) {
        const here = new URL(location.href);
        here.searchParams.set("find", search.text);
        history.replaceState(null, "", here);
      }
      if (total?.key !== search.key) countAll(search).catch(() => {}); else tell(search);
    } catch (error) { said.textContent = ""; notice(error.message, true); }
  };
  const wanted = () => { const text = inside.elements.find.value; return text && { key: `text ${text}`, text, words: { text } }; };
  const errors = { key: "errors", text: null, words: { errors: 1 } };
  let present = null;
  const go = (search, back) => { if (search) { present = search; run_search(search, back); } };
  inside.addEventListener("submit", (event) => { event.preventDefault(); go(wanted(), false); });
  const button = (name, title, act) => {
    const made = document.createElement("button");
    Object.assign(made, { type: "button", className: "small", textContent: name, title });
    // A name that says more than a mark; a word is a name itself.
    if (name.length === 1) made.setAttribute("aria-label", title);
    made.addEventListener("click", act);
    return made;
  };
  said.before(
    button("‹", "Previous match", () => go(present ?? wanted(), true)), button("›", "Next match", () => go(present ?? wanted(), false)),
    button("Errors", "Next line that reports an error", () => go(errors, false)),
  );
  addEventListener("retake:find", (event) => go(present ?? wanted(), event.detail.back));
  addEventListener("retake:errors", (event) => go(errors, event.detail.back));
  addEventListener("retake:move", (event) => panes.forEach((pane) => (event.detail.end ? pane.last() : pane.first())));
  // What an address asks for may be further than the page itself looked.
  if (wanted() && !said.dataset.found) go(wanted(), false);
}
