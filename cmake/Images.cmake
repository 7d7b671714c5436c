# luce_mtmd: of llama.cpp's mtmd what reads images: the encoders and what cuts an image into their input. Its helpers,
# which read sound and video with libraries of their own, are left out; audio's encoders are part of the same classes.
# Nothing of it runs for each token, and its time goes into ggml: the descriptions of graphs are one file, with -O1, and
# what does not touch pixels is not optimised at all. So it takes about 20 s of a core, a third of what it would.

file(GLOB luce_mtmd_models CONFIGURE_DEPENDS "${LLAMA_CPP_SOURCE}/tools/mtmd/models/*.cpp")
set(luce_mtmd_core "${LLAMA_CPP_SOURCE}/tools/mtmd/clip.cpp" "${LLAMA_CPP_SOURCE}/tools/mtmd/mtmd.cpp"
    "${LLAMA_CPP_SOURCE}/tools/mtmd/mtmd-audio.cpp" "${LLAMA_CPP_SOURCE}/tools/mtmd/mtmd-image.cpp")
add_library(luce_mtmd STATIC ${luce_mtmd_core} ${luce_mtmd_models})
set_target_properties(luce_mtmd PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
set_source_files_properties(${luce_mtmd_core} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
foreach(name clip mtmd mtmd-audio)
    set_source_files_properties("${LLAMA_CPP_SOURCE}/tools/mtmd/${name}.cpp" PROPERTIES
        COMPILE_OPTIONS "$<$<AND:$<CONFIG:Release>,$<CXX_COMPILER_ID:GNU,Clang>>:-O0>")
endforeach()
target_compile_features(luce_mtmd PRIVATE cxx_std_17)
target_compile_options(luce_mtmd PRIVATE -w $<$<AND:$<CONFIG:Release>,$<CXX_COMPILER_ID:GNU,Clang>>:-O1>)
target_include_directories(luce_mtmd SYSTEM PUBLIC "${LLAMA_CPP_SOURCE}/tools/mtmd")
target_link_libraries(luce_mtmd PUBLIC llama ggml)
