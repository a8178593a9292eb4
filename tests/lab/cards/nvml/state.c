#define _GNU_SOURCE
#include "state.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MOST_DEVICES 1024

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct json *tree;
static struct stat tree_of; /* which version of the file `tree` was read from */
static int users;           /* nvmlInit calls that no nvmlShutdown has matched */
static pid_t init_pid;      /* a fork does not inherit an initialised library */
static struct device devices[MOST_DEVICES];

static const char *path(void)
{
    const char *own = getenv("HF_LAB_CARDS");
    return own && *own ? own : "/var/lib/hf-lab/cards.json";
}

static int same_file(const struct stat *a, const struct stat *b)
{
    return a->st_ino == b->st_ino && a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
           a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

/* Make `tree` what the file says now. A missing file is a driver that is not loaded, a broken one is an
 * unknown error: neither may look like "no cards". */
static int refresh(void)
{
    struct stat now;
    FILE *file = fopen(path(), "r");
    if (!file || fstat(fileno(file), &now) != 0) {
        if (file)
            fclose(file);
        return DRIVER_NOT_LOADED;
    }
    if (tree && same_file(&now, &tree_of)) {
        fclose(file);
        return OK;
    }
    char *text = malloc((size_t)now.st_size + 1);
    size_t length = text ? fread(text, 1, (size_t)now.st_size, file) : 0;
    fclose(file);
    struct json *fresh = NULL;
    if (text) {
        text[length] = '\0';
        fresh = json_parse(text);
    }
    free(text);
    if (!fresh) {
        fprintf(stderr, "hf-lab nvml: %s is not JSON\n", path());
        return UNKNOWN;
    }
    json_free(tree);
    tree = fresh;
    tree_of = now;
    return OK;
}

static void nap(double seconds)
{
    struct timespec time = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&time, NULL);
}

static const struct json *fault_of(const struct json *holder, const char *name)
{
    const struct json *faults = json_get(holder, "faults");
    const struct json *fault = json_get(faults, name);
    return fault ? fault : json_get(faults, "*");
}

const struct json *first_card(const struct json *state)
{
    const struct json *cards = json_get(state, "cards");
    const struct json *card = cards && cards->kind == JSON_ARRAY ? cards->child : NULL;
    return !card || json_true(card, "present", 1) ? card : next_card(card);
}

const struct json *next_card(const struct json *card)
{
    do
        card = card->next;
    while (card && !json_true(card, "present", 1));
    return card;
}

/* The card of this uuid, or the card whose MIG instance has it. */
static int find_device(struct call *call, const char *uuid)
{
    for (const struct json *card = first_card(call->state); card; card = next_card(card)) {
        call->card = card;
        if (strcmp(json_text(card, "uuid", ""), uuid) == 0)
            return OK;
        const struct json *instances = json_get(card, "mig_instances");
        for (const struct json *one = instances ? instances->child : NULL; one; one = one->next)
            if (strcmp(json_text(one, "uuid", ""), uuid) == 0) {
                call->instance = one;
                return OK;
            }
    }
    call->card = NULL;
    return GPU_IS_LOST;
}

/* What a broken driver does to the program that calls it: memory that is never given back, a writer that the kernel
 * does not let go (the path is on a frozen file system), an end by a signal. */
static void harm(const struct json *fault)
{
    size_t leak = (size_t)json_number(fault, "leak_mib", 0) << 20;
    char *leaked = leak ? malloc(leak) : NULL;
    if (leaked)
        memset(leaked, 1, leak);
    const char *target = json_text(fault, "write", NULL);
    int file = target ? open(target, O_WRONLY) : -1;
    if (file >= 0) {
        if (write(file, "x", 1) < 0)
            perror(target);
        close(file);
    }
    int deadly = (int)json_number(fault, "signal", 0);
    if (deadly)
        raise(deadly);
}

/* Do the delay and the hang of the fault that `find` names now, without holding the lock meanwhile; its
 * error code, if it has one. A hang ends when the file no longer asks for it. */
static int suffer(const char *name, const char *card_name, const char *uuid)
{
    int delayed = 0;
    for (;;) {
        struct call call = {tree, NULL, NULL};
        const struct json *fault = name ? fault_of(tree, name) : NULL;
        if (!fault && uuid && find_device(&call, uuid) == OK)
            fault = fault_of(call.card, card_name);
        double delay = delayed ? 0 : json_number(fault, "delay_s", 0);
        int hang = json_true(fault, "hang", 0);
        int error = (int)json_number(fault, "error", 0);
        if (!hang && delay <= 0) {
            harm(fault);
            return error;
        }
        pthread_mutex_unlock(&lock);
        nap(hang ? 0.05 : delay);
        delayed = !hang;
        pthread_mutex_lock(&lock);
        int result = refresh();
        if (result != OK)
            return result;
    }
}

static int open_call(struct call *call, const char *name)
{
    (void)name;
    pthread_mutex_lock(&lock);
    int result = users > 0 && init_pid == getpid() ? refresh() : UNINITIALIZED;
    *call = (struct call){tree, NULL, NULL};
    return result;
}

int call_begin(struct call *call, const char *name, const struct device *device)
{
    int result = open_call(call, name);
    if (result == OK)
        result = suffer(name, name, device ? device->uuid : NULL);
    call->state = tree;
    if (result == OK && device)
        result = find_device(call, device->uuid);
    return result == OK ? OK : call_end(result);
}

int call_begin_handle(struct call *call, const char *name, const struct json *(*find)(const struct json *, const void *),
                      const void *wanted)
{
    int result = open_call(call, name);
    if (result == OK)
        result = suffer(name, name, NULL);
    const struct json *found = result == OK ? find(tree, wanted) : NULL;
    if (result == OK && !found)
        result = NOT_FOUND;
    if (result == OK) {
        char uuid[sizeof devices[0].uuid];
        snprintf(uuid, sizeof uuid, "%s", json_text(found, "uuid", ""));
        result = suffer(NULL, "handle", uuid);
        call->state = tree;
        if (result == OK)
            result = find_device(call, uuid);
    }
    return result == OK ? OK : call_end(result);
}

int call_end(int result)
{
    pthread_mutex_unlock(&lock);
    return result;
}

struct device *device_for(const char *uuid)
{
    for (int at = 0; at < MOST_DEVICES; at++) {
        if (!devices[at].uuid[0])
            snprintf(devices[at].uuid, sizeof devices[at].uuid, "%s", uuid);
        if (strcmp(devices[at].uuid, uuid) == 0)
            return &devices[at];
    }
    return NULL;
}

int library_init(void)
{
    pthread_mutex_lock(&lock);
    int result = refresh();
    if (result == OK)
        result = suffer("init", "init", NULL);
    if (result == OK) {
        if (init_pid != getpid())
            users = 0;
        init_pid = getpid();
        users++;
    }
    return call_end(result);
}

int library_shutdown(void)
{
    pthread_mutex_lock(&lock);
    int result = users > 0 && init_pid == getpid() ? OK : UNINITIALIZED;
    if (result == OK)
        users--;
    return call_end(result);
}
