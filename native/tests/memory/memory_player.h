// Plays random operations on an engine with a memory and the arithmetic model, and checks each outcome against the
// accounting of memory_accounting.h.
#pragma once

#include <doctest/doctest.h>

#include <map>
#include <random>
#include <set>

#include "engine/engine.h"
#include "memory/snapshots/snapshot_file.h"
#include "memory/tiers/disk_store.h"
#include "tests/engine/fake_model.h"
#include "tests/engine/fake_sampler.h"
#include "tests/memory/disk_samples.h"
#include "tests/memory/fake_scorer.h"
#include "tests/memory/memory_accounting.h"
#include "tests/memory/page_mirror.h"

namespace luce::tests {

class Player {
public:
    Player(const PlayOptions& options, std::uint64_t seed)
        : options_(options),
          random_(seed),
          model_({kVocab, options.n_pool, 32, 32, seed % 2 == 0}, options.has_state, seed / 2 % 2 == 0),
          samplers_(model_) {
        if (options.folder) {
            model_.n_logits = kVocab;
            worker_ = std::move(memory::IoWorker::start(1 << 20)).value();
            const memory::TierLimits limits{model_.traits().row_bytes, model_.traits().max_state_bytes(), kVocab};
            auto opened = memory::DiskStore::open({options.folder->string(), std::uint64_t{1} << (10 + pick(10)),
                                                   memory::samples::kIdentity, limits, [this] { model_.settle(); }},
                                                  *worker_, clock_);
            REQUIRE(opened);
            disk_ = std::move(opened).value();
        }
        memory::MemoryConfig config{memory::samples::kIdentity, options.host_budget, kSlots, kVocab, true};
        if (options.residency) {
            model_.may_have_holes = true;
            if (options.has_scorer) scorer_.emplace(options.needs_keys ? model_.traits().row_bytes : 0);
            const std::int32_t n_least = memory::least_cells(*options.residency, 32);
            config.residency = memory::ResidencyConfig{*options.residency, n_least, scorer_ ? &*scorer_ : nullptr};
        }
        memory_.emplace(model_, disk_.get(), config, clock_);
        engine_.emplace(model_, samplers_, *memory_, clock_, EngineConfig{options.n_ctx, options.n_lanes, 64});
        for (int i = 0; i < 3; ++i)
            families_.push_back(random_tokens(static_cast<std::size_t>(options.n_text), kVocab - 1));
        // One that parts from the first within a page.
        families_.push_back(families_[0]);
        for (std::size_t i = 100; i < families_[3].size(); ++i) families_[3][i] = static_cast<Token>(pick(3));
    }

    void play(int n_operations) {
        for (int i = 0; i < n_operations && !engine_->is_broken(); ++i) {
            operate();
            check();
        }
        stop_failing();
        finish_all();
        if (!engine_->is_broken()) restore_each_slot();
        leave_nothing();
    }

    std::uint64_t n_restored = 0;
    std::int64_t n_moved_cells() const { return model_.n_moved; }
    std::uint64_t n_suspensions() const { return engine_->status().n_suspensions; }
    memory::ResidencyStatus residency() const { return memory_->status().residency.value(); }

private:
    std::size_t pick(std::size_t n) { return random_() % n; }
    bool maybe(int percent) { return static_cast<int>(pick(100)) < percent; }

    Tokens random_tokens(std::size_t n, std::size_t n_vocab) {
        Tokens tokens;
        while (tokens.size() < n) tokens.push_back(static_cast<Token>(pick(n_vocab)));
        return tokens;
    }

    void operate() {
        if (options_.fails && maybe(5)) set_failures();
        switch (pick(20)) {
            case 0:
            case 1:
            case 2:
            case 3: submit(); break;
            case 4: cancel(); break;
            case 5: snapshot(); break;
            case 6: thin(); break;
            case 7: free_slot(); break;
            case 8: save(); break;
            case 9: load(); break;
            case 10: park(); break;
            case 11:
                if (maybe(20)) memory_->clear(maybe(50));
                break;
            case 12:
                if (worker_) drain();
                break;
            case 13:
                for (std::size_t n = pick(6); n > 0 && engine_->has_idle_work(); --n) engine_->use_idle_time();
                break;
            default:
                for (std::size_t n = 1 + pick(12); n > 0; --n) step();
        }
        if (worker_ && maybe(50)) worker_->run_completions();
    }

    void set_failures() {
        model_.cannot_read = maybe(20);
        model_.cannot_write = maybe(20);
        model_.cannot_save = maybe(20);
        model_.cannot_load = maybe(20);
        if (maybe(10)) model_.fail_next = Error{ErrorCode::no_room, "no cells"};
        for (auto& [key, live] : live_) live.was_disturbed = true;
        is_failing_ = true;
    }

    void stop_failing() {
        model_.cannot_read = model_.cannot_write = model_.cannot_save = model_.cannot_load = false;
        model_.fail_next.reset();
        is_failing_ = false;
    }

    Tokens some_prompt() {
        const auto n_most = static_cast<std::size_t>(options_.n_ctx - 1);
        Tokens prompt;
        if (!texts_.empty() && maybe(50)) {
            prompt = std::next(texts_.begin(), static_cast<std::ptrdiff_t>(pick(texts_.size())))->second;
            if (maybe(30)) prompt.resize(1 + pick(prompt.size()));
        } else {
            const Tokens& family = families_[pick(families_.size())];
            prompt.assign(family.begin(), family.begin() + static_cast<std::ptrdiff_t>(1 + pick(family.size())));
        }
        if (maybe(60)) {
            const Tokens more = random_tokens(pick(40), 2);
            prompt.insert(prompt.end(), more.begin(), more.end());
        }
        if (prompt.size() > n_most) prompt.resize(n_most);
        return prompt;
    }

    void submit() {
        Live live;
        Request& r = live.request;
        r.key = static_cast<RequestKey>(++n_keys_);
        r.prompt = some_prompt();
        r.n_generate = static_cast<int>(maybe(15) ? 0 : 1 + pick(maybe(40) ? 200 : 20));
        r.priority = static_cast<int>(pick(2));
        if (maybe(10)) r.memory.reuse = false;
        if (maybe(40) && !held_.empty()) restore_in(live);
        const auto n_prompt = r.prompt.size();
        for (std::size_t n = maybe(30) ? 1 + pick(3) : 0; n > 0; --n) {
            const auto slot = static_cast<std::int32_t>(pick(kSlots));
            if (live.unreported.contains(slot)) continue;
            r.memory.snapshots.push_back({static_cast<Position>(1 + pick(n_prompt)), slot});
            live.unreported.insert(slot);
        }
        for (std::size_t n = pick(4); n > 0; --n) r.memory.marks.push_back(static_cast<Position>(pick(n_prompt + 1)));
        for (std::size_t n = options_.residency && maybe(40) ? 1 + pick(2) : 0; n > 0; --n) {
            const auto begin = static_cast<Position>(pick(n_prompt));
            const auto end = std::min(n_prompt, static_cast<std::size_t>(begin) + 1 + pick(150));
            r.memory.pins.push_back({begin, static_cast<Position>(end)});
        }
        live.was_disturbed = is_failing_;
        const Result<void> submitted = engine_->submit(r);
        if (!submitted) {
            if (submitted.error().code == ErrorCode::bad_args && !r.memory.pins.empty()) return;
            REQUIRE(submitted.error().code == ErrorCode::queue_full);
            return;
        }
        live_.emplace(r.key, std::move(live));
    }

    void restore_in(Live& live) {
        Request& r = live.request;
        const auto name = [&] {
            return std::next(held_.begin(), static_cast<std::ptrdiff_t>(pick(held_.size())))->first;
        };
        r.memory.restore_slot = name();
        Tokens text = held_.at(*r.memory.restore_slot).text;
        while (maybe(25)) {
            r.memory.chain.push_back(name());
            const Tokens& longer = held_.at(r.memory.chain.back()).text;
            if (longer.size() > text.size()) text = longer;
        }
        if (maybe(90)) r.prompt = text;
        if (maybe(70)) r.prompt.push_back(static_cast<Token>(pick(5)));
        if (maybe(10)) r.prompt[pick(r.prompt.size())] = 1;
        if (r.prompt.size() >= static_cast<std::size_t>(options_.n_ctx)) r.prompt.resize(options_.n_ctx - 1);
        if (maybe(25)) r.memory.restore_at = static_cast<Position>(1 + pick(text.size()));
        note_slot(live, *r.memory.restore_slot);
        for (const std::int32_t link : r.memory.chain) note_slot(live, link);
    }

    void note_slot(Live& live, std::int32_t slot) {
        live.slot_versions[slot] = versions_[slot];
        live.held[slot] = held_.at(slot);
    }

    void check_failure(const Live& live, const Error& error) {
        INFO("failed with: " << error.text);
        if (live.was_disturbed) return;
        REQUIRE(live.request.memory.restore_slot);
        if (slots_changed(live)) {
            const std::set<ErrorCode> possible = {ErrorCode::empty_slot, ErrorCode::prefix_mismatch,
                                                  ErrorCode::unsupported, ErrorCode::bad_args};
            REQUIRE(possible.contains(error.code));
            return;
        }
        bool is_certain = false;
        const std::optional<ErrorCode> refusal = restore_refusal(live, options_.has_state, is_certain);
        if (refusal) {
            REQUIRE(error.code == *refusal);
        } else {
            REQUIRE(!is_certain);
            REQUIRE(error.code == ErrorCode::unsupported);
        }
    }

    bool slots_changed(const Live& live) {
        for (const auto& [slot, version] : live.slot_versions) {
            if (versions_[slot] != version) return true;
        }
        return false;
    }

    void check_end(const Live& live, const GenerationStats& stats) {
        const Request& r = live.request;
        REQUIRE(live.answer == expected_answer(r.prompt, r.n_generate, options_.n_ctx));
        REQUIRE(live.unreported.empty());
        REQUIRE(stats.restored.has_value() == r.memory.restore_slot.has_value());
        if (r.memory.reuse == false && !r.memory.restore_slot) REQUIRE(stats.n_reused == 0);
        if (!r.memory.restore_slot || slots_changed(live)) return;
        bool is_certain = false;
        REQUIRE(!restore_refusal(live, options_.has_state, is_certain));
        ++n_restored;
    }

    void step() {
        clock_.advance(1e-6 * static_cast<double>(pick(3)));  // time for a page or two, or none
        for (const Event& event : engine_->step()) take(event);
    }

    void take(const Event& event) {
        if (const auto* token = std::get_if<TokenEvent>(&event)) {
            Live& live = live_.at(token->key);
            REQUIRE(static_cast<std::size_t>(token->index) == live.answer.size());
            live.answer.push_back(token->token);
        } else if (const auto* snapped = std::get_if<SnapshotEvent>(&event)) {
            Live& live = live_.at(snapped->key);
            const auto& [point, error] = snapped->outcome;
            const auto unreported = live.unreported.find(point.slot);
            REQUIRE(unreported != live.unreported.end());
            live.unreported.erase(unreported);
            if (!error) {
                const Tokens& prompt = live.request.prompt;
                hold(point.slot, Tokens(prompt.begin(), prompt.begin() + point.position), 0);
            } else if (!live.was_disturbed) {
                INFO("snap= failed: " << error->text);
                REQUIRE((error->code == ErrorCode::no_room ||
                         (options_.has_state && error->code == ErrorCode::unsupported)));
            }
        } else if (const auto* end = std::get_if<FinishedEvent>(&event)) {
            check_end(live_.at(end->key), end->stats);
            end_request(end->key);
        } else if (const auto* failure = std::get_if<FailedEvent>(&event)) {
            check_failure(live_.at(failure->key), failure->error);
            live_.erase(failure->key);
        }
    }

    void end_request(RequestKey key) {
        const auto it = live_.find(key);
        Tokens text = it->second.request.prompt;
        text.insert(text.end(), it->second.answer.begin(), it->second.answer.end());
        texts_[key] = std::move(text);
        live_.erase(it);
    }

    void cancel() {
        if (live_.empty()) return;
        const RequestKey key = std::next(live_.begin(), static_cast<std::ptrdiff_t>(pick(live_.size())))->first;
        const std::optional<GenerationStats> stats = engine_->cancel(key);
        REQUIRE(stats);
        REQUIRE(static_cast<std::size_t>(stats->n_generated) == live_.at(key).answer.size());
        end_request(key);
    }

    void hold(std::int32_t slot, Tokens text, Position begin) {
        held_[slot] = {std::move(text), begin};
        ++versions_[slot];
    }

    std::optional<RequestKey> some_key() {
        if (n_keys_ == 0) return std::nullopt;
        return static_cast<RequestKey>(1 + pick(n_keys_));
    }

    std::optional<Tokens> text_of(RequestKey key) {
        if (const auto it = texts_.find(key); it != texts_.end()) return it->second;
        const auto it = live_.find(key);
        if (it == live_.end()) return std::nullopt;
        Tokens text = it->second.request.prompt;
        text.insert(text.end(), it->second.answer.begin(), it->second.answer.end());
        return text;
    }

    void snapshot() {
        const std::optional<RequestKey> key = some_key();
        if (!key) return;
        const auto slot = static_cast<std::int32_t>(pick(kSlots));
        const Result<Position> taken = engine_->snapshot(slot, *key);
        if (!taken) {
            const std::set<ErrorCode> possible = {ErrorCode::unknown_id, ErrorCode::empty_prompt, ErrorCode::no_room};
            INFO("snapshot: " << taken.error().text);
            REQUIRE((is_failing_ || possible.contains(taken.error().code)));
            return;
        }
        Tokens text = *text_of(*key);
        REQUIRE(taken.value() >= 1);
        REQUIRE(static_cast<std::size_t>(taken.value()) <= text.size());
        text.resize(static_cast<std::size_t>(taken.value()));
        hold(slot, std::move(text), 0);
    }

    void thin() {
        const std::optional<RequestKey> key = some_key();
        if (!key || !texts_.contains(*key)) return;
        Tokens text = texts_.at(*key);
        const auto slot = static_cast<std::int32_t>(pick(kSlots));
        const auto end = static_cast<Position>(2 + pick(text.size()));
        Position begin = static_cast<Position>(1 + pick(static_cast<std::size_t>(end - 1)));
        // Where another slot's text ends, most often.
        for (const auto& [other, held] : held_) {
            const auto n = static_cast<Position>(held.text.size());
            if (n < end && maybe(50) && begins_with(text, held.text, held.text.size())) begin = n;
        }
        const Result<void> taken = memory_->snapshots().thin_ended(slot, static_cast<std::uint64_t>(*key), begin, end);
        if (!taken) {
            const std::set<ErrorCode> possible = {ErrorCode::unknown_id, ErrorCode::bad_args, ErrorCode::no_room};
            INFO("thin: " << taken.error().text);
            REQUIRE((is_failing_ || possible.contains(taken.error().code) ||
                     (options_.has_state && taken.error().code == ErrorCode::unsupported)));
            return;
        }
        REQUIRE(static_cast<std::size_t>(end) <= text.size());
        text.resize(static_cast<std::size_t>(end));
        hold(slot, std::move(text), begin);
    }

    void free_slot() {
        const auto slot = static_cast<std::int32_t>(pick(kSlots));
        const Result<void> freed = memory_->slots().free(slot);
        REQUIRE(freed.ok() == held_.contains(slot));
        held_.erase(slot);
        ++versions_[slot];
    }

    // Through the bytes of a file.
    void save() {
        const auto slot = static_cast<std::int32_t>(pick(kSlots));
        const Result<memory::SnapshotContents> contents = memory_->contents_of(slot);
        if (!contents) {
            REQUIRE((model_.cannot_read || contents.error().code == ErrorCode::empty_slot));
            REQUIRE((model_.cannot_read || !held_.contains(slot)));
            return;
        }
        REQUIRE(contents.value().tokens == held_.at(slot).text);
        REQUIRE(contents.value().begin == held_.at(slot).begin);
        if (model_.n_logits == 4) {
            saved_.emplace_back(contents.value(), held_.at(slot));
            return;
        }
        memory::Bytes bytes;
        const auto encoded = memory::encode_snapshot(memory::samples::append_to(bytes), memory::samples::kIdentity,
                                                     contents.value(), memory_->limits());
        REQUIRE(encoded);
        memory::SpanSource source(bytes);
        const auto decoded = memory::decode_snapshot(source, memory::samples::kIdentity, memory_->limits());
        REQUIRE(decoded);
        saved_.emplace_back(decoded.value(), held_.at(slot));
    }

    void load() {
        if (saved_.empty()) return;
        const auto& [contents, held] = saved_[pick(saved_.size())];
        const auto slot = static_cast<std::int32_t>(pick(kSlots));
        const Result<Position> adopted = memory_->adopt(slot, contents);
        if (!adopted) {
            INFO("load: " << adopted.error().text);
            const bool needs_base = held.begin > 0 && adopted.error().code == ErrorCode::bad_snapshot;
            REQUIRE((needs_base || adopted.error().code == ErrorCode::no_room));
            return;
        }
        REQUIRE(adopted.value() == static_cast<Position>(held.text.size()));
        hold(slot, held.text, held.begin);
    }

    void park() {
        if (!engine_->is_idle()) return;
        const Result<void> left = memory_->leave_device();
        REQUIRE((left || model_.cannot_read));
        if (!left) return;
        REQUIRE(model_.n_free_cells() == options_.n_pool);
        REQUIRE(memory_->status().cache.n_resident == 0);
    }

    void check() {
        REQUIRE(!model_.misuse);
        if (scorer_) REQUIRE(!scorer_->misuse);
        const std::optional<std::string> wrong = engine_->check_integrity();
        INFO("integrity: " << wrong.value_or("ok"));
        REQUIRE(!wrong);
        REQUIRE(memory_->slots().n_used() == static_cast<std::int32_t>(held_.size()));
        REQUIRE(model_.max_cells <= options_.n_pool);
        REQUIRE(memory_->status().cache.host_bytes <= options_.host_budget);
        if (disk_) REQUIRE(disk_->check_integrity() == "");
        mirror_.look(*memory_);
    }

    void drain() { REQUIRE(worker_->drain(std::chrono::seconds(60))); }

    void finish_all() {
        for (int i = 0; i < 100000 && !engine_->is_idle(); ++i) {
            if (worker_ && !engine_->wants_step()) drain();
            if (worker_) worker_->run_completions();
            step();
            check();
        }
        REQUIRE((engine_->is_idle() || engine_->is_broken()));
    }

    void restore_each_slot() {
        const std::map<std::int32_t, HeldText> held = held_;
        for (const auto& [slot, what] : held) {
            if (what.begin > 0 || what.text.size() + 2 > static_cast<std::size_t>(options_.n_ctx)) continue;
            Live live;
            live.request.key = static_cast<RequestKey>(++n_keys_);
            live.request.prompt = what.text;
            live.request.prompt.push_back(7);
            live.request.n_generate = 4;
            live.request.memory.restore_slot = slot;
            note_slot(live, slot);
            const auto n_computed = model_.n_computed;
            REQUIRE(engine_->submit(live.request));
            const auto n_answer = static_cast<std::int64_t>(
                expected_answer(live.request.prompt, live.request.n_generate, options_.n_ctx).size());
            live_.emplace(live.request.key, std::move(live));
            const auto n_before = n_restored;
            finish_all();
            REQUIRE(n_restored == n_before + 1);
            REQUIRE(model_.n_computed == n_computed + n_answer);
        }
    }

    void leave_nothing() {
        while (!live_.empty()) {
            REQUIRE(engine_->cancel(live_.begin()->first));
            live_.erase(live_.begin());
        }
        for (const auto& [slot, held] : held_) REQUIRE(memory_->slots().free(slot));
        held_.clear();
        if (worker_) drain();
        memory_->clear(true);
        if (worker_) drain();
        check();
        const memory::MemoryStatus status = memory_->status();
        REQUIRE(status.cache.n_resident + status.cache.n_host + status.cache.n_host_checkpoints == 0);
        REQUIRE(status.cache.host_bytes + status.cache.pinned_bytes == 0);
        REQUIRE(status.n_tree_pages == 0);
        REQUIRE(model_.n_free_cells() == options_.n_pool);
        REQUIRE(model_.n_lanes_in_use() == 0);
        if (disk_) REQUIRE(disk_->stats().n_files == 0);
    }

    const PlayOptions options_;
    std::mt19937_64 random_;
    ManualClock clock_;
    FakeModel model_;
    FakeSamplers samplers_;
    std::unique_ptr<memory::IoWorker> worker_;
    std::unique_ptr<memory::DiskStore> disk_;
    std::optional<FakeScorer> scorer_;
    std::optional<memory::KvCacheManager> memory_;
    std::optional<Engine> engine_;
    std::vector<Tokens> families_;
    std::map<RequestKey, Live> live_;
    std::map<RequestKey, Tokens> texts_;  // of what has ended
    std::map<std::int32_t, HeldText> held_;
    std::map<std::int32_t, std::uint64_t> versions_;
    std::vector<std::pair<memory::SnapshotContents, HeldText>> saved_;
    std::uint64_t n_keys_ = 0;
    bool is_failing_ = false;
    PageMirror mirror_;
};

}  // namespace luce::tests
