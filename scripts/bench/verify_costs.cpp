// verify_costs MODEL DRAFT|none GPU_LAYERS LANES CONTEXT...: what a step that verifies costs beside a plain one, and
// what speculation brings at a given acceptance. For models whose weights are random: speed does not depend on them,
// and the acceptance, which does, is put in as a number.
//
// For each context all lanes hold so many tokens, and calls of 1, 2, … 16 tokens a lane are timed in turns with plain
// ones, each taken back again; so are the drafter's (DFlash) drafts of as many, with the features of a step's tokens to
// read first. Prints medians of the ratios, and the tokens a second of all lanes that follow if each drafted token is
// right with probability p. Where the model takes trees, also what a tree of as many tokens costs: half of them a
// chain, the others hanging on it; and of a model with recurrent state what a step costs whose states --spec-memory has
// no room for: each lane's is copied before it, and put back where the draft was wrong.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "llama/decoding/llama_decoder.h"
#include "llama/drafting/dflash_drafts.h"
#include "llama/kv_cache/kv_device.h"
#include "llama/model/backend.h"
#include "llama/model/model.h"
#include "memory/checkpoints/checkpoint_positions.h"
#include "needed.h"

using namespace luce;
using bench::fail;
using bench::need;

namespace {

constexpr std::int32_t kWidths[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
constexpr std::int32_t kWidest = 16;
constexpr std::int32_t kRounds = 15;
constexpr std::int32_t kWarmUp = 3;  // rounds before: graphs are made
constexpr std::int32_t kSlice = 512;
constexpr std::int32_t kFeatures = 64;  // of so many tokens they are read at once where no draft is wanted
constexpr double kAcceptances[] = {0.5, 0.7, 0.8, 0.9};
constexpr std::int32_t kTypicalStep = 4;  // tokens whose features a drafter has to read before it drafts
constexpr std::int32_t kCopiedWidths[] = {4, 8, 16};
constexpr std::size_t kStateBytes = std::size_t{64} << 30;

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double median(std::vector<double> values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

// A chain of half the tokens; the others are second choices along it.
std::vector<std::int32_t> tree_of(std::int32_t n_tokens) {
    std::vector<std::int32_t> parents = {-1};
    const std::int32_t n_chain = 1 + n_tokens / 2;
    for (std::int32_t i = 1; i < n_tokens; ++i) parents.push_back(i < n_chain ? i - 1 : i - n_chain);
    return parents;
}

class Bench {
public:
    Bench(const char* model, const std::string& draft, std::int32_t n_gpu_layers, std::int32_t n_lanes,
          std::int32_t n_ctx)
        : n_lanes_(n_lanes),
          model_(load(model, n_gpu_layers, n_lanes, n_ctx)),
          decoder_(model_, n_lanes),
          device_(model_, n_lanes),
          points_(device_),
          texts_(static_cast<std::size_t>(n_lanes)) {
        if (draft == "none") return;
        llama::DraftModelOptions options;
        options.path = draft;
        options.n_lanes = n_lanes;
        options.n_most = kWidest - 1;
        options.n_gpu_layers = n_gpu_layers;
        drafts_ = need(llama::DflashDrafts::load(options, model_));
    }

    bool takes_trees() const { return decoder_.limits().n_branches > 0; }
    bool has_state() const { return device_.traits().has_state(); }
    bool has_draft() const { return drafts_ != nullptr; }
    std::int32_t n_most_drafted() const { return drafts_->traits().n_most; }

    // Computes random tokens until each lane holds n.
    void fill(std::int32_t n) {
        for (std::int32_t lane = 0; lane < n_lanes_; ++lane) {
            Tokens& text = texts_[static_cast<std::size_t>(lane)];
            const std::size_t n_held = text.size();
            extend(text, static_cast<std::size_t>(n));
            for (std::size_t at = n_held; at < text.size(); at += kSlice) {
                const std::size_t n_here = std::min<std::size_t>(kSlice, text.size() - at);
                const engine::Slice slice{LaneId{lane}, static_cast<Position>(at), std::span(text).subspan(at, n_here),
                                          1};
                need(decoder_.decode(std::span(&slice, 1)));
                follow(lane, static_cast<std::int32_t>(at + n_here), static_cast<std::int32_t>(n_here));
            }
        }
    }

    double verify(std::int32_t width, bool is_tree) {
        const std::vector<std::int32_t> parents = is_tree ? tree_of(width) : std::vector<std::int32_t>();
        const double took_s = decode_all(width, parents);
        const std::int32_t root = 0;
        for (std::int32_t lane = 0; lane < n_lanes_; ++lane) {
            if (is_tree) need(decoder_.keep(LaneId{lane}, std::span(&root, 1)));
            need(device_.drop(LaneId{lane}, static_cast<Position>(texts_.front().size())));
        }
        return took_s;
    }

    // The same of a chain with a copy of each lane's state, put back or not.
    double verify_with_copies(std::int32_t width, bool goes_back) {
        const double started_s = now_s();
        const auto begin = static_cast<Position>(texts_.front().size());
        for (std::int32_t lane = 0; lane < n_lanes_; ++lane) need(points_.keep(LaneId{lane}));
        const double kept_s = now_s() - started_s;
        if (!goes_back) return kept_s + verify(width, false);
        const double took_s = decode_all(width, {});
        const double back_from_s = now_s();
        for (std::int32_t lane = 0; lane < n_lanes_; ++lane) need(points_.go_back(LaneId{lane}, begin));
        return kept_s + took_s + now_s() - back_from_s;
    }

    // Reads what a step has brought, which is taken back afterwards, and drafts.
    double draft(std::int32_t n_tokens) {
        const auto begin = static_cast<std::int32_t>(texts_.front().size());
        std::vector<speculation::DraftAsk> asks;
        std::vector<engine::Slice> slices;
        for (std::int32_t lane = 0; lane < n_lanes_; ++lane) {
            Tokens& text = texts_[static_cast<std::size_t>(lane)];
            extend(text, static_cast<std::size_t>(begin + kTypicalStep + 1));
            slices.push_back({LaneId{lane}, begin,
                              std::span(text).subspan(text.size() - kTypicalStep - 1, kTypicalStep), kTypicalStep});
            asks.push_back({LaneId{lane}, text, n_tokens});
        }
        need(decoder_.decode(slices));
        std::vector<speculation::Draft> drafts;
        const double started_s = now_s();
        for (std::int32_t lane = 0; lane < n_lanes_; ++lane) {
            drafts_->follow(LaneId{lane}, texts_[static_cast<std::size_t>(lane)], begin + kTypicalStep, kTypicalStep,
                            lane * kTypicalStep);
        }
        need(drafts_->draft(asks, drafts));
        const double took_s = now_s() - started_s;
        for (std::int32_t lane = 0; lane < n_lanes_; ++lane) {
            texts_[static_cast<std::size_t>(lane)].resize(static_cast<std::size_t>(begin));
            need(device_.drop(LaneId{lane}, begin));
            need(drafts_->device().drop(LaneId{lane}, begin));
        }
        return took_s;
    }

    // What a lane's text costs the drafter that is not asked for drafts: handing over a token's features, in seconds,
    // and reading those of kFeatures tokens.
    std::pair<double, double> follow_costs() {
        const auto begin = static_cast<std::int32_t>(texts_.front().size());
        std::vector<double> handing, reading;
        for (std::int32_t round = 0; round < kWarmUp + kRounds; ++round) {
            Tokens text = texts_.front();
            extend(text, static_cast<std::size_t>(begin + kFeatures));
            const engine::Slice slice{LaneId{0}, begin, std::span(text).subspan(static_cast<std::size_t>(begin), 1), 1};
            need(decoder_.decode(std::span(&slice, 1)));
            const double started_s = now_s();
            for (std::int32_t i = 1; i < kFeatures; ++i) drafts_->follow(LaneId{0}, text, begin + i, 1, 0);
            const double handed_s = now_s();
            need(drafts_->catch_up(LaneId{0}));
            const double read_s = now_s();
            need(device_.drop(LaneId{0}, begin));
            need(drafts_->device().drop(LaneId{0}, begin));
            if (round < kWarmUp) continue;
            handing.push_back((handed_s - started_s) / (kFeatures - 1));
            reading.push_back(read_s - handed_s);
        }
        return {median(handing), median(reading)};
    }

private:
    static llama::Model load(const char* path, std::int32_t n_gpu_layers, std::int32_t n_lanes, std::int32_t n_ctx) {
        llama::ModelOptions options;
        options.path = path;
        options.n_ctx = n_ctx;
        options.n_pool = n_ctx * n_lanes;
        options.n_lanes = n_lanes;
        options.n_gpu_layers = n_gpu_layers;
        options.n_draft_most = kWidest;  // all of a call is taken back, its first token, too
        options.n_tree = kWidest - 1;
        options.rollback_bytes = kStateBytes;
        return need(llama::Model::load(options, n_gpu_layers > 0, [] {}));
    }

    // Until the logits are there.
    double decode_all(std::int32_t width, const std::vector<std::int32_t>& parents) {
        const auto begin = static_cast<Position>(texts_.front().size());
        Tokens tokens;
        extend(tokens, static_cast<std::size_t>(width));
        std::vector<engine::Slice> slices;
        for (std::int32_t lane = 0; lane < n_lanes_; ++lane) {
            slices.push_back({LaneId{lane}, begin, tokens, width, parents});
        }
        const double started_s = now_s();
        need(decoder_.decode(slices));
        if (decoder_.logits(0).empty()) fail("no logits");
        return now_s() - started_s;
    }

    void extend(Tokens& text, std::size_t n) {
        std::uniform_int_distribution<Token> any(1, model_.info().n_vocab - 1);
        while (text.size() < n) text.push_back(any(random_));
    }

    void follow(std::int32_t lane, std::int32_t n_computed, std::int32_t n_new) {
        if (drafts_ == nullptr) return;
        const auto text = std::span(texts_[static_cast<std::size_t>(lane)]).first(static_cast<std::size_t>(n_computed));
        drafts_->follow(LaneId{lane}, text, n_computed, n_new, 0);
        need(drafts_->catch_up(LaneId{lane}));
    }

    std::int32_t n_lanes_;
    llama::Model model_;
    llama::LlamaDecoder decoder_;
    llama::LlamaKvDevice device_;
    memory::CheckpointPositions points_;
    std::unique_ptr<llama::DflashDrafts> drafts_;
    std::vector<Tokens> texts_;
    std::mt19937 random_{1};
};

// Medians by width, in plain steps that were taken in turns with them: what slows the machine down slows both.
struct Costs {
    double plain_s = 0;
    std::map<std::int32_t, double> chain, tree, draft;
};

// One width after the other, so that no more graphs are in use than are kept.
Costs measure(Bench& bench) {
    Costs costs;
    std::vector<double> plain;
    for (const std::int32_t width : kWidths) {
        const bool has_tree = bench.takes_trees() && width > 2;
        const bool has_draft = bench.has_draft() && width > 1 && width - 1 <= bench.n_most_drafted();
        std::vector<double> chain, tree, draft;
        for (std::int32_t round = -kWarmUp; round < kRounds; ++round) {
            const double plain_s = bench.verify(1, false);
            const double chain_s = bench.verify(width, false);
            const double tree_s = has_tree ? bench.verify(width, true) : 0;
            const double draft_s = has_draft ? bench.draft(width - 1) : 0;
            if (round < 0) continue;
            plain.push_back(plain_s);
            chain.push_back(chain_s / plain_s);
            tree.push_back(tree_s / plain_s);
            draft.push_back(draft_s / plain_s);
        }
        costs.chain[width] = median(std::move(chain));
        if (has_tree) costs.tree[width] = median(std::move(tree));
        if (has_draft) costs.draft[width] = median(std::move(draft));
    }
    costs.plain_s = median(std::move(plain));
    return costs;
}

// In plain steps, taken in turns with them.
void print_copies(Bench& bench) {
    std::printf("\n| tokens a lane | states kept | copied before | and put back |\n|---|---|---|---|\n");
    for (const std::int32_t width : kCopiedWidths) {
        std::vector<double> kept, copied, back;
        for (std::int32_t round = -kWarmUp; round < kRounds; ++round) {
            const double plain_s = bench.verify(1, false);
            const double kept_s = bench.verify(width, false);
            const double copied_s = bench.verify_with_copies(width, false);
            const double back_s = bench.verify_with_copies(width, true);
            if (round < 0) continue;
            kept.push_back(kept_s / plain_s);
            copied.push_back(copied_s / plain_s);
            back.push_back(back_s / plain_s);
        }
        std::printf("| %d | %.2f | %.2f | %.2f |\n", width, median(kept), median(copied), median(back));
    }
}

void print_cell(const std::map<std::int32_t, double>& costs, std::int32_t width) {
    const auto cost = costs.find(width);
    if (cost == costs.end()) {
        std::printf(" - |");
    } else {
        std::printf(" %.2f |", cost->second);
    }
}

void print(const Costs& costs, std::int32_t n_lanes, std::int32_t n_context) {
    std::printf("\n%d lanes of %d tokens: a plain step takes %.2f ms, %.1f tokens/s\n\n", n_lanes, n_context,
                1000 * costs.plain_s, n_lanes / costs.plain_s);
    std::printf("| tokens a lane | step / plain | tree / plain | draft / plain |");
    for (const double p : kAcceptances) std::printf(" speed-up at %.1f |", p);
    std::printf("\n|---|---|---|---|");
    for (std::size_t i = 0; i < std::size(kAcceptances); ++i) std::printf("---|");
    std::printf("\n");
    for (const auto& [width, chain] : costs.chain) {
        std::printf("| %d |", width);
        print_cell(costs.chain, width);
        print_cell(costs.tree, width);
        print_cell(costs.draft, width);
        const auto draft = costs.draft.find(width);
        for (const double p : kAcceptances) {
            const double n_expected = (1 - std::pow(p, width)) / (1 - p);  // the step's own token among them
            std::printf(" %.2f |", n_expected / (chain + (draft == costs.draft.end() ? 0 : draft->second)));
        }
        std::printf("\n");
    }
    std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 6) fail("usage: verify_costs MODEL DRAFT|none GPU_LAYERS LANES CONTEXT...");
    const llama::Backend backend;
    const std::int32_t n_gpu_layers = std::stoi(argv[3]), n_lanes = std::stoi(argv[4]);
    std::vector<std::int32_t> contexts;
    for (int i = 5; i < argc; ++i) contexts.push_back(std::stoi(argv[i]));
    std::sort(contexts.begin(), contexts.end());
    if (n_lanes < 1 || contexts.front() < 1) fail("at least one lane and one token");
    const std::int32_t n_ctx = (contexts.back() + 4 * kWidest + 255) / 256 * 256;
    Bench bench(argv[1], argv[2], n_gpu_layers, n_lanes, n_ctx);
    for (const std::int32_t n_context : contexts) {
        bench.fill(n_context);
        print(measure(bench), n_lanes, n_context);
        if (bench.has_state()) print_copies(bench);
        if (!bench.has_draft()) continue;
        const auto [handing_s, reading_s] = bench.follow_costs();
        std::printf("\nA token's features are handed over in %.3f ms, those of %d read in %.2f ms.\n", 1000 * handing_s,
                    kFeatures - 1, 1000 * reading_s);
    }
}
