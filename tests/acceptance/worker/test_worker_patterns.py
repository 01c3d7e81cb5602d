"""Workers with handlers for patterns of topics, and the test tools that run them."""

from __future__ import annotations

from deferd import AsyncClient, Context, FixedBackoff, Retry, Worker
from deferd.testing import EagerJobs, ServiceForTests
from tests.acceptance.worker.worker_runs import gone, in_state, serving


async def test_a_pattern_handler_gets_the_topics_that_have_none_of_their_own(
    client: AsyncClient, worker: Worker, topic: str
) -> None:
    @worker.handler(f"{topic}.*")
    async def any_topic(context: Context) -> str:
        return f"any {context.topic}"

    @worker.handler(f"{topic}.own")
    def own(context: Context) -> str:
        return f"own {context.topic}"

    for name in ("a", "own"):
        await client.put(f"{topic}.{name}", id="j", retain=60)
    await client.put(f"{topic}x", id="j")
    async with serving(worker):
        assert (await in_state(client, f"{topic}.a", "j", "finished")).result == f"any {topic}.a"
        assert (await in_state(client, f"{topic}.own", "j", "finished")).result == f"own {topic}.own"
        await client.put(f"{topic}.new", id="j", retain=60)
        assert (await in_state(client, f"{topic}.new", "j", "finished")).result == f"any {topic}.new"
    assert (await client.get(f"{topic}x", "j")).state == "ready"


async def test_a_job_of_a_pattern_is_retried_and_finished(client: AsyncClient, worker: Worker, topic: str) -> None:
    @worker.handler(f"{topic}.*")
    async def twice(context: Context) -> None:
        if context.job.attempt == 1:
            raise Retry(delay=0)

    await client.put(f"{topic}.a", id="j", backoff=FixedBackoff(seconds=0.01))
    async with serving(worker):
        await gone(client, f"{topic}.a", "j")


def orders_worker() -> tuple[Worker, list[str]]:
    worker, seen = Worker(), []

    @worker.handler("orders.*")
    def note(body: str, context: Context) -> None:
        seen.append(f"{context.topic} {body}")

    return worker, seen


def test_eager_jobs_run_the_handlers_of_patterns() -> None:
    worker, seen = orders_worker()
    jobs = EagerJobs(worker)
    jobs.client.put("orders.close", "now")
    jobs.client.put("orders.open", "later", delay=60)
    jobs.client.put("users", "never")
    jobs.run_delayed()
    assert seen == ["orders.close now", "orders.open later"]
    assert [job.state for job in jobs.jobs] == ["finished", "finished", "ready"]


def test_a_worker_with_patterns_runs_until_it_is_idle(clocked_service: ServiceForTests) -> None:
    worker, seen = orders_worker()
    clocked_service.purge()
    with clocked_service.client() as client:
        for number in range(5):
            client.put(f"orders.{number}", "x")
        client.put("users", "x")
        clocked_service.run_until_idle(worker)
    assert sorted(seen) == [f"orders.{number} x" for number in range(5)]
