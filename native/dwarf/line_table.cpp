#include "dwarf/line_table.hpp"

#include <algorithm>
#include <array>

#include "dwarf/constants.hpp"

namespace hangtrace::dwarf {

namespace {

constexpr std::uint64_t max_program = 64 << 20;
constexpr std::size_t max_files = 1 << 20;
constexpr std::uint64_t content_path = 1;
constexpr std::uint64_t content_directory = 2;

struct Row {
  Address address = 0;
  std::uint64_t file = 1;
  std::uint64_t line = 1;
};

std::string join(const std::string& directory, const std::string& name) {
  if (name.empty()) return directory;
  if (name.front() == '/' || directory.empty()) return name;
  return directory.back() == '/' ? directory + name : directory + "/" + name;
}

// Remembers which row each address falls into. Rows of a sequence come in the order of addresses.
class Recorder {
 public:
  Recorder(std::span<const Address> addresses, std::map<Address, Position>& positions)
      : addresses_(addresses), positions_(positions) {}

  void row(const Row& row) {
    if (in_sequence_) cover(last_, row.address);
    if (!in_sequence_) first_ = row.address;
    in_sequence_ = true;
    last_ = row;
  }
  void end(Address address) {
    if (in_sequence_) cover(last_, address);
    in_sequence_ = false;
  }

 private:
  void cover(const Row& row, Address end) {
    if (first_ == 0) return;  // dropped by the linker
    for (auto at = std::ranges::lower_bound(addresses_, row.address); at != addresses_.end() && *at < end;
         ++at)
      positions_.try_emplace(*at, Position{row.file, row.line});
  }

  std::span<const Address> addresses_;
  std::map<Address, Position>& positions_;
  bool in_sequence_ = false;
  Address first_ = 0;
  Row last_;
};

}  // namespace

struct LineTable::Program {
  std::uint8_t minimum_length = 1;
  std::uint8_t operations = 1;  // per instruction, of VLIW machines
  std::int8_t line_base = 0;
  std::uint8_t line_range = 1;
  std::uint8_t opcode_base = 1;
  std::vector<std::uint8_t> argument_counts;
};

std::optional<LineTable> LineTable::run(Sections& sections, const Unit& unit,
                                        std::span<const Address> addresses) {
  if (!unit.line_program()) return std::nullopt;
  const Section& section = sections[".debug_line"];
  const std::uint64_t offset = *unit.line_program();
  const auto beginning =
      section.read(offset, std::min<std::uint64_t>(12, section.size() - std::min(offset, section.size())));
  if (!beginning) return std::nullopt;
  elf::Cursor length_cursor(*beginning);
  const InitialLength initial = read_initial_length(length_cursor);
  if (!length_cursor.ok() || initial.length > max_program) return std::nullopt;
  const auto bytes = section.read(offset + length_cursor.position(), initial.length);
  if (!bytes) return std::nullopt;

  LineTable table;
  Program program;
  elf::Cursor cursor(*bytes);
  const auto version = cursor.value<std::uint16_t>();
  if (version < 2 || version > 5) return std::nullopt;
  if (version >= 5) cursor.take(2);  // sizes of an address and a segment selector
  const std::uint64_t header_length =
      initial.wide ? cursor.value<std::uint64_t>() : cursor.value<std::uint32_t>();
  const std::uint64_t begin = cursor.position() + header_length;
  program.minimum_length = cursor.value<std::uint8_t>();
  if (version >= 4) program.operations = cursor.value<std::uint8_t>();
  cursor.take(1);  // default_is_stmt: where a debugger may stop, of no use here
  program.line_base = static_cast<std::int8_t>(cursor.value<std::uint8_t>());
  program.line_range = cursor.value<std::uint8_t>();
  program.opcode_base = cursor.value<std::uint8_t>();
  for (unsigned i = 1; i < program.opcode_base; ++i)
    program.argument_counts.push_back(cursor.value<std::uint8_t>());
  table.compilation_directory_ = unit.directory();
  table.from_one_ = version < 5;
  if (version >= 5) {
    table.read_tables_5(sections, unit, cursor, initial.wide);
  } else {
    table.read_tables(cursor);
  }
  if (!cursor.ok() || program.line_range == 0 || program.operations == 0) return std::nullopt;
  cursor.seek(begin);
  table.execute(cursor, program, addresses);
  return table;
}

void LineTable::read_tables(elf::Cursor& cursor) {
  while (cursor.ok() && directories_.size() < max_files) {
    const std::string_view name = cursor.cstring();
    if (name.empty()) break;
    directories_.emplace_back(name);
  }
  while (cursor.ok() && files_.size() < max_files) {
    const std::string_view name = cursor.cstring();
    if (name.empty()) break;
    File file{std::string(name), cursor.uleb()};
    cursor.uleb();  // time
    cursor.uleb();  // size
    files_.push_back(std::move(file));
  }
}

void LineTable::read_tables_5(Sections& sections, const Unit& unit, elf::Cursor& cursor, bool wide) {
  UnitHeader shape = unit.header();
  shape.wide = wide;
  shape.version = 5;
  const auto text = [&](const Value& value) {
    if (value.kind == Value::Kind::line_string) return sections[".debug_line_str"].text(value.number);
    return unit.text(value);
  };
  const auto read_list = [&](auto&& add) {
    std::vector<AttributeSpec> format;
    const auto count = cursor.value<std::uint8_t>();
    for (unsigned i = 0; i < count; ++i) format.push_back({cursor.uleb(), cursor.uleb(), 0});
    const std::uint64_t entries = cursor.uleb();
    for (std::uint64_t i = 0; i < entries && i < max_files && cursor.ok(); ++i) {
      File file{{}, 0};
      for (const AttributeSpec& spec : format) {
        const Value value = read_value(cursor, spec, shape);
        if (spec.name == content_path) file.name = text(value);
        if (spec.name == content_directory) file.directory = value.number;
      }
      add(std::move(file));
      if (format.empty()) break;
    }
  };
  read_list([this](File file) { directories_.push_back(std::move(file.name)); });
  read_list([this](File file) { files_.push_back(std::move(file)); });
}

void LineTable::execute(elf::Cursor& cursor, const Program& program, std::span<const Address> addresses) {
  Recorder recorder(addresses, positions_);
  Row row;
  std::uint64_t operation_index = 0;
  const auto advance = [&](std::uint64_t operations) {
    const std::uint64_t total = operation_index + operations;
    row.address += program.minimum_length * (total / program.operations);
    operation_index = total % program.operations;
  };
  while (cursor.ok() && !cursor.at_end()) {
    const auto opcode = cursor.value<std::uint8_t>();
    if (opcode >= program.opcode_base) {
      const unsigned adjusted = opcode - program.opcode_base;
      advance(adjusted / program.line_range);
      row.line += static_cast<std::uint64_t>(std::int64_t{program.line_base} + adjusted % program.line_range);
      recorder.row(row);
      continue;
    }
    switch (opcode) {
      case 0: {  // extended
        const std::uint64_t length = cursor.uleb();
        const std::size_t end = cursor.position() + std::min<std::uint64_t>(length, cursor.left());
        const auto extended = length == 0 ? std::uint8_t{0} : cursor.value<std::uint8_t>();
        if (extended == 1) {  // end_sequence
          recorder.end(row.address);
          row = Row{};
          operation_index = 0;
        } else if (extended == 2) {  // set_address
          row.address = cursor.value<std::uint64_t>();
          operation_index = 0;
        } else if (extended == 3 && from_one_) {  // define_file
          File file{std::string(cursor.cstring()), cursor.uleb()};
          if (files_.size() < max_files) files_.push_back(std::move(file));
        }
        if (cursor.ok()) cursor.seek(end);
        break;
      }
      case 1:  // copy
        recorder.row(row);
        break;
      case 2:  // advance_pc
        advance(cursor.uleb());
        break;
      case 3:  // advance_line
        row.line += static_cast<std::uint64_t>(cursor.sleb());
        break;
      case 4:  // set_file
        row.file = cursor.uleb();
        break;
      case 8:  // const_add_pc
        advance((255U - program.opcode_base) / program.line_range);
        break;
      case 9:  // fixed_advance_pc
        row.address += cursor.value<std::uint16_t>();
        operation_index = 0;
        break;
      default:  // columns, statement and block marks, and what later versions may bring
        for (unsigned i = 0; i < program.argument_counts[opcode - 1U]; ++i) cursor.uleb();
        break;
    }
  }
}

std::optional<Position> LineTable::position(Address address) const {
  const auto found = positions_.find(address);
  return found == positions_.end() ? std::nullopt : std::optional(found->second);
}

std::string LineTable::file(std::uint64_t index) const {
  const std::uint64_t at = from_one_ ? index - 1 : index;
  if (at >= files_.size()) return {};
  const File& file = files_[at];
  const std::uint64_t directory = from_one_ ? file.directory - 1 : file.directory;
  // Without the directory that its number stands for a name would be a guess.
  const std::string base = directory < directories_.size() ? directories_[directory] : std::string();
  return join(join(compilation_directory_, base), file.name);
}

}  // namespace hangtrace::dwarf
