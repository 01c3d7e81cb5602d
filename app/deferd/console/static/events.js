// The stream of events: one connection while somebody can see the page. Paused or hidden, there is none; it goes on
// behind the last event that came, and the service says if it has dropped some meanwhile.
import { onKey } from "./keyboard.js";
import { duration, exactTime, timeTitle, zoneName } from "./times.js";

const ROWS_MAX = 500;
const DRAWN_EVERY_MS = 200;
const SILENT_MS = 2500; // a stream ends every minute, and goes on after a second
const AGAIN_MS = 3000;
const PILLS = {
  put: "delayed", ready: "ready", popped: "reserved", finished: "finished-job", dead: "dead", released: "reserved",
  redriven: "ready", lease_ended: "warning", returned: "ready", snoozed: "delayed",
};
const KINDS = [...Object.keys(PILLS), "changed", "cancelled", "purged"];

const section = document.getElementById("events");
const rows = document.getElementById("rows");
const news = document.getElementById("news");
const state = document.getElementById("stream-state");
const pauseButton = document.getElementById("stream-pause");

let source = null;
let lastId = section?.dataset.after ?? "";
let paused = false;
let timer = 0;
let waiting = []; // events that are not shown yet

// Characters that reorder text, shown as the service's pages show them.
const BIDI_CONTROLS = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) {
    made.textContent = text.replace(BIDI_CONTROLS, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);
  }
  return made;
}

const pagePath = (...segments) => ["console", "topics", ...segments].map((one) => encodeURIComponent(one).replaceAll("%3A", ":")).join("/");

function link(text, path) {
  const made = element("a", "", text);
  made.href = path;
  return made;
}

function details(event) {
  const parts = [];
  if (event.consumer) parts.push(`by ${event.consumer}`);
  if (event.attempt) parts.push(`attempt ${event.attempt}`);
  if (event.attempts) parts.push(`${event.attempts} ${event.attempts === 1 ? "attempt" : "attempts"}`);
  if (event.was) parts.push(`was ${event.was}`);
  if (event.count !== undefined) parts.push(`${event.count} jobs`);
  if (event.reason) parts.push(event.reason.replaceAll("_", " "));
  if (event.replaced) parts.push("replaced");
  if (event.due_at && event.state === "delayed") {
    parts.push(`due ${duration((Date.parse(event.due_at) - Date.parse(event.at)) / 1000)} later`);
  }
  return parts.join(", ");
}

function writeTime(time) {
  const at = Date.parse(time.dateTime);
  time.textContent = exactTime(at);
  time.title = timeTitle(at, time.dateTime);
}

function timeCell(at) {
  const cell = element("td", "mono");
  const time = element("time");
  time.dateTime = at;
  writeTime(time);
  cell.append(time);
  return cell;
}

const counted = (number, one, many) => `${number.toLocaleString("en")} ${number === 1 ? one : many}`;

function rowOf(event) {
  const row = element("tr");
  row.event = event;
  if (event.event === "dropped") {
    row.className = "gap";
    const cell = element("td", "wrap", event.topics !== undefined
      ? `Too many topics match, so ${counted(event.topics, "is", "are")} not followed. Filter by topic.`
      : `${event.count === undefined ? "Some events" : counted(event.count, "event", "events")} of ${event.topic} ${event.count === 1 ? "is" : "are"} missing: the topic keeps fewer than came.`);
    cell.colSpan = 5;
    row.append(cell);
    return row;
  }
  row.dataset.row = `${event.topic} ${event.number}`;
  row.tabIndex = -1;
  const kind = element("td");
  kind.append(element("span", `pill pill-${PILLS[event.event] ?? "finished"}`, event.event.replaceAll("_", " ")));
  const topic = element("td");
  topic.append(link(event.topic, pagePath(event.topic)));
  const job = element("td", "mono cut");
  if (event.id !== undefined) job.append(link(event.id, pagePath(event.topic, "jobs", event.id)));
  const more = element("td", "wrap details", details(event));
  if (event.error) more.append(more.textContent ? ": " : "", element("span", "mono", event.error.split("\n")[0].slice(0, 300)));
  row.append(timeCell(event.at), kind, topic, job, more);
  return row;
}

// The newest first. Topics are read one after the other, so an event may come a little after a newer one.
function insert(event, isNew) {
  const row = rowOf(event);
  if (isNew) row.classList.add("is-new");
  let before = rows.firstElementChild;
  if (event.at !== undefined) {
    for (let steps = 0; before && steps < ROWS_MAX && before.event.at > event.at; steps += 1) before = before.nextElementSibling;
  }
  rows.insertBefore(row, before);
}

// Somebody who reads further down, or has a row selected, sees nothing move.
const isRead = () => rows.querySelector("[data-current]") !== null || rows.contains(document.activeElement)
  || section.getBoundingClientRect().top < -40;

function draw(all = false) {
  if (waiting.length > 0 && (all || !isRead())) {
    for (const event of waiting) insert(event, true);
    waiting = [];
    while (rows.childElementCount > ROWS_MAX) rows.lastElementChild.remove();
  }
  news.hidden = waiting.length === 0;
  news.firstElementChild.textContent = `${waiting.length === ROWS_MAX ? `${ROWS_MAX} or more` : waiting.length} new`;
  document.getElementById("some").hidden = rows.childElementCount === 0;
  document.getElementById("none").hidden = rows.childElementCount > 0;
}

function show(text, pill) {
  state.hidden = false;
  state.className = `pill live pill-${pill}`;
  if (state.textContent !== text) state.textContent = text;
}

function receive(message) {
  if (message.lastEventId) lastId = message.lastEventId;
  const event = JSON.parse(message.data);
  event.event ??= message.type;
  waiting.push(event);
  if (waiting.length > ROWS_MAX) waiting.shift();
}

function connect() {
  clearTimeout(timer);
  if (source || paused || document.hidden) return;
  const url = new URL(section.dataset.stream, document.baseURI);
  if (section.dataset.topics) url.searchParams.set("topics", section.dataset.topics);
  if (lastId) url.searchParams.set("after", lastId);
  source = new EventSource(url);
  source.onopen = () => { clearTimeout(timer); show("live", "live"); };
  source.onerror = () => {
    clearTimeout(timer);
    if (source?.readyState === EventSource.CLOSED) {
      disconnect();
      show("no connection; trying again", "warning");
      timer = setTimeout(connect, AGAIN_MS);
    } else {
      timer = setTimeout(() => show("no connection; trying again", "warning"), SILENT_MS);
    }
  };
  for (const kind of [...KINDS, "dropped"]) source.addEventListener(kind, receive);
}

function disconnect() {
  clearTimeout(timer);
  source?.close();
  source = null;
}

function toggle() {
  paused = !paused;
  pauseButton.textContent = paused ? "Resume" : "Pause";
  if (paused) {
    disconnect();
    show("paused", "paused");
  } else {
    show("connecting", "finished");
    connect();
  }
}

if (section) {
  const latest = JSON.parse(section.dataset.latest);
  latest.sort((one, other) => (one.at < other.at ? -1 : one.at > other.at ? 1 : one.number - other.number));
  for (const event of latest) insert(event, false);
  const nameZone = () => { document.querySelector("#events .zone").textContent = `Times in ${zoneName()}.`; };
  nameZone();
  document.addEventListener("deferd:zone", () => {
    nameZone();
    for (const time of rows.querySelectorAll("time")) writeTime(time);
  });
  pauseButton.hidden = false;
  pauseButton.addEventListener("click", toggle);
  onKey("p", toggle);
  news.firstElementChild.addEventListener("click", () => {
    for (const row of rows.querySelectorAll("[data-current]")) row.removeAttribute("data-current");
    scrollTo({ top: 0 });
    draw(true);
  });
  document.addEventListener("visibilitychange", () => (document.hidden ? disconnect() : connect()));
  addEventListener("pagehide", disconnect);
  addEventListener("pageshow", connect);
  setInterval(() => draw(), DRAWN_EVERY_MS);
  show("connecting", "finished");
  draw();
  connect();
}
