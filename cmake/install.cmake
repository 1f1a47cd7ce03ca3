include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(destination ${CMAKE_INSTALL_LIBDIR}/cmake/kimik3)
install(DIRECTORY include/kimik3 DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS kimik3 EXPORT kimik3_core)
install(EXPORT kimik3_core NAMESPACE kimik3:: FILE kimik3_core.cmake DESTINATION ${destination})
if(KIMIK3_IO)
    install(TARGETS kimik3_io EXPORT kimik3_io)
    install(EXPORT kimik3_io NAMESPACE kimik3:: FILE kimik3_io.cmake DESTINATION ${destination})
    install(FILES cmake/FindPCRE2.cmake DESTINATION ${destination})
endif()
install(FILES cmake/kimik3AddPreset.cmake cmake/write_preset.cpp DESTINATION ${destination})
configure_file(cmake/kimik3Config.cmake.in kimik3Config.cmake @ONLY)
write_basic_package_version_file(kimik3ConfigVersion.cmake
    VERSION ${KIMIK3_VERSION} COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES ${PROJECT_BINARY_DIR}/kimik3Config.cmake ${PROJECT_BINARY_DIR}/kimik3ConfigVersion.cmake
        DESTINATION ${destination})
