#include "base/trace_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstring>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/log.h"

namespace luce {
namespace {

constexpr std::size_t kMostWaiting = std::size_t{1} << 16;
constexpr std::size_t kWakesWriter = kMostWaiting / 4;
constexpr std::chrono::milliseconds kInterval{250};

constexpr std::string_view kFirstWords = R"([{"ph":"M","name":"luced_trace")";  // says that it is one of ours
constexpr std::string_view kClosing = "]\n";

std::string reason() { return std::strerror(errno); }

// Of the process as a whole, or of one of its threads.
std::string metadata(std::string_view name, std::string_view arguments, std::optional<std::int32_t> thread = {}) {
    const std::string pid = std::to_string(::getpid());
    const std::string tid = thread ? std::to_string(*thread) : pid;
    return std::string(R"({"ph":"M","name":")") + std::string(name) + R"(","pid":)" + pid + R"(,"tid":)" + tid +
           R"(,"args":{)" + std::string(arguments) + "}}";
}

std::string name_argument(std::string_view name) { return R"("name":")" + std::string(name) + "\""; }

void append_number(std::string& text, std::int64_t number) {
    std::array<char, 24> digits;
    text.append(digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr);
}

// Microseconds. Spans are rounded before, so that they stay within those around them.
void append_us(std::string& text, std::int64_t ns) {
    append_number(text, ns / 1000);
    const std::int64_t rest = ns % 1000;
    text += {'.', static_cast<char>('0' + rest / 100), static_cast<char>('0' + rest / 10 % 10),
             static_cast<char>('0' + rest % 10)};
}

std::optional<Error> write_lines(int fd, std::string_view text) {
    while (!text.empty()) {
        const ssize_t n = ::write(fd, text.data(), text.size());
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return Error{ErrorCode::io_error, reason()};
        text.remove_prefix(static_cast<std::size_t>(n));
    }
    return std::nullopt;
}

// What stands at the path, if it is a trace that goes on here: its whole lines. 0: begin anew.
Result<std::size_t> continued_bytes(int fd, const std::string& path) {
    struct stat info{};
    if (::fstat(fd, &info) != 0) return Error{ErrorCode::io_error, "--trace " + path + ": " + reason()};
    if (S_ISCHR(info.st_mode) && ::isatty(fd) == 0) return std::size_t{0};
    if (!S_ISREG(info.st_mode)) return Error{ErrorCode::bad_args, "--trace " + path + ": it is no regular file"};
    if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
        return Error{ErrorCode::bad_args,
                     "--trace " + path + ": another process writes its trace there; give each a file of its own"};
    }
    const auto n_bytes = static_cast<std::size_t>(info.st_size);
    if (n_bytes == 0) return std::size_t{0};
    std::string first(kFirstWords.size(), '\0');
    if (::pread(fd, first.data(), first.size(), 0) != static_cast<ssize_t>(first.size()) || first != kFirstWords) {
        return Error{
            ErrorCode::bad_args,
            "--trace " + path + ": a file that is no trace of luced stands there, and stays; name another one"};
    }
    std::string end(std::min<std::size_t>(n_bytes, 4096), '\0');  // longer than any line
    const ssize_t n = ::pread(fd, end.data(), end.size(), static_cast<off_t>(n_bytes - end.size()));
    if (n != static_cast<ssize_t>(end.size())) return std::size_t{0};
    const std::size_t line_end = end.rfind(",\n");
    if (end.ends_with(kClosing) || line_end == std::string::npos) return std::size_t{0};
    return n_bytes - end.size() + line_end + 2;
}

}  // namespace

Result<std::unique_ptr<TraceFile>> TraceFile::open(const std::string& path, std::size_t limit_bytes) {
    // A pipe that nobody reads must not hold up the start.
    UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666));
    if (!fd.is_open()) return Error{ErrorCode::io_error, "--trace " + path + " cannot be written: " + reason()};
    const Result<std::size_t> continued = continued_bytes(fd.get(), path);
    if (!continued) return continued.error();
    std::size_t n_bytes = continued.value();
    // Fails on a device, which has nothing to cut.
    if (::ftruncate(fd.get(), static_cast<off_t>(n_bytes)) == 0) ::lseek(fd.get(), 0, SEEK_END);
    std::string head;
    if (n_bytes == 0) head = "[" + metadata("luced_trace", R"("version":1)") + ",\n";
    head += metadata("process_name", name_argument("luced")) + ",\n";
    if (const auto failed = write_lines(fd.get(), head)) {
        const std::string said = "--trace " + path + " cannot be written: " + failed->text;
        if (n_bytes == 0) return Error{ErrorCode::io_error, said};
        log_warn(said + "; it is not continued");
        if (::ftruncate(fd.get(), static_cast<off_t>(n_bytes)) != 0) log_debug("--trace: " + reason());
        return std::unique_ptr<TraceFile>();
    }
    n_bytes += head.size();
    try {
        return std::unique_ptr<TraceFile>(new TraceFile(path, std::move(fd), limit_bytes, n_bytes));
    } catch (const std::system_error& e) {
        return Error{ErrorCode::out_of_memory, std::string("the system has no thread for --trace: ") + e.what()};
    }
}

TraceFile::TraceFile(std::string path, UniqueFd fd, std::size_t limit_bytes, std::size_t n_bytes)
    : path_(std::move(path)),
      process_(std::to_string(::getpid())),
      fd_(std::move(fd)),
      limit_bytes_(limit_bytes),
      n_bytes_(n_bytes) {
    waiting_.reserve(kMostWaiting);
    thread_ = std::thread([this] { run(); });
}

TraceFile::~TraceFile() {
    {
        const std::lock_guard lock(mutex_);
        is_closing_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

void TraceFile::add(const TimedSpan& span) {
    bool wakes = false;
    {
        const std::lock_guard lock(mutex_);
        if (has_ended_) return;
        if (waiting_.size() >= kMostWaiting) {
            ++n_left_out_;
            return;
        }
        waiting_.push_back(span);
        wakes = waiting_.size() == kWakesWriter;
    }
    if (wakes) changed_.notify_all();
}

void TraceFile::run() {
    std::vector<TimedSpan> spans;
    spans.reserve(kMostWaiting);
    std::unique_lock lock(mutex_);
    while (!has_ended_) {
        changed_.wait_for(lock, kInterval, [this] { return is_closing_ || waiting_.size() >= kWakesWriter; });
        const bool is_last = is_closing_;
        spans.swap(waiting_);
        lock.unlock();
        write(spans);
        spans.clear();
        lock.lock();
        if (!is_last || has_ended_) continue;
        has_ended_ = true;
        lock.unlock();
        if (const auto failed = write_lines(fd_.get(), ending())) give_up(failed->text);
        return;
    }
}

// Whole lines with one call, so that what a kill cuts off is at most the last one.
void TraceFile::write(const std::vector<TimedSpan>& spans) {
    if (spans.empty()) return;
    std::string text;
    text.reserve(spans.size() * 128);
    for (const TimedSpan& span : spans) append(text, span);
    const std::string end = ending();
    const bool is_full = n_bytes_ + text.size() + end.size() > limit_bytes_;
    if (is_full) {
        const std::size_t n_room = limit_bytes_ - std::min(limit_bytes_, n_bytes_ + end.size());
        const std::size_t line_end = text.substr(0, n_room).rfind(",\n");
        text.resize(line_end == std::string::npos ? 0 : line_end + 2);
        text += end;
    }
    if (const auto failed = write_lines(fd_.get(), text)) return give_up(failed->text);
    n_bytes_ += text.size();
    if (!is_full) return;
    log_warn("--trace: " + path_ + " has reached " + std::to_string(limit_bytes_ >> 20) + " MiB and ends here");
    const std::lock_guard lock(mutex_);
    has_ended_ = true;
}

// The part of a line that was written goes, where it is a file's; whoever reads it finds whole lines.
void TraceFile::give_up(const std::string& why) {
    log_warn("--trace: " + path_ + " ends here, as it cannot be written any more: " + why);
    if (::ftruncate(fd_.get(), static_cast<off_t>(n_bytes_)) != 0) log_debug("--trace: " + reason());
    const std::lock_guard lock(mutex_);
    has_ended_ = true;
}

void TraceFile::append(std::string& text, const TimedSpan& span) {
    const PartTraits& traits = traits_of(span.part);
    if (named_threads_.insert(span.thread).second) {
        const std::string_view name = is_of_engine(span.part) ? "engine" : traits.name;
        text += metadata("thread_name", name_argument(name), span.thread) + ",\n";
    }
    const std::int64_t begin_ns = std::llround(span.begin_s * 1e9);
    const std::int64_t end_ns = std::llround(span.end_s * 1e9);
    text.append(R"({"ph":"X","name":")").append(traits.name).append(R"(","pid":)").append(process_);
    append_number(text.append(R"(,"tid":)"), span.thread);
    append_us(text.append(R"(,"ts":)"), begin_ns);
    append_us(text.append(R"(,"dur":)"), end_ns - begin_ns);
    text += R"(,"args":{)";
    for (std::size_t i = 0; i < traits.counts.size() && !traits.counts[i].empty(); ++i) {
        text.append(i == 0 ? "\"" : ",\"").append(traits.counts[i]);
        append_number(text.append("\":"), span.counts[i]);
    }
    text += "}},\n";
}

std::string TraceFile::ending() const {
    return metadata("luced_trace_end", R"("left_out":)" + std::to_string(n_left_out_.load())) + "\n" +
           std::string(kClosing);
}

}  // namespace luce
