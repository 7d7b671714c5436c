// bare_decode: the plainest loop that decodes with libllama, to measure luced against: same library, same cache types,
// same batch, the largest logit taken by hand, nothing else. Prints one JSON line.
//
// usage: bare_decode MODEL PROMPT_FILE N_GEN LANES CTX UBATCH THREADS CACHE_TYPE N_GPU_LAYERS

#include <ggml-backend.h>
#include <llama.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

namespace {

struct Free {
    void operator()(llama_model* model) const { llama_model_free(model); }
    void operator()(llama_context* context) const { llama_free(context); }
};

[[noreturn]] void fail(const std::string& what) {
    std::fprintf(stderr, "bare_decode: %s\n", what.c_str());
    std::exit(1);
}

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::vector<llama_token> read_prompt(const char* path) {
    std::ifstream file(path, std::ios::binary | std::ios::ate);
    if (!file) fail(std::string("cannot read ") + path);
    std::vector<llama_token> tokens(static_cast<std::size_t>(file.tellg()) / sizeof(llama_token));
    file.seekg(0);
    file.read(reinterpret_cast<char*>(tokens.data()),
              static_cast<std::streamsize>(tokens.size() * sizeof(llama_token)));
    return tokens;
}

long resident_kb() {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
        if (line.starts_with("VmRSS:")) return std::strtol(line.c_str() + 6, nullptr, 10);
    }
    return 0;
}

ggml_type cache_type(const std::string& name) {
    for (const ggml_type type : {GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_F32}) {
        if (name == ggml_type_name(type)) return type;
    }
    fail("unknown cache type " + name);
}

struct Settings {
    int n_generate, n_lanes, n_ctx, n_ubatch, n_threads;
    ggml_type type;
    int n_gpu_layers;
};

class Loop {
public:
    Loop(const char* path, const Settings& s) : s_(s) {
        llama_model_params model_params = llama_model_default_params();
        model_params.n_gpu_layers = s.n_gpu_layers;
        model_.reset(llama_model_load_from_file(path, model_params));
        if (!model_) fail("cannot load the model");
        llama_context_params params = llama_context_default_params();
        params.n_ctx = static_cast<uint32_t>(s.n_ctx);
        params.n_batch = params.n_ubatch = static_cast<uint32_t>(s.n_ubatch);
        params.n_seq_max = static_cast<uint32_t>(s.n_lanes);
        params.n_outputs_max = static_cast<uint32_t>(s.n_lanes);
        params.n_threads = params.n_threads_batch = s.n_threads;
        params.type_k = params.type_v = s.type;
        params.kv_unified = true;
        params.swa_full = false;
        params.no_perf = true;
        params.offload_kqv = s.n_gpu_layers != 0;
        context_.reset(llama_init_from_model(model_.get(), params));
        if (!context_) fail("cannot make a context");
        n_vocab_ = llama_vocab_n_tokens(llama_model_get_vocab(model_.get()));
        batch_ = llama_batch_init(s.n_ubatch, 0, 1);
        add(0, 0, 0, false);
        decode();
        llama_memory_clear(llama_get_memory(context_.get()), true);
    }
    ~Loop() { llama_batch_free(batch_); }
    Loop(const Loop&) = delete;
    Loop& operator=(const Loop&) = delete;

    // Prefill each lane's prompt after the other; its first token comes with the last slice.
    double prefill(const std::vector<llama_token>& prompt) {
        const double started_s = now_s();
        last_.assign(static_cast<std::size_t>(s_.n_lanes), 0);
        position_ = static_cast<int>(prompt.size());
        for (int lane = 0; lane < s_.n_lanes; ++lane) {
            for (int from = 0; from < position_; from += s_.n_ubatch) {
                const int to = std::min(position_, from + s_.n_ubatch);
                for (int i = from; i < to; ++i) add(prompt[static_cast<std::size_t>(i)], i, lane, i + 1 == position_);
                decode();
            }
            last_[static_cast<std::size_t>(lane)] = best(-1);
        }
        return now_s() - started_s;
    }

    double generate(int n) {
        const double started_s = now_s();
        for (int i = 0; i < n; ++i, ++position_) {
            for (int lane = 0; lane < s_.n_lanes; ++lane)
                add(last_[static_cast<std::size_t>(lane)], position_, lane, true);
            decode();
            for (int lane = 0; lane < s_.n_lanes; ++lane) last_[static_cast<std::size_t>(lane)] = best(lane);
        }
        return now_s() - started_s;
    }

    void clear() { llama_memory_clear(llama_get_memory(context_.get()), false); }

private:
    void add(llama_token token, int position, int lane, bool wants_logits) {
        const int i = batch_.n_tokens++;
        batch_.token[i] = token;
        batch_.pos[i] = position;
        batch_.n_seq_id[i] = 1;
        batch_.seq_id[i][0] = lane;
        batch_.logits[i] = wants_logits ? 1 : 0;
    }

    void decode() {
        if (llama_decode(context_.get(), batch_) != 0) fail("llama_decode failed");
        llama_synchronize(context_.get());
        batch_.n_tokens = 0;
    }

    llama_token best(int row) {
        const float* logits = llama_get_logits_ith(context_.get(), row);
        return static_cast<llama_token>(std::max_element(logits, logits + n_vocab_) - logits);
    }

    Settings s_;
    std::unique_ptr<llama_model, Free> model_;
    std::unique_ptr<llama_context, Free> context_;
    llama_batch batch_{};
    int n_vocab_ = 0;
    int position_ = 0;
    std::vector<llama_token> last_;
};

}  // namespace

int main(int argc, char** argv) {
    if (argc != 10) fail("usage: MODEL PROMPT_FILE N_GEN LANES CTX UBATCH THREADS CACHE_TYPE N_GPU_LAYERS");
    llama_log_set(
        [](ggml_log_level level, const char* text, void*) {
            if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
        },
        nullptr);
    ggml_backend_load_all();
    llama_backend_init();
    const std::vector<llama_token> prompt = read_prompt(argv[2]);
    const Settings settings{std::atoi(argv[3]), std::atoi(argv[4]),  std::atoi(argv[5]), std::atoi(argv[6]),
                            std::atoi(argv[7]), cache_type(argv[8]), std::atoi(argv[9])};
    Loop loop(argv[1], settings);
    // A line on stdin starts a measurement, so that both sides take turns within one run.
    std::puts("ready");
    std::fflush(stdout);
    while (std::getchar() != EOF) {
        const double prefill_s = loop.prefill(prompt);
        const double decode_s = loop.generate(settings.n_generate - 1);
        std::printf("{\"prefill_s\": %.6f, \"decode_s\": %.6f, \"n_tokens\": %d, \"resident_kb\": %ld}\n", prefill_s,
                    decode_s, (settings.n_generate - 1) * settings.n_lanes, resident_kb());
        std::fflush(stdout);
        loop.clear();
    }
    return 0;
}
