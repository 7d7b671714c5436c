// Which of ggml's kernels a build of ours has.
#include <doctest/doctest.h>
#include <ggml-cpu.h>

TEST_SUITE_BEGIN("llama");

// cmake/WithoutAmx.cmake says why.
TEST_CASE("nothing is computed with AMX") { CHECK(ggml_cpu_has_amx_int8() == 0); }

TEST_SUITE_END();
