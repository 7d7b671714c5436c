// StepProfile: where the time of the thread that runs the engine goes. Each moment counts for one part: that of the
// innermost span that is open; so the parts add up to all of the time. Beside them stands what other threads do
// meanwhile. Who does the work marks it with a Span; there is one profile in the process at the most, as there is one
// log. Without one, and on threads that nobody watches, a span looks at a null pointer and does nothing. Must not know
// what the parts do.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string_view>
#include <vector>

#include "base/clock.h"

namespace luce {

class TraceFile;

// Names and order of the fields of `status`, of a metric's label and of spans in trace files: they do not change.
enum class Part : std::uint8_t {
    loop,        // of the event loop, between what stands below
    idle,        // waits for commands
    commands,    // reads them and serves those that are answered at once
    step,        // of a step, what stands in no part below
    admit,       // requests get lanes; known prefixes are placed
    write_back,  // copies that earlier steps left are started
    speculate,   // speculation's decisions, and what is learnt of their outcome
    draft,       // drafters read the text, are asked, or use the time that the device computes
    plan,        // the scheduler
    make_room,   // cells, and states to return to
    submit,      // llama_decode until it returns: graph and launch; on a CPU the computation
    wait,        // for the device to have computed
    logits,      // where a row of them lies
    choose,      // many lanes' samplers look at their rows at once
    sample,      // one token of one lane
    remember,    // memory: pages that are full, checkpoints, ends of texts
    copy,        // copies between device and host, made or handed to the threads that make them
    copy_wait,   // for those threads
    output,      // tokens and replies are written
    // Of other threads.
    copies_out,
    copies_in,
    files,
};
inline constexpr std::size_t kParts = static_cast<std::size_t>(Part::files) + 1;

constexpr bool is_of_engine(Part part) { return part < Part::copies_out; }

using SpanCounts = std::array<std::int64_t, 3>;

struct PartTraits {
    std::string_view name;
    std::array<std::string_view, 3> counts = {};  // what a span's numbers count; empty: nothing
};
const PartTraits& traits_of(Part part);

struct PartSum {
    double seconds = 0;
    std::uint64_t n_spans = 0;
    SpanCounts counts{};
};

// A span that has ended.
struct TimedSpan {
    Part part{};
    std::int32_t thread = 0;  // the system's number
    double begin_s = 0;
    double end_s = 0;
    SpanCounts counts{};
};

class StepProfile {
public:
    // `trace`: gets every span as well; null: none. Both must outlive the profile.
    explicit StepProfile(const Clock& clock, TraceFile* trace = nullptr);
    ~StepProfile();
    StepProfile(const StepProfile&) = delete;
    StepProfile& operator=(const StepProfile&) = delete;

    // From here on the calling thread is the engine's, and sums begin. REQUIRES: no span is open, nor another profile.
    void begin();

    struct Sums {
        double seconds = 0;  // since begin()
        std::array<PartSum, kParts> parts;

        const PartSum& of(Part part) const { return parts[static_cast<std::size_t>(part)]; }
    };
    // Up to now, open spans included. From the engine's thread.
    Sums sums();

private:
    friend class Span;
    friend class BackgroundSpan;

    struct Open {
        Part part{};
        double begin_s = 0;
    };

    void open(Part part);
    void close(const SpanCounts& counts);
    void charge(double now_s);
    void add(const TimedSpan& span);
    PartSum& of(Part part) { return parts_[static_cast<std::size_t>(part)]; }

    static std::atomic<StepProfile*> of_process_;
    static thread_local StepProfile* of_thread_;  // on the engine's thread

    const Clock& clock_;
    TraceFile* trace_;
    std::int32_t thread_ = 0;
    double begun_s_ = 0;
    double charged_s_ = 0;  // up to then all time has been counted
    std::vector<Open> open_;
    std::array<PartSum, kParts> parts_;  // those of other threads: with the mutex
    std::mutex mutex_;
};

// A part of the engine's thread, to the end of the scope. Spans are nested.
class Span {
public:
    explicit Span(Part part) : profile_(StepProfile::of_thread_) {
        if (profile_ != nullptr) profile_->open(part);
    }
    Span(Part part, const SpanCounts& counts) : Span(part) { counts_ = counts; }
    ~Span() { end(); }
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;

    bool is_measured() const { return profile_ != nullptr; }
    void count(const SpanCounts& counts) { counts_ = counts; }

    void end() {
        if (profile_ != nullptr) profile_->close(counts_);
        profile_ = nullptr;
    }

private:
    StepProfile* profile_;
    SpanCounts counts_{};
};

// The same of another thread, which belongs to one part. They are not nested.
class BackgroundSpan {
public:
    BackgroundSpan(Part part, std::int64_t n_bytes);
    ~BackgroundSpan();
    BackgroundSpan(const BackgroundSpan&) = delete;
    BackgroundSpan& operator=(const BackgroundSpan&) = delete;

private:
    StepProfile* profile_;
    TimedSpan span_;
};

}  // namespace luce
