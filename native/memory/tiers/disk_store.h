// DiskStore: pages and checkpoints as content-addressed files below one folder, found again after a restart. Decides on
// the owner's thread what is written, read and removed; the IoWorker does it. Knows no device and no slots.
//
// What is promised:
// - kill -9 at any moment leaves of each file the whole one or none (scratch file, fsync, rename); after a power cut
//   too, as far as the disk keeps what it says it has synced. A left-over scratch file is removed by the next open().
// - What is read is what was asked for: identity, name, parent, tokens, sizes and checksums fit, or the file is removed
//   and counted and the answer is an error. Nothing of it is ever fatal.
// - All files below the folder count against the budget, those of other identities as well; the longest unused go
//   first, whosesoever they are. Files whose names are not exactly ours are left alone and not counted.
// - Any number of daemons may share the folder. A file that another one removed is a miss; one that it wrote is found
//   when it is to be written, when it is adopt()ed, or at the next open(). Each keeps the budget for the files it knows
//   of, so that together they may exceed it until they are opened again.
// - A full or broken disk only stops writing: said once, tried again after kRetryAfter_s or when space was freed here.
//
// All calls come from the owner's thread. Every on_done is called once, from IoWorker::run_completions(), never from
// inside the call; not at all once the store is gone.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "memory/tiers/disk_index.h"
#include "memory/tiers/io_worker.h"
#include "memory/tiers/tier_file.h"

namespace luce::memory {

struct DiskOptions {
    std::string directory;
    std::uint64_t budget_bytes = 0;  // 0: nothing is written
    std::string identity;            // of the memory: 32 hexadecimal digits
    TierLimits limits;
    std::function<void()> settle = {};  // called by the worker before it reads what is to be written: it may be coming
};

struct DiskStats {
    std::uint64_t n_files = 0;  // that count against the budget
    std::uint64_t n_bytes = 0;
    std::uint64_t n_foreign_files = 0;  // of them, other identities'
    std::uint64_t n_written_files = 0;  // these and the next since open()
    std::uint64_t n_written_bytes = 0;
    std::uint64_t n_adopted_files = 0;
    std::uint64_t n_read_files = 0;
    std::uint64_t n_read_bytes = 0;
    std::uint64_t n_evicted_files = 0;
    std::uint64_t n_corrupt_files = 0;    // removed because they were not what their names say
    std::uint64_t n_vanished_files = 0;   // somebody else removed them
    std::uint64_t n_read_failures = 0;    // the system did not let us read
    std::uint64_t n_write_failures = 0;   // the system did not let us write
    std::uint64_t n_unwritten_files = 0;  // not tried: writing is stopped, over the budget, too much queued
};

// A checkpoint, and how much the pages before it matter.
struct ScoredCheckpoint {
    CheckpointBlob checkpoint;
    PageScores scores;  // none, or as many as there are pages
};

// What has become of files that somebody says he has put into the folder.
struct AdoptedFiles {
    std::size_t n_new = 0;
    std::size_t n_known = 0;    // already
    std::size_t n_missing = 0;  // not there, no regular files, or larger than the budget
};

class DiskStore {
public:
    using OnWritten = std::function<void(bool written)>;
    using OnPage = std::function<void(Result<Blob>)>;
    using OnAdopted = std::function<void(const AdoptedFiles&)>;
    using OnCheckpoint = std::function<void(Result<ScoredCheckpoint>)>;

    static constexpr double kRetryAfter_s = 120;  // after a write that failed
    static constexpr double kMarkAfter_s = 600;   // between two writes of one file's time of last use

    // Lists the folder (it is made if it is missing), reads no file. `worker` and `clock` outlive the store. Errors:
    // bad_args (the identity), io_error (no folder, or not ours to list).
    static Result<std::unique_ptr<DiskStore>> open(DiskOptions options, IoWorker& worker, const Clock& clock);

    bool has_page(const PageName& name) const { return index_.has_page(name); }
    std::vector<CheckpointOnDisk> checkpoints_after(const PageName& page) const {
        return index_.checkpoints_after(page);
    }

    void on_page_gone(std::function<void(const PageName&)> tell) { index_.on_page_gone(std::move(tell)); }

    // Whether there were files of other identities at open().
    bool has_foreign() const { return has_foreign_; }

    // Writes behind. written == false: it is not on disk, and nothing else has changed; keep what you have. What is on
    // disk already is not written again, but for a checkpoint whose file would have another size: with logits or scores
    // that the one there has not. REQUIRES: name is the tokens' (next_name).
    void write_page(const PageName& name, const PageName& parent, std::span<const Token, kPageSize> tokens, Blob rows,
                    OnWritten on_done);
    void write_checkpoint(const PageName& page, std::span<const Token> rest, ScoredCheckpoint checkpoint,
                          OnWritten on_done);

    // Before any queued write. Errors: no_such_file (never there, or gone), bad_snapshot (it was not what it should be
    // and is removed), io_error and out_of_memory (it could not be read, and is still there). `n_pages`: before the
    // checkpoint.
    void read_page(const PageName& name, const PageName& parent, std::span<const Token, kPageSize> tokens,
                   OnPage on_done);
    void read_checkpoint(const PageName& page, std::size_t n_pages, std::span<const Token> rest, OnCheckpoint on_done);

    // Whether a write of so many bytes would be tried now.
    bool may_write(std::uint64_t n_bytes) const;

    // Called once all that is to be written so far is written, or has failed.
    void after_writes(std::function<void()> f);

    // Files that have been put into the folder since open(): whether they are there is looked up before any queued
    // write, what they hold when they are read. They count as used now, the first one last; too many of them are
    // evicted like any others.
    void adopt(std::vector<DiskFileName> names, OnAdopted on_done);

    // What there is for somebody else to take: see DiskIndex.
    std::vector<DiskFile> files_of(const PageName& page) const { return index_.files_of(page); }
    std::vector<DiskFile> files_since(std::uint64_t number, std::size_t n_most) const {
        return index_.files_since(number, n_most);
    }
    std::uint64_t next_number() const { return index_.next_number(); }

    // These pages and checkpoints were used, the first of a text first: the last of them will be evicted before the
    // others, so that what stays is a prefix. The files' own times follow from time to time. Unknown names are no
    // matter.
    void touch(std::span<const PageName> chain);
    void touch(const PageName& name) { touch(std::span(&name, 1)); }

    // A page or a checkpoint, also one that is being written: that is then answered with false.
    void erase(const PageName& name);

    // All files of our identity; those being written are erased as well.
    void clear();

    // Why nothing is written at the moment; empty: it is.
    const std::string& write_trouble() const { return trouble_; }

    DiskStats stats() const;
    std::string check_integrity() const { return index_.check_integrity(); }

private:
    struct Writing {
        DiskFile file;
        std::uint64_t n_reserved_bytes = 0;  // 0: the file was known already
        bool erased = false;
        std::vector<OnWritten> on_done;
    };
    using Encode = std::function<Result<void>(const WriteBytes&)>;

    DiskStore(DiskOptions options, const MemoryIdentity& identity, IoWorker& worker, const Clock& clock);

    std::string path_of(const DiskFile& file) const;
    std::function<void()> guarded(std::function<void()> f) const;
    void answer_later(OnWritten on_done, bool written);
    void write(DiskFile file, Encode encode, OnWritten on_done);
    std::vector<DiskFile> make_room(std::uint64_t n_bytes);
    void finish_write(DiskFile file, const Result<void>& written);
    void finish_adopting(std::vector<DiskFile> found, std::size_t n_named, const OnAdopted& on_done);
    void finish_read(const DiskFileName& name, const Error* failed);
    void remove_files(const std::vector<DiskFile>& files);
    void stop_writing(const std::string& reason);
    void resume_writing();

    template <typename T>
    void read(std::optional<DiskIndex::Place> file, std::function<Result<T>(ByteSource&)> decode,
              std::function<void(Result<T>)> on_done);

    const DiskOptions options_;
    const MemoryIdentity identity_;
    IoWorker& worker_;
    const Clock& clock_;
    DiskIndex index_;
    std::unordered_map<PageName, Writing> writing_;
    std::uint64_t n_writing_bytes_ = 0;  // room promised to them
    bool has_foreign_ = false;
    DiskStats counted_;
    std::string trouble_;
    bool said_ = false;  // the log knows of the trouble
    double retry_at_s_ = 0;
    std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);  // jobs outlive us, their answers must not
};

}  // namespace luce::memory
