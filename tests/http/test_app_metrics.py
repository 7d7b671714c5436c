"""docs/metrics.md and /metrics say the same, and the numbers are right."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx2 as httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from luce.protocol import Speculation
from luce.supervisor import SupervisorStatus
from luce.supervisor.http.engine_metrics import EngineMetrics
from luce.supervisor.http.metrics import Distribution, Metrics
from tests.http.serving import BOUNDED, Server
from tests.http.statuses import engine_status

ROOT = Path(__file__).resolve().parents[2]
SCORER = ROOT / "tests" / "data" / "models" / "luce-tiny-scorer-Q8_0.gguf"
CHAT = "/v1/chat/completions"
HELLO = {"model": "any", "max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]}
ROW = re.compile(r"^\| `((?:luce_|vllm:)\w+)` \| (\w+) \| ([^|]*)\| ([^|]+) \|$", re.MULTILINE)

Sample = tuple[str, tuple[tuple[str, str], ...]]


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=120) as connected:
        yield connected


def samples(client: httpx.Client) -> dict[Sample, float]:
    found: dict[Sample, float] = {}
    for family in text_string_to_metric_families(client.get("/metrics").text):
        for sample in family.samples:
            found[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    return found


def told(*said: EngineMetrics) -> str:
    """What is rendered of engines that say this."""
    engines = tuple(engine_status(name=f"engine {number}") for number in range(len(said)))
    status = SupervisorStatus(
        engines=engines, n_waiting=0, n_requests=0, n_finished=0, n_failed=0, n_cancelled=0, n_resumes=0, n_tokens=0
    )
    return Metrics().render(status, said).decode()


def document_rows() -> list[tuple[str, str, str, str]]:
    return ROW.findall((ROOT / "docs" / "metrics.md").read_text())


def test_the_document_names_what_is_there(client: httpx.Client) -> None:
    client.post(CHAT, json=HELLO)
    answer = client.get("/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    told = dict(re.findall(r"^# TYPE ([\w:]+) (\w+)$", answer.text, re.MULTILINE))
    told["luce_build_info"] = "info"  # a gauge in this format
    rows = document_rows()
    assert {name: kind for name, kind, *_ in rows} == told
    labels = {name: set(re.findall(r"`(\w+)`", column)) for name, _, column, _ in rows}
    for sample in (line for line in answer.text.splitlines() if not line.startswith("#")):
        name, used = re.match(r"([\w:]+)(?:\{(.*)\})? ", sample).groups()  # type: ignore[union-attr]
        base = re.sub(r"_(bucket|count|sum)$", "", name) if name not in labels else name
        assert set(re.findall(r"(\w+)=", used or "")) - {"le"} <= labels[base] | ({"version", "model"} & labels[base])


def test_what_a_request_counts(client: httpx.Client) -> None:
    before = samples(client)
    client.post(CHAT, json=HELLO)
    client.post(CHAT, json={**HELLO, "stream": True})
    client.post("/v1/messages", json={**HELLO, "messages": []})
    client.post(CHAT, content=b"{")
    after = samples(client)

    def more(name: str, **labels: str) -> float:
        key = (name, tuple(sorted(labels.items())))
        return after[key] - before.get(key, 0.0)

    assert more("luce_http_requests_total", api="chat_completions", outcome="ok") == 2
    assert more("luce_http_requests_total", api="chat_completions", outcome="refused") == 1
    assert more("luce_http_requests_total", api="messages", outcome="refused") == 1
    assert more("luce_http_time_to_first_token_seconds_count") == 2
    assert more("luce_http_queue_time_seconds_count") == 2
    assert more("luce_http_prompt_tokens_count") == more("luce_http_cached_share_ratio_count") == 2
    n_generated = more("luce_http_generated_tokens_total")
    assert n_generated == more("luce_supervisor_tokens_total") > 0
    assert more("luce_http_read_tokens_total") == more("luce_http_prompt_tokens_sum") > 0
    assert more("luce_supervisor_requests_total", outcome="finished") == 2
    assert after["luce_http_requests_in_progress", (("api", "chat_completions"),)] == 0
    assert after["luce_http_requests_in_progress", (("api", "other"),)] == 1, "the scrape itself"
    assert after["luce_supervisor_lanes", ()] == 4
    assert after["luce_supervisor_engines", (("state", "ready"),)] == 1
    assert after["luce_supervisor_engines", (("state", "failed"),)] == 0


def test_what_routers_scrape(client: httpx.Client) -> None:
    client.post(CHAT, json=HELLO)
    found = samples(client)
    model = (("model_name", "luce-tiny-Q8_0"),)
    assert found["vllm:num_requests_running", model] == found["vllm:num_requests_waiting", model] == 0
    assert found["vllm:kv_cache_usage_perc", model] == found["vllm:gpu_cache_usage_perc", model] == 0
    assert found["vllm:cache_config_info", (("block_size", "64"), ("num_gpu_blocks", "256"))] == 1


def test_the_share_of_the_pools_is_that_of_all_engines_that_say_it() -> None:
    text = told({"cells_used": 30, "pool": 100}, {"cells_used": 90, "pool": 300}, {})
    assert 'vllm:kv_cache_usage_perc{model_name=""} 0.3\n' in text
    assert "vllm:kv_cache_usage_perc{" not in told({})


def test_an_engine_whose_texts_have_to_fit_has_no_figures_of_pages_out(client: httpx.Client) -> None:
    named = {name for name, _ in samples(client)}
    assert not named & {"luce_engine_pages_out", "luce_engine_pages_moved_out_total", "luce_engine_scorer_bytes"}


def test_what_an_engine_keeps_is_counted_though_its_texts_have_to_fit(client: httpx.Client) -> None:
    def figures() -> dict[str, float]:
        of_engine = (("engine", "engine 0"),)
        return {name: value for (name, labels), value in samples(client).items() if labels == of_engine}

    before = figures()
    prompt = [3 + i * 11 % 8000 for i in range(200)]
    for _ in range(2):
        answer = client.post("/v1/completions", json={"model": "any", "max_tokens": 1, "prompt": prompt})
        assert answer.status_code == 200, answer.text
    after = figures()
    assert after["luce_engine_pool_tokens"] == 16384
    assert after["luce_engine_pool_used_tokens"] == after["luce_engine_lanes_busy"] == after["luce_engine_queued"] == 0
    computed = after["luce_engine_computed_prompt_tokens_total"] - before["luce_engine_computed_prompt_tokens_total"]
    reused = after["luce_engine_reused_prompt_tokens_total"] - before["luce_engine_reused_prompt_tokens_total"]
    assert (computed + reused, computed >= 200, reused > 0) == (400, True, True)
    assert 0 < after["luce_engine_host_bytes"] <= after["luce_engine_host_limit_bytes"]
    assert after["luce_engine_disk_limit_bytes"] == after["luce_engine_disk_trouble"] == 0


def test_where_prompts_came_from_is_counted(client: httpx.Client) -> None:
    def counts() -> dict[Sample, float]:
        return {key: value for key, value in samples(client).items() if key[0].startswith("luce_http_prefix_")}

    before = counts()
    prompt = [5 + i * 13 % 8000 for i in range(300)]
    usages = [
        client.post("/v1/completions", json={"model": "any", "max_tokens": 1, "prompt": prompt}).json()["usage"]
        for _ in range(2)
    ]
    expected: Counter[Sample] = Counter()
    for usage in usages:
        tier, miss = usage["luce"]["cache_tier"], usage["luce"]["cache_miss"].partition(":")[0]
        expected["luce_http_prefix_requests_total", (("tier", tier),)] += 1
        expected["luce_http_prefix_misses_total", (("reason", miss),)] += 1
        expected["luce_http_prefix_tokens_total", (("tier", tier),)] += usage["prompt_tokens_details"]["cached_tokens"]
    assert len({usage["luce"]["cache_tier"] for usage in usages}) == 2, "the second is known"
    after = counts()
    assert Counter({key: int(after[key] - before.get(key, 0.0)) for key in expected}) == expected


def test_a_disk_that_cannot_be_written_to_shows() -> None:
    said: EngineMetrics = {"disk_trouble": "/cache: No space left on device", "disk_corrupt": 2, "pool": 640}
    text = told(said)
    assert 'luce_engine_disk_trouble{engine="engine 0"} 1.0' in text
    assert 'luce_engine_disk_corrupt_files_total{engine="engine 0"} 2.0' in text
    assert "No space" not in text, "a label for each reason would be a series for each"


def test_the_dashboard_asks_for_what_is_there() -> None:
    dashboard = json.loads((ROOT / "docs" / "grafana.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    assert len(asked) > 30
    known = {name: set(re.findall(r"`(\w+)`", column)) for name, _, column, _ in document_rows()}
    for query in asked:
        names = {re.sub(r"_bucket$", "", name) for name in re.findall(r"luce_\w+", query)}
        assert names, query
        assert names <= set(known), query
        labels = {label for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(", ")}
        labels |= set(re.findall(r"(\w+)(?:=~|!=|=)\"", query)) - {"instance"}
        assert labels - {"le"} <= set.union(*(known[name] for name in names)), query
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)


def test_what_an_engine_spends_its_time_on_is_counted_by_part(client: httpx.Client) -> None:
    before = samples(client)
    client.post(CHAT, json=HELLO)
    after = samples(client)
    of_engine = ("engine", "engine 0")

    def more(name: str, *labels: tuple[str, str]) -> float:
        key = (f"luce_engine_{name}", tuple(sorted((of_engine, *labels))))
        return after[key] - before[key]

    assert more("steps_total") > 0
    assert more("step_seconds_total", ("part", "submit")) > 0
    assert more("step_seconds_total", ("part", "idle")) > 0
    assert more("copies_bytes_total", ("direction", "out")) >= 0
    parts = {dict(labels)["part"] for name, labels in after if name == "luce_engine_step_seconds_total"}
    assert {"plan", "draft", "submit", "wait", "sample", "remember", "copy", "output", "idle"} <= parts


def test_what_outgrows_the_pool_is_counted(tiny_model: Path) -> None:
    running = Server(tiny_model, BOUNDED).start()
    try:
        with httpx.Client(base_url=running.url, timeout=120) as client:

            def figure(name: str) -> float:
                return samples(client)[f"luce_engine_{name}", (("engine", "engine 0"),)]

            assert [figure(name) for name in ("pages_out", "pages_moved_out_total", "page_stall_seconds_total")] == [
                0
            ] * 3
            prompt = [2 + i * 7 % 8000 for i in range(1500)]
            answer = client.post("/v1/completions", json={"model": "any", "max_tokens": 4, "prompt": prompt})
            assert answer.status_code == 200, answer.text
            assert figure("pages_out") == 0, "nothing runs"
            assert figure("pages_moved_out_total") >= (1500 - 640) // 64
            assert figure("pages_moved_in_total") >= 0
            assert figure("page_choices_total") >= 1, "the packaged model lets its queries be seen"
            assert figure("page_choices_cut_total") == 0
            assert figure("page_keys_bytes") > 0
            assert figure("scorer_bytes") == 0, "the model's own queries are asked"
            assert figure("page_bytes_in_total") >= figure("pages_moved_in_total")
            assert figure("pages_found_total") <= figure("pages_wanted_total")
            assert figure("page_stall_seconds_total") > 0
    finally:
        running.stop()


def test_a_scorers_memory_is_counted_and_props_name_it(tiny_model: Path) -> None:
    running = Server(tiny_model, {**BOUNDED, "kvflash_policy": "draft", "kvflash_scorer": SCORER}).start()
    try:
        with httpx.Client(base_url=running.url, timeout=120) as client:
            n_bytes = samples(client)["luce_engine_scorer_bytes", (("engine", "engine 0"),)]
            props = client.get("/props")
    finally:
        running.stop()
    assert n_bytes > SCORER.stat().st_size / 2
    assert (props.json()["kvflash"]["policy"], props.json()["kvflash"]["scorer"]) == ("draft", SCORER.name)
    assert str(SCORER.parent) not in props.text


def test_names_of_clients_do_not_become_labels(client: httpx.Client) -> None:
    n_before = len(samples(client))
    for number in range(20):
        client.get(f"/nowhere-{number}")
        client.get(f"/v1/models/model-{number}")
        client.request(f"METHOD{number}", CHAT)
    assert len(samples(client)) <= n_before + 2


def test_a_distribution_takes_many_at_once() -> None:
    one, many = Distribution("a", "", (0.0, 1.0, 2.0)), Distribution("a", "", (0.0, 1.0, 2.0))
    for value in (0.0, 1.0, 1.0, 1.0, 2.5):
        one.add(value)
    many.add(0.0)
    many.add(1.0, 3)
    many.add(2.5)
    assert one.family().samples == many.family().samples
    buckets = {sample.labels["le"]: sample.value for sample in one.family().samples if "le" in sample.labels}
    assert buckets == {"0.0": 1, "1.0": 4, "2.0": 4, "+Inf": 5}


def test_speculation_has_no_numbers_before_it_was_measured() -> None:
    metrics = Metrics()

    def values(name: str) -> list[float]:
        return [
            sample.value
            for family in metrics.families()
            for sample in family.samples
            if sample.name == name and not sample.labels
        ]

    totals = ("steps", "speculated_steps", "drafted_tokens", "accepted_tokens", "draft_seconds", "verify_seconds")
    assert [values(f"luce_http_{name}_total") for name in totals] == [[]] * 6
    metrics.speculated(Speculation(n_steps=4))
    assert [values(f"luce_http_{name}_total") for name in totals] == [[4], [0], [0], [0], [0], [0]]
    assert values("luce_http_draft_acceptance_ratio_count") == [0], "nothing was drafted"
    metrics.speculated(Speculation(8, 6, 4, 2, 0.5, 1.5))
    assert [values(f"luce_http_{name}_total") for name in totals] == [[8], [2], [8], [6], [0.5], [1.5]]
    assert values("luce_http_draft_acceptance_ratio_sum") == [0.75]
    assert values("luce_http_tokens_per_step_count") == [2]
    assert values("luce_http_tokens_per_step_sum") == [1 + 2.5]


def test_engines_that_say_nothing_are_left_out() -> None:
    said: EngineMetrics = {"steps": 7, "time_s": 2.5, "time_submit_s": 1.5, "pages_out": 3, "page_stall_s": 0.5}
    text = told({}, said)
    seen = [line for line in text.splitlines() if line.startswith("luce_engine_")]
    assert seen == [
        'luce_engine_steps_total{engine="engine 1"} 7.0',
        'luce_engine_step_seconds_total{engine="engine 1",part="submit"} 1.5',
        'luce_engine_host_limit_bytes{engine="engine 1"} 10000.0',
        'luce_engine_disk_limit_bytes{engine="engine 1"} 0.0',
        'luce_engine_pages_out{engine="engine 1"} 3.0',
        'luce_engine_page_stall_seconds_total{engine="engine 1"} 0.5',
    ]


def test_each_server_has_numbers_of_its_own() -> None:
    first, second = Metrics(), Metrics()
    first.request_started("chat_completions")
    assert [sample.value for family in second.families() for sample in family.samples if sample.labels.get("api")] == []
