/* A JSON reader of just what a state file needs: a tree of values, freed as a whole. */
#ifndef HF_LAB_JSON_H
#define HF_LAB_JSON_H

enum json_kind { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

struct json {
    enum json_kind kind;
    char *key;          /* of a member of an object */
    char *text;         /* of a string */
    double number;      /* of a number; 0 or 1 of a bool */
    struct json *child; /* first element or member */
    struct json *next;  /* next sibling */
};

/* The tree, or NULL when the text is not one whole JSON value. */
struct json *json_parse(const char *text);
void json_free(struct json *value);

/* All accept NULL and values of another kind: the answer is then "not there". */
const struct json *json_get(const struct json *object, const char *key);
const char *json_text(const struct json *object, const char *key, const char *otherwise);
double json_number(const struct json *object, const char *key, double otherwise);
int json_is_null(const struct json *object, const char *key); /* null or not there */
int json_true(const struct json *object, const char *key, int otherwise);

#endif
