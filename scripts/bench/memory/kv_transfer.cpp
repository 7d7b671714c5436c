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
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ggml-backend.h>
#include <ggml.h>

#include "engine/decoder.h"
#include "llama/decoding/llama_decoder.h"
#include "llama/device_copy/pinned_memory.h"
#include "llama/kv_cache/kv_device.h"
#include "llama/model/backend.h"
#include "llama/model/model.h"

using namespace luce;

namespace {

constexpr std::int32_t kLanes = 8;
constexpr int kRounds = 15;
constexpr std::size_t kBatch = 32;      // pages
constexpr std::size_t kOverlapped = 4;  // pages beside a step

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
            measure_batches();
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

    // As many as a turn's prefix moves, one after the other under way; what the bus gives in one copy of as many
    // bytes is the limit. Then the same beside computing.
    void measure_batches() {
        const std::size_t page_bytes = rows_.size();
        const auto pinned = llama::PinnedMemory::create(device_.device(), page_bytes, kBatch * page_bytes * 4);
        if (pinned == nullptr) {
            std::printf("| no pinned memory here: pages are not copied in batches | | | |\n");
            return;
        }
        const auto [limit_out_ms, limit_in_ms] = bus_limits(kBatch * page_bytes);
        std::vector<memory::Cell> source(64);
        need(device_.find(LaneId{0}, 0, source));
        const std::vector<Token> tokens(64, 100);
        std::vector<double> out, out_blocks, in, blocks;
        for (int round = 0; round < kRounds; ++round) {
            std::vector<std::shared_ptr<memory::Bytes>> pages;
            while (pages.size() < kBatch) {
                if (!pinned->wait_for_block()) fail("the system gives too little pinned memory");
                pages.push_back(std::make_shared<memory::Bytes>(page_bytes));
            }
            const double set_out = now_ms();
            for (const auto& page : pages) need(device_.read(source, *page, page));
            out_blocks.push_back(now_ms() - set_out);
            device_.settle();
            out.push_back(now_ms() - set_out);
            std::vector<std::vector<memory::Cell>> cells(kBatch, std::vector<memory::Cell>(64));
            const double begin = now_ms();
            place_all(pages, tokens, cells);
            blocks.push_back(now_ms() - begin);
            for (const auto& of_page : cells) device_.show(LaneId{1}, of_page);
            in.push_back(now_ms() - begin);
            for (const auto& of_page : cells) device_.release(of_page);
            device_.forget(LaneId{1});
            if (*pages.front() != *pages.back()) fail("a page of a batch is not what was read");
        }
        report("pages out, a batch", out_blocks, out, kBatch * page_bytes);
        report("pages in, a batch", blocks, in, kBatch * page_bytes);
        std::printf("| the bus, out | %.3f | | %.1f |\n| the bus, in | %.3f | | %.1f |\n", limit_out_ms,
                    1e-6 * static_cast<double>(kBatch * page_bytes) / limit_out_ms, limit_in_ms,
                    1e-6 * static_cast<double>(kBatch * page_bytes) / limit_in_ms);
        std::printf("| of the bus | out %.2f, in %.2f | | |\n", limit_out_ms / median(out), limit_in_ms / median(in));
        measure_overlap(*pinned, page_bytes, tokens, source);
    }

    void place_all(std::span<const std::shared_ptr<memory::Bytes>> pages, std::span<const Token> tokens,
                   std::vector<std::vector<memory::Cell>>& cells) {
        for (std::size_t i = 0; i < pages.size(); ++i) {
            const auto begin = static_cast<Position>(i) * memory::kPageSize;
            need(device_.place(begin, tokens, *pages[i], pages[i], cells[i]));
        }
    }

    // A step with nothing beside it, and one that begins when a batch of pages has set off, either way.
    void measure_overlap(llama::PinnedMemory& pinned, std::size_t page_bytes, std::span<const Token> tokens,
                         std::span<const memory::Cell> source) {
        std::vector<std::shared_ptr<memory::Bytes>> pages;
        for (std::size_t i = 0; i < kOverlapped && pinned.wait_for_block(); ++i) {
            pages.push_back(std::make_shared<memory::Bytes>(page_bytes));
            need(device_.read(source, *pages.back(), pages.back()));
        }
        device_.settle();
        std::vector<double> alone, beside_out, after_out, beside, after;
        Position at = 192;
        const Token token = 100;
        const auto step = [&] {
            const engine::Slice slice{LaneId{0}, at++, {&token, 1}, false};
            need(decoder_.decode(std::span(&slice, 1)));
        };
        for (int round = 0; round < kRounds; ++round) {
            alone.push_back(time(step));
            for (const auto& page : pages) need(device_.read(source, *page, page));
            beside_out.push_back(time(step));
            after_out.push_back(time([&] { device_.settle(); }));
            std::vector<std::vector<memory::Cell>> cells(pages.size(), std::vector<memory::Cell>(64));
            place_all(pages, tokens, cells);
            beside.push_back(time(step));
            after.push_back(time([&] {
                for (const auto& of_page : cells) device_.show(LaneId{1}, of_page);
            }));
            for (const auto& of_page : cells) device_.release(of_page);
            device_.forget(LaneId{1});
        }
        std::printf("| a step alone %.3f, beside %zu pages going out | %.3f | then waited for %.3f | |\n",
                    median(alone), pages.size(), median(beside_out), median(after_out));
        std::printf("| a step alone %.3f, beside %zu pages coming in | %.3f | then waited for %.3f | |\n",
                    median(alone), pages.size(), median(beside), median(after));
    }

    // One copy of n_bytes between pinned memory and the device, out and in.
    std::pair<double, double> bus_limits(std::size_t n_bytes) {
        ggml_backend_dev_t device = device_.device();
        ggml_backend_t stream = ggml_backend_dev_init(device, nullptr);
        ggml_backend_buffer_t there = ggml_backend_buft_alloc_buffer(ggml_backend_dev_buffer_type(device), n_bytes);
        ggml_backend_buffer_t here = ggml_backend_buft_alloc_buffer(ggml_backend_dev_host_buffer_type(device), n_bytes);
        if (stream == nullptr || there == nullptr || here == nullptr) fail("no memory to measure the bus with");
        ggml_tensor tensor{};
        tensor.type = GGML_TYPE_I8;
        tensor.buffer = there;
        tensor.data = ggml_backend_buffer_get_base(there);
        tensor.ne[0] = static_cast<std::int64_t>(n_bytes);
        tensor.ne[1] = tensor.ne[2] = tensor.ne[3] = 1;
        tensor.nb[0] = 1;
        tensor.nb[1] = tensor.nb[2] = tensor.nb[3] = n_bytes;
        void* host = ggml_backend_buffer_get_base(here);
        std::vector<double> out, in;
        for (int round = 0; round < kRounds; ++round) {
            in.push_back(time([&] {
                ggml_backend_tensor_set_async(stream, &tensor, host, 0, n_bytes);
                ggml_backend_synchronize(stream);
            }));
            out.push_back(time([&] {
                ggml_backend_tensor_get_async(stream, &tensor, host, 0, n_bytes);
                ggml_backend_synchronize(stream);
            }));
        }
        ggml_backend_buffer_free(here);
        ggml_backend_buffer_free(there);
        ggml_backend_free(stream);
        return {median(out), median(in)};
    }

    static double time(const std::function<void()>& what) {
        const double begin = now_ms();
        what();
        return now_ms() - begin;
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
