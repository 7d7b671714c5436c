// trace_replay: page traces of real sessions through luced's own memory (index, slots, eviction), without a model: the
// device is arithmetic, a position's row has one byte, and the clock is the trace's. trace_cache.py writes the events
// and reads the one JSON line a run.
//
// usage: trace_replay EVENTS POLICY BUDGET_BYTES STATE_BYTES
//   EVENTS  a line a request, in order of time: t in n_runs (first count)* n_marks mark*; equal page ids are equal
//   pages
//           with equal prefixes, and ids are unique to their session
//   POLICY  learned, lru, or clairvoyant (evicts what is needed latest; STATE_BYTES is 0 for it)
//   STATE_BYTES  of a checkpoint; 0: attention only

#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <set>
#include <sstream>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "memory/manager/kv_cache_manager.h"

namespace {

using namespace luce;
using namespace luce::memory;

[[noreturn]] void fail(const std::string& what) {
    std::fprintf(stderr, "trace_replay: %s\n", what.c_str());
    std::exit(1);
}

struct Request {
    double at_s = 0;
    std::int64_t n_tokens = 0;
    std::vector<std::int32_t> pages;
    std::int64_t rest_page = -1;
    std::vector<Position> marks;
};

std::vector<Request> read_events(const char* path) {
    std::ifstream file(path);
    if (!file) fail(std::string("cannot read ") + path);
    std::vector<Request> requests;
    for (std::string line; std::getline(file, line);) {
        std::istringstream in(line);
        Request request;
        std::size_t n_runs = 0, n_marks = 0;
        in >> request.at_s >> request.n_tokens >> n_runs;
        while (n_runs-- > 0) {
            std::int32_t first = 0, count = 0;
            in >> first >> count;
            for (std::int32_t i = 0; i < count && in; ++i) request.pages.push_back(first + i);
        }
        in >> request.rest_page >> n_marks;
        for (Position mark = 0; n_marks > 0 && in >> mark; --n_marks) request.marks.push_back(mark);
        if (!in) fail("a broken line: " + line.substr(0, 80));
        requests.push_back(std::move(request));
    }
    return requests;
}

std::uint64_t mix(std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}

// The tokens follow from the pages' ids; what lies behind the last full page may be nobody else's.
Tokens text_of(const Request& request, std::size_t number) {
    Tokens text;
    text.reserve(static_cast<std::size_t>(request.n_tokens));
    const auto add = [&text](std::uint64_t seed, std::int64_t n) {
        for (std::int64_t i = 0; i < n; ++i) {
            text.push_back(static_cast<Token>(mix(seed * kPageSize + static_cast<std::uint64_t>(i)) >> 34));
        }
    };
    for (const std::int32_t page : request.pages) add(static_cast<std::uint64_t>(page) + 1, kPageSize);
    const std::int64_t n_rest = request.n_tokens - static_cast<std::int64_t>(text.size());
    const std::uint64_t unknown = (std::uint64_t{1} << 40) + number;
    add(request.rest_page < 0 ? unknown : static_cast<std::uint64_t>(request.rest_page) + 1,
        std::clamp<std::int64_t>(n_rest, 1, kPageSize - 1));
    return text;
}

// One lane, rows of one byte that say nothing.
class CountingDevice final : public KvDevice {
public:
    CountingDevice(std::int32_t n_cells, std::size_t state_bytes) : cells_(static_cast<std::size_t>(n_cells)) {
        traits_.n_cells = n_cells;
        traits_.row_bytes = 1;
        traits_.state_bytes = state_bytes;
        traits_.kind = state_bytes > 0 ? "hybrid" : "attention";
        for (std::int32_t i = n_cells; i-- > 0;) free_.push_back(static_cast<Cell>(i));
    }

    const DeviceTraits& traits() const override { return traits_; }
    std::int32_t n_free_cells() const override { return static_cast<std::int32_t>(free_.size()); }
    std::int32_t n_spanned_cells(std::int32_t) const override { return 0; }
    void set_aside(std::span<Cell>) override {}
    void bring_back(std::span<Cell>) override {}

    // What a model would do.
    void compute(Position begin, Position end) {
        for (Position at = begin; at < end; ++at) take(at);
    }

    Result<void> drop(LaneId, Position) override { return {}; }
    Result<void> save_point(LaneId, Bytes&, std::shared_ptr<const void>) override { return {}; }
    Result<void> return_to(LaneId, Position, std::span<const std::uint8_t>) override { return {}; }
    Result<void> find(LaneId, Position begin, std::span<Cell> cells) override {
        std::copy_n(lane_.begin() + begin, cells.size(), cells.begin());
        return {};
    }
    void hold(std::span<const Cell> cells) override {
        for (const Cell cell : cells) cells_[cell].is_held = true;
    }
    void release(std::span<const Cell> cells) override {
        for (const Cell cell : cells) {
            cells_[cell].is_held = false;
            free_if_unused(cell);
        }
    }
    void show(LaneId, std::span<const Cell> cells) override {
        for (const Cell cell : cells) see(cell);
    }
    void hide(LaneId, std::span<const Cell> cells) override {
        for (const Cell cell : cells) {
            cells_[cell].is_seen = false;
            free_if_unused(cell);
        }
    }
    Result<void> read(std::span<const Cell>, std::span<std::uint8_t>, std::shared_ptr<const void>) override {
        return {};
    }
    void settle() override {}
    std::size_t n_bytes_under_way() const override { return 0; }
    Bytes first_rows(std::span<const std::uint8_t>, std::size_t, std::size_t n) override { return Bytes(n); }
    Result<void> write(LaneId, Position begin, std::span<const Token>, std::span<const std::uint8_t>, std::int32_t,
                       std::span<Cell> cells) override {
        if (cells.size() > free_.size()) return Error{ErrorCode::no_room, "no cells"};
        for (std::size_t i = 0; i < cells.size(); ++i) cells[i] = take(begin + static_cast<Position>(i));
        return {};
    }
    Result<void> place(Position begin, std::span<const Token>, std::span<const std::uint8_t>,
                       std::shared_ptr<const void>, std::span<Cell> cells) override {
        if (cells.size() > free_.size()) return Error{ErrorCode::no_room, "no cells"};
        for (std::size_t i = 0; i < cells.size(); ++i) {
            cells[i] = take_free(begin + static_cast<Position>(i));
            cells_[cells[i]].is_held = true;
        }
        return {};
    }
    Result<void> save_state(LaneId, Bytes& state, std::shared_ptr<const void>) override {
        state.resize(traits_.state_bytes);
        return {};
    }
    Result<void> load_state(LaneId, std::span<const std::uint8_t>) override { return {}; }
    void forget(LaneId) override {
        for (const Cell cell : lane_) {
            if (!cells_[cell].is_seen) continue;
            cells_[cell].is_seen = false;
            free_if_unused(cell);
        }
        lane_.clear();
    }

private:
    struct CellState {
        Position position = 0;
        bool is_held = false;
        bool is_seen = false;
    };

    Cell take(Position position) {
        const Cell cell = take_free(position);
        see(cell);
        return cell;
    }
    Cell take_free(Position position) {
        if (free_.empty()) fail("the pool is full");
        const Cell cell = free_.back();
        free_.pop_back();
        cells_[cell].position = position;
        return cell;
    }
    void see(Cell cell) {
        const auto at = static_cast<std::size_t>(cells_[cell].position);
        if (lane_.size() <= at) lane_.resize(at + 1, cell);
        lane_[at] = cell;
        cells_[cell].is_seen = true;
    }
    void free_if_unused(Cell cell) {
        if (!cells_[cell].is_held && !cells_[cell].is_seen) free_.push_back(cell);
    }

    DeviceTraits traits_;
    std::vector<CellState> cells_;
    std::vector<Cell> free_;
    std::vector<Cell> lane_;
};

class TraceClock final : public Clock {
public:
    double now_s() const override { return now; }
    double now = 0;
};

// Of this thread alone: what others take of the processor does not count.
class ProcessorClock final : public Clock {
public:
    double now_s() const override {
        timespec now{};
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
        return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
    }
};

struct Outcome {
    double n_served = 0;
    double n_asked = 0;
    double policy_s = 0;
    double max_policy_s = 0;
    double deciding_s = 0;  // of policy_s; the rest is the queues' upkeep
    double all_s = 0;       // in memory's calls, copies and names included
    std::uint64_t n_moves = 0;
    std::uint64_t n_choices = 0;
    double n_checkpoints = 0;
};

// Seconds that a page's way into a queue takes, so that it need not be measured at each.
double seconds_per_move() {
    const ProcessorClock clock;
    EvictionPolicy policy(clock, EvictionKind::learned);
    PageQueue queue(policy, QueueKind::host);
    const ConversationRef a = policy.begin(), b = policy.begin();
    std::vector<Page> pages(256);
    constexpr int kRounds = 200;
    const double started_s = clock.now_s();
    for (int round = 0; round < kRounds; ++round) {
        for (std::size_t i = 0; i < pages.size(); ++i) queue.set(pages[i], round % 2 ? &*a : &*b);
    }
    const double spent_s = clock.now_s() - started_s;
    const auto n_moves = static_cast<double>(policy.costs().n_moves);
    for (Page& page : pages) queue.set(page, nullptr);
    return spent_s / n_moves;
}

// Seconds that each span's two looks at the stopwatch add to it.
double seconds_per_span(const Clock& stopwatch) {
    EvictionCosts costs;
    costs.stopwatch = &stopwatch;
    for (int i = 0; i < 10'000; ++i) const EvictionCosts::Timed timed(costs);
    return costs.deciding_s / static_cast<double>(costs.n_timed);
}

// Each request runs alone and at once, as in the simulations that the traces' README reports: what the budget cannot
// hold goes when it has ended. On attention only the pool is the budget (and has room for one more text, while it
// runs); the host has nothing. With checkpoints, which only the host holds, the host is the budget: the pool is as
// large as the longest text and emptied after each request.
Outcome replay(const std::vector<Request>& requests, EvictionKind kind, std::size_t budget, std::size_t state_bytes) {
    std::int64_t n_longest = 0;
    for (const Request& request : requests) n_longest = std::max(n_longest, request.n_tokens);
    const bool has_checkpoints = state_bytes > 0;
    const auto n_running = static_cast<std::int32_t>(n_longest) + 4 * kPageSize;
    CountingDevice device(n_running + (has_checkpoints ? 0 : static_cast<std::int32_t>(budget)), state_bytes);
    TraceClock clock;
    const ProcessorClock stopwatch;
    MemoryConfig config;
    config.identity = "trace";
    config.host_budget = has_checkpoints ? budget : 0;
    KvCacheManager memory(device, nullptr, config, clock, kind);
    EvictionCosts& costs = memory.eviction_costs();
    costs.stopwatch = &stopwatch;
    const double move_s = seconds_per_move();
    const double span_s = seconds_per_span(stopwatch);
    const auto lane = static_cast<LaneId>(0);
    Outcome outcome;
    for (std::size_t i = 0; i < requests.size(); ++i) {
        const Tokens text = text_of(requests[i], i);
        clock.now = requests[i].at_s;
        const EvictionCosts before = costs;
        const double started_s = stopwatch.now_s();
        MemoryRequest request;
        request.marks = requests[i].marks;
        Result<PrefillStart> begun = memory.begin(lane, text, request, true);
        if (!begun) fail(begun.error().text);
        Position n = begun.value().n;
        // Whole pages, as the simulations count.
        outcome.n_served += n / kPageSize * kPageSize;
        outcome.n_asked += static_cast<double>(requests[i].n_tokens);
        while (n < static_cast<Position>(text.size())) {
            const Position end = n + std::min(static_cast<Position>(text.size()) - n, memory.n_until_cut(lane, n));
            if (Result<void> room = memory.make_room(end - n); !room) fail(room.error().text);
            device.compute(n, end);
            n = end;
            memory.advance(lane, text, n, {});
        }
        memory.end(lane, i, text, n, {}, true);
        const Result<void> trimmed = has_checkpoints ? memory.leave_device() : memory.make_room(n_running);
        if (!trimmed) fail(trimmed.error().text);
        outcome.all_s += stopwatch.now_s() - started_s;
        const double policy_s = costs.deciding_s - before.deciding_s +
                                static_cast<double>(costs.n_moves - before.n_moves) * move_s -
                                static_cast<double>(costs.n_timed - before.n_timed) * span_s;
        outcome.policy_s += policy_s;
        outcome.max_policy_s = std::max(outcome.max_policy_s, policy_s);
        outcome.n_checkpoints += static_cast<double>(memory.status().cache.n_host_checkpoints);
        if (i % 256 == 0) {
            if (const auto wrong = memory.check_integrity()) fail(*wrong);
        }
    }
    if (const auto wrong = memory.check_integrity()) fail(*wrong);
    outcome.deciding_s = costs.deciding_s - static_cast<double>(costs.n_timed) * span_s;
    outcome.n_moves = costs.n_moves;
    outcome.n_choices = costs.n_choices;
    return outcome;
}

// Evicts the page that is needed latest, from the ends of texts up. Knows the future; pays for no checkpoints.
Outcome foresee(const std::vector<Request>& requests, std::size_t budget) {
    std::unordered_map<std::int32_t, std::vector<std::size_t>> uses;
    std::unordered_map<std::int32_t, std::int32_t> parents;
    for (std::size_t i = 0; i < requests.size(); ++i) {
        std::int32_t parent = -1;
        for (const std::int32_t page : requests[i].pages) {
            uses[page].push_back(i);
            parents[page] = std::exchange(parent, page);
        }
    }
    struct Held {
        std::size_t next = 0;  // request
        int n_children = 0;
    };
    std::unordered_map<std::int32_t, Held> held;
    std::set<std::pair<std::size_t, std::int32_t>> leaves;
    const std::size_t n_most = budget / kPageSize;
    Outcome outcome;
    const auto next_use = [&](std::int32_t page, std::size_t now) {
        const std::vector<std::size_t>& all = uses[page];
        const auto it = std::upper_bound(all.begin(), all.end(), now);
        return it == all.end() ? std::numeric_limits<std::size_t>::max() : *it;
    };
    for (std::size_t i = 0; i < requests.size(); ++i) {
        std::size_t n = 0;
        while (n < requests[i].pages.size() && held.contains(requests[i].pages[n])) ++n;
        outcome.n_served += static_cast<double>(n * kPageSize);
        outcome.n_asked += static_cast<double>(requests[i].n_tokens);
        for (const std::int32_t page : requests[i].pages) {
            const auto [it, is_new] = held.try_emplace(page);
            if (!is_new && it->second.n_children == 0) leaves.erase({it->second.next, page});
            it->second.next = next_use(page, i);
            if (it->second.n_children == 0) leaves.insert({it->second.next, page});
            const std::int32_t parent = parents[page];
            if (!is_new || parent < 0) continue;
            Held& above = held[parent];
            if (above.n_children++ == 0) leaves.erase({above.next, parent});
        }
        while (held.size() > n_most) {
            const std::int32_t page = std::prev(leaves.end())->second;
            leaves.erase(std::prev(leaves.end()));
            held.erase(page);
            const std::int32_t parent = parents[page];
            if (parent < 0) continue;
            Held& above = held[parent];
            if (--above.n_children == 0) leaves.insert({above.next, parent});
        }
    }
    return outcome;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 5) fail("usage: trace_replay EVENTS learned|lru|clairvoyant BUDGET_BYTES STATE_BYTES");
    const std::vector<Request> requests = read_events(argv[1]);
    if (requests.empty()) fail("no requests");
    const std::string policy = argv[2];
    const std::size_t budget = std::strtoull(argv[3], nullptr, 10);
    const std::size_t state_bytes = std::strtoull(argv[4], nullptr, 10);
    Outcome outcome;
    if (policy == "clairvoyant") {
        outcome = foresee(requests, budget);
    } else if (policy == "learned" || policy == "lru") {
        outcome = replay(requests, policy == "lru" ? EvictionKind::lru : EvictionKind::learned, budget, state_bytes);
    } else {
        fail("no such policy: " + policy);
    }
    const auto n = static_cast<double>(requests.size());
    std::printf(
        "{\"served\": %.6f, \"policy_us\": %.3f, \"max_policy_us\": %.1f, \"deciding_us\": %.3f, \"all_us\": %.1f, "
        "\"moves\": %.1f, "
        "\"choices\": %.2f, \"checkpoints\": %.1f}\n",
        outcome.n_served / outcome.n_asked, outcome.policy_s * 1e6 / n, outcome.max_policy_s * 1e6,
        outcome.deciding_s * 1e6 / n, outcome.all_s * 1e6 / n, static_cast<double>(outcome.n_moves) / n,
        static_cast<double>(outcome.n_choices) / n, outcome.n_checkpoints / n);
}
