#include "llama/drafting/dflash_drafts.h"

#include <llama.h>

#include <algorithm>
#include <array>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "base/log.h"
#include "common.h"
#include "llama-context.h"
#include "llama/decoding/logit_choice.h"
#include "llama/drafting/drafted_token.h"
#include "llama/model/sequence.h"
#include "speculation/trees/tree_drafts.h"

namespace luce::llama {
namespace {

using speculation::Draft;
using speculation::DraftAsk;

// Features wait until so many positions are there, or somebody needs them: one injection costs about what a page does.
constexpr std::size_t kMostPending = 64;
// A prompt's come many at once. So few are a dozen MB of a large model's; memory for more would be the system's, and
// have to be cleared, each time: that took longer than the injection.
constexpr std::int32_t kMostInjected = 128;
constexpr Position kPortion = 16;  // of them that are injected at once while the target computes; divides a page

// Tokens of a place that a tree may take: those after them are hardly ever right.
constexpr std::size_t kAlternatives = 8;

}  // namespace

DflashDrafts::DflashDrafts(const Model& target) : target_(target) {}

DflashDrafts::~DflashDrafts() = default;

Result<std::unique_ptr<DflashDrafts>> DflashDrafts::load(const DraftModelOptions& options, const Model& target) {
    std::unique_ptr<DflashDrafts> drafts(new DflashDrafts(target));
    Result<std::unique_ptr<DraftContext>> model = DraftContext::load(options, target);
    if (!model) return model.error();
    drafts->model_ = std::move(model).value();
    const llama_model* weights = drafts->model_->model();
    drafts->layers_ = drafts->model_->target_layers();
    drafts->n_embd_ = llama_model_n_embd(target.model());
    drafts->mask_ = dflash_mask_token(weights);
    drafts->traits_.name = "dflash";
    drafts->head_ = dflash_head(weights);
    drafts->first_place_ = dflash_first_place(weights);
    drafts->n_block_ = std::min(options.n_most, dflash_block_size(weights) - drafts->first_place_);
    // Behind a head, what stands at a place depends on what stands before it.
    drafts->traits_.can_branch = options.n_tree > 0 && drafts->head_ == DflashHead::none;
    drafts->traits_.n_most = drafts->traits_.can_branch ? options.n_tree : drafts->n_block_;
    for (std::int32_t i = 0; i < options.n_lanes; ++i) drafts->pending_.emplace_back(drafts->n_features());
    drafts->open();
    drafts->device_ = std::make_unique<LlamaKvDevice>(*drafts->model_, options.n_lanes);
    if (const auto& refusal = drafts->device_->traits().refusal) {
        return Error{ErrorCode::start_failed, "the draft's memory cannot be kept: " + *refusal};
    }
    return drafts;
}

// What belongs to the contexts, which go and come back.
void DflashDrafts::open() {
    llama_set_causal_attn(model_->context(), dflash_is_causal(model_->model()));
    batch_ = std::make_unique<common_batch>(model_->context());
}

void DflashDrafts::unload(bool keeps_weights) {
    device_->unbind();
    batch_.reset();
    model_->unload(keeps_weights);
    for (Pending& pending : pending_) pending = Pending(n_features());
}

Result<void> DflashDrafts::reload() {
    if (Result<void> loaded = model_->reload(); !loaded) return loaded;
    open();
    device_->rebind();
    return {};
}

std::size_t DflashDrafts::n_features() const { return layers_.size() * static_cast<std::size_t>(n_embd_); }

std::size_t DflashDrafts::n_pending(LaneId lane) const { return pending_[static_cast<std::size_t>(lane)].rows.size(); }

void DflashDrafts::follow(LaneId lane, std::span<const Token>, std::int32_t n_computed, std::int32_t n_new,
                          speculation::BatchRows rows) {
    Pending& pending = pending_[static_cast<std::size_t>(lane)];
    if (!pending.skipped.empty()) warn_of_loss(catch_up(lane));
    if (pending.rows.empty()) pending.begin = n_computed - n_new;
    for (std::int32_t first = 0; first < n_new; first += kMostInjected) {
        collect(pending, rows, first, std::min(n_new, first + kMostInjected));
        if (n_pending(lane) >= kMostPending) warn_of_loss(catch_up(lane));
    }
}

void DflashDrafts::collect(Pending& pending, speculation::BatchRows rows, std::int32_t first, std::int32_t end) {
    const auto n_embd = static_cast<std::size_t>(n_embd_);
    const std::size_t n_old = pending.rows.size();
    pending.rows.append(static_cast<std::size_t>(end - first));
    for (std::size_t k = 0; k < layers_.size(); ++k) {
        // Of a computation that was waited for. To ask by the public way waits for the device again, for each layer of
        // each lane.
        const float* features = target_.context()->get_embeddings_layer_inp(static_cast<std::uint32_t>(layers_[k]));
        for (std::int32_t i = first; i < end; ++i) {
            const auto to = n_old + static_cast<std::size_t>(i - first);
            std::copy_n(features + rows[static_cast<std::size_t>(i)] * n_embd, n_embd,
                        pending.rows.row(to) + k * n_embd);
        }
    }
}

// A window's cells, which are state, are libllama's own to fill.
void DflashDrafts::skip(LaneId lane, std::span<const Token> text, std::int32_t n_computed, std::int32_t n_new,
                        speculation::BatchRows rows) {
    if (!can_skip()) return follow(lane, text, n_computed, n_new, rows);
    Pending& pending = pending_[static_cast<std::size_t>(lane)];
    if (pending.rows.empty() && pending.skipped.empty()) pending.begin = n_computed - n_new;
    const std::span<const Token> skipped =
        text.first(static_cast<std::size_t>(n_computed)).last(static_cast<std::size_t>(n_new));
    pending.skipped.insert(pending.skipped.end(), skipped.begin(), skipped.end());
}

void DflashDrafts::leave_out(LaneId lane, std::span<const Token> text, std::int32_t n_computed, std::int32_t n_new) {
    Pending& pending = pending_[static_cast<std::size_t>(lane)];
    const std::size_t n = std::min(n_pending(lane), static_cast<std::size_t>(std::max(n_new, 0)));
    if (n == 0 || !pending.skipped.empty() || device_->traits().has_state()) return;
    pending.rows.take_back(n);
    const std::span<const Token> left_out = text.first(static_cast<std::size_t>(n_computed)).last(n);
    pending.skipped.assign(left_out.begin(), left_out.end());
}

void DflashDrafts::warn_of_loss(const Result<void>& injected) {
    if (injected || std::exchange(has_warned_, true)) return;
    log_warn("the draft model lost a text: " + injected.error().text);
}

// All but one of each full portion: the position that ends it may end a page, too, which would have to wait for it.
void DflashDrafts::overlapped() {
    std::vector<Portion> portions;
    for (std::size_t i = 0; i < pending_.size(); ++i) {
        const auto lane = static_cast<LaneId>(i);
        const Position end = pending_[i].begin + static_cast<Position>(n_pending(lane));
        const Position stop = (end + 1) / kPortion * kPortion - 1;
        if (!pending_[i].rows.empty() && stop > pending_[i].begin) {
            portions.push_back({lane, static_cast<std::size_t>(stop - pending_[i].begin)});
        }
    }
    if (!portions.empty()) warn_of_loss(inject(portions));
}

Result<void> DflashDrafts::catch_up(LaneId lane) {
    const Portion all{lane, n_pending(lane)};
    if (Result<void> injected = inject(std::span(&all, 1)); !injected) return injected;
    return leave_out_skipped(lane);
}

// REQUIRES: nothing is pending before it.
Result<void> DflashDrafts::leave_out_skipped(LaneId lane) {
    Pending& pending = pending_[static_cast<std::size_t>(lane)];
    if (pending.skipped.empty()) return {};
    const Tokens skipped = std::exchange(pending.skipped, {});
    const std::vector<std::uint8_t> rows(skipped.size() * device_->traits().row_bytes);
    std::vector<memory::Cell> cells(skipped.size());
    const auto n_rows = static_cast<std::int32_t>(skipped.size());
    const Position begin = std::exchange(pending.begin, pending.begin + n_rows);
    return device_->write(lane, begin, skipped, rows, n_rows, cells);
}

// One call a ubatch for all lanes together. What could not be injected is lost to the drafter: its memory of the lane
// has a gap then, which find() of its cells reports.
Result<void> DflashDrafts::inject(std::span<const Portion> portions) {
    const auto n_most = static_cast<std::int32_t>(llama_n_ubatch(model_->context()));
    Result<void> result;
    batch_->clear();
    for (const Portion& portion : portions) {
        Pending& pending = pending_[static_cast<std::size_t>(portion.lane)];
        for (std::size_t i = 0; i < portion.n && result; ++i) {
            const Position position = pending.begin + static_cast<Position>(i);
            const std::array<llama_pos, 4> positions = {position, position, position, 0};
            batch_->add_embd({pending.rows.row(i), 1, n_features()}, positions.data(), sequence(portion.lane), false);
            if (batch_->size() < n_most) continue;
            result = run("injecting features", features_shape());
            batch_->clear();
        }
    }
    if (result && batch_->size() > 0) result = run("injecting features", features_shape());
    for (const Portion& portion : portions) take_off(portion);
    return result;
}

// A prompt has many at once; the room for an answer's, which come one by one, stays.
void DflashDrafts::take_off(const Portion& portion) {
    Pending& pending = pending_[static_cast<std::size_t>(portion.lane)];
    pending.rows.take_front(portion.n);
    pending.rows.trim(4 * kMostPending);
    pending.begin += static_cast<Position>(portion.n);
}

Result<std::int32_t> DflashDrafts::prepare(std::span<const DraftAsk> asks) {
    std::vector<Portion> portions;
    std::size_t n_injected = 0;
    for (const DraftAsk& ask : asks) {
        portions.push_back({ask.lane, n_pending(ask.lane)});
        n_injected += portions.back().n;
    }
    if (Result<void> injected = inject(portions); !injected) return injected.error();
    for (const DraftAsk& ask : asks) {
        if (Result<void> left_out = leave_out_skipped(ask.lane); !left_out) return left_out.error();
    }
    return static_cast<std::int32_t>(n_injected);
}

Result<void> DflashDrafts::draft(std::span<const DraftAsk> asks, std::vector<Draft>& drafts) {
    if (const Result<std::int32_t> prepared = prepare(asks); !prepared) return prepared.error();
    batch_->clear();
    // A head computes all blocks as one tensor: they have to be equally long then.
    std::int32_t n_widest = 0;
    for (const DraftAsk& ask : asks) n_widest = std::max(n_widest, n_places(ask));
    const auto n_tokens = [&](const DraftAsk& ask) {
        return first_place_ + (head_ == DflashHead::none ? n_places(ask) : n_widest);
    };
    for (const DraftAsk& ask : asks) {
        const auto last = static_cast<Position>(ask.text.size()) - 1;
        for (std::int32_t i = 0; i < n_tokens(ask); ++i) {
            // The graph gives logits of all its tokens whatever is asked for: with fewer, rows would be another's. A
            // selector hands out what it has made of them.
            const bool wants_logits = head_ != DflashHead::selector;
            batch_->add(i == 0 ? ask.text.back() : mask_, last + i, sequence(ask.lane), wants_logits);
        }
    }
    Result<void> computed = run("drafting", block_shape(asks.size()));
    if (computed) {
        std::int32_t row = 0;
        for (const DraftAsk& ask : asks) {
            const std::int32_t first = row + first_place_;
            drafts.push_back(head_ == DflashHead::selector ? read_selected(ask, first) : read_draft(ask, first));
            row += n_tokens(ask);
        }
    }
    // The block was a question; what the text becomes is injected when it is known.
    for (const DraftAsk& ask : asks) {
        const auto last = static_cast<Position>(ask.text.size()) - 1;
        if (Result<void> dropped = device_->drop(ask.lane, last); !dropped) return dropped;
    }
    return computed;
}

// Nodes of a tree are no more places than there are nodes.
std::int32_t DflashDrafts::n_places(const DraftAsk& ask) const {
    return std::min({ask.n_most, ask.n_deepest, n_block_});
}

// What the last call says from its row `row` on. The places of a block know nothing of each other's tokens: all ways
// through their likeliest ones are drafts, and a tree takes the best of these.
Draft DflashDrafts::read_draft(const DraftAsk& ask, std::int32_t row) const {
    const auto n_vocab = static_cast<std::size_t>(target_.info().n_vocab);
    const bool is_tree = traits_.can_branch && ask.n_leaves > 1;
    std::vector<std::vector<speculation::Candidate>> places;
    Draft chain;
    chain.lane = ask.lane;
    for (std::int32_t i = 0; i < n_places(ask); ++i) {
        const float* logits = model_->context()->get_logits_ith(row + i);  // run() has waited, as for follow()
        if (is_tree) {
            places.push_back(logits == nullptr ? std::vector<speculation::Candidate>(1)
                                               : likeliest_few({logits, n_vocab}, kAlternatives));
        } else if (logits == nullptr || !add_likeliest({logits, n_vocab}, chain)) {
            break;
        }
    }
    return is_tree ? speculation::tree_draft(ask, places) : chain;
}

// The same rows as read_draft(), as the selector packs them: the likeliest tokens of a place, and how well each goes
// with each of those before it.
Draft DflashDrafts::read_selected(const DraftAsk& ask, std::int32_t row) const {
    const auto n_kept = static_cast<std::size_t>(llama_model_dflash_selector_top_k(model_->model()));
    const auto n_embd = static_cast<std::size_t>(llama_model_n_embd(model_->model()));
    Draft chain;
    chain.lane = ask.lane;
    std::size_t before = 0;
    for (std::int32_t i = 0; i < n_places(ask); ++i) {
        const float* packed = model_->context()->get_embeddings_nextn() + static_cast<std::size_t>(row + i) * n_embd;
        const std::span<const float> scores(packed + n_kept + before * n_kept, n_kept);
        const Likeliest best = likeliest(scores);
        if (best.probability <= 0.0F) break;
        before = static_cast<std::size_t>(best.token);
        chain.tokens.push_back(static_cast<Token>(packed[before]));
        chain.confidence.push_back(best.probability);
    }
    return chain;
}

CallShape DflashDrafts::features_shape() const { return {batch_->size(), 0, 1, 1}; }

CallShape DflashDrafts::block_shape(std::size_t n_blocks) const {
    if (head_ == DflashHead::none) return {batch_->size(), batch_->size(), 1, 0};
    const std::int32_t n_outputs = head_ == DflashHead::selector ? 0 : batch_->size();
    return {batch_->size(), n_outputs, static_cast<std::int32_t>(n_blocks), 0};
}

Result<void> DflashDrafts::run(const char* what, const CallShape& shape) {
    try {
        const GraphCache::Lease graph = model_->graphs().lease(shape);
        const int code = llama_process(model_->context(), LLAMA_PROCESS_TYPE_DECODE, batch_->get());
        llama_synchronize(model_->context());
        if (code == 0) return {};
        if (code == kNoMemory) {
            model_->refusals().note();
            return Error{ErrorCode::out_of_memory, std::string("no memory for ") + what};
        }
        return Error{ErrorCode::internal, std::string(what) + " failed (llama_process: " + std::to_string(code) + ")"};
    } catch (const std::bad_alloc&) {
        model_->refusals().note_torn();
        return Error{ErrorCode::out_of_memory, std::string("no memory for ") + what};
    } catch (const std::exception& e) {
        return Error{ErrorCode::internal, std::string(what) + " failed: " + e.what()};
    }
}

void DflashDrafts::begin(LaneId lane, std::span<const Token>, std::int32_t) { drop_pending(lane); }

void DflashDrafts::forget(LaneId lane) {
    drop_pending(lane);
    device_->forget(lane);
}

void DflashDrafts::drop_pending(LaneId lane) {
    Pending& pending = pending_[static_cast<std::size_t>(lane)];
    take_off({lane, n_pending(lane)});
    pending.skipped.clear();
    pending.begin = 0;
}

}  // namespace luce::llama
