// A plan that the device then refuses is made once more, smaller, and the model is loaded by it.
#include <doctest/doctest.h>

#include <cstdint>

#include "app/fitting.h"
#include "llama/model/backend.h"
#include "tests/device/late_device.h"
#include "tests/llama/llama_memory.h"

TEST_SUITE("device") {

using namespace luce;

namespace {

constexpr int kNobody = -1;  // reads replies

daemon::Options options_of(const char* name) {
    daemon::Options options;
    options.model = memory_tests::test_model(name);
    options.n_threads = 1;
    options.n_ctx = 1024;
    return options;
}

// Whatever a test makes of the device, the next one finds it as it was.
class Card {
public:
    explicit Card(std::size_t n_bytes, std::size_t n_workspace = 0) : device_(tests::LateDevice::install()) {
        n_refused_before_ = device_.n_refused();
        device_.set_total(device_.n_taken() + n_bytes);
        device_.set_workspace(n_workspace);
    }
    ~Card() {
        device_.set_workspace(0);
        device_.set_total(SIZE_MAX);
    }
    Card(const Card&) = delete;
    Card& operator=(const Card&) = delete;

    std::uint64_t n_refused() const { return device_.n_refused() - n_refused_before_; }

private:
    tests::LateDevice& device_;
    std::uint64_t n_refused_before_ = 0;
};

}  // namespace

TEST_CASE("a plan that the device refuses is made once more, smaller") {
    tests::LateDevice::install();
    const llama::Backend backend;
    REQUIRE(backend.has_gpu());
    constexpr std::size_t kCard = std::size_t{3} << 29;
    {
        const Card card(kCard);
        daemon::Options options = options_of("qwen3");
        const Result<app::FittedModel> loaded = app::load_fitting(options, backend, kNobody);
        REQUIRE_MESSAGE(loaded.ok(), loaded.error().text);
        CHECK(card.n_refused() == 0);
        CHECK_FALSE(options.n_gpu_layers);  // all of them
        CHECK(tests::LateDevice::install().n_taken() > 0);
    }
    // A computation needs more than any plan leaves free.
    const Card card(kCard, kCard - (std::size_t{1} << 20));
    daemon::Options options = options_of("qwen3");
    const Result<app::FittedModel> loaded = app::load_fitting(options, backend, kNobody);
    REQUIRE_MESSAGE(loaded.ok(), loaded.error().text);
    CHECK(card.n_refused() > 0);
    CHECK(options.n_gpu_layers == 0);
}

TEST_CASE("what is wrong with a model is said at once, whatever the plan") {
    tests::LateDevice::install();
    const llama::Backend backend;
    daemon::Options options = options_of("qwen3");
    options.model = "/nowhere.gguf";
    CHECK_FALSE(app::load_fitting(options, backend, kNobody).ok());
    options = options_of("qwen3");
    options.cache_type_k = "nonsense";
    CHECK(app::load_fitting(options, backend, kNobody).error().code == ErrorCode::bad_args);
}

}  // TEST_SUITE("device")
