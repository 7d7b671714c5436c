// The file of one snapshot (SAVE, LOAD): its text's tokens, its pages' rows and scores, and its checkpoint. Functions
// of their arguments and the file; they block, so they run in IoWorker's jobs. Knows no slots.
//
// Little-endian. A header of 104 bytes (snapshot_file.cpp: magic, format version, identity, root, counts, sizes,
// CRC-32C of all that), then sections (section_io.h): tokens, each page's rows, where there is a checkpoint its state,
// rows and logits, and where the pages have scores those (page_scores.h). Nothing follows. All sizes are checked
// against the model's limits and the file's size before anything is allocated. Format 2; 1 had no scores and is
// refused. With a checkpoint further up it is format 3: a header of its own (32 bytes) stands behind the first one, and
// its sections before the scores.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/token.h"
#include "memory/pages/page_name.h"
#include "memory/residency/page_scores.h"
#include "memory/tiers/blob.h"
#include "memory/tiers/section_io.h"
#include "memory/tiers/tier_file.h"

namespace luce::memory {

inline constexpr std::uint32_t kSnapshotFormat = 2;
inline constexpr std::uint32_t kSnapshotFormatWithEarlier = 3;

// A checkpoint further up in the text.
struct EarlierCheckpoint {
    Position position = 0;
    CheckpointBlob data;
};

struct SnapshotContents {
    PageName root;                             // the name before the first page
    Tokens tokens;                             // of the whole text
    Position begin = 0;                        // a thin snapshot's pages start with the one that holds this position
    std::vector<Blob> pages;                   // full ones, from begin / kPageSize to tokens.size() / kPageSize
    CheckpointBlob checkpoint;                 // at tokens.size(); none: null
    std::optional<EarlierCheckpoint> earlier;  // at the last prompt's end: with it that prompt is known, too
    PageScores scores;                         // of `pages`: none, or all of them
};

// Whole or not at all; a link stays one (AtomicFile::replace). Gives the file's size. Errors: bad_args (the contents do
// not fit together: a mistake here), io_error.
Result<std::uint64_t> write_snapshot(const std::string& path, std::string_view identity,
                                     const SnapshotContents& contents, const TierLimits& limits);

// Errors: no_such_file, bad_snapshot with the reason (another model's, damaged, no snapshot at all), io_error,
// out_of_memory.
Result<SnapshotContents> read_snapshot(const std::string& path, std::string_view identity, const TierLimits& limits);

// The same from and to anything; for tests and the fuzzer.
Result<std::uint64_t> encode_snapshot(const WriteBytes& write, std::string_view identity,
                                      const SnapshotContents& contents, const TierLimits& limits);
Result<SnapshotContents> decode_snapshot(ByteSource& source, std::string_view identity, const TierLimits& limits);

}  // namespace luce::memory
