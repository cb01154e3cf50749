/* Upper, lower and title case as in Python's str methods. Full mappings: one character may become
 * up to three. Called by jinja_string.c and jinja_test.c. */
#ifndef SHOAL_TEXT_CHAT_JINJA_CASE_H
#define SHOAL_TEXT_CHAT_JINJA_CASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { JINJA_CASE_MAX = 3 };
enum jinja_case { JINJA_CASE_UPPER, JINJA_CASE_LOWER, JINJA_CASE_TITLE };

/* Local. Writes c in the case `how` to `to`; returns the number of characters, 1 to 3. Follows
 * SpecialCasing.txt, but ignores its conditional mappings. */
size_t jinja_case_map(uint32_t c, enum jinja_case how, uint32_t to[JINJA_CASE_MAX]);

/* Local. True when c has the property Lowercase or Uppercase (DerivedCoreProperties.txt) or, for
 * JINJA_CASE_TITLE, the category Lt. */
bool jinja_case_is(uint32_t c, enum jinja_case how);

/* Local. True when c has the property Cased (jinja_cased) or Case_Ignorable (jinja_case_ignorable)
 * of DerivedCoreProperties.txt. */
bool jinja_cased(uint32_t c);
bool jinja_case_ignorable(uint32_t c);

#endif
