/* The lab's Docker runtime `nvidia`: writes down what it was asked, refuses cards that are not there, and
 * becomes runc. As `nvidia-container-runtime-hook` it is the prestart hook that `docker run --gpus` wants.
 * Every create becomes one JSON line in /var/lib/hf-lab/runtime.log. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../nvml/json.h"

#define FOLDER "/var/lib/hf-lab/"

static char *read_all(FILE *file)
{
    size_t size = 0, room = 65536;
    char *text = malloc(room);
    while (file && text) {
        size += fread(text + size, 1, room - size - 1, file);
        if (size + 1 < room)
            break;
        text = realloc(text, room *= 2);
    }
    if (text)
        text[size] = '\0';
    if (file && file != stdin)
        fclose(file);
    return text;
}

static struct json *read_json(const char *path)
{
    char *text = read_all(fopen(path, "r"));
    struct json *value = text ? json_parse(text) : NULL;
    free(text);
    return value;
}

static void put_string(FILE *out, const char *text)
{
    fputc('"', out);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            fputc('\\', out);
        if ((unsigned char)*text < 0x20)
            fprintf(out, "\\u%04x", *text);
        else
            fputc(*text, out);
    }
    fputc('"', out);
}

/* One line, written by one write(2) to a file opened for appending: lines of two containers never mix. */
static void record(const char *how, const char *id, const struct json *env)
{
    char *line = NULL, when[32];
    size_t size;
    FILE *out = open_memstream(&line, &size);
    time_t now = time(NULL);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime(&now));
    fprintf(out, "{\"time\":\"%s\",\"how\":\"%s\",\"container\":\"%s\",\"env\":{", when, how, id);
    const char *comma = "";
    for (const struct json *one = env ? env->child : NULL; one; one = one->next) {
        char *equals = one->kind == JSON_STRING ? strchr(one->text, '=') : NULL;
        if (!equals || (strncmp(one->text, "NVIDIA_", 7) && strncmp(one->text, "CUDA_", 5)))
            continue;
        *equals = '\0';
        fputs(comma, out);
        put_string(out, one->text);
        fputc(':', out);
        put_string(out, equals + 1);
        *equals = '=';
        comma = ",";
    }
    fputs("}}\n", out);
    fclose(out);
    int log = open(FOLDER "runtime.log", O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (log >= 0) {
        if (write(log, line, size) < 0)
            perror("hf-lab runtime: " FOLDER "runtime.log");
        close(log);
    }
    free(line);
}

static const char *value_of(const struct json *env, const char *name)
{
    size_t length = strlen(name);
    for (const struct json *one = env ? env->child : NULL; one; one = one->next)
        if (one->kind == JSON_STRING && strncmp(one->text, name, length) == 0 && one->text[length] == '=')
            return one->text + length + 1;
    return "";
}

/* By index, by uuid, or by the uuid of a MIG instance. A lost card cannot be given. */
static int is_there(const struct json *state, const char *wanted)
{
    const struct json *cards = json_get(state, "cards");
    int index = 0;
    for (const struct json *card = cards ? cards->child : NULL; card; card = card->next) {
        if (!json_true(card, "present", 1))
            continue;
        char number[16];
        snprintf(number, sizeof number, "%d", index++);
        const struct json *faults = json_get(card, "faults");
        if (json_get(faults, "handle") || json_get(faults, "*"))
            continue;
        if (!strcmp(wanted, number) || !strcmp(wanted, json_text(card, "uuid", "")))
            return 1;
        const struct json *list = json_get(card, "mig_instances");
        for (const struct json *one = list ? list->child : NULL; one; one = one->next)
            if (!strcmp(wanted, json_text(one, "uuid", "")))
                return 1;
    }
    return 0;
}

/* Say it on stderr and, as runc does, in the file that containerd reads a failed create's reason from. */
static int refuse(const char *log, const char *what, const char *detail)
{
    char text[4352];
    snprintf(text, sizeof text, "nvidia-container-cli: %s%s", what, detail);
    fprintf(stderr, "%s\n", text);
    FILE *out = log ? fopen(log, "a") : NULL;
    if (out) {
        fputs("{\"level\":\"error\",\"msg\":", out);
        put_string(out, text);
        fputs("}\n", out);
        fclose(out);
    }
    return 1;
}

/* 0 when every card of NVIDIA_VISIBLE_DEVICES is there; the first that is not is named. */
static int check(const struct json *env, const char *log)
{
    char wanted[4096];
    snprintf(wanted, sizeof wanted, "%s", value_of(env, "NVIDIA_VISIBLE_DEVICES"));
    if (!*wanted || !strcmp(wanted, "void") || !strcmp(wanted, "none"))
        return 0;
    struct json *state = read_json(FOLDER "cards.json");
    const struct json *faults = json_get(state, "faults");
    if (!state || json_get(faults, "init"))
        return refuse(log, "initialization error: nvml error: driver not loaded", "");
    if (!strcmp(wanted, "all"))
        return 0;
    for (char *one = strtok(wanted, ","); one; one = strtok(NULL, ","))
        if (!is_there(state, one))
            return refuse(log, "device error: unknown device: ", one);
    return 0;
}

int main(int argc, char **argv)
{
    const char *bundle = NULL, *id = "", *log = NULL;
    int create = 0, hook = strstr(argv[0], "-hook") != NULL;
    struct json *given = NULL;
    char path[4096];
    if (hook) {
        char *text = read_all(stdin);
        given = text ? json_parse(text) : NULL;
        bundle = json_text(given, "bundle", NULL);
        id = json_text(given, "id", "");
        create = bundle != NULL;
    }
    for (int at = 1; at < argc && !hook; at++) {
        create |= !strcmp(argv[at], "create") || !strcmp(argv[at], "run");
        if (!strcmp(argv[at], "--bundle") && at + 1 < argc)
            bundle = argv[at + 1];
        if (!strcmp(argv[at], "--log") && at + 1 < argc)
            log = argv[at + 1];
        id = argv[at]; /* the last word of a create */
    }
    if (create && bundle) {
        snprintf(path, sizeof path, "%s/config.json", bundle);
        struct json *config = read_json(path);
        const struct json *env = json_get(json_get(config, "process"), "env");
        record(hook ? "hook" : "runtime", id, env);
        if (check(env, log) != 0)
            return 1;
    }
    if (hook)
        return 0;
    argv[0] = "runc";
    execvp("runc", argv);
    perror("hf-lab runtime: runc");
    return 127;
}
