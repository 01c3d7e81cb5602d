// The keyboard: `?` help, `/` search, `j` and `k` rows, Enter, `x`, and `g` with a letter for each page.

const PAGES = {
  n: "./", t: "console/topics", d: "console/dead", s: "console/schedules", c: "console/consumers", e: "console/events",
  a: "console/activity", y: "console/system",
};
const PREFIX_MS = 1500;
let goAt = -Infinity;  // when `g` was pressed: not when a busy page got to it

const rows = () => [...document.querySelectorAll("main [data-row]")];

function moveRow(by) {
  const all = rows();
  if (all.length === 0) return;
  const at = all.findIndex((row) => row.hasAttribute("data-current"));
  const next = all[at === -1 ? 0 : Math.max(0, Math.min(all.length - 1, at + by))];
  for (const row of all) row.toggleAttribute("data-current", row === next);
  (next.querySelector("a") ?? next.querySelector("input, button") ?? next).focus({ preventScroll: true });
  next.scrollIntoView({ block: "nearest" });
}

function openHelp() {
  const help = document.getElementById("help");
  if (help && !help.open) help.showModal();
}

const ACTIONS = {
  "?": openHelp,
  "/": () => document.querySelector("main input[type=search], main input[data-search]")?.focus(),
  j: () => moveRow(1),
  k: () => moveRow(-1),
  x: () => document.querySelector("[data-row][data-current] input[type=checkbox]")?.click(),
  g: (event) => { goAt = event.timeStamp; },
};

/** Add a key of one page. `action` gets the event. */
export function onKey(key, action) {
  ACTIONS[key] = action;
}

export function startKeyboard() {
  document.getElementById("help-button")?.addEventListener("click", openHelp);
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input:not([type=checkbox], [type=radio]), textarea, select, [contenteditable], dialog")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const page = event.timeStamp - goAt < PREFIX_MS ? PAGES[event.key] : undefined;
    goAt = -Infinity;
    if (page !== undefined) {
      event.preventDefault();
      location.assign(new URL(page, document.baseURI));
    } else if (ACTIONS[event.key]) {
      event.preventDefault();
      ACTIONS[event.key](event);
    }
  });
}
