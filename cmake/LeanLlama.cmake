# luce_build_llama_lean(): llama.cpp's library `common` without what nothing of ours can reach, and both of its libraries
# in larger pieces.
#
# `common` holds the command lines of llama.cpp's own programs, downloads and an HTTP library as well: none of that is
# linked into anything of ours, and all of it would be compiled. Its parsers and templates, which luce_text uses all of,
# are many small files behind the same large headers: eight at a time they take a fraction. What luced links stays in
# files of its own, so that it gets no more than it needs. -O2 is enough for what parses and renders: with -O3 its
# templates take twice as long to compile. Of `llama`, small files and the kinds of memory are joined, and what does not
# run for each token or text (loading, and the 180 descriptions of graphs) is compiled with -O1: each saves a third to a
# half. All this fits the pinned build: a tree of the user's
# own is built as it is.
#
# With LUCE_BUILD_BENCH, llama-bench, llama-batched-bench, llama-perplexity and llama-server can be built (nothing builds
# them unasked): on the very libraries that luced links. What is left out here is then a library of their own.

set(LUCE_COMMON_UNUSED arg console debug download hf-cache imatrix-loader llguidance preset subproc)
set(LUCE_COMMON_OF_LUCED
    common fit json log ngram-cache ngram-map ngram-mod reasoning-budget sampling speculative trie unicode)
set(LUCE_LLAMA_JOINED
    llama-adapter llama-arch llama-batch llama-chat llama-cparams llama-hparams llama-impl llama-io llama-kv-cache-dsa
    llama-kv-cache-dsa-iswa llama-kv-cache-dsv4 llama-kv-cache-iswa llama-kv-cache-msa llama-memory llama-memory-hybrid
    llama-memory-hybrid-idx llama-memory-hybrid-iswa llama-memory-recurrent llama-mmap)
set(LUCE_LLAMA_HOT
    llama llama-context llama-grammar llama-graph llama-kv-cache llama-sampler llama-vocab unicode unicode-data)

function(luce_build_llama_lean)
    if(LLAMA_CPP_DIR)
        return()
    endif()
    list(JOIN LUCE_COMMON_UNUSED "|" unused)
    get_target_property(sources llama-common SOURCES)
    list(FILTER sources EXCLUDE REGEX "^(${unused})\\.cpp$")
    # FILENAME: each of the template's files has its own.
    set_target_properties(llama-common PROPERTIES SOURCES "${sources}"
        UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8 UNITY_BUILD_CODE_BEFORE_INCLUDE "#undef FILENAME")
    target_compile_options(llama-common PRIVATE $<$<AND:$<CONFIG:Release>,$<CXX_COMPILER_ID:GNU,Clang>>:-O2>)
    foreach(name IN LISTS LUCE_COMMON_OF_LUCED)
        set_source_files_properties("${LLAMA_CPP_SOURCE}/common/${name}.cpp" TARGET_DIRECTORY llama-common
            PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    endforeach()
    foreach(name IN LISTS LUCE_LLAMA_JOINED)
        set_source_files_properties("${LLAMA_CPP_SOURCE}/src/${name}.cpp" TARGET_DIRECTORY llama
            PROPERTIES SKIP_UNITY_BUILD_INCLUSION OFF)
    endforeach()
    target_compile_options(llama PRIVATE $<$<AND:$<CONFIG:Release>,$<CXX_COMPILER_ID:GNU,Clang>>:-O1>)
    foreach(name IN LISTS LUCE_LLAMA_HOT)
        set_source_files_properties("${LLAMA_CPP_SOURCE}/src/${name}.cpp" TARGET_DIRECTORY llama
            PROPERTIES COMPILE_OPTIONS "$<$<AND:$<CONFIG:Release>,$<CXX_COMPILER_ID:GNU,Clang>>:-O3>")
    endforeach()
    foreach(property LINK_LIBRARIES INTERFACE_LINK_LIBRARIES)
        get_target_property(libraries llama-common ${property})
        list(REMOVE_ITEM libraries cpp-httplib "$<LINK_ONLY:cpp-httplib>")
        set_target_properties(llama-common PROPERTIES ${property} "${libraries}")
    endforeach()
    if(luce_builds_peers)
        list(TRANSFORM LUCE_COMMON_UNUSED REPLACE "(.+)" "${LLAMA_CPP_SOURCE}/common/\\1.cpp" OUTPUT_VARIABLE sources)
        add_library(llama-common-programs STATIC EXCLUDE_FROM_ALL ${sources})
        target_link_libraries(llama-common-programs PUBLIC llama-common PRIVATE cpp-httplib)
        foreach(program llama-bench-impl llama-batched-bench-impl llama-perplexity-impl mtmd server-context)
            target_link_libraries(${program} PUBLIC llama-common-programs)
        endforeach()
    endif()
endfunction()
