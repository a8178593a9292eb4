#include "json.h"

#include <stdlib.h>
#include <string.h>

/* Deeper nesting than any state file has; keeps a broken file from eating the stack. */
#define DEEPEST 64

struct reader {
    const char *at;
    int depth;
};

static struct json *read_value(struct reader *in);

static void skip_blanks(struct reader *in)
{
    in->at += strspn(in->at, " \t\r\n");
}

static int take(struct reader *in, char wanted)
{
    skip_blanks(in);
    if (*in->at != wanted)
        return 0;
    in->at++;
    return 1;
}

static char *put_utf8(char *out, unsigned point)
{
    if (point < 0x80) {
        *out++ = (char)point;
    } else if (point < 0x800) {
        *out++ = (char)(0xC0 | point >> 6);
        *out++ = (char)(0x80 | (point & 0x3F));
    } else {
        *out++ = (char)(0xE0 | point >> 12);
        *out++ = (char)(0x80 | (point >> 6 & 0x3F));
        *out++ = (char)(0x80 | (point & 0x3F));
    }
    return out;
}

/* A string after its opening quote. What is decoded is never longer than what is written. */
static char *read_string(struct reader *in)
{
    char *text = malloc(strlen(in->at) + 1), *out = text;
    while (text && *in->at && *in->at != '"') {
        char c = *in->at++;
        if (c != '\\') {
            *out++ = c;
            continue;
        }
        c = *in->at;
        if (!c)
            break;
        in->at++;
        const char *plain = strchr("b\bf\fn\nr\rt\t", c);
        if (c == 'u') {
            char digits[5] = {0};
            strncpy(digits, in->at, 4);
            if (strspn(digits, "0123456789abcdefABCDEF") != 4)
                break;
            in->at += 4;
            out = put_utf8(out, (unsigned)strtoul(digits, NULL, 16));
        } else if (plain) {
            *out++ = plain[1];
        } else {
            *out++ = c;
        }
    }
    if (!text || *in->at != '"') {
        free(text);
        return NULL;
    }
    in->at++;
    *out = '\0';
    return text;
}

static int read_children(struct reader *in, struct json *parent, char end)
{
    struct json **last = &parent->child;
    if (take(in, end))
        return 1;
    do {
        char *key = NULL;
        if (parent->kind == JSON_OBJECT) {
            if (!take(in, '"') || !(key = read_string(in)))
                return 0;
            if (!take(in, ':')) {
                free(key);
                return 0;
            }
        }
        struct json *child = read_value(in);
        if (!child) {
            free(key);
            return 0;
        }
        child->key = key;
        *last = child;
        last = &child->next;
    } while (take(in, ','));
    return take(in, end);
}

static int read_word(struct reader *in, const char *word)
{
    size_t length = strlen(word);
    if (strncmp(in->at, word, length) != 0)
        return 0;
    in->at += length;
    return 1;
}

static int fill(struct reader *in, struct json *value)
{
    skip_blanks(in);
    switch (*in->at) {
    case '{':
        in->at++;
        value->kind = JSON_OBJECT;
        return read_children(in, value, '}');
    case '[':
        in->at++;
        value->kind = JSON_ARRAY;
        return read_children(in, value, ']');
    case '"':
        in->at++;
        value->kind = JSON_STRING;
        return (value->text = read_string(in)) != NULL;
    case 'n':
        return read_word(in, "null");
    case 't':
        value->kind = JSON_BOOL;
        value->number = 1;
        return read_word(in, "true");
    case 'f':
        value->kind = JSON_BOOL;
        return read_word(in, "false");
    default: {
        char *end;
        if (!*in->at || !strchr("-0123456789", *in->at))
            return 0;
        value->kind = JSON_NUMBER;
        value->number = strtod(in->at, &end);
        int moved = end != in->at;
        in->at = end;
        return moved;
    }
    }
}

static struct json *read_value(struct reader *in)
{
    struct json *value = calloc(1, sizeof *value);
    in->depth++;
    if (value && (in->depth > DEEPEST || !fill(in, value))) {
        json_free(value);
        value = NULL;
    }
    in->depth--;
    return value;
}

struct json *json_parse(const char *text)
{
    struct reader in = {text, 0};
    struct json *value = read_value(&in);
    skip_blanks(&in);
    if (value && *in.at) {
        json_free(value);
        return NULL;
    }
    return value;
}

void json_free(struct json *value)
{
    while (value) {
        struct json *next = value->next;
        json_free(value->child);
        free(value->key);
        free(value->text);
        free(value);
        value = next;
    }
}

const struct json *json_get(const struct json *object, const char *key)
{
    if (!object || object->kind != JSON_OBJECT)
        return NULL;
    for (const struct json *member = object->child; member; member = member->next)
        if (strcmp(member->key, key) == 0)
            return member;
    return NULL;
}

const char *json_text(const struct json *object, const char *key, const char *otherwise)
{
    const struct json *value = json_get(object, key);
    return value && value->kind == JSON_STRING ? value->text : otherwise;
}

double json_number(const struct json *object, const char *key, double otherwise)
{
    const struct json *value = json_get(object, key);
    return value && value->kind == JSON_NUMBER ? value->number : otherwise;
}

int json_is_null(const struct json *object, const char *key)
{
    const struct json *value = json_get(object, key);
    return !value || value->kind == JSON_NULL;
}

int json_true(const struct json *object, const char *key, int otherwise)
{
    const struct json *value = json_get(object, key);
    return value && value->kind == JSON_BOOL ? value->number != 0 : otherwise;
}
