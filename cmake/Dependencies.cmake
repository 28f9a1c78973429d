# The libraries that fsdpctl uses, all from the distribution. Each is linked by the folder that needs it.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)
find_package(ZLIB REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(RE2 REQUIRED IMPORTED_TARGET re2)
pkg_check_modules(ISAL REQUIRED IMPORTED_TARGET libisal)
pkg_check_modules(ZSTD REQUIRED IMPORTED_TARGET libzstd)
set(HDF5_PREFER_PARALLEL OFF)
enable_language(C)   # FindHDF5 asks the C compiler
# The static library where there is one: Debian's shared one loads curl, Kerberos and LDAP for a driver that is never used
# here, which costs 10 ms at every start.
set(HDF5_USE_STATIC_LIBRARIES ON)
find_package(HDF5 REQUIRED COMPONENTS C)
