// Charts: uPlot over what a region of the page carries as JSON. The table beside each chart has the same numbers, so the
// page can be read without this. Styles are set through CSSOM only, which the policy allows.
import { clockTime, duration, serverNow, zoneName } from "./times.js";

const drawn = new Map(); // element -> {plot, stop}
const root = document.documentElement;
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const exact = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

const colour = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
const lateness = (value) => (value == null ? "–" : value < 1 ? `${Math.round(value * 1000)} ms` : value < 10 ? `${value.toFixed(1)} s` : duration(value));
// One unit, for the width of an axis.
const axisLateness = (value) => (value < 1 ? `${Math.round(value * 1000)} ms` : value < 60 ? `${+value.toFixed(1)} s`
  : value < 3600 ? `${+(value / 60).toFixed(1)} min` : `${+(value / 3600).toFixed(1)} h`);
const LATENESS_STEPS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 86400];
const jobs = (value) => (value == null ? "–" : exact.format(value));

const line = (label, stroke, scale, show, more = {}) => ({
  label, scale, show: true, stroke: () => colour(stroke), width: 1.75, points: { show: false }, value: show, ...more,
});
// Values without one before and after them, which a line does not show.
const alone = (plot, place) => {
  const values = plot.data[place];
  const known = [...values.keys()].filter((at) => values[at] !== undefined); // the others are of another part
  return known.filter((at, index) => values[at] != null && values[known[index - 1]] == null && values[known[index + 1]] == null);
};
const quantile = (label, stroke, more = {}) => line(label, stroke, "late", lateness, {
  points: { show: false, filter: alone, size: 4, width: 0, fill: () => colour(stroke) }, ...more,
});
const bars = (label, stroke, scale, more = {}) => ({
  label, scale, stroke: () => colour(stroke), fill: () => colour(`${stroke}-bar`), width: 0, points: { show: false }, value: jobs,
  paths: (...args) => uPlot.paths.bars({ size: [0.82, 40, 1], align: 1 })(...args), ...more,
});

// What each kind of chart draws: its series with the `part` of the data that each is from, the first without it, and the
// columns of the parts. A value counts for the `bucket` of its part from its instant on; `due` is the part whose jobs can
// be listed.
const KINDS = {
  now: {
    series: [
      quantile("p50", "series-1"), quantile("p99", "series-2", { dash: [] }),
      bars("due", "delayed", "jobs", { part: 1 }), line("handled", "ready", "jobs", jobs, { dash: [6, 4], part: 1 }),
    ],
    due: 1,
    columns: (parts) => uPlot.join([
      [parts[0].at, parts[0].p50, parts[0].p99],
      [parts[1].at, parts[1].due, parts[1].at.map(() => parts[1].handled)],
    ]),
    axes: [["late", axisLateness, 3], ["jobs", compactJobs, 1]],
    range: () => { const now = serverNow() / 1000; return [now - 6 * 3600, now + 6 * 3600]; },
    now: true,
  },
  due: {
    series: [
      bars("due", "delayed", "jobs"), line("handled", "ready", "jobs", jobs, { dash: [6, 4] }),
      line("rate limit", "dead", "jobs", jobs),
    ],
    due: 0,
    columns: ([part]) => [part.at, part.due, part.at.map(() => part.handled), part.at.map(() => part.rate_limit)],
    axes: [["jobs", compactJobs, 3]],
    range: (plot, from, to, [part]) => [part.at[0] ?? from, (part.at.at(-1) ?? to) + part.bucket],
  },
  flow: {
    series: [
      line("put", "delayed", "jobs", jobs), line("handed out", "series-1", "jobs", jobs, { dash: [3, 3] }),
      line("finished", "ready", "jobs", jobs), line("released", "dead", "jobs", jobs, { dash: [3, 3] }),
      line("dead", "dead", "jobs", jobs),
    ],
    columns: ([part]) => [part.at, part.put, part.popped, part.finished, part.released, part.dead],
    axes: [["jobs", compactJobs, 3]],
  },
  lateness: {
    series: [quantile("p50", "series-1"), quantile("p99", "series-2")],
    columns: ([part]) => [part.at, part.p50, part.p99],
    axes: [["late", axisLateness, 3]],
  },
  waiting: {
    series: [line("ready", "ready", "jobs", jobs), line("reserved", "reserved", "jobs", jobs)],
    columns: ([part]) => [part.at, part.ready, part.reserved],
    axes: [["jobs", compactJobs, 3]],
  },
};
KINDS["run-time"] = KINDS.lateness;

function compactJobs(value) {
  return value == null ? "" : value !== 0 && value < 1 ? String(+value.toFixed(2)) : compact.format(value);
}

const partsOf = (box) => box.dataset.from.split(" ").map((id) => JSON.parse(document.getElementById(id).dataset.series));

function axis(scale, show, side) {
  return {
    scale, side, size: 58, gap: 6, font: "12px system-ui, sans-serif", stroke: () => colour("muted"),
    grid: { show: side === 3, stroke: () => colour("line"), width: 1 }, ticks: { show: false },
    values: (plot, splits) => splits.map(show), ...(scale === "late" && { incrs: LATENESS_STEPS }),
  };
}

function options(kind, box, parts) {
  const held = { parts };
  const scales = { x: { time: true } };
  if (kind.range) scales.x.range = (plot, from, to) => kind.range(plot, from, to, held.parts);
  for (const [scale] of kind.axes) {
    // A quiet chart has a scale that shows it is quiet, not one that magnifies noise.
    scales[scale] = { range: (plot, low, high) => [0, Math.max(high ?? 0, scale === "late" ? 0.1 : 1) * 1.08] };
  }
  const zone = zoneName();
  return [held, {
    width: Math.max(box.clientWidth, 200), height: Number(box.dataset.height || 180), scales, legend: { show: false },
    tzDate: (at) => uPlot.tzDate(new Date(at * 1000), zone === "UTC" ? "Etc/UTC" : zone),
    padding: [8, kind.axes.length > 1 ? 0 : 12, 0, 0],
    cursor: {
      y: false, points: { size: 7 }, dataIdx: (plot, place, nearest, at) => bucketAt(plot, held.parts, place, nearest, at),
      drag: { x: Boolean(box.dataset.jobs), y: false, setScale: false },
    },
    series: [{}, ...kind.series],
    axes: [
      {
        font: "12px system-ui, sans-serif", stroke: () => colour("muted"), space: (plot, place, from, to) => (to - from > 86400 ? 100 : 64), size: 30, gap: 4,
        grid: { show: false }, ticks: { show: true, size: 4, stroke: () => colour("line-strong"), width: 1 },
        values: (plot, splits) => splits.map((at) => clockTime(at * 1000, plot.scales.x.max - plot.scales.x.min > 86400)),
      },
      ...kind.axes.map(([scale, show, side]) => axis(scale, show, side)),
    ],
    hooks: {
      draw: kind.now ? [drawNow] : [],
      setCursor: [(plot) => showTip(plot, box, held.parts)],
      setSelect: [(plot) => openRange(plot, box, held.parts[kind.due])],
    },
  }];
}

function drawNow(plot) {
  const { ctx, bbox } = plot;
  const x = Math.round(plot.valToPos(serverNow() / 1000, "x", true));
  ctx.save();
  ctx.strokeStyle = colour("text");
  ctx.fillStyle = colour("text");
  ctx.lineWidth = devicePixelRatio;
  ctx.setLineDash([]);
  ctx.beginPath();
  ctx.moveTo(x, bbox.top);
  ctx.lineTo(x, bbox.top + bbox.height);
  ctx.stroke();
  ctx.font = `600 ${11 * devicePixelRatio}px system-ui, sans-serif`;
  ctx.fillText("now", x + 5 * devicePixelRatio, bbox.top + 11 * devicePixelRatio);
  ctx.restore();
}

// The bucket that an instant is in, not the one whose begin is nearest: that would be the next one for half of each bar.
function bucketAt(plot, parts, place, nearest, at) {
  if (place === 0) return nearest;
  const { bucket } = parts[plot.series[place].part ?? 0];
  const begins = plot.data[0];
  let found = nearest;
  while (found >= 0 && (begins[found] > at || plot.data[place][found] === undefined)) found -= 1;
  return found >= 0 && at < begins[found] + bucket ? found : null;
}

function showTip(plot, box, parts) {
  const tip = box.querySelector(".chart-tip");
  tip.hidden = true;
  if (plot.cursor.left < 0) return;
  tip.replaceChildren();
  const add = (name, text) => {
    const row = document.createElement(name);
    row.textContent = text;
    tip.append(row);
  };
  parts.forEach(({ bucket }, part) => {
    let isNamed = false;
    plot.series.forEach((one, place) => {
      const at = plot.cursor.idxs[place];
      const value = place === 0 || at == null || (one.part ?? 0) !== part ? null : plot.data[place][at];
      if (value == null) return;
      const begin = plot.data[0][at];
      if (!isNamed) add("b", `${clockTime(begin * 1000, true)} – ${clockTime((begin + bucket) * 1000)}`);
      isNamed = true;
      add("span", `${one.label} ${one.value(value)}`);
    });
  });
  tip.hidden = tip.childElementCount === 0;
  const left = plot.bbox.left / devicePixelRatio + plot.cursor.left;
  const right = left > box.clientWidth / 2;
  tip.style.left = right ? "" : `${left + 12}px`;
  tip.style.right = right ? `${box.clientWidth - left + 12}px` : "";
}

// A range that was dragged over, or a bar that was clicked, leads to its jobs.
function openRange(plot, box, due) {
  if (!box.dataset.jobs || plot.select.width < 2) return;
  listDue(box, due, plot.posToVal(plot.select.left, "x"), plot.posToVal(plot.select.left + plot.select.width, "x"));
}

function listDue(box, { at, bucket }, begin, end) {
  const first = Math.max(Math.floor((begin - at[0]) / bucket), 0);
  const last = Math.min(Math.floor((end - at[0]) / bucket), at.length - 1);
  if (first > last) return; // it is in the past
  const [from, to] = [at[first], at[last] + bucket];
  const query = new URLSearchParams({
    state: "delayed", due_after: new Date(from * 1000).toISOString(), due_before: new Date(to * 1000).toISOString(),
  });
  location.assign(new URL(`${box.dataset.jobs}?${query}`, document.baseURI));
}

const regionOf = (box) => document.getElementById(box.dataset.from.split(" ")[0])?.closest("[data-region]");

function draw(box) {
  drawn.get(box)?.plot.destroy();
  const kind = KINDS[box.dataset.chart];
  const parts = partsOf(box);
  const [held, made] = options(kind, box, parts);
  if (!box.querySelector(".chart-tip")) {
    const tip = document.createElement("div");
    tip.className = "chart-tip";
    tip.hidden = true;
    box.append(tip);
    box.addEventListener("pointerdown", (event) => { // a bar must not move away under the pointer
      const region = regionOf(box);
      region?.setAttribute("data-hold", "");
      const began = event.clientX;
      addEventListener("pointerup", (end) => {
        region?.removeAttribute("data-hold");
        const { plot, held } = drawn.get(box);
        if (box.dataset.jobs && Math.abs(end.clientX - began) < 3 && plot.over.contains(end.target)) {
          const at = plot.posToVal(plot.cursor.left, "x");
          listDue(box, held.parts[kind.due], at, at);
        }
      }, { once: true });
    });
    new ResizeObserver(() => {
      const { plot } = drawn.get(box) ?? {};
      if (plot && box.clientWidth && plot.width !== box.clientWidth) plot.setSize({ width: box.clientWidth, height: plot.height });
    }).observe(box);
  }
  drawn.set(box, { plot: new uPlot(made, kind.columns(parts), box), held });
}

function update(box) {
  const { plot, held } = drawn.get(box);
  held.parts = partsOf(box);
  plot.setData(KINDS[box.dataset.chart].columns(held.parts));
}

const boxes = () => document.querySelectorAll("[data-chart]");

for (const box of boxes()) draw(box);
document.addEventListener("deferd:refreshed", (event) => {
  for (const box of boxes()) if (event.target.contains(document.getElementById(box.dataset.from.split(" ")[0]))) update(box);
});
const redraw = () => { for (const box of boxes()) draw(box); };
for (const changed of ["deferd:theme", "deferd:zone"]) document.addEventListener(changed, redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
