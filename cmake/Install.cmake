# Install: what a package holds and where. scikit-build-core runs these rules with the site-packages folder as prefix;
# supervisor/locate.py and the daemon's own search for backends know this layout.
#
#   luce/bin/luced            the daemon; in LUCE_BACKEND_DL mode the loadable backends lie beside it
#   luce/lib/libluce_text.so  the text library; in LUCE_BACKEND_DL mode libllama and libggml too
#   luce/models/              the packaged model and its drafter

install(TARGETS luced RUNTIME DESTINATION luce/bin)
if(TARGET luce_text)
    install(TARGETS luce_text LIBRARY DESTINATION luce/lib NAMELINK_SKIP)
endif()
install(FILES
    "${PROJECT_SOURCE_DIR}/models/luce-tiny-Q8_0.gguf"
    "${PROJECT_SOURCE_DIR}/models/luce-tiny-dflash-Q8_0.gguf"
    DESTINATION luce/models)

if(LUCE_BACKEND_DL)
    foreach(library llama llama-common llama-common-base ggml ggml-base)
        if(NOT TARGET ${library})
            continue()
        endif()
        get_target_property(kind ${library} TYPE)
        if(kind STREQUAL "SHARED_LIBRARY")
            # A wheel holds no symbolic links: one file a library, under the name that the linker recorded.
            set_property(TARGET ${library} PROPERTY VERSION)
            install(TARGETS ${library} LIBRARY DESTINATION luce/lib NAMELINK_SKIP)
        endif()
    endforeach()
    foreach(backend IN LISTS GGML_AVAILABLE_BACKENDS)
        set_property(TARGET ${backend} PROPERTY VERSION)
        set_property(TARGET ${backend} PROPERTY SOVERSION)
        install(TARGETS ${backend} LIBRARY DESTINATION luce/bin)
    endforeach()
endif()
