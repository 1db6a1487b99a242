// Plays a plan: takes the objects it says in each thread, announces itself, and goes to where the plan wants
// it. usage: lockplay PLAN. The folder of the plan has the named pipes `fork` and `go`, which end when the
// time has come. A plan is one line a thing; plan.py writes it.
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "announce.h"

namespace {

constexpr long kMillisecond = 1000 * 1000;

void check(bool good, const std::string& what) {
  if (good) return;
  fprintf(stderr, "lockplay: %s\n", what.c_str());
  _exit(1);
}

void nap(long milliseconds) {
  const timespec time{milliseconds / 1000, milliseconds % 1000 * kMillisecond};
  nanosleep(&time, nullptr);
}

timespec in(long milliseconds) {
  timespec time{};
  clock_gettime(CLOCK_REALTIME, &time);
  time.tv_sec += milliseconds / 1000;
  time.tv_nsec += milliseconds % 1000 * kMillisecond;
  if (time.tv_nsec >= 1000 * kMillisecond) {
    ++time.tv_sec;
    time.tv_nsec -= 1000 * kMillisecond;
  }
  return time;
}

std::string folder;

// What threads wait for. Which of these an object can do depends on its kind; a plan asks for nothing else.
class Thing {
 public:
  virtual ~Thing() = default;
  virtual void take() { unable(); }
  virtual void share() { unable(); }
  virtual void give() { unable(); }
  virtual void timed(long) { unable(); }  // take(), but for so many milliseconds only
  virtual void wait() { unable(); }       // for a signal
  virtual void signal() { unable(); }
  virtual void start(int) {}  // in each process, after it was forked

 private:
  static void unable() { check(false, "the plan asks an object for what it cannot do"); }
};

// Memory that all processes of the plan have in common, or not.
void* room(bool shared, std::size_t size) {
  static int file = open((folder + "/objects").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  static off_t used = 0;
  if (!shared) return calloc(1, size);
  check(ftruncate(file, used + 4096) == 0, "cannot make the shared file");
  void* found = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, used);
  check(found != MAP_FAILED, "cannot map the shared file");
  used += 4096;
  return static_cast<char*>(found) + 64;
}

class Mutex : public Thing {
 public:
  Mutex(const std::string& kind, bool shared)
      : mutex_(static_cast<pthread_mutex_t*>(room(shared, sizeof(pthread_mutex_t)))) {
    pthread_mutexattr_t how;
    pthread_mutexattr_init(&how);
    if (kind == "mutex_recursive") pthread_mutexattr_settype(&how, PTHREAD_MUTEX_RECURSIVE);
    if (kind == "mutex_errorcheck") pthread_mutexattr_settype(&how, PTHREAD_MUTEX_ERRORCHECK);
    if (kind == "mutex_adaptive") pthread_mutexattr_settype(&how, PTHREAD_MUTEX_ADAPTIVE_NP);
    if (kind == "mutex_robust") pthread_mutexattr_setrobust(&how, PTHREAD_MUTEX_ROBUST);
    if (kind == "mutex_pi") pthread_mutexattr_setprotocol(&how, PTHREAD_PRIO_INHERIT);
    if (shared) pthread_mutexattr_setpshared(&how, PTHREAD_PROCESS_SHARED);
    check(pthread_mutex_init(mutex_, &how) == 0, "no such mutex: " + kind);
  }
  void take() override { pthread_mutex_lock(mutex_); }
  void give() override { pthread_mutex_unlock(mutex_); }
  void timed(long milliseconds) override {
    const timespec until = in(milliseconds);
    pthread_mutex_timedlock(mutex_, &until);
  }

 private:
  pthread_mutex_t* mutex_;
};

class ReadWrite : public Thing {
 public:
  explicit ReadWrite(bool shared)
      : lock_(static_cast<pthread_rwlock_t*>(room(shared, sizeof(pthread_rwlock_t)))) {
    pthread_rwlockattr_t how;
    pthread_rwlockattr_init(&how);
    if (shared) pthread_rwlockattr_setpshared(&how, PTHREAD_PROCESS_SHARED);
    pthread_rwlock_init(lock_, &how);
  }
  void take() override { pthread_rwlock_wrlock(lock_); }
  void share() override { pthread_rwlock_rdlock(lock_); }
  void give() override { pthread_rwlock_unlock(lock_); }
  void timed(long milliseconds) override {
    const timespec until = in(milliseconds);
    pthread_rwlock_timedwrlock(lock_, &until);
  }

 private:
  pthread_rwlock_t* lock_;
};

template <typename Lock>
class Standard : public Thing {
 public:
  void take() override { lock_.lock(); }
  void give() override { lock_.unlock(); }
  void share() override {
    if constexpr (std::is_same_v<Lock, std::shared_mutex>) lock_.lock_shared();
  }

 private:
  Lock lock_;
};

class Semaphore : public Thing {
 public:
  Semaphore(bool shared, unsigned value) : it_(static_cast<sem_t*>(room(shared, sizeof(sem_t)))) {
    sem_init(it_, shared, value);
  }
  void take() override { sem_wait(it_); }
  void give() override { sem_post(it_); }
  void wait() override { sem_wait(it_); }
  void signal() override { sem_post(it_); }
  void timed(long milliseconds) override {
    const timespec until = in(milliseconds);
    sem_timedwait(it_, &until);
  }

 private:
  sem_t* it_;
};

class Condition : public Thing {
 public:
  explicit Condition(bool shared) : it_(static_cast<Memory*>(room(shared, sizeof(Memory)))) {
    pthread_mutexattr_t mutex;
    pthread_condattr_t condition;
    pthread_mutexattr_init(&mutex);
    pthread_condattr_init(&condition);
    if (shared) {
      pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED);
      pthread_condattr_setpshared(&condition, PTHREAD_PROCESS_SHARED);
    }
    pthread_mutex_init(&it_->mutex, &mutex);
    pthread_cond_init(&it_->condition, &condition);
  }
  void wait() override {
    pthread_mutex_lock(&it_->mutex);
    while (it_->items == 0) pthread_cond_wait(&it_->condition, &it_->mutex);
    --it_->items;
    pthread_mutex_unlock(&it_->mutex);
  }
  void signal() override {
    pthread_mutex_lock(&it_->mutex);
    ++it_->items;
    pthread_cond_signal(&it_->condition);
    pthread_mutex_unlock(&it_->mutex);
  }
  void timed(long milliseconds) override {
    pthread_mutex_lock(&it_->mutex);
    const timespec until = in(milliseconds);
    pthread_cond_timedwait(&it_->condition, &it_->mutex, &until);
    pthread_mutex_unlock(&it_->mutex);
  }

 private:
  struct Memory {
    pthread_mutex_t mutex;
    pthread_cond_t condition;
    long items;
  };
  Memory* it_;
};

class Barrier : public Thing {
 public:
  Barrier(bool shared, unsigned count)
      : it_(static_cast<pthread_barrier_t*>(room(shared, sizeof(pthread_barrier_t)))) {
    pthread_barrierattr_t how;
    pthread_barrierattr_init(&how);
    if (shared) pthread_barrierattr_setpshared(&how, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(it_, &how, count);
  }
  void wait() override { pthread_barrier_wait(it_); }

 private:
  pthread_barrier_t* it_;
};

class Future : public Thing {
 public:
  void wait() override { result_.wait(); }

 private:
  std::promise<int> promise_;
  std::shared_future<int> result_ = promise_.get_future().share();
};

class FileLock : public Thing {
 public:
  FileLock(std::string kind, const std::string& name) : kind_(std::move(kind)), path_(folder + "/" + name) {}
  void take() override {
    // A file of its own for each who wants it; it stays open as long as the thread is where it goes.
    const int file = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    check(file >= 0, "cannot open " + path_);
    struct flock whole {};
    whole.l_type = F_WRLCK;
    if (kind_ == "flock") {
      check(flock(file, LOCK_EX) == 0, "flock");
    } else {
      check(fcntl(file, kind_ == "fcntl" ? F_SETLKW : F_OFD_SETLKW, &whole) == 0, "fcntl");
    }
    if (kind_ != "fcntl") held_ = file;
  }
  void give() override { close(held_); }

 private:
  std::string kind_;
  std::string path_;
  thread_local static int held_;
};
thread_local int FileLock::held_ = -1;

class Pipe : public Thing {
 public:
  Pipe(int reader, int writer) : reader_(reader), writer_(writer) {
    check(pipe2(ends_, O_CLOEXEC) == 0, "pipe");
  }
  void start(int process) override {
    if (process != reader_) close(ends_[0]);
    if (process != writer_) close(ends_[1]);
  }
  void wait() override {
    char byte = 0;
    check(read(ends_[0], &byte, 1) == 1, "read");
  }
  void signal() override { check(write(ends_[1], "x", 1) == 1, "write"); }

 private:
  int ends_[2];
  int reader_;
  int writer_;
};

struct Player {
  std::string name;
  int process = 0;
  std::string last;
  std::string on;
  long amount = 0;
  std::vector<std::string> takes;
  pthread_t thread{};
};

struct Process {
  int parent = -1;
  bool late = false;
};

std::map<std::string, std::unique_ptr<Thing>> things;
std::vector<Process> processes;
std::vector<Player> players;
int fork_gate;
int go_gate;

std::unique_ptr<Thing> make(std::istringstream& words) {
  std::string name, kind;
  bool shared = false;
  int reader = 0, writer = 0, amount = 0;
  words >> name >> kind >> shared >> reader >> writer >> amount;
  std::unique_ptr<Thing> made;
  if (kind.rfind("mutex_", 0) == 0) made = std::make_unique<Mutex>(kind, shared);
  if (kind == "rwlock") made = std::make_unique<ReadWrite>(shared);
  if (kind == "std_mutex") made = std::make_unique<Standard<std::mutex>>();
  if (kind == "std_recursive") made = std::make_unique<Standard<std::recursive_mutex>>();
  if (kind == "std_shared") made = std::make_unique<Standard<std::shared_mutex>>();
  if (kind == "semaphore") made = std::make_unique<Semaphore>(shared, amount);
  if (kind == "condition") made = std::make_unique<Condition>(shared);
  if (kind == "barrier") made = std::make_unique<Barrier>(shared, amount);
  if (kind == "future") made = std::make_unique<Future>();
  if (kind == "flock" || kind == "fcntl" || kind == "ofd") made = std::make_unique<FileLock>(kind, name);
  if (kind == "pipe") made = std::make_unique<Pipe>(reader, writer);
  check(made != nullptr, "no such kind: " + kind);
  things[name] = std::move(made);
  return nullptr;
}

void read_plan(const char* path) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string what;
    words >> what;
    if (what == "object") {
      make(words);
    } else if (what == "process") {
      Process one;
      words >> one.parent >> one.late;
      processes.push_back(one);
    } else if (what == "player") {
      Player one;
      words >> one.name >> one.process >> one.last >> one.on >> one.amount;
      for (std::string take; words >> take;) one.takes.push_back(take);
      players.push_back(one);
    }
  }
}

void pass(int gate) {
  char byte = 0;
  check(read(gate, &byte, 1) == 0, "the gate");
}

[[noreturn]] void sleep_long() {
  for (;;) nap(24 * 3600 * 1000L);
}

// Where the plan wants a thread to be in the end. Returns only for one that is to exit.
void act(const Player& player) {
  const std::string& last = player.last;
  if (last == "exit") return;
  const auto found = things.find(player.on);
  Thing* on = found == things.end() ? nullptr : found->second.get();
  const long amount = player.amount;
  if (last == "want") on->take();
  if (last == "share") on->share();
  if (last == "timed") on->timed(amount);
  if (last == "await") on->wait();
  if (last == "join") {
    for (const Player& other : players) {
      if (other.name == player.on) pthread_join(other.thread, nullptr);
    }
  }
  if (last == "child") {
    while (waitpid(-1, nullptr, 0) > 0) {
    }
  }
  if (last == "sleep") nap(amount);
  if (last == "pause") pause();
  if (last == "accept") {
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    check(listen(listener, 4) == 0, "listen");
    accept(listener, nullptr, nullptr);
  }
  if (last == "compute") {
    for (volatile unsigned long sum = 0;;) sum = sum + 1;
  }
  while (last == "naps") nap(amount);
  while (last == "rearm") on->timed(amount);
  while (last == "eat") on->wait();
  while (last == "feed") {
    nap(amount);
    on->signal();
  }
  while (last == "turns") {
    on->take();
    for (volatile int step = 0; step < 2000;) step = step + 1;
    on->give();
    nap(amount);
  }
  check(last == "sleep" || last == "pause" || last == "timed", player.name + ": the wait ended");
  sleep_long();
}

[[noreturn]] void run(int process);

void start_child(int number) {
  const pid_t child = fork();
  check(child >= 0, "fork");
  if (child > 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  run(number);
}

void* play(void* argument) {
  const Player& player = *static_cast<Player*>(argument);
  prctl(PR_SET_NAME, player.name.c_str());
  for (const std::string& take : player.takes) {
    Thing& thing = *things.at(take.substr(take.find(':') + 1));
    if (take.rfind("share:", 0) == 0) {
      thing.share();
    } else {
      thing.take();
    }
  }
  announce(player.name.c_str());
  bool is_main = true;
  for (const Player& other : players) {
    if (&other == &player) break;
    is_main = is_main && other.process != player.process;
  }
  for (std::size_t number = 0; is_main && number < processes.size(); ++number) {
    if (processes[number].parent != player.process || !processes[number].late) continue;
    pass(fork_gate);
    start_child(static_cast<int>(number));
  }
  pass(go_gate);
  act(player);
  return nullptr;
}

[[noreturn]] void run(int process) {
  for (std::size_t number = 0; number < processes.size(); ++number) {
    const Process& child = processes[number];
    if (child.parent == process && !child.late) start_child(static_cast<int>(number));
  }
  for (auto& [_, thing] : things) thing->start(process);
  Player* first = nullptr;
  for (Player& player : players) {
    if (player.process != process) continue;
    if (first == nullptr) {
      first = &player;
      player.thread = pthread_self();
    } else {
      check(pthread_create(&player.thread, nullptr, play, &player) == 0, "pthread_create");
    }
  }
  check(first != nullptr, "a process without threads");
  play(first);
  _exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  check(argc == 2, "usage: lockplay PLAN");
  const std::string path = argv[1];
  folder = path.substr(0, path.rfind('/'));
  fork_gate = open((folder + "/fork").c_str(), O_RDONLY | O_CLOEXEC);
  go_gate = open((folder + "/go").c_str(), O_RDONLY | O_CLOEXEC);
  check(fork_gate >= 0 && go_gate >= 0, "the gates");
  read_plan(argv[1]);
  run(0);
}
