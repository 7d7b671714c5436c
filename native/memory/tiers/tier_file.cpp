#include "memory/tiers/tier_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "base/crc32c.h"

namespace luce::memory {
namespace {

constexpr std::array<char, 8> kMagic = {'L', 'U', 'C', 'E', 'T', 'I', 'E', 'R'};

enum class Kind : std::uint32_t { page = 1, checkpoint = 2 };

struct Header {
    std::array<char, 8> magic = kMagic;
    std::uint32_t format = kTierFormat;
    Kind kind = Kind::page;
    MemoryIdentity identity;
    PageName name;
    PageName before;  // a page's parent, a checkpoint's page
    std::uint32_t page_size = kPageSize;
    std::uint32_t n_tokens = 0;
    std::uint64_t row_bytes = 0;
    std::uint64_t n_state = 0;  // bytes, as the next two
    std::uint64_t n_rows = 0;
    std::uint64_t n_logits = 0;
    std::uint32_t n_scores = 0;
    std::uint32_t checksum = 0;  // of all before it
};
static_assert(sizeof(Header) == 112 && std::is_trivially_copyable_v<Header>);

constexpr std::size_t kCheckedBytes = offsetof(Header, checksum);

std::uint64_t file_bytes(std::uint64_t n_tokens, std::uint64_t n_state, std::uint64_t n_rows, std::uint64_t n_logits,
                         std::uint64_t n_scores) {
    return sizeof(Header) + section_bytes(n_tokens * sizeof(Token)) + section_bytes(n_state) + section_bytes(n_rows) +
           section_bytes(n_logits) + scores_bytes(n_scores);
}

Error bad(std::string reason) { return {ErrorCode::bad_snapshot, std::move(reason)}; }

Result<void> check_sizes(const Header& header, Kind kind, const TierLimits& limits) {
    if (header.page_size != kPageSize || header.row_bytes != limits.row_bytes)
        return bad("it has rows of another size");
    if (kind == Kind::checkpoint) {
        if (header.n_tokens >= kPageSize || header.n_scores > kMaxScores)
            return bad("its counts are not a checkpoint's");
        return check_checkpoint_sizes(header.n_tokens, header.n_state, header.n_rows, header.n_logits, limits);
    }
    const bool is_page = header.n_tokens == kPageSize && header.n_rows == kPageSize * limits.row_bytes &&
                         header.n_state == 0 && header.n_logits == 0 && header.n_scores == 0;
    return is_page ? Result<void>() : bad("its counts are not a page's");
}

// All that can be said before anything is allocated.
Result<Header> read_header(ByteSource& source, Kind kind, const MemoryIdentity& identity, const TierLimits& limits) {
    const std::uint64_t n_bytes = source.n_left();
    std::array<std::uint8_t, sizeof(Header)> bytes{};
    if (Result<void> read = source.read(bytes); !read) return read.error();
    Header header;
    std::memcpy(&header, bytes.data(), sizeof header);
    if (header.magic != kMagic) return bad("it is no file of this program");
    if (header.checksum != crc32c(std::span(bytes).first(kCheckedBytes))) return bad("its header is damaged");
    if (header.format != kTierFormat) return bad("it has format " + std::to_string(header.format));
    if (header.kind != kind) return bad("it is of another kind");
    if (header.identity != identity) return bad("it belongs to another memory");
    if (Result<void> fits = check_sizes(header, kind, limits); !fits) return fits.error();
    if (n_bytes != file_bytes(header.n_tokens, header.n_state, header.n_rows, header.n_logits, header.n_scores)) {
        return bad("its size is not the one in its header");
    }
    return header;
}

struct Sections {
    Tokens tokens;
    CheckpointBlob data;
    PageScores scores;
};

Result<Sections> read_sections(ByteSource& source, const Header& header, const TierLimits& limits) {
    Result<Tokens> tokens = read_section_of<Tokens>(source, header.n_tokens);
    if (!tokens) return tokens.error();
    if (!in_vocabulary(tokens.value(), limits)) return bad("it has tokens outside the vocabulary");
    Result<CheckpointBlob> data = read_checkpoint_sections(source, header.n_state, header.n_rows, header.n_logits);
    if (!data) return data.error();
    Result<PageScores> scores = read_scores(source, header.n_scores);
    if (!scores) return scores.error();
    return Sections{std::move(tokens).value(), std::move(data).value(), std::move(scores).value()};
}

Result<void> write_file(const WriteBytes& write, Header header, std::span<const Token> tokens, const Bytes& state,
                        const Bytes& rows, std::span<const float> logits, const PageScores& scores) {
    header.n_tokens = static_cast<std::uint32_t>(tokens.size());
    header.n_state = state.size();
    header.n_rows = rows.size();
    header.n_logits = logits.size_bytes();
    header.n_scores = static_cast<std::uint32_t>(scores.size());
    header.checksum = crc32c(bytes_of(header).first(kCheckedBytes));
    if (Result<void> written = write(bytes_of(header)); !written) return written;
    for (const std::span<const std::uint8_t> section : {bytes_of_all(tokens), std::span<const std::uint8_t>(state),
                                                        std::span<const std::uint8_t>(rows), bytes_of_all(logits)}) {
        if (Result<void> written = write_section(write, section); !written) return written;
    }
    return write_scores(write, scores);
}

template <typename F>
auto without_bad_alloc(const F& f) -> decltype(f()) {
    try {
        return f();
    } catch (const std::bad_alloc&) {
        return Error{ErrorCode::out_of_memory, "there is no memory for it"};
    } catch (const std::length_error&) {
        return Error{ErrorCode::out_of_memory, "there is no memory for it"};
    }
}

}  // namespace

bool in_vocabulary(std::span<const Token> tokens, const TierLimits& limits) {
    return std::all_of(tokens.begin(), tokens.end(), [&limits](Token token) { return limits.is_token(token); });
}

Result<void> check_checkpoint_sizes(std::size_t n_rest, std::uint64_t n_state, std::uint64_t n_rows,
                                    std::uint64_t n_logits, const TierLimits& limits) {
    if (n_state > limits.max_state_bytes) return bad("its state is larger than this model's can be");
    if (n_rows != n_rest * limits.row_bytes) return bad("its rows are not those of its tokens");
    if (n_logits != 0 && n_logits != static_cast<std::uint64_t>(limits.n_vocab) * sizeof(float)) {
        return bad("it has logits of another vocabulary");
    }
    return {};
}

Result<CheckpointBlob> read_checkpoint_sections(ByteSource& source, std::uint64_t n_state, std::uint64_t n_rows,
                                                std::uint64_t n_logits) {
    auto checkpoint = std::make_shared<CheckpointData>();
    Result<Bytes> state = read_section_of<Bytes>(source, n_state);
    if (!state) return state.error();
    Result<Bytes> rows = read_section_of<Bytes>(source, n_rows);
    if (!rows) return rows.error();
    Result<std::vector<float>> logits = read_section_of<std::vector<float>>(source, n_logits / sizeof(float));
    if (!logits) return logits.error();
    checkpoint->state = std::move(state).value();
    checkpoint->rows = std::move(rows).value();
    checkpoint->logits = std::move(logits).value();
    return CheckpointBlob(std::move(checkpoint));
}

std::uint64_t page_file_bytes(const TierLimits& limits) {
    return file_bytes(kPageSize, 0, kPageSize * limits.row_bytes, 0, 0);
}

std::uint64_t checkpoint_file_bytes(std::size_t n_rest, const CheckpointData& checkpoint, std::size_t n_scores) {
    return file_bytes(n_rest, checkpoint.state.size(), checkpoint.rows.size(), checkpoint.logits.size() * sizeof(float),
                      n_scores);
}

bool fits_page(std::span<const Token> tokens, const Bytes& rows, const TierLimits& limits) {
    return tokens.size() == kPageSize && rows.size() == kPageSize * limits.row_bytes && in_vocabulary(tokens, limits);
}

bool fits_checkpoint(std::span<const Token> rest, const CheckpointData& checkpoint, const PageScores& scores,
                     const TierLimits& limits) {
    return rest.size() < kPageSize && in_vocabulary(rest, limits) && can_be_written(scores) &&
           check_checkpoint_sizes(rest.size(), checkpoint.state.size(), checkpoint.rows.size(),
                                  checkpoint.logits.size() * sizeof(float), limits)
               .ok();
}

Result<void> write_page_file(const WriteBytes& write, const MemoryIdentity& identity, const TierLimits& limits,
                             const PageFile& page) {
    Header header;
    header.kind = Kind::page;
    header.identity = identity;
    header.name = page.name;
    header.before = page.parent;
    header.row_bytes = limits.row_bytes;
    return write_file(write, header, page.tokens, {}, *page.rows, {}, {});
}

Result<void> write_checkpoint_file(const WriteBytes& write, const MemoryIdentity& identity, const TierLimits& limits,
                                   const CheckpointFile& checkpoint) {
    Header header;
    header.kind = Kind::checkpoint;
    header.identity = identity;
    header.name = checkpoint.name;
    header.before = checkpoint.page;
    header.row_bytes = limits.row_bytes;
    return write_file(write, header, checkpoint.rest, checkpoint.checkpoint->state, checkpoint.checkpoint->rows,
                      checkpoint.checkpoint->logits, checkpoint.scores);
}

Result<PageFile> read_page_file(ByteSource& source, const MemoryIdentity& identity, const TierLimits& limits) {
    return without_bad_alloc([&]() -> Result<PageFile> {
        const Result<Header> header = read_header(source, Kind::page, identity, limits);
        if (!header) return header.error();
        Result<Sections> read = read_sections(source, header.value(), limits);
        if (!read) return read.error();
        Sections& sections = read.value();
        const std::span<const Token, kPageSize> tokens(sections.tokens.data(), kPageSize);
        if (next_name(header.value().before, tokens) != header.value().name) return bad("its name is not its tokens'");
        Blob rows(sections.data, &sections.data->rows);  // keeps the whole, which has nothing else
        return PageFile{header.value().name, header.value().before, std::move(sections.tokens), std::move(rows)};
    });
}

Result<CheckpointFile> read_checkpoint_file(ByteSource& source, const MemoryIdentity& identity,
                                            const TierLimits& limits) {
    return without_bad_alloc([&]() -> Result<CheckpointFile> {
        const Result<Header> header = read_header(source, Kind::checkpoint, identity, limits);
        if (!header) return header.error();
        Result<Sections> read = read_sections(source, header.value(), limits);
        if (!read) return read.error();
        Sections& sections = read.value();
        if (checkpoint_name(header.value().before, sections.tokens) != header.value().name) {
            return bad("its name is not its tokens'");
        }
        return CheckpointFile{header.value().name, header.value().before, std::move(sections.tokens),
                              std::move(sections.data), std::move(sections.scores)};
    });
}

}  // namespace luce::memory
