#include "bindings/procfs.hpp"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <tuple>
#include <vector>

#include "bindings/convert.hpp"
#include "map_locks/writers.hpp"
#include "memory/process_reader.hpp"
#include "proc/files.hpp"
#include "proc/map_records.hpp"
#include "proc/pagemap.hpp"
#include "proc/smaps.hpp"
#include "proc/status.hpp"
#include "proc/threads.hpp"

namespace hangtrace::bindings {

namespace {

constexpr std::size_t largest_read = std::size_t{64} << 20;

// Runs `read(proc_root, pid)` without the GIL; raises OSError of `file` where it gives nullopt.
template <class Read>
auto read_or_raise(Read read, const std::string& proc_root, int pid, const char* file) {
  int error = 0;
  auto result = [&] {
    const py::gil_scoped_release release;
    auto answer = read(proc_root, pid);
    error = errno;
    return answer;
  }();
  if (!result) {
    raise_os_error(error, proc::process_path(proc_root, pid, file));
  }
  return std::move(*result);
}

using Counters = std::tuple<int, int, std::uint64_t, std::uint64_t>;

std::vector<Counters> thread_counters(const std::vector<int>& pids, const std::string& proc_root) {
  std::vector<Counters> counters;
  for (const int pid : pids) {
    const auto tasks = proc::TaskDirectory::open(proc_root, pid);
    if (!tasks) {
      continue;
    }
    for (const int tid : tasks->list()) {
      if (const auto stat = tasks->schedstat(tid)) {
        counters.emplace_back(pid, tid, stat->run_ns, stat->slices);
      }
    }
  }
  return counters;
}

py::object read_memory(int pid, std::uint64_t address, std::size_t size) {
  if (size > largest_read) {
    return py::none();
  }
  std::vector<std::byte> bytes(size);
  bool done = false;
  {
    const py::gil_scoped_release release;
    done = memory::ProcessReader(pid).read(address, bytes);
  }
  if (!done) {
    return py::none();
  }
  return py::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

py::list maps(int pid, const std::string& proc_root) {
  const std::vector<proc::Mapping> mappings = read_or_raise(proc::read_maps, proc_root, pid, "maps");
  py::list result;
  for (const proc::Mapping& mapping : mappings) {
    const std::array<char, 4> rights{mapping.readable ? 'r' : '-', mapping.writable ? 'w' : '-',
                                     mapping.executable ? 'x' : '-', mapping.shared ? 's' : 'p'};
    result.append(py::make_tuple(mapping.start, mapping.end, std::string_view(rights.data(), rights.size()),
                                 mapping.offset, mapping.dev_major, mapping.dev_minor, mapping.inode,
                                 text(mapping.path), mapping.deleted));
  }
  return result;
}

constexpr std::array<std::string_view, 7> record_head{"start", "end",   "offset", "device",
                                                      "inode", "flags", "path"};
static_assert(sizeof(proc::MapRecord) == record_head.size() * sizeof(std::uint64_t));
static_assert(sizeof(proc::SmapsRecord) ==
              sizeof(proc::MapRecord) + proc::smaps_keys.size() * sizeof(std::uint64_t));

py::tuple map_fields() {
  py::tuple names(record_head.size());
  std::size_t i = 0;
  for (const std::string_view name : record_head) {
    names[i++] = py::str(name.data(), name.size());
  }
  return names;
}

py::tuple record_fields() {
  py::list names(map_fields());
  for (const proc::SmapsKey& key : proc::smaps_keys) {
    names.append(py::str(key.name.data(), key.name.size()));
  }
  return py::tuple(names);
}

py::dtype type_of(const py::tuple& names) {
  py::list fields;
  for (const py::handle name : names) {
    fields.append(py::make_tuple(name, "u8"));
  }
  return py::dtype::from_args(fields);
}

// Made once, when it is first asked for: it loads numpy, and takes as long as to read a small process.
const py::dtype& map_type() {
  static py::gil_safe_call_once_and_store<py::dtype> type;
  return type.call_once_and_store_result([] { return type_of(map_fields()); }).get_stored();
}

const py::dtype& smaps_type() {
  static py::gil_safe_call_once_and_store<py::dtype> type;
  return type.call_once_and_store_result([] { return type_of(record_fields()); }).get_stored();
}

// Records of 64-bit numbers under these names, and the paths. Their memory becomes that of the array.
template <class Read>
py::tuple structured(Read read, const py::dtype& type) {
  const auto count = static_cast<py::ssize_t>(read.records.size());
  py::object owner;  // none of an array without memory
  auto* const data = read.records.release();
  if (data != nullptr) {
    owner = py::capsule(data, [](void* memory) { std::free(memory); });
  }
  const py::array records(type, std::vector<py::ssize_t>{count}, data, owner);
  py::list paths;
  for (const std::string& path : read.paths) {
    paths.append(text(path));
  }
  return py::make_tuple(records, paths);
}

py::tuple map_records(int pid, const std::string& proc_root) {
  return structured(read_or_raise(proc::read_map_records, proc_root, pid, "maps"), map_type());
}

py::tuple smaps(int pid, const std::string& proc_root) {
  return structured(read_or_raise(proc::read_smaps, proc_root, pid, "smaps"), smaps_type());
}

py::dict smaps_rollup(int pid, const std::string& proc_root) {
  const proc::SmapsRollup rollup = read_or_raise(proc::read_smaps_rollup, proc_root, pid, "smaps_rollup");
  py::dict result;
  for (std::size_t i = 0; i < rollup.sizes.size(); ++i) {
    if (rollup.sizes[i]) {
      result[py::str(proc::smaps_keys[i].name.data(), proc::smaps_keys[i].name.size())] = *rollup.sizes[i];
    }
  }
  return result;
}

py::dict status(int pid, const std::string& proc_root) {
  const proc::Status read = read_or_raise(proc::read_status, proc_root, pid, "status");
  py::dict result;
  result["name"] = text(read.name);
  result["state"] = text(std::string_view(&read.state, 1));
  result["tgid"] = read.process;
  result["ppid"] = read.parent;
  result["tracer_pid"] = read.tracer;
  result["ns_pids"] = read.ids_by_namespace;
  if (read.user) {
    result["uid"] = *read.user;
  }
  if (read.kernel_thread) {
    result["kernel_thread"] = *read.kernel_thread ? 1 : 0;
  }
  const std::array<std::pair<const char*, std::optional<std::uint64_t>>, 15> numbers{{
      {"threads", read.threads},
      {"vm_peak", read.vm_peak},
      {"vm_size", read.vm_size},
      {"vm_lck", read.vm_locked},
      {"vm_pin", read.vm_pinned},
      {"vm_hwm", read.vm_high_water},
      {"vm_rss", read.vm_rss},
      {"rss_anon", read.rss_anon},
      {"rss_file", read.rss_file},
      {"rss_shmem", read.rss_shmem},
      {"vm_swap", read.vm_swap},
      {"vm_pte", read.vm_page_tables},
      {"hugetlb", read.hugetlb},
      {"voluntary_switches", read.voluntary_switches},
      {"involuntary_switches", read.involuntary_switches},
  }};
  for (const auto& [name, number] : numbers) {
    if (number) {
      result[name] = *number;
    }
  }
  return result;
}

// What one process has, as a record of 64-bit numbers.
struct CountRecord {
  std::uint64_t pid, present, swapped, file, exclusive, numbered, frames, complete;
};

py::tuple count_fields() {
  return py::make_tuple("pid", "present", "swapped", "file", "exclusive", "numbered", "frames", "complete");
}

const py::dtype& count_type() {
  static py::gil_safe_call_once_and_store<py::dtype> type;
  return type.call_once_and_store_result([] { return type_of(count_fields()); }).get_stored();
}

constexpr std::size_t rollup_numbers = proc::smaps_keys.size() + 1;

py::tuple rollup_fields() {
  py::list names;
  names.append("pid");
  for (const proc::SmapsKey& key : proc::smaps_keys) {
    names.append(py::str(key.name.data(), key.name.size()));
  }
  return py::tuple(names);
}

const py::dtype& rollup_type() {
  static py::gil_safe_call_once_and_store<py::dtype> type;
  return type.call_once_and_store_result([] { return type_of(rollup_fields()); }).get_stored();
}

py::array rollup_records(const std::vector<int>& pids, const std::string& proc_root) {
  std::vector<std::array<std::uint64_t, rollup_numbers>> records;
  {
    const py::gil_scoped_release release;
    for (const int pid : pids) {
      if (const auto rollup = proc::read_smaps_rollup(proc_root, pid)) {
        auto& record = records.emplace_back();
        record[0] = static_cast<std::uint64_t>(pid);
        for (std::size_t i = 0; i < rollup->sizes.size(); ++i) {
          record[i + 1] = rollup->sizes[i].value_or(0);
        }
      }
    }
  }
  return py::array(rollup_type(), {static_cast<py::ssize_t>(records.size())}, records.data());
}

// Start, end, and whether hardly anything is there, of each.
using Ranges = py::array_t<std::uint64_t, py::array::c_style | py::array::forcecast>;

// The pages of a group of processes, each counted once.
class PageUnion {
 public:
  bool add(int pid, const Ranges& ranges, double budget_s, const std::string& proc_root) {
    if (ranges.ndim() != 2 || ranges.shape(1) != 3) {
      throw py::value_error("ranges have a start, an end, and whether hardly anything is there");
    }
    const auto deadline = after(budget_s);
    const auto view = ranges.unchecked<2>();
    proc::Walk walk;
    {
      const py::gil_scoped_release release;
      std::vector<proc::PageRange> wanted;
      wanted.reserve(static_cast<std::size_t>(view.shape(0)));
      for (py::ssize_t i = 0; i < view.shape(0); ++i) {
        wanted.push_back({view(i, 0), view(i, 1), view(i, 2) != 0});
      }
      walk = proc::walk_pages(proc_root, pid, wanted, zero_, deadline);
      if (walk.end != proc::WalkEnd::failed) {
        group_.add(pid, walk.frames);
      }
    }
    if (walk.end == proc::WalkEnd::failed) {
      raise_os_error(walk.error, proc::process_path(proc_root, pid, "pagemap"));
    }
    const bool complete = walk.end == proc::WalkEnd::done;
    counts_.push_back({static_cast<std::uint64_t>(pid), walk.counts.present, walk.counts.swapped,
                       walk.counts.file, walk.counts.exclusive, walk.counts.numbered, walk.frames->size(),
                       complete ? 1U : 0U});
    return complete;
  }
  py::array counts() const {
    return py::array(count_type(), {static_cast<py::ssize_t>(counts_.size())}, counts_.data());
  }
  std::uint64_t frames() const { return group_.size(); }
  std::uint64_t unique() const { return group_.unique(); }
  py::object unique_of(int pid) const { return optional_int(group_.unique_of(pid)); }

 private:
  proc::ZeroPages zero_ = proc::ZeroPages::find();
  proc::FrameGroup group_;
  std::vector<CountRecord> counts_;  // changed with the GIL held
};

}  // namespace

void define_procfs(py::module_& module) {
  module.def("thread_counters", &thread_counters, py::arg("pids"), py::arg("proc_root") = "/proc",
             py::call_guard<py::gil_scoped_release>());
  module.def("read_memory", &read_memory, py::arg("pid"), py::arg("address"), py::arg("size"));
  module.def("maps", &maps, py::arg("pid"), py::arg("proc_root") = "/proc");
  module.def("smaps", &smaps, py::arg("pid"), py::arg("proc_root") = "/proc");
  module.def("map_records", &map_records, py::arg("pid"), py::arg("proc_root") = "/proc");
  module.def("smaps_rollup", &smaps_rollup, py::arg("pid"), py::arg("proc_root") = "/proc");
  module.def("rollup_records", &rollup_records, py::arg("pids"), py::arg("proc_root") = "/proc");
  module.def("status", &status, py::arg("pid"), py::arg("proc_root") = "/proc");
  py::class_<PageUnion>(module, "PageUnion")
      .def(py::init<>())
      .def("add", &PageUnion::add, py::arg("pid"), py::arg("ranges"), py::kw_only(), py::arg("budget_s"),
           py::arg("proc_root") = "/proc")
      .def_property_readonly("counts", &PageUnion::counts)
      .def("unique_of", &PageUnion::unique_of, py::arg("pid"))
      .def_property_readonly("frames", &PageUnion::frames)
      .def_property_readonly("unique", &PageUnion::unique);
  module.def("mmap_lock_writers", &map_locks::read_writers, py::arg("btf_path") = "/sys/kernel/btf/vmlinux",
             py::call_guard<py::gil_scoped_release>());
  module.attr("MAP_FIELDS") = map_fields();
  module.attr("SMAPS_FIELDS") = record_fields();
  module.attr("FLAG_READ") = proc::map_read;
  module.attr("FLAG_WRITE") = proc::map_write;
  module.attr("FLAG_EXEC") = proc::map_exec;
  module.attr("FLAG_SHARED") = proc::map_shared;
  module.attr("FLAG_DELETED") = proc::map_deleted;
  module.attr("FLAG_PFNMAP") = proc::smaps_pfnmap;
  module.attr("FLAG_IO") = proc::smaps_io;
  module.attr("FLAG_HUGETLB") = proc::smaps_hugetlb;
}

}  // namespace hangtrace::bindings
