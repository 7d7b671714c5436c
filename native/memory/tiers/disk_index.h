// DiskIndex: which files of pages and checkpoints there are, how large, and in which order they were last used. Pure
// bookkeeping: it reads and removes no file. Knows files of other memories too, which count and go like ours but are
// never found.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <list>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "memory/tiers/blob.h"
#include "memory/tiers/disk_file_name.h"

namespace luce::memory {

struct DiskFile {
    DiskFileName name;
    std::string identity;  // of another memory; empty: ours
    std::uint64_t n_bytes = 0;
    std::int64_t used_ns = 0;                                    // its mtime when it was found
    double marked_s = -std::numeric_limits<double>::infinity();  // when the file's time was last set, by our clock
    std::uint64_t number = 0;                                    // of ours: rises in the order in which they came
};

struct CheckpointOnDisk {
    std::int32_t n_rest = 0;
    PageName name;
    std::uint64_t n_bytes = 0;
};

class DiskIndex {
public:
    using Place = std::list<DiskFile>::iterator;  // of one file; valid until that is removed

    // Found files in any order; those longest unused go first.
    void fill(std::vector<DiskFile> files);

    // As the last used. A name that is known already is counted, but not found.
    void add(DiskFile file);

    std::optional<Place> find(const DiskFileName& name);
    std::optional<Place> find_page(const PageName& name);
    std::optional<Place> find_checkpoint(const PageName& name);
    bool has_page(const PageName& name) const { return pages_.contains(name); }
    std::vector<CheckpointOnDisk> checkpoints_after(const PageName& page) const;

    // The page's file, if there is one, and those of checkpoints behind it.
    std::vector<DiskFile> files_of(const PageName& page) const;

    // Up to n of ours with this number or a higher one, in the order of their numbers.
    std::vector<DiskFile> files_since(std::uint64_t number, std::size_t n_most) const;
    std::uint64_t next_number() const { return n_numbers_ + 1; }

    // Now the last used.
    void touch(Place file) { files_.splice(files_.end(), files_, file); }

    // It was written again, with more or less in it.
    void resize(Place file, std::uint64_t n_bytes);

    // It is gone. In clear(): all of ours are.
    DiskFile remove(Place file);
    std::vector<DiskFile> clear();

    // Called with the name of each page of ours that is gone from now on.
    void on_page_gone(std::function<void(const PageName&)> tell) { tell_page_gone_ = std::move(tell); }

    // The one that is to go first. REQUIRES: n_files() > 0.
    Place oldest() { return files_.begin(); }

    std::uint64_t n_bytes() const { return n_bytes_; }
    std::size_t n_files() const { return files_.size(); }
    std::size_t n_foreign() const { return n_foreign_; }

    // Recounts everything; what does not fit, for people. Empty: all is well.
    std::string check_integrity() const;

private:
    using Places = std::unordered_map<PageName, Place>;

    Places& names_of(DiskFileKind kind) { return kind == DiskFileKind::page ? pages_ : checkpoints_; }
    void forget_name(Place file);

    std::list<DiskFile> files_;  // longest unused first
    Places pages_;               // ours by name
    Places checkpoints_;
    std::unordered_map<PageName, std::vector<Place>> checkpoints_by_page_;
    std::map<std::uint64_t, Place> by_number_;
    std::uint64_t n_numbers_ = 0;
    std::uint64_t n_bytes_ = 0;
    std::size_t n_foreign_ = 0;
    std::function<void(const PageName&)> tell_page_gone_ = [](const PageName&) {};
};

}  // namespace luce::memory
