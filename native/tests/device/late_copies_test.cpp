// Copies between the host and a device, beside its computations, with a device that copies as late as it may: what was
// read is what lay there when it was read, whatever becomes of the cells, and what comes in is there when it is seen.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "llama/device_copy/device_lines.h"
#include "llama/device_copy/pinned_memory.h"
#include "test_paths.h"
#include "tests/device/late_device.h"
#include "tests/llama/llama_memory.h"
#include "tests/support/volume.h"

TEST_SUITE("device") {

using namespace luce;
using namespace luce::memory_tests;
using luce::tests::is_full;
using luce::tests::LateDevice;

namespace {

constexpr std::size_t kPages = 6;

std::shared_ptr<Bytes> some_bytes(std::size_t n) { return std::make_shared<Bytes>(n, std::uint8_t{0x5a}); }

struct Pinned {
    std::unique_ptr<llama::PinnedMemory> pinned;  // goes last: copies that are under way hold blocks
};

// A model whose pages go straight into pinned memory.
struct Direct : Pinned, Setup {
    explicit Direct(const Variant& variant = {}, std::int32_t n_pool = 1024)
        : Setup(variant, n_pool), page_bytes(kPageSize * device.traits().row_bytes) {
        pinned = llama::PinnedMemory::create(device.device(), page_bytes, std::size_t{1} << 30);
        REQUIRE(device.device() == LateDevice::install().device());
        REQUIRE(pinned != nullptr);
    }

    std::shared_ptr<Bytes> pinned_page() {
        REQUIRE(pinned->wait_for_block());
        std::shared_ptr<Bytes> page = some_bytes(page_bytes);
        REQUIRE(lies_in_block(page->data()));
        return page;
    }

    std::size_t page_bytes;
};

// For as long as it lives nothing comes but what this thread's computations wait for.
struct HoldUp {
    HoldUp() { LateDevice::install().hold_others_up(); }
    ~HoldUp() { end(); }
    void end() { LateDevice::install().let_go(); }
};

// For as long as it lives every copy takes a while.
struct Delay {
    explicit Delay(int us) { LateDevice::install().delay_others(std::chrono::microseconds(us)); }
    ~Delay() { LateDevice::install().delay_others(std::chrono::microseconds(0)); }
};

// For as long as it lives the device has no memory for computations.
struct RefusedComputations {
    RefusedComputations() {
        LateDevice::install().set_workspace(1);
        LateDevice::install().set_total(LateDevice::install().n_taken());
    }
    ~RefusedComputations() {
        LateDevice::install().set_workspace(0);
        LateDevice::install().set_total(std::size_t{1} << 40);
    }
};

}  // namespace

TEST_CASE("lines at equal distances on both sides are one copy") {
    std::vector<std::uint8_t> there(1000);
    std::vector<std::uint8_t> here(1000);
    const auto line = [&](std::size_t at, std::size_t from, std::size_t n, std::uintptr_t buffer = 1) {
        return llama::DeviceLine{reinterpret_cast<ggml_backend_buffer_t>(buffer), there.data() + at, here.data() + from,
                                 n};
    };
    const auto sizes = [](const std::vector<llama::DeviceLine>& lines) {
        std::vector<std::size_t> all;
        for (const llama::LineGroup& group : llama::group_lines(lines)) all.push_back(group.n);
        return all;
    };
    CHECK(sizes({}).empty());
    CHECK(sizes({line(0, 0, 10)}) == std::vector<std::size_t>{1});
    CHECK(sizes({line(0, 0, 10), line(100, 10, 10), line(200, 20, 10)}) == std::vector<std::size_t>{3});
    CHECK(sizes({line(0, 0, 10), line(100, 40, 10), line(200, 80, 10)}) == std::vector<std::size_t>{3});
    CHECK(sizes({line(0, 0, 10), line(100, 10, 10), line(150, 20, 10)}) == std::vector<std::size_t>{2, 1});
    CHECK(sizes({line(0, 0, 10), line(100, 10, 10), line(200, 30, 10)}) == std::vector<std::size_t>{2, 1});
    CHECK(sizes({line(0, 0, 10), line(100, 10, 20)}) == std::vector<std::size_t>{1, 1});
    CHECK(sizes({line(0, 0, 10), line(100, 10, 10, 2)}) == std::vector<std::size_t>{1, 1});
    CHECK(sizes({line(100, 0, 10), line(0, 10, 10)}) == std::vector<std::size_t>{1, 1});
    CHECK(sizes({line(0, 0, 10), line(5, 10, 10)}) == std::vector<std::size_t>{1, 1});
    const std::vector<llama::DeviceLine> lines = {line(0, 0, 10), line(100, 40, 10)};
    const llama::LineGroup group = llama::group_lines(lines).front();
    CHECK(group.stride_there == 100);
    CHECK(group.stride_here == 40);
    llama::note_pieced(lines[0].buffer);
    CHECK(sizes(lines) == std::vector<std::size_t>{1, 1});
    llama::forget_pieced(lines[0].buffer);
    CHECK(sizes(lines) == std::vector<std::size_t>{2});
}

TEST_CASE("cells that are computed into or filled before they have been read keep what was read") {
    for (const char* name : {"", "qwen3", "qwen35", "gemma4"}) {
        CAPTURE(name);
        const Variant variant{*name == '\0' ? LUCE_TINY_MODEL : test_model(name), "q8_0"};
        Direct s(variant, 256);
        const Tokens text = some_tokens(3 * kPageSize, 3);
        s.compute(kFirst, text);
        const Cells cells = s.find(kFirst, 0, text.size());
        std::vector<Bytes> expected;
        for (std::size_t i = 0; i < 3; ++i) {
            expected.emplace_back(s.page_bytes);
            REQUIRE(s.device.read(std::span(cells).subspan(i * kPageSize, kPageSize), expected.back(), nullptr));
        }
        s.device.settle();
        CHECK(expected[0] != expected[1]);
        const auto read_all = [&] {
            std::vector<std::shared_ptr<Bytes>> pages;
            for (std::size_t i = 0; i < 3; ++i) {
                pages.push_back(s.pinned_page());
                const auto of_page = std::span(cells).subspan(i * kPageSize, kPageSize);
                REQUIRE(s.device.read(of_page, *pages.back(), pages.back()));
            }
            return pages;
        };
        const auto check = [&](const std::vector<std::shared_ptr<Bytes>>& pages) {
            s.device.settle();
            for (std::size_t i = 0; i < 3; ++i) CHECK(*pages[i] == expected[i]);
        };

        SUBCASE("by a computation, once a lane is forgotten") {
            HoldUp hold_up;
            const auto pages = read_all();
            CHECK(*pages[0] == *some_bytes(s.page_bytes));  // nothing has come yet
            s.device.forget(kFirst);
            s.compute(kSecond, some_tokens(200, 77));  // all but a few of the cells
            hold_up.end();
            check(pages);
        }
        SUBCASE("by a computation, once they are released") {
            s.device.hold(cells);
            s.device.forget(kFirst);
            HoldUp hold_up;
            const auto pages = read_all();
            s.device.release(cells);
            s.compute(kSecond, some_tokens(200, 77));
            hold_up.end();
            check(pages);
        }
        SUBCASE("by a computation, once they are hidden") {
            HoldUp hold_up;
            const auto pages = read_all();
            s.device.hide(kFirst, cells);
            s.compute(kSecond, some_tokens(60, 77));  // as many as a window beside the first lane's has cells
            hold_up.end();
            check(pages);
        }
        SUBCASE("by what is put there") {
            const Delay delay(20000);
            const auto pages = read_all();
            s.device.forget(kFirst);
            const Bytes others(3 * s.page_bytes, 0x11);
            Cells filled(3 * kPageSize);
            REQUIRE(s.device.write(kSecond, 0, text, others, 3 * kPageSize, filled));
            CHECK(filled == cells);
            check(pages);
        }
        SUBCASE("by what is placed there") {
            const Delay delay(20000);
            const auto pages = read_all();
            s.device.forget(kFirst);
            const auto others = std::make_shared<Bytes>(3 * s.page_bytes, 0x11);
            Cells filled(3 * kPageSize);
            REQUIRE(s.device.place(0, text, *others, others, filled));
            CHECK(filled == cells);
            check(pages);
            s.device.release(filled);
        }
    }
}

TEST_CASE("a state that is saved behind a computation is the lane's of then, whatever is computed next") {
    for (const char* name : {"", "qwen35", "gemma4"}) {
        CAPTURE(name);
        const Variant variant{*name == '\0' ? LUCE_TINY_MODEL : test_model(name), "q8_0"};
        Direct s(variant, 256);
        s.compute(kFirst, some_tokens(150, 3));
        Bytes expected;
        REQUIRE(s.device.save_state(kFirst, expected, nullptr));
        s.device.settle();

        HoldUp hold_up;  // nobody but a computation makes the copies happen: who waited for them would wait for good
        const auto state = std::make_shared<Bytes>();
        REQUIRE(s.device.save_state(kFirst, *state, state));
        CHECK(s.device.n_bytes_under_way() > 0);
        s.decode(kFirst, 150, some_tokens(20, 91));
        hold_up.end();
        s.device.settle();
        CHECK(*state == expected);

        s.device.forget(kFirst);
        CHECK(s.device.n_bytes_under_way() == 0);
    }
}

TEST_CASE("what comes in is there when a lane computes with it, also if it was still on its way out") {
    for (const bool is_placed : {true, false}) {
        CAPTURE(is_placed);
        Direct s({test_model("qwen3"), "q8_0"});
        const Tokens text = some_tokens(2 * kPageSize, 3);
        s.compute(kFirst, text);
        const Cells cells = s.find(kFirst, 0, text.size());
        const std::vector<Logits> untouched = s.go_on(kFirst, static_cast<Position>(text.size()));
        const Delay delay(20000);
        std::vector<std::shared_ptr<Bytes>> pages;
        for (std::size_t i = 0; i < 2; ++i) {
            pages.push_back(s.pinned_page());
            const auto of_page = std::span(cells).subspan(i * kPageSize, kPageSize);
            REQUIRE(s.device.read(of_page, *pages.back(), pages.back()));
        }
        s.device.forget(kFirst);
        if (is_placed) s.compute(kSecond, some_tokens(150, 77));  // other rows lie there then
        s.device.forget(kSecond);
        for (std::size_t i = 0; i < 2; ++i) {
            const auto begin = static_cast<Position>(i) * kPageSize;
            const auto tokens = std::span(text).subspan(i * kPageSize, kPageSize);
            Cells filled(kPageSize);
            if (is_placed) {
                REQUIRE(s.device.place(begin, tokens, *pages[i], pages[i], filled));
            } else {
                REQUIRE(s.device.write(kFirst, begin, tokens, *pages[i], kPageSize, filled));
            }
            CHECK(std::equal(filled.begin(), filled.end(), cells.begin() + begin));
            if (is_placed) s.device.show(kFirst, filled);
        }
        CHECK(s.go_on(kFirst, static_cast<Position>(text.size())) == untouched);
    }
}

TEST_CASE("a page that lies in few runs of cells goes straight, one in many goes aside, and both come whole") {
    LateDevice& late = LateDevice::install();
    Direct s({test_model("qwen3"), "q8_0"});
    const auto in_turns = [&](Position step) {
        for (Position begin = 0; begin < kPageSize; begin += step) {
            s.decode(kFirst, begin, some_tokens(step, begin));
            s.decode(kSecond, begin, some_tokens(step, begin + 5));
        }
    };
    const auto n_copies = [&](LaneId lane) {
        const Cells cells = s.find(lane, 0, kPageSize);
        std::vector<std::uint8_t> expected(s.page_bytes);  // in the usual memory
        REQUIRE(s.device.read(cells, expected, nullptr));
        s.device.settle();
        const std::shared_ptr<Bytes> page = s.pinned_page();
        const std::uint64_t before = late.n_copies_out();
        REQUIRE(s.device.read(cells, *page, page));
        s.device.settle();
        CHECK(std::equal(page->begin(), page->end(), expected.begin(), expected.end()));
        return late.n_copies_out() - before;
    };
    s.compute(kFirst, some_tokens(kPageSize, 3));
    const std::uint64_t n_whole = n_copies(kFirst);
    s.device.forget(kFirst);
    in_turns(16);  // four runs
    CHECK(n_copies(kSecond) == 4 * n_whole);
    s.device.forget(kFirst);
    s.device.forget(kSecond);
    in_turns(2);                    // thirty-two
    CHECK(n_copies(kSecond) == 1);  // from where they were gathered
}

TEST_CASE("rows that the device has no memory to gather are copied one run after the other") {
    LateDevice& late = LateDevice::install();
    Direct s({test_model("qwen3"), "q8_0"});
    for (Position i = 0; i < kPageSize; ++i) {
        s.decode(kFirst, i, some_tokens(1, i));
        s.decode(kSecond, i, some_tokens(1, i + 5));
    }
    const auto rows_of_second = [&] {
        const std::shared_ptr<Bytes> rows = some_bytes(s.page_bytes);
        REQUIRE(s.device.read(s.find(kSecond, 0, kPageSize), *rows, rows));
        s.device.settle();
        return *rows;
    };
    const Bytes gathered = rows_of_second();
    const std::uint64_t n_refused = late.n_refused();
    const RefusedComputations refused;
    CHECK(rows_of_second() == gathered);
    CHECK(late.n_refused() > n_refused);
}

TEST_CASE("pages that leave and come back at random through pinned memory are the same bytes") {
    for (const char* name : {"qwen3", "qwen35", "gemma4"}) {
        CAPTURE(name);
        Direct s({test_model(name), "q8_0"}, 768);
        const Delay delay(300);
        const Tokens text = some_tokens(static_cast<int>(kPages) * kPageSize + 10, 3);
        s.compute(kFirst, text, std::vector<Position>{200});
        const Snapshot snapshot = s.take(kFirst, text);
        std::mt19937 random(3);
        std::vector<std::shared_ptr<Bytes>> host(kPages);
        std::vector<Cells> in_pool;
        for (std::size_t i = 0; i < kPages; ++i) {
            in_pool.push_back(s.find(kFirst, static_cast<Position>(i) * kPageSize, kPageSize));
            s.device.hold(in_pool[i]);
        }
        Position n_others = 0;
        for (int round = 0; round < (is_full() ? 300 : 120); ++round) {
            const std::size_t i = random() % kPages;
            const auto begin = static_cast<Position>(i) * kPageSize;
            if (random() % 4 == 0) {  // others take the cells that are free
                s.device.forget(kSecond);
                s.compute(kSecond, some_tokens(100 + static_cast<int>(random() % 100), ++n_others));
            } else if (!in_pool[i].empty()) {
                host[i] = s.pinned_page();
                REQUIRE(s.device.read(in_pool[i], *host[i], host[i]));
                s.device.hide(kFirst, in_pool[i]);
                s.device.release(in_pool[i]);
                in_pool[i].clear();
            } else {
                if (s.device.n_free_cells() < kPageSize) s.device.forget(kSecond);
                in_pool[i].resize(kPageSize);
                const auto tokens = std::span(text).subspan(i * kPageSize, kPageSize);
                REQUIRE(s.device.place(begin, tokens, *host[i], host[i], in_pool[i]));
                if (random() % 2 == 0) host[i].reset();  // the device still keeps it
                s.device.show(kFirst, in_pool[i]);
            }
        }
        s.device.settle();
        for (std::size_t i = 0; i < kPages; ++i) {
            Bytes rows(s.page_bytes);
            if (!in_pool[i].empty()) REQUIRE(s.device.read(in_pool[i], rows, nullptr));
            s.device.settle();
            CHECK((in_pool[i].empty() ? *host[i] : rows) == snapshot.pages[i]);
        }
    }
}

TEST_CASE("bytes are under way until they have come") {
    Direct s({test_model("qwen3"), "q8_0"});
    s.compute(kFirst, some_tokens(2 * kPageSize, 3));
    const Cells cells = s.find(kFirst, 0, 2 * kPageSize);
    CHECK(s.device.n_bytes_under_way() == 0);
    HoldUp hold_up;
    const std::shared_ptr<Bytes> pinned = s.pinned_page();
    REQUIRE(s.device.read(std::span(cells).first(kPageSize), *pinned, pinned));
    CHECK(s.device.n_bytes_under_way() == s.page_bytes);
    const std::shared_ptr<Bytes> other = std::make_shared<Bytes>(2 * s.page_bytes);  // aside first
    REQUIRE(s.device.read(cells, *other, other));
    CHECK(s.device.n_bytes_under_way() == 3 * s.page_bytes);
    hold_up.end();
    s.device.settle();
    CHECK(s.device.n_bytes_under_way() == 0);
}

TEST_CASE("pinned memory comes ahead up to a bound, and at once where it is asked for") {
    constexpr std::size_t kAhead = std::size_t{64} << 20;
    const auto pinned = llama::PinnedMemory::create(LateDevice::install().device(), 1 << 20, kAhead + (8 << 20));
    REQUIRE(pinned != nullptr);
    while (pinned->n_bytes() < kAhead) std::this_thread::yield();
    CHECK(pinned->is_ready());
    CHECK(pinned->n_bytes() == kAhead);  // no more than that before any is taken
    std::vector<void*> taken;
    const auto take_all = [&] {
        while (void* block = pinned->take()) {
            CHECK(pinned->owns(block));
            CHECK(pinned->owns(static_cast<std::uint8_t*>(block) + (1 << 20) - 1));
            taken.push_back(block);
        }
    };
    take_all();
    while (!pinned->is_ready()) std::this_thread::yield();
    CHECK(pinned->n_bytes() > kAhead);
    while (pinned->n_bytes() < kAhead + (8 << 20) || !pinned->is_ready()) take_all();
    take_all();
    while (!pinned->is_ready()) std::this_thread::yield();  // there will be no more
    CHECK(pinned->take() == nullptr);
    CHECK(taken.size() == 72);
    CHECK_FALSE(pinned->owns(&taken));
    for (void* block : taken) pinned->give_back(block);
}

// Each page goes up and down, to the host and back, with computations in between that take the lowest cells.
TEST_CASE("pages that are set aside and brought back at random are the same bytes") {
    for (const char* name : {"qwen3", "qwen35", "gemma4"}) {
        CAPTURE(name);
        Direct s({test_model(name), "q8_0"}, 1024);
        const Delay delay(300);
        const Tokens text = some_tokens(static_cast<int>(kPages) * kPageSize, 3);
        s.compute(kFirst, text, std::vector<Position>{200});
        const Snapshot snapshot = s.take(kFirst, text);
        std::vector<std::vector<Cell>> cells;
        for (std::size_t i = 0; i < kPages; ++i) {
            cells.push_back(s.find(kFirst, static_cast<Position>(i) * kPageSize, kPageSize));
            s.device.hold(cells[i]);
        }
        s.device.forget(kFirst);
        std::mt19937 random(3);
        std::vector<bool> is_aside(kPages);
        std::vector<std::pair<std::size_t, std::shared_ptr<Bytes>>> copies;
        Position n_others = 0;
        for (int round = 0; round < (is_full() ? 300 : 120); ++round) {
            const std::size_t i = random() % kPages;
            switch (random() % 5) {
                case 0:
                    s.device.forget(kSecond);
                    s.compute(kSecond, some_tokens(100 + static_cast<int>(random() % 100), ++n_others));
                    break;
                case 1:
                    copies.emplace_back(i, s.pinned_page());
                    REQUIRE(s.device.read(cells[i], *copies.back().second, copies.back().second));
                    break;
                case 2: {  // to the host, and back at once
                    const std::shared_ptr<Bytes> host = s.pinned_page();
                    REQUIRE(s.device.read(cells[i], *host, host));
                    s.device.release(cells[i]);
                    is_aside[i] = false;
                    const auto tokens = std::span(text).subspan(i * kPageSize, kPageSize);
                    REQUIRE(s.device.place(static_cast<Position>(i) * kPageSize, tokens, *host, host, cells[i]));
                    break;
                }
                default:
                    if (is_aside[i] && random() % 3 > 0) {
                        s.device.bring_back(cells[i]);
                        is_aside[i] = false;
                    } else {
                        s.device.set_aside(cells[i]);
                        is_aside[i] = true;
                    }
            }
        }
        s.device.settle();
        for (const auto& [i, copy] : copies) CHECK(*copy == snapshot.pages[i]);
        for (std::size_t i = 0; i < kPages; ++i) {
            Bytes rows(s.page_bytes);
            REQUIRE(s.device.read(cells[i], rows, nullptr));
            s.device.settle();
            CHECK(rows == snapshot.pages[i]);
        }
    }
}

}  // TEST_SUITE("device")
