// TraceFile: spans as a file that chrome://tracing and Perfetto open: the Trace Event Format, as a JSON array of one
// event a line, microseconds of the system's monotonic clock. add() never waits for the disk: a thread of the file's
// own writes what has come together, a few times a second. Knows parts by their names only.
//
// The array is closed when the file is. One that was cut off (kill -9) lacks at most the last fraction of a second and
// the closing bracket, which viewers do without; for a JSON parser the last whole line ends in a comma that has to go.
//
// Bounded: at its limit the file is closed and a line in the log says so; what more than a second's spans of a disk
// that stands still would take is left out, and the file's last line counts it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "base/step_profile.h"
#include "base/unique_fd.h"

namespace luce {

class TraceFile {
public:
    static constexpr std::size_t kLimitBytes = std::size_t{256} << 20;

    // A closed trace that stands there is replaced. One that was cut off is continued: an engine that is started again
    // adds to what the one before it wrote. Errors: bad_args (no regular file, something else than a trace, or another
    // process writes it), io_error (the path, the disk). Null: a disk that has become full does not take what would
    // continue it, and an engine that is started again goes on without.
    static Result<std::unique_ptr<TraceFile>> open(const std::string& path, std::size_t limit_bytes = kLimitBytes);

    // Writes what there is and closes the array.
    ~TraceFile();
    TraceFile(const TraceFile&) = delete;
    TraceFile& operator=(const TraceFile&) = delete;

    // From any thread.
    void add(const TimedSpan& span);

private:
    TraceFile(std::string path, UniqueFd fd, std::size_t limit_bytes, std::size_t n_bytes);

    void run();
    void write(const std::vector<TimedSpan>& spans);
    void append(std::string& text, const TimedSpan& span);
    std::string ending() const;
    void give_up(const std::string& why);

    const std::string path_;
    const std::string process_;  // its number
    const UniqueFd fd_;
    const std::size_t limit_bytes_;
    // Of the thread that writes.
    std::size_t n_bytes_;                   // whole lines in the file
    std::set<std::int32_t> named_threads_;  // in the file

    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<TimedSpan> waiting_;
    std::atomic<std::uint64_t> n_left_out_ = 0;
    bool has_ended_ = false;  // nothing is written any more
    bool is_closing_ = false;
    std::thread thread_;
};

}  // namespace luce
