// Invariant: whatever bytes arrive, however cut, every line gives one command or one refusal whose reply is one line of
// UTF-8; nothing crashes, hangs or reads outside the input.
// Byte 0 chooses where the rest is cut in two and how long a line may be. Knows the codec's public headers only.
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "wire/command_parser.h"
#include "wire/line_decoder.h"
#include "wire/percent.h"
#include "wire/reply.h"
#include "wire/utf8.h"

namespace {

using namespace luce::wire;

// Not assert: the invariant has to hold in builds without assertions too.
void require(bool holds) {
    if (!holds) std::abort();
}

std::vector<DecodedLine> decode(std::string_view first, std::string_view second, std::size_t max_line_bytes) {
    LineDecoder decoder(max_line_bytes);
    decoder.feed(first);
    decoder.feed(second);
    decoder.finish();
    std::vector<DecodedLine> lines;
    while (std::optional<DecodedLine> line = decoder.next()) lines.push_back(std::move(*line));
    return lines;
}

void check_reply(const Reply& reply) {
    const std::string line = format_reply(reply);
    require(line.find('\n') == line.size() - 1 && line.find('\0') == std::string::npos && is_utf8(line));
}

void check_generate(const Generate& generate) {
    require(generate.prompt.empty() == generate.prompt_path.has_value());
    require(generate.id >= 0 && generate.n_generate >= 0);
    const MemoryArgs& memory = generate.memory;
    require(memory.restore_slot.value_or(0) >= 0 && memory.marks.size() <= kMaxMarks);
    require(memory.restore_slot || (memory.chain.empty() && !memory.restore_at));
    std::set<std::int32_t> slots;
    for (const SnapshotPoint& point : memory.snapshots) require(slots.insert(point.slot).second);
    GenerateOk ok;
    ok.output_path = generate.output_path;
    check_reply(ok);
}

void check_command(const Command& command) {
    if (const auto* ping = std::get_if<Ping>(&command)) check_reply(Pong{ping->word});
    if (const auto* generate = std::get_if<Generate>(&command)) check_generate(*generate);
    if (const auto* snapshot = std::get_if<Snapshot>(&command)) require(snapshot->slot >= 0);
    if (const auto* thin = std::get_if<ThinSnapshot>(&command)) require(0 <= thin->begin && thin->begin < thin->end);
    if (const auto* free = std::get_if<FreeSlot>(&command)) require(free->slot >= 0 && free->id.value_or(0) >= 0);
    if (const auto* save = std::get_if<SaveSlot>(&command)) require(save->slot >= 0 && !save->path.empty());
    if (const auto* load = std::get_if<LoadSlot>(&command)) require(load->slot >= 0 && !load->path.empty());
}

void check_line(const std::string& line) {
    const std::variant<Command, ParseError> result = parse_command(line);
    if (const auto* command = std::get_if<Command>(&result)) {
        check_command(*command);
        return;
    }
    const auto& refused = std::get<ParseError>(result);
    require(!refused.error.text.empty() && refused.id.value_or(0) >= 0);
    check_reply(Err{refused.id, refused.error});
    check_reply(Err{std::nullopt, {luce::ErrorCode::internal, line}});
    require(percent_decode(percent_encode(line)) == line);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) return 0;
    const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
    const std::size_t cut = bytes.empty() ? 0 : data[0] % (bytes.size() + 1);
    const std::size_t max_line_bytes = data[0] % 2 == 0 ? kMaxLineBytes : 64;
    const std::vector<DecodedLine> lines = decode(bytes, {}, max_line_bytes);
    const std::vector<DecodedLine> cut_lines = decode(bytes.substr(0, cut), bytes.substr(cut), max_line_bytes);
    require(lines.size() == cut_lines.size());
    for (std::size_t i = 0; i < lines.size(); ++i) {
        require(lines[i].text == cut_lines[i].text && lines[i].too_long == cut_lines[i].too_long);
        require(lines[i].text.size() <= max_line_bytes);
        if (!lines[i].too_long) check_line(lines[i].text);
    }
    return 0;
}
