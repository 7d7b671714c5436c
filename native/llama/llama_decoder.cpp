#include "llama/llama_decoder.h"

#include <algorithm>
#include <exception>
#include <new>
#include <string>

#include "llama-context.h"
#include "llama/private_member.h"

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

llama_seq_id sequence(LaneId lane) { return static_cast<llama_seq_id>(lane); }

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

}  // namespace

LlamaDecoder::LlamaDecoder(const Model& model, std::int32_t n_lanes)
    : model_(model), batch_(llama_batch_init(static_cast<std::int32_t>(llama_n_batch(model.context())), 0, 1)) {
    const ModelInfo& info = model.info();
    limits_.n_vocab = info.n_vocab;
    limits_.n_pool = info.n_pool;
    limits_.n_ubatch = static_cast<std::int32_t>(llama_n_ubatch(model.context()));
    limits_.n_batch = static_cast<std::int32_t>(llama_n_batch(model.context()));
    // libllama cuts a batch of unequal lanes into groups of equal length on models with recurrent state, a pass over
    // the weights each; so a mixed call gains nothing there and only keeps the decoding lanes waiting.
    limits_.separate_prefill = info.has_recurrent && n_lanes > 1;
}

LlamaDecoder::~LlamaDecoder() { llama_batch_free(batch_); }

Result<void> LlamaDecoder::decode(std::span<const engine::Slice> slices) {
    batch_.n_tokens = 0;
    rows_.clear();
    for (const engine::Slice& slice : slices) {
        Position position = slice.begin;
        for (const Token token : slice.tokens) {
            const std::int32_t i = batch_.n_tokens++;
            batch_.token[i] = token;
            batch_.pos[i] = position++;
            batch_.n_seq_id[i] = 1;
            batch_.seq_id[i][0] = sequence(slice.lane);
            batch_.logits[i] = 0;
        }
        if (slice.wants_logits) batch_.logits[batch_.n_tokens - 1] = 1;
        rows_.push_back(slice.wants_logits ? batch_.n_tokens - 1 : -1);
    }
    try {
        if (const int code = llama_decode(model_.context(), batch_); code != 0) return decode_error(code);
        // GPUs compute behind the call's back; the engine measures what a step costs.
        llama_synchronize(model_.context());
    } catch (const std::bad_alloc&) {
        return decode_error(-2);
    } catch (const std::exception& e) {
        return internal(std::string("the computation failed: ") + e.what());
    }
    return {};
}

void LlamaDecoder::forget(LaneId lane) {
    llama_memory_seq_rm(llama_get_memory(model_.context()), sequence(lane), -1, -1);
}

bool LlamaDecoder::is_end_of_generation(Token token) const {
    return model_.info().has_text && llama_vocab_is_eog(model_.vocab(), token);
}

std::span<const float> LlamaDecoder::logits(std::size_t row) const {
    if (row >= rows_.size() || rows_[row] < 0) return {};
    const float* first = llama_get_logits_ith(model_.context(), rows_[row]);
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
