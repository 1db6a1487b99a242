#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace hangtrace::bpf {

/// Kinds of include/uapi/linux/btf.h that are asked for here.
enum class BtfKind : std::uint8_t { structure = 4, union_ = 5, function = 12 };

/// The kernel's type information, as in /sys/kernel/btf/vmlinux (Documentation/bpf/btf.rst). Refers to the
/// bytes it was made of.
class Btf {
 public:
  using TypeId = std::uint32_t;

  struct Member {
    std::uint32_t offset;  // bytes
    TypeId type;
  };

  /// nullopt if the bytes are not BTF of this machine, are cut short, or hold a kind whose size is not known.
  static std::optional<Btf> parse(std::span<const std::byte> bytes);

  std::size_t type_count() const { return types_.size(); }
  /// The first type of that kind and name.
  std::optional<TypeId> find(BtfKind kind, std::string_view name) const;
  /// Bytes of a struct, union, number or enumeration; nullopt for other types.
  std::optional<std::uint32_t> size(TypeId type) const;
  /// A member of a struct or union, also one of an unnamed struct or union in it; nullopt for bit fields.
  /// `type` may be a typedef or qualifier of what it is.
  std::optional<Member> member(TypeId type, std::string_view name) const;
  /// The same through several names: `se`, `sum_exec_runtime`.
  std::optional<Member> member(TypeId type, std::span<const std::string_view> names) const;

 private:
  struct Header {  // struct btf_type
    std::uint32_t name;
    std::uint32_t info;
    std::uint32_t size_or_type;
    unsigned kind() const { return info >> 24 & 0x1f; }
    std::uint32_t count() const { return info & 0xffff; }
    bool kind_flag() const { return info >> 31 != 0; }
  };

  Btf() = default;
  std::optional<Header> header(TypeId type) const;
  /// Without typedefs and qualifiers.
  std::optional<TypeId> plain(TypeId type) const;
  bool is_named(std::uint32_t offset, std::string_view name) const;
  std::optional<Member> member(TypeId type, std::string_view name, int depth) const;

  std::span<const std::byte> sections_;  // after the header
  std::span<const std::byte> strings_;
  std::vector<std::uint32_t> types_;  // offsets in sections_; [0] is void
};

}  // namespace hangtrace::bpf
