#include "python/task_object.hpp"

#include "python/names.hpp"

namespace hangtrace::python {
namespace {

constexpr std::string_view kLocks = "locks.py";
constexpr std::string_view kQueues = "queues.py";

// Name of a file of the package asyncio, "" for another one.
std::string_view file_of_asyncio(std::string_view path) {
  return is_of_asyncio(path) ? path.substr(path.rfind('/') + 1) : std::string_view();
}

}  // namespace

TaskObject TaskObjectReader::read(const AwaitChain& chain) {
  TaskObject found;
  for (std::size_t i = chain.frames.size(); i-- > 0;) {
    const Code* code = own_.codes.find(chain.frames[i].code);
    if (code == nullptr) break;
    // Of a Future written in Python.
    if (found.kind == TaskObject::Kind::none && last_part(code->function) == "__await__") continue;
    const auto method = method_of(chain.frames[i]);
    if (!method) break;
    // A queue waits for an event of its own, a barrier for a condition of its own.
    const bool outer = (method->file == kQueues && method->name == "join") ||
                       (method->file == kLocks && has(method->self, "_parties"));
    if (found.kind == TaskObject::Kind::none || outer) describe(*method, found);
    if (found.kind == TaskObject::Kind::none) break;
  }
  return found;
}

std::optional<TaskObjectReader::Method> TaskObjectReader::method_of(const SuspendedFrame& frame) {
  const Code* code = own_.codes.find(frame.code);
  const std::string_view file = code != nullptr ? file_of_asyncio(code->file) : std::string_view();
  if (file != kLocks && file != kQueues) return std::nullopt;
  const auto self = own_.local_of(frame.frame, frame.code, "self");
  if (!self || !plausible(*self)) return std::nullopt;
  return Method{file == kLocks ? kLocks : kQueues, last_part(code->function), *self};
}

void TaskObjectReader::describe(const Method& method, TaskObject& found) {
  const Address self = method.self;
  TaskObject object;
  object.address = self;
  object.type = std::string(last_part(objects_.type_name_of(self)));
  object.method = std::string(method.name);
  if (method.file == kQueues) {
    object.kind = TaskObject::Kind::queue;
    object.limit = number(self, "_maxsize");
    object.count = method.name == "join" ? number(self, "_unfinished_tasks") : length(self, "_queue");
  } else if (has(self, "_parties")) {
    object.kind = TaskObject::Kind::barrier;
    object.method = "wait";
    object.count = number(self, "_count");
    object.limit = number(self, "_parties");
  } else if (method.name == "acquire" && has(self, "_locked")) {
    object.kind = TaskObject::Kind::lock;
  } else if (method.name == "acquire" && has(self, "_value")) {
    object.kind = TaskObject::Kind::semaphore;
    object.count = number(self, "_value");
    object.limit = number(self, "_bound_value");
  } else if (method.name == "wait" && has(self, "_lock")) {
    object.kind = TaskObject::Kind::condition;
  } else if (method.name == "wait" && has(self, "_value")) {
    object.kind = TaskObject::Kind::event;
  } else {
    return;
  }
  found = object;
}

bool TaskObjectReader::has(Address object, std::string_view name) {
  return objects_.attribute(object, name).has_value();
}

std::optional<std::int64_t> TaskObjectReader::number(Address object, std::string_view name) {
  const auto found = objects_.attribute(object, name);
  const SimpleValue value = found ? objects_.value(*found) : SimpleValue();
  const auto* whole = std::get_if<std::int64_t>(&value);
  return whole != nullptr ? std::optional(*whole) : std::nullopt;
}

// Of a deque or a list; both keep it as ob_size (Include/cpython/listobject.h, Modules/_collectionsmodule.c).
std::optional<std::int64_t> TaskObjectReader::length(Address object, std::string_view name) {
  const auto found = objects_.attribute(object, name);
  const std::string type = found ? objects_.type_name_of(*found) : "";
  if (type != "collections.deque" && type != "list") return std::nullopt;
  return own_.reader.read_value<std::int64_t>(*found + static_cast<Address>(own_.layout().after_header(0)));
}

}  // namespace hangtrace::python
