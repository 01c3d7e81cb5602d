// The page of a job follows it to its end. What it has shown stays when the job is gone, and what it saw happen goes into
// the timeline, where the topic keeps no events that would tell it exactly.
import { duration, serverNow, showTimes } from "./times.js";

const head = document.getElementById("head");
const timeline = document.getElementById("timeline");
const notes = []; // what was seen: { at, title, text }
let seen = look();
let lookedAt = serverNow();
let put = seen.put; // another job with this id has another one
let goneFrom = ""; // the state in which it was last

function look() {
  const { state = "gone", attempt = "0", by = "", since = "", put = "", why = "" } = document.getElementById("followed").dataset;
  return { state, attempt: Number(attempt), by, since, put, why };
}

const spanText = (fromMs, toMs) => duration(Math.max(toMs - fromMs, 1000) / 1000);
const handedOut = () => notes.findLast((note) => note.attempt === seen.attempt);

// What has happened to the job between two looks.
function note(now, at) {
  const isHeldAnew = now.state === "reserved" && (seen.state !== "reserved" || seen.attempt !== now.attempt || seen.since !== now.since);
  if (isHeldAnew) {
    const text = now.by ? `to ${now.by}` : "";
    notes.push({ at: Date.parse(now.since) || at, title: `Attempt ${now.attempt} handed out`, text, attempt: now.attempt });
  }
  if (now.state === "finished" && seen.state === "reserved" && handedOut()) handedOut().isFinished = true;
  if (now.state !== "gone" || seen.state === "gone") return;
  const by = seen.by || "its consumer";
  goneFrom = seen.state;
  if (seen.state !== "reserved") {
    const text = seen.state === "finished" || seen.state === "dead" ? "its retention ended, or it was cancelled"
      : `finished or cancelled, within ${spanText(lookedAt, at)}: this page saw no consumer`;
    notes.push({ at, title: "Gone", text, isLast: true });
  } else if (now.why === "cancelled") {
    notes.push({ at, title: "Cancelled", text: `while ${by} held it`, isLast: true });
  } else {
    const took = handedOut() ? ` after about ${spanText(handedOut().at, at)}` : "";
    notes.push({ at, title: "Ended", text: `in attempt ${seen.attempt} by ${by}${took}, and not kept`, isLast: true });
  }
}

function entry({ at, title, text, isLast }) {
  const item = document.createElement("li");
  item.className = `tl-seen ${isLast ? "tl-now" : "tl-past"}`;
  item.innerHTML = '<p class="tl-title"><strong></strong> <span class="muted"></span></p><p class="tl-at"><time data-relative></time> <span class="muted">as this page saw</span></p>';
  item.querySelector("strong").textContent = title;
  item.querySelector(".tl-title span").textContent = text;
  item.querySelector("time").dateTime = new Date(at).toISOString();
  return item;
}

// Of a job that is gone nothing is to come, and it does not run or wait any more.
function endWhatWasSo(list) {
  for (const item of list.querySelectorAll(goneFrom === "reserved" ? ".tl-now, .tl-predicted" : ".tl-predicted")) item.remove();
  for (const item of list.querySelectorAll(".tl-now")) {
    item.className = "tl-past";
    if (goneFrom === "ready") item.querySelector(".muted")?.remove();
  }
}

// Put what was seen among the entries of the service, by their times.
function draw() {
  const list = timeline?.querySelector(".timeline");
  if (!list || "whole" in list.dataset) return;
  for (const item of list.querySelectorAll(".tl-seen")) item.remove();
  if (goneFrom) endWhatWasSo(list);
  const told = new Set([...list.querySelectorAll("strong")].map((title) => title.textContent)); // by the service
  for (const one of notes) {
    if (told.has(one.title)) continue;
    const isLater = (item) => item.matches(".tl-now, .tl-predicted") || Date.parse(item.querySelector("time")?.dateTime) > one.at;
    list.insertBefore(entry(one), [...list.children].find(isLater) ?? null);
    const finishedAt = one.isFinished && list.querySelector(".tl-now time"); // once it is there
    if (finishedAt) {
      const took = spanText(one.at, Date.parse(finishedAt.dateTime));
      const after = document.createElement("span");
      after.className = "tl-seen muted";
      after.textContent = ` after about ${took}`;
      finishedAt.closest("li").querySelector(".tl-title").append(after);
    }
  }
  showTimes(list);
}

function follow() {
  const now = look();
  const at = serverNow();
  if (now.put && now.put !== put) {
    [put, goneFrom, notes.length] = [now.put, "", 0];
  } else {
    note(now, at);
  }
  [seen, lookedAt] = [now, at];
  const since = document.getElementById("gone-since");
  const last = notes.findLast((one) => one.isLast);
  if (since && last) {
    since.innerHTML = "noticed <time data-relative></time>";
    since.querySelector("time").dateTime = new Date(last.at).toISOString();
    showTimes(since);
  }
  draw();
}

for (const kept of document.querySelectorAll("[data-keep]")) {
  kept.addEventListener("htmx:oobBeforeSwap", (event) => {
    if (event.target === kept && event.detail.fragment.textContent.trim() === "") event.detail.shouldSwap = false;
  });
}
head.addEventListener("htmx:afterRequest", (event) => {
  if (event.target === head && event.detail.xhr.status === 304) lookedAt = serverNow();
});
head.addEventListener("deferd:refreshed", follow); // the other parts come with it, and are there already
