// The bytes of a page's file and of a checkpoint's: written by write_page_file and write_checkpoint_file, read back
// from whatever bytes are there. Pure; what the files are called and where they lie is the disk store's business.
//
// Little-endian. A header of 112 bytes (tier_file.cpp: magic, format version, kind, identity, names, counts, sizes,
// CRC-32C of all that), then sections (section_io.h): tokens, state, rows, logits; a page has rows only, the others
// are empty. A checkpoint's file may end with the scores of the pages before it (page_scores.h), as of when it was
// written: they are not part of what it says of its text, so that files of one name may differ in them. Nothing
// follows. A file is believed only if its size is exactly what its header says, every checksum fits, and its name is
// the hash of the tokens in it.
//
// Format 2; 1 had no scores. Files of another format are refused like damaged ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "base/token.h"
#include "memory/pages/page_name.h"
#include "memory/pages/text_salt.h"
#include "memory/residency/page_scores.h"
#include "memory/tiers/blob.h"
#include "memory/tiers/section_io.h"

namespace luce::memory {

inline constexpr std::uint32_t kTierFormat = 2;

// What the model can have, checked before anything is allocated.
struct TierLimits {
    std::size_t row_bytes = 0;        // of one position, exactly
    std::size_t max_state_bytes = 0;  // of a checkpoint's state, at most
    std::int32_t n_vocab = 0;         // tokens are below it; logits are so many or none
    bool has_other_ids = false;       // at and above it: images', and those that name holes in a prompt

    bool is_token(Token token) const {
        return token >= 0 && (has_other_ids || token < n_vocab || token >= kFirstSaltedName);
    }
};

struct PageFile {
    PageName name;
    PageName parent;
    Tokens tokens;  // kPageSize
    Blob rows;
};

struct CheckpointFile {
    PageName name;
    PageName page;
    Tokens rest;  // fewer than kPageSize
    CheckpointBlob checkpoint;
    PageScores scores = {};  // of the pages before it: none, or all of them
};

// What a good file has exactly. Of the checkpoint only the sizes are looked at.
std::uint64_t page_file_bytes(const TierLimits& limits);
std::uint64_t checkpoint_file_bytes(std::size_t n_rest, const CheckpointData& checkpoint, std::size_t n_scores);

// Whether read_page_file / read_checkpoint_file would take it: sizes within the limits, tokens in the vocabulary,
// scores that are numbers.
bool fits_page(std::span<const Token> tokens, const Bytes& rows, const TierLimits& limits);
bool fits_checkpoint(std::span<const Token> rest, const CheckpointData& checkpoint, const PageScores& scores,
                     const TierLimits& limits);

// REQUIRES: fits_page (fits_checkpoint). Errors: those of `write`.
Result<void> write_page_file(const WriteBytes& write, const MemoryIdentity& identity, const TierLimits& limits,
                             const PageFile& page);
Result<void> write_checkpoint_file(const WriteBytes& write, const MemoryIdentity& identity, const TierLimits& limits,
                                   const CheckpointFile& checkpoint);

// Errors: bad_snapshot with the reason, io_error, out_of_memory (nothing is wrong with the file then). How many pages
// there are before a checkpoint the reader does not know: whoever does has to compare that with its scores.
Result<PageFile> read_page_file(ByteSource& source, const MemoryIdentity& identity, const TierLimits& limits);
Result<CheckpointFile> read_checkpoint_file(ByteSource& source, const MemoryIdentity& identity,
                                            const TierLimits& limits);

// For snapshot files as well. Sizes are bytes: first checked against the model, then (and against what is there) read.
Result<void> check_checkpoint_sizes(std::size_t n_rest, std::uint64_t n_state, std::uint64_t n_rows,
                                    std::uint64_t n_logits, const TierLimits& limits);
Result<CheckpointBlob> read_checkpoint_sections(ByteSource& source, std::uint64_t n_state, std::uint64_t n_rows,
                                                std::uint64_t n_logits);
bool in_vocabulary(std::span<const Token> tokens, const TierLimits& limits);

}  // namespace luce::memory
