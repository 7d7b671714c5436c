# FetchLlama: put llama.cpp's sources where LLAMA_CPP_SOURCE points to.
#
# llama.cpp is a pinned dependency that is fetched, never copied into this repository. It travels inside a source
# distribution on the Python package index, because that is the one place which every machine that can
# `pip install` reaches. The unpacked tree is kept in a cache folder, so that each further build needs no network.
# The changes in cmake/patches/, each with its reason, are applied once, before a tree gets its name: which ends in their
# hash, so that checkouts with other patches have other trees, side by side.
#
# In:  LLAMA_CPP_DIR      a llama.cpp tree of the user's own; nothing is fetched then, and it is not patched
#      LUCE_CACHE_DIR     where downloads are kept (default: $XDG_CACHE_HOME/luce-daemon or ~/.cache/luce-daemon)
# Out: LLAMA_CPP_SOURCE

set(LUCE_LLAMA_BUILD "b11549")
set(LUCE_LLAMA_PACKAGE "xllamacpp")
set(LUCE_LLAMA_PACKAGE_VERSION "2026.10.11549")
set(LUCE_LLAMA_SHA256 "c17ee1163006f70726abb9f72137830818f3d8cb60bfc34cb232d08428eaa22b")

set(LLAMA_CPP_DIR "" CACHE PATH "llama.cpp sources of your own (empty: fetch ${LUCE_LLAMA_BUILD})")
set(LUCE_CACHE_DIR "" CACHE PATH "Where fetched sources are kept (empty: the user's cache folder)")

function(luce_cache_dir out)
    if(LUCE_CACHE_DIR)
        set(dir "${LUCE_CACHE_DIR}")
    elseif(DEFINED ENV{XDG_CACHE_HOME} AND NOT "$ENV{XDG_CACHE_HOME}" STREQUAL "")
        set(dir "$ENV{XDG_CACHE_HOME}/luce-daemon")
    elseif(DEFINED ENV{HOME} AND NOT "$ENV{HOME}" STREQUAL "")
        set(dir "$ENV{HOME}/.cache/luce-daemon")
    else()
        set(dir "${CMAKE_BINARY_DIR}/cache")
    endif()
    set(${out} "${dir}" PARENT_SCOPE)
endfunction()

# Fetch the package's source distribution into `archive`, or stop with a message that says what to do.
function(luce_download_llama archive work_dir)
    find_package(Python3 REQUIRED COMPONENTS Interpreter)
    message(STATUS "Fetching llama.cpp ${LUCE_LLAMA_BUILD} (${LUCE_LLAMA_PACKAGE} ${LUCE_LLAMA_PACKAGE_VERSION}, 38 MB)")
    file(REMOVE_RECURSE "${work_dir}/download")
    file(MAKE_DIRECTORY "${work_dir}/download")
    execute_process(
        COMMAND "${Python3_EXECUTABLE}" -m pip download --quiet --no-deps
                --no-binary ${LUCE_LLAMA_PACKAGE} --dest "${work_dir}/download"
                "${LUCE_LLAMA_PACKAGE}==${LUCE_LLAMA_PACKAGE_VERSION}"
        RESULT_VARIABLE failed ERROR_VARIABLE errors OUTPUT_VARIABLE output)
    file(GLOB found "${work_dir}/download/*.tar.gz")
    if(NOT found)
        message(FATAL_ERROR
            "llama.cpp ${LUCE_LLAMA_BUILD} could not be fetched (are you offline?). Either\n"
            "  - connect to the Python package index and build again, or\n"
            "  - put ${LUCE_LLAMA_PACKAGE}-${LUCE_LLAMA_PACKAGE_VERSION}.tar.gz (its source distribution) into\n"
            "    ${work_dir}, or\n"
            "  - unpack llama.cpp ${LUCE_LLAMA_BUILD} yourself and pass -DLLAMA_CPP_DIR=<folder>.\n"
            "What pip said:\n${output}${errors}")
    endif()
    list(GET found 0 found)
    file(RENAME "${found}" "${archive}")
    file(REMOVE_RECURSE "${work_dir}/download")
endfunction()

# What the tree's name ends in; other patches, another hash. A patch that changes configures the build anew.
function(luce_hash_patches out)
    set(all "")
    foreach(patch IN LISTS ARGN)
        file(SHA256 "${patch}" sha256)
        string(APPEND all "${sha256}")
        set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${patch}")
    endforeach()
    string(SHA256 hash "${all}")
    string(SUBSTRING "${hash}" 0 8 hash)
    set(${out} "${hash}" PARENT_SCOPE)
endfunction()

function(luce_patch_llama tree scratch)
    find_package(Python3 REQUIRED COMPONENTS Interpreter)
    execute_process(
        COMMAND "${Python3_EXECUTABLE}" "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/apply_patches.py" "${tree}" ${ARGN}
        RESULT_VARIABLE failed ERROR_VARIABLE errors OUTPUT_VARIABLE output)
    if(failed)
        file(REMOVE_RECURSE "${scratch}")
        message(FATAL_ERROR
            "Our patches do not fit llama.cpp ${LUCE_LLAMA_BUILD}:\n${errors}${output}"
            "Bring the patch up to date with the pinned build, or remove it from cmake/patches if llama.cpp has what "
            "it adds.")
    endif()
endfunction()

function(luce_unpack_llama archive work_dir destination)
    file(SHA256 "${archive}" sha256)
    if(NOT sha256 STREQUAL LUCE_LLAMA_SHA256)
        file(REMOVE "${archive}")
        message(FATAL_ERROR
            "${archive} is not the pinned llama.cpp ${LUCE_LLAMA_BUILD}:\n  sha256 ${sha256}\n"
            "  wanted ${LUCE_LLAMA_SHA256}\nIt was removed; build again to fetch it anew.")
    endif()
    # Unpack beside the destination and rename, so that an interrupted build leaves no half-filled or half-patched tree
    # behind.
    string(RANDOM LENGTH 8 suffix)
    set(scratch "${work_dir}/unpack-${suffix}")
    file(MAKE_DIRECTORY "${scratch}")
    file(ARCHIVE_EXTRACT INPUT "${archive}" DESTINATION "${scratch}")
    file(GLOB tree "${scratch}/*/thirdparty/llama.cpp")
    if(NOT tree)
        message(FATAL_ERROR "${archive} holds no thirdparty/llama.cpp")
    endif()
    luce_patch_llama("${tree}" "${scratch}" ${ARGN})
    # Another build may have been faster: its tree is the same.
    file(RENAME "${tree}" "${destination}" RESULT failed)
    file(REMOVE_RECURSE "${scratch}")
    if(NOT EXISTS "${destination}/include/llama.h")
        message(FATAL_ERROR "${destination} could not be made: ${failed}")
    endif()
endfunction()

if(LLAMA_CPP_DIR)
    get_filename_component(LLAMA_CPP_SOURCE "${LLAMA_CPP_DIR}" ABSOLUTE)
    if(NOT EXISTS "${LLAMA_CPP_SOURCE}/include/llama.h")
        message(FATAL_ERROR "LLAMA_CPP_DIR=${LLAMA_CPP_DIR} is no llama.cpp source tree: it has no include/llama.h")
    endif()
    message(STATUS "llama.cpp: ${LLAMA_CPP_SOURCE} (your own tree)")
else()
    luce_cache_dir(luce_cache)
    file(GLOB luce_patches CONFIGURE_DEPENDS "${CMAKE_CURRENT_LIST_DIR}/patches/*.patch")
    luce_hash_patches(luce_patch_hash ${luce_patches})
    set(LLAMA_CPP_SOURCE "${luce_cache}/llama.cpp-${LUCE_LLAMA_BUILD}-patched-${luce_patch_hash}")
    if(NOT EXISTS "${LLAMA_CPP_SOURCE}/include/llama.h")
        file(MAKE_DIRECTORY "${luce_cache}")
        set(luce_archive "${luce_cache}/${LUCE_LLAMA_PACKAGE}-${LUCE_LLAMA_PACKAGE_VERSION}.tar.gz")
        if(NOT EXISTS "${luce_archive}")
            luce_download_llama("${luce_archive}" "${luce_cache}")
        endif()
        luce_unpack_llama("${luce_archive}" "${luce_cache}" "${LLAMA_CPP_SOURCE}" ${luce_patches})
    endif()
    message(STATUS "llama.cpp: ${LUCE_LLAMA_BUILD} in ${LLAMA_CPP_SOURCE}")
endif()
