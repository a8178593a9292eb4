/* Preloaded into the agent of a fault scenario: after each sync of its journal's log it tells whoever listens at
 * $HF_COMMITS, and goes on when that one has answered. Nobody there: it goes on at once. The journal is synced once
 * a commit, so the process stands still exactly between a commit and all that it allows. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static const char LOG_NAME[] = "/journal.db-wal";

static int is_log(int fd)
{
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path);
    size_t name = sizeof LOG_NAME - 1;
    return length >= (ssize_t)name && memcmp(path + length - name, LOG_NAME, name) == 0;
}

static void tell(void)
{
    const char *place = getenv("HF_COMMITS");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (!place || strlen(place) >= sizeof address.sun_path)
        return;
    strcpy(address.sun_path, place);
    int link = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (link < 0)
        return;
    char answer;
    if (connect(link, (struct sockaddr *)&address, sizeof address) == 0)
        while (read(link, &answer, 1) < 0 && errno == EINTR)
            ;
    close(link);
}

static int synced(int fd, const char *name)
{
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    int result = real(fd), error = errno;
    if (result == 0 && is_log(fd))
        tell();
    errno = error;
    return result;
}

int fdatasync(int fd)
{
    return synced(fd, "fdatasync");
}

int fsync(int fd)
{
    return synced(fd, "fsync");
}
