// BareContext: a model and a context as libllama gives them, for the programs that luced is measured against: the same
// library, the same cache types, the same batch, the largest logit taken by hand, nothing else.
#pragma once

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

namespace bare {

[[noreturn]] inline void fail(const std::string& what) {
    std::fprintf(stderr, "bare: %s\n", what.c_str());
    std::exit(1);
}

inline double now_s() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline std::vector<llama_token> read_prompt(const std::string& path) {
    std::ifstream file(path, std::ios::binary | std::ios::ate);
    if (!file) fail("cannot read " + path);
    std::vector<llama_token> tokens(static_cast<std::size_t>(file.tellg()) / sizeof(llama_token));
    file.seekg(0);
    file.read(reinterpret_cast<char*>(tokens.data()),
              static_cast<std::streamsize>(tokens.size() * sizeof(llama_token)));
    return tokens;
}

inline ggml_type cache_type(const std::string& name) {
    for (const ggml_type type : {GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_F32}) {
        if (name == ggml_type_name(type)) return type;
    }
    fail("unknown cache type " + name);
}

// Once for the program: backends are loaded, and only errors are said.
inline void start_library() {
    llama_log_set(
        [](ggml_log_level level, const char* text, void*) {
            if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
        },
        nullptr);
    ggml_backend_load_all();
    llama_backend_init();
}

struct ContextSettings {
    int n_lanes, n_ctx, n_ubatch, n_threads;
    ggml_type type;
    int n_gpu_layers;
};

class BareContext {
public:
    // Computes one token to warm up, and forgets it.
    BareContext(const char* path, const ContextSettings& s) : n_ubatch_(s.n_ubatch) {
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
        clear(true);
    }
    ~BareContext() { llama_batch_free(batch_); }
    BareContext(const BareContext&) = delete;
    BareContext& operator=(const BareContext&) = delete;

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

    // The text's positions [begin, end) into a lane, in calls of n_ubatch; the last one gives logits.
    void prefill(const std::vector<llama_token>& text, int begin, int end, int lane) {
        for (int from = begin; from < end; from += n_ubatch_) {
            const int to = std::min(end, from + n_ubatch_);
            for (int i = from; i < to; ++i) add(text[static_cast<std::size_t>(i)], i, lane, i + 1 == end);
            decode();
        }
    }

    llama_token best(int row) {
        const float* logits = llama_get_logits_ith(context_.get(), row);
        return static_cast<llama_token>(std::max_element(logits, logits + n_vocab_) - logits);
    }

    void clear(bool with_data = false) { llama_memory_clear(llama_get_memory(context_.get()), with_data); }

private:
    struct Free {
        void operator()(llama_model* model) const { llama_model_free(model); }
        void operator()(llama_context* context) const { llama_free(context); }
    };

    int n_ubatch_;
    std::unique_ptr<llama_model, Free> model_;
    std::unique_ptr<llama_context, Free> context_;
    llama_batch batch_{};
    int n_vocab_ = 0;
};

}  // namespace bare
