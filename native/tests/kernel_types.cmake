target_compile_definitions(test_kernel_types PRIVATE "HT_TEST_DATA=\"${CMAKE_CURRENT_SOURCE_DIR}/data\"")
