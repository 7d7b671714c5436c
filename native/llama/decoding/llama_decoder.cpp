#include "llama/decoding/llama_decoder.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <iterator>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "base/step_profile.h"
#include "llama-batch.h"
#include "llama-context.h"
#include "llama-cparams.h"
#include "llama-model.h"
#include "llama/decoding/private_member.h"
#include "llama/experts/expert_mover.h"
#include "llama/kv_cache/kv_device.h"
#include "llama/model/sequence.h"

namespace luce::llama {

struct ReserveOutput {
    friend constexpr auto member_of(ReserveOutput);
};
struct OutputIds {
    friend constexpr auto member_of(OutputIds);
};
struct NumOutputs {
    friend constexpr auto member_of(NumOutputs);
};
struct OutputSwaps {
    friend constexpr auto member_of(OutputSwaps);
};
struct InputOrder {
    friend constexpr auto member_of(InputOrder);
};
struct LogitsView {
    friend constexpr auto member_of(LogitsView);
};

template struct PrivateMember<ReserveOutput, &llama_context::output_reserve>;
template struct PrivateMember<OutputIds, &llama_context::output_ids>;
template struct PrivateMember<NumOutputs, &llama_context::n_outputs>;
template struct PrivateMember<OutputSwaps, &llama_context::output_swaps>;
template struct PrivateMember<InputOrder, &llama_context::embd_batch_idxs>;
template struct PrivateMember<LogitsView, &llama_context::logits>;

namespace {

Error internal(std::string text) { return {ErrorCode::internal, std::move(text)}; }

// What llama_decode's return values mean (llama.h).
Error decode_error(int code) {
    switch (code) {
        case 1: return {ErrorCode::no_room, "no free cells for this batch"};
        case 2: return internal("the computation was aborted");
        case -1: return internal("libllama refused the batch");
        case -2: return {ErrorCode::out_of_memory, "no memory for the computation's buffers"};
        default: return internal("the computation failed (llama_decode: " + std::to_string(code) + ")");
    }
}

// While it lives, each position of a call sees all of the call.
class SeesAll {
public:
    SeesAll(llama_context& context, bool is_wanted) : context_(context), is_wanted_(is_wanted) {
        if (is_wanted_) context_.set_causal_attn(false);
    }
    ~SeesAll() {
        if (is_wanted_) context_.set_causal_attn(true);
    }
    SeesAll(const SeesAll&) = delete;
    SeesAll& operator=(const SeesAll&) = delete;

private:
    llama_context& context_;
    bool is_wanted_;
};

// Of an image's rows, in four parts: where each row stands, where RoPE sees it less the shift, and the shift, which
// cmake/patches/rope-shift.patch adds. None: without places, libllama's positions have one part.
std::vector<Position> positions_of(const engine::Slice& slice) {
    const std::size_t n = slice.places.size();
    std::vector<Position> positions(4 * n);
    const Position first = slice.begin + slice.rope_shift;
    for (std::size_t i = 0; i < n; ++i) {
        const Position position = slice.begin + static_cast<Position>(i);
        const Position shift = first + slice.places[i].time - position;
        positions[i] = position;
        positions[n + i] = first + slice.places[i].row - shift;
        positions[2 * n + i] = first + slice.places[i].column - shift;
        positions[3 * n + i] = shift;
    }
    return positions;
}

bool wants_logits(std::span<const engine::Slice> slices) {
    return std::any_of(slices.begin(), slices.end(), [](const engine::Slice& slice) { return slice.n_logits > 0; });
}

}  // namespace

LlamaDecoder::LlamaDecoder(const Model& model, std::int32_t n_lanes)
    : model_(model),
      branches_(model, n_lanes),
      batch_(llama_batch_init(static_cast<std::int32_t>(llama_n_batch(model.context())), 0, branches_.n_token_ids())),
      contention_(model.info().n_threads) {
    const ModelInfo& info = model.info();
    limits_.n_vocab = info.n_vocab;
    limits_.n_pool = info.n_pool;
    limits_.n_ubatch = static_cast<std::int32_t>(llama_n_ubatch(model.context()));
    limits_.n_batch = static_cast<std::int32_t>(llama_n_batch(model.context()));
    limits_.n_logits = info.n_logits;
    limits_.n_prompt_logits = info.n_prompt_logits;
    limits_.n_branches = branches_.n_most();
    if (model.context()->get_cparams().pipeline_parallel) {
        limits_.n_stages = static_cast<std::int32_t>(model.model()->n_devices());
    }
    limits_.waits_for_device = info.n_gpu_layers != 0;  // negative: all of them
    // libllama cuts a batch of unequal lanes into groups of equal length on models with recurrent state, a pass over
    // the weights each; so a mixed call gains nothing there and only keeps the decoding lanes waiting.
    limits_.separate_prefill = info.has_recurrent && n_lanes > 1;
}

LlamaDecoder::~LlamaDecoder() { llama_batch_free(batch_); }

Result<void> LlamaDecoder::decode(std::span<const engine::Slice> slices, const std::function<void()>& overlapped) {
    Span submit(Part::submit);
    batch_.n_tokens = 0;
    rope_shifts_.clear();
    rows_.clear();
    branches_.close_all();
    std::int32_t n_logits_most = 1;
    if (Result<void> opened = branches_.open(slices); !opened) return opened;
    for (const engine::Slice& slice : slices) {
        add(slice);
        if (!slice.is_certain) n_logits_most = std::max(n_logits_most, slice.n_logits);
    }
    keep_states_for(n_logits_most - 1);
    const Result<void> computed = compute(slices, overlapped, submit);
    if (!computed) branches_.close_all();
    return computed;
}

void LlamaDecoder::add(const engine::Slice& slice) {
    if (!slice.parents.empty()) {
        add_tree(slice);
    } else {
        for (std::size_t n = 0; n < slice.tokens.size(); ++n) {
            const Position shift = slice.rope_shifts.empty() ? slice.rope_shift : slice.rope_shifts[n];
            const std::int32_t i = add_token(slice.tokens[n], slice.begin + static_cast<Position>(n), shift);
            batch_.n_seq_id[i] = 1;
            batch_.seq_id[i][0] = sequence(slice.lane);
        }
    }
    for (std::int32_t i = batch_.n_tokens - slice.n_logits; i < batch_.n_tokens; ++i) {
        batch_.logits[i] = 1;
        rows_.push_back(i);
    }
    if (slice.n_logits == 0) rows_.push_back(-1);
}

// Each token is of all the sequences that its way leads on to; so each sees what leads to it.
void LlamaDecoder::add_tree(const engine::Slice& slice) {
    const TreeBranches::Tree& opened = branches_.tree_of(slice.lane);
    for (speculation::NodeIndex node = 0; node < slice.tokens.size(); ++node) {
        const auto depth = static_cast<Position>(opened.tree.nodes()[node].depth);
        const std::int32_t i = add_token(slice.tokens[node], slice.begin + depth, slice.rope_shift);
        const std::span<const std::int32_t> sequences = opened.sequences_with(node);
        batch_.n_seq_id[i] = static_cast<std::int32_t>(sequences.size());
        std::copy(sequences.begin(), sequences.end(), batch_.seq_id[i]);
    }
}

// On models with recurrent state the graph depends on which lanes take part, and with how many tokens each; with trees
// on how many sequences these are. A watched call is computed in parts, and CUDA's backend knows the graphs that it has
// captured by their first node: it would have to capture the whole call's again after each of the others.
CallShape LlamaDecoder::shape_of(std::span<const engine::Slice> slices, bool is_watched) const {
    CallShape shape;
    shape.n_tokens = batch_.n_tokens;
    for (const engine::Slice& slice : slices) shape.n_outputs += slice.n_logits;
    shape.variant = static_cast<std::uint64_t>(branches_.n_borrowed());
    if (is_watched && limits_.waits_for_device) shape.variant |= std::uint64_t{1} << 32;
    if (!model_.info().has_recurrent) return shape;
    shape.n_sequences = static_cast<std::int32_t>(slices.size());
    constexpr std::uint64_t kPrime = 0x100000001b3;  // FNV-1a's
    for (const engine::Slice& slice : slices) {
        for (const std::size_t part :
             {static_cast<std::size_t>(slice.lane), slice.tokens.size(), static_cast<std::size_t>(slice.n_logits)}) {
            shape.variant = (shape.variant ^ (part + 1)) * kPrime;
        }
    }
    return shape;
}

std::int32_t LlamaDecoder::add_token(Token token, Position position, Position rope_shift) {
    rope_shifts_.push_back(rope_shift);
    const std::int32_t i = batch_.n_tokens++;
    batch_.token[i] = token;
    batch_.pos[i] = position;
    batch_.logits[i] = 0;
    return i;
}

// A context with a number of sequences that takes all branches would reserve a window's cells for each of them; for the
// cells themselves it is a number to check batches by.
Result<void> LlamaDecoder::compute(std::span<const engine::Slice> slices, const std::function<void()>& overlapped,
                                   Span& submit) {
    auto& params = const_cast<llama_cparams&>(model_.context()->get_cparams());
    const std::uint32_t n_sequences = params.n_seq_max;
    params.n_seq_max = std::max(n_sequences, static_cast<std::uint32_t>(branches_.n_ids()));
    Result<void> done;
    const auto begun = std::chrono::steady_clock::now();
    try {
        std::vector<QueryProbe::Sequence> sequences = watched(slices);
        // A kept graph is one that begins with tokens.
        const bool is_image = !slices.front().embeddings.empty();
        const CallShape shape = shape_of(slices, !sequences.empty());
        std::optional<GraphCache::Lease> graph;
        if (!is_image) graph.emplace(model_.graphs().lease(shape));
        was_first_ = graph && graph->is_new();
        std::optional<QueryProbe::Watch> watch;  // ends before the lease
        if (!sequences.empty()) watch.emplace(*probe_, *model_.context(), std::move(sequences));
        done = is_image ? decode_rows(slices.front()) : decode_batch(shape);
        end_submit(slices.size(), submit);
        if (done && overlapped) overlapped();
        if (done && (wants_logits(slices) || (experts_ != nullptr && experts_->counts_all()))) {
            wait();
            if (experts_ != nullptr) experts_->after_call(batch_.n_tokens, outputs());
        }
    } catch (const std::bad_alloc&) {
        is_torn_ = true;
        done = decode_error(-2);
    } catch (const std::exception& e) {
        // libllama reserves anew where settings have changed.
        const bool lacks_memory = std::string_view(e.what()).find("failed to allocate") != std::string_view::npos;
        done = lacks_memory ? decode_error(-2) : internal(std::string("the computation failed: ") + e.what());
    }
    params.n_seq_max = n_sequences;
    contention_.note(std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count());
    return done;
}

Result<void> LlamaDecoder::decode_batch(const CallShape& shape) {
    const auto decode = [&]() -> Result<void> {
        const bool is_shifted =
            std::any_of(rope_shifts_.begin(), rope_shifts_.end(), [](Position n) { return n != 0; });
        const int code = is_shifted ? decode_shifted() : llama_decode(model_.context(), batch_);
        if (code != 0) return decode_error(code);
        return {};
    };
    if (!limits_.waits_for_device || kv_device_ == nullptr || !GraphCache::may_keep(shape)) return decode();
    const KvCells::WiderSpan span = kv_device_->widen_span(shape.n_tokens);
    return decode();
}

// A token's position has no fourth part in llama_batch (cmake/patches/rope-shift.patch reads it).
int LlamaDecoder::decode_shifted() const {
    const llama_batch_compat batch(model_.context(), batch_);
    for (std::size_t i = 0; i < rope_shifts_.size(); ++i) batch.batch_ext->tokens[i].pos[3] = rope_shifts_[i];
    return model_.context()->decode(*batch.batch_ext);
}

// libllama computes rows of embeddings instead of tokens where the batch has some; the rest of the batch is the same.
Result<void> LlamaDecoder::decode_rows(const engine::Slice& slice) {
    llama_batch rows = batch_;
    rows.token = nullptr;
    rows.embd = const_cast<float*>(slice.embeddings.data());
    std::vector<Position> positions = positions_of(slice);
    if (!positions.empty()) rows.pos = positions.data();
    const SeesAll sees_all(*model_.context(), slice.sees_all);
    if (const int code = llama_decode(model_.context(), rows); code != 0) return decode_error(code);
    return {};
}

void LlamaDecoder::wait() {
    const Span span(Part::wait);
    llama_synchronize(model_.context());
}

void LlamaDecoder::end_submit(std::size_t n_slices, Span& submit) const {
    if (!submit.is_measured()) return;
    const std::int32_t n_cells = kv_device_ == nullptr ? 0 : kv_device_->usage().n_spanned_cells;
    submit.count({static_cast<std::int64_t>(n_slices), batch_.n_tokens, n_cells});
    submit.end();
}

// A tree's tokens may be its branches' alone.
std::vector<QueryProbe::Sequence> LlamaDecoder::watched(std::span<const engine::Slice> slices) const {
    std::vector<QueryProbe::Sequence> sequences;
    if (probe_ == nullptr || !probe_->is_bound()) return sequences;
    for (const engine::Slice& slice : slices) {
        if (!probe_->is_watched(slice.lane)) continue;
        if (slice.parents.empty()) {
            sequences.push_back({sequence(slice.lane), slice.lane, slice.begin});
        } else {
            for (const std::int32_t id : branches_.tree_of(slice.lane).sequences) {
                sequences.push_back({id, slice.lane, slice.begin});
            }
        }
    }
    return sequences;
}

Result<void> LlamaDecoder::keep(LaneId lane, std::span<const std::int32_t> path) { return branches_.close(lane, path); }

// How many recurrent states a computation leaves behind, one a token back, is part of its graph, and each costs time.
// Only tokens that may be taken back need them, and those are drafted ones, whose logits are wanted: so a graph of the
// same shape keeps as many, and libllama may use it again.
void LlamaDecoder::keep_states_for(std::int32_t n_tokens_back) {
    const std::uint32_t n_most = model_.info().n_rollback;
    auto& params = const_cast<llama_cparams&>(model_.context()->get_cparams());
    params.n_rs_seq = std::min(n_most, static_cast<std::uint32_t>(n_tokens_back));
}

std::vector<std::int32_t> LlamaDecoder::outputs() const {
    std::vector<std::int32_t> tokens;
    std::copy_if(rows_.begin(), rows_.end(), std::back_inserter(tokens), [](std::int32_t row) { return row >= 0; });
    return tokens;
}

std::optional<engine::ExpertReads> LlamaDecoder::expert_reads(std::size_t first, std::size_t n) const {
    if (experts_ == nullptr || !experts_->is_split()) return std::nullopt;
    return experts_->reads(first, n);
}

bool LlamaDecoder::has_idle_work() const { return experts_ != nullptr && experts_->has_idle_work(); }

void LlamaDecoder::use_idle_time() {
    wait();
    experts_->use_idle_time();
}

void LlamaDecoder::forget(LaneId lane) {
    llama_memory_seq_rm(llama_get_memory(model_.context()), sequence(lane), -1, -1);
}

bool LlamaDecoder::is_end_of_generation(Token token) const {
    return model_.info().has_text && llama_vocab_is_eog(model_.vocab(), token);
}

std::span<const float> LlamaDecoder::logits(std::size_t row) const {
    if (row >= rows_.size() || rows_[row] < 0) return {};
    const Span span(Part::logits);
    // compute() has waited for it; llama_get_logits_ith would once more.
    const float* first = model_.context()->get_logits_ith(rows_[row]);
    if (first == nullptr) return {};
    return {first, static_cast<std::size_t>(limits_.n_vocab)};
}

// What llama_context::decode leaves behind for a batch of one token with logits, without the computation; the next
// decode begins by dropping it, as it drops a computed one's.
Result<void> LlamaDecoder::recall(std::span<const float> logits) {
    if (logits.size() != static_cast<std::size_t>(limits_.n_vocab)) {
        return internal(std::to_string(logits.size()) + " logits for a vocabulary of " +
                        std::to_string(limits_.n_vocab));
    }
    rows_.clear();
    llama_context& context = *model_.context();
    context.synchronize();  // logits of the last decode may still be on their way
    (context.*member_of(OutputSwaps{})).clear();
    (context.*member_of(InputOrder{})).clear();
    if ((context.*member_of(ReserveOutput{}))(1) < 1) return decode_error(-2);
    std::copy(logits.begin(), logits.end(), (context.*member_of(LogitsView{})).data);
    (context.*member_of(OutputIds{}))[0] = 0;
    context.*member_of(NumOutputs{}) = 1;
    rows_ = {0};
    return {};
}

}  // namespace luce::llama
