// PageScores: how much each page of a text mattered to whoever asked last, and how that is written into files. A page
// that nobody asked for has no score, which is something else than a score of zero. Knows no page and no file's layout.
//
// A section (section_io.h) of eight bytes a page: the score, and 1; of a page without one all are zero. Where no page
// has a score there is no section at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/result.h"
#include "memory/tiers/section_io.h"

namespace luce::memory {

using PageScores = std::vector<std::optional<float>>;  // empty: nothing is known of any page

// No text has more pages: what a sparse file may make us allocate.
inline constexpr std::uint32_t kMaxScores = 1 << 20;

// What the scores of so many pages take up in a file.
std::uint64_t scores_bytes(std::uint64_t n_scores);

// Whether read_scores() would take them: no more than may be, each a finite number.
bool can_be_written(const PageScores& scores);

// REQUIRES: can_be_written. Errors: those of `write`.
Result<void> write_scores(const WriteBytes& write, const PageScores& scores);

// REQUIRES: n was checked against what is there and what may be, as this allocates. Errors: bad_snapshot (cut short,
// damaged, or something that is no score), io_error.
Result<PageScores> read_scores(ByteSource& source, std::size_t n);

}  // namespace luce::memory
