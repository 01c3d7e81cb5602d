// Times by the store's clock, which the server sends with each response: the clock of the browser may be wrong. They are
// shown relative to now or as a date and time, in the zone that the reader chose; the title always has both.

const DUE_NOW_S = 6;
let offsetMs = 0;

export const serverNow = () => Date.now() + offsetMs;

/** Note what the store's clock shows now, in ms since the epoch. */
export function setServerTime(ms) {
  if (ms) offsetMs = Number(ms) - Date.now();
}

const UNITS = [["d", 86400, "h", 3600], ["h", 3600, "min", 60], ["min", 60, "s", 1]];

/** A length of time in at most two units, as the server writes it. */
export function duration(seconds) {
  const whole = Math.round(seconds);
  for (const [unit, unitS, small, smallS] of UNITS) {
    if (whole >= unitS) {
      const rest = Math.floor((whole % unitS) / smallS);
      return `${Math.floor(whole / unitS)} ${unit}` + (rest ? ` ${rest} ${small}` : "");
    }
  }
  return `${whole} s`;
}

const ownZone = Intl.DateTimeFormat().resolvedOptions().timeZone;
let zone = ownZone;
let isAbsolute = false;
let formats;

function setZone(name) {
  try {
    const options = { timeZone: name || ownZone, hourCycle: "h23" };
    // Swedish writes dates as ISO 8601 does.
    const format = (more, locale = "sv-SE") => new Intl.DateTimeFormat(locale, { ...options, ...more });
    const time = { hour: "2-digit", minute: "2-digit", second: "2-digit" };
    const date = { year: "numeric", month: "2-digit", day: "2-digit" };
    formats = {
      full: format({ ...date, ...time }), time: format(time), short: format({ hour: "2-digit", minute: "2-digit" }),
      zone: format({ timeZoneName: "short" }, "en-GB"), exact: format({ ...time, fractionalSecondDigits: 3 }),
    };
    zone = name || ownZone;
    document.documentElement.dataset.zone = zone;
    return true;
  } catch {
    return false; // no such zone
  }
}

export const zoneName = () => zone;
const zoneAt = (at) => formats.zone.formatToParts(at).find((part) => part.type === "timeZoneName").value;

/** The time of day, with month and day in front if `withDate`, in the order of all dates: others read 01/12 otherwise. */
export const clockTime = (at, withDate = false) => (withDate ? formats.full.format(at).slice(5, 16) : formats.short.format(at));

/** The time of day with milliseconds. */
export const exactTime = (at) => formats.exact.format(at).replace(",", ".");

const absolute = (at) => formats.full.format(at);

/** Date, time and zone, and below it what the service wrote. */
export const timeTitle = (at, text) => `${absolute(at)} ${zoneAt(at)} (${zone})\n${text}`;

function write(time, text) {
  if (time.textContent !== text) time.textContent = text;
}

/** Write all times below an element: `data-relative` as the reader chose, or from now with `data-from-now`; `data-absolute`
 * as date, with the zone if `data-zoned`; `data-clock` as time. Forms say in which zone their times are: in the same. */
export function showTimes(within = document) {
  const now = serverNow();
  for (const time of within.querySelectorAll("time[data-relative], time[data-absolute], time[data-clock]")) {
    const at = Date.parse(time.dateTime);
    if (Number.isNaN(at)) continue;
    const seconds = (at - now) / 1000;
    // What is due is read every few seconds: until then it is due now rather than late.
    const isNow = Math.abs(seconds) < 0.5 || (time.dataset.due !== undefined && seconds < 0 && seconds > -DUE_NOW_S);
    const relative = isNow ? "now" : seconds > 0 ? `in ${duration(seconds)}` : `${duration(-seconds)} ago`;
    const shown = time.dataset.clock !== undefined ? formats.time.format(at)
      : time.dataset.relative !== undefined && (!isAbsolute || time.dataset.fromNow !== undefined) ? relative
        : absolute(at) + (time.dataset.zoned === undefined ? "" : ` ${zoneAt(at)}`);
    write(time, shown);
    const title = timeTitle(at, time.dateTime);
    if (time.title !== title) time.title = title;
  }
  for (const one of within.querySelectorAll("[data-zone]:not([data-fixed], html)")) {
    if (one.tagName === "INPUT") one.value = zone;
    else write(one, zone);
  }
}

function setAbsolute(value) {
  isAbsolute = value;
  document.documentElement.dataset.times = value ? "absolute" : "relative"; // the sheet hides what would be there twice
}

function keep(name, value) {
  try {
    if (value) localStorage.setItem(name, value);
    else localStorage.removeItem(name);
  } catch {
    // storage is switched off: it lasts until the next page
  }
}

function kept(name) {
  try {
    return localStorage.getItem(name) ?? "";
  } catch {
    return "";
  }
}

// The zones that fields offer, once one of them has the focus.
function startZones() {
  const zones = document.getElementById("zones");
  document.addEventListener("focusin", ({ target }) => {
    if (target.getAttribute?.("list") !== "zones" || zones.children.length) return;
    for (const name of Intl.supportedValuesOf?.("timeZone") ?? []) zones.append(new Option(name));
  });
}

function startChoice(tick) {
  const dialog = document.getElementById("times-dialog");
  if (!dialog) return;
  const form = dialog.querySelector("form");
  document.getElementById("own-zone").textContent = ownZone;
  form.elements.times.value = isAbsolute ? "absolute" : "relative";
  form.elements.zone.value = zone === ownZone ? "own" : zone === "UTC" ? "UTC" : "other";
  if (form.elements.zone.value === "other") form.elements.other.value = zone;
  document.getElementById("clock")?.addEventListener("click", () => {
    dialog.showModal();
  });
  form.elements.other.addEventListener("input", () => { form.elements.zone.value = "other"; });
  form.addEventListener("change", () => {
    setAbsolute(form.elements.times.value === "absolute");
    keep("deferd-times", isAbsolute ? "absolute" : "");
    const kind = form.elements.zone.value;
    const chosen = kind === "other" ? form.elements.other.value.trim() : kind === "own" ? "" : kind;
    form.elements.other.setCustomValidity(setZone(chosen) ? "" : "There is no such zone.");
    form.elements.other.reportValidity();
    keep("deferd-zone", zone === ownZone ? "" : zone);
    for (const one of document.querySelectorAll("[data-fixed]")) one.removeAttribute("data-fixed");
    tick();
    document.dispatchEvent(new CustomEvent("deferd:zone"));
  });
}

export function startTimes() {
  const shown = document.getElementById("clock");
  const tick = () => {
    if (document.hidden) return;
    showTimes();
    const now = serverNow();
    if (shown) shown.textContent = `${formats.time.format(now)} ${zoneAt(now)}`;
    if (shown) shown.title = `the time of the store's clock, in ${zone}; click to choose how times are shown`;
  };
  startChoice(tick);
  startZones();
  tick();
  setInterval(tick, 1000);
  document.addEventListener("visibilitychange", tick);
}

setAbsolute(kept("deferd-times") === "absolute");
if (!setZone(kept("deferd-zone"))) setZone("");
setServerTime(document.documentElement.dataset.now); // before any other module draws by it
