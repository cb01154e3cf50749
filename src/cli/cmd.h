/* One function per subcommand. argv[0] is the subcommand's name. Each returns the process's exit
 * status (base/status.h). */
#ifndef SHOAL_CLI_CMD_H
#define SHOAL_CLI_CMD_H

#include "base/config.h"

int cmd_convert(struct config env, int argc, char **argv);
int cmd_inspect(struct config env, int argc, char **argv);
int cmd_quantize(struct config env, int argc, char **argv);
int cmd_pack(struct config env, int argc, char **argv);
int cmd_plan(struct config env, int argc, char **argv);
int cmd_generate(struct config env, int argc, char **argv);
int cmd_status(struct config env, int argc, char **argv);
int cmd_receipt(struct config env, int argc, char **argv);
int cmd_merge(struct config env, int argc, char **argv);
int cmd_score(struct config env, int argc, char **argv);
int cmd_embed(struct config env, int argc, char **argv);
int cmd_rank(struct config env, int argc, char **argv);
int cmd_serve(struct config env, int argc, char **argv);
int cmd_bench(struct config env, int argc, char **argv);
int cmd_diagnose(struct config env, int argc, char **argv);

#endif
