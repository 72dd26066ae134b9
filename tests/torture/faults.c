/* Makes system calls fail as a broken disk or a file server does: cc -shared -fPIC -O2 -o faults.so faults.c -ldl
 *
 * Loaded by LD_PRELOAD into every process of a run. RANKWISE_FAULT says what fails, as NAME=VALUE separated by commas:
 *
 *   call=open|write|rename|stat|fsync|close|unlink|mkdir|fallocate
 *   errno=NUMBER
 *   n=N         the N-th of the calls that match fails, counted over all processes
 *   times=T     and the T - 1 after it; 0: all after it
 *   path=A|B    a call matches where its path contains one of these
 *   process=P|Q and its process is one of these: the module of `python -m MODULE`, else the name of the script or program
 *
 * RANKWISE_FAULT_STATE names a file of at least 8 bytes that holds the count; what fails is written, a line for each, to
 * a file of this name and ".log": PROCESS ID, process, call, errno, path. With call=all nothing fails and every call that
 * matches is written there.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static char call_[32], path_[512], process_[512], me[256], log_[PATH_MAX];
static long errno_, first_ = 1, times_ = 1;
static int armed, record_all;
static _Atomic long *count;
static __thread int inside;

static long raw_open(const char *path, int flags, int mode) { return syscall(SYS_openat, AT_FDCWD, path, flags, mode); }

/* The name of this process: see above. */
static void find_name(void) {
    char text[8192];
    long file = raw_open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC, 0);
    long size = file < 0 ? 0 : syscall(SYS_read, file, text, sizeof text - 1);
    if (file >= 0) syscall(SYS_close, file);
    if (size <= 0) return;
    text[size] = 0;
    char *base = strrchr(text, '/') ? strrchr(text, '/') + 1 : text;
    int interpreter = !strncmp(base, "python", 6) || !strcmp(base, "bash") || !strcmp(base, "sh");
    const char *name = base;
    for (char *word = text + strlen(text) + 1; interpreter && word < text + size; word += strlen(word) + 1) {
        if (!strcmp(word, "-m") && word + 3 < text + size) { name = word + 3; break; }
        if (!strcmp(word, "-c")) break;
        if (word[0] != '-') { name = strrchr(word, '/') ? strrchr(word, '/') + 1 : word; break; }
    }
    snprintf(me, sizeof me, "%.255s", name);
}

static int one_of(const char *list, const char *what, int exactly) {
    char copy[512], *rest = copy, *word;
    if (!*list) return 1;
    snprintf(copy, sizeof copy, "%s", list);
    while ((word = strsep(&rest, "|")))
        if (exactly ? !strcmp(word, what) : strstr(what, word) != NULL) return 1;
    return 0;
}

static void set(char *to, size_t size, const char *value) { snprintf(to, size, "%s", value); }

__attribute__((constructor)) static void arm(void) {
    const char *fault = getenv("RANKWISE_FAULT"), *state = getenv("RANKWISE_FAULT_STATE");
    if (!fault || !state) return;
    char copy[2048], *rest = copy, *pair;
    set(copy, sizeof copy, fault);
    while ((pair = strsep(&rest, ","))) {
        char *value = strchr(pair, '=');
        if (!value) continue;
        *value++ = 0;
        if (!strcmp(pair, "call")) set(call_, sizeof call_, value);
        else if (!strcmp(pair, "path")) set(path_, sizeof path_, value);
        else if (!strcmp(pair, "process")) set(process_, sizeof process_, value);
        else if (!strcmp(pair, "errno")) errno_ = atol(value);
        else if (!strcmp(pair, "n")) first_ = atol(value);
        else if (!strcmp(pair, "times")) times_ = atol(value);
    }
    find_name();
    if (!one_of(process_, me, 1)) return;
    long file = raw_open(state, O_RDWR | O_CLOEXEC, 0);
    if (file < 0) return;
    void *mapped = mmap(NULL, sizeof *count, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    syscall(SYS_close, file);
    if (mapped == MAP_FAILED) return;
    count = mapped;
    snprintf(log_, sizeof log_, "%s.log", state);
    record_all = !strcmp(call_, "all");
    armed = 1;
}

static void tell(const char *call, const char *path) {
    char line[PATH_MAX + 512];
    int size = snprintf(line, sizeof line, "%d %s %s %ld %s\n", getpid(), me, call, errno_, path);
    long file = raw_open(log_, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (file < 0) return;
    if (syscall(SYS_write, file, line, (size_t)size) < 0) { /* what failed is then not known; the run is judged the same */ }
    syscall(SYS_close, file);
}

/* Whether this call is to fail now. */
static int fails(const char *call, const char *path) {
    if (!armed || inside || !path) return 0;
    if (!record_all && strcmp(call, call_)) return 0;
    if (!one_of(path_, path, 0)) return 0;
    int saved = errno;
    inside = 1;
    long number = atomic_fetch_add(count, 1) + 1;
    int now = record_all || (number >= first_ && (times_ == 0 || number < first_ + times_));
    if (now) tell(call, path);
    inside = 0;
    errno = saved;
    return now && !record_all;
}

static const char *of_fd(int fd, char *buffer) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = syscall(SYS_readlink, link, buffer, PATH_MAX - 1);
    if (size < 0) return NULL;
    buffer[size] = 0;
    return buffer;
}

static int fails_fd(const char *call, int fd) {
    char path[PATH_MAX];
    int saved = errno;
    if (!armed || inside || (!record_all && strcmp(call, call_))) return 0;
    const char *name = of_fd(fd, path);
    errno = saved;
    return fails(call, name);
}

static int fails_at(const char *call, int folder, const char *path) {
    char whole[2 * PATH_MAX], base[PATH_MAX];
    if (!armed || inside || (!record_all && strcmp(call, call_)) || !path) return 0;
    if (path[0] == '/') return fails(call, path);
    int saved = errno;
    const char *name = folder == AT_FDCWD ? (syscall(SYS_getcwd, base, sizeof base) > 0 ? base : NULL) : of_fd(folder, base);
    errno = saved;
    if (!name) return 0;
    snprintf(whole, sizeof whole, "%s/%s", name, path);
    return fails(call, whole);
}

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define FAIL do { errno = (int)errno_; return -1; } while (0)
#define MODE(flags, mode) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | __O_TMPFILE)) { va_list more; va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); }

int open(const char *path, int flags, ...) {
    MODE(flags, mode)
    REAL(open);
    if (fails_at("open", AT_FDCWD, path)) FAIL;
    return real(path, flags, mode);
}
int open64(const char *path, int flags, ...) {
    MODE(flags, mode)
    REAL(open64);
    if (fails_at("open", AT_FDCWD, path)) FAIL;
    return real(path, flags, mode);
}
int openat(int folder, const char *path, int flags, ...) {
    MODE(flags, mode)
    REAL(openat);
    if (fails_at("open", folder, path)) FAIL;
    return real(folder, path, flags, mode);
}
int openat64(int folder, const char *path, int flags, ...) {
    MODE(flags, mode)
    REAL(openat64);
    if (fails_at("open", folder, path)) FAIL;
    return real(folder, path, flags, mode);
}

ssize_t write(int fd, const void *from, size_t size) { REAL(write); if (fails_fd("write", fd)) FAIL; return real(fd, from, size); }
ssize_t writev(int fd, const struct iovec *from, int n) { REAL(writev); if (fails_fd("write", fd)) FAIL; return real(fd, from, n); }
ssize_t pwrite(int fd, const void *from, size_t size, off_t at) {
    REAL(pwrite);
    if (fails_fd("write", fd)) FAIL;
    return real(fd, from, size, at);
}
ssize_t pwrite64(int fd, const void *from, size_t size, off64_t at) {
    REAL(pwrite64);
    if (fails_fd("write", fd)) FAIL;
    return real(fd, from, size, at);
}

int rename(const char *from, const char *to) { REAL(rename); if (fails_at("rename", AT_FDCWD, to)) FAIL; return real(from, to); }
int renameat(int f, const char *from, int t, const char *to) {
    REAL(renameat);
    if (fails_at("rename", t, to)) FAIL;
    return real(f, from, t, to);
}
int renameat2(int f, const char *from, int t, const char *to, unsigned flags) {
    REAL(renameat2);
    if (fails_at("rename", t, to)) FAIL;
    return real(f, from, t, to, flags);
}

int stat(const char *path, struct stat *to) { REAL(stat); if (fails_at("stat", AT_FDCWD, path)) FAIL; return real(path, to); }
int stat64(const char *path, struct stat64 *to) { REAL(stat64); if (fails_at("stat", AT_FDCWD, path)) FAIL; return real(path, to); }
int lstat(const char *path, struct stat *to) { REAL(lstat); if (fails_at("stat", AT_FDCWD, path)) FAIL; return real(path, to); }
int lstat64(const char *path, struct stat64 *to) { REAL(lstat64); if (fails_at("stat", AT_FDCWD, path)) FAIL; return real(path, to); }
int fstatat(int folder, const char *path, struct stat *to, int flags) {
    REAL(fstatat);
    if (fails_at("stat", folder, path)) FAIL;
    return real(folder, path, to, flags);
}
int fstatat64(int folder, const char *path, struct stat64 *to, int flags) {
    REAL(fstatat64);
    if (fails_at("stat", folder, path)) FAIL;
    return real(folder, path, to, flags);
}
int faccessat(int folder, const char *path, int mode, int flags) {
    REAL(faccessat);
    if (fails_at("stat", folder, path)) FAIL;
    return real(folder, path, mode, flags);
}
int access(const char *path, int mode) { REAL(access); if (fails_at("stat", AT_FDCWD, path)) FAIL; return real(path, mode); }

int fsync(int fd) { REAL(fsync); if (fails_fd("fsync", fd)) FAIL; return real(fd); }
int fdatasync(int fd) { REAL(fdatasync); if (fails_fd("fsync", fd)) FAIL; return real(fd); }
/* The file is closed all the same, as Linux does it. */
int close(int fd) {
    REAL(close);
    int failing = fails_fd("close", fd), done = real(fd);
    if (failing) FAIL;
    return done;
}
int unlink(const char *path) { REAL(unlink); if (fails_at("unlink", AT_FDCWD, path)) FAIL; return real(path); }
int unlinkat(int folder, const char *path, int flags) {
    REAL(unlinkat);
    if (fails_at("unlink", folder, path)) FAIL;
    return real(folder, path, flags);
}
int mkdir(const char *path, mode_t mode) { REAL(mkdir); if (fails_at("mkdir", AT_FDCWD, path)) FAIL; return real(path, mode); }
int posix_fallocate(int fd, off_t at, off_t size) {
    REAL(posix_fallocate);
    if (fails_fd("fallocate", fd)) return (int)errno_;
    return real(fd, at, size);
}
int posix_fallocate64(int fd, off64_t at, off64_t size) {
    REAL(posix_fallocate64);
    if (fails_fd("fallocate", fd)) return (int)errno_;
    return real(fd, at, size);
}
