// bare_decode: the plainest loop that decodes with libllama, to measure luced against. Prints one JSON line for each
// line on stdin.
//
// usage: bare_decode MODEL PROMPT_FILE N_GEN LANES CTX UBATCH THREADS CACHE_TYPE N_GPU_LAYERS

#include "bare_context.h"

namespace {

long resident_kb() {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
        if (line.starts_with("VmRSS:")) return std::strtol(line.c_str() + 6, nullptr, 10);
    }
    return 0;
}

class Loop {
public:
    Loop(const char* path, const bare::ContextSettings& settings)
        : context_(path, settings), n_lanes_(settings.n_lanes) {}

    // Prefill each lane's prompt after the other; its first token comes with the last slice.
    double prefill(const std::vector<llama_token>& prompt) {
        const double started_s = bare::now_s();
        last_.assign(static_cast<std::size_t>(n_lanes_), 0);
        position_ = static_cast<int>(prompt.size());
        for (int lane = 0; lane < n_lanes_; ++lane) {
            context_.prefill(prompt, 0, position_, lane);
            last_[static_cast<std::size_t>(lane)] = context_.best(-1);
        }
        return bare::now_s() - started_s;
    }

    double generate(int n) {
        const double started_s = bare::now_s();
        for (int i = 0; i < n; ++i, ++position_) {
            for (int lane = 0; lane < n_lanes_; ++lane)
                context_.add(last_[static_cast<std::size_t>(lane)], position_, lane, true);
            context_.decode();
            for (int lane = 0; lane < n_lanes_; ++lane) last_[static_cast<std::size_t>(lane)] = context_.best(lane);
        }
        return bare::now_s() - started_s;
    }

    void clear() { context_.clear(); }

private:
    bare::BareContext context_;
    int n_lanes_;
    int position_ = 0;
    std::vector<llama_token> last_;
};

}  // namespace

int main(int argc, char** argv) {
    if (argc != 10) bare::fail("usage: MODEL PROMPT_FILE N_GEN LANES CTX UBATCH THREADS CACHE_TYPE N_GPU_LAYERS");
    bare::start_library();
    const std::vector<llama_token> prompt = bare::read_prompt(argv[2]);
    const int n_generate = std::atoi(argv[3]);
    const bare::ContextSettings settings{std::atoi(argv[4]), std::atoi(argv[5]),        std::atoi(argv[6]),
                                         std::atoi(argv[7]), bare::cache_type(argv[8]), std::atoi(argv[9])};
    Loop loop(argv[1], settings);
    // A line on stdin starts a measurement, so that both sides take turns within one run.
    std::puts("ready");
    std::fflush(stdout);
    while (std::getchar() != EOF) {
        const double prefill_s = loop.prefill(prompt);
        const double decode_s = loop.generate(n_generate - 1);
        std::printf("{\"prefill_s\": %.6f, \"decode_s\": %.6f, \"n_tokens\": %d, \"resident_kb\": %ld}\n", prefill_s,
                    decode_s, (n_generate - 1) * settings.n_lanes, resident_kb());
        std::fflush(stdout);
        loop.clear();
    }
    return 0;
}
