// fork and exec, with each stream set up in the child.
#include "tests/tools/run_program.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <string_view>

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

namespace deepinfer {
namespace {

int checked(int result, const char* what) {
  if (result < 0) throw std::runtime_error(std::string(what) + ": " + std::strerror(errno));
  return result;
}

// Both ends of one stream.
class Channel {
 public:
  explicit Channel(Stream stream) : stream_(stream) {
    switch (stream) {
      case Stream::kCaptured: {
        std::string name = (std::filesystem::temp_directory_path() / "stream-XXXXXX").string();
        child_ = checked(mkstemp(name.data()), "mkstemp");
        checked(unlink(name.c_str()), "unlink");
        break;
      }
      case Stream::kTerminal: {
        parent_ = checked(posix_openpt(O_RDWR | O_NOCTTY), "posix_openpt");
        checked(grantpt(parent_), "grantpt");
        checked(unlockpt(parent_), "unlockpt");
        child_ = checked(open(ptsname(parent_), O_RDWR | O_NOCTTY), "open pseudo-terminal");
        termios mode;
        checked(tcgetattr(child_, &mode), "tcgetattr");
        mode.c_oflag &= ~static_cast<tcflag_t>(OPOST);  // no carriage returns
        checked(tcsetattr(child_, TCSANOW, &mode), "tcsetattr");
        break;
      }
      case Stream::kClosed:
        break;
      case Stream::kFull:
        child_ = checked(open("/dev/full", O_WRONLY), "open /dev/full");
        break;
      case Stream::kBrokenPipe: {
        std::array<int, 2> ends;
        checked(pipe(ends.data()), "pipe");
        close(ends[0]);
        child_ = ends[1];
        break;
      }
    }
    for (const int descriptor : {child_, parent_}) {
      if (descriptor >= 0) fcntl(descriptor, F_SETFD, FD_CLOEXEC);
    }
  }
  ~Channel() {
    if (child_ >= 0) close(child_);
    if (parent_ >= 0) close(parent_);
  }
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // In the child: makes this the stream `number`.
  void install(int number) const {
    if (child_ < 0) {
      close(number);
    } else {
      dup2(child_, number);  // clears close-on-exec
    }
  }

  // Reads what a terminal holds so far, so that the program never waits for room.
  void drain() {
    if (stream_ != Stream::kTerminal) return;
    pollfd ready{parent_, POLLIN, 0};
    std::array<char, 4096> buffer;
    while (poll(&ready, 1, 10) == 1 && (ready.revents & POLLIN) != 0) {
      const ssize_t count = read(parent_, buffer.data(), buffer.size());
      if (count <= 0) return;
      text_.append(buffer.data(), static_cast<size_t>(count));
    }
  }

  // What was written, after the program ended.
  std::string text() {
    drain();
    if (stream_ == Stream::kCaptured) {
      checked(static_cast<int>(lseek(child_, 0, SEEK_SET)), "lseek");
      std::array<char, 4096> buffer;
      ssize_t count = 0;
      while ((count = read(child_, buffer.data(), buffer.size())) > 0) {
        text_.append(buffer.data(), static_cast<size_t>(count));
      }
    }
    return text_;
  }

 private:
  Stream stream_;
  int child_ = -1;
  int parent_ = -1;
  std::string text_;
};

}  // namespace

ProgramResult run_program(const std::vector<std::string>& arguments,
                          const ProgramOptions& options) {
  std::map<std::string, std::string> environment = {{"TERM", "xterm"}};
  for (const char* name : {"PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "ASAN_OPTIONS", "UBSAN_OPTIONS",
                           "LSAN_OPTIONS", "TSAN_OPTIONS", "OMP_NUM_THREADS", "TMPDIR"}) {
    if (const char* value = std::getenv(name)) environment[name] = value;
  }
  for (const auto& [name, value] : options.environment) environment[name] = value;

  std::vector<std::string> environment_text;
  for (const auto& [name, value] : environment) environment_text.push_back(name + "=" + value);
  std::vector<char*> environment_pointers;
  for (std::string& text : environment_text) environment_pointers.push_back(text.data());
  environment_pointers.push_back(nullptr);

  std::vector<std::string> argument_text = {DEEPINFER_SIM_PROGRAM};
  argument_text.insert(argument_text.end(), arguments.begin(), arguments.end());
  std::vector<char*> argument_pointers;
  for (std::string& text : argument_text) argument_pointers.push_back(text.data());
  argument_pointers.push_back(nullptr);

  Channel out(options.out);
  Channel err(options.err);
  const pid_t child = checked(fork(), "fork");
  if (child == 0) {
    out.install(STDOUT_FILENO);
    err.install(STDERR_FILENO);
    if (!options.working_directory.empty() && chdir(options.working_directory.c_str()) != 0) {
      _exit(126);
    }
    execve(argument_pointers[0], argument_pointers.data(), environment_pointers.data());
    _exit(127);
  }
  int status = 0;
  pid_t ended = 0;
  while ((ended = waitpid(child, &status, WNOHANG)) == 0) {
    out.drain();
    err.drain();
    usleep(1000);
  }
  checked(ended, "waitpid");

  ProgramResult result;
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  result.out = out.text();
  result.err = err.text();
  return result;
}

}  // namespace deepinfer
