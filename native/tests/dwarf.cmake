# A tool to compare by hand with addr2line.
add_executable(lines_tool lines_tool.cpp)
target_link_libraries(lines_tool PRIVATE ht_dwarf)

# Files whose debug information is read whole and damaged.
set(lines_samples "")
foreach(version 4 5)
  add_library(lines_sample_${version} SHARED lines_sample.cpp)
  target_compile_options(lines_sample_${version} PRIVATE -O2 -gdwarf-${version})
  add_dependencies(test_source_lines lines_sample_${version})
  list(APPEND lines_samples "\"$<TARGET_FILE:lines_sample_${version}>\"")
endforeach()
list(JOIN lines_samples "," lines_samples)
target_compile_definitions(test_source_lines PRIVATE "HT_LINES_SAMPLES=${lines_samples}")
