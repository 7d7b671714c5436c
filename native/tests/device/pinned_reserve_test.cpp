// What a model that leaves the device has of pinned memory is there when it comes back.
#include <doctest/doctest.h>

#include <cstddef>

#include "llama/device_copy/device_bytes.h"
#include "llama/device_copy/pinned_reserve.h"
#include "tests/device/late_device.h"

TEST_SUITE("device") {

using namespace luce;
using llama::BufferPtr;
using llama::PinnedReserve;
using luce::tests::LateDevice;

TEST_CASE("pinned memory that stays is what is asked for next") {
    ggml_backend_dev_t device = LateDevice::install().device();
    PinnedReserve::install(device);
    const ggml_backend_buffer_type_t type = ggml_backend_dev_host_buffer_type(device);
    constexpr std::size_t kMiB = std::size_t{1} << 20;
    const auto get = [&](std::size_t n_mib) { return BufferPtr(ggml_backend_buft_alloc_buffer(type, n_mib * kMiB)); };

    BufferPtr large = get(40);
    BufferPtr small = get(1);
    const void* const was = llama::data_of(large.get());
    get(40).reset();
    CHECK(PinnedReserve::n_bytes() == 0);
    {
        const PinnedReserve::Keeping keeping;
        large.reset();
        small.reset();
        get(500).reset();  // more than may stay
    }
    CHECK(PinnedReserve::n_bytes() == 40 * kMiB);
    BufferPtr other = get(39);
    CHECK(llama::data_of(other.get()) != was);
    large = get(40);
    CHECK(llama::data_of(large.get()) == was);
    CHECK(ggml_backend_buffer_get_type(large.get()) == type);
    CHECK(PinnedReserve::n_bytes() == 0);

    const PinnedReserve::Keeping keeping;
    large.reset();
    CHECK(PinnedReserve::n_bytes() == 40 * kMiB);
    PinnedReserve::clear();
    CHECK(PinnedReserve::n_bytes() == 0);
}

}  // TEST_SUITE("device")
