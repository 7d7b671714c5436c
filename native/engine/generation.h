// Generation: one request while it runs: its text, how much of it the model has seen, what it cost so far. Owned by
// the lane that serves it, or by the suspended list while the pool has no room for it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/decoder.h"
#include "engine/request.h"

namespace luce::engine {

inline constexpr auto kRepairKey = static_cast<RequestKey>(std::numeric_limits<std::uint64_t>::max());

class Generation {
public:
    Generation(Request request, std::unique_ptr<TokenSampler> sampler, std::uint64_t arrival, double now_s)
        : request_(std::move(request)),
          sampler_(std::move(sampler)),
          arrival_(arrival),
          started_s_(now_s),
          text_(request_.prompt),
          next_row_(request_.first_prompt_row()) {
        if (request_.sparse != nullptr || request_.memory.salt) names_ = request_.names();
        if (request_.sparse != nullptr) rope_shifts_ = request_.sparse->shifts();
    }

    const Request& request() const { return request_; }
    TokenSampler& sampler() { return *sampler_; }
    std::uint64_t arrival() const { return arrival_; }

    std::int32_t n_text() const { return static_cast<std::int32_t>(text_.size()); }
    std::int32_t n_prompt() const { return static_cast<std::int32_t>(request_.prompt.size()); }
    std::int32_t n_generated() const { return n_text() - n_prompt(); }
    std::int32_t n_computed() const { return n_computed_; }
    std::int32_t n_pending() const { return n_text() - n_computed_; }
    bool is_prefilling() const { return n_pending() > 1 || n_generated() == 0; }

    // The next position of the prompt whose token's log-probabilities are to be told; unset: no more are.
    std::optional<Position> next_prompt_row() const { return next_row_; }
    void mark_row_told() {
        if (++*next_row_ >= request_.end_of_prompt_rows()) next_row_.reset();
    }

    // The next n pending tokens; valid until append().
    std::span<const Token> pending(std::int32_t n) const {
        return std::span(text_).subspan(static_cast<std::size_t>(n_computed_), static_cast<std::size_t>(n));
    }

    std::span<const Token> text() const { return text_; }
    std::span<const Token> names() const { return names_.empty() ? text_ : names_; }  // what memory knows it by

    // Nobody waits for it, and no event tells of it: a text that was read in parts is read whole.
    bool is_repair() const { return request_.key == kRepairKey; }

    // The image that the position is of; null: a token's.
    const ImageRun* image_at(Position position) const {
        const auto run = first_image_behind(position);
        return run != request_.images.end() && run->begin <= position ? &*run : nullptr;
    }

    // How far it is to the next image. REQUIRES: the position is no image's.
    std::int32_t n_until_image(Position position) const {
        const auto run = first_image_behind(position);
        return run == request_.images.end() ? std::numeric_limits<std::int32_t>::max() : run->begin - position;
    }

    // The next n pending tokens, all of one image or of none; valid until append(). REQUIRES: the image's rows are
    // made.
    Slice next_slice(LaneId lane, std::int32_t n, std::int32_t n_logits) const {
        Slice slice{lane, n_computed_, pending(n), n_logits};
        slice.rope_shift = rope_shift(slice.begin);
        if (!rope_shifts_.empty()) {
            slice.rope_shifts =
                std::span(rope_shifts_).subspan(static_cast<std::size_t>(slice.begin), slice.tokens.size());
        }
        const ImageRun* image = image_at(slice.begin);
        if (image == nullptr) return slice;
        const std::size_t n_values = image->rows->n_row_values();
        const auto n_before = static_cast<std::size_t>(slice.begin - image->begin);
        slice.embeddings = image->rows->rows().value().subspan((image->first_row + n_before) * n_values,
                                                               slice.tokens.size() * n_values);
        slice.sees_all = image->sees_all;
        if (image->layout == nullptr) return slice;
        slice.rope_shift -= slice.begin - image->begin;
        slice.places = std::span(image->layout->places).subspan(n_before, slice.tokens.size());
        return slice;
    }

    // What is added to the position of a token, or of an image's first row, for RoPE to see it there.
    Position rope_shift(Position position) const {
        if (!rope_shifts_.empty()) {
            return rope_shifts_[std::min(static_cast<std::size_t>(position), rope_shifts_.size() - 1)];
        }
        Position shift = 0;
        for (const ImageRun& run : request_.images) {
            if (run.end > position) break;
            if (run.layout != nullptr) shift += run.layout->n_positions - (run.end - run.begin);
        }
        return shift;
    }

    void mark_computed(std::int32_t n) { n_computed_ += n; }

    // The lane's memory begins with so much of the text: the first time what was reused, later what could be kept.
    void begin(const memory::PrefillStart& start) {
        n_computed_ = start.n;
        is_redoing_ = false;
        if (has_begun_) return;
        has_begun_ = true;
        start_ = start;
        start_.logits.reset();
    }

    void append(Token token, double now_s) {
        if (n_generated() == 0) first_token_s_ = now_s;
        text_.push_back(token);
        if (!names_.empty()) names_.push_back(token);
        if (!rope_shifts_.empty()) rope_shifts_.push_back(rope_shifts_.back());
        is_redoing_ = false;
    }

    // The lane is where it was before its last call: what that got right is computed again with the token behind it.
    void go_back() { is_redoing_ = true; }
    bool is_redoing() const { return is_redoing_; }

    // Whatever comes before it.
    bool ends_with(Token token, bool ends_generation) const {
        if (ends_generation && !request_.ignores_eos) return true;
        const Tokens& stops = request_.stop_tokens;
        return std::find(stops.begin(), stops.end(), token) != stops.end();
    }

    std::optional<StopReason> finish_after(Token token, bool ends_generation, std::int32_t n_ctx) const {
        if (ends_with(token, ends_generation))
            return ends_generation && !request_.ignores_eos ? StopReason::eos : StopReason::stop;
        if (n_generated() >= request_.n_generate || n_text() >= n_ctx) return StopReason::limit;
        return std::nullopt;
    }

    void count(const Speculation& step) {
        if (!speculation_) speculation_.emplace();
        *speculation_ += step;
    }

    void count(const std::optional<ExpertReads>& reads) {
        if (!reads) return;
        if (!experts_) experts_.emplace();
        *experts_ += *reads;
    }

    GenerationStats stats(StopReason reason, double now_s) const {
        const double prefilled_s = n_generated() > 0 ? first_token_s_ : now_s;
        GenerationStats stats;
        stats.stop = reason;
        stats.n_prompt = n_prompt();
        if (request_.sparse != nullptr) {
            stats.n_prompt = static_cast<std::int32_t>(request_.sparse->prompt().size());
            stats.n_read = n_prompt();
        }
        stats.n_generated = n_generated();
        stats.n_reused = start_.n;
        stats.tier = memory::to_string(start_.tier);
        stats.miss = memory::to_string(start_.miss);
        stats.restored = start_.restored;
        stats.prefill_s = prefilled_s - started_s_;
        stats.decode_s = now_s - prefilled_s;
        if (stats.decode_s > 0) stats.decode_tokens_per_s = (n_generated() - 1) / stats.decode_s;
        stats.speculation = speculation_;
        stats.experts = experts_;
        return stats;
    }

    std::uint64_t n_read_before = 0;  // of all prompts, when it came

private:
    // The first image that ends behind the position.
    std::vector<ImageRun>::const_iterator first_image_behind(Position position) const {
        return std::find_if(request_.images.begin(), request_.images.end(),
                            [position](const ImageRun& run) { return run.end > position; });
    }

    Request request_;
    std::unique_ptr<TokenSampler> sampler_;
    std::uint64_t arrival_;
    double started_s_;
    double first_token_s_ = 0;
    Tokens text_;
    std::optional<Position> next_row_;
    Tokens names_;                       // empty: the text's own
    std::vector<Position> rope_shifts_;  // empty: see rope_shift()
    std::int32_t n_computed_ = 0;
    bool is_redoing_ = false;
    bool has_begun_ = false;
    memory::PrefillStart start_;
    std::optional<Speculation> speculation_;
    std::optional<ExpertReads> experts_;
};

}  // namespace luce::engine
