# luce_compile_without_amx(): ggml's kernels for AMX (Intel's Sapphire Rapids and later) are left out of the build.
#
# In llama.cpp b11549 they are wrong in three ways (ggml/src/ggml-cpu/amx/mmq.cpp). The tile configuration that they load
# is mostly what stood on the stack, since GCC's _tile_loadconfig() does not say that it reads all of it: a segmentation
# fault (ggml-org/llama.cpp issue 20824). Where a product has a third dimension (several sequences in the recurrent
# layers, Gemma's embeddings) they take the offset into the result, in bytes, for one in floats, and read weights beyond
# their end. What long prompts lose without them has not been measured. With another pinned build, look again: on such a
# processor the tests of several lanes (native/tests, suite llama) tell whether they are right.
include(CheckCXXCompilerFlag)

function(luce_compile_without_amx)
    check_cxx_compiler_flag(-mno-amx-tile LUCE_COMPILER_KNOWS_AMX)
    if(NOT LUCE_COMPILER_KNOWS_AMX)
        return()
    endif()
    get_property(targets DIRECTORY "${LLAMA_CPP_SOURCE}/ggml/src" PROPERTY BUILDSYSTEM_TARGETS)
    foreach(target IN LISTS targets)
        if(target MATCHES "^ggml-cpu")
            target_compile_options(${target} PRIVATE -mno-amx-tile -mno-amx-int8 -mno-amx-bf16)
        endif()
    endforeach()
endfunction()
