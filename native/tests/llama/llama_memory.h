// What the tests of the memory's border on libllama share: a model with its decoder and device, and texts that go out
// of it and back in.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <llama.h>

#include "engine/decoder.h"
#include "llama/decoding/llama_decoder.h"
#include "llama/kv_cache/kv_device.h"
#include "llama/model/backend.h"
#include "llama/model/model.h"
#include "test_paths.h"
#ifdef LUCE_TESTS_ON_DEVICE
#include "tests/device/late_device.h"
#endif

namespace luce::memory_tests {

using namespace luce::engine;
using namespace luce::memory;

constexpr std::int32_t kLanes = 3;
constexpr LaneId kFirst{0};
constexpr LaneId kSecond{1};
constexpr LaneId kThird{2};

// On the processor, or on the tests' device.
inline bool uses_device() {
#ifdef LUCE_TESTS_ON_DEVICE
    tests::LateDevice::install();
    return true;
#else
    return false;
#endif
}

using Logits = std::vector<float>;
using Cells = std::vector<Cell>;

struct Variant {
    std::string path = LUCE_TINY_MODEL;
    std::string cache_type = "q8_0";
    std::int32_t n_draft_most = 0;
    std::int32_t n_tree = 0;
};

inline std::string test_model(const std::string& name) {
    return std::string(LUCE_TEST_MODELS_DIR) + "/" + name + ".gguf";
}

inline Tokens some_tokens(int n, int first) {
    Tokens tokens;
    for (int i = 0; i < n; ++i) tokens.push_back(10 + (first + 37 * i) % 200);
    return tokens;
}

inline Tokens tokens_of(const llama::Model& model, const std::string& text) {
    Tokens tokens(text.size());
    const int n = llama_tokenize(model.vocab(), text.c_str(), static_cast<int>(text.size()), tokens.data(),
                                 static_cast<int>(tokens.size()), false, true);
    REQUIRE(n > 0);
    tokens.resize(static_cast<std::size_t>(n));
    return tokens;
}

// How far apart two runs' logits are, in standard deviations: the largest of a row, the median of the rows. Rounding
// comes to nothing in most rows and to one step of an 8-bit activation in some (0.03 to 0.1); with f16 always to that,
// because the CPU's flash attention adds up in f16. Once in a while it turns a near tie of two experts into the other
// (1 to 2): hence the median.
inline double logit_distance(const std::vector<Logits>& a, const std::vector<Logits>& b) {
    std::vector<double> distances;
    for (std::size_t i = 0; i < a.size(); ++i) {
        double squares = 0;
        double sum = 0;
        double most = 0;
        for (std::size_t j = 0; j < a[i].size(); ++j) {
            sum += a[i][j];
            squares += static_cast<double>(a[i][j]) * a[i][j];
            most = std::max(most, std::abs(static_cast<double>(a[i][j]) - b[i][j]));
        }
        const auto n = static_cast<double>(a[i].size());
        distances.push_back(most / std::sqrt(squares / n - sum / n * (sum / n)));
    }
    std::sort(distances.begin(), distances.end());
    return distances[distances.size() / 2];
}

// A text's memory outside the device.
struct Snapshot {
    Tokens text;
    std::vector<Bytes> pages;  // the last one may be shorter
    Bytes state;
    Logits logits;
};

struct Setup {
    explicit Setup(const Variant& variant = {}, std::int32_t n_pool = 1024)
        : model(load(variant, n_pool, llama::FlashAttention::automatic)),
          decoder(model, kLanes),
          device(model, kLanes) {}

    static llama::Model load(const Variant& variant, std::int32_t n_pool, llama::FlashAttention flash_attention) {
        const bool has_gpu = uses_device();
        static const llama::Backend backend;
        llama::ModelOptions options;
        options.path = variant.path;
        options.n_ctx = n_pool;
        options.n_lanes = kLanes;
        options.n_threads = 1;
        options.n_batch = 256;
        options.flash_attention = flash_attention;
        options.n_draft_most = variant.n_draft_most;
        options.n_tree = variant.n_tree;
        options.rollback_bytes = variant.n_draft_most > 0 ? std::size_t{1} << 30 : 0;
        if (flash_attention != llama::FlashAttention::off) {
            options.cache_type_k = options.cache_type_v = variant.cache_type;
        }
        Result<llama::Model> model = llama::Model::load(options, has_gpu, [] {});
        REQUIRE_MESSAGE(model.ok(), variant.path);
        return std::move(model).value();
    }

    // All slices in one call; the logits of each.
    std::vector<Logits> decode(std::span<const Slice> slices) {
        const Result<void> decoded = decoder.decode(slices);
        REQUIRE_MESSAGE(decoded.ok(), (decoded ? "" : decoded.error().text));
        std::vector<Logits> all;
        for (std::size_t i = 0; i < slices.size(); ++i) {
            const std::span<const float> row = decoder.logits(i);
            REQUIRE(row.size() == static_cast<std::size_t>(model.info().n_vocab));
            all.emplace_back(row.begin(), row.end());
        }
        return all;
    }
    Logits decode(LaneId lane, Position begin, std::span<const Token> tokens) {
        const Slice slice{lane, begin, tokens, true};
        return decode(std::span(&slice, 1))[0];
    }

    Logits compute(LaneId lane, const Tokens& text, std::span<const Position> cuts = {}) {
        Position begin = 0;
        for (const Position cut : cuts) {
            decode(lane, begin, std::span(text).subspan(begin, cut - begin));
            begin = cut;
        }
        return decode(lane, begin, std::span(text).subspan(begin));
    }

    // Five more tokens, one by one.
    std::vector<Logits> go_on(LaneId lane, Position begin) {
        std::vector<Logits> all;
        for (const Token token : some_tokens(5, 91)) all.push_back(decode(lane, begin++, std::span(&token, 1)));
        return all;
    }

    Cells find(LaneId lane, Position begin, std::size_t n) {
        Cells cells(n);
        REQUIRE(device.find(lane, begin, cells));
        return cells;
    }

    Snapshot take(LaneId lane, const Tokens& text, Logits logits = {}) {
        Snapshot snapshot{text, {}, {}, std::move(logits)};
        for (std::size_t begin = 0; begin < text.size(); begin += kPageSize) {
            const Cells cells =
                find(lane, static_cast<Position>(begin), std::min<std::size_t>(kPageSize, text.size() - begin));
            snapshot.pages.emplace_back(cells.size() * device.traits().row_bytes);
            REQUIRE(device.read(cells, snapshot.pages.back(), nullptr));
        }
        if (device.traits().has_state()) {
            REQUIRE(device.save_state(lane, snapshot.state, nullptr));
        }
        device.settle();
        return snapshot;
    }

    void load_state(LaneId lane, const Snapshot& snapshot) {
        if (!device.traits().has_state()) return;
        const Result<void> loaded = device.load_state(lane, snapshot.state);
        REQUIRE_MESSAGE(loaded.ok(), (loaded ? "" : loaded.error().text));
    }

    void write_page(LaneId lane, const Snapshot& snapshot, std::size_t i) {
        const std::size_t begin = i * kPageSize;
        Cells cells(snapshot.pages[i].size() / device.traits().row_bytes);
        REQUIRE(device.write(lane, static_cast<Position>(begin), std::span(snapshot.text).subspan(begin, cells.size()),
                             snapshot.pages[i], static_cast<std::int32_t>(cells.size()), cells));
        CHECK(cells == find(lane, static_cast<Position>(begin), cells.size()));
    }
    void write(LaneId lane, const Snapshot& snapshot) {
        for (std::size_t i = 0; i < snapshot.pages.size(); ++i) write_page(lane, snapshot, i);
    }

    // All that libllama saves of a lane, metadata of the cells included.
    Bytes whole_state(LaneId lane) {
        const auto sequence = static_cast<llama_seq_id>(lane);
        Bytes bytes(llama_state_seq_get_size(model.context(), sequence));
        REQUIRE(llama_state_seq_get_data(model.context(), bytes.data(), bytes.size(), sequence) == bytes.size());
        return bytes;
    }

    llama::Model model;
    llama::LlamaDecoder decoder;
    llama::LlamaKvDevice device;
};

}  // namespace luce::memory_tests
