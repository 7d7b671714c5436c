// draft_trees MODEL DRAFT PROMPTS: how many tokens a step of a DFlash draft are right, as a chain and as a tree of as
// many tokens. Answers are written once, greedily and plainly; then drafts are made along them, each where the last one
// ended. Nothing is verified in a batch, so the model may be of a kind that takes no trees, and no time is measured.
//
// PROMPTS: a line each, the name of its set and its token ids (docs/benchmarks/speculation.md has the command that
// makes them).
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "engine/decoder.h"
#include "llama/decoding/llama_decoder.h"
#include "llama/decoding/logit_choice.h"
#include "llama/drafting/dflash_drafts.h"
#include "llama/model/backend.h"
#include "llama/model/model.h"
#include "needed.h"
#include "speculation/tree_chances.h"

using namespace luce;
using bench::fail;
using bench::need;

namespace {

constexpr LaneId kLane{0};
constexpr std::int32_t kCtx = 4096;
constexpr std::int32_t kBlock = 15;  // places after the first: what a block of 16 has
constexpr std::int32_t kMost = 64;
constexpr std::size_t kAnswer = 128;
constexpr std::size_t kSlice = 256;

struct Text {
    std::string set;
    Tokens tokens;
    std::size_t n_prompt = 0;
};

std::vector<Text> read_prompts(const char* path) {
    std::ifstream file(path);
    if (!file) fail(std::string("cannot read ") + path);
    std::vector<Text> texts;
    std::string line;
    while (std::getline(file, line)) {
        std::istringstream words(line);
        Text text;
        words >> text.set;
        for (Token token = 0; words >> token;) text.tokens.push_back(token);
        text.n_prompt = text.tokens.size();
        if (text.n_prompt > 0 && text.n_prompt + kAnswer <= kCtx) texts.push_back(std::move(text));
    }
    return texts;
}

struct Sum {
    double n_steps = 0;
    double n_right = 0;
};

class Bench {
public:
    Bench(const char* model, const char* draft)
        : model_(load(model)), decoder_(model_, 1), drafts_(need(llama::DflashDrafts::load(options(draft), model_))) {}

    void answer(Text& text) {
        begin();
        while (text.tokens.size() < text.n_prompt + kAnswer) {
            compute(text.tokens, text.tokens.size());
            text.tokens.push_back(need(llama::argmax(decoder_.logits(0))));
        }
    }

    // Of drafts of so many tokens along the answer.
    Sum draft_along(const Text& text, std::int32_t n_tokens, bool is_tree) {
        begin();
        Sum sum;
        for (std::size_t root = text.n_prompt; root + 1 < text.tokens.size();) {
            compute(text.tokens, root);
            const auto known = std::span(text.tokens).first(root + 1);
            const auto coming = std::span(text.tokens).subspan(root + 1);
            const speculation::DraftAsk ask{kLane, known, n_tokens, is_tree ? kMost : 1, kBlock};
            std::vector<speculation::Draft> drafts;
            need(drafts_->draft(std::span(&ask, 1), drafts));
            const std::size_t n_right = count_right(drafts.at(0), coming);
            sum.n_steps += 1;
            sum.n_right += static_cast<double>(n_right);
            root += 1 + n_right;
        }
        return sum;
    }

private:
    static llama::Model load(const char* path) {
        llama::ModelOptions options;
        options.path = path;
        options.n_ctx = kCtx;
        return need(llama::Model::load(options, false, [] {}));
    }

    static llama::DraftModelOptions options(const char* path) {
        llama::DraftModelOptions draft;
        draft.path = path;
        draft.n_most = kBlock;
        draft.n_tree = kMost;
        return draft;
    }

    static std::size_t count_right(const speculation::Draft& draft, std::span<const Token> coming) {
        std::vector<std::int32_t> parents = draft.parents;
        for (auto i = static_cast<std::int32_t>(parents.size()); parents.size() < draft.tokens.size(); ++i) {
            parents.push_back(i - 1);
        }
        const auto verdicts = speculation::verdicts_of(draft.tokens, parents, coming);
        return static_cast<std::size_t>(
            std::count_if(verdicts.begin(), verdicts.end(), [](const auto& verdict) { return verdict.was_right; }));
    }

    void begin() {
        decoder_.forget(kLane);
        drafts_->forget(kLane);
        drafts_->begin(kLane, {}, 0);
        n_computed_ = 0;
    }

    void compute(const Tokens& text, std::size_t end) {
        while (n_computed_ < end) {
            const std::size_t n = std::min(end - n_computed_, kSlice);
            const engine::Slice slice{kLane, static_cast<Position>(n_computed_),
                                      std::span(text).subspan(n_computed_, n), 1};
            need(decoder_.decode(std::span(&slice, 1)));
            n_computed_ += n;
            drafts_->follow(kLane, std::span(text).first(n_computed_), static_cast<std::int32_t>(n_computed_),
                            static_cast<std::int32_t>(n), 0);
        }
    }

    llama::Model model_;
    llama::LlamaDecoder decoder_;
    std::unique_ptr<llama::DflashDrafts> drafts_;
    std::size_t n_computed_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
    if (argc != 4) fail("usage: draft_trees MODEL DRAFT PROMPTS");
    const llama::Backend backend;
    std::vector<Text> texts = read_prompts(argv[3]);
    if (texts.empty()) fail("no prompts that fit");
    Bench bench(argv[1], argv[2]);
    for (Text& text : texts) bench.answer(text);
    std::map<std::string, Sum> header;
    for (const Text& text : texts) header[text.set];
    std::printf("| drafted a step |");
    for (const auto& [set, sum] : header) std::printf(" %s |", set.c_str());
    std::printf(" all |\n|---|");
    for (std::size_t i = 0; i <= header.size(); ++i) std::printf("---|");
    std::printf("\n");
    for (const auto& [n_tokens, is_tree] :
         {std::pair{7, false}, {7, true}, {15, false}, {15, true}, {31, true}, {63, true}}) {
        std::map<std::string, Sum> by_set;
        Sum all;
        for (const Text& text : texts) {
            const Sum sum = bench.draft_along(text, n_tokens, is_tree);
            for (Sum* to : {&by_set[text.set], &all}) {
                to->n_steps += sum.n_steps;
                to->n_right += sum.n_right;
            }
        }
        std::printf("| %s of %d |", is_tree ? "a tree" : "a chain", n_tokens);
        for (const auto& [set, sum] : by_set) std::printf(" %.2f |", sum.n_right / sum.n_steps);
        std::printf(" %.2f |\n", all.n_right / all.n_steps);
        std::fflush(stdout);
    }
}
