// Invariant: whatever bytes a page, checkpoint or snapshot file holds, reading it gives an error with a reason or
// contents within the model's limits that, written again, give the same bytes; nothing crashes, nor allocates beyond
// the limits. Byte 0: which kind of file, and whether the header's checksum is made to fit, as no fuzzer finds one that
// does.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "base/crc32c.h"
#include "memory/snapshots/snapshot_file.h"
#include "memory/tiers/tier_file.h"

namespace {

using namespace luce;
using namespace luce::memory;

constexpr char kIdentity[] = "00000000000000000000000000000000";
constexpr TierLimits kLimits = {.row_bytes = 2, .max_state_bytes = 64, .n_vocab = 300};
constexpr std::size_t kTierHeaderBytes = 112;
constexpr std::size_t kSnapshotHeaderBytes = 104;

// Not assert: the invariant has to hold in builds without assertions too.
void require(bool holds) {
    if (!holds) std::abort();
}

void make_checksum_fit(Bytes& bytes, std::size_t header_bytes) {
    if (bytes.size() < header_bytes) return;
    const std::uint32_t checksum = crc32c(std::span(bytes).first(header_bytes - 4));
    std::copy_n(bytes_of(checksum).begin(), 4, bytes.begin() + static_cast<std::ptrdiff_t>(header_bytes - 4));
}

WriteBytes append_to(Bytes& out) {
    return [&out](std::span<const std::uint8_t> bytes) -> Result<void> {
        out.insert(out.end(), bytes.begin(), bytes.end());
        return {};
    };
}

void check_error(const Error& error) { require(error.code == ErrorCode::bad_snapshot && !error.text.empty()); }

void check_page(const Bytes& bytes, const MemoryIdentity& identity) {
    SpanSource source(bytes);
    const Result<PageFile> page = read_page_file(source, identity, kLimits);
    if (!page) return check_error(page.error());
    Bytes again;
    require(fits_page(page.value().tokens, *page.value().rows, kLimits));
    require(write_page_file(append_to(again), identity, kLimits, page.value()).ok() && again == bytes);
}

void check_checkpoint(const Bytes& bytes, const MemoryIdentity& identity) {
    SpanSource source(bytes);
    const Result<CheckpointFile> checkpoint = read_checkpoint_file(source, identity, kLimits);
    if (!checkpoint) return check_error(checkpoint.error());
    Bytes again;
    require(
        fits_checkpoint(checkpoint.value().rest, *checkpoint.value().checkpoint, checkpoint.value().scores, kLimits));
    require(write_checkpoint_file(append_to(again), identity, kLimits, checkpoint.value()).ok() && again == bytes);
}

void check_snapshot(const Bytes& bytes) {
    SpanSource source(bytes);
    const Result<SnapshotContents> contents = decode_snapshot(source, kIdentity, kLimits);
    if (!contents) return check_error(contents.error());
    Bytes again;
    const Result<std::uint64_t> n_bytes = encode_snapshot(append_to(again), kIdentity, contents.value(), kLimits);
    require(n_bytes.ok() && n_bytes.value() == bytes.size() && again == bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) return 0;
    Bytes bytes(data + 1, data + size);
    const MemoryIdentity identity = *memory_identity_of(kIdentity);
    const bool is_snapshot = data[0] % 4 == 2;
    if (data[0] >= 128) make_checksum_fit(bytes, is_snapshot ? kSnapshotHeaderBytes : kTierHeaderBytes);
    switch (data[0] % 4) {
        case 0: check_page(bytes, identity); break;
        case 1: check_checkpoint(bytes, identity); break;
        case 2: check_snapshot(bytes); break;
        default: break;
    }
    return 0;
}
