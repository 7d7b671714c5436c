// IoWorker: one helper thread for what may block (files), so that the thread that runs the model never waits for a
// disk. Jobs run on the helper, one after another; what a job returns runs on the owner's thread, in
// run_completions(). Knows no files. All calls come from the owner's thread; a job shares nothing with it but what
// it was given and never changes (Blob).
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace luce::memory {

class IoWorker {
public:
    using Completion = std::function<void()>;  // may be empty
    using Job = std::function<Completion()>;

    // max_queued_bytes bounds what waiting jobs keep alive, by their own account. Errors: out_of_memory (no thread, no
    // descriptor).
    static Result<std::unique_ptr<IoWorker>> start(std::size_t max_queued_bytes);

    // Lets the running job end and drops the others with their completions: whoever wants them done calls drain().
    ~IoWorker();

    // Whether post() would take a job of so many bytes. One that alone is over the limit is taken when nothing waits.
    bool has_room(std::size_t n_bytes) const;

    // Behind what is queued. False: no room, nothing has happened; never so for a job of 0 bytes.
    bool post(Job job, std::size_t n_bytes);

    // Before what was post()ed, behind other urgent ones: somebody waits for it. Always taken.
    void post_urgent(Job job);

    // As if a job had returned it just now.
    void complete(Completion completion);

    // Readable while there are completions to run.
    int fd() const { return event_.get(); }
    void run_completions();

    // Run jobs and completions until there are none left or the time is over. True: none left.
    bool drain(std::chrono::milliseconds limit);

private:
    struct Queued {
        Job job;
        std::size_t n_bytes = 0;
    };

    IoWorker(std::size_t max_queued_bytes, UniqueFd event);

    void run();
    static Completion run(const Queued& queued);
    bool is_idle() const { return urgent_.empty() && queued_.empty() && !running_; }  // REQUIRES: mutex_ held
    void add_completion(Completion completion);                                       // REQUIRES: mutex_ held

    const std::size_t max_queued_bytes_;
    const UniqueFd event_;
    mutable std::mutex mutex_;  // guards all below but the thread
    std::condition_variable wake_;
    std::condition_variable became_idle_;
    std::deque<Queued> urgent_;
    std::deque<Queued> queued_;
    std::size_t n_bytes_ = 0;  // of the queued and the running job
    bool running_ = false;
    bool stopping_ = false;
    std::vector<Completion> completions_;
    std::thread thread_;
};

}  // namespace luce::memory
