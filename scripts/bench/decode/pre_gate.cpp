// pre_gate MODEL.gguf TEXT...: could a layer's experts be fetched before its router has chosen them?
//
// Reads the texts and compares what each router chose with guesses that are there one layer, or one token, earlier: the
// router applied to the hidden state of the layer before, and the experts of the token before. Of interest are choices
// that a bank of the most used experts lacks: which share of them a guess names, and how many experts it would fetch
// for each.
#include <ggml-backend.h>
#include <llama.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

namespace {

constexpr int kBatch = 256;

// Of a layer: a row a token.
struct Layer {
    std::vector<float> router;               // [expert][value]
    std::vector<std::vector<float>> states;  // what the router read
    std::vector<std::vector<float>> scores;  // what it made of it: [expert]
};

std::map<int, Layer> layers;

std::vector<float> floats_of(const ggml_tensor* tensor) {
    if (tensor->type != GGML_TYPE_F32 || !ggml_is_contiguous(tensor)) std::abort();
    std::vector<float> all(static_cast<std::size_t>(ggml_nelements(tensor)));
    ggml_backend_tensor_get(tensor, all.data(), 0, ggml_nbytes(tensor));
    return all;
}

void add_rows(std::vector<std::vector<float>>& rows, const ggml_tensor* tensor) {
    const std::vector<float> all = floats_of(tensor);
    const auto n = static_cast<std::size_t>(tensor->ne[0]);
    for (auto at = all.begin(); at != all.end(); at += static_cast<std::ptrdiff_t>(n)) {
        rows.emplace_back(at, at + static_cast<std::ptrdiff_t>(n));
    }
}

bool watch(ggml_tensor* tensor, bool is_asked, void*) {
    const std::string name = tensor->name, prefix = "ffn_moe_logits-";
    if (name.compare(0, prefix.size(), prefix) != 0) return !is_asked;
    if (is_asked) return true;
    Layer& layer = layers[std::stoi(name.substr(prefix.size()))];
    if (layer.router.empty()) layer.router = floats_of(tensor->src[0]);
    add_rows(layer.states, tensor->src[1]);
    add_rows(layer.scores, tensor);
    return true;
}

std::set<int> best(const std::vector<float>& scores, std::size_t n) {
    std::vector<int> order(scores.size());
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(n), order.end(), [&](int a, int b) {
        return scores[static_cast<std::size_t>(a)] > scores[static_cast<std::size_t>(b)];
    });
    return {order.begin(), order.begin() + static_cast<std::ptrdiff_t>(n)};
}

std::vector<float> scores_of(const std::vector<float>& router, const std::vector<float>& state) {
    std::vector<float> scores(router.size() / state.size());
    for (std::size_t e = 0; e < scores.size(); ++e) {
        scores[e] = std::inner_product(state.begin(), state.end(),
                                       router.begin() + static_cast<std::ptrdiff_t>(e * state.size()), 0.0F);
    }
    return scores;
}

struct Guess {
    double n_named = 0, n_fetched = 0;  // missing experts that it names; what it would fetch
};

void read(llama_context* context, const llama_vocab* vocab, const std::string& text) {
    std::vector<llama_token> tokens(text.size() + 8);
    const int n = llama_tokenize(vocab, text.data(), static_cast<int>(text.size()), tokens.data(),
                                 static_cast<int>(tokens.size()), true, false);
    llama_memory_clear(llama_get_memory(context), true);
    llama_batch batch = llama_batch_init(kBatch, 0, 1);
    for (int begin = 0; begin < std::min(n, static_cast<int>(llama_n_ctx(context))); begin += kBatch) {
        batch.n_tokens = std::min(kBatch, n - begin);
        for (int i = 0; i < batch.n_tokens; ++i) {
            batch.token[i] = tokens[static_cast<std::size_t>(begin + i)];
            batch.pos[i] = begin + i;
            batch.n_seq_id[i] = 1;
            batch.seq_id[i][0] = 0;
            batch.logits[i] = 1;  // or the last layer would leave tokens out
        }
        if (llama_decode(context, batch) != 0) std::abort();
    }
    llama_batch_free(batch);
}

void report(std::size_t n_used) {
    std::printf(
        "| experts on the device | hits | by the layer before: missing ones named, fetched for each | twice as many | "
        "by the token before |\n|---|---|---|---|---|\n");
    for (const int percent : {12, 25, 33, 50}) {
        double n_choices = 0, n_missing = 0;
        Guess ahead, twice, before;
        for (auto& [number, layer] : layers) {
            const auto previous = layers.find(number - 1);
            if (previous == layers.end()) continue;
            const std::size_t n_tokens = layer.scores.size(), n_experts = layer.scores[0].size();
            std::vector<float> uses(n_experts);
            for (const auto& scores : layer.scores) {
                for (const int e : best(scores, n_used)) ++uses[static_cast<std::size_t>(e)];
            }
            const std::set<int> resident = best(uses, n_experts * static_cast<std::size_t>(percent) / 100);
            const auto judge = [&](Guess& guess, const std::set<int>& named, const std::set<int>& missing) {
                for (const int e : named) guess.n_fetched += resident.count(e) == 0;
                for (const int e : missing) guess.n_named += named.count(e);
            };
            for (std::size_t t = 1; t < n_tokens; ++t) {
                std::set<int> missing = best(layer.scores[t], n_used);
                n_choices += static_cast<double>(missing.size());
                for (const int e : resident) missing.erase(e);
                n_missing += static_cast<double>(missing.size());
                const std::vector<float> early = scores_of(layer.router, previous->second.states[t]);
                judge(ahead, best(early, n_used), missing);
                judge(twice, best(early, 2 * n_used), missing);
                judge(before, best(layer.scores[t - 1], n_used), missing);
            }
        }
        std::printf("| %d %% | %.2f |", percent, 1 - n_missing / n_choices);
        for (const Guess& guess : {ahead, twice, before}) {
            std::printf(" %.2f, %.1f |", guess.n_named / n_missing, guess.n_fetched / std::max(guess.n_named, 1.0));
        }
        std::printf("\n");
    }
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 3) return std::fprintf(stderr, "pre_gate MODEL.gguf TEXT...\n"), 64;
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    ggml_backend_load_all();
    llama_model* model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (model == nullptr) return std::fprintf(stderr, "%s cannot be loaded\n", argv[1]), 1;
    char used[16] = "", architecture[64] = "";
    llama_model_meta_val_str(model, "general.architecture", architecture, sizeof architecture);
    llama_model_meta_val_str(model, (std::string(architecture) + ".expert_used_count").c_str(), used, sizeof used);
    if (std::atoi(used) <= 0) return std::fprintf(stderr, "%s is no mixture\n", argv[1]), 64;
    llama_context_params params = llama_context_default_params();
    params.n_ctx = 2048;
    params.n_batch = params.n_ubatch = kBatch;
    params.n_outputs_max = kBatch;
    params.cb_eval = watch;
    llama_context* context = llama_init_from_model(model, params);
    if (context == nullptr) return std::fprintf(stderr, "no context\n"), 1;
    for (int i = 2; i < argc; ++i) {
        std::ifstream file(argv[i]);
        read(context, llama_model_get_vocab(model), {std::istreambuf_iterator<char>(file), {}});
    }
    std::printf("%zu layers, %zu tokens, %s experts a token\n\n", layers.size(), layers.begin()->second.scores.size(),
                used);
    report(static_cast<std::size_t>(std::atoi(used)));
    llama_free(context);
    llama_model_free(model);
    return 0;
}
