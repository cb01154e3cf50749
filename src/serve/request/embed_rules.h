/* How the texts of a line become vectors (shoal embed) or scores (shoal rank), according to the
 * checkpoint's files and the flags. Made by job_embed.c and job_rank.c, read by the files of
 * requests and of result rows, the scheduler and the server. */
#ifndef SHOAL_SERVE_REQUEST_EMBED_RULES_H
#define SHOAL_SERVE_REQUEST_EMBED_RULES_H

#include "base/json.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The hidden rows, after the model's last norm, from which a text's vector is made. */
enum request_pool {
    POOL_NONE, /* an answer or log-probabilities are wanted, not a vector */
    POOL_LAST, /* the row of the last token */
    POOL_CLS,  /* the row of the first token */
    POOL_MEAN, /* the mean of all rows */
};

/* The encodings of a vector in a result row. */
enum embed_encoding {
    EMBED_FLOATS,
    EMBED_BASE64, /* base64 of little-endian f32, as OpenAI's "encoding_format": "base64" */
};

enum { EMBED_INPUTS_MAX = 2048 }; /* texts of one line, as many as OpenAI allows */

/* How a text's logits become its scores. */
enum rank_activation {
    RANK_NONE,    /* scores are the logits */
    RANK_SIGMOID, /* each logit by itself becomes a probability */
    RANK_SOFTMAX, /* all logits together become the probabilities of the classes */
};

/* How texts are scored. All borrowed. */
struct rank_rules {
    const float *head; /* [n_labels, D]; NULL: vectors are wanted */
    size_t n_labels;   /* rows of head: classes, each of which gives a score, unless is_yes_no */
    bool is_yes_no;    /* head has the rows of the tokens no and yes: one score, yes minus no */
    double scale;      /* multiplies the logits; not used if `dense` is set */
    enum rank_activation activation;
    float (*exponential)(float);
    const char *pair_template; /* with {query}, {document} and {instruction}; NULL: no pairs */
    bool adds_special;         /* the tokenizer adds its tokens around a pair */
    bool joins;     /* the tokenizer joins query and document, and there is no pair_template */
    bool has_types; /* if it joins: the tokens have types, which the tokenizer sets */
    /* An encoder's head has a dense layer and a tanh before `head`, and adds `bias` after it. With
     * `norm` [D], norm_bias [D] and norm_eps it has a GELU and a layer norm instead of the tanh.
     * Other heads have none of these: all pointers are NULL. */
    const float *dense, *dense_bias, *bias; /* [D inputs, D outputs], [D], [n_labels] */
    const float *norm, *norm_bias;
    double norm_eps;
    float (*gelu)(float);
    double *work;            /* [D] scratch of request_scores; NULL if `dense` is NULL */
    const char *instruction; /* the instruction for pairs whose lines have none */
};

struct embed_rules {
    enum request_pool pool;
    bool is_whole;                 /* the model is an encoder: a text is computed in one step */
    bool normalizes;               /* vectors have length 1 */
    int32_t width;                 /* D */
    int32_t dimensions;            /* the dimensions of a vector when its line does not set them,
                                      1 to D */
    enum embed_encoding encoding;  /* the encoding when the line does not set it */
    int32_t max_tokens;            /* of a text; 0: as many as the context holds */
    bool cuts_texts;               /* cut too long texts; otherwise, and if a pair, a chat or a list
                                      of token ids is too long, the line becomes an error row */
    const struct js_node *prompts; /* an object with texts by their names; NULL: none */
    struct rank_rules rank;
    const char *prompt; /* name of the text before each input when its line does not set it;
                           NULL: none. All pointers are borrowed */
};

#endif
