#include "elf/demangle.hpp"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>

namespace hangtrace::elf {

namespace {

// The demangler's work can grow faster than its input; longer names stay as they are.
constexpr std::size_t max_mangled = 16 << 10;

}  // namespace

std::string demangle(const std::string& name) {
  if (!name.starts_with("_Z") || name.size() > max_mangled) return name;
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), &std::free);
  return status == 0 && text ? std::string(text.get()) : name;
}

}  // namespace hangtrace::elf
