// What lies where, for models and cards that are only numbers: whatever they are, the plan keeps within them, and more
// memory never makes it worse.
#include "llama/fit/fit_plan.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <random>
#include <vector>

TEST_SUITE("llama") {

using namespace luce::llama;

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

// A 35B mixture's proportions: 40 layers, 20 MiB dense and 440 MiB of experts each.
FitModel mixture() {
    FitModel model;
    model.layers.assign(40, {20 * kMiB, 440 * kMiB});
    model.largest_experts = 147 * kMiB;
    model.output = 280 * kMiB;
    model.input = 280 * kMiB;
    return model;
}

FitModel dense() {
    FitModel model = mixture();
    for (LayerSize& layer : model.layers) layer = {300 * kMiB, 0};
    return model;
}

ContextSize context_size(std::int32_t n_ctx, bool has_q8, bool is_wide) {
    const std::size_t cache = static_cast<std::size_t>(n_ctx) * 40 * 1024 / (has_q8 ? 2 : 1);
    return {cache, (is_wide ? 800 : 300) * kMiB};
}

FitBudget card(std::size_t mib, std::size_t n = 1) { return {std::vector(n, mib * kMiB), 512 * kMiB, SIZE_MAX}; }

const FitChoices kFree = {{32768, 16384, 8192}, {false, true}};

FitPlan plan(const FitModel& model, const FitBudget& budget, const FitChoices& choices = kFree) {
    return fit_plan(model, budget, choices, context_size);
}

// Of each GPU: what a plan that uses several puts there.
std::vector<std::size_t> bytes_of_each(const FitPlan& plan, const FitModel& model) {
    const auto n_layers = static_cast<std::int32_t>(model.layers.size());
    const ContextSize context = context_size(plan.n_ctx, plan.has_q8, false);
    const std::size_t cached = context.cache / model.layers.size();
    const std::size_t buffers = context.compute + (plan.n_expert_layers > 0 ? 2 * model.largest_experts : 0);
    std::vector<std::size_t> all;
    std::int32_t layer = n_layers + 1 - plan.n_gpu_layers;
    for (const std::int32_t n : plan.split) {
        std::size_t bytes = n > 0 ? buffers : 0;
        for (const std::int32_t end = layer + n; layer < end; ++layer) {
            if (layer == n_layers) {
                bytes += model.output + plan.beside;
                continue;
            }
            const LayerSize& size = model.layers[static_cast<std::size_t>(layer)];
            bytes += size.dense + cached + (layer >= plan.n_expert_layers ? size.experts : 0);
        }
        all.push_back(bytes);
    }
    return all;
}

}  // namespace

TEST_CASE("of several GPUs one is enough for what fits there, else each gets layers by their bytes") {
    const FitPlan one = plan(dense(), card(24576, 2));
    CHECK(one.gpu == 0);
    CHECK(one.split.empty());
    FitBudget unequal = card(8192, 2);
    unequal.gpus[1] = 24576 * kMiB;
    CHECK(plan(dense(), unequal).gpu == 1);

    // A drafter lies with the output: the first GPU gets more layers for it.
    FitModel with_drafter = dense();
    with_drafter.beside = kMiB;
    CHECK(plan(with_drafter, unequal).gpu == 1);
    with_drafter.beside = 2400 * kMiB;
    const FitPlan drafting = plan(with_drafter, card(9216, 2));
    REQUIRE(drafting.split.size() == 2);
    CHECK(drafting.split[0] > drafting.split[1] + 4);
    for (const std::size_t bytes : bytes_of_each(drafting, with_drafter)) CHECK(bytes <= (9216 - 512) * kMiB);

    const FitPlan two = plan(dense(), card(8192, 2));
    CHECK_FALSE(two.gpu);
    CHECK(two.n_gpu_layers == 41);
    REQUIRE(two.split.size() == 2);
    CHECK(std::abs(two.split[0] - two.split[1]) <= 2);

    // One that another program uses gets no layers, and keeps none from the others.
    FitBudget taken = card(8192, 3);
    taken.gpus[1] = 300 * kMiB;
    const FitPlan around = plan(dense(), taken);
    CHECK(around.n_gpu_layers == 41);
    REQUIRE(around.split.size() == 3);
    CHECK(around.split[1] == 0);
    CHECK(around.compute == two.compute);

    // The first layers' experts lie in the host's memory: their GPU has room for more layers.
    const FitPlan mixed = plan(mixture(), card(7680, 2));
    CHECK(mixed.n_expert_layers > 10);
    REQUIRE(mixed.split.size() == 2);
    CHECK(mixed.split[0] > mixed.split[1] + 5);
    for (const std::size_t bytes : bytes_of_each(mixed, mixture())) CHECK(bytes <= (7680 - 512) * kMiB);
}

TEST_CASE("what fits lies on the GPU, and what is given up first costs least") {
    const FitPlan all = plan(mixture(), card(24576));
    CHECK(all.n_gpu_layers == 41);
    CHECK(all.n_expert_layers == 0);
    CHECK_FALSE(all.has_q8);
    CHECK(all.n_ctx == 32768);
    CHECK(all.weights == 40 * 460 * kMiB + 280 * kMiB);

    const FitPlan small_cache = plan(mixture(), card(20700));  // 640 MiB less
    CHECK(small_cache.has_q8);
    CHECK(small_cache.n_expert_layers == 0);

    const FitPlan sixteen = plan(mixture(), card(16384));
    CHECK(sixteen.n_gpu_layers == 41);
    CHECK(sixteen.n_expert_layers > 5);
    CHECK(sixteen.n_expert_layers < 20);
    CHECK(sixteen.n_ctx == 32768);
    CHECK(sixteen.host_weights == 280 * kMiB + static_cast<std::size_t>(sixteen.n_expert_layers) * 440 * kMiB);

    const FitPlan shorter = plan(dense(), card(13600));
    CHECK(shorter.n_gpu_layers == 41);
    CHECK(shorter.n_ctx == 16384);
    const FitPlan fewer = plan(dense(), card(8192));
    CHECK(fewer.n_gpu_layers > 0);
    CHECK(fewer.n_gpu_layers < 41);
    CHECK(fewer.n_ctx == 32768);
    CHECK(plan(dense(), card(900)).n_gpu_layers == 0);
    CHECK(plan(dense(), {{}, 0, SIZE_MAX}).n_gpu_layers == 0);
}

TEST_CASE("a GPU that reads the host's memory holds as many experts as there is room for, beside wide calls") {
    FitChoices choices = kFree;
    choices.splits_experts = true;
    const FitPlan sixteen = plan(mixture(), card(16384), choices);
    CHECK(sixteen.n_gpu_layers == 41);
    CHECK(sixteen.n_expert_layers == 0);
    CHECK(sixteen.compute == 800 * kMiB);
    CHECK(sixteen.gpu_bytes() == (16384 - 512) * kMiB);
    CHECK(sixteen.expert_memory > 12000 * kMiB);
    CHECK(sixteen.host_weights == 280 * kMiB + 40 * 440 * kMiB - sixteen.expert_memory);
    CHECK(plan(mixture(), card(24576), choices).expert_memory == 0);
    CHECK(plan(dense(), card(8192), choices).expert_memory == 0);
    const FitPlan small = plan(mixture(), card(3000), choices);
    CHECK(small.n_ctx < 32768);
    CHECK(small.expert_memory > 0);
    CHECK(plan(mixture(), card(1800), choices).expert_memory == 0);  // not even the rest of the layers
    FitBudget short_host = card(16384);
    short_host.host = 1000 * kMiB;
    CHECK(plan(mixture(), short_host, choices).expert_memory == 0);
    CHECK(plan(mixture(), short_host, choices).n_expert_layers > 0);
    short_host.host = sixteen.host_weights;
    CHECK(plan(mixture(), short_host, choices).expert_memory > 0);
}

TEST_CASE("experts have the memory of the cache's empty pages, where there is much of it") {
    const auto with_pages = [](std::int32_t n_ctx, bool has_q8, bool is_wide) {
        ContextSize size = context_size(n_ctx, has_q8, is_wide);
        size.pages = size.cache - 20 * kMiB;
        return size;
    };
    FitChoices choices = {{131072}, {false}};
    choices.splits_experts = true;
    const FitPlan fixed = fit_plan(mixture(), card(16384), choices, with_pages);
    CHECK(fixed.expert_lendable == 0);
    choices.lends_pages = true;
    const FitPlan shared = fit_plan(mixture(), card(16384), choices, with_pages);
    CHECK(shared.expert_lendable > 4000 * kMiB);
    CHECK(shared.expert_memory - shared.expert_lendable == fixed.expert_memory);
    CHECK(shared.cache + shared.expert_lendable == fixed.cache);
    CHECK(shared.gpu_bytes() == fixed.gpu_bytes());
    CHECK(shared.host_weights == fixed.host_weights);  // has room for what is lent as well
    for (std::size_t mib = 5000; mib < 24000; mib += 250) {
        const FitPlan any = fit_plan(mixture(), card(mib), choices, with_pages);
        CHECK(any.gpu_bytes() <= mib * kMiB);
        CHECK(any.expert_memory <= 40 * 440 * kMiB);
        if (any.expert_lendable > 0) CHECK(any.expert_memory - any.expert_lendable >= 5 * 440 * kMiB);
    }
    choices.n_ctx = {4096};  // 160 MiB
    CHECK(fit_plan(mixture(), card(16384), choices, with_pages).expert_lendable == 0);
}

TEST_CASE("what was asked for is kept") {
    const FitChoices fixed = {{32768}, {false}};
    for (const std::size_t mib : {24576U, 16384U, 8192U, 2048U}) {
        for (const FitModel& model : {mixture(), dense()}) {
            const FitPlan found = plan(model, card(mib), fixed);
            CHECK(found.n_ctx == 32768);
            CHECK_FALSE(found.has_q8);
        }
    }
}

TEST_CASE("what the host cannot hold is said") {
    FitBudget budget = card(8192);
    budget.host = 4096 * kMiB;
    CHECK_FALSE(plan(mixture(), budget).fits_host);
    budget.host = 65536 * kMiB;
    CHECK(plan(mixture(), budget).fits_host);
}

TEST_CASE("plans keep within any card, leave nothing out, and never get worse with more memory") {
    std::mt19937 random(7);
    const auto some = [&](std::size_t most) { return random() % most * kMiB; };
    for (int turn = 0; turn < 2000; ++turn) {
        FitModel model;
        const bool is_mixture = turn % 2 == 0;
        model.layers.resize(random() % 60 + 1);
        std::size_t total = 0;
        for (LayerSize& layer : model.layers) {
            layer = {some(400), is_mixture ? some(600) : 0};
            total += layer.dense + layer.experts;
            model.largest_experts = std::max(model.largest_experts, layer.experts / 2);
        }
        model.output = some(2000);
        model.input = some(2000);
        model.beside = turn % 5 == 0 ? some(3000) : 0;
        const std::size_t n_gpus = random() % 3 + 1;
        const auto n_all = static_cast<std::int32_t>(model.layers.size()) + 1;
        FitPlan before;
        for (std::size_t mib = 1024; mib <= 65536; mib *= 2) {
            const FitBudget budget = card(mib, n_gpus);
            FitChoices choices = kFree;
            choices.splits_experts = turn % 3 == 0 && n_gpus == 1;
            const FitPlan found = plan(model, budget, choices);
            CAPTURE(turn);
            CAPTURE(mib);
            const std::size_t room = (mib - 512) * kMiB;
            if (found.n_gpu_layers > 0) CHECK(found.gpu_bytes() <= (found.gpu ? 1 : n_gpus) * room);
            if (n_gpus > 1 && found.n_gpu_layers > 0 && !found.gpu) {
                CHECK(std::accumulate(found.split.begin(), found.split.end(), 0) == found.n_gpu_layers);
                for (const std::size_t bytes : bytes_of_each(found, model)) CHECK(bytes <= room);
            }
            CHECK(found.weights + found.host_weights == total + model.output + model.input);
            CHECK(found.n_gpu_layers <= n_all);
            CHECK(found.n_expert_layers < n_all);
            CHECK(found.n_gpu_layers >= before.n_gpu_layers);
            if (found.n_gpu_layers == n_all && before.n_gpu_layers == n_all) {
                CHECK(found.n_expert_layers <= before.n_expert_layers);
            }
            before = found;
        }
    }
}

}  // TEST_SUITE("llama")
