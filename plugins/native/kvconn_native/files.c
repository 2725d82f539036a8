/* One whole file in or out. */
#define _GNU_SOURCE
#include "native.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifndef O_DIRECT
#define O_DIRECT 0
#endif

#define YOUNG_S 60 /* a file used less long ago does not get another time of use */
#define READS 3    /* a file that keeps changing while it is read is not there */

static int open_file(const char *path, int flags, int direct)
{
    int file = -1;
    if (direct && O_DIRECT)
        file = open(path, flags | O_CLOEXEC | O_DIRECT, 0600);
    if (file < 0 && (!direct || !O_DIRECT || errno == EINVAL))
        file = open(path, flags | O_CLOEXEC, 0600);
    return file;
}

/* After EINVAL: once more through the page cache, where alignment does not allow to pass it by. */
static int undirect(int file)
{
    int flags = fcntl(file, F_GETFL);
    if (flags < 0 || !O_DIRECT || !(flags & O_DIRECT))
        return 0;
    return !fcntl(file, F_SETFL, flags & ~O_DIRECT);
}

static int fill(int file, uint8_t *buffer, size_t size)
{
    size_t done = 0;
    while (done < size) {
        ssize_t count = pread(file, buffer + done, size - done, (off_t)done);
        if (count > 0)
            done += (size_t)count;
        else if (!count)
            return EBADMSG;
        else if (errno != EINTR && !(errno == EINVAL && undirect(file)))
            return errno;
    }
    return 0;
}

static int changed(const struct stat *before, const struct stat *after)
{
#ifdef __APPLE__
    return before->st_ctimespec.tv_sec != after->st_ctimespec.tv_sec ||
           before->st_ctimespec.tv_nsec != after->st_ctimespec.tv_nsec;
#else
    return before->st_ctim.tv_sec != after->st_ctim.tv_sec ||
           before->st_ctim.tv_nsec != after->st_ctim.tv_nsec;
#endif
}

/* EAGAIN: a file that was deleted meanwhile may have become another object, under its reader. */
static int read_open(int file, uint8_t *buffer, size_t size)
{
    struct stat before, after;
    if (fstat(file, &before))
        return errno;
    if (!S_ISREG(before.st_mode))
        return EISDIR;
    if ((uintmax_t)before.st_size != size)
        return EBADMSG;
    int end = fill(file, buffer, size);
    if (end)
        return end;
    if (fstat(file, &after))
        return errno;
    if (changed(&before, &after))
        return EAGAIN;
    if (llabs((long long)time(NULL) - (long long)before.st_mtime) > YOUNG_S) {
        int ignored = futimens(file, NULL);
        (void)ignored;
    }
    return 0;
}

int kvconn_read_file(const char *path, uint8_t *buffer, size_t size, int direct)
{
    int end = EAGAIN;
    for (int i = 0; i < READS && end == EAGAIN; i++) {
        int file = open_file(path, O_RDONLY, direct);
        if (file < 0)
            return errno;
        end = read_open(file, buffer, size);
        close(file);
    }
    return end == EAGAIN ? ENOENT : end;
}

/* Room for all of it first: a full disk is known before anything is written. */
static int allocate(int file, size_t size)
{
    struct stat status;
    if (fstat(file, &status))
        return errno;
    if ((uintmax_t)status.st_size == size)
        return 0;
#ifdef __linux__
    int end;
    do
        end = fallocate(file, 0, 0, (off_t)size) ? errno : 0;
    while (end == EINTR);
    if (end && end != EOPNOTSUPP && end != ENOSYS && end != EINVAL)
        return end;
#endif
    return ftruncate(file, (off_t)size) ? errno : 0;
}

static int write_open(int file, const uint8_t *buffer, size_t size, int sync)
{
    int end = allocate(file, size);
    size_t done = 0;
    while (!end && done < size) {
        ssize_t count = pwrite(file, buffer + done, size - done, (off_t)done);
        if (count > 0)
            done += (size_t)count;
        else if (!count)
            end = EIO;
        else if (errno != EINTR && !(errno == EINVAL && undirect(file)))
            end = errno;
    }
#ifdef __APPLE__
    if (!end && sync && fsync(file))
#else
    if (!end && sync && fdatasync(file))
#endif
        end = errno;
    return end;
}

int kvconn_write_file(const char *temporary, const char *path, const uint8_t *buffer, size_t size,
                      int direct, int sync)
{
    int file = open_file(temporary, O_WRONLY | O_CREAT, direct);
    if (file < 0)
        return errno;
    int end = write_open(file, buffer, size, sync);
    if (close(file) && !end && errno != EINTR)
        end = errno;
    if (!end && rename(temporary, path))
        end = errno;
    if (end)
        unlink(temporary);
    return end;
}
