"""`deferd bench plan`: its arithmetic, its bounds, and what it prints."""

from __future__ import annotations

import json
import math

import pytest

from deferd.bench import costs, plan_report
from deferd.bench.costs import allocated, job_memory
from deferd.bench.options import OptionsError
from deferd.bench.plan import Plan, PlanOptions, plan, read_plan_options
from tests.acceptance.cli.command_line import run_in_process


def planned(**fields: object) -> Plan:
    return plan(read_plan_options({name: str(value) for name, value in fields.items()}))


def test_memory_file_and_restart_are_those_of_the_jobs() -> None:
    made = planned(jobs=1_000_000, due=0, ids=20, bodies=200)

    assert made.data_bytes == 1_000_000 * job_memory(1_000_000, 20, 200).total
    assert made.primary_bytes == made.data_bytes * costs.RESIDENT_SHARE + costs.EMPTY_STORE_BYTES
    assert made.file_bytes == 1_000_000 * (costs.BASE_FILE_BYTES + 240)
    assert made.disk_bytes == 3 * made.file_bytes
    assert made.restart_s == pytest.approx(costs.START_S + costs.LOAD_JOB_US + 200 * costs.LOAD_BYTE_US)
    appended = made.file_bytes * costs.LOAD_COMMAND_BYTE_US / 1e6  # the file is rewritten at twice its size
    assert made.restart_most_s == pytest.approx(made.restart_s + appended)
    assert (made.primaries, made.replicas, made.service_processes, made.machines) == (1, 0, 1, 1)
    assert made.rewrite_reserve_bytes == 0


def test_the_memory_of_a_job_is_that_of_its_allocations() -> None:
    assert [allocated(size) for size in (1, 16, 17, 128, 129, 224, 225, 1025)] == [16, 16, 32, 128, 160, 224, 256, 1280]
    # Measured with MEMORY USAGE on Valkey 9.1.2 with jemalloc, 20,000 entries: 14-byte ids, 200 bytes of record
    large = job_memory(20_000, 14, 174)
    assert large.entry == pytest.approx(32 + 224, abs=16)
    # ids of 13 and 14 bytes: 68.2 and 84.1 bytes for a node and its share of the buckets
    short, longer = job_memory(20_000, 13, 10), job_memory(20_000, 14, 10)
    assert short.node + short.buckets / 2 == pytest.approx(68.2, abs=2)
    assert longer.node + longer.buckets / 2 == pytest.approx(84.1, abs=2)


def test_cpu_network_and_calls_are_those_of_the_rate() -> None:
    made = planned(jobs=0, due=10_000, bodies=100)

    assert made.store_cores == pytest.approx(10_000 * (costs.STORE_BATCH_US + 100 * costs.STORE_BYTE_US) / 1e6)
    assert made.service_cores == pytest.approx(10_000 * (costs.SERVICE_BATCH_US + 100 * costs.SERVICE_BYTE_US) / 1e6)
    assert made.calls_per_s == 10_000 * costs.CALLS_BATCH
    assert made.http_bytes_per_s == 10_000 * (costs.HTTP_BATCH_BYTES + 200)
    assert made.file_bytes_per_s == 10_000 * (costs.CYCLE_FILE_BYTES + 100)
    single = planned(jobs=0, due=10_000, bodies=0, calls="single")
    assert single.store_cores == 10_000 * costs.STORE_SINGLE_US / 1e6
    assert single.calls_per_s == 10_000 * costs.CALLS_SINGLE


def test_retained_jobs_are_stored_as_well() -> None:
    assert planned(jobs=1000, due=10, retention=60.5).stored == 1605


def test_primaries_are_as_many_as_memory_or_cpu_need() -> None:
    by_memory = planned(jobs=10**9, due=1, bodies=200, primary_memory=16)
    by_cpu = planned(jobs=1, due=10**6, bodies=0, busy=0.5)

    assert by_memory.primaries == -(-int(10**9 * job_memory(10**9, 20, 200).total) // 16_000_000_000)
    assert by_memory.limited_by == "memory"
    assert by_cpu.primaries == math.ceil(10**6 * costs.STORE_BATCH_US / 1e6 / 0.5)
    assert by_cpu.limited_by == "CPU of the store"
    # a restart loads the jobs of one primary, all primaries at the same time
    assert by_memory.restart_s < planned(jobs=10**9, due=1, bodies=200, primary_memory=4096).restart_s / 20


def test_replicas_multiply_memory_disk_and_machines() -> None:
    alone, doubled = planned(jobs=10**7, due=100), planned(jobs=10**7, due=100, durability="replicated:1")

    assert doubled.memory_bytes == 2 * alone.memory_bytes
    assert doubled.disk_bytes == 2 * alone.disk_bytes
    assert doubled.replication_bytes_per_s == alone.file_bytes_per_s
    assert (alone.machines, doubled.machines) == (1, 2)  # a replica is on another machine than its primary


def test_the_reserve_for_rewrites_is_at_most_the_data() -> None:
    slow, fast = planned(jobs=10**7, due=10), planned(jobs=10**7, due=10**5, busy=0.9, primary_memory=4096)

    assert 0 < slow.rewrite_reserve_bytes < slow.data_bytes / 10
    assert fast.rewrite_reserve_bytes <= fast.data_bytes / fast.primaries


def test_machines_have_enough_memory_and_cores() -> None:
    assert planned(jobs=10**9, due=1, machine_memory=64).machines >= planned(jobs=10**9, due=1).memory_bytes / 64e9
    assert planned(jobs=1, due=10**6, machine_cores=4).machines > planned(jobs=1, due=10**6, machine_cores=16).machines


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("jobs", "-1", "--jobs is '-1', but must be a whole number from 0 to 1000000000000"),
        ("jobs", "1.5", "--jobs is '1.5', but must be a whole number from 0 to 1000000000000"),
        ("due", "nan", "--due is 'nan', but must be a number from 0 to 100000000"),
        ("durability", "replicated:0", "but must be memory, fsync or replicated:N with N from 1 to 9"),
        ("calls", "many", "--calls is 'many', but must be batch or single"),
        ("machine_memory", "0", "--machine-memory is '0', but must be a number from 0.5 to 65536"),
    ],
)
def test_a_wrong_value_names_the_flag_the_value_and_the_range(field: str, value: str, message: str) -> None:
    with pytest.raises(OptionsError) as refused:
        read_plan_options({field: value})
    assert message in str(refused.value)


def test_the_command_prints_a_table_and_its_notes() -> None:
    done = run_in_process("bench", "plan", "--jobs", "100000000", "--durability", "replicated:2")

    assert (done.returncode, done.stderr) == (0, "")
    for words in ("store primaries", "restart until ready", "One topic lives on one primary", "arithmetic"):
        assert words in done.stdout


def test_the_command_prints_json() -> None:
    done = run_in_process("bench", "plan", "--due", "250", "--json")

    printed = json.loads(done.stdout)
    assert printed["load"]["due"] == 250
    assert printed["plan"] == plan(PlanOptions(due=250)).as_json()


def test_wrong_usage_of_the_command() -> None:
    refused, before = run_in_process("bench", "plan", "--ids", "0"), run_in_process("bench", "--jobs", "5", "plan")

    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--ids is '0'" in refused.stderr
    assert before.returncode == 2
    assert "go after the word plan" in before.stderr


def test_sizes_and_durations_are_readable() -> None:
    shown = [plan_report.size(count) for count in (0, 999, 1_500, 2_010_000_000, 999_900_000_000)]
    assert shown == ["0 B", "999 B", "1.5 kB", "2.01 GB", "1 TB"]
    assert [plan_report.seconds(count) for count in (1.5, 119, 600)] == ["2 s", "119 s", "10 min"]
