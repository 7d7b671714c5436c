// Tests of eviction: what the curves learn, who owns which pages, and that the queues give what a plain model gives.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>

#include "memory/eviction/eviction_arrival.h"
#include "memory/manager/kv_cache_manager.h"
#include "memory/pages/prefix_tree.h"
#include "tests/engine/fake_model.h"
#include "tests/support/volume.h"

TEST_SUITE("memory") {

using namespace luce;
using namespace luce::memory;
using namespace luce::tests;

namespace {

void learn(ReuseModel& curves, ReuseInterval interval, double gap_s, int n) {
    for (int i = 0; i < n; ++i) {
        for (std::size_t b = 0; b <= ReuseModel::bucket_of(gap_s); ++b) curves.count_reached(interval, b);
        curves.count_returned(interval, ReuseModel::bucket_of(gap_s));
    }
    curves.relearn();
}

constexpr auto kLane = static_cast<LaneId>(0);

// KvCacheManager over the model of arithmetic, one request after the other.
struct Texts {
    explicit Texts(std::int32_t n_pool, bool has_state = false, std::size_t host_budget = 0,
                   EvictionKind kind = EvictionKind::learned)
        : device({kVocab, n_pool, 4096, 4096, false}, has_state),
          memory(device, nullptr, {"test", host_budget, 4, true}, clock, kind) {}

    // How much of the text was there already.
    Position run(const Tokens& text) {
        Result<PrefillStart> start = memory.begin(kLane, text, {}, true);
        REQUIRE(start);
        Position n = start.value().n;
        while (n < static_cast<Position>(text.size())) {
            const Position n_left = static_cast<Position>(text.size()) - n;
            const Position n_now = std::min(n_left, memory.n_until_cut(kLane, n));
            REQUIRE(memory.make_room(n_now));
            const auto slice = std::span(text).subspan(static_cast<std::size_t>(n), static_cast<std::size_t>(n_now));
            const std::vector<engine::Slice> call = {{kLane, n, slice, true}};
            REQUIRE(device.decode(call));
            n += n_now;
            memory.advance(kLane, text, n, {});
        }
        memory.end(kLane, ++n_requests, text, n, {}, true);
        const auto wrong = memory.check_integrity();
        INFO(wrong.value_or(""));
        CHECK(!wrong);
        return start.value().n;
    }

    FakeModel device;
    ManualClock clock;
    KvCacheManager memory;
    std::uint64_t n_requests = 0;
};

Tokens random_text(std::mt19937& random, int n) {
    Tokens text;
    for (int i = 0; i < n; ++i) text.push_back(static_cast<Token>(random() % kVocab));
    return text;
}

void grow(Tokens& text, std::mt19937& random, int n) {
    const Tokens more = random_text(random, n);
    text.insert(text.end(), more.begin(), more.end());
}

}  // namespace

TEST_CASE("a curve learns when conversations come back") {
    ReuseModel curves;
    learn(curves, ReuseInterval::up_to_10s, 8, 200);
    // Worth more the nearer its time, and little once that has passed.
    CHECK(curves.priority(ReuseInterval::up_to_10s, 6) > 2 * curves.priority(ReuseInterval::up_to_10s, 1));
    CHECK(curves.priority(ReuseInterval::up_to_10s, 40) < curves.priority(ReuseInterval::up_to_10s, 6) / 10);
}

TEST_CASE("each interval has its own curve") {
    ReuseModel curves;
    learn(curves, ReuseInterval::up_to_5s, 4, 2000);
    learn(curves, ReuseInterval::longer, 300, 2000);
    CHECK(curves.priority(ReuseInterval::up_to_5s, 2) > 10 * curves.priority(ReuseInterval::longer, 2));
    CHECK(curves.priority(ReuseInterval::longer, 200) > 2 * curves.priority(ReuseInterval::longer, 2));
    CHECK(curves.old_age_s() > 300);
    CHECK(curves.old_age_s() < 600);
}

TEST_CASE("an age of any size is in some bucket") {
    for (const double age : {-1.0, 0.0, 0.5, 1.0, 3.0, 1e4, 1e9, std::numeric_limits<double>::infinity()}) {
        CHECK(ReuseModel::bucket_of(age) < ReuseModel::kBuckets);
        CHECK(ReuseModel{}.priority(ReuseInterval::unknown, age) >= 0);
    }
    CHECK(ReuseModel::bucket_of(std::numeric_limits<double>::quiet_NaN()) == 0);
    CHECK(ReuseModel::interval_of(-10) == ReuseInterval::up_to_5s);
    CHECK(ReuseModel::interval_of(30) == ReuseInterval::longer);
}

TEST_CASE("whoever goes on where a text ended is the same conversation, and nobody's record stays for ever") {
    ManualClock clock;
    EvictionPolicy policy(clock, EvictionKind::learned);
    PrefixTree tree("test");
    std::vector<Page*> path;
    Page* last = &tree.root();
    for (Token i = 0; i < 20; ++i) {
        std::array<Token, kPageSize> tokens{};
        tokens.fill(i);
        last = &tree.add(*last, tokens);
        path.push_back(last);
    }
    ConversationRef first = arrive(policy, {}, 20);
    policy.on_run(*first);
    policy.on_end(*first, 20);
    for (Page* page : path) page->owner = first;
    path.back()->ended = first;

    clock.advance(7);
    SUBCASE("goes on") {
        const ConversationRef next = arrive(policy, path, 25);
        CHECK(next.get() == first.get());
        CHECK(next->interval == ReuseInterval::up_to_10s);
        CHECK_FALSE(path.back()->ended);
    }
    SUBCASE("leaves near the end: its interval goes along, what it left is departed") {
        const ConversationRef next = arrive(policy, std::span(path).first(19), 25);
        CHECK(next.get() != first.get());
        CHECK(next->interval == ReuseInterval::up_to_10s);
        CHECK(first->interval == ReuseInterval::departed);
    }
    SUBCASE("leaves at its prefix") {
        const ConversationRef next = arrive(policy, std::span(path).first(3), 25);
        CHECK(next->interval == ReuseInterval::unknown);
        CHECK(first->interval == ReuseInterval::departed);
    }
    SUBCASE("a prompt that is its prefix and no more leaves nothing") {
        const ConversationRef next = arrive(policy, std::span(path).first(3), 3);
        CHECK(next.get() != first.get());
        CHECK(first->interval == ReuseInterval::unknown);
    }
    first.reset();
    CHECK(policy.n_conversations() >= 1);
    for (Page* page : path) {
        page->owner.reset();
        page->ended.reset();
    }
    CHECK(policy.n_conversations() == 0);
}

TEST_CASE("what is remembered of pages that are gone is forgotten with all else") {
    constexpr int kPool = 8;  // in pages
    std::mt19937 random(1);
    Texts texts(kPool * kPageSize);
    for (int i = 0; i < 300; ++i) {
        texts.run(random_text(random, 3 * kPageSize));
        texts.clock.advance(1);
    }
    CHECK(texts.memory.status().n_tree_pages > 10 * kPool);
    texts.memory.clear(false);
    CHECK(texts.memory.status().n_tree_pages == 0);
    CHECK(texts.memory.n_conversations() == 0);
}

TEST_CASE("the queue gives what a plain search gives") {
    std::mt19937 random(7);
    ManualClock clock;
    for (const EvictionKind kind : {EvictionKind::learned, EvictionKind::lru}) {
        EvictionPolicy policy(clock, kind);
        PageQueue queue(policy, QueueKind::host);
        std::vector<ConversationRef> conversations;
        for (int i = 0; i < 40; ++i) {
            clock.advance(1 + static_cast<double>(random() % 50));
            conversations.push_back(policy.begin());
        }
        std::vector<Page> pages(200);
        std::map<Page*, Conversation*> model;
        for (int step = 0; step < 5000; ++step) {
            // Longer than a choice is kept for.
            clock.advance(1);
            Page& page = pages[random() % pages.size()];
            Conversation* of = random() % 3 == 0 ? nullptr : conversations[random() % conversations.size()].get();
            if (random() % 10 == 0) policy.on_return(*conversations[random() % conversations.size()]);
            queue.set(page, of);
            model.erase(&page);
            if (of != nullptr) model[&page] = of;
            REQUIRE(queue.size() == model.size());
            if (model.empty()) continue;
            const double now_s = clock.now_s();
            const auto priority = [&](const auto& entry) { return policy.priority(*entry.second, now_s); };
            const auto least = std::min_element(
                model.begin(), model.end(), [&](const auto& a, const auto& b) { return priority(a) < priority(b); });
            Page& lowest = queue.lowest(now_s);
            REQUIRE(model.contains(&lowest));
            CHECK(policy.priority(*model[&lowest], now_s) == priority(*least));
        }
        CHECK(queue.all().size() == model.size());
        for (Page& page : pages) queue.set(page, nullptr);
        CHECK(queue.empty());
    }
}

TEST_CASE("the page further up is the one that a walk finds") {
    std::mt19937 random(7);
    PrefixTree tree("test");
    std::vector<Page*> pages = {&tree.root()};
    for (Token i = 0; i < 2000; ++i) {
        std::array<Token, kPageSize> tokens{};
        tokens.fill(i);
        // Mostly one long text, from which others depart.
        Page& parent = random() % 8 == 0 ? *pages[random() % pages.size()] : *pages.back();
        pages.push_back(&tree.add(parent, tokens));
    }
    for (int i = 0; i < 2000; ++i) {
        Page& page = *pages[random() % pages.size()];
        const auto n_up = static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(page.index + 2));
        Page* walked = &page;
        for (std::int32_t n = 0; n < n_up; ++n) walked = walked->parent;
        REQUIRE(&ancestor(page, page.index - n_up) == walked);
    }
    std::int32_t n_deepest = 0;
    for (const Page* page : pages) n_deepest = std::max(n_deepest, page->index);
    CHECK(n_deepest > 100);
}

TEST_CASE("which checkpoint stands before which is what a walk finds, in whatever order they come and go") {
    std::mt19937 random(5);
    for (int round = 0; round < 20; ++round) {
        PrefixTree tree("test");
        std::vector<Page*> pages = {&tree.root()};
        for (Token i = 0; i < 60; ++i) {
            std::array<Token, kPageSize> tokens{};
            tokens.fill(i);
            Page& parent = *pages[pages.size() - 1 - random() % std::min<std::size_t>(pages.size(), 4)];
            pages.push_back(&tree.add(parent, tokens));
            ++parent.n_kept;
        }
        CheckpointOrder order;
        std::vector<Checkpoint*> checkpoints;
        const Page* at = pages[0];  // where a text has come to
        const auto expected = [](const Checkpoint& checkpoint) {
            const Checkpoint* found = nullptr;
            for (const Page* page = checkpoint.page; page != nullptr && found == nullptr; page = page->parent) {
                for (const Checkpoint& other : page->checkpoints) {
                    if (page == checkpoint.page && other.rest.size() >= checkpoint.rest.size()) continue;
                    if (found == nullptr || other.rest.size() > found->rest.size()) found = &other;
                }
            }
            return found;
        };
        for (int step = 0; step < 300; ++step) {
            if (checkpoints.size() < 25 && random() % 2 == 0) {
                Page& page = *pages[random() % pages.size()];
                const Tokens rest(random() % 4, static_cast<Token>(random() % 3));
                if (tree.find_checkpoint(page, rest) != nullptr) continue;
                Checkpoint& checkpoint =
                    tree.add_checkpoint(page, rest, CheckpointKind::mark, std::make_shared<CheckpointData>());
                order.link(checkpoint);
                checkpoints.push_back(&checkpoint);
            } else if (random() % 2 == 0) {
                // Some way down, with checkpoints or without, and perhaps a checkpoint at its end.
                at = random() % 4 == 0 ? pages[random() % pages.size()] : at;
                order.begin(*at);
                for (auto n = random() % 6; n > 0 && !at->children.empty(); --n) {
                    auto child = at->children.begin();
                    std::advance(child, random() % at->children.size());
                    at = child->second.get();
                    order.follow(*at);
                }
                if (checkpoints.size() < 25 && random() % 2 == 0) {
                    Page& page = const_cast<Page&>(*at);
                    if (tree.find_checkpoint(page, {}) != nullptr) continue;
                    checkpoints.push_back(
                        &tree.add_checkpoint(page, {}, CheckpointKind::mark, std::make_shared<CheckpointData>()));
                    order.link(*checkpoints.back());
                }
            } else if (!checkpoints.empty()) {
                std::swap(checkpoints[random() % checkpoints.size()], checkpoints.back());
                order.unlink(*checkpoints.back());
                tree.remove_checkpoint(*checkpoints.back());
                checkpoints.pop_back();
            }
            for (const Checkpoint* checkpoint : checkpoints) {
                const Checkpoint* before = expected(*checkpoint);
                REQUIRE(CheckpointOrder::is_right(*checkpoint));
                REQUIRE((before == nullptr) == (checkpoint->link.before == nullptr));
                if (before == nullptr) continue;
                REQUIRE(before->page == checkpoint->link.before->page);
                REQUIRE(before->rest.size() == checkpoint->link.before->rest.size());
                if (before->page == checkpoint->page) continue;
                CHECK(n_saved_pages(*checkpoint) == checkpoint->page->index - before->page->index +
                                                        static_cast<double>(checkpoint->rest.size()) / kPageSize);
            }
        }
    }
}

TEST_CASE("short side requests do not push out a long conversation") {
    const auto share = [](EvictionKind kind) {
        std::mt19937 random(3);
        Texts texts(56 * kPageSize, false, 0, kind);
        Tokens text = random_text(random, 40 * kPageSize);
        Position n_served = 0, n_asked = 0;
        for (int turn = 0; turn < 40; ++turn) {
            const Position n = texts.run(text);
            if (turn >= 10) {
                n_served += n;
                n_asked += static_cast<Position>(text.size());
            }
            grow(text, random, 16);
            // Between its turns others ask once and never again, for more than the pool holds.
            for (int i = 0; i < 30; ++i) {
                texts.clock.advance(0.4);
                texts.run(random_text(random, 2 * kPageSize));
            }
        }
        return static_cast<double>(n_served) / n_asked;
    };
    CHECK(share(EvictionKind::lru) < 0.1);
    CHECK(share(EvictionKind::learned) > 0.9);
}

TEST_CASE("where a text needs a checkpoint, pages without one go first, and random texts keep the books right") {
    std::mt19937 random(11);
    for (const bool has_state : {false, true}) {
        Texts texts(64 * kPageSize, has_state, 64 << 10);
        std::vector<Tokens> open(6);
        Position n_served = 0;
        for (int i = 0; i < (is_full() ? 400 : 200); ++i) {
            Tokens& text = open[random() % open.size()];
            texts.clock.advance(static_cast<double>(random() % 40));
            if (random() % 8 == 0) text.resize(text.size() / 2);  // an edit
            if (text.size() > 40 * kPageSize) text.clear();
            grow(text, random, 1 + static_cast<int>(random() % 300));
            n_served += texts.run(text);
            if (random() % 20 == 0)
                while (texts.memory.copy_next(true) > 0) continue;
            if (random() % 50 == 0) CHECK(texts.memory.leave_device());
        }
        CHECK(n_served > 0);
    }
}

}  // TEST_SUITE("memory")
