// Bytes of tensors of which several devices have a part: they leave beside computations, and arrive as they lie in the
// whole tensor, whatever its parts become meanwhile.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ggml-cpu.h>

#include "llama/device_copy/copies_within.h"
#include "llama/device_copy/outbound_copies.h"
#include "llama/device_copy/pinned_memory.h"
#include "llama/device_copy/tensor_parts.h"
#include "memory/pages/block_source.h"
#include "memory/tiers/blob.h"
#include "tests/device/late_device.h"

TEST_SUITE("device") {

using namespace luce;
using luce::memory::Bytes;
using luce::tests::LateDevice;

namespace {

constexpr std::int64_t kColumns = 128;
constexpr std::int64_t kRows = 12;

ggml_backend_meta_split_state split_of(const ggml_tensor* tensor, void*) {
    ggml_backend_meta_split_state split{};
    const std::string_view name = tensor->name;
    split.axis = name == "mirrored" ? GGML_BACKEND_SPLIT_AXIS_MIRRORED : GGML_BACKEND_SPLIT_AXIS_0;
    split.n_segments = name == "segments" ? 2 : 1;
    split.nr[0] = name == "segments" ? 2 : 1;
    split.nr[1] = 1;
    const std::array<std::int64_t, 4> ne =
        name == "segments" ? std::array<std::int64_t, 4>{16, 16, 40, 24} : std::array<std::int64_t, 4>{96, 32};
    if (split.axis == GGML_BACKEND_SPLIT_AXIS_0) std::copy(ne.begin(), ne.end(), split.ne);
    return split;
}

struct Parted {
    Parted() {
        std::array<ggml_backend_dev_t, 2> devices = {LateDevice::install().device(), LateDevice::install().device()};
        meta = ggml_backend_meta_device(devices.data(), devices.size(), split_of, nullptr);
        context.reset(ggml_init({8 * ggml_tensor_overhead(), nullptr, true}));
        for (const char* name : {"rows", "segments", "mirrored"}) {
            tensors.push_back(ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, kColumns, kRows));
            ggml_set_name(tensors.back(), name);
        }
        buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(context.get(), ggml_backend_dev_buffer_type(meta)));
        for (std::size_t i = 0; i < tensors.size(); ++i) {
            whole.emplace_back(ggml_nbytes(tensors[i]));
            for (std::size_t at = 0; at < whole[i].size(); ++at) {
                whole[i][at] = static_cast<std::uint8_t>(at * 31 + at / 251 + i);
            }
            ggml_backend_tensor_set(tensors[i], whole[i].data(), 0, whole[i].size());
        }
        backend.reset(ggml_backend_dev_init(meta, nullptr));
        cpu.reset(ggml_backend_cpu_init());
        std::array<ggml_backend_t, 2> backends = {backend.get(), cpu.get()};
        scheduler.reset(ggml_backend_sched_new(backends.data(), nullptr, 2, 64, false, true));
        copies.open(tensors, std::size_t{1} << 20);
    }
    ~Parted() { copies.close(); }

    void overwrite() {
        const std::vector<std::uint8_t> zeros(ggml_nbytes(tensors[0]));
        for (ggml_tensor* tensor : tensors) ggml_backend_tensor_set(tensor, zeros.data(), 0, zeros.size());
    }

    ggml_backend_dev_t meta = nullptr;
    std::unique_ptr<ggml_context, decltype(&ggml_free)> context{nullptr, ggml_free};
    llama::BufferPtr buffer;
    std::vector<ggml_tensor*> tensors;
    std::vector<std::vector<std::uint8_t>> whole;
    llama::BackendPtr backend;
    llama::BackendPtr cpu;
    std::unique_ptr<ggml_backend_sched, decltype(&ggml_backend_sched_free)> scheduler{nullptr, ggml_backend_sched_free};
    llama::OutboundCopies copies;
};

// Rows 3, 4 and 9 of all tensors, then rows 5 and 6 of each: a page's way and a state's.
std::vector<llama::OutboundCopies::Piece> pieces_of(const Parted& p, std::span<const std::uint32_t> rows,
                                                    std::uint8_t* out, Bytes& expected) {
    std::vector<llama::OutboundCopies::Piece> pieces;
    const std::size_t row_bytes = p.tensors[0]->nb[1];
    std::size_t n = 0;
    for (std::size_t i = 0; i < p.tensors.size(); ++i) {
        // Of several segments no device's part of a row is one run: such a piece is copied at once.
        if (std::string_view(p.tensors[i]->name) == "segments") continue;
        pieces.push_back({.tensor = p.tensors[i], .out = out + n, .row_bytes = row_bytes, .rows = rows});
        for (const std::uint32_t row : rows) {
            std::memcpy(expected.data() + n, p.whole[i].data() + row * row_bytes, row_bytes);
            n += row_bytes;
        }
    }
    for (std::size_t i = 0; i < p.tensors.size(); ++i) {
        pieces.push_back({.tensor = p.tensors[i], .out = out + n, .offset = 5 * row_bytes, .n_bytes = 2 * row_bytes});
        std::memcpy(expected.data() + n, p.whole[i].data() + 5 * row_bytes, 2 * row_bytes);
        n += 2 * row_bytes;
    }
    expected.resize(n);
    return pieces;
}

}  // namespace

TEST_CASE("rows in parts") {
    Parted p;
    CHECK(llama::parts_of_rows(p.tensors[0]).size() == 2);
    CHECK(llama::parts_of_rows(p.tensors[1]).size() == 6);
    CHECK(llama::parts_of_rows(p.tensors[2]).size() == 1);
    for (const ggml_tensor* tensor : p.tensors) {
        std::size_t at = 0;
        for (const llama::RowPart& part : llama::parts_of_rows(tensor)) {
            CHECK(part.at == at);
            CHECK(llama::device_holding(part.tensor) == LateDevice::install().device());
            at += part.n_bytes;
        }
        CHECK(at == tensor->nb[1]);
    }
}

TEST_CASE("tensors in parts may change once they are on their way") {
    for (const bool is_pinned : {false, true}) {
        for (const std::string way : {"start", "start_behind", "start_lasting"}) {
            CAPTURE(is_pinned);
            CAPTURE(way);
            Parted p;
            constexpr std::size_t kBlock = 1 << 14;
            const std::unique_ptr<llama::PinnedMemory> pinned =
                llama::PinnedMemory::create(LateDevice::install().device(), kBlock, std::size_t{64} << 20);
            REQUIRE(pinned != nullptr);
            REQUIRE(pinned->wait_for_block());
            Bytes out(is_pinned ? kBlock : kBlock + 1);
            REQUIRE(memory::lies_in_block(out.data()) == is_pinned);
            Bytes expected(out.size());
            const std::vector<std::uint32_t> rows = {3, 4, 9};
            const auto pieces = pieces_of(p, rows, out.data(), expected);
            const std::uint64_t n_before = LateDevice::install().n_copies_out();
            if (way == "start") p.copies.start(pieces, nullptr);
            if (way == "start_behind") CHECK(p.copies.start_behind(p.scheduler.get(), pieces, nullptr));
            if (way == "start_lasting") p.copies.start_lasting(pieces, nullptr);
            if (way != "start") {
                p.copies.hold_back(p.scheduler.get());
                ggml_backend_synchronize(p.backend.get());
            }
            p.overwrite();
            p.copies.wait();
            CHECK(LateDevice::install().n_copies_out() > n_before);
            CHECK(std::equal(expected.begin(), expected.end(), out.begin()));
        }
    }
}

TEST_CASE("rows of tensors in parts move within their devices") {
    Parted p;
    llama::CopiesWithin moves(p.scheduler.get(), [] { FAIL("nobody has to wait"); });
    const std::size_t row_bytes = p.tensors[0]->nb[1];
    for (const ggml_tensor* tensor : p.tensors) moves.copy(tensor, 2 * row_bytes, 8 * row_bytes, 3 * row_bytes);
    ggml_backend_synchronize(p.backend.get());
    for (std::size_t i = 0; i < p.tensors.size(); ++i) {
        std::vector<std::uint8_t> expected = p.whole[i];
        std::copy_n(p.whole[i].begin() + 2 * row_bytes, 3 * row_bytes, expected.begin() + 8 * row_bytes);
        std::vector<std::uint8_t> got(expected.size());
        ggml_backend_tensor_get(p.tensors[i], got.data(), 0, got.size());
        CHECK(got == expected);
    }
    // ggml reads the first device's copy.
    const ggml_tensor* second = llama::tensors_with_rows_of(p.tensors[2])[1];
    std::vector<std::uint8_t> got(row_bytes);
    ggml_backend_tensor_get(second, got.data(), 8 * row_bytes, row_bytes);
    CHECK(std::equal(got.begin(), got.end(), p.whole[2].begin() + 2 * row_bytes));
}

}  // TEST_SUITE("device")
