#include "llama/scoring/draft_scorer.h"

#include <algorithm>
#include <cassert>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>

#include <ggml-backend.h>
#include <ggml.h>

#include "base/log.h"
#include "llama-kv-cache.h"
#include "llama/kv_cache/memory_parts.h"
#include "llama/scoring/layer_choice.h"

namespace luce::llama {
namespace {

// Texts that no lane has any more are kept for the next turn: so many, of so many bytes together.
constexpr std::size_t kMostUnused = 32;
constexpr std::size_t kMostUnusedBytes = std::size_t{256} << 20;

// A text with this many tokens more than the new one is another text with the same prefix, not its last turn.
constexpr std::size_t kTakenBack = 4096;

// Tokens that are read beside one computation of the target: fewer are left for later.
constexpr std::size_t kLeastAtOnce = memory::kPageSize;
constexpr std::size_t kMostAtOnce = 1024;

std::size_t n_common(const Tokens& a, std::span<const Token> b) {
    const auto [first, second] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
    return static_cast<std::size_t>(first - a.begin());
}

struct Bound {
    LayerKeys keys;
    llama_kv_cache* cache = nullptr;
};

// The layer by a trial, where none is named.
Result<Bound> find(ScorerModel& model, std::optional<std::int32_t> layer) {
    const MemoryParts parts = memory_parts(model.context(), model.architecture(), model.n_sequences());
    if (!layer && find_layer_keys(*model.context(), *parts.paged, layer)) {
        layer = best_layer(*model.context(), *parts.paged, [&model](Position begin, std::span<const Token> ids) {
            return model.compute(0, begin, ids);
        });
        model.clear(0);
    }
    Result<LayerKeys> keys = find_layer_keys(*model.context(), *parts.paged, layer);
    if (keys) return Bound{std::move(keys).value(), parts.paged};
    return Error{ErrorCode::unsupported,
                 "a " + model.architecture() + " model cannot score pages: " + keys.error().text};
}

}  // namespace

Result<std::unique_ptr<DraftScorer>> DraftScorer::load(const ScorerOptions& options, const Model& target) {
    Result<std::unique_ptr<ScorerModel>> model = ScorerModel::load(options, target);
    if (!model) return model.error();
    std::unique_ptr<DraftScorer> scorer(new DraftScorer(options, std::move(model).value()));
    if (Result<void> bound = scorer->bind(); !bound) return bound.error();
    const LayerKeys& keys = scorer->keys_;
    const KeyShape shape{keys.n_heads, keys.n_heads_kv, keys.dimensions.size(), keys.head_size};
    Result<std::unique_ptr<KeyIndex>> index = KeyIndex::create(shape, options.n_threads);
    if (!index) return Error{ErrorCode::unsupported, options.option + ": " + index.error().text};
    scorer->index_ = std::move(index).value();
    // The first computation pays for pages of weights that were not read yet.
    const Token token = 0;
    if (Result<void> warm = scorer->model_->compute(0, 0, std::span(&token, 1)); !warm) return warm.error();
    scorer->model_->clear(0);
    return scorer;
}

DraftScorer::DraftScorer(const ScorerOptions& options, std::unique_ptr<ScorerModel> model)
    : options_(options), model_(std::move(model)), probe_(options.n_lanes) {}

Result<void> DraftScorer::bind() {
    Result<Bound> found = find(*model_, options_.layer);
    if (!found) return Error{found.error().code, options_.option + ": " + found.error().text};
    keys_ = std::move(found.value().keys);
    options_.layer = keys_.layer;  // also when it is loaded anew
    cells_ = KvCells(*found.value().cache, false);
    probe_.bind(keys_, found.value().cache->get_cells(0));
    return {};
}

void DraftScorer::unload() {
    probe_.unbind();
    keys_.storage = nullptr;
    cells_ = KvCells();
    for (ReadText& text : texts_) text.sequence.reset();
    model_->unload();
}

Result<void> DraftScorer::reload() {
    if (Result<void> loaded = model_->reload(); !loaded) return loaded;
    const LayerKeys before = keys_;
    if (Result<void> bound = bind(); !bound) return bound;
    if (keys_.is_like(before)) return {};
    return Error{ErrorCode::unsupported, options_.option + ": its keys lie otherwise than before it was unloaded"};
}

ScorerUsage DraftScorer::usage() const {
    ScorerUsage usage;
    if (model_->context() != nullptr) {
        usage.weights = model_->weights_bytes();
        usage.cells = model_->cells_bytes();
    }
    std::unordered_set<const memory::Bytes*> counted;  // texts share what they have in common
    for (const ReadText& text : texts_) {
        for (const memory::PageKeys& block : text.first_pages(text.text().text().size()).blocks) {
            if (counted.insert(block.get()).second) usage.keys += block->size();
        }
    }
    return usage;
}

// A text goes on from what has been read of the one that begins most like it.
ReadText& DraftScorer::text_of(LaneId lane, std::span<const Token> text) {
    if (const auto own = of_lanes_.find(lane); own != of_lanes_.end()) return *own->second;
    auto best = texts_.end();
    std::size_t n_best = memory::kPageSize - 1;
    for (auto known = texts_.begin(); known != texts_.end(); ++known) {
        const std::size_t n = n_common(known->text().text(), text);
        if (n > n_best || (n == n_best && best != texts_.end() && best->has_lane)) {
            best = known;
            n_best = n;
        }
    }
    if (best == texts_.end()) {
        texts_.emplace_back();
        best = std::prev(texts_.end());
    } else if (best->has_lane || best->text().text().size() > n_best + kTakenBack) {
        const auto like = best;
        texts_.push_back(*like);
        best = std::prev(texts_.end());
        best->sequence.reset();
        best->text().set(text.first(n_best), model_->vocabularies(), false);
        best->forget_others();
        like->used_at = ++n_uses_;
        give_sequence(*best);
        const bool is_shared =
            like->sequence && model_->share(*like->sequence, *best->sequence, static_cast<Position>(best->n_read()));
        if (!is_shared) model_->clear(*best->sequence);
    }
    best->has_lane = true;
    best->used_at = ++n_uses_;
    of_lanes_[lane] = best;
    drop_unused();
    return *best;
}

// One that no text has, or else that of the text that has been without a lane for longest. There is one, since there
// are as many as lanes.
void DraftScorer::give_sequence(ReadText& text) {
    if (text.sequence) return;
    std::vector<bool> is_taken(static_cast<std::size_t>(model_->n_sequences()));
    ReadText* oldest = nullptr;
    for (ReadText& other : texts_) {
        if (!other.sequence) continue;
        is_taken[static_cast<std::size_t>(*other.sequence)] = true;
        if (!other.has_lane && (oldest == nullptr || other.used_at < oldest->used_at)) oldest = &other;
    }
    const auto is_free = std::find(is_taken.begin(), is_taken.end(), false);
    if (is_free == is_taken.end()) {
        assert(oldest != nullptr);
        text.sequence = std::exchange(oldest->sequence, std::nullopt);
    } else {
        text.sequence = static_cast<std::int32_t>(is_free - is_taken.begin());
    }
    model_->clear(*text.sequence);
    probe_.forget(LaneId{*text.sequence});
}

void DraftScorer::drop(Texts::iterator text) {
    if (text->sequence && model_->context() != nullptr) model_->clear(*text->sequence);
    texts_.erase(text);
}

void DraftScorer::drop_unused() {
    for (;;) {
        std::size_t n = 0;
        std::size_t n_bytes = 0;
        auto oldest = texts_.end();
        for (auto text = texts_.begin(); text != texts_.end(); ++text) {
            if (text->has_lane) continue;
            ++n;
            n_bytes += text->n_bytes();
            if (oldest == texts_.end() || text->used_at < oldest->used_at) oldest = text;
        }
        if (n <= kMostUnused && n_bytes <= kMostUnusedBytes) return;
        drop(oldest);
    }
}

void DraftScorer::forget(LaneId lane) {
    tasks_.forget(lane);
    const auto found = of_lanes_.find(lane);
    if (found == of_lanes_.end()) return;
    found->second->has_lane = false;
    of_lanes_.erase(found);
}

void DraftScorer::read(LaneId lane, std::span<const Token> text) {
    if (model_->context() == nullptr) return;
    const ReadText& known = text_of(lane, text);
    if (text.size() < known.text().text().size() + kLeastAtOnce) return;
    if (const Result<bool> done = read_ahead(lane, text, kMostAtOnce); !done) warn(done.error());
}

// Never the last tokens: their queries are asked for when pages are chosen.
Result<bool> DraftScorer::read_ahead(LaneId lane, std::span<const Token> text, std::size_t n_most) {
    ReadText& known = text_of(lane, text);
    known.text().set(text, model_->vocabularies(), false);
    const std::size_t n_tokens = known.text().tokens().size();
    if (n_tokens < known.n_read() + kNotedQueries + kLeastAtOnce) return false;
    known.forget_others();
    const std::size_t end = std::min(n_tokens - kNotedQueries, known.n_read() + n_most) / kLeastAtOnce * kLeastAtOnce;
    if (Result<void> done = read_on(known, end); !done) return done.error();
    return true;
}

bool DraftScorer::begin_scores(LaneId lane, std::span<const Token> text, std::vector<memory::PageKeys> pages) {
    if (model_->context() == nullptr || pages.empty()) return false;
    ReadText& known = text_of(lane, text);
    known.text().set(text, model_->vocabularies(), true);
    known.forget_others();
    const std::size_t n_tokens = known.text().tokens().size();
    give_sequence(known);
    const LaneId asking{*known.sequence};
    // Tokens that were read are not read again where their queries are still noted: going back over the end of a call
    // would cost a window.
    const std::size_t first_asked = n_tokens - std::min(n_tokens, kNotedQueries);
    const auto n_read = static_cast<Position>(known.n_read());
    probe_.take_back(asking, n_read);
    if (!probe_.has(asking, static_cast<Position>(first_asked), n_read)) known.go_back(first_asked);
    probe_.watch(asking, true);
    const Result<void> done = read_on(known, n_tokens);
    QueryProbe::Queries asked = probe_.queries(asking);
    probe_.watch(asking, false);
    if (!done) probe_.forget(asking);
    if (!done) warn(done.error());
    if (!done || asked.positions.empty()) return false;
    ReadText::Keys keys = known.first_pages(pages.size());
    if (keys.ends.empty()) return false;
    tasks_.begin(lane, [this, n = pages.size(), queries = keys_.compared(asked.values), keys = std::move(keys)] {
        std::vector<float> scores = index_->scores(queries, keys.blocks, keys.ends);
        // The last page may end within a character of which the rest is still to come: it is in sight anyway.
        if (!scores.empty()) scores.resize(n, *std::max_element(scores.begin(), scores.end()));
        return scores;
    });
    return true;
}

// What is new gets keys. What the cells have lost is computed again, as far back as the window reaches.
Result<void> DraftScorer::read_on(ReadText& text, std::size_t end) {
    give_sequence(text);
    const std::int32_t sequence = *text.sequence;
    const Tokens& tokens = text.text().tokens();
    const auto begin = static_cast<Position>(text.n_read());
    probe_.take_back(LaneId{sequence}, begin);
    const auto stop = static_cast<Position>(end);
    Position at = model_->cut(sequence, begin) ? begin : model_->window_begin(begin);
    while (at < stop) {
        const Position n_call = model_->n_call();
        const Position next = std::min({at / n_call * n_call + n_call, at < begin ? begin : stop, stop});
        const auto part = std::span(tokens).subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(next - at));
        std::optional<QueryProbe::Watch> watch;
        if (probe_.is_watched(LaneId{sequence}) && next + static_cast<Position>(kNotedQueries) > stop) {
            watch.emplace(probe_, *model_->context(),
                          std::vector{QueryProbe::Sequence{sequence, LaneId{sequence}, at}});
        }
        Result<void> done = model_->compute(sequence, at, part);
        watch.reset();
        n_computed_ += part.size();
        if (done && at >= begin) {
            Result<std::vector<float>> keys = keys_at(sequence, at, part.size());
            if (keys) text.add(keys.value(), *index_);
            if (!keys) done = keys.error();
        }
        if (!done) {
            model_->clear(sequence);
            return done;
        }
        at = next;
    }
    return {};
}

Result<std::vector<float>> DraftScorer::keys_at(std::int32_t sequence, Position begin, std::size_t n) const {
    std::vector<memory::Cell> cells(n);
    if (Result<void> found = cells_.find(sequence, begin, cells); !found) return found.error();
    std::vector<std::uint8_t> rows(n * keys_.row_bytes);
    for (std::size_t i = 0; i < n;) {
        std::size_t stop = i + 1;
        while (stop < n && cells[stop] == cells[stop - 1] + 1) ++stop;
        ggml_backend_tensor_get(keys_.storage, rows.data() + i * keys_.row_bytes, cells[i] * keys_.row_bytes,
                                (stop - i) * keys_.row_bytes);
        i = stop;
    }
    std::vector<float> heads = keys_.to_floats(rows);
    return keys_.compared(heads);
}

void DraftScorer::warn(const Error& error) {
    if (std::exchange(has_warned_, true)) return;
    log_warn("a text's pages are not scored, and the newest stay: " + error.text + " (said once)");
}

}  // namespace luce::llama
