// Where texts depart: sessions of one program share a head that no mark ends. The second session computes through the
// place where it leaves the first, and the third begins there: whatever the memory does meanwhile, and after a restart.
#include <doctest/doctest.h>

#include <algorithm>
#include <future>
#include <memory>
#include <optional>

#include "memory/manager/kv_cache_manager.h"
#include "memory/tiers/disk_store.h"
#include "tests/engine/fake_model.h"
#include "tests/memory/disk_samples.h"
#include "tests/support/volume.h"

TEST_SUITE("memory") {

using namespace luce;
using namespace luce::memory;
using namespace luce::memory::samples;
using namespace luce::tests;

namespace {

constexpr LaneId kLane{0};
constexpr std::int32_t kPool = 32768;
constexpr std::int32_t kSlice = 512;
constexpr Position kHead = 1000;
constexpr Position kSession = 300;  // behind the head

Tokens session(Position n_head, int number, Position n = kSession) {
    Tokens text;
    for (Position i = 0; i < n_head; ++i) text.push_back(static_cast<Token>(i * 7 % 97));
    for (Position i = 0; i < n; ++i) text.push_back(static_cast<Token>(100 + (i * 5 + number * 31 + i / 9) % 150));
    return text;
}

// A model over a memory that may have a disk.
class Machine {
public:
    explicit Machine(std::size_t host_budget = std::size_t{1} << 24, const std::filesystem::path& folder = {},
                     bool has_state = true, std::size_t most_queued_bytes = std::size_t{1} << 20)
        : model_({kVocab, kPool, kSlice, kSlice, false}, has_state) {
        model_.n_logits = kVocab;
        if (!folder.empty()) {
            worker_ = std::move(IoWorker::start(most_queued_bytes)).value();
            const TierLimits limits{model_.traits().row_bytes, model_.traits().max_state_bytes(), kVocab};
            auto opened = DiskStore::open(
                {folder.string(), std::uint64_t{1} << 24, kIdentity, limits, [this] { model_.settle(); }}, *worker_,
                clock_);
            REQUIRE(opened);
            disk_ = std::move(opened).value();
        }
        memory_.emplace(model_, disk_.get(), MemoryConfig{kIdentity, host_budget, 4, kVocab, true}, clock_);
    }

    // How much of the text was there already.
    Position run(const Tokens& text, std::vector<Position> marks = {}, std::vector<SnapshotPoint> snapshots = {},
                 std::optional<Position> turn = std::nullopt) {
        MemoryRequest request;
        request.turn = turn;
        request.marks = std::move(marks);
        request.snapshots = std::move(snapshots);
        const auto fetch = memory_->fetch(text, request);
        if (fetch) drain();
        const Result<PrefillStart> begun = memory_->begin(kLane, text, request, true, fetch.get());
        REQUIRE(begun);
        Position n = begun.value().n;
        n_cuts = 0;
        while (n < static_cast<Position>(text.size())) {
            const Position n_left = static_cast<Position>(text.size()) - n;
            const Position n_most = std::min(n_left, kSlice);
            const Position n_now = std::min(n_most, memory_->n_until_cut(kLane, n));
            n_cuts += n_now < n_most ? 1 : 0;
            REQUIRE(memory_->make_room(n_now));
            const auto slice = std::span(text).subspan(static_cast<std::size_t>(n), static_cast<std::size_t>(n_now));
            const engine::Slice call{kLane, n, slice, true};
            REQUIRE(model_.decode(std::span(&call, 1)));
            n += n_now;
            memory_->advance(kLane, std::span(text).first(static_cast<std::size_t>(n)), n, {});
        }
        memory_->end(kLane, ++n_requests_, text, n, {}, true);
        REQUIRE(!model_.misuse);
        REQUIRE(memory_->check_integrity() == std::nullopt);
        clock_.advance(1);
        return begun.value().n;
    }

    // All that the disk is owed is on it.
    void write_all() {
        do drain();
        while (memory_->copy_owed() > 0);
    }

    // Nothing is written until the promise is kept.
    void hold_disk(std::promise<void>& release) {
        REQUIRE(worker_->post(
            [held = release.get_future().share()]() -> IoWorker::Completion {
                held.wait();
                return {};
            },
            0));
    }

    std::int64_t n_checkpoints() const { return memory_->status().cache.n_host_checkpoints; }

    int n_cuts = 0;  // of the last run: slices that a checkpoint made shorter

private:
    void drain() {
        REQUIRE(worker_->drain(std::chrono::seconds(60)));
        worker_->run_completions();
    }

    ManualClock clock_;
    FakeModel model_;
    std::unique_ptr<IoWorker> worker_;
    std::unique_ptr<DiskStore> disk_;
    std::optional<KvCacheManager> memory_;
    std::uint64_t n_requests_ = 0;
};

}  // namespace

TEST_CASE("checkpoints that come faster than the disk takes them are on it in the end") {
    const TemporaryFolder folder;
    const Tokens text = session(kHead, 1);
    {
        Machine machine(std::size_t{1} << 24, folder.path, true, 1);  // one file at a time
        std::promise<void> release;
        machine.hold_disk(release);
        CHECK(machine.run(text, {200, 500, 800, 1100}) == 0);
        release.set_value();
        machine.write_all();
    }
    Machine machine(std::size_t{1} << 24, folder.path);
    CHECK(machine.run(session(kHead, 1, kSession + 40)) == kHead + kSession);
}

TEST_CASE("the third of texts that depart at one place begins there") {
    // Within a page, at a page's end, right behind one, and within the first page.
    for (const Position n_head : {kHead, 15 * kPageSize, 15 * kPageSize + 1, Position{40}}) {
        CAPTURE(n_head);
        Machine machine;
        CHECK(machine.run(session(n_head, 1)) == 0);
        CHECK(machine.run(session(n_head, 2)) == 0);
        CHECK(machine.run(session(n_head, 3)) == n_head);
        CHECK(machine.run(session(n_head, 4)) == n_head);
        CHECK(machine.n_cuts == 0);
    }
}

TEST_CASE("a text that departs from two of them elsewhere begins at the last place before, and makes one of its own") {
    Machine machine;
    for (int number = 1; number <= 3; ++number) machine.run(session(kHead, number));
    Tokens earlier = session(500, 4);
    CHECK(machine.run(earlier) == 0);
    CHECK(machine.run(session(500, 5)) == 500);
    CHECK(machine.run(session(kHead, 6)) == kHead);
    Tokens later = session(kHead, 1, 200);
    const Tokens rest = session(0, 7);
    later.insert(later.end(), rest.begin(), rest.end());
    CHECK(machine.run(later) == kHead);
    std::copy_n(session(0, 8).begin(), rest.size(), later.end() - static_cast<std::ptrdiff_t>(rest.size()));
    CHECK(machine.run(later) == kHead + 200);
}

TEST_CASE("what departs in its first tokens, or right behind a checkpoint, cuts no slice for it") {
    Machine machine;
    machine.run(session(20, 1));
    machine.run(session(20, 2));
    CHECK(machine.n_cuts == 0);
    machine.run(session(kHead, 3), {kHead - 5});
    CHECK(machine.run(session(kHead, 4), {kHead - 5}) == kHead - 5);
    CHECK(machine.n_cuts == 0);
}

TEST_CASE("a mark shortly before the departure stands for it") {
    Machine machine;
    machine.run(session(kHead, 1));
    machine.run(session(kHead, 2), {kHead - 5});
    CHECK(machine.n_cuts == 1);
    CHECK(machine.run(session(kHead, 3)) == kHead - 5);
}

TEST_CASE("a message that is edited behind an answer that was read anew begins at its mark") {
    Machine machine;
    Tokens text = session(kHead, 1);
    machine.run(text);
    const auto n_known = static_cast<Position>(text.size());
    const Tokens answer = session(0, 2, 20);
    text.insert(text.end(), answer.begin(), answer.end());
    const auto begun = static_cast<Position>(text.size());
    const auto asked = [&](int number) {
        Tokens longer = text;
        const Tokens question = session(0, number);
        longer.insert(longer.end(), question.begin(), question.end());
        return longer;
    };
    CHECK(machine.run(asked(3), {n_known + 2, begun}) == n_known);
    CHECK(machine.n_cuts == 1);  // what stands right behind the known text is worth none
    CHECK(machine.run(asked(4), {n_known + 2, begun}) == begun);
}

TEST_CASE("a text that goes on from its end departs from nothing") {
    Machine machine;
    Tokens text = session(kHead, 1);
    machine.run(text);
    const std::int64_t n_before = machine.n_checkpoints();
    const Tokens more = session(0, 2);
    text.insert(text.end(), more.begin(), more.end());
    CHECK(machine.run(text) == kHead + kSession);
    CHECK(machine.n_cuts == 0);
    CHECK(machine.n_checkpoints() == n_before + 1);
}

TEST_CASE("long conversations neither thin nor evict the place where two have departed") {
    // Room for some of the texts' pages and of their checkpoints.
    for (const std::size_t host_budget : {std::size_t{1} << 16, std::size_t{1} << 18}) {
        CAPTURE(host_budget);
        Machine machine(host_budget);
        for (int number = 1; number <= 2; ++number) machine.run(session(kHead, number));
        Tokens text = session(kHead, 2);
        for (int turn = 0; turn < (is_full() ? 60 : 40); ++turn) {
            const Tokens more = session(0, 10 + turn, 80);
            text.insert(text.end(), more.begin(), more.end());
            const auto n = static_cast<Position>(text.size());
            machine.run(text, {kHead + 100, n - 60, n - 40, n - 10});
        }
        CHECK(machine.run(session(kHead, 3)) == kHead);
    }
}

TEST_CASE("a chain of calls neither thins nor evicts the end of the user's last message") {
    // Once the user writes again, the template leaves what the model has reasoned out of the chain.
    for (const std::size_t host_budget : {std::size_t{1} << 16, std::size_t{1} << 18}) {
        CAPTURE(host_budget);
        Machine machine(host_budget);
        Position turn = kHead;
        Tokens text = session(kHead, 1, 3);
        for (int user = 0; user < 3; ++user) {
            CAPTURE(user);
            const Tokens begun = text;
            for (int call = 0; call < (is_full() ? 24 : 16); ++call) {
                const auto n = static_cast<Position>(text.size());
                machine.run(text, {turn, n - 60, n - 40, n - 10}, {}, turn);
                const Tokens more = session(0, 10 + 30 * user + call, 90);
                text.insert(text.end(), more.begin(), more.end());
            }
            text.assign(begun.begin(), begun.begin() + turn + 1);
            const Tokens stripped = session(0, 300 + user, 700);
            text.insert(text.end(), stripped.begin(), stripped.end());
            const Position last = turn;
            turn = static_cast<Position>(text.size()) - 3;
            CHECK(machine.run(text, {last, turn}, {}, turn) == last);
        }
    }
}

TEST_CASE("of a text's turns the last is kept, and a checkpoint shortly before it stands for it") {
    Machine machine;
    Tokens text = session(kHead, 1);
    machine.run(text, {}, {}, kHead);
    const std::int64_t n_before = machine.n_checkpoints();
    const Tokens more = session(0, 2, 20);
    text.insert(text.end(), more.begin(), more.end());
    machine.run(text, {}, {}, static_cast<Position>(text.size()) - 4);
    CHECK(machine.n_cuts == 0);
    CHECK(machine.n_checkpoints() == n_before + 1);
    // Where nobody says that a message ends, or too late, nothing is planned.
    machine.run(session(kHead, 4), {}, {}, 0);
    machine.run(session(kHead, 5), {}, {}, 100000);
}

TEST_CASE("after a restart the third text begins where two have departed, and the second near there") {
    const TemporaryFolder folder;
    {
        Machine machine(std::size_t{1} << 24, folder.path);
        machine.run(session(kHead, 1));
        machine.write_all();
    }
    {
        Machine machine(std::size_t{1} << 24, folder.path);
        CHECK(machine.run(session(kHead, 2)) == 0);
        machine.write_all();
    }
    {
        Machine machine(std::size_t{1} << 24, folder.path);
        // Which rows of a page agree nobody knows before it is read: up to the last whole one that does.
        CHECK(machine.run(session(kHead, 3)) == kHead / kPageSize * kPageSize);
        CHECK(machine.run(session(kHead, 4)) >= kHead / kPageSize * kPageSize);
        CHECK(machine.run(session(kHead, 5)) == kHead);
        machine.write_all();
    }
    Machine machine(std::size_t{1} << 24, folder.path);
    CHECK(machine.run(session(kHead, 6)) == kHead);
}

TEST_CASE("after a restart a text that is to fill slots again begins where it can all the same") {
    const TemporaryFolder folder;
    const std::vector<SnapshotPoint> slots = {{700, 0}, {kHead + kSession - 5, 1}};
    const auto last = [&] {
        Machine machine(std::size_t{1} << 24, folder.path);
        const Position n = machine.run(session(kHead, 3), {700, kHead - 5}, slots);
        machine.write_all();
        return n;
    };
    {
        Machine machine(std::size_t{1} << 24, folder.path);
        machine.run(session(kHead, 1), {300, kHead - 5});
        machine.write_all();
    }
    CHECK(last() == 300);  // nothing stands where a slot is to be: from the last place before
    CHECK(last() == kHead + kSession - 5);
    Machine machine(std::size_t{1} << 24, folder.path);
    CHECK(machine.run(session(kHead, 4), {}, {slots.begin(), slots.begin() + 1}) >= kHead - 5);
}

TEST_CASE("a mark within a page is where a text on pure attention goes on after a restart, and cuts no slice") {
    const TemporaryFolder folder;
    {
        Machine machine(std::size_t{1} << 24, folder.path, false);
        CHECK(machine.run(session(kHead, 1), {kHead - 3, kHead + 100}) == 0);
        CHECK(machine.n_cuts == 0);
        machine.write_all();
    }
    Machine machine(std::size_t{1} << 24, folder.path, false);
    CHECK(machine.run(session(kHead, 2)) == kHead - 3);
    CHECK(machine.run(session(kHead, 3)) == kHead);
}

}  // TEST_SUITE("memory")
