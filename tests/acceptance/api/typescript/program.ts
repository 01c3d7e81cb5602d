/**
 * Puts, pops and finishes jobs over the types that openapi-typescript makes from openapi/openapi.yaml.
 *
 * Its arguments are the URL of a service, the URL of a service whose store is down, and a topic. It writes what it saw
 * to standard output; tests/acceptance/api/generated_scenario.py states the expected output.
 */
import createClient, { type Client } from "openapi-fetch";

import type { components, paths } from "./generated/deferd.js";

type Schemas = components["schemas"];
type Backoff = Schemas["Backoff"];
type Failure = Pick<Schemas["Problem"], "status" | "code">;

// All that is needed of Node's own types.
declare const process: { readonly argv: readonly string[] };

interface Result<T> {
  readonly data?: T;
  readonly error?: Schemas["Problem"];
}

function succeeded<T>({ data, error }: Result<T>): T {
  if (data === undefined) {
    throw new Error(`the call failed: ${JSON.stringify(error)}`);
  }
  return data;
}

function failed({ data, error }: Result<unknown>): Failure {
  if (error === undefined) {
    throw new Error(`the call did not fail: ${JSON.stringify(data)}`);
  }
  return { status: error.status, code: error.code };
}

async function popOne(http: Client<paths>, topic: string): Promise<Schemas["Delivery"]> {
  const query = { wait: 20, consumer: "typescript" };
  const { jobs } = succeeded(await http.POST("/topics/{topic}/pop", { params: { path: { topic }, query } }));
  if (jobs[0] === undefined || jobs.length > 1) {
    throw new Error(`there is not one job: ${JSON.stringify(jobs)}`);
  }
  return jobs[0];
}

async function putPopFinish(http: Client<paths>, topic: string) {
  const job: Schemas["PutJob"] = { topic, id: "order-1", body: { order: 1 }, delay: 0.3, ttr: 86399.999, retain: 60 };
  const put = succeeded(await http.POST("/jobs", { body: job }));
  const { id, attempt, body, receipt } = await popOne(http, topic);
  const params = { path: { topic, id } };
  const finished = succeeded(
    await http.POST("/jobs/{topic}/{id}/finish", { params, body: { receipt, result: "closed" } }),
  );
  const again = await http.POST("/jobs", { body: job }); // its record is kept, so the id is taken
  return {
    put: put.state,
    ttr: put.ttr,
    popped: { id, attempt, body },
    finished: finished.state,
    conflict: failed(again),
  };
}

async function setBackoffs(http: Client<paths>, topic: string): Promise<Backoff[]> {
  const backoffs: Backoff[] = [
    { kind: "exponential", base: 3, cap: 100.5, jitter: 0.25 },
    { kind: "fixed", seconds: 1.5 },
    { kind: "schedule", seconds: [0.5, 120], then: "repeat_last" },
  ];
  const shown: Backoff[] = [];
  for (const backoff of backoffs) {
    shown.push(succeeded(await http.POST("/jobs", { body: { topic, backoff, delay: 60 } })).backoff);
  }
  return shown;
}

async function pauseAndResume(http: Client<paths>, topic: string): Promise<boolean[]> {
  const params = { path: { topic } };
  const paused = succeeded(await http.POST("/topics/{topic}/pause", { params }));
  const resumed = succeeded(await http.POST("/topics/{topic}/resume", { params }));
  return [paused.paused, resumed.paused];
}

async function finishCancelled(http: Client<paths>, topic: string): Promise<Failure> {
  succeeded(await http.POST("/jobs", { body: { topic, id: "order-2" } }));
  const { id, receipt } = await popOne(http, topic);
  const params = { path: { topic, id } };
  succeeded(await http.DELETE("/jobs/{topic}/{id}", { params }));
  return failed(await http.POST("/jobs/{topic}/{id}/finish", { params, body: { receipt } }));
}

async function makeSchedule(http: Client<paths>, topic: string) {
  const params = { path: { name: topic } };
  const schedule: Schemas["PutSchedule"] = {
    topic,
    every: 3600,
    window: [{ from: "22:00", to: "06:00" }],
    job: { max_attempts: 3 },
  };
  const { every, window, job } = succeeded(await http.PUT("/schedules/{name}", { params, body: schedule }));
  succeeded(await http.DELETE("/schedules/{name}", { params }));
  if (!Array.isArray(window)) {
    throw new Error(`there is no list of windows: ${JSON.stringify(window)}`);
  }
  return { every, opens: window[0]?.from, max_attempts: job?.max_attempts };
}

const [, , url, urlWithoutStore, topic] = process.argv;
if (url === undefined || urlWithoutStore === undefined || topic === undefined) {
  throw new Error("arguments: URL URL_WITHOUT_STORE TOPIC");
}
const http = createClient<paths>({ baseUrl: url });
const withoutStore = createClient<paths>({ baseUrl: urlWithoutStore });
const seen = {
  ...(await putPopFinish(http, topic)),
  backoffs: await setBackoffs(http, topic),
  paused: await pauseAndResume(http, topic),
  gone: await finishCancelled(http, topic),
  schedule: await makeSchedule(http, topic),
  unavailable: failed(await withoutStore.POST("/jobs", { body: { topic } })),
};
console.log(JSON.stringify(seen));
