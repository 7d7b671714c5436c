#include "llama/drafting/common_drafts.h"

#include <llama.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "base/log.h"
#include "common.h"
#include "llama-ext.h"
#include "llama/drafting/drafted_token.h"
#include "llama/model/sequence.h"

namespace luce::llama {
namespace {

using speculation::Draft;
using speculation::DraftAsk;

// Pairs wait until so many are there, or somebody needs them: reading them costs about what a page does.
constexpr std::size_t kMostWaiting = 64;

Error no_memory() { return {ErrorCode::out_of_memory, "no memory for the draft model's computation"}; }

}  // namespace

CommonDrafts::CommonDrafts(const Model& target) : target_(target) {}

CommonDrafts::~CommonDrafts() = default;

Result<std::unique_ptr<CommonDrafts>> CommonDrafts::load(const DraftModelOptions& options, const Model& target) {
    Result<std::unique_ptr<DraftContext>> model = DraftContext::load(options, target);
    if (!model) return model.error();
    if (model.value()->kind() == DraftKind::dflash) {
        return Error{ErrorCode::start_failed, "a DFlash draft does not run token by token"};
    }
    std::unique_ptr<CommonDrafts> drafts(new CommonDrafts(target));
    drafts->model_ = std::move(model).value();
    drafts->traits_.name = name_of(drafts->kind());
    drafts->traits_.n_most = options.n_most;
    drafts->lanes_.resize(static_cast<std::size_t>(options.n_lanes));
    drafts->open();
    if (drafts->model_->shares_cells()) return drafts;
    drafts->device_ = std::make_unique<LlamaKvDevice>(*drafts->model_, options.n_lanes);
    if (const auto& refusal = drafts->device_->traits().refusal) {
        return Error{ErrorCode::start_failed, "the draft's memory cannot be kept: " + *refusal};
    }
    return drafts;
}

// What belongs to the contexts, which go and come back.
void CommonDrafts::open() {
    const llama_model* target = target_.model();
    n_batch_ = static_cast<std::int32_t>(llama_n_batch(context()));
    n_row_ = n_input_ = 0;
    if (kind() == DraftKind::eagle3) {
        n_row_ = model_->target_layers().size() * static_cast<std::size_t>(llama_model_n_embd(target));
        n_input_ = static_cast<std::size_t>(llama_model_n_embd(llama_get_model(context())));
    } else if (kind() != DraftKind::simple) {
        n_row_ = n_input_ = static_cast<std::size_t>(llama_model_n_embd_out(target));
    }
    has_recurrent_ = kind() == DraftKind::simple && llama_model_is_hybrid(llama_get_model(context()));
    batch_ = std::make_unique<common_batch>(context());
    for (Lane& lane : lanes_) lane = {};
}

void CommonDrafts::unload(bool keeps_weights) {
    if (device_) device_->unbind();
    batch_.reset();
    model_->unload(keeps_weights);
    for (Lane& lane : lanes_) lane = {};
}

Result<void> CommonDrafts::reload() {
    if (Result<void> loaded = model_->reload(); !loaded) return loaded;
    open();
    if (device_) device_->rebind();
    return {};
}

void CommonDrafts::begin(LaneId id, std::span<const Token>, std::int32_t n_computed) {
    Lane& lane = lane_of(id);
    const bool has_state = !lane.carry.empty() && n_computed > 0 && lane.end() == n_computed && lane.tokens.empty();
    std::vector<float> carry = std::move(lane.carry);
    lane = {};
    lane.begin = n_computed;
    if (has_state) {
        lane.carry = std::move(carry);
    } else if (has_cells() || n_computed == 0) {
        lane.carry.assign(n_input_, 0.0F);  // before the text there is nothing, and what is not known is a poor guess
    }
}

void CommonDrafts::forget(LaneId id) {
    lane_of(id) = {};
    if (device_) device_->forget(id);
}

void CommonDrafts::lose(Lane& lane, const std::string& why) {
    lane = {};
    lane.is_lost = true;
    if (!has_warned_) log_warn("the draft model lost a text and drafts no more for it: " + why);
    has_warned_ = true;
}

void CommonDrafts::follow(LaneId id, std::span<const Token> text, std::int32_t n_computed, std::int32_t n_new,
                          speculation::BatchRows rows) {
    Lane& lane = lane_of(id);
    if (lane.is_lost || n_new <= 0) return;
    const auto n = static_cast<std::size_t>(n_new);
    if (!has_cells()) {
        lane.begin = n_computed;
        lane.carry.resize(n_input_);
        copy_rows(static_cast<std::int32_t>(rows[n - 1]), 1, lane.carry);
        return;
    }
    if (lane.end() != n_computed - n_new) {
        lose(lane, "it stands at " + std::to_string(lane.end()) + ", the text went on at " +
                       std::to_string(n_computed - n_new));
        return;
    }
    const auto fresh = text.subspan(static_cast<std::size_t>(n_computed - n_new), n);
    lane.tokens.insert(lane.tokens.end(), fresh.begin(), fresh.end());
    const std::size_t n_old = lane.rows.size();
    lane.rows.resize(n_old + n * n_row_);
    copy_rows(rows, n, std::span(lane.rows).subspan(n_old));
    if (lane.tokens.size() < kMostWaiting) return;
    // A failure is told by the lane being lost.
    (void)read(std::span(&id, 1));
}

// What the target made of n tokens of its last batch.
void CommonDrafts::copy_rows(speculation::BatchRows rows, std::size_t n, std::span<float> out) const {
    llama_context* target = target_.context();
    if (n_row_ == 0) return;
    if (kind() != DraftKind::eagle3) {
        const float* hidden = llama_get_embeddings_nextn(target);
        for (std::size_t i = 0; i < n; ++i) {
            std::memcpy(out.data() + i * n_row_, hidden + rows[i] * n_row_, n_row_ * sizeof(float));
        }
        return;
    }
    const auto n_embd = static_cast<std::size_t>(llama_model_n_embd(target_.model()));
    const std::int32_t n_layers = llama_model_n_layer(target_.model());
    float* to = out.data();
    for (const std::int32_t layer : model_->target_layers()) {
        const float* features = layer < n_layers
                                    ? llama_get_embeddings_layer_inp(target, static_cast<std::uint32_t>(layer))
                                    : llama_get_embeddings_nextn(target);
        for (std::size_t i = 0; i < n; ++i) {
            std::memcpy(to + i * n_row_, features + rows[i] * n_embd, n_embd * sizeof(float));
        }
        to += n_embd;
    }
}

// EAGLE-3 fuses what it reads of the target's layers, each token by itself.
Result<void> CommonDrafts::encode(Lane& lane) {
    const std::size_t n = lane.tokens.size();
    lane.inputs.resize(n * n_input_);
    for (std::size_t first = 0; first < n; first += static_cast<std::size_t>(n_batch_)) {
        const std::size_t n_now = std::min(n - first, static_cast<std::size_t>(n_batch_));
        common_batch batch(context());
        // Places mean nothing here, but have to be such as sequence 0 could go on with.
        const llama_pos place_0 = llama_memory_seq_pos_max(llama_get_memory(context()), 0) + 1;
        for (std::size_t i = 0; i < n_now; ++i) {
            const llama_pos place = place_0 + static_cast<llama_pos>(i);
            batch.add_embd({lane.rows.data() + (first + i) * n_row_, 1, n_row_}, &place, 0, true);
        }
        try {
            const int code = llama_process(context(), LLAMA_PROCESS_TYPE_ENCODE, batch.get());
            const float* fused = code == 0 ? llama_get_embeddings_nextn(context()) : nullptr;
            if (code == kNoMemory) {
                model_->refusals().note();
                return no_memory();
            }
            if (fused == nullptr) {
                return Error{ErrorCode::internal, "fusing features failed (" + std::to_string(code) + ")"};
            }
            std::memcpy(lane.inputs.data() + first * n_input_, fused, n_now * n_input_ * sizeof(float));
        } catch (const std::bad_alloc&) {
            model_->refusals().note_torn();
            return no_memory();
        } catch (const std::exception& e) {
            return Error{ErrorCode::internal, std::string("fusing features failed: ") + e.what()};
        }
    }
    return {};
}

Result<void> CommonDrafts::prepare_lane(Lane& lane) {
    if (kind() == DraftKind::eagle3) {
        if (Result<void> encoded = encode(lane); !encoded) return encoded;
    } else {
        lane.inputs = std::move(lane.rows);
    }
    lane.carry.resize(n_input_);
    const auto last = static_cast<std::ptrdiff_t>(n_input_);
    if (!lane.tokens.empty()) {
        lane.next_carry.assign(lane.inputs.end() - last, lane.inputs.end());
    } else {
        lane.next_carry = lane.carry;
    }
    return {};
}

// Puts what waits into the batch, which is run whenever it is full.
Result<void> CommonDrafts::queue(LaneId id, Lane& lane, bool wants_output) {
    if (Result<void> prepared = prepare_lane(lane); !prepared) return prepared;
    for (std::size_t i = 0; i < lane.tokens.size(); ++i) {
        if (batch_->size() == n_batch_) {
            if (Result<void> computed = run(); !computed) return computed;
            batch_->clear();
        }
        const float* input = i == 0 ? lane.carry.data() : lane.inputs.data() + (i - 1) * n_input_;
        add(lane.tokens[i], lane.begin + static_cast<Position>(i), id, input, wants_output);
    }
    return {};
}

void CommonDrafts::finish(Lane& lane) {
    lane.begin = lane.end();
    lane.tokens.clear();
    lane.rows.clear();
    lane.inputs.clear();
    lane.carry = std::move(lane.next_carry);
    lane.next_carry.clear();
}

// All or nothing: what could not be read is lost to the draft, which has a gap then that find() of its cells reports.
Result<void> CommonDrafts::read(std::span<const LaneId> ids) {
    batch_->clear();
    Result<void> result;
    for (const LaneId id : ids) {
        if (Lane& lane = lane_of(id); result && !lane.is_lost) result = queue(id, lane, false);
    }
    if (result && batch_->size() > 0) result = run();
    for (const LaneId id : ids) {
        Lane& lane = lane_of(id);
        if (lane.is_lost) continue;
        if (result) {
            finish(lane);
        } else {
            lose(lane, result.error().text);
        }
    }
    return result;
}

Result<void> CommonDrafts::catch_up(LaneId id) {
    const Lane& lane = lane_of(id);
    if (lane.is_lost) return Error{ErrorCode::internal, "the draft model has lost the lane's text"};
    return lane.tokens.empty() ? Result<void>() : read(std::span(&id, 1));
}

std::int32_t CommonDrafts::add(Token token, Position position, LaneId lane, const float* input, bool wants_output) {
    // A plain draft's vocabulary may end earlier than the target's.
    const Token known = token < model_->n_vocab() ? token : 0;
    const std::int32_t row = batch_->add(known, position, sequence(lane), wants_output);
    const llama_embd embedding{const_cast<float*>(input), 1, n_input_};
    if (kind() == DraftKind::eagle3) {
        batch_->set_embd(row, embedding);
    } else if (kind() != DraftKind::simple) {
        batch_->set_embd_state(row, embedding);
    }
    return row;
}

Result<void> CommonDrafts::run() {
    const auto n_outputs = std::count_if(batch_->tokens.begin(), batch_->tokens.end(),
                                         [](const common_batch::token& token) { return token.output; });
    try {
        const GraphCache::Lease graph =
            model_->graphs().lease({batch_->size(), static_cast<std::int32_t>(n_outputs), 1, 0});
        const int code = llama_process(context(), LLAMA_PROCESS_TYPE_DECODE, batch_->get());
        llama_synchronize(context());
        if (code == 0) return {};
        if (code == kNoMemory) {
            model_->refusals().note();
            return no_memory();
        }
        return Error{ErrorCode::internal, "the draft model failed (llama_process: " + std::to_string(code) + ")"};
    } catch (const std::bad_alloc&) {
        model_->refusals().note_torn();
        return no_memory();
    } catch (const std::exception& e) {
        return Error{ErrorCode::internal, std::string("the draft model failed: ") + e.what()};
    }
}

bool CommonDrafts::can_draft(const DraftAsk& ask) {
    const Lane& lane = lane_of(ask.lane);
    if (lane.is_lost || ask.n_most < 1 || traits_.n_most < 1) return false;
    if (lane.end() + 1 != static_cast<Position>(ask.text.size())) return false;
    return n_input_ == 0 || !lane.carry.empty() || !lane.tokens.empty();
}

// Reads what waits and each text's last token, in one call if there is not too much. Then each token has an output,
// wanted or not: of a call where some have none, not all of llama.cpp's graphs hand out the others' hidden states.
Result<std::vector<CommonDrafts::Chain>> CommonDrafts::seed(std::span<const DraftAsk> asks) {
    std::vector<Chain> chains;
    std::vector<LaneId> lanes;
    std::size_t n_rows = 0;
    for (std::size_t i = 0; i < asks.size(); ++i) {
        if (!can_draft(asks[i])) continue;
        chains.push_back({i, 0});
        lanes.push_back(asks[i].lane);
        n_rows += lane_of(asks[i].lane).tokens.size() + 1;
    }
    if (has_recurrent_ || n_rows > static_cast<std::size_t>(model_->n_outputs())) {
        if (Result<void> caught_up = read(lanes); !caught_up) return caught_up.error();
    }
    for (const LaneId id : lanes) {
        if (!has_recurrent_) break;
        if (Result<void> saved = device_->save_state(id, lane_of(id).state, nullptr); !saved) return saved.error();
    }
    if (has_recurrent_) device_->settle();
    batch_->clear();
    for (Chain& chain : chains) {
        const DraftAsk& ask = asks[chain.ask];
        Lane& lane = lane_of(ask.lane);
        if (Result<void> queued = queue(ask.lane, lane, kind() != DraftKind::simple); !queued) return queued.error();
        chain.row = add(ask.text.back(), lane.end(), ask.lane, lane.next_carry.data(), true);
    }
    if (chains.empty()) return chains;
    if (Result<void> computed = run(); !computed) return computed.error();
    return chains;
}

Result<void> CommonDrafts::draft(std::span<const DraftAsk> asks, std::vector<Draft>& drafts) {
    const Result<std::vector<Chain>> chains = seed(asks);
    if (!chains) {
        // One without cells has read nothing: it goes on from the target's.
        for (const DraftAsk& ask : asks) {
            if (has_cells()) lose(lane_of(ask.lane), chains.error().text);
        }
        return chains.error();
    }
    const std::size_t n_old = drafts.size();
    for (const DraftAsk& ask : asks) drafts.emplace_back().lane = ask.lane;
    for (const Chain& chain : chains.value()) finish(lane_of(asks[chain.ask].lane));
    extend(asks, chains.value(), std::span(drafts).subspan(n_old));
    // What was drafted was a question; what the text becomes is read when it is known.
    for (const Chain& chain : chains.value()) {
        if (!has_cells()) continue;
        const LaneId id = asks[chain.ask].lane;
        if (Result<void> taken_back = take_back(id); !taken_back) lose(lane_of(id), taken_back.error().text);
    }
    return {};
}

Result<void> CommonDrafts::take_back(LaneId id) {
    Lane& lane = lane_of(id);
    Result<void> dropped = device_->drop(id, lane.end());
    if (!has_recurrent_) return dropped;
    return device_->load_state(id, lane.state);  // the cells are gone, and this is the rest
}

// One token for each draft and pass, until all have as many as were asked for.
void CommonDrafts::extend(std::span<const DraftAsk> asks, std::vector<Chain> chains, std::span<Draft> drafts) {
    while (!chains.empty()) {
        std::vector<Chain> going_on;
        for (const Chain& chain : chains) {
            Draft& draft = drafts[chain.ask];
            const std::int32_t n_most = std::min(asks[chain.ask].n_most, traits_.n_most);
            const bool is_taken = take_token(chain, draft);
            if (is_taken && static_cast<std::int32_t>(draft.tokens.size()) < n_most) going_on.push_back(chain);
        }
        batch_->clear();
        for (Chain& chain : going_on) {
            const Draft& draft = drafts[chain.ask];
            const Position last = lane_of(draft.lane).end();
            const float* hidden = n_input_ == 0 ? nullptr : llama_get_embeddings_nextn_ith(context(), chain.row);
            // The assistant was trained to stay where the text ends.
            const Position position = has_cells() ? last + static_cast<Position>(draft.tokens.size()) : last;
            chain.row = add(draft.tokens.back(), position, draft.lane, hidden, true);
        }
        chains = std::move(going_on);
        if (chains.empty()) return;
        if (const Result<void> computed = run(); !computed) return;  // what is there is as good as before
    }
}

bool CommonDrafts::take_token(const Chain& chain, Draft& draft) const {
    const float* logits = llama_get_logits_ith(context(), chain.row);
    if (logits == nullptr) return false;
    const std::int32_t n_vocab = std::min(model_->n_vocab(), target_.info().n_vocab);
    return add_likeliest({logits, static_cast<std::size_t>(n_vocab)}, draft);
}

// Cells alone are no state: where nothing is carried over, a text can be taken up at any place.
std::size_t CommonDrafts::state_bytes() const {
    return n_input_ == 0 ? 0 : sizeof(Position) + n_input_ * sizeof(float);
}

Result<std::vector<std::uint8_t>> CommonDrafts::save_state(LaneId id) {
    if (Result<void> caught_up = catch_up(id); !caught_up) return caught_up.error();
    const Lane& lane = lane_of(id);
    std::vector<std::uint8_t> state(state_bytes());
    if (state.empty()) return state;
    std::memcpy(state.data(), &lane.begin, sizeof lane.begin);
    if (!lane.carry.empty()) std::memcpy(state.data() + sizeof lane.begin, lane.carry.data(), n_input_ * sizeof(float));
    return state;
}

Result<void> CommonDrafts::load_state(LaneId id, std::span<const std::uint8_t> state) {
    Position position = 0;
    if (state.size() != state_bytes()) {
        return Error{ErrorCode::internal, "a draft's state of " + std::to_string(state.size()) + " bytes where " +
                                              std::to_string(state_bytes()) + " were expected"};
    }
    if (state.empty()) return {};
    std::memcpy(&position, state.data(), sizeof position);
    Lane& lane = lane_of(id);
    lane = {};
    lane.begin = position;
    lane.carry.resize(n_input_);
    std::memcpy(lane.carry.data(), state.data() + sizeof position, n_input_ * sizeof(float));
    return {};
}

}  // namespace luce::llama
