// plain_logprobs MODEL: what libllama by itself says of texts, for tests to compare with. Each line of stdin is a
// text's ids with blanks between; its line on stdout has the natural-log probability of each id behind the first. One
// call for a whole text, all rows of logits kept: no slices, no cache, and no line of luced's own code.
#include <cmath>
#include <cstdio>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "llama.h"

namespace {

using Model = std::unique_ptr<llama_model, decltype(&llama_model_free)>;
using Context = std::unique_ptr<llama_context, decltype(&llama_free)>;

double logprob(const float* logits, int n_vocab, llama_token token) {
    double peak = logits[0];
    for (int i = 1; i < n_vocab; ++i) peak = std::fmax(peak, logits[i]);
    double sum = 0;
    for (int i = 0; i < n_vocab; ++i) sum += std::exp(logits[i] - peak);
    return logits[token] - peak - std::log(sum);
}

bool print_logprobs(llama_model& model, std::vector<llama_token>& ids) {
    const auto n = static_cast<std::uint32_t>(ids.size());
    llama_context_params params = llama_context_default_params();
    params.n_ctx = params.n_batch = params.n_ubatch = n;
    const Context context(llama_init_from_model(&model, params), llama_free);
    if (context == nullptr) return false;
    llama_batch batch = llama_batch_init(static_cast<std::int32_t>(n), 0, 1);
    for (std::int32_t i = 0; i < static_cast<std::int32_t>(n); ++i) {
        batch.token[i] = ids[static_cast<std::size_t>(i)];
        batch.pos[i] = i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = 1;
    }
    batch.n_tokens = static_cast<std::int32_t>(n);
    const bool is_computed = llama_decode(context.get(), batch) == 0;
    llama_batch_free(batch);
    if (!is_computed) return false;
    const int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(&model));
    for (std::int32_t i = 1; i < static_cast<std::int32_t>(n); ++i) {
        const float* logits = llama_get_logits_ith(context.get(), i - 1);
        std::printf("%s%.6f", i > 1 ? " " : "", logprob(logits, n_vocab, ids[static_cast<std::size_t>(i)]));
    }
    std::printf("\n");
    return true;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 2) return 2;
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    llama_backend_init();
    llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = 0;
    const Model model(llama_model_load_from_file(argv[1], params), llama_model_free);
    if (model == nullptr) return 1;
    for (std::string line; std::getline(std::cin, line);) {
        std::istringstream words(line);
        std::vector<llama_token> ids;
        for (llama_token id = 0; words >> id;) ids.push_back(id);
        if (!print_logprobs(*model, ids)) return 1;
    }
    return 0;
}
