#include "llama/scoring/layer_calibration.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>

#include <llama.h>

#include "llama/decoding/llama_decoder.h"
#include "llama/scoring/query_scorer.h"

namespace luce::llama {
namespace {

using memory::Bytes;
using memory::Cell;
using memory::kPageSize;
using memory::PageKeys;

constexpr LaneId kLane{0};
constexpr std::size_t kMostLayers = 8;
constexpr std::size_t kMostPages = 10;
constexpr std::size_t kLeastPages = 5;
constexpr std::size_t kTrialsPerText = 6;
constexpr std::size_t kCheckpointTokens = 8;  // of the passage that is begun once more
// On every page of the harder text; the easier one has the whole vocabulary: 0.
constexpr std::size_t kFewTokens = 64;
// The first slice; the next ones are twice as long each, so that a slow model is seen to be one before it has computed
// much.
constexpr std::size_t kFirstSlice = 16;
// Of the time that all may take: what an estimate has to be made from, because a machine may be busy for a moment; and
// how far an estimate may have been wrong.
constexpr double kLeastShare = 0.1;
constexpr double kMostShare = 2;
// How far a layer has to be beyond guessing, in standard deviations of what guessing gives.
constexpr double kLeastDeviations = 3.5;

// The standard library's distributions differ from one to the next.
class Random {
public:
    explicit Random(std::uint64_t seed) : bits_(seed) {}
    std::size_t below(std::size_t n) { return static_cast<std::size_t>(bits_() % n); }

    template <typename T>
    void shuffle(std::vector<T>& values) {
        for (std::size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[below(i)]);
    }

private:
    std::mt19937_64 bits_;
};

// Those that stand in texts; all of a vocabulary that does not say.
Tokens ordinary_tokens(const Model& model) {
    Tokens tokens;
    constexpr int kOthers = LLAMA_TOKEN_ATTR_UNKNOWN | LLAMA_TOKEN_ATTR_UNUSED | LLAMA_TOKEN_ATTR_CONTROL |
                            LLAMA_TOKEN_ATTR_USER_DEFINED | LLAMA_TOKEN_ATTR_BYTE;
    for (Token token = 0; model.info().has_text && token < model.info().n_vocab; ++token) {
        if ((llama_vocab_get_attr(model.vocab(), token) & kOthers) == 0) tokens.push_back(token);
    }
    if (tokens.size() >= 2 * kFewTokens) return tokens;
    tokens.resize(static_cast<std::size_t>(model.info().n_vocab));
    std::iota(tokens.begin(), tokens.end(), 0);
    return tokens;
}

struct Trial {
    std::size_t page = 0;
    Tokens checkpoint;
};

struct TrialText {
    Tokens tokens;
    std::vector<Trial> trials;
};

TrialText make_text(const Model& model, Tokens alphabet, std::size_t n_tokens, std::size_t n_pages, Random& random) {
    if (n_tokens != 0) {
        random.shuffle(alphabet);
        alphabet.resize(std::min(alphabet.size(), n_tokens));
    }
    TrialText text;
    for (std::size_t i = 0; i < n_pages * kPageSize; ++i) {
        text.tokens.push_back(alphabet[random.below(alphabet.size())]);
    }
    if (model.info().has_text && llama_vocab_get_add_bos(model.vocab())) {
        text.tokens[0] = llama_vocab_bos(model.vocab());
    }
    std::vector<std::size_t> pages(n_pages - 1);  // the first one is none: it stays whatever it holds
    std::iota(pages.begin(), pages.end(), std::size_t{1});
    random.shuffle(pages);
    pages.resize(std::min(pages.size(), kTrialsPerText));
    for (const std::size_t page : pages) {
        // Well within the page, so that what went on there belongs to it as well.
        constexpr std::size_t kMargin = kCheckpointTokens;
        const std::size_t begin =
            page * kPageSize + kMargin + random.below(kPageSize - 2 * kMargin - kCheckpointTokens);
        const auto first = text.tokens.begin() + static_cast<std::ptrdiff_t>(begin);
        text.trials.push_back({page, {first, first + kCheckpointTokens}});
    }
    return text;
}

// Of the right page among all but the first. A score that is no number is beaten by all.
std::size_t rank_of(std::size_t page, std::span<const float> scores) {
    std::size_t rank = 1;
    for (std::size_t i = 1; i < scores.size(); ++i) {
        if (i != page && !(scores[page] > scores[i])) ++rank;
    }
    return rank;
}

class Calibration {
public:
    Calibration(const Model& model, LlamaKvDevice& device, std::int32_t n_lanes, const Clock& clock,
                const CalibrationLimits& limits)
        : decoder_(model, n_lanes), device_(device), clock_(clock), limits_(limits), started_s_(clock.now_s()) {}
    ~Calibration() {
        decoder_.note_queries(nullptr);
        device_.settle();  // what was read belongs to us
        device_.forget(kLane);
    }
    Calibration(const Calibration&) = delete;
    Calibration& operator=(const Calibration&) = delete;

    // Adds each layer's reciprocal ranks to `sums`.
    Result<void> try_text(const TrialText& text, std::span<const std::unique_ptr<QueryScorer>> scorers,
                          std::vector<double>& sums) {
        if (Result<void> read = read_prompt(text.tokens); !read) return read;
        if (Result<void> kept = keep(text.tokens.size()); !kept) return kept;
        for (std::size_t i = 0; i < scorers.size(); ++i) {
            std::vector<PageKeys> keys;
            for (const Bytes& page : pages_) keys.push_back(scorers[i]->keys_of(page));
            for (const Trial& trial : text.trials) {
                const Result<std::size_t> rank = try_layer(*scorers[i], keys, trial);
                if (!rank) return rank.error();
                sums[i] += 1.0 / static_cast<double>(rank.value());
            }
        }
        device_.forget(kLane);
        return {};
    }

    void plan(std::size_t n_tokens) { n_planned_ = n_tokens; }
    double seconds() const { return clock_.now_s() - started_s_; }

private:
    Result<void> decode(std::size_t begin, std::span<const Token> tokens, std::int32_t n_logits) {
        if (limits_.is_stopped()) return Error{ErrorCode::busy, "it was told to stop"};
        if (seconds() > kMostShare * limits_.most_s) return too_long();
        const engine::Slice slice{kLane, static_cast<Position>(begin), tokens, n_logits};
        return decoder_.decode(std::span(&slice, 1));
    }

    Error too_long() const {
        return {ErrorCode::busy, "it would take longer than " + std::to_string(std::lround(limits_.most_s)) + " s"};
    }

    Result<void> read_prompt(const Tokens& tokens) {
        const auto n_most = static_cast<std::size_t>(std::min(decoder_.limits().n_ubatch, decoder_.limits().n_batch));
        for (std::size_t begin = 0; begin < tokens.size();) {
            const std::size_t n = std::min({n_most, tokens.size() - begin, n_slice_});
            if (Result<void> done = decode(begin, std::span(tokens).subspan(begin, n), 0); !done) return done;
            begin += n;
            n_read_ += n;
            n_slice_ *= 2;
            const double elapsed_s = seconds();
            const double expected_s = elapsed_s * static_cast<double>(n_planned_) / static_cast<double>(n_read_);
            if (expected_s > limits_.most_s && elapsed_s > kLeastShare * limits_.most_s && is_first_text_) {
                return too_long();
            }
        }
        is_first_text_ = false;
        return {};
    }

    // The text's rows and the state behind them.
    Result<void> keep(std::size_t n_tokens) {
        end_ = static_cast<Position>(n_tokens);
        pages_.resize(n_tokens / kPageSize);
        for (std::size_t i = 0; i < pages_.size(); ++i) {
            std::vector<Cell> cells(kPageSize);
            if (Result<void> found = device_.find(kLane, static_cast<Position>(i * kPageSize), cells); !found) {
                return found;
            }
            pages_[i].resize(kPageSize * device_.traits().row_bytes);
            if (Result<void> read = device_.read(cells, pages_[i], nullptr); !read) return read;
        }
        if (device_.traits().has_state()) {
            if (Result<void> saved = device_.save_point(kLane, point_, nullptr); !saved) return saved;
        }
        device_.settle();
        return {};
    }

    Result<std::size_t> try_layer(QueryScorer& scorer, const std::vector<PageKeys>& keys, const Trial& trial) {
        decoder_.note_queries(&scorer.probe());
        scorer.watch(kLane, true);
        const Result<void> done = decode(static_cast<std::size_t>(end_), trial.checkpoint, 1);
        decoder_.note_queries(nullptr);
        std::vector<float> scores;
        if (done && scorer.begin_scores(kLane, {}, keys)) scores = scorer.end_scores(kLane);
        scorer.forget(kLane);
        if (!done) return done.error();
        if (scores.empty()) return Error{ErrorCode::unsupported, "this model's graph does not show its queries"};
        const Result<void> back =
            device_.traits().has_state() ? device_.return_to(kLane, end_, point_) : device_.drop(kLane, end_);
        if (!back) return back.error();
        return rank_of(trial.page, scores);
    }

    LlamaDecoder decoder_;  // its own: the daemon's notes what computations cost
    LlamaKvDevice& device_;
    const Clock& clock_;
    const CalibrationLimits& limits_;
    double started_s_;
    std::size_t n_planned_ = 0;
    std::size_t n_slice_ = kFirstSlice;
    std::size_t n_read_ = 0;  // tokens of prompts
    bool is_first_text_ = true;
    Position end_ = 0;
    std::vector<Bytes> pages_;
    Bytes point_;
};

}  // namespace

std::vector<std::int32_t> layers_to_try(std::span<const std::int32_t> layers) {
    if (layers.size() <= kMostLayers) return {layers.begin(), layers.end()};
    const std::span<const std::int32_t> later =
        layers.subspan(std::min(layers.size() / 3, layers.size() - kMostLayers));
    std::vector<std::int32_t> chosen;
    for (std::size_t i = 0; i < kMostLayers; ++i) {
        chosen.push_back(later[(i * (later.size() - 1) + (kMostLayers - 1) / 2) / (kMostLayers - 1)]);
    }
    return chosen;
}

std::optional<LayerRank> best_of(std::span<const LayerRank> ranks, std::size_t n_others, std::size_t n_trials) {
    // What a page that is put anywhere gets.
    double mean = 0;
    double square = 0;
    const auto n = static_cast<double>(n_others);
    for (double rank = 1; rank <= n; ++rank) {
        mean += 1 / rank / n;
        square += 1 / rank / rank / n;
    }
    const double deviation = std::sqrt((square - mean * mean) / static_cast<double>(n_trials));
    std::optional<LayerRank> best;
    for (const LayerRank& rank : ranks) {
        if (rank.mean_reciprocal_rank < mean + kLeastDeviations * deviation) continue;
        if (!best || rank.mean_reciprocal_rank >= best->mean_reciprocal_rank) best = rank;
    }
    return best;
}

std::size_t n_calibration_pages(std::int32_t n_free_cells) {
    const auto n_free = static_cast<std::size_t>(std::max(n_free_cells, 0));
    if (n_free < kLeastPages * kPageSize + kCheckpointTokens) return 0;
    return std::min(kMostPages, (n_free - kCheckpointTokens) / kPageSize);
}

Result<LayerCalibration> calibrate_layers(const Model& model, LlamaKvDevice& device, std::int32_t n_lanes,
                                          const Clock& clock, const CalibrationLimits& limits) {
    const Result<std::vector<std::int32_t>> layers = QueryScorer::layers(model, n_lanes);
    if (!layers) return layers.error();
    const std::size_t n_pages = n_calibration_pages(device.n_free_cells());
    if (n_pages == 0) return Error{ErrorCode::unsupported, "the pool is too small to try any"};
    std::vector<std::unique_ptr<QueryScorer>> scorers;
    for (const std::int32_t layer : layers_to_try(layers.value())) {
        auto scorer = QueryScorer::create(model, n_lanes, 1, layer);
        if (!scorer) return scorer.error();
        scorers.push_back(std::move(scorer).value());
    }
    Calibration calibration(model, device, n_lanes, clock, limits);
    Random random(kCalibrationVersion);
    const Tokens alphabet = ordinary_tokens(model);
    const std::array<TrialText, 2> texts = {make_text(model, alphabet, 0, n_pages, random),
                                            make_text(model, alphabet, kFewTokens, n_pages, random)};
    std::size_t n_tokens = 0;
    std::size_t n_trials = 0;
    for (const TrialText& text : texts) {
        n_trials += text.trials.size();
        n_tokens += text.tokens.size() + scorers.size() * text.trials.size() * kCheckpointTokens;
    }
    calibration.plan(n_tokens);
    limits.on_start(n_tokens);
    std::vector<double> sums(scorers.size());
    for (const TrialText& text : texts) {
        if (Result<void> tried = calibration.try_text(text, scorers, sums); !tried) return tried.error();
    }
    LayerCalibration result;
    for (std::size_t i = 0; i < scorers.size(); ++i) {
        result.ranks.push_back({scorers[i]->keys().layer, sums[i] / static_cast<double>(n_trials)});
    }
    result.best = best_of(result.ranks, n_pages - 1, n_trials);
    result.seconds = calibration.seconds();
    return result;
}

}  // namespace luce::llama
