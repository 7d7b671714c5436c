// Little endian is written byte by byte, so that the records are the same on every machine. Must not know what the
// values are for.
#include "wire/token_record.h"

namespace luce::wire {

namespace {

void append_int32(std::string& out, std::int32_t value) {
    const auto bits = static_cast<std::uint32_t>(value);
    for (int shift = 0; shift < 32; shift += 8) out += static_cast<char>(bits >> shift & 0xFF);
}

}  // namespace

void append_record(std::string& out, Dialect dialect, RequestId id, std::int32_t value) {
    if (dialect == Dialect::multiplexed) append_int32(out, id);
    append_int32(out, value);
}

}  // namespace luce::wire
