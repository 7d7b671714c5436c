#include "memory/tiers/disk_store.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <new>
#include <utility>

#include "base/log.h"
#include "memory/tiers/disk_files.h"

namespace luce::memory {
namespace {

// What a job may throw (memory, above all) is its result like any other failure.
template <typename F>
auto as_result(const F& f) -> decltype(f()) {
    try {
        return f();
    } catch (const std::exception& e) {
        return Error{ErrorCode::out_of_memory, e.what()};
    }
}

// A file that is not what it should be goes at once, so that nobody trips over it again.
template <typename T>
Result<T> read_cache_file(const std::string& path, const std::function<Result<T>(ByteSource&)>& decode) {
    Result<FileSource> source = FileSource::open(path, FileSource::Links::refuse);
    Result<T> read = source ? decode(source.value()) : Result<T>(source.error());
    if (read) return read;
    Error failed = read.error();
    // What was opened and then cannot be read lies on a bad spot.
    if (source && failed.code == ErrorCode::io_error) failed.code = ErrorCode::bad_snapshot;
    if (failed.code == ErrorCode::bad_snapshot) {
        log_warn("disk cache: removed " + path + ": " + failed.text);
        remove_cache_file(path);
    }
    return failed;
}

constexpr std::int64_t kMarkStep_ns = 1000;

Error unexpected() { return {ErrorCode::bad_snapshot, "it is another one's"}; }

std::int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
        .count();
}

}  // namespace

DiskStore::DiskStore(DiskOptions options, const MemoryIdentity& identity, IoWorker& worker, const Clock& clock)
    : options_(std::move(options)), identity_(identity), worker_(worker), clock_(clock) {}

Result<std::unique_ptr<DiskStore>> DiskStore::open(DiskOptions options, IoWorker& worker, const Clock& clock) {
    const std::optional<MemoryIdentity> identity = memory_identity_of(options.identity);
    if (!identity) return Error{ErrorCode::bad_args, "a memory identity has 32 hexadecimal digits"};
    std::error_code failure;
    std::filesystem::create_directories(options.directory, failure);
    if (failure || ::access(options.directory.c_str(), R_OK | X_OK) != 0) {
        const std::string reason = failure ? failure.message() : "not ours to read";
        return Error{ErrorCode::io_error, "cannot use " + options.directory + " as disk cache: " + reason};
    }
    std::unique_ptr<DiskStore> store(new DiskStore(std::move(options), *identity, worker, clock));
    store->index_.fill(list_cache(store->options_.directory, store->options_.identity));
    store->has_foreign_ = store->index_.n_foreign() > 0;
    return store;
}

std::string DiskStore::path_of(const DiskFile& file) const {
    return memory::path_of(file, options_.directory, options_.identity);
}

std::function<void()> DiskStore::guarded(std::function<void()> f) const {
    return [alive = std::weak_ptr(alive_), f = std::move(f)] {
        if (!alive.expired()) f();
    };
}

void DiskStore::answer_later(OnWritten on_done, bool written) {
    worker_.complete(guarded([on_done = std::move(on_done), written] { on_done(written); }));
}

// -- writing

void DiskStore::write_page(const PageName& name, const PageName& parent, std::span<const Token, kPageSize> tokens,
                           Blob rows, OnWritten on_done) {
    if (!fits_page(tokens, *rows, options_.limits)) {
        log_error("disk cache: a page of " + std::to_string(rows->size()) + " bytes does not fit its model");
        return answer_later(std::move(on_done), false);
    }
    DiskFile file;
    file.name = DiskFileName::of_page(name);
    file.n_bytes = page_file_bytes(options_.limits);
    PageFile page{name, parent, Tokens(tokens.begin(), tokens.end()), std::move(rows)};
    Encode encode = [page = std::move(page), identity = identity_, limits = options_.limits](const WriteBytes& write) {
        return write_page_file(write, identity, limits, page);
    };
    write(std::move(file), std::move(encode), std::move(on_done));
}

void DiskStore::write_checkpoint(const PageName& page, std::span<const Token> rest, ScoredCheckpoint checkpoint,
                                 OnWritten on_done) {
    if (!fits_checkpoint(rest, *checkpoint.checkpoint, checkpoint.scores, options_.limits)) {
        log_error("disk cache: a checkpoint of " + std::to_string(checkpoint.checkpoint->n_bytes()) +
                  " bytes does not fit its model");
        return answer_later(std::move(on_done), false);
    }
    const PageName name = checkpoint_name(page, rest);
    DiskFile file;
    file.name = DiskFileName::of_checkpoint(page, static_cast<std::int32_t>(rest.size()), name);
    file.n_bytes = checkpoint_file_bytes(rest.size(), *checkpoint.checkpoint, checkpoint.scores.size());
    CheckpointFile content{name, page, Tokens(rest.begin(), rest.end()), std::move(checkpoint.checkpoint),
                           std::move(checkpoint.scores)};
    Encode encode = [content = std::move(content), identity = identity_, limits = options_.limits](
                        const WriteBytes& write) { return write_checkpoint_file(write, identity, limits, content); };
    write(std::move(file), std::move(encode), std::move(on_done));
}

bool DiskStore::may_write(std::uint64_t n_bytes) const {
    if (!trouble_.empty() && clock_.now_s() < retry_at_s_) return false;
    const bool within_budget = n_bytes <= options_.budget_bytes && n_writing_bytes_ <= options_.budget_bytes - n_bytes;
    return within_budget && worker_.has_room(n_bytes);
}

void DiskStore::write(DiskFile file, Encode encode, OnWritten on_done) {
    const PageName name = file.name.name;
    if (const auto writing = writing_.find(name); writing != writing_.end() && !writing->second.erased) {
        writing->second.on_done.push_back(std::move(on_done));
        return;
    }
    if (writing_.contains(name) || !may_write(file.n_bytes)) {
        ++counted_.n_unwritten_files;
        return answer_later(std::move(on_done), false);
    }
    const std::uint64_t n_bytes = file.n_bytes;
    std::vector<std::string> evicted;
    Writing& writing = writing_[name];
    writing.file = file;
    writing.on_done.push_back(std::move(on_done));
    if (const auto known = index_.find(file.name)) {
        index_.touch(*known);  // the job looks whether it is still there
    } else {
        for (const DiskFile& old : make_room(n_bytes)) evicted.push_back(path_of(old));
        writing.n_reserved_bytes = n_bytes;
        n_writing_bytes_ += n_bytes;
    }
    auto job = [this, alive = std::weak_ptr(alive_), path = path_of(file), file, evicted = std::move(evicted),
                encode = std::move(encode), settle = options_.settle]() -> IoWorker::Completion {
        if (settle) settle();
        for (const std::string& old : evicted) remove_cache_file(old);
        Result<void> written = as_result([&] { return write_cache_file(path, file.n_bytes, encode); });
        return [this, alive, file, written = std::move(written)] {
            if (!alive.expired()) finish_write(file, written);
        };
    };
    [[maybe_unused]] const bool taken = worker_.post(std::move(job), n_bytes);  // there was room
}

std::vector<DiskFile> DiskStore::make_room(std::uint64_t n_bytes) {
    std::vector<DiskFile> evicted;
    const std::uint64_t most = options_.budget_bytes - n_bytes - n_writing_bytes_;  // may_write has looked
    while (index_.n_files() > 0 && index_.n_bytes() > most) {
        evicted.push_back(index_.remove(index_.oldest()));
        ++counted_.n_evicted_files;
    }
    return evicted;
}

void DiskStore::finish_write(DiskFile file, const Result<void>& written) {
    const auto found = writing_.find(file.name.name);
    const Writing writing = std::move(found->second);
    writing_.erase(found);
    n_writing_bytes_ -= writing.n_reserved_bytes;
    bool is_there = written.ok() && !writing.erased;
    if (written) {
        ++counted_.n_written_files;
        counted_.n_written_bytes += file.n_bytes;
        resume_writing();
        if (writing.n_reserved_bytes == 0) {
            // It may be larger than the one before, or have been evicted or erased meanwhile.
            if (const auto known = index_.find(file.name); is_there && known) index_.resize(*known, file.n_bytes);
            remove_files(make_room(0));
            is_there = is_there && index_.find(file.name);
        } else if (is_there) {
            index_.add(std::move(file));
        }
    } else {
        ++counted_.n_write_failures;
        stop_writing(written.error().text);
    }
    for (const OnWritten& on_done : writing.on_done) on_done(is_there);
}

void DiskStore::after_writes(std::function<void()> f) {
    auto job = [f = guarded(std::move(f))]() -> IoWorker::Completion { return f; };
    [[maybe_unused]] const bool taken = worker_.post(std::move(job), 0);
}

// -- what others have written

void DiskStore::adopt(std::vector<DiskFileName> names, OnAdopted on_done) {
    worker_.post_urgent([this, alive = std::weak_ptr(alive_), names = std::move(names), folder = options_.directory,
                         identity = options_.identity, on_done = std::move(on_done)]() -> IoWorker::Completion {
        std::vector<DiskFile> found;
        for (const DiskFileName& name : names) {
            if (std::optional<DiskFile> file = find_cache_file(folder, identity, name)) found.push_back(*file);
        }
        return [this, alive, found = std::move(found), n_named = names.size(), on_done] {
            if (!alive.expired()) finish_adopting(found, n_named, on_done);
        };
    });
}

void DiskStore::finish_adopting(std::vector<DiskFile> found, std::size_t n_named, const OnAdopted& on_done) {
    AdoptedFiles adopted;
    adopted.n_missing = n_named - found.size();
    for (auto file = found.rbegin(); file != found.rend(); ++file) {
        const std::optional<DiskIndex::Place> known = index_.find(file->name);
        if (known) index_.touch(*known);
        if (known || writing_.contains(file->name.name)) {
            ++adopted.n_known;
        } else if (file->n_bytes > options_.budget_bytes - n_writing_bytes_) {
            ++adopted.n_missing;
        } else {
            ++adopted.n_new;
            index_.add(std::move(*file));
        }
    }
    counted_.n_adopted_files += adopted.n_new;
    remove_files(make_room(0));
    on_done(adopted);
}

void DiskStore::stop_writing(const std::string& reason) {
    trouble_ = reason;
    retry_at_s_ = clock_.now_s() + kRetryAfter_s;
    if (said_) return;
    said_ = true;
    log_warn("disk cache: nothing is written for now: " + reason);
}

void DiskStore::resume_writing() {
    trouble_.clear();
    if (std::exchange(said_, false)) log_info("disk cache: writing again");
}

// -- reading

void DiskStore::read_page(const PageName& name, const PageName& parent, std::span<const Token, kPageSize> tokens,
                          OnPage on_done) {
    auto decode = [name, parent, expected = Tokens(tokens.begin(), tokens.end()), identity = identity_,
                   limits = options_.limits](ByteSource& source) -> Result<Blob> {
        Result<PageFile> page = read_page_file(source, identity, limits);
        if (!page) return page.error();
        const PageFile& read = page.value();
        if (read.name != name || read.parent != parent || read.tokens != expected) return unexpected();
        return read.rows;
    };
    read<Blob>(index_.find_page(name), std::move(decode), std::move(on_done));
}

void DiskStore::read_checkpoint(const PageName& page, std::size_t n_pages, std::span<const Token> rest,
                                OnCheckpoint on_done) {
    const PageName name = checkpoint_name(page, rest);
    auto decode = [name, page, n_pages, expected = Tokens(rest.begin(), rest.end()), identity = identity_,
                   limits = options_.limits](ByteSource& source) -> Result<ScoredCheckpoint> {
        Result<CheckpointFile> checkpoint = read_checkpoint_file(source, identity, limits);
        if (!checkpoint) return checkpoint.error();
        CheckpointFile& read = checkpoint.value();
        if (read.name != name || read.page != page || read.rest != expected) return unexpected();
        if (!read.scores.empty() && read.scores.size() != n_pages) return unexpected();
        return ScoredCheckpoint{std::move(read.checkpoint), std::move(read.scores)};
    };
    read<ScoredCheckpoint>(index_.find_checkpoint(name), std::move(decode), std::move(on_done));
}

template <typename T>
void DiskStore::read(std::optional<DiskIndex::Place> file, std::function<Result<T>(ByteSource&)> decode,
                     std::function<void(Result<T>)> on_done) {
    if (!file) {
        worker_.complete(
            guarded([on_done = std::move(on_done)] { on_done(Error{ErrorCode::no_such_file, "it is not on disk"}); }));
        return;
    }
    worker_.post_urgent([this, alive = std::weak_ptr(alive_), name = (*file)->name, path = path_of(**file),
                         decode = std::move(decode), on_done = std::move(on_done)]() -> IoWorker::Completion {
        Result<T> result = as_result([&] { return read_cache_file<T>(path, decode); });
        return [this, alive, name, on_done, result = std::move(result)] {
            if (alive.expired()) return;
            finish_read(name, result ? nullptr : &result.error());
            on_done(result);
        };
    });
}

void DiskStore::finish_read(const DiskFileName& name, const Error* failed) {
    const std::optional<DiskIndex::Place> file = index_.find(name);
    if (failed == nullptr) {
        ++counted_.n_read_files;
        if (file) counted_.n_read_bytes += (*file)->n_bytes;
        return;
    }
    if (failed->code == ErrorCode::bad_snapshot) {
        ++counted_.n_corrupt_files;
        retry_at_s_ = clock_.now_s();
    } else if (failed->code == ErrorCode::no_such_file) {
        ++counted_.n_vanished_files;
    } else {
        ++counted_.n_read_failures;
        return;
    }
    if (file) index_.remove(*file);
}

// -- keeping

void DiskStore::touch(std::span<const PageName> chain) {
    const double now_s = clock_.now_s();
    std::vector<std::string> to_mark;
    for (auto name = chain.rbegin(); name != chain.rend(); ++name) {
        std::optional<DiskIndex::Place> file = index_.find_page(*name);
        if (!file) file = index_.find_checkpoint(*name);
        if (!file) continue;
        index_.touch(*file);
        if (now_s - (*file)->marked_s < kMarkAfter_s) continue;
        (*file)->marked_s = now_s;
        to_mark.push_back(path_of(**file));
    }
    if (to_mark.empty()) return;
    [[maybe_unused]] const bool taken = worker_.post(
        [to_mark = std::move(to_mark)]() -> IoWorker::Completion {
            // In the same order as in the index: the last of the text is the oldest by a little.
            std::int64_t at_ns = now_ns() - static_cast<std::int64_t>(to_mark.size()) * kMarkStep_ns;
            for (const std::string& path : to_mark) mark_used(path, at_ns += kMarkStep_ns);
            return {};
        },
        0);
}

void DiskStore::erase(const PageName& name) {
    std::vector<DiskFile> removed;
    if (const auto writing = writing_.find(name); writing != writing_.end()) {
        writing->second.erased = true;
        removed.push_back(writing->second.file);
    }
    std::optional<DiskIndex::Place> file = index_.find_page(name);
    if (!file) file = index_.find_checkpoint(name);
    if (file) removed.push_back(index_.remove(*file));
    remove_files(removed);
}

void DiskStore::clear() {
    std::vector<DiskFile> removed = index_.clear();
    for (auto& [name, writing] : writing_) {
        writing.erased = true;
        removed.push_back(writing.file);
    }
    remove_files(removed);
}

void DiskStore::remove_files(const std::vector<DiskFile>& files) {
    if (files.empty()) return;
    std::vector<std::string> paths;
    for (const DiskFile& file : files) paths.push_back(path_of(file));
    auto job = [this, alive = std::weak_ptr(alive_), paths = std::move(paths)]() -> IoWorker::Completion {
        for (const std::string& path : paths) remove_cache_file(path);
        return [this, alive] {
            if (!alive.expired()) retry_at_s_ = clock_.now_s();  // there is room again, perhaps
        };
    };
    [[maybe_unused]] const bool taken = worker_.post(std::move(job), 0);  // behind a write of the same file
}

DiskStats DiskStore::stats() const {
    DiskStats stats = counted_;
    stats.n_files = index_.n_files();
    stats.n_bytes = index_.n_bytes();
    stats.n_foreign_files = index_.n_foreign();
    return stats;
}

}  // namespace luce::memory
