// bullmq: puts in bulk, finished jobs are removed, many at a time. The command line is that of turn.py.
"use strict";

const { Queue, Worker } = require("bullmq");

const BULK = 1000;
const CONCURRENCY = 200;

const [step, url, jobsText, dueText] = process.argv.slice(2);
const { hostname: host, port } = new URL(url);
const connection = { host, port: Number(port), maxRetriesPerRequest: null };
const jobs = Number(jobsText);
const due = Number(dueText) * 1000;
const report = (facts) => process.stdout.write(`${JSON.stringify(facts)}\n`);

async function enqueue() {
  const began = performance.now();
  const queue = new Queue("bench", { connection });
  await queue.waitUntilReady();
  for (let left = jobs; left > 0; left -= BULK) {
    const opts = { delay: Math.max(Math.round(due - Date.now()), 1), removeOnComplete: true, removeOnFail: true };
    const some = Array.from({ length: Math.min(left, BULK) }, () => ({ name: "noop", data: {}, opts }));
    await queue.addBulk(some);
  }
  report({ seconds: (performance.now() - began) / 1000 });
  await queue.close();
}

async function work() {
  let run = 0;
  const noop = async () => {
    run += 1;
    if (run === jobs) report({ ended_at: Date.now() / 1000 });
  };
  const worker = new Worker("bench", noop, { connection, concurrency: CONCURRENCY });
  worker.on("error", (error) => process.stderr.write(`${error}\n`));
  await worker.waitUntilReady();
  report({ ready: true });
}

(step === "enqueue" ? enqueue() : work()).catch((error) => {
  process.stderr.write(`${error.stack}\n`);
  process.exit(1);
});
