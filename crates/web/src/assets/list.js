
// ---- times that move ------------------------------------------------------------------------

// As the server writes them; what is older than two months has a date.
function ago(then) {
  const seconds = Math.floor((Date.now() - then) / 1000);
  if (seconds < 1) return "just now";
  if (seconds < 60) return `${seconds}s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)}m ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)}h ago`;
  return seconds < 5184000 ? `${Math.floor(seconds / 86400)}d ago` : null;
}

// How long something runs, as the server writes it.
function elapsed(seconds) {
  const two = (number) => String(number).padStart(2, "0");
  if (seconds < 60) return `${seconds}s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)}m${two(seconds % 60)}s`;
  return `${Math.floor(seconds / 3600)}h${two(Math.floor(seconds / 60) % 60)}m`;
}

setInterval(() => {
  if (document.hidden) return;
  for (const part of $$("[data-since]")) {
    const text = elapsed(Math.max(0, Math.floor((Date.now() - Date.parse(part.dataset.since)) / 1000)));
    if (part.textContent !== text) part.textContent = text;
  }
  for (const time of $$("time[datetime]")) {
    const text = ago(Date.parse(time.dateTime));
    if (text && time.textContent !== text) time.textContent = text;
  }
}, 1000);

// ---- the list of tests ----------------------------------------------------------------------

const testsForm = $("#tests-form");
if (testsForm) {
  let timer = null, asked = null;
  const show = async () => {
    asked?.abort();
    asked = new AbortController();
    const words = new URLSearchParams([...new FormData(testsForm)].filter(([, value]) => value !== ""));
    const address = words.size ? `/tests?${words}` : "/tests";
    try {
      swap(await fetchPage(address, asked.signal), "#results");
      history.replaceState(null, "", address);
    } catch (error) { if (error.name !== "AbortError") notice(error.message, true); }
  };
  testsForm.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(show, 150); });
  testsForm.addEventListener("submit", (event) => { event.preventDefault(); clearTimeout(timer); show(); });
}

// ---- the list of runs -----------------------------------------------------------------------

const filters = $("#filters");
if (filters) {
  const MOST_ROWS = 600; // those far above go, so a long way down stays light
  const MOST_PAGES = 16; // that are fetched to come back to a place
  const NEWS = 3000;
  history.scrollRestoration = "manual";
  let asked = null, timer = null, loading = false, opened = null, top = null;
  const here = () => location.pathname + location.search;
  const rowOf = (id) => $(`#rows > [data-id="${CSS.escape(id)}"]`);
  // Each page of the list is known by its first row.
  const begins = (address) => { const row = $("#rows > [data-id]"); if (row) row.dataset.page = address; };
  const isNewest = (address) => !new URL(address, location.href).searchParams.has("cursor");
  const shown = (address) => {
    begins(address);
    top = isNewest(address) ? { id: $("#rows > [data-id]")?.dataset.id ?? "" } : null;
    $("#news").hidden = true;
  };

  // The index found nothing: the middle of large outputs is searched too, once one has stopped typing.
  const deepen = async (signal) => {
    const link = $("#deeper a");
    if (!link || $("#rows").children.length) return;
    await new Promise((resume) => setTimeout(resume, 300));
    if (signal.aborted || !link.isConnected) return;
    link.replaceWith("Searching them …");
    swap(await fetchPage(link.getAttribute("href"), signal), "#results");
    watchEnd();
  };
  const show = async (address, keep) => {
    asked?.abort();
    asked = new AbortController();
    try {
      const fresh = await fetchPage(address, asked.signal);
      swap(fresh, "#results");
      history[keep ? "replaceState" : "pushState"](null, "", address);
      shown(address);
      watchEnd();
      await deepen(asked.signal);
    } catch (error) {
      if (error.name !== "AbortError") notice(error.message, true);
    }
  };
  const address = () => {
    const words = new URLSearchParams([...new FormData(filters)].filter(([, value]) => value !== ""));
    return words.size ? `/runs?${words}` : "/runs";
  };
  filters.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => show(address(), true), 150);
  });
  filters.addEventListener("submit", (event) => {
    event.preventDefault();
    clearTimeout(timer);
    show(address(), false);
  });
  addEventListener("popstate", () => location.reload());

  // Older runs come as one scrolls.
  const watcher = new IntersectionObserver((entries) => { if (entries.some((e) => e.isIntersecting)) older(); }, { rootMargin: "600px" });
  const watchEnd = () => { watcher.disconnect(); const next = $("#next"); if (next) watcher.observe(next); };
  const append = async () => {
    const address = $("#next").getAttribute("href");
    const fresh = await fetchPage(address);
    const rows = document.importNode($("#rows", fresh), true);
    if (rows.firstElementChild) rows.firstElementChild.dataset.page = address;
    $("#rows").append(...rows.children);
    if ($("#rows").children.length) $("#results > .empty")?.remove();
    $("#rest").replaceChildren(...document.importNode($("#rest", fresh), true).childNodes);
    if ($("#rows").children.length || $("#next")) return;
    const none = document.createElement("p");
    none.className = "empty";
    none.textContent = "No run that passes the filters wrote these words.";
    $("#results").prepend(none);
  };
  // Whole pages go, and what is read stays where it is.
  const prune = () => {
    const rows = $("#rows");
    const last = rows.lastElementChild, before = last?.getBoundingClientRect().top;
    while (rows.children.length > MOST_ROWS) {
      const next = $$("[data-page]", rows)[1];
      if (!next) break;
      while (rows.firstElementChild !== next) rows.firstElementChild.remove();
    }
    if (last) scrollBy(0, last.getBoundingClientRect().top - before);
  };
  const older = async () => {
    if (loading || !$("#next")) return;
    loading = true;
    try {
      await append();
      prune();
      watchEnd();
    } catch (error) {
      notice(error.message, true);
    }
    loading = false;
  };

  // Whoever opens a run and comes back finds the row where it was.
  const keep = () => {
    const head = $("header").getBoundingClientRect().bottom;
    const row = $$("#rows > [data-id]").find((row) => row.getBoundingClientRect().bottom > head);
    const place = row && { from: $("#rows > [data-page]").dataset.page, id: row.dataset.id, top: row.getBoundingClientRect().top, opened };
    history.replaceState({ place }, "");
  };
  let settled = null;
  addEventListener("scroll", () => {
    clearTimeout(settled);
    settled = setTimeout(() => { if (!loading) keep(); }, 200);
  }, { passive: true });
  const forget = () => { clearTimeout(settled); history.replaceState(null, ""); };
  document.addEventListener("click", (event) => { if (event.target.closest("#news, header a")) forget(); });
  $("#results").addEventListener("click", (event) => {
    const row = event.target.closest("a") && event.target.closest("[data-id]");
    if (!row) return;
    opened = row.dataset.id;
    keep();
  }, true);
  const restore = async (place) => {
    loading = true;
    // As far down as it was there must be something.
    const wanting = () => {
      const row = rowOf(place.id);
      const from = row && row.getBoundingClientRect().top - place.top + scrollY;
      return !row || from + innerHeight > document.documentElement.scrollHeight;
    };
    try {
      if (place.from !== here()) {
        swap(await fetchPage(place.from), "#results");
        shown(place.from);
      }
      for (let pages = 0; wanting() && $("#next") && pages < MOST_PAGES; pages += 1) await append();
    } catch (error) {
      notice(error.message, true);
    }
    const row = rowOf(place.id);
    if (row) scrollBy(0, row.getBoundingClientRect().top - place.top);
    if (place.opened) rowOf(place.opened)?.classList.add("chosen");
    loading = false;
    watchEnd();
  };
  shown(here());
  // A link to the list itself asks for its beginning.
  const again = ["back_forward", "reload"].includes(performance.getEntriesByType("navigation")[0]?.type);
  const place = again && history.state?.place;
  if (place) restore(place); else watchEnd();
  asked = new AbortController();
  deepen(asked.signal).catch((error) => { if (error.name !== "AbortError") notice(error.message, true); });

  // New runs are offered and not put above what is read. Those on the page show how they stand.
  const look = async () => {
    const asks = new URLSearchParams(location.search);
    // Only in the usual order is what is new at the top.
    if (document.hidden || loading || !top || asks.has("q") || asks.has("sort")) return;
    const at = here(), known = top.id;
    const fresh = await fetchPage(at);
    if (at !== here() || known !== top?.id) return;
    const rows = $$("#rows > [data-id]", fresh);
    for (const now of rows) {
      const old = rowOf(now.dataset.id);
      const same = (part) => $(part, old)?.textContent === $(part, now)?.textContent;
      if (!old || old.contains(document.activeElement) || $(":checked", old) || (same(".how") && same(".took") && same(".what"))) continue;
      old.replaceChildren(...document.importNode(now, true).childNodes);
    }
    const place = rows.findIndex((row) => row.dataset.id === known);
    // What was the newest may be deleted; ids grow with time.
    const count = place >= 0 ? place : rows.filter((row) => row.dataset.id > known).length;
    const news = $("#news");
    news.hidden = count === 0;
    news.textContent = `${count}${place < 0 && count === rows.length && known ? " or more" : ""} new ${count === 1 ? "run" : "runs"}`;
    news.href = at;
  };
  // What went wrong is tried again, and said by whatever is asked for.
  setInterval(() => look().catch(() => {}), NEWS);
}
