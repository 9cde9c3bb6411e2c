"""System calls that take their time: a library for LD_PRELOAD, made by the machine's compiler.

A call named by SLOW_CALL takes SLOW_SECONDS longer where its file's path contains SLOW_PATH, in
the process whose RANK is SLOW_RANK, or, without one, in all.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char* variable(const char* name) {
  const char* value = getenv(name);
  return value ? value : "";
}

static void take_time(const char* call, const char* path) {
  const char* rank = getenv("SLOW_RANK");
  if (strcmp(variable("SLOW_CALL"), call) != 0 || !strstr(path, variable("SLOW_PATH"))) return;
  if (rank && strcmp(variable("RANK"), rank) != 0) return;
  struct timespec left = {atoi(variable("SLOW_SECONDS")), 0};
  while (nanosleep(&left, &left) != 0) {}
}

static void take_time_for(const char* call, int fd) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t size = readlink(link, path, sizeof path - 1);
  path[size < 0 ? 0 : size] = 0;
  take_time(call, path);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int fsync(int fd) {
  take_time_for("fsync", fd);
  return REAL(fsync)(fd);
}

int sync_file_range(int fd, off64_t first, off64_t count, unsigned flags) {
  take_time_for("sync_file_range", fd);
  return REAL(sync_file_range)(fd, first, count, flags);
}

int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const int mode = va_arg(rest, int);
  va_end(rest);
  take_time("open", path);
  return REAL(open)(path, flags, mode);
}
"""


def slow_calls(folder: Path, call: str, path: str, seconds: int, rank: int | None = None) -> dict:
    """The variables that make a program's calls slow; empty without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("g++")
    if not compiler:
        return {}
    library = folder / "slow_calls.so"
    words = [compiler, "-x", "c", "-shared", "-fPIC", "-o", library, "-", "-ldl"]
    subprocess.run(words, input=SOURCE, text=True, check=True)
    variables = {
        "LD_PRELOAD": str(library),
        "SLOW_CALL": call,
        "SLOW_PATH": path,
        "SLOW_SECONDS": str(seconds),
    }
    return variables if rank is None else {**variables, "SLOW_RANK": str(rank)}
