/**
 * A producer and a consumer in TypeScript, over the types that openapi-typescript makes from the contract.
 *
 * Nothing here runs: `npm run build` compiles it against the document. The lines
 * under `@ts-expect-error` are wrong on purpose; the build fails when the document lets one pass. See program.ts for
 * what runs.
 */
import createClient, { type Client } from "openapi-fetch";

import type { components, paths } from "./generated/deferd.js";

type Job = components["schemas"]["Job"];
type JobState = components["schemas"]["JobState"];
type Delivery = components["schemas"]["Delivery"];
type Problem = components["schemas"]["Problem"];

/** An error that the service reported. Decide by `problem.code`. */
export class DeferdError extends Error {
  override readonly name = "DeferdError";

  constructor(readonly problem: Problem) {
    super(`${problem.status} ${problem.code}: ${problem.detail}`);
  }
}

function dataOf<T>(response: { data?: T; error?: Problem }): T {
  if (response.error !== undefined) {
    throw new DeferdError(response.error);
  }
  if (response.data === undefined) {
    throw new TypeError("the response has no body");
  }
  return response.data;
}

export class Deferd {
  readonly #http: Client<paths>;

  constructor(baseUrl: string) {
    this.#http = createClient<paths>({ baseUrl });
  }

  /** Puts a job that is due after `delay` seconds; a second put of the same id changes nothing. */
  async put(topic: string, id: string, body: unknown, delay: number): Promise<Job> {
    return dataOf(await this.#http.POST("/jobs", { body: { topic, id, body, delay, on_conflict: "keep" } }));
  }

  /** Cancels a job; returns its former state. */
  async cancel(topic: string, id: string): Promise<JobState> {
    const cancelled = dataOf(
      await this.#http.DELETE("/jobs/{topic}/{id}", {
        params: { path: { topic, id }, query: { if_reserved: "cancel" } },
      }),
    );
    return cancelled.was;
  }

  /** Waits up to `wait` seconds for jobs of the topics, the first one first; none is an empty list. */
  async pop(topics: readonly string[], count: number, wait: number): Promise<Delivery[]> {
    const popped = dataOf(
      await this.#http.GET("/topics/{topic}/pop", {
        params: { path: { topic: topics.join(",") }, query: { count, wait, consumer: "typescript" } },
      }),
    );
    return popped.jobs;
  }

  /** Reports that a delivery is done. */
  async finish({ topic, id, receipt }: Delivery, result: unknown): Promise<void> {
    dataOf(await this.#http.POST("/jobs/{topic}/{id}/finish", { params: { path: { topic, id } }, body: { receipt, result } }));
  }

  /** Releases a delivery; returns when the job is due again, or undefined when it is dead. */
  async release({ topic, id, receipt }: Delivery, error: string): Promise<Date | undefined> {
    const released = dataOf(
      await this.#http.POST("/jobs/{topic}/{id}/release", { params: { path: { topic, id } }, body: { receipt, error } }),
    );
    return released.due_at == null ? undefined : new Date(released.due_at);
  }

  /** How many jobs the topic has in each state. */
  async counts(topic: string): Promise<Record<JobState, number>> {
    return dataOf(await this.#http.GET("/topics/{topic}", { params: { path: { topic } } })).counts;
  }
}

/** Handles jobs of a topic until `signal` is aborted. */
export async function work(
  deferd: Deferd,
  topic: string,
  handle: (job: Delivery) => Promise<unknown>,
  signal: AbortSignal,
): Promise<void> {
  while (!signal.aborted) {
    for (const job of await deferd.pop([topic], 10, 20)) {
      try {
        await deferd.finish(job, await handle(job));
      } catch (error) {
        await deferd.release(job, String(error));
      }
    }
  }
}

/** What the compiler must refuse. */
export async function mistakes(http: Client<paths>): Promise<void> {
  // @ts-expect-error a put needs a topic
  await http.POST("/jobs", { body: { id: "order-1042" } });
  // @ts-expect-error a delay is a number of seconds
  await http.POST("/jobs", { body: { topic: "orders.close", delay: "30m" } });
  // @ts-expect-error there is no such way to settle a conflict
  await http.POST("/jobs", { body: { topic: "orders.close", on_conflict: "ignore" } });
  // @ts-expect-error a schedule needs its waits
  await http.POST("/jobs", { body: { topic: "orders.close", backoff: { kind: "schedule" } } });
  // @ts-expect-error a pop has no such parameter
  await http.GET("/topics/{topic}/pop", { params: { path: { topic: "orders.close" }, query: { timeout: 20 } } });
  // @ts-expect-error a job outside of a delivery has no receipt
  const receipt: string = (await http.GET("/jobs/{topic}/{id}", { params: { path: { topic: "t", id: "i" } } })).data?.receipt;
  void receipt;
}
