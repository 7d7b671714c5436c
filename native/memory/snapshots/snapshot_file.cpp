#include "memory/snapshots/snapshot_file.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>

#include "base/atomic_file.h"
#include "base/crc32c.h"

namespace luce::memory {
namespace {

constexpr std::array<char, 8> kMagic = {'L', 'U', 'C', 'E', 'S', 'N', 'A', 'P'};

// No text is longer: what a sparse file may make us allocate.
constexpr std::uint32_t kMaxTokens = 1 << 26;

struct Header {
    std::array<char, 8> magic = kMagic;
    std::uint32_t format = kSnapshotFormat;
    std::uint32_t page_size = kPageSize;
    MemoryIdentity identity;
    PageName root;
    std::uint32_t n_tokens = 0;
    std::uint32_t begin = 0;
    std::uint32_t n_pages = 0;
    std::uint32_t has_checkpoint = 0;
    std::uint64_t row_bytes = 0;
    std::uint64_t n_state = 0;  // bytes, as the next two
    std::uint64_t n_rows = 0;
    std::uint64_t n_logits = 0;
    std::uint32_t n_scores = 0;
    std::uint32_t checksum = 0;  // of all before it
};
static_assert(sizeof(Header) == 104 && std::is_trivially_copyable_v<Header>);

constexpr std::size_t kCheckedBytes = offsetof(Header, checksum);

struct EarlierHeader {
    std::uint64_t n_state = 0;  // bytes, as the next two
    std::uint64_t n_rows = 0;
    std::uint64_t n_logits = 0;
    std::uint32_t position = 0;
    std::uint32_t checksum = 0;  // of all before it
};
static_assert(sizeof(EarlierHeader) == 32 && std::is_trivially_copyable_v<EarlierHeader>);

struct Headers {
    Header main;
    std::optional<EarlierHeader> earlier;
};

Error bad(std::string reason) { return {ErrorCode::bad_snapshot, std::move(reason)}; }

// REQUIRES: the sizes are within the limits, so that nothing here overflows.
std::uint64_t file_bytes(const Headers& headers) {
    const Header& header = headers.main;
    std::uint64_t n = sizeof(Header) + section_bytes(std::uint64_t{header.n_tokens} * sizeof(Token)) +
                      header.n_pages * section_bytes(kPageSize * header.row_bytes) + scores_bytes(header.n_scores);
    if (header.has_checkpoint != 0) {
        n += section_bytes(header.n_state) + section_bytes(header.n_rows) + section_bytes(header.n_logits);
    }
    if (const auto& earlier = headers.earlier) {
        n += sizeof(EarlierHeader) + section_bytes(earlier->n_state) + section_bytes(earlier->n_rows) +
             section_bytes(earlier->n_logits);
    }
    return n;
}

Result<void> check_counts(const Header& header, const TierLimits& limits) {
    if (header.page_size != kPageSize || header.row_bytes != limits.row_bytes)
        return bad("it has rows of another size");
    if (header.n_tokens > kMaxTokens) return bad("it has more tokens than any text");
    const std::uint32_t n_all_pages = header.n_tokens / kPageSize;
    if (header.begin > header.n_tokens || header.n_pages != n_all_pages - header.begin / kPageSize) {
        return bad("its pages are not those of its tokens");
    }
    if (header.n_scores != 0 && header.n_scores != header.n_pages) return bad("its scores are not those of its pages");
    if (header.has_checkpoint > 1) return bad("its header is no snapshot's");
    if (header.has_checkpoint == 1) {
        return check_checkpoint_sizes(header.n_tokens % kPageSize, header.n_state, header.n_rows, header.n_logits,
                                      limits);
    }
    const bool is_empty = header.n_state == 0 && header.n_rows == 0 && header.n_logits == 0;
    return is_empty ? Result<void>() : bad("it has a checkpoint's sizes and no checkpoint");
}

Result<void> check_earlier(const EarlierHeader& earlier, const Header& header, const TierLimits& limits) {
    const bool is_within = earlier.position > header.begin && earlier.position < header.n_tokens;
    if (!is_within || header.has_checkpoint == 0) return bad("its earlier checkpoint is none of its text");
    return check_checkpoint_sizes(earlier.position % kPageSize, earlier.n_state, earlier.n_rows, earlier.n_logits,
                                  limits);
}

Result<EarlierHeader> read_earlier_header(ByteSource& source, const Header& header, const TierLimits& limits) {
    std::array<std::uint8_t, sizeof(EarlierHeader)> bytes{};
    if (source.n_left() < bytes.size()) return bad("it is cut short or has something behind its end");
    if (Result<void> read = source.read(bytes); !read) return read.error();
    EarlierHeader earlier;
    std::memcpy(&earlier, bytes.data(), sizeof earlier);
    if (earlier.checksum != crc32c(std::span(bytes).first(offsetof(EarlierHeader, checksum)))) {
        return bad("its second header is damaged");
    }
    if (Result<void> fits = check_earlier(earlier, header, limits); !fits) return fits.error();
    return earlier;
}

// All that can be said before anything is allocated.
Result<Headers> read_header(ByteSource& source, const MemoryIdentity& identity, const TierLimits& limits) {
    const std::uint64_t n_bytes = source.n_left();
    std::array<std::uint8_t, sizeof(Header)> bytes{};
    if (n_bytes < bytes.size()) return bad("it is too short to be a snapshot");
    if (Result<void> read = source.read(bytes); !read) return read.error();
    Headers headers;
    Header& header = headers.main;
    std::memcpy(&header, bytes.data(), sizeof header);
    if (header.magic != kMagic) return bad("it is no snapshot");
    if (header.checksum != crc32c(std::span(bytes).first(kCheckedBytes))) return bad("its header is damaged");
    if (header.format != kSnapshotFormat && header.format != kSnapshotFormatWithEarlier) {
        return bad("it has format " + std::to_string(header.format) + ", which this version does not know");
    }
    if (header.identity != identity) {
        return bad("it was made by another model or with another KV type (memory identity " + to_hex(header.identity) +
                   ", here " + to_hex(identity) + ")");
    }
    if (Result<void> fits = check_counts(header, limits); !fits) return fits.error();
    if (header.format == kSnapshotFormatWithEarlier) {
        const Result<EarlierHeader> earlier = read_earlier_header(source, header, limits);
        if (!earlier) return earlier.error();
        headers.earlier = earlier.value();
    }
    if (n_bytes != file_bytes(headers)) return bad("it is cut short or has something behind its end");
    return headers;
}

Result<SnapshotContents> read_contents(ByteSource& source, const Headers& headers, const TierLimits& limits) {
    const Header& header = headers.main;
    SnapshotContents contents;
    contents.root = header.root;
    contents.begin = static_cast<Position>(header.begin);
    Result<Tokens> tokens = read_section_of<Tokens>(source, header.n_tokens);
    if (!tokens) return tokens.error();
    contents.tokens = std::move(tokens).value();
    if (!in_vocabulary(contents.tokens, limits)) return bad("it has tokens outside the vocabulary");
    for (std::uint32_t i = 0; i < header.n_pages; ++i) {
        Result<Bytes> rows = read_section_of<Bytes>(source, kPageSize * limits.row_bytes);
        if (!rows) return rows.error();
        contents.pages.push_back(std::make_shared<const Bytes>(std::move(rows).value()));
    }
    if (header.has_checkpoint == 1) {
        Result<CheckpointBlob> checkpoint =
            read_checkpoint_sections(source, header.n_state, header.n_rows, header.n_logits);
        if (!checkpoint) return checkpoint.error();
        contents.checkpoint = std::move(checkpoint).value();
    }
    if (const auto& earlier = headers.earlier) {
        Result<CheckpointBlob> data =
            read_checkpoint_sections(source, earlier->n_state, earlier->n_rows, earlier->n_logits);
        if (!data) return data.error();
        contents.earlier = {static_cast<Position>(earlier->position), std::move(data).value()};
    }
    Result<PageScores> scores = read_scores(source, header.n_scores);
    if (!scores) return scores.error();
    contents.scores = std::move(scores).value();
    return contents;
}

Headers headers_of(const SnapshotContents& contents, const MemoryIdentity& identity, const TierLimits& limits) {
    Headers headers;
    Header& header = headers.main;
    header.identity = identity;
    header.root = contents.root;
    header.n_tokens = static_cast<std::uint32_t>(contents.tokens.size());
    header.begin = static_cast<std::uint32_t>(contents.begin);
    header.n_pages = static_cast<std::uint32_t>(contents.pages.size());
    header.n_scores = static_cast<std::uint32_t>(contents.scores.size());
    header.row_bytes = limits.row_bytes;
    if (contents.checkpoint) {
        header.has_checkpoint = 1;
        header.n_state = contents.checkpoint->state.size();
        header.n_rows = contents.checkpoint->rows.size();
        header.n_logits = contents.checkpoint->logits.size() * sizeof(float);
    }
    if (contents.earlier) {
        header.format = kSnapshotFormatWithEarlier;
        const CheckpointData& data = *contents.earlier->data;
        EarlierHeader& earlier = headers.earlier.emplace();
        earlier.position = static_cast<std::uint32_t>(contents.earlier->position);
        earlier.n_state = data.state.size();
        earlier.n_rows = data.rows.size();
        earlier.n_logits = data.logits.size() * sizeof(float);
        earlier.checksum = crc32c(bytes_of(earlier).first(offsetof(EarlierHeader, checksum)));
    }
    header.checksum = crc32c(bytes_of(header).first(kCheckedBytes));
    return headers;
}

// What would not be read back is not written.
Result<void> check_contents(const SnapshotContents& contents, const Headers& headers, const TierLimits& limits) {
    Result<void> fits = check_counts(headers.main, limits);
    if (fits && headers.earlier) fits = check_earlier(*headers.earlier, headers.main, limits);
    if (!fits) return Error{ErrorCode::bad_args, fits.error().text};
    const bool whole_pages = std::all_of(contents.pages.begin(), contents.pages.end(), [&limits](const Blob& page) {
        return page && page->size() == kPageSize * limits.row_bytes;
    });
    if (!whole_pages) return Error{ErrorCode::bad_args, "a page has not the bytes of a page"};
    if (!in_vocabulary(contents.tokens, limits)) {
        return Error{ErrorCode::bad_args, "it has tokens outside the vocabulary"};
    }
    if (!can_be_written(contents.scores)) return Error{ErrorCode::bad_args, "a page's score is no finite number"};
    return {};
}

void add_sections(std::vector<std::span<const std::uint8_t>>& sections, const CheckpointData& checkpoint) {
    sections.emplace_back(checkpoint.state);
    sections.emplace_back(checkpoint.rows);
    sections.push_back(bytes_of_all(std::span<const float>(checkpoint.logits)));
}

Result<MemoryIdentity> parse_identity(std::string_view hex) {
    if (const std::optional<MemoryIdentity> identity = memory_identity_of(hex)) return *identity;
    return Error{ErrorCode::bad_args, "a memory identity has 32 hexadecimal digits"};
}

}  // namespace

Result<std::uint64_t> encode_snapshot(const WriteBytes& write, std::string_view identity,
                                      const SnapshotContents& contents, const TierLimits& limits) {
    const Result<MemoryIdentity> parsed = parse_identity(identity);
    if (!parsed) return parsed.error();
    const Headers headers = headers_of(contents, parsed.value(), limits);
    if (Result<void> fits = check_contents(contents, headers, limits); !fits) return fits.error();
    std::vector<std::span<const std::uint8_t>> sections = {bytes_of_all(std::span<const Token>(contents.tokens))};
    for (const Blob& page : contents.pages) sections.emplace_back(*page);
    if (contents.checkpoint) add_sections(sections, *contents.checkpoint);
    if (contents.earlier) add_sections(sections, *contents.earlier->data);
    if (Result<void> written = write(bytes_of(headers.main)); !written) return written.error();
    if (headers.earlier) {
        if (Result<void> written = write(bytes_of(*headers.earlier)); !written) return written.error();
    }
    for (const std::span<const std::uint8_t> section : sections) {
        if (Result<void> written = write_section(write, section); !written) return written.error();
    }
    if (Result<void> written = write_scores(write, contents.scores); !written) return written.error();
    return file_bytes(headers);
}

Result<SnapshotContents> decode_snapshot(ByteSource& source, std::string_view identity, const TierLimits& limits) {
    const Result<MemoryIdentity> parsed = parse_identity(identity);
    if (!parsed) return parsed.error();
    try {
        const Result<Headers> headers = read_header(source, parsed.value(), limits);
        if (!headers) return headers.error();
        return read_contents(source, headers.value(), limits);
    } catch (const std::bad_alloc&) {
        return Error{ErrorCode::out_of_memory, "there is no memory for it"};
    }
}

Result<std::uint64_t> write_snapshot(const std::string& path, std::string_view identity,
                                     const SnapshotContents& contents, const TierLimits& limits) {
    Result<AtomicFile> file = AtomicFile::replace(path);
    if (!file) return file.error();
    const WriteBytes write = [&file](std::span<const std::uint8_t> bytes) { return file.value().write(bytes); };
    Result<std::uint64_t> n_bytes = encode_snapshot(write, identity, contents, limits);
    if (!n_bytes) return n_bytes.error();
    if (Result<void> committed = file.value().commit(); !committed) return committed.error();
    return n_bytes;
}

Result<SnapshotContents> read_snapshot(const std::string& path, std::string_view identity, const TierLimits& limits) {
    Result<FileSource> source = FileSource::open(path, FileSource::Links::follow);
    if (!source) return source.error();
    Result<SnapshotContents> contents = decode_snapshot(source.value(), identity, limits);
    if (contents || contents.error().code == ErrorCode::bad_args) return contents;
    return Error{contents.error().code, "cannot load " + path + ": " + contents.error().text};
}

}  // namespace luce::memory
