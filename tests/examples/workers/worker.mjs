// @ts-check
// A worker on Node 20.3 or newer, without packages. docs/other-languages.md says why each call is made as it is.
//
//     DEFERD_URL=http://localhost:8000 DEFERD_TOPIC=mail DEFERD_KEY=... node worker.mjs
//
// One job at a time: start several processes, or `main` several times, for more. DEFERD_GRACE is how many seconds the
// handler gets after SIGTERM.

import { randomUUID } from "node:crypto";
import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";

/** @typedef {{topic: string, id: string, receipt: string, ttr: number, attempt: number, body: any}} Job */
/** @typedef {{status: number, data: any, retryAfter: number}} Reply `status` 0: there was no response. */

class Snooze extends Error {
  /** @param {number} seconds */
  constructor(seconds) {
    super(`not yet: again in ${seconds} s`);
    this.seconds = seconds;
  }
}
class Reject extends Error {}

/**
 * Your work. Its value is the result of the job; an error releases the job for another attempt.
 * @param {Job} job
 * @param {AbortSignal} signal Aborted when the work must end: the job was cancelled, or the worker has to stop.
 */
async function handle(job, signal) {
  const { do: what, seconds = 0 } = job.body;
  if (what === "fail") throw new Error("failed as the job says");
  if (what === "snooze") throw new Snooze(seconds);
  if (what === "reject") throw new Reject("rejected as the job says");
  if (what === "sleep") {
    await sleep(seconds * 1000, undefined, { signal }).catch((error) => {
      console.log(`cancelled ${job.id}`);
      throw error;
    });
  }
  return `done: ${what}`;
}

const { DEFERD_URL = "http://localhost:8000", DEFERD_TOPIC = "jobs", DEFERD_KEY, DEFERD_GRACE = "30" } = process.env;
const CONSUMER = `${hostname()}-${process.pid}`;
const TRY_AGAIN = new Set([0, 408, 429, 500, 502, 503, 504]);
const OVER = new Set([404, 409, 410]); // the delivery is over: cancelled, or another consumer has the job
const stop = new AbortController(); // take no more jobs
const grace = new AbortController(); // the handler has had its time

/** @type {(path: string, body?: object, timeout?: number, signal?: AbortSignal) => Promise<Reply>} */
const call = async (path, body, timeout = 5, signal) => {
  /** @type {Record<string, string>} */
  const headers = { "Content-Type": "application/json" };
  if (DEFERD_KEY) headers.Authorization = `Bearer ${DEFERD_KEY}`;
  const ends = [AbortSignal.timeout(timeout * 1000), ...(signal ? [signal] : [])];
  const options = { method: "POST", headers, body: body && JSON.stringify(body), signal: AbortSignal.any(ends) };
  try {
    const response = await fetch(DEFERD_URL + path, options);
    const text = await response.text();
    const isJson = response.headers.get("content-type")?.includes("json");
    const retryAfter = Number(response.headers.get("retry-after")) || 0;
    return { status: response.status, data: isJson ? JSON.parse(text) : { detail: text }, retryAfter };
  } catch (error) {
    return { status: 0, data: { detail: String(error) }, retryAfter: 0 };
  }
};

/** Waits for Retry-After at least, and longer after each failure.
 * @param {number} failures @param {Reply} reply @param {AbortSignal} [signal] */
async function pause(failures, reply, signal) {
  console.log(`trying again: ${reply.status} ${reply.data.detail}`);
  const grown = Math.min(0.1 * 2 ** failures, 5) * (0.5 + Math.random() / 2);
  await sleep(Math.max(grown, reply.retryAfter) * 1000, undefined, { signal }).catch(() => undefined);
}

/** One job or none. A pop without a response is repeated with its request_id, and gets the same job.
 * @returns {Promise<Job[]>} */
async function pop() {
  const query = `consumer=${CONSUMER}&request_id=${randomUUID()}`;
  for (let failures = 0; ; failures++) {
    const last = stop.signal.aborted; // its response may have crossed the stop: ask once more, without waiting
    const path = `/topics/${DEFERD_TOPIC}/pop?${query}&wait=${last ? 0 : 20}`;
    const reply = await (last ? call(path) : call(path, undefined, 30, stop.signal));
    if (reply.status === 200) return reply.data.jobs;
    if (!TRY_AGAIN.has(reply.status)) throw new Error(`pop: ${reply.status} ${reply.data.detail}`);
    if (last) return [];
    if (!stop.signal.aborted) await pause(failures, reply, stop.signal);
  }
}

/** Sends a report until it gets a definite response. @param {Job} job @param {string} verb @param {object} body */
async function report(job, verb, body) {
  const path = `/jobs/${job.topic}/${job.id}/${verb}`;
  let reply = await call(path, { receipt: job.receipt, ...body });
  for (let failures = 0; TRY_AGAIN.has(reply.status); failures++) {
    await pause(failures, reply);
    reply = await call(path, { receipt: job.receipt, ...body });
  }
  if (reply.status < 300) return;
  console.log(`${verb} ${job.id}: ${reply.status} ${reply.data.detail}`);
  if (verb === "finish" && !OVER.has(reply.status)) await report(job, "release", { error: reply.data.detail });
}

/** Touches the job at half of its lease until `done`. Calls `onOver` when somebody else decides on the job.
 * @param {Job} job @param {AbortSignal} done @param {() => void} onOver */
async function keepLease(job, done, onOver) {
  for (let wait = job.ttr / 2; !done.aborted; ) {
    await sleep(wait * 1000, undefined, { signal: done }).catch(() => undefined);
    if (done.aborted) return;
    const reply = await call(`/jobs/${job.topic}/${job.id}/touch`, { receipt: job.receipt }, 5, done);
    if (OVER.has(reply.status)) return onOver();
    wait = reply.status === 200 ? job.ttr / 2 : Math.max(job.ttr / 8, reply.retryAfter);
  }
}

/** @param {Job} job */
async function work(job) {
  console.log(`began ${job.id}`);
  const over = new AbortController();
  const done = new AbortController();
  void keepLease(job, done.signal, () => over.abort());
  /** @type {[string, object]} */
  let outcome;
  try {
    outcome = ["finish", { result: await handle(job, AbortSignal.any([over.signal, grace.signal])) }];
  } catch (error) {
    if (grace.signal.aborted) outcome = ["release", { error: "the worker stopped", delay: 0 }];
    else if (error instanceof Snooze) outcome = ["release", { count: false, delay: error.seconds }];
    else outcome = [error instanceof Reject ? "bury" : "release", { error: String(error).slice(0, 1000) }];
  }
  done.abort();
  if (!over.signal.aborted) await report(job, ...outcome);
}

for (const name of ["SIGTERM", "SIGINT"]) {
  process.once(name, () => {
    stop.abort();
    setTimeout(() => grace.abort(), Number(DEFERD_GRACE) * 1000).unref();
    setTimeout(() => process.exit(1), (Number(DEFERD_GRACE) + 10) * 1000).unref(); // the leases end by themselves
  });
}
while (!stop.signal.aborted) {
  for (const job of await pop()) {
    const { topic, id, receipt } = job;
    if (stop.signal.aborted) await call(`/topics/${topic}/return`, { jobs: [{ id, receipt }] });
    else await work(job);
  }
}
