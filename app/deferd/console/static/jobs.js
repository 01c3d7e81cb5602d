// The pages of jobs: selection, rows that change in place and never move, undo, and what is copied.
import { onKey } from "./keyboard.js";
import { duration, serverNow, showTimes } from "./times.js";

// Rows. A refresh changes the cells of rows, fades those whose job has left the list, strikes out those whose job is
// gone, and counts new ones: to see these is one click. So no row moves while somebody selects or reads. A row that is
// not in the page any more may have been moved behind it: what became of its job is asked for.
const ASKED_CHARACTERS = 4000; // of ids in one URL, which proxies limit; of more rows some are asked for later
const ASKED_MAX = 100; // as the API lists by their ids

const form = document.getElementById("rows-form");
const region = document.getElementById("rows");
const pill = document.getElementById("new-rows");
let newest = null; // the region as the server has it now

const rowsOf = (element) => new Map([...element.querySelectorAll("[data-row]")].map((row) => [row.dataset.row, row]));

function merge(html) {
  const fresh = new DOMParser().parseFromString(html, "text/html").body; // scripts in it don't run
  const shown = rowsOf(region);
  const found = rowsOf(fresh);
  if (shown.size === 0) {
    region.innerHTML = html;
    afterSwap();
    return;
  }
  for (const [id, row] of shown) showAs(row, found.get(id));
  showTimes(region);
  askFor([...shown.values()].filter((row) => !found.has(row.dataset.row) && !row.classList.contains("gone")));
  const added = [...found.keys()].filter((id) => !shown.has(id)).length;
  newest = html;
  if (pill) {
    pill.hidden = added === 0;
    pill.textContent = `${added} new`;
  }
}

function showAs(row, now) {
  if (!now) return;
  row.classList.remove("gone");
  row.classList.toggle("left", now.classList.contains("left"));
  updateCells(row, now);
}

const askedAt = new WeakMap();
let isAsking = false;

async function askFor(missing) {
  if (isAsking || missing.length === 0) return;
  missing.sort((one, other) => (askedAt.get(one) ?? 0) - (askedAt.get(other) ?? 0));
  let characters = 0;
  const some = missing.slice(0, ASKED_MAX).filter((row) => (characters += row.dataset.row.length + 1) < ASKED_CHARACTERS);
  const url = new URL(region.getAttribute("hx-get"), document.baseURI);
  url.searchParams.set("among", some.map((row) => row.dataset.row).join(","));
  isAsking = true;
  try {
    const response = await fetch(url, { headers: { "HX-Request": "true" } });
    if (response.status !== 200) return; // the next refresh says why
    const found = rowsOf(new DOMParser().parseFromString(await response.text(), "text/html").body);
    for (const row of some.filter((one) => one.isConnected)) {
      askedAt.set(row, Date.now());
      showAs(row, found.get(row.dataset.row));
      if (!found.has(row.dataset.row)) showGone(row);
    }
    showTimes(region);
  } catch {
    // the service can't be reached: the next refresh says so
  } finally {
    isAsking = false;
  }
}

function showGone(row) {
  row.classList.remove("left");
  row.classList.add("gone");
  const state = row.querySelector(".state .pill");
  state.className = "pill";
  state.textContent = "gone";
}

function updateCells(row, now) {
  [...row.cells].forEach((cell, index) => {
    const fresh = now.cells[index];
    if (cell.querySelector("input") || !fresh) return;
    const keep = (element) => element.cloneNode(true);
    const comparable = keep(cell);
    for (const time of comparable.querySelectorAll("time")) {
      time.textContent = "";
      time.removeAttribute("title");
    }
    const other = keep(fresh);
    for (const time of other.querySelectorAll("time")) time.textContent = "";
    if (comparable.innerHTML !== other.innerHTML && !cell.contains(document.activeElement)) {
      cell.innerHTML = fresh.innerHTML;
    }
  });
}

function showNew() {
  if (newest === null || !pill || pill.hidden) return;
  const checked = new Set([...region.querySelectorAll("input[name=ids]:checked")].map((box) => box.value));
  region.innerHTML = newest;
  for (const box of region.querySelectorAll("input[name=ids]")) box.checked = checked.has(box.value);
  pill.hidden = true;
  afterSwap();
}

function afterSwap() {
  showTimes(region);
  htmx.process(region);
  countSelected();
}

// Selection

const boxes = () => [...region.querySelectorAll("input[name=ids]")];
let lastBox = null;

function countSelected() {
  const count = document.getElementById("selected-count");
  if (!count) return;
  const all = document.getElementById("all-matching").checked;
  const selected = boxes().filter((box) => box.checked).length;
  const total = region.querySelector("[data-total]")?.dataset.total;
  count.textContent = all ? (total ? `All ${total}` : "All pages") : `${selected} selected`;
  form.classList.toggle("has-selection", all || selected > 0);
  for (const box of boxes()) box.closest("tr").classList.toggle("selected", box.checked || all);
  const whole = document.getElementById("check-all");
  if (whole) {
    whole.checked = selected > 0 && selected === boxes().length;
    whole.indeterminate = selected > 0 && selected < boxes().length;
  }
  for (const button of form.querySelectorAll("button[name=action]")) {
    button.classList.toggle("idle", !all && selected === 0);
  }
}

function startSelection() {
  form.classList.add("has-script");
  form.addEventListener("change", (event) => {
    if (event.target.matches("[data-all]")) {
      for (const box of boxes()) box.checked = event.target.checked;
    }
    countSelected();
  });
  form.addEventListener("click", (event) => {
    if (!event.target.matches("input[name=ids]")) return;
    if (event.shiftKey && lastBox?.isConnected) {
      const all = boxes();
      const [from, to] = [all.indexOf(lastBox), all.indexOf(event.target)].sort((a, b) => a - b);
      for (const box of all.slice(from, to + 1)) box.checked = event.target.checked;
    }
    lastBox = event.target;
    countSelected();
  });
  region.addEventListener("htmx:beforeSwap", (event) => {
    if (event.target !== region || event.detail.xhr.status !== 200) return;
    event.detail.shouldSwap = false;
    merge(event.detail.serverResponse);
  });
  pill?.addEventListener("click", showNew);
  onKey(".", showNew);
  addEventListener("pageshow", countSelected); // also of a page that Back shows as it was left
}

// A bar that says until when something can be undone

function startUndo(bar) {
  if (bar.dataset.started) return;
  bar.dataset.started = "1";
  const left = bar.querySelector("[data-left]");
  const ends = Number(bar.dataset.ends);
  const tick = () => {
    const seconds = Math.ceil((ends - serverNow()) / 1000);
    if (seconds <= 0) {
      bar.remove();
      clearInterval(timer);
      const url = new URL(location.href);
      url.searchParams.delete("undo");
      history.replaceState(null, "", url);
    } else if (left) {
      left.textContent = duration(seconds);
    }
  };
  const timer = setInterval(tick, 250);
  tick();
}

function startCopying() {
  const show = () => {
    if (!navigator.clipboard) return;
    for (const button of document.querySelectorAll("[data-copy]")) button.hidden = false;
  };
  show();
  document.addEventListener("htmx:afterSwap", show);
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    await navigator.clipboard.writeText(button.closest(".code-box").querySelector("pre").textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}

// A link to the page becomes a button that copies it. Browsers allow copying only over HTTPS and on this machine.
function startLinks() {
  const links = navigator.clipboard ? document.querySelectorAll("[data-copy-link]") : [];
  for (const link of links) {
    link.textContent = "Copy link";
    link.addEventListener("click", async (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      await navigator.clipboard.writeText(link.href);
      link.textContent = "Copied";
      setTimeout(() => { link.textContent = "Copy link"; }, 1500);
    });
  }
}

// An open menu has a form: its region waits, so that what is typed stays.
function startMenus() {
  document.addEventListener("toggle", (event) => {
    if (!event.target.matches?.("details.menu")) return;
    const held = event.target.closest("[data-region]");
    held?.toggleAttribute("data-hold", held.querySelector("details.menu[open]") !== null);
    if (event.target.open) event.target.querySelector("input:not([type=hidden]), button")?.focus();
  }, true);
  document.addEventListener("click", (event) => {
    for (const menu of document.querySelectorAll("details.menu[open]")) {
      if (!menu.contains(event.target)) menu.open = false;
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    for (const menu of document.querySelectorAll("details.menu[open]")) {
      menu.open = false;
      menu.querySelector("summary").focus();
    }
  });
  onKey("r", () => {
    const menu = document.getElementById("reschedule");
    if (menu) menu.open = true;
  });
}

function startTyped() {
  for (const input of document.querySelectorAll("[data-typed]")) {
    const button = input.form.querySelector("button:not([type=button])");
    if (!button || button.disabled) continue;
    const check = () => { button.disabled = input.value.trim() !== input.dataset.typed; };
    input.addEventListener("input", check);
    check();
  }
}

function startFilter() {
  const filter = document.querySelector("form.filter");
  const more = filter?.querySelector(".filter-more");
  if (!more) return;
  more.hidden = false;
  filter.classList.toggle("collapsed", !("wide" in more.dataset));
  more.addEventListener("click", () => {
    const isCollapsed = filter.classList.toggle("collapsed");
    more.textContent = isCollapsed ? "More filters" : "Fewer filters";
  });
}

startFilter();
if (form && region) startSelection();
const startUndos = () => document.querySelectorAll("[data-undo]").forEach(startUndo);
startUndos();
document.addEventListener("htmx:afterSwap", startUndos); // that of a task comes with its end
startCopying();
startLinks();
startMenus();
startTyped();
