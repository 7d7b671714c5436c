// bare: a model and a context as libllama gives them, to measure luced against: the same library, the same cache types,
// the same batch, the largest logit taken by hand, nothing else. Each line on stdin is answered with the seconds it
// took:
//
//   fill LANE BEGIN END FILE  a text's positions [BEGIN, END) into a lane, behind those that it holds; BEGIN 0 empties
//   it generate N                N tokens in every lane that holds a text, one call of llama_decode for all lanes at a
//   time
//
// usage: bare MODEL LANES CELLS UBATCH THREADS CACHE_TYPE N_GPU_LAYERS UNIFIED
// UNIFIED: 1, all lanes share the cells, as luced's do; 0, each has an equal part of them.

#include <ggml-backend.h>
#include <llama.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

namespace {

[[noreturn]] void fail(const std::string& what) {
    std::fprintf(stderr, "bare: %s\n", what.c_str());
    std::exit(1);
}

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::vector<llama_token> read_prompt(const std::string& path) {
    std::ifstream file(path, std::ios::binary | std::ios::ate);
    if (!file) fail("cannot read " + path);
    std::vector<llama_token> tokens(static_cast<std::size_t>(file.tellg()) / sizeof(llama_token));
    file.seekg(0);
    file.read(reinterpret_cast<char*>(tokens.data()),
              static_cast<std::streamsize>(tokens.size() * sizeof(llama_token)));
    return tokens;
}

ggml_type cache_type(const std::string& name) {
    for (const ggml_type type : {GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_F32}) {
        if (name == ggml_type_name(type)) return type;
    }
    fail("unknown cache type " + name);
}

// Once for the program: backends are loaded, and only errors are said.
void start_library() {
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
    bool is_unified;
};

class BareContext {
public:
    // Computes one token to warm up, and forgets it.
    BareContext(const char* path, const ContextSettings& s)
        : n_ubatch_(s.n_ubatch), lanes_(static_cast<std::size_t>(s.n_lanes)) {
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
        params.kv_unified = s.is_unified;
        params.swa_full = false;
        params.no_perf = true;
        params.offload_kqv = s.n_gpu_layers != 0;
        context_.reset(llama_init_from_model(model_.get(), params));
        if (!context_) fail("cannot make a context");
        n_vocab_ = llama_vocab_n_tokens(llama_model_get_vocab(model_.get()));
        batch_ = llama_batch_init(std::max(s.n_ubatch, s.n_lanes), 0, 1);
        add(0, 0, 0, true);
        decode();
        best(-1);
        llama_memory_clear(llama_get_memory(context_.get()), true);
    }
    ~BareContext() { llama_batch_free(batch_); }
    BareContext(const BareContext&) = delete;
    BareContext& operator=(const BareContext&) = delete;

    // The text's positions [begin, end) into a lane, in calls of n_ubatch; the last one gives logits.
    void fill(const std::vector<llama_token>& text, int begin, int end, int lane) {
        if (begin == 0) llama_memory_seq_rm(llama_get_memory(context_.get()), lane, -1, -1);
        for (int from = begin; from < end; from += n_ubatch_) {
            const int to = std::min(end, from + n_ubatch_);
            for (int i = from; i < to; ++i) add(text[static_cast<std::size_t>(i)], i, lane, i + 1 == end);
            decode();
        }
        lanes_[static_cast<std::size_t>(lane)] = {end, best(-1)};
    }

    void generate(int n) {
        for (; n > 0; --n) {
            for (int lane = 0; const Lane& each : lanes_) {
                if (each.position > 0) add(each.last, each.position, lane, true);
                ++lane;
            }
            decode();
            for (int row = 0; Lane& each : lanes_) {
                if (each.position > 0) each = {each.position + 1, best(row++)};
            }
        }
    }

    bool has_lane(int lane) const { return lane >= 0 && static_cast<std::size_t>(lane) < lanes_.size(); }

private:
    struct Lane {
        int position = 0;
        llama_token last = 0;
    };

    void add(llama_token token, int position, int lane, bool wants_logits) {
        const int i = batch_.n_tokens++;
        batch_.token[i] = token;
        batch_.pos[i] = position;
        batch_.n_seq_id[i] = 1;
        batch_.seq_id[i][0] = lane;
        batch_.logits[i] = wants_logits ? 1 : 0;
    }

    // Does not wait: the next call is prepared while a device computes this one.
    void decode() {
        if (llama_decode(context_.get(), batch_) != 0) fail("llama_decode failed");
        batch_.n_tokens = 0;
    }

    llama_token best(int row) {
        const float* logits = llama_get_logits_ith(context_.get(), row);
        return static_cast<llama_token>(std::max_element(logits, logits + n_vocab_) - logits);
    }

    struct Free {
        void operator()(llama_model* model) const { llama_model_free(model); }
        void operator()(llama_context* context) const { llama_free(context); }
    };

    int n_ubatch_;
    std::unique_ptr<llama_model, Free> model_;
    std::unique_ptr<llama_context, Free> context_;
    llama_batch batch_{};
    int n_vocab_ = 0;
    std::vector<Lane> lanes_;
};

void serve(BareContext& context) {
    int lane = 0, begin = 0, end = 0;
    for (std::string verb, path; std::cin >> verb;) {
        std::vector<llama_token> text;
        if (verb == "fill" && std::cin >> lane >> begin >> end >> std::ws && std::getline(std::cin, path)) {
            text = read_prompt(path);
            if (!context.has_lane(lane) || begin < 0 || begin >= end || static_cast<std::size_t>(end) > text.size())
                fail("no such positions");
        } else if (verb != "generate" || !(std::cin >> end)) {
            fail("no such command: " + verb);
        }
        const double started_s = now_s();
        if (verb == "fill")
            context.fill(text, begin, end, lane);
        else
            context.generate(end);
        std::printf("%.6f\n", now_s() - started_s);
        std::fflush(stdout);
    }
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 9) fail("usage: MODEL LANES CELLS UBATCH THREADS CACHE_TYPE N_GPU_LAYERS UNIFIED");
    start_library();
    BareContext context(argv[1], {std::atoi(argv[2]), std::atoi(argv[3]), std::atoi(argv[4]), std::atoi(argv[5]),
                                  cache_type(argv[6]), std::atoi(argv[7]), std::atoi(argv[8]) != 0});
    std::puts("ready");
    std::fflush(stdout);
    serve(context);
    return 0;
}
