"""Rates are computed from the services' counters, and are left out where they are not known."""

from __future__ import annotations

from deferd.cli.inspection.rates import RateMeter, Rates, read_counts

EXPOSITION = """\
# HELP deferd_puts_total Jobs put, by outcome.
# TYPE deferd_puts_total counter
deferd_puts_total{outcome="created",topic="orders"} 100.0
deferd_puts_total{outcome="replaced",topic="orders"} 5.0
deferd_puts_total{outcome="kept",topic="orders"} 1000.0
deferd_puts_total{outcome="refused",topic="orders"} 1000.0
deferd_puts_created{outcome="created",topic="orders"} 1.7952735228560975e+09
deferd_finishes_total{topic="orders"} 1.2e+06
deferd_finishes_created{topic="orders"} 1.7952735228560975e+09
"""


def counted(puts: int, finishes: int = 0, topic: str = "orders") -> str:
    return (
        f'deferd_puts_total{{outcome="created",topic="{topic}"}} {puts}\n'
        f'deferd_finishes_total{{topic="{topic}"}} {finishes}\n'
    )


def test_puts_that_stored_a_job_and_finishes_are_counted() -> None:
    counts = read_counts(EXPOSITION)

    assert {"orders": 105} == counts.puts
    assert {"orders": 1_200_000} == counts.finishes


def test_a_rate_is_the_increase_between_two_samples() -> None:
    meter = RateMeter()
    meter.add("a", 10.0, read_counts(counted(100, 50)))
    assert Rates(None, None) == meter.rates("orders")

    meter.add("a", 12.0, read_counts(counted(160, 50)))

    assert Rates(30, 0) == meter.rates("orders")
    assert Rates(0, 0) == meter.rates("never-counted")


def test_replicas_add_up() -> None:
    meter = RateMeter()
    for at_s, puts in ((0.0, 0), (2.0, 10)):
        meter.add("a", at_s, read_counts(counted(puts)))
        meter.add("b", at_s, read_counts(counted(puts * 3)))

    assert 20 == meter.rates("orders").put


def test_counters_that_decrease_give_no_rate() -> None:
    meter = RateMeter()
    meter.add("a", 0.0, read_counts(counted(100)))
    meter.add("a", 1.0, read_counts(counted(3)))

    assert meter.rates("orders").put is None


def test_a_service_that_was_unreachable_starts_over() -> None:
    meter = RateMeter()
    meter.add("a", 0.0, read_counts(counted(100)))
    meter.forget("a")
    meter.add("a", 1.0, read_counts(counted(200)))
    assert meter.rates("orders").put is None

    meter.add("a", 2.0, read_counts(counted(201)))
    assert 1 == meter.rates("orders").put


def test_topics_that_are_counted_together_have_no_rate_of_their_own() -> None:
    meter = RateMeter()
    for at_s in (0.0, 1.0):
        meter.add("a", at_s, read_counts(counted(100, topic="_other") + counted(100)))

    assert Rates(None, None) == meter.rates("many")
    assert Rates(0, 0) == meter.rates("orders")
