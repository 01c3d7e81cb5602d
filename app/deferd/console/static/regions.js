// Regions: parts of a page that are read again every few seconds while somebody can see them.
//
// `region("name")` in a template makes one. htmx sends the request and puts the response in; this decides when, sends
// the ETag of what is shown, keeps what the reader does (focus, selection, current row, scrolling), and marks a region
// that the service can't renew, with the age of what it shows. A text that says what is so now has
// data-stale-text, which then takes its place, and data-fresh-text; data-title and data-stale-title are the page's title.
//
// A region with the attribute data-hold is not read until the attribute is removed. One with data-follows comes in the
// response of another one.
import { duration, setServerTime, showTimes } from "./times.js";

const states = new WeakMap();
const STALE_AFTER_FAILURES = 1;
const RETRY_MS = 2000; // also of a region that is read less often: it must be back soon after the service

const regions = () => document.querySelectorAll("[data-region]");
const polled = () => document.querySelectorAll("[data-region]:not([data-follows])");

function stateOf(region) {
  if (region.dataset.follows) region = document.getElementById(region.dataset.follows);
  if (!states.has(region)) states.set(region, { etag: null, freshAt: Date.now(), failures: 0, busy: false, nextAt: 0 });
  return states.get(region);
}

/** Read a region again now. */
export function refresh(region) {
  const state = stateOf(region);
  if (state.busy) return;
  state.busy = true;
  htmx.trigger(region, "refresh");
}

function poll() {
  if (document.hidden) return;
  const now = Date.now();
  for (const region of polled()) {
    const state = stateOf(region);
    const everyMs = 1000 * Number(region.dataset.every || 2);
    if (state.nextAt === 0) state.nextAt = now + everyMs;
    if (region.hasAttribute("data-hold") || now < state.nextAt) continue;
    state.nextAt = now + everyMs;
    refresh(region);
  }
  showStale();
}

// Each region that can't be renewed is marked; the first one says why, and how old it is.
function showStale() {
  let isSaid = false;
  for (const region of regions()) {
    const state = stateOf(region);
    const stale = state.failures >= STALE_AFTER_FAILURES;
    region.classList.toggle("stale", stale);
    const titled = region.querySelector("[data-stale-title]");
    if (titled) document.title = stale ? titled.dataset.staleTitle : titled.dataset.title;
    for (const one of region.querySelectorAll("[data-stale-text]")) {
      const text = stale ? one.dataset.staleText : one.dataset.freshText;
      if (one.textContent !== text) one.textContent = text;
    }
    let note = region.previousElementSibling;
    if (!note?.classList.contains("stale-note")) note = null;
    if (!stale || isSaid) {
      note?.remove();
      continue;
    }
    if (!note) {
      note = document.createElement("p");
      note.className = "stale-note";
      note.setAttribute("role", "status");
      region.before(note);
    }
    isSaid = true;
    note.textContent = `${state.why.replace(/\.$/, "")}. What is shown is ${duration((Date.now() - state.freshAt) / 1000)} old; trying again.`;
  }
}

// Selected rows and the current one are known by their values, so they survive other rows coming and going.
function remember(region) {
  const active = document.activeElement;
  return {
    focusId: region.contains(active) && active.id ? active.id : null,
    focusRow: region.contains(active) ? active.closest("[data-row]")?.dataset.row : undefined,
    focusTag: active?.tagName,
    row: region.querySelector("[data-row][data-current]")?.dataset.row,
    checked: new Set([...region.querySelectorAll("input[type=checkbox]:checked")].map((box) => box.value)),
    open: new Set([...region.querySelectorAll("details[open][id]")].map((details) => details.id)),
    scroll: [...region.querySelectorAll(".table-box")].map((box) => [box.scrollLeft, box.scrollTop]),
  };
}

const rowOf = (region, name) => region.querySelector(`[data-row="${CSS.escape(name)}"]`);

function restore(region, kept) {
  for (const box of region.querySelectorAll("input[type=checkbox]")) {
    if (kept.checked.has(box.value)) box.checked = true;
  }
  for (const id of kept.open) document.getElementById(id)?.setAttribute("open", "");
  region.querySelectorAll(".table-box").forEach((box, index) => {
    if (kept.scroll[index]) [box.scrollLeft, box.scrollTop] = kept.scroll[index];
  });
  if (kept.row !== undefined) rowOf(region, kept.row)?.setAttribute("data-current", "");
  if (kept.focusId) document.getElementById(kept.focusId)?.focus({ preventScroll: true });
  else if (kept.focusRow !== undefined) {
    rowOf(region, kept.focusRow)?.querySelector(kept.focusTag)?.focus({ preventScroll: true });
  }
}

export function startRegions() {
  const of = (event) => (event.target.matches?.("[data-region]") ? event.target : null);
  document.addEventListener("htmx:configRequest", (event) => {
    const region = of(event);
    const etag = region && stateOf(region).etag;
    if (etag) event.detail.headers["If-None-Match"] = etag;
  });
  const kept = new WeakMap();
  const beforeSwap = (event) => {
    const region = of(event);
    if (region && event.detail.shouldSwap) kept.set(region, remember(region));
  };
  const afterSwap = (region) => {
    if (!kept.has(region)) return;
    showTimes(region);
    restore(region, kept.get(region));
    kept.delete(region);
    const title = region.querySelector("[data-title]")?.dataset.title;
    if (title) document.title = title;
    region.dispatchEvent(new CustomEvent("deferd:refreshed", { bubbles: true }));
  };
  document.addEventListener("htmx:beforeSwap", beforeSwap);
  document.addEventListener("htmx:oobBeforeSwap", beforeSwap);
  document.addEventListener("htmx:afterSwap", (event) => of(event) && afterSwap(of(event)));
  document.addEventListener("htmx:oobAfterSwap", (event) => afterSwap(event.detail.target));
  document.addEventListener("htmx:afterRequest", (event) => {
    const region = of(event);
    if (!region) return;
    const state = stateOf(region);
    const { xhr } = event.detail;
    state.busy = false;
    if (xhr.status === 200 || xhr.status === 304) {
      setServerTime(xhr.getResponseHeader("deferd-now"));
      state.etag = xhr.getResponseHeader("etag");
      state.freshAt = Date.now();
      state.failures = 0;
    } else {
      state.failures += 1;
      state.nextAt = Math.min(state.nextAt, Date.now() + RETRY_MS);
      state.why = xhr.status === 0 ? "The service can't be reached" : xhr.responseText.slice(0, 200) || `Error ${xhr.status}`;
    }
    showStale();
  });
  setInterval(poll, 250);
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) for (const region of polled()) refresh(region);
  });
}
