// A model made of arithmetic, for the engine's and the memory's tests: its next token is a hash of the whole text
// before it, so any slip in positions, order, cells or state changes the answer. It checks what libllama would only
// suffer from. Both borders in one: the Decoder that computes, and the KvDevice that holds what was computed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/decoder.h"
#include "memory/manager/kv_device.h"
#include "tests/engine/fake_cells.h"
#include "tests/engine/fake_text.h"
#include "tests/engine/late_bytes.h"

namespace luce::tests {

// A row of the cache: token, position, and the hash of the text up to there. The state: hash and length of the text.
class FakeModel final : public engine::Decoder, public memory::KvDevice {
public:
    // `is_host_memory`: texts that nobody runs make way for one that begins.
    explicit FakeModel(engine::DecoderLimits limits, bool has_state = false, bool is_host_memory = false,
                       std::int32_t n_rollback = 16)
        : limits_(limits), cells_(static_cast<std::size_t>(limits.n_pool)) {
        traits_.n_cells = limits.n_pool;
        traits_.row_bytes = sizeof(Row);
        traits_.state_bytes = has_state ? sizeof(State) : 0;
        traits_.n_rollback = n_rollback;
        traits_.is_host_memory = is_host_memory;
        traits_.kind = has_state ? "hybrid" : "attention";
    }

    const engine::DecoderLimits& limits() const override { return limits_; }
    bool met_contention() override { return is_contended; }

    Result<void> decode(std::span<const engine::Slice> slices, const std::function<void()>& overlapped = {}) override {
        if (overlapped) overlapped();
        ++n_calls;
        if (fail_next) {
            const Error error = *fail_next;
            fail_next.reset();
            return error;
        }
        std::int32_t n_new = 0;
        for (const engine::Slice& slice : slices) n_new += static_cast<std::int32_t>(slice.tokens.size());
        if (n_new > limits_.n_batch) return internal("the batch is too large");
        if (n_new > n_free_cells() || slices.size() > n_most_lanes) return Error{ErrorCode::no_room, "no cells"};
        logits_.clear();
        n_branches_ = 0;
        row_hashes.clear();
        for (const engine::Slice& slice : slices) {
            if (const Result<void> checked = check_rows(slice.lane, slice.begin); !checked) return checked;
            State& state = states_[slice.lane];
            before_last_[slice.lane] = {slice.begin, {}};
            if (!slice.parents.empty()) {
                if (const Result<void> grown = grow(slice); !grown) return grown;
                continue;
            }
            std::size_t n_left = slice.tokens.size();
            if (slice.n_logits == 0) logits_.emplace_back();
            for (const Token token : slice.tokens) {
                before_last_[slice.lane].second.push_back(state);
                Cell& cell = lowest_free();
                cell.row = {token, state.n, hash_on(state.hash, token)};
                cell.lanes.insert(slice.lane);
                state = {cell.row.hash, state.n + 1};
                row_hashes.push_back(state.hash);
                if (n_left-- <= static_cast<std::size_t>(slice.n_logits)) logits_.push_back(to_logits(state.hash));
            }
        }
        last_call.assign(slices.begin(), slices.end());
        is_under_way = limits_.waits_for_device &&
                       std::all_of(slices.begin(), slices.end(), [](const auto& slice) { return slice.n_logits == 0; });
        if (on_decode) on_decode(n_new);
        n_computed += n_new;
        n_most_spanned = std::max(n_most_spanned, n_spanned_cells(0));
        max_cells = std::max(max_cells, n_cells() - n_free_cells());
        return {};
    }

    void wait() override { n_waits += std::exchange(is_under_way, false) ? 1 : 0; }

    // Of a tree's cells only those on the path stay.
    Result<void> keep(LaneId lane, std::span<const std::int32_t> path) override {
        const auto found = trees_.find(lane);
        if (found == trees_.end()) misuse = "a tree is kept that is not there";
        if (path.empty() || path.front() != 0) misuse = "a way through a tree does not begin at its root";
        if (misuse) return internal("not to be kept");
        const Tree tree = std::move(found->second);
        trees_.erase(found);
        std::int32_t at = -1;
        for (const std::int32_t node : path) {
            if (tree.parents.at(static_cast<std::size_t>(node)) != std::exchange(at, node)) {
                misuse = "a way through a tree leaves it";
            }
        }
        for (std::size_t node = 0; node < tree.cells.size(); ++node) {
            const bool stays = std::find(path.begin(), path.end(), static_cast<std::int32_t>(node)) != path.end();
            if (!stays) cells_[tree.cells[node]].lanes.erase(lane);
        }
        states_[lane] = tree.states[static_cast<std::size_t>(path.back())];
        n_dropped += static_cast<std::int64_t>(tree.cells.size() - path.size());
        // A child that was not its parent's first: a chain of the first ones would have lost it.
        for (std::size_t i = 1; i < path.size(); ++i) {
            const auto first = std::find(tree.parents.begin() + 1, tree.parents.end(), path[i - 1]);
            n_kept_others += path[i] != first - tree.parents.begin() ? 1 : 0;
        }
        return {};
    }

    std::optional<engine::ExpertReads> expert_reads(std::size_t first, std::size_t n) const override {
        if (!reads_experts) return std::nullopt;
        engine::ExpertReads all;
        for (std::size_t i = first; i < first + n; ++i) all += reads_of(row_hashes.at(i));
        return all;
    }

    std::span<const float> logits(std::size_t row) const override { return logits_.at(row); }

    Result<void> recall(std::span<const float> logits) override {
        logits_.assign(1, std::vector<float>(logits.begin(), logits.end()));
        return {};
    }

    // Both borders' word for it.
    void forget(LaneId lane) override {
        for (Cell& cell : cells_) cell.lanes.erase(lane);
        states_.erase(lane);
        trees_.erase(lane);
    }

    bool is_end_of_generation(Token token) const override { return token == kEndToken; }

    // KvDevice.
    const memory::DeviceTraits& traits() const override { return traits_; }

    std::int32_t n_free_cells() const override {
        return static_cast<std::int32_t>(
            std::count_if(cells_.begin(), cells_.end(), [](const Cell& cell) { return cell.is_free(); }));
    }

    Result<void> find(LaneId lane, Position begin, std::span<memory::Cell> found) override {
        std::vector<bool> seen(found.size());
        for (std::size_t i = 0; i < cells_.size(); ++i) {
            const Position at = cells_[i].row.position - begin;
            if (!cells_[i].lanes.contains(lane) || at < 0 || at >= static_cast<Position>(found.size())) continue;
            found[static_cast<std::size_t>(at)] = static_cast<memory::Cell>(i);
            seen[static_cast<std::size_t>(at)] = true;
        }
        if (std::find(seen.begin(), seen.end(), false) != seen.end())
            return internal("the lane does not hold them all");
        return {};
    }

    std::int32_t n_step_cells() const override { return elastic.n_step; }
    std::int32_t n_cells() const override { return static_cast<std::int32_t>(cells_.size()); }
    std::int32_t n_more_cells() const override { return elastic.n_more(traits_.n_cells - n_cells()); }
    bool resize(std::int32_t n) override { return elastic.resize(cells_, n); }
    bool is_seen_from(memory::Cell first) const override { return tests::is_seen_from(cells_, first); }
    void make_elastic(std::int32_t n_step) { elastic.resize(cells_, elastic.n_step = n_step); }

    std::int32_t n_spanned_cells(std::int32_t n_more) const override { return n_spanned(cells_, n_more); }
    void set_aside(std::span<memory::Cell> cells) override { move(cells, true); }
    void bring_back(std::span<memory::Cell> cells) override { move(cells, false); }

    void hold(std::span<const memory::Cell> cells) override {
        for (const memory::Cell i : cells) set_held(i, true);
    }
    void release(std::span<const memory::Cell> cells) override {
        arrive();
        for (const memory::Cell i : cells) set_held(i, false);
    }
    void show(LaneId lane, std::span<const memory::Cell> cells) override {
        arrive();
        for (const memory::Cell i : cells) {
            Cell& cell = cells_.at(i);
            if (cell.is_free() || cell.is_aside || !cell.lanes.insert(lane).second)
                misuse = "a cell is shown twice, or is nobody's to see";
            note(lane, cell.row);
        }
    }
    void hide(LaneId lane, std::span<const memory::Cell> cells) override {
        for (const memory::Cell i : cells) {
            if (cells_.at(i).lanes.erase(lane) == 0) misuse = "a cell is hidden that was not seen";
        }
    }

    // Bytes come when somebody waits for them, and are garbage before.
    Result<void> read(std::span<const memory::Cell> cells, std::span<std::uint8_t> out,
                      std::shared_ptr<const void> owner) override {
        arrive();
        if (cannot_read) return internal("unreadable");
        std::vector<std::uint8_t> rows(out.size());
        for (std::size_t i = 0; i < cells.size(); ++i) {
            std::memcpy(rows.data() + i * sizeof(Row), &cells_.at(cells[i]).row, sizeof(Row));
        }
        if (on_read) on_read(cells.size());
        under_way_.send(std::move(rows), out, std::move(owner));
        return {};
    }

    void settle() override { under_way_.settle(); }

    std::size_t n_bytes_under_way() const override { return n_under_way; }

    memory::Bytes first_rows(std::span<const std::uint8_t> rows, std::size_t, std::size_t n) override {
        settle();
        return {rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(n * sizeof(Row))};
    }

    Result<void> write(LaneId lane, Position begin, std::span<const Token> tokens, std::span<const std::uint8_t> rows,
                       std::int32_t n_rows, std::span<memory::Cell> cells) override {
        const Result<std::vector<Row>> fitting = rows_of_text(begin, tokens, rows, n_rows);
        if (!fitting) return fitting.error();
        for (std::size_t i = 0; i < cells.size(); ++i) {
            Cell& cell = lowest_free();
            cell.row = fitting.value()[i];
            cell.lanes.insert(lane);
            cells[i] = static_cast<memory::Cell>(&cell - cells_.data());
            note(lane, cell.row);
        }
        return {};
    }

    // The rows are garbage until somebody waits for them.
    Result<void> place(Position begin, std::span<const Token> tokens, std::span<const std::uint8_t> rows,
                       std::shared_ptr<const void>, std::span<memory::Cell> cells) override {
        const Result<std::vector<Row>> fitting =
            rows_of_text(begin, tokens, rows, static_cast<std::int32_t>(cells.size()));
        if (!fitting) return fitting.error();
        for (std::size_t i = 0; i < cells.size(); ++i) {
            Cell& cell = lowest_free();
            cell.is_held = true;
            cell.row = {};
            cells[i] = static_cast<memory::Cell>(&cell - cells_.data());
            coming_.emplace_back(cells[i], fitting.value()[i]);
        }
        return {};
    }

    Result<void> save_state(LaneId lane, memory::Bytes& state, std::shared_ptr<const void> owner) override {
        if (cannot_save) return Error{ErrorCode::out_of_memory, "no memory to save into"};
        std::vector<std::uint8_t> bytes(sizeof(State));
        std::memcpy(bytes.data(), &states_[lane], sizeof(State));
        ++n_saved;
        state.resize(bytes.size());
        under_way_.send(std::move(bytes), state, std::move(owner));
        return {};
    }

    Result<void> load_state(LaneId lane, std::span<const std::uint8_t> bytes) override {
        settle();
        if (cannot_load || bytes.size() != sizeof(State)) return internal("refused");
        std::memcpy(&states_[lane], bytes.data(), sizeof(State));
        return {};
    }

    Result<void> drop(LaneId lane, Position begin) override {
        const auto& [first, states] = before_last_[lane];
        const auto n_kept = static_cast<std::size_t>(begin - first);
        if (begin <= first || n_kept >= states.size()) misuse = "what was not computed in the last call is dropped";
        if (static_cast<std::int32_t>(states.size() - n_kept) > traits_.n_rollback) misuse = "too much is dropped";
        if (misuse) return internal("not to be dropped");
        for (Cell& cell : cells_) {
            if (cell.row.position >= begin) cell.lanes.erase(lane);
        }
        states_[lane] = states[n_kept];
        n_dropped += static_cast<std::int64_t>(states.size() - n_kept);
        before_last_.erase(lane);
        return {};
    }

    Result<void> save_point(LaneId lane, memory::Bytes& point, std::shared_ptr<const void> owner) override {
        ++n_points;
        return save_state(lane, point, std::move(owner));
    }

    Result<void> return_to(LaneId lane, Position begin, std::span<const std::uint8_t> point) override {
        if (Result<void> loaded = load_state(lane, point); !loaded) return loaded;
        if (states_[lane].n != begin) misuse = "a point of another position";
        for (Cell& cell : cells_) {
            if (cell.row.position >= begin) cell.lanes.erase(lane);
        }
        ++n_returns;
        before_last_.erase(lane);
        return {};
    }

    // The lane's text, if its positions are whole.
    std::optional<Tokens> text_of(LaneId lane) const {
        std::map<Position, Token> rows;
        for (const Cell& cell : cells_) {
            if (!cell.lanes.contains(lane)) continue;
            if (!rows.emplace(cell.row.position, cell.row.token).second) return std::nullopt;
        }
        Tokens text;
        for (const auto& [position, token] : rows) {
            if (position != static_cast<Position>(text.size())) return std::nullopt;
            text.push_back(token);
        }
        return text;
    }

    // Lanes that still see a cell.
    std::size_t n_lanes_in_use() const {
        std::set<LaneId> lanes;
        for (const Cell& cell : cells_) lanes.insert(cell.lanes.begin(), cell.lanes.end());
        return lanes.size();
    }

    std::vector<engine::Slice> last_call;  // the spans in it are not to be read
    bool reads_experts = false;
    std::vector<std::uint64_t> row_hashes;  // of the text up to each token of the last call: what drafts would read
    std::function<void(std::int32_t n_tokens)> on_decode;  // such a call has been computed
    std::function<void(std::size_t n_rows)> on_read;       // so many have been copied out
    std::optional<Error> fail_next;
    bool is_contended = false;        // other programs took the processor from the calls
    std::size_t n_most_lanes = 1000;  // in one call; with more the device says that it has no room
    bool may_have_holes = false;      // a lane need not see all of its text
    std::size_t n_logits = 4;         // the hash fills four; what checks files expects as many as the vocabulary has
    bool cannot_save = false, cannot_load = false, cannot_read = false, cannot_write = false;
    std::optional<std::string> misuse;
    ElasticCells elastic;
    std::size_t n_under_way = 0;  // what it says of copies out, whatever it has been given
    int n_saved = 0;              // states
    int n_calls = 0;
    int n_waits = 0;            // for calls that were under way
    bool is_under_way = false;  // the last call
    std::int64_t n_computed = 0, n_dropped = 0;
    int n_points = 0, n_returns = 0, n_trees = 0;
    std::int64_t n_kept_others = 0;  // tokens of trees that stayed although a sibling was likelier
    std::int32_t most_branches = 0;  // in a call
    std::int32_t max_cells = 0;
    std::int64_t n_moved = 0;         // cells that were set aside or brought back, and were moved for it
    std::int32_t n_most_spanned = 0;  // by a call, of late

private:
    struct Row {
        Token token = 0;
        Position position = 0;
        std::uint64_t hash = 0;
    };
    struct Cell {
        Row row;
        std::set<LaneId> lanes;
        bool is_held = false;
        bool is_aside = false;
        bool is_free() const { return lanes.empty() && !is_held; }
    };
    struct State {
        std::uint64_t hash = kHashStart;
        Position n = 0;
        std::int32_t unused = 0;
    };

    struct Tree {
        std::vector<std::int32_t> parents;  // of the root: -1
        std::vector<std::size_t> cells;
        std::vector<State> states;
    };

    // Until it is known which way the text goes all of its cells are the lane's, which is no text.
    Result<void> grow(const engine::Slice& slice) {
        if (slice.parents.size() != slice.tokens.size()) return internal("a tree without parents");
        if (static_cast<std::size_t>(slice.n_logits) != slice.tokens.size()) return internal("a tree without logits");
        Tree tree;
        tree.parents.assign(slice.parents.begin(), slice.parents.end());
        tree.parents[0] = -1;
        std::set<std::int32_t> inner;
        for (std::size_t i = 0; i < slice.tokens.size(); ++i) {
            const std::int32_t parent = tree.parents[i];
            if (i > 0 && (parent < 0 || parent >= static_cast<std::int32_t>(i))) return internal("an odd parent");
            if (i > 0) inner.insert(parent);
            const State before = i == 0 ? states_[slice.lane] : tree.states[static_cast<std::size_t>(parent)];
            Cell& cell = lowest_free();
            cell.row = {slice.tokens[i], before.n, hash_on(before.hash, slice.tokens[i])};
            cell.lanes.insert(slice.lane);
            tree.cells.push_back(static_cast<std::size_t>(&cell - cells_.data()));
            tree.states.push_back({cell.row.hash, before.n + 1});
            row_hashes.push_back(tree.states.back().hash);
            logits_.push_back(to_logits(tree.states.back().hash));
        }
        n_branches_ += static_cast<std::int32_t>(slice.tokens.size() - inner.size()) - 1;
        most_branches = std::max(most_branches, n_branches_);
        if (n_branches_ > limits_.n_branches) return internal("too many branches");
        trees_[slice.lane] = std::move(tree);
        ++n_trees;
        return {};
    }

    static Error internal(const char* what) { return {ErrorCode::internal, what}; }
    std::vector<float> to_logits(std::uint64_t hash) const {
        std::vector<float> logits(n_logits);
        for (std::size_t i = 0; i < 4; ++i) logits[i] = static_cast<float>((hash >> (16 * i)) & 0xffff);
        return logits;
    }

    // A lane on pure attention has no state of its own: what it is follows from the last row it is shown.
    void note(LaneId lane, const Row& row) {
        if (traits_.has_state()) return;
        State& state = states_[lane];
        if (row.position >= state.n) state = {row.hash, row.position + 1};
    }

    // The rows that the lane sees are those of one text that ends before `begin`, all of them unless it may have holes,
    // and the state is that text's.
    Result<void> check_rows(LaneId lane, Position begin) const {
        std::map<Position, Row> rows;
        for (const Cell& cell : cells_) {
            if (!cell.lanes.contains(lane)) continue;
            if (!rows.emplace(cell.row.position, cell.row).second) return internal("a lane sees a position twice");
        }
        const auto known = states_.find(lane);
        const State state = known == states_.end() ? State{} : known->second;
        Row before = {0, -1, kHashStart};
        for (const auto& [position, row] : rows) {
            const bool follows = position == before.position + 1;
            if (!follows && !may_have_holes) return internal("the lane's positions have holes");
            if (follows && row.hash != hash_on(before.hash, row.token)) return internal("rows of different texts");
            before = row;
        }
        if (before.position + 1 != begin) return internal("a slice does not follow what the lane holds");
        if (state.n != begin || state.hash != before.hash) return internal("the state is not that of the rows");
        return {};
    }

    void move(std::span<memory::Cell> cells, bool are_aside) {
        arrive();
        for (memory::Cell& i : cells) {
            const Cell& from = cells_.at(i);
            if (!from.is_held || !from.lanes.empty()) misuse = "a cell is moved that is seen, or not held";
            n_moved += move_cell(cells_, i, are_aside) ? 1 : 0;
        }
    }

    void set_held(memory::Cell i, bool held) {
        Cell& cell = cells_.at(i);
        if (cell.is_held == held || cell.is_free()) misuse = "a cell is held or released twice";
        cell.is_held = held;
        if (!held) cell.is_aside = false;
    }

    // The first of n_rows rows as read() gave them: those of the tokens, for which there are free cells.
    Result<std::vector<Row>> rows_of_text(Position begin, std::span<const Token> tokens,
                                          std::span<const std::uint8_t> bytes, std::int32_t n_rows) {
        settle();
        if (cannot_write) return internal("unwritable");
        if (static_cast<std::int32_t>(tokens.size()) > n_free_cells()) return Error{ErrorCode::no_room, "no cells"};
        if (bytes.size() != static_cast<std::size_t>(n_rows) * sizeof(Row)) return internal("odd rows");
        std::vector<Row> rows(tokens.size());
        for (std::size_t i = 0; i < rows.size(); ++i) {
            std::memcpy(&rows[i], bytes.data() + i * sizeof(Row), sizeof(Row));
            const bool is_it = rows[i].token == tokens[i] || tokens[i] >= kVocab;  // an image's name, or a hole's
            if (!is_it || rows[i].position != begin + static_cast<Position>(i)) {
                return internal("rows of another text");
            }
        }
        return rows;
    }

    void arrive() {
        for (const auto& [i, row] : coming_) cells_.at(i).row = row;
        coming_.clear();
    }

    Cell& lowest_free() {
        return *std::find_if(cells_.begin(), cells_.end(), [](const Cell& cell) { return cell.is_free(); });
    }

    engine::DecoderLimits limits_;
    memory::DeviceTraits traits_;
    std::vector<Cell> cells_;
    std::vector<std::pair<memory::Cell, Row>> coming_;  // rows that were placed and that nobody has waited for
    std::map<LaneId, State> states_;
    std::map<LaneId, std::pair<Position, std::vector<State>>> before_last_;  // of the last call: its begin, its states
    std::map<LaneId, Tree> trees_;  // of the last call, until it is said what stays
    std::int32_t n_branches_ = 0;   // in the last call
    std::vector<std::vector<float>> logits_;

    LateBytes under_way_;
};

}  // namespace luce::tests
