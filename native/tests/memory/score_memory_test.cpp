// Tests of pages' scores from one memory to the next: what mattered before a restart, or before a snapshot was saved,
// is what a text that outgrows the pool begins with.
#include <doctest/doctest.h>

#include <cstring>
#include <map>
#include <set>

#include "memory/manager/kv_cache_manager.h"
#include "memory/residency/page_scorer.h"
#include "memory/snapshots/snapshot_file.h"
#include "memory/tiers/disk_store.h"
#include "tests/engine/fake_model.h"
#include "tests/memory/disk_samples.h"

TEST_SUITE("memory") {

using namespace luce;
using namespace luce::memory;
using namespace luce::memory::samples;
using namespace luce::tests;

namespace {

using Indices = std::set<std::size_t>;

constexpr LaneId kLane{0};
constexpr ResidencyRules kRules{1, 2, 64};
constexpr std::int32_t kPoolPages = 12;
constexpr Position kTextPages = 30;
constexpr Position kRest = 20;  // of a text behind them

// Likes some pages by their places in the text, and the others not at all.
class LikingScorer final : public PageScorer {
public:
    bool needs_keys() const override { return true; }

    // A row of the model is its token, then its position.
    PageKeys keys_of(std::span<const std::uint8_t> rows) override {
        const auto position = rows.subspan(sizeof(Token), sizeof(Position));
        return std::make_shared<Bytes>(position.begin(), position.end());
    }

    void watch(LaneId, bool is_watched) override { is_watched_ = is_watched; }
    void read(LaneId, std::span<const Token>) override {}

    bool begin_scores(LaneId, std::span<const Token>, std::vector<PageKeys> pages) override {
        if (!is_watched_) return false;
        scores_.clear();
        for (const PageKeys& keys : pages) {
            Position position = 0;
            std::memcpy(&position, keys->data(), sizeof position);
            scores_.push_back(liked.contains(static_cast<std::size_t>(position / kPageSize)) ? 2.0F : 0.0F);
        }
        return true;
    }
    std::vector<float> end_scores(LaneId) override { return scores_; }
    void forget(LaneId) override { is_watched_ = false; }

    Indices liked = {4, 9, 13};

private:
    bool is_watched_ = false;
    std::vector<float> scores_;
};

enum class Policy : std::uint8_t { unbounded, newest, liked };

struct World {
    explicit World(bool has_state, const std::filesystem::path* folder = nullptr, Policy policy = Policy::liked)
        : model({kVocab, policy == Policy::unbounded ? 4096 : kPoolPages * kPageSize, 32, 32, false}, has_state, true) {
        model.n_logits = kVocab;  // as files have them
        if (folder != nullptr) {
            worker = std::move(IoWorker::start(std::size_t{1} << 30)).value();
            const TierLimits limits{model.traits().row_bytes, model.traits().max_state_bytes(), kVocab};
            const DiskOptions options{folder->string(), 1 << 30, kIdentity, limits, [this] { model.settle(); }};
            disk = std::move(DiskStore::open(options, *worker, clock)).value();
        }
        MemoryConfig config{kIdentity, 1 << 24, 4, kVocab, true};
        if (policy != Policy::unbounded) {
            model.may_have_holes = true;
            config.residency =
                ResidencyConfig{kRules, least_cells(kRules, 32), policy == Policy::liked ? &scorer : nullptr};
        }
        memory.emplace(model, disk.get(), config, clock);
    }
    ~World() {
        while (memory->copy_next(true) > 0) wait();
        wait();
        CHECK(memory->check_integrity() == std::nullopt);
        CHECK(!model.misuse);
    }

    void wait() {
        if (worker) REQUIRE(worker->drain(std::chrono::seconds(60)));
    }

    PrefillStart begin(const Tokens& text, const MemoryRequest& request = {}) {
        const auto fetched = memory->fetch(text, request);
        wait();
        const Result<PrefillStart> start = memory->begin(kLane, text, request, true, fetched.get());
        REQUIRE(start);
        return start.value();
    }

    // Computes the text from there to `end`, so many tokens a call; the lane goes on being there.
    void compute(const Tokens& text, Position begin, Position end, Position n_call = 32) {
        for (Position n = begin; n < end;) {
            const Position n_new = std::min({memory->n_until_cut(kLane, n), n_call, end - n});
            REQUIRE(memory->make_room(n_new));
            const bool is_last = n + n_new == end;
            const auto tokens = std::span(text).subspan(static_cast<std::size_t>(n), static_cast<std::size_t>(n_new));
            const engine::Slice slice{kLane, n, tokens, is_last ? 1 : 0};
            REQUIRE(model.decode(std::span(&slice, 1)));
            n += n_new;
            memory->advance(kLane, text, n, is_last ? model.logits(0) : std::span<const float>{});
        }
    }
    void compute(const Tokens& text, const MemoryRequest& request = {}) {
        compute(text, begin(text, request).n, static_cast<Position>(text.size()));
    }
    void end(const Tokens& text, Position n) { memory->end(kLane, 1, text, n, {}, true); }
    void run(const Tokens& text, const MemoryRequest& request = {}) {
        compute(text, request);
        end(text, static_cast<Position>(text.size()));
    }

    // The pages of its text that the lane sees.
    Indices seen(std::size_t n_pages = kTextPages) {
        Indices indices;
        for (std::size_t i = 0; i < n_pages; ++i) {
            std::array<Cell, kPageSize> cells{};
            if (model.find(kLane, static_cast<Position>(i) * kPageSize, cells)) indices.insert(i);
        }
        return indices;
    }

    SteadyClock clock;
    FakeModel model;
    LikingScorer scorer;
    std::unique_ptr<IoWorker> worker;
    std::unique_ptr<DiskStore> disk;
    std::optional<KvCacheManager> memory;
};

Tokens text_of(Position n, std::uint64_t seed = 1) {
    Random random(seed);
    return random_tokens(random, static_cast<std::size_t>(n));
}

Tokens whole_text() { return text_of(kTextPages * kPageSize + kRest); }

// `text` up to there, and then something else.
Tokens departing(const Tokens& text, Position at) {
    Tokens other(text.begin(), text.begin() + at);
    other.push_back((text[static_cast<std::size_t>(at)] + 1) % 300);
    const Tokens more = text_of(30, 2);
    other.insert(other.end(), more.begin(), more.end());
    return other;
}

bool sees_liked(World& world, std::size_t n_pages = kTextPages) {
    const Indices seen = world.seen(n_pages);
    return std::includes(seen.begin(), seen.end(), world.scorer.liked.begin(), world.scorer.liked.end());
}

// The first page, then a hole, then the newest.
bool sees_newest(World& world) {
    const Indices seen = world.seen();
    return seen.contains(0) && *std::next(seen.begin()) == kTextPages - seen.size() + 1;
}

SnapshotContents through_a_file(const SnapshotContents& contents, const TierLimits& limits) {
    Bytes bytes;
    REQUIRE(encode_snapshot(append_to(bytes), kIdentity, contents, limits));
    SpanSource source(bytes);
    const Result<SnapshotContents> read = decode_snapshot(source, kIdentity, limits);
    REQUIRE(read);
    return read.value();
}

SnapshotContents saved(World& world) {
    const Tokens text = whole_text();
    world.compute(text);
    REQUIRE(world.memory->snapshots().snapshot_lane(1, kLane, text, static_cast<Position>(text.size())));
    world.end(text, static_cast<Position>(text.size()));
    const Result<SnapshotContents> contents = world.memory->contents_of(1);
    REQUIRE(contents);
    return through_a_file(contents.value(), world.memory->limits());
}

// Of each checkpoint's file, how many scores it has.
std::vector<std::size_t> scores_on_disk(const std::filesystem::path& folder, const TierLimits& limits) {
    std::vector<std::size_t> all;
    for (const auto& path : files_below(folder)) {
        if (path.extension() != ".tail") continue;
        const Bytes bytes = content_of(path);
        SpanSource source(bytes);
        const Result<CheckpointFile> checkpoint = read_checkpoint_file(source, identity(), limits);
        REQUIRE(checkpoint);
        all.push_back(checkpoint.value().scores.size());
    }
    return all;
}

}  // namespace

TEST_CASE("after a restart a text begins with the pages that mattered before, not with the newest alone") {
    for (const bool has_state : {false, true}) {
        const TemporaryFolder folder;
        const Tokens text = whole_text();
        World(has_state, &folder.path).run(text);
        World again(has_state, &folder.path);
        const PrefillStart start = again.begin(text);
        CHECK(start.n == static_cast<Position>(text.size()));
        CHECK(start.tier == Tier::disk);
        CHECK(start.logits != nullptr);
        CHECK(sees_liked(again));
        CHECK(again.memory->status().residency->n_choices == 0);
        again.end(text, start.n);
    }
}

TEST_CASE("where nobody asks what matters, what mattered to others is left alone") {
    for (const bool has_state : {false, true}) {
        const TemporaryFolder folder;
        const Tokens text = whole_text();
        World(has_state, &folder.path).run(text);
        {
            World newest(has_state, &folder.path, Policy::newest);
            newest.begin(text);
            CHECK(sees_newest(newest));
            newest.end(text, static_cast<Position>(text.size()));
        }
        // And it is still there for those who do.
        World again(has_state, &folder.path);
        again.begin(text);
        CHECK(sees_liked(again));
        again.end(text, static_cast<Position>(text.size()));
    }
}

TEST_CASE("an answer's end has what mattered as well") {
    for (const bool has_state : {false, true}) {
        const TemporaryFolder folder;
        Tokens text = whole_text();
        {
            World world(has_state, &folder.path);
            world.compute(text);
            const auto n_prompt = static_cast<Position>(text.size());
            const Tokens answer = text_of(150, 3);
            text.insert(text.end(), answer.begin(), answer.end());
            world.scorer.liked = {14, 15};
            world.compute(text, n_prompt, static_cast<Position>(text.size()), 1);
            world.end(text, static_cast<Position>(text.size()));
        }
        text.push_back(7);
        World again(has_state, &folder.path);
        again.scorer.liked = {14, 15};
        CHECK(again.begin(text).n == static_cast<Position>(text.size()) - 1);
        CHECK(sees_liked(again, kTextPages + 2));
        again.end(text, static_cast<Position>(text.size()) - 1);
    }
}

TEST_CASE("a mark's file waits for the prompt's end, where it is known what matters") {
    const Tokens text = whole_text();
    const auto n_text = static_cast<Position>(text.size());
    for (const Position mark : {n_text - 1, n_text - 6, n_text - 300}) {
        const TemporaryFolder folder;
        MemoryRequest request;
        request.marks = {100, n_text - 700, mark};
        World(true, &folder.path).run(text, request);
        const Tokens next = departing(text, mark);
        World again(true, &folder.path);
        CHECK(again.begin(next).n == mark);
        CHECK(sees_liked(again, static_cast<std::size_t>(mark / kPageSize)));
        again.end(next, mark);
    }
}

TEST_CASE("a mark's file is written even if the prompt's end is never reached") {
    const Tokens text = whole_text();
    const Position mark = static_cast<Position>(text.size()) - 300;
    const TemporaryFolder folder;
    {
        World world(true, &folder.path);
        MemoryRequest request;
        request.marks = {mark};
        CHECK(world.begin(text, request).n == 0);
        world.compute(text, 0, mark + 10);
        world.end(text, mark + 10);
    }
    World again(true, &folder.path);
    const Tokens next = departing(text, mark);
    CHECK(again.begin(next).n == mark);
    again.end(next, mark);
}

TEST_CASE("a text that needs no checkpoint to begin learns what matters from one further back") {
    const TemporaryFolder folder;
    const Tokens text = whole_text();
    {
        World world(false, &folder.path);
        world.run(Tokens(text.begin(), text.begin() + 25 * kPageSize + 7));
        world.run(text);
    }
    const Position at = kTextPages * kPageSize + 5;  // before the checkpoint at the end
    const Tokens next = departing(text, at);
    World again(false, &folder.path);
    CHECK(again.begin(next).n >= kTextPages * kPageSize);
    CHECK(sees_liked(again));
    again.end(next, kTextPages * kPageSize);
}

TEST_CASE("a snapshot's file has what mattered, for whoever loads it") {
    for (const bool has_state : {false, true}) {
        const Tokens text = whole_text();
        World first(has_state);
        const SnapshotContents contents = saved(first);
        REQUIRE(contents.scores.size() == contents.pages.size());
        CHECK(contents.scores[4] == 2.0F);
        CHECK(contents.scores[5] == 0.0F);
        MemoryRequest request;
        request.restore_slot = 2;
        for (const Policy policy : {Policy::liked, Policy::newest}) {
            const TemporaryFolder folder;
            {
                World other(has_state, &folder.path, policy);
                REQUIRE(other.memory->adopt(2, contents));
                CHECK(other.begin(text, request).restored == static_cast<Position>(text.size()));
                CHECK((policy == Policy::liked ? sees_liked(other) : sees_newest(other)));
                other.end(text, static_cast<Position>(text.size()));
            }
            // What was loaded is found on disk with what mattered.
            if (policy == Policy::newest) continue;
            World again(has_state, &folder.path);
            again.begin(text);
            CHECK(sees_liked(again));
            again.end(text, static_cast<Position>(text.size()));
        }
    }
}

TEST_CASE("scores of its own are newer than those of a file") {
    World world(true);
    const SnapshotContents old = saved(world);
    world.scorer.liked = {6, 17};
    const Tokens text = whole_text();
    const Tokens next = departing(text, static_cast<Position>(text.size()) - 1);
    world.run(next);
    REQUIRE(world.memory->adopt(2, old));
    MemoryRequest request;
    request.restore_slot = 2;
    REQUIRE(world.memory->leave_device());
    world.begin(text, request);
    CHECK(sees_liked(world));
    world.end(text, static_cast<Position>(text.size()));
}

TEST_CASE("a thin snapshot has the scores of its own pages") {
    World world(false);
    const Tokens text = whole_text();
    world.run(text);
    REQUIRE(world.memory->snapshots().thin_ended(3, 1, 9 * kPageSize + 3, 20 * kPageSize));
    const Result<SnapshotContents> contents = world.memory->contents_of(3);
    REQUIRE(contents);
    const SnapshotContents read = through_a_file(contents.value(), world.memory->limits());
    REQUIRE(read.scores.size() == 11);
    CHECK(read.scores[0] == 2.0F);
    CHECK(read.scores[1] == 0.0F);
    CHECK(read.scores[4] == 2.0F);
}

TEST_CASE("where all of a text is seen no score is written") {
    for (const Policy policy : {Policy::unbounded, Policy::newest, Policy::liked}) {
        const TemporaryFolder folder;
        Tokens text = whole_text();
        if (policy == Policy::liked) text.resize(300);  // it fits
        World world(true, &folder.path, policy);
        world.compute(text);
        REQUIRE(world.memory->snapshots().snapshot_lane(1, kLane, text, static_cast<Position>(text.size())));
        world.end(text, static_cast<Position>(text.size()));
        CHECK(world.memory->contents_of(1).value().scores.empty());
        world.wait();
        const std::vector<std::size_t> scores = scores_on_disk(folder.path, world.memory->limits());
        CHECK(!scores.empty());
        CHECK(std::all_of(scores.begin(), scores.end(), [](std::size_t n) { return n == 0; }));
    }
}

}  // TEST_SUITE("memory")
