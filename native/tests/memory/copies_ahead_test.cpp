// When pages are copied out of the pool: when nobody computes, or when room gets short, or for a disk; never on the
// time of a step that has no need of it. Counted in pages and states, on a model of arithmetic.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <vector>

#include "engine/engine.h"
#include "memory/tiers/disk_store.h"
#include "tests/engine/fake_model.h"
#include "tests/engine/fake_sampler.h"
#include "tests/memory/disk_samples.h"

TEST_SUITE("memory") {

using namespace luce;
using namespace luce::engine;
using namespace luce::memory;
using namespace luce::tests;

namespace {

constexpr double kStep_s = 0.01;

struct World {
    explicit World(std::int32_t n_pool, bool has_state = false, const std::filesystem::path* folder = nullptr,
                   std::size_t host_budget = 1 << 24)
        : model({kVocab, n_pool, 64, 64, false}, has_state), samplers(model) {
        if (folder != nullptr) {
            worker = std::move(IoWorker::start(std::size_t{1} << 30)).value();
            const TierLimits limits{model.traits().row_bytes, model.traits().max_state_bytes(), kVocab};
            const DiskOptions options{folder->string(), 1 << 30, samples::kIdentity, limits,
                                      [this] { model.settle(); }};
            disk = std::move(DiskStore::open(options, *worker, clock)).value();
        }
        const MemoryConfig config{samples::kIdentity, host_budget, 4, kVocab, true};
        memory.emplace(model, disk.get(), config, clock);
        engine.emplace(model, samplers, *memory, clock, EngineConfig{std::min(n_pool, 4096), 2, 8});
        model.on_decode = [this](std::int32_t) { clock.advance(kStep_s); };
        model.on_read = [this](std::size_t n_rows) {
            clock.advance(read_s);
            n_pages_read += n_rows == kPageSize ? 1 : 0;
        };
    }
    ~World() {
        CHECK(memory->check_integrity() == std::nullopt);
        CHECK(!model.misuse);
    }

    // Pages of a text of its own.
    void submit(int n_pages, int n_generate) {
        Request request;
        request.key = static_cast<RequestKey>(++n_requests);
        for (int i = 0; i < n_pages * kPageSize; ++i) {
            request.prompt.push_back(static_cast<Token>((i * 7 + n_requests * 31) % 900));
        }
        request.n_generate = n_generate;
        REQUIRE(engine->submit(request));
    }

    // Until the lanes are done; the most pages that were copied in a step.
    std::int64_t run() {
        std::int64_t n_most = 0;
        while (engine->wants_step()) {
            const std::int64_t n_before = n_pages_read;
            engine->step();
            n_most = std::max(n_most, n_pages_read - n_before);
        }
        return n_most;
    }

    void rest() {
        while (engine->has_idle_work()) engine->use_idle_time();
    }

    std::int64_t n_host() const { return memory->status().cache.n_host; }
    std::int64_t n_resident() const { return memory->status().cache.n_resident; }

    ManualClock clock;
    FakeModel model;
    FakeSamplers samplers;
    std::unique_ptr<IoWorker> worker;
    std::unique_ptr<DiskStore> disk;
    std::optional<KvCacheManager> memory;
    std::optional<Engine> engine;
    double read_s = 0;  // that copying a page takes of the engine's time
    std::int64_t n_pages_read = 0;
    int n_requests = 0;
};

}  // namespace

TEST_CASE("with room in the pool nothing is copied while lanes run, and everything when they have ended") {
    for (const bool has_state : {false, true}) {
        CAPTURE(has_state);
        World w(8192, has_state);
        w.submit(10, 200);
        w.submit(12, 200);
        while (w.engine->status().n_prompt_tokens < 22 * kPageSize) w.engine->step();
        const int n_saved = w.model.n_saved;                                   // of the prompts' ends
        while (w.engine->status().n_generated_tokens < 300) w.engine->step();  // neither has ended
        CHECK(w.n_pages_read == 0);
        CHECK(w.model.n_saved == n_saved);
        w.run();
        CHECK(w.n_pages_read == 0);
        CHECK(w.n_host() == 0);
        w.rest();
        CHECK(w.n_pages_read == w.n_resident());
        CHECK(w.n_host() == w.n_resident());
        CHECK(w.n_host() >= 10 + 12 + 2 * (200 / kPageSize));
        CHECK_FALSE(w.engine->has_idle_work());
    }
}

TEST_CASE("a request that comes while pages are copied is computed in the next step, which copies nothing") {
    World w(8192);
    w.submit(30, 1);
    w.run();
    w.model.n_under_way = std::size_t{1} << 30;
    w.engine->use_idle_time();
    CHECK(w.n_pages_read == 0);  // nothing is put behind what is under way
    CHECK(w.engine->has_idle_work());
    w.submit(2, 4);
    CHECK_FALSE(w.engine->has_idle_work());
    const int n_calls = w.model.n_calls;
    w.engine->step();
    CHECK(w.model.n_calls == n_calls + 1);
    CHECK(w.n_pages_read == 0);
    w.model.n_under_way = 0;
    w.run();
    w.rest();
    CHECK(w.n_host() == w.n_resident());
}

TEST_CASE("when room gets short idle texts are copied beside the lanes, the first to leave first") {
    World w(64 * kPageSize);
    for (int i = 0; i < 3; ++i) {
        w.submit(18, 1);  // 54 of 64 pages, and then
        w.run();
        w.clock.advance(1000);
    }
    CHECK(w.n_pages_read == 0);
    w.submit(1, 600);  // the pool is to be full
    while (w.n_resident() < 61) w.engine->step();
    const std::uint64_t n_evicted = w.memory->status().cache.n_evicted;
    CHECK(n_evicted == 0);
    CHECK(w.n_pages_read > 0);
    CHECK(w.n_host() == w.n_pages_read);
    // All that leaves for the answer's sake has been copied: making room reads nothing.
    const std::int64_t n_read = w.n_pages_read;
    REQUIRE(w.memory->make_room(7 * kPageSize));
    CHECK(w.memory->status().cache.n_evicted > n_evicted);
    CHECK(w.n_pages_read == n_read);
    CHECK(w.memory->status().cache.n_dropped == 0);
    w.run();
}

TEST_CASE("copies beside running lanes take a hundredth of their time") {
    const samples::TemporaryFolder folder;
    World w(8192, false, &folder.path);
    w.read_s = 0.5 * kStep_s;
    w.submit(20, 200);
    std::int64_t n_steps = 0;
    while (w.engine->status().n_generated_tokens < 199) {
        w.engine->step();
        ++n_steps;
    }
    CHECK(w.n_pages_read >= n_steps / 60);
    CHECK(w.n_pages_read <= 1 + n_steps / 50);
    CHECK(w.run() <= 1);
}

TEST_CASE("the disk gets the pages of running texts from their beginnings on, and the rest before the end") {
    const samples::TemporaryFolder folder;
    {
        World w(8192, false, &folder.path);
        w.submit(20, 100);
        while (w.engine->status().n_generated_tokens < 90) w.engine->step();
        CHECK(w.n_pages_read >= 21);  // what one step fills the next one copies
        w.run();
        w.engine->copy_owed();
        CHECK(w.n_pages_read == w.n_resident());
        REQUIRE(w.worker->drain(std::chrono::seconds(60)));
        CHECK(w.disk->stats().n_written_files >= 21);
    }
    World w(8192, false, &folder.path);
    w.submit(20, 1);
    w.engine->step();
    REQUIRE(w.worker->drain(std::chrono::seconds(60)));
    w.worker->run_completions();
    w.run();
    CHECK(w.engine->status().n_reused_tokens >= 19 * kPageSize);
}

TEST_CASE("a full host takes no copies ahead, and that is not work that is left") {
    const std::size_t n_page_bytes = kPageSize * FakeModel({kVocab, 64, 64, 64, false}).traits().row_bytes;
    World w(8192, false, nullptr, 5 * n_page_bytes + 500);  // logits, too
    w.submit(20, 1);
    w.run();
    w.rest();
    CHECK(w.n_host() == 5);
    CHECK(w.memory->status().cache.n_dropped == 0);
}

TEST_CASE("a page that cannot be read is not tried again and again, and does not hold up the others") {
    World w(8192);
    w.submit(4, 1);
    w.run();
    w.model.cannot_read = true;
    w.engine->use_idle_time();
    w.model.cannot_read = false;
    w.rest();
    CHECK(w.n_host() == w.n_resident() - 1);
    REQUIRE(w.memory->leave_device());
    CHECK(w.n_host() == 4);
}

}  // TEST_SUITE("memory")
