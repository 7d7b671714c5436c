#include "base/step_profile.h"

#include <unistd.h>

#include <cassert>

#include "base/trace_file.h"

namespace luce {
namespace {

constexpr std::array<PartTraits, kParts> kTraits = {{
    {"loop"},
    {"idle"},
    {"commands"},
    {"step", {"lanes", "tokens"}},
    {"admit"},
    {"write_back"},
    {"speculate"},
    {"draft", {"lanes", "tokens"}},
    {"plan"},
    {"make_room", {"tokens"}},
    {"submit", {"lanes", "tokens", "cells"}},
    {"wait"},
    {"logits"},
    {"choose", {"lanes"}},
    {"sample", {"lane"}},
    {"remember", {"lane"}},
    {"copy", {"bytes"}},
    {"copy_wait"},
    {"output"},
    {"copies_out", {"bytes"}},
    {"copies_in", {"bytes"}},
    {"files", {"bytes"}},
}};

std::int32_t this_thread() {
    static thread_local const auto id = static_cast<std::int32_t>(::gettid());
    return id;
}

void add_counts(SpanCounts& sum, const SpanCounts& counts) {
    for (std::size_t i = 0; i < counts.size(); ++i) sum[i] += counts[i];
}

}  // namespace

const PartTraits& traits_of(Part part) { return kTraits[static_cast<std::size_t>(part)]; }

std::atomic<StepProfile*> StepProfile::of_process_{nullptr};
thread_local StepProfile* StepProfile::of_thread_ = nullptr;

StepProfile::StepProfile(const Clock& clock, TraceFile* trace) : clock_(clock), trace_(trace) { open_.reserve(16); }

// REQUIRES: the threads that mark spans have ended, or are the engine's.
StepProfile::~StepProfile() {
    if (of_thread_ == this) of_thread_ = nullptr;
    StepProfile* self = this;
    of_process_.compare_exchange_strong(self, nullptr);
}

void StepProfile::begin() {
    assert(of_thread_ == nullptr);
    thread_ = this_thread();
    begun_s_ = charged_s_ = clock_.now_s();
    of_thread_ = this;
    of_process_.store(this);
}

void StepProfile::charge(double now_s) {
    of(open_.empty() ? Part::loop : open_.back().part).seconds += now_s - charged_s_;
    charged_s_ = now_s;
}

void StepProfile::open(Part part) {
    const double now_s = clock_.now_s();
    charge(now_s);
    open_.push_back({part, now_s});
}

void StepProfile::close(const SpanCounts& counts) {
    const double now_s = clock_.now_s();
    charge(now_s);
    const Open span = open_.back();
    open_.pop_back();
    PartSum& sum = of(span.part);
    ++sum.n_spans;
    add_counts(sum.counts, counts);
    if (trace_ != nullptr) trace_->add({span.part, thread_, span.begin_s, now_s, counts});
}

void StepProfile::add(const TimedSpan& span) {
    {
        const std::lock_guard lock(mutex_);
        PartSum& sum = of(span.part);
        sum.seconds += span.end_s - span.begin_s;
        ++sum.n_spans;
        add_counts(sum.counts, span.counts);
    }
    if (trace_ != nullptr) trace_->add(span);
}

StepProfile::Sums StepProfile::sums() {
    const double now_s = clock_.now_s();
    charge(now_s);
    const std::lock_guard lock(mutex_);
    return {now_s - begun_s_, parts_};
}

BackgroundSpan::BackgroundSpan(Part part, std::int64_t n_bytes) : profile_(StepProfile::of_process_.load()) {
    if (profile_ == nullptr) return;
    span_ = {part, this_thread(), profile_->clock_.now_s(), 0, {n_bytes}};
}

BackgroundSpan::~BackgroundSpan() {
    if (profile_ == nullptr) return;
    span_.end_s = profile_->clock_.now_s();
    profile_->add(span_);
}

}  // namespace luce
