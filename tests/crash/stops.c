/* A disk that fails when it is told to, for one process and those that it makes. Loaded with LD_PRELOAD.

   disk_watch(folder, number, fault, log) starts. From then on each call that would change something below the folder has
   a number, from 1, counted over all processes. At the number that was given the fault happens:

     1 END     the process ends before the call
     2 TORN    a write takes half of its bytes, and then the process ends
     3 FULL    the disk is full: this call and all later ones that need room fail; an odd number lets half of a write in
     4 BROKEN  the call fails with EIO, once

   With a log, each call is written to it with its bytes, so that a power cut can be played from it (power.py):
   a line "number call length offset path second-path", and then the bytes.

   A sync is counted, and left out, which makes tries quick. Writes into shared mappings, and those of the C library's
   own streams, are not seen. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum fault { NONE, END, TORN, FULL, BROKEN };
enum verdict { ALLOWED, REFUSED, HALVED };

static struct shared { long calls, is_full; } *shared;
static char watched[PATH_MAX];
static size_t watched_length;
static int is_watching, log_file = -1;
static long chosen;
static enum fault fault;

#define NEXT(type, name, ...) static type (*next)(__VA_ARGS__); if (!next) next = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

__attribute__((constructor)) static void begin(void) {
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

void disk_watch(const char *folder, long number, int what, const char *log) {
    snprintf(watched, sizeof watched, "%s", folder);
    watched_length = strlen(watched);
    shared->calls = shared->is_full = 0;
    chosen = number;
    fault = what;
    if (*log) log_file = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
    is_watching = 1;
}

void disk_rest(void) { is_watching = 0; }

static int concerns(const char *path) {
    return is_watching && path && !strncmp(path, watched, watched_length) && (path[watched_length] == '/' || !path[watched_length]);
}

static const char *name_of(int file, char *name) {
    char link[48];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = is_watching ? readlink(link, name, PATH_MAX - 1) : -1;
    if (length < 0) return NULL;
    name[length] = 0;
    return name;
}

static const char *whole_path(int folder, const char *path, char *name) {
    char base[PATH_MAX];
    if (!is_watching || !path) return NULL;
    if (*path == '/') return path;
    if (folder == AT_FDCWD ? !getcwd(base, sizeof base) : !name_of(folder, base)) return NULL;
    return snprintf(name, PATH_MAX, "%s/%s", base, path) < PATH_MAX ? name : NULL;
}

struct call { const char *name, *path, *other; const void *bytes; size_t length; long long offset; int needs_room, can_halve; };

static void note(long number, const struct call *call) {
    char line[2 * PATH_MAX + 96];
    int length = snprintf(line, sizeof line, "%ld\t%s\t%zu\t%lld\t%s\t%s\n", number, call->name, call->bytes ? call->length : 0,
                          call->offset, call->path, call->other ? call->other : "");
    struct iovec both[2] = {{line, (size_t)length}, {(void *)call->bytes, call->bytes ? call->length : 0}};
    NEXT(ssize_t, writev, int, const struct iovec *, int);
    if (next(log_file, both, 2) < 0) _exit(3);
}

static enum verdict judge(const struct call *call) {
    long number = __sync_add_and_fetch(&shared->calls, 1);
    if (log_file >= 0) note(number, call);
    if (shared->is_full && call->needs_room) { errno = ENOSPC; return REFUSED; }
    if (number != chosen) return ALLOWED;
    switch (fault) {
    case END: _exit(137);
    case TORN: if (call->can_halve) return HALVED; _exit(137);
    case FULL:
        if (!call->needs_room) return ALLOWED;
        shared->is_full = 1;
        if (call->can_halve && number % 2) return HALVED;
        errno = ENOSPC;
        return REFUSED;
    case BROKEN: errno = EIO; return REFUSED;
    default: return ALLOWED;
    }
}

static void after_half(void) { if (fault == TORN) _exit(137); }

/* Writes */

#define WRITE(call_name, file, content, size, where, all, half) do { \
    char name_[PATH_MAX]; const char *path_ = name_of(file, name_); \
    if (!concerns(path_)) return all; \
    struct call call_ = {call_name, path_, NULL, content, size, where, 1, (size) > 1}; \
    enum verdict verdict_ = judge(&call_); \
    if (verdict_ == REFUSED) return -1; \
    if (verdict_ == ALLOWED) return all; \
    ssize_t got_ = half; after_half(); return got_; } while (0)

/* Where the next write goes; a file that is only added to says its size. */
static long long place(int file) {
    struct stat about;
    if ((fcntl(file, F_GETFL) & O_APPEND) && !fstat(file, &about)) return about.st_size;
    return lseek64(file, 0, SEEK_CUR);
}

ssize_t write(int file, const void *bytes, size_t size) {
    NEXT(ssize_t, write, int, const void *, size_t);
    WRITE("write", file, bytes, size, place(file), next(file, bytes, size), next(file, bytes, size / 2));
}
ssize_t pwrite64(int file, const void *bytes, size_t size, off64_t offset) {
    NEXT(ssize_t, pwrite64, int, const void *, size_t, off64_t);
    WRITE("write", file, bytes, size, offset, next(file, bytes, size, offset), next(file, bytes, size / 2, offset));
}
ssize_t pwrite(int file, const void *bytes, size_t size, off_t offset) { return pwrite64(file, bytes, size, offset); }

/* Several parts at once are written one by one, so that each is a call of its own. */
ssize_t writev(int file, const struct iovec *parts, int count) {
    char name[PATH_MAX];
    if (!concerns(name_of(file, name))) {
        NEXT(ssize_t, writev, int, const struct iovec *, int);
        return next(file, parts, count);
    }
    ssize_t total = 0;
    for (int each = 0; each < count; each++) {
        if (!parts[each].iov_len) continue;
        ssize_t got = write(file, parts[each].iov_base, parts[each].iov_len);
        if (got < 0) return total ? total : -1;
        total += got;
        if ((size_t)got < parts[each].iov_len) break;
    }
    return total;
}

/* Copies within the kernel are refused, and whoever copies falls back to reading and writing. */
#define COPY(type, name, file, ...) char path_[PATH_MAX]; if (concerns(name_of(file, path_))) { errno = ENOSYS; return -1; }
ssize_t sendfile64(int file, int from, off64_t *offset, size_t size) {
    COPY(ssize_t, sendfile64, file)
    NEXT(ssize_t, sendfile64, int, int, off64_t *, size_t);
    return next(file, from, offset, size);
}
ssize_t sendfile(int file, int from, off_t *offset, size_t size) { return sendfile64(file, from, offset, size); }
ssize_t copy_file_range(int from, off64_t *here, int file, off64_t *there, size_t size, unsigned flags) {
    COPY(ssize_t, copy_file_range, file)
    NEXT(ssize_t, copy_file_range, int, off64_t *, int, off64_t *, size_t, unsigned);
    return next(from, here, file, there, size, flags);
}

/* What is no write: a call that is allowed or refused as a whole */

#define WHOLE(call_name, where, second, number_, room, done) do { \
    const char *where_ = where; \
    if (!concerns(where_)) return done; \
    struct call call_ = {call_name, where_, second, NULL, 0, number_, room, 0}; \
    return judge(&call_) == REFUSED ? -1 : (done); } while (0)

int fsync(int file) { char name[PATH_MAX]; NEXT(int, fsync, int); if (concerns(name_of(file, name))) WHOLE("sync", name, NULL, 0, 0, 0); return next(file); }
int fdatasync(int file) { char name[PATH_MAX]; NEXT(int, fdatasync, int); if (concerns(name_of(file, name))) WHOLE("sync", name, NULL, 0, 0, 0); return next(file); }
int ftruncate64(int file, off64_t size) { char name[PATH_MAX]; NEXT(int, ftruncate64, int, off64_t); WHOLE("cut", name_of(file, name), NULL, size, 0, next(file, size)); }
int ftruncate(int file, off_t size) { return ftruncate64(file, size); }
int truncate64(const char *path, off64_t size) { char name[PATH_MAX]; NEXT(int, truncate64, const char *, off64_t); WHOLE("cut", whole_path(AT_FDCWD, path, name), NULL, size, 0, next(path, size)); }
int truncate(const char *path, off_t size) { return truncate64(path, size); }
int fallocate64(int file, int mode, off64_t offset, off64_t size) { char name[PATH_MAX]; NEXT(int, fallocate64, int, int, off64_t, off64_t); WHOLE("reserve", name_of(file, name), NULL, offset + size, 1, next(file, mode, offset, size)); }
int fallocate(int file, int mode, off_t offset, off_t size) { return fallocate64(file, mode, offset, size); }
int posix_fallocate64(int file, off64_t offset, off64_t size) { return fallocate64(file, 0, offset, size) ? errno : 0; }
int posix_fallocate(int file, off_t offset, off_t size) { return posix_fallocate64(file, offset, size); }

static int exists(int folder, const char *path) {
    struct stat about;
    return !fstatat(folder, path, &about, AT_SYMLINK_NOFOLLOW);
}

/* The path of a rename or link is the one that is watched; the other one goes with it. */
#define BOTH(call_name, first, second, done) do { \
    char one_[PATH_MAX], two_[PATH_MAX]; const char *from_ = first, *to_ = second; \
    WHOLE(call_name, concerns(to_) ? to_ : from_, from_, 0, 0, done); } while (0)

int renameat2(int one, const char *from, int two, const char *to, unsigned flags) {
    NEXT(int, renameat2, int, const char *, int, const char *, unsigned);
    BOTH("rename", whole_path(one, from, one_), whole_path(two, to, two_), next(one, from, two, to, flags));
}
int renameat(int one, const char *from, int two, const char *to) { return renameat2(one, from, two, to, 0); }
int rename(const char *from, const char *to) { return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0); }
int linkat(int one, const char *from, int two, const char *to, int flags) {
    NEXT(int, linkat, int, const char *, int, const char *, int);
    BOTH("link", whole_path(one, from, one_), whole_path(two, to, two_), next(one, from, two, to, flags));
}
int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }
int symlinkat(const char *to, int folder, const char *path) { char name[PATH_MAX]; NEXT(int, symlinkat, const char *, int, const char *); WHOLE("symlink", whole_path(folder, path, name), to, 0, 1, next(to, folder, path)); }
int symlink(const char *to, const char *path) { return symlinkat(to, AT_FDCWD, path); }

/* A call that cannot change anything, because there is nothing, or already something, is no call. */
int unlinkat(int folder, const char *path, int flags) {
    char name[PATH_MAX];
    NEXT(int, unlinkat, int, const char *, int);
    if (!is_watching || !exists(folder, path)) return next(folder, path, flags);
    WHOLE(flags & AT_REMOVEDIR ? "rmdir" : "unlink", whole_path(folder, path, name), NULL, 0, 0, next(folder, path, flags));
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
int mkdirat(int folder, const char *path, mode_t mode) {
    char name[PATH_MAX];
    NEXT(int, mkdirat, int, const char *, mode_t);
    if (!is_watching || exists(folder, path)) return next(folder, path, mode);
    WHOLE("mkdir", whole_path(folder, path, name), NULL, 0, 1, next(folder, path, mode));
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

/* Opening is a call where it makes a file, or empties one. */
static const char *opening(int folder, const char *path, int flags, char *name) {
    struct stat about;
    const char *where = flags & (O_CREAT | O_TRUNC) && (flags & O_TMPFILE) != O_TMPFILE ? whole_path(folder, path, name) : NULL;
    if (!concerns(where)) return NULL;
    if (stat(where, &about)) return flags & O_CREAT ? where : NULL;
    return flags & O_TRUNC && about.st_size ? where : NULL;
}
int openat64(int folder, const char *path, int flags, ...) {
    char name[PATH_MAX];
    va_list more;
    va_start(more, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;
    va_end(more);
    NEXT(int, openat64, int, const char *, int, ...);
    const char *where = is_watching ? opening(folder, path, flags, name) : NULL;
    if (!where) return next(folder, path, flags, mode);
    int is_new = !exists(AT_FDCWD, where);
    WHOLE(is_new ? "create" : "cut", where, NULL, 0, is_new, next(folder, path, flags, mode));
}
#define OPENS(name, folder, ...) int name(__VA_ARGS__, int flags, ...) { \
    va_list more; va_start(more, flags); \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; va_end(more); \
    return openat64(folder, path, flags, mode); }
OPENS(open, AT_FDCWD, const char *path)
OPENS(open64, AT_FDCWD, const char *path)
OPENS(openat, folder, int folder, const char *path)
int creat(const char *path, mode_t mode) { return openat64(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return creat(path, mode); }
