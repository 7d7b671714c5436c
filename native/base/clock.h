// Clock: the only source of time, so that tests can hold it still. Seconds from an arbitrary start, never backwards.
#pragma once

#include <chrono>

namespace luce {

class Clock {
public:
    virtual ~Clock() = default;
    virtual double now_s() const = 0;
};

class SteadyClock final : public Clock {
public:
    double now_s() const override {
        return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
    }
};

class ManualClock final : public Clock {
public:
    double now_s() const override { return now_s_; }
    void advance(double seconds) { now_s_ += seconds; }

private:
    double now_s_ = 0;
};

}  // namespace luce
