// What the disk store does to its folder, one file at a time: list, write, read, mark as used, remove. Blocks, so all
// but the listing is called from the IoWorker's jobs; shares nothing, keeps nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "memory/tiers/disk_index.h"
#include "memory/tiers/section_io.h"

namespace luce::memory {

// A file's place below the cache's folder; `own_identity` is where files without an identity of their own lie.
std::string path_of(const DiskFile& file, const std::string& folder, const std::string& own_identity);

// Every file of ours by its name, no file's content; links are not followed. Removes scratch files whose writer is
// dead. What cannot be listed is skipped with a warning.
std::vector<DiskFile> list_cache(const std::string& folder, const std::string& own_identity);

// One file of this identity by its name, if it is there; a link is not followed, its content not looked at.
std::optional<DiskFile> find_cache_file(const std::string& folder, const std::string& identity,
                                        const DiskFileName& name);

// What `encode` writes, whole or not at all; the folders of `path` are made where they are missing. A file that is
// there with this size is taken for the same one (another daemon's) and only marked as used.
// Errors: those of AtomicFile and of `encode`.
Result<void> write_cache_file(const std::string& path, std::uint64_t n_bytes,
                              const std::function<Result<void>(const WriteBytes&)>& encode);

// Marks the file as last used at this time, or now. What cannot be marked keeps its time.
void mark_used(const std::string& path, std::int64_t at_ns);
void mark_used_now(const std::string& path);

// True: it was there and is no more.
bool remove_cache_file(const std::string& path);

}  // namespace luce::memory
