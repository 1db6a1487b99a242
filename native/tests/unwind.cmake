# Programs whose threads the unwinder looks at, one for each way to build; and a tool to compare by hand.
add_executable(unwind_tool unwind_tool.cpp)
target_link_libraries(unwind_tool PRIVATE ht_unwind)
add_executable(unwind_rows unwind_rows.cpp)
target_link_libraries(unwind_rows PRIVATE ht_unwind)

find_package(Threads REQUIRED)
set(unwind_targets "")
function(add_unwind_target name)
  add_executable(${name} unwind_target.cpp)
  target_compile_options(${name} PRIVATE -Wall -Wextra ${ARGN})
  target_link_libraries(${name} PRIVATE Threads::Threads)
  add_dependencies(test_unwind_live ${name})
  set(unwind_targets ${unwind_targets} "\"$<TARGET_FILE:${name}>\"" PARENT_SCOPE)
endfunction()

if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  add_unwind_target(unwind_target_O0 -O0)
  add_unwind_target(unwind_target_O2 -O2 -fomit-frame-pointer)
  add_unwind_target(unwind_target_O2_fp -O2 -fno-omit-frame-pointer)
  add_unwind_target(unwind_target_O3_no_plt -O3 -fno-plt -fcf-protection=full)
endif()
if(unwind_targets)
  list(JOIN unwind_targets "," unwind_targets)
  target_compile_definitions(test_unwind_live PRIVATE "HT_UNWIND_TARGETS=${unwind_targets}")
endif()

if(TARGET unwind_target_O2)
  add_dependencies(test_parallel_looks unwind_target_O2)
  target_compile_definitions(test_parallel_looks PRIVATE "HT_LOOK_TARGET=\"$<TARGET_FILE:unwind_target_O2>\"")
endif()

find_package(LibLZMA QUIET)
if(LIBLZMA_FOUND)
  target_link_libraries(test_symbols PRIVATE LibLZMA::LibLZMA)
  target_compile_definitions(test_symbols PRIVATE HT_HAVE_LZMA=1)
endif()

target_compile_definitions(test_unwind_snapshots PRIVATE "HT_TEST_DATA=\"${CMAKE_CURRENT_SOURCE_DIR}/data\"")

find_package(ZLIB QUIET)
if(ZLIB_FOUND)
  target_link_libraries(test_unwind_tables PRIVATE ZLIB::ZLIB)
  target_compile_definitions(test_unwind_tables PRIVATE HT_HAVE_ZLIB=1)
endif()

# Its own functions must not need a frame pointer.
target_compile_options(test_unwind_jit PRIVATE -O2 -fomit-frame-pointer)
target_compile_options(test_unwind_stale PRIVATE -O2 -fomit-frame-pointer)
# Its own functions must need one.
target_compile_options(test_unwind_proof PRIVATE -O2 -fno-omit-frame-pointer)
