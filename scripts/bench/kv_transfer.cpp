// kv_transfer MODEL N_GPU_LAYERS CACHE_TYPE: what moving pages and states between the device and the host costs, as
// luced does it. Medians in milliseconds; "blocks" is how long the engine's thread is held up, "arrives" how long until
// the bytes are there.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/decoder.h"
#include "llama/backend.h"
#include "llama/kv_device.h"
#include "llama/llama_decoder.h"
#include "llama/model.h"

using namespace luce;

namespace {

constexpr std::int32_t kLanes = 8;
constexpr int kRounds = 15;

double now_ms() {
    using namespace std::chrono;
    return duration<double, std::milli>(steady_clock::now().time_since_epoch()).count();
}

[[noreturn]] void fail(const std::string& text) {
    std::fprintf(stderr, "kv_transfer: %s\n", text.c_str());
    std::exit(1);
}

template <typename T>
T need(Result<T> result) {
    if (!result) fail(result.error().text);
    if constexpr (!std::is_void_v<T>) return std::move(result).value();
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

class Bench {
public:
    Bench(const char* path, int n_gpu_layers, const char* cache_type)
        : model_(load(path, n_gpu_layers, cache_type)), decoder_(model_, kLanes), device_(model_, kLanes) {
        if (device_.traits().refusal) fail(*device_.traits().refusal);
    }

    void run() {
        const memory::DeviceTraits& traits = device_.traits();
        std::printf("%s, %s KV: a page of %.2f MB, a state of %.2f MB\n", model_.info().architecture.c_str(),
                    model_.info().cache_type_k.c_str(), 64e-6 * static_cast<double>(traits.row_bytes),
                    1e-6 * static_cast<double>(traits.state_bytes));
        std::printf("| what | blocks, ms | arrives, ms | GB/s |\n|---|---|---|---|\n");
        compute(1, 192);
        if (traits.n_cells > 0) {
            measure_page("page out, neighbouring cells", LaneId{0});
            measure_page_in();
        }
        forget_all();
        compute(kLanes, 64);
        if (traits.n_cells > 0) {
            measure_page("page out, cells of 8 lanes in turns", LaneId{0});
            check_page();
        }
        forget_all();
        compute(kLanes, 64);
        if (traits.has_state()) measure_state();
    }

private:
    static llama::Model load(const char* path, int n_gpu_layers, const char* cache_type) {
        llama::ModelOptions options;
        options.path = path;
        options.n_ctx = 4096;
        options.n_lanes = kLanes;
        options.n_gpu_layers = n_gpu_layers;
        options.cache_type_k = options.cache_type_v = cache_type;
        return need(llama::Model::load(options, n_gpu_layers > 0, [] {}));
    }

    // All lanes, one token a step each.
    void compute(std::int32_t n_lanes, Position n) {
        const Token token = 100;
        for (Position at = 0; at < n; ++at) {
            std::vector<engine::Slice> slices;
            for (std::int32_t i = 0; i < n_lanes; ++i) slices.push_back({LaneId{i}, at, {&token, 1}, false});
            need(decoder_.decode(slices));
        }
    }

    void forget_all() {
        for (std::int32_t i = 0; i < kLanes; ++i) device_.forget(LaneId{i});
    }

    static void report(const char* what, const std::vector<double>& blocks, const std::vector<double>& arrives,
                       std::size_t n_bytes) {
        const double ms = median(arrives);
        std::printf("| %s | %.3f | %.3f | %.1f |\n", what, median(blocks), ms,
                    1e-6 * static_cast<double>(n_bytes) / ms);
        std::fflush(stdout);
    }

    void measure_page(const char* what, LaneId lane) {
        std::vector<memory::Cell> cells(64);
        need(device_.find(lane, 0, cells));
        std::vector<double> blocks, arrives;
        for (int i = 0; i < kRounds; ++i) {
            memory::Bytes out(64 * device_.traits().row_bytes);
            const double begin = now_ms();
            need(device_.read(cells, out, nullptr));
            blocks.push_back(now_ms() - begin);
            device_.settle();
            arrives.push_back(now_ms() - begin);
            rows_ = std::move(out);
        }
        report(what, blocks, arrives, rows_.size());
    }

    // What was read of scattered cells, written to others and read again, is the same.
    void check_page() {
        const std::vector<Token> tokens(64, 100);
        std::vector<memory::Cell> cells(64);
        device_.forget(LaneId{1});
        need(device_.write(LaneId{1}, 0, tokens, rows_, 64, cells));
        for (const bool is_scattered : {true, false}) {
            if (!is_scattered) forget_all();
            if (!is_scattered) need(device_.write(LaneId{1}, 0, tokens, rows_, 64, cells));
            memory::Bytes again(rows_.size());
            need(device_.read(cells, again, nullptr));
            device_.settle();
            if (again != rows_) fail("a page is not what was written");
        }
    }

    void measure_page_in() {
        const std::vector<Token> tokens(64, 100);
        std::vector<double> times;
        for (int i = 0; i < kRounds; ++i) {
            std::vector<memory::Cell> cells(64);
            const double begin = now_ms();
            need(device_.write(LaneId{1}, 0, tokens, rows_, 64, cells));
            times.push_back(now_ms() - begin);
            device_.forget(LaneId{1});
        }
        report("page in", times, times, rows_.size());
    }

    void measure_state() {
        std::vector<double> blocks, arrives, back;
        memory::Bytes state;
        for (int i = 0; i < kRounds; ++i) {
            const double begin = now_ms();
            memory::Bytes saved;
            need(device_.save_state(LaneId{0}, saved, nullptr));
            blocks.push_back(now_ms() - begin);
            device_.settle();
            arrives.push_back(now_ms() - begin);
            state = std::move(saved);
        }
        report("state out", blocks, arrives, state.size());
        for (int i = 0; i < kRounds; ++i) {
            const double begin = now_ms();
            need(device_.load_state(LaneId{0}, state));
            back.push_back(now_ms() - begin);
        }
        report("state in", back, back, state.size());
        memory::Bytes again;
        need(device_.save_state(LaneId{0}, again, nullptr));
        device_.settle();
        if (again != state) fail("a state is not what was put back");
    }

    llama::Model model_;
    llama::LlamaDecoder decoder_;
    llama::LlamaKvDevice device_;
    memory::Bytes rows_;
};

}  // namespace

int main(int argc, char** argv) {
    if (argc != 4) fail("usage: MODEL N_GPU_LAYERS CACHE_TYPE");
    const llama::Backend backend;
    Bench(argv[1], std::atoi(argv[2]), argv[3]).run();
}
