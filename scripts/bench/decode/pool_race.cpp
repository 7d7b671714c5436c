// pool_race MODEL.gguf SECONDS [THREADS]: do contexts that grow and shrink their device's pools beside each other
// disturb each other's results?
//
// ggml's CUDA backend maps memory into a pool of each context when a call needs more of it than any before. Another
// program's copy of that code once mapped beside running kernels and gave empty answers. Here threads make contexts on
// one model, read prompts of random lengths in them, which grows their pools, and let them go, which gives the pools
// back, as fast as they can. Each result is compared with that of the same prompt in a context that nobody disturbed.
// Prints what was done; exits with 1 if a result differed or was no number.
#include <ggml-backend.h>
#include <llama.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <span>
#include <thread>
#include <vector>

namespace {

constexpr std::uint32_t kContext = 4096;
constexpr int kLengths[] = {1, 17, 64, 200, 512, 1000, 2048, 3900};

struct ContextDeleter {
    void operator()(llama_context* context) const { llama_free(context); }
};
using Context = std::unique_ptr<llama_context, ContextDeleter>;

Context open(llama_model* model, int n_ubatch) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = kContext;
    params.n_batch = params.n_ubatch = static_cast<std::uint32_t>(n_ubatch);
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    return Context(llama_init_from_model(model, params));
}

// The logits behind a prompt and eight more tokens; empty if a call failed.
std::vector<float> answer(llama_context* context, int n_vocab, int length, int n_ubatch) {
    llama_memory_clear(llama_get_memory(context), true);
    std::vector<llama_token> tokens(static_cast<std::size_t>(length));
    std::minstd_rand random(static_cast<unsigned>(length));
    for (llama_token& token : tokens) token = static_cast<llama_token>(random() % static_cast<unsigned>(n_vocab));
    std::vector<float> all;
    const auto add = [&](std::span<llama_token> slice) {
        if (llama_decode(context, llama_batch_get_one(slice.data(), static_cast<int>(slice.size()))) != 0) return false;
        const float* logits = llama_get_logits_ith(context, -1);
        all.insert(all.end(), logits, logits + std::min(n_vocab, 4096));
        return true;
    };
    for (int begin = 0; begin < length; begin += n_ubatch) {
        const auto n = static_cast<std::size_t>(std::min(n_ubatch, length - begin));
        if (!add(std::span(tokens).subspan(static_cast<std::size_t>(begin), n))) return {};
    }
    for (int i = 0; i < 8; ++i) {
        if (!add(std::span(tokens).first(1))) return {};
    }
    return all;
}

struct Case {
    int length = 0;
    int n_ubatch = 0;
    std::vector<float> expected;
};

struct Count {
    std::atomic<long> n_contexts = 0, n_answers = 0, n_refused = 0, n_wrong = 0, n_no_number = 0;
};

void stress(llama_model* model, const std::vector<Case>& cases, unsigned seed, double seconds, Count& count) {
    const int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    std::minstd_rand random(seed);
    const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (std::chrono::steady_clock::now() < until) {
        const Case& first = cases[random() % cases.size()];
        const Context context = open(model, first.n_ubatch);
        if (!context) {
            ++count.n_refused;
            continue;
        }
        ++count.n_contexts;
        for (int i = 0; i < 6; ++i) {
            const Case& one = cases[random() % cases.size()];
            if (one.n_ubatch != first.n_ubatch) continue;
            const std::vector<float> found = answer(context.get(), n_vocab, one.length, one.n_ubatch);
            ++count.n_answers;
            if (found.size() != one.expected.size()) {
                ++count.n_refused;
                continue;
            }
            bool is_wrong = false;
            for (std::size_t j = 0; j < found.size(); ++j) {
                if (!std::isfinite(found[j])) {
                    ++count.n_no_number;
                    break;
                }
                is_wrong = is_wrong || found[j] != one.expected[j];
            }
            count.n_wrong += is_wrong ? 1 : 0;
        }
    }
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 3) {
        std::fprintf(stderr, "usage: pool_race MODEL.gguf SECONDS [THREADS]\n");
        return 2;
    }
    llama_log_set(
        [](ggml_log_level level, const char* text, void*) {
            if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
        },
        nullptr);
    ggml_backend_load_all();
    llama_backend_init();
    llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = 999;
    llama_model* model = llama_model_load_from_file(argv[1], params);
    if (model == nullptr) return 2;
    const int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    std::vector<Case> cases;
    for (const int n_ubatch : {128, 2048}) {
        for (const int length : kLengths) {
            const Context context = open(model, n_ubatch);  // a pool that has never been larger
            if (!context) return 2;
            cases.push_back({length, n_ubatch, answer(context.get(), n_vocab, length, n_ubatch)});
            if (cases.back().expected.empty()) return 2;
        }
    }
    Count count;
    std::vector<std::thread> threads;
    const int n_threads = argc > 3 ? std::atoi(argv[3]) : 4;
    for (int i = 0; i < n_threads; ++i) {
        threads.emplace_back([&, i] { stress(model, cases, static_cast<unsigned>(i + 1), std::atof(argv[2]), count); });
    }
    for (std::thread& thread : threads) thread.join();
    std::printf("%d threads: %ld contexts, %ld answers; %ld differed, %ld no number, %ld refused\n", n_threads,
                count.n_contexts.load(), count.n_answers.load(), count.n_wrong.load(), count.n_no_number.load(),
                count.n_refused.load());
    llama_model_free(model);
    return count.n_wrong > 0 || count.n_no_number > 0 ? 1 : 0;
}
