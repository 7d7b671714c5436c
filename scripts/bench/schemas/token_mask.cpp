// token_mask VOCAB.gguf GRAMMAR TEXT: what a grammar costs a token: CPU time to read it, and of each token of TEXT to
// mask the whole vocabulary and to accept the token. GRAMMAR and TEXT are files.
#include <llama.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace {

double cpu_ms() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

std::string content(const char* path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

void print(const char* what, std::vector<double> times_ms) {
    std::sort(times_ms.begin(), times_ms.end());
    std::printf("%s: median %.3f ms, worst %.3f ms\n", what, times_ms[times_ms.size() / 2], times_ms.back());
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 4) {
        std::fprintf(stderr, "usage: token_mask VOCAB.gguf GRAMMAR TEXT\n");
        return 2;
    }
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    llama_model_params params = llama_model_default_params();
    params.vocab_only = true;
    llama_model* model = llama_model_load_from_file(argv[1], params);
    if (model == nullptr) {
        std::fprintf(stderr, "%s is no vocabulary\n", argv[1]);
        return 1;
    }
    const llama_vocab* vocab = llama_model_get_vocab(model);
    const std::string grammar = content(argv[2]);
    const std::string text = content(argv[3]);
    std::vector<llama_token> tokens(text.size() + 8);
    tokens.resize(
        static_cast<size_t>(llama_tokenize(vocab, text.data(), static_cast<int32_t>(text.size()), tokens.data(),
                                           static_cast<int32_t>(tokens.size()), false, false)));
    const double began_ms = cpu_ms();
    llama_sampler* sampler = llama_sampler_init_grammar(vocab, grammar.c_str(), "root");
    const double read_ms = cpu_ms() - began_ms;
    std::vector<double> masks_ms;
    std::vector<double> accepts_ms;
    std::vector<llama_token_data> all(static_cast<size_t>(llama_vocab_n_tokens(vocab)));
    for (const llama_token token : tokens) {
        for (size_t i = 0; i < all.size(); ++i) {
            all[i] = {static_cast<llama_token>(i), 0.0F, 0.0F};
        }
        llama_token_data_array candidates{all.data(), all.size(), -1, false};
        const double begin_ms = cpu_ms();
        llama_sampler_apply(sampler, &candidates);
        const double masked_ms = cpu_ms();
        llama_sampler_accept(sampler, token);
        accepts_ms.push_back(cpu_ms() - masked_ms);
        masks_ms.push_back(masked_ms - begin_ms);
    }
    std::printf("vocabulary: %zu tokens, text: %zu tokens\nread: %.3f ms\n", all.size(), tokens.size(), read_ms);
    print("mask", masks_ms);
    print("accept", accepts_ms);
    llama_sampler_free(sampler);
    llama_model_free(model);
    return 0;
}
