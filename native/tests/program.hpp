#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>

#include "proc/files.hpp"

namespace hangtrace::tests {

/// A program of its own, which is ended with this object.
class Program {
 public:
  explicit Program(const std::string& path) {
    int in[2];
    int out[2];
    REQUIRE(::pipe2(in, O_CLOEXEC) == 0);
    REQUIRE(::pipe2(out, O_CLOEXEC) == 0);
    pid_ = ::fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      ::dup2(in[0], STDIN_FILENO);
      ::dup2(out[1], STDOUT_FILENO);
      ::execl(path.c_str(), path.c_str(), static_cast<char*>(nullptr));
      ::_exit(127);
    }
    ::close(in[0]);
    ::close(out[1]);
    input_ = proc::Descriptor(in[1]);
    output_ = proc::Descriptor(out[0]);
  }
  ~Program() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  int pid() const { return pid_; }
  /// What it prints, to be read.
  int output() const { return output_.get(); }

 private:
  pid_t pid_ = -1;
  proc::Descriptor input_;  // open: it waits there for its end
  proc::Descriptor output_;
};

}  // namespace hangtrace::tests
